//! The client side of an HTTP/1.1 exchange as a state machine: a response's head and body out of bytes (RFC 9112).
//!
//! For what members ask each other. Heads and bodies are bounded, bodies come in parts; a response that does not end
//! is fine, if no bound is given.

use super::body::{Body, BodyError, Piece};
use crate::limits::{HTTP1_HEAD_BYTES, HTTP1_HEADERS};
use bytes::{Bytes, BytesMut};

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    /// Fields in the order of arrival, names in lower case.
    pub fields: Vec<(String, Vec<u8>)>,
    /// The connection takes another request when the response is whole.
    pub keeps_alive: bool,
}

impl ResponseHead {
    /// The first field called `name` (lower case), if it is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(found, _)| found == name)?;
        std::str::from_utf8(value).ok().map(str::trim)
    }
}

/// What came of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseEvent {
    /// Its head.
    Head(ResponseHead),
    /// A part of its body, never empty.
    Body(Bytes),
    /// It is whole.
    End,
}

/// Why a response can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No HTTP/1.1.
    #[error("malformed response: {0}")]
    Malformed(&'static str),
    /// More than is taken.
    #[error("response too large")]
    TooLarge,
    /// The peer ended the connection before the response was whole.
    #[error("the connection ended within a response")]
    Cut,
}

/// Reads the responses on one connection, one after the other.
#[derive(Debug)]
pub struct Responses {
    input: BytesMut,
    ended: bool,
    state: State,
    body_max: u64,
}

#[derive(Debug)]
enum State {
    Head,
    Body(Body),
    /// The body is what comes until the connection ends.
    UntilEnd {
        taken: u64,
    },
}

impl Responses {
    /// For responses with bodies of up to `body_max` bytes.
    pub fn new(body_max: u64) -> Responses {
        Responses {
            input: BytesMut::new(),
            ended: false,
            state: State::Head,
            body_max,
        }
    }

