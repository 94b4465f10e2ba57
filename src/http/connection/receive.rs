//! The receiving half of a connection: one function per frame type.

use bytes::Bytes;

use super::{Block, Connection, Drain, Event, Fault, Phase, Step};
use crate::http::flow::{MAX_WINDOW, ReceiveWindow, SendWindow};
use crate::http::frame::{self, ErrorCode, FrameHeader, flag, kind, read_u32, setting};
use crate::http::stream::{Stream, StreamKey};
use crate::limits::{
    HTTP_CONTINUATION_FRAMES, HTTP_FRAME_BYTES, HTTP_HEADER_LIST_BYTES, HTTP_STREAMS, HTTP_WINDOW_UPDATES_PER_STREAM,
};

impl Connection {
    /// Handles one frame.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<Step, Fault> {
        if self.phase == Phase::Preface && !self.read_magic()? {
            return Ok(Step::NeedBytes);
        }
        let frame = self.input.next_frame(HTTP_FRAME_BYTES);
        let frame = frame.map_err(|_| Fault::connection(ErrorCode::FRAME_SIZE_ERROR, "frame too long"))?;
        let Some((header, payload)) = frame else {
            return Ok(Step::NeedBytes);
        };
        let event = self.on_frame(&header, payload)?;
        Ok(event.map_or(Step::Again, Step::Event))
    }

    fn read_magic(&mut self) -> Result<bool, Fault> {
        let seen = self.input.peek();
        let length = seen.len().min(frame::PREFACE.len());
        if seen[..length] != frame::PREFACE[..length] {
            return Err(Fault::protocol("no HTTP/2 preface"));
        }
        match self.input.take_exact(frame::PREFACE.len()) {
            Some(magic) if magic[..] == frame::PREFACE[..] => {
                self.phase = Phase::FirstSettings;
                Ok(true)
            }
            Some(_) => Err(Fault::protocol("no HTTP/2 preface")),
            None => Ok(false),
        }
    }

    #[inline]
    fn on_frame(&mut self, header: &FrameHeader, payload: Bytes) -> Result<Option<Event>, Fault> {
        if self.phase == Phase::FirstSettings {
            if header.kind != kind::SETTINGS || header.has(flag::ACK) {
                return Err(Fault::protocol("first frame is not SETTINGS"));
            }
            self.phase = Phase::Open;
        }
        if let Some(block) = &self.block
            && (header.kind != kind::CONTINUATION || header.stream != block.id)
        {
            return Err(Fault::protocol("header block interrupted"));
        }
        match header.kind {
            kind::DATA => self.on_data(header, payload),
            kind::HEADERS => self.on_headers(header, &payload),
            kind::CONTINUATION => self.on_continuation(header, &payload),
            kind::RST_STREAM => self.on_reset(header, &payload),
            kind::WINDOW_UPDATE => self.on_window_update(header, &payload).map(|()| None),
            kind::SETTINGS => self.on_settings(header, &payload).map(|()| None),
            kind::PING => self.on_ping(header, &payload).map(|()| None),
            kind::PRIORITY => self.on_priority(header, &payload).map(|()| None),
            kind::GOAWAY => self.on_goaway(header, &payload).map(|()| None),
            kind::PUSH_PROMISE => Err(Fault::protocol("PUSH_PROMISE from a client")),
            _ => self.on_idle_frame().map(|()| None),
        }
    }

    /// A frame that brings nothing.
    fn on_idle_frame(&mut self) -> Result<(), Fault> {
        if self.guard.idle_frames.take(self.now) {
            Ok(())
        } else {
            Err(Fault::calm("too many frames without progress"))
        }
    }

    /// Whether no stream of this id was ever open.
    fn is_idle(&self, id: u32) -> bool {
        id > self.last_stream || id.is_multiple_of(2)
    }

    fn on_headers(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<Event>, Fault> {
        if header.stream.is_multiple_of(2) {
            return Err(Fault::protocol("HEADERS on a stream that a client may not open"));
        }
        let range = frame::unpad(header, payload).ok_or(Fault::protocol("padding longer than the frame"))?;
        let mut fragment = &payload[range];
        if header.has(flag::PRIORITY) {
            let Some((priority, rest)) = fragment.split_first_chunk::<5>() else {
                return Err(Fault::connection(
                    ErrorCode::FRAME_SIZE_ERROR,
                    "HEADERS too short for its priority",
                ));
            };
            if read_u32(priority) & MAX_WINDOW == header.stream {
                // The block has to be decoded all the same, or the table would be lost: the simplest is to end it all.
                return Err(Fault::protocol("stream depends on itself"));
            }
            fragment = rest;
        }
        let end_stream = header.has(flag::END_STREAM);
        if header.has(flag::END_HEADERS) {
            return self.on_block(header.stream, end_stream, fragment);
        }
        let bytes = fragment.to_vec();
        self.block = Some(Box::new(Block {
            id: header.stream,
            end_stream,
            continuations: 0,
            bytes,
        }));
        Ok(None)
    }

    fn on_continuation(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<Event>, Fault> {
        let mut block = self
            .block
            .take()
            .ok_or(Fault::protocol("CONTINUATION without HEADERS"))?;
        block.continuations += 1;
        if block.continuations > HTTP_CONTINUATION_FRAMES {
            return Err(Fault::calm("header block in too many frames"));
        }
        if block.bytes.len() + payload.len() > HTTP_HEADER_LIST_BYTES {
            return Err(Fault::calm("header block too long"));
        }
        block.bytes.extend_from_slice(payload);
        if header.has(flag::END_HEADERS) {
            return self.on_block(block.id, block.end_stream, &block.bytes);
        }
        self.block = Some(block);
        Ok(None)
    }

    /// A whole header block. It is decoded whatever becomes of it, to keep the table in step.
    fn on_block(&mut self, id: u32, end: bool, block: &[u8]) -> Result<Option<Event>, Fault> {
        let decoded = self.decoder.decode(block, &mut self.headers);
        decoded.map_err(|_| Fault::connection(ErrorCode::COMPRESSION_ERROR, "header block cannot be decoded"))?;
        if id > self.last_stream {
            return self.on_request(id, end);
        }
        if let Some(stream) = self.streams.find(id) {
            return self.on_trailers(stream, end).map(Some);
        }
        if self.recently_reset.contains(&id) {
            return self.on_idle_frame().map(|()| None);
        }
        Err(Fault::connection(
            ErrorCode::STREAM_CLOSED,
            "HEADERS on a closed stream",
        ))
    }

    fn on_request(&mut self, id: u32, end: bool) -> Result<Option<Event>, Fault> {
        self.last_stream = id;
        if self.drain == Drain::Final {
            // Above the last stream announced: the peer opens it anew elsewhere.
            self.remember_reset(id);
            return self.on_idle_frame().map(|()| None);
        }
        self.headers.check_request();
        if self.headers.is_truncated() {
            self.refuse_large_request(id, end);
            return Ok(None);
        }
        if self.headers.malformed().is_some() {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        let limit = HTTP_STREAMS.min(self.config.max_concurrent_streams as usize);
        if self.streams.len() >= limit || self.queued > self.queue_max {
            return Err(Fault::stream(id, ErrorCode::REFUSED_STREAM));
        }
        let content_length = self.headers.content_length();
        if end && content_length.is_some_and(|length| length > 0) {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        let receive = ReceiveWindow::new(self.config.stream_window);
        let mut stream = Stream::new(id, SendWindow::new(self.peer_window), receive);
        stream.remote_open = !end;
        stream.content_left = content_length;
        let stream = self.streams.insert(stream);
        self.guard.window_updates.give(HTTP_WINDOW_UPDATES_PER_STREAM);
        Ok(Some(Event::Request { stream, end }))
    }

    fn on_trailers(&mut self, key: StreamKey, end: bool) -> Result<Event, Fault> {
        // The list no longer means what its block says: the check below marks it.
        self.decoder.forget();
        self.headers.check_trailers();
        let broken = self.headers.malformed().is_some() || self.headers.is_truncated() || !end;
        let id = key.id();
        let Some(stream) = self.streams.get_mut(key) else {
            return Err(Fault::stream(id, ErrorCode::INTERNAL_ERROR));
        };
        if !stream.remote_open {
            return Err(Fault::stream(id, ErrorCode::STREAM_CLOSED));
        }
        if broken || stream.content_left.is_some_and(|left| left > 0) {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        stream.remote_open = false;
        Ok(Event::Trailers { stream: key })
    }

    fn on_data(&mut self, header: &FrameHeader, payload: Bytes) -> Result<Option<Event>, Fault> {
        let id = header.stream;
        if self.is_idle(id) {
            return Err(Fault::protocol("DATA on an idle stream"));
        }
        let content = frame::unpad(header, &payload).ok_or(Fault::protocol("padding longer than the frame"))?;
        // The connection's window is given back at once: what is slow to be used holds up its own stream only.
        if !self.receive.receive(payload.len()) {
            return Err(Fault::connection(
                ErrorCode::FLOW_CONTROL_ERROR,
                "DATA beyond the connection's window",
            ));
        }
        if let Some(increment) = self.receive.release(payload.len()) {
            self.write_window_update(0, increment);
        }
        let Some(key) = self.streams.find(id) else {
            if self.recently_reset.contains(&id) {
                return self.on_idle_frame().map(|()| None);
            }
            return Err(Fault::stream(id, ErrorCode::STREAM_CLOSED));
        };
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.remote_open) else {
            return Err(Fault::stream(id, ErrorCode::STREAM_CLOSED));
        };
        if !stream.receive.receive(payload.len()) {
            return Err(Fault::stream(id, ErrorCode::FLOW_CONTROL_ERROR));
        }
        let end = header.has(flag::END_STREAM) || self.input.take_empty_end(id);
        if let Some(left) = &mut stream.content_left {
            match left.checked_sub(content.len() as u64) {
                Some(rest) if rest == 0 || !end => *left = rest,
                _ => return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR)),
            }
        }
        stream.remote_open = !end;
        let padding = payload.len() - content.len();
        if padding > 0 {
            self.release(key, padding);
        }
        if content.is_empty() && !end {
            let calm = self.guard.empty_data.take(self.now);
            return if calm {
                Ok(None)
            } else {
                Err(Fault::calm("too many empty DATA frames"))
            };
        }
        // The usual frame is handed on as it is, without another reference to its buffer.
        let data = if padding == 0 { payload } else { payload.slice(content) };
        Ok(Some(Event::Data { stream: key, data, end }))
    }

    /// Gives `length` bytes of received data back to the stream's window.
    pub fn release(&mut self, stream: StreamKey, length: usize) {
        let Some(found) = self.streams.get_mut(stream) else {
            return;
        };
        let increment = found.receive.release(length);
        if let Some(increment) = increment.filter(|_| found.remote_open) {
            self.write_window_update(stream.id(), increment);
        }
    }

    fn on_reset(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<Event>, Fault> {
        if payload.len() != 4 {
            return Err(Fault::connection(
                ErrorCode::FRAME_SIZE_ERROR,
                "RST_STREAM not of 4 bytes",
            ));
        }
        if self.is_idle(header.stream) {
            return Err(Fault::protocol("RST_STREAM on an idle stream"));
        }
        let Some(stream) = self.streams.find(header.stream) else {
            return self.on_idle_frame().map(|()| None);
        };
        if !self.guard.resets.take(self.now) {
            return Err(Fault::calm("too many resets"));
        }
        self.remove(stream);
        Ok(Some(Event::Reset {
            stream,
            code: ErrorCode(read_u32(payload)),
        }))
    }

    fn on_window_update(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Fault> {
        if payload.len() != 4 {
            return Err(Fault::connection(
                ErrorCode::FRAME_SIZE_ERROR,
                "WINDOW_UPDATE not of 4 bytes",
            ));
        }
        if !self.guard.window_updates.take(self.now) {
            return Err(Fault::calm("too many WINDOW_UPDATE frames"));
        }
        let (id, increment) = (header.stream, read_u32(payload) & MAX_WINDOW);
        if id == 0 {
            if increment == 0 {
                return Err(Fault::protocol("WINDOW_UPDATE by 0"));
            }
            self.recheck_waiting |= !self.waiting.is_empty();
            let overflow = Fault::connection(ErrorCode::FLOW_CONTROL_ERROR, "connection window above 2^31 - 1");
            return self.send.grow(increment).map_err(|_| overflow);
        }
        if self.is_idle(id) {
            return Err(Fault::protocol("WINDOW_UPDATE on an idle stream"));
        }
        let Some(key) = self.streams.find(id) else {
            return Ok(());
        };
        if increment == 0 {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        let Some(stream) = self.streams.get_mut(key) else {
            return Ok(());
        };
        stream
            .send
            .grow(increment)
            .map_err(|_| Fault::stream(id, ErrorCode::FLOW_CONTROL_ERROR))?;
        self.recheck_waiting |= stream.wants_writable;
        self.make_ready(key);
        Ok(())
    }

    fn on_settings(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Fault> {
        if header.stream != 0 {
            return Err(Fault::protocol("SETTINGS on a stream"));
        }
        let is_ack = header.has(flag::ACK);
        if !payload.len().is_multiple_of(6) || (is_ack && !payload.is_empty()) {
            return Err(Fault::connection(
                ErrorCode::FRAME_SIZE_ERROR,
                "SETTINGS of a wrong length",
            ));
        }
        if !self.guard.settings.take(self.now) {
            return Err(Fault::calm("too many SETTINGS frames"));
        }
        if is_ack {
            return Ok(());
        }
        for entry in payload.chunks_exact(6) {
            self.on_setting(u16::from_be_bytes([entry[0], entry[1]]), read_u32(&entry[2..]))?;
        }
        frame::write_settings_ack(self.output());
        self.count_control(frame::HEADER_LENGTH);
        Ok(())
    }

    /// SETTINGS_MAX_FRAME_SIZE is only checked: it cannot go below the size that the server uses.
    fn on_setting(&mut self, id: u16, value: u32) -> Result<(), Fault> {
        match id {
            setting::HEADER_TABLE_SIZE => self.encoder.set_table_size(value),
            setting::ENABLE_PUSH if value > 1 => return Err(Fault::protocol("ENABLE_PUSH is neither 0 nor 1")),
            setting::MAX_FRAME_SIZE if !(16_384..1 << 24).contains(&value) => {
                return Err(Fault::protocol("MAX_FRAME_SIZE out of range"));
            }
            setting::INITIAL_WINDOW_SIZE => {
                let overflow = Fault::connection(ErrorCode::FLOW_CONTROL_ERROR, "window above 2^31 - 1");
                if value > MAX_WINDOW {
                    return Err(overflow);
                }
                let change = i64::from(value) - i64::from(self.peer_window);
                self.peer_window = value;
                for (key, stream) in self.streams.iter_mut() {
                    stream.send.shift(change).map_err(|_| overflow)?;
                    if stream.is_sendable() && !std::mem::replace(&mut stream.is_ready, true) {
                        self.ready.push_back(key);
                    }
                }
                self.recheck_waiting |= !self.waiting.is_empty();
            }
            _ => {}
        }
        Ok(())
    }

    fn on_ping(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Fault> {
        if header.stream != 0 {
            return Err(Fault::protocol("PING on a stream"));
        }
        let Ok(payload) = <&[u8; 8]>::try_from(payload) else {
            return Err(Fault::connection(ErrorCode::FRAME_SIZE_ERROR, "PING not of 8 bytes"));
        };
        if !self.guard.pings.take(self.now) {
            return Err(Fault::calm("too many PING frames"));
        }
        if header.has(flag::ACK) {
            self.on_ping_answer(payload);
            return Ok(());
        }
        frame::write_ping(self.output(), flag::ACK, payload);
        self.count_control(frame::HEADER_LENGTH + 8);
        if self
            .keepalive
            .on_ping(self.now, !self.streams.is_empty(), &self.config.keepalive)
        {
            Ok(())
        } else {
            // The text is what clients look for to ping less often.
            Err(Fault::calm("too_many_pings"))
        }
    }

    fn on_priority(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Fault> {
        if header.stream == 0 {
            return Err(Fault::protocol("PRIORITY on the connection"));
        }
        let code = if payload.len() != 5 {
            ErrorCode::FRAME_SIZE_ERROR
        } else if read_u32(payload) & MAX_WINDOW == header.stream {
            ErrorCode::PROTOCOL_ERROR
        } else {
            return self.on_idle_frame();
        };
        if self.is_idle(header.stream) {
            // RST_STREAM must not be sent for an idle stream.
            return Err(Fault::connection(code, "bad PRIORITY on an idle stream"));
        }
        Err(Fault::stream(header.stream, code))
    }

    /// Refers to streams that a server would open, of which there are none; the peer closes when it is done.
    fn on_goaway(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Fault> {
        if header.stream != 0 {
            return Err(Fault::protocol("GOAWAY on a stream"));
        }
        if payload.len() < 8 {
            return Err(Fault::connection(ErrorCode::FRAME_SIZE_ERROR, "GOAWAY too short"));
        }
        self.on_idle_frame()
    }
}
