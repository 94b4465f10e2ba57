//! The sending half of a connection: responses, queues, and the scheduler that shares the windows out.

use std::time::Duration;

use bytes::Bytes;

use super::{Connection, Event};
use crate::http::frame::{self, ErrorCode, FrameHeader, HEADER_LENGTH, flag, kind};
use crate::http::hpack::Field;
use crate::http::stream::{Local, OwnedField, OwnedFields, StreamKey, Tail};
use crate::limits::{
    HTTP_CONNECTION_QUEUE_BYTES, HTTP_DIRECT_BYTES, HTTP_FRAME_BYTES, HTTP_OUTPUT_BYTES, HTTP_PINGS_PER_DATA,
    HTTP_RESET_MEMORY, HTTP_STREAM_QUEUE_BYTES, HTTP_WINDOW_UPDATES_PER_DATA, HTTP_WINDOW_UPDATES_PER_STREAM,
};

/// Room at which a waiting producer is woken, in bytes, unless all the room there is is less.
const WORTHWHILE_BYTES: usize = 4_096;

/// Why something cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The stream was reset, or its response is complete.
    #[error("stream is gone")]
    Gone,
    /// A second response header, data before the header, or anything behind the end.
    #[error("response out of order: {0}")]
    OutOfOrder(&'static str),
}

/// The DATA frame written last, which is in the output still.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastData {
    stream: u32,
    /// Where its header starts.
    start: usize,
    /// Where its content ends, once it is all written.
    end: usize,
}

