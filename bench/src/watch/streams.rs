//! The client's half of one HTTP/2 connection that carries Watch streams.
//!
//! Every message is taken at once. A watch that ends, ends the run.

use super::event::{self, Event, Head};
use crate::load::fields::Fields;
use crate::wire::{PREFIX_LENGTH, Wire, message_length, write_prefix};
use prost::Message;
use ringd::http::frame::{FrameHeader, flag, kind};
use ringd::proto::etcdserverpb::WatchCreateRequest;
use ringd::proto::etcdserverpb::{WatchRequest, watch_request::RequestUnion};
use std::io;
use std::net::SocketAddr;

const INPUT_BYTES: usize = 1 << 20;
const STREAM_WINDOW: u32 = 16 << 20;

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
    pub wire: Wire,
    fields: Fields,
    streams: Vec<Stream>,
    /// Watches that were created.
    pub created: usize,
}

impl Streams {
    /// Connects.
    pub fn open(address: SocketAddr) -> io::Result<Streams> {
        let wire = Wire::connect(address, INPUT_BYTES, STREAM_WINDOW)?;
        wire.socket().set_nonblocking(true)?;
        Ok(Streams {
            wire,
            // Nothing is known of the server's table yet, so nothing goes into it.
            fields: Fields::new(address.to_string(), 1, 0),
            streams: Vec::new(),
            created: 0,
        })
    }

    /// Queues a stream with these watches.
    pub fn watch(&mut self, watches: Vec<WatchCreateRequest>) {
        let number = self.open_stream();
        for create in watches {
            self.add(number, create);
        }
    }

    /// Queues a stream without watches. Returns its number.
    pub fn open_stream(&mut self) -> u32 {
        let number = 2 * self.streams.len() as u32 + 1;
        let mut block = Vec::new();
        self.fields.write(&mut block, 0, "/etcdserverpb.Watch/Watch");
        self.wire.frame(kind::HEADERS, flag::END_HEADERS, number, block.len());
        self.wire.output.extend_from_slice(&block);
        self.streams.push(Stream {
            partial: Vec::new(),
            received: 0,
            newest: Vec::new(),
        });
        number
    }

    /// Queues one more watch of a stream. How much the server takes at a time is the caller's to see to.
    pub fn add(&mut self, number: u32, create: WatchCreateRequest) {
        let request = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        let message = request.encode_to_vec();
        self.wire.frame(kind::DATA, 0, number, PREFIX_LENGTH + message.len());
        write_prefix(&mut self.wire.output, message.len());
        self.wire.output.extend_from_slice(&message);
        self.streams[number as usize / 2].newest.push(0);
    }

    /// Reads once and tells of every event.
    pub fn receive(&mut self, event: &mut impl FnMut(Event<'_>)) -> io::Result<()> {
        let Some(mut input) = self.wire.read()? else {
            return Ok(());
        };
        while let Some((header, payload)) = input.next() {
            self.handle(header, payload, event)?;
        }
        self.wire.put_back(input);
        Ok(())
    }

    fn handle(&mut self, header: FrameHeader, payload: &[u8], event: &mut impl FnMut(Event<'_>)) -> io::Result<()> {
        match header.kind {
            kind::DATA if !header.has(flag::PADDED) && !header.has(flag::END_STREAM) => {
                self.data(header.stream, payload, event)
            }
            kind::HEADERS if header.flags & !flag::END_STREAM == flag::END_HEADERS => {
                self.wire.decode(payload)?;
                match header.has(flag::END_STREAM) {
                    true => Err(io::Error::other(format!("a watch ended:{}", self.wire.fields()))),
                    false => Ok(()),
                }
            }
            kind::SETTINGS if !header.has(flag::ACK) => {
                self.wire.acknowledge_settings();
                Ok(())
            }
            kind::PING if !header.has(flag::ACK) => {
                self.wire.answer_ping(payload);
                Ok(())
            }
            kind::WINDOW_UPDATE | kind::SETTINGS | kind::PING => Ok(()),
            _ => Err(io::Error::other(format!(
                "a watch ended, or a frame this client does not know: {header:?}"
            ))),
        }
    }

    #[inline]
    fn data(&mut self, number: u32, payload: &[u8], event: &mut impl FnMut(Event<'_>)) -> io::Result<()> {
        let stream = (self.streams.get_mut(number as usize / 2))
            .ok_or_else(|| io::Error::other(format!("DATA for stream {number}, which was never opened")))?;
        stream.received += payload.len() as u32;
        self.created += stream.take(payload, event)?;
        if stream.received > STREAM_WINDOW / 2 {
            self.wire.grant(number, std::mem::take(&mut stream.received));
        }
        self.wire.take_from_window(payload.len());
        Ok(())
    }
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
            let Some((message, behind)) = behind.split_at_checked(message_length(prefix)) else {
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
            // The changes of one revision come in one message.
            let rises = found.mod_revision >= last;
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
