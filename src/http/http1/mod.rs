//! The server side of one HTTP/1.1 connection as a state machine, RFC 9112. [`client`] is the other side.
//!
//! For health checks, metrics, the JSON gateway and peers: one request at a time, the next one is not looked at before
//! the last is answered. Bodies come in parts and are bounded; a broken request is answered here and ends the
//! connection. Time is handed in.

mod body;
pub mod client;
mod request;

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::{HTTP_OUTPUT_BYTES, HTTP_STALL_SECONDS, HTTP1_HEAD_BYTES, HTTP1_HEAD_SECONDS};
use body::{Body, BodyError, Piece};
pub use request::Request;
use request::{HeadError, parse_head};

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request began.
    Request(Request),
    /// A part of its body, never empty.
    Body(Bytes),
    /// The request is whole.
    End,
}

/// Why a response cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error("no request waits for a response")]
    NoRequest,
    #[error("response has begun already")]
    Begun,
    #[error("response has not begun or is complete")]
    NotStreaming,
}

/// Where the response to the current request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    /// There is no request.
    Idle,
    /// The request has not been answered.
    Due,
    /// The header is out and the body comes in parts, in chunks or up to the end of the connection.
    Streaming { chunked: bool },
    /// The response is complete, the request's body is not.
    Done,
}

/// One HTTP/1.1 connection.
#[derive(Debug)]
pub struct Connection {
    input: BytesMut,
    /// Bytes of `input` known to hold no end of a head.
    scanned: usize,
    /// The rest of the current request's body, if there is any.
    body: Option<Body>,
    response: Response,
    max_body: u64,
    /// The current request is HEAD: no body in the response.
    is_head: bool,
    /// The current request is of HTTP/1.0: no chunks in the response.
    is_old: bool,
    keep_alive: bool,
    closed: bool,
    output: Vec<u8>,
    now: Duration,
    head_since: Duration,
    output_since: Duration,
}

impl Connection {
    /// A connection whose requests may have bodies of up to `max_body` bytes.
    pub fn new(max_body: u64, now: Duration) -> Self {
        Self {
            input: BytesMut::new(),
            scanned: 0,
            body: None,
            response: Response::Idle,
            max_body,
            is_head: false,
            is_old: false,
            keep_alive: true,
            closed: false,
            output: Vec::new(),
            now,
            head_since: now,
            output_since: now,
        }
    }

    /// Bounds the bodies of requests from here on, also that of the one whose head was just handed out.
    pub fn set_max_body(&mut self, max_body: u64) {
        self.max_body = max_body;
    }

