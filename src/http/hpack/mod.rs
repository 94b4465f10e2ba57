//! HPACK, RFC 7541: the static table, integers, and the two directions.

pub mod decoder;
pub mod encoder;
pub mod huffman;
mod table;

pub use decoder::{Decoder, HpackError};
pub use encoder::{Encoder, Field};

/// Entries of the static table (RFC 7541 Appendix A); index 1 is the first.
pub const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// What every entry of a header table costs beside its bytes (RFC 7541 §4.1).
pub const ENTRY_OVERHEAD: usize = 32;

/// Appends `value` as an integer with a prefix of `prefix` bits; `high` are the bits before the prefix.
pub(crate) fn write_integer(out: &mut Vec<u8>, high: u8, prefix: u32, value: usize) {
    let limit = (1usize << prefix) - 1;
    if value < limit {
        out.push(high | value as u8);
        return;
    }
    out.push(high | limit as u8);
    let mut rest = value - limit;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Reads an integer with a prefix of `prefix` bits at `*position` and moves behind it. `None` if the input ends inside
/// it or the value does not fit 28 bits, far beyond any length or index that a bounded block can mean.
#[inline]
pub(crate) fn read_integer(block: &[u8], position: &mut usize, prefix: u32) -> Option<usize> {
    let limit = (1usize << prefix) - 1;
    let first = usize::from(*block.get(*position)?) & limit;
    *position += 1;
    if first < limit {
        return Some(first);
    }
    let mut value = 0usize;
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*block.get(*position)?);
        *position += 1;
        value |= (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value + limit);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_rfc_7541_appendix_c_1() {
        for (value, prefix, bytes) in [
            (10, 5, &[0b01010][..]),
            (1337, 5, &[0b11111, 0b10011010, 0b1010]),
            (42, 8, &[0b101010]),
        ] {
            let mut out = Vec::new();
            write_integer(&mut out, 0, prefix, value);
            assert_eq!(out, bytes);
            let mut position = 0;
            assert_eq!(read_integer(bytes, &mut position, prefix), Some(value));
            assert_eq!(position, bytes.len());
        }
    }

    #[test]
    fn integers_that_end_early_or_never_are_refused() {
        assert_eq!(read_integer(&[], &mut 0, 7), None);
        assert_eq!(read_integer(&[0x7f, 0x80], &mut 0, 7), None);
        assert_eq!(
            read_integer(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01], &mut 0, 7),
            None
        );
    }
}
