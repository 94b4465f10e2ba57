//! What a hub does with a view: send to the watches in step, let some that lag catch up, tell progress.

use super::batch::{Batch, Progress, Search, Stage};
use super::hub::{Group, Hub};
use super::message::{Head, Message};
use super::set::WatchSet;
use super::watch::{IN_STEP, Place, StreamId};
use super::{Advance, History, HistoryFailure, WatchSink};
use crate::mvcc::view::View;
use crate::pages::ReadFailure;
use std::ops::Range;
use std::time::Duration;

/// What one call works with.
struct Context<'a, H, S> {
    view: &'a View,
    history: &'a mut H,
    sink: &'a mut S,
    outcome: Advance,
}

impl<H: History, S> Context<'_, H, S> {
    /// The newest compact revision known.
    fn compact_revision(&self) -> i64 {
        self.view.compact_revision.max(self.history.compact_revision())
    }
}

impl Hub {
    /// Does a bounded part of what there is to do. Views never go back from call to call.
    pub fn advance<H: History, S: WatchSink>(
        &mut self,
        view: &View,
        history: &mut H,
        sink: &mut S,
        now: Duration,
    ) -> Advance {
        let mut context = Context {
            view,
            history,
            sink,
            outcome: Advance::default(),
        };
        let is_idle = self.advance_in_step(&mut context);
        self.catch_up(is_idle, &mut context);
        self.tick(now, &mut context);
        self.answer_progress(&mut context);
        context.outcome
    }

    /// Sends what is new to the watches in step. Returns whether they have all of the view now.
    fn advance_in_step<H: History, S: WatchSink>(&mut self, context: &mut Context<'_, H, S>) -> bool {
        let revision = context.view.revision;
        let mut work = self.bounds.work;
        let mut batch = std::mem::replace(&mut self.in_step, Batch::new(0, self.bounds));
        let is_idle = loop {
            // What was gathered before the window began anew is no use: the pages may lack what was compacted of it.
            let is_overtaken = batch.stage() != Stage::Sending && batch.first() < context.view.window.first_main();
            if batch.is_fresh() || is_overtaken {
                if batch.first() > revision {
                    break true;
                }
                if is_overtaken {
                    self.fall_out_of_step();
                }
                batch.restart(batch.first(), revision, self.next_serial);
            }
            if self.groups[IN_STEP].set.members().is_empty() {
                self.groups[IN_STEP].next = revision + 1;
                batch.restart(revision + 1, revision, self.next_serial);
                break true;
            }
            match self.work_on(IN_STEP, &mut batch, &mut work, context) {
                Progress::Done => {
                    self.groups[IN_STEP].next = batch.end();
                    batch.restart(batch.end(), revision, self.next_serial);
                }
                Progress::Paused => {
                    context.outcome.more = true;
                    break false;
                }
                Progress::Blocked => break false,
            }
        };
        self.in_step = batch;
        is_idle
    }

    /// The window does not reach back to the watches in step (a snapshot was installed): they become a group that lags.
    fn fall_out_of_step(&mut self) {
        let next = self.groups[IN_STEP].next;
        let set = std::mem::replace(&mut self.groups[IN_STEP].set, WatchSet::new());
        let group = self.groups.insert(Group { next, set });
        for number in self.groups[group].set.members() {
            let watch = &mut self.watches[*number as usize];
            watch.place = Place::Group(group);
            if let Some(stream) = self.streams.get_mut(&watch.stream) {
                self.lagging += usize::from(stream.lagging.insert(*number));
            }
        }
        if self.groups[group].set.members().is_empty() {
            self.groups.remove(group);
        } else {
            self.waiting.insert((next, group));
        }
    }

    /// Lets groups that lag catch up, one after the other.
    fn catch_up<H: History, S: WatchSink>(&mut self, is_idle: bool, context: &mut Context<'_, H, S>) {
        let mut work = self.bounds.work;
        if is_idle {
            self.come_into_step(context);
        }
        loop {
            let current = self
                .catching
                .take()
                .or_else(|| self.next_to_catch_up(&mut work, context));
            let Some((group, mut batch)) = current else { return };
            let progress = if self.groups[group].set.members().is_empty() {
                Progress::Done
            } else {
                self.work_on(group, &mut batch, &mut work, context)
            };
            match progress {
                Progress::Done => {
                    self.settle(group, batch.end(), &mut work);
                    self.spare = Some(batch);
                    if is_idle {
                        self.come_into_step(context);
                    }
                }
                Progress::Paused => {
                    self.catching = Some((group, batch));
                    context.outcome.more = true;
                    return;
                }
                Progress::Blocked => {
                    self.catching = Some((group, batch));
                    return;
                }
            }
        }
    }

