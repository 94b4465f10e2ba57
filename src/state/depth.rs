//! Decoding requests without ever recursing deeper than a bound.
//!
//! prost decodes nested messages, and nested groups among unknown fields, by recursion, and is built here without its
//! limit because nested transactions may be deeper. So every message from outside is first scanned by a loop. etcd
//! answers a deep transaction by its validation rules, up to the 10 000 levels at which Go's protobuf gives up. Those
//! rules never look below the level at which the budget of operations is used up, whence a transaction below that level
//! is overwritten with an unknown field of the same length before prost sees it: same answer, bounded stack.

use crate::limits::{MAX_GROUP_LEVELS, MAX_MESSAGE_LEVELS, MAX_TXN_LEVELS};
use crate::proto::etcdserverpb::{InternalRaftRequest, TxnRequest};
use crate::state::error::StateError;
use bytes::{Bytes, BytesMut};
use prost::Message;
use std::ops::Range;

/// Which fields of a message are messages themselves.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// None.
    Flat,
    /// The listed fields, each of them flat.
    Outer(&'static [u64]),
    /// `TxnRequest`.
    Txn,
    /// `RequestOp`.
    Operation,
    /// `InternalRaftRequest`.
    Entry,
}

impl Shape {
    /// `WatchRequest`.
    pub const WATCH: Shape = Shape::Outer(&[1, 2, 3]);

    fn child(self, field: u64) -> Option<Shape> {
        match (self, field) {
            (Shape::Outer(fields), field) => fields.contains(&field).then_some(Shape::Flat),
            (Shape::Txn, 1) => Some(Shape::Flat),
            (Shape::Txn, 2 | 3) => Some(Shape::Operation),
            (Shape::Operation, 1..=3) => Some(Shape::Flat),
            (Shape::Operation, 4) => Some(Shape::Txn),
            (Shape::Entry, 6) => Some(Shape::Txn),
            (Shape::Entry, 11) => Some(Shape::Outer(&[1])),
            (Shape::Entry, 1100 | 1203 | 1301) => Some(Shape::Outer(&[2, 3])),
            (Shape::Entry, 3..=10 | 100 | 1000..=1302 | 9900) => Some(Shape::Flat),
            _ => None,
        }
    }
}

/// Decodes a message of the given shape; the bytes fields of the result share `bytes`.
pub fn decode<M: Message + Default>(shape: Shape, bytes: Bytes) -> Result<M, StateError> {
    let nesting = scan(shape, &bytes, usize::MAX)?;
    if nesting.txns > MAX_TXN_LEVELS {
        return Err(StateError::NestedTooDeep { limit: MAX_TXN_LEVELS });
    }
    decode_scanned(bytes)
}

/// Decodes a log entry's request.
pub fn decode_entry(bytes: Bytes) -> Result<InternalRaftRequest, StateError> {
    decode(Shape::Entry, bytes)
}

/// Decodes a `TxnRequest` from a client, for `validate::check_txn` with the same `max_txn_ops`.
///
/// What the check cannot reach may be missing from the result; then the check fails.
pub fn decode_txn(bytes: Bytes, max_txn_ops: usize) -> Result<TxnRequest, StateError> {
    let reached = max_txn_ops.saturating_add(1);
    let nesting = scan(Shape::Txn, &bytes, reached.saturating_add(1))?;
    if reached.min(nesting.txns) > MAX_TXN_LEVELS {
        return Err(StateError::TooManyOperations);
    }
    if nesting.unreached.is_empty() {
        return decode_scanned(bytes);
    }
    let mut copy = BytesMut::from(&bytes[..]);
    for body in nesting.unreached {
        blank(&mut copy[body]);
    }
    decode_scanned(copy.freeze())
}

fn decode_scanned<M: Message + Default>(bytes: Bytes) -> Result<M, StateError> {
    let offset = bytes.len();
    M::decode(bytes).map_err(|_| StateError::Malformed {
        offset,
        reason: "a field is not of its declared type",
    })
}

/// Overwrites a message's body with varints of field 15, which no message here has.
fn blank(body: &mut [u8]) {
    const FIELD_15_VARINT: u8 = 15 << 3;
    debug_assert!(body.len() != 1, "a body of one byte has not passed the scan");
    body.fill(0);
    let mut rest = &mut body[..];
    if rest.len() % 2 == 1 && rest.len() >= 3 {
        rest[..2].copy_from_slice(&[FIELD_15_VARINT, 0x80]);
        rest = &mut rest[3..];
    }
    for pair in rest.chunks_exact_mut(2) {
        pair[0] = FIELD_15_VARINT;
    }
}

/// What a scan found.
struct Nesting {
    /// Levels of transactions, 1 for one without nested ones, 0 for other messages.
    txns: usize,
    /// Bodies of the transactions at the asked level, not empty.
    unreached: Vec<Range<usize>>,
}

#[derive(Clone, Copy)]
struct Frame {
    shape: Shape,
    end: usize,
    /// The field of an unknown group, inside of which all is unknown.
    group: Option<u64>,
}

/// What stands at the reader's place in a message.
enum Item {
    /// A value, which is skipped.
    Value,
    /// A message or a group begins.
    Begin(Frame),
    /// A group of this field ends.
    GroupEnd(u64),
}

