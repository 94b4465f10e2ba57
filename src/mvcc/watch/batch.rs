//! A batch: the events of some whole main revisions for the watches of one group, from the records to the messages.
//!
//! It goes through three stages, each of which can stop and go on in a later call:
//!
//! 1. gathering: look at records from a position on, and encode those that a watch wants;
//! 2. completing: fetch the records that `prev_kv` asks for, as far as the window does not have them at once;
//! 3. sending: one message after the other.
//!
//! The batch holds copies, so no view is pinned between calls. Each record is encoded once, and a second time with its
//! previous record if some watch wants that.

use super::change::{Body, Change, Previous};
use super::message::put_event;
use super::set::WatchSet;
use super::watch::Watch;
use super::{History, HistoryFailure};
use crate::limits;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::pages::{PageAddress, ReadFailure, RecordId, RecordScan, Scanned};
use bytes::{Bytes, BytesMut};
use slab::Slab;
use std::ops::{ControlFlow, Range};

/// How much a batch holds and a call does. Tests have small ones.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub records: usize,
    pub events: usize,
    pub bytes: usize,
    pub revisions: usize,
    pub missing_pages: usize,
    pub work: usize,
    pub moves: usize,
}

impl Bounds {
    pub const LIMITS: Bounds = Bounds {
        records: limits::WATCH_BATCH_RECORDS,
        events: limits::WATCH_BATCH_EVENTS,
        bytes: limits::WATCH_BATCH_BYTES,
        revisions: limits::WATCH_BATCH_REVISIONS,
        missing_pages: limits::WATCH_MISSING_PAGES,
        work: limits::WATCH_ADVANCE_WORK,
        moves: limits::WATCH_MOVES,
    };
}

/// Where a batch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Gathering,
    Completing,
    Sending,
}

/// How a stage ended.
pub(super) enum Progress {
    /// The next stage can begin.
    Done,
    /// The work allowed for this call is spent.
    Paused,
    /// Pages have to be loaded first, or a newer view has to come.
    Blocked,
}

/// A record that somebody wants.
struct Event {
    main: i64,
    tombstone: bool,
    /// The element of `WatchResponse.events`, and the KeyValue in it.
    plain: Range<usize>,
    kv: Range<usize>,
    /// The same with `prev_kv`; empty when there is none.
    with_previous: Range<usize>,
}

impl Event {
    /// Its encoding for one of the watches that want it.
    fn part(&self, found: &Match) -> Range<usize> {
        if found.with_previous && !self.with_previous.is_empty() {
            self.with_previous.clone()
        } else {
            self.plain.clone()
        }
    }
}

/// An event for a watch.
#[derive(Clone, Copy)]
struct Match {
    watch: u32,
    event: u32,
    with_previous: bool,
}

/// Events that make one message.
#[derive(Clone)]
pub(super) struct Send {
    pub watch: u32,
    /// Main revision of its first event and of its last.
    pub first: i64,
    pub last: i64,
    /// What the message's header says.
    pub revision: i64,
    parts: Range<usize>,
}

/// See the module's description.
pub(super) struct Batch {
    bounds: Bounds,
    stage: Stage,
    /// Main revision from which on it looks.
    first: i64,
    /// The last main revision to look at.
    until: i64,
    /// The next record to look at.
    next: Revision,
    /// Watches made later are not in it, even if they have the number of one that was.
    serial_limit: u64,
    records: usize,
    revisions: usize,
    events: Vec<Event>,
    matches: Vec<Match>,
    pending: Vec<(u32, Previous)>,
    bytes: BytesMut,
    scratch: Vec<u8>,
    sends: Vec<Send>,
    parts: Vec<Range<usize>>,
    sent: usize,
    /// `bytes` while it is being sent.
    shared: Bytes,
    /// Canary: the event with this number is lost.
    #[cfg(test)]
    pub lose: Option<usize>,
}

/// Empties a list. Its memory is used again, unless a huge revision needed it.
fn clear<T>(list: &mut Vec<T>) {
    list.clear();
    if list.capacity() * size_of::<T>() > limits::WATCH_BATCH_BYTES {
        list.shrink_to(0);
    }
}

/// What a gathering batch looks through, and for whom.
pub(super) struct Search<'a, H> {
    pub set: &'a WatchSet,
    pub watches: &'a Slab<Watch>,
    pub view: &'a View,
    pub history: &'a mut H,
    pub missing: &'a mut Vec<PageAddress>,
    /// Records and events that may still be worked on.
    pub work: &'a mut usize,
    /// Steps of searches in the set, counted.
    pub steps: &'a mut u64,
}

