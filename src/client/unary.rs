//! One unary call of gRPC over a plain connection of its own, blocking: for what a start asks before anything runs.
//!
//! Promises: it ends in time, and what an answer may make it hold is bounded. Frames that it does not need are skipped;
//! what it sends fits the least that any server takes.

use crate::http::HeaderList;
use crate::http::frame::{FrameHeader, HEADER_LENGTH, PREFACE, flag, kind, setting};
use crate::http::hpack::Decoder;
use crate::limits::{UNARY_ANSWER_BYTES_MAX, UNARY_HEADER_BYTES_MAX, UNARY_REQUEST_BYTES_MAX};
use prost::Message;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The stream of the call.
const STREAM: u32 = 1;
/// The longest frame that is taken: RFC 9113's least.
const FRAME_BYTES_MAX: usize = 16 << 10;
/// What the other side may send without being told that it was read.
const WINDOW: u32 = 16 << 20;

const _: () = assert!(UNARY_ANSWER_BYTES_MAX < WINDOW as usize && UNARY_REQUEST_BYTES_MAX < FRAME_BYTES_MAX);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection.
    #[error("{address}: {source}")]
    Connection {
        /// Where to.
        address: String,
        /// What went wrong.
        source: io::Error,
    },
    /// What came is no answer of gRPC.
    #[error("{address}: {reason}")]
    Protocol {
        /// Where to.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The other side refused.
    #[error("{address}: {message} (code {code})")]
    Status {
        /// Where to.
        address: String,
        /// gRPC's code.
        code: u32,
        /// Its words.
        message: String,
    },
}

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To be connected.
    pub dial: Duration,
    /// From then on.
    pub request: Duration,
}

/// Calls the method at `path` of the server at `address`, `host:port`.
pub fn call<R: Message + Default>(
    address: &str,
    path: &str,
    request: &impl Message,
    patience: Patience,
) -> Result<R, CallError> {
    let connection = |source| CallError::Connection {
        address: address.to_string(),
        source,
    };
    let stream = dial(address, patience.dial).map_err(connection)?;
    let mut call = Call {
        stream,
        until: Instant::now() + patience.request,
        headers: HeaderList::new(UNARY_HEADER_BYTES_MAX),
        decoder: Decoder::new(0),
        body: Vec::new(),
    };
    let wrong = |reason: String| CallError::Protocol {
        address: address.to_string(),
        reason,
    };
    let message = request.encode_to_vec();
    if message.len() > UNARY_REQUEST_BYTES_MAX {
        return Err(wrong(format!(
            "a request of {} bytes is too long for it",
            message.len()
        )));
    }
    call.send(address, path, &message).map_err(connection)?;
    while !call.next().map_err(connection)? {}
    let text = |name| call.headers.get(name).map(String::from_utf8_lossy);
    let code = text("grpc-status").and_then(|code| code.parse::<u32>().ok());
    match code {
        None => Err(wrong("its answer has no grpc-status".to_string())),
        Some(0) => {
            let message = call.body.get(5..).unwrap_or_default();
            R::decode(message).map_err(|error| wrong(error.to_string()))
        }
        Some(code) => Err(CallError::Status {
            address: address.to_string(),
            code,
            message: text("grpc-message").unwrap_or_default().into_owned(),
        }),
    }
}

fn dial(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A call under way.
struct Call {
    stream: TcpStream,
    until: Instant,
    /// The last headers or trailers.
    headers: HeaderList,
    decoder: Decoder,
    body: Vec<u8>,
}

impl Call {
    fn send(&mut self, address: &str, path: &str, message: &[u8]) -> io::Result<()> {
        let mut out = PREFACE.to_vec();
        let settings = [
            (setting::HEADER_TABLE_SIZE, 0),
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, WINDOW),
        ];
        frame(&mut out, kind::SETTINGS, 0, 0, |out| {
            for (name, value) in settings {
                out.extend_from_slice(&name.to_be_bytes());
                out.extend_from_slice(&value.to_be_bytes());
            }
        });
        frame(&mut out, kind::WINDOW_UPDATE, 0, 0, |out| {
            out.extend_from_slice(&WINDOW.to_be_bytes())
        });
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", address),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        frame(&mut out, kind::HEADERS, flag::END_HEADERS, STREAM, |out| {
            for (name, value) in fields {
                out.push(0);
                literal(out, name);
                literal(out, value);
            }
        });
        frame(&mut out, kind::DATA, flag::END_STREAM, STREAM, |out| {
            out.push(0);
            out.extend_from_slice(&(message.len() as u32).to_be_bytes());
            out.extend_from_slice(message);
        });
        self.write(&out)
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        Ok(left)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(bytes)
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn frame(&mut self) -> io::Result<(FrameHeader, Vec<u8>)> {
        let mut head = [0; HEADER_LENGTH];
        self.read(&mut head)?;
        let head = FrameHeader::parse(&head);
        if head.length > FRAME_BYTES_MAX {
            return Err(io::Error::other(format!("a frame of {} bytes", head.length)));
        }
        let mut payload = vec![0; head.length];
        self.read(&mut payload)?;
        Ok((head, payload))
    }

    /// Takes a frame. Whether the answer is whole.
    fn next(&mut self) -> io::Result<bool> {
        let (head, payload) = self.frame()?;
        match head.kind {
            kind::SETTINGS if !head.has(flag::ACK) => {
                let mut out = Vec::new();
                frame(&mut out, kind::SETTINGS, flag::ACK, 0, |_| {});
                self.write(&out)?;
            }
            kind::PING if !head.has(flag::ACK) => {
                let mut out = Vec::new();
                frame(&mut out, kind::PING, flag::ACK, 0, |out| {
                    out.extend_from_slice(&payload)
                });
                self.write(&out)?;
            }
            kind::GOAWAY => return Err(io::Error::other("it goes away")),
            kind::RST_STREAM if head.stream == STREAM => return Err(io::Error::other("it gave the call up")),
            kind::DATA if head.stream == STREAM => {
                let part = unpadded(&head, &payload)?;
                if self.body.len() + part.len() > UNARY_ANSWER_BYTES_MAX {
                    return Err(io::Error::other("its answer is too long"));
                }
                self.body.extend_from_slice(part);
                return Ok(head.has(flag::END_STREAM));
            }
            kind::HEADERS if head.stream == STREAM => {
                let mut block = unpadded(&head, &payload)?.to_vec();
                if head.has(flag::PRIORITY) {
                    block.drain(..block.len().min(5));
                }
                self.take_headers(head, block)?;
                return Ok(head.has(flag::END_STREAM));
            }
            _ => {}
        }
        Ok(false)
    }

    fn take_headers(&mut self, mut head: FrameHeader, mut block: Vec<u8>) -> io::Result<()> {
        while !head.has(flag::END_HEADERS) {
            let (next, payload) = self.frame()?;
            if next.kind != kind::CONTINUATION || block.len() + payload.len() > UNARY_HEADER_BYTES_MAX {
                return Err(io::Error::other("its headers do not end"));
            }
            block.extend_from_slice(&payload);
            head = next;
        }
        let decoded = self.decoder.decode(&block, &mut self.headers);
        decoded.map_err(|error| io::Error::other(format!("its headers can't be read: {error:?}")))?;
        Ok(())
    }
}

