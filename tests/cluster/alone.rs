//! A member that is left alone for good goes on by `--force-new-cluster`.

use std::time::Duration;

use ringd::proto::etcdserverpb as pb;

use crate::support::{
    block_on,
    cluster::Cluster,
    etcd::{PUT, RANGE, get, get_prefix, put},
    grpc::Channel,
    server::Program,
};

async fn write(cluster: &Cluster, member: usize, key: &str) -> Result<pb::PutResponse, String> {
    let channel = Channel::connect(&cluster.members[member].address()).await;
    let channel = channel.map_err(|error| error.to_string())?;
    let put = put(key, key);
    let call = channel.call(PUT, &put);
    match tokio::time::timeout(Duration::from_secs(20), call).await {
        Ok(written) => written.map_err(|status| status.message),
        Err(_) => Err("no answer".to_string()),
    }
}

async fn count(cluster: &Cluster, member: usize, prefix: &str) -> i64 {
    let channel = Channel::connect(&cluster.members[member].address())
        .await
        .expect("a connection");
    let found: pb::RangeResponse = channel.call(RANGE, &get_prefix(prefix)).await.expect("a read");
    found.count
}

/// The usual flags of a small member, and these.
fn flags(program: Program, further: &[&'static str]) -> Vec<&'static str> {
    let mut flags = further.to_vec();
    if program == Program::Ringd {
        flags.extend(["--cores=1", "--memory-budget=128MiB"]);
    }
    flags
}

#[test]
fn the_last_member_goes_on_alone_and_others_join_again() {
    let program = Program::subject();
    let mut cluster = Cluster::of_three(program);
    block_on(async {
        cluster.lead(2).await;
        for key in 0..50 {
            write(&cluster, key % 3, &format!("kept/{key}")).await.expect("a write");
        }
    });
    let ids = block_on(async { [cluster.id(0).await, cluster.id(1).await] });
    cluster.members[0].kill();
    cluster.members[1].kill();
    // It leads still, and writes down what nobody will ever have acknowledged.
    let lost = block_on(write(&cluster, 2, "lost"));
    assert!(lost.is_err(), "{lost:?}");
    cluster.members[2].kill();
    cluster.members.drain(..2);
    let last = &mut cluster.members[0];
    last.set_arguments(&flags(program, &["--force-new-cluster=true"]));
    last.restart();
    block_on(async {
        assert_eq!(count(&cluster, 0, "kept/").await, 50);
        let channel = Channel::connect(&cluster.members[0].address())
            .await
            .expect("a connection");
        let found: pb::RangeResponse = channel.call(RANGE, &get("lost")).await.expect("a read");
        assert_eq!(found.count, 0, "what was not committed is dropped");
        write(&cluster, 0, "kept/50").await.expect("a write");
    });
    let listed = cluster.etcdctl(&[], &["member", "list"]);
    assert_eq!(listed.out.lines().count(), 1, "{listed:?}");
    // From here on it is a member as any other.
    cluster.members[0].stop();
    cluster.members[0].set_arguments(&flags(program, &["--strict-reconfig-check=false"]));
    cluster.members[0].restart();
    for name in ["four", "five"] {
        let new = cluster.prepare(program, name);
        let url = format!("--peer-urls=http://{}", cluster.members[new].peer_address());
        let added = cluster.etcdctl(&[0], &["member", "add", name, &url]);
        assert_eq!(added.code, Some(0), "{added:?}");
        cluster.members[new].spawn().expect("a member starts");
        cluster.wait();
    }
    block_on(async {
        cluster.settle().await;
        for member in 0..3 {
            assert_eq!(count(&cluster, member, "kept/").await, 51);
        }
        assert!(!ids.contains(&cluster.id(1).await));
    });
}
