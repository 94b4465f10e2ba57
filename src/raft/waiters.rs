//! Who waits for which entry of the log.
//!
//! What this member appends as the leader gets consecutive indexes, so those who wait for it form a queue in log order:
//! O(1) to add and to find, no hashing. What went to another leader is found by the request's id, when its entry comes
//! back. A waiter is answered once: by its entry, or with "dropped" when another entry took its place. Bytes of what is
//! under way are counted here.

use super::storage::Position;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The serve core.
    pub core: usize,
    /// Its token.
    pub token: u64,
}

/// A proposal in the log of this member, as it leads.
#[derive(Debug)]
struct Appended {
    position: Position,
    /// `None` for a proposal of the member itself.
    waiter: Option<Waiter>,
    bytes: usize,
}

/// A proposal on its way through another leader.
#[derive(Debug)]
struct Forwarded {
    waiter: Option<Waiter>,
    bytes: usize,
    /// When it is given up: it, or its answer, was lost.
    until: Duration,
    /// The term of the leader it went to.
    term: u64,
}

/// The waiters of proposals under way.
#[derive(Debug, Default)]
pub struct Waiters {
    queue: VecDeque<Appended>,
    forwarded: HashMap<u64, Forwarded>,
    bytes: usize,
}

impl Waiters {
    /// Adds a proposal of `bytes` bytes that was appended at `position`. Those who wait for what an earlier term had
    /// there go to `dropped`: another leader's log took its place meanwhile.
    pub fn appended(&mut self, position: Position, waiter: Option<Waiter>, bytes: usize, dropped: &mut Vec<Waiter>) {
        while let Some(last) = self.queue.back().filter(|last| last.position.index >= position.index) {
            assert!(
                last.position.term < position.term,
                "entry {} is waited for already",
                position.index
            );
            let replaced = self.queue.pop_back().expect("there is a last one");
            self.bytes -= replaced.bytes;
            dropped.extend(replaced.waiter);
        }
        self.bytes += bytes;
        self.queue.push_back(Appended {
            position,
            waiter,
            bytes,
        });
    }

    /// Adds a proposal that went to the leader of `term` under the request's `id`, to be given up at `until`.
    pub fn forwarded(&mut self, id: u64, term: u64, waiter: Option<Waiter>, bytes: usize, until: Duration) {
        self.bytes += bytes;
        let forwarded = Forwarded {
            waiter,
            bytes,
            until,
            term,
        };
        let before = self.forwarded.insert(id, forwarded);
        assert!(before.is_none(), "request id {id:x} is in use");
    }

    /// Who waits for the entry that is applied now, by its position. Those whose entries were replaced go to `dropped`,
    /// and so do those whose entries come behind it and are of an earlier term: nothing older follows in any log.
    pub fn take(&mut self, applied: Position, dropped: &mut Vec<Waiter>) -> Option<Waiter> {
        while let Some(first) = self.queue.front() {
            if first.position.index > applied.index && first.position.term >= applied.term {
                return None;
            }
            let first = self.queue.pop_front().expect("there is a first one");
            self.bytes -= first.bytes;
            if first.position == applied {
                return first.waiter;
            }
            dropped.extend(first.waiter);
        }
        None
    }

    /// Who waits for a request that went to another leader.
    pub fn take_forwarded(&mut self, id: u64) -> Option<Waiter> {
        if self.forwarded.is_empty() {
            return None;
        }
        let forwarded = self.forwarded.remove(&id)?;
        self.bytes -= forwarded.bytes;
        forwarded.waiter
    }

    /// Gives up what was forwarded and not heard of in time; whoever waited for it.
    pub fn expire(&mut self, now: Duration) -> Vec<Waiter> {
        self.give_up(|forwarded| forwarded.until <= now)
    }

    /// Gives up what went to leaders before `term`: they can commit nothing any more, so it is most likely lost.
    pub fn leader_is_of(&mut self, term: u64) -> Vec<Waiter> {
        self.give_up(|forwarded| forwarded.term < term)
    }

