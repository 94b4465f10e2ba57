//! A segment: its name, its head, and reading one from its bytes.

use super::frame::{ChecksumUse, Frame, FrameWriter, MarkKey, find_mark, is_mark, is_torn, read_frame};
use super::record::{HardState, Metadata, RecordKind, Snapshot};

/// The extension of segments.
const EXTENSION: &str = ".wal";

/// A segment's place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// Counts segments from 0 without gaps.
    pub sequence: u64,
    /// The raft index expected of the segment's first entry when it was created; 0 for the very first.
    pub first_index: u64,
}

impl SegmentName {
    /// The name on disk.
    pub fn file_name(self) -> String {
        format!("{:016x}-{:016x}{EXTENSION}", self.sequence, self.first_index)
    }

    /// Reads a name; `None` for other files.
    pub fn parse(name: &str) -> Option<SegmentName> {
        let (sequence, first_index) = name.strip_suffix(EXTENSION)?.split_once('-')?;
        let number = |digits: &str| {
            let hex = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            u64::from_str_radix(digits, 16).ok().filter(|_| hex)
        };
        Some(SegmentName {
            sequence: number(sequence)?,
            first_index: number(first_index)?,
        })
    }
}

/// The most bytes a head takes: it lies in the segment's first sector.
pub const HEAD_MAX: usize = super::frame::SECTOR;

/// Writes the head of a segment to the start of `block`: the running checksum, whose log it is, the hard state (or, in
/// the log's first segment, the empty snapshot etcd looks for), and the format record. Returns its length and the
/// running checksum.
pub fn write_head(
    block: &mut [u8],
    name: SegmentName,
    crc: u32,
    metadata: &Metadata,
    hard_state: &HardState,
    key: MarkKey,
) -> (usize, u32) {
    let mut writer = FrameWriter::new(block, 0, crc);
    let mut data = Vec::new();
    writer.put(RecordKind::Checksum, &[], &[]);
    metadata.encode(&mut data);
    writer.put(RecordKind::Metadata, &data, &[]);
    if name.sequence == 0 {
        data.clear();
        Snapshot::default().encode(&mut data);
        writer.put(RecordKind::Snapshot, &data, &[]);
    }
    if !hard_state.is_empty() {
        data.clear();
        hard_state.encode(&mut data);
        writer.put(RecordKind::State, &data, &[]);
    }
    writer.put_format(key);
    assert!(writer.position() <= HEAD_MAX);
    (writer.position(), writer.crc())
}

/// Where and why reading a segment stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where the first record that can't be trusted begins; all before it is sound.
    pub offset: u64,
    /// What is wrong.
    pub reason: String,
    /// Whether a write cut short by a power cut explains it.
    pub torn: bool,
    /// A genuine mark behind the damage: what was damaged had been acknowledged.
    pub mark_behind: Option<u64>,
}

/// What was found in a segment besides its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Where the sound part ends.
    pub end: u64,
    /// The running checksum there.
    pub crc: u32,
    /// The key of the segment's marks; `None` if someone else wrote it.
    pub key: Option<MarkKey>,
    /// Where the last batch begins that has a sound mark.
    pub last_mark: Option<u64>,
    /// Why it ends there, unless only zeros follow.
    pub damage: Option<Damage>,
}

/// What is wrong with a record whose checksum is not the running one.
pub fn chain_broken(found: u32, running: u32) -> String {
    format!("checksum is {found:#010x}, by the records before it {running:#010x}")
}

/// Where a frame begins, and the running checksum before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: u64,
    pub crc: u32,
}

impl Place {
    fn new(position: usize, crc: u32) -> Place {
        let offset = position as u64;
        Place { offset, crc }
    }
}

