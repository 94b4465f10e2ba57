//! Decoding requests without ever recursing deeper than a bound.
//!
//! prost decodes nested messages, and nested groups among unknown fields, by recursion, and is built here without its
//! limit because nested transactions may be deeper. So every message from outside is first scanned by a loop. etcd
//! answers a deep transaction by its validation rules, up to the 10 000 levels at which Go's protobuf gives up. Those
//! rules never look below the level at which the budget of operations is used up, whence a transaction below that level
//! is overwritten with an unknown field of the same length before prost sees it: same answer, bounded stack.
//!
//! Go's protobuf takes a known field with a value of another wire type for an unknown one, where prost gives up. What a
//! client or another member got accepted by etcd must not be refused here, so such fields are renamed to unknown ones.

use crate::limits::{MAX_GROUP_LEVELS, MAX_MESSAGE_LEVELS, MAX_TXN_LEVELS};
use crate::proto::etcdserverpb::{InternalRaftRequest, TxnRequest};
use crate::proto::schema::{Described, Field, Schema};
use crate::state::error::StateError;
use crate::state::legacy;
use bytes::{Bytes, BytesMut};
use prost::Message;
use std::ops::Range;

/// Decodes a message; the bytes fields of the result share `bytes`, unless a field of a wrong type had to be renamed.
pub fn decode<M: Message + Default + Described>(bytes: Bytes) -> Result<M, StateError> {
    let found = scan(M::SCHEMA, &bytes, usize::MAX)?;
    if found.txns > MAX_TXN_LEVELS {
        return Err(StateError::NestedTooDeep { limit: MAX_TXN_LEVELS });
    }
    decode_scanned(bytes, &found)
}

/// Decodes a log entry's request. What members of 3.5 write by etcd's second API is no `InternalRaftRequest`.
pub fn decode_entry(bytes: Bytes) -> Result<InternalRaftRequest, StateError> {
    let entry = bytes.clone();
    decode(bytes).or_else(|error| legacy::request(&entry).ok_or(error))
}

/// Decodes a `TxnRequest` from a client, for `validate::check_txn` with the same `max_txn_ops`.
///
/// What the check cannot reach may be missing from the result; then the check fails.
pub fn decode_txn(bytes: Bytes, max_txn_ops: usize) -> Result<TxnRequest, StateError> {
    let reached = max_txn_ops.saturating_add(1);
    let found = scan(TxnRequest::SCHEMA, &bytes, reached.saturating_add(1))?;
    if reached.min(found.txns) > MAX_TXN_LEVELS {
        return Err(StateError::TooManyOperations);
    }
    decode_scanned(bytes, &found)
}

fn decode_scanned<M: Message + Default>(mut bytes: Bytes, found: &Found) -> Result<M, StateError> {
    if !found.misfits.is_empty() || !found.unreached.is_empty() {
        let mut copy = BytesMut::from(&bytes[..]);
        for key in &found.misfits {
            rename(&mut copy[key.clone()]);
        }
        for body in &found.unreached {
            blank(&mut copy[body.clone()]);
        }
        bytes = copy.freeze();
    }
    let offset = bytes.len();
    M::decode(bytes).map_err(|_| StateError::Malformed {
        offset,
        reason: "a field is not what it is declared as",
    })
}

/// A field that no message here has.
const UNKNOWN_FIELD: u8 = 15;

/// Overwrites a field's key: same wire type and length, a number that no message here has.
fn rename(key: &mut [u8]) {
    let wire_type = key[0] & 7;
    key.fill(0x80);
    key[0] |= UNKNOWN_FIELD << 3 | wire_type;
    let last = key.len() - 1;
    key[last] &= 0x7f;
}

/// Overwrites a message's body with varints of the unknown field.
fn blank(body: &mut [u8]) {
    const KEY: u8 = UNKNOWN_FIELD << 3 | VARINT;
    debug_assert!(body.len() != 1, "a body of one byte has not passed the scan");
    body.fill(0);
    let mut rest = &mut body[..];
    if rest.len() % 2 == 1 && rest.len() >= 3 {
        rest[..2].copy_from_slice(&[KEY, 0x80]);
        rest = &mut rest[3..];
    }
    for pair in rest.chunks_exact_mut(2) {
        pair[0] = KEY;
    }
}