impl Connection {
    /// Sends the response's header; with `end` it is the whole response.
    pub fn respond(
        &mut self,
        stream: StreamKey,
        status: u16,
        fields: &[Field<'_>],
        end: bool,
    ) -> Result<(), SendError> {
        let found = self.streams.get_mut(stream).ok_or(SendError::Gone)?;
        if found.local != Local::Silent {
            return Err(SendError::OutOfOrder("header sent twice"));
        }
        found.local = if end { Local::Ended } else { Local::Open };
        let start = self.begin_headers(stream.id(), end);
        self.encoder.encode_response(status, fields, &mut self.output);
        self.finish_headers(start);
        if end {
            self.complete(stream);
        }
        Ok(())
    }

    /// Sends a part of the body: at once if it is small and its windows are open, else in its turn. `data` is not
    /// copied before its turn. See [`capacity`](Self::capacity) for how much is wise.
    pub fn send_data(&mut self, stream: StreamKey, data: Bytes, end: bool) -> Result<(), SendError> {
        self.send_prefixed(stream, &[], data, end)
    }

    /// Like [`send_data`](Self::send_data), with a few bytes of framing ahead of `data`.
    pub fn send_prefixed(&mut self, stream: StreamKey, prefix: &[u8], data: Bytes, end: bool) -> Result<(), SendError> {
        self.check_open(stream)?;
        let length = prefix.len() + data.len();
        if length == 0 && !end {
            return Ok(());
        }
        if self.is_direct(stream, length) {
            self.write_data_header(stream, length, end);
            self.output.extend_from_slice(prefix);
            self.output.extend_from_slice(&data);
            if end {
                self.complete(stream);
            }
        } else {
            if !prefix.is_empty() {
                self.enqueue(stream, Bytes::copy_from_slice(prefix), Tail::None);
            }
            self.enqueue(stream, data, if end { Tail::EndStream } else { Tail::None });
        }
        Ok(())
    }

    /// Like [`send_data`](Self::send_data), for a body that is yet to be written: `write` appends exactly `length`
    /// bytes to the buffer it is given, in place if they can go at once.
    ///
    /// # Panics
    /// If `write` appends another number of bytes, which would break the framing.
    pub fn send_data_with(
        &mut self,
        stream: StreamKey,
        length: usize,
        end: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendError> {
        self.check_open(stream)?;
        if length == 0 {
            return self.send_prefixed(stream, &[], Bytes::new(), end);
        }
        if self.is_direct(stream, length) {
            self.write_data_header(stream, length, end);
            let start = self.output.len();
            write(&mut self.output);
            assert_eq!(self.output.len() - start, length, "body of stream {}", stream.id());
            if end {
                self.complete(stream);
            }
        } else {
            let mut body = Vec::with_capacity(length);
            write(&mut body);
            assert_eq!(body.len(), length, "body of stream {}", stream.id());
            self.enqueue(
                stream,
                Bytes::from(body),
                if end { Tail::EndStream } else { Tail::None },
            );
        }
        Ok(())
    }

    /// Ends the response with trailers, behind the data already queued.
    pub fn send_trailers(&mut self, stream: StreamKey, fields: &[Field<'_>]) -> Result<(), SendError> {
        self.check_open(stream)?;
        let found = self.streams.get_mut(stream).ok_or(SendError::Gone)?;
        found.local = Local::Ended;
        if found.has_pending() {
            let own = |field: &Field<'_>| OwnedField {
                name: field.name.into(),
                value: field.value.into(),
                repeated: field.repeated,
            };
            found.tail = Tail::Trailers(OwnedFields(fields.iter().map(own).collect()));
            return Ok(());
        }
        self.write_trailers(stream, fields);
        Ok(())
    }

    /// Ends the stream at once, dropping what is queued. Nothing happens if it is gone.
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode) {
        if self.is_open(stream) {
            self.remove(stream);
            self.write_reset(stream.id(), code);
        }
    }

    /// Bytes that a producer may queue now without filling memory ahead of the peer's windows. Sending more is no
    /// error, but it is held in memory.
    pub fn capacity(&self, stream: StreamKey) -> usize {
        let Some(found) = self.streams.get(stream) else {
            return 0;
        };
        let own = found
            .send
            .available()
            .min(HTTP_STREAM_QUEUE_BYTES)
            .saturating_sub(found.queued);
        let shared = self
            .send
            .available()
            .min(HTTP_CONNECTION_QUEUE_BYTES)
            .saturating_sub(self.queued);
        own.min(shared)
    }

    /// Whether what is sent on a stream now leaves at once: nothing waits ahead of it, and both windows are open.
    pub fn flows(&self, stream: StreamKey) -> bool {
        let Some(found) = self.streams.get(stream) else {
            return false;
        };
        let window = found.send.available().min(self.send.available());
        found.queued == 0 && window >= WORTHWHILE_BYTES && self.output.len() < HTTP_OUTPUT_BYTES
    }

    /// Bytes in the stream's queue.
    pub fn queued(&self, stream: StreamKey) -> usize {
        self.streams.get(stream).map_or(0, |found| found.queued)
    }

    /// Asks for one [`Event::Writable`] as soon as there is [`capacity`](Self::capacity) worth producing for.
    pub fn notify_writable(&mut self, stream: StreamKey) {
        let now = self.now;
        if let Some(found) = self.streams.get_mut(stream) {
            if !std::mem::replace(&mut found.wants_writable, true) {
                if !found.has_pending() {
                    found.progressed = now;
                }
                self.waiting.push(stream);
            }
            self.recheck_waiting = true;
        }
    }

    pub(super) fn wake_producers(&mut self) {
        self.recheck_waiting = false;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|stream| {
            let capacity = self.capacity(*stream);
            let Some(found) = self.streams.get_mut(*stream) else {
                return false;
            };
            if capacity < WORTHWHILE_BYTES && (capacity == 0 || found.queued > 0) {
                return true;
            }
            found.wants_writable = false;
            self.pending.push_back(Event::Writable { stream: *stream });
            false
        });
        self.waiting = waiting;
    }

