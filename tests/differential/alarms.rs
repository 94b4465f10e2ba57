//! Alarms that are raised by hand, and what etcd's state may not be left in: those cases ringd is asked about alone.

use prost::Message;
use ringd::proto::etcdserverpb::{self as pb, alarm_request::AlarmAction, request_op::Request};

use super::{expect_same, pair::Pair};
use crate::support::{
    block_on, etcd,
    grpc::Channel,
    server::{Program, Server},
};

const NO_ALARM: i32 = pb::AlarmType::None as i32;
const NO_SPACE: i32 = pb::AlarmType::Nospace as i32;
const CORRUPT: i32 = pb::AlarmType::Corrupt as i32;

async fn alarm(pair: &mut Pair, action: AlarmAction, member_id: u64, alarm: i32) {
    let request = pb::AlarmRequest {
        action: action as i32,
        member_id,
        alarm,
    };
    expect_same(pair.check(etcd::ALARM, &request).await);
}

fn txn(success: Vec<Request>) -> pb::TxnRequest {
    pb::TxnRequest {
        success: success.into_iter().map(etcd::operation).collect(),
        ..Default::default()
    }
}

/// One request of every kind.
async fn everything(pair: &mut Pair) {
    expect_same(pair.check(etcd::PUT, &etcd::put("k", "v")).await);
    expect_same(pair.check(etcd::PUT, &etcd::put("", "v")).await);
    expect_same(pair.check(etcd::RANGE, &etcd::get("k")).await);
    let serializable = pb::RangeRequest {
        serializable: true,
        ..etcd::get("k")
    };
    expect_same(pair.check(etcd::RANGE, &serializable).await);
    expect_same(pair.check(etcd::RANGE_STREAM, &etcd::get("k")).await);
    let put = || Request::RequestPut(etcd::put("t", "v"));
    let nested = Request::RequestTxn(txn(vec![put()]));
    for operations in [
        vec![],
        vec![Request::RequestRange(etcd::get("k"))],
        vec![Request::RequestDeleteRange(etcd::delete("none"))],
        vec![put()],
        vec![nested],
    ] {
        expect_same(pair.check(etcd::TXN, &txn(operations)).await);
    }
    let mut untaken = txn(vec![]);
    untaken.failure = txn(vec![put()]).success;
    expect_same(pair.check(etcd::TXN, &untaken).await);
    expect_same(pair.check(etcd::DELETE_RANGE, &etcd::delete("k")).await);
    expect_same(
        pair.check(etcd::LEASE_GRANT, &pb::LeaseGrantRequest { id: 9, ttl: 1000 })
            .await,
    );
    expect_same(
        pair.check(
            etcd::LEASE_TIME_TO_LIVE,
            &pb::LeaseTimeToLiveRequest { id: 9, keys: true },
        )
        .await,
    );
    expect_same(pair.check(etcd::LEASE_REVOKE, &pb::LeaseRevokeRequest { id: 9 }).await);
    expect_same(pair.check(etcd::LEASE_LEASES, &pb::LeaseLeasesRequest {}).await);
    let compaction = pb::CompactionRequest {
        revision: 2,
        physical: false,
    };
    expect_same(pair.check(etcd::COMPACT, &compaction).await);
    expect_same(pair.check(etcd::HASH_KV, &pb::HashKvRequest { revision: 0 }).await);
    expect_same(pair.check(etcd::STATUS, &pb::StatusRequest {}).await);
    expect_same(
        pair.check(etcd::MEMBER_LIST, &pb::MemberListRequest { linearizable: true })
            .await,
    );
}