impl Batch {
    /// An empty batch that looks from `first` on.
    pub fn new(first: i64, bounds: Bounds) -> Batch {
        Batch {
            bounds,
            stage: Stage::Gathering,
            first,
            until: first - 1,
            next: Revision::new(first, 0),
            serial_limit: 0,
            records: 0,
            revisions: 0,
            events: Vec::new(),
            matches: Vec::new(),
            pending: Vec::new(),
            bytes: BytesMut::new(),
            scratch: Vec::new(),
            sends: Vec::new(),
            parts: Vec::new(),
            sent: 0,
            shared: Bytes::new(),
            #[cfg(test)]
            lose: None,
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The main revision from which on it looks.
    pub fn first(&self) -> i64 {
        self.first
    }

    /// The main revision behind it, once it is gathered.
    pub fn end(&self) -> i64 {
        self.next.main
    }

    /// Whether nothing was looked at yet.
    pub fn is_fresh(&self) -> bool {
        self.stage == Stage::Gathering && self.next == Revision::new(self.first, 0)
    }

    /// Memory that it keeps, in bytes.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
            + self.shared.len()
            + self.scratch.capacity()
            + self.events.capacity() * size_of::<Event>()
            + self.matches.capacity() * size_of::<Match>()
            + self.sends.capacity() * size_of::<Send>()
            + self.parts.capacity() * size_of::<Range<usize>>()
    }

    /// Whether the watch was there when the batch began.
    pub fn knows(&self, serial: u64) -> bool {
        serial < self.serial_limit
    }

    /// Records looked at.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Makes it empty again, to look at the main revisions from `first` to `until` for the watches made before
    /// `serial_limit`.
    pub fn restart(&mut self, first: i64, until: i64, serial_limit: u64) {
        self.stage = Stage::Gathering;
        self.first = first;
        self.until = until;
        self.next = Revision::new(first, 0);
        self.serial_limit = serial_limit;
        (self.records, self.revisions, self.sent) = (0, 0, 0);
        clear(&mut self.events);
        clear(&mut self.matches);
        clear(&mut self.pending);
        clear(&mut self.sends);
        clear(&mut self.parts);
        // The memory is used again unless a message shares it, or a huge revision needed it.
        if let Ok(bytes) = std::mem::take(&mut self.shared).try_into_mut()
            && bytes.capacity() > self.bytes.capacity()
            && bytes.capacity() <= 2 * self.bounds.bytes
        {
            self.bytes = bytes;
        }
        self.bytes.clear();
    }

    /// Looks at records until the batch is as large as it may be, at the end of a main revision.
    pub fn gather<H: History>(&mut self, search: &mut Search<'_, H>) -> Result<Progress, ReadFailure> {
        while self.stage == Stage::Gathering {
            if self.next.main > self.until {
                self.close(self.until + 1);
            } else if *search.work == 0 {
                return Ok(Progress::Paused);
            } else if self.next.main >= search.view.window.first_main() {
                self.gather_window(search);
            } else if let Some(missing) = self.gather_pages(search)? {
                search.missing.extend(missing);
                return Ok(Progress::Blocked);
            }
        }
        Ok(Progress::Done)
    }

    fn gather_window<H: History>(&mut self, search: &mut Search<'_, H>) {
        for record in search.view.window.scan(self.next) {
            let change = Change {
                revision: record.revision,
                tombstone: record.tombstone,
                key: record.key(),
                // What the same transaction wrote before does not count: etcd looks at the revision before.
                previous: match record.previous {
                    Some(previous) if previous.main < record.revision.main => Previous::At(previous),
                    _ => Previous::Searched,
                },
                body: Body::Encoded(record.event()),
            };
            if self
                .look(&change, search.set, search.watches, search.work, search.steps)
                .is_break()
            {
                return;
            }
        }
        self.next = Revision::new(self.until + 1, 0);
    }

    /// Returns the pages to load when some are missing.
    fn gather_pages<H: History>(
        &mut self,
        search: &mut Search<'_, H>,
    ) -> Result<Option<Vec<PageAddress>>, ReadFailure> {
        let root = &search.view.pages;
        let window = search.view.window.first_main();
        let mut scan = RecordScan::new(RecordId::new(self.next.main, self.next.sub));
        let mut reached_window = false;
        let budget = *search.work;
        let result = scan.step(root, search.history.cache(), budget, |record| {
            if record.id.main >= window {
                reached_window = true;
                return ControlFlow::Break(());
            }
            let change = Change {
                revision: Revision::new(record.id.main, record.id.sub),
                tombstone: record.tombstone,
                key: record.key,
                previous: Previous::Searched,
                body: Body::Fields(KeyValueView::of_event(&record)),
            };
            self.look(&change, search.set, search.watches, search.work, search.steps)
        });
        match result {
            Ok(Scanned::End) => reached_window = true,
            Ok(Scanned::More) => {}
            Err(ReadFailure::Missing(address)) => {
                if let Some(corrupt) = search.history.damage(&address) {
                    return Err(ReadFailure::Corrupt(corrupt));
                }
                let mut missing = scan.ahead(root, search.history.cache(), self.bounds.missing_pages, true);
                // Last, so that a small cache still has it when it is asked again.
                missing.retain(|ahead| *ahead != address);
                missing.push(address);
                return Ok(Some(missing));
            }
            Err(failure) => return Err(failure),
        }
        if reached_window && self.stage == Stage::Gathering {
            self.next = self.next.max(Revision::new(window, 0));
        }
        Ok(None)
    }

    /// Looks at the record at `next`. Breaks when the batch is closed in front of it, or the work is spent.
    fn look(
        &mut self,
        change: &Change<'_>,
        set: &WatchSet,
        watches: &Slab<Watch>,
        work: &mut usize,
        steps: &mut u64,
    ) -> ControlFlow<()> {
        let main = change.revision.main;
        let is_new_main = self.next.sub == 0 || main > self.next.main;
        if main > self.until || (is_new_main && self.is_full()) {
            self.close(main.min(self.until + 1));
            return ControlFlow::Break(());
        }
        if *work == 0 {
            return ControlFlow::Break(());
        }
        self.records += 1;
        self.revisions += usize::from(is_new_main);
        let matched = self.matches.len();
        *steps += self.find(change, set, watches) as u64;
        *work = work.saturating_sub(1 + self.matches.len() - matched);
        if self.matches.len() > matched {
            self.add_event(change, matched);
        }
        self.next = Revision::new(main, change.revision.sub + 1);
        ControlFlow::Continue(())
    }

    fn is_full(&self) -> bool {
        self.records >= self.bounds.records
            || self.revisions >= self.bounds.revisions
            || self.matches.len() >= self.bounds.events
            || self.bytes.len() >= self.bounds.bytes
    }

    /// Ends the gathering in front of the main revision `next`.
    fn close(&mut self, next: i64) {
        self.next = Revision::new(next, 0);
        self.stage = Stage::Completing;
    }

    /// Adds a match for every watch that wants the change. Returns the steps of the search.
    fn find(&mut self, change: &Change<'_>, set: &WatchSet, watches: &Slab<Watch>) -> usize {
        let event = self.events.len() as u32;
        let matches = &mut self.matches;
        set.find(change.key, |number| {
            let watch = &watches[number as usize];
            if watch.wants(change.revision.main, change.tombstone) {
                matches.push(Match {
                    watch: number,
                    event,
                    with_previous: watch.options.prev_kv,
                });
            }
        })
    }

    /// Encodes the event that the matches from `matched` on are for.
    fn add_event(&mut self, change: &Change<'_>, matched: usize) {
        #[cfg(test)]
        if let Some(left) = &mut self.lose {
            if *left == 0 {
                self.matches.truncate(matched);
                self.lose = None;
                return;
            }
            *left -= 1;
        }
        let start = self.bytes.len();
        let kv = match &change.body {
            Body::Encoded(bytes) => put_event(&mut self.bytes, change.tombstone, bytes, None),
            Body::Fields(fields) => {
                self.scratch.clear();
                fields.encode(&mut self.scratch);
                put_event(&mut self.bytes, change.tombstone, &self.scratch, None)
            }
        };
        let wants_previous = self.matches[matched..].iter().any(|found| found.with_previous);
        if wants_previous && !change.is_creation() {
            self.pending.push((self.events.len() as u32, change.previous));
        }
        self.events.push(Event {
            main: change.revision.main,
            tombstone: change.tombstone,
            plain: start..self.bytes.len(),
            kv,
            with_previous: 0..0,
        });
    }

    /// Fetches the previous records that are wanted. A failure names the watches that cannot be served.
    pub fn complete<H: History>(
        &mut self,
        view: &View,
        history: &mut H,
        missing: &mut Vec<PageAddress>,
        failures: &mut Vec<(HistoryFailure, Vec<u32>)>,
    ) -> Progress {
        let mut waiting = Vec::new();
        for (event, previous) in std::mem::take(&mut self.pending) {
            if missing.len() >= self.bounds.missing_pages {
                waiting.push((event, previous));
                continue;
            }
            match self.fetch_previous(event as usize, previous, view, history) {
                Ok(()) => {}
                Err(HistoryFailure::Read(ReadFailure::Missing(address))) => {
                    if !missing.contains(&address) {
                        missing.push(address);
                    }
                    waiting.push((event, previous));
                }
                Err(HistoryFailure::Read(ReadFailure::Expired { .. })) => waiting.push((event, previous)),
                Err(failure) => {
                    let wanted = self
                        .matches
                        .iter()
                        .filter(|found| found.event == event && found.with_previous);
                    failures.push((failure, wanted.map(|found| found.watch).collect()));
                }
            }
        }
        self.pending = waiting;
        if self.pending.is_empty() {
            Progress::Done
        } else {
            Progress::Blocked
        }
    }

    /// Encodes the event once more with its previous record. etcd leaves `prev_kv` out exactly when the revision before
    /// the event is below the compact revision.
    fn fetch_previous<H: History>(
        &mut self,
        event: usize,
        previous: Previous,
        view: &View,
        history: &mut H,
    ) -> Result<(), HistoryFailure> {
        let before = self.events[event].main - 1;
        // The window of a view holds what the view's own compact revision promises, so that nothing newer is asked for.
        if before < view.compact_revision {
            return Ok(());
        }
        let kv = self.events[event].kv.clone();
        let revision = match previous {
            Previous::At(revision) => revision,
            Previous::Searched => {
                let key = KeyValueView::decode(&self.bytes[kv.clone()]).map_or(&b""[..], |fields| fields.key);
                match history.revision_at(key, before) {
                    Some(revision) => revision,
                    None => return Ok(()),
                }
            }
        };
        self.scratch.clear();
        if let Some(record) = view.window.get(revision) {
            if record.tombstone {
                return Ok(());
            }
            self.scratch.extend_from_slice(record.stored());
        } else {
            let id = RecordId::new(revision.main, revision.sub);
            let record = view.pages.record(history.cache(), id);
            let record = record.map_err(|failure| match failure {
                ReadFailure::Missing(address) => history.damage(&address).map_or(failure, ReadFailure::Corrupt),
                failure => failure,
            })?;
            // Only what is still kept after the read counts.
            match record {
                _ if before < history.compact_revision() => return Ok(()),
                None => return Err(HistoryFailure::Lost(revision)),
                Some(record) if record.view().tombstone => return Ok(()),
                Some(record) => KeyValueView::of_event(&record.view()).encode(&mut self.scratch),
            }
        }
        let (tombstone, start) = (self.events[event].tombstone, self.bytes.len());
        let previous = self.scratch.len();
        self.scratch.extend_from_slice(&self.bytes[kv]);
        let (previous, kv) = self.scratch.split_at(previous);
        put_event(&mut self.bytes, tombstone, kv, Some(previous));
        self.events[event].with_previous = start..self.bytes.len();
        Ok(())
    }

    /// Makes the messages: one per watch and main revision whose header names that revision, or one per watch whose
    /// header names `together`.
    pub fn assemble(&mut self, together: Option<i64>) {
        assert!(self.stage == Stage::Completing && self.pending.is_empty());
        let events = &self.events;
        let main = |found: &Match| events[found.event as usize].main;
        for run in self
            .matches
            .chunk_by_mut(|one, other| together.is_some() || main(one) == main(other))
        {
            run.sort_unstable_by_key(|found| (found.watch, found.event));
            for of_watch in run.chunk_by(|one, other| one.watch == other.watch) {
                let start = self.parts.len();
                self.parts
                    .extend(of_watch.iter().map(|found| events[found.event as usize].part(found)));
                let (first, last) = (main(&of_watch[0]), main(&of_watch[of_watch.len() - 1]));
                self.sends.push(Send {
                    watch: of_watch[0].watch,
                    first,
                    last,
                    revision: together.unwrap_or(last),
                    parts: start..self.parts.len(),
                });
            }
        }
        self.shared = std::mem::take(&mut self.bytes).freeze();
        self.stage = Stage::Sending;
    }

    /// The next message to send, which counts as sent.
    pub fn next_send(&mut self) -> Option<Send> {
        let send = self.sends.get(self.sent)?.clone();
        self.sent += 1;
        Some(send)
    }

    /// Events found for watches and not sent.
    pub fn unsent(&self) -> usize {
        match self.stage {
            Stage::Gathering | Stage::Completing => self.matches.len(),
            Stage::Sending => {
                let sent = self
                    .sends
                    .get(self.sent)
                    .map_or(self.parts.len(), |send| send.parts.start);
                self.parts.len() - sent
            }
        }
    }

    /// The encoded events of a message, as places in `bytes`.
    pub fn parts(&self, send: &Send) -> &[Range<usize>] {
        &self.parts[send.parts.clone()]
    }

    /// What `parts` are places in.
    pub fn bytes(&self) -> &Bytes {
        &self.shared
    }
}
