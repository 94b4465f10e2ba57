//! The streams of one connection: their states, their queues, and the table that finds them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::{Buf, Bytes};
use rustc_hash::FxBuildHasher;
use slab::Slab;

use super::flow::{ReceiveWindow, SendWindow};

/// Names one stream of a connection for as long as the connection lives; a key of a stream that is gone finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    id: u32,
    slot: u32,
}

impl StreamKey {
    /// The stream identifier of RFC 9113.
    pub fn id(self) -> u32 {
        self.id
    }

    /// A small number that no other open stream of the connection has, for tables beside this one.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// The key as one number, for tokens.
    pub fn to_u64(self) -> u64 {
        u64::from(self.id) << 32 | u64::from(self.slot)
    }

    /// The inverse of [`to_u64`](Self::to_u64).
    pub fn from_u64(number: u64) -> Self {
        Self {
            id: (number >> 32) as u32,
            slot: number as u32,
        }
    }
}

/// How far our half of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// No response header yet.
    Silent,
    /// The header is out, data may follow.
    Open,
    /// The end is queued or out; nothing may follow.
    Ended,
}

/// What ends a queue.
#[derive(Debug)]
pub(crate) enum Tail {
    /// Nothing yet.
    None,
    /// END_STREAM on the last DATA frame.
    EndStream,
    /// Trailers.
    Trailers(OwnedFields),
}

/// Trailers that wait behind data. They are encoded when their turn comes, as HPACK blocks have to leave in the order
/// in which they are encoded.
#[derive(Debug)]
pub(crate) struct OwnedFields(pub Vec<OwnedField>);

#[derive(Debug)]
pub(crate) struct OwnedField {
    pub name: Box<str>,
    pub value: Box<[u8]>,
    pub repeated: bool,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub id: u32,
    /// Whether the peer may still send.
    pub remote_open: bool,
    pub local: Local,
    /// Whether the stream stands in the ready queue.
    pub is_ready: bool,
    /// Whether the producer was told to wait and wants to hear when it need not.
    pub wants_writable: bool,
    pub send: SendWindow,
    pub receive: ReceiveWindow,
    /// Bytes of content still announced by content-length.
    pub content_left: Option<u64>,
    queue: VecDeque<Bytes>,
    pub queued: usize,
    pub tail: Tail,
    /// When the response last moved, or began to wait.
    pub progressed: Duration,
}

impl Stream {
    pub fn new(id: u32, send: SendWindow, receive: ReceiveWindow) -> Self {
        Self {
            id,
            remote_open: true,
            local: Local::Silent,
            is_ready: false,
            wants_writable: false,
            send,
            receive,
            content_left: None,
            queue: VecDeque::new(),
            queued: 0,
            tail: Tail::None,
            progressed: Duration::ZERO,
        }
    }

    /// Whether something waits to be sent.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.queued > 0 || !matches!(self.tail, Tail::None)
    }

    /// Whether the scheduler could do something for the stream, the connection's window aside.
    pub fn is_sendable(&self) -> bool {
        (self.queued > 0 && self.send.available() > 0) || (self.queued == 0 && !matches!(self.tail, Tail::None))
    }

    pub fn enqueue(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.queued += data.len();
            self.queue.push_back(data);
        }
    }

    /// Moves `length` queued bytes to `out`.
    pub fn dequeue(&mut self, mut length: usize, out: &mut Vec<u8>) {
        debug_assert!(length <= self.queued);
        self.queued -= length;
        while length > 0 {
            let Some(front) = self.queue.front_mut() else { break };
            let part = length.min(front.len());
            out.extend_from_slice(&front[..part]);
            length -= part;
            if part == front.len() {
                self.queue.pop_front();
            } else {
                front.advance(part);
            }
        }
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
    }
}

/// All open streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    slots: Slab<Stream>,
    by_id: HashMap<u32, u32, FxBuildHasher>,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn insert(&mut self, stream: Stream) -> StreamKey {
        let id = stream.id;
        let slot = self.slots.insert(stream) as u32;
        self.by_id.insert(id, slot);
        StreamKey { id, slot }
    }

    #[inline]
    pub fn find(&self, id: u32) -> Option<StreamKey> {
        self.by_id.get(&id).map(|slot| StreamKey { id, slot: *slot })
    }

    #[inline]
    pub fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.slots.get(key.slot()).filter(|stream| stream.id == key.id)
    }

    #[inline]
    pub fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.slot()).filter(|stream| stream.id == key.id)
    }

    pub fn remove(&mut self, key: StreamKey) -> Option<Stream> {
        self.get(key)?;
        self.by_id.remove(&key.id);
        let stream = self.slots.remove(key.slot());
        if self.slots.is_empty() {
            self.shrink();
        }
        Some(stream)
    }

    /// A connection that once had many streams does not keep their memory.
    fn shrink(&mut self) {
        const KEEP: usize = 64;
        if self.slots.capacity() > KEEP {
            self.slots = Slab::new();
            self.by_id = HashMap::default();
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = StreamKey> {
        self.slots.iter().map(|(slot, stream)| StreamKey {
            id: stream.id,
            slot: slot as u32,
        })
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (StreamKey, &mut Stream)> {
        self.slots.iter_mut().map(|(slot, stream)| {
            (
                StreamKey {
                    id: stream.id,
                    slot: slot as u32,
                },
                stream,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: u32) -> Stream {
        Stream::new(id, SendWindow::new(10), ReceiveWindow::new(10))
    }

    #[test]
    fn a_key_does_not_find_the_next_stream_in_its_slot() {
        let mut streams = Streams::default();
        let first = streams.insert(stream(1));
        assert_eq!(StreamKey::from_u64(first.to_u64()), first);
        assert!(streams.remove(first).is_some());
        assert!(streams.remove(first).is_none());
        let second = streams.insert(stream(3));
        assert_eq!(first.slot(), second.slot());
        assert!(streams.get(first).is_none());
        assert_eq!(streams.find(3), Some(second));
        assert_eq!(streams.find(1), None);
    }

    #[test]
    fn a_queue_gives_its_bytes_in_order_across_chunks() {
        let mut stream = stream(1);
        for part in ["abc", "", "de", "f"] {
            stream.enqueue(Bytes::from_static(part.as_bytes()));
        }
        let mut out = Vec::new();
        stream.dequeue(1, &mut out);
        stream.dequeue(4, &mut out);
        assert_eq!((&out[..], stream.queued), (&b"abcde"[..], 1));
        stream.dequeue(1, &mut out);
        assert_eq!(out, b"abcdef");
        assert!(!stream.has_pending());
    }
}
