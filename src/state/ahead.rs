//! A look at an encoded request before its turn to be applied: which key it is probably about.
//!
//! For hints only. What can't be understood has no key here, and is refused where it is decoded.

use prost::encoding::decode_varint;

/// Field numbers of `InternalRaftRequest`.
const PUT: u64 = 4;
const DELETE_RANGE: u64 = 5;
const TXN: u64 = 6;

/// The key that a put or a deletion is of, or that a transaction compares first.
pub fn likely_key(entry: &[u8]) -> Option<&[u8]> {
    let (number, request) = fields(entry).find(|(number, _)| matches!(*number, PUT | DELETE_RANGE | TXN))?;
    match number {
        // `Compare` has its key in field 3.
        TXN => field(field(request, 1)?, 3),
        _ => field(request, 1),
    }
}

fn field(message: &[u8], wanted: u64) -> Option<&[u8]> {
    let found = fields(message).find(|(number, _)| *number == wanted);
    found.map(|(_, value)| value)
}

/// The length-delimited fields of a message with their numbers, up to what is not well-formed.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            let tag = decode_varint(&mut message).ok()?;
            let skipped = match tag & 7 {
                0 => decode_varint(&mut message).ok().map(|_| 0)?,
                1 => 8,
                2 => {
                    let length = decode_varint(&mut message).ok()?;
                    let value = message.get(..usize::try_from(length).ok()?)?;
                    message = &message[value.len()..];
                    return Some((tag >> 3, value));
                }
                5 => 4,
                _ => return None,
            };
            message = message.get(skipped..)?;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::{
        Compare, DeleteRangeRequest, InternalRaftRequest, LeaseRevokeRequest, PutRequest, RequestHeader, TxnRequest,
    };
    use prost::Message;

    #[test]
    fn the_key_of_a_write_is_found_and_nothing_is_read_past_the_end() {
        let header = Some(RequestHeader {
            id: 1 << 60,
            ..Default::default()
        });
        let put = Some(PutRequest {
            key: "a".into(),
            value: "v".into(),
            lease: 5,
            ..Default::default()
        });
        let delete_range = Some(DeleteRangeRequest {
            key: "bb".into(),
            range_end: "c".into(),
            prev_kv: true,
        });
        let compare = Compare {
            result: 2,
            key: "ccc".into(),
            ..Default::default()
        };
        let txn = Some(TxnRequest {
            compare: vec![compare],
            ..Default::default()
        });
        let requests = [
            (
                InternalRaftRequest {
                    put,
                    ..Default::default()
                },
                Some("a"),
            ),
            (
                InternalRaftRequest {
                    delete_range,
                    ..Default::default()
                },
                Some("bb"),
            ),
            (
                InternalRaftRequest {
                    txn,
                    ..Default::default()
                },
                Some("ccc"),
            ),
            (
                InternalRaftRequest {
                    lease_revoke: Some(LeaseRevokeRequest { id: 7 }),
                    ..Default::default()
                },
                None,
            ),
        ];
        for (mut request, key) in requests {
            request.header = header.clone();
            let bytes = request.encode_to_vec();
            assert_eq!(likely_key(&bytes), key.map(str::as_bytes));
            for end in 0..bytes.len() {
                let _ = likely_key(&bytes[..end]);
                let mut damaged = bytes.clone();
                damaged[end] ^= 0xff;
                let _ = likely_key(&damaged);
            }
        }
    }
}
