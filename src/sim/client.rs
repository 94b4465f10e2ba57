//! A client that watches, and holds what it gets against what happened: each of its watches gets every event of its
//! keys from its start on, once, in order, a main revision at a time, over restarts of the member too; no progress is
//! ahead of an event that is still to come, and none goes back.

use super::load::Profile;
use super::model::{Model, Record};
use crate::io::medium::Random;
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::watch::{CreateRequest, StreamId, WatchOptions};
use crate::proto::etcdserverpb::WatchResponse;
use crate::proto::mvccpb::{Event, KeyValue};
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// What a client knows of the store when it takes a message.
#[derive(Clone, Copy)]
pub struct Now<'a> {
    /// What happened.
    pub model: &'a Model,
    /// The compact revision that is published.
    pub compact_revision: i64,
}

/// A watch as its client sees it.
#[derive(Clone)]
pub struct Watched {
    key: Vec<u8>,
    range_end: Vec<u8>,
    options: WatchOptions,
    /// The start revision that was asked for; 0 for what is to come.
    start: i64,
    /// All up to here was received, or is not wanted; `None` until the member says where "from now on" is.
    seen: Option<i64>,
    /// Events of fragments whose last has not come.
    partial: Vec<Event>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, end) = (self.key.escape_ascii(), self.range_end.escape_ascii());
        let (start, seen, options) = (self.start, self.seen, self.options);
        write!(
            formatter,
            "the watch from {key} to {end} since {start}, seen {seen:?}, {options:?},"
        )
    }
}

impl Watched {
    /// A watch from now on, from before or from later on, of one key, some keys or all.
    pub fn draw(random: &mut Random, profile: &Profile, model: &Model) -> Watched {
        let key = |at: u64| format!("key{at:04}").into_bytes();
        let at = random.below(profile.keys);
        let (key, range_end) = match random.below(4) {
            0 => (key(at), Vec::new()),
            1 => (key(at), key(at + 1 + random.below(profile.keys))),
            2 => (key(at), b"\0".to_vec()),
            _ => (b"\0".to_vec(), b"\0".to_vec()),
        };
        let options = WatchOptions {
            no_put: random.below(6) == 0,
            no_delete: random.below(6) == 0,
            prev_kv: random.coin(),
            fragment: random.coin(),
            progress_notify: random.coin(),
        };
        let newest = model.revision();
        let seen = match random.below(4) {
            0 | 1 => None,
            2 => Some(random.below(newest as u64) as i64),
            _ => Some(newest + random.below(20) as i64),
        };
        Watched {
            key,
            range_end,
            options,
            start: 0,
            seen,
            partial: Vec::new(),
        }
    }