/// Alarms raised and taken back, with every kind of request under each.
#[test]
fn alarms_by_hand() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for (member_id, kind) in [
            (0, NO_SPACE),
            (7, NO_SPACE),
            (7, CORRUPT),
            (u64::MAX, CORRUPT),
            (0, NO_ALARM),
            (7, 5),
        ] {
            alarm(&mut pair, AlarmAction::Deactivate, member_id, kind).await;
            alarm(&mut pair, AlarmAction::Activate, member_id, kind).await;
            alarm(&mut pair, AlarmAction::Activate, member_id, kind).await;
            for asked in [NO_ALARM, NO_SPACE, CORRUPT, 5, -1] {
                alarm(&mut pair, AlarmAction::Get, 3, asked).await;
            }
            everything(&mut pair).await;
            alarm(&mut pair, AlarmAction::Deactivate, 99, kind).await;
            alarm(&mut pair, AlarmAction::Deactivate, member_id, kind).await;
            alarm(&mut pair, AlarmAction::Deactivate, member_id, kind).await;
            everything(&mut pair).await;
        }
        // Several at a time.
        for (member_id, kind) in [(2, CORRUPT), (1, NO_SPACE), (3, NO_SPACE)] {
            alarm(&mut pair, AlarmAction::Activate, member_id, kind).await;
        }
        alarm(&mut pair, AlarmAction::Get, 0, NO_ALARM).await;
        alarm(&mut pair, AlarmAction::Deactivate, 2, CORRUPT).await;
        everything(&mut pair).await;
        alarm(&mut pair, AlarmAction::Deactivate, 1, NO_SPACE).await;
        everything(&mut pair).await;
        alarm(&mut pair, AlarmAction::Deactivate, 3, NO_SPACE).await;
        everything(&mut pair).await;
    });
}

/// An action that does not exist stops etcd 3.7.1 by a nil pointer, after the entry is in its log. ringd goes on, and
/// after a restart as well.
#[test]
fn an_unknown_alarm_action() {
    if Program::subject() != Program::Ringd {
        return;
    }
    let mut server = Server::subject(&[]);
    for _ in 0..2 {
        block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            for action in [3, -1, i32::MAX] {
                let request = pb::AlarmRequest {
                    action,
                    member_id: 1,
                    alarm: NO_SPACE,
                };
                let answer = channel.unary(etcd::ALARM, request.encode_to_vec().into(), &[]).await;
                println!("{answer:?}");
                let _: pb::PutResponse = channel.call(etcd::PUT, &etcd::put("k", "v")).await.expect("a put");
            }
        });
        server.kill();
        server.restart();
    }
}

/// A key that one revision deletes and puts again, and a compaction at that revision: etcd 3.7.1 removes the record
/// that its index keeps, and stops when the key is read. Only ringd is asked.
#[test]
fn a_compaction_at_a_revision_that_changed_a_key_twice() {
    if Program::subject() != Program::Ringd {
        return;
    }
    let mut server = Server::subject(&[]);
    let change = || {
        let delete = pb::DeleteRangeRequest {
            range_end: "\0".into(),
            ..etcd::delete("a")
        };
        txn(vec![
            Request::RequestDeleteRange(delete),
            Request::RequestPut(etcd::put("k", "new")),
        ])
    };
    let mut seen = Vec::new();
    for round in 0..2 {
        block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            if round == 0 {
                for value in ["old", "older"] {
                    let _: pb::PutResponse = channel.call(etcd::PUT, &etcd::put("k", value)).await.expect("a put");
                }
                let answer: pb::TxnResponse = channel.call(etcd::TXN, &change()).await.expect("the txn");
                let compaction = pb::CompactionRequest {
                    revision: answer.header.expect("a header").revision,
                    physical: true,
                };
                let _: pb::CompactionResponse = channel.call(etcd::COMPACT, &compaction).await.expect("a compaction");
            }
            let mut range: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get("k")).await.expect("a read");
            range.header = None;
            let hash = etcd::hash_at(&channel, 0).await.expect("a hash").hash;
            seen.push((range, hash));
        });
        server.kill();
        server.restart();
    }
    let kv = &seen[0].0.kvs[0];
    assert_eq!(
        (&kv.value[..], kv.create_revision, kv.mod_revision, kv.version),
        (&b"new"[..], 4, 4, 1)
    );
    assert_eq!(seen[0], seen[1], "another state after a restart");
}
