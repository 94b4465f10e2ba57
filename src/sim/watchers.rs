//! The watches of the simulated serve core: the shipped hub, with clients that are slow, come and go, and go on where
//! they were after each of the member's ends.

use super::client::{Client, Now, Taken, Watched};
use super::load::Profile;
use super::member::{CLUSTER_ID, MEMBER_ID};
use super::model::Model;
use super::observe::{load_page, published};
use super::report::Canary;
use crate::io::faulty::FaultyDisk;
use crate::io::medium::Random;
use crate::limits::LOG_CORE_CACHE_BYTES;
use crate::mvcc::index::Index;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::mvcc::watch::{History, Hub, HubConfig, Message, StreamId, WatchSink};
use crate::pages::{Corrupt, PageAddress, PageCache};
use crate::proto::etcdserverpb::WatchResponse;
use crate::raft::core::LogCore;
use prost::Message as _;
use std::cell::Cell;
use std::time::Duration;

/// Clients, each with a stream.
const CLIENTS: usize = 4;
/// Watches of a client.
const WATCHES_MAX: usize = 5;
/// Responses longer than this are sent in pieces.
const FRAGMENT_BYTES: usize = 2_000;
/// Rounds within which everybody is told everything once nothing new happens.
const DRAIN_ROUNDS: u32 = 10_000;

/// What the hub reads beside the view.
struct Reads<'a> {
    cache: &'a mut PageCache,
    index: &'a Index<View>,
}

impl History for Reads<'_> {
    fn cache(&mut self) -> &mut PageCache {
        self.cache
    }

    fn compact_revision(&self) -> i64 {
        self.index.pin().view().compact_revision
    }

    fn damage(&self, _address: &PageAddress) -> Option<Corrupt> {
        // Damage fails the run where a page is loaded.
        None
    }

    fn revision_at(&self, key: &[u8], main: i64) -> Option<Revision> {
        self.index.pin().get(key, main).map(|meta| meta.revision)
    }
}

/// Where messages go.
struct Sink<'a> {
    clients: &'a mut [Client],
    canary: Canary,
    /// Whether the canary has done its harm.
    sung: &'a Cell<bool>,
}

impl WatchSink for Sink<'_> {
    fn can_send(&self, stream: StreamId) -> bool {
        let client = self.clients.iter().find(|client| client.stream == stream);
        client.is_none_or(|client| client.inbox.len() < client.room)
    }

    fn send(&mut self, stream: StreamId, message: Message<'_>) {
        let bytes = message.to_parts().concat();
        let mut response = WatchResponse::decode(&bytes[..]).expect("the hub encodes a WatchResponse");
        self.break_promise(&mut response);
        let client = self.clients.iter_mut().find(|client| client.stream == stream);
        if let Some(client) = client {
            client.inbox.push_back(response);
        }
    }
}

impl Sink<'_> {
    fn break_promise(&self, response: &mut WatchResponse) {
        let is_progress = response.events.is_empty() && !response.created && !response.canceled;
        match self.canary {
            Canary::DroppedEvent if response.events.len() > 1 && !self.sung.replace(true) => {
                response.events.remove(0);
            }
            Canary::RepeatedEvent if !response.events.is_empty() && !self.sung.replace(true) => {
                response.events.push(response.events[0].clone());
            }
            Canary::EarlyProgress if is_progress => {
                response.header.get_or_insert_default().revision += 1;
            }
            _ => {}
        }
    }
}

/// The hub of the one serve core, and its clients, who outlive it.
pub struct Watchers {
    canary: Canary,
    sung: Cell<bool>,
    random: Random,
    profile: Profile,
    hub: Hub,
    cache: PageCache,
    /// Pages that the hub waits for, and whose they are.
    loading: Option<(View, Vec<PageAddress>)>,
    /// Turns in which the core has no time for watches.
    stalled: u64,
    clients: Vec<Client>,
    next_stream: StreamId,
    /// Messages taken.
    pub messages: u64,
    /// Watches that a compaction has ended.
    pub compacted: u64,
    /// Answers to progress requests.
    pub progresses: u64,
}

