//! What the log's records carry, in etcd's protobuf: `walpb.Record`'s payloads, encoded and decoded by hand.
//!
//! The messages are proto2: fields that etcd's generated code always sets are always written, zero or not, and in the
//! order of their numbers. Unknown fields are skipped, as protobuf asks. Sources: etcd 3.7 `walpb/record.proto`,
//! `etcdserverpb/etcdserver.proto` (`Metadata`), raft 3.7 `raftpb/raft.proto`.

use bytes::Bytes;
use std::fmt;

/// The type field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// [`Metadata`], at the head of every segment.
    Metadata = 1,
    /// [`Entry`].
    Entry = 2,
    /// [`HardState`].
    State = 3,
    /// The running checksum: head of a segment, mark of a batch, filler.
    Checksum = 4,
    /// [`Snapshot`].
    Snapshot = 5,
}

impl RecordKind {
    /// The kind with this number.
    pub fn from_number(number: u64) -> Option<RecordKind> {
        Some(match number {
            1 => RecordKind::Metadata,
            2 => RecordKind::Entry,
            3 => RecordKind::State,
            4 => RecordKind::Checksum,
            5 => RecordKind::Snapshot,
            _ => return None,
        })
    }
}

/// Whose log it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The member's id.
    pub node_id: u64,
    /// The cluster's id.
    pub cluster_id: u64,
}

/// One raft log entry, with raftpb's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// raftpb's EntryType: 0 normal, 1 ConfChange, 2 ConfChangeV2.
    pub kind: u64,
    /// The term it was proposed in.
    pub term: u64,
    /// Its place in the log, from 1.
    pub index: u64,
    /// The payload; empty for the entry a new leader opens its term with.
    pub data: Bytes,
}

/// raft's hard state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The current term.
    pub term: u64,
    /// Whom the member voted for in this term; 0 for nobody.
    pub vote: u64,
    /// The highest index known to be committed.
    pub commit: u64,
}

/// Who takes part, as of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Voters of the (incoming) configuration.
    pub voters: Vec<u64>,
    /// Learners of the (incoming) configuration.
    pub learners: Vec<u64>,
    /// Voters of the outgoing configuration while it is joint.
    pub voters_outgoing: Vec<u64>,
    /// Learners once the outgoing configuration is left.
    pub learners_next: Vec<u64>,
    /// Whether raft leaves the joint configuration by itself.
    pub auto_leave: bool,
}

/// A snapshot the log can be read from: everything up to `index` is in the page store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The last index the snapshot covers.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// Present whenever `index` is above 0 (except in logs written before etcd 3.5).
    pub conf_state: Option<ConfState>,
}

/// Why bytes are not the message they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

impl Metadata {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_field(out, 1, self.node_id);
        put_field(out, 2, self.cluster_id);
    }

    /// Reads the message.
    pub fn decode(bytes: &[u8]) -> Result<Metadata, Malformed> {
        let mut metadata = Metadata::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Number(number)) => metadata.node_id = number,
                (2, Value::Number(number)) => metadata.cluster_id = number,
                _ => {}
            }
        }
        Ok(metadata)
    }
}

impl Entry {
    /// Appends all of the message but the payload itself, which follows it.
    pub fn encode_head(&self, out: &mut Vec<u8>) {
        put_field(out, 1, self.kind);
        put_field(out, 2, self.term);
        put_field(out, 3, self.index);
        if !self.data.is_empty() {
            put_number(out, 4 << 3 | LENGTH_DELIMITED);
            put_number(out, self.data.len() as u64);
        }
    }

    /// Reads the message; the payload is copied.
    pub fn decode(bytes: &[u8]) -> Result<Entry, Malformed> {
        let mut entry = Entry::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Number(number)) => entry.kind = number,
                (2, Value::Number(number)) => entry.term = number,
                (3, Value::Number(number)) => entry.index = number,
                (4, Value::Bytes(data)) => entry.data = Bytes::copy_from_slice(data),
                _ => {}
            }
        }
        Ok(entry)
    }
}

