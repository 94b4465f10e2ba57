//! A doorbell: wakes one thread, and costs its ringer a system call only while that thread sleeps.
//!
//! Protocol. The owner looks for work; finding none it calls `about_to_sleep`, looks once more, and only then sleeps on
//! the eventfd. A ringer first makes the work visible and then rings. Both sides put a sequentially consistent fence
//! between their write and their read, so either the owner sees the work or the ringer sees it asleep.

use super::eventfd::EventFd;
use super::stall;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

/// A handle to one thread's bell; clones ring the same one.
#[derive(Clone, Debug)]
pub struct Doorbell {
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Bell {
    owner: String,
    sleeping: AtomicBool,
    /// When the sleeping owner was rung, as `stall::now_ns`, 0 when it has answered.
    rung_at_ns: AtomicU64,
    event: EventFd,
}

impl Doorbell {
    /// A bell for the thread named `owner` (for the log only).
    pub fn new(owner: &str) -> io::Result<Doorbell> {
        Ok(Doorbell {
            bell: Arc::new(Bell {
                owner: owner.to_string(),
                sleeping: AtomicBool::new(false),
                rung_at_ns: AtomicU64::new(0),
                event: EventFd::new()?,
            }),
        })
    }

    /// Wakes the owner if it sleeps or is about to. Everything written before is visible to it then.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.bell.sleeping.load(Ordering::Relaxed) && self.bell.sleeping.swap(false, Ordering::AcqRel) {
            self.bell.rung_at_ns.store(stall::now_ns(), Ordering::Relaxed);
            self.bell.event.signal();
        }
    }

    /// The owner says that it will sleep unless a last look, after this call, finds work.
    pub fn about_to_sleep(&self) {
        self.bell.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner says that it is awake: rings are free again. Reports a bell that was answered late.
    pub fn awake(&self) {
        self.bell.sleeping.store(false, Ordering::Relaxed);
        let rung_at_ns = self.bell.rung_at_ns.swap(0, Ordering::Relaxed);
        if rung_at_ns != 0 {
            let waited = Duration::from_nanos(stall::now_ns().saturating_sub(rung_at_ns));
            stall::report(waited, &format_args!("mailboxes of {}", self.bell.owner));
        }
    }

    /// Takes signals that a wait on the descriptor left, so that the next wait is not ended by them.
    pub(super) fn clear(&self) {
        self.bell.event.wait(Some(Duration::ZERO));
    }

    /// Sleeps until rung, at most `timeout`, unless `has_work` finds something after the bell was armed.
    pub fn sleep_unless(&self, timeout: Option<Duration>, has_work: impl FnOnce() -> bool) {
        self.about_to_sleep();
        if !has_work() {
            self.bell.event.wait(timeout);
        }
        self.awake();
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.bell.event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// Two threads hand a counter back and forth; a lost wake-up would hang one of them.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: usize = 20_000;
        let bells = [Doorbell::new("left").unwrap(), Doorbell::new("right").unwrap()];
        let turn = Arc::new(AtomicUsize::new(0));
        let player = |side: usize| {
            let (mine, other, turn) = (bells[side].clone(), bells[1 - side].clone(), turn.clone());
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let expected = 2 * round + side;
                    while turn.load(Ordering::Acquire) != expected {
                        mine.sleep_unless(None, || turn.load(Ordering::Acquire) == expected);
                    }
                    turn.store(expected + 1, Ordering::Release);
                    other.ring();
                }
            })
        };
        let threads = [player(0), player(1)];
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(turn.load(Ordering::Acquire), 2 * ROUNDS);
    }

    #[test]
    fn ringing_the_awake_leaves_no_signal() {
        let bell = Doorbell::new("test").unwrap();
        bell.ring();
        assert!(!bell.bell.event.wait(Some(Duration::ZERO)));
        bell.about_to_sleep();
        bell.ring();
        bell.ring();
        assert!(bell.bell.event.wait(Some(Duration::ZERO)));
    }
}
