//! Whether a recorded history of clients is linearizable: Wing and Gong's search with Lowe's memory of what was tried.
//!
//! The whole store is one object. Its states are the prefixes of the history of records that was read in the end, so
//! a state is a revision: a write fits a state when it makes just the records of the next revision, and a read when it
//! saw what was alive. That final history is itself an observation that any order has to end in. Requests whose
//! outcome is unknown may have happened at any time after they were asked for, or never.

use crate::sim::model::{Condition, Model, Op, Put, Record};
use std::collections::HashSet;

/// Steps after which a search is given up.
const STEPS_MAX: usize = 4_000_000;

/// What a client asked for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A request that goes through the log.
    Write(Op),
    /// A linearizable range: the keys from the first up to, not including, the second; one key without it.
    Read {
        /// The first key.
        key: String,
        /// Behind the last.
        end: Option<String>,
    },
}

/// What it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The store's revision afterwards, whether the request was carried out, and keys deleted or the branch taken.
    Written {
        /// The revision.
        revision: i64,
        /// Whether it was carried out.
        is_ok: bool,
        /// Keys deleted, or 1 for a transaction whose condition held.
        detail: i64,
    },
    /// Done, and nothing else.
    Done,
    /// Main revisions of the records found.
    Found {
        /// The store's revision.
        revision: i64,
        /// By key.
        rows: Vec<i64>,
    },
}

/// One operation. Moments are numbered in the order in which they happened.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What was asked.
    pub asked: Asked,
    /// When.
    pub called: u64,
    /// What the answer was and when it came; `None` when nothing is known.
    pub returned: Option<(u64, Told)>,
}

/// Checks a history.
pub fn check(operations: &[Operation], model: &Model) -> Result<(), String> {
    Search::new(operations, model).run()
}

/// A place in the list of what happened; both ends and those taken out are in it.
#[derive(Clone, Copy)]
struct Event {
    operation: usize,
    is_call: bool,
    before: usize,
    behind: usize,
}

struct Search<'a> {
    operations: &'a [Operation],
    model: &'a Model,
    /// The first is the list's head, the last its end.
    events: Vec<Event>,
    /// Of each operation: its call and its return.
    places: Vec<(usize, Option<usize>)>,
    /// One bit for each operation.
    taken: Box<[u64]>,
    revision: i64,
    /// What was taken, and the revision before.
    stack: Vec<(usize, i64)>,
    tried: HashSet<(Box<[u64]>, i64)>,
    /// The longest order found, and what came back next and was not in it.
    deepest: (usize, Option<usize>),
}