impl HardState {
    /// Whether nothing is known yet; etcd writes no record for it.
    pub fn is_empty(&self) -> bool {
        *self == HardState::default()
    }

    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_field(out, 1, self.term);
        put_field(out, 2, self.vote);
        put_field(out, 3, self.commit);
    }

    /// Reads the message.
    pub fn decode(bytes: &[u8]) -> Result<HardState, Malformed> {
        let mut state = HardState::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Number(number)) => state.term = number,
                (2, Value::Number(number)) => state.vote = number,
                (3, Value::Number(number)) => state.commit = number,
                _ => {}
            }
        }
        Ok(state)
    }
}

impl ConfState {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let lists = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        for (number, list) in (1..).zip(lists) {
            for id in list {
                put_field(out, number, *id);
            }
        }
        put_field(out, 5, self.auto_leave.into());
    }

    /// Reads the message.
    pub fn decode(bytes: &[u8]) -> Result<ConfState, Malformed> {
        let mut state = ConfState::default();
        for field in Fields(bytes) {
            let (number, value) = field?;
            let list = match number {
                1 => &mut state.voters,
                2 => &mut state.learners,
                3 => &mut state.voters_outgoing,
                4 => &mut state.learners_next,
                5 => {
                    state.auto_leave = matches!(value, Value::Number(1..));
                    continue;
                }
                _ => continue,
            };
            match value {
                Value::Number(id) => list.push(id),
                Value::Bytes(mut packed) => {
                    while !packed.is_empty() {
                        list.push(take_number(&mut packed)?);
                    }
                }
                Value::Fixed => return Err(Malformed("a member's id is not a varint")),
            }
        }
        Ok(state)
    }
}

impl Snapshot {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_field(out, 1, self.index);
        put_field(out, 2, self.term);
        if let Some(conf_state) = &self.conf_state {
            let mut inner = Vec::new();
            conf_state.encode(&mut inner);
            put_number(out, 3 << 3 | LENGTH_DELIMITED);
            put_number(out, inner.len() as u64);
            out.extend_from_slice(&inner);
        }
    }

    /// Reads the message.
    pub fn decode(bytes: &[u8]) -> Result<Snapshot, Malformed> {
        let mut snapshot = Snapshot::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Number(number)) => snapshot.index = number,
                (2, Value::Number(number)) => snapshot.term = number,
                (3, Value::Bytes(bytes)) => snapshot.conf_state = Some(ConfState::decode(bytes)?),
                _ => {}
            }
        }
        Ok(snapshot)
    }
}

/// `walpb.Record` as it lies in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// The number of a [`RecordKind`], or one nobody knows.
    pub kind: u64,
    /// The running checksum after this record's data; before it for [`RecordKind::Checksum`].
    pub crc: u32,
    /// The payload.
    pub data: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// Reads the message without copying.
    pub fn decode(bytes: &'a [u8]) -> Result<RawRecord<'a>, Malformed> {
        let mut record = RawRecord::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Number(number)) => record.kind = number,
                (2, Value::Number(number)) => record.crc = number as u32,
                (3, Value::Bytes(data)) => record.data = data,
                _ => {}
            }
        }
        Ok(record)
    }
}

const LENGTH_DELIMITED: u64 = 2;

/// Appends a varint.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_field(out: &mut Vec<u8>, field: u64, number: u64) {
    put_number(out, field << 3);
    put_number(out, number);
}

/// Bytes of a varint.
pub fn number_length(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0u64;
    for (position, &byte) in bytes.iter().take(10).enumerate() {
        if position == 9 && byte > 1 {
            return Err(Malformed("a varint of more than 64 bits"));
        }
        number |= u64::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            *bytes = &bytes[position + 1..];
            return Ok(number);
        }
    }
    Err(Malformed("a varint without an end"))
}

/// A field's value.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// 32 or 64 bits that none of these messages has.
    Fixed,
}

