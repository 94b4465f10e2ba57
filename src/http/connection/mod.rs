//! One HTTP/2 connection of a server as a state machine, RFC 9113.
//!
//! The driver's turn: [`receive`](Connection::receive) what the socket gave, take every event of
//! [`next_event`](Connection::next_event), answer whatever is ready, and send the buffer of
//! [`take_output`](Connection::take_output) once. Time is a [`Duration`] since any fixed start, handed in with each
//! call.
//!
//! Promises: a peer's fault becomes a stream error or a connection error by the RFC, never a panic; memory is bounded
//! by `limits`; after [`closed`](Connection::closed) has a reason, every stream that was open gets its
//! [`Event::Reset`]; replies small enough are written straight into the output buffer; everything else waits in its
//! stream's queue and leaves in fair turns, behind the control frames of the moment.

mod receive;
mod send;
mod timer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::config::Config;
use super::flow::{DEFAULT_WINDOW, ReceiveWindow, SendWindow};
use super::frame::{self, ErrorCode, setting};
use super::guard::Guard;
use super::headers::HeaderList;
use super::hpack::{Decoder, Encoder};
use super::input::Input;
use super::keepalive;
use super::stream::{StreamKey, Streams};
use crate::limits::{
    HTTP_CONNECTION_QUEUE_BYTES, HTTP_CONTROL_BYTES, HTTP_FRAME_BYTES, HTTP_HEADER_TABLE_BYTES, HTTP_OUTPUT_BYTES,
};

pub use send::SendError;

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request began. [`Connection::request`] shows its header list until the next call of `next_event`.
    Request {
        stream: StreamKey,
        /// The request has no body.
        end: bool,
    },
    /// A part of a request's body, never empty unless it is the end. The peer's window shrinks by it until
    /// [`Connection::release`]. The bytes may share the driver's receive buffer: copy them to keep them.
    Data { stream: StreamKey, data: Bytes, end: bool },
    /// The request ended with trailers, whose content is dropped.
    Trailers { stream: StreamKey },
    /// The stream is gone: reset by the peer, by its fault, for want of progress, or with its connection.
    Reset { stream: StreamKey, code: ErrorCode },
    /// There is room again after [`Connection::notify_writable`].
    Writable { stream: StreamKey },
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer broke a rule, or a limit.
    #[error("{code}: {reason}")]
    Fault { code: ErrorCode, reason: &'static str },
    /// A graceful shutdown came to its end.
    #[error("shut down with no stream left")]
    Drained,
    /// The peer did not answer a keepalive ping.
    #[error("no answer to a keepalive ping")]
    KeepaliveTimeout,
    /// The peer did not read what was sent.
    #[error("peer does not read")]
    Stalled,
    /// The peer never finished the preface.
    #[error("no HTTP/2 preface in time")]
    PrefaceTimeout,
    /// The driver said that the socket is gone.
    #[error("disconnected")]
    Disconnected,
}

/// A connection, or a stream of it, at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Stream { id: u32, code: ErrorCode },
    Connection { code: ErrorCode, reason: &'static str },
}

impl Fault {
    fn connection(code: ErrorCode, reason: &'static str) -> Self {
        Self::Connection { code, reason }
    }

    fn protocol(reason: &'static str) -> Self {
        Self::connection(ErrorCode::PROTOCOL_ERROR, reason)
    }

    fn calm(reason: &'static str) -> Self {
        Self::connection(ErrorCode::ENHANCE_YOUR_CALM, reason)
    }

    fn stream(id: u32, code: ErrorCode) -> Self {
        Self::Stream { id, code }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for the client's magic.
    Preface,
    /// The first frame has to be SETTINGS.
    FirstSettings,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    /// The first GOAWAY, which refuses nothing yet, is out since then.
    Announced(Duration),
    /// The second one is out: streams above the last are ignored.
    Final,
}

/// A header block that came in several frames, so far.
#[derive(Debug)]
struct Block {
    id: u32,
    end_stream: bool,
    continuations: u32,
    bytes: Vec<u8>,
}

/// One HTTP/2 connection.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    now: Duration,
    opened: Duration,
    phase: Phase,
    drain: Drain,
    closed: Option<CloseReason>,

