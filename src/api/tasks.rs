//! Reads that run as tasks: long ones, and those that need the disk.
//!
//! A task holds a view, so what it reads stays; works in slices and yields between them; and produces bytes only as the
//! caller's window opens. It ends when its call is over.

use super::answer::{self, Runs, row_bytes};
use super::error;
use super::kv::{encode_write, readable};
use super::records::{PageReads, Records, Unreadable};
use super::service::{Api, Caller, WriteRequest};
use crate::grpc::Status;
use crate::limits::{API_PART_BYTES, API_SLICE_ROWS, API_STREAM_ROWS_MIN};
use crate::mvcc::index::Index;
use crate::mvcc::readers::Hold;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::net::{Core, Net};
use crate::proto::etcdserverpb::{RangeRequest, TxnRequest};
use crate::raft::messages::Request;
use crate::reactor::serve::{self, Notify};
use crate::state::StateError;
use crate::state::compare::Comparing;
use crate::state::depth::decode;
use crate::state::outcome::Answer;
use crate::state::range::{Projection, RangeRows, RangeRun};
use crate::state::{plan, validate};
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// A task's hold on its call.
pub(super) struct Task {
    pub(super) connections: Core<Api>,
    pub(super) caller: Caller,
    room: Rc<Notify>,
    pub(super) pages: PageReads,
    pub(super) index: Arc<Index<View>>,
    pub(super) view: View,
}

/// Why a task ends without an answer of its own.
pub(super) enum Ended {
    /// The call is over.
    Gone,
    /// It gets this status.
    Failed(Status),
    /// A page is damaged.
    Corrupt(String),
}

impl From<Unreadable> for Ended {
    fn from(unreadable: Unreadable) -> Ended {
        match unreadable {
            Unreadable::Corrupt(description) => Ended::Corrupt(description),
            Unreadable::Disk(description) => {
                tracing::error!("a page could not be read: {description}");
                Ended::Failed(error::page_not_read(&description))
            }
            Unreadable::Expired => Ended::Failed(error::expired()),
        }
    }
}

impl Api {
    /// A task's hold on a call; `None` while the core shuts down.
    fn task(&mut self, caller: Caller, view: View) -> Option<Task> {
        let connections = self.connections.clone()?;
        let room = Rc::new(Notify::new());
        self.state(caller)?.room = Some(room.clone());
        let (pages, index) = (self.pages.clone(), self.index.clone());
        Some(Task {
            connections,
            caller,
            room,
            pages,
            index,
            view,
        })
    }

    /// Ends what `task` began.
    fn task_ended(&mut self, net: &mut Net, caller: Caller, result: Result<(), Ended>) {
        match result {
            // What it sent was counted as it went.
            Ok(()) => self.finished(caller, 0),
            Err(Ended::Gone) => {}
            Err(Ended::Failed(status)) => self.fail(net, caller, &status),
            Err(Ended::Corrupt(description)) => {
                self.post(Request::Corrupt { description });
                self.fail(net, caller, &error::corrupt());
            }
        }
    }

    /// Runs a read at `at_main` as a task. A compaction that went past that revision between the call's look at its
    /// view and now may have begun to remove what the read needs, so the read is refused as one that came after it
    /// (DESIGN 12 (10)).
    pub(super) fn run<F>(
        &mut self,
        net: &mut Net,
        caller: Caller,
        view: View,
        at_main: i64,
        body: impl FnOnce(Task) -> F,
    ) where
        F: Future<Output = Result<(), Ended>> + 'static,
    {
        self.begin_reading(at_main);
        if self.index.pin().view().compact_revision > at_main.max(view.compact_revision) {
            self.end_reading(at_main);
            return self.fail(net, caller, &error::status(&StateError::Compacted));
        }
        let ended = move |api: &mut Api| api.end_reading(at_main);
        if !self.spawn_task(caller, view, ended, body) {
            self.end_reading(at_main);
        }
    }

