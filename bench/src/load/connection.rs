//! The client's half of one HTTP/2 connection that carries nothing but unary gRPC calls.
//!
//! Obeys the server's windows and settings, and answers its pings. Allocates while it is set up and not per call.
//! What no gRPC server of ours sends (padding, CONTINUATION, pushes) ends the run with an error that names it.

use super::request::{Operation, Template};
use ringd::http::HeaderList;
use ringd::http::frame::{FrameHeader, HEADER_LENGTH, PREFACE, flag, kind, setting};
use ringd::http::hpack::Decoder;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const INPUT_BYTES: usize = 256 << 10;
/// What a reply may have, and what all replies may have before the next WINDOW_UPDATE is due.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The windows a connection starts with, RFC 9113 §6.9.2.
const INITIAL_WINDOW: i64 = 65_535;
const TABLE_BYTES: usize = 4096;
const LIST_BYTES: usize = 16 << 10;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Stream numbers end at 2^31; a run that gets near is stopped.
const LAST_STREAM: u32 = 0x7fff_fff0;

/// A call on its way; the slot is free while `stream` is 0.
#[derive(Clone, Copy)]
struct Slot {
    stream: u32,
    began: Instant,
    /// Bytes of DATA that arrived.
    bytes: u32,
}

/// How a call ended.
pub struct Finished {
    pub latency: Duration,
    /// grpc-status was 0, and the reply as long as it has to be.
    pub good: bool,
}

pub struct Connection {
    socket: TcpStream,
    input: Box<[u8]>,
    filled: usize,
    output: Vec<u8>,
    written: usize,
    decoder: Decoder,
    list: HeaderList,
    /// Trailers that said OK and only read the decoder's table; forgotten when the table is written.
    known_good: Vec<u8>,
    templates: [Template; 2],
    started: bool,
    settled: bool,
    send_window: i64,
    stream_window: i64,
    streams_max: usize,
    table_bytes: u32,
    received: u32,
    next_stream: u32,
    slots: Vec<Slot>,
    in_flight: usize,
    reply_bytes_min: u32,
    last_reply: Vec<u8>,
}

