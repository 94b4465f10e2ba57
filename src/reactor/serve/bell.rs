//! Waiting for a core's doorbell without blocking its executor: the eventfd is read through the executor's ring.

use crate::reactor::Doorbell;
use glommio::io::BufferedFile;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};

/// The waiting side of a bell on a serve core. One per bell.
pub struct BellWaiter {
    bell: Doorbell,
    event: BufferedFile,
}

impl BellWaiter {
    /// The calling core owns `bell`: mailboxes to it are made with it.
    pub fn new(bell: &Doorbell) -> io::Result<BellWaiter> {
        // SAFETY: the bell keeps the descriptor open for the duration of the borrow.
        let borrowed = unsafe { BorrowedFd::borrow_raw(bell.as_raw_fd()) };
        let descriptor = borrowed.try_clone_to_owned()?.into_raw_fd();
        // SAFETY: the duplicate was just made and is owned by nobody else.
        let event = unsafe { BufferedFile::from_raw_fd(descriptor) };
        let bell = bell.clone();
        Ok(BellWaiter { bell, event })
    }

    /// Waits until the bell rings, unless `has_work`, asked after the bell was armed, finds a message. May end without
    /// a reason.
    pub async fn wait_unless(&mut self, has_work: impl FnOnce() -> bool) {
        let armed = Armed(&self.bell);
        armed.0.about_to_sleep();
        if !has_work() {
            // An eventfd is read whole, eight bytes, and only when it was signalled.
            if let Err(error) = self.event.read_at(0, 8).await {
                panic!("reading the doorbell: {error}");
            }
        }
    }
}

/// Disarms the bell at the end of the wait, also of one that is dropped half-way.
struct Armed<'a>(&'a Doorbell);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.0.awake();
    }
}
