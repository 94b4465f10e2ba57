//! Long ranges: answers of any length, their rows found as the caller takes them.
//!
//! A unary answer begins with its length, so the range is walked twice: once for the length, once for the bytes. Rows
//! in key order are found in the index each time, a few at a time, and none are kept. Other orders have to hold all
//! rows, against the memory budget.

use super::answer::{self, Runs, row_bytes};
use super::confirm::Read;
use super::error;
use super::kv::readable;
use super::memory::Grant;
use super::method::Method;
use super::records::Records;
use super::service::{Api, Caller};
use super::tasks::{Ended, Pace, Task};
use crate::grpc::Status;
use crate::limits::{API_PART_BYTES, API_SLICE_ROWS, API_STREAM_ROWS_MIN, API_WALK_ROWS};
use crate::mvcc::record::{put_varint, varint_length};
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::net::Net;
use crate::proto::etcdserverpb::{RangeRequest, ResponseHeader};
use crate::reactor::serve;
use crate::state::depth::decode;
use crate::state::range::{Projection, RangeRows, RangeRun, Row};
use crate::state::validate;
use bytes::Bytes;
use std::collections::VecDeque;
use std::rc::Rc;

/// What sorting a row takes for a moment, in sizes of the row.
const SORTING: usize = 3;

/// The rows of a range in the order in which they are shown. A clone goes on from the same place.
#[derive(Clone)]
struct Walk {
    source: Source,
    projection: Projection,
    /// Found and not shown yet.
    batch: VecDeque<Row>,
}

#[derive(Clone)]
enum Source {
    /// The index, each time.
    Index { run: Box<RangeRun>, done: bool },
    /// All of them are here.
    Held { held: Rc<Held>, next: usize },
}

/// Rows that were sorted. Those whose records tell the rest are kept as their revisions.
struct Held {
    rows: Vec<Row>,
    revisions: Vec<Revision>,
    more: bool,
    count: i64,
    _memory: Grant,
}

impl Held {
    fn new(found: RangeRows, mut memory: Grant) -> Held {
        let RangeRows { rows, more, count, .. } = found;
        let by_record = found.projection != Projection::FromIndex;
        let (rows, revisions): (Vec<Row>, Vec<Revision>) = match by_record {
            true => (Vec::new(), rows.iter().map(|row| row.revision).collect()),
            false => (rows, Vec::new()),
        };
        let bytes = rows.iter().map(row_size).sum::<usize>() + size_of_val(&revisions[..]);
        memory.shrink(bytes);
        Held {
            rows,
            revisions,
            more,
            count,
            _memory: memory,
        }
    }

    /// Some rows from number `at` on.
    fn batch(&self, at: usize) -> VecDeque<Row> {
        let named = |revision: &Revision| Row {
            revision: *revision,
            create_revision: 0,
            version: 0,
            key: None,
        };
        let rows = self.rows.iter().skip(at).take(API_WALK_ROWS).cloned();
        let named = self.revisions.iter().skip(at).take(API_WALK_ROWS).map(named);
        rows.chain(named).collect()
    }
}

/// What a row takes in memory, its key included.
fn row_size(row: &Row) -> usize {
    size_of::<Row>() + row.key.as_ref().map_or(0, |key| key.len())
}

/// A part of a walk that was measured.
struct Measured {
    rows: usize,
    /// Bytes of the rows in a `RangeResponse`.
    length: usize,
    /// What is told at the end of a range, more and count, if nothing follows.
    end: Option<(bool, i64)>,
}

impl Walk {
    /// More and count, at the end of the walk.
    fn summary(self) -> (bool, i64) {
        match self.source {
            Source::Index { run, .. } => {
                let found = run.finish(|_| &[]);
                (found.more, found.count)
            }
            Source::Held { held, .. } => (held.more, held.count),
        }
    }
}

/// Appends a row to a part if it is in memory and takes no more than `left` bytes.
fn put_resident(
    view: &View,
    row: &Row,
    projection: Projection,
    buffer: &mut Vec<u8>,
    left: usize,
    part: &mut Vec<u8>,
) -> bool {
    match row_bytes(row, projection, &Records::resident(view), buffer) {
        Some(bytes) if answer::kv_length(bytes.len()) <= left => {
            answer::put_kv(part, bytes);
            true
        }
        _ => false,
    }
}

impl Api {
    /// Goes on with a range that is long or needs the disk.
    pub(super) fn spawn_range(&mut self, net: &mut Net, caller: Caller, view: View, run: &RangeRun) {
        let (at_main, run) = (run.at_main(), run.afresh());
        let header = self.settings.identity.header(view.revision, view.term);
        self.run(net, caller, view, at_main, Pace::Long, move |task, view| async move {
            let walk = task.walk(run, view).await?;
            task.send_range(&header, walk).await
        });
    }

