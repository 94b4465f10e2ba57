//! What clients asked and were told, and whether one order of all of it exists that is the order of the revisions.
//!
//! Every write has a value of its own and makes one revision, and the store's whole history is read in the end. So the
//! order is not searched for but known: a write stands at its revision, a read behind the revision it was told. What
//! remains to be looked at is that each operation did and found there what it was told, that none was lost, and that
//! nothing stands before what was answered before it was asked. This is linearizability, in linear time, and no client
//! sees a revision go back either.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

/// One revision of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: String,
    /// Empty for a deletion.
    pub value: String,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// To write a value that nobody else writes, if the key was last written at this revision, where one is named.
    Write {
        key: String,
        value: String,
        expected: Option<i64>,
    },
    /// To read all keys below a prefix.
    Read { prefix: String },
}

/// What was told.
#[derive(Clone, Debug)]
pub enum Told {
    Written,
    /// The condition did not hold.
    Refused,
    /// The keys found and when they were last written.
    Found(Vec<(String, i64)>),
}

#[derive(Clone, Debug)]
struct Operation {
    asked: Asked,
    /// The highest revision that anybody was told before this was asked.
    floor: i64,
    /// The answer and the store's revision in it.
    told: Option<(i64, Told)>,
}

/// All operations of all clients.
#[derive(Default)]
pub struct History {
    operations: RefCell<Vec<Operation>>,
    highest: Cell<i64>,
}

/// How much a history contains.
#[derive(Debug, Default)]
pub struct Summary {
    pub acknowledged: u64,
    pub refused: u64,
    pub reads: u64,
    /// Writes without an answer: those that happened, and those that did not.
    pub unknown: (u64, u64),
}

impl History {
    /// Notes that something is asked for now; the number is for its answer.
    pub fn ask(&self, asked: Asked) -> usize {
        let mut operations = self.operations.borrow_mut();
        operations.push(Operation {
            asked,
            floor: self.highest.get(),
            told: None,
        });
        operations.len() - 1
    }

    /// Notes its answer, which came now.
    pub fn tell(&self, number: usize, revision: i64, told: Told) {
        self.highest.set(self.highest.get().max(revision));
        self.operations.borrow_mut()[number].told = Some((revision, told));
    }

    /// Checks everything against what the store has been through: the first record is of revision 2.
    pub fn check(&self, records: &[Record]) -> Result<Summary, String> {
        let store = Store::new(records)?;
        let mut summary = Summary::default();
        for operation in self.operations.borrow().iter() {
            let place = store
                .place(operation)
                .map_err(|reason| format!("{reason}: {operation:?}"))?;
            let writes = place.is_some_and(|place| place.writes);
            match (&operation.asked, &operation.told) {
                (_, Some((_, Told::Written))) => summary.acknowledged += 1,
                (_, Some((_, Told::Refused))) => summary.refused += 1,
                (_, Some((_, Told::Found(_)))) => summary.reads += 1,
                (Asked::Write { .. }, None) if writes => summary.unknown.0 += 1,
                (Asked::Write { .. }, None) => summary.unknown.1 += 1,
                (Asked::Read { .. }, None) => {}
            }
            let Some(place) = place else { continue };
            // Only a read may stand at a revision that somebody knew.
            if place.revision < operation.floor + i64::from(place.writes) {
                return Err(format!(
                    "revision {} comes behind {}, which was known before: {operation:?}",
                    place.revision, operation.floor
                ));
            }
        }
        Ok(summary)
    }
}

/// Where an operation stands.
#[derive(Clone, Copy)]
struct Place {
    revision: i64,
    writes: bool,
}

/// What the store has been through, by value and by key.
struct Store<'a> {
    records: &'a [Record],
    values: BTreeMap<&'a str, i64>,
    keys: BTreeMap<&'a str, Vec<i64>>,
}

impl<'a> Store<'a> {
    fn new(records: &'a [Record]) -> Result<Self, String> {
        let (mut values, mut keys) = (BTreeMap::new(), BTreeMap::<&str, Vec<i64>>::new());
        for (record, revision) in records.iter().zip(2..) {
            keys.entry(&record.key).or_default().push(revision);
            if record.value.is_empty() {
                continue;
            }
            if let Some(before) = values.insert(&*record.value, revision) {
                return Err(format!("{record:?} was written twice, at {before} and {revision}"));
            }
        }
        Ok(Self { records, values, keys })
    }

    fn record(&self, revision: i64) -> Option<&Record> {
        let at = usize::try_from(revision - 2).ok()?;
        self.records.get(at)
    }

    /// The revision at which a key was last written as of `revision`, if it is alive then.
    fn alive(&self, key: &str, revision: i64) -> Option<i64> {
        let written = self.keys.get(key)?;
        let last = written[..written.partition_point(|at| *at <= revision)]
            .last()
            .copied()?;
        self.record(last)
            .filter(|record| !record.value.is_empty())
            .map(|_| last)
    }

