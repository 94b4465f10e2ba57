//! Waiting for the signals that ask the process to end, and passing over those that would end it without a word.

use std::io;

/// SIGTERM and SIGINT, held back until somebody waits for them.
pub struct Termination {
    signals: libc::sigset_t,
}

impl Termination {
    /// Holds the signals back from the calling thread and every thread it starts from now on. Call it first in `main`:
    /// a thread that was there before would still be killed by them.
    pub fn hold_back() -> io::Result<Termination> {
        // SAFETY: sigset_t is a bit mask, for which zeros are a valid value; it is emptied before it is used.
        let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `signals` outlives the calls and the numbers are those of signals.
        let result = unsafe {
            libc::sigemptyset(&mut signals);
            libc::sigaddset(&mut signals, libc::SIGTERM);
            libc::sigaddset(&mut signals, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result));
        }
        Ok(Termination { signals })
    }

    /// Sleeps until one of the signals comes and says which.
    pub fn wait(&self) -> &'static str {
        loop {
            let mut signal = 0;
            // SAFETY: the set and `signal` outlive the call.
            let result = unsafe { libc::sigwait(&self.signals, &mut signal) };
            match (result, signal) {
                (0, libc::SIGTERM) => return "SIGTERM",
                (0, libc::SIGINT) => return "SIGINT",
                _ => {}
            }
        }
    }
}

/// Lets a write beyond the process's limit of a file's size fail, as any other write that fails, instead of killing the
/// process by SIGXFSZ.
pub fn ignore_file_size_signal() -> io::Result<()> {
    // SAFETY: no handler of ours is installed; the signal is one that may be ignored.
    match unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_held_back_is_waited_for() {
        std::thread::spawn(|| {
            let termination = Termination::hold_back().unwrap();
            for (signal, name) in [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT")] {
                // SAFETY: raise sends the signal to the calling thread, which holds it back.
                assert_eq!(unsafe { libc::raise(signal) }, 0);
                assert_eq!(termination.wait(), name);
            }
        })
        .join()
        .unwrap();
    }
    #[test]
    fn a_file_size_signal_is_survived() {
        ignore_file_size_signal().unwrap();
        // SAFETY: raise sends the signal to the calling thread.
        assert_eq!(unsafe { libc::raise(libc::SIGXFSZ) }, 0);
    }
}
