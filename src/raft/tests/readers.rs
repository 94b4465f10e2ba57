//! Compaction beside those who still read what it would remove.

use super::*;
use crate::mvcc::readers::Hold;
use crate::proto::etcdserverpb::RangeRequest;
use crate::state::outcome::{OperationOutcome, RangeOutcome};

/// How many versions of the one key each test has: main revisions 2 to 11.
const VERSIONS: i64 = 10;

/// A log core with some versions of one key, and its readers' words.
fn bench_with_history() -> (Bench, Readers) {
    let boot = boot();
    let readers = boot.readers.clone();
    let mut bench = Bench::new(boot);
    for version in 0..VERSIONS {
        assert_eq!(bench.put("key", b"value"), 2 + version);
    }
    (bench, readers)
}

impl Bench {
    /// Proposes a request of which the answer is looked for later.
    fn propose(&mut self, request: &InternalRaftRequest) -> u64 {
        self.next_token += 1;
        let propose = Request::Propose {
            token: self.next_token,
            id: self.next_token,
            payload: request.encode_to_vec().into(),
            quota_bytes: 0,
        };
        self.core.handle(0, propose, self.now);
        self.next_token
    }

    fn propose_compaction(&mut self, revision: i64) -> u64 {
        let compaction = Some(CompactionRequest {
            revision,
            physical: true,
        });
        self.propose(&InternalRaftRequest {
            compaction,
            ..Default::default()
        })
    }

    /// Lets a tick pass: nobody tells the log core that a reader is done.
    fn pass_tick(&mut self) -> Vec<Reply> {
        self.now += TICK;
        self.settle()
    }

    /// The main revision of the key as a read at `at_main` finds it in the index that is published now.
    fn read_at(&self, at_main: i64) -> Option<i64> {
        let index = self.core.state().index().clone();
        let pinned = index.pin();
        pinned.get(b"key", at_main).map(|meta| meta.revision.main)
    }
}

fn is_answered(replies: &[Reply], wanted: u64) -> bool {
    replies
        .iter()
        .any(|reply| matches!(reply, Reply::Applied { token, .. } if *token == wanted))
}

/// A transaction that ranges over the key as of a revision, and puts another.
fn range_in_txn(revision: i64) -> InternalRaftRequest {
    let range = RangeRequest {
        key: "key".into(),
        revision,
        ..Default::default()
    };
    let put = PutRequest {
        key: "other".into(),
        ..Default::default()
    };
    let success = [
        request_op::Request::RequestRange(range),
        request_op::Request::RequestPut(put),
    ];
    let txn = Some(TxnRequest {
        success: success.map(|request| RequestOp { request: Some(request) }).to_vec(),
        ..Default::default()
    });
    InternalRaftRequest {
        txn,
        ..Default::default()
    }
}

/// The hold of an answer, and the revision at which its range will be run.
fn late_range(replies: Vec<Reply>, wanted: u64) -> (Option<Hold>, i64) {
    let answer = replies.into_iter().find_map(|reply| match reply {
        Reply::Applied {
            token, outcome, hold, ..
        } if token == wanted => Some((outcome, hold)),
        _ => None,
    });
    let (outcome, hold) = answer.expect("an answer");
    let Ok(Answer::Txn(txn)) = outcome.answer else {
        panic!("{outcome:?}")
    };
    let OperationOutcome::Range(RangeOutcome::Later { at_main, .. }) = txn.operations[0] else {
        panic!("{txn:?}")
    };
    (hold, at_main)
}

#[test]
fn rule_10_a_compaction_waits_for_readers_below_it() {
    let (mut bench, readers) = bench_with_history();
    readers.set(0, 5);
    let compaction = bench.propose_compaction(10);
    let replies = bench.settle();
    assert!(!is_answered(&replies, compaction), "it removes what is being read");
    assert_eq!(
        bench.core.state().readable().compact_revision,
        10,
        "nobody new reads below it"
    );
    for _ in 0..50 {
        assert!(!is_answered(&bench.pass_tick(), compaction));
        assert_eq!(bench.read_at(5), Some(5), "each slice seeks again, in the newest root");
    }
    // Another reader at the compact revision itself is in nobody's way.
    readers.set(0, 10);
    assert!(is_answered(&bench.pass_tick(), compaction));
    assert_eq!(bench.read_at(5), None);
    assert_eq!(bench.read_at(10), Some(10));
}

#[test]
fn rule_13_a_compaction_waits_for_ranges_of_answers_on_their_way() {
    let (mut bench, _) = bench_with_history();
    // All of it may be applied in one batch: the compaction is due before the serve core has seen the answer.
    let txn = bench.propose(&range_in_txn(6));
    for version in 0..VERSIONS {
        let put = PutRequest {
            key: "key".into(),
            value: vec![version as u8].into(),
            ..Default::default()
        };
        bench.propose(&InternalRaftRequest {
            put: Some(put),
            ..Default::default()
        });
    }
    let harmless = bench.propose_compaction(6);
    let compaction = bench.propose_compaction(20);
    let replies = bench.settle();
    assert!(
        is_answered(&replies, harmless),
        "what is read at a compact revision stays"
    );
    assert!(
        !is_answered(&replies, compaction),
        "it removes what an answer on its way names"
    );
    let (hold, at_main) = late_range(replies, txn);
    assert_eq!((hold.is_some(), at_main), (true, 6));
    for _ in 0..5 {
        bench.pass_tick();
        assert_eq!(bench.read_at(at_main), Some(6), "what the range has to find");
    }
    drop(hold);
    assert!(is_answered(&bench.pass_tick(), compaction));
    assert_eq!(bench.read_at(at_main), None);
}