fn new_hub(random: &mut Random, revision: i64) -> Hub {
    let config = HubConfig {
        cluster_id: CLUSTER_ID,
        member_id: MEMBER_ID,
        fragment_bytes: FRAGMENT_BYTES,
        progress_interval: Duration::from_secs(1 + random.below(20)),
        seed: random.bits(),
    };
    Hub::new(config, revision)
}

impl Watchers {
    /// Clients who do not watch anything yet.
    pub fn new(canary: Canary, seed: u64, profile: Profile) -> Watchers {
        let mut random = Random::new(seed);
        let clients = (0..CLIENTS).map(|_| Client::new(1 + random.below(30) as usize));
        Watchers {
            canary,
            sung: Cell::new(false),
            clients: clients.collect(),
            hub: new_hub(&mut random, 1),
            random,
            profile,
            cache: PageCache::new(LOG_CORE_CACHE_BYTES),
            loading: None,
            stalled: 0,
            next_stream: 0,
            messages: 0,
            compacted: 0,
            progresses: 0,
        }
    }

    /// The member was started: everybody comes back.
    pub fn restarted(&mut self, core: &LogCore, now: Duration) {
        let view = published(core);
        self.hub = new_hub(&mut self.random, view.revision);
        self.cache = PageCache::new(LOG_CORE_CACHE_BYTES);
        self.loading = None;
        for at in 0..self.clients.len() {
            self.connect(at, &view, now);
        }
    }

    /// Opens a new stream for a client, who goes on where it was.
    fn connect(&mut self, at: usize, view: &View, now: Duration) {
        self.next_stream += 1;
        self.hub.open(self.next_stream, now);
        for watch in self.clients[at].disconnected(self.next_stream) {
            self.ask(at, watch, view, now);
        }
    }

    /// A client of this member and one of another's change places, each with what it watches.
    pub fn exchange(
        &mut self,
        core: &LogCore,
        now: Duration,
        other: &mut Watchers,
        other_core: &LogCore,
        other_now: Duration,
    ) {
        let at = self.random.below(CLIENTS as u64) as usize;
        self.hub.close(self.clients[at].stream);
        other.hub.close(other.clients[at].stream);
        std::mem::swap(&mut self.clients[at], &mut other.clients[at]);
        self.connect(at, &published(core), now);
        other.connect(at, &published(other_core), other_now);
    }

    fn ask(&mut self, at: usize, mut watch: Watched, view: &View, now: Duration) {
        let stream = self.clients[at].stream;
        let mut sink = Sink {
            clients: &mut self.clients,
            canary: self.canary,
            sung: &self.sung,
        };
        self.hub.create(stream, watch.request(), view, now, &mut sink);
        self.clients[at].asked.push_back(watch);
    }

    fn cancel(&mut self, at: usize, id: i64, view: &View) {
        let client = &mut self.clients[at];
        client.canceling.push(id);
        let stream = client.stream;
        let mut sink = Sink {
            clients: &mut self.clients,
            canary: self.canary,
            sung: &self.sung,
        };
        self.hub.cancel(stream, id, view, &mut sink);
    }

    /// A turn of the serve core and of the clients.
    pub fn turn(&mut self, core: &LogCore, disk: &FaultyDisk, model: &Model, now: Duration) -> Result<(), String> {
        let view = published(core);
        if self.random.below(6) == 0 {
            self.act(model, &view, now);
        }
        let at = self.random.below(CLIENTS as u64) as usize;
        let count = self.random.below(8);
        self.consume(at, count, model, &view, now)?;
        if self.stalled > 0 {
            self.stalled -= 1;
            return Ok(());
        }
        if self.random.below(300) == 0 {
            self.stalled = self.random.below(300);
        }
        if self.random.below(3) == 0 {
            self.load(disk)?;
        }
        self.advance(core, view, now).map(drop)
    }