/// Walks the message by a loop. Fails on what no decoder accepts and on nesting beyond the limits.
fn scan(shape: Shape, bytes: &[u8], unreached_level: usize) -> Result<Nesting, StateError> {
    let mut nesting = Nesting {
        txns: usize::from(matches!(shape, Shape::Txn)),
        unreached: Vec::new(),
    };
    let (mut txns, mut groups) = (nesting.txns, 0);
    let mut frame = Frame {
        shape,
        end: bytes.len(),
        group: None,
    };
    let mut parents: Vec<Frame> = Vec::new();
    let mut input = Input { bytes, at: 0 };
    loop {
        if input.at == frame.end && frame.group.is_none() {
            let Some(parent) = parents.pop() else {
                return Ok(nesting);
            };
            txns -= usize::from(matches!(frame.shape, Shape::Txn));
            frame = parent;
            continue;
        }
        match input.item(&frame)? {
            Item::Value => {}
            Item::GroupEnd(field) => {
                let Some(parent) = parents.pop().filter(|_| frame.group == Some(field)) else {
                    return input.fails("a group ends that has not begun");
                };
                groups -= 1;
                frame = parent;
            }
            Item::Begin(child) => {
                groups += usize::from(child.group.is_some());
                parents.push(frame);
                check_levels(parents.len(), groups)?;
                frame = child;
                if matches!(child.shape, Shape::Txn) {
                    txns += 1;
                    nesting.txns = nesting.txns.max(txns);
                    if txns == unreached_level && input.at < child.end {
                        nesting.unreached.push(input.at..child.end);
                    }
                }
            }
        }
    }
}

fn check_levels(messages: usize, groups: usize) -> Result<(), StateError> {
    let limit = match (messages >= MAX_MESSAGE_LEVELS, groups > MAX_GROUP_LEVELS) {
        (false, false) => return Ok(()),
        (_, true) => MAX_GROUP_LEVELS,
        (true, false) => MAX_MESSAGE_LEVELS,
    };
    Err(StateError::NestedTooDeep { limit })
}

enum WireType {
    /// A value of this many bytes.
    Plain(usize),
    /// A string, bytes or message of this many bytes.
    Delimited(usize),
    GroupStart,
    GroupEnd,
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
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
        let (field, wire_type) = self.key(frame.end)?;
        let (shape, length) = match wire_type {
            WireType::GroupStart => {
                let group = Frame {
                    shape: Shape::Flat,
                    end: frame.end,
                    group: Some(field),
                };
                return Ok(Item::Begin(group));
            }
            WireType::GroupEnd => return Ok(Item::GroupEnd(field)),
            WireType::Plain(length) => (None, length),
            WireType::Delimited(length) => (frame.shape.child(field), length),
        };
        let end = self.end_of(length, frame.end)?;
        if let Some(shape) = shape {
            return Ok(Item::Begin(Frame {
                shape,
                end,
                group: None,
            }));
        }
        self.at = end;
        Ok(Item::Value)
    }

    fn key(&mut self, end: usize) -> Result<(u64, WireType), StateError> {
        let key = self.varint(end)?;
        if key >> 3 == 0 || key > u64::from(u32::MAX) {
            return self.fails("a field number out of range");
        }
        let wire_type = match key & 7 {
            0 => {
                self.varint(end)?;
                WireType::Plain(0)
            }
            1 => WireType::Plain(8),
            2 => WireType::Delimited(usize::try_from(self.varint(end)?).unwrap_or(usize::MAX)),
            3 => WireType::GroupStart,
            4 => WireType::GroupEnd,
            5 => WireType::Plain(4),
            _ => return self.fails("an unknown wire type"),
        };
        Ok((key >> 3, wire_type))
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
        assert!(decode::<TxnRequest>(Shape::Txn, nested(MAX_TXN_LEVELS)).is_ok());
        assert!(decode::<TxnRequest>(Shape::Txn, nested(MAX_TXN_LEVELS + 1)).is_err());
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
        let deep = Err(StateError::NestedTooDeep {
            limit: MAX_GROUP_LEVELS,
        });
        assert_eq!(decode::<RangeRequest>(Shape::Flat, group.clone().into()), deep);
        let mut operation = vec![1 << 3 | 2];
        prost::encoding::encode_varint(group.len() as u64, &mut operation);
        operation.extend(&group);
        assert!(decode::<RequestOp>(Shape::Operation, operation.into()).is_err());
        let shallow = [15 << 3 | 3, 14 << 3, 1, 15 << 3 | 4, 0x0a, 1, b'k'];
        let range = decode::<RangeRequest>(Shape::Flat, Bytes::copy_from_slice(&shallow)).unwrap();
        assert_eq!(range.key, "k");
        for bad in [
            &[15 << 3 | 4][..],
            &[15 << 3 | 3],
            &[15 << 3 | 3, 14 << 3 | 4],
            &[0x0a, 2, b'k'],
            &[0x0f],
            &[0],
        ] {
            assert!(
                decode::<RangeRequest>(Shape::Flat, Bytes::copy_from_slice(bad)).is_err(),
                "{bad:?}"
            );
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

    proptest! {
        /// What the scan lets through prost must get through without a deep stack, and the scan refuses nothing valid.
        #[test]
        fn scan_and_prost_agree(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let decoded = TxnRequest::decode(&bytes[..]);
            let scanned = scan(Shape::Txn, &bytes, usize::MAX);
            if decoded.is_ok() {
                prop_assert!(scanned.is_ok());
            }
        }
    }
}