impl<'a> Search<'a> {
    fn new(operations: &'a [Operation], model: &'a Model) -> Search<'a> {
        let mut moments = Vec::new();
        for (number, operation) in operations.iter().enumerate() {
            moments.push((operation.called, number, true));
            moments.extend(operation.returned.iter().map(|(at, _)| (*at, number, false)));
        }
        moments.sort_unstable();
        let end = (u64::MAX, usize::MAX, false);
        let events = [end].into_iter().chain(moments).chain([end]).enumerate();
        let events = events.map(|(place, (_, operation, is_call))| Event {
            operation,
            is_call,
            before: place.saturating_sub(1),
            behind: place + 1,
        });
        let mut search = Search {
            operations,
            model,
            events: events.collect(),
            places: vec![(0, None); operations.len()],
            taken: vec![0; operations.len().div_ceil(64)].into(),
            revision: 1,
            stack: Vec::new(),
            tried: HashSet::new(),
            deepest: (0, None),
        };
        for place in 1..search.events.len() - 1 {
            let event = search.events[place];
            let places = &mut search.places[event.operation];
            if event.is_call {
                places.0 = place;
            } else {
                places.1 = Some(place);
            }
        }
        search
    }

    fn run(mut self) -> Result<(), String> {
        let mut left = self
            .operations
            .iter()
            .filter(|operation| operation.returned.is_some())
            .count();
        let mut place = self.events[0].behind;
        for _ in 0..STEPS_MAX {
            if left == 0 {
                return Ok(());
            }
            let event = self.events[place];
            if event.is_call {
                match self
                    .fits(event.operation)
                    .filter(|revision| self.is_new(event.operation, *revision))
                {
                    Some(revision) => {
                        self.take(event.operation, revision);
                        left -= usize::from(self.operations[event.operation].returned.is_some());
                        place = self.events[0].behind;
                    }
                    None => place = event.behind,
                }
                continue;
            }
            // Something came back that is in no order found so far.
            if self.stack.len() >= self.deepest.0 {
                self.deepest = (self.stack.len(), Some(event.operation));
            }
            let Some((operation, revision)) = self.stack.pop() else {
                return Err(self.describe());
            };
            self.give_back(operation, revision);
            left += usize::from(self.operations[operation].returned.is_some());
            place = self.events[self.places[operation].0].behind;
        }
        Err(format!("{} operations are too many to order", self.operations.len()))
    }

    fn describe(&self) -> String {
        let (length, next) = self.deepest;
        let next = next.map(|operation| &self.operations[operation]);
        format!(
            "the history is not linearizable: behind {length} operations in order nothing fits; waited for is {next:?}"
        )
    }

    /// Whether this set of operations and the state behind them were not seen before.
    fn is_new(&mut self, operation: usize, revision: i64) -> bool {
        let mut taken = self.taken.clone();
        taken[operation / 64] |= 1 << (operation % 64);
        self.tried.insert((taken, revision))
    }

    fn take(&mut self, operation: usize, revision: i64) {
        self.taken[operation / 64] |= 1 << (operation % 64);
        self.stack.push((operation, self.revision));
        self.revision = revision;
        let (call, back) = self.places[operation];
        for place in [Some(call), back].into_iter().flatten() {
            let Event { before, behind, .. } = self.events[place];
            self.events[before].behind = behind;
            self.events[behind].before = before;
        }
    }

    /// The reverse of `take`, in reverse order.
    fn give_back(&mut self, operation: usize, revision: i64) {
        self.taken[operation / 64] &= !(1 << (operation % 64));
        self.revision = revision;
        let (call, back) = self.places[operation];
        for place in [back, Some(call)].into_iter().flatten() {
            let Event { before, behind, .. } = self.events[place];
            self.events[before].behind = place;
            self.events[behind].before = place;
        }
    }

    /// The revision behind an operation, if it can come next.
    fn fits(&self, operation: usize) -> Option<i64> {
        let Operation { asked, returned, .. } = &self.operations[operation];
        match (asked, returned.as_ref().map(|(_, told)| told)) {
            (Asked::Read { key, end }, Some(Told::Found { revision, rows })) => {
                (*revision == self.revision && *rows == self.alive(key, end.as_deref())).then_some(self.revision)
            }
            (Asked::Read { .. }, _) => None,
            (Asked::Write(_), Some(Told::Written { is_ok: false, .. })) => Some(self.revision),
            (Asked::Write(op), told) => self.write_fits(op, told),
        }
    }

    fn write_fits(&self, op: &Op, told: Option<&Told>) -> Option<i64> {
        let (effect, detail) = self.effect(op);
        let mut made = self.model.events_after(self.revision).iter();
        let revision = self.revision + i64::from(!effect.is_empty());
        for expected in &effect {
            made.next()
                .filter(|record| record.revision.main == revision && expected.is(record))?;
        }
        if !effect.is_empty() && made.next().is_some_and(|record| record.revision.main == revision) {
            return None;
        }
        match told {
            Some(Told::Written {
                revision: told_revision,
                detail: told_detail,
                ..
            }) => (*told_revision == revision && *told_detail == detail).then_some(revision),
            // What changes nothing and was not answered need not be looked at.
            None if effect.is_empty() => None,
            _ => Some(revision),
        }
    }

    fn alive(&self, key: &str, end: Option<&str>) -> Vec<i64> {
        let found = self.model.range(key, end, self.revision);
        found.into_iter().map(|revision| revision.main).collect()
    }

    /// What a request would change in the current state, and the detail of its answer.
    fn effect<'o>(&self, op: &'o Op) -> (Vec<Effect<'o>>, i64) {
        match op {
            Op::Put(put) => (vec![Effect::Put(put)], 0),
            Op::Delete { key, end } => {
                let gone = self.gone(key, end.as_deref());
                let count = gone.len() as i64;
                (gone, count)
            }
            Op::Txn {
                key,
                condition,
                then,
                otherwise,
            } => {
                let record = self.model.alive_at(key, self.revision);
                let holds = match condition {
                    Condition::Version(version) => record.map_or(0, |record| record.version) == *version,
                    Condition::Value(value) => record.is_some_and(|record| record.value == *value),
                };
                // A branch touches a key at most once, so nothing in it depends on what came before in it.
                let branch = if holds { then } else { otherwise };
                let effects = branch.iter().flat_map(|op| self.effect(op).0);
                (effects.collect(), i64::from(holds))
            }
            Op::Revoke { id } => {
                let keys = self.model.range("", Some("~"), self.revision).into_iter();
                let records = keys.filter_map(|revision| self.model.record(revision));
                let leased = records.filter(|record| record.lease == *id);
                (leased.map(|record| Effect::Gone(record.key.clone())).collect(), 0)
            }
            _ => (Vec::new(), 0),
        }
    }

    fn gone<'o>(&self, key: &str, end: Option<&str>) -> Vec<Effect<'o>> {
        let found = self.model.range(key, end, self.revision).into_iter();
        let records = found.filter_map(|revision| self.model.record(revision));
        records.map(|record| Effect::Gone(record.key.clone())).collect()
    }
}

