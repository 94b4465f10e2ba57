//! `etcdserverpb.WatchResponse` by hand: a small head per watch in front of events that are encoded once.
//!
//! Field numbers from etcd's `rpc.proto`: ResponseHeader {cluster_id 1, member_id 2, revision 3, raft_term 4};
//! WatchResponse {header 1, watch_id 2, created 3, canceled 4, compact_revision 5, cancel_reason 6, fragment 7,
//! events 11}; `mvccpb.Event` {type 1, kv 2, prev_kv 3}. Zero values are left out, as Go's protobuf does.

use crate::limits::{WATCH_SHARED_BYTES_MIN, WATCH_SHARED_FACTOR};
use crate::mvcc::record::{put_varint, varint_length};
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;

const EVENTS_TAG: u8 = 11 << 3 | 2;
const EVENT_TYPE_TAG: u8 = 1 << 3;
const EVENT_KV_TAG: u8 = 2 << 3 | 2;
const EVENT_PREVIOUS_TAG: u8 = 3 << 3 | 2;
/// `Event.EventType.DELETE`; PUT is 0.
const DELETE: u8 = 1;

/// The fields of a response in front of its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub cluster_id: u64,
    pub member_id: u64,
    pub revision: i64,
    pub raft_term: u64,
    pub watch_id: i64,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: i64,
    pub cancel_reason: &'a str,
    pub fragment: bool,
}

impl Head<'_> {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let header = [
            (0x08, self.cluster_id),
            (0x10, self.member_id),
            (0x18, self.revision as u64),
            (0x20, self.raft_term),
        ];
        let length: usize = header
            .iter()
            .filter(|(_, value)| *value != 0)
            .map(|(_, value)| 1 + varint_length(*value))
            .sum();
        out.put_u8(0x0a);
        put_varint(out, length as u64);
        for (tag, value) in header {
            put_integer(out, tag, value);
        }
        put_integer(out, 0x10, self.watch_id as u64);
        put_integer(out, 0x18, u64::from(self.created));
        put_integer(out, 0x20, u64::from(self.canceled));
        put_integer(out, 0x28, self.compact_revision as u64);
        if !self.cancel_reason.is_empty() {
            out.put_u8(0x32);
            put_varint(out, self.cancel_reason.len() as u64);
            out.put_slice(self.cancel_reason.as_bytes());
        }
        put_integer(out, 0x38, u64::from(self.fragment));
    }
}

fn put_integer(out: &mut Vec<u8>, tag: u8, value: u64) {
    if value != 0 {
        out.put_u8(tag);
        put_varint(out, value);
    }
}

/// Appends an event as an element of `WatchResponse.events`. Returns where its `kv` lies.
pub(super) fn put_event(out: &mut BytesMut, tombstone: bool, kv: &[u8], previous: Option<&[u8]>) -> Range<usize> {
    let field = |bytes: &[u8]| 1 + varint_length(bytes.len() as u64) + bytes.len();
    let length = if tombstone { 2 } else { 0 } + field(kv) + previous.map_or(0, field);
    out.reserve(length + 8);
    out.put_u8(EVENTS_TAG);
    put_varint(out, length as u64);
    if tombstone {
        out.put_slice(&[EVENT_TYPE_TAG, DELETE]);
    }
    out.put_u8(EVENT_KV_TAG);
    put_varint(out, kv.len() as u64);
    let start = out.len();
    out.put_slice(kv);
    if let Some(previous) = previous {
        out.put_u8(EVENT_PREVIOUS_TAG);
        put_varint(out, previous.len() as u64);
        out.put_slice(previous);
    }
    start..start + kv.len()
}

/// One encoded `WatchResponse`, on its way to a stream. Its events lie in bytes that other messages share.
pub struct Message<'a> {
    pub(super) head: &'a [u8],
    pub(super) batch: &'a Bytes,
    pub(super) events: &'a [Range<usize>],
}