    input: Input,
    decoder: Decoder,
    headers: HeaderList,
    block: Option<Box<Block>>,
    receive: ReceiveWindow,
    guard: Guard,
    keepalive: keepalive::State,

    streams: Streams,
    /// The highest stream the peer opened.
    last_stream: u32,
    /// The last stream named in the final GOAWAY, which no later one may exceed.
    announced_last_stream: u32,
    /// Streams that we reset, whose late frames are no fault.
    recently_reset: VecDeque<u32>,
    /// Events not caused by the frame at hand.
    pending: VecDeque<Event>,

    encoder: Encoder,
    output: Vec<u8>,
    last_data: Option<send::LastData>,
    /// Since when `output` holds something.
    output_since: Duration,
    /// Bytes of control frames in `output`.
    control_bytes: usize,
    send: SendWindow,
    /// The peer's SETTINGS_INITIAL_WINDOW_SIZE.
    peer_window: u32,
    /// Streams with something to send and a window to send it, in turn.
    ready: VecDeque<StreamKey>,
    /// Bytes in all streams' queues, and above how many new streams are refused.
    queued: usize,
    queue_max: usize,
    /// Streams whose producers wait for room.
    waiting: Vec<StreamKey>,
    /// Whether room may have come up for one of them.
    recheck_waiting: bool,
}

impl Connection {
    /// A connection just accepted; the server's SETTINGS are its first output.
    pub fn new(config: Arc<Config>, now: Duration) -> Self {
        let (stream_window, connection_window) = (config.stream_window, config.connection_window);
        for window in [stream_window, connection_window] {
            assert!(
                (DEFAULT_WINDOW..1 << 31).contains(&window),
                "receive window of {window} bytes"
            );
        }
        let mut connection = Self {
            now,
            opened: now,
            phase: Phase::Preface,
            drain: Drain::No,
            closed: None,
            input: Input::default(),
            decoder: Decoder::new(HTTP_HEADER_TABLE_BYTES),
            headers: HeaderList::new(config.max_header_list as usize),
            block: None,
            receive: ReceiveWindow::new(connection_window),
            guard: Guard::default(),
            keepalive: keepalive::State::default(),
            streams: Streams::default(),
            last_stream: 0,
            announced_last_stream: u32::MAX,
            recently_reset: VecDeque::new(),
            pending: VecDeque::new(),
            encoder: Encoder::default(),
            output: Vec::new(),
            last_data: None,
            output_since: now,
            control_bytes: 0,
            send: SendWindow::new(DEFAULT_WINDOW),
            peer_window: DEFAULT_WINDOW,
            ready: VecDeque::new(),
            queued: 0,
            queue_max: HTTP_CONNECTION_QUEUE_BYTES,
            waiting: Vec::new(),
            recheck_waiting: false,
            config,
        };
        connection.keepalive.on_read(now);
        connection.write_preface();
        connection
    }

    fn write_preface(&mut self) {
        let mut settings = vec![
            (setting::MAX_FRAME_SIZE, HTTP_FRAME_BYTES as u32),
            (setting::INITIAL_WINDOW_SIZE, self.config.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, self.config.max_header_list),
        ];
        if self.config.max_concurrent_streams != u32::MAX {
            settings.push((setting::MAX_CONCURRENT_STREAMS, self.config.max_concurrent_streams));
        }
        frame::write_settings(&mut self.output, &settings);
        let more = self.config.connection_window - DEFAULT_WINDOW;
        if more > 0 {
            frame::write_window_update(&mut self.output, 0, more);
        }
    }

    /// Takes bytes from the peer. Cheap; the work is done in [`next_event`](Self::next_event). Frames' payloads share
    /// `bytes`.
    pub fn receive(&mut self, bytes: Bytes, now: Duration) {
        self.now = now;
        self.keepalive.on_read(now);
        if self.closed.is_none() && !bytes.is_empty() {
            self.input.push(bytes);
        }
    }