/// One record that a request makes.
enum Effect<'o> {
    Put(&'o Put),
    Gone(String),
}

impl Effect<'_> {
    fn is(&self, record: &Record) -> bool {
        match self {
            Effect::Put(put) => {
                !record.tombstone && record.key == put.key && record.value == put.value && record.lease == put.lease
            }
            Effect::Gone(key) => record.tombstone && record.key == *key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: &str) -> Op {
        Op::Put(Put {
            key: "a".into(),
            value: value.into(),
            lease: 0,
        })
    }

    fn wrote(value: &str, called: u64, returned: u64, revision: i64) -> Operation {
        let told = Told::Written {
            revision,
            is_ok: true,
            detail: 0,
        };
        Operation {
            asked: Asked::Write(put(value)),
            called,
            returned: Some((returned, told)),
        }
    }

    fn unknown(value: &str, called: u64) -> Operation {
        Operation {
            asked: Asked::Write(put(value)),
            called,
            returned: None,
        }
    }

    fn read(called: u64, returned: u64, revision: i64) -> Operation {
        let rows = if revision > 1 { vec![revision] } else { Vec::new() };
        Operation {
            asked: Asked::Read {
                key: "a".into(),
                end: None,
            },
            called,
            returned: Some((returned, Told::Found { revision, rows })),
        }
    }

    /// A store in which these were put one after the other.
    fn model(values: &[&str]) -> Model {
        let mut model = Model::default();
        for value in values {
            model.apply(&put(value));
        }
        model
    }

    #[test]
    fn orders_are_found() {
        let model = model(&["x", "y", "z"]);
        let history = [
            wrote("y", 1, 9, 3),
            wrote("x", 2, 4, 2),
            read(3, 5, 2),
            unknown("z", 6),
            unknown("never", 7),
            read(10, 11, 4),
        ];
        check(&history, &model).unwrap();
        // The unknown one may have come between, but not before it was asked for.
        check(
            &[wrote("x", 1, 2, 2), unknown("y", 3), unknown("z", 4), read(5, 6, 4)],
            &model,
        )
        .unwrap();
        check(
            &[wrote("x", 1, 2, 2), read(3, 4, 4), unknown("y", 5), unknown("z", 6)],
            &model,
        )
        .unwrap_err();
    }

    #[test]
    fn what_can_not_be_ordered_is_refused() {
        let two = model(&["x", "y"]);
        let stale = [wrote("x", 1, 2, 2), wrote("y", 3, 4, 3), read(5, 6, 2)];
        assert!(check(&stale, &two).unwrap_err().contains("not linearizable"));
        let lost = [wrote("x", 1, 2, 2), wrote("lost", 3, 4, 3), read(5, 6, 3)];
        check(&lost, &two).unwrap_err();
        let order = [wrote("y", 1, 2, 3), wrote("x", 3, 4, 2)];
        check(&order, &two).unwrap_err();
        let back = [unknown("x", 1), read(2, 3, 2), read(4, 5, 1)];
        check(&back, &model(&["x"])).unwrap_err();
    }
}
