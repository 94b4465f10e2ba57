//! Clients of a cluster that is disturbed: they write, read, watch, and keep leases alive or let them end.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use ringd::proto::etcdserverpb as pb;
use tokio::time::{Instant, sleep, timeout};

use super::history::{Asked, History, Record, Told};
use crate::support::{
    etcd::{
        LEASE_GRANT, LEASE_KEEP_ALIVE, PUT, RANGE, TXN, WATCH, create_watch, get_prefix, mod_revision_is, operation,
        put,
    },
    grpc::{Status, Stream},
    roaming::{Roaming, silence},
};

/// Keys that are written again and again.
const KEYS: u64 = 5;
/// Between two requests of a client: several members and their clients share a machine.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a reader waits for its member. Long, so that a member that stood still answers what was asked meanwhile.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long those wait for an answer who have to be quick.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);
/// After so much silence a watcher that may choose goes to another member.
const WATCH_PATIENCE: Duration = Duration::from_secs(2);
/// The time of leases that are kept alive.
pub const KEPT_TTL: Duration = Duration::from_secs(5);
/// Between two keep-alives.
const KEEP_ALIVE: Duration = Duration::from_millis(700);
/// The time of leases that nobody keeps alive, etcd's least.
pub const FADING_TTL: Duration = Duration::from_secs(2);
/// Between two of those.
const FADING_PAUSE: Duration = Duration::from_secs(1);

/// What clients have done and seen.
#[derive(Default)]
pub struct Load {
    pub history: History,
    pub stop: Cell<bool>,
    /// The revision up to which watchers watch, 0 while that is not known.
    pub until: Cell<i64>,
    numbers: Cell<u64>,
    /// When the deletion of a lease's key was first seen.
    pub gone: RefCell<BTreeMap<String, Instant>>,
    /// Leases by their key.
    pub leases: RefCell<BTreeMap<String, Lease>>,
    /// How often a watch was begun.
    pub watches: Cell<u64>,
}

/// What is known of a lease.
pub struct Lease {
    pub ttl: Duration,
    /// Whether its key was acknowledged.
    pub has_key: bool,
    /// When the last renewal was asked for that was answered, or the grant.
    pub since: Instant,
    pub renewals: u64,
    /// When it was said not to exist.
    pub lost: Option<Instant>,
}

impl Load {
    fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Writes a key by `client`, once; true when it was acknowledged.
    pub async fn write(&self, client: &mut Roaming, key: String, lease: i64, patience: Duration) -> bool {
        let value = format!("value {}", self.number());
        let request = pb::PutRequest {
            lease,
            ..put(&key, &value)
        };
        let expected = None;
        let number = self.history.ask(Asked::Write { key, value, expected });
        let Ok(answer) = client.once::<pb::PutResponse>(PUT, &request, patience).await else {
            return false;
        };
        self.history.tell(number, revision(answer.header), Told::Written);
        true
    }

    /// Replaces what `key` had at a revision, once.
    async fn swap(&self, client: &mut Roaming, key: String, found: i64) {
        let value = format!("value {}", self.number());
        let written = pb::request_op::Request::RequestPut(put(&key, &value));
        let request = pb::TxnRequest {
            compare: vec![mod_revision_is(&key, found)],
            success: vec![operation(written)],
            ..Default::default()
        };
        let expected = Some(found);
        let number = self.history.ask(Asked::Write { key, value, expected });
        if let Ok(answer) = client.once::<pb::TxnResponse>(TXN, &request, SHORT_PATIENCE).await {
            let told = if answer.succeeded { Told::Written } else { Told::Refused };
            self.history.tell(number, revision(answer.header), told);
        }
    }

    /// Reads the keys, once: when each was last written.
    async fn read(&self, client: &mut Roaming, patience: Duration) -> Option<Vec<(String, i64)>> {
        let prefix = "key/".to_string();
        let request = get_prefix(&prefix);
        let number = self.history.ask(Asked::Read { prefix });
        let answer: pb::RangeResponse = client.once(RANGE, &request, patience).await.ok()?;
        let rows = answer.kvs.iter().map(|row| (text(&row.key), row.mod_revision));
        let rows: Vec<_> = rows.collect();
        self.history
            .tell(number, revision(answer.header), Told::Found(rows.clone()));
        Some(rows)
    }
}

fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.expect("a header").revision
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes, by itself or on what it has read, now through this member and now through that.
pub async fn write(load: Rc<Load>, addresses: Vec<String>, at: usize) {
    let mut client = Roaming::new(addresses, at);
    while !load.stop.get() {
        let key = format!("key/{}", rand::random_range(0..KEYS));
        if rand::random_bool(0.7) {
            load.write(&mut client, key, 0, SHORT_PATIENCE).await;
        } else if let Some(rows) = load.read(&mut client, SHORT_PATIENCE).await {
            let found = rows.iter().find(|(other, _)| *other == key);
            load.swap(&mut client, key, found.map_or(0, |(_, revision)| *revision))
                .await;
        }
        sleep(PAUSE).await;
    }
}

/// Reads through one of these members.
pub async fn read(load: Rc<Load>, addresses: Vec<String>) {
    let mut client = Roaming::new(addresses, 0);
    while !load.stop.get() {
        load.read(&mut client, READ_PATIENCE).await;
        sleep(PAUSE).await;
    }
}

