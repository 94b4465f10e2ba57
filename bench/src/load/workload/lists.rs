//! Lists: one call each, or page by page, or as an apiserver that has started anew reads them and then watches.

use super::{Counts, Turn, Workload};
use crate::load::recipe::{Call, List, Recipe};
use crate::load::reply::Reply;
use std::collections::VecDeque;
use std::time::Instant;

/// The same list again and again: from the first key, or, of a part of the keys, from where a random part starts.
pub struct Lists {
    pub recipes: Vec<Recipe>,
    pub keys: u64,
    /// Keys of a part; 0 for the whole list.
    pub part: u64,
}

impl Workload for Lists {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, turn: Turn) -> Option<Call> {
        let parts = self.keys.checked_div(self.part).unwrap_or(1).max(1);
        let key = turn.random % parts * self.part;
        Some(Call {
            key,
            end: key + self.part,
            ..Call::default()
        })
    }
}

/// Groups of slots that go through all keys again and again, each slot through its part, page by page at the revision
/// of its first page; and, to `watch`, then ask for what comes behind that revision. A group counts as one call, which
/// has ended when all of its slots have. Watches live until their slot begins anew.
pub struct Relist {
    recipes: Vec<Recipe>,
    /// Slots of a group, and keys of a slot's part.
    slots: usize,
    part: u64,
    page: u64,
    watch: bool,
    groups: Vec<Group>,
    /// Per slot, the revision of its first page.
    revisions: Vec<i64>,
    queue: VecDeque<(usize, Call)>,
}

#[derive(Clone, Copy)]
struct Group {
    began: Instant,
    /// Slots that have not ended.
    left: usize,
}

const PAGE: usize = 0;
/// The last page of a part, which may be shorter.
const LAST_PAGE: usize = 1;
const WATCH: usize = 2;

impl Relist {
    /// `keys` have to be a multiple of `slots`, the slots of one of `groups` groups.
    pub fn new(groups: usize, slots: usize, keys: u64, list: List, watch: bool) -> Self {
        let part = keys / slots as u64;
        let page = if list.limit == 0 { part } else { list.limit.min(part) };
        let rows = |rows: u64| List {
            ends: true,
            dated: true,
            // A row has its key's bytes at least, and numbers.
            bytes_min: (24 * rows) as u32,
            ..list
        };
        Self {
            recipes: vec![
                Recipe::list(rows(page)),
                Recipe::list(rows((part - 1) % page + 1)),
                Recipe::watch(),
            ],
            slots,
            part,
            page,
            watch,
            groups: vec![
                Group {
                    began: Instant::now(),
                    left: 0
                };
                groups
            ],
            revisions: vec![0; groups * slots],
            queue: VecDeque::new(),
        }
    }

    /// The page of a slot that begins with this key.
    fn page(&self, slot: usize, key: u64) -> Call {
        let end = (slot % self.slots + 1) as u64 * self.part;
        Call {
            recipe: if key + self.page < end { PAGE } else { LAST_PAGE },
            key,
            end,
            number: self.revisions[slot],
            ..Call::default()
        }
    }

    fn first_page(&mut self, slot: usize) -> Call {
        self.revisions[slot] = 0;
        self.page(slot, (slot % self.slots) as u64 * self.part)
    }
}

impl Workload for Relist {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, turn: Turn) -> Option<Call> {
        let group = turn.slot / self.slots;
        if self.groups[group].left > 0 {
            return None;
        }
        self.groups[group] = Group {
            began: turn.due,
            left: self.slots,
        };
        for slot in (group * self.slots..(group + 1) * self.slots).filter(|slot| *slot != turn.slot) {
            let call = self.first_page(slot);
            self.queue.push_back((slot, call));
        }
        Some(self.first_page(turn.slot))
    }

    fn done(&mut self, slot: usize, call: &Call, reply: &Reply) -> Counts {
        if self.revisions[slot] == 0 {
            self.revisions[slot] = reply.revision;
        }
        let next = match call.recipe {
            PAGE => Some(self.page(slot, call.key + self.page)),
            LAST_PAGE if self.watch => Some(Call {
                recipe: WATCH,
                key: call.end - self.part,
                end: call.end,
                number: self.revisions[slot] + 1,
                ..Call::default()
            }),
            _ => None,
        };
        if let Some(call) = next {
            self.queue.push_back((slot, call));
            return Counts::Part;
        }
        let group = &mut self.groups[slot / self.slots];
        group.left -= 1;
        match group.left {
            0 => Counts::Since(group.began),
            _ => Counts::Part,
        }
    }

    fn at_once(&mut self) -> Option<(usize, Call)> {
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{reply, turn};
    use super::*;

    #[test]
    fn a_group_has_ended_when_its_last_slot_has() {
        let list = List {
            limit: 4,
            ..List::default()
        };
        let mut relist = Relist::new(2, 2, 20, list, true);
        let due = turn(2, 0);
        let first = relist.next(due).unwrap();
        assert_eq!((first.recipe, first.key, first.end, first.number), (PAGE, 0, 10, 0));
        assert!(relist.next(turn(3, 0)).is_none(), "its group is on its way");
        let (slot, other) = relist.at_once().unwrap();
        assert_eq!((slot, other.recipe, other.key, other.end), (3, PAGE, 10, 20));
        let mut seen = Vec::new();
        let mut calls = vec![(2, first), (3, other)];
        let mut ends = Vec::new();
        while let Some((slot, call)) = calls.pop() {
            ends.push(relist.done(slot, &call, &reply(70 + slot as i64)));
            while let Some((slot, call)) = relist.at_once() {
                seen.push((slot, call.recipe, call.key, call.number));
                calls.push((slot, call));
            }
        }
        let expected = [
            (3, PAGE, 14, 73),
            (3, LAST_PAGE, 18, 73),
            (3, WATCH, 10, 74),
            (2, PAGE, 4, 72),
            (2, LAST_PAGE, 8, 72),
            (2, WATCH, 0, 73),
        ];
        assert_eq!(seen, expected);
        assert_eq!(ends.pop(), Some(Counts::Since(due.due)));
        assert!(ends.iter().all(|counts| *counts == Counts::Part));
        assert_eq!(relist.next(turn(3, 0)).unwrap().number, 0);
    }

    #[test]
    fn a_part_of_one_page_has_only_a_last_page() {
        let mut relist = Relist::new(1, 1, 10, List::default(), false);
        let call = relist.next(turn(0, 0)).unwrap();
        assert_eq!((call.recipe, call.key, call.end), (LAST_PAGE, 0, 10));
        assert!(matches!(relist.done(0, &call, &reply(5)), Counts::Since(_)));
    }
}
