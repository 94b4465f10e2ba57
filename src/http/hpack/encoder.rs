//! Header blocks for a peer: the encoder.
//!
//! A server's responses repeat a handful of fields. Those that the caller marks are inserted into the peer's table when
//! they are first used and cost one byte from then on; all others go as literals. Nothing is ever evicted by an
//! insertion, so an index is known from the order of insertion alone.

use super::{ENTRY_OVERHEAD, STATIC_TABLE, write_integer};
use crate::limits::HTTP_HEADER_TABLE_BYTES;

/// A field to send; `name` in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub name: &'a str,
    pub value: &'a [u8],
    /// Whether the same field will be sent often, so that it should enter the peer's table.
    pub repeated: bool,
}

impl<'a> Field<'a> {
    /// A field whose value changes from response to response.
    pub const fn new(name: &'a str, value: &'a [u8]) -> Self {
        Self {
            name,
            value,
            repeated: false,
        }
    }

    /// A field that is sent over and over.
    pub const fn repeated(name: &'a str, value: &'a [u8]) -> Self {
        Self {
            name,
            value,
            repeated: true,
        }
    }
}

/// The sending half of HPACK for one connection.
#[derive(Debug)]
pub struct Encoder {
    /// The peer's table as we filled it, oldest first.
    entries: Vec<(Box<str>, Box<[u8]>)>,
    size: usize,
    /// The size in force, as the peer knows it from our updates.
    maximum: usize,
    /// A change of size to be told at the start of the next block: the smallest value since, and the last.
    change: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            size: 0,
            maximum: HTTP_HEADER_TABLE_BYTES,
            change: None,
        }
    }
}

