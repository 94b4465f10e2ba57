//! Frames: how records lie in a segment, and the checksum that chains them.
//!
//! A frame is a 64-bit little-endian length field, the record, and zeros up to a multiple of 8. The field's low 56 bits
//! are the record's length; with padding the top byte is 0x80 | padding, else 0. A field of 0 is the end of what was
//! written. A record's `crc` is the CRC-32C of the data of all records so far, so a record vouches for all before it;
//! a checksum record carries the running value and does not change it. Its own data, which etcd's readers ignore, is
//! used by ringd and told apart by its first byte (`docs/wal.md`):
//!
//! * `F` the **format** record that closes the head of a segment ringd wrote, with the key of its marks;
//! * `M` the **mark** that opens each batch, with a check over key, segment, offset and running checksum, so that
//!   nothing a client stores can look like one;
//! * `P` **padding** to the end of a block.

use super::record::{RawRecord, RecordKind, number_length};

/// Bytes of the length field.
pub const FRAME_HEADER: usize = 8;
/// The most a frame adds to a record's data: length field, kind, checksum, length of the data, padding.
pub const FRAME_OVERHEAD_MAX: usize = FRAME_HEADER + 2 + 6 + 1 + 10 + 7;
/// Bytes of a sector: what a device writes whole or not at all.
pub const SECTOR: usize = 512;

const FORMAT_TAG: u8 = b'F';
const FORMAT_VERSION: u8 = 1;
const MARK_TAG: u8 = b'M';
const PADDING_TAG: u8 = b'P';
/// A mark's record is this long at most: kind, checksum of up to 5 bytes, 5 bytes of data.
const MARK_RECORD_MAX: u64 = 2 + 6 + 2 + 5;

/// What makes the marks of a segment its own: drawn at random by whoever creates the segment, known to nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkKey(pub u64);

impl MarkKey {
    fn check(self, sequence: u64, offset: u64, crc: u32) -> [u8; 4] {
        let mut bytes = [0; 28];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&offset.to_le_bytes());
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
        crc32c::crc32c(&bytes).to_le_bytes()
    }
}

/// What a checksum record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumUse {
    /// Head of a segment, or a checksum record of someone else's.
    Plain,
    /// The end of the head of a segment written by ringd.
    Format(MarkKey),
    /// The opening of a batch.
    Mark([u8; 4]),
    /// Filler.
    Padding,
}

impl ChecksumUse {
    /// What the data of a checksum record says; `None` if it says nothing known.
    pub fn of(data: &[u8]) -> Option<ChecksumUse> {
        match data {
            [] => Some(ChecksumUse::Plain),
            [FORMAT_TAG, FORMAT_VERSION, key @ ..] => {
                let key = u64::from_le_bytes(key.try_into().ok()?);
                Some(ChecksumUse::Format(MarkKey(key)))
            }
            [MARK_TAG, check @ ..] => Some(ChecksumUse::Mark(check.try_into().ok()?)),
            [PADDING_TAG, ..] => Some(ChecksumUse::Padding),
            _ => None,
        }
    }
}

/// Writes frames into a buffer, keeping the running checksum. The buffer's owner has made it large enough.
pub struct FrameWriter<'a> {
    buffer: &'a mut [u8],
    position: usize,
    crc: u32,
}