    /// The request for what is missing.
    pub fn request(&mut self) -> CreateRequest<'_> {
        self.start = self.seen.map_or(0, |seen| seen + 1);
        CreateRequest {
            key: &self.key,
            range_end: &self.range_end,
            start_revision: self.start,
            watch_id: 0,
            options: self.options,
            refusal: None,
        }
    }

    /// Events that have to come next.
    fn due<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = &'a Arc<Record>> {
        let end = RangeEnd::from_request(&self.range_end);
        let options = self.options;
        let wanted = self.seen.map_or(&[][..], |seen| model.events_after(seen));
        wanted.iter().filter(move |record| {
            let filtered = if record.tombstone {
                options.no_delete
            } else {
                options.no_put
            };
            !filtered && end.contains(&self.key, record.key.as_bytes())
        })
    }

    fn check_event(&self, now: Now<'_>, event: &Event, record: &Record) -> Result<(), String> {
        let main = record.revision.main;
        let expected = KeyValue {
            mod_revision: main,
            ..key_value(record)
        };
        if event.kv.as_ref() != Some(&expected) || (event.r#type == 1) != record.tombstone {
            let revision = event.kv.as_ref().map(|kv| kv.mod_revision);
            return Err(format!(
                "got an event of revision {revision:?} where {record:?} was due"
            ));
        }
        let previous = now.model.alive_at(&record.key, main - 1);
        let previous = previous.filter(|_| self.options.prev_kv);
        match (&event.prev_kv, previous) {
            (Some(found), Some(previous)) if *found == key_value(previous) => Ok(()),
            (None, None) => Ok(()),
            // It may be gone, but only if the revision before the event was compacted.
            (None, Some(_)) if main - 1 < now.compact_revision => Ok(()),
            (found, previous) => Err(format!("got {found:?} as what was before, {previous:?} was due")),
        }
    }

    /// Takes the events of a whole message.
    fn take_events(&mut self, now: Now<'_>, events: &[Event]) -> Result<(), String> {
        let mut due = self.due(now.model);
        let mut last = 0;
        for event in events {
            let record = due.next().ok_or("got an event where none was due")?;
            self.check_event(now, event, record)?;
            last = record.revision.main;
        }
        if due.next().is_some_and(|record| record.revision.main == last) {
            return Err(format!("got a part of revision {last} only"));
        }
        drop(due);
        self.seen = self.seen.max(Some(last));
        Ok(())
    }

    fn take_progress(&mut self, now: Now<'_>, revision: i64) -> Result<(), String> {
        if let Some(record) = self.due(now.model).next()
            && record.revision.main <= revision
        {
            return Err(format!("was told progress {revision}, which is ahead of {record:?}"));
        }
        if revision < self.start || self.seen.is_some_and(|seen| revision < seen) {
            return Err(format!("was told progress {revision}, which takes it back"));
        }
        self.seen = self.seen.map(|seen| seen.max(revision));
        Ok(())
    }

    /// The member has compacted what the watch needs next: it goes on behind that.
    fn take_compaction(&mut self, now: Now<'_>, compact_revision: i64) -> Result<(), String> {
        let next = self.seen.map_or(i64::MAX, |seen| seen + 1);
        if next >= compact_revision || compact_revision > now.compact_revision {
            return Err(format!(
                "was canceled for compact revision {compact_revision}, its next is {next}"
            ));
        }
        self.seen = Some(compact_revision - 1);
        Ok(())
    }
}

/// A record as the API shows it; in a tombstone, but for the mod revision.
fn key_value(record: &Record) -> KeyValue {
    KeyValue::decode(&record.stored()[..]).expect("the model encodes it")
}

/// What a message asks the client to do.
#[derive(Debug)]
pub enum Taken {
    /// Nothing.
    Nothing,
    /// An answer to a progress request came.
    Progress,
    /// Cancel this watch, which a compaction has ended, and watch again.
    Again(i64, Watched),
}

/// A client with one stream.
pub struct Client {
    /// The number of its stream; another after every start of the stream.
    pub stream: StreamId,
    /// Messages on their way to it.
    pub inbox: VecDeque<WatchResponse>,
    /// How many may be.
    pub room: usize,
    /// Watches by id.
    pub watches: BTreeMap<i64, Watched>,
    /// Watches that were asked for.
    pub asked: VecDeque<Watched>,
    /// Ids whose end was asked for.
    pub canceling: Vec<i64>,
    /// The newest progress or event that its stream was told.
    floor: i64,
}

impl Client {
    /// A client without watches.
    pub fn new(room: usize) -> Client {
        Client {
            stream: 0,
            inbox: VecDeque::new(),
            room,
            watches: BTreeMap::new(),
            asked: VecDeque::new(),
            canceling: Vec::new(),
            floor: 0,
        }
    }

    /// Its stream is gone: what it wants to watch again on a new one, from where it was.
    pub fn disconnected(&mut self, stream: StreamId) -> Vec<Watched> {
        self.stream = stream;
        self.inbox.clear();
        self.floor = 0;
        let canceling = std::mem::take(&mut self.canceling);
        let known = std::mem::take(&mut self.watches).into_iter();
        let known = known.filter(|(id, _)| !canceling.contains(id)).map(|(_, watch)| watch);
        let mut again: Vec<Watched> = known.chain(std::mem::take(&mut self.asked)).collect();
        for watch in &mut again {
            watch.partial.clear();
        }
        again
    }

