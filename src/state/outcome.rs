//! What an applied entry answers, in revisions instead of bytes.
//!
//! The core that has the waiting client makes bytes of it from the view that comes with the outcome; members without
//! that client need none of it. Header fields other than the revision are the answering member's.

use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::AlarmMember;
use crate::state::error::StateError;
use crate::state::range::RangeRun;

/// The result of one entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The store's revision after the entry.
    pub revision: i64,
    /// The answer, or why the request had no effect.
    pub answer: Result<Answer, StateError>,
}

impl Outcome {
    /// The lowest main revision at which its ranges will be run on the index; `None` when it names all its records.
    pub fn reads_at(&self) -> Option<i64> {
        match self.answer.as_ref().ok()? {
            Answer::Range(range) => range.reads_at(),
            Answer::Txn(txn) => txn.reads_at(),
            _ => None,
        }
    }
}

impl TxnOutcome {
    fn reads_at(&self) -> Option<i64> {
        let of_operation = |operation: &OperationOutcome| match operation {
            OperationOutcome::Range(range) => range.reads_at(),
            OperationOutcome::Txn(nested) => nested.reads_at(),
            _ => None,
        };
        self.operations.iter().filter_map(of_operation).min()
    }
}

impl RangeOutcome {
    fn reads_at(&self) -> Option<i64> {
        match self {
            RangeOutcome::Later { at_main, .. } => Some(*at_main),
            RangeOutcome::Found(_) | RangeOutcome::Skipped => None,
        }
    }
}

/// An answer by kind of request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `Range`, if it went through the log.
    Range(RangeOutcome),
    /// `Put`.
    Put(PutOutcome),
    /// `DeleteRange`.
    Delete(DeleteOutcome),
    /// `Txn`.
    Txn(TxnOutcome),
    /// `Compact`; the physical part goes on afterwards.
    Compaction,
    /// `LeaseGrant`.
    LeaseGrant {
        /// The id.
        id: i64,
        /// The time to live granted, in seconds.
        ttl_s: i64,
    },
    /// `LeaseRevoke`.
    LeaseRevoke {
        /// The id, for those who wait for the end of this lease.
        id: i64,
        /// How many keys went with it.
        deleted: usize,
    },
    /// `LeaseCheckpoint`.
    LeaseCheckpoint,
    /// `Alarm`: the alarms of the response. `None` for an action outside the enumeration, which etcd answers with
    /// nothing.
    Alarm(Option<Vec<AlarmMember>>),
    /// A request about the cluster.
    Cluster,
}

/// What a put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOutcome {
    /// The header's revision.
    pub revision: i64,
    /// The record before, if `prev_kv` was asked for and there was one.
    pub previous: Option<Revision>,
}

/// What a deletion did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteOutcome {
    /// The header's revision.
    pub revision: i64,
    /// How many keys were deleted.
    pub deleted: i64,
    /// The deleted records in order of their keys, if `prev_kv` was asked for.
    pub previous: Vec<Revision>,
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq)]
pub struct TxnOutcome {
    /// The header's revision; 0 in a nested transaction, whose header is empty.
    pub revision: i64,
    /// Which branch was taken.
    pub succeeded: bool,
    /// One for each operation of the branch.
    pub operations: Vec<OperationOutcome>,
}

/// What an operation of a transaction did.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationOutcome {
    /// A range.
    Range(RangeOutcome),
    /// A put.
    Put(PutOutcome),
    /// A deletion.
    Delete(DeleteOutcome),
    /// A nested transaction.
    Txn(TxnOutcome),
    /// An operation without content.
    Empty,
}

/// What a range inside a transaction reads.
#[derive(Clone, Debug, PartialEq)]
pub enum RangeOutcome {
    /// Run the operation's request on the view that comes with the outcome, as of `at_main` (`RangeRun::resolved`),
    /// even if that view says that the revision was compacted since.
    Later {
        /// The header's revision.
        revision: i64,
        /// The revision to read at.
        at_main: i64,
    },
    /// Read between writes of the same transaction, which only apply could: the run has all rows and wants to be
    /// finished.
    Found(Box<RangeRun>),
    /// Nobody waits for it here.
    Skipped,
}