    pub(super) fn range_stream(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: RangeRequest = decode(message).map_err(|error| error::stream_status(&error))?;
        validate::check_range_stream(&request).map_err(|error| error::status(&error))?;
        if !request.serializable && self.others_decide() {
            self.confirm(net, Read::RangeStream { caller, request });
            return Ok(());
        }
        self.range_stream_now(net, caller, &request)
    }

    /// Answers a range by a stream from what is published.
    pub(super) fn range_stream_now(
        &mut self,
        net: &mut Net,
        caller: Caller,
        request: &RangeRequest,
    ) -> Result<(), Status> {
        let view = self.index.clone().pin().view().clone();
        let run = RangeRun::new(request, readable(&view)).map_err(|error| error::status(&error))?;
        let (at_main, run) = (run.at_main(), run.afresh());
        let header = self.settings.identity.header(view.revision, view.term);
        let chunk_bytes = self.settings.max_request_bytes / 2;
        self.run(net, caller, view, at_main, Pace::Long, move |task, view| async move {
            let walk = task.walk(run, view).await?;
            task.send_stream(&header, walk, chunk_bytes).await
        });
        Ok(())
    }
}

impl Task {
    async fn walk(&self, run: RangeRun, view: View) -> Result<Walk, Ended> {
        let projection = run.projection();
        let source = if run.is_in_key_order() {
            Source::Index {
                run: Box::new(run),
                done: false,
            }
        } else {
            let mut memory = self.grant();
            let found = self
                .find(&view, run, &mut Records::resident(&view), &mut memory)
                .await?;
            let held = Rc::new(Held::new(found, memory));
            Source::Held { held, next: 0 }
        };
        let batch = VecDeque::new();
        Ok(Walk {
            source,
            projection,
            batch,
        })
    }

    /// All rows of a range, sorted and cut, and what they take held.
    pub(super) async fn find(
        &self,
        view: &View,
        mut run: RangeRun,
        records: &mut Records<'_>,
        grant: &mut Grant,
    ) -> Result<RangeRows, Ended> {
        loop {
            let before = run.rows().len();
            let done = run.step_within(&self.index.pin(), API_SLICE_ROWS);
            let bytes: usize = run.rows()[before..].iter().map(row_size).sum();
            self.grow(grant, SORTING * bytes).await?;
            serve::yield_now().await;
            self.check_open()?;
            if done {
                break;
            }
        }
        if run.needs_values() {
            let missing = records.missing(run.rows().iter().map(|row| row.revision));
            self.fetch(view, records, missing, grant).await?;
        }
        let pinned = self.index.pin();
        Ok(Runs {
            keys: &pinned,
            records,
            missing: Vec::new(),
        }
        .finish(run))
    }

    /// The next row. Yields when it has to look for more.
    async fn next_row(&self, walk: &mut Walk) -> Result<Option<Row>, Ended> {
        loop {
            if let Some(row) = walk.batch.pop_front() {
                return Ok(Some(row));
            }
            match &mut walk.source {
                Source::Index { done: true, .. } => return Ok(None),
                Source::Index { run, done } => {
                    *done = run.step_within(&self.index.pin(), API_WALK_ROWS);
                    walk.batch = run.take_rows().into();
                }
                Source::Held { held, next } => {
                    walk.batch = held.batch(*next);
                    if walk.batch.is_empty() {
                        return Ok(None);
                    }
                    *next += walk.batch.len();
                }
            }
            serve::yield_now().await;
            self.check_open()?;
        }
    }

