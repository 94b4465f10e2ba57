//! Reading entries back from the log while it is written, for followers that lag behind what the log core keeps in
//! memory. Nothing in a sole member asks for them yet.
//!
//! About once in 64 KiB the writer remembers where an entry begins and what the running checksum was there. A position
//! stands for the stretch up to the next one. When an entry is appended at an old index, the positions from that index
//! on are forgotten, so the stretch before them may hold entries that were replaced, and the entries that replaced them
//! behind: within a stretch the later one counts, and of a stretch only indexes below the next position do.

use super::Error;
use super::frame::{Frame, read_frame};
use super::record::{Entry, RecordKind};
use super::segment::{Place, SegmentName, chain_broken};
use crate::io::buffer::{ALIGNMENT, AlignedBuffer};
use crate::io::disk::{DiskError, FileId, OpenMode, Operation, Outcome};
use crate::limits::WAL_POSITION_BYTES;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug)]
struct Position {
    index: u64,
    segment: SegmentName,
    place: Place,
}

/// Where entries lie, by ascending index.
#[derive(Clone, Debug, Default)]
pub struct Positions(VecDeque<Position>);

impl Positions {
    /// Entry `index` is written at `place` or in the batch that begins there.
    pub fn note(&mut self, index: u64, segment: SegmentName, place: Place) {
        while self.0.back().is_some_and(|last| last.index >= index) {
            self.0.pop_back();
        }
        let near = |last: &Position| {
            last.segment == segment && place.offset.saturating_sub(last.place.offset) < WAL_POSITION_BYTES
        };
        if !self.0.back().is_some_and(near) {
            self.0.push_back(Position { index, segment, place });
        }
    }

    /// Forgets a segment and those before it.
    pub fn forget(&mut self, oldest: SegmentName) {
        while self
            .0
            .front()
            .is_some_and(|first| first.segment.sequence <= oldest.sequence)
        {
            self.0.pop_front();
        }
    }

