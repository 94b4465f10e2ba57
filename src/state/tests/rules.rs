//! One case for each rule that is easily got wrong (`etcd-surface` 4.2 to 4.12).

use super::harness::Member;
use super::model::Answer;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    self as pb, AlarmMember, Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest, compare::TargetUnion, request_op::Request, response_op::Response,
};
use crate::proto::membershippb;
use crate::state::lease::Renewal;
use crate::state::members::Member as ClusterMember;
use crate::state::outcome;
use crate::state::read::NoRecords;
use crate::state::{CompactionProgress, Entry, Progress, Restore, RestoreError, StateError};
use bytes::Bytes;
use std::time::Duration;

fn put(key: &'static str, value: &'static str) -> PutRequest {
    PutRequest {
        key: key.into(),
        value: value.into(),
        ..Default::default()
    }
}

fn range(key: &'static str, end: &'static str) -> RangeRequest {
    RangeRequest {
        key: key.into(),
        range_end: end.into(),
        ..Default::default()
    }
}

fn delete(key: &'static str, end: &'static str) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
        prev_kv: false,
    }
}

fn operations(requests: Vec<Request>) -> Vec<RequestOp> {
    requests
        .into_iter()
        .map(|request| RequestOp { request: Some(request) })
        .collect()
}

fn txn(success: Vec<Request>) -> TxnRequest {
    TxnRequest {
        success: operations(success),
        ..Default::default()
    }
}

fn nested(request: TxnRequest) -> Request {
    Request::RequestTxn(request)
}

impl Member {
    fn put(&mut self, put: PutRequest) -> Result<pb::PutResponse, StateError> {
        match self.apply(&InternalRaftRequest {
            put: Some(put),
            ..Default::default()
        })? {
            Answer::Put(response) => Ok(response),
            answer => panic!("{answer:?}"),
        }
    }

    fn delete(&mut self, delete: DeleteRangeRequest) -> pb::DeleteRangeResponse {
        match self.apply(&InternalRaftRequest {
            delete_range: Some(delete),
            ..Default::default()
        }) {
            Ok(Answer::Delete(response)) => response,
            answer => panic!("{answer:?}"),
        }
    }

    fn txn(&mut self, txn: TxnRequest) -> Result<pb::TxnResponse, StateError> {
        match self.apply(&InternalRaftRequest {
            txn: Some(txn),
            ..Default::default()
        })? {
            Answer::Txn(response) => Ok(response),
            answer => panic!("{answer:?}"),
        }
    }

    fn ask_compact(&mut self, revision: i64) -> Result<(), StateError> {
        let compaction = pb::CompactionRequest {
            revision,
            physical: false,
        };
        self.apply(&InternalRaftRequest {
            compaction: Some(compaction),
            ..Default::default()
        })
        .map(|_| ())
    }

    fn grant(&mut self, id: i64, ttl: i64) -> Result<outcome::Answer, StateError> {
        let grant = pb::LeaseGrantRequest { id, ttl };
        self.apply_raw(&InternalRaftRequest {
            lease_grant: Some(grant),
            ..Default::default()
        })
        .answer
    }

    fn revoke(&mut self, id: i64) -> Result<outcome::Answer, StateError> {
        let revoke = pb::LeaseRevokeRequest { id };
        self.apply_raw(&InternalRaftRequest {
            lease_revoke: Some(revoke),
            ..Default::default()
        })
        .answer
    }

    fn alarm(&mut self, action: i32, member_id: u64, alarm: i32) -> Option<Vec<AlarmMember>> {
        let alarm = pb::AlarmRequest {
            action,
            member_id,
            alarm,
        };
        match self
            .apply_raw(&InternalRaftRequest {
                alarm: Some(alarm),
                ..Default::default()
            })
            .answer
        {
            Ok(outcome::Answer::Alarm(alarms)) => alarms,
            answer => panic!("{answer:?}"),
        }
    }

    fn value(&self, key: &'static str) -> Option<Bytes> {
        self.range(&range(key, "")).unwrap().kvs.pop().map(|kv| kv.value)
    }
}

fn revision_of(operation: &pb::ResponseOp) -> i64 {
    let header = match operation.response.as_ref().unwrap() {
        Response::ResponseRange(response) => response.header,
        Response::ResponsePut(response) => response.header,
        Response::ResponseDeleteRange(response) => response.header,
        Response::ResponseTxn(response) => response.header,
    };
    header.unwrap().revision
}

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