/// Reads the segment with number `sequence` from its bytes and calls `visit` with the place, kind and data of each
/// sound record that is not a checksum. `previous_crc` is the running checksum at the end of the segment before it, if
/// that was read. An error of `visit` ends the reading and is passed on.
pub fn scan<E>(
    bytes: &[u8],
    sequence: u64,
    previous_crc: Option<u32>,
    mut visit: impl FnMut(Place, RecordKind, &[u8]) -> Result<(), E>,
) -> Result<Scanned, E> {
    let mut position = 0;
    let mut crc = previous_crc.unwrap_or(0);
    let mut key = None;
    let mut last_mark = None;
    let damage = loop {
        let (record, next) = match read_frame(bytes, position) {
            Frame::End => {
                let more = bytes[position..].iter().any(|&byte| byte != 0);
                break more.then(|| ("a record's beginning is missing".to_string(), true));
            }
            Frame::Damaged { reason, torn } => break Some((reason, torn)),
            Frame::Record { record, next } => (record, next),
        };
        let (kind, offset) = (RecordKind::from_number(record.kind), position as u64);
        if position == 0 && kind != Some(RecordKind::Checksum) {
            break Some(("a segment must begin with a checksum record".to_string(), false));
        }
        if position == 0 && previous_crc.is_none() {
            crc = record.crc;
        }
        let running = match kind {
            Some(RecordKind::Checksum) => crc,
            _ => crc32c::crc32c_append(crc, record.data),
        };
        if running != record.crc {
            break Some((
                chain_broken(record.crc, running),
                position != 0 && is_torn(bytes, position),
            ));
        }
        match kind {
            None => break Some((format!("record of unknown kind {}", record.kind), false)),
            Some(RecordKind::Checksum) => match ChecksumUse::of(record.data) {
                Some(ChecksumUse::Format(found)) if key.is_none() => key = Some(found),
                Some(ChecksumUse::Plain | ChecksumUse::Padding) => {}
                _ if key.is_some_and(|key| is_mark(&record, key, sequence, offset)) => last_mark = Some(offset),
                _ => {
                    break Some((
                        "a mark that is not this segment's".to_string(),
                        is_torn(bytes, position),
                    ));
                }
            },
            Some(kind) => visit(Place::new(position, crc), kind, record.data)?,
        }
        crc = running;
        position = next;
    };
    let damage = damage.map(|(reason, torn)| Damage {
        offset: position as u64,
        reason,
        torn,
        mark_behind: key
            .and_then(|key| find_mark(bytes, position, key, sequence))
            .map(|at| at as u64),
    });
    Ok(Scanned {
        end: position as u64,
        crc,
        key,
        last_mark,
        damage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const NAME: SegmentName = SegmentName {
        sequence: 2,
        first_index: 10,
    };
    const KEY: MarkKey = MarkKey(99);

    #[test]
    fn names_are_etcds() {
        let name = SegmentName {
            sequence: 0x1f,
            first_index: 0xabc,
        };
        assert_eq!(name.file_name(), "000000000000001f-0000000000000abc.wal");
        assert_eq!(SegmentName::parse(&name.file_name()), Some(name));
        let others = [
            "0.tmp",
            "000000000000001f-0000000000000abc.wal.broken",
            "000000000000001F-0000000000000abc.wal",
            "1f-abc.wal",
            "+00000000000001f-0000000000000abc.wal",
            "",
        ];
        for other in others {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
    }

    /// A segment of two batches of one record each, and where the batches begin and the second ends.
    fn segment() -> (Vec<u8>, [usize; 3]) {
        let mut bytes = vec![0; 16384];
        let state = HardState {
            term: 1,
            vote: 1,
            commit: 9,
        };
        let (head, crc) = write_head(&mut bytes, NAME, 7, &Metadata::default(), &state, KEY);
        let mut writer = FrameWriter::new(&mut bytes, head, crc);
        writer.put_mark(KEY, 2, head as u64);
        writer.put(RecordKind::Entry, &[1; 1000], &[]);
        let second = writer.position();
        writer.put_mark(KEY, 2, second as u64);
        writer.put(RecordKind::Entry, &[2; 1000], &[]);
        let end = writer.position();
        (bytes, [head, second, end])
    }

    fn read(bytes: &[u8], previous_crc: Option<u32>) -> (Vec<RecordKind>, Scanned) {
        let mut kinds = Vec::new();
        let scanned = scan(bytes, 2, previous_crc, |_, kind, _| {
            kinds.push(kind);
            Ok::<_, Infallible>(())
        });
        (kinds, scanned.unwrap_or_else(|never| match never {}))
    }

    #[test]
    fn a_sound_segment_is_read_to_its_end() {
        let (bytes, [_, second, end]) = segment();
        let (kinds, scanned) = read(&bytes, Some(7));
        assert_eq!(
            kinds,
            [
                RecordKind::Metadata,
                RecordKind::State,
                RecordKind::Entry,
                RecordKind::Entry
            ]
        );
        assert_eq!(
            (scanned.end, scanned.key, scanned.last_mark, scanned.damage),
            (end as u64, Some(KEY), Some(second as u64), None)
        );
        let (_, unchained) = read(&bytes, None);
        assert_eq!(unchained.crc, scanned.crc);
    }

    #[test]
    fn a_chain_that_does_not_continue_the_segment_before_is_broken() {
        let (bytes, _) = segment();
        let damage = read(&bytes, Some(8)).1.damage.unwrap();
        assert_eq!((damage.offset, damage.torn), (0, false));
        assert_eq!(
            damage.reason,
            "checksum is 0x00000007, by the records before it 0x00000008"
        );
    }

    #[test]
    fn damage_in_the_first_batch_has_a_mark_behind_it_and_in_the_second_not() {
        let (mut bytes, [head, second, end]) = segment();
        bytes[second - 400] ^= 1;
        let damage = read(&bytes, Some(7)).1.damage.unwrap();
        assert_eq!(damage.mark_behind, Some(second as u64));
        assert!(damage.offset > head as u64 && damage.offset < second as u64);
        bytes[second - 400] ^= 1;
        bytes[end - 400] ^= 1;
        let damage = read(&bytes, Some(7)).1.damage.unwrap();
        assert_eq!((damage.mark_behind, damage.torn), (None, false));
    }

    #[test]
    fn a_missing_sector_is_a_tear_wherever_it_lies() {
        let (whole, [head, _, end]) = segment();
        for sector in (head.next_multiple_of(512)..end).step_by(512) {
            let mut bytes = whole.clone();
            bytes[sector..sector + 512].fill(0);
            let scanned = read(&bytes, Some(7)).1;
            let damage = scanned.damage.unwrap();
            assert!(damage.torn, "{sector}: {damage:?}");
            assert!(damage.offset < sector as u64 + 512);
            assert_eq!(damage.offset, scanned.end);
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed_or_harmless() {
        let (whole, [_, _, end]) = segment();
        let records = |bytes: &[u8]| {
            let mut records = Vec::new();
            let scanned = scan(bytes, 2, Some(7), |_, kind, data| {
                records.push((kind, data.to_vec()));
                Ok::<_, Infallible>(())
            });
            (records, scanned.unwrap_or_else(|never| match never {}).damage)
        };
        let (sound, _) = records(&whole);
        for bit in 0..end * 8 {
            let at = bit / 8;
            // The format's own weakness: no checksum covers the kind of a record.
            if at > 0 && whole[at - 1] == 0x08 && whole[at + 1] == 0x10 {
                continue;
            }
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (bit % 8);
            let (found, damage) = records(&bytes);
            assert!(damage.is_some() || found == sound, "bit {bit}");
        }
    }
}
