//! What a client may rely on, checked message by message against the plain list of all records: each watch gets every
//! event of its span from its start on, in order, once, a main revision at a time; no progress runs ahead or goes back.

use super::*;
use crate::mvcc::interval::RangeEnd;
use crate::proto::mvccpb;

/// A watch as the client asked for it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub key: Vec<u8>,
    pub range_end: Vec<u8>,
    pub options: WatchOptions,
    pub start: i64,
    /// The store's revision when it was asked for.
    pub revision: i64,
}

/// What the client knows of a watch.
#[derive(Debug)]
pub struct Known {
    pub asked: Asked,
    /// Every event up to here was received.
    pub seen: i64,
    /// Events of fragments whose last has not come.
    partial: Vec<mvccpb::Event>,
    pub is_canceled: bool,
}

impl Known {
    /// The first main revision that it wants.
    fn start(&self) -> i64 {
        match self.asked.start {
            0 => self.asked.revision + 1,
            start => start,
        }
    }

    /// No progress below it is told: the start that it asked for, or the store's revision when it asked for none.
    fn begins(&self) -> i64 {
        match self.asked.start {
            0 => self.asked.revision,
            start => start,
        }
    }

    /// Whether everything from its start on may be there already.
    pub fn has_begun(&self, revision: i64) -> bool {
        self.begins() <= revision
    }

    /// The events that have to come next.
    fn due<'a>(&'a self, history: &'a [NewRecord]) -> impl Iterator<Item = &'a NewRecord> {
        let from = self.start().max(self.seen + 1);
        let start = history.partition_point(|record| record.id.main < from);
        let end = RangeEnd::from_request(&self.asked.range_end);
        let options = self.asked.options;
        history[start..].iter().filter(move |record| {
            let filtered = if record.tombstone {
                options.no_delete
            } else {
                options.no_put
            };
            !filtered && end.contains(&self.asked.key, &record.key)
        })
    }

    fn check_event(&self, world: &World, event: &mvccpb::Event, record: &NewRecord) -> Result<(), String> {
        let encoded = |record: &NewRecord| {
            let mut bytes = Vec::new();
            fields(record).encode(&mut bytes);
            mvccpb::KeyValue::decode(&bytes[..]).unwrap()
        };
        let (kv, tombstone) = (event.kv.clone().unwrap_or_default(), event.r#type == 1);
        if kv != encoded(record) || tombstone != record.tombstone {
            return Err(format!("{event:?} where {record:?} was due"));
        }
        let before = record.id.main - 1;
        let previous = newest(&world.history, &record.key, before).filter(|_| self.asked.options.prev_kv);
        match (&event.prev_kv, previous) {
            (Some(found), Some(previous)) if *found == encoded(previous) => Ok(()),
            (None, None) => Ok(()),
            // It may have been compacted, but only if the revision before the event was.
            (None, Some(_)) if before < world.compact_revision => Ok(()),
            (found, previous) => Err(format!("prev_kv {found:?} where {previous:?} was due")),
        }
    }

    /// Takes the events of a whole message.
    fn take_events(&mut self, world: &World, events: Vec<mvccpb::Event>) -> Result<(), String> {
        let last = {
            let mut due = self.due(&world.history);
            let mut last = 0;
            for event in &events {
                let record = due.next().ok_or_else(|| format!("{event:?} where nothing was due"))?;
                self.check_event(world, event, record)?;
                last = record.id.main;
            }
            if due.next().is_some_and(|record| record.id.main == last) {
                return Err(format!("main revision {last} is split"));
            }
            last
        };
        self.seen = self.seen.max(last);
        Ok(())
    }

    fn take_progress(&mut self, world: &World, revision: i64) -> Result<(), String> {
        if let Some(record) = self
            .due(&world.history)
            .next()
            .filter(|record| record.id.main <= revision)
        {
            return Err(format!("progress {revision} is ahead of {record:?}"));
        }
        if revision < self.seen.max(self.begins()) {
            return Err(format!("progress {revision} goes back: {self:?}"));
        }
        self.seen = self.seen.max(revision);
        Ok(())
    }
}

/// The clients of all streams.
#[derive(Default)]
pub struct Checker {
    asked: BTreeMap<StreamId, VecDeque<Asked>>,
    pub watches: BTreeMap<(StreamId, i64), Known>,
    /// The newest progress, notification or event of a stream.
    progress: BTreeMap<StreamId, i64>,
    /// How much was seen, so that a test can tell that it tests something.
    pub events: usize,
    pub progresses: usize,
    pub compactions: usize,
    pub fragments: usize,
}

impl Checker {
    pub fn ask(&mut self, stream: StreamId, asked: Asked) {
        self.asked.entry(stream).or_default().push_back(asked);
    }

