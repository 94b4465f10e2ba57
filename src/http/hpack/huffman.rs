//! The Huffman code of RFC 7541 Appendix B.
//!
//! The code is canonical: codes of one length are consecutive and ordered by symbol, so the table of lengths is the
//! whole code. Decoding looks up nine bits at once, which covers every symbol that text is made of, and falls back to
//! one comparison per length for the rest.

/// Code length of each byte, in bits. The end-of-string symbol (30 bits, all ones) is not a byte and never valid.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const LONGEST: usize = 30;
const FAST_BITS: u32 = 9;

struct Code {
    /// By nine leading bits: (length, byte), length 0 where the code is longer.
    fast: [(u8, u8); 1 << FAST_BITS],
    /// By length: the first code of the length, left-aligned in 32 bits.
    first: [u32; LONGEST + 2],
    /// By length: index into `ordered` of the first code's byte.
    offset: [u16; LONGEST + 2],
    /// Bytes in code order.
    ordered: [u8; 256],
    /// By byte: the code, right-aligned.
    codes: [u32; 256],
}

static CODE: Code = build();

const fn build() -> Code {
    let mut code = Code {
        fast: [(0, 0); 1 << FAST_BITS],
        first: [u32::MAX; LONGEST + 2],
        offset: [0; LONGEST + 2],
        ordered: [0; 256],
        codes: [0; 256],
    };
    let mut next = 0u32;
    let mut count = 0;
    let mut length = 1;
    while length <= LONGEST {
        next <<= 1;
        code.first[length] = next << (32 - length);
        code.offset[length] = count;
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                code.ordered[count as usize] = byte as u8;
                code.codes[byte] = next;
                count += 1;
                if length as u32 <= FAST_BITS {
                    let shift = FAST_BITS - length as u32;
                    let mut low = 0;
                    while low < 1 << shift {
                        code.fast[((next << shift) + low) as usize] = (length as u8, byte as u8);
                        low += 1;
                    }
                }
                next += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    // The one code left is the end-of-string symbol: all ones.
    assert!(next == (1 << LONGEST) - 1 && count == 256);
    code
}

/// The string is not a valid Huffman string: padding longer than 7 bits or not all ones, or the end-of-string symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHuffman;

/// Appends the decoded form of `encoded` to `out`; at most 8/5 of its length.
pub fn decode(encoded: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidHuffman> {
    let start = out.len();
    // Room for the longest result at once, so that the loop only stores.
    out.resize(start + encoded.len() * 8 / 5 + 1, 0);
    let length = decode_into(encoded, &mut out[start..]);
    out.truncate(start + length.unwrap_or(0));
    length.map(|_| ())
}

/// Decodes into a slice that is long enough; returns the length of the result.
fn decode_into(encoded: &[u8], out: &mut [u8]) -> Result<usize, InvalidHuffman> {
    let mut rest = encoded;
    let mut bits = 0u64; // left-aligned, zeros behind
    let mut available = 0u32;
    let mut position = 0;
    loop {
        if available < LONGEST as u32 {
            (bits, available, rest) = refill(bits, available, rest);
        }
        if available == 0 {
            return Ok(position);
        }
        let (mut length, mut byte) = CODE.fast[(bits >> (64 - FAST_BITS)) as usize];
        if length == 0 {
            match long_code(bits) {
                Some(found) => (length, byte) = found,
                None => return padding(bits, available).map(|()| position),
            }
        }
        if u32::from(length) > available {
            return padding(bits, available).map(|()| position);
        }
        out[position] = byte;
        position += 1;
        bits <<= length;
        available -= u32::from(length);
    }
}

/// Takes as many whole bytes of `rest` as fit.
#[inline]
fn refill(mut bits: u64, mut available: u32, mut rest: &[u8]) -> (u64, u32, &[u8]) {
    if let Some(next) = rest.first_chunk::<8>() {
        let bytes = (63 - available) / 8;
        let kept = u64::from_be_bytes(*next) & (u64::MAX << (64 - 8 * bytes));
        return (bits | kept >> available, available + 8 * bytes, &rest[bytes as usize..]);
    }
    while let Some((byte, tail)) = rest.split_first().filter(|_| available <= 56) {
        bits |= u64::from(*byte) << (56 - available);
        available += 8;
        rest = tail;
    }
    (bits, available, rest)
}

/// A code longer than the table's nine bits. `None` for the end-of-string symbol: whole in the input it is an error
/// (RFC 7541 §5.2), and its beginning is the padding that the caller judges.
#[cold]
fn long_code(bits: u64) -> Option<(u8, u8)> {
    let window = (bits >> 32) as u32;
    let mut length = FAST_BITS as usize + 1;
    while length < LONGEST && window >= CODE.first[length + 1] {
        length += 1;
    }
    let index = u32::from(CODE.offset[length]) + ((window - CODE.first[length]) >> (32 - length));
    let byte = *CODE.ordered.get(index as usize)?;
    Some((length as u8, byte))
}

/// What is left at the end must be fewer than eight bits, all ones.
fn padding(bits: u64, available: u32) -> Result<(), InvalidHuffman> {
    let ones = u64::MAX << (64 - available);
    if available < 8 && bits == ones {
        Ok(())
    } else {
        Err(InvalidHuffman)
    }
}

/// Appends the encoded form of `plain` to `out`. The server itself sends plain text; peers in tests use this.
pub fn encode(plain: &[u8], out: &mut Vec<u8>) {
    let mut bits = 0u64;
    let mut pending = 0u32;
    for byte in plain {
        let length = u32::from(LENGTHS[usize::from(*byte)]);
        bits = bits << length | u64::from(CODE.codes[usize::from(*byte)]);
        pending += length;
        while pending >= 8 {
            pending -= 8;
            out.push((bits >> pending) as u8);
        }
    }
    if pending > 0 {
        out.push((bits << (8 - pending)) as u8 | (0xff >> pending));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(encoded: &[u8]) -> Result<Vec<u8>, InvalidHuffman> {
        let mut out = Vec::new();
        decode(encoded, &mut out).map(|()| out)
    }

    #[test]
    fn examples_of_rfc_7541_appendix_c() {
        for (hex, plain) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("25a849e95ba97d7f", "custom-key"),
            ("25a849e95bb8e8b4bf", "custom-value"),
            (
                "d07abe941054d444a8200595040b8166e082a62d1bff",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ] {
            let encoded = crate::http::tests::hex(hex);
            assert_eq!(decoded(&encoded).unwrap(), plain.as_bytes());
            let mut again = Vec::new();
            encode(plain.as_bytes(), &mut again);
            assert_eq!(again, encoded);
        }
    }

    #[test]
    fn bad_padding_and_end_of_string_are_refused() {
        assert_eq!(decoded(&[0xff]), Err(InvalidHuffman), "eight bits of padding");
        assert_eq!(decoded(&[0x00]), Err(InvalidHuffman), "padding of zeros");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(InvalidHuffman), "end of string");
        assert_eq!(
            decoded(&[0x1f, 0xff]),
            Err(InvalidHuffman),
            "a byte of padding behind a symbol"
        );
        assert_eq!(decoded(&[0x1f]), Ok(b"a".to_vec()));
        assert_eq!(decoded(&[]), Ok(vec![]));
    }

    #[test]
    fn every_byte_reads_back() {
        for byte in 0..=255u8 {
            let mut encoded = Vec::new();
            encode(&[byte, byte, b'x'], &mut encoded);
            assert_eq!(decoded(&encoded).unwrap(), [byte, byte, b'x']);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_read_back(plain: Vec<u8>) {
            let mut encoded = Vec::new();
            encode(&plain, &mut encoded);
            prop_assert_eq!(decoded(&encoded).unwrap(), plain);
        }

        #[test]
        fn any_input_is_judged_without_panic_and_only_its_own_encoding_accepted(input: Vec<u8>) {
            if let Ok(plain) = decoded(&input) {
                let mut again = Vec::new();
                encode(&plain, &mut again);
                prop_assert_eq!(again, input);
            }
        }
    }
}