    /// Chooses the group whose turn it is, without those of its watches whose history is gone.
    fn next_to_catch_up<H: History, S: WatchSink>(
        &mut self,
        work: &mut usize,
        context: &mut Context<'_, H, S>,
    ) -> Option<(usize, Batch)> {
        loop {
            let end = (context.view.revision + 1, 0);
            let behind = (self.last_caught + 1, 0);
            let turn = if behind < end {
                self.waiting.range(behind..end).next()
            } else {
                None
            };
            let (next, group) = *turn.or_else(|| self.waiting.range(..end).next())?;
            self.waiting.remove(&(next, group));
            self.last_caught = next;
            let next = self.cancel_compacted(group, context);
            if next > context.view.revision || self.groups[group].set.members().is_empty() {
                self.settle(group, next, work);
                continue;
            }
            // It stops where another group waits, to go on with it.
            let until = match self.waiting.range((next + 1, 0)..).next() {
                Some((other, _)) => context.view.revision.min(other - 1),
                None => context.view.revision,
            };
            let mut batch = self.spare.take().unwrap_or_else(|| Batch::new(next, self.bounds));
            batch.restart(next, until, self.next_serial);
            return Some((group, batch));
        }
    }

    /// Cancels the watches of a group that would have to read below the compact revision. Returns the group's cursor.
    fn cancel_compacted<H: History, S: WatchSink>(&mut self, group: usize, context: &mut Context<'_, H, S>) -> i64 {
        let compact = context.compact_revision();
        let next = self.groups[group].next;
        if next >= compact {
            return next;
        }
        let members: Vec<u32> = self.groups[group].set.members().iter().copied().collect();
        for number in members {
            let watch = &self.watches[number as usize];
            if watch.next >= compact {
                continue;
            }
            if context.sink.can_send(watch.stream) {
                self.cancel_for(number, compact, "", context.view, context.sink);
            } else {
                self.park(number, next);
            }
        }
        self.groups[group].next = compact;
        compact
    }

    /// Puts a group back in line at its new cursor, together with one that waits there.
    fn settle(&mut self, group: usize, next: i64, work: &mut usize) {
        self.groups[group].next = next;
        if self.groups[group].set.members().is_empty() {
            self.groups.remove(group);
            return;
        }
        let other = self.waiting.range((next, 0)..=(next, usize::MAX)).next().copied();
        if let Some((_, other)) = other {
            let length = |group: usize| self.groups[group].set.members().len();
            let (small, large) = if length(group) < length(other) {
                (group, other)
            } else {
                (other, group)
            };
            if length(small) <= self.bounds.moves {
                self.waiting.remove(&(next, other));
                *work = work.saturating_sub(self.move_members(small, large, self.bounds.moves));
                self.groups.remove(small);
                self.waiting.insert((next, large));
                return;
            }
        }
        self.waiting.insert((next, group));
    }

    /// Lets groups that have caught up join the watches in step, which have all of the view.
    fn come_into_step<H, S>(&mut self, context: &mut Context<'_, H, S>) {
        let next = self.groups[IN_STEP].next;
        let mut moves = self.bounds.moves;
        while let Some((_, group)) = self.waiting.range((next, 0)..=(next, usize::MAX)).next().copied() {
            if moves == 0 {
                context.outcome.more = true;
                return;
            }
            moves -= self.move_members(group, IN_STEP, moves);
            if self.groups[group].set.members().is_empty() {
                self.waiting.remove(&(next, group));
                self.groups.remove(group);
            }
        }
    }

    /// Moves up to `count` watches from a group to another. Returns how many.
    fn move_members(&mut self, from: usize, to: usize, count: usize) -> usize {
        let moved: Vec<u32> = self.groups[from].set.members().iter().take(count).copied().collect();
        for number in &moved {
            let span = &self.watches[*number as usize].span;
            self.groups[from].set.remove(*number, span);
            self.join(*number, to);
        }
        moved.len()
    }

    /// Takes a batch of a group through its stages.
    fn work_on<H: History, S: WatchSink>(
        &mut self,
        group: usize,
        batch: &mut Batch,
        work: &mut usize,
        context: &mut Context<'_, H, S>,
    ) -> Progress {
        loop {
            let progress = match batch.stage() {
                Stage::Gathering => self.gather(group, batch, work, context),
                Stage::Completing => self.complete(group, batch, context),
                Stage::Sending => {
                    let progress = self.send_batch(group, batch, work, context);
                    if matches!(progress, Progress::Done) {
                        return Progress::Done;
                    }
                    progress
                }
            };
            if !matches!(progress, Progress::Done) {
                return progress;
            }
        }
    }

