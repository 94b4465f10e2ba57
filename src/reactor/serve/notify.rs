//! A notification between tasks of one core.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// One permit and one waiter: `notify` leaves the permit, `notified` waits for it and takes it. Several calls before it
/// is taken count as one.
#[derive(Debug, Default)]
pub struct Notify {
    permit: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Notify {
    /// Without a permit.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Leaves the permit and schedules the waiter.
    pub fn notify(&self) {
        self.permit.set(true);
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }

    /// Waits for the permit and takes it. One task at a time: a second one would take the first one's place.
    pub async fn notified(&self) {
        poll_fn(|context| {
            if self.permit.take() {
                return Poll::Ready(());
            }
            self.waiter.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
