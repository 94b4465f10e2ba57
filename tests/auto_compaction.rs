//! `--auto-compaction-retention` and `--feature-gates` on a running member.

mod support;

use ringd::proto::etcdserverpb as pb;
use std::time::{Duration, Instant};
use support::etcd;
use support::grpc::Channel;
use support::server::Server;

/// gRPC's code of a read below the compacted revision.
const OUT_OF_RANGE: i32 = 11;

#[test]
fn history_older_than_the_retention_goes() {
    let server = Server::subject(&["--auto-compaction-retention=1s", "--feature-gates=LeaseCheckpoint=true"]);
    support::block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let until = Instant::now() + Duration::from_secs(60);
        let old = pb::RangeRequest {
            revision: 2,
            ..etcd::get("a")
        };
        // Something new again and again: what is compacted is what was newest a second ago.
        loop {
            let _: pb::PutResponse = channel.call(etcd::PUT, &etcd::put("a", "b")).await.expect("a put");
            match channel.call::<pb::RangeResponse>(etcd::RANGE, &old).await {
                Ok(_) => assert!(Instant::now() < until, "nothing was compacted"),
                Err(status) => break assert_eq!(status.code, OUT_OF_RANGE, "{status:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The newest is not history.
        let newest: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get("a")).await.expect("a read");
        assert_eq!(newest.kvs.len(), 1);
    });
}
