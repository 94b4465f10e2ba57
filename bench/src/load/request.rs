//! A call as it goes on the wire, made once: to send it again costs a copy and a few patched bytes.
//!
//! The header block is HPACK by hand (RFC 7541 §6). The first call of a connection puts its fields into the server's
//! dynamic table, as real clients do, and every later call names them by index. A server that announces a smaller table
//! gets the fields as literals each time.

use prost::Message;
use ringd::http::frame::{FrameHeader, HEADER_LENGTH, flag, kind};
use ringd::proto::etcdserverpb::{PutRequest, RangeRequest};

/// What every key starts with; a decimal number of `KEY_DIGITS` digits follows.
pub const KEY_PREFIX: &[u8] = b"/bench/key/";
pub const KEY_DIGITS: usize = 9;

/// Bytes of a gRPC message's prefix: not compressed, then the length.
const PREFIX_LENGTH: usize = 5;
/// Bytes of the stamp at the start of a value, which makes successive values differ.
const STAMP_LENGTH: usize = 8;
/// The dynamic table that HTTP/2 starts with; our four fields fit it well.
const DEFAULT_TABLE_BYTES: u32 = 4096;

/// What a run calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Put,
    Get,
}

impl Operation {
    fn path(self) -> &'static str {
        match self {
            Self::Put => "/etcdserverpb.KV/Put",
            Self::Get => "/etcdserverpb.KV/Range",
        }
    }
}

/// The number of a key as its digits.
pub fn key_of(number: u64) -> Vec<u8> {
    let mut key = KEY_PREFIX.to_vec();
    key.resize(KEY_PREFIX.len() + KEY_DIGITS, b'0');
    write_digits(&mut key[KEY_PREFIX.len()..], number);
    key
}

fn write_digits(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// The frames of one call: HEADERS, then DATA with END_STREAM.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Vec<u8>,
    /// Where the DATA frame starts, the key's digits and, for a put, the value.
    data: usize,
    digits: usize,
    value: Option<usize>,
}

impl Template {
    /// The first call of a connection and the ones after it, for a server that announced a table of `table_bytes`.
    pub fn pair(operation: Operation, value_bytes: usize, authority: &str, table_bytes: u32) -> [Self; 2] {
        let indexed = table_bytes >= DEFAULT_TABLE_BYTES;
        let first = Self::new(
            operation,
            value_bytes,
            &literal_block(operation.path(), authority, indexed),
        );
        let later = if indexed {
            // 62 is the newest entry: te, content-type, :authority, :path from there on.
            Self::new(
                operation,
                value_bytes,
                &[0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62],
            )
        } else {
            first.clone()
        };
        [first, later]
    }

    fn new(operation: Operation, value_bytes: usize, block: &[u8]) -> Self {
        let message = message(operation, value_bytes);
        let mut bytes = Vec::new();
        push_frame(&mut bytes, kind::HEADERS, flag::END_HEADERS, block);
        let data = bytes.len();
        let mut payload = vec![0];
        payload.extend_from_slice(&(message.len() as u32).to_be_bytes());
        payload.extend_from_slice(&message);
        push_frame(&mut bytes, kind::DATA, flag::END_STREAM, &payload);
        let start = data + HEADER_LENGTH + PREFIX_LENGTH;
        let key = message
            .windows(KEY_PREFIX.len())
            .position(|part| part == KEY_PREFIX)
            .expect("the message holds its key");
        Self {
            value: (operation == Operation::Put).then(|| start + message.len() - value_bytes),
            bytes,
            data,
            digits: start + key + KEY_PREFIX.len(),
        }
    }

    /// Bytes that count against the server's windows.
    pub fn flow_length(&self) -> usize {
        self.bytes.len() - self.data - HEADER_LENGTH
    }

    /// Appends the call to `out` for `stream`; `stamp` goes into the value.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, stream: u32, key: u64, stamp: u64) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let call = &mut out[start..];
        call[5..HEADER_LENGTH].copy_from_slice(&stream.to_be_bytes());
        call[self.data + 5..self.data + HEADER_LENGTH].copy_from_slice(&stream.to_be_bytes());
        write_digits(&mut call[self.digits..self.digits + KEY_DIGITS], key);
        if let Some(value) = self.value {
            call[value..value + STAMP_LENGTH].copy_from_slice(&stamp.to_le_bytes());
        }
    }
}

