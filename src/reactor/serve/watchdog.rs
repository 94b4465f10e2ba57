//! A watch over each serve core from outside: a core that sleeps on although its timers are due is woken by a signal.
//!
//! An executor that waits relies on the kernel to notice that one of its linked rings has something for it. Once a
//! core was seen to stand still for minutes, timers and sockets and all, on a virtual machine under load; whether the
//! kernel had missed something was not proved. A signal always ends a wait, and all that had come is found. A core that
//! is merely busy takes no notice of it.

use crate::limits;
use crate::reactor::stall;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

/// Does nothing unless a handler is there, and nobody else sends it to a thread.
const SIGNAL: libc::c_int = libc::SIGURG;

/// What a core shows of itself.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// When its timers last worked, as `stall::now_ns`.
    at_ns: AtomicU64,
    thread: AtomicI32,
    ended: AtomicBool,
}

impl Heartbeat {
    /// The calling thread is the core's.
    pub fn begin(&self) {
        self.beat();
        // SAFETY: gettid has no preconditions.
        self.thread.store(unsafe { libc::gettid() }, Ordering::Release);
    }

    /// The core's timers work.
    pub fn beat(&self) {
        self.at_ns.store(stall::now_ns(), Ordering::Relaxed);
    }

    /// The core's thread is about to end.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn late(&self) -> Duration {
        Duration::from_nanos(stall::now_ns().saturating_sub(self.at_ns.load(Ordering::Relaxed)))
    }

    /// Wakes the thread, whatever it waits for.
    fn nudge(&self) {
        let thread = self.thread.load(Ordering::Acquire);
        if thread != 0 && !self.ended.load(Ordering::Acquire) {
            // SAFETY: the signal's handler does nothing; a thread that has ended meanwhile gives an error, and a thread
            // of the same number in this process is not disturbed by it either.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
        }
    }
}

/// Starts the watch over the core `name`; it ends with the core.
pub(super) fn watch(name: &str, heartbeat: Arc<Heartbeat>) -> io::Result<()> {
    install_handler()?;
    let name = name.to_string();
    let watching = thread::Builder::new().name(format!("{name}-watch"));
    watching.spawn(move || {
        let mut wait = stall::Wait::new(limits::SERVE_LATE);
        while !heartbeat.ended.load(Ordering::Acquire) {
            thread::sleep(limits::SERVE_HEARTBEAT);
            let late = heartbeat.late();
            wait.report(late, &format_args!("{name} to wake up by itself, or to end a turn"));
            if late > limits::SERVE_LATE {
                heartbeat.nudge();
            }
        }
    })?;
    Ok(())
}

extern "C" fn do_nothing(_: libc::c_int) {}

fn install_handler() -> io::Result<()> {
    static INSTALL: Once = Once::new();
    let mut result = 0;
    INSTALL.call_once(|| {
        // SAFETY: zeros are a valid sigaction: no flags, no signals blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` outlives the call, and its handler may run anywhere, since it does nothing.
        result = unsafe { libc::sigaction(SIGNAL, &action, std::ptr::null_mut()) };
    });
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