    /// Hands the encoded row to `take`, wherever it is.
    async fn with_row<R>(
        &self,
        view: &View,
        row: &Row,
        projection: Projection,
        buffer: &mut Vec<u8>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Ended> {
        let mut records = Records::resident(view);
        if projection != Projection::FromIndex && records.bytes(row.revision).is_none() {
            records.fetch(&self.pages, vec![row.revision]).await?;
        }
        let bytes = row_bytes(row, projection, &records, buffer);
        Ok(take(bytes.expect("fetched")))
    }

    /// The encoded length of a row, without reading its value.
    async fn row_length(
        &self,
        view: &View,
        row: &Row,
        projection: Projection,
        buffer: &mut Vec<u8>,
    ) -> Result<usize, Ended> {
        match row_bytes(row, projection, &Records::resident(view), buffer) {
            Some(bytes) => Ok(bytes.len()),
            None => {
                let with_value = projection == Projection::Record;
                Ok(self.pages.record_length(view, row.revision, with_value).await?)
            }
        }
    }

    /// Walks to the end, or as far as a chunk goes: until it has `chunk_bytes` and enough rows, and another follows.
    async fn measure(&self, mut walk: Walk, chunk_bytes: usize) -> Result<Measured, Ended> {
        let (mut rows, mut length) = (0, 0);
        let (mut view, mut buffer) = (None, Vec::new());
        loop {
            if walk.batch.is_empty() {
                view = None;
            }
            let Some(row) = self.next_row(&mut walk).await? else {
                let end = Some(walk.summary());
                return Ok(Measured { rows, length, end });
            };
            if rows >= API_STREAM_ROWS_MIN && length >= chunk_bytes {
                return Ok(Measured {
                    rows,
                    length,
                    end: None,
                });
            }
            let view = view.get_or_insert_with(|| self.view());
            length += answer::kv_length(self.row_length(view, &row, walk.projection, &mut buffer).await?);
            rows += 1;
        }
    }

    /// Sends parts of the message that was begun, of `length` bytes: `head`, so many rows of the walk, `tail`. Nothing
    /// is made before it can be sent, and before its memory is reserved.
    async fn send_rows(
        &self,
        walk: &mut Walk,
        rows: usize,
        length: usize,
        head: Vec<u8>,
        tail: &[u8],
    ) -> Result<(), Ended> {
        let (mut part, mut buffer, mut view) = (head, Vec::new(), None);
        let mut room = self.reserve(API_PART_BYTES.min(length)).await?;
        for _ in 0..rows {
            if walk.batch.is_empty() {
                view = None;
            }
            let Some(row) = self.next_row(walk).await? else {
                tracing::error!(
                    rows,
                    "a range found fewer rows when it was walked again at the same revision"
                );
                return Err(Ended::Failed(error::expired()));
            };
            let seen = view.get_or_insert_with(|| self.view());
            let left = room.bytes().saturating_sub(part.len());
            if put_resident(seen, &row, walk.projection, &mut buffer, left, &mut part) {
                continue;
            }
            let length = self.row_length(seen, &row, walk.projection, &mut buffer).await?;
            let length = answer::kv_length(length);
            if length > left {
                // No view is held while the caller is waited for.
                view = None;
                let full = std::mem::take(&mut part);
                self.send(|net, call| net.send_part(call, full.into()))?;
                drop(room);
                serve::yield_now().await;
                room = self.reserve(length.max(API_PART_BYTES)).await?;
                part.reserve(room.bytes());
            }
            let seen = view.get_or_insert_with(|| self.view());
            self.with_row(seen, &row, walk.projection, &mut buffer, |row| {
                answer::put_kv(&mut part, row)
            })
            .await?;
        }
        part.extend_from_slice(tail);
        self.send(|net, call| net.send_part(call, part.into()))
    }

    /// Sends a `RangeResponse`.
    async fn send_range(&self, header: &ResponseHeader, mut walk: Walk) -> Result<(), Ended> {
        let Measured { rows, length, end } = self.measure(walk.clone(), usize::MAX).await?;
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        answer::put_header(&mut head, header);
        if let Some((more, count)) = end {
            answer::put_range_end(&mut tail, more, count);
        }
        let length = head.len() + length + tail.len();
        self.send(|net, call| net.begin_message(call, length))?;
        self.connections.with(|api, _| api.count_sent_bytes(length));
        self.send_rows(&mut walk, rows, length, head, &tail).await?;
        self.finish()
    }

    /// Sends the chunks of a `RangeStream` (`etcd-surface` 4.3): only the last has header, more and count.
    async fn send_stream(&self, header: &ResponseHeader, mut walk: Walk, chunk_bytes: usize) -> Result<(), Ended> {
        loop {
            let Measured { rows, length, end } = self.measure(walk.clone(), chunk_bytes).await?;
            let (mut first, mut tail) = (Vec::new(), Vec::new());
            if let Some((more, count)) = end {
                answer::put_header(&mut first, header);
                answer::put_range_end(&mut tail, more, count);
            }
            // `RangeStreamResponse` has the response as its field 1.
            let response = first.len() + length + tail.len();
            let mut head = vec![0x0a];
            put_varint(&mut head, response as u64);
            head.extend_from_slice(&first);
            let length = 1 + varint_length(response as u64) + response;
            self.wait_for_room().await?;
            self.send(|net, call| net.begin_message(call, length))?;
            self.connections
                .with(|api, _| api.count_streamed(Method::RangeStream, length));
            self.send_rows(&mut walk, rows, length, head, &tail).await?;
            if end.is_some() {
                return self.finish();
            }
        }
    }
}