    fn give_up(&mut self, is_lost: impl Fn(&Forwarded) -> bool) -> Vec<Waiter> {
        let mut lost: Vec<(u64, Forwarded)> = self.forwarded.extract_if(|_, forwarded| is_lost(forwarded)).collect();
        // In the order in which they were asked for, not in a hash map's.
        lost.sort_unstable_by_key(|(id, _)| *id);
        self.bytes -= lost.iter().map(|(_, forwarded)| forwarded.bytes).sum::<usize>();
        lost.into_iter().filter_map(|(_, forwarded)| forwarded.waiter).collect()
    }

    /// How many proposals are under way.
    pub fn count(&self) -> usize {
        self.queue.len() + self.forwarded.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(token: u64) -> Waiter {
        Waiter { core: 0, token }
    }

    fn at(index: u64, term: u64) -> Position {
        Position { index, term }
    }

    #[test]
    fn each_waiter_is_answered_once() {
        let mut waiters = Waiters::default();
        let mut dropped = Vec::new();
        for index in 5..9 {
            waiters.appended(at(index, 2), Some(waiter(index)), 10, &mut dropped);
        }
        assert_eq!(waiters.take(at(4, 2), &mut dropped), None);
        assert_eq!(waiters.take(at(5, 2), &mut dropped), Some(waiter(5)));
        assert_eq!(waiters.take(at(6, 2), &mut dropped), Some(waiter(6)));
        assert_eq!((&dropped[..], waiters.count()), (&[][..], 2));
        assert_eq!(waiters.take(at(7, 3), &mut dropped), None, "another leader's entry");
        assert_eq!(dropped, [waiter(7), waiter(8)]);
        assert_eq!((waiters.count(), waiters.bytes()), (0, 0));
    }

    /// However long nothing more is written.
    #[test]
    fn what_lay_behind_the_end_of_a_later_leaders_log_is_dropped() {
        let mut waiters = Waiters::default();
        let mut dropped = Vec::new();
        for index in 5..8 {
            waiters.appended(at(index, 2), Some(waiter(index)), 10, &mut dropped);
        }
        assert_eq!(waiters.take(at(5, 2), &mut dropped), Some(waiter(5)));
        assert_eq!((waiters.take(at(6, 3), &mut dropped), waiters.count()), (None, 0));
        assert_eq!(dropped, [waiter(6), waiter(7)]);
        assert_eq!(waiters.bytes(), 0);
    }

    #[test]
    fn what_a_later_term_appends_takes_the_place_of_what_an_earlier_one_had_there() {
        let mut waiters = Waiters::default();
        let mut dropped = Vec::new();
        for index in 5..8 {
            waiters.appended(at(index, 2), Some(waiter(index)), 10, &mut dropped);
        }
        waiters.appended(at(6, 4), Some(waiter(60)), 10, &mut dropped);
        assert_eq!(dropped, [waiter(7), waiter(6)]);
        assert_eq!((waiters.count(), waiters.bytes()), (2, 20));
        assert_eq!(waiters.take(at(5, 2), &mut dropped), Some(waiter(5)));
        assert_eq!(waiters.take(at(6, 4), &mut dropped), Some(waiter(60)));
    }

    #[test]
    fn what_was_forwarded_is_found_by_its_id_or_given_up() {
        let mut waiters = Waiters::default();
        let until = Duration::from_secs(5);
        for id in 1..4 {
            waiters.forwarded(id, id, Some(waiter(id)), 10, until * id as u32);
        }
        assert_eq!(waiters.take_forwarded(2), Some(waiter(2)));
        assert_eq!(waiters.take_forwarded(2), None);
        assert_eq!(waiters.expire(until), [waiter(1)]);
        assert_eq!(waiters.take_forwarded(1), None);
        assert_eq!((waiters.count(), waiters.bytes()), (1, 10));
        assert_eq!(waiters.leader_is_of(3), []);
        assert_eq!(waiters.leader_is_of(4), [waiter(3)]);
        assert_eq!(waiters.bytes(), 0);
    }
}
