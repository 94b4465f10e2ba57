//! One case for each rule of keys and transactions that is easily got wrong (`etcd-surface` 4.2 to 4.4).

use super::harness::Member;
use super::requests::*;
use crate::limits::INDEX_SLICE_ENTRIES;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    self as pb, Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, TxnRequest,
    compare::TargetUnion, request_op::Request, response_op::Response,
};
use crate::state::outcome;
use crate::state::plan::needed_by_txn;
use crate::state::read::NoRecords;
use crate::state::{Entry, Progress, StateError};
use bytes::Bytes;
use std::time::Duration;

#[test]
fn a_new_store_is_at_revision_1() {
    let mut member = Member::new();
    assert_eq!(member.view.revision, 1);
    assert_eq!(member.delete(delete("a", "\0")).header.unwrap().revision, 1);
    assert_eq!(member.txn(txn(vec![])).unwrap().header.unwrap().revision, 1);
    member.grant(5, 60).unwrap();
    assert_eq!(member.view.revision, 1, "neither deletes of nothing nor leases count");
    assert_eq!(member.put(put("a", "1")).unwrap().header.unwrap().revision, 2);
    let response = member
        .put(PutRequest {
            prev_kv: true,
            ..put("a", "2")
        })
        .unwrap();
    assert_eq!(response.prev_kv.unwrap().value, "1");
    assert_eq!(member.delete(delete("a", "")).deleted, 1);
    member.put(put("a", "3")).unwrap();
    let kv = member.range(&range("a", "")).unwrap().kvs.remove(0);
    assert_eq!(
        (kv.create_revision, kv.mod_revision, kv.version),
        (5, 5, 1),
        "a deletion starts the version again"
    );
}

#[test]
fn a_transaction_is_one_revision_and_sees_its_own_writes() {
    let mut member = Member::new();
    member.put(put("x", "0")).unwrap();
    let request = txn(vec![
        Request::RequestRange(range("a", "zz")),
        Request::RequestPut(put("a", "1")),
        Request::RequestRange(range("a", "zz")),
        nested(txn(vec![
            Request::RequestPut(put("b", "2")),
            Request::RequestRange(range("a", "zz")),
        ])),
        Request::RequestDeleteRange(DeleteRangeRequest {
            prev_kv: true,
            ..delete("x", "")
        }),
        Request::RequestDeleteRange(delete("nothing", "")),
    ]);
    let response = member.txn(request).unwrap();
    assert_eq!(response.header.unwrap().revision, 3);
    let revisions: Vec<_> = response.responses.iter().map(revision_of).collect();
    assert_eq!(revisions, [2, 3, 3, 0, 3, 3]);
    let counts = |operation: &pb::ResponseOp| match operation.response.as_ref().unwrap() {
        Response::ResponseRange(response) => response.count,
        _ => -1,
    };
    assert_eq!(
        response.responses.iter().map(counts).collect::<Vec<_>>(),
        [1, -1, 2, -1, -1, -1]
    );
    let subs: Vec<_> = member.history().into_keys().collect();
    assert_eq!(
        subs,
        [(2, 0), (3, 0), (3, 1), (3, 2)].map(|(main, sub)| Revision::new(main, sub))
    );
    let only_reads = txn(vec![nested(txn(vec![Request::RequestRange(range("a", ""))]))]);
    assert_eq!(member.txn(only_reads).unwrap().header.unwrap().revision, 3);
}

#[test]
fn nested_compares_see_the_state_before() {
    let mut member = Member::new();
    let absent = |key: &'static str| Compare {
        key: key.into(),
        target: 1,
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    let inner = TxnRequest {
        compare: vec![absent("a")],
        ..txn(vec![Request::RequestPut(put("b", "inner"))])
    };
    let response = member
        .txn(txn(vec![Request::RequestPut(put("a", "1")), nested(inner)]))
        .unwrap();
    let Some(Response::ResponseTxn(inner)) = &response.responses[1].response else {
        panic!()
    };
    assert!(inner.succeeded);
    assert_eq!(member.value("b").unwrap(), "inner");
}