impl<'a> FrameWriter<'a> {
    /// Continues at `position` of `buffer` with the running checksum `crc`.
    pub fn new(buffer: &'a mut [u8], position: usize, crc: u32) -> FrameWriter<'a> {
        assert_eq!(position % FRAME_HEADER, 0);
        FrameWriter { buffer, position, crc }
    }

    /// Where the next frame begins.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The running checksum.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Writes a record whose data is `head` followed by `body`.
    pub fn put(&mut self, kind: RecordKind, head: &[u8], body: &[u8]) {
        if kind != RecordKind::Checksum {
            self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, head), body);
        }
        let data_length = head.len() + body.len();
        let mut record_length = 2 + 1 + number_length(self.crc.into());
        if data_length > 0 {
            record_length += 1 + number_length(data_length as u64) + data_length;
        }
        let padding = record_length.wrapping_neg() % 8;
        let mut field = record_length as u64;
        if padding > 0 {
            field |= (0x80 | padding as u64) << 56;
        }
        let start = self.position;
        self.put_bytes(&field.to_le_bytes());
        self.put_bytes(&[0x08, kind as u8, 0x10]);
        self.put_number(self.crc.into());
        if data_length > 0 {
            self.put_bytes(&[0x1a]);
            self.put_number(data_length as u64);
            self.put_bytes(head);
            self.put_bytes(body);
        }
        assert_eq!(self.position, start + FRAME_HEADER + record_length);
        self.put_bytes(&[0; 7][..padding]);
    }

    /// Writes the record that closes the head of a segment.
    pub fn put_format(&mut self, key: MarkKey) {
        let mut data = [FORMAT_TAG, FORMAT_VERSION, 0, 0, 0, 0, 0, 0, 0, 0];
        data[2..].copy_from_slice(&key.0.to_le_bytes());
        self.put(RecordKind::Checksum, &data, &[]);
    }

    /// Writes the record that opens a batch at `offset` of segment `sequence`.
    pub fn put_mark(&mut self, key: MarkKey, sequence: u64, offset: u64) {
        let [a, b, c, d] = key.check(sequence, offset, self.crc);
        self.put(RecordKind::Checksum, &[MARK_TAG, a, b, c, d], &[]);
    }

    /// Fills up to a multiple of `block` with padding; the buffer reaches one block further than that.
    pub fn pad_to(&mut self, block: usize) {
        let mut gap = self.position.wrapping_neg() % block;
        if gap == 0 {
            return;
        }
        let bare = FRAME_HEADER + 3 + number_length(self.crc.into());
        if gap < bare {
            gap += block;
        }
        // One byte of tag, and what remains of the frame for filler; a few bytes less are made up by the frame itself.
        let room = gap - bare;
        let data_length = match room {
            0..3 => 0,
            _ => room - 1 - number_length(room as u64),
        };
        let end = self.position + gap;
        if data_length == 0 {
            self.put(RecordKind::Checksum, &[], &[]);
        } else {
            self.put(RecordKind::Checksum, &[PADDING_TAG], &vec![0; data_length - 1]);
        }
        assert_eq!(self.position, end);
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.buffer[self.position..self.position + bytes.len()].copy_from_slice(bytes);
        self.position += bytes.len();
    }

    fn put_number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.put_bytes(&[number as u8 | 0x80]);
            number >>= 7;
        }
        self.put_bytes(&[number as u8]);
    }
}

/// What is found at a place in a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Zeros or the end of the file.
    End,
    /// A record, and where the next frame begins. Its checksum is not looked at.
    Record { record: RawRecord<'a>, next: usize },
    /// Something that is no frame. `torn` says whether a write cut short by a power cut explains it.
    Damaged { reason: String, torn: bool },
}

/// Reads the frame at `position`.
pub fn read_frame(bytes: &[u8], position: usize) -> Frame<'_> {
    let rest = &bytes[position..];
    let Some((field, rest)) = rest.split_first_chunk::<FRAME_HEADER>() else {
        if rest.iter().all(|&byte| byte == 0) {
            return Frame::End;
        }
        return Frame::Damaged {
            reason: format!("{} bytes at the end of the file", rest.len()),
            torn: false,
        };
    };
    let field = u64::from_le_bytes(*field);
    if field == 0 {
        return Frame::End;
    }
    let length = field & !(0xff << 56);
    let padding = length.wrapping_neg() % 8;
    let flag = if padding == 0 { 0 } else { 0x80 | padding };
    if field >> 56 != flag || length == 0 {
        return Frame::Damaged {
            reason: format!("length field {field:#018x} is not one"),
            torn: false,
        };
    }
    if length + padding > rest.len() as u64 {
        return Frame::Damaged {
            reason: format!("a record of {length} bytes reaches beyond the end of the file"),
            torn: false,
        };
    }
    let (record, framed) = (&rest[..length as usize], &rest[..(length + padding) as usize]);
    match RawRecord::decode(record) {
        Ok(record) => Frame::Record {
            record,
            next: position + FRAME_HEADER + framed.len(),
        },
        Err(malformed) => Frame::Damaged {
            reason: format!("not a record: {malformed}"),
            torn: is_torn(bytes, position),
        },
    }
}