impl Encoder {
    /// Takes note of the peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_table_size(&mut self, announced: u32) {
        let size = (announced as usize).min(HTTP_HEADER_TABLE_BYTES);
        let smallest = self.change.map_or(size, |(smallest, _)| smallest.min(size));
        self.change = Some((smallest, size)).filter(|change| *change != (self.maximum, self.maximum));
    }

    /// Appends the block of a response's header list.
    pub fn encode_response(&mut self, status: u16, fields: &[Field<'_>], out: &mut Vec<u8>) {
        self.announce_size(out);
        match status {
            200 => out.push(0x88),
            204 => out.push(0x89),
            206 => out.push(0x8a),
            304 => out.push(0x8b),
            400 => out.push(0x8c),
            404 => out.push(0x8d),
            500 => out.push(0x8e),
            _ => {
                let digits = [status / 100 % 10, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
                out.extend_from_slice(&[0x08, 3]);
                out.extend_from_slice(&digits);
            }
        }
        self.fields(fields, out);
    }

    /// Appends the block of trailers.
    pub fn encode_trailers(&mut self, fields: &[Field<'_>], out: &mut Vec<u8>) {
        self.announce_size(out);
        self.fields(fields, out);
    }

    fn fields(&mut self, fields: &[Field<'_>], out: &mut Vec<u8>) {
        for field in fields {
            if field.repeated {
                self.repeated(field, out);
            } else {
                literal(field, 0x00, 4, out);
            }
        }
    }

    fn repeated(&mut self, field: &Field<'_>, out: &mut Vec<u8>) {
        let same = |(name, value): &(Box<str>, Box<[u8]>)| **value == *field.value && **name == *field.name;
        if let Some(position) = self.entries.iter().position(same) {
            let behind = self.entries.len() - 1 - position;
            return write_integer(out, 0x80, 7, STATIC_TABLE.len() + 1 + behind);
        }
        let cost = field.name.len() + field.value.len() + ENTRY_OVERHEAD;
        if self.size + cost > self.maximum {
            return literal(field, 0x00, 4, out);
        }
        literal(field, 0x40, 6, out);
        self.entries.push((field.name.into(), field.value.into()));
        self.size += cost;
    }

    /// RFC 7541 §4.2: the smallest size since the last block, then the one in force.
    fn announce_size(&mut self, out: &mut Vec<u8>) {
        let Some((smallest, last)) = self.change.take() else {
            return;
        };
        if smallest < self.maximum {
            // The peer evicts by this; we start afresh rather than keep count of what is left.
            write_integer(out, 0x20, 5, 0);
            self.entries.clear();
            self.size = 0;
        }
        write_integer(out, 0x20, 5, last);
        self.maximum = last;
    }
}

/// A literal field; names of the static table go by index, strings without Huffman coding.
fn literal(field: &Field<'_>, high: u8, prefix: u32, out: &mut Vec<u8>) {
    let place = STATIC_TABLE.iter().position(|(name, _)| *name == field.name);
    write_integer(out, high, prefix, place.map_or(0, |place| place + 1));
    if place.is_none() {
        write_integer(out, 0, 7, field.name.len());
        out.extend_from_slice(field.name.as_bytes());
    }
    write_integer(out, 0, 7, field.value.len());
    out.extend_from_slice(field.value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::HeaderList;
    use crate::http::hpack::Decoder;

    const TYPE: Field<'static> = Field::repeated("content-type", b"application/grpc");
    const STATUS: Field<'static> = Field::repeated("grpc-status", b"0");

    fn read(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let mut list = HeaderList::new(65_536);
        decoder.forget();
        decoder.decode(block, &mut list).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        list.iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    #[test]
    fn repeated_fields_cost_one_byte_from_the_second_time_on() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new(4096));
        for round in 0..3 {
            let (mut head, mut tail) = (Vec::new(), Vec::new());
            encoder.encode_response(200, &[TYPE], &mut head);
            encoder.encode_trailers(&[STATUS, Field::new("x", b"y")], &mut tail);
            assert_eq!(read(&mut decoder, &head), [pair("content-type", "application/grpc")]);
            assert_eq!(read(&mut decoder, &tail), [pair("grpc-status", "0"), pair("x", "y")]);
            if round > 0 {
                assert_eq!(head, [0x88, 0xbf]);
                assert_eq!(tail[0], 0xbe);
            }
        }
    }

    #[test]
    fn every_status_is_spelled() {
        for status in [200, 204, 206, 304, 400, 404, 500, 415, 405, 431, 503] {
            let mut block = Vec::new();
            Encoder::default().encode_response(status, &[], &mut block);
            let expected = status.to_string();
            if let [index] = block[..] {
                assert_eq!(STATIC_TABLE[usize::from(index & 0x7f) - 1], (":status", &expected[..]));
            } else {
                assert_eq!(block[..2], [0x08, 3]);
                assert_eq!(&block[2..], expected.as_bytes());
            }
        }
    }

    #[test]
    fn a_table_of_size_zero_gets_literals() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new(4096));
        let mut block = Vec::new();
        encoder.encode_response(200, &[TYPE], &mut block);
        read(&mut decoder, &block);
        encoder.set_table_size(0);
        for round in 0..2 {
            let mut block = Vec::new();
            encoder.encode_trailers(&[TYPE, STATUS], &mut block);
            assert_eq!(block[0] == 0x20, round == 0, "told once");
            assert_eq!(read(&mut decoder, &block).len(), 2);
        }
    }

    #[test]
    fn a_size_that_went_down_and_up_again_is_told_as_both() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new(4096));
        let mut block = Vec::new();
        encoder.encode_trailers(&[TYPE, STATUS], &mut block);
        read(&mut decoder, &block);
        encoder.set_table_size(64);
        encoder.set_table_size(100_000);
        block.clear();
        encoder.encode_trailers(&[STATUS, TYPE], &mut block);
        assert_eq!(block[0], 0x20);
        assert_eq!(
            read(&mut decoder, &block),
            [pair("grpc-status", "0"), pair("content-type", "application/grpc")]
        );
        block.clear();
        encoder.encode_trailers(&[STATUS, TYPE], &mut block);
        assert_eq!(block, [0xbf, 0xbe]);
        read(&mut decoder, &block);
    }

    #[test]
    fn what_does_not_fit_the_table_is_not_inserted() {
        let mut encoder = Encoder::default();
        encoder.set_table_size(70);
        for _ in 0..2 {
            let mut block = Vec::new();
            encoder.encode_trailers(&[TYPE, STATUS], &mut block);
            assert_eq!(encoder.entries.len(), 1);
        }
    }
}
