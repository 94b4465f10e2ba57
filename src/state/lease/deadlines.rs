//! Which lease is due next: a heap in which entries may be out of date.
//!
//! A lease has one valid entry here at most, and knows its time. Moving a deadline back, as a renewal does, leaves the
//! entry where it is; when its time comes the owner sees that the lease is not due and puts it in again. So a renewal
//! costs nothing here, and what is not renewed costs one push and one pop. Entries of revoked or rescheduled leases are
//! dropped when they come up, or all at once when they are the greater part.

use crate::limits::LEASE_STALE_ENTRIES_MIN;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// The heap. Times count from the clock's origin.
#[derive(Debug, Default)]
pub struct Deadlines {
    heap: BinaryHeap<Reverse<(Duration, i64)>>,
    stale: usize,
}

impl Deadlines {
    /// Adds an entry for lease `id`.
    pub fn push(&mut self, at: Duration, id: i64) {
        self.heap.push(Reverse((at, id)));
    }

    /// Takes the earliest entry if it is due.
    pub fn pop_due(&mut self, now: Duration) -> Option<(Duration, i64)> {
        let Reverse((at, _)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// The earliest time at which something may be due.
    pub fn next(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// An entry popped was out of date.
    pub fn popped_stale(&mut self) {
        self.stale = self.stale.saturating_sub(1);
    }

    /// An entry went out of date. Drops all that are once they are the greater part: `is_valid` says which are not.
    pub fn mark_stale(&mut self, is_valid: impl Fn(Duration, i64) -> bool) {
        self.stale += 1;
        if self.stale > LEASE_STALE_ENTRIES_MIN && self.stale > self.heap.len() / 2 {
            self.heap.retain(|Reverse((at, id))| is_valid(*at, *id));
            self.stale = 0;
        }
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        *self = Deadlines::default();
    }

    /// Entries, out-of-date ones included.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.heap.len()
    }
}
