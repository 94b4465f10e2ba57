//! The client's half of one HTTP/2 connection that carries nothing but gRPC calls: unary ones, one-way streams of
//! replies, and long streams on which each message has one answer.
//!
//! Obeys the server's windows and settings, and answers its pings. Allocates while it is set up and not per call, large
//! messages aside. What no gRPC server of ours sends (padding, CONTINUATION, pushes) ends the run with an error that
//! names it.

use super::fields::Fields;
use super::recipe::{Accept, Call, Recipe};
use super::reply::Reply;
use crate::wire::{INITIAL_WINDOW, LAST_STREAM, PREFIX_LENGTH, TABLE_BYTES, Wire, message_length, write_prefix};
use ringd::http::ErrorCode;
use ringd::http::frame::{FrameHeader, HEADER_LENGTH, flag, kind, setting};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const INPUT_BYTES: usize = 256 << 10;
/// What a reply may have.
const STREAM_WINDOW: u32 = 0x7fff_ffff;
/// The longest DATA frame every server takes, §6.5.2.
const FRAME_BYTES: usize = 16_384;
/// How etcd refuses what would wait too long.
const TOO_MANY: &[u8] = b"etcdserver: too many requests";
const COMPLAINTS_SHOWN: usize = 3;
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A place for one call at a time. A long stream keeps its place.
#[derive(Clone, Default)]
struct Slot {
    /// 0 while there is none.
    stream: u32,
    call: Call,
    began: Option<Instant>,
    streaming: bool,
    accept: Option<Accept>,
    /// Bytes of DATA that arrived, and what they said first.
    bytes: u64,
    reply: Reply,
    /// The start of an answer while not enough of it has come to be read.
    head: Vec<u8>,
    /// Bytes of the answer on a long stream, its prefix included.
    length: u64,
    /// Bytes the server takes on the stream.
    window: i64,
    /// The rest of a message too large for one frame.
    rest: Vec<u8>,
}

impl Slot {
    /// Takes a part of an answer, and reads it once its start is there: all of it, or as much as a frame holds.
    #[inline]
    fn begin_reply(&mut self, payload: &[u8]) {
        if self.bytes > 0 && self.head.is_empty() {
            return;
        }
        let joined;
        let start = if self.head.is_empty() {
            payload
        } else {
            joined = [&self.head[..], payload].concat();
            &joined[..]
        };
        if let Some((prefix, message)) = start.split_first_chunk::<PREFIX_LENGTH>() {
            let length = PREFIX_LENGTH + message_length(prefix);
            self.length = length as u64;
            if start.len() >= length.min(FRAME_BYTES) {
                self.reply = Reply::parse(message);
                self.head.clear();
                return;
            }
        }
        self.head = start.to_vec();
    }
}

/// How a call ended.
pub struct Finished {
    pub slot: usize,
    pub call: Call,
    pub began: Instant,
    pub ended: Instant,
    /// grpc-status was 0, and the reply said what it has to.
    pub good: bool,
    /// The server said that it has too much to do and did nothing: a call to be made again.
    pub refused: bool,
    pub reply: Reply,
    pub bytes: u64,
}

pub struct Connection {
    pub wire: Wire,
    /// Trailers that said OK and only read the decoder's table; forgotten when the table is written.
    known_good: Vec<u8>,
    fields: Fields,
    started: bool,
    settled: bool,
    send_window: i64,
    stream_window: i64,
    streams_max: usize,
    table_bytes: u32,
    next_stream: u32,
    slots: Vec<Slot>,
    free: Vec<usize>,
    in_flight: usize,
    /// The trailers read last were a refusal.
    refused: bool,
}

impl Connection {
    /// Connects, and waits for the server's settings. `methods` is how many recipes its calls may have.
    pub fn open(address: SocketAddr, methods: usize, streams: usize) -> io::Result<Self> {
        let wire = Wire::connect(address, INPUT_BYTES, STREAM_WINDOW)?;
        wire.socket().set_read_timeout(Some(HANDSHAKE))?;
        let mut connection = Self {
            wire,
            known_good: Vec::with_capacity(64),
            fields: Fields::new(address.to_string(), methods, TABLE_BYTES as u32),
            started: false,
            settled: false,
            send_window: INITIAL_WINDOW.into(),
            stream_window: INITIAL_WINDOW.into(),
            streams_max: streams,
            table_bytes: TABLE_BYTES as u32,
            next_stream: 1,
            slots: vec![Slot::default(); streams],
            free: (0..streams).rev().collect(),
            in_flight: 0,
            refused: false,
        };
        connection.wire.flush()?;
        while !connection.settled {
            connection.receive(&mut |_| ())?;
            connection.wire.flush()?;
        }
        if connection.table_bytes < TABLE_BYTES as u32 {
            connection.fields = Fields::new(address.to_string(), methods, connection.table_bytes);
        }
        connection.wire.socket().set_nonblocking(true)?;
        Ok(connection)
    }