    /// Takes bytes from the peer.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) {
        self.now = now;
        if self.closed {
            return;
        }
        if self.input.is_empty() {
            self.head_since = now;
        }
        self.input.extend_from_slice(bytes);
    }

    /// The next event. `None` when more bytes are wanted, or the response to the last request.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.closed {
            return None;
        }
        if self.body.is_some() {
            return self.next_piece();
        }
        if self.response != Response::Idle {
            return None;
        }
        while self.input.starts_with(b"\r\n") {
            self.input.advance(2);
            self.scanned = 0;
        }
        let Some(end) = self.find_head() else {
            if self.input.len() > HTTP1_HEAD_BYTES {
                self.refuse(431, "request header fields too large");
            }
            return None;
        };
        if end > HTTP1_HEAD_BYTES {
            self.refuse(431, "request header fields too large");
            return None;
        }
        let head = self.input.split_to(end).freeze();
        self.scanned = 0;
        self.begin(parse_head(&head))
    }

    /// The end of the head, looking at each byte once however slowly they come.
    fn find_head(&mut self) -> Option<usize> {
        let mut position = self.scanned.saturating_sub(2);
        while let Some(found) = memchr::memchr(b'\n', &self.input[position..]) {
            position += found + 1;
            match &self.input[position..] {
                [b'\n', ..] => return Some(position + 1),
                [b'\r', b'\n', ..] => return Some(position + 2),
                _ => {}
            }
        }
        self.scanned = self.input.len();
        None
    }

    fn begin(&mut self, head: Result<(Request, Body), HeadError>) -> Option<Event> {
        let (request, body) = match head {
            Ok(head) => head,
            Err(error) => {
                self.refuse(error.status, error.reason);
                return None;
            }
        };
        self.response = Response::Due;
        self.is_head = request.method == "HEAD";
        self.is_old = request.minor_version == 0;
        self.keep_alive = request.keep_alive;
        if request.expects_continue && !body.is_empty() && body.announced() <= self.max_body {
            self.output().extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.body = Some(body);
        Some(Event::Request(request))
    }

    fn next_piece(&mut self) -> Option<Event> {
        let body = self.body.as_mut()?;
        if body.announced() > self.max_body {
            self.refuse(413, "request body too large");
            return None;
        }
        match body.next(&mut self.input, self.max_body) {
            Ok(Piece::Data(data)) => Some(Event::Body(data)),
            Ok(Piece::More) => None,
            Ok(Piece::End) => {
                self.body = None;
                if self.response == Response::Done {
                    self.response = Response::Idle;
                }
                self.head_since = self.now;
                Some(Event::End)
            }
            Err(BodyError::TooLarge) => {
                self.refuse(413, "request body too large");
                None
            }
            Err(BodyError::Malformed(reason)) => {
                self.refuse(400, reason);
                None
            }
        }
    }

    /// Answers a request that cannot be served, if its answer has not begun, and ends the connection.
    fn refuse(&mut self, status: u16, reason: &str) {
        self.keep_alive = false;
        if matches!(self.response, Response::Idle | Response::Due) {
            self.response = Response::Due;
            self.is_head = false;
            let text = format!("{status} {}: {reason}\n", phrase(status));
            let sent = self.respond(
                status,
                &[("Content-Type", "text/plain; charset=utf-8")],
                text.as_bytes(),
            );
            debug_assert_eq!(sent, Ok(()));
        }
        self.end();
    }

    fn end(&mut self) {
        self.closed = true;
        self.body = None;
        self.input = BytesMut::new();
    }

    /// Sends a whole response. Lengths and the connection's fate are this function's business, not the fields'.
    pub fn respond(&mut self, status: u16, fields: &[(&str, &str)], body: &[u8]) -> Result<(), ResponseError> {
        self.check_due()?;
        // What is left of the request's body would have to be read to find the next request.
        self.keep_alive &= self.body.as_ref().is_none_or(Body::is_empty);
        let bodiless = status < 200 || status == 204 || status == 304;
        self.write_head(status, fields);
        if !bodiless {
            let length = format!("Content-Length: {}\r\n", body.len());
            self.output.extend_from_slice(length.as_bytes());
        }
        self.output.extend_from_slice(b"\r\n");
        if !bodiless && !self.is_head {
            self.output.extend_from_slice(body);
        }
        self.finish();
        Ok(())
    }

    /// Begins a response whose body comes in parts.
    pub fn start_response(&mut self, status: u16, fields: &[(&str, &str)]) -> Result<(), ResponseError> {
        self.check_due()?;
        let chunked = !self.is_old;
        self.keep_alive &= chunked && self.body.as_ref().is_none_or(Body::is_empty);
        self.write_head(status, fields);
        if chunked {
            self.output.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        self.output.extend_from_slice(b"\r\n");
        self.response = Response::Streaming { chunked };
        Ok(())
    }

    /// Sends a part of the body of a response begun. See [`output_length`](Self::output_length) for when to wait.
    pub fn send_part(&mut self, part: &[u8]) -> Result<(), ResponseError> {
        let Response::Streaming { chunked } = self.response else {
            return Err(ResponseError::NotStreaming);
        };
        if part.is_empty() || self.is_head {
            return Ok(());
        }
        if chunked {
            let size = format!("{:x}\r\n", part.len());
            self.output().extend_from_slice(size.as_bytes());
        }
        self.output().extend_from_slice(part);
        if chunked {
            self.output.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// Ends a response that came in parts.
    pub fn finish_response(&mut self) -> Result<(), ResponseError> {
        let Response::Streaming { chunked } = self.response else {
            return Err(ResponseError::NotStreaming);
        };
        if chunked && !self.is_head {
            self.output().extend_from_slice(b"0\r\n\r\n");
        }
        self.finish();
        Ok(())
    }

    /// Gives up a response that was begun: the peer sees that it is cut.
    pub fn abort(&mut self) {
        self.end();
    }

    fn check_due(&self) -> Result<(), ResponseError> {
        match self.response {
            Response::Due => Ok(()),
            Response::Idle => Err(ResponseError::NoRequest),
            Response::Streaming { .. } | Response::Done => Err(ResponseError::Begun),
        }
    }

    fn finish(&mut self) {
        self.response = if self.body.is_some() {
            Response::Done
        } else {
            Response::Idle
        };
        self.head_since = self.now;
        if !self.keep_alive {
            self.end();
        }
    }

    fn write_head(&mut self, status: u16, fields: &[(&str, &str)]) {
        let line = format!("HTTP/1.1 {status} {}\r\n", phrase(status));
        let connection = match (self.keep_alive, self.is_old) {
            (false, _) => "Connection: close\r\n",
            (true, true) => "Connection: keep-alive\r\n",
            (true, false) => "",
        };
        let output = self.output();
        output.extend_from_slice(line.as_bytes());
        for (name, value) in fields {
            debug_assert!(!name.contains(['\r', '\n', ':']), "field name {name:?}");
            // A line break in a value would begin another field, or another response.
            let value = value.replace(['\r', '\n', '\0'], " ");
            output.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        output.extend_from_slice(connection.as_bytes());
    }

    fn output(&mut self) -> &mut Vec<u8> {
        if self.output.is_empty() {
            self.output_since = self.now;
        }
        &mut self.output
    }

    /// Bytes that wait to be sent; a producer of parts waits while they are many.
    pub fn output_length(&self) -> usize {
        self.output.len()
    }

    /// Everything to send now, `spare` (an empty buffer) taking its place.
    pub fn take_output(&mut self, spare: Vec<u8>, now: Duration) -> Vec<u8> {
        self.now = now;
        std::mem::replace(&mut self.output, spare)
    }

    /// Whether the driver should read from the socket.
    pub fn wants_read(&self) -> bool {
        let enough = self.body.is_none() && self.response != Response::Idle && !self.input.is_empty();
        !self.closed && !enough && self.input.len() <= HTTP1_HEAD_BYTES && self.output.len() < HTTP_OUTPUT_BYTES
    }

    /// Whether the connection is over: the driver sends what output is left and closes the socket.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether nothing is under way, so that a shutdown may close the connection now.
    pub fn is_idle(&self) -> bool {
        self.response == Response::Idle && self.body.is_none() && self.output.is_empty()
    }

    /// Lets the current request be the last.
    pub fn shutdown(&mut self) {
        self.keep_alive = false;
        if self.is_idle() {
            self.end();
        }
    }

    /// Ends the connection when a head does not become whole or a response is not read. The driver calls this every
    /// second or so.
    pub fn on_timer(&mut self, now: Duration) {
        self.now = now;
        let is_slow = self.response == Response::Idle
            && !self.input.is_empty()
            && now >= self.head_since + Duration::from_secs(HTTP1_HEAD_SECONDS);
        let is_unread = !self.output.is_empty() && now >= self.output_since + Duration::from_secs(HTTP_STALL_SECONDS);
        if is_slow || is_unread {
            self.end();
        }
    }
}

/// The reason phrase of a status.
fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        412 => "Precondition Failed",
        413 => "Request Entity Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests;
