//! Which connections have something to read, or room to write: epoll(7), level-triggered.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

const EVENTS: usize = 256;

pub struct Ready {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Ready {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: a descriptor just made, which nothing else owns.
            epoll: unsafe { OwnedFd::from_raw_fd(epoll) },
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS],
        })
    }

    /// Watches a socket as number `which`.
    pub fn add(&self, socket: BorrowedFd<'_>, which: usize) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, which, false)
    }

    /// Says whether room to write is waited for too.
    pub fn change(&self, socket: BorrowedFd<'_>, which: usize, writing: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, which, writing)
    }

    fn control(&self, operation: i32, socket: BorrowedFd<'_>, which: usize, writing: bool) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | if writing { libc::EPOLLOUT } else { 0 }) as u32,
            u64: which as u64,
        };
        // SAFETY: `event` outlives the call, which does not keep it.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, socket.as_raw_fd(), &mut event) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Waits, and appends what is ready: its number, and whether there is something to read.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<(usize, bool)>) -> io::Result<()> {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: `events` has room for EVENTS entries; both outlive the call; no signal mask.
        let count = unsafe {
            libc::epoll_pwait2(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS as i32,
                &timeout,
                std::ptr::null(),
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(())
            } else {
                Err(error)
            };
        }
        for event in &self.events[..count as usize] {
            let (which, events) = (event.u64 as usize, event.events);
            ready.push((which, events & !(libc::EPOLLOUT as u32) != 0));
        }
        Ok(())
    }
}
