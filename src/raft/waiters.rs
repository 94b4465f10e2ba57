//! Who waits for which entry of the log.
//!
//! Proposals get consecutive indexes, so the waiters form a queue in log order: O(1) to add and to find, no hashing. A
//! waiter is answered once: by its entry, or with "dropped" when another entry took its place.

use super::storage::Position;
use std::collections::VecDeque;

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The serve core.
    pub core: usize,
    /// Its token.
    pub token: u64,
}

/// The waiters of proposals under way.
#[derive(Debug, Default)]
pub struct Waiters {
    queue: VecDeque<(Position, Waiter)>,
}

impl Waiters {
    /// Adds the waiter of the entry at `position`, which lies behind all those waited for.
    pub fn push(&mut self, position: Position, waiter: Waiter) {
        if let Some((last, _)) = self.queue.back() {
            assert!(
                position.index > last.index,
                "entry {} is waited for already",
                position.index
            );
        }
        self.queue.push_back((position, waiter));
    }

    /// The waiter of the entry that is applied now. Waiters whose entries were replaced go to `dropped`.
    pub fn take(&mut self, applied: Position, dropped: &mut Vec<Waiter>) -> Option<Waiter> {
        while let Some((position, waiter)) = self.queue.front().copied() {
            if position.index > applied.index {
                return None;
            }
            self.queue.pop_front();
            if position == applied {
                return Some(waiter);
            }
            dropped.push(waiter);
        }
        None
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waiter_is_answered_once() {
        let waiter = |token| Waiter { core: 0, token };
        let at = |index, term| Position { index, term };
        let mut waiters = Waiters::default();
        for index in 5..9 {
            waiters.push(at(index, 2), waiter(index));
        }
        let mut dropped = Vec::new();
        assert_eq!(waiters.take(at(4, 2), &mut dropped), None);
        assert_eq!(waiters.take(at(5, 2), &mut dropped), Some(waiter(5)));
        assert_eq!(waiters.take(at(6, 3), &mut dropped), None, "another leader's entry");
        assert_eq!(dropped, [waiter(6)]);
        assert_eq!(waiters.take(at(8, 2), &mut dropped), Some(waiter(8)));
        assert_eq!(dropped, [waiter(6), waiter(7)]);
        assert_eq!(waiters.count(), 0);
    }
}