    /// Runs a task. `ended` gives back what keeps compactions from what it reads; false when it can't run, because
    /// the call or the core is about to end.
    pub(super) fn spawn_task<F>(
        &mut self,
        caller: Caller,
        view: View,
        ended: impl FnOnce(&mut Api) + 'static,
        body: impl FnOnce(Task) -> F,
    ) -> bool
    where
        F: Future<Output = Result<(), Ended>> + 'static,
    {
        let Some(task) = self.task(caller, view) else {
            return false;
        };
        let connections = task.connections.clone();
        let body = body(task);
        serve::spawn_aside(async move {
            let result = body.await;
            connections.with(|api, net| {
                ended(api);
                api.task_ended(net, caller, result);
            });
        });
        true
    }

    /// Goes on with a range that is long or needs the disk.
    pub(super) fn spawn_range(&mut self, net: &mut Net, caller: Caller, view: View, run: RangeRun, found: bool) {
        let at_main = run.at_main();
        let identity = self.settings.identity;
        self.run(net, caller, view, at_main, move |task| async move {
            let rows = task.rows(run, found).await?;
            let header = identity.header(rows.revision, task.view.term);
            task.send_range(&header, &rows).await
        });
    }

    pub(super) fn spawn_read_txn(&mut self, net: &mut Net, caller: Caller, view: View, request: TxnRequest) {
        let at_main = view.revision;
        let identity = self.settings.identity;
        self.run(net, caller, view, at_main, move |task| async move {
            let bytes = task.read_txn(&request, identity).await?;
            task.send_whole(bytes)
        });
    }

    /// Fetches what an answer to a write shows. Its ranges read under the answer's own hold (DESIGN 12 (13)); what else
    /// it names is in the view.
    pub(super) fn spawn_show(
        &mut self,
        caller: Caller,
        payload: WriteRequest,
        answer: Answer,
        view: View,
        hold: Option<Hold>,
        missing: Vec<Revision>,
    ) {
        let identity = self.settings.identity;
        self.spawn_task(
            caller,
            view,
            |_| drop(hold),
            move |task| async move {
                let mut records = Records::resident(&task.view);
                let mut missing = missing;
                loop {
                    records.fetch(&task.pages, missing).await?;
                    let encoded = encode_write(&task.index.pin(), &payload, &answer, identity, &task.view, &records);
                    match encoded {
                        Ok(bytes) => return task.send_whole(bytes),
                        Err(more) => missing = more,
                    }
                }
            },
        );
    }

    pub(super) fn range_stream(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: RangeRequest = decode(message).map_err(|error| error::stream_status(&error))?;
        validate::check_range_stream(&request).map_err(|error| error::status(&error))?;
        let view = self.index.clone().pin().view().clone();
        let run = RangeRun::new(&request, readable(&view)).map_err(|error| error::status(&error))?;
        let identity = self.settings.identity;
        let chunk_bytes = self.settings.max_request_bytes;
        let at_main = run.at_main();
        self.run(net, caller, view, at_main, move |task| async move {
            let rows = task.rows(run, false).await?;
            let header = identity.header(rows.revision, task.view.term);
            task.send_stream(&header, &rows, chunk_bytes).await
        });
        Ok(())
    }
}

impl Task {
    /// The rows of a range, sorted and cut.
    async fn rows(&self, mut run: RangeRun, mut found: bool) -> Result<RangeRows, Ended> {
        while !found {
            found = {
                let pinned = self.index.pin();
                run.step(&pinned)
            };
            serve::yield_now().await;
            self.check_open()?;
        }
        let mut records = Records::resident(&self.view);
        if run.needs_values() {
            let missing = records.missing(run.rows().iter().map(|row| row.revision));
            records.fetch(&self.pages, missing).await?;
        }
        let pinned = self.index.pin();
        Ok(Runs {
            keys: &pinned,
            records: &records,
            missing: Vec::new(),
        }
        .finish(run))
    }

    pub(super) fn check_open(&self) -> Result<(), Ended> {
        let caller = self.caller;
        if self.connections.with(|_, net| net.is_open(caller.call)) {
            Ok(())
        } else {
            Err(Ended::Gone)
        }
    }