/// A frame's payload without what fills it up.
fn unpadded<'a>(head: &FrameHeader, payload: &'a [u8]) -> io::Result<&'a [u8]> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(io::ErrorKind::InvalidData)?;
    let length = rest.len().checked_sub(usize::from(*padding));
    Ok(&rest[..length.ok_or(io::ErrorKind::InvalidData)?])
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let mut payload = Vec::new();
    write(&mut payload);
    let length = payload.len();
    let head = FrameHeader {
        length,
        kind,
        flags,
        stream,
    };
    head.write(out);
    out.extend_from_slice(&payload);
}

/// A string of HPACK, as it is: its length in 7 bits and more (RFC 7541 §5.1), then its bytes.
fn literal(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.len();
    if rest < 127 {
        out.push(rest as u8);
    } else {
        out.push(127);
        rest -= 127;
        while rest >= 128 {
            out.push(rest as u8 & 127 | 128);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::{RangeRequest, RangeResponse};
    use std::net::TcpListener;

    const PATIENCE: Patience = Patience {
        dial: Duration::from_secs(5),
        request: Duration::from_millis(500),
    };

    /// What a server that answers any call with these bytes makes of the call.
    fn against(answer: &[u8]) -> Result<RangeResponse, CallError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = answer.to_vec();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut start = [0; PREFACE.len()];
            stream.read_exact(&mut start).unwrap();
            assert_eq!(&start, PREFACE);
            stream.write_all(&answer).unwrap();
            // Until the caller has enough.
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let result = call(&address, "/etcdserverpb.KV/Range", &RangeRequest::default(), PATIENCE);
        server.join().unwrap();
        result
    }

    fn headers(flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        frame(&mut out, kind::HEADERS, flags, STREAM, |out| {
            for (name, value) in fields {
                out.push(0);
                literal(out, name);
                literal(out, value);
            }
        });
        out
    }

    #[test]
    fn an_answer_is_taken_with_all_that_may_stand_around_it() {
        let mut out = Vec::new();
        frame(&mut out, kind::SETTINGS, 0, 0, |_| {});
        frame(&mut out, kind::PING, 0, 0, |out| out.extend_from_slice(&[7; 8]));
        out.extend(headers(flag::END_HEADERS, &[(":status", "200")]));
        let message = RangeResponse {
            count: 5,
            ..Default::default()
        };
        let message = message.encode_to_vec();
        frame(&mut out, kind::DATA, flag::PADDED, STREAM, |out| {
            out.extend_from_slice(&[2, 0, 0, 0, 0, message.len() as u8]);
            out.extend_from_slice(&message);
            out.extend_from_slice(&[0, 0]);
        });
        out.extend(headers(flag::END_HEADERS | flag::END_STREAM, &[("grpc-status", "0")]));
        assert_eq!(against(&out).unwrap().count, 5);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let refused = headers(
            flag::END_HEADERS | flag::END_STREAM,
            &[(":status", "200"), ("grpc-status", "14"), ("grpc-message", "no leader")],
        );
        let error = against(&refused).unwrap_err();
        assert!(error.to_string().ends_with("no leader (code 14)"), "{error}");
        let mut long = Vec::new();
        let head = FrameHeader {
            length: FRAME_BYTES_MAX + 1,
            kind: kind::DATA,
            flags: 0,
            stream: STREAM,
        };
        head.write(&mut long);
        let mut bad_padding = Vec::new();
        frame(&mut bad_padding, kind::DATA, flag::PADDED, STREAM, |out| out.push(9));
        let mut reset = Vec::new();
        frame(&mut reset, kind::RST_STREAM, 0, STREAM, |out| {
            out.extend_from_slice(&[0; 4])
        });
        let no_status = headers(flag::END_HEADERS | flag::END_STREAM, &[(":status", "502")]);
        let endless = headers(0, &[("a", "b")]);
        for answer in [
            long,
            bad_padding,
            reset,
            no_status,
            endless,
            b"HTTP/1.1 200 OK\r\n".to_vec(),
            Vec::new(),
        ] {
            assert!(against(&answer).is_err(), "{answer:?}");
        }
    }
}