    /// The stream was closed.
    pub fn forget(&mut self, stream: StreamId) {
        self.asked.remove(&stream);
        self.progress.remove(&stream);
        self.watches.retain(|(other, _), _| *other != stream);
    }

    /// The watches of a stream that get events.
    pub fn active(&self, stream: StreamId) -> Vec<i64> {
        let watches = self
            .watches
            .iter()
            .filter(|((other, _), known)| *other == stream && !known.is_canceled);
        watches.map(|((_, id), _)| *id).collect()
    }

    /// Takes the next message of a stream.
    pub fn take(&mut self, world: &World, stream: StreamId, response: WatchResponse) -> Result<(), String> {
        let header = response.header.as_ref().map_or(-1, |header| header.revision);
        if header > world.revision {
            return Err(format!("header revision {header} is ahead of the store's"));
        }
        if response.created {
            return self.take_created(stream, &response, header);
        }
        if response.watch_id == -1 {
            return self.take_stream_progress(world, stream, header);
        }
        let key = (stream, response.watch_id);
        let known = self
            .watches
            .get_mut(&key)
            .ok_or_else(|| format!("{response:?} for an unknown watch"))?;
        if response.canceled && response.compact_revision == 0 {
            self.watches.remove(&key);
            return Ok(());
        }
        if known.is_canceled {
            return Err(format!("{response:?} for a canceled watch"));
        }
        if response.canceled {
            let compact = response.compact_revision;
            if known.seen.max(known.start() - 1) + 1 >= compact || compact > world.compact_revision || header != 0 {
                return Err(format!("canceled at {compact} for no reason: {known:?}"));
            }
            known.is_canceled = true;
            self.compactions += 1;
            return Ok(());
        }
        if response.events.is_empty() {
            self.progresses += 1;
            let told = self.progress.entry(stream).or_default();
            *told = header.max(*told);
            return known.take_progress(world, header);
        }
        self.events += response.events.len();
        let newest = response
            .events
            .iter()
            .map(|event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision))
            .max();
        if newest > Some(header) {
            return Err(format!("header revision {header} is behind an event"));
        }
        let progress = self.progress.entry(stream).or_default();
        *progress = newest.map_or(*progress, |newest| newest.max(*progress));
        known.partial.extend(response.events);
        if response.fragment {
            self.fragments += 1;
            return if known.asked.options.fragment {
                Ok(())
            } else {
                Err("a fragment nobody asked for".into())
            };
        }
        let events = std::mem::take(&mut known.partial);
        known.take_events(world, events)
    }

    fn take_created(&mut self, stream: StreamId, response: &WatchResponse, header: i64) -> Result<(), String> {
        let asked = self.asked.get_mut(&stream).and_then(VecDeque::pop_front);
        let asked = asked.ok_or("created without a request")?;
        if header != asked.revision || response.canceled {
            return Err(format!("{response:?} as the answer to {asked:?}"));
        }
        let known = Known {
            asked,
            seen: 0,
            partial: Vec::new(),
            is_canceled: false,
        };
        match self.watches.insert((stream, response.watch_id), known) {
            None => Ok(()),
            Some(_) => Err(format!("id {} is given twice", response.watch_id)),
        }
    }

    fn take_stream_progress(&mut self, world: &World, stream: StreamId, revision: i64) -> Result<(), String> {
        self.progresses += 1;
        let last = self.progress.insert(stream, revision).unwrap_or(0);
        if revision < last {
            return Err(format!("progress {revision} after {last}"));
        }
        let mut watches = self.watches.range_mut((stream, i64::MIN)..=(stream, i64::MAX));
        watches.try_for_each(|(_, known)| {
            if known.is_canceled {
                Ok(())
            } else {
                known.take_progress(world, revision)
            }
        })
    }

    /// When all streams are drained nothing is due any more.
    pub fn finish(&self, world: &World) -> Result<(), String> {
        for (key, known) in self.watches.iter().filter(|(_, known)| !known.is_canceled) {
            if let Some(record) = known.due(&world.history).next() {
                return Err(format!("watch {key:?} never got {record:?}: {known:?}"));
            }
            if !known.partial.is_empty() {
                return Err(format!("watch {key:?} never got its last fragment"));
            }
        }
        Ok(())
    }
}
