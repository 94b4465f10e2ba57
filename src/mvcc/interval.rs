//! The end of a key interval, as etcd's requests spell it.
//!
//! An interval of keys is a start key, included, and a [`RangeEnd`]. Requests, watches, compares and permissions all
//! use the same two byte strings (`key`, `range_end`); this is the one place that knows what they mean.

/// The `range_end` that means "every key from the start on".
const FROM_KEY: &[u8] = b"\0";

/// Where an interval that starts at a key ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeEnd<'a> {
    /// The start key alone.
    Single,
    /// Up to this key, itself excluded. An end at or below the start makes an empty interval, which is no error.
    Before(&'a [u8]),
    /// Every key from the start on.
    Unbounded,
}

impl<'a> RangeEnd<'a> {
    /// Reads a request's `range_end`: empty is the single key, one zero byte is "from the key on".
    pub fn from_request(range_end: &'a [u8]) -> RangeEnd<'a> {
        match range_end {
            b"" => RangeEnd::Single,
            FROM_KEY => RangeEnd::Unbounded,
            end => RangeEnd::Before(end),
        }
    }

    /// The `range_end` that a request would carry; the reverse of [`RangeEnd::from_request`].
    pub fn to_request(self) -> &'a [u8] {
        match self {
            RangeEnd::Single => b"",
            RangeEnd::Before(end) => end,
            RangeEnd::Unbounded => FROM_KEY,
        }
    }

    /// Whether the interval from `start` to this end holds `key`.
    pub fn contains(self, start: &[u8], key: &[u8]) -> bool {
        match self {
            RangeEnd::Single => key == start,
            RangeEnd::Before(end) => start <= key && key < end,
            RangeEnd::Unbounded => start <= key,
        }
    }

    /// Whether no key at all can lie in the interval from `start` to this end.
    pub fn is_empty(self, start: &[u8]) -> bool {
        matches!(self, RangeEnd::Before(end) if end <= start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_three_spellings() {
        assert_eq!(RangeEnd::from_request(b""), RangeEnd::Single);
        assert_eq!(RangeEnd::from_request(b"\0"), RangeEnd::Unbounded);
        assert_eq!(RangeEnd::from_request(b"\0\0"), RangeEnd::Before(b"\0\0"));
        for end in [&b""[..], b"\0", b"a", b"\0\0"] {
            assert_eq!(RangeEnd::from_request(end).to_request(), end);
        }
    }

    #[test]
    fn holds_start_but_not_end() {
        assert!(RangeEnd::Single.contains(b"a", b"a") && !RangeEnd::Single.contains(b"a", b"a\0"));
        let end = RangeEnd::Before(b"c");
        assert!(end.contains(b"a", b"a") && end.contains(b"a", b"bzz"));
        assert!(!end.contains(b"a", b"c") && !end.contains(b"a", b"Z"));
        assert!(RangeEnd::Unbounded.contains(b"\0", b"\xff\xff") && !RangeEnd::Unbounded.contains(b"b", b"a"));
        assert!(RangeEnd::Before(b"a").is_empty(b"a") && RangeEnd::Before(b"a").is_empty(b"b"));
        assert!(!RangeEnd::Before(b"b").is_empty(b"a") && !RangeEnd::Single.is_empty(b"a"));
    }
}
