//! Reads of what only the page file holds, as after a restart: values of every size, many at once, more than the page
//! cache takes, in every form of a read that a key has.

mod support;

use bytes::Bytes;
use ringd::proto::etcdserverpb::{self as pb, request_op::Request, response_op::Response};
use support::{block_on, etcd, grpc::Channel, server::Server};
use tokio::task::LocalSet;

/// Far less than what is stored, so that pages come and go.
const BUDGET: &str = "64MiB";
const KEYS: usize = 1500;
const READERS: usize = 40;
const READS: usize = 80;
/// Rows of a short range.
const ROWS: usize = 12;

fn key(number: usize) -> String {
    format!("stored/{number:05}")
}

/// A value in the leaf, in a shared extent, in one of its own, and one that is sent in parts.
fn value(number: usize) -> String {
    let length = match number % 40 {
        0 => 300_000,
        1 => 70_000,
        2..6 => 20_000,
        6..16 => 2_000,
        _ => 100,
    };
    format!("{number:05}").repeat(length / 5)
}

fn shown(kvs: &[ringd::proto::mvccpb::KeyValue]) -> Vec<(Bytes, Bytes)> {
    kvs.iter().map(|kv| (kv.key.clone(), kv.value.clone())).collect()
}

fn expected(numbers: std::ops::Range<usize>) -> Vec<(Bytes, Bytes)> {
    numbers
        .map(|number| (key(number).into(), value(number).into()))
        .collect()
}

async fn fill(channel: &Channel) {
    for number in 0..KEYS {
        let put = etcd::put(key(number), value(number));
        let _: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
    }
}

async fn read(channel: &Channel, reader: usize) {
    for read in 0..READS {
        let number = (reader * 7919 + read * 104_729) % (KEYS - ROWS);
        let one: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get(key(number))).await.expect("a get");
        assert_eq!(shown(&one.kvs), expected(number..number + 1));
        let short = pb::RangeRequest {
            key: key(number).into(),
            range_end: key(number + ROWS).into(),
            ..Default::default()
        };
        match read % 3 {
            0 => {
                let rows: pb::RangeResponse = channel.call(etcd::RANGE, &short).await.expect("a short range");
                assert_eq!(shown(&rows.kvs), expected(number..number + ROWS));
            }
            1 => {
                let success = vec![etcd::operation(Request::RequestRange(short))];
                let txn = pb::TxnRequest {
                    success,
                    ..Default::default()
                };
                let mut answer: pb::TxnResponse = channel.call(etcd::TXN, &txn).await.expect("a txn");
                let Some(Response::ResponseRange(rows)) = answer.responses.remove(0).response else {
                    panic!("not a range");
                };
                assert_eq!(shown(&rows.kvs), expected(number..number + ROWS));
            }
            _ => {
                let put = pb::PutRequest {
                    prev_kv: true,
                    ..etcd::put(key(number), value(number))
                };
                let answer: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
                assert_eq!(
                    shown(&answer.prev_kv.into_iter().collect::<Vec<_>>()),
                    expected(number..number + 1)
                );
            }
        }
    }
}

#[test]
fn what_only_the_page_file_holds_is_read_by_many_at_once() {
    let mut server = Server::subject_of_fixed_size(BUDGET, &[]);
    block_on(async { fill(&Channel::connect(&server.address()).await.expect("a connection")).await });
    assert!(server.stop().success());
    server.restart();
    block_on(async {
        let tasks = LocalSet::new();
        for reader in 0..READERS {
            let address = server.address();
            tasks.spawn_local(async move {
                let channel = Channel::connect(&address).await.expect("a connection");
                read(&channel, reader).await;
            });
        }
        tasks.await;
    });
}
