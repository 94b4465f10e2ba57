//! One version of one key in the byte form that the API, the page store and bbolt share: `mvccpb.KeyValue`.
//!
//! A record is encoded once, by apply, and from then on only copied. The encoding is the one Go's protobuf produces
//! (fields in number order, zero values left out), so that HashKV equals etcd's for equal history. A tombstone's
//! stored value holds the key alone.

use crate::pages::RecordView;
use bytes::BufMut;

/// The fields of an `mvccpb.KeyValue`, borrowed from its encoded bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValueView<'a> {
    /// Field 1.
    pub key: &'a [u8],
    /// Field 2: main revision of the key's creation; 0 in a tombstone.
    pub create_revision: i64,
    /// Field 3: main revision of this version; 0 in a stored tombstone.
    pub mod_revision: i64,
    /// Field 4: 1 for the first version of a generation.
    pub version: i64,
    /// Field 5.
    pub value: &'a [u8],
    /// Field 6: 0 when no lease is attached.
    pub lease: i64,
}

impl<'a> KeyValueView<'a> {
    /// A record of the page store as an event shows it (a deletion: key and revision), or a live one as `prev_kv` does.
    pub fn of_event(record: &RecordView<'a>) -> KeyValueView<'a> {
        KeyValueView {
            key: record.key,
            create_revision: record.create_revision,
            mod_revision: record.id.main,
            version: record.version,
            value: record.value,
            lease: record.lease,
        }
    }

    /// A record of the page store as the window and etcd's database hold it: of a tombstone the key alone.
    pub fn of_stored(record: &RecordView<'a>) -> KeyValueView<'a> {
        match record.tombstone {
            true => KeyValueView {
                key: record.key,
                ..Default::default()
            },
            false => KeyValueView::of_event(record),
        }
    }

    /// Bytes that `encode` will write.
    pub fn encoded_length(&self) -> usize {
        self.encoded_length_with(self.value.len())
    }

    /// Bytes that `encode` would write if the value had this length.
    pub fn encoded_length_with(&self, value_length: usize) -> usize {
        bytes_length(self.key.len())
            + integer_length(self.create_revision)
            + integer_length(self.mod_revision)
            + integer_length(self.version)
            + bytes_length(value_length)
            + integer_length(self.lease)
    }

    /// Appends the protobuf encoding.
    pub fn encode(&self, out: &mut impl BufMut) {
        put_bytes(out, 0x0a, self.key);
        put_integer(out, 0x10, self.create_revision);
        put_integer(out, 0x18, self.mod_revision);
        put_integer(out, 0x20, self.version);
        put_bytes(out, 0x2a, self.value);
        put_integer(out, 0x30, self.lease);
    }

    /// Reads an encoding made by `encode`, by Go or by prost. `None` when the bytes are not a `KeyValue`.
    pub fn decode(mut bytes: &'a [u8]) -> Option<KeyValueView<'a>> {
        let mut view = KeyValueView::default();
        while !bytes.is_empty() {
            match take_varint(&mut bytes)? {
                0x0a => view.key = take_bytes(&mut bytes)?,
                0x10 => view.create_revision = take_varint(&mut bytes)? as i64,
                0x18 => view.mod_revision = take_varint(&mut bytes)? as i64,
                0x20 => view.version = take_varint(&mut bytes)? as i64,
                0x2a => view.value = take_bytes(&mut bytes)?,
                0x30 => view.lease = take_varint(&mut bytes)? as i64,
                _ => return None,
            }
        }
        Some(view)
    }
}

/// Bytes that `put_varint` writes for `value`: 1 to 10.
pub fn varint_length(value: u64) -> usize {
    ((64 - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Appends a protobuf varint.
pub fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Takes a protobuf varint off the front; `None` when it is cut short or longer than ten bytes.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * shift);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_varint(bytes)?).ok()?;
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn bytes_length(length: usize) -> usize {
    if length == 0 {
        0
    } else {
        1 + varint_length(length as u64) + length
    }
}

fn integer_length(value: i64) -> usize {
    if value == 0 { 0 } else { 1 + varint_length(value as u64) }
}

fn put_bytes(out: &mut impl BufMut, tag: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.put_u8(tag);
        put_varint(out, bytes.len() as u64);
        out.put_slice(bytes);
    }
}

fn put_integer(out: &mut impl BufMut, tag: u8, value: i64) {
    if value != 0 {
        out.put_u8(tag);
        put_varint(out, value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_in_field_order_and_omits_zeroes() {
        let view = KeyValueView {
            key: b"k",
            create_revision: 2,
            mod_revision: 300,
            version: 1,
            value: b"v",
            lease: -1,
        };
        let mut out = Vec::new();
        view.encode(&mut out);
        assert_eq!(out.len(), view.encoded_length());
        assert_eq!(&out[..13], b"\x0a\x01k\x10\x02\x18\xac\x02\x20\x01\x2a\x01v");
        assert_eq!(KeyValueView::decode(&out), Some(view));
        let mut tombstone = Vec::new();
        KeyValueView {
            key: b"k",
            ..Default::default()
        }
        .encode(&mut tombstone);
        assert_eq!(tombstone, b"\x0a\x01k");
        assert_eq!(KeyValueView::decode(&out[..out.len() - 1]), None);
    }
}