    /// The slot that the next call gets, if it may start now, by the streams and the windows.
    pub fn free_slot(&self, recipe_bytes_max: usize) -> Option<usize> {
        let slot = *self.free.last()?;
        self.has_room(slot, recipe_bytes_max).then_some(slot)
    }

    /// Whether a call may start in a free slot now.
    pub fn has_room(&self, slot: usize, recipe_bytes_max: usize) -> bool {
        let needs = (recipe_bytes_max + PREFIX_LENGTH).min(FRAME_BYTES) as i64;
        let window = if self.slots[slot].stream == 0 {
            self.stream_window
        } else {
            self.slots[slot].window
        };
        self.in_flight < self.streams_max && self.send_window >= needs && window >= needs
    }

    /// Queues a call in `slot`, which is free and has room. Its latency counts from `began`.
    #[inline]
    pub fn start(&mut self, slot: usize, recipe: &Recipe, call: Call, stamp: u64, began: Instant) {
        // The slot that was freed last, nearly always.
        let place = self.free.iter().rposition(|free| *free == slot);
        self.free.remove(place.expect("the slot is free"));
        if self.slots[slot].stream != 0 && !recipe.streaming {
            self.cancel(slot);
        }
        let fresh = self.slots[slot].stream == 0;
        if fresh {
            let output = &mut self.wire.output;
            let start = output.len();
            output.resize(start + HEADER_LENGTH, 0);
            self.fields.write(output, call.recipe, recipe.path);
            let header = FrameHeader {
                length: output.len() - start - HEADER_LENGTH,
                kind: kind::HEADERS,
                flags: flag::END_HEADERS,
                stream: self.next_stream,
            };
            output[start..start + HEADER_LENGTH].copy_from_slice(&header.bytes());
        }
        let place = &mut self.slots[slot];
        if fresh {
            place.stream = self.next_stream;
            place.window = self.stream_window;
            self.next_stream += 2;
        }
        (place.call, place.began, place.bytes) = (call, Some(began), 0);
        (place.reply, place.length) = (Reply::default(), 0);
        place.head.clear();
        (place.streaming, place.accept) = (recipe.streaming, Some(recipe.accept));
        self.started = true;
        self.in_flight += 1;
        let length = PREFIX_LENGTH + recipe.length();
        if length > FRAME_BYTES {
            write_message(&mut place.rest, recipe, &call, stamp);
            self.send_rest(slot);
            return;
        }
        let flags = if recipe.streaming { 0 } else { flag::END_STREAM };
        self.wire.frame(kind::DATA, flags, place.stream, length);
        write_message(&mut self.wire.output, recipe, &call, stamp);
        place.window -= length as i64;
        self.send_window -= length as i64;
    }

    /// Gives a long stream up that has no call on its way.
    fn cancel(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        assert!(place.streaming && place.began.is_none());
        self.wire.frame(kind::RST_STREAM, 0, place.stream, 4);
        self.wire.output.extend_from_slice(&ErrorCode::CANCEL.0.to_be_bytes());
        place.stream = 0;
    }

    /// Sends as much of a large message as the windows take.
    fn send_rest(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        let mut rest = &place.rest[..];
        while !rest.is_empty() {
            let length = rest
                .len()
                .min(FRAME_BYTES)
                .min(self.send_window.min(place.window).max(0) as usize);
            if length == 0 {
                break;
            }
            let (part, behind) = rest.split_at(length);
            let last = behind.is_empty() && !place.streaming;
            let flags = if last { flag::END_STREAM } else { 0 };
            self.wire.frame(kind::DATA, flags, place.stream, length);
            self.wire.output.extend_from_slice(part);
            place.window -= length as i64;
            self.send_window -= length as i64;
            rest = behind;
        }
        let sent = place.rest.len() - rest.len();
        place.rest.drain(..sent);
    }