#[test]
fn a_refused_operation_undoes_the_whole_transaction() {
    let mut member = Member::new();
    member.put(put("a", "1")).unwrap();
    member.put(put("a", "2")).unwrap();
    let mut refuse = |request: Request, error: StateError| {
        let first = Request::RequestPut(put("b", "x"));
        assert_eq!(member.txn(txn(vec![first, nested(txn(vec![request]))])), Err(error));
        assert_eq!((member.view.revision, member.value("b")), (3, None));
    };
    refuse(
        Request::RequestPut(PutRequest {
            lease: 9,
            ..put("c", "")
        }),
        StateError::LeaseNotFound,
    );
    refuse(
        Request::RequestPut(PutRequest {
            ignore_value: true,
            ..put("c", "")
        }),
        StateError::KeyNotFound,
    );
    refuse(
        Request::RequestPut(PutRequest {
            ignore_lease: true,
            ..put("b", "")
        }),
        StateError::KeyNotFound,
    );
    refuse(
        Request::RequestRange(RangeRequest {
            revision: 4,
            ..range("a", "")
        }),
        StateError::FutureRevision,
    );
    member.ask_compact(3).unwrap();
    for revision in [2, -1] {
        let old = Request::RequestRange(RangeRequest {
            revision,
            ..range("a", "")
        });
        assert_eq!(
            member.txn(txn(vec![old.clone()])),
            Err(StateError::Compacted),
            "in a transaction, -1 is old, too"
        );
        let request = TxnRequest {
            success: operations(vec![old]),
            ..Default::default()
        };
        assert_eq!(member.read_txn(&request), Err(StateError::Compacted));
    }
    assert_eq!(
        member
            .range(&RangeRequest {
                revision: -1,
                ..range("a", "")
            })
            .unwrap()
            .count,
        1
    );
}

#[test]
fn compares() {
    let mut member = Member::new();
    member.put(put("a", "1")).unwrap();
    member.put(put("b", "")).unwrap();
    let holds = |result: i32, target: i32, key: &'static str, end: &'static str, union: Option<TargetUnion>| {
        let compare = Compare {
            result,
            target,
            key: key.into(),
            range_end: end.into(),
            target_union: union,
        };
        member
            .read_txn(&TxnRequest {
                compare: vec![compare],
                ..Default::default()
            })
            .unwrap()
            .succeeded
    };
    let value = |value: &'static str| Some(TargetUnion::Value(value.into()));
    assert!(holds(0, 3, "a", "", value("1")) && holds(1, 3, "a", "", value("0")) && !holds(2, 3, "a", "", value("1")));
    assert!(holds(0, 3, "b", "", None), "an unset union is empty");
    assert!(
        !holds(0, 3, "none", "", None) && !holds(3, 3, "none", "", value("x")),
        "an absent value is never anything"
    );
    assert!(holds(0, 0, "none", "", None) && holds(3, 2, "none", "", Some(TargetUnion::ModRevision(1))));
    assert!(holds(0, 0, "a", "c", Some(TargetUnion::Version(1))));
    assert!(!holds(0, 3, "a", "c", value("1")) && holds(3, 3, "a", "\0", value("2")));
    assert!(holds(1, 2, "a", "\0", Some(TargetUnion::ModRevision(1))));
    assert!(!holds(1, 2, "a", "\0", Some(TargetUnion::ModRevision(2))));
    assert!(
        holds(0, 0, "c", "d", None) && !holds(0, 3, "c", "d", None),
        "an empty interval is an absent key"
    );
    assert!(holds(0, 4, "a", "", None) && holds(0, 9, "a", "", None) && holds(9, 0, "a", "", None));
    assert!(
        holds(0, 1, "none", "", Some(TargetUnion::Version(7))),
        "a union of another kind counts as 0"
    );
}

/// Three keys, one of them put twice.
fn three_keys() -> Member {
    let mut member = Member::new();
    for (key, value) in [("a", "3"), ("b", "2"), ("c", "1"), ("b", "0")] {
        member.put(put(key, value)).unwrap();
    }
    member
}

fn all() -> RangeRequest {
    range("a", "\0")
}

/// The keys of the answer, whether there are more, and the count.
fn keys(member: &mut Member, request: RangeRequest) -> (String, bool, i64) {
    let response = member.range(&request).unwrap();
    let keys: Vec<_> = response
        .kvs
        .into_iter()
        .map(|kv| String::from_utf8(kv.key.to_vec()).unwrap())
        .collect();
    (keys.concat(), response.more, response.count)
}

#[test]
fn ranges() {
    let mut member = three_keys();
    assert_eq!(keys(&mut member, all()), ("abc".into(), false, 3));
    assert_eq!(keys(&mut member, range("\0", "\0")).2, 3);
    assert_eq!(keys(&mut member, range("b", "a")), ("".into(), false, 0));
    assert_eq!(
        keys(&mut member, RangeRequest { limit: 2, ..all() }),
        ("ab".into(), true, 3)
    );
    assert_eq!(
        keys(&mut member, RangeRequest { limit: 3, ..all() }),
        ("abc".into(), false, 3)
    );
    assert_eq!(
        keys(
            &mut member,
            RangeRequest {
                limit: i64::MAX,
                ..all()
            }
        )
        .2,
        3
    );
    assert_eq!(keys(&mut member, RangeRequest { limit: -1, ..all() }).2, 3);
    let filtered = RangeRequest {
        min_mod_revision: 3,
        max_mod_revision: 4,
        ..all()
    };
    assert_eq!(
        keys(&mut member, filtered.clone()),
        ("c".into(), false, 3),
        "count ignores the filters"
    );
    assert_eq!(
        keys(&mut member, RangeRequest { limit: 1, ..filtered }),
        ("c".into(), false, 3)
    );
    assert_eq!(
        keys(
            &mut member,
            RangeRequest {
                count_only: true,
                limit: 1,
                ..all()
            }
        ),
        ("".into(), false, 3)
    );
    assert_eq!(
        keys(&mut member, RangeRequest { revision: 3, ..all() }),
        ("ab".into(), false, 2)
    );
    assert_eq!(
        member
            .range(&RangeRequest { revision: 2, ..all() })
            .unwrap()
            .header
            .unwrap()
            .revision,
        5
    );
    assert_eq!(
        member.range(&RangeRequest { revision: 6, ..all() }),
        Err(StateError::FutureRevision)
    );
}