/// What a scan found.
struct Found {
    /// Levels of transactions, 1 for one without nested ones, 0 for other messages.
    txns: usize,
    /// Keys of known fields with values of a type that is not theirs.
    misfits: Vec<Range<usize>>,
    /// Bodies of the transactions at the asked level, not empty.
    unreached: Vec<Range<usize>>,
}

#[derive(Clone, Copy)]
struct Frame {
    /// None where all is unknown.
    schema: Option<&'static Schema>,
    end: usize,
    group: Option<Group>,
}

/// A group, which no field here is: all in it is unknown.
#[derive(Clone, Copy)]
struct Group {
    field: u64,
    /// Whether the field is known, as something else.
    is_misfit: bool,
}

impl Frame {
    fn is_txn(&self) -> bool {
        self.schema.is_some_and(|schema| schema.is(TxnRequest::SCHEMA))
    }
}

/// What stands at the reader's place in a message.
enum Item {
    /// A value, which is skipped.
    Value,
    /// A value that is skipped, of a type that its field has not.
    Misfit,
    /// A message or a group begins.
    Begin(Frame),
    /// A group of this field ends.
    GroupEnd(u64),
}

/// Walks the message by a loop. Fails on what no decoder accepts and on nesting beyond the limits.
fn scan(schema: &'static Schema, bytes: &[u8], unreached_level: usize) -> Result<Found, StateError> {
    let mut frame = Frame {
        schema: Some(schema),
        end: bytes.len(),
        group: None,
    };
    let mut found = Found {
        txns: usize::from(frame.is_txn()),
        misfits: Vec::new(),
        unreached: Vec::new(),
    };
    let (mut txns, mut groups) = (found.txns, 0);
    let mut parents: Vec<Frame> = Vec::new();
    let mut input = Input {
        bytes,
        at: 0,
        key: 0..0,
    };
    loop {
        if input.at == frame.end && frame.group.is_none() {
            let Some(parent) = parents.pop() else {
                return Ok(found);
            };
            txns -= usize::from(frame.is_txn());
            frame = parent;
            continue;
        }
        match input.item(&frame)? {
            Item::Value => {}
            Item::Misfit => found.misfits.push(input.key.clone()),
            Item::GroupEnd(field) => {
                let group = frame.group.filter(|group| group.field == field);
                let (Some(group), Some(parent)) = (group, parents.pop()) else {
                    return input.fails("a group ends that has not begun");
                };
                found.misfits.extend(group.is_misfit.then(|| input.key.clone()));
                groups -= 1;
                frame = parent;
            }
            Item::Begin(child) => {
                found
                    .misfits
                    .extend(child.group.filter(|group| group.is_misfit).map(|_| input.key.clone()));
                groups += usize::from(child.group.is_some());
                parents.push(frame);
                if groups > MAX_GROUP_LEVELS {
                    return input.fails("groups are nested too deep");
                }
                if parents.len() >= MAX_MESSAGE_LEVELS {
                    return Err(StateError::NestedTooDeep {
                        limit: MAX_MESSAGE_LEVELS,
                    });
                }
                frame = child;
                if child.is_txn() {
                    txns += 1;
                    found.txns = found.txns.max(txns);
                    if txns == unreached_level && input.at < child.end {
                        found.unreached.push(input.at..child.end);
                    }
                }
            }
        }
    }
}

// protobuf's wire types.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const DELIMITED: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED_32: u8 = 5;

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The place of the key that was read last.
    key: Range<usize>,
}

