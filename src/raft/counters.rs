//! What the log core counts for the metrics. It travels in a member's `Status`.

use crate::metrics::{Histogram, exponential};
use crate::proto::etcdserverpb::{InternalRaftRequest, PutRequest, RequestOp, TxnRequest, request_op};
use crate::state::outcome::{Answer, OperationOutcome, Outcome, TxnOutcome};
use std::collections::BTreeMap;
use std::time::Duration;

/// etcd's bounds for what disks do: 1 ms to 8.192 s.
static DISK_BOUNDS: [f64; 14] = exponential(0.001, 2.0);
/// etcd's bounds for what leases live, in seconds.
static TTL_BOUNDS: [f64; 24] = exponential(1.0, 2.0);

/// etcd's bounds for whole compactions, in milliseconds.
static COMPACTION_BOUNDS_MS: [f64; 14] = exponential(100.0, 2.0);

/// Numbers since the process started.
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    /// Leaders seen, one after the other.
    pub leader_changes: u64,
    /// Proposals that found no leader, or lost theirs.
    pub proposals_failed: u64,
    /// Rounds of read indexes that were not confirmed in time to those who waited.
    pub reads_timed_out: u64,
    /// Rounds of read indexes whose leader was gone before it confirmed them.
    pub reads_failed: u64,
    /// Heartbeats of this leader that left later than twice the interval after the one before to the same member.
    pub heartbeats_late: u64,
    /// Learners promoted while this member led.
    pub promotions: u64,
    /// Promotions refused while this member led, by etcd's reason.
    pub promotions_refused: BTreeMap<&'static str, u64>,
    /// Puts applied.
    pub puts: u64,
    /// Bytes of their keys and values.
    pub put_bytes: u64,
    /// Deletions applied, whatever they deleted.
    pub deletes: u64,
    /// Reads that entries made: ranges and compares of transactions, records before a put. Of compares that
    /// were not all true all are counted, where etcd counts those up to the first that was false.
    pub ranges: u64,
    /// Entries that did more than one of these, and once more those that compared more than once.
    pub txns: u64,
    /// Leases granted.
    pub leases_granted: u64,
    /// Leases revoked.
    pub leases_revoked: u64,
    /// Leases renewed.
    pub leases_renewed: u64,
    /// Leases whose time was up.
    pub leases_expired: u64,
    /// Records removed by compactions.
    pub records_compacted: u64,
    /// When the compaction that is under way was first worked on.
    pub compaction_began: Option<Duration>,
    /// When the last compaction was done.
    pub compacted_at: Option<Duration>,
    /// Times from the first piece of a compaction to its end, in milliseconds.
    pub compactions_ms: Histogram,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Times from handing a write to the log until it was seen to be durable.
    pub log_syncs: Histogram,
    /// Times from the beginning of a checkpoint until it was durable.
    pub checkpoints: Histogram,
    /// Times that leases were granted for, in seconds.
    pub lease_ttls: Histogram,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            leader_changes: 0,
            proposals_failed: 0,
            reads_timed_out: 0,
            reads_failed: 0,
            heartbeats_late: 0,
            promotions: 0,
            promotions_refused: BTreeMap::new(),
            puts: 0,
            put_bytes: 0,
            deletes: 0,
            ranges: 0,
            txns: 0,
            leases_granted: 0,
            leases_revoked: 0,
            leases_renewed: 0,
            leases_expired: 0,
            records_compacted: 0,
            compaction_began: None,
            compacted_at: None,
            compactions_ms: Histogram::new(&COMPACTION_BOUNDS_MS),
            log_bytes: 0,
            log_syncs: Histogram::new(&DISK_BOUNDS),
            checkpoints: Histogram::new(&DISK_BOUNDS),
            lease_ttls: Histogram::new(&TTL_BOUNDS),
        }
    }
}

/// What one entry did.
#[derive(Default)]
struct Done {
    puts: u64,
    put_bytes: u64,
    deletes: u64,
    ranges: u64,
    compares: u64,
}

impl Done {
    fn put(&mut self, put: &PutRequest) {
        self.puts += 1;
        self.put_bytes += (put.key.len() + put.value.len()) as u64;
        self.ranges += u64::from(put.prev_kv || put.ignore_value || put.ignore_lease);
    }

    fn txn(&mut self, request: &TxnRequest, outcome: &TxnOutcome) {
        self.compares += request.compare.len() as u64;
        let branch = match outcome.succeeded {
            true => &request.success,
            false => &request.failure,
        };
        for (operation, outcome) in branch.iter().zip(&outcome.operations) {
            self.operation(operation, outcome);
        }
    }

    fn operation(&mut self, operation: &RequestOp, outcome: &OperationOutcome) {
        match (&operation.request, outcome) {
            (Some(request_op::Request::RequestRange(_)), _) => self.ranges += 1,
            (Some(request_op::Request::RequestPut(put)), _) => self.put(put),
            (Some(request_op::Request::RequestDeleteRange(delete)), _) => {
                self.deletes += 1;
                self.ranges += u64::from(delete.prev_kv);
            }
            (Some(request_op::Request::RequestTxn(request)), OperationOutcome::Txn(outcome)) => {
                self.txn(request, outcome);
            }
            _ => {}
        }
    }
}

impl Counters {
    /// A compaction is worked on.
    pub fn compacting(&mut self, now: Duration) {
        self.compaction_began.get_or_insert(now);
    }

