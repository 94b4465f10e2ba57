//! Reads that take their time beside compactions: ranges that answers on their way still have to run, and reads in
//! slices that a serve core has registered. Both find at their end what was there at their revision.

use super::load::range_request;
use super::model::Model;
use super::observe::published;
use super::report::Canary;
use crate::io::medium::Random;
use crate::mvcc::readers::{Hold, Readers};
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::RangeRequest;
use crate::raft::core::LogCore;
use crate::state::outcome::{Answer, OperationOutcome, Outcome, RangeOutcome};
use crate::state::range::RangeRun;

/// Slow reads under way at once.
const REGISTERED_MAX: usize = 3;
/// In how many turns a read gets on.
const TURNS_PER_STEP: u64 = 12;

/// What keeps a compaction from what a read needs.
enum Pin {
    Hold(#[expect(dead_code, reason = "it is kept")] Hold),
    Registered,
    Nothing,
}

/// One range, and what it has to find.
struct Read {
    run: RangeRun,
    expected: Vec<Revision>,
    pin: Pin,
}

/// The reads under way on the one serve core.
pub struct SlowReads {
    canary: Canary,
    random: Random,
    readers: Readers,
    reads: Vec<Read>,
}

impl SlowReads {
    /// None yet.
    pub fn new(canary: Canary, seed: u64, readers: Readers) -> SlowReads {
        SlowReads {
            canary,
            random: Random::new(seed),
            readers,
            reads: Vec::new(),
        }
    }

    /// The process is gone, and the reads with it.
    pub fn forget(&mut self) {
        self.reads.clear();
        self.publish();
    }

    /// Takes an answer: its ranges are run some time later, under its hold.
    pub fn answered(
        &mut self,
        outcome: &Outcome,
        found: &[Vec<Revision>],
        requests: &[RangeRequest],
        hold: Option<Hold>,
    ) {
        let Ok(Answer::Txn(txn)) = &outcome.answer else { return };
        let ranges = txn.operations.iter().filter_map(|operation| match operation {
            OperationOutcome::Range(range) => Some(range),
            _ => None,
        });
        for ((range, expected), request) in ranges.zip(found).zip(requests) {
            let run = match range {
                RangeOutcome::Later { revision, at_main } => RangeRun::resolved(request, *revision, *at_main),
                RangeOutcome::Found(run) => (**run).clone(),
                RangeOutcome::Skipped => RangeRun::resolved(request, 0, 0),
            };
            let pin = match &hold {
                Some(hold) if self.canary != Canary::DroppedHold => Pin::Hold(hold.clone()),
                _ => Pin::Nothing,
            };
            let expected = expected.clone();
            self.reads.push(Read { run, expected, pin });
        }
    }

    /// Begins a read of everything at a revision that can be read.
    pub fn begin(&mut self, core: &LogCore, model: &Model) {
        let registered = self.reads.iter().filter(|read| !matches!(read.pin, Pin::Hold(_)));
        if registered.count() >= REGISTERED_MAX {
            return;
        }
        let view = published(core);
        let lowest = view.compact_revision.max(1);
        let at_main = lowest + self.random.below((view.revision - lowest + 1) as u64) as i64;
        let run = RangeRun::resolved(&range_request("key", Some("key9"), at_main), view.revision, at_main);
        let expected = model.range("key", Some("key9"), at_main);
        let pin = match self.canary {
            Canary::UnregisteredRead => Pin::Nothing,
            _ => Pin::Registered,
        };
        self.reads.push(Read { run, expected, pin });
        self.publish();
    }

    /// A turn of the serve core: some reads go on and end.
    pub fn turn(&mut self, core: &LogCore) -> Result<(), String> {
        let mut at = 0;
        while at < self.reads.len() {
            if self.random.below(TURNS_PER_STEP) > 0 || !self.reads[at].run.step(&core.state().index().pin()) {
                at += 1;
                continue;
            }
            let read = self.reads.swap_remove(at);
            let found: Vec<Revision> = read.run.rows().iter().map(|row| row.revision).collect();
            if found != read.expected {
                let (at_main, expected) = (read.run.at_main(), read.expected);
                return Err(format!(
                    "a slow read at revision {at_main} found {found:?}, expected was {expected:?}"
                ));
            }
        }
        self.publish();
        Ok(())
    }

    /// Tells the log core the lowest revision that is read here.
    fn publish(&self) {
        let registered = self.reads.iter().filter(|read| matches!(read.pin, Pin::Registered));
        let lowest = registered.map(|read| read.run.at_main()).min();
        self.readers.set(0, lowest.unwrap_or(i64::MAX));
    }
}
