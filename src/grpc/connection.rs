//! One gRPC connection of a server: calls over [`http::Connection`](crate::http::Connection).
//!
//! Violations of the protocol are answered here, in grpc-go's words, and never reach the services. Everything else
//! about bytes, time, output and closing is the `http` connection's; see there for the driver's turn.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::CallId;
use super::message::{MessageReader, PREFIX_LENGTH, message_prefix};
use super::request::{Request, Subtype, Verdict, judge, not_grpc};
use super::status::{Code, Status, encode_message};
use crate::http::{self, CloseReason, ErrorCode, Field, SendError};
use crate::limits::GRPC_ASSEMBLY_BYTES;

/// Settings of a server's gRPC connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest message accepted, in bytes.
    pub max_message: usize,
    /// Whether requests that are not gRPC are handed on as [`Event::Http`] instead of being refused.
    pub plain_http: bool,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call began. [`Connection::request`] shows path and metadata until the next call of `next_event`. `timeout`
    /// counts from now; keeping it is the receiver's business.
    Started { call: CallId, timeout: Option<Duration> },
    /// A whole message. With `last` the caller has sent all it had to; no `HalfClosed` follows. The bytes may share the
    /// driver's receive buffer: copy them to keep them for long.
    Message { call: CallId, message: Bytes, last: bool },
    /// The caller has sent all it had to, and it did not end with a message.
    HalfClosed { call: CallId },
    /// The caller has sent all it had to, and the last message is not whole. Finish the call with
    /// [`Status::cut_off_unary`] or [`Status::cut_off_stream`].
    CutOff { call: CallId },
    /// The call is over without [`Connection::finish`]: canceled by the caller, broken, stalled, or gone with its
    /// connection. Nothing more can be sent.
    Cancelled { call: CallId },
    /// There is room again after [`Connection::notify_writable`].
    Writable { call: CallId },
    /// An event of a request that is not gRPC; answer it through [`Connection::http`].
    Http(http::Event),
}

/// A call's own state, found by its stream's slot.
#[derive(Debug)]
struct Call {
    id: u64,
    reader: MessageReader,
    subtype: Subtype,
    /// `grpc-encoding`, kept only to name it when a compressed message comes.
    encoding: Vec<u8>,
    is_grpc: bool,
    header_sent: bool,
    paused: bool,
    /// Whether what comes is thrown away.
    ignoring: bool,
    /// Bytes received while paused, not yet given back to the caller's window.
    owed: usize,
    /// Bytes of the message begun by [`Connection::begin_message`] that are still to come.
    message_left: usize,
}

/// DATA being cut into messages.
#[derive(Debug)]
struct Current {
    call: CallId,
    data: Bytes,
    end: bool,
}

/// One gRPC connection.
#[derive(Debug)]
pub struct Connection {
    http: http::Connection,
    config: Arc<Config>,
    calls: Vec<Option<Call>>,
    current: Option<Current>,
    /// Bytes of unfinished messages of all calls, and how many there may be.
    assembling: usize,
    assembly_max: usize,
}

impl Connection {
    /// Wraps a connection just accepted.
    pub fn new(http: http::Connection, config: Arc<Config>) -> Self {
        Self {
            http,
            config,
            calls: Vec::new(),
            current: None,
            assembling: 0,
            assembly_max: GRPC_ASSEMBLY_BYTES,
        }
    }

    /// The connection beneath, for timers, output, closing, and answers to requests that are not gRPC.
    pub fn http(&mut self) -> &mut http::Connection {
        &mut self.http
    }

    /// Takes bytes from the peer; see [`http::Connection::receive`].
    pub fn receive(&mut self, bytes: Bytes, now: Duration) {
        self.http.receive(bytes, now);
    }

    /// See [`http::Connection::take_output`].
    pub fn take_output(&mut self, spare: Vec<u8>, now: Duration) -> Vec<u8> {
        self.http.take_output(spare, now)
    }

    /// See [`http::Connection::closed`].
    pub fn closed(&self) -> Option<CloseReason> {
        self.http.closed()
    }