impl Input<'_> {
    fn fails<T>(&self, reason: &'static str) -> Result<T, StateError> {
        Err(StateError::Malformed {
            offset: self.at,
            reason,
        })
    }

    /// Goes over the next key, and over the value if it is not looked into.
    fn item(&mut self, frame: &Frame) -> Result<Item, StateError> {
        let (number, wire_type) = self.key(frame.end)?;
        let field = frame.schema.and_then(|schema| schema.field(number));
        let is_misfit = field.is_some_and(|field| !field.takes(wire_type));
        let length = match wire_type {
            VARINT => {
                self.varint(frame.end)?;
                0
            }
            FIXED_64 => 8,
            FIXED_32 => 4,
            DELIMITED => usize::try_from(self.varint(frame.end)?).unwrap_or(usize::MAX),
            GROUP_START => {
                let field = number;
                return Ok(Item::Begin(Frame {
                    schema: None,
                    end: frame.end,
                    group: Some(Group { field, is_misfit }),
                }));
            }
            GROUP_END => return Ok(Item::GroupEnd(number)),
            _ => return self.fails("an unknown wire type"),
        };
        let end = self.end_of(length, frame.end)?;
        if let Some(schema) = field.and_then(Field::child).filter(|_| !is_misfit) {
            return Ok(Item::Begin(Frame {
                schema: Some(schema),
                end,
                group: None,
            }));
        }
        self.at = end;
        Ok(if is_misfit { Item::Misfit } else { Item::Value })
    }

    /// Reads a key: field number and wire type.
    fn key(&mut self, end: usize) -> Result<(u64, u8), StateError> {
        let start = self.at;
        let key = self.varint(end)?;
        if key >> 3 == 0 || key > u64::from(u32::MAX) {
            return self.fails("a field number out of range");
        }
        self.key = start..self.at;
        Ok((key >> 3, (key & 7) as u8))
    }

    fn varint(&mut self, end: usize) -> Result<u64, StateError> {
        let mut rest = &self.bytes[self.at..end];
        let before = rest.len();
        match crate::mvcc::record::take_varint(&mut rest) {
            Some(value) => {
                self.at += before - rest.len();
                Ok(value)
            }
            None => self.fails("a number is cut short or too long"),
        }
    }

    fn end_of(&self, length: usize, end: usize) -> Result<usize, StateError> {
        match self.at.checked_add(length) {
            Some(at) if at <= end => Ok(at),
            _ => self.fails("a field is longer than its message"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::{self as pb, PutRequest, RangeRequest, RequestOp, request_op::Request};
    use crate::state::validate::check_txn;
    use proptest::prelude::*;

    const LARGEST: usize = MAX_TXN_LEVELS - 1;

    fn nested(levels: usize) -> Bytes {
        let mut body = Vec::new();
        for _ in 1..levels {
            let mut operation = vec![4 << 3 | 2];
            prost::encoding::encode_varint(body.len() as u64, &mut operation);
            operation.extend(body);
            body = vec![2 << 3 | 2];
            prost::encoding::encode_varint(operation.len() as u64, &mut body);
            body.extend(operation);
        }
        body.into()
    }

    fn answer(bytes: Bytes, max_txn_ops: usize) -> Result<(), StateError> {
        check_txn(&decode_txn(bytes, max_txn_ops)?, max_txn_ops)
    }

    #[test]
    fn deep_transactions_get_the_answer_of_the_rules() {
        for max in [1, 3, 128, LARGEST] {
            assert_eq!(
                answer(nested(max + 1), max),
                Ok(()),
                "an empty transaction needs no budget"
            );
            assert_eq!(answer(nested(max + 2), max), Err(StateError::TooManyOperations));
            assert_eq!(answer(nested(max + 3), max), Err(StateError::TooManyOperations));
            assert_eq!(answer(nested(5000), max), Err(StateError::TooManyOperations));
        }
        assert_eq!(
            answer(nested(5001), 128),
            Err(StateError::NestedTooDeep {
                limit: MAX_MESSAGE_LEVELS
            })
        );
        assert_eq!(
            answer(nested(100_000), 128),
            Err(StateError::NestedTooDeep {
                limit: MAX_MESSAGE_LEVELS
            })
        );
        assert_eq!(answer(nested(LARGEST + 2), 1 << 40), Err(StateError::TooManyOperations));
        assert!(decode::<TxnRequest>(nested(MAX_TXN_LEVELS)).is_ok());
        assert!(decode::<TxnRequest>(nested(MAX_TXN_LEVELS + 1)).is_err());
    }

    /// An earlier error wins over the depth, as it does in a walk from the front.
    #[test]
    fn an_error_before_the_depth_comes_first() {
        let range = |key: &'static [u8]| RequestOp {
            request: Some(Request::RequestRange(RangeRequest {
                key: Bytes::from_static(key),
                ..Default::default()
            })),
        };
        for (key, expected) in [(&b""[..], StateError::EmptyKey), (b"k", StateError::TooManyOperations)] {
            let mut bytes = TxnRequest {
                success: vec![range(key)],
                ..Default::default()
            }
            .encode_to_vec();
            bytes.extend(nested(1000));
            assert_eq!(answer(bytes.into(), 128), Err(expected));
        }
    }

    #[test]
    fn groups_do_not_recurse_either() {
        let group = vec![15 << 3 | 3; 1_000_000];
        let deep = decode::<RangeRequest>(group.clone().into());
        assert!(matches!(deep, Err(StateError::Malformed { offset, .. }) if offset == MAX_GROUP_LEVELS + 1));
        let mut operation = vec![1 << 3 | 2];
        prost::encoding::encode_varint(group.len() as u64, &mut operation);
        operation.extend(&group);
        assert!(decode::<RequestOp>(operation.into()).is_err());
        let shallow = [15 << 3 | 3, 14 << 3, 1, 15 << 3 | 4, 0x0a, 1, b'k'];
        let range = decode::<RangeRequest>(Bytes::copy_from_slice(&shallow)).unwrap();
        assert_eq!(range.key, "k");
        for bad in [
            &[15 << 3 | 4][..],
            &[15 << 3 | 3],
            &[15 << 3 | 3, 14 << 3 | 4],
            &[0x0a, 2, b'k'],
            &[0x0f],
            &[0],
        ] {
            assert!(decode::<RangeRequest>(Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn entries_decode() {
        let put = PutRequest {
            key: "k".into(),
            value: "v".into(),
            ..Default::default()
        };
        let entry = pb::InternalRaftRequest {
            put: Some(put),
            ..Default::default()
        };
        assert_eq!(decode_entry(entry.encode_to_vec().into()), Ok(entry));
        let grant = pb::AuthRoleGrantPermissionRequest {
            name: "r".into(),
            perm: Some(Default::default()),
        };
        let entry = pb::InternalRaftRequest {
            auth_role_grant_permission: Some(grant),
            ..Default::default()
        };
        assert_eq!(decode_entry(entry.encode_to_vec().into()), Ok(entry));
    }

    /// A known field of another wire type is an unknown field, on every level; numbers may be packed.
    #[test]
    fn fields_of_another_type_are_passed_over() {
        let put: PutRequest = decode(Bytes::from_static(b"\x08\x01\x1a\x01x\x12\x01v\x0d1234\x0912345678")).unwrap();
        assert_eq!(
            put,
            PutRequest {
                value: "v".into(),
                ..Default::default()
            }
        );
        // A group where the key belongs, with a key inside, and a field number of two bytes.
        let put: PutRequest = decode(Bytes::from_static(b"\x0b\x0a\x01k\x0c\x8b\x00\x8c\x00\x12\x01v")).unwrap();
        assert_eq!(
            put,
            PutRequest {
                value: "v".into(),
                ..Default::default()
            }
        );
        let txn = decode_txn(Bytes::from_static(b"\x10\x05\x12\x06\x12\x04\x08\x07\x12\x00"), 128).unwrap();
        let empty_put = Some(Request::RequestPut(PutRequest::default()));
        assert_eq!(txn.success, [RequestOp { request: empty_put }]);
        let entry = decode_entry(Bytes::from_static(b"\x22\x04\x08\x01\x12\x00\x28\x07")).unwrap();
        assert_eq!((entry.put, entry.delete_range), (Some(PutRequest::default()), None));
        for filters in [&b"\x2a\x02\x00\x01"[..], b"\x28\x00\x28\x01"] {
            let watch: pb::WatchCreateRequest = decode(Bytes::copy_from_slice(filters)).unwrap();
            assert_eq!(watch.filters, [0, 1]);
        }
    }

    proptest! {
        /// What the scan refuses, prost refuses; what it lets through decodes, as no field here is text.
        #[test]
        fn scan_and_prost_agree(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let decoded = TxnRequest::decode(&bytes[..]);
            let ours = decode::<TxnRequest>(Bytes::copy_from_slice(&bytes));
            prop_assert!(decoded.is_err() || ours == Ok(decoded.unwrap()));
            let scanned = scan(TxnRequest::SCHEMA, &bytes, usize::MAX);
            prop_assert_eq!(scanned.is_ok(), ours.is_ok());
        }
    }
}