    fn gather<H: History, S: WatchSink>(
        &mut self,
        group: usize,
        batch: &mut Batch,
        work: &mut usize,
        context: &mut Context<'_, H, S>,
    ) -> Progress {
        let before = batch.records();
        let result = batch.gather(&mut Search {
            set: &self.groups[group].set,
            watches: &self.watches,
            view: context.view,
            history: context.history,
            missing: &mut context.outcome.missing,
            work,
            steps: &mut self.counters.search_steps,
        });
        self.counters.records += (batch.records() - before) as u64;
        match result {
            Ok(progress) => progress,
            Err(failure) => {
                let members = self.groups[group].set.members().iter().copied().collect();
                self.fail(HistoryFailure::Read(failure), members, context);
                Progress::Blocked
            }
        }
    }

    fn complete<H: History, S: WatchSink>(
        &mut self,
        group: usize,
        batch: &mut Batch,
        context: &mut Context<'_, H, S>,
    ) -> Progress {
        let mut failures = Vec::new();
        let progress = batch.complete(
            context.view,
            context.history,
            &mut context.outcome.missing,
            &mut failures,
        );
        for (failure, watches) in failures {
            let watches = watches
                .into_iter()
                .filter(|number| self.is_member(*number, group, batch))
                .collect();
            self.fail(failure, watches, context);
        }
        if !matches!(progress, Progress::Done) {
            return progress;
        }
        if group == IN_STEP {
            batch.assemble(None);
            return Progress::Done;
        }
        if batch.first() < context.compact_revision() {
            // What was read may have been compacted meanwhile and does not count.
            let next = self.cancel_compacted(group, context);
            batch.restart(next, next - 1, self.next_serial);
            return Progress::Done;
        }
        batch.assemble(Some(context.view.revision));
        Progress::Done
    }

    fn is_member(&self, number: u32, group: usize, batch: &Batch) -> bool {
        let watch = self.watches.get(number as usize);
        watch.is_some_and(|watch| watch.place == Place::Group(group) && batch.knows(watch.serial))
    }

    /// Cancels watches whose history cannot be read. A root that expired is no failure: the next view has another.
    fn fail<H: History, S: WatchSink>(
        &mut self,
        failure: HistoryFailure,
        watches: Vec<u32>,
        context: &mut Context<'_, H, S>,
    ) {
        context.outcome.more = true;
        if let HistoryFailure::Read(ReadFailure::Expired { .. } | ReadFailure::Missing(_)) = failure {
            return;
        }
        let reason = failure.to_string();
        for number in watches {
            self.cancel_for(number, 0, &reason, context.view, context.sink);
        }
        context.outcome.failures.push(failure);
    }

    fn send_batch<H: History, S: WatchSink>(
        &mut self,
        group: usize,
        batch: &mut Batch,
        work: &mut usize,
        context: &mut Context<'_, H, S>,
    ) -> Progress {
        while *work > 0 {
            let Some(send) = batch.next_send() else {
                return Progress::Done;
            };
            *work -= 1;
            if !self.is_member(send.watch, group, batch) {
                continue;
            }
            let watch = &mut self.watches[send.watch as usize];
            if !context.sink.can_send(watch.stream) {
                self.park(send.watch, send.first);
                continue;
            }
            watch.next = send.last + 1;
            watch.quiet = false;
            let head = Head {
                watch_id: watch.id,
                revision: send.revision,
                ..Head::default()
            };
            let (stream, fragment) = (watch.stream, watch.options.fragment);
            if let Some(stream) = self.streams.get_mut(&stream) {
                stream.told = stream.told.max(send.last);
            }
            self.send_in_pieces(stream, head, fragment, batch, batch.parts(&send), context);
        }
        Progress::Paused
    }