    /// A client asks for something. As in the server, nothing is taken from a stream that has no room for the answer.
    fn act(&mut self, model: &Model, view: &View, now: Duration) {
        let at = self.random.below(CLIENTS as u64) as usize;
        let client = &self.clients[at];
        if client.inbox.len() >= client.room {
            return;
        }
        match self.random.below(20) {
            0..8 if client.watches.len() + client.asked.len() < WATCHES_MAX => {
                let watch = Watched::draw(&mut self.random, &self.profile, model);
                self.ask(at, watch, view, now);
            }
            8..11 => {
                let count = client.watches.len().max(1) as u64;
                let chosen = client.watches.keys().nth(self.random.below(count) as usize).copied();
                if let Some(id) = chosen.filter(|id| !client.canceling.contains(id)) {
                    self.cancel(at, id, view);
                }
            }
            11..19 => self.hub.request_progress(client.stream),
            19 => {
                self.hub.close(client.stream);
                self.connect(at, view, now);
            }
            _ => {}
        }
    }

    /// A client takes some of its messages.
    fn consume(&mut self, at: usize, count: u64, model: &Model, view: &View, now: Duration) -> Result<(), String> {
        let client = &self.clients[at];
        let was_full = client.inbox.len() >= client.room;
        for _ in 0..count {
            let client = &mut self.clients[at];
            let Some(response) = client.inbox.pop_front() else {
                break;
            };
            self.messages += 1;
            let known = Now {
                model,
                compact_revision: view.compact_revision,
            };
            let taken = client.take(known, response);
            match taken.map_err(|reason| format!("watch client {at}: {reason}"))? {
                Taken::Nothing => {}
                Taken::Progress => self.progresses += 1,
                Taken::Again(id, watch) => {
                    self.compacted += 1;
                    self.cancel(at, id, view);
                    self.ask(at, watch, view, now);
                }
            }
        }
        let client = &self.clients[at];
        if was_full && client.inbox.len() < client.room {
            self.hub.writable(client.stream);
        }
        Ok(())
    }

    /// Loads the pages that the hub waits for.
    fn load(&mut self, disk: &FaultyDisk) -> Result<(), String> {
        let Some((view, addresses)) = self.loading.take() else {
            return Ok(());
        };
        addresses
            .iter()
            .try_for_each(|address| load_page(disk, &view.pages, &mut self.cache, address))
    }

    /// Advances the hub. True when it has more to do.
    fn advance(&mut self, core: &LogCore, view: View, now: Duration) -> Result<bool, String> {
        let mut reads = Reads {
            cache: &mut self.cache,
            index: core.state().index(),
        };
        let mut sink = Sink {
            clients: &mut self.clients,
            canary: self.canary,
            sung: &self.sung,
        };
        let advance = self.hub.advance(&view, &mut reads, &mut sink, now);
        if let Some(failure) = advance.failures.first() {
            return Err(format!("watches lost their history: {failure}"));
        }
        let has_more = advance.more || !advance.missing.is_empty();
        if !advance.missing.is_empty() {
            self.loading = Some((view, advance.missing));
        }
        Ok(has_more)
    }

    /// Lets everybody take everything. Then nothing may be missing, and progress is at the newest revision.
    pub fn drain(&mut self, core: &LogCore, disk: &FaultyDisk, model: &Model, now: Duration) -> Result<(), String> {
        self.stalled = 0;
        self.rest(core, disk, model, now)?;
        let view = published(core);
        for at in 0..CLIENTS {
            let client = &self.clients[at];
            client
                .check_complete(model)
                .map_err(|reason| format!("watch client {at}: {reason}"))?;
            if !client.has_started(view.revision) {
                continue;
            }
            let before = self.progresses;
            self.hub.request_progress(client.stream);
            self.rest(core, disk, model, now)?;
            let told = self.clients[at].floor();
            if self.progresses == before || told != view.revision {
                let revision = view.revision;
                return Err(format!(
                    "watch client {at} was told progress {told} at rest at revision {revision}"
                ));
            }
        }
        Ok(())
    }

    /// Turns until nothing is on its way any more.
    fn rest(&mut self, core: &LogCore, disk: &FaultyDisk, model: &Model, now: Duration) -> Result<(), String> {
        for _ in 0..DRAIN_ROUNDS {
            let view = published(core);
            self.load(disk)?;
            let has_more = self.advance(core, view.clone(), now)?;
            let is_empty = self.clients.iter().all(|client| client.inbox.is_empty());
            if !has_more && is_empty {
                return Ok(());
            }
            for at in 0..CLIENTS {
                self.consume(at, u64::MAX, model, &view, now)?;
            }
        }
        Err("watches do not come to rest".to_string())
    }
}