impl Connection {
    /// Connects, and waits for the server's settings. A reply shorter than `reply_bytes_min` counts as failed.
    pub fn open(
        address: SocketAddr,
        (operation, value_bytes): (Operation, usize),
        streams: usize,
        reply_bytes_min: u32,
    ) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(HANDSHAKE))?;
        let authority = address.to_string();
        let slot = Slot {
            stream: 0,
            began: Instant::now(),
            bytes: 0,
        };
        let mut connection = Self {
            socket,
            input: vec![0; INPUT_BYTES].into(),
            filled: 0,
            output: Vec::with_capacity(INPUT_BYTES),
            written: 0,
            decoder: Decoder::new(TABLE_BYTES),
            list: HeaderList::new(LIST_BYTES),
            known_good: Vec::with_capacity(64),
            templates: Template::pair(operation, value_bytes, &authority, TABLE_BYTES as u32),
            started: false,
            settled: false,
            send_window: INITIAL_WINDOW,
            stream_window: INITIAL_WINDOW,
            streams_max: streams,
            table_bytes: TABLE_BYTES as u32,
            received: 0,
            next_stream: 1,
            slots: vec![slot; streams],
            in_flight: 0,
            reply_bytes_min,
            last_reply: Vec::with_capacity(STREAM_WINDOW as usize),
        };
        connection.greet();
        connection.flush()?;
        while !connection.settled {
            connection.receive(&mut |_| ())?;
            connection.flush()?;
        }
        if connection.table_bytes < TABLE_BYTES as u32 {
            connection.templates = Template::pair(operation, value_bytes, &authority, connection.table_bytes);
        }
        connection.socket.set_nonblocking(true)?;
        Ok(connection)
    }

    fn greet(&mut self) {
        self.output.extend_from_slice(PREFACE);
        let settings = [(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW)];
        self.frame(kind::SETTINGS, 0, settings.len() * 6);
        for (id, value) in settings {
            self.output.extend_from_slice(&id.to_be_bytes());
            self.output.extend_from_slice(&value.to_be_bytes());
        }
        self.grant(CONNECTION_WINDOW - INITIAL_WINDOW as u32);
    }

    /// Starts a frame of the connection itself.
    fn frame(&mut self, kind: u8, flags: u8, length: usize) {
        FrameHeader {
            length,
            kind,
            flags,
            stream: 0,
        }
        .write(&mut self.output);
    }

    fn grant(&mut self, bytes: u32) {
        self.frame(kind::WINDOW_UPDATE, 0, 4);
        self.output.extend_from_slice(&bytes.to_be_bytes());
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether bytes wait for the socket to take them.
    pub fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    /// The message of the last DATA frame, with its prefix.
    pub fn last_reply(&self) -> &[u8] {
        &self.last_reply
    }

    /// Whether one more call may start now, by the streams and the windows.
    pub fn may_start(&self) -> bool {
        let needs = self.templates[0].flow_length() as i64;
        self.in_flight < self.streams_max && self.send_window >= needs && self.stream_window >= needs
    }

    /// Queues a call, after `may_start`.
    #[inline]
    pub fn start(&mut self, key: u64, stamp: u64, now: Instant) {
        let stream = self.next_stream;
        let slot = self
            .slots
            .iter_mut()
            .find(|slot| slot.stream == 0)
            .expect("a slot is free: may_start");
        *slot = Slot {
            stream,
            began: now,
            bytes: 0,
        };
        let template = &self.templates[usize::from(self.started)];
        template.write(&mut self.output, stream, key, stamp);
        self.send_window -= template.flow_length() as i64;
        self.started = true;
        self.in_flight += 1;
        self.next_stream += 2;
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

    /// Reads once and tells `done` of every call that ended.
    pub fn receive(&mut self, done: &mut impl FnMut(Finished)) -> io::Result<()> {
        let count = match self.socket.read(&mut self.input[self.filled..]) {
            Ok(0) => {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            // While the connection is opened the socket blocks, and this is its time that ran out.
            Err(error) if error.kind() == ErrorKind::WouldBlock && self.settled => return Ok(()),
            Err(error) => return Err(error),
        };
        self.filled += count;
        let now = Instant::now();
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..self.filled];
        let mut result = Ok(());
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_LENGTH>() {
            let header = FrameHeader::parse(header);
            let Some((payload, behind)) = behind.split_at_checked(header.length) else {
                break;
            };
            result = self.handle(header, payload, now, done);
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

    fn handle(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        done: &mut impl FnMut(Finished),
    ) -> io::Result<()> {
        match header.kind {
            kind::DATA if !header.has(flag::PADDED) && !header.has(flag::END_STREAM) => {
                self.data(header.stream, payload);
                Ok(())
            }
            kind::HEADERS if header.flags & !flag::END_STREAM == flag::END_HEADERS => {
                let good = self.headers(payload, header.has(flag::END_STREAM))?;
                if header.has(flag::END_STREAM) {
                    self.finish(header.stream, good, now, done)?;
                }
                Ok(())
            }
            kind::RST_STREAM => self.finish(header.stream, false, now, done),
            kind::SETTINGS if !header.has(flag::ACK) => self.settings(payload),
            kind::PING if !header.has(flag::ACK) => {
                self.frame(kind::PING, flag::ACK, payload.len());
                self.output.extend_from_slice(payload);
                Ok(())
            }
            // Of a stream: its calls are one frame each, and were checked against the initial window.
            kind::WINDOW_UPDATE if header.stream == 0 => {
                self.send_window += i64::from(number(payload)? & 0x7fff_ffff);
                Ok(())
            }
            kind::WINDOW_UPDATE | kind::SETTINGS | kind::PING => Ok(()),
            kind::GOAWAY => Err(io::Error::other(format!(
                "the server says goodbye: {}",
                payload.escape_ascii()
            ))),
            _ => Err(io::Error::other(format!(
                "a frame this client does not know: {header:?}"
            ))),
        }
    }

    #[inline]
    fn data(&mut self, stream: u32, payload: &[u8]) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.stream == stream) {
            slot.bytes += payload.len() as u32;
        }
        self.last_reply.clear();
        self.last_reply.extend_from_slice(payload);
        self.received += payload.len() as u32;
        if self.received > CONNECTION_WINDOW / 2 {
            self.grant(self.received);
            self.received = 0;
        }
    }

    /// Takes note of a header block; of trailers, returns whether they say OK.
    #[inline]
    fn headers(&mut self, block: &[u8], trailers: bool) -> io::Result<bool> {
        let reads_only = block.iter().all(|byte| (0x81..0xff).contains(byte));
        if reads_only && (!trailers || block == self.known_good) {
            return Ok(true);
        }
        self.known_good.clear();
        self.decoder.decode(block, &mut self.list).map_err(io::Error::other)?;
        let good = self.list.get("grpc-status") == Some(b"0");
        if trailers && reads_only && good {
            self.known_good.extend_from_slice(block);
        }
        if trailers && !good {
            let text: Vec<_> = self
                .list
                .iter()
                .map(|(name, value)| (name.escape_ascii(), value.escape_ascii()))
                .collect();
            eprintln!(
                "ringd-bench: a call failed:{}",
                text.iter().map(|(n, v)| format!(" {n}: {v}")).collect::<String>()
            );
        }
        Ok(good)
    }

    #[inline]
    fn finish(&mut self, stream: u32, good: bool, now: Instant, done: &mut impl FnMut(Finished)) -> io::Result<()> {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.stream == stream) else {
            // RST_STREAM(NO_ERROR) may follow a whole reply.
            return Ok(());
        };
        slot.stream = 0;
        self.in_flight -= 1;
        let good = good && slot.bytes >= self.reply_bytes_min;
        done(Finished {
            latency: now - slot.began,
            good,
        });
        if self.next_stream > LAST_STREAM {
            return Err(io::Error::other("out of stream numbers: make the run shorter"));
        }
        Ok(())
    }

    fn settings(&mut self, payload: &[u8]) -> io::Result<()> {
        for entry in payload.chunks_exact(6) {
            let value = number(&entry[2..])?;
            match u16::from_be_bytes([entry[0], entry[1]]) {
                setting::HEADER_TABLE_SIZE => self.table_bytes = value,
                setting::MAX_CONCURRENT_STREAMS => self.streams_max = self.slots.len().min(value as usize),
                setting::INITIAL_WINDOW_SIZE => self.stream_window = i64::from(value),
                _ => {}
            }
        }
        if self.started && self.table_bytes < TABLE_BYTES as u32 {
            return Err(io::Error::other(
                "the server shrank the header table while calls were on their way",
            ));
        }
        self.settled = true;
        self.frame(kind::SETTINGS, flag::ACK, 0);
        Ok(())
    }
}

fn number(bytes: &[u8]) -> io::Result<u32> {
    let bytes = bytes
        .first_chunk()
        .ok_or_else(|| io::Error::other("a frame of four bytes is shorter"))?;
    Ok(u32::from_be_bytes(*bytes))
}