/// The message with key 0; a value ends it.
fn message(operation: Operation, value_bytes: usize) -> Vec<u8> {
    assert!(value_bytes >= STAMP_LENGTH, "a value holds its stamp");
    let key = key_of(0).into();
    match operation {
        Operation::Put => {
            let value = vec![b'v'; value_bytes].into();
            let request = PutRequest {
                key,
                value,
                ..Default::default()
            };
            request.encode_to_vec()
        }
        Operation::Get => RangeRequest {
            key,
            ..Default::default()
        }
        .encode_to_vec(),
    }
}

/// Appends a frame for stream 0, to be patched.
fn push_frame(out: &mut Vec<u8>, kind: u8, flags: u8, payload: &[u8]) {
    let length = payload.len();
    FrameHeader {
        length,
        kind,
        flags,
        stream: 0,
    }
    .write(out);
    out.extend_from_slice(payload);
}

/// The request's fields as literals, with incremental indexing or without.
fn literal_block(path: &str, authority: &str, index: bool) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(4, path), (1, authority), (31, "application/grpc")] {
        push_name(&mut block, name, index);
        push_string(&mut block, value);
    }
    push_name(&mut block, 0, index);
    push_string(&mut block, "te");
    push_string(&mut block, "trailers");
    block
}

/// A literal's first byte or bytes: `name` is an entry of the static table, 0 for a name that follows.
fn push_name(block: &mut Vec<u8>, name: u8, index: bool) {
    match (index, name) {
        (true, _) => block.push(0x40 | name),
        (false, ..15) => block.push(name),
        (false, _) => block.extend_from_slice(&[0x0f, name - 15]),
    }
}

fn push_string(block: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127, "{text:?} is too long for a length of one byte");
    block.push(text.len() as u8);
    block.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringd::http::HeaderList;
    use ringd::http::hpack::Decoder;

    fn frames(bytes: &[u8]) -> Vec<(FrameHeader, &[u8])> {
        let mut rest = bytes;
        let mut found = Vec::new();
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_LENGTH>() {
            let header = FrameHeader::parse(header);
            let (payload, behind) = behind.split_at(header.length);
            found.push((header, payload));
            rest = behind;
        }
        found
    }

    #[test]
    fn calls_decode_to_what_was_asked() {
        for table in [4096, 0] {
            let templates = Template::pair(Operation::Put, 256, "127.0.0.1:2379", table);
            let mut decoder = Decoder::new(table as usize);
            let mut list = HeaderList::new(4096);
            for (number, template) in [&templates[0], &templates[1], &templates[1]].into_iter().enumerate() {
                let stream = 2 * number as u32 + 1;
                let mut out = b"before".to_vec();
                template.write(&mut out, stream, 123_456, 7);
                assert_eq!(out.len(), 6 + template.bytes.len());
                let frames = frames(&out[6..]);
                assert_eq!(frames.len(), 2);
                assert_eq!(
                    (frames[0].0.kind, frames[0].0.flags),
                    (kind::HEADERS, flag::END_HEADERS)
                );
                assert_eq!((frames[1].0.kind, frames[1].0.flags), (kind::DATA, flag::END_STREAM));
                assert!(frames.iter().all(|(header, _)| header.stream == stream));
                assert_eq!(frames[1].1.len(), template.flow_length());
                decoder.decode(frames[0].1, &mut list).unwrap();
                assert_eq!((list.method(), list.scheme()), (&b"POST"[..], &b"http"[..]));
                assert_eq!(list.path(), b"/etcdserverpb.KV/Put");
                assert_eq!(list.authority(), Some(&b"127.0.0.1:2379"[..]));
                assert_eq!(list.get("content-type"), Some(&b"application/grpc"[..]));
                assert_eq!(list.get("te"), Some(&b"trailers"[..]));
                let request = PutRequest::decode(&frames[1].1[PREFIX_LENGTH..]).unwrap();
                assert_eq!(request.key, "/bench/key/000123456");
                assert_eq!(
                    (request.value.len(), &request.value[..8]),
                    (256, &7u64.to_le_bytes()[..])
                );
            }
        }
    }

    #[test]
    fn a_get_has_its_key_and_no_value() {
        let [_, template] = Template::pair(Operation::Get, 256, "h:1", 4096);
        let mut out = Vec::new();
        template.write(&mut out, 5, 999_999_999, 1);
        let request = RangeRequest::decode(&frames(&out)[1].1[PREFIX_LENGTH..]).unwrap();
        assert_eq!(
            request,
            RangeRequest {
                key: key_of(999_999_999).into(),
                ..Default::default()
            }
        );
    }
}