    /// Takes its next message.
    pub fn take(&mut self, now: Now<'_>, response: WatchResponse) -> Result<Taken, String> {
        let revision = response.header.as_ref().map_or(-1, |header| header.revision);
        if revision > now.model.revision() {
            return Err(format!("was told revision {revision}, which does not exist"));
        }
        if response.created {
            let mut watch = self.asked.pop_front().ok_or("a watch nobody asked for was created")?;
            if response.canceled {
                return Err(format!("{watch:?} was refused: {}", response.cancel_reason));
            }
            watch.seen = watch.seen.or(Some(revision));
            let taken = self.watches.insert(response.watch_id, watch).is_some();
            return if taken {
                Err("an id was given twice".into())
            } else {
                Ok(Taken::Nothing)
            };
        }
        if response.watch_id == -1 {
            return self.take_progress(now, revision);
        }
        if response.canceled {
            return self.take_canceled(now, &response);
        }
        let id = response.watch_id;
        let watch = self
            .watches
            .get_mut(&id)
            .ok_or_else(|| format!("a message for watch {id}, which is not there"))?;
        if response.events.is_empty() {
            watch
                .take_progress(now, revision)
                .map_err(|reason| format!("{watch:?} {reason}"))?;
            self.floor = self.floor.max(revision);
            return Ok(Taken::Nothing);
        }
        watch.partial.extend(response.events);
        if response.fragment {
            return Ok(Taken::Nothing);
        }
        let events = std::mem::take(&mut watch.partial);
        watch
            .take_events(now, &events)
            .map_err(|reason| format!("{watch:?} {reason}"))?;
        let last = watch.seen.unwrap_or(0);
        if last > revision {
            return Err(format!("the header of events up to {last} says {revision}"));
        }
        self.floor = self.floor.max(last);
        Ok(Taken::Nothing)
    }

    fn take_canceled(&mut self, now: Now<'_>, response: &WatchResponse) -> Result<Taken, String> {
        let id = response.watch_id;
        if response.compact_revision > 0 {
            let mut watch = self.watches.remove(&id).ok_or("a watch was canceled twice")?;
            let result = watch.take_compaction(now, response.compact_revision);
            result.map_err(|reason| format!("{watch:?} {reason}"))?;
            if self.canceling.contains(&id) {
                return Ok(Taken::Nothing);
            }
            return Ok(Taken::Again(id, watch));
        }
        if !response.cancel_reason.is_empty() {
            return Err(format!("watch {id} was canceled: {}", response.cancel_reason));
        }
        let at = self.canceling.iter().position(|canceling| *canceling == id);
        let at = at.ok_or_else(|| format!("watch {id} was canceled, which nobody asked for"))?;
        self.canceling.swap_remove(at);
        self.watches.remove(&id);
        Ok(Taken::Nothing)
    }

    fn take_progress(&mut self, now: Now<'_>, revision: i64) -> Result<Taken, String> {
        if revision < self.floor {
            return Err(format!("was told progress {revision} after {}", self.floor));
        }
        self.floor = revision;
        for watch in self.watches.values_mut() {
            watch
                .take_progress(now, revision)
                .map_err(|reason| format!("{watch:?} {reason}"))?;
        }
        Ok(Taken::Progress)
    }

    /// The newest progress or event that its stream was told.
    pub fn floor(&self) -> i64 {
        self.floor
    }

    /// Nothing is on its way any more: nothing may be due.
    pub fn check_complete(&self, model: &Model) -> Result<(), String> {
        if !self.asked.is_empty() {
            return Err("a watch was never created".to_string());
        }
        for watch in self.watches.values() {
            if let Some(record) = watch.due(model).next() {
                return Err(format!("{watch:?} never got {record:?}"));
            }
            if !watch.partial.is_empty() {
                return Err(format!("{watch:?} never got the last fragment"));
            }
        }
        Ok(())
    }

    /// Whether it has watches and all get events already, so that progress requests are answered.
    pub fn has_started(&self, revision: i64) -> bool {
        !self.watches.is_empty() && self.watches.values().all(|watch| watch.start <= revision)
    }
}
