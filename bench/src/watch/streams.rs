//! The client's half of one HTTP/2 connection that carries Watch streams, or unary calls.
//!
//! Every message is taken at once, so windows are large and given back as they are used. A watch that ends, and a call
//! that fails, end the run.

use super::event::{self, Event, Head};
use prost::Message;
use ringd::http::HeaderList;
use ringd::http::frame::{FrameHeader, HEADER_LENGTH, PREFACE, flag, kind, setting};
use ringd::http::hpack::Decoder;
use ringd::proto::etcdserverpb::WatchCreateRequest;
use ringd::proto::etcdserverpb::{WatchRequest, watch_request::RequestUnion};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

const INPUT_BYTES: usize = 1 << 20;
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The window a connection starts with, RFC 9113 §6.9.2.
const INITIAL_WINDOW: u32 = 65_535;
/// Bytes of a gRPC message's prefix: not compressed, then the length.
const PREFIX_LENGTH: usize = 5;
const TABLE_BYTES: usize = 4096;
const LIST_BYTES: usize = 16 << 10;
/// Stream numbers end at 2^31; a run that gets near is stopped.
const LAST_STREAM: u32 = 0x7fff_fff0;

/// One stream with its watches.
struct Stream {
    /// A message that has not come whole.
    partial: Vec<u8>,
    /// Bytes received and not given back to the window.
    received: u32,
    /// The newest event of each watch, by its id.
    newest: Vec<u64>,
}

/// A connection with its streams, the first of which has number 1.
pub struct Streams {
    socket: TcpStream,
    input: Box<[u8]>,
    filled: usize,
    output: Vec<u8>,
    written: usize,
    decoder: Decoder,
    list: HeaderList,
    streams: Vec<Stream>,
    received: u32,
    /// Bytes of calls that the server takes, and the number of the next.
    send_window: i64,
    next_call: u32,
    reply: Vec<u8>,
    /// Watches that were created.
    pub created: usize,
    /// Calls that were answered with status 0.
    pub answered: u64,
}