#[test]
fn sorted_ranges() {
    let mut member = three_keys();
    assert_eq!(
        keys(
            &mut member,
            RangeRequest {
                limit: 2,
                sort_order: 2,
                ..all()
            }
        ),
        ("cb".into(), true, 3)
    );
    let by_value = RangeRequest {
        limit: 1,
        sort_target: 4,
        ..all()
    };
    assert_eq!(
        keys(&mut member, by_value.clone()),
        ("b".into(), true, 3),
        "no order: the first two keys, sorted, then cut"
    );
    assert_eq!(
        keys(
            &mut member,
            RangeRequest {
                sort_order: 2,
                ..by_value
            }
        ),
        ("a".into(), true, 3)
    );
    assert_eq!(
        keys(
            &mut member,
            RangeRequest {
                sort_target: 3,
                sort_order: 1,
                ..all()
            }
        )
        .0,
        "acb"
    );
}

/// As Go's sort leaves a few, or those that are all equal.
#[test]
fn rows_that_are_equal_stay_in_the_order_of_their_keys() {
    let mut member = Member::new();
    let puts =
        [("a", "1"), ("b", "2"), ("c", "1"), ("d", "2")].map(|(key, value)| Request::RequestPut(put(key, value)));
    member.txn(txn(puts.to_vec())).unwrap();
    for (sort_target, rising, falling) in [
        (1, "abcd", "abcd"),
        (2, "abcd", "abcd"),
        (3, "abcd", "abcd"),
        (4, "acbd", "bdac"),
    ] {
        for (sort_order, expected) in [(1, rising), (2, falling)] {
            let request = RangeRequest {
                sort_target,
                sort_order,
                ..all()
            };
            assert_eq!(
                keys(&mut member, request).0,
                expected,
                "target {sort_target}, order {sort_order}"
            );
        }
    }
}

#[test]
fn keys_only_has_no_lease_unless_sorted_by_value() {
    let mut member = Member::new();
    member.grant(7, 10).unwrap();
    member
        .put(PutRequest {
            lease: 7,
            ..put("a", "1")
        })
        .unwrap();
    let only = RangeRequest {
        keys_only: true,
        ..range("a", "")
    };
    let kv = member.range(&only).unwrap().kvs.remove(0);
    assert_eq!(
        (kv.lease, kv.create_revision, kv.mod_revision, kv.version),
        (0, 2, 2, 1)
    );
    let kv = member
        .range(&RangeRequest { sort_target: 4, ..only })
        .unwrap()
        .kvs
        .remove(0);
    assert_eq!((kv.lease, &kv.value[..]), (7, &b""[..]));
}

/// etcd lets a delete "from the key on" stand beside a put of a key in it, and both happen in order.
#[test]
fn a_key_may_be_deleted_and_written_in_one_revision() {
    let mut member = Member::new();
    member.put(put("b", "1")).unwrap();
    let request = txn(vec![
        Request::RequestDeleteRange(delete("a", "\0")),
        Request::RequestPut(PutRequest {
            ignore_value: true,
            ..put("b", "")
        }),
        Request::RequestRange(range("b", "")),
    ]);
    let response = member.txn(request).unwrap();
    let Some(Response::ResponseRange(seen)) = &response.responses[2].response else {
        panic!()
    };
    assert_eq!(
        (seen.kvs[0].version, seen.kvs[0].create_revision, &seen.kvs[0].value[..]),
        (1, 3, &b"1"[..])
    );
    let other_way = txn(vec![
        nested(txn(vec![Request::RequestPut(put("c", "1"))])),
        nested(txn(vec![Request::RequestDeleteRange(delete("c", "d"))])),
    ]);
    member.txn(other_way).unwrap();
    assert_eq!(member.value("c"), None);
    member.checkpoint();
    member.restart();
    assert_eq!(
        (member.value("b").unwrap(), member.value("c")),
        (Bytes::from_static(b"1"), None)
    );
}

