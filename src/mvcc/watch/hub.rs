//! The hub's state and the requests of clients; `advance` has what happens between them.

use super::WatchSink;
use super::batch::{Batch, Bounds};
use super::message::{Head, Message};
use super::set::WatchSet;
use super::watch::{CreateRequest, IN_STEP, Place, Stream, StreamId, Watch, span};
use crate::limits::{WATCH_PROGRESS_INTERVAL_MIN, WATCH_PROGRESS_REQUESTS};
use crate::mvcc::view::View;
use bytes::Bytes;
use hashbrown::HashMap;
use slab::Slab;
use std::collections::BTreeSet;
use std::time::Duration;

/// The id in messages that are about no watch: refusals, and progress of a whole stream.
const NO_WATCH: i64 = -1;
/// etcd's reason for a negative start revision.
const NEGATIVE_START: &str = "etcdserver: mvcc: required revision has been compacted";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// What a hub is told once.
#[derive(Clone, Copy, Debug)]
pub struct HubConfig {
    /// For response headers.
    pub cluster_id: u64,
    /// For response headers.
    pub member_id: u64,
    /// A response of a watch with `fragment` that is at least this long is split: etcd's `--max-request-bytes` and
    /// 512 KiB.
    pub fragment_bytes: usize,
    /// `--watch-progress-notify-interval`; each stream adds up to a tenth, drawn from `seed`.
    pub progress_interval: Duration,
    /// Seed of that.
    pub seed: u64,
}

/// What a hub has done, for metrics and for tests of its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records looked at.
    pub records: u64,
    /// Steps of searches by key.
    pub search_steps: u64,
    /// Events sent, counted per watch.
    pub events: u64,
    /// Messages sent.
    pub messages: u64,
    /// Those of them that have events.
    pub event_messages: u64,
    /// Those of them that notify watches of progress unasked.
    pub notifications: u64,
}

/// Watches that share a cursor.
pub(super) struct Group {
    /// Main revisions below it were sent to all of them.
    pub next: i64,
    pub set: WatchSet,
}

/// The watches of one serve core.
pub struct Hub {
    pub(super) config: HubConfig,
    pub(super) bounds: Bounds,
    random: u64,
    pub(super) streams: HashMap<StreamId, Stream>,
    pub(super) watches: Slab<Watch>,
    pub(super) next_serial: u64,
    /// The group `IN_STEP`, which is never removed, and those that lag.
    pub(super) groups: Slab<Group>,
    pub(super) in_step: Batch,
    /// Lagging groups that nobody works on, by cursor.
    pub(super) waiting: BTreeSet<(i64, usize)>,
    /// The lagging group that is being worked on, with its batch.
    pub(super) catching: Option<(usize, Batch)>,
    /// A batch to be used again.
    pub(super) spare: Option<Batch>,
    /// Cursor of the group last worked on: the next one is the one behind it, so that each has its turn.
    pub(super) last_caught: i64,
    pub(super) ticks: BTreeSet<(Duration, StreamId)>,
    pub(super) asking: BTreeSet<StreamId>,
    pub(super) counters: Counters,
    /// Watches that get events.
    active: usize,
    /// Those of them that are not in step.
    pub(super) lagging: usize,
    head: Vec<u8>,
}

impl Hub {
    /// A hub without streams, in step with the store at `revision`.
    pub fn new(config: HubConfig, revision: i64) -> Hub {
        Hub::with_bounds(config, revision, Bounds::LIMITS)
    }