    /// The header list of the call last started.
    pub fn request(&self) -> Request<'_> {
        Request::new(self.http.request())
    }

    /// Says how many bytes of unfinished messages the connection may hold; the call that goes beyond it fails.
    pub fn set_assembly_max(&mut self, bytes: usize) {
        self.assembly_max = bytes;
    }

    /// Bytes that wait to be sent.
    pub fn unsent_bytes(&self) -> usize {
        self.http.unsent_bytes()
    }

    /// Bytes received that are not a whole message yet.
    pub fn unfinished_bytes(&self) -> usize {
        self.http.buffered_bytes() - self.http.unsent_bytes() + self.assembling
    }

    /// Whether what is sent on the call now leaves at once, as far as windows go.
    pub fn flows(&self, call: CallId) -> bool {
        self.http.flows(call)
    }

    /// Bytes held for the peer.
    pub fn buffered_bytes(&self) -> usize {
        self.http.buffered_bytes() + self.assembling
    }

    /// The next event; see [`http::Connection::next_event`].
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(current) = self.current.take()
                && let Some(event) = self.next_message(current)
            {
                return Some(event);
            }
            let event = self.http.next_event()?;
            if let Some(event) = self.translate(event) {
                return Some(event);
            }
        }
    }

    #[inline]
    fn translate(&mut self, event: http::Event) -> Option<Event> {
        match event {
            http::Event::Request { stream, end } => self.start(stream, end),
            http::Event::Data { stream, data, end } => {
                if !self.call(stream)?.is_grpc {
                    return Some(Event::Http(http::Event::Data { stream, data, end }));
                }
                self.current = Some(Current {
                    call: stream,
                    data,
                    end,
                });
                None
            }
            http::Event::Trailers { stream } => {
                if !self.call(stream)?.is_grpc {
                    return Some(Event::Http(event));
                }
                self.half_close(stream)
            }
            http::Event::Reset { stream, .. } => {
                let is_grpc = self.forget(stream)?.is_grpc;
                Some(if is_grpc {
                    Event::Cancelled { call: stream }
                } else {
                    Event::Http(event)
                })
            }
            http::Event::Writable { stream } => {
                let is_grpc = self.call(stream)?.is_grpc;
                Some(if is_grpc {
                    Event::Writable { call: stream }
                } else {
                    Event::Http(event)
                })
            }
        }
    }

    fn start(&mut self, call: CallId, end: bool) -> Option<Event> {
        let (subtype, timeout, encoding) = match judge(self.http.request()) {
            Verdict::Call {
                subtype,
                timeout,
                encoding,
            } => (subtype, timeout, encoding),
            Verdict::Refused {
                http_status,
                status,
                subtype,
            } => {
                self.send_status(call, Some((http_status, &subtype)), &status);
                return None;
            }
            Verdict::NotGrpc { .. } if self.config.plain_http => {
                self.remember(call, Subtype::None, Vec::new(), false);
                return Some(Event::Http(http::Event::Request { stream: call, end }));
            }
            Verdict::NotGrpc { content_type } => {
                self.send_status(call, Some((415, &Subtype::None)), &not_grpc(&content_type));
                return None;
            }
        };
        self.remember(call, subtype, encoding, true);
        if end {
            self.current = Some(Current {
                call,
                data: Bytes::new(),
                end: true,
            });
        }
        Some(Event::Started { call, timeout })
    }

    fn remember(&mut self, id: CallId, subtype: Subtype, encoding: Vec<u8>, is_grpc: bool) {
        if self.calls.len() <= id.slot() {
            self.calls.resize_with(id.slot() + 1, || None);
        }
        let call = Call {
            id: id.to_u64(),
            reader: MessageReader::default(),
            subtype,
            encoding,
            is_grpc,
            header_sent: false,
            paused: false,
            ignoring: false,
            owed: 0,
            message_left: 0,
        };
        // A stream that was ended below, through `http`, left its call behind.
        if let Some(stale) = self.calls[id.slot()].replace(call) {
            self.assembling -= stale.reader.held();
        }
    }

    #[inline]
    fn call(&mut self, id: CallId) -> Option<&mut Call> {
        self.calls
            .get_mut(id.slot())?
            .as_mut()
            .filter(|call| call.id == id.to_u64())
    }

    fn forget(&mut self, id: CallId) -> Option<Call> {
        self.call(id)?;
        let call = self.calls.get_mut(id.slot())?.take()?;
        self.assembling -= call.reader.held();
        if self.http.stream_count() == 0 && self.calls.len() > 64 {
            self.calls = Vec::new();
        }
        Some(call)
    }

    /// Cuts the next message off DATA. What is received goes back to the caller's window at once unless the call is
    /// paused: the bytes are the services' by now, or counted as unfinished.
    fn next_message(&mut self, mut current: Current) -> Option<Event> {
        let max = self.config.max_message;
        let id = current.call;
        let call = self.call(id)?;
        if call.ignoring {
            self.http.release(id, current.data.len());
            return None;
        }
        let (before, held) = (current.data.len(), call.reader.held());
        let result = call.reader.next(&mut current.data, max, &call.encoding);
        let (used, still_held) = (before - current.data.len(), call.reader.held());
        if call.paused {
            call.owed += used;
        } else if used > 0 {
            self.http.release(id, used);
        }
        self.assembling = self.assembling - held + still_held;
        match result {
            Ok(Some(message)) => {
                let last = current.end && current.data.is_empty();
                if !current.data.is_empty() {
                    self.current = Some(current);
                }
                Some(Event::Message {
                    call: id,
                    message,
                    last,
                })
            }
            Ok(None) if current.end => self.half_close(id),
            Ok(None) if self.assembling > self.assembly_max => {
                let text = "grpc: too many bytes of unfinished messages";
                self.break_off(id, &Status::new(Code::ResourceExhausted, text))
            }
            Ok(None) => None,
            Err(status) => self.break_off(id, &status),
        }
    }

    fn half_close(&mut self, id: CallId) -> Option<Event> {
        let call = self.call(id)?;
        if call.ignoring {
            return None;
        }
        if call.reader.may_end() {
            return Some(Event::HalfClosed { call: id });
        }
        Some(Event::CutOff { call: id })
    }

    /// Ends a call for the caller's fault.
    fn break_off(&mut self, id: CallId, status: &Status) -> Option<Event> {
        self.finish(id, status).ok()?;
        Some(Event::Cancelled { call: id })
    }

    /// Sends the response's header if it is not out: clients that wait for it before they send learn that the call
    /// stands.
    pub fn send_header(&mut self, call: CallId) -> Result<(), SendError> {
        let found = self.calls.get_mut(call.slot()).and_then(|call| call.as_mut());
        let found = found.filter(|found| found.id == call.to_u64()).ok_or(SendError::Gone)?;
        if found.header_sent {
            return Ok(());
        }
        found.header_sent = true;
        let content_type = found.subtype.content_type();
        self.http
            .respond(call, 200, &[Field::repeated("content-type", &content_type)], false)
    }

    /// Answers a unary call: header, one message, status OK. `write` appends the message of exactly `length` bytes.
    ///
    /// # Panics
    /// If `write` appends another number of bytes.
    pub fn reply(&mut self, call: CallId, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        self.send_message_with(call, length, write)?;
        self.finish(call, &Status::OK)
    }

    /// Sends a message without copying it until its turn comes.
    pub fn send_message(&mut self, call: CallId, message: Bytes) -> Result<(), SendError> {
        self.send_header(call)?;
        self.http
            .send_prefixed(call, &message_prefix(message.len()), message, false)
    }

    /// Sends a message of exactly `length` bytes, which `write` appends in place if it can go at once.
    ///
    /// # Panics
    /// If `write` appends another number of bytes.
    pub fn send_message_with(
        &mut self,
        call: CallId,
        length: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendError> {
        self.send_header(call)?;
        self.http.send_data_with(call, PREFIX_LENGTH + length, false, |out| {
            out.extend_from_slice(&message_prefix(length));
            write(out);
        })
    }

    /// Begins a message of `length` bytes that comes in parts, as room for it comes up.
    pub fn begin_message(&mut self, call: CallId, length: usize) -> Result<(), SendError> {
        self.send_header(call)?;
        self.http
            .send_data(call, Bytes::copy_from_slice(&message_prefix(length)), false)?;
        if let Some(found) = self.call(call) {
            assert_eq!(
                found.message_left,
                0,
                "message begun inside another on call {}",
                call.id()
            );
            found.message_left = length;
        }
        Ok(())
    }

    /// Sends the next part of the message begun last.
    ///
    /// # Panics
    /// If the parts are longer than the message.
    pub fn send_part(&mut self, call: CallId, part: Bytes) -> Result<(), SendError> {
        let found = self.call(call).ok_or(SendError::Gone)?;
        let left = found.message_left.checked_sub(part.len());
        found.message_left = left.unwrap_or_else(|| panic!("message on call {} longer than begun", call.id()));
        self.http.send_data(call, part, false)
    }

    /// Ends a call. Without a message sent before, the whole response is one header frame.
    pub fn finish(&mut self, call: CallId, status: &Status) -> Result<(), SendError> {
        let found = self.forget(call).ok_or(SendError::Gone)?;
        if found.message_left > 0 {
            // The caller would wait for the rest of the message; no status can be told any more.
            self.http.reset(call, ErrorCode::INTERNAL_ERROR);
            return Ok(());
        }
        let header = (!found.header_sent).then_some((200, &found.subtype));
        self.send_status(call, header, status);
        Ok(())
    }

    fn send_status(&mut self, call: CallId, header: Option<(u16, &Subtype)>, status: &Status) {
        let message = encode_message(&status.message);
        let fields = [
            Field {
                name: "grpc-status",
                value: status.code.digits().as_bytes(),
                repeated: status.code == Code::Ok,
            },
            Field::new("grpc-message", message.as_bytes()),
        ];
        let fields = &fields[..if message.is_empty() { 1 } else { 2 }];
        let sent = match header {
            None => self.http.send_trailers(call, fields),
            Some((http_status, subtype)) => {
                let content_type = subtype.content_type();
                let all = [
                    Field::repeated("content-type", &content_type),
                    fields[0],
                    fields[fields.len() - 1],
                ];
                self.http.respond(call, http_status, &all[..1 + fields.len()], true)
            }
        };
        // Gone means that the caller is, which its own event tells; the order is this file's.
        debug_assert!(!matches!(sent, Err(SendError::OutOfOrder(_))), "{sent:?}");
    }

    /// Ends a call without a status, for a caller that is not to be answered.
    pub fn cancel(&mut self, call: CallId, code: ErrorCode) {
        self.forget(call);
        self.http.reset(call, code);
    }

    /// While paused, a call's caller may send no more than its window; what was received is given back on resuming.
    pub fn set_paused(&mut self, call: CallId, paused: bool) {
        let Some(found) = self.call(call) else { return };
        found.paused = paused;
        let owed = if paused { 0 } else { std::mem::take(&mut found.owed) };
        if owed > 0 {
            self.http.release(call, owed);
        }
    }

    /// Throws away what the caller still sends, whatever it is, as grpc-go does once a unary call has its message. No
    /// event tells of it, nor that the caller has sent all.
    pub fn ignore_input(&mut self, call: CallId) {
        if let Some(found) = self.call(call) {
            found.ignoring = true;
        }
    }

    /// Bytes that are worth producing now; see [`http::Connection::capacity`].
    pub fn capacity(&self, call: CallId) -> usize {
        self.http.capacity(call)
    }

    /// Asks for one [`Event::Writable`]; see [`http::Connection::notify_writable`].
    pub fn notify_writable(&mut self, call: CallId) {
        self.http.notify_writable(call);
    }

    /// Whether the call can still be answered.
    pub fn is_open(&self, call: CallId) -> bool {
        let found = self.calls.get(call.slot()).and_then(|call| call.as_ref());
        found.is_some_and(|found| found.id == call.to_u64())
    }
}
