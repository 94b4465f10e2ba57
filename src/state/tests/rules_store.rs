//! One case for each rule of compaction, leases, alarms, restarts and hashes that is easily got wrong (`etcd-surface`
//! 4.4 to 4.12).

use super::harness::Member;
use super::requests::*;
use crate::mvcc::index::RestoreBatch;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    AlarmMember, InternalRaftRequest, PutRequest, RangeRequest, TxnRequest, request_op::Request,
};
use crate::proto::membershippb;
use crate::state::lease::Renewal;
use crate::state::members::Member as ClusterMember;
use crate::state::outcome;
use crate::state::{CompactionProgress, Restore, RestoreError, StateError};
use std::time::Duration;

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
    let revoked = outcome::Answer::LeaseRevoke { id: 1, deleted: 2 };
    assert_eq!(member.revoke(1), Ok(revoked));
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
    let batch = |revision, tombstone| {
        let mut batch = RestoreBatch::default();
        batch.push(revision, &record, tombstone).unwrap();
        batch.sort();
        batch
    };
    let error = restore.records(&batch(Revision::new(i64::MAX, 0), true));
    assert_eq!(error, Err(RestoreError::Revision(Revision::new(i64::MAX, 0))));
    let error = restore.records(&batch(Revision::new(5, 0), false));
    assert!(matches!(error, Err(RestoreError::Record(_))));
}
