//! Little-endian integers and varints of the page format, read without panics.

/// Takes `N` bytes off the front; `None` when fewer are left.
pub(super) fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// Takes one byte.
pub(super) fn take_u8(bytes: &mut &[u8]) -> Option<u8> {
    take(bytes, 1).map(|taken| taken[0])
}

/// Takes a little-endian `u16`.
pub(super) fn take_u16(bytes: &mut &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes(take(bytes, 2)?.try_into().ok()?))
}

/// Takes a little-endian `u32`.
pub(super) fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?))
}

/// Takes a little-endian `u64`.
pub(super) fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?))
}

/// Appends `value` in groups of seven bits, lowest first.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a varint; `None` when it is cut short or longer than ten bytes.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in 0..10 {
        let byte = take_u8(bytes)?;
        value |= u64::from(byte & 0x7f) << (7 * shift);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_end() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut rest = out.as_slice();
            assert_eq!(take_varint(&mut rest), Some(value));
            assert!(rest.is_empty());
            assert_eq!(take_varint(&mut &out[..out.len() - 1]), None);
        }
        assert_eq!(take_varint(&mut [0xff; 11].as_slice()), None);
    }
}
