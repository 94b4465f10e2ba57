//! Requests that a random run meets too rarely, each under its own name.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use ringd::proto::etcdserverpb::{self as pb, request_op::Request};

use super::{
    expect_same,
    pair::Pair,
    requests::nested_txn,
    watching::{Seen, Watching},
};
use crate::support::{
    block_on, etcd,
    grpc::{self, Channel},
    server::{Program, Server},
};

/// etcd's limit of a request as it goes to the log.
const REQUEST_LIMIT: usize = 3 << 19;
/// What gRPC takes in beyond that.
const FRAME_LIMIT: usize = REQUEST_LIMIT + (512 << 10);
/// A request may carry a request id of up to ten bytes and a few more around it in the log.
const ENVELOPE: usize = 64;

fn put_operation(key: String) -> pb::RequestOp {
    etcd::operation(Request::RequestPut(etcd::put(key, "value")))
}

/// A txn nested so deeply that no recursive encoder should be asked for it.
fn nested_bytes(depth: usize) -> Bytes {
    // Written from the end, so that each length is known: tag and length of `success`, then of `request_txn`.
    let mut reversed: Vec<u8> = Vec::new();
    for _ in 1..depth {
        for tag in [0x22, 0x12] {
            let mut length = Vec::new();
            prost::encoding::encode_varint(reversed.len() as u64, &mut length);
            reversed.extend(length.iter().rev());
            reversed.push(tag);
        }
    }
    reversed.reverse();
    reversed.into()
}

/// Transactions nested at depths around the limits of protobuf decoders (100), of gRPC's and of etcd (128).
#[test]
fn nested_transactions() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for depth in [1, 2, 48, 49, 50, 51, 52, 99, 100, 101, 127, 128, 129, 200] {
            let innermost = pb::TxnRequest {
                success: vec![put_operation(format!("depth{depth}"))],
                ..Default::default()
            };
            expect_same(pair.check(etcd::TXN, &nested_txn(depth, innermost)).await);
            expect_same(
                pair.check(etcd::TXN, &nested_txn(depth, pb::TxnRequest::default()))
                    .await,
            );
        }
        // So deep that a server that recurses without a bound runs out of stack.
        for depth in [1000, 5000, 20_000, 100_000] {
            expect_same(pair.check_bytes(etcd::TXN, nested_bytes(depth)).await);
        }
        expect_same(pair.check(etcd::RANGE, &etcd::get_prefix("depth")).await);
        expect_same(pair.check(etcd::HASH_KV, &pb::HashKvRequest { revision: 0 }).await);
    });
}

/// As many operations as allowed and more, flat and shared between a txn and those inside it.
#[test]
fn wide_transactions() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for (outer, inner) in [
            (127, 0),
            (128, 0),
            (129, 0),
            (1, 127),
            (1, 128),
            (64, 64),
            (64, 65),
            (127, 1),
            (128, 1),
        ] {
            let mut success: Vec<_> = (0..outer)
                .map(|number| put_operation(format!("outer{number}")))
                .collect();
            if inner > 0 {
                let nested = (0..inner)
                    .map(|number| put_operation(format!("inner{number}")))
                    .collect();
                let nested = pb::TxnRequest {
                    success: nested,
                    ..Default::default()
                };
                success[outer - 1] = etcd::operation(Request::RequestTxn(nested));
            }
            expect_same(
                pair.check(
                    etcd::TXN,
                    &pb::TxnRequest {
                        success,
                        ..Default::default()
                    },
                )
                .await,
            );
        }
        let compare = vec![etcd::mod_revision_is("none", 0); 129];
        expect_same(
            pair.check(
                etcd::TXN,
                &pb::TxnRequest {
                    compare,
                    ..Default::default()
                },
            )
            .await,
        );
    });
}

