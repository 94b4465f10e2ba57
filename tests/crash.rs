//! kill -9 at random moments, under mixed load from several connections: after each restart every acknowledged write
//! is there, the revision goes on, and the hash of a remembered revision has not changed.
//!
//! `RINGD_CRASH_ROUNDS` sets how often the server is killed, `RINGD_CRASH_SEED` repeats the random choices of a run
//! (what the server was doing when it was hit is not repeated by it).

mod support;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use ringd::proto::etcdserverpb::{self as pb, request_op::Request};
use support::{
    block_on, etcd,
    grpc::{Channel, Status},
    number_from_environment,
    server::Server,
};
use tokio::task::LocalSet;

/// How often the server is killed when nothing else is asked.
const QUICK_ROUNDS: u64 = 6;
/// Connections that write at the same time, each to keys of its own.
const WRITERS: usize = 6;
/// Keys of each writer.
const KEYS: usize = 8;
/// How long the server runs before it is killed, in milliseconds.
const LIFE_MS: std::ops::Range<u64> = 50..600;
/// So many requests are answered before, however long that takes, up to a minute.
const LEAST_ACKNOWLEDGED: u64 = 10;
const LONGEST_LIFE: Duration = Duration::from_secs(60);
/// A lease that outlives the test.
const LEASE_TTL: i64 = 100_000;
/// How many revisions a compaction leaves behind the newest.
const KEPT_REVISIONS: i64 = 200;

/// What a key may hold: the last acknowledged state, and what was sent since without an answer.
#[derive(Clone, Debug, Default)]
struct Expected {
    acknowledged: Option<Vec<u8>>,
    /// The revision of the acknowledged write.
    revision: i64,
    unanswered: Vec<Option<Vec<u8>>>,
}

/// What all writers know.
#[derive(Debug, Default)]
struct Ledger {
    keys: BTreeMap<String, Expected>,
    /// Leases by id: whether the grant was acknowledged and a revoke was not sent.
    leases: BTreeMap<i64, bool>,
    /// The highest revision of any answer.
    revision: i64,
    /// The highest compaction that may have happened, and the highest that did.
    compaction_sent: i64,
    compacted: i64,
    acknowledged: u64,
}

impl Ledger {
    fn saw(&mut self, header: &Option<pb::ResponseHeader>) -> i64 {
        let revision = header.as_ref().expect("a header").revision;
        self.revision = self.revision.max(revision);
        self.acknowledged += 1;
        revision
    }
}

/// One connection's endless load; returns when the server is gone.
async fn write(address: String, writer: usize, mut random: ChaCha8Rng, ledger: Rc<RefCell<Ledger>>) {
    let Ok(channel) = Channel::connect(&address).await else {
        return;
    };
    loop {
        let key = format!("w{writer}/{}", random.random_range(0..KEYS));
        let value = vec![random.random(); random.random_range(0..600)];
        let done = match random.random_range(0..20) {
            0..9 => put(&channel, &ledger, &key, value).await,
            9..13 => txn(&channel, &ledger, writer, &key, value).await,
            13..17 => delete(&channel, &ledger, &key).await,
            17 => grant(&channel, &ledger, random.random_range(1..1 << 40)).await,
            18 => revoke(&channel, &ledger, writer).await,
            _ => compact(&channel, &ledger).await,
        };
        match done {
            Ok(()) => {}
            // Without an answer nobody knows, and the server is gone.
            Err(status) if status.code == Status::TRANSPORT || status.code == 14 => return,
            Err(status) => panic!("writer {writer}, key {key}: {status:?}"),
        }
    }
}

fn send(ledger: &Rc<RefCell<Ledger>>, key: &str, value: Option<Vec<u8>>) {
    ledger
        .borrow_mut()
        .keys
        .entry(key.to_string())
        .or_default()
        .unanswered
        .push(value);
}

fn acknowledge(ledger: &Rc<RefCell<Ledger>>, key: &str, value: Option<Vec<u8>>, header: &Option<pb::ResponseHeader>) {
    let mut ledger = ledger.borrow_mut();
    let revision = ledger.saw(header);
    let expected = ledger.keys.get_mut(key).expect("it was sent");
    *expected = Expected {
        acknowledged: value,
        revision,
        unanswered: Vec::new(),
    };
}

async fn put(channel: &Channel, ledger: &Rc<RefCell<Ledger>>, key: &str, value: Vec<u8>) -> Result<(), Status> {
    send(ledger, key, Some(value.clone()));
    let answer: pb::PutResponse = channel.call(etcd::PUT, &etcd::put(key, &value)).await?;
    acknowledge(ledger, key, Some(value), &answer.header);
    Ok(())
}

async fn delete(channel: &Channel, ledger: &Rc<RefCell<Ledger>>, key: &str) -> Result<(), Status> {
    send(ledger, key, None);
    let answer: pb::DeleteRangeResponse = channel.call(etcd::DELETE_RANGE, &etcd::delete(key)).await?;
    acknowledge(ledger, key, None, &answer.header);
    Ok(())
}

