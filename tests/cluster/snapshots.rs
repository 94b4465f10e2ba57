//! Members that lag too far get the whole state: of ringd from etcd, of etcd from ringd, and under the eyes of clients.

use std::time::Duration;

use ringd::{limits::SNAPSHOT_CATCHUP_TIME, proto::etcdserverpb as pb};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{
        COMPACT, DELETE_RANGE, LEASE_GRANT, LEASE_TIME_TO_LIVE, PUT, RANGE, WATCH, create_watch, delete, get,
        get_prefix, put,
    },
    grpc::{Status, Stream},
    proxy::Proxies,
    roaming::{Roaming, silence},
    server::Program,
};

/// So that a member lags too far soon.
const FLAGS: [&str; 2] = ["--snapshot-count=50", "--snapshot-catchup-entries=10"];
/// Written while a member is away; a checkpoint is made after a few megabytes.
const WRITES: usize = 200;
const VALUE_BYTES: usize = 100_000;

/// After which streams to a peer are given up, and more.
const SILENCE: Duration = Duration::from_secs(7);

/// Writes keys, one after the other, that are told apart by `round`.
async fn write(client: &mut Roaming, round: &str) {
    for number in 0..WRITES {
        let request = put(format!("{round}/{number:04}"), vec![b'v'; VALUE_BYTES]);
        client.call::<pb::PutResponse>(PUT, &request).await;
    }
}

/// How many snapshots this member has sent, by its metrics.
fn sent_by(cluster: &Cluster, member: usize) -> u64 {
    counted(cluster, member, "etcd_network_snapshot_send_success{")
}

/// The sum of the series whose names begin so.
fn counted(cluster: &Cluster, member: usize, series: &str) -> u64 {
    let metrics = cluster.members[member].http_body("/metrics").expect("metrics");
    let lines = metrics.lines().filter(|line| line.starts_with(series));
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

/// A watch of the keys below a prefix through one member, begun again behind what was seen last whenever it ends, as
/// clientv3 does. It wants no leader: who does is told that there is none.
struct Watcher {
    client: Roaming,
    stream: Option<Stream>,
    keys: Vec<String>,
    revision: i64,
    begun: usize,
}

impl Watcher {
    fn new(address: String) -> Self {
        Self {
            client: Roaming::new(vec![address], 0),
            stream: None,
            keys: Vec::new(),
            revision: 0,
            begun: 0,
        }
    }

    /// Waits until the watch has shown these and nothing else.
    async fn sees(&mut self, expected: &[String]) {
        let deadline = Instant::now() + PATIENCE;
        while self.keys.len() < expected.len() {
            let seen = self.keys.len();
            assert!(
                Instant::now() < deadline,
                "only {seen} of {} events came",
                expected.len()
            );
            if self.step().await.is_err() {
                (self.stream, self.client) = (None, self.client.again());
                sleep(Duration::from_millis(50)).await;
            }
            assert!(
                expected.starts_with(&self.keys),
                "a gap or a repetition: {:?}",
                self.keys
            );
        }
    }

    /// Takes the next answer, if one comes before long.
    async fn step(&mut self) -> Result<(), Status> {
        if self.stream.is_none() {
            self.begun += 1;
            let mut stream = self.client.stream(WATCH, &[]).await?;
            stream.send(&create_watch(pb::WatchCreateRequest {
                key: "watched/".into(),
                range_end: "watched0".into(),
                start_revision: self.revision + 1,
                ..Default::default()
            }))?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().expect("it was just begun");
        let Ok(next) = timeout(Duration::from_secs(1), stream.next::<pb::WatchResponse>()).await else {
            return Ok(());
        };
        let next = next?.ok_or_else(silence)?;
        assert!(!next.canceled, "{next:?}");
        for row in next.events.into_iter().filter_map(|event| event.kv) {
            assert!(row.mod_revision > self.revision, "repeated: {row:?}");
            self.revision = row.mod_revision;
            self.keys.push(String::from_utf8(row.key.to_vec()).expect("text"));
        }
        Ok(())
    }
}

/// Reads at a member that has to wait for its leader, again and again: whether one was told that the member stops, and
/// not left without an answer, before one was answered.
async fn is_told_of_the_end(address: String) -> bool {
    let mut client = Roaming::new(vec![address], 0);
    loop {
        let read = client
            .once::<pb::RangeResponse>(RANGE, &get("unwatched"), PATIENCE)
            .await;
        match read {
            Ok(_) => return false,
            Err(status) if status.message == "etcdserver: server stopped" => return true,
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// A member is cut off from the others, not from its clients, and then gets their state. What is watched there goes
/// on without a gap and without repetition.
#[test]
fn watches_go_on_over_a_snapshot() {
    let mut cluster = Cluster::unfounded(&[Program::subject(); 3], &FLAGS);
    let proxies = Proxies::between(&mut cluster);
    cluster.found();
    proxies.know(&cluster);
    cluster.wait();
    block_on(async {
        cluster.lead(0).await;
        let mut watcher = Watcher::new(cluster.members[2].address());
        let present = cluster.addresses()[..2].to_vec();
        let mut client = Roaming::new(present, 0);
        let mut expected = Vec::new();
        for round in 0..2 {
            if round > 0 {
                // For so long the leader keeps what followed the last snapshot.
                sleep(SNAPSHOT_CATCHUP_TIME).await;
            }
            for number in 0..10 {
                let key = format!("watched/{round}/{number}");
                client.call::<pb::PutResponse>(PUT, &put(&key, "x")).await;
                expected.push(key);
            }
            watcher.sees(&expected).await;
            for (from, to) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
                proxies.cut(from, to);
            }
            for number in 10..20 {
                let key = format!("watched/{round}/{number}");
                client.call::<pb::PutResponse>(PUT, &put(&key, "x")).await;
                expected.push(key);
            }
            write(&mut client, "unwatched").await;
            let before = sent_by(&cluster, 0) + sent_by(&cluster, 1);
            // What is on its way is lost with the streams.
            sleep(SILENCE).await;
            let reader = tokio::spawn(is_told_of_the_end(cluster.members[2].address()));
            sleep(Duration::from_millis(500)).await;
            proxies.mend();
            watcher.sees(&expected).await;
            assert!(reader.await.expect("it reads"), "a read was left without an answer");
            let after = sent_by(&cluster, 0) + sent_by(&cluster, 1);
            assert!(after > before, "it caught up without a snapshot");
        }
        cluster.wait();
        cluster.settle().await;
        assert_eq!(watcher.keys, expected);
        assert!(watcher.begun > 2, "the member began anew twice");
        let received = counted(&cluster, 2, "etcd_network_snapshot_receive_success{");
        assert!(received >= 2, "{received} counted: what was before it began anew, too");
        let mut client = Roaming::new(vec![cluster.members[2].address()], 0);
        let read: pb::RangeResponse = client.call(RANGE, &get_prefix("watched/")).await;
        assert_eq!(read.count as usize, expected.len());
    });
}