    /// Whether [`take_output`](Self::take_output) would give anything.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty() || (self.send.available() > 0 && !self.ready.is_empty())
    }

    /// Everything to send now, `spare` (an empty buffer) taking its place. Bulk data is scheduled here, up to the
    /// output bound. Producers that wait for room may get an event by it, and parsing that output had stopped goes
    /// on: ask [`next_event`](Self::next_event) again.
    pub fn take_output(&mut self, spare: Vec<u8>, now: Duration) -> Vec<u8> {
        debug_assert!(spare.is_empty());
        self.now = now;
        self.schedule();
        self.control_bytes = 0;
        self.last_data = None;
        self.recheck_waiting |= !self.waiting.is_empty();
        std::mem::replace(&mut self.output, spare)
    }

    /// Gives each ready stream its turn, one frame at a time.
    fn schedule(&mut self) {
        while self.output.len() < HTTP_OUTPUT_BYTES {
            let Some(key) = self.ready.pop_front() else { return };
            let Some(stream) = self.streams.get_mut(key) else {
                continue;
            };
            stream.is_ready = false;
            let window = stream.send.available().min(self.send.available());
            let length = stream.queued.min(window).min(HTTP_FRAME_BYTES);
            let last = length == stream.queued;
            if length == 0 && !last {
                if stream.send.available() > 0 {
                    // The connection's window is shut: nobody's turn moves.
                    stream.is_ready = true;
                    return self.ready.push_front(key);
                }
                continue;
            }
            stream.progressed = self.now;
            let end = last && matches!(stream.tail, Tail::EndStream);
            if length > 0 || end {
                self.queued -= length;
                self.write_data_header(key, length, end);
                if let Some(stream) = self.streams.get_mut(key) {
                    stream.dequeue(length, &mut self.output);
                }
            }
            self.after_turn(key, last, end);
        }
    }

    fn after_turn(&mut self, key: StreamKey, last: bool, end: bool) {
        if end {
            return self.complete(key);
        }
        if !last {
            return self.make_ready(key);
        }
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if let Tail::Trailers(fields) = std::mem::replace(&mut stream.tail, Tail::None) {
            let borrowed: Vec<Field<'_>> = fields
                .0
                .iter()
                .map(|field| Field {
                    name: &field.name,
                    value: &field.value,
                    repeated: field.repeated,
                })
                .collect();
            self.write_trailers(key, &borrowed);
        }
    }

    /// Puts a stream that can send in line.
    pub(super) fn make_ready(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(key)
            && stream.is_sendable()
            && !std::mem::replace(&mut stream.is_ready, true)
        {
            self.ready.push_back(key);
        }
    }

    fn check_open(&self, stream: StreamKey) -> Result<(), SendError> {
        match self.streams.get(stream).ok_or(SendError::Gone)?.local {
            Local::Open => Ok(()),
            Local::Silent => Err(SendError::OutOfOrder("no header yet")),
            Local::Ended => Err(SendError::OutOfOrder("response has ended")),
        }
    }

    /// Whether data can be written straight to the output: in order, within both windows, not past others that wait
    /// for their turn unless it is small, and not onto output that is not read.
    #[inline]
    fn is_direct(&self, stream: StreamKey, length: usize) -> bool {
        let Some(found) = self.streams.get(stream) else {
            return false;
        };
        !found.has_pending()
            && length <= found.send.available().min(self.send.available())
            && length
                <= if self.ready.is_empty() {
                    HTTP_FRAME_BYTES
                } else {
                    HTTP_DIRECT_BYTES
                }
            && self.output.len() < HTTP_OUTPUT_BYTES
    }

    fn enqueue(&mut self, key: StreamKey, data: Bytes, tail: Tail) {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if !stream.has_pending() {
            stream.progressed = now;
        }
        self.queued += data.len();
        stream.enqueue(data);
        if matches!(tail, Tail::EndStream) {
            stream.local = Local::Ended;
            stream.tail = tail;
        }
        self.make_ready(key);
    }

    /// Writes the header of a DATA frame whose content follows, or makes the frame just written longer: parts of one
    /// stream that leave together share a frame. It saves bytes, and some clients end connections on which many small
    /// DATA frames come faster than they are read.
    #[inline]
    fn write_data_header(&mut self, key: StreamKey, length: usize, end: bool) {
        let flags = if end { flag::END_STREAM } else { 0 };
        let position = self.output().len();
        match &mut self.last_data {
            Some(last)
                if last.stream == key.id()
                    && last.end == position
                    && position + length <= last.start + HEADER_LENGTH + HTTP_FRAME_BYTES =>
            {
                last.end += length;
                let whole = (last.end - last.start - HEADER_LENGTH) as u16;
                self.output[last.start + 1..last.start + 3].copy_from_slice(&whole.to_be_bytes());
                self.output[last.start + 4] |= flags;
            }
            last => {
                let end = position + HEADER_LENGTH + length;
                *last = Some(LastData {
                    stream: key.id(),
                    start: position,
                    end,
                });
                FrameHeader {
                    length,
                    kind: kind::DATA,
                    flags,
                    stream: key.id(),
                }
                .write(&mut self.output);
            }
        }
        self.send.consume(length);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.send.consume(length);
        }
        self.guard.window_updates.give(HTTP_WINDOW_UPDATES_PER_DATA);
        self.guard.pings.give(HTTP_PINGS_PER_DATA);
        self.keepalive.on_sent();
    }

    fn write_trailers(&mut self, key: StreamKey, fields: &[Field<'_>]) {
        let start = self.begin_headers(key.id(), true);
        self.encoder.encode_trailers(fields, &mut self.output);
        self.finish_headers(start);
        self.complete(key);
    }

    /// Starts a HEADERS frame whose length is not known yet; returns where.
    #[inline]
    fn begin_headers(&mut self, id: u32, end: bool) -> usize {
        let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
        self.keepalive.on_sent();
        let output = self.output();
        let start = output.len();
        FrameHeader {
            length: 0,
            kind: kind::HEADERS,
            flags,
            stream: id,
        }
        .write(output);
        start
    }

    #[inline]
    fn finish_headers(&mut self, start: usize) {
        let length = self.output.len() - start - HEADER_LENGTH;
        if length > HTTP_FRAME_BYTES {
            return self.split_headers(start);
        }
        self.output[start + 1..start + 3].copy_from_slice(&(length as u16).to_be_bytes());
    }

    /// A block longer than a frame goes on in CONTINUATION frames.
    #[cold]
    fn split_headers(&mut self, start: usize) {
        let block = self.output.split_off(start + HEADER_LENGTH);
        let flags = self.output[start + 4];
        let stream = frame::read_u32(&self.output[start + 5..]);
        self.output.truncate(start);
        let mut parts = block.chunks(HTTP_FRAME_BYTES).enumerate().peekable();
        while let Some((number, part)) = parts.next() {
            let ends = if parts.peek().is_none() { flag::END_HEADERS } else { 0 };
            let (kind, kept) = if number == 0 {
                (kind::HEADERS, flags & !flag::END_HEADERS)
            } else {
                (kind::CONTINUATION, 0)
            };
            FrameHeader {
                length: part.len(),
                kind,
                flags: kept | ends,
                stream,
            }
            .write(&mut self.output);
            self.output.extend_from_slice(part);
        }
    }

    /// The response is out. A peer that has not finished its request is told not to bother.
    fn complete(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else { return };
        let remote_open = stream.remote_open;
        // Served requests earn their peer room for what comes late or is given up.
        self.guard.resets.give(1);
        self.guard.idle_frames.give(2);
        self.guard.window_updates.give(HTTP_WINDOW_UPDATES_PER_STREAM);
        if remote_open {
            self.write_reset(key.id(), ErrorCode::NO_ERROR);
        }
        self.remove(key);
    }

    pub(super) fn write_reset(&mut self, id: u32, code: ErrorCode) {
        frame::write_reset(self.output(), id, code);
        self.remember_reset(id);
        self.count_control(HEADER_LENGTH + 4);
    }

    pub(super) fn remember_reset(&mut self, id: u32) {
        if self.recently_reset.len() >= HTTP_RESET_MEMORY {
            self.recently_reset.pop_front();
        }
        self.recently_reset.push_back(id);
    }

    pub(super) fn write_window_update(&mut self, id: u32, increment: u32) {
        frame::write_window_update(self.output(), id, increment);
        self.count_control(HEADER_LENGTH + 4);
    }

    /// Answers a request whose header list was too large to be kept: 431.
    pub(super) fn refuse_large_request(&mut self, id: u32, end: bool) {
        let start = self.begin_headers(id, true);
        self.encoder.encode_response(431, &[], &mut self.output);
        self.finish_headers(start);
        if !end {
            self.write_reset(id, ErrorCode::NO_ERROR);
        }
    }
}