/// Writes two keys in one revision: after a crash both are there or none.
async fn txn(
    channel: &Channel,
    ledger: &Rc<RefCell<Ledger>>,
    writer: usize,
    key: &str,
    value: Vec<u8>,
) -> Result<(), Status> {
    let twin = format!("w{writer}/twin");
    send(ledger, key, Some(value.clone()));
    send(ledger, &twin, Some(value.clone()));
    let puts = [key, &twin].map(|key| etcd::operation(Request::RequestPut(etcd::put(key, &value))));
    let request = pb::TxnRequest {
        success: puts.to_vec(),
        ..Default::default()
    };
    let answer: pb::TxnResponse = channel.call(etcd::TXN, &request).await?;
    acknowledge(ledger, key, Some(value.clone()), &answer.header);
    acknowledge(ledger, &twin, Some(value), &answer.header);
    Ok(())
}

async fn grant(channel: &Channel, ledger: &Rc<RefCell<Ledger>>, id: i64) -> Result<(), Status> {
    let request = pb::LeaseGrantRequest { ttl: LEASE_TTL, id };
    let answer: pb::LeaseGrantResponse = channel.call(etcd::LEASE_GRANT, &request).await?;
    let mut ledger = ledger.borrow_mut();
    ledger.saw(&answer.header);
    ledger.leases.insert(id, true);
    Ok(())
}

/// Revokes a lease that no other writer picks.
async fn revoke(channel: &Channel, ledger: &Rc<RefCell<Ledger>>, writer: usize) -> Result<(), Status> {
    let mine = |id: i64| id as usize % WRITERS == writer;
    let id = ledger
        .borrow()
        .leases
        .iter()
        .find(|(id, lives)| **lives && mine(**id))
        .map(|(id, _)| *id);
    let Some(id) = id else { return Ok(()) };
    ledger.borrow_mut().leases.insert(id, false);
    let answer: pb::LeaseRevokeResponse = channel.call(etcd::LEASE_REVOKE, &pb::LeaseRevokeRequest { id }).await?;
    let mut ledger = ledger.borrow_mut();
    ledger.saw(&answer.header);
    ledger.leases.remove(&id);
    Ok(())
}

async fn compact(channel: &Channel, ledger: &Rc<RefCell<Ledger>>) -> Result<(), Status> {
    let revision = ledger.borrow().revision - KEPT_REVISIONS;
    if revision <= ledger.borrow().compaction_sent {
        return Ok(());
    }
    ledger.borrow_mut().compaction_sent = revision;
    let request = pb::CompactionRequest {
        revision,
        physical: revision % 2 == 0,
    };
    match channel.call::<pb::CompactionResponse>(etcd::COMPACT, &request).await {
        Ok(answer) => {
            let mut ledger = ledger.borrow_mut();
            ledger.saw(&answer.header);
            ledger.compacted = ledger.compacted.max(revision);
            Ok(())
        }
        // Another writer's later compaction was first.
        Err(status) if status.code == 11 => Ok(()),
        Err(status) => Err(status),
    }
}

/// Compares the restarted server with the ledger, and takes over what it decided about unanswered writes.
async fn check(channel: &Channel, ledger: &mut Ledger) {
    let everything = pb::RangeRequest {
        range_end: "\0".into(),
        ..etcd::get("\0")
    };
    let found: pb::RangeResponse = channel.call(etcd::RANGE, &everything).await.expect("a read");
    let revision = found.header.as_ref().expect("a header").revision;
    assert!(
        revision >= ledger.revision,
        "the revision went back from {} to {revision}",
        ledger.revision
    );
    ledger.revision = revision;
    let mut stored: BTreeMap<String, (Vec<u8>, i64)> = BTreeMap::new();
    for kv in found.kvs {
        let key = String::from_utf8(kv.key.to_vec()).expect("a key of ours");
        stored.insert(key, (kv.value.to_vec(), kv.mod_revision));
    }
    for (key, expected) in &mut ledger.keys {
        let (value, at) = match stored.remove(key) {
            Some((value, at)) => (Some(value), at),
            None => (None, 0),
        };
        let acknowledged = value == expected.acknowledged && (value.is_none() || at == expected.revision);
        let unanswered = expected.unanswered.contains(&value) && (value.is_none() || at > expected.revision);
        assert!(
            acknowledged || unanswered,
            "{key} holds {value:02x?} of revision {at}, expected {expected:02x?}"
        );
        // A delete that was not answered left no revision behind: it is as new as anything.
        let at = match (at, acknowledged) {
            (0, true) => expected.revision,
            (0, false) => revision,
            (at, _) => at,
        };
        *expected = Expected {
            acknowledged: value,
            revision: at,
            unanswered: Vec::new(),
        };
    }
    assert!(
        stored.is_empty(),
        "keys that nobody wrote, or that were deleted: {stored:?}"
    );
    check_twins(ledger);
    check_compaction(channel, ledger).await;
    check_leases(channel, ledger).await;
}

