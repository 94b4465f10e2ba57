//! What the load needs to know of a reply, found without decoding it: enough to notice an answer that is not what was
//! asked for.

/// The start of a reply message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The header's revision; 0 if there is none.
    pub revision: i64,
    /// Fields 2 and 3 where they are varints: a Txn's verdict, a lease's id and its time to live.
    pub second: u64,
    pub third: u64,
    /// The revision of the last change of a get's key; 0 if there is no key, or its value did not come with it.
    pub changed: i64,
}

impl Reply {
    /// Reads the fields that lie within `message`, which may be the first part of one.
    pub fn parse(message: &[u8]) -> Self {
        let mut reply = Self::default();
        let mut rest = message;
        while let Some((field, after)) = field(rest) {
            match field {
                (1, Value::Bytes(header)) => reply.revision = revision(header),
                // Of `header` and of a `KeyValue` it is the same field.
                (2, Value::Bytes(kv)) => reply.changed = revision(kv),
                (2, Value::Number(number)) => reply.second = number,
                (3, Value::Number(number)) => reply.third = number,
                (4.., _) => break,
                _ => {}
            }
            rest = after;
        }
        reply
    }
}

/// Field 3 of a response header, or of a key and its value.
fn revision(header: &[u8]) -> i64 {
    let mut rest = header;
    while let Some((field, after)) = field(rest) {
        if let (3, Value::Number(number)) = field {
            return number as i64;
        }
        rest = after;
    }
    0
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The first field and what follows it; None at the end, in the middle of a field, and at kinds no reply of ours has.
fn field(bytes: &[u8]) -> Option<((u64, Value<'_>), &[u8])> {
    let (tag, rest) = varint(bytes)?;
    let (value, rest) = match tag & 7 {
        0 => {
            let (number, rest) = varint(rest)?;
            (Value::Number(number), rest)
        }
        2 => {
            let (length, rest) = varint(rest)?;
            let (payload, rest) = rest.split_at_checked(length as usize)?;
            (Value::Bytes(payload), rest)
        }
        _ => return None,
    };
    Some(((tag >> 3, value), rest))
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use ringd::proto::etcdserverpb::{LeaseKeepAliveResponse, RangeResponse, ResponseHeader, TxnResponse};
    use ringd::proto::mvccpb::KeyValue;

    fn header(revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: u64::MAX,
            member_id: 7,
            revision,
            raft_term: 2,
        })
    }

    #[test]
    fn a_txn_tells_its_revision_and_verdict() {
        for succeeded in [true, false] {
            let response = TxnResponse {
                header: header(123_456),
                succeeded,
                ..Default::default()
            };
            let reply = Reply::parse(&response.encode_to_vec());
            assert_eq!((reply.revision, reply.second), (123_456, u64::from(succeeded)));
        }
    }

    #[test]
    fn a_renewed_lease_tells_its_time_to_live() {
        let response = LeaseKeepAliveResponse {
            header: header(3),
            id: 99,
            ttl: 3600,
        };
        let reply = Reply::parse(&response.encode_to_vec());
        assert_eq!((reply.revision, reply.second, reply.third), (3, 99, 3600));
    }

    #[test]
    fn a_get_tells_when_its_key_was_changed() {
        let mut response = RangeResponse {
            header: header(77),
            kvs: vec![KeyValue {
                key: "key".into(),
                create_revision: 5,
                mod_revision: 60,
                version: 2,
                value: vec![1; 300].into(),
                lease: 0,
            }],
            more: false,
            count: 1,
        };
        let reply = Reply::parse(&response.encode_to_vec());
        assert_eq!((reply.revision, reply.changed), (77, 60));
        response.kvs.clear();
        assert_eq!(Reply::parse(&response.encode_to_vec()).changed, 0);
    }

    #[test]
    fn part_of_a_message_is_read_as_far_as_it_goes() {
        let response = TxnResponse {
            header: header(5),
            succeeded: true,
            ..Default::default()
        };
        let bytes = response.encode_to_vec();
        assert_eq!(Reply::parse(&bytes[..bytes.len() - 1]).revision, 5);
        assert_eq!(Reply::parse(&bytes[..4]), Reply::default());
        assert_eq!(Reply::parse(&[0xff; 30]), Reply::default());
    }
}