/// etcd's check for duplicate keys takes the end `\0` of a delete as that byte, not as "from the key on": a txn may
/// delete from a key on and put one of the keys again.
#[test]
fn a_txn_deletes_from_a_key_on_and_puts() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for key in ["a", "b", "c"] {
            expect_same(pair.check(etcd::PUT, &etcd::put(key, "old")).await);
        }
        let delete = |end: &'static str| {
            let delete = pb::DeleteRangeRequest {
                range_end: end.into(),
                ..etcd::delete("b")
            };
            etcd::operation(Request::RequestDeleteRange(delete))
        };
        for (end, accepted) in [("", false), ("c", false), ("z", false), ("a", true), ("\0", true)] {
            let success = vec![put_operation("b".into()), delete(end)];
            let txn = pb::TxnRequest {
                success,
                ..Default::default()
            };
            let answer = pair
                .check(etcd::TXN, &txn)
                .await
                .unwrap_or_else(|difference| panic!("{difference}"));
            assert_eq!(answer.status.code == 0, accepted, "end {end:?}: {answer:?}");
        }
        expect_same(
            pair.check(
                etcd::RANGE,
                &pb::RangeRequest {
                    range_end: "\0".into(),
                    ..etcd::get("a")
                },
            )
            .await,
        );
        expect_same(pair.check(etcd::HASH_KV, &pb::HashKvRequest { revision: 0 }).await);
    });
}

/// What makes etcd 3.7.1 panic must not stop ringd: a put with `ignore_value` or `ignore_lease` of a key that its own
/// txn deleted before. It keeps what was there before the txn, and so it is after a restart. Only ringd is asked.
#[test]
fn ignore_value_of_a_key_deleted_in_the_same_txn() {
    if Program::subject() != Program::Ringd {
        return;
    }
    let mut server = Server::subject(&[]);
    let grant = pb::LeaseGrantRequest { id: 7, ttl: 1000 };
    block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let _: pb::LeaseGrantResponse = channel.call(etcd::LEASE_GRANT, &grant).await.expect("a lease");
    });
    for flag in ["value", "lease"] {
        let old = pb::PutRequest {
            lease: 7,
            ..etcd::put("key", "old")
        };
        let put = pb::PutRequest {
            value: if flag == "value" { Bytes::new() } else { "new".into() },
            ignore_value: flag == "value",
            ignore_lease: flag == "lease",
            ..etcd::put("key", "")
        };
        let delete = pb::DeleteRangeRequest {
            range_end: "\0".into(),
            ..etcd::delete("a")
        };
        let success = vec![Request::RequestDeleteRange(delete), Request::RequestPut(put)];
        let txn = pb::TxnRequest {
            success: success.into_iter().map(etcd::operation).collect(),
            ..Default::default()
        };
        let (value, lease) = if flag == "value" { ("old", 0) } else { ("new", 7) };
        let before = block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            let _: pb::PutResponse = channel.call(etcd::PUT, &old).await.expect("a put");
            let answer: pb::TxnResponse = channel.call(etcd::TXN, &txn).await.expect("the txn");
            let seen = look_at_key(&channel).await;
            let revision = answer.header.expect("a header").revision;
            let kv = &seen.0.kvs[0];
            assert_eq!(
                (kv.create_revision, kv.mod_revision, kv.version),
                (revision, revision, 1)
            );
            assert_eq!((&kv.value[..], kv.lease), (value.as_bytes(), lease));
            let attached: &[&str] = if lease == 7 { &["key"] } else { &[] };
            assert_eq!(seen.1, attached);
            seen
        });
        server.kill();
        server.restart();
        let after = block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            look_at_key(&channel).await
        });
        assert_eq!(before, after, "another state after a restart");
    }
}

/// The key `key`, what is attached to lease 7, and the hash of everything; no header, whose term changes.
async fn look_at_key(channel: &Channel) -> (pb::RangeResponse, Vec<Bytes>, u32) {
    let mut range: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get("key")).await.expect("a read");
    range.header = None;
    let asked = pb::LeaseTimeToLiveRequest { id: 7, keys: true };
    let lease: pb::LeaseTimeToLiveResponse = channel.call(etcd::LEASE_TIME_TO_LIVE, &asked).await.expect("a lease");
    let asked = pb::HashKvRequest { revision: 0 };
    let hash: pb::HashKvResponse = channel.call(etcd::HASH_KV, &asked).await.expect("a hash");
    (range, lease.keys, hash.hash)
}