    /// Waits until the caller takes more.
    pub(super) async fn wait_for_room(&self) -> Result<(), Ended> {
        let caller = self.caller;
        loop {
            self.check_open()?;
            let has_room = self.connections.with(|_, net| {
                let has_room = net.capacity(caller.call) > 0;
                if !has_room {
                    net.notify_writable(caller.call);
                }
                has_room
            });
            if has_room {
                return Ok(());
            }
            self.room.notified().await;
        }
    }

    /// The encoded row, wherever it is.
    async fn with_row<R>(
        &self,
        rows: &RangeRows,
        at: usize,
        buffer: &mut Vec<u8>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Ended> {
        let row = &rows.rows[at];
        let mut records = Records::resident(&self.view);
        if rows.projection != Projection::FromIndex && records.bytes(row.revision).is_none() {
            records.fetch(&self.pages, vec![row.revision]).await?;
        }
        let bytes = row_bytes(row, rows.projection, &records, buffer);
        Ok(take(bytes.expect("fetched")))
    }

    /// The encoded length of a row, without reading its value.
    async fn row_length(&self, rows: &RangeRows, at: usize, buffer: &mut Vec<u8>) -> Result<usize, Ended> {
        let row = &rows.rows[at];
        let records = Records::resident(&self.view);
        match row_bytes(row, rows.projection, &records, buffer) {
            Some(bytes) => Ok(bytes.len()),
            None => {
                let with_value = rows.projection == Projection::Record;
                Ok(self.pages.record_length(&self.view, row.revision, with_value).await?)
            }
        }
    }

    /// Sends a `RangeResponse` of any length with bounded memory: its length first, then its rows as they are taken.
    async fn send_range(
        &self,
        header: &crate::proto::etcdserverpb::ResponseHeader,
        rows: &RangeRows,
    ) -> Result<(), Ended> {
        let (mut head, mut end) = (Vec::new(), Vec::new());
        answer::put_header(&mut head, header);
        answer::put_range_end(&mut end, rows.more, rows.count);
        let mut buffer = Vec::new();
        let mut length = head.len() + end.len();
        for at in 0..rows.rows.len() {
            length += answer::kv_length(self.row_length(rows, at, &mut buffer).await?);
            self.breathe(at).await?;
        }
        self.send(|net, call| net.begin_message(call, length))?;
        self.connections.with(|api, _| api.count_sent_bytes(length));
        self.send_rows(head, rows, 0..rows.rows.len(), &end).await?;
        self.send(|net, call| net.finish(call, &Status::OK))
    }

    /// Sends the chunks of a `RangeStream` (`etcd-surface` 4.3): only the last has header, more and count.
    async fn send_stream(
        &self,
        header: &crate::proto::etcdserverpb::ResponseHeader,
        rows: &RangeRows,
        chunk_bytes: usize,
    ) -> Result<(), Ended> {
        let mut buffer = Vec::new();
        let (mut first, mut length) = (0, 0);
        for at in 0..rows.rows.len() {
            length += answer::kv_length(self.row_length(rows, at, &mut buffer).await?);
            self.breathe(at).await?;
            let (next, is_last) = (at + 1, at + 1 == rows.rows.len());
            if !is_last && next - first >= API_STREAM_ROWS_MIN && length >= chunk_bytes / 2 {
                self.send_chunk(&[], rows, first..next, length, &[]).await?;
                (first, length) = (next, 0);
            }
        }
        let (mut head, mut end) = (Vec::new(), Vec::new());
        answer::put_header(&mut head, header);
        answer::put_range_end(&mut end, rows.more, rows.count);
        self.send_chunk(&head, rows, first..rows.rows.len(), length, &end)
            .await?;
        self.send(|net, call| net.finish(call, &Status::OK))
    }

    /// Sends a `RangeStreamResponse` of some rows, whose encoded length is `length`, between `head` and `end`.
    async fn send_chunk(
        &self,
        head: &[u8],
        rows: &RangeRows,
        which: Range<usize>,
        length: usize,
        end: &[u8],
    ) -> Result<(), Ended> {
        let mut begin = vec![0x0a];
        let response = head.len() + length + end.len();
        crate::mvcc::record::put_varint(&mut begin, response as u64);
        let length = begin.len() + response;
        begin.extend_from_slice(head);
        self.wait_for_room().await?;
        self.send(|net, call| net.begin_message(call, length))?;
        let method = super::method::Method::RangeStream;
        self.connections.with(|api, _| api.count_streamed(method, length));
        self.send_rows(begin, rows, which, end).await
    }

    /// Sends the rest of a message that was begun: `begin`, some rows, `end`. While the caller takes nothing, no row is
    /// held in memory.
    async fn send_rows(&self, begin: Vec<u8>, rows: &RangeRows, which: Range<usize>, end: &[u8]) -> Result<(), Ended> {
        let mut buffer = Vec::new();
        let mut part = begin;
        self.wait_for_room().await?;
        for at in which {
            self.with_row(rows, at, &mut buffer, |row| answer::put_kv(&mut part, row))
                .await?;
            if part.len() >= API_PART_BYTES {
                let full = std::mem::take(&mut part);
                self.send(|net, call| net.send_part(call, full.into()))?;
                serve::yield_now().await;
                self.wait_for_room().await?;
            }
        }
        part.extend_from_slice(end);
        self.send(|net, call| net.send_part(call, part.into()))
    }

    /// Lets others work every so many rows.
    async fn breathe(&self, at: usize) -> Result<(), Ended> {
        if at % API_SLICE_ROWS == API_SLICE_ROWS - 1 {
            serve::yield_now().await;
            self.check_open()?;
        }
        Ok(())
    }

    pub(super) fn send_whole(&self, message: Bytes) -> Result<(), Ended> {
        let length = message.len();
        self.send(|net, call| net.send_message(call, message))?;
        self.connections.with(|api, _| api.count_sent_bytes(length));
        self.send(|net, call| net.finish(call, &Status::OK))
    }

    fn send(
        &self,
        act: impl FnOnce(&mut Net, crate::net::Call) -> Result<(), crate::http::SendError>,
    ) -> Result<(), Ended> {
        let call = self.caller.call;
        self.connections.with(|_, net| act(net, call)).map_err(|_| Ended::Gone)
    }

    async fn read_txn(&self, request: &TxnRequest, identity: answer::Identity) -> Result<Bytes, Ended> {
        let mut records = Records::resident(&self.view);
        let mut missing = {
            let pinned = self.index.pin();
            records.missing(plan::needed_by_txn(request, &pinned, self.view.revision))
        };
        records.fetch(&self.pages, std::mem::take(&mut missing)).await?;
        let mut comparing = Comparing::new(request);
        while !comparing.is_done() {
            comparing.step(&self.index.pin(), self.view.revision);
            serve::yield_now().await;
            self.check_open()?;
        }
        let decided = plan::decide_compared(request, &comparing, &self.index.pin(), readable(&self.view), &records)
            .map_err(|error| Ended::Failed(error::status(&error)))?;
        let mut found = Vec::with_capacity(decided.ranges.len());
        for mut run in decided.ranges {
            while !run.step(&self.index.pin()) {
                serve::yield_now().await;
                self.check_open()?;
            }
            found.push(run);
        }
        loop {
            records.fetch(&self.pages, std::mem::take(&mut missing)).await?;
            self.check_open()?;
            let pinned = self.index.pin();
            let mut runs = Runs {
                keys: &pinned,
                records: &records,
                missing: Vec::new(),
            };
            let ranges: Vec<_> = found.iter().map(|run| runs.finish(run.clone())).collect();
            missing = runs.missing;
            if missing.is_empty() {
                let header = identity.header(decided.revision, self.view.term);
                let response = answer::read_txn_response(header, decided.succeeded, &ranges, &records);
                return Ok(answer::encode(&response.expect("nothing is missing")));
            }
        }
    }
}
