//! Every member serves: whatever is asked of one is seen at the others, whoever leads and of whatever kind they are.

use std::time::{Duration, Instant};

use ringd::proto::etcdserverpb as pb;

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{
        LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_LEASES, LEASE_REVOKE, LEASE_TIME_TO_LIVE, PUT, RANGE, WATCH, create_watch,
        get, put,
    },
    grpc::{Channel, Status, Stream},
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

async fn lists(channel: &Channel, id: i64) -> bool {
    let request = pb::LeaseLeasesRequest {};
    let listed: pb::LeaseLeasesResponse = channel.call(LEASE_LEASES, &request).await.expect("a list");
    listed.leases.iter().any(|lease| lease.id == id)
}

/// Leases granted, kept alive, looked at and revoked through each member.
async fn leases_live_everywhere(cluster: &Cluster) {
    let channels = channels(cluster).await;
    for (granter, channel) in channels.iter().enumerate() {
        let id = 1000 + granter as i64;
        let request = pb::LeaseGrantRequest { ttl: 100, id };
        let granted: pb::LeaseGrantResponse = channel.call(LEASE_GRANT, &request).await.expect("a lease");
        assert_eq!((granted.id, granted.ttl), (id, 100));
        let with_lease = pb::PutRequest {
            lease: id,
            ..put(format!("leased/{granter}"), "x")
        };
        let _: pb::PutResponse = channel.call(PUT, &with_lease).await.expect("a write");
        for (other, channel) in channels.iter().enumerate() {
            assert_eq!(kept_alive(channel, id).await, Ok(100), "kept alive at {other}");
            assert_eq!(kept_alive(channel, 77).await, Ok(0), "no such lease at {other}");
            let told = time_to_live(channel, id).await.expect("a lease's time");
            assert!((99..=100).contains(&told.ttl), "at {other}: {told:?}");
            assert_eq!((told.granted_ttl, told.id), (100, id));
            assert_eq!(told.keys, [format!("leased/{granter}").into_bytes()]);
            let unknown = time_to_live(channel, 77).await.expect("an answer");
            assert_eq!((unknown.ttl, unknown.granted_ttl, unknown.id), (-1, 0, 77));
            let deadline = Instant::now() + PATIENCE;
            // Every member lists what it has applied itself.
            while !lists(channel, id).await {
                assert!(Instant::now() < deadline, "listed at {other}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let revoker = &channels[(granter + 1) % channels.len()];
        let request = pb::LeaseRevokeRequest { id };
        let _: pb::LeaseRevokeResponse = revoker.call(LEASE_REVOKE, &request).await.expect("a revocation");
        for (other, channel) in channels.iter().enumerate() {
            assert_eq!(
                value(channel, &format!("leased/{granter}")).await,
                None,
                "read at {other}"
            );
        }
    }
}

async fn kept_alive(channel: &Channel, id: i64) -> Result<i64, Status> {
    let mut stream = channel.stream(LEASE_KEEP_ALIVE, &[]).await?;
    stream.send(&pb::LeaseKeepAliveRequest { id })?;
    let answer: pb::LeaseKeepAliveResponse = stream.next().await?.expect("an answer");
    let header = answer.header.expect("a header");
    assert!(header.cluster_id != 0 && header.member_id != 0 && header.revision > 0 && header.raft_term > 0);
    assert_eq!(answer.id, id);
    Ok(answer.ttl)
}

async fn time_to_live(channel: &Channel, id: i64) -> Result<pb::LeaseTimeToLiveResponse, Status> {
    let request = pb::LeaseTimeToLiveRequest { id, keys: true };
    let answer: pb::LeaseTimeToLiveResponse = channel.call(LEASE_TIME_TO_LIVE, &request).await?;
    assert!(answer.header.as_ref().is_some_and(|header| header.revision > 0));
    Ok(answer)
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

#[test]
fn leases_through_every_member() {
    let cluster = Cluster::of_three(Program::subject());
    block_on(leases_live_everywhere(&cluster));
}

/// A lease that is kept alive at a follower outlives its time, and ends when nobody keeps it alive.
#[test]
fn a_lease_lives_by_keep_alives_at_a_follower() {
    let cluster = Cluster::of_three(Program::subject());
    block_on(async {
        cluster.lead(0).await;
        let channels = channels(&cluster).await;
        let request = pb::LeaseGrantRequest { ttl: 3, id: 5 };
        let _: pb::LeaseGrantResponse = channels[1].call(LEASE_GRANT, &request).await.expect("a lease");
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(kept_alive(&channels[2], 5).await, Ok(3));
        }
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while time_to_live(&channels[1], 5).await.expect("an answer").ttl != -1 {
            assert!(tokio::time::Instant::now() < deadline, "the lease does not end");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(kept_alive(&channels[2], 5).await, Ok(0));
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
            leases_live_everywhere(&cluster).await;
            cluster.settle().await;
        }
    });
}

/// etcd's own change says less of the member than ours: no URLs at all.
#[test]
fn etcd_promotes_a_learner_of_ringds() {
    let loose = ["--strict-reconfig-check=false"];
    let programs = [Program::Ringd, Program::Reference, Program::Ringd];
    let mut cluster = Cluster::unfounded(&programs, &loose);
    cluster.found();
    cluster.wait();
    block_on(cluster.lead(1));
    let new = cluster.prepare(Program::Ringd, "four");
    let url = format!("--peer-urls=http://{}", cluster.members[new].peer_address());
    let added = cluster.etcdctl(&[1], &["member", "add", "four", "--learner", &url]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let id = added.out.split_whitespace().nth(1).expect("an id").to_string();
    cluster.members[new].spawn().expect("a member starts");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let promoted = cluster.etcdctl(&[1], &["member", "promote", &id]);
        if promoted.code == Some(0) {
            break;
        }
        assert!(Instant::now() < deadline, "{promoted:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    cluster.wait();
    block_on(writes_are_seen_everywhere(&cluster, "promoted"));
    for member in &mut cluster.members {
        assert!(member.is_running(), "{}", member.log());
    }
}