    /// A compaction is done.
    pub fn compacted(&mut self, now: Duration) {
        let took = now.saturating_sub(self.compaction_began.take().unwrap_or(now));
        self.compactions_ms.observe(took.as_millis() as f64);
        self.compacted_at = Some(now);
    }

    /// Counts an entry that was applied.
    pub fn applied(&mut self, request: &InternalRaftRequest, outcome: &Outcome) {
        let Ok(answer) = &outcome.answer else { return };
        let mut done = Done::default();
        match answer {
            Answer::Put(_) => request.put.iter().for_each(|put| done.put(put)),
            Answer::Delete(_) => {
                done.deletes = 1;
                done.ranges = u64::from(request.delete_range.as_ref().is_some_and(|delete| delete.prev_kv));
            }
            Answer::Txn(outcome) => request.txn.iter().for_each(|txn| done.txn(txn, outcome)),
            Answer::Range(_) => done.ranges = 1,
            Answer::LeaseGrant { ttl_s, .. } => {
                self.leases_granted += 1;
                self.lease_ttls.observe(*ttl_s as f64);
            }
            Answer::LeaseRevoke { deleted, .. } => {
                self.leases_revoked += 1;
                done.deletes = *deleted as u64;
            }
            // etcd reads the revision for its answer.
            Answer::Compaction => done.ranges = 1,
            Answer::LeaseCheckpoint | Answer::Alarm(_) | Answer::Cluster => {}
        }
        self.puts += done.puts;
        self.put_bytes += done.put_bytes;
        self.deletes += done.deletes;
        self.ranges += done.ranges + done.compares;
        self.txns += u64::from(done.puts + done.deletes + done.ranges > 1) + u64::from(done.compares > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::DeleteRangeRequest;
    use crate::state::StateError;
    use crate::state::outcome::{DeleteOutcome, PutOutcome};

    fn put(prev_kv: bool) -> PutRequest {
        PutRequest {
            key: "key".into(),
            value: "value".into(),
            prev_kv,
            ..Default::default()
        }
    }

    fn operation(request: request_op::Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    const PUT: PutOutcome = PutOutcome {
        revision: 2,
        previous: None,
    };

    fn outcome(answer: Answer) -> Outcome {
        Outcome {
            revision: 2,
            answer: Ok(answer),
        }
    }

    fn numbers(counters: &Counters) -> [u64; 5] {
        [
            counters.puts,
            counters.put_bytes,
            counters.deletes,
            counters.ranges,
            counters.txns,
        ]
    }

    #[test]
    fn entries_count_for_what_they_did() {
        let mut counters = Counters::default();
        let entry = InternalRaftRequest {
            put: Some(put(false)),
            ..Default::default()
        };
        counters.applied(&entry, &outcome(Answer::Put(PUT)));
        assert_eq!(numbers(&counters), [1, 8, 0, 0, 0]);
        let failed = Outcome {
            revision: 2,
            answer: Err(StateError::NoSpace),
        };
        counters.applied(&entry, &failed);
        assert_eq!(numbers(&counters), [1, 8, 0, 0, 0]);
        let entry = InternalRaftRequest {
            put: Some(put(true)),
            ..Default::default()
        };
        counters.applied(&entry, &outcome(Answer::Put(PUT)));
        assert_eq!(numbers(&counters), [2, 16, 0, 1, 1]);
    }

    #[test]
    fn a_transaction_counts_for_the_branch_that_was_taken() {
        let nested = TxnRequest {
            success: vec![operation(request_op::Request::RequestPut(put(false)))],
            ..Default::default()
        };
        let delete = DeleteRangeRequest {
            key: "key".into(),
            ..Default::default()
        };
        let mut request = TxnRequest {
            success: vec![operation(request_op::Request::RequestPut(put(false)))],
            failure: vec![
                operation(request_op::Request::RequestDeleteRange(delete)),
                operation(request_op::Request::RequestTxn(nested)),
            ],
            ..Default::default()
        };
        let taken = TxnOutcome {
            revision: 2,
            succeeded: false,
            operations: vec![
                OperationOutcome::Delete(DeleteOutcome {
                    revision: 2,
                    deleted: 7,
                    previous: Vec::new(),
                }),
                OperationOutcome::Txn(TxnOutcome {
                    revision: 0,
                    succeeded: true,
                    operations: vec![OperationOutcome::Put(PUT)],
                }),
            ],
        };
        request.compare.resize_with(3, Default::default);
        let entry = InternalRaftRequest {
            txn: Some(request),
            ..Default::default()
        };
        let mut counters = Counters::default();
        counters.applied(&entry, &outcome(Answer::Txn(taken)));
        assert_eq!(numbers(&counters), [1, 8, 1, 3, 2]);
        let mut revoked = Counters::default();
        revoked.applied(&entry, &outcome(Answer::LeaseGrant { id: 1, ttl_s: 60 }));
        revoked.applied(&entry, &outcome(Answer::LeaseRevoke { id: 1, deleted: 2 }));
        assert_eq!((revoked.leases_granted, revoked.leases_revoked), (1, 1));
        assert_eq!(numbers(&revoked), [0, 0, 2, 0, 1]);
        assert_eq!(revoked.lease_ttls.buckets().sum, 60.0);
    }
}
