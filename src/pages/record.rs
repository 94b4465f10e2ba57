//! A record: one version of one key, and how its fields lie in a leaf.
//!
//! The head of a leaf entry holds what the index needs (user key and metadata); the value follows it there when it is
//! short and lies in an extent otherwise. A user key too long for a leaf lies in the extent too, in front of the value.

use super::cache::Block;
use super::codec::{put_varint, take, take_u8, take_u64, take_varint};
use super::node::{LeafEntry, Node};
use crate::limits::pages::{INLINE_VALUE_MAX_BYTES, KEY_MAX_BYTES};
use bytes::Bytes;

/// Bytes of an encoded `RecordId`.
pub(super) const ID_BYTES: usize = 12;
const TOMBSTONE: u8 = 1;
const LEASE: u8 = 2;
const KEY_OUTSIDE: u8 = 4;
const VALUE_OUTSIDE: u8 = 8;
const FLAGS: u8 = TOMBSTONE | LEASE | KEY_OUTSIDE | VALUE_OUTSIDE;

/// The revision of a record: position in the history of the store. Ordered by `main`, then `sub`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// The store revision; never negative.
    pub main: i64,
    /// The ordinal of the key within the transaction, from 0.
    pub sub: u32,
}

impl RecordId {
    /// Before every record.
    pub const ZERO: RecordId = RecordId { main: 0, sub: 0 };

    /// An id from its parts.
    pub const fn new(main: i64, sub: u32) -> RecordId {
        RecordId { main, sub }
    }

    /// The id after this one.
    pub fn next(self) -> RecordId {
        match self.sub.checked_add(1) {
            Some(sub) => RecordId { sub, ..self },
            None => RecordId {
                main: self.main.saturating_add(1),
                sub: 0,
            },
        }
    }

    pub(super) fn encode(self) -> [u8; ID_BYTES] {
        let mut out = [0; ID_BYTES];
        out[..8].copy_from_slice(&(self.main as u64).to_be_bytes());
        out[8..].copy_from_slice(&self.sub.to_be_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<RecordId> {
        let (main, sub) = bytes.split_at_checked(8)?;
        let main = i64::try_from(u64::from_be_bytes(main.try_into().ok()?)).ok()?;
        Some(RecordId {
            main,
            sub: u32::from_be_bytes(sub.try_into().ok()?),
        })
    }
}

/// A record on its way into the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRecord {
    /// Its revision.
    pub id: RecordId,
    /// Whether it is a deletion.
    pub tombstone: bool,
    /// The user key.
    pub key: Bytes,
    /// Main revision of the key's creation; 0 in a tombstone.
    pub create_revision: i64,
    /// 1 for the first version of a generation; 0 in a tombstone.
    pub version: i64,
    /// 0 when no lease is attached.
    pub lease: i64,
    /// The value.
    pub value: Bytes,
}

impl NewRecord {
    /// The record, borrowed.
    pub fn view(&self) -> RecordView<'_> {
        RecordView {
            id: self.id,
            tombstone: self.tombstone,
            key: &self.key,
            create_revision: self.create_revision,
            version: self.version,
            lease: self.lease,
            value: &self.value,
        }
    }

    /// The head of its leaf entry, and what goes into an extent.
    pub(super) fn encode(&self) -> (Vec<u8>, Option<Bytes>) {
        let key_outside = self.key.len() > KEY_MAX_BYTES;
        let value_outside = key_outside || self.value.len() > INLINE_VALUE_MAX_BYTES;
        let mut head = Vec::with_capacity(32 + self.key.len().min(KEY_MAX_BYTES) + INLINE_VALUE_MAX_BYTES);
        head.push(
            if self.tombstone { TOMBSTONE } else { 0 }
                | if self.lease != 0 { LEASE } else { 0 }
                | if key_outside { KEY_OUTSIDE } else { 0 }
                | if value_outside { VALUE_OUTSIDE } else { 0 },
        );
        put_varint(&mut head, self.create_revision as u64);
        put_varint(&mut head, self.version as u64);
        if self.lease != 0 {
            head.extend_from_slice(&self.lease.to_le_bytes());
        }
        put_varint(&mut head, self.key.len() as u64);
        if key_outside {
            let mut outside = Vec::with_capacity(self.key.len() + self.value.len());
            outside.extend_from_slice(&self.key);
            outside.extend_from_slice(&self.value);
            return (head, Some(outside.into()));
        }
        head.extend_from_slice(&self.key);
        if value_outside {
            return (head, Some(self.value.clone()));
        }
        head.extend_from_slice(&self.value);
        (head, None)
    }
}

/// A stored record, borrowed from the pages it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its revision.
    pub id: RecordId,
    /// Whether it is a deletion.
    pub tombstone: bool,
    /// The user key.
    pub key: &'a [u8],
    /// Main revision of the key's creation; 0 in a tombstone.
    pub create_revision: i64,
    /// 1 for the first version of a generation; 0 in a tombstone.
    pub version: i64,
    /// 0 when no lease is attached.
    pub lease: i64,
    /// The value.
    pub value: &'a [u8],
}