    /// Sends events as one message, or as several when they are too long for one and the watch asked for that: each
    /// as long as it may be, with at least one event, as etcd cuts them.
    fn send_in_pieces<H, S: WatchSink>(
        &mut self,
        stream: StreamId,
        head: Head<'_>,
        fragment: bool,
        batch: &Batch,
        events: &[Range<usize>],
        context: &mut Context<'_, H, S>,
    ) {
        let (bytes, view) = (batch.bytes(), context.view);
        let length = |head: Head<'_>, events: &[Range<usize>]| {
            let mut encoded = Vec::new();
            self.full_head(head, view).encode(&mut encoded);
            let message = Message {
                head: &encoded,
                batch: bytes,
                events,
            };
            message.length()
        };
        let limit = self.config.fragment_bytes;
        if !fragment || events.len() < 2 || length(head, events) < limit {
            return self.send_events(stream, head, view, bytes, events, context.sink);
        }
        let piece_head = Head { fragment: true, ..head };
        let head_length = length(piece_head, &[]);
        let mut rest = events;
        while !rest.is_empty() {
            let mut total = head_length + rest[0].len();
            let more = rest[1..].iter().take_while(|event| {
                total += event.len();
                total < limit
            });
            let (piece, behind) = rest.split_at(1 + more.count());
            rest = behind;
            let head = Head {
                fragment: !rest.is_empty(),
                ..head
            };
            self.send_events(stream, head, view, bytes, piece, context.sink);
        }
    }

    /// Tells progress to the watches of the streams whose time has come.
    fn tick<H, S: WatchSink>(&mut self, now: Duration, context: &mut Context<'_, H, S>) {
        let sent = self.sent_in_step();
        while let Some((due, id)) = self.ticks.first().copied().filter(|(due, _)| *due <= now) {
            self.ticks.remove(&(due, id));
            let stream = self.streams.get_mut(&id).expect("ticks are of open streams");
            stream.tick = None;
            if stream.notified.is_empty() {
                continue;
            }
            let next = stream.next_tick(now);
            stream.tick = Some(next);
            self.ticks.insert((next, id));
            for number in stream.notified.clone() {
                let watch = &mut self.watches[number as usize];
                let was_quiet = std::mem::replace(&mut watch.quiet, true);
                // One that was made, or was sent an event, behind what all in step have been sent would go back.
                let is_there = watch.start <= sent && watch.next <= sent + 1;
                let is_in_step = watch.place == Place::Group(IN_STEP);
                if was_quiet && is_there && is_in_step && context.sink.can_send(id) {
                    self.counters.notifications += 1;
                    self.send_progress(id, Some(number), sent, context.view, context.sink);
                }
            }
        }
    }

    /// Answers the streams that asked for progress.
    fn answer_progress<H, S: WatchSink>(&mut self, context: &mut Context<'_, H, S>) {
        let in_step = self.sent_in_step();
        for id in self.asking.clone() {
            let stream = self.streams.get_mut(&id).expect("only open streams ask");
            if in_step < *stream.due.get_or_insert(context.view.revision) {
                continue;
            }
            let has_begun = stream.begin(in_step);
            let Some(lowest) = self.sent_to_all(id).filter(|_| has_begun) else {
                // No watch, or one that has not begun: etcd stays silent, too.
                self.stop_asking(id);
                continue;
            };
            // A watch that lags behind what the stream was told holds the answer back: to Kubernetes it would go back
            // in time.
            while self.streams[&id].is_asking_behind(lowest) && context.sink.can_send(id) {
                self.send_progress(id, None, lowest, context.view, context.sink);
                let stream = self.streams.get_mut(&id).expect("looked up before");
                stream.asked -= 1;
            }
            if self.streams[&id].asked == 0 {
                self.stop_asking(id);
            }
        }
    }

    fn stop_asking(&mut self, id: StreamId) {
        let stream = self.streams.get_mut(&id).expect("only open streams ask");
        (stream.asked, stream.due) = (0, None);
        self.asking.remove(&id);
    }

    /// The revision up to which all watches in step have been sent everything.
    fn sent_in_step(&self) -> i64 {
        self.groups[IN_STEP].next - 1
    }

    /// The lowest revision up to which every watch of the stream has been sent everything; `None` when it has none.
    /// Never above what the watches in step have been sent, even if those of the stream are all further.
    fn sent_to_all(&self, id: StreamId) -> Option<i64> {
        let stream = self.streams.get(&id)?;
        let mut watches = stream.watches.values().map(|number| &self.watches[*number as usize]);
        if !watches.any(|watch| watch.place != Place::Canceled) {
            return None;
        }
        let lagging = stream.lagging.iter().map(|number| {
            let watch = &self.watches[*number as usize];
            match watch.place {
                Place::Group(group) => self.groups[group].next.max(watch.next) - 1,
                Place::Parked | Place::Canceled => watch.next - 1,
            }
        });
        Some(lagging.fold(self.sent_in_step(), i64::min))
    }
}