/// The fields of a message, ending after the first that is malformed.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let key = take_number(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Number(take_number(&mut self.0)?),
            LENGTH_DELIMITED => {
                let length = take_number(&mut self.0)?;
                Value::Bytes(self.skip(length)?)
            }
            1 => self.skip(8).map(|_| Value::Fixed)?,
            5 => self.skip(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed("a field of a wire type that does not exist")),
        };
        match key >> 3 {
            0 => Err(Malformed("a field with number 0")),
            number => Ok((number, value)),
        }
    }

    fn skip(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).ok().filter(|length| *length <= self.0.len());
        let (taken, rest) = self
            .0
            .split_at(length.ok_or(Malformed("a field longer than its message"))?);
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.take();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_bytes_of_etcds_generated_code() {
        let mut out = Vec::new();
        HardState {
            term: 1,
            vote: 0,
            commit: 300,
        }
        .encode(&mut out);
        assert_eq!(out, [0x08, 1, 0x10, 0, 0x18, 0xac, 0x02]);

        out.clear();
        Entry {
            kind: 1,
            term: 2,
            index: 3,
            data: Bytes::from_static(b"ab"),
        }
        .encode_head(&mut out);
        assert_eq!(out, [0x08, 1, 0x10, 2, 0x18, 3, 0x22, 2]);

        out.clear();
        Entry {
            index: 3,
            ..Entry::default()
        }
        .encode_head(&mut out);
        assert_eq!(out, [0x08, 0, 0x10, 0, 0x18, 3], "no data, no field");

        out.clear();
        let conf_state = ConfState {
            voters: vec![1, 2],
            learners: vec![3],
            ..ConfState::default()
        };
        Snapshot {
            index: 5,
            term: 6,
            conf_state: Some(conf_state),
        }
        .encode(&mut out);
        assert_eq!(out, [0x08, 5, 0x10, 6, 0x1a, 8, 0x08, 1, 0x08, 2, 0x10, 3, 0x28, 0]);
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        let entry = Entry {
            kind: 2,
            term: u64::MAX,
            index: 1 << 40,
            data: Bytes::from(vec![7; 300]),
        };
        let mut out = Vec::new();
        entry.encode_head(&mut out);
        out.extend_from_slice(&entry.data);
        assert_eq!(Entry::decode(&out), Ok(entry));

        let conf_state = ConfState {
            voters: vec![1, u64::MAX],
            learners: vec![],
            voters_outgoing: vec![9],
            learners_next: vec![8, 8],
            auto_leave: true,
        };
        let snapshot = Snapshot {
            index: 77,
            term: 3,
            conf_state: Some(conf_state),
        };
        out.clear();
        snapshot.encode(&mut out);
        assert_eq!(Snapshot::decode(&out), Ok(snapshot));

        let metadata = Metadata {
            node_id: u64::MAX,
            cluster_id: 1,
        };
        out.clear();
        metadata.encode(&mut out);
        assert_eq!(Metadata::decode(&out), Ok(metadata));
    }

    #[test]
    fn unknown_fields_are_skipped_and_packed_ids_are_read() {
        let bytes = [
            0x3d, 1, 2, 3, 4, 0x41, 1, 2, 3, 4, 5, 6, 7, 8, 0x4a, 1, 0, 0x0a, 3, 1, 0x80, 0x01,
        ];
        let state = ConfState::decode(&bytes).unwrap();
        assert_eq!(state.voters, [1, 128]);
    }

    #[test]
    fn malformed_messages_are_named() {
        assert_eq!(HardState::decode(&[0x08]), Err(Malformed("a varint without an end")));
        assert_eq!(
            HardState::decode(&[0x08, 0x80]),
            Err(Malformed("a varint without an end"))
        );
        assert_eq!(
            Entry::decode(&[0x22, 5, 1]),
            Err(Malformed("a field longer than its message"))
        );
        assert_eq!(
            Entry::decode(&[0x0b]),
            Err(Malformed("a field of a wire type that does not exist"))
        );
        assert_eq!(Entry::decode(&[0x00, 0x00]), Err(Malformed("a field with number 0")));
        let too_long = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(
            HardState::decode(&too_long),
            Err(Malformed("a varint of more than 64 bits"))
        );
        assert!(ConfState::decode(&[0x0d, 1, 2, 3, 4]).is_err());
    }

    #[test]
    fn the_length_of_a_number_is_that_of_its_varint() {
        for number in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(number_length(number), out.len(), "{number}");
        }
    }
}