#[test]
fn ranges() {
    let mut member = Member::new();
    for (key, value) in [("a", "3"), ("b", "2"), ("c", "1"), ("b", "0")] {
        member.put(put(key, value)).unwrap();
    }
    let keys = |request: RangeRequest| {
        let response = member.range(&request).unwrap();
        let keys: Vec<_> = response
            .kvs
            .into_iter()
            .map(|kv| String::from_utf8(kv.key.to_vec()).unwrap())
            .collect();
        (keys.concat(), response.more, response.count)
    };
    let all = || range("a", "\0");
    assert_eq!(keys(all()), ("abc".into(), false, 3));
    assert_eq!(keys(range("\0", "\0")).2, 3);
    assert_eq!(keys(range("b", "a")), ("".into(), false, 0));
    assert_eq!(keys(RangeRequest { limit: 2, ..all() }), ("ab".into(), true, 3));
    assert_eq!(keys(RangeRequest { limit: 3, ..all() }), ("abc".into(), false, 3));
    assert_eq!(
        keys(RangeRequest {
            limit: i64::MAX,
            ..all()
        })
        .2,
        3
    );
    assert_eq!(keys(RangeRequest { limit: -1, ..all() }).2, 3);
    assert_eq!(
        keys(RangeRequest {
            limit: 2,
            sort_order: 2,
            ..all()
        }),
        ("cb".into(), true, 3)
    );
    let by_value = RangeRequest {
        limit: 1,
        sort_target: 4,
        ..all()
    };
    assert_eq!(
        keys(by_value.clone()),
        ("b".into(), true, 3),
        "no order: the first two keys, sorted, then cut"
    );
    assert_eq!(
        keys(RangeRequest {
            sort_order: 2,
            ..by_value
        }),
        ("a".into(), true, 3)
    );
    assert_eq!(
        keys(RangeRequest {
            sort_target: 3,
            sort_order: 1,
            ..all()
        })
        .0,
        "acb"
    );
    let filtered = RangeRequest {
        min_mod_revision: 3,
        max_mod_revision: 4,
        ..all()
    };
    assert_eq!(
        keys(filtered.clone()),
        ("c".into(), false, 3),
        "count ignores the filters"
    );
    assert_eq!(keys(RangeRequest { limit: 1, ..filtered }), ("c".into(), false, 3));
    assert_eq!(
        keys(RangeRequest {
            count_only: true,
            limit: 1,
            ..all()
        }),
        ("".into(), false, 3)
    );
    assert_eq!(keys(RangeRequest { revision: 3, ..all() }), ("ab".into(), false, 2));
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

#[test]
fn compaction_rules() {
    let mut member = Member::new();
    assert_eq!(
        member.ask_compact(0),
        Ok(()),
        "a fresh store can be compacted at 0 once"
    );
    assert_eq!(member.ask_compact(0), Err(StateError::Compacted));
    for value in ["1", "2", "3"] {
        member.put(put("a", value)).unwrap();
    }
    assert_eq!(member.ask_compact(5), Err(StateError::FutureRevision));
    assert_eq!(member.ask_compact(3), Ok(()));
    assert_eq!(member.view.revision, 4);
    assert_eq!(
        member
            .range(&RangeRequest {
                revision: 3,
                ..range("a", "")
            })
            .unwrap()
            .kvs[0]
            .value,
        "2"
    );
    assert_eq!(
        member.range(&RangeRequest {
            revision: 2,
            ..range("a", "")
        }),
        Err(StateError::Compacted)
    );
    assert_eq!(member.state.compaction_step(0), CompactionProgress::Finished(0));
    assert_eq!(member.state.compaction_step(1), CompactionProgress::More);
    assert_eq!(member.state.compaction_step(100), CompactionProgress::Finished(3));
    assert_eq!(member.state.compaction_step(100), CompactionProgress::Idle);
    assert_eq!(member.state.take_changes().removed, [(Revision::new(2, 0), false)]);
}

/// The tombstone at exactly the compact revision stays until the next compaction.
#[test]
fn a_tombstone_at_the_compact_revision_stays_once() {
    let mut member = Member::new();
    member.put(put("a", "1")).unwrap();
    member.delete(delete("a", ""));
    member.put(put("b", "1")).unwrap();
    member.ask_compact(3).unwrap();
    member.compact(1);
    assert_eq!(member.state.take_changes().removed, [(Revision::new(2, 0), false)]);
    member.ask_compact(4).unwrap();
    member.compact(1);
    assert_eq!(member.state.take_changes().removed, [(Revision::new(3, 0), true)]);
}

/// A compaction that a crash interrupted goes on after the restart, from the page store's records.
#[test]
fn compaction_survives_a_restart() {
    let mut member = Member::new();
    for value in ["1", "2", "3", "4"] {
        member.put(put("a", value)).unwrap();
        member.put(put("b", value)).unwrap();
    }
    member.ask_compact(8).unwrap();
    assert_eq!(member.state.compaction_step(1), CompactionProgress::More);
    member.checkpoint();
    member.restart();
    assert_eq!((member.view.revision, member.view.compact_revision), (9, 8));
    assert_eq!(member.ask_compact(8), Err(StateError::Compacted));
    let needed = CompactionProgress::NeedsRecords {
        from: Revision::new(2, 0),
        through: 8,
    };
    assert_eq!(member.state.compaction_step(1), needed);
    member.compact(2);
    member.checkpoint();
    let left: Vec<_> = member.stored_revisions().map(|at| at.main).collect();
    assert_eq!(left, [7, 8, 9]);
}

/// Nothing but tombstones before the compact revision: the revision must not fall back.
#[test]
fn the_revision_does_not_fall_when_everything_is_compacted() {
    let mut member = Member::new();
    member.put(put("a", "1")).unwrap();
    member.delete(delete("a", ""));
    member.put(put("b", "1")).unwrap();
    member.delete(delete("b", ""));
    member.ask_compact(5).unwrap();
    member.compact(9);
    member.checkpoint();
    member.restart();
    assert_eq!(member.view.revision, 5);
    assert_eq!(member.put(put("a", "2")).unwrap().header.unwrap().revision, 6);
}

/// The hashes that etcd 3.7.1's store gives for the same history.
#[test]
fn hash_kv_is_etcds() {
    let mut member = Member::new();
    let hash = |member: &Member, wanted| member.hash_kv(wanted).map(|hash| (hash.hash, hash.compact_revision));
    assert_eq!(hash(&member, 0), Ok((1084519789, -1)));
    member.put(put("a", "1")).unwrap();
    member.put(put("b", "1")).unwrap();
    member.grant(7, 60).unwrap();
    member
        .put(PutRequest {
            lease: 7,
            ..put("a", "2")
        })
        .unwrap();
    member.delete(delete("b", ""));
    member.put(put("c", "1")).unwrap();
    assert_eq!(hash(&member, 0), Ok((2033139051, -1)));
    assert_eq!(hash(&member, 3), Ok((2143169314, -1)));
    assert_eq!(
        member.hash_kv(-1).map(|hash| (hash.hash, hash.revision)),
        Ok((1084519789, -1))
    );
    member.ask_compact(5).unwrap();
    member.compact(9);
    assert_eq!(hash(&member, 0), Ok((1272172995, 5)));
    assert_eq!(hash(&member, 4), Err(StateError::Compacted));
    assert_eq!(
        hash(&member, 5),
        Ok((68429750, 5)),
        "what etcd gives when it does not remember the compaction's own"
    );
    assert_eq!(hash(&member, 7), Err(StateError::FutureRevision));
    member.put(put("b", "2")).unwrap();
    assert_eq!(hash(&member, 0), Ok((1869584285, 5)));
    assert_eq!(hash(&member, 6), Ok((1272172995, 5)));
    member.ask_compact(7).unwrap();
    member.compact(9);
    assert_eq!(hash(&member, 0), Ok((1869584285, 7)));
    member.delete(delete("a", "d"));
    assert_eq!(hash(&member, 0), Ok((3252380523, 7)));
    member.ask_compact(8).unwrap();
    for _ in 0..2 {
        assert_eq!(hash(&member, 0), Ok((1084519789, 8)), "before the removal and after it");
        member.compact(9);
    }
    member.put(put("a", "3")).unwrap();
    assert_eq!(hash(&member, 0), Ok((3113150152, 8)));
}

#[test]
fn leases_and_keys() {
    let mut member = Member::new();
    assert_eq!(member.grant(1, 0), Ok(outcome::Answer::LeaseGrant { id: 1, ttl_s: 2 }));
    assert_eq!(member.grant(1, 60), Err(StateError::LeaseExists));
    assert_eq!(member.grant(0, 60), Err(StateError::LeaseNotFound));
    member.grant(2, 60).unwrap();
    assert_eq!(
        member.put(PutRequest {
            lease: 3,
            ..put("a", "")
        }),
        Err(StateError::LeaseNotFound)
    );
    for key in ["c", "a", "b"] {
        member
            .put(PutRequest {
                lease: 1,
                ..put(key, "v")
            })
            .unwrap();
    }
    member
        .put(PutRequest {
            lease: 2,
            ..put("b", "v")
        })
        .unwrap();
    member
        .put(PutRequest {
            ignore_lease: true,
            ..put("c", "w")
        })
        .unwrap();
    member.put(put("d", "")).unwrap();
    let keys = |member: &Member, id| {
        let left = member.state.lessor().time_to_live(id, true, Duration::ZERO).unwrap();
        left.keys
            .iter()
            .map(|key| String::from_utf8(key.to_vec()).unwrap())
            .collect::<Vec<_>>()
            .concat()
    };
    assert_eq!((keys(&member, 1), keys(&member, 2)), ("ac".into(), "b".into()));
    member.put(put("b", "no lease any more")).unwrap();
    assert_eq!(keys(&member, 2), "");
    let before = member.view.revision;
    assert_eq!(member.revoke(1), Ok(outcome::Answer::LeaseRevoke { id: 1 }));
    assert_eq!(member.view.revision, before + 1, "all keys go in one revision");
    let last: Vec<_> = member
        .history()
        .into_iter()
        .rev()
        .take(2)
        .map(|(at, (tombstone, _))| (at.sub, tombstone))
        .collect();
    assert_eq!(last, [(1, true), (0, true)]);
    assert_eq!(member.revoke(1), Err(StateError::LeaseNotFound));
    member.revoke(2).unwrap();
    assert_eq!(member.view.revision, before + 1, "without keys there is no revision");
    assert_eq!(member.range(&range("a", "\0")).unwrap().count, 2);
}

#[test]
fn leases_expire_by_the_leaders_clock_and_the_log() {
    let mut member = Member::new();
    member.state.lessor_mut().promote(member.now, Duration::ZERO);
    member.grant(1, 10).unwrap();
    member
        .put(PutRequest {
            lease: 1,
            ..put("a", "")
        })
        .unwrap();
    member.checkpoint();
    member.now = Duration::from_secs(11);
    assert_eq!(member.value("a").unwrap(), "", "apply never expires anything");
    assert_eq!(member.state.lessor_mut().expired(member.now, 500), [1]);
    assert_eq!(member.state.lessor_mut().renew(1, member.now), Renewal::AwaitRevoke);
    member.restart();
    assert_eq!(
        member.state.lessor_mut().expired(member.now, 500),
        [0; 0],
        "not before it leads"
    );
    let now = member.now;
    member.state.lessor_mut().promote(now, Duration::ZERO);
    let left = member.state.lessor().time_to_live(1, true, now).unwrap();
    assert_eq!(
        (left.remaining_s, left.keys.len()),
        (Some(10), 1),
        "after a restart it has its full time again"
    );
    member.revoke(1).unwrap();
    assert_eq!(member.value("a"), None);
}

#[test]
fn alarms() {
    let mut member = Member::new();
    let raised = |alarm| AlarmMember { member_id: 9, alarm };
    member.put(put("a", "1")).unwrap();
    assert_eq!(member.alarm(1, 9, 0), Some(vec![]), "NONE is not raised");
    assert_eq!(member.alarm(1, 9, 1), Some(vec![raised(1)]));
    assert_eq!(member.alarm(1, 9, 1), Some(vec![raised(1)]));
    assert_eq!(member.alarm(0, 0, 0), Some(vec![raised(1)]));
    assert_eq!(member.alarm(0, 0, 2), Some(vec![]));
    assert_eq!(member.alarm(7, 9, 1), None);
    assert_eq!(member.put(put("a", "2")), Err(StateError::NoSpace));
    assert_eq!(member.grant(1, 9), Err(StateError::NoSpace));
    let hidden = TxnRequest {
        failure: operations(vec![nested(txn(vec![Request::RequestPut(put("b", ""))]))]),
        ..Default::default()
    };
    assert_eq!(
        member.txn(hidden),
        Err(StateError::NoSpace),
        "a put in the other branch, nested"
    );
    assert!(
        member
            .txn(txn(vec![Request::RequestDeleteRange(delete("x", ""))]))
            .is_ok()
    );
    assert_eq!(member.delete(delete("a", "")).deleted, 1);
    assert_eq!(member.ask_compact(2), Ok(()));
    member.checkpoint();
    member.restart();
    assert_eq!(
        member.put(put("a", "2")),
        Err(StateError::NoSpace),
        "alarms outlast a restart"
    );
    assert_eq!(member.alarm(1, 9, 2), Some(vec![raised(2)]));
    assert_eq!(member.put(put("a", "2")), Err(StateError::Corrupt));
    assert_eq!(member.revoke(1), Err(StateError::Corrupt));
    assert_eq!(member.ask_compact(3), Err(StateError::Corrupt));
    assert_eq!(member.txn(txn(vec![])), Err(StateError::Corrupt));
    assert_eq!(member.alarm(2, 8, 2), Some(vec![]), "deactivation has to match");
    assert_eq!(member.alarm(2, 9, 2), Some(vec![raised(2)]));
    assert_eq!(member.alarm(2, 9, 1), Some(vec![raised(1)]));
    assert!(member.put(put("a", "2")).is_ok());
    member.checkpoint();
    member.restart();
    assert_eq!(member.alarm(0, 0, 0), Some(vec![]));
}

#[test]
fn requests_about_the_cluster() {
    let mut member = Member::new();
    member.state.members_mut().add(ClusterMember {
        id: 9,
        peer_urls: vec!["http://p".into()],
        ..Default::default()
    });
    let attributes = membershippb::Attributes {
        name: "m".into(),
        client_urls: vec!["http://c".into()],
    };
    let set = membershippb::ClusterMemberAttrSetRequest {
        member_id: 9,
        member_attributes: Some(attributes),
    };
    let request = InternalRaftRequest {
        cluster_member_attr_set: Some(set),
        ..Default::default()
    };
    assert_eq!(member.apply_raw(&request).answer, Ok(outcome::Answer::Cluster));
    let version = |ver: &str| InternalRaftRequest {
        cluster_version_set: Some(membershippb::ClusterVersionSetRequest { ver: ver.into() }),
        ..Default::default()
    };
    assert_eq!(member.apply_raw(&version("3.7.0")).answer, Ok(outcome::Answer::Cluster));
    assert_eq!(
        member.apply_raw(&version("nonsense")).answer,
        Err(StateError::BadVersion("nonsense".into()))
    );
    member.checkpoint();
    member.restart();
    assert_eq!(member.state.members().version(), Some("3.7.0"));
    assert_eq!(member.state.members().get(9).map(|member| &member.name[..]), Some("m"));
    let auth = InternalRaftRequest {
        auth_enable: Some(Default::default()),
        ..Default::default()
    };
    let answer = member.apply_raw(&auth).answer;
    assert_eq!(
        answer,
        Err(StateError::NotBuilt {
            index: member.index,
            request: "auth_enable"
        })
    );
    let answer = member.apply_raw(&InternalRaftRequest::default()).answer;
    assert_eq!(answer, Err(StateError::EmptyRequest { index: member.index }));
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

#[test]
fn damaged_stores_are_refused() {
    use crate::pages::{Root, TreeId};
    let root = Root::empty(Default::default());
    let mut restore = Restore::new(Default::default(), &root);
    let id = 7i64.to_be_bytes();
    for (tree, key, value) in [
        (TreeId::Leases, &id[..], &b"\x08\x08"[..]),
        (TreeId::Leases, &id[..], b"\xff"),
        (TreeId::Members, b"zz", b"{}"),
        (TreeId::Alarms, b"\xff", b""),
        (TreeId::Meta, b"finishedCompactRev", b"short"),
        (TreeId::Meta, b"clusterVersion", b"x"),
        (TreeId::Users, b"root", b""),
    ] {
        let error = restore.pair(tree, key, value);
        assert!(matches!(error, Err(RestoreError::Pair { .. })), "{tree:?} {error:?}");
    }
    assert!(restore.pair(TreeId::Leases, &id, b"\x08\x07\x10\x3c").is_ok());
    let record = crate::mvcc::record::KeyValueView {
        key: b"a",
        ..Default::default()
    };
    let error = restore.record(Revision::new(i64::MAX, 0), &record, true);
    assert_eq!(error, Err(RestoreError::Revision(Revision::new(i64::MAX, 0))));
    assert!(matches!(
        restore.record(Revision::new(5, 0), &record, false),
        Err(RestoreError::Record(_))
    ));
}
