//! An eventfd: the one way in which a thread of ringd wakes another that sleeps in the kernel.
//!
//! It is a blocking one: io_uring answers a read of a non-blocking file with EAGAIN instead of waiting for it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// An eventfd, closed when dropped.
#[derive(Debug)]
pub(super) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> io::Result<EventFd> {
        // SAFETY: eventfd takes no pointers; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just created and is owned by nobody else.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes whoever reads or polls it, now or later.
    pub(super) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        loop {
            // SAFETY: the pointer and the length describe `one`, which outlives the call.
            let written = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            if written == 8 {
                return;
            }
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "eventfd write: {error}");
        }
    }

    /// Waits until it was signalled, at most `timeout` (no bound if `None`), and takes the signals. Whether there were
    /// any.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let timespec = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timespec = timespec
            .as_ref()
            .map_or(std::ptr::null(), |timespec| timespec as *const _);
        // SAFETY: `poll` is one pollfd, `timespec` is null or points to a timespec, both outlive the call.
        let ready = unsafe { libc::ppoll(&mut poll, 1, timespec, std::ptr::null()) };
        if ready <= 0 {
            return false;
        }
        let mut count = [0u8; 8];
        // SAFETY: `count` has the eight bytes that an eventfd read fills. It doesn't block: this thread is the only
        // reader.
        let read = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        read == 8
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_kept_until_taken() {
        let event = EventFd::new().unwrap();
        assert!(!event.wait(Some(Duration::ZERO)));
        event.signal();
        event.signal();
        assert!(event.wait(None));
        assert!(!event.wait(Some(Duration::from_millis(1))));
    }
}