impl Message<'_> {
    /// Bytes of the encoding.
    pub fn length(&self) -> usize {
        self.head.len() + self.events_length()
    }

    fn events_length(&self) -> usize {
        self.events.iter().map(|event| event.len()).sum()
    }

    /// Appends the encoding, copied.
    pub fn copy_to(&self, out: &mut impl BufMut) {
        out.put_slice(self.head);
        for event in self.events {
            out.put_slice(&self.batch[event.clone()]);
        }
    }

    /// The encoding as parts to be sent one behind the other. Large events are shared, not copied, unless that would
    /// keep far more alive than is sent.
    pub fn to_parts(&self) -> Vec<Bytes> {
        let length = self.events_length();
        if length < WATCH_SHARED_BYTES_MIN || length * WATCH_SHARED_FACTOR < self.batch.len() {
            let mut copy = Vec::with_capacity(self.length());
            self.copy_to(&mut copy);
            return vec![copy.into()];
        }
        let mut parts = vec![Bytes::copy_from_slice(self.head)];
        let mut rest = self.events;
        while let Some(first) = rest.first() {
            let mut part = first.clone();
            // Small neighbours become one part.
            let joined = rest.iter().skip(1).take_while(|event| {
                let adjacent = event.start == part.end;
                part.end = if adjacent { event.end } else { part.end };
                adjacent
            });
            let count = 1 + joined.count();
            parts.push(self.batch.slice(part));
            rest = &rest[count..];
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::record::KeyValueView;
    use crate::proto::{etcdserverpb, mvccpb};
    use prost::Message as _;

    fn key_value(key: &[u8], value: &[u8], version: i64) -> (mvccpb::KeyValue, Vec<u8>) {
        let view = KeyValueView {
            key,
            create_revision: 2,
            mod_revision: 300,
            version,
            value,
            lease: 5,
        };
        let mut bytes = Vec::new();
        view.encode(&mut bytes);
        (mvccpb::KeyValue::decode(&bytes[..]).unwrap(), bytes)
    }

    #[test]
    fn is_what_prost_encodes() {
        let (put, put_bytes) = key_value(b"k", &[7; 300], 2);
        let (previous, previous_bytes) = key_value(b"k", b"old", 1);
        let mut batch = BytesMut::new();
        let mut events = Vec::new();
        for (tombstone, previous) in [(false, None), (true, Some(&previous_bytes[..]))] {
            let start = batch.len();
            let kv = put_event(&mut batch, tombstone, &put_bytes, previous);
            assert_eq!(batch[kv], put_bytes);
            events.push(start..batch.len());
        }
        for (head, reason) in [(Head::default(), ""), (full_head(), "because")] {
            let mut bytes = Vec::new();
            head.encode(&mut bytes);
            let batch = batch.clone().freeze();
            let message = Message {
                head: &bytes,
                batch: &batch,
                events: &events,
            };
            let mut encoded = Vec::new();
            message.copy_to(&mut encoded);
            assert_eq!(encoded.len(), message.length());
            assert_eq!(message.to_parts().concat(), encoded);
            let decoded = etcdserverpb::WatchResponse::decode(&encoded[..]).unwrap();
            assert_eq!(decoded.encode_to_vec(), encoded);
            let header = decoded.header.as_ref().unwrap();
            assert_eq!((header.revision, header.raft_term), (head.revision, head.raft_term));
            assert_eq!((decoded.watch_id, &decoded.cancel_reason[..]), (head.watch_id, reason));
            assert_eq!((decoded.created, decoded.fragment), (head.created, head.fragment));
            assert_eq!(decoded.events[0].kv.as_ref(), Some(&put));
            assert_eq!(decoded.events[1].prev_kv.as_ref(), Some(&previous));
            assert_eq!((decoded.events[0].r#type, decoded.events[1].r#type), (0, 1));
        }
    }

    fn full_head() -> Head<'static> {
        Head {
            cluster_id: u64::MAX,
            member_id: 7,
            revision: 1 << 40,
            raft_term: 3,
            watch_id: -1,
            created: true,
            canceled: true,
            compact_revision: 9,
            cancel_reason: "because",
            fragment: true,
        }
    }

    #[test]
    fn shares_large_events_and_copies_small_ones() {
        let batch = Bytes::from(vec![1; 100_000]);
        let parts = |events: &[(usize, usize)]| {
            let events: Vec<_> = events.iter().map(|(start, end)| *start..*end).collect();
            let message = Message {
                head: b"head",
                batch: &batch,
                events: &events,
            };
            let parts = message.to_parts();
            assert_eq!(parts.iter().map(Bytes::len).sum::<usize>(), message.length());
            parts.len()
        };
        assert_eq!(parts(&[]), 1);
        assert_eq!(parts(&[(0, 4000)]), 1);
        assert_eq!(parts(&[(0, 5000)]), 1, "sharing would keep twenty times as much alive");
        assert_eq!(parts(&[(0, 10_000), (10_000, 20_000), (30_000, 50_000)]), 3);
    }
}