    /// The next event, parsing what was received as far as needed. `None` when more bytes are wanted, or output is
    /// waiting above its bound ([`wants_read`](Self::wants_read)).
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.next_pending() {
                return Some(event);
            }
            if self.closed.is_some() || !self.wants_read() {
                return None;
            }
            match self.advance() {
                Ok(Step::Event(event)) => return Some(event),
                Ok(Step::Again) => {}
                Ok(Step::NeedBytes) => return None,
                Err(fault) => self.fail(fault),
            }
        }
    }

    fn next_pending(&mut self) -> Option<Event> {
        if self.recheck_waiting {
            self.wake_producers();
        }
        self.pending.pop_front()
    }

    /// The header list of the request last reported.
    pub fn request(&self) -> &HeaderList {
        &self.headers
    }

    /// Whether the driver should read from the socket: not while output waits above its bound, and not once closed.
    pub fn wants_read(&self) -> bool {
        self.closed.is_none() && self.output.len() < HTTP_OUTPUT_BYTES
    }

    /// Why the connection is over, if it is. The driver sends what output is left and closes the socket.
    pub fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// Number of open streams.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Whether `stream` is still open.
    pub fn is_open(&self, stream: StreamKey) -> bool {
        self.streams.get(stream).is_some()
    }

    /// Says above how many queued bytes new streams are refused; [`HTTP_CONNECTION_QUEUE_BYTES`] if nothing is said.
    pub fn set_queue_max(&mut self, bytes: usize) {
        self.queue_max = bytes;
    }

    /// Bytes held for the peer: received and not parsed, queued, or waiting to be sent.
    pub fn buffered_bytes(&self) -> usize {
        self.input.len() + self.queued + self.output.len()
    }

    /// Bytes that wait to be sent: for a window, or for the driver to take them.
    pub fn unsent_bytes(&self) -> usize {
        self.queued + self.output.len()
    }

    /// The socket is gone: no more output, and an [`Event::Reset`] for each open stream.
    pub fn disconnect(&mut self) {
        self.end(CloseReason::Disconnected);
        self.output = Vec::new();
        self.last_data = None;
    }

    /// Ends the connection at once with GOAWAY.
    pub fn close(&mut self, code: ErrorCode, reason: &'static str) {
        self.fail(Fault::connection(code, reason));
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Stream { id, code } => self.fail_stream(id, code),
            Fault::Connection { code, reason } => {
                if self.closed.is_none() {
                    let last_stream = self.last_stream.min(self.announced_last_stream);
                    frame::write_goaway(self.output(), last_stream, code, reason.as_bytes());
                    self.end(CloseReason::Fault { code, reason });
                }
            }
        }
    }

    /// A stream error that is the peer's fault.
    fn fail_stream(&mut self, id: u32, code: ErrorCode) {
        if !self.guard.resets.take(self.now) {
            return self.fail(Fault::calm("too many stream errors"));
        }
        if let Some(stream) = self.streams.find(id) {
            self.remove(stream);
            self.pending.push_back(Event::Reset { stream, code });
        }
        self.write_reset(id, code);
    }

    fn end(&mut self, reason: CloseReason) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(reason);
        self.input.clear();
        self.block = None;
        let code = match reason {
            CloseReason::Fault { code, .. } => code,
            _ => ErrorCode::CANCEL,
        };
        let streams = std::mem::take(&mut self.streams);
        self.pending
            .extend(streams.keys().map(|stream| Event::Reset { stream, code }));
        self.ready = VecDeque::new();
        self.waiting = Vec::new();
        self.queued = 0;
    }

    /// Takes a stream off the table, with all that is queued for it.
    fn remove(&mut self, stream: StreamKey) {
        if let Some(removed) = self.streams.remove(stream) {
            self.queued -= removed.queued;
            self.recheck_waiting |= !self.waiting.is_empty();
            if self.streams.is_empty() && self.drain == Drain::Final {
                self.end(CloseReason::Drained);
            }
        }
    }

    /// Takes note of a control frame of `length` bytes just written.
    fn count_control(&mut self, length: usize) {
        self.control_bytes += length;
        if self.control_bytes > HTTP_CONTROL_BYTES {
            self.fail(Fault::calm("control frames are not read"));
        }
    }

    /// The buffer to write to, having noted since when it holds something.
    #[inline]
    fn output(&mut self) -> &mut Vec<u8> {
        if self.output.is_empty() {
            self.output_since = self.now;
        }
        &mut self.output
    }
}

/// What one step of the parser came to.
enum Step {
    Event(Event),
    Again,
    NeedBytes,
}