    /// Where an operation stands and whether it writes there; `None` for what left no trace.
    fn place(&self, operation: &Operation) -> Result<Option<Place>, String> {
        let (revision, told) = match (&operation.asked, &operation.told) {
            (Asked::Write { value, .. }, None) => {
                let revision = self.values.get(&**value);
                return Ok(revision.map(|revision| Place {
                    revision: *revision,
                    writes: true,
                }));
            }
            (Asked::Read { .. }, None) => return Ok(None),
            (_, Some((revision, told))) => (*revision, told),
        };
        match (&operation.asked, told) {
            (Asked::Write { key, value, expected }, Told::Written) => {
                let record = self.record(revision);
                if !record.is_some_and(|record| record.key == *key && record.value == *value) {
                    return Err(format!("lost, for revision {revision} is {record:?}"));
                }
                let before = self.alive(key, revision - 1).unwrap_or(0);
                if expected.is_some_and(|expected| expected != before) {
                    return Err(format!("written though the key was last written at {before}"));
                }
            }
            (Asked::Write { key, value, expected }, Told::Refused) => {
                let found = self.alive(key, revision).unwrap_or(0);
                if *expected == Some(found) || self.values.contains_key(&**value) {
                    return Err(format!("refused though the key was last written at {found}"));
                }
            }
            (Asked::Read { prefix }, Told::Found(found)) => {
                let expected = self.below(prefix, revision);
                if expected != *found {
                    return Err(format!("at revision {revision} there was {expected:?}"));
                }
            }
            _ => return Err("an answer to something else".to_string()),
        }
        let writes = matches!(told, Told::Written);
        Ok(Some(Place { revision, writes }))
    }

    fn below(&self, prefix: &str, revision: i64) -> Vec<(String, i64)> {
        let keys = self.keys.range(prefix..).take_while(|(key, _)| key.starts_with(prefix));
        let alive = keys.filter_map(|(key, _)| Some((key.to_string(), self.alive(key, revision)?)));
        alive.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: &str, expected: Option<i64>) -> Asked {
        Asked::Write {
            key: "a".to_string(),
            value: value.to_string(),
            expected,
        }
    }

    fn read() -> Asked {
        let prefix = "a".to_string();
        Asked::Read { prefix }
    }

    fn found(revision: i64) -> Told {
        Told::Found(vec![("a".to_string(), revision)])
    }

    fn store(values: &[&str]) -> Vec<Record> {
        let record = |value: &&str| Record {
            key: "a".to_string(),
            value: value.to_string(),
        };
        values.iter().map(record).collect()
    }

    /// A history of operations one after the other.
    fn history(operations: &[(Asked, Option<(i64, Told)>)]) -> History {
        let history = History::default();
        for (asked, told) in operations {
            let number = history.ask(asked.clone());
            if let Some((revision, told)) = told {
                history.tell(number, *revision, told.clone());
            }
        }
        history
    }

    #[test]
    fn what_has_an_order_is_accepted() {
        let operations = [
            (write("x", None), Some((2, Told::Written))),
            (write("never", None), None),
            (write("late", None), None),
            (read(), Some((2, found(2)))),
            (write("y", Some(2)), Some((3, Told::Written))),
            (write("no", Some(2)), Some((3, Told::Refused))),
            (read(), Some((4, found(4)))),
        ];
        let summary = history(&operations)
            .check(&store(&["x", "y", "late"]))
            .expect("an order");
        assert_eq!((summary.acknowledged, summary.refused, summary.reads), (2, 1, 2));
        assert_eq!(summary.unknown, (1, 1));
    }

    #[test]
    fn what_has_no_order_is_refused() {
        let refused = |operations: &[(Asked, Option<(i64, Told)>)], values: &[&str], reason: &str| {
            let told = history(operations).check(&store(values)).expect_err(reason);
            assert!(told.contains(reason), "{told}, not {reason}");
        };
        let (x, y) = (write("x", None), write("y", None));
        let written = |revision| Some((revision, Told::Written));
        let both = [(x.clone(), written(2)), (y.clone(), written(3))];
        refused(&both, &["x"], "lost");
        refused(&both, &["y", "x"], "lost");
        refused(&both, &["x", "y", "x"], "twice");
        let stale = [&both[..], &[(read(), Some((2, found(2))))]].concat();
        refused(&stale, &["x", "y"], "which was known before");
        let wrong = [&both[..], &[(read(), Some((3, found(2))))]].concat();
        refused(&wrong, &["x", "y"], "there was");
        // It was asked for behind an answer that already contained it.
        let early = [(read(), Some((2, found(2)))), (x.clone(), None)];
        refused(&early, &["x"], "which was known before");
        let swapped = [(x.clone(), written(2)), (write("y", Some(7)), written(3))];
        refused(&swapped, &["x", "y"], "written though");
        let unswapped = [(x, written(2)), (write("y", Some(2)), Some((2, Told::Refused)))];
        refused(&unswapped, &["x"], "refused though");
    }
}