/// A twin is only written together with another key of its writer, by one txn.
fn check_twins(ledger: &Ledger) {
    for (key, twin) in ledger.keys.iter().filter(|(key, _)| key.ends_with("/twin")) {
        let Some(value) = &twin.acknowledged else { continue };
        let prefix = key.trim_end_matches("twin");
        let others: Vec<_> = ledger
            .keys
            .iter()
            .filter(|(other, _)| other.starts_with(prefix) && *other != key)
            .collect();
        let partner = others
            .iter()
            .any(|(_, other)| other.revision == twin.revision && other.acknowledged.as_ref() == Some(value));
        let overwritten = others.iter().any(|(_, other)| other.revision > twin.revision);
        assert!(
            partner || overwritten,
            "{key} was written at {} without the other key of its txn",
            twin.revision
        );
    }
}

/// What was compacted stays compacted, and the compaction's own revision can be read.
async fn check_compaction(channel: &Channel, ledger: &Ledger) {
    if ledger.compacted == 0 {
        return;
    }
    let before = pb::RangeRequest {
        revision: ledger.compacted - 1,
        ..etcd::get("w0/0")
    };
    let refused = channel.call::<pb::RangeResponse>(etcd::RANGE, &before).await;
    assert!(
        matches!(&refused, Err(status) if status.code == 11),
        "compacted at {}: {refused:?}",
        ledger.compacted
    );
    if ledger.compaction_sent == ledger.compacted {
        let at = pb::RangeRequest {
            revision: ledger.compacted,
            ..etcd::get("w0/0")
        };
        channel
            .call::<pb::RangeResponse>(etcd::RANGE, &at)
            .await
            .expect("a read at the compaction's revision");
    }
}

async fn check_leases(channel: &Channel, ledger: &mut Ledger) {
    let answer: pb::LeaseLeasesResponse = channel
        .call(etcd::LEASE_LEASES, &pb::LeaseLeasesRequest {})
        .await
        .expect("the leases");
    let stored: Vec<i64> = answer.leases.iter().map(|lease| lease.id).collect();
    for (id, lives) in &ledger.leases {
        assert!(
            !lives || stored.contains(id),
            "lease {id}, granted and never revoked, is gone"
        );
    }
    // A grant or a revoke without an answer: what the server has is what holds.
    ledger.leases = stored.into_iter().map(|id| (id, true)).collect();
}

/// A hash to compare after the next crash: of the newest revision, so that no later compaction makes it unreadable.
async fn hash_at(channel: &Channel, revision: i64) -> Result<u32, Status> {
    etcd::hash_at(channel, revision).await.map(|answer| answer.hash)
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let rounds = number_from_environment("RINGD_CRASH_ROUNDS", QUICK_ROUNDS);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    let seed = number_from_environment("RINGD_CRASH_SEED", u64::from(now.subsec_nanos()));
    println!("RINGD_CRASH_SEED={seed} RINGD_CRASH_ROUNDS={rounds}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut server = Server::subject(&[]);
    let ledger = Rc::new(RefCell::new(Ledger {
        revision: 1,
        ..Default::default()
    }));
    for round in 0..rounds {
        let life = Duration::from_millis(random.random_range(LIFE_MS));
        let address = server.address();
        let seeds: Vec<u64> = (0..WRITERS).map(|_| random.random()).collect();
        block_on(LocalSet::new().run_until(async {
            let mut writers = Vec::new();
            for (writer, seed) in seeds.into_iter().enumerate() {
                let random = ChaCha8Rng::seed_from_u64(seed);
                writers.push(tokio::task::spawn_local(write(
                    address.clone(),
                    writer,
                    random,
                    ledger.clone(),
                )));
            }
            // However slow the machine is, a life has to mean something.
            let (born, before) = (Instant::now(), ledger.borrow().acknowledged);
            while born.elapsed() < life || ledger.borrow().acknowledged < before + LEAST_ACKNOWLEDGED {
                assert!(born.elapsed() < LONGEST_LIFE, "the server answers hardly anything");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.kill();
            for writer in writers {
                writer.await.expect("a writer ends without a complaint");
            }
        }));
        server.restart();
        block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            let mut known = ledger.take();
            check(&channel, &mut known).await;
            // The same revision again after one more kill, without writes between.
            let revision = known.revision;
            let before = hash_at(&channel, revision).await.expect("a hash");
            server.kill();
            server.restart();
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            check(&channel, &mut known).await;
            ledger.replace(known);
            let after = hash_at(&channel, revision).await.expect("a hash");
            assert_eq!(
                before, after,
                "the hash of revision {revision} changed in round {round}"
            );
        });
    }
    let ledger = ledger.borrow();
    println!(
        "{rounds} rounds, {} acknowledged, revision {}, compacted {}",
        ledger.acknowledged, ledger.revision, ledger.compacted
    );
}