/// Values around etcd's limit of a request, and messages around gRPC's.
#[test]
fn oversized_requests() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for size in [
            REQUEST_LIMIT - ENVELOPE * 2,
            REQUEST_LIMIT - ENVELOPE,
            REQUEST_LIMIT,
            REQUEST_LIMIT + ENVELOPE,
        ] {
            expect_same(pair.check(etcd::PUT, &etcd::put("large", vec![7; size])).await);
        }
        // The key, the value and their tags take eleven bytes beside the value.
        for size in [
            FRAME_LIMIT - 12,
            FRAME_LIMIT - 11,
            FRAME_LIMIT - 10,
            FRAME_LIMIT,
            FRAME_LIMIT * 2,
        ] {
            let request = pb::PutRequest {
                value: vec![7; size].into(),
                ..etcd::put("large", "")
            };
            let answer = pair.check(etcd::PUT, &request).await;
            let length = request.encoded_len();
            match answer {
                Ok(answer) if length > FRAME_LIMIT => assert_eq!(answer.status.code, 8, "{length} bytes: {answer:?}"),
                Ok(answer) => assert_eq!(answer.status.code, 3, "{length} bytes: {answer:?}"),
                different => expect_same(different),
            }
        }
        let half = etcd::operation(Request::RequestPut(etcd::put("half", vec![7; REQUEST_LIMIT / 2])));
        let other = etcd::operation(Request::RequestPut(etcd::put("other", vec![7; REQUEST_LIMIT / 2])));
        let txn = pb::TxnRequest {
            success: vec![half, other],
            ..Default::default()
        };
        expect_same(pair.check(etcd::TXN, &txn).await);
        expect_same(pair.check(etcd::RANGE, &etcd::get_prefix("")).await);
        expect_same(
            pair.check(
                etcd::RANGE,
                &pb::RangeRequest {
                    range_end: "\0".into(),
                    ..etcd::get("\0")
                },
            )
            .await,
        );
    });
}

/// Bytes that are no protobuf message, wrong wire types, and frames that are wrong.
#[test]
fn malformed_requests() {
    let messages: &[(&str, &[u8])] = &[
        ("a tag cut off", b"\x80"),
        ("field number zero", b"\x02\x00"),
        ("a group that does not end", b"\x0b"),
        ("a group that ends but did not begin", b"\x0c"),
        ("wire type seven", b"\x0f"),
        ("a length beyond the message", b"\x0a\x05k"),
        (
            "a length beyond every message",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ),
        (
            "a varint of eleven bytes",
            b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ),
        ("an unknown group", b"\x0a\x01k\xfb\x07\x08\x01\xfc\x07"),
        ("an unknown field", b"\x0a\x01k\xf8\x07\x01"),
        ("a key twice", b"\x0a\x01j\x0a\x01k"),
        ("the key as a number", b"\x08\x01"),
        ("a flag of two", b"\x0a\x01k\x20\x02"),
        ("a flag as bytes", b"\x0a\x01k\x22\x01\x01"),
        ("a group in place of the key", b"\x0b\x0a\x01k\x0c\x12\x01v"),
        ("a fixed number in place of a flag", b"\x0a\x01k\x2512345678"),
    ];
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for (name, message) in messages {
            for method in [
                etcd::PUT,
                etcd::RANGE,
                etcd::DELETE_RANGE,
                etcd::TXN,
                etcd::LEASE_GRANT,
                etcd::COMPACT,
            ] {
                println!("{name} to {method}");
                if let Err(difference) = pair.check_bytes(method, Bytes::from_static(message)).await {
                    panic!("{name}: {difference}");
                }
            }
        }
    });
}

/// Frames whose prefix is wrong: compressed, cut off, too many, none.
#[test]
fn malformed_frames() {
    let message = etcd::put("key", "value").encode_to_vec();
    let mut compressed = BytesMut::from(grpc::frame(&message).as_ref());
    compressed[0] = 1;
    let mut unknown_flag = compressed.clone();
    unknown_flag[0] = 2;
    let mut two = BytesMut::from(grpc::frame(&message).as_ref());
    two.put(grpc::frame(&message));
    let whole = grpc::frame(&message);
    let frames: Vec<(&str, Bytes)> = vec![
        ("compressed without an encoding", compressed.freeze()),
        ("a flag that does not exist", unknown_flag.freeze()),
        ("no message", Bytes::new()),
        ("a prefix cut off", whole.slice(..3)),
        ("a message cut off", whole.slice(..8)),
        ("two messages", two.freeze()),
    ];
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for (name, frame) in frames {
            if let Err(difference) = pair.check_framed(etcd::PUT, frame).await {
                panic!("{name}: {difference}");
            }
        }
    });
}