impl Streams {
    /// Connects.
    pub fn open(address: SocketAddr) -> io::Result<Streams> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut streams = Streams {
            socket,
            input: vec![0; INPUT_BYTES].into(),
            filled: 0,
            output: PREFACE.to_vec(),
            written: 0,
            decoder: Decoder::new(TABLE_BYTES),
            list: HeaderList::new(LIST_BYTES),
            streams: Vec::new(),
            received: 0,
            send_window: i64::from(INITIAL_WINDOW),
            next_call: 1,
            reply: Vec::new(),
            created: 0,
            answered: 0,
        };
        streams.frame(kind::SETTINGS, 0, 0, 6);
        streams
            .output
            .extend_from_slice(&setting::INITIAL_WINDOW_SIZE.to_be_bytes());
        streams.output.extend_from_slice(&STREAM_WINDOW.to_be_bytes());
        streams.grant(0, CONNECTION_WINDOW - INITIAL_WINDOW);
        Ok(streams)
    }

    /// Queues a stream with these watches.
    pub fn watch(&mut self, authority: &str, watches: Vec<WatchCreateRequest>) {
        let number = 2 * self.streams.len() as u32 + 1;
        self.headers(number, "/etcdserverpb.Watch/Watch", authority);
        let newest = vec![0; watches.len()];
        for create in watches {
            let request = WatchRequest {
                request_union: Some(RequestUnion::CreateRequest(create)),
            };
            self.message(number, 0, &request.encode_to_vec());
        }
        self.streams.push(Stream {
            partial: Vec::new(),
            received: 0,
            newest,
        });
    }

    /// Whether a call with a message of `length` may start now.
    pub fn may_call(&self, length: usize) -> bool {
        self.send_window >= (PREFIX_LENGTH + length) as i64
    }

    /// Queues a unary call, after `may_call`. On a connection without watches.
    pub fn call(&mut self, path: &str, authority: &str, message: &[u8]) -> io::Result<()> {
        assert!(self.streams.is_empty(), "calls have a connection of their own");
        if self.next_call > LAST_STREAM {
            return Err(io::Error::other("out of stream numbers: make the run shorter"));
        }
        let number = self.next_call;
        self.next_call += 2;
        self.send_window -= (PREFIX_LENGTH + message.len()) as i64;
        self.headers(number, path, authority);
        self.message(number, flag::END_STREAM, message);
        Ok(())
    }

    /// The message of the last DATA of a call's answer.
    pub fn reply(&self) -> &[u8] {
        self.reply.get(PREFIX_LENGTH..).unwrap_or_default()
    }

    fn headers(&mut self, stream: u32, path: &str, authority: &str) {
        let block = header_block(path, authority);
        self.frame(kind::HEADERS, flag::END_HEADERS, stream, block.len());
        self.output.extend_from_slice(&block);
    }

    fn message(&mut self, stream: u32, flags: u8, message: &[u8]) {
        self.frame(kind::DATA, flags, stream, PREFIX_LENGTH + message.len());
        self.output.push(0);
        self.output.extend_from_slice(&(message.len() as u32).to_be_bytes());
        self.output.extend_from_slice(message);
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, length: usize) {
        let header = FrameHeader {
            length,
            kind,
            flags,
            stream,
        };
        header.write(&mut self.output);
    }

    fn grant(&mut self, stream: u32, bytes: u32) {
        self.frame(kind::WINDOW_UPDATE, 0, stream, 4);
        self.output.extend_from_slice(&bytes.to_be_bytes());
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether bytes wait for the socket to take them.
    pub fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.has_output() {
            match self.socket.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads once and tells of every event.
    pub fn receive(&mut self, event: &mut impl FnMut(Event<'_>)) -> io::Result<()> {
        let count = match self.socket.read(&mut self.input[self.filled..]) {
            Ok(0) => {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "the server closed a watching connection",
                ));
            }
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.filled += count;
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..self.filled];
        let mut result = Ok(());
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_LENGTH>() {
            let header = FrameHeader::parse(header);
            let Some((payload, behind)) = behind.split_at_checked(header.length) else {
                break;
            };
            result = self.handle(header, payload, event);
            if result.is_err() {
                break;
            }
            rest = behind;
        }
        let (start, length) = (self.filled - rest.len(), rest.len());
        self.input = input;
        self.input.copy_within(start..start + length, 0);
        self.filled = length;
        result
    }

    fn handle(&mut self, header: FrameHeader, payload: &[u8], event: &mut impl FnMut(Event<'_>)) -> io::Result<()> {
        match header.kind {
            kind::DATA if !header.has(flag::PADDED) && !header.has(flag::END_STREAM) => {
                self.data(header.stream, payload, event)
            }
            kind::HEADERS if header.flags & !flag::END_STREAM == flag::END_HEADERS => {
                self.decoder.decode(payload, &mut self.list).map_err(io::Error::other)?;
                if header.has(flag::END_STREAM) {
                    self.ended()?;
                }
                Ok(())
            }
            kind::WINDOW_UPDATE if header.stream == 0 => {
                let bytes = payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                self.send_window += i64::from(bytes & 0x7fff_ffff);
                Ok(())
            }
            kind::SETTINGS if !header.has(flag::ACK) => {
                self.frame(kind::SETTINGS, flag::ACK, 0, 0);
                Ok(())
            }
            kind::PING if !header.has(flag::ACK) => {
                self.frame(kind::PING, flag::ACK, 0, payload.len());
                self.output.extend_from_slice(payload);
                Ok(())
            }
            kind::WINDOW_UPDATE | kind::SETTINGS | kind::PING => Ok(()),
            _ => Err(io::Error::other(format!(
                "a watch ended, or a frame this client does not know: {header:?}"
            ))),
        }
    }

    /// Trailers came.
    fn ended(&mut self) -> io::Result<()> {
        if self.streams.is_empty() && self.list.get("grpc-status") == Some(b"0") {
            self.answered += 1;
            return Ok(());
        }
        let fields = self.list.iter();
        let text: String = fields
            .map(|(name, value)| format!(" {}: {}", name.escape_ascii(), value.escape_ascii()))
            .collect();
        Err(io::Error::other(format!("a watch ended, or a call failed:{text}")))
    }

    #[inline]
    fn data(&mut self, number: u32, payload: &[u8], event: &mut impl FnMut(Event<'_>)) -> io::Result<()> {
        let length = payload.len() as u32;
        if self.streams.is_empty() {
            self.reply.clear();
            self.reply.extend_from_slice(payload);
            return self.take_from_window(length);
        }
        let stream = (self.streams.get_mut(number as usize / 2))
            .ok_or_else(|| io::Error::other(format!("DATA for stream {number}, which was never opened")))?;
        stream.received += length;
        let due = std::mem::take(&mut stream.received);
        self.created += stream.take(payload, event)?;
        match due > STREAM_WINDOW / 2 {
            true => self.grant(number, due),
            false => stream.received = due,
        }
        self.take_from_window(length)
    }

    fn take_from_window(&mut self, length: u32) -> io::Result<()> {
        self.received += length;
        if self.received > CONNECTION_WINDOW / 2 {
            self.grant(0, self.received);
            self.received = 0;
        }
        Ok(())
    }
}

/// The fields of a request, as literals (RFC 7541 §6.2.2): numbers are entries of the static table, 0 is a name that
/// follows.
fn header_block(path: &str, authority: &str) -> Vec<u8> {
    let string = |block: &mut Vec<u8>, text: &str| {
        assert!(text.len() < 127, "{text:?} is too long for a length of one byte");
        block.push(text.len() as u8);
        block.extend_from_slice(text.as_bytes());
    };
    // :method POST, :scheme http.
    let mut block = vec![0x83, 0x86];
    // :path, :authority, content-type.
    for (name, value) in [
        (&[4][..], path),
        (&[1], authority),
        (&[0x0f, 31 - 15], "application/grpc"),
    ] {
        block.extend_from_slice(name);
        string(&mut block, value);
    }
    block.push(0);
    string(&mut block, "te");
    string(&mut block, "trailers");
    block
}

impl Stream {
    /// Takes a piece of the stream. Returns how many watches it says are created.
    fn take(&mut self, payload: &[u8], event: &mut impl FnMut(Event<'_>)) -> io::Result<usize> {
        let mut created = 0;
        let joined;
        let mut rest = if self.partial.is_empty() {
            payload
        } else {
            self.partial.extend_from_slice(payload);
            joined = std::mem::take(&mut self.partial);
            &joined[..]
        };
        while let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX_LENGTH>() {
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
            let Some((message, behind)) = behind.split_at_checked(length as usize) else {
                break;
            };
            created += usize::from(self.message(message, event)?);
            rest = behind;
        }
        self.partial.extend_from_slice(rest);
        Ok(created)
    }

    fn message(&mut self, message: &[u8], event: &mut impl FnMut(Event<'_>)) -> io::Result<bool> {
        let (mut first, mut last) = (u64::MAX, 0);
        let read = event::read(message, |found| {
            let rises = found.mod_revision > last;
            first = if rises { first.min(found.mod_revision) } else { 0 };
            last = found.mod_revision;
            event(found);
        });
        let Head {
            watch_id,
            created,
            canceled,
        } = read.map_err(|_| io::Error::other("a message that is no WatchResponse"))?;
        let newest = self.newest.get_mut(watch_id as usize);
        let newest =
            newest.ok_or_else(|| io::Error::other(format!("a message for watch {watch_id}, which is not ours")))?;
        if canceled || first <= *newest {
            let problem = if canceled {
                "was canceled"
            } else {
                "got an event twice or out of order"
            };
            return Err(io::Error::other(format!(
                "watch {watch_id} {problem}: {first} after {newest}"
            )));
        }
        *newest = last.max(*newest);
        Ok(created)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_blocks_decode() {
        let mut list = HeaderList::new(LIST_BYTES);
        let block = header_block("/a.B/C", "127.0.0.1:2379");
        Decoder::new(TABLE_BYTES).decode(&block, &mut list).unwrap();
        assert_eq!((list.method(), list.scheme()), (&b"POST"[..], &b"http"[..]));
        assert_eq!(
            (list.path(), list.authority()),
            (&b"/a.B/C"[..], Some(&b"127.0.0.1:2379"[..]))
        );
        assert_eq!(list.get("content-type"), Some(&b"application/grpc"[..]));
        assert_eq!(list.get("te"), Some(&b"trailers"[..]));
    }
}