/// A record without its value: all that rebuilding the index takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead<'a> {
    /// Its revision.
    pub id: RecordId,
    /// Whether it is a deletion.
    pub tombstone: bool,
    /// The user key.
    pub key: &'a [u8],
    /// Main revision of the key's creation; 0 in a tombstone.
    pub create_revision: i64,
    /// 1 for the first version of a generation; 0 in a tombstone.
    pub version: i64,
    /// 0 when no lease is attached.
    pub lease: i64,
    /// Length of the value in bytes.
    pub value_length: usize,
}

/// A leaf entry read as a record; parts in an extent are lengths only.
#[derive(Clone, Copy)]
pub(super) struct Parsed<'a> {
    pub head: RecordHead<'a>,
    /// Length of the key at the front of the extent's bytes; 0 when it lies in the leaf.
    pub key_outside: usize,
    /// The value when it lies in the leaf.
    inline: &'a [u8],
}

/// Reads a leaf entry; `None` when it is not a record.
pub(super) fn parse<'a>(entry: &LeafEntry<'a>) -> Option<Parsed<'a>> {
    let mut head = entry.head;
    let flags = take_u8(&mut head)?;
    if flags & !FLAGS != 0 || (flags & VALUE_OUTSIDE != 0) != entry.outside.is_some() {
        return None;
    }
    if flags & KEY_OUTSIDE != 0 && entry.outside.is_none() {
        return None;
    }
    let create_revision = take_varint(&mut head)? as i64;
    let version = take_varint(&mut head)? as i64;
    let lease = if flags & LEASE == 0 {
        0
    } else {
        take_u64(&mut head)? as i64
    };
    let key_length = usize::try_from(take_varint(&mut head)?).ok()?;
    let key_outside = if flags & KEY_OUTSIDE == 0 { 0 } else { key_length };
    let key = if key_outside == 0 {
        take(&mut head, key_length)?
    } else {
        &[]
    };
    let value_length = match entry.outside {
        None => head.len(),
        Some(outside) if head.is_empty() => (outside.length as usize).checked_sub(key_outside)?,
        Some(_) => return None,
    };
    Some(Parsed {
        head: RecordHead {
            id: RecordId::decode(entry.key)?,
            tombstone: flags & TOMBSTONE != 0,
            key,
            create_revision,
            version,
            lease,
            value_length,
        },
        key_outside,
        inline: head,
    })
}

impl<'a> Parsed<'a> {
    /// The record, given its bytes of the extent (empty when it has none).
    pub fn view(&self, outside: &'a [u8]) -> RecordView<'a> {
        let (key, value) = outside.split_at(self.key_outside);
        let head = self.head;
        RecordView {
            id: head.id,
            tombstone: head.tombstone,
            key: if self.key_outside == 0 { head.key } else { key },
            create_revision: head.create_revision,
            version: head.version,
            lease: head.lease,
            value: if outside.is_empty() { self.inline } else { value },
        }
    }

    /// The record without its value, given its bytes of the extent.
    pub fn head_with(&self, outside: &'a [u8]) -> RecordHead<'a> {
        RecordHead {
            key: &outside[..self.key_outside],
            ..self.head
        }
    }
}

/// A stored record. Holds the pages it lies in, whatever the cache drops meanwhile.
#[derive(Clone)]
pub struct Record {
    pub(super) leaf: Block,
    pub(super) index: usize,
    pub(super) extent: Option<Block>,
}

impl Record {
    /// The fields.
    pub fn view(&self) -> RecordView<'_> {
        let entry = Node::new(self.leaf.bytes()).leaf_entry(self.index);
        let outside = match (&self.extent, entry.outside) {
            (Some(extent), Some(outside)) => extent.outside(&outside),
            _ => &[],
        };
        parse(&entry).expect("checked when it was found").view(outside)
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::{decode_leaf_entry, encode_leaf_entry};
    use super::*;

    #[test]
    fn ids_order_as_their_bytes() {
        let ids = [
            RecordId::ZERO,
            RecordId::new(1, 0),
            RecordId::new(1, 256),
            RecordId::new(300, 0),
        ];
        assert!(ids.windows(2).all(|pair| pair[0].encode() < pair[1].encode()));
        assert!(ids.iter().all(|id| RecordId::decode(&id.encode()) == Some(*id)));
        assert_eq!(RecordId::new(1, u32::MAX).next(), RecordId::new(2, 0));
        assert_eq!(RecordId::decode(&[0xff; 12]), None);
    }

    #[test]
    fn short_records_lie_in_the_leaf_whole() {
        let record = NewRecord {
            id: RecordId::new(7, 1),
            tombstone: false,
            key: "key".into(),
            create_revision: 5,
            version: 2,
            lease: -3,
            value: "value".into(),
        };
        let (head, outside) = record.encode();
        assert_eq!(outside, None);
        let mut bytes = Vec::new();
        encode_leaf_entry(&mut bytes, &record.id.encode(), &head, None);
        let entry = decode_leaf_entry(&bytes).unwrap();
        assert_eq!(parse(&entry).unwrap().view(&[]), record.view());
        for length in 0..head.len() - 5 {
            let cut = LeafEntry {
                head: &head[..length],
                ..entry
            };
            assert!(parse(&cut).is_none(), "{length}");
        }
    }
}