/// Keeps one lease after the other alive, with a key each.
pub async fn keep_leases(load: Rc<Load>, addresses: Vec<String>, at: usize) {
    let mut client = Roaming::new(addresses, at);
    while !load.stop.get() {
        let Some((id, key)) = grant(&load, &mut client, "kept", KEPT_TTL).await else {
            continue;
        };
        let mut stream = None;
        while !load.stop.get() {
            let asked = Instant::now();
            match renew(&mut client, &mut stream, id).await {
                Ok(0) => {
                    load.leases.borrow_mut().get_mut(&key).expect("it was granted").lost = Some(Instant::now());
                    break;
                }
                Ok(_) => {
                    let mut leases = load.leases.borrow_mut();
                    let lease = leases.get_mut(&key).expect("it was granted");
                    (lease.since, lease.renewals) = (asked, lease.renewals + 1);
                }
                Err(_) => {
                    stream = None;
                    client.move_on();
                    continue;
                }
            }
            sleep(KEEP_ALIVE).await;
        }
    }
}

/// Grants leases that nobody keeps alive.
pub async fn let_leases_end(load: Rc<Load>, addresses: Vec<String>) {
    let mut client = Roaming::new(addresses, 0);
    while !load.stop.get() {
        grant(&load, &mut client, "fading", FADING_TTL).await;
        sleep(FADING_PAUSE).await;
    }
}

/// Grants a lease and gives it a key: its id and the key.
async fn grant(load: &Load, client: &mut Roaming, kind: &str, ttl: Duration) -> Option<(i64, String)> {
    let id = load.number() as i64;
    let since = Instant::now();
    let request = pb::LeaseGrantRequest {
        ttl: ttl.as_secs() as i64,
        id,
    };
    if client
        .once::<pb::LeaseGrantResponse>(LEASE_GRANT, &request, SHORT_PATIENCE)
        .await
        .is_err()
    {
        sleep(PAUSE).await;
        return None;
    }
    let key = format!("{kind}/{id}");
    let lease = Lease {
        ttl,
        has_key: false,
        since,
        renewals: 0,
        lost: None,
    };
    load.leases.borrow_mut().insert(key.clone(), lease);
    let has_key = load.write(client, key.clone(), id, SHORT_PATIENCE).await;
    load.leases.borrow_mut().get_mut(&key).expect("just granted").has_key = has_key;
    Some((id, key))
}

/// Sends one keep-alive and waits for its answer: the time left, 0 when the lease does not exist.
async fn renew(client: &mut Roaming, stream: &mut Option<Stream>, id: i64) -> Result<i64, Status> {
    if stream.is_none() {
        *stream = Some(client.stream(LEASE_KEEP_ALIVE, &[]).await?);
    }
    let stream = stream.as_mut().expect("it was just opened");
    stream.send(&pb::LeaseKeepAliveRequest { id })?;
    let answer = timeout(SHORT_PATIENCE, stream.next::<pb::LeaseKeepAliveResponse>()).await;
    let answer = answer.unwrap_or_else(|_| Err(silence()))?;
    Ok(answer.ok_or_else(silence)?.ttl)
}

/// A watch of everything from the first revision on, begun again behind what was seen last whenever it ends.
pub struct Watcher {
    load: Rc<Load>,
    client: Roaming,
    /// May go to another member, and says that it wants a leader.
    roams: bool,
    pub records: Vec<Record>,
}

impl Watcher {
    /// A watcher of these members. One that has several to choose from leaves those that are silent or have no leader.
    pub fn new(load: Rc<Load>, addresses: Vec<String>) -> Self {
        Self {
            load,
            roams: addresses.len() > 1,
            client: Roaming::new(addresses, 0),
            records: Vec::new(),
        }
    }

    fn revision(&self) -> i64 {
        1 + self.records.len() as i64
    }

    /// Watches until it has seen the last revision that is wanted: what it saw.
    pub async fn watch(mut self) -> Vec<Record> {
        while !self.is_done() {
            self.load.watches.set(self.load.watches.get() + 1);
            if self.watch_once().await.is_err() {
                self.client.move_on();
                sleep(Duration::from_millis(50)).await;
            }
        }
        self.records
    }

    fn is_done(&self) -> bool {
        (1..=self.revision()).contains(&self.load.until.get())
    }

    async fn watch_once(&mut self) -> Result<(), Status> {
        let wanted: &[(&str, &str)] = if self.roams { &[("hasleader", "true")] } else { &[] };
        let mut stream = self.client.stream(WATCH, wanted).await?;
        stream.send(&create_watch(pb::WatchCreateRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            start_revision: self.revision() + 1,
            ..Default::default()
        }))?;
        while !self.is_done() {
            let next = match timeout(WATCH_PATIENCE, stream.next::<pb::WatchResponse>()).await {
                Ok(next) => next?.ok_or_else(silence)?,
                Err(_) if self.roams => return Err(silence()),
                Err(_) => continue,
            };
            if next.canceled {
                assert_eq!(next.compact_revision, 0, "nothing is compacted here");
                return Err(silence());
            }
            next.events.into_iter().for_each(|event| self.take(event));
        }
        Ok(())
    }

    fn take(&mut self, event: ringd::proto::mvccpb::Event) {
        let row = event.kv.expect("a row");
        let key = text(&row.key);
        assert_eq!(
            row.mod_revision,
            self.revision() + 1,
            "a gap or a repetition in the events, at {key}"
        );
        if row.value.is_empty() {
            self.load
                .gone
                .borrow_mut()
                .entry(key.clone())
                .or_insert_with(Instant::now);
        }
        let value = text(&row.value);
        self.records.push(Record { key, value });
    }
}
