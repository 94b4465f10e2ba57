//! What the log core takes of the member's memory stays within what it is told.

use super::*;
use crate::io::disk::{Completion, Operation};
use crate::limits::{APPLY_SLICE_BYTES, CHECKPOINT_INTERVAL, LOADER_READS};
use std::collections::HashSet;

fn put(key: &str, value: usize) -> InternalRaftRequest {
    InternalRaftRequest {
        put: Some(PutRequest {
            key: key.to_string().into(),
            value: vec![b'v'; value].into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn propose(bench: &mut Bench, token: u64, request: &InternalRaftRequest, quota_bytes: usize) {
    let payload = request.encode_to_vec().into();
    let request = Request::Propose {
        token,
        id: token,
        payload,
        quota_bytes,
    };
    bench.core.handle(0, request, bench.now);
}

fn applied(replies: &[Reply]) -> usize {
    replies
        .iter()
        .filter(|reply| matches!(reply, Reply::Applied { .. }))
        .count()
}

/// DESIGN 12 (19): apply waits for a checkpoint when too much is not stored, and everything else goes on.
#[test]
fn apply_waits_when_too_much_is_not_stored() {
    let mut boot = boot();
    (boot.options.memory.checkpoint_at, boot.options.memory.unstored_max) = (1 << 30, 10_000);
    let mut bench = Bench::new(boot);
    for token in 1..=9 {
        propose(&mut bench, token, &put(&format!("key {token}"), 4000), 1);
    }
    let mut answered = applied(&bench.settle());
    assert_eq!(answered, 3, "the third goes beyond 10 000 bytes");
    for round in 2..=3 {
        bench.core.handle(0, Request::Status { token: 100 }, bench.now);
        let replies = bench.settle();
        let told = |reply: &Reply| matches!(reply, Reply::Status { status, .. } if status.pending == 9 - answered);
        assert!(replies.iter().any(told), "{replies:?}");
        assert_eq!(applied(&replies), 0);
        bench.now += CHECKPOINT_INTERVAL;
        answered += applied(&bench.settle());
        assert_eq!(answered, 3 * round, "a checkpoint makes room for as much again");
    }
    assert_eq!(bench.revision_of("key 9"), Some(10));
}

/// A put that keeps the value of its key: a few bytes of log, a whole record in the window.
fn keep(key: &str) -> PutRequest {
    PutRequest {
        key: key.to_string().into(),
        ignore_value: true,
        ..Default::default()
    }
}

fn keep_all(keys: impl Iterator<Item = String>) -> InternalRaftRequest {
    let success = keys.map(|key| RequestOp {
        request: Some(request_op::Request::RequestPut(keep(&key))),
    });
    let txn = TxnRequest {
        success: success.collect(),
        ..Default::default()
    };
    InternalRaftRequest {
        txn: Some(txn),
        ..Default::default()
    }
}

/// What is not stored is what entries made, however short they are: now, and when the log is replayed.
#[test]
fn kept_values_are_counted_as_what_they_take() {
    const VALUE: usize = 4000;
    let small = |checkpoint_at| {
        let mut boot = boot();
        let memory = &mut boot.options.memory;
        (memory.checkpoint_at, memory.unstored_max) = (checkpoint_at, 10_000);
        boot
    };
    let mut bench = Bench::new(small(1 << 30));
    bench.put("key", &[b'v'; VALUE]);
    bench.now += CHECKPOINT_INTERVAL;
    bench.settle();
    for token in 11..20 {
        let request = InternalRaftRequest {
            put: Some(keep("key")),
            ..Default::default()
        };
        propose(&mut bench, token, &request, 1);
    }
    assert_eq!(applied(&bench.settle()), 3, "the third goes beyond 10 000 bytes");
    let stored = bench.core.pages().root().fields().revision;
    let bench = bench.restart(small(5_000));
    assert_eq!(bench.revision_of("key"), Some(11), "all is replayed");
    let fields = bench.core.pages().root().fields().clone();
    assert!(
        fields.revision >= stored + 6,
        "and most of it stored as it was: {fields:?}"
    );
}

/// A transaction that makes much of little is applied in slices of few bytes, and counted as it goes.
#[test]
fn a_transaction_of_kept_values_is_applied_in_slices() {
    const VALUE: usize = 1 << 20;
    const KEYS: usize = 24;
    let mut bench = Bench::new(boot());
    let key = |number: usize| format!("key{number:02}");
    for number in 0..KEYS {
        bench.apply(put(&key(number), VALUE));
    }
    bench.now += CHECKPOINT_INTERVAL;
    bench.settle();
    let appended = |bench: &Bench| bench.core.state().window().appended_bytes();
    let begun = appended(&bench);
    let request = keep_all((0..KEYS).map(key));
    assert!(request.encoded_len() < 1000);
    propose(&mut bench, 100, &request, 1);
    let mut completions = Vec::new();
    let mut answered = 0;
    while answered == 0 {
        let before = appended(&bench);
        bench.core.turn(&mut bench.disk, bench.now).unwrap();
        let written = appended(&bench) - before;
        assert!(
            written <= APPLY_SLICE_BYTES + 2 * VALUE as u64,
            "{written} bytes in one turn"
        );
        let unstored = bench.core.dirty_bytes + bench.core.cut_bytes;
        assert!(unstored >= appended(&bench) - begun, "{unstored} bytes are counted");
        let replies: Vec<Reply> = bench.core.take_replies().map(|(_, reply)| reply).collect();
        answered += applied(&replies);
        bench.disk.poll(&mut completions);
        for completion in completions.drain(..) {
            bench.core.completed(completion).unwrap();
        }
    }
    assert!(appended(&bench) - begun > (KEYS * VALUE) as u64);
}

/// Entries that each make much are applied few at a time.
#[test]
fn puts_that_keep_values_share_turns_by_their_bytes() {
    const VALUE: usize = 1 << 20;
    let mut bench = Bench::new(boot());
    bench.put("key", &vec![b'v'; VALUE]);
    bench.now += CHECKPOINT_INTERVAL;
    bench.settle();
    for token in 11..31 {
        let request = InternalRaftRequest {
            put: Some(keep("key")),
            ..Default::default()
        };
        propose(&mut bench, token, &request, 1);
    }
    let (mut completions, mut answered) = (Vec::new(), 0);
    while answered < 20 {
        let before = bench.core.state().window().appended_bytes();
        bench.core.turn(&mut bench.disk, bench.now).unwrap();
        let written = bench.core.state().window().appended_bytes() - before;
        assert!(
            written <= APPLY_SLICE_BYTES + 2 * VALUE as u64,
            "{written} bytes in one turn"
        );
        let replies: Vec<Reply> = bench.core.take_replies().map(|(_, reply)| reply).collect();
        answered += applied(&replies);
        bench.disk.poll(&mut completions);
        for completion in completions.drain(..) {
            bench.core.completed(completion).unwrap();
        }
    }
}

/// The quota sees at once what was made of requests that say little.
#[test]
fn kept_values_use_up_the_quota() {
    let mut boot = boot();
    boot.options.quota_bytes = Some(8 << 20);
    let mut bench = Bench::new(boot);
    bench.put("key", &vec![b'v'; 1 << 20]);
    let mut taken = 0;
    let refused = |reply: &Reply| {
        matches!(
            reply,
            Reply::Dropped {
                reason: Dropped::NoSpace,
                ..
            }
        )
    };
    loop {
        let request = InternalRaftRequest {
            put: Some(keep("key")),
            ..Default::default()
        };
        propose(&mut bench, 100 + taken, &request, 1);
        if bench.settle().iter().any(refused) {
            break;
        }
        taken += 1;
        assert!(taken < 8, "{taken} MiB are taken beside the first");
    }
}

#[test]
fn an_index_that_fills_its_share_refuses_what_adds_to_it() {
    let mut boot = boot();
    boot.options.memory.index_max = 30_000;
    let mut bench = Bench::new(boot);
    let mut added = 0;
    let refused = loop {
        propose(
            &mut bench,
            added,
            &put(&format!("a key of some length, number {added}"), 0),
            1,
        );
        let replies = bench.settle();
        if applied(&replies) == 0 {
            break replies;
        }
        added += 1;
        assert!(added < 1000, "nothing is refused");
    };
    assert!(added > 50, "{added} keys");
    let no_space = |reply: &Reply| {
        matches!(
            reply,
            Reply::Dropped {
                reason: Dropped::NoSpace,
                ..
            }
        )
    };
    assert!(refused.iter().any(no_space), "{refused:?}");
    assert_eq!(bench.core.state().alarms().list(0).len(), 1);
    let delete = InternalRaftRequest {
        delete_range: Some(DeleteRangeRequest {
            key: "a".into(),
            range_end: "b".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    propose(&mut bench, 2000, &delete, 0);
    assert_eq!(applied(&bench.settle()), 1, "what makes room goes on");
}

#[test]
fn proposals_that_wait_are_bounded_and_one_always_may() {
    let mut boot = boot();
    boot.options.memory.pending_max = 1000;
    let mut bench = Bench::new(boot);
    for token in 1..=3 {
        propose(&mut bench, token, &put("key", [5000, 900, 900][token as usize - 1]), 1);
    }
    let replies = bench.settle();
    let dropped = |reply: &&Reply| {
        matches!(
            reply,
            Reply::Dropped {
                reason: Dropped::TooManyRequests,
                ..
            }
        )
    };
    assert_eq!((applied(&replies), replies.iter().filter(dropped).count()), (1, 2));
    propose(&mut bench, 4, &put("key", 900), 1);
    assert_eq!(applied(&bench.settle()), 1);
}

/// Of records that are only compared nothing is kept; of one that is put again its value is.
#[test]
fn a_compare_of_all_values_holds_none_of_them() {
    const KEYS: usize = 60;
    const VALUE: usize = 100_000;
    let mut boot = boot();
    boot.options.memory.window = 1;
    let mut bench = Bench::new(boot);
    for key in 0..KEYS {
        bench.apply(put(&format!("key{key:03}"), VALUE));
    }
    for _ in 0..3 {
        bench.now += CHECKPOINT_INTERVAL;
        bench.put("other", b"1");
    }
    let compare = |result: compare::CompareResult, value: Vec<u8>| Compare {
        key: "key".into(),
        range_end: "kez".into(),
        result: result as i32,
        target: compare::CompareTarget::Value as i32,
        target_union: Some(compare::TargetUnion::Value(value.into())),
    };
    let kept = PutRequest {
        key: "key007".into(),
        ignore_value: true,
        ..Default::default()
    };
    let mut txn = TxnRequest {
        compare: vec![
            compare(compare::CompareResult::Equal, vec![b'v'; VALUE]),
            compare(compare::CompareResult::Less, b"w".to_vec()),
            compare(compare::CompareResult::Greater, b"u".to_vec()),
        ],
        success: vec![RequestOp {
            request: Some(request_op::Request::RequestPut(kept)),
        }],
        failure: vec![],
    };
    for holds in [true, false] {
        let request = InternalRaftRequest {
            txn: Some(txn.clone()),
            ..Default::default()
        };
        let (outcome, _) = bench.apply(request);
        assert!(
            matches!(outcome.answer, Ok(Answer::Txn(ref txn)) if txn.succeeded == holds),
            "{outcome:?}"
        );
        let found = bench.core.loader.found();
        assert!(
            found.len() >= KEYS / 2,
            "{} records were not in the window",
            found.len()
        );
        let large: HashSet<*const u8> = found
            .values()
            .filter(|record| record.len() > VALUE / 2)
            .map(|record| record.as_ptr())
            .collect();
        assert!(large.len() <= 2, "{} values are held", large.len());
        txn.compare
            .push(compare(compare::CompareResult::NotEqual, vec![b'v'; VALUE]));
    }
    assert_eq!(bench.core.state().readable().revision, KEYS as i64 + 5);
}

/// A disk that counts how many reads are handed in between two polls.
#[derive(Default)]
struct ReadCounter {
    disk: MemoryDisk,
    together: usize,
    most: usize,
}

impl Disk for ReadCounter {
    fn submit(&mut self, token: u64, operation: Operation) {
        if matches!(operation, Operation::Read { .. }) {
            self.together += 1;
            self.most = self.most.max(self.together);
        }
        self.disk.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.together = 0;
        self.disk.poll(completions);
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.together = 0;
        self.disk.wait(completions);
    }
}

/// Records that decide are read together, as many as the cache holds. A cache that holds none of them is slow, and
/// the answer is the same.
#[test]
fn records_that_decide_are_read_together() {
    const KEYS: usize = 150;
    const VALUE: usize = 8000;
    for (cache, together) in [(8 << 20, LOADER_READS as usize..=LOADER_READS as usize), (1, 1..=1)] {
        let mut boot = boot();
        (boot.options.memory.window, boot.options.memory.cache) = (1, cache);
        let mut bench = Bench::start(ReadCounter::default(), boot);
        for key in 0..KEYS {
            bench.apply(put(&format!("key{key:03}"), VALUE));
        }
        for _ in 0..3 {
            bench.now += CHECKPOINT_INTERVAL;
            bench.put("other", b"1");
        }
        bench.disk.most = 0;
        let equal = Compare {
            key: "key".into(),
            range_end: "kez".into(),
            target: compare::CompareTarget::Value as i32,
            target_union: Some(compare::TargetUnion::Value(vec![b'v'; VALUE].into())),
            ..Default::default()
        };
        let request = InternalRaftRequest {
            txn: Some(TxnRequest {
                compare: vec![equal],
                ..Default::default()
            }),
            ..Default::default()
        };
        let (outcome, _) = bench.apply(request);
        assert!(
            matches!(outcome.answer, Ok(Answer::Txn(ref txn)) if txn.succeeded),
            "{outcome:?}"
        );
        assert!(bench.core.loader.found().len() > KEYS / 2, "most are not in the window");
        assert!(
            together.contains(&bench.disk.most),
            "{} reads together",
            bench.disk.most
        );
    }
}
