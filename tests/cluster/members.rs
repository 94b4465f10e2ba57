//! Every member serves: whatever is asked of one is seen at the others, whoever leads and of whatever kind they are.

use ringd::proto::etcdserverpb as pb;

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{PUT, RANGE, WATCH, create_watch, get, put},
    grpc::{Channel, Stream},
    server::Program,
};

async fn channels(cluster: &Cluster) -> Vec<Channel> {
    let mut channels = Vec::new();
    for address in cluster.addresses() {
        channels.push(Channel::connect(&address).await.expect("a connection"));
    }
    channels
}

async fn value(channel: &Channel, key: &str) -> Option<String> {
    let found: pb::RangeResponse = channel.call(RANGE, &get(key)).await.expect("a read");
    let value = found.kvs.first().map(|row| row.value.to_vec());
    value.map(|value| String::from_utf8(value).expect("text"))
}

/// Writes through each member are read at once at every other, and watched everywhere in their order.
async fn writes_are_seen_everywhere(cluster: &Cluster, round: &str) {
    let channels = channels(cluster).await;
    let mut watches = Vec::new();
    for channel in &channels {
        watches.push(watch(channel, round).await);
    }
    for (writer, channel) in channels.iter().enumerate() {
        let (key, text) = (format!("{round}/{writer}"), format!("by {writer}"));
        let _: pb::PutResponse = channel.call(PUT, &put(&key, &text)).await.expect("a write");
        for (reader, channel) in channels.iter().enumerate() {
            assert_eq!(value(channel, &key).await.as_deref(), Some(&*text), "{reader} reads");
        }
    }
    for (member, watch) in watches.iter_mut().enumerate() {
        let keys = events(watch, channels.len()).await;
        let expected: Vec<String> = (0..channels.len()).map(|writer| format!("{round}/{writer}")).collect();
        assert_eq!(keys, expected, "watched at {member}");
    }
}

async fn watch(channel: &Channel, prefix: &str) -> Stream {
    let mut stream = channel.stream(WATCH, &[]).await.expect("a stream");
    let request = pb::WatchCreateRequest {
        key: format!("{prefix}/").into_bytes().into(),
        range_end: format!("{prefix}0").into_bytes().into(),
        ..Default::default()
    };
    stream.send(&create_watch(request)).expect("a watch");
    let created: pb::WatchResponse = stream.next().await.expect("an answer").expect("an answer");
    assert!(created.created);
    stream
}

async fn events(watch: &mut Stream, count: usize) -> Vec<String> {
    let mut keys = Vec::new();
    while keys.len() < count {
        let next = tokio::time::timeout(PATIENCE, watch.next::<pb::WatchResponse>());
        let response = next.await.expect("events in time").expect("no error").expect("no end");
        let events = response.events.iter().filter_map(|event| event.kv.as_ref());
        keys.extend(events.map(|row| String::from_utf8(row.key.to_vec()).expect("text")));
    }
    keys
}

#[test]
fn writes_and_watches_through_every_member() {
    let mut cluster = Cluster::of_three(Program::subject());
    block_on(async {
        for leader in 0..2 {
            cluster.lead(leader).await;
            writes_are_seen_everywhere(&cluster, &format!("led by {leader}")).await;
        }
        cluster.settle().await;
    });
}

/// Two of ringd and one of etcd: each leads in turn, and all see the same.
#[test]
fn a_mixed_cluster_replicates_both_ways() {
    let mut cluster = Cluster::start(&[Program::Ringd, Program::Reference, Program::Ringd]);
    block_on(async {
        for leader in [1, 0, 2] {
            cluster.lead(leader).await;
            writes_are_seen_everywhere(&cluster, &format!("led by {leader}")).await;
            cluster.settle().await;
        }
    });
}