/// Deleting many keys stops on its budget, sees nothing published in between, and is one revision.
#[test]
fn large_deletions_yield() {
    let mut member = Member::new();
    for at in 0..5000 {
        let key = format!("key{at:05}").into_bytes();
        member
            .put(PutRequest {
                key: key.into(),
                ..Default::default()
            })
            .unwrap();
    }
    let request = InternalRaftRequest {
        delete_range: Some(delete("key", "kez")),
        ..Default::default()
    };
    let entry = Entry {
        index: member.index + 1,
        term: 1,
        request: &request,
        answer: true,
        now: Duration::ZERO,
    };
    let mut progress = member.state.apply(&entry, &NoRecords, 1500);
    let mut turns = 1;
    let done = loop {
        match progress {
            Progress::More => {
                assert_eq!(member.range(&range("key", "kez")).unwrap().count, 5000);
                assert!(member.state.window().view().last().sub < 1500 * turns);
                progress = member.state.resume(1500);
                turns += 1;
            }
            Progress::Done(outcome) => break outcome,
            Progress::Needs(_) => panic!(),
        }
    };
    assert!(turns >= 4);
    let Ok(outcome::Answer::Delete(deleted)) = done.answer else {
        panic!()
    };
    assert_eq!((deleted.deleted, deleted.revision, done.revision), (5000, 5002, 5002));
}

#[test]
fn values_that_decide_are_asked_for() {
    let mut member = Member::new();
    member.put(put("a", "1")).unwrap();
    member.checkpoint();
    member.restart();
    let request = InternalRaftRequest {
        put: Some(PutRequest {
            ignore_value: true,
            ..put("a", "")
        }),
        ..Default::default()
    };
    assert_eq!(member.state.needs(&request), [Revision::new(2, 0)]);
    let entry = Entry {
        index: member.index + 1,
        term: 1,
        request: &request,
        answer: true,
        now: Duration::ZERO,
    };
    let progress = member.state.apply(&entry, &NoRecords, 100);
    assert_eq!(progress, Progress::Needs(vec![Revision::new(2, 0)]));
    assert_eq!(member.state.applied_index(), member.index, "nothing happened");
    assert!(member.apply(&request).is_ok());
    assert_eq!(member.value("a").unwrap(), "1");
    assert!(member.state.needs(&request).is_empty(), "the window has it now");
}

/// Compares of many keys, and ranges that only apply can read, stop on the budget as well.
#[test]
fn long_reads_of_a_transaction_yield() {
    let mut member = Member::new();
    let keys = 2 * INDEX_SLICE_ENTRIES + 100;
    for at in 0..keys {
        let key = format!("key{at:06}").into_bytes();
        member
            .put(PutRequest {
                key: key.into(),
                ..Default::default()
            })
            .unwrap();
    }
    let newer = Compare {
        result: 1,
        target: 2,
        key: "key".into(),
        range_end: "kez".into(),
        target_union: Some(TargetUnion::ModRevision(1)),
    };
    let mut request = txn(vec![
        Request::RequestPut(put("x", "1")),
        Request::RequestRange(range("key", "kez")),
        Request::RequestPut(put("y", "1")),
    ]);
    request.compare = vec![newer];
    member.budget = 1;
    let response = member.txn(request).unwrap();
    assert!(response.succeeded);
    let Some(Response::ResponseRange(found)) = &response.responses[1].response else {
        panic!()
    };
    assert_eq!(found.count, keys as i64);
    let [found, _, resumed] = member.seen.get();
    assert!(found == 1 && resumed > 6, "{found} {resumed}");
}

/// However many compares look at the same values, each is needed once, and the compares are made in slices.
#[test]
fn compares_of_many_values_yield() {
    let mut member = Member::new();
    let keys = INDEX_SLICE_ENTRIES + 100;
    for at in 0..keys {
        let put = PutRequest {
            key: format!("key{at:06}").into(),
            value: "2".into(),
            ..Default::default()
        };
        member.put(put).unwrap();
    }
    let greater = |range_end: &'static str, value: &'static str| Compare {
        result: 1,
        target: 3,
        key: "key".into(),
        range_end: range_end.into(),
        target_union: Some(TargetUnion::Value(value.into())),
    };
    let mut request = txn(vec![Request::RequestPut(put("x", "1"))]);
    request.compare = vec![greater("kez", "1"), greater("key0002", "1"), greater("\0", "1")];
    let needed = needed_by_txn(&request, &member.state.index().pin(), member.state.revision);
    assert_eq!(needed.len(), keys);
    member.budget = 1;
    assert!(member.txn(request.clone()).unwrap().succeeded);
    let [_, _, resumed] = member.seen.get();
    assert!(resumed > 4, "{resumed}");
    request.compare.push(greater("kez", "2"));
    assert!(!member.txn(request).unwrap().succeeded);
}
