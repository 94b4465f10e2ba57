//! Frames of RFC 9113 §4 and §6: the nine-byte header, types, flags, error codes, and writers for small frames.
//!
//! Knows bytes only: no streams, no windows.

use std::fmt;

/// What a client sends before its first frame (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a frame header.
pub const HEADER_LENGTH: usize = 9;

/// Frame types (RFC 9113 §6).
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const PRIORITY: u8 = 0x2;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const PUSH_PROMISE: u8 = 0x5;
    pub const PING: u8 = 0x6;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;
}

/// Frame flags (RFC 9113 §6). ACK and END_STREAM share a bit and belong to different frames.
pub mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Settings (RFC 9113 §6.5.2).
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    pub const ENABLE_PUSH: u16 = 0x2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
}

/// An error code of RST_STREAM and GOAWAY (RFC 9113 §7). A peer may send numbers that have no name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    pub const NO_ERROR: Self = Self(0x0);
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    pub const INTERNAL_ERROR: Self = Self(0x2);
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    pub const STREAM_CLOSED: Self = Self(0x5);
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    pub const REFUSED_STREAM: Self = Self(0x7);
    pub const CANCEL: Self = Self(0x8);
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    pub const CONNECT_ERROR: Self = Self(0xa);
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of payload, at most 2^24 - 1.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    /// 0 for the connection itself; the reserved bit is dropped.
    pub stream: u32,
}

impl FrameHeader {
    /// Reads the nine bytes of a header.
    #[inline]
    pub fn parse(bytes: &[u8; HEADER_LENGTH]) -> Self {
        Self {
            length: usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]),
            kind: bytes[3],
            flags: bytes[4],
            stream: u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]) & 0x7fff_ffff,
        }
    }

    /// Appends the header to `out`.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// The header as it goes on the wire.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_LENGTH] {
        debug_assert!(self.length < 1 << 24);
        let length = (self.length as u32).to_be_bytes();
        let stream = self.stream.to_be_bytes();
        [
            length[1], length[2], length[3], self.kind, self.flags, stream[0], stream[1], stream[2], stream[3],
        ]
    }

    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reads a big-endian u32 at the start of `bytes`, which the caller has checked to be long enough.
#[inline]
pub(crate) fn read_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

pub(crate) fn write_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    FrameHeader {
        length: settings.len() * 6,
        kind: kind::SETTINGS,
        flags: 0,
        stream: 0,
    }
    .write(out);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(crate) fn write_settings_ack(out: &mut Vec<u8>) {
    FrameHeader {
        length: 0,
        kind: kind::SETTINGS,
        flags: flag::ACK,
        stream: 0,
    }
    .write(out);
}

pub(crate) fn write_ping(out: &mut Vec<u8>, flags: u8, payload: &[u8; 8]) {
    FrameHeader {
        length: 8,
        kind: kind::PING,
        flags,
        stream: 0,
    }
    .write(out);
    out.extend_from_slice(payload);
}

pub(crate) fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    debug_assert!(increment > 0 && increment <= 0x7fff_ffff);
    FrameHeader {
        length: 4,
        kind: kind::WINDOW_UPDATE,
        flags: 0,
        stream,
    }
    .write(out);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(crate) fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    FrameHeader {
        length: 4,
        kind: kind::RST_STREAM,
        flags: 0,
        stream,
    }
    .write(out);
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub(crate) fn write_goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug_data: &[u8]) {
    FrameHeader {
        length: 8 + debug_data.len(),
        kind: kind::GOAWAY,
        flags: 0,
        stream: 0,
    }
    .write(out);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(debug_data);
}

/// Strips the padding of a padded frame (RFC 9113 §6.1): the range of the content, or `None` if the padding is as long
/// as the payload or longer, which is a connection error.
pub(crate) fn unpad(header: &FrameHeader, payload: &[u8]) -> Option<std::ops::Range<usize>> {
    if !header.has(flag::PADDED) {
        return Some(0..payload.len());
    }
    let padding = usize::from(*payload.first()?);
    let end = payload.len().checked_sub(padding)?;
    (end >= 1).then_some(1..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_and_drops_the_reserved_bit() {
        let header = FrameHeader {
            length: 0x01_02_03,
            kind: kind::HEADERS,
            flags: 0x25,
            stream: 0x7fff_fffe,
        };
        let mut bytes = header.bytes();
        assert_eq!(FrameHeader::parse(&bytes), header);
        bytes[5] |= 0x80;
        assert_eq!(FrameHeader::parse(&bytes), header);
    }

    #[test]
    fn padding_is_stripped_and_too_much_is_refused() {
        let header = FrameHeader {
            length: 0,
            kind: kind::DATA,
            flags: flag::PADDED,
            stream: 1,
        };
        assert_eq!(unpad(&header, &[2, b'a', 0, 0]), Some(1..2));
        assert_eq!(unpad(&header, &[3, 0, 0, 0]), Some(1..1));
        assert_eq!(unpad(&header, &[4, 0, 0, 0]), None);
        assert_eq!(unpad(&header, &[]), None);
        assert_eq!(unpad(&FrameHeader { flags: 0, ..header }, &[9]), Some(0..1));
    }

    #[test]
    fn codes_print_their_names() {
        assert_eq!(ErrorCode::ENHANCE_YOUR_CALM.to_string(), "ENHANCE_YOUR_CALM");
        assert_eq!(ErrorCode(0x99).to_string(), "error code 0x99");
    }
}