    /// A reading of the stretch that holds `low`. The log is durable up to `end` of the segment `live`.
    pub fn read_back(&self, directory: &Path, low: u64, high: u64, live: SegmentName, end: u64) -> Option<ReadBack> {
        let next = self.0.partition_point(|position| position.index <= low);
        let position = *self.0.get(next.checked_sub(1)?)?;
        let next = self.0.get(next);
        let durable = (position.segment == live).then_some(end);
        let end = match next {
            Some(next) if next.segment == position.segment => Some(next.place.offset.min(durable.unwrap_or(u64::MAX))),
            // To the end of what is durable, or of a segment that is written no more.
            _ => durable,
        };
        if end.is_some_and(|end| end <= position.place.offset) {
            return None;
        }
        Some(ReadBack {
            path: directory.join(position.segment.file_name()),
            start: position.place,
            end,
            low,
            high: high.min(next.map_or(u64::MAX, |next| next.index)),
            step: Step::Open,
            entries: Vec::new(),
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    Read(FileId, u64),
    Close(FileId),
    Done,
}

/// Reads some entries: submit each [`ReadBack::operation`] under a token of your own, hand its end to
/// [`ReadBack::completed`], until that brings the entries.
pub struct ReadBack {
    path: PathBuf,
    start: Place,
    /// Where the stretch ends; `None` at the end of the segment.
    end: Option<u64>,
    low: u64,
    high: u64,
    step: Step,
    entries: Vec<Entry>,
}

impl ReadBack {
    /// The next operation; none when it is done.
    pub fn operation(&mut self) -> Option<Operation> {
        Some(match self.step {
            Step::Open => Operation::Open {
                path: self.path.clone(),
                mode: OpenMode::ReadOnly,
            },
            Step::Read(file, length) => {
                let offset = self.block();
                let end = self.end.unwrap_or(length);
                Operation::Read {
                    file,
                    offset,
                    buffer: AlignedBuffer::zeroed((end - offset) as usize),
                }
            }
            Step::Close(file) => Operation::Close { file },
            Step::Done => return None,
        })
    }

    fn block(&self) -> u64 {
        self.start.offset / ALIGNMENT as u64 * ALIGNMENT as u64
    }

    /// Takes the end of the operation. At last it brings the entries from `low` on: at least one, unless entries from
    /// `low` on were replaced by fewer since.
    pub fn completed(&mut self, result: Result<Outcome, DiskError>) -> Result<Option<Vec<Entry>>, Error> {
        self.step = match (self.step, result?) {
            (Step::Open, Outcome::Opened { file, length }) if length > self.start.offset => Step::Read(file, length),
            (Step::Open, Outcome::Opened { length, .. }) => {
                return Err(self.corrupt(length, "the file has become shorter".to_string()));
            }
            (Step::Read(file, _), Outcome::Read { buffer, length }) => {
                self.parse(&buffer[..length])?;
                Step::Close(file)
            }
            (Step::Close(_), _) => Step::Done,
            (step, outcome) => unreachable!("reading back: {step:?} was answered with {outcome:?}"),
        };
        Ok(matches!(self.step, Step::Done).then(|| std::mem::take(&mut self.entries)))
    }

    fn corrupt(&self, offset: u64, reason: String) -> Error {
        Error::Corrupt {
            path: self.path.clone(),
            offset,
            reason,
        }
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let block = self.block();
        let mut position = (self.start.offset - block) as usize;
        let mut crc = self.start.crc;
        let end = self.end.map_or(bytes.len(), |end| (end - block) as usize);
        while position < end.min(bytes.len()) {
            let at = block + position as u64;
            let (record, next) = match read_frame(bytes, position) {
                Frame::End if self.end.is_none() => return Ok(()),
                Frame::End => return Err(self.corrupt(at, "a record that was written is gone".to_string())),
                Frame::Damaged { reason, .. } => return Err(self.corrupt(at, reason)),
                Frame::Record { record, next } => (record, next),
            };
            let kind = RecordKind::from_number(record.kind);
            if kind != Some(RecordKind::Checksum) {
                crc = crc32c::crc32c_append(crc, record.data);
            }
            if record.crc != crc {
                return Err(self.corrupt(at, chain_broken(record.crc, crc)));
            }
            if kind == Some(RecordKind::Entry) {
                let entry = Entry::decode(record.data).map_err(|error| self.corrupt(at, error.to_string()))?;
                self.take(entry);
            }
            position = next;
        }
        Ok(())
    }

    fn take(&mut self, entry: Entry) {
        let kept = self.entries.partition_point(|earlier| earlier.index < entry.index);
        self.entries.truncate(kept);
        if (self.low..self.high).contains(&entry.index) {
            self.entries.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_replaced_entries_are_forgotten() {
        let mut positions = Positions::default();
        let segment = SegmentName::default();
        for index in 1..=10 {
            let offset = index * WAL_POSITION_BYTES;
            positions.note(index, segment, Place { offset, crc: 0 });
        }
        let offset = 11 * WAL_POSITION_BYTES;
        positions.note(5, segment, Place { offset, crc: 1 });
        positions.note(
            6,
            segment,
            Place {
                offset: offset + 8,
                crc: 2,
            },
        );
        let indexes: Vec<u64> = positions.0.iter().map(|position| position.index).collect();
        assert_eq!(indexes, [1, 2, 3, 4, 5]);
        let stretch = positions.read_back(Path::new("/"), 4, 99, segment, u64::MAX).unwrap();
        assert_eq!((stretch.end, stretch.high), (Some(offset), 5));
        assert!(positions.read_back(Path::new("/"), 0, 99, segment, u64::MAX).is_none());
        assert!(
            positions.read_back(Path::new("/"), 7, 99, segment, offset).is_none(),
            "not durable yet"
        );
    }
}