/// Whether a part of the frame at `position` that lies in one sector is all zeros, as when its sector was never
/// written. The frame's length field is sound.
pub fn is_torn(bytes: &[u8], position: usize) -> bool {
    let Some((field, rest)) = bytes[position..].split_first_chunk::<FRAME_HEADER>() else {
        return false;
    };
    let length = u64::from_le_bytes(*field) & !(0xff << 56);
    let length = (length.next_multiple_of(8)).min(rest.len() as u64) as usize;
    let start = position + FRAME_HEADER;
    let mut at = start;
    while at < start + length {
        let sector_end = (at / SECTOR + 1) * SECTOR;
        let end = sector_end.min(start + length);
        if bytes[at..end].iter().all(|&byte| byte == 0) {
            return true;
        }
        at = end;
    }
    false
}

/// Whether the record of a mark found at `offset` of segment `sequence` is genuine.
pub fn is_mark(record: &RawRecord<'_>, key: MarkKey, sequence: u64, offset: u64) -> bool {
    record.kind == RecordKind::Checksum as u64
        && ChecksumUse::of(record.data) == Some(ChecksumUse::Mark(key.check(sequence, offset, record.crc)))
}

/// The first genuine mark at or behind `from`, whatever lies before it.
pub fn find_mark(bytes: &[u8], from: usize, key: MarkKey, sequence: u64) -> Option<usize> {
    let mut at = from.next_multiple_of(FRAME_HEADER);
    while let Some(field) = bytes.get(at..at + FRAME_HEADER) {
        let mut word = [0; FRAME_HEADER];
        word.copy_from_slice(field);
        let length = u64::from_le_bytes(word) & !(0xff << 56);
        if (1..=MARK_RECORD_MAX).contains(&length)
            && let Frame::Record { record, .. } = read_frame(bytes, at)
            && is_mark(&record, key, sequence, at as u64)
        {
            return Some(at);
        }
        at += FRAME_HEADER;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MarkKey = MarkKey(0x1122_3344_5566_7788);

    fn written(write: impl FnOnce(&mut FrameWriter<'_>)) -> (Vec<u8>, u32) {
        let mut buffer = vec![0; 1 << 16];
        let mut writer = FrameWriter::new(&mut buffer, 0, 0);
        write(&mut writer);
        let (length, crc) = (writer.position(), writer.crc());
        buffer.truncate(length);
        (buffer, crc)
    }

    #[test]
    fn a_frame_has_etcds_bytes() {
        let (bytes, crc) = written(|writer| writer.put(RecordKind::Entry, b"hel", b"lo"));
        assert_eq!(crc, crc32c::crc32c(b"hello"));
        assert_eq!(crc, 0x9a71_bb4c);
        let expected = [
            15, 0, 0, 0, 0, 0, 0, 0x81, 0x08, 2, 0x10, 0xcc, 0xf6, 0xc6, 0xd3, 0x09, 0x1a, 5, b'h', b'e', b'l', b'l',
            b'o', 0,
        ];
        assert_eq!(bytes, expected);
        let (bytes, crc) = written(|writer| writer.put(RecordKind::Checksum, &[], &[]));
        assert_eq!(
            (&bytes[..], crc),
            (&[4, 0, 0, 0, 0, 0, 0, 0x84, 0x08, 4, 0x10, 0, 0, 0, 0, 0][..], 0)
        );
    }

    #[test]
    fn what_is_written_reads_back_and_chains() {
        for length in 0..40 {
            let data = vec![7; length];
            let (bytes, crc) = written(|writer| {
                writer.put(RecordKind::State, b"x", &[]);
                writer.put(RecordKind::Entry, &data, &data);
            });
            assert_eq!(bytes.len() % 8, 0);
            let Frame::Record { next, .. } = read_frame(&bytes, 0) else {
                panic!()
            };
            let Frame::Record { record, next } = read_frame(&bytes, next) else {
                panic!()
            };
            assert_eq!((record.kind, record.crc, record.data.len()), (2, crc, 2 * length));
            assert_eq!(read_frame(&bytes, next), Frame::End);
        }
    }

    #[test]
    fn padding_ends_at_a_block_from_every_place() {
        for crc in [0, 1 << 10, 1 << 17, 1 << 24, u32::MAX] {
            for position in (0..4096).step_by(8) {
                let mut buffer = vec![0; 3 * 4096];
                let mut writer = FrameWriter::new(&mut buffer, position, crc);
                writer.pad_to(4096);
                let end = writer.position();
                assert_eq!(end % 4096, 0);
                assert!(end <= 8192);
                if position == 0 {
                    assert_eq!(end, 0);
                    continue;
                }
                let Frame::Record { record, next } = read_frame(&buffer, position) else {
                    panic!("{position}")
                };
                assert_eq!((record.kind, record.crc, next), (4, crc, end));
                assert!(matches!(
                    ChecksumUse::of(record.data),
                    Some(ChecksumUse::Plain | ChecksumUse::Padding)
                ));
            }
        }
    }

    #[test]
    fn marks_are_found_behind_anything_and_only_where_they_belong() {
        let mut buffer = vec![0xa5; 8192];
        let mut writer = FrameWriter::new(&mut buffer, 504, 77);
        writer.put_mark(KEY, 3, 504);
        assert_eq!(find_mark(&buffer, 1, KEY, 3), Some(504));
        assert_eq!(find_mark(&buffer, 505, KEY, 3), None);
        assert_eq!(find_mark(&buffer, 0, KEY, 4), None, "another segment's");
        assert_eq!(find_mark(&buffer, 0, MarkKey(1), 3), None, "another key's");
        let mut moved = vec![0; 8192];
        moved[..4000].copy_from_slice(&buffer[8..4008]);
        assert_eq!(find_mark(&moved, 0, KEY, 3), None, "a copy at another place");
        buffer[510] ^= 1;
        assert_eq!(find_mark(&buffer, 0, KEY, 3), None);
    }

    #[test]
    fn a_tear_leaves_a_sector_of_zeros_and_rot_does_not() {
        let (mut bytes, _) = written(|writer| writer.put(RecordKind::Entry, &[9; 2000], &[]));
        assert!(!is_torn(&bytes, 0));
        bytes[700] ^= 0xff;
        assert!(!is_torn(&bytes, 0));
        bytes[512..1024].fill(0);
        assert!(is_torn(&bytes, 0));
    }

    #[test]
    fn what_is_no_frame_is_named() {
        let reason = |bytes: &[u8]| match read_frame(bytes, 0) {
            Frame::Damaged { reason, .. } => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(&[1; 3]), "3 bytes at the end of the file");
        assert_eq!(
            reason(&[9, 0, 0, 0, 0, 0, 0, 0x81]),
            "length field 0x8100000000000009 is not one"
        );
        assert_eq!(
            reason(&[0, 0, 0, 0, 0, 0, 0, 0x80]),
            "length field 0x8000000000000000 is not one"
        );
        assert_eq!(
            reason(&[8, 0, 0, 0, 0, 0, 0, 0]),
            "a record of 8 bytes reaches beyond the end of the file"
        );
        assert_eq!(
            reason(&[8, 0, 0, 0, 0, 0, 0, 0, 8, 1, 8, 1, 8, 1, 8, 0x80]),
            "not a record: a varint without an end"
        );
        assert_eq!(read_frame(&[0; 5], 0), Frame::End);
    }
}