/// Leases that end: their time to live is raised to the minimum, their keys go in one revision, in order.
#[test]
fn leases_end() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for (id, ttl) in [(12, 0), (13, -1), (14, i64::MIN), (15, 200), (0, 500)] {
            expect_same(pair.check(etcd::LEASE_GRANT, &pb::LeaseGrantRequest { id, ttl }).await);
        }
        expect_same(pair.check(etcd::LEASE_REVOKE, &pb::LeaseRevokeRequest { id: 15 }).await);
        // The shortest that there is: it may have ended before another request, which is not asked.
        let shortest = pb::LeaseGrantRequest { id: 10, ttl: 1 };
        expect_same(pair.check(etcd::LEASE_GRANT, &shortest).await);
        pair.wait_for_lease_end(10).await;
        // Long enough for a few requests on a loaded machine.
        expect_same(
            pair.check(etcd::LEASE_GRANT, &pb::LeaseGrantRequest { id: 11, ttl: 6 })
                .await,
        );
        for key in ["b", "a", "c"] {
            let request = pb::PutRequest {
                lease: 11,
                ..etcd::put(key, "leased")
            };
            expect_same(pair.check(etcd::PUT, &request).await);
        }
        expect_same(
            pair.check(
                etcd::LEASE_TIME_TO_LIVE,
                &pb::LeaseTimeToLiveRequest { id: 11, keys: true },
            )
            .await,
        );
        pair.wait_for_lease_end(11).await;
        expect_same(
            pair.check(
                etcd::LEASE_TIME_TO_LIVE,
                &pb::LeaseTimeToLiveRequest { id: 11, keys: true },
            )
            .await,
        );
        let gone = pair
            .check(etcd::RANGE, &etcd::get("a"))
            .await
            .unwrap_or_else(|difference| panic!("{difference}"));
        assert_eq!(
            gone.message::<pb::RangeResponse>().expect("an answer").count,
            0,
            "the lease did not end"
        );
        expect_same(pair.check(etcd::HASH_KV, &pb::HashKvRequest { revision: 0 }).await);
    });
}

/// HashKV at every revision after puts, deletes and compactions, those of compacted revisions included.
#[test]
fn hashes_after_compaction() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for round in 0..5 {
            for key in ["a", "b", "c", "d"] {
                expect_same(pair.check(etcd::PUT, &etcd::put(key, format!("{key}{round}"))).await);
            }
            expect_same(
                pair.check(etcd::DELETE_RANGE, &etcd::delete(["a", "b"][round % 2]))
                    .await,
            );
            let revision = 6 * (round as i64) + [6, 3, 5, 4, 6][round] - round as i64;
            let compaction = pb::CompactionRequest {
                revision,
                physical: true,
            };
            expect_same(pair.check(etcd::COMPACT, &compaction).await);
            for revision in 0..=5 * (round as i64 + 1) + 2 {
                expect_same(pair.check(etcd::HASH_KV, &pb::HashKvRequest { revision }).await);
                let read = pb::RangeRequest {
                    revision,
                    ..etcd::get_prefix("")
                };
                expect_same(
                    pair.check(
                        etcd::RANGE,
                        &pb::RangeRequest {
                            key: "\0".into(),
                            ..read
                        },
                    )
                    .await,
                );
            }
        }
    });
}