    pub(super) fn with_bounds(config: HubConfig, revision: i64, bounds: Bounds) -> Hub {
        let mut groups = Slab::new();
        let in_step = groups.insert(Group {
            next: revision + 1,
            set: WatchSet::new(),
        });
        assert_eq!(in_step, IN_STEP);
        Hub {
            config: HubConfig {
                progress_interval: config.progress_interval.max(WATCH_PROGRESS_INTERVAL_MIN),
                ..config
            },
            bounds,
            random: config.seed,
            streams: HashMap::new(),
            watches: Slab::new(),
            next_serial: 0,
            groups,
            in_step: Batch::new(revision + 1, bounds),
            waiting: BTreeSet::new(),
            catching: None,
            spare: None,
            last_caught: 0,
            ticks: BTreeSet::new(),
            asking: BTreeSet::new(),
            counters: Counters::default(),
            active: 0,
            lagging: 0,
            head: Vec::new(),
        }
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Streams that are open, watches that get events, and watches of those that lag.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.streams.len(), self.active, self.lagging)
    }

    /// The same, counted.
    #[cfg(test)]
    pub(super) fn count_sizes(&self) -> (usize, usize, usize) {
        let places = self.watches.iter().map(|(_, watch)| watch.place);
        let active = places.filter(|place| *place != Place::Canceled).count();
        let lagging = self.streams.values().map(|stream| stream.lagging.len()).sum();
        (self.streams.len(), active, lagging)
    }

    /// Events that were found for watches and not sent yet: those of the batches that are worked on.
    pub fn pending_events(&self) -> usize {
        let catching = self.catching.as_ref().map_or(0, |(_, batch)| batch.unsent());
        self.in_step.unsent() + catching
    }

    /// When `advance` has to be called next even if nothing happens.
    pub fn next_tick(&self) -> Option<Duration> {
        self.ticks.first().map(|(tick, _)| *tick)
    }

    /// A new stream. Times are measured from any fixed point.
    ///
    /// # Panics
    /// When the number is in use.
    pub fn open(&mut self, id: StreamId, now: Duration) {
        let tenth = u64::try_from(self.config.progress_interval.as_nanos() / 10).unwrap_or(u64::MAX);
        let jitter = self.next_random() % tenth.max(1);
        let interval = self.config.progress_interval + Duration::from_nanos(jitter);
        let stream = Stream {
            interval,
            first_tick: now + interval,
            ..Stream::default()
        };
        assert!(self.streams.insert(id, stream).is_none(), "stream {id} is open already");
    }

    /// Forgets a stream and its watches; nothing is sent to it any more.
    pub fn close(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        for watch in std::mem::take(&mut stream.watches).into_values() {
            self.leave(watch);
            self.watches.remove(watch as usize);
        }
        if let Some(tick) = self.streams.remove(&id).and_then(|stream| stream.tick) {
            self.ticks.remove(&(tick, id));
        }
        self.asking.remove(&id);
    }

    /// Answers a `WatchCreateRequest`. Events follow with the next `advance`. Requests of streams that are not open are
    /// ignored, here and below.
    pub fn create(
        &mut self,
        id: StreamId,
        request: CreateRequest<'_>,
        view: &View,
        now: Duration,
        sink: &mut impl WatchSink,
    ) {
        if !self.streams.contains_key(&id) {
            return;
        }
        let created = match self.register(id, &request, view, now) {
            Ok(watch_id) => Head {
                watch_id,
                ..Head::default()
            },
            Err(cancel_reason) => Head {
                watch_id: NO_WATCH,
                canceled: true,
                cancel_reason,
                ..Head::default()
            },
        };
        let created = Head {
            created: true,
            revision: view.revision,
            ..created
        };
        self.send(id, created, view, sink);
    }

    /// Adds the watch; or says why not, in etcd's order of checks.
    fn register<'a>(
        &mut self,
        id: StreamId,
        request: &CreateRequest<'a>,
        view: &View,
        now: Duration,
    ) -> Result<i64, &'a str> {
        if request.start_revision < 0 {
            return Err(NEGATIVE_START);
        }
        if let Some(reason) = request.refusal {
            return Err(reason);
        }
        let span = span(request.key, request.range_end)?;
        let stream = self.streams.get_mut(&id).expect("looked up by the caller");
        let watch_id = match request.watch_id {
            0 => stream.choose_id(),
            known if stream.watches.contains_key(&known) => return Err(DUPLICATE_ID),
            chosen => chosen,
        };
        let start = request.start_revision;
        let begins = if start == 0 { view.revision } else { start };
        let lags = start != 0 && start <= view.revision;
        let number = self.watches.insert(Watch {
            stream: id,
            id: watch_id,
            span,
            options: request.options,
            start,
            next: if lags { start } else { start.max(view.revision + 1) },
            serial: self.next_serial,
            place: Place::Canceled,
            quiet: true,
        }) as u32;
        self.next_serial += 1;
        stream.watches.insert(watch_id, number);
        if begins <= view.revision {
            stream.told = stream.told.max(begins);
        } else {
            stream.future.insert((begins, number));
        }
        if request.options.progress_notify {
            stream.notified.insert(number);
            if stream.tick.is_none() {
                let tick = stream.next_tick(now);
                stream.tick = Some(tick);
                self.ticks.insert((tick, id));
            }
        }
        if lags {
            self.join_lagging(number);
            return Ok(watch_id);
        }
        if self.groups[IN_STEP].set.members().is_empty() {
            // Nobody needs what came since the last watch left.
            self.groups[IN_STEP].next = view.revision + 1;
            self.in_step.restart(view.revision + 1, view.revision, self.next_serial);
        }
        self.join(number, IN_STEP);
        Ok(watch_id)
    }

    /// Answers a `WatchCancelRequest`; one for an unknown id has no answer.
    pub fn cancel(&mut self, id: StreamId, watch_id: i64, view: &View, sink: &mut impl WatchSink) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let Some(number) = stream.watches.remove(&watch_id) else {
            return;
        };
        stream.notified.remove(&number);
        stream.future.remove(&(self.watches[number as usize].start, number));
        self.leave(number);
        self.watches.remove(number as usize);
        let canceled = Head {
            watch_id,
            canceled: true,
            revision: view.revision,
            ..Head::default()
        };
        self.send(id, canceled, view, sink);
    }

    /// Takes a `WatchProgressRequest`; the answer comes with an `advance`, behind the events that are due. It waits for
    /// watches that lag behind the last answer, behind an event or notification sent to another watch of the stream, or
    /// behind where another began. There is none while a watch of the stream has not begun, as in etcd.
    pub fn request_progress(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.asked = (stream.asked + 1).min(WATCH_PROGRESS_REQUESTS);
            self.asking.insert(id);
        }
    }

    /// The stream has room for messages again.
    pub fn writable(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        for watch in std::mem::take(&mut stream.parked) {
            self.join_lagging(watch);
        }
    }

    /// Puts a watch that is nowhere into a group.
    pub(super) fn join(&mut self, number: u32, group: usize) {
        let watch = &mut self.watches[number as usize];
        self.groups[group].set.insert(number, &watch.span);
        self.active += usize::from(watch.place == Place::Canceled);
        watch.place = Place::Group(group);
        if let Some(stream) = self.streams.get_mut(&watch.stream) {
            if group == IN_STEP {
                self.lagging -= usize::from(stream.lagging.remove(&number));
            } else {
                self.lagging += usize::from(stream.lagging.insert(number));
            }
        }
    }

    /// Puts a watch that is nowhere into the group that is where the watch is.
    fn join_lagging(&mut self, number: u32) {
        let next = self.watches[number as usize].next;
        let known = self.waiting.range((next, 0)..=(next, usize::MAX)).next();
        let group = match known {
            Some((_, group)) => *group,
            None => {
                let set = WatchSet::new();
                let group = self.groups.insert(Group { next, set });
                self.waiting.insert((next, group));
                group
            }
        };
        self.join(number, group);
    }

    /// Takes a watch from where it is; it stays known.
    pub(super) fn leave(&mut self, number: u32) {
        let watch = &mut self.watches[number as usize];
        if let Some(stream) = self.streams.get_mut(&watch.stream) {
            self.lagging -= usize::from(stream.lagging.remove(&number));
            stream.parked.remove(&number);
        }
        let place = std::mem::replace(&mut watch.place, Place::Canceled);
        self.active -= usize::from(place != Place::Canceled);
        if let Place::Group(id) = place {
            let group = &mut self.groups[id];
            group.set.remove(number, &watch.span);
            // The group that is being worked on is in nobody's list; it is looked after when its batch is done.
            if id != IN_STEP && group.set.members().is_empty() && self.waiting.remove(&(group.next, id)) {
                self.groups.remove(id);
            }
        }
    }

    /// Takes a watch from its group until its stream has room; `first` is what it has to be sent first.
    pub(super) fn park(&mut self, number: u32, first: i64) {
        self.leave(number);
        let watch = &mut self.watches[number as usize];
        watch.place = Place::Parked;
        watch.next = watch.next.max(first);
        self.active += 1;
        let stream = self.streams.get_mut(&watch.stream).expect("a watch has a stream");
        self.lagging += usize::from(stream.lagging.insert(number));
        stream.parked.insert(number);
    }

    /// Ends a watch that cannot go on. Its id stays known until the client cancels it, as in etcd.
    pub(super) fn cancel_for(
        &mut self,
        number: u32,
        compact_revision: i64,
        cancel_reason: &str,
        view: &View,
        sink: &mut impl WatchSink,
    ) {
        self.leave(number);
        let watch = &self.watches[number as usize];
        let (stream, watch_id, start) = (watch.stream, watch.id, watch.start);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.future.remove(&(start, number));
        }
        let canceled = Head {
            watch_id,
            canceled: true,
            compact_revision,
            cancel_reason,
            ..Head::default()
        };
        self.send(stream, canceled, view, sink);
    }

    /// Sends progress up to `revision`.
    pub(super) fn send_progress(
        &mut self,
        id: StreamId,
        watch: Option<u32>,
        revision: i64,
        view: &View,
        sink: &mut impl WatchSink,
    ) {
        let watch_id = watch.map_or(NO_WATCH, |number| self.watches[number as usize].id);
        let progress = Head {
            watch_id,
            revision,
            ..Head::default()
        };
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.told = stream.told.max(revision);
        }
        self.send(id, progress, view, sink);
    }

    /// Sends a message without events.
    fn send(&mut self, stream: StreamId, head: Head<'_>, view: &View, sink: &mut impl WatchSink) {
        self.send_events(stream, head, view, &Bytes::new(), &[], sink);
    }

    /// Sends a message. Ids and term of its header are filled in here.
    pub(super) fn send_events(
        &mut self,
        stream: StreamId,
        head: Head<'_>,
        view: &View,
        batch: &Bytes,
        events: &[std::ops::Range<usize>],
        sink: &mut impl WatchSink,
    ) {
        self.head.clear();
        self.full_head(head, view).encode(&mut self.head);
        self.counters.messages += 1;
        self.counters.events += events.len() as u64;
        self.counters.event_messages += u64::from(!events.is_empty());
        let message = Message {
            head: &self.head,
            batch,
            events,
        };
        sink.send(stream, message);
    }

    /// The head with what is the same in every message.
    pub(super) fn full_head<'a>(&self, head: Head<'a>, view: &View) -> Head<'a> {
        Head {
            cluster_id: self.config.cluster_id,
            member_id: self.config.member_id,
            raft_term: view.term,
            ..head
        }
    }

    /// splitmix64.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
