//! Members that lag too far get the whole state: of ringd from etcd, and of etcd from ringd.

use ringd::proto::etcdserverpb as pb;

use crate::support::{
    block_on,
    cluster::Cluster,
    etcd::{COMPACT, DELETE_RANGE, LEASE_GRANT, LEASE_TIME_TO_LIVE, PUT, RANGE, delete, get, put},
    roaming::Roaming,
    server::Program,
};

/// So that a member lags too far soon.
const FLAGS: [&str; 2] = ["--snapshot-count=50", "--snapshot-catchup-entries=10"];
/// Written while a member is away; a checkpoint is made after a few megabytes.
const WRITES: usize = 200;
const VALUE_BYTES: usize = 100_000;

/// Writes keys, one after the other, that are told apart by `round`.
async fn write(client: &mut Roaming, round: &str) {
    for number in 0..WRITES {
        let request = put(format!("{round}/{number:04}"), vec![b'v'; VALUE_BYTES]);
        client.call::<pb::PutResponse>(PUT, &request).await;
    }
}

/// How many snapshots this member has sent, by its metrics.
fn sent_by(cluster: &Cluster, member: usize) -> u64 {
    let metrics = cluster.members[member].http_body("/metrics").expect("metrics");
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("etcd_network_snapshot_send_success{"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    counts.sum::<f64>() as u64
}

/// The last of three members is away while the others write, compact and delete; it catches up and can lead.
fn catches_up(programs: [Program; 3]) {
    let mut cluster = Cluster::unfounded(&programs, &FLAGS);
    cluster.found();
    cluster.wait();
    block_on(async {
        cluster.lead(0).await;
        let present = cluster.addresses()[..2].to_vec();
        let mut client = Roaming::new(present, 0);
        let lease = pb::LeaseGrantRequest { ttl: 1000, id: 7 };
        client.call::<pb::LeaseGrantResponse>(LEASE_GRANT, &lease).await;
        write(&mut client, "before").await;
        cluster.settle().await;
        cluster.members[2].kill();
        let leased = pb::PutRequest {
            lease: 7,
            ..put("leased", "x")
        };
        client.call::<pb::PutResponse>(PUT, &leased).await;
        write(&mut client, "away").await;
        let deleted: pb::DeleteRangeResponse = client.call(DELETE_RANGE, &delete("before/0001")).await;
        let revision = deleted.header.expect("a header").revision - 10;
        let compaction = pb::CompactionRequest {
            revision,
            physical: true,
        };
        client.call::<pb::CompactionResponse>(COMPACT, &compaction).await;
        write(&mut client, "before").await;
        cluster.members[2].spawn().expect("it starts again");
        cluster.wait();
        cluster.settle().await;
        let sent: u64 = (0..2).map(|member| sent_by(&cluster, member)).sum();
        assert!(sent > 0, "it caught up without a snapshot");
        // What it was given is what it goes on with.
        cluster.lead(2).await;
        let mut client = Roaming::new(vec![cluster.members[2].address()], 0);
        client.call::<pb::PutResponse>(PUT, &put("led", "by it")).await;
        let left = pb::LeaseTimeToLiveRequest { id: 7, keys: true };
        let left: pb::LeaseTimeToLiveResponse = client.call(LEASE_TIME_TO_LIVE, &left).await;
        assert_eq!((left.granted_ttl, left.keys), (1000, vec!["leased".into()]));
        for address in cluster.addresses() {
            let mut client = Roaming::new(vec![address], 0);
            let read: pb::RangeResponse = client.call(RANGE, &get("led")).await;
            assert_eq!(read.count, 1);
        }
        cluster.settle().await;
    });
}

#[test]
fn an_etcd_that_lags_gets_our_state() {
    catches_up([Program::Ringd, Program::Ringd, Program::Reference]);
}

#[test]
fn a_member_that_lags_gets_etcds_state() {
    catches_up([Program::Reference, Program::Reference, Program::Ringd]);
}