    /// Reads once and tells `done` of every call that ended.
    pub fn receive(&mut self, done: &mut impl FnMut(Finished)) -> io::Result<()> {
        let Some(mut input) = self.wire.read()? else {
            // While the connection is opened the socket blocks, and this is its time that ran out.
            return match self.settled {
                true => Ok(()),
                false => Err(io::Error::new(ErrorKind::TimedOut, "the server sent no settings")),
            };
        };
        let now = Instant::now();
        while let Some((header, payload)) = input.next() {
            self.handle(header, payload, now, done)?;
        }
        self.wire.put_back(input);
        Ok(())
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
                self.data(header.stream, payload, now, done);
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
                self.wire.answer_ping(payload);
                Ok(())
            }
            kind::WINDOW_UPDATE => self.window_update(header.stream, i64::from(number(payload)? & 0x7fff_ffff)),
            kind::SETTINGS | kind::PING => Ok(()),
            kind::GOAWAY => Err(io::Error::other(format!(
                "the server says goodbye: {}",
                payload.escape_ascii()
            ))),
            _ => Err(io::Error::other(format!(
                "a frame this client does not know: {header:?}"
            ))),
        }
    }

    fn window_update(&mut self, stream: u32, bytes: i64) -> io::Result<()> {
        if stream == 0 {
            self.send_window += bytes;
            for slot in 0..self.slots.len() {
                if !self.slots[slot].rest.is_empty() {
                    self.send_rest(slot);
                }
            }
        } else if let Some(slot) = self.slots.iter().position(|slot| slot.stream == stream) {
            self.slots[slot].window += bytes;
            self.send_rest(slot);
        }
        Ok(())
    }

    #[inline]
    fn data(&mut self, stream: u32, payload: &[u8], now: Instant, done: &mut impl FnMut(Finished)) {
        self.wire.take_from_window(payload.len());
        let Some(slot) = self.slots.iter().position(|slot| slot.stream == stream) else {
            return;
        };
        let place = &mut self.slots[slot];
        place.begin_reply(payload);
        place.bytes += payload.len() as u64;
        if place.streaming && place.began.is_some() && place.length > 0 && place.bytes >= place.length {
            self.end(slot, true, now, done);
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
        self.wire.decode(block)?;
        let good = self.wire.list.get("grpc-status") == Some(b"0");
        if trailers && reads_only && good {
            self.known_good.extend_from_slice(block);
        }
        if trailers && !good {
            self.refused = self.wire.list.get("grpc-message") == Some(TOO_MANY);
            if !self.refused {
                self.complain();
            }
        }
        Ok(good)
    }

    /// Shows the first trailers of a run that say something else than OK.
    fn complain(&self) {
        static COMPLAINTS: AtomicUsize = AtomicUsize::new(0);
        if COMPLAINTS.fetch_add(1, Ordering::Relaxed) < COMPLAINTS_SHOWN {
            eprintln!("ringd-bench: a call failed:{}", self.wire.fields());
        }
    }

    #[inline]
    fn finish(&mut self, stream: u32, good: bool, now: Instant, done: &mut impl FnMut(Finished)) -> io::Result<()> {
        let Some(slot) = self.slots.iter().position(|slot| slot.stream == stream) else {
            // RST_STREAM(NO_ERROR) may follow a whole reply.
            return Ok(());
        };
        if self.slots[slot].streaming {
            return Err(io::Error::other("the server ended a stream that was to go on"));
        }
        self.slots[slot].stream = 0;
        self.slots[slot].rest.clear();
        self.end(slot, good, now, done);
        if self.next_stream > LAST_STREAM {
            return Err(io::Error::other("out of stream numbers: make the run shorter"));
        }
        Ok(())
    }

    /// The call in `slot` has its answer.
    #[inline]
    fn end(&mut self, slot: usize, good: bool, now: Instant, done: &mut impl FnMut(Finished)) {
        let place = &mut self.slots[slot];
        let Some(began) = place.began.take() else { return };
        let accepted = match place.accept {
            Some(Accept::Bytes(least)) => place.bytes >= u64::from(least),
            Some(Accept::Succeeded) => place.reply.second == 1,
            Some(Accept::Decided) => place.bytes > 0,
            Some(Accept::Alive) => place.reply.third > 0,
            None => false,
        };
        let finished = Finished {
            slot,
            call: place.call,
            began,
            ended: now,
            good: good && accepted,
            refused: std::mem::take(&mut self.refused),
            reply: place.reply,
            bytes: place.bytes,
        };
        self.free.push(slot);
        self.in_flight -= 1;
        done(finished);
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
        self.wire.acknowledge_settings();
        Ok(())
    }
}

fn number(bytes: &[u8]) -> io::Result<u32> {
    let bytes = bytes
        .first_chunk()
        .ok_or_else(|| io::Error::other("a frame of four bytes is shorter"))?;
    Ok(u32::from_be_bytes(*bytes))
}

/// Appends a gRPC message.
#[inline]
fn write_message(out: &mut Vec<u8>, recipe: &Recipe, call: &Call, stamp: u64) {
    write_prefix(out, recipe.length());
    recipe.write(out, call, stamp);
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use ringd::proto::etcdserverpb::{ResponseHeader, TxnResponse};

    #[test]
    fn an_answer_in_pieces_is_read_once_it_is_there() {
        let response = TxnResponse {
            header: Some(ResponseHeader {
                revision: 77,
                ..Default::default()
            }),
            succeeded: true,
            ..Default::default()
        };
        let mut bytes = Vec::new();
        write_prefix(&mut bytes, response.encoded_len());
        bytes.extend(response.encode_to_vec());
        for size in 1..=bytes.len() {
            let mut slot = Slot::default();
            for piece in bytes.chunks(size) {
                slot.begin_reply(piece);
                slot.bytes += piece.len() as u64;
            }
            assert_eq!((slot.reply.revision, slot.reply.second), (77, 1), "in pieces of {size}");
            assert!(slot.head.is_empty());
        }
    }
}
