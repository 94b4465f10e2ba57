//! What long reads hold in memory while they run, against one share of the memory budget for all cores.
//!
//! A read takes hold of bytes before it allocates them. When the share is used up, one read at a time may go beyond it
//! (so that reads which wait for each other's bytes can't all wait for ever) and the others wait until there is room.
//! A read that would need more than the share by itself is refused. So all reads together hold at most twice the share
//! they are given here; `server` gives half of what the budget says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The share, for all cores. Clones are the same.
#[derive(Clone, Debug)]
pub struct ReadMemory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    max: usize,
    used: AtomicUsize,
    /// Whether some read may go beyond `max` now.
    exceeded: AtomicBool,
}

/// How an attempt to hold more ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// The bytes are held.
    Yes,
    /// Others have to let go first.
    NotYet,
    /// The read would hold more than there is for all.
    Never,
}

/// What one read holds; given back when dropped.
#[derive(Debug)]
pub struct Grant {
    shared: Arc<Shared>,
    bytes: usize,
    exceeds: bool,
}

impl ReadMemory {
    /// A share of `max` bytes.
    pub fn new(max: usize) -> ReadMemory {
        ReadMemory {
            shared: Arc::new(Shared {
                max,
                used: AtomicUsize::new(0),
                exceeded: AtomicBool::new(false),
            }),
        }
    }

    /// A read that holds nothing yet.
    pub fn grant(&self) -> Grant {
        Grant {
            shared: self.shared.clone(),
            bytes: 0,
            exceeds: false,
        }
    }

    /// What one read may hold at most.
    pub fn max(&self) -> usize {
        self.shared.max
    }

    /// What all reads hold.
    pub fn used(&self) -> usize {
        self.shared.used.load(Ordering::Relaxed)
    }
}

impl Grant {
    /// Grants `bytes` more, if that is possible now.
    pub fn grow(&mut self, bytes: usize) -> Grown {
        let Shared { max, used, exceeded } = &*self.shared;
        if self.bytes.saturating_add(bytes) > *max {
            return Grown::Never;
        }
        let within = |used: usize| used.checked_add(bytes).filter(|used| used <= max);
        if used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            if !self.exceeds && exceeded.swap(true, Ordering::Relaxed) {
                return Grown::NotYet;
            }
            self.exceeds = true;
            used.fetch_add(bytes, Ordering::Relaxed);
        }
        self.bytes += bytes;
        Grown::Yes
    }

    /// Gives back all but `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let given = self.bytes.saturating_sub(bytes);
        self.bytes -= given;
        let used = self.shared.used.fetch_sub(given, Ordering::Relaxed) - given;
        if self.exceeds && used <= self.shared.max {
            self.exceeds = false;
            self.shared.exceeded.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.shared.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.exceeds {
            self.shared.exceeded.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_goes_beyond_and_the_others_wait() {
        let memory = ReadMemory::new(100);
        let (mut first, mut second, mut third) = (memory.grant(), memory.grant(), memory.grant());
        assert_eq!((first.grow(60), second.grow(40)), (Grown::Yes, Grown::Yes));
        assert_eq!(second.grow(60), Grown::Yes, "one may go beyond");
        assert_eq!((first.grow(1), third.grow(1)), (Grown::NotYet, Grown::NotYet));
        assert_eq!(second.grow(1), Grown::Never, "nobody may hold more than all");
        assert_eq!(memory.used(), 160);
        drop(second);
        assert_eq!((first.grow(40), third.grow(1)), (Grown::Yes, Grown::Yes));
        drop((first, third));
        assert_eq!(memory.used(), 0);
        assert_eq!(memory.grant().grow(100), Grown::Yes);
    }

    #[test]
    fn what_is_given_back_lets_others_go_on() {
        let memory = ReadMemory::new(100);
        let (mut first, mut second, mut third) = (memory.grant(), memory.grant(), memory.grant());
        assert_eq!((first.grow(80), second.grow(80)), (Grown::Yes, Grown::Yes));
        second.shrink(30);
        assert_eq!(third.grow(30), Grown::NotYet, "the second is beyond still");
        second.shrink(10);
        assert_eq!((memory.used(), third.grow(30)), (90, Grown::Yes), "now the third is");
        second.shrink(50);
        assert_eq!(memory.used(), 120);
    }

    #[test]
    fn holds_on_many_threads_come_to_nothing_in_the_end() {
        let memory = ReadMemory::new(1000);
        std::thread::scope(|scope| {
            for thread in 1..4usize {
                let memory = memory.clone();
                scope.spawn(move || {
                    for step in 0..2000 {
                        let mut grant = memory.grant();
                        while grant.grow(400 + thread * 50) != Grown::Yes {
                            std::thread::yield_now();
                        }
                        if step % 3 == 0 {
                            while grant.grow(400) == Grown::NotYet {
                                std::thread::yield_now();
                            }
                        }
                        assert!(memory.used() <= 2000);
                    }
                });
            }
        });
        assert_eq!(memory.used(), 0);
    }
}