/// Watches of large transactions, whole and in fragments: the same events, and no response is split without leave.
#[test]
fn fragmented_watches() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for stream in pair.streams() {
            for (watch_id, fragment) in [(1, false), (2, true)] {
                let request = pb::WatchCreateRequest {
                    key: "large".into(),
                    range_end: etcd::prefix_end(b"large").into(),
                    watch_id,
                    fragment,
                    prev_kv: true,
                    ..Default::default()
                };
                stream.create(&etcd::create_watch(request)).await.expect("a watch");
            }
        }
        let mut last = 0;
        for round in 0..2_u8 {
            // A revision of ten events of 140 KB each, and as much again for their previous values.
            let operations = (0..10).map(|number| {
                let put = etcd::put(format!("large{number}"), vec![round; 140 << 10]);
                etcd::operation(Request::RequestPut(put))
            });
            let txn = pb::TxnRequest {
                success: operations.collect(),
                ..Default::default()
            };
            let answer = pair
                .check(etcd::TXN, &txn)
                .await
                .unwrap_or_else(|difference| panic!("{difference}"));
            last = answer
                .message::<pb::TxnResponse>()
                .expect("an answer")
                .header
                .expect("a header")
                .revision;
        }
        let [ours, theirs] = pair.streams();
        ours.wait_for_progress(last).await.expect("progress");
        theirs.wait_for_progress(last).await.expect("progress");
        assert!(ours.fragments() > 0, "nothing was fragmented");
        let (ours, theirs) = (ours.take_seen(), theirs.take_seen());
        assert_eq!(ours[&1].len(), 20);
        assert!(ours == theirs, "the watches received different events");
        assert!(ours[&1] == ours[&2], "a fragmented watch received other events");
    });
}

/// While a watch of a stream waits for a revision to come, no progress request of the stream is answered.
#[test]
fn progress_waits_for_a_watch_from_the_future() {
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        expect_same(pair.check(etcd::PUT, &etcd::put("k", "2")).await);
        let request = etcd::create_watch(pb::WatchCreateRequest {
            key: "k".into(),
            start_revision: 4,
            watch_id: 1,
            ..Default::default()
        });
        for stream in pair.streams() {
            stream.wait_for_progress(2).await.expect("progress");
            stream.create(&request).await.expect("a watch");
        }
        expect_same(pair.check(etcd::PUT, &etcd::put("k", "3")).await);
        for stream in pair.streams() {
            let told = stream.ask_progress(Duration::from_millis(300)).await;
            assert_eq!(told, Ok(2), "the watch has not begun");
        }
        expect_same(pair.check(etcd::PUT, &etcd::put("k", "4")).await);
        for stream in pair.streams() {
            stream.wait_for_progress(4).await.expect("progress");
            let seen = stream.take_seen();
            assert!(matches!(&seen[&1][..], [Seen::Event(event)] if event.kv.as_ref().unwrap().mod_revision == 4));
        }
    });
}

/// A watch whose past was compacted away ends with the compaction's revision; one that starts far ahead waits.
#[test]
fn watches_from_odd_revisions() {
    async fn odd(stream: &mut Watching, newest: i64) -> Result<Vec<Seen>, String> {
        let watch = |watch_id, start_revision| {
            etcd::create_watch(pb::WatchCreateRequest {
                key: "k".into(),
                start_revision,
                watch_id,
                ..Default::default()
            })
        };
        for (watch_id, start_revision) in [(1, 1), (2, 4), (3, 5)] {
            stream.create(&watch(watch_id, start_revision)).await?;
        }
        for ended in [1, 2] {
            stream.wait_for_end(ended).await?;
        }
        stream.wait_for_progress(newest).await?;
        // Last, because etcd tells no progress of a stream with such a watch.
        stream.create(&watch(4, i64::MAX)).await?;
        stream.settle(Duration::from_millis(300)).await?;
        Ok(stream.take_seen().into_values().flatten().collect())
    }
    /// After five puts and a delete.
    const NEWEST: i64 = 7;
    block_on(async {
        let mut pair = Pair::start(Program::subject()).await;
        for number in 0..5 {
            expect_same(pair.check(etcd::PUT, &etcd::put("k", format!("{number}"))).await);
        }
        expect_same(pair.check(etcd::DELETE_RANGE, &etcd::delete("k")).await);
        expect_same(
            pair.check(
                etcd::COMPACT,
                &pb::CompactionRequest {
                    revision: 5,
                    physical: true,
                },
            )
            .await,
        );
        let [ours, theirs] = pair.streams();
        let (ours, theirs) = (
            odd(ours, NEWEST).await.expect("the subject"),
            odd(theirs, NEWEST).await.expect("the reference"),
        );
        assert_eq!(ours, theirs);
        assert!(
            ours.contains(&Seen::Canceled(5, String::new())),
            "no watch ended by compaction: {ours:?}"
        );
    });
}
