//! Software transactions, as etcd's `concurrency.STM` makes them with its isolation "repeatable reads": keys are read
//! one by one, then a Txn writes if none of them was changed. One that was changed meanwhile is tried again.

use super::{Counts, Turn, Workload};
use crate::load::recipe::{Call, NUMBERS_PER_CALL, Recipe};
use crate::load::reply::Reply;
use std::collections::VecDeque;
use std::time::Instant;

const GET: usize = 0;
const COMMIT: usize = 1;

pub struct Stm {
    recipes: [Recipe; 2],
    keys: u64,
    keys_per_txn: usize,
    slots: Vec<Txn>,
    queue: VecDeque<(usize, Call)>,
    conflicts: u64,
}

/// The transaction of a slot.
#[derive(Clone, Copy)]
struct Txn {
    began: Instant,
    /// Its keys are this one and those behind it.
    key: u64,
    read: usize,
    revisions: [i64; NUMBERS_PER_CALL],
}

impl Stm {
    /// Transactions of `keys_per_txn` of the keys, of which `write_percent` of a hundred are written.
    pub fn new(slots: usize, keys: u64, keys_per_txn: usize, write_percent: usize, value_bytes: usize) -> Self {
        assert!((1..=NUMBERS_PER_CALL).contains(&keys_per_txn) && keys_per_txn as u64 <= keys);
        let txn = Txn {
            began: Instant::now(),
            key: 0,
            read: 0,
            revisions: [0; NUMBERS_PER_CALL],
        };
        let writes = keys_per_txn * write_percent / 100;
        Self {
            // Of a key that is not there the answer is short.
            recipes: [
                Recipe::get(false, 1),
                Recipe::stm_commit(keys_per_txn, writes, value_bytes),
            ],
            keys,
            keys_per_txn,
            slots: vec![txn; slots],
            queue: VecDeque::new(),
            conflicts: 0,
        }
    }

    /// What a slot's transaction does next.
    fn step(&self, slot: usize) -> Call {
        let txn = &self.slots[slot];
        let [number, others @ ..] = txn.revisions;
        match txn.read < self.keys_per_txn {
            true => Call {
                recipe: GET,
                key: txn.key + txn.read as u64,
                ..Call::default()
            },
            false => Call {
                recipe: COMMIT,
                key: txn.key,
                number,
                others,
                ..Call::default()
            },
        }
    }
}

impl Workload for Stm {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, turn: Turn) -> Option<Call> {
        self.slots[turn.slot] = Txn {
            began: turn.due,
            key: turn.random % (self.keys - self.keys_per_txn as u64 + 1),
            read: 0,
            revisions: [0; NUMBERS_PER_CALL],
        };
        Some(self.step(turn.slot))
    }

    fn done(&mut self, slot: usize, call: &Call, reply: &Reply) -> Counts {
        let txn = &mut self.slots[slot];
        if call.recipe == COMMIT {
            if reply.second == 1 {
                return Counts::Since(txn.began);
            }
            self.conflicts += 1;
            txn.read = 0;
        } else {
            txn.revisions[txn.read] = reply.changed;
            txn.read += 1;
        }
        self.queue.push_back((slot, self.step(slot)));
        Counts::Part
    }

    fn at_once(&mut self) -> Option<(usize, Call)> {
        self.queue.pop_front()
    }

    fn told(&self) -> Option<(&'static str, u64)> {
        Some(("conflicts", self.conflicts))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::turn;
    use super::*;

    #[test]
    fn a_conflict_reads_again() {
        let mut stm = Stm::new(1, 100, 2, 50, 8);
        let due = turn(0, 42);
        let mut call = stm.next(due).unwrap();
        let mut step = |stm: &mut Stm, changed, second| {
            let reply = Reply {
                changed,
                second,
                ..Reply::default()
            };
            let counts = stm.done(0, &call, &reply);
            call = stm.at_once().map_or(call, |(_, call)| call);
            (counts, call.recipe, call.key, call.number, call.others[0])
        };
        assert_eq!(step(&mut stm, 7, 0), (Counts::Part, GET, 43, 0, 0));
        assert_eq!(step(&mut stm, 8, 0), (Counts::Part, COMMIT, 42, 7, 8));
        assert_eq!(step(&mut stm, 0, 0), (Counts::Part, GET, 42, 0, 0));
        assert_eq!(step(&mut stm, 9, 0), (Counts::Part, GET, 43, 0, 0));
        assert_eq!(step(&mut stm, 8, 0), (Counts::Part, COMMIT, 42, 9, 8));
        assert_eq!(step(&mut stm, 0, 1).0, Counts::Since(due.due));
        assert_eq!(stm.told(), Some(("conflicts", 1)));
    }
}