    /// Takes bytes; none at all say that the peer has ended the connection.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.ended |= bytes.is_empty();
        self.input.extend_from_slice(bytes);
    }

    /// The next event; `None` when more bytes are wanted.
    pub fn next_event(&mut self) -> Result<Option<ResponseEvent>, ClientError> {
        match &mut self.state {
            State::Head => self.head(),
            State::Body(body) => match body.next(&mut self.input, self.body_max) {
                Ok(Piece::Data(data)) => Ok(Some(ResponseEvent::Body(data))),
                Ok(Piece::More) => self.want(),
                Ok(Piece::End) => {
                    self.state = State::Head;
                    Ok(Some(ResponseEvent::End))
                }
                Err(BodyError::TooLarge) => Err(ClientError::TooLarge),
                Err(BodyError::Malformed(reason)) => Err(ClientError::Malformed(reason)),
            },
            State::UntilEnd { taken } if !self.input.is_empty() => {
                *taken += self.input.len() as u64;
                if *taken > self.body_max {
                    return Err(ClientError::TooLarge);
                }
                Ok(Some(ResponseEvent::Body(self.input.split().freeze())))
            }
            State::UntilEnd { .. } if self.ended => {
                self.state = State::Head;
                Ok(Some(ResponseEvent::End))
            }
            State::UntilEnd { .. } => Ok(None),
        }
    }

    fn want(&self) -> Result<Option<ResponseEvent>, ClientError> {
        if self.ended { Err(ClientError::Cut) } else { Ok(None) }
    }

    fn head(&mut self) -> Result<Option<ResponseEvent>, ClientError> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; HTTP1_HEADERS];
            let mut parsed = httparse::Response::new(&mut fields);
            let length = match parsed.parse(&self.input) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) if self.input.len() > HTTP1_HEAD_BYTES => {
                    return Err(ClientError::TooLarge);
                }
                Ok(httparse::Status::Partial) => return self.want(),
                Err(httparse::Error::TooManyHeaders) => return Err(ClientError::TooLarge),
                Err(_) => return Err(ClientError::Malformed("no head of a response")),
            };
            let (status, minor) = (parsed.code.unwrap_or(0), parsed.version.unwrap_or(0));
            let fields = parsed.headers.iter();
            let fields = fields.map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()));
            let mut head = ResponseHead {
                status,
                fields: fields.collect(),
                keeps_alive: false,
            };
            let _ = self.input.split_to(length);
            // What comes ahead of the response proper.
            if (100..200).contains(&status) {
                continue;
            }
            self.state = self.body_of(&head)?;
            let says = head.get("connection").unwrap_or_default();
            head.keeps_alive = minor > 0
                && !matches!(self.state, State::UntilEnd { .. })
                && !says.split(',').any(|token| token.trim().eq_ignore_ascii_case("close"));
            return Ok(Some(ResponseEvent::Head(head)));
        }
    }

    /// RFC 9112 §6.3.
    fn body_of(&self, head: &ResponseHead) -> Result<State, ClientError> {
        if matches!(head.status, 204 | 304) {
            return Ok(State::Body(Body::sized(0)));
        }
        if let Some(encoding) = head.get("transfer-encoding") {
            if !encoding.eq_ignore_ascii_case("chunked") {
                return Err(ClientError::Malformed("unknown transfer encoding"));
            }
            return Ok(State::Body(Body::chunked()));
        }
        let Some(length) = head.get("content-length") else {
            return Ok(State::UntilEnd { taken: 0 });
        };
        let digits = Some(length).filter(|length| length.bytes().all(|byte| byte.is_ascii_digit()));
        let length = digits.and_then(|digits| digits.parse().ok());
        let length = length.ok_or(ClientError::Malformed("malformed Content-Length"))?;
        if length > self.body_max {
            return Err(ClientError::TooLarge);
        }
        Ok(State::Body(Body::sized(length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], step: usize, body_max: u64) -> Result<Vec<ResponseEvent>, ClientError> {
        let (mut responses, mut events) = (Responses::new(body_max), Vec::new());
        for piece in bytes.chunks(step).chain([&[][..]]) {
            responses.receive(piece);
            loop {
                let event = match responses.next_event() {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    // Between two responses a connection may end.
                    Err(ClientError::Cut) if events.last() == Some(&ResponseEvent::End) => break,
                    Err(error) => return Err(error),
                };
                match (events.last_mut(), event) {
                    (Some(ResponseEvent::Body(whole)), ResponseEvent::Body(part)) => {
                        *whole = [&whole[..], &part].concat().into();
                    }
                    (_, event) => events.push(event),
                }
            }
        }
        Ok(events)
    }

    /// Status, body and whether it keeps the connection alive, of each response.
    fn summary(bytes: &str, body_max: u64) -> Vec<(u16, String, bool)> {
        let mut all = Vec::new();
        let once = read(bytes.as_bytes(), bytes.len(), body_max);
        assert_eq!(read(bytes.as_bytes(), 1, body_max), once, "in single bytes");
        for event in once.unwrap_or_default() {
            match event {
                ResponseEvent::Head(head) => all.push((head.status, String::new(), head.keeps_alive)),
                ResponseEvent::Body(part) => all.last_mut().unwrap().1 += std::str::from_utf8(&part).unwrap(),
                ResponseEvent::End => {}
            }
        }
        all
    }

    #[test]
    fn bodies_of_each_kind() {
        let sized = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let chunked = "HTTP/1.1 412 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
        let none = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        let until = "HTTP/1.0 200 OK\r\n\r\nall of it";
        assert_eq!(summary(sized, 9), [(200, "ok".to_string(), true)]);
        let two = summary(&(sized.to_string() + chunked), 9);
        assert_eq!(two[1], (412, "abcd".to_string(), true));
        assert_eq!(summary(none, 9), [(204, String::new(), false)]);
        assert_eq!(summary(until, 9), [(200, "all of it".to_string(), false)]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("SSH-2.0-x\r\n", ClientError::Malformed("no head of a response")),
            ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok", ClientError::TooLarge),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", ClientError::Cut),
            ("HTTP/1.1 200 OK\r\n\r\n0123456789", ClientError::TooLarge),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
                ClientError::Malformed("malformed Content-Length"),
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
                ClientError::Malformed("malformed chunk size"),
            ),
            ("HTTP/1.1 2", ClientError::Cut),
        ];
        for (bytes, error) in cases {
            assert_eq!(read(bytes.as_bytes(), 1, 9), Err(error), "{bytes:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(2 * HTTP1_HEAD_BYTES));
        assert_eq!(read(long.as_bytes(), 999, 9), Err(ClientError::TooLarge));
    }
}
