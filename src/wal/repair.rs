//! Before the log goes on: a torn tail is cut off, and the log's end is written again.
//!
//! A sync that succeeds does not vouch for all that a read shows. After a sync that failed, a cache may go on showing
//! bytes it has dropped, and the next sync succeeds; a start can't know what syncs failed in earlier lives. Were it to
//! believe such bytes, the next power cut would leave a hole in the middle of the log. So what may never have reached
//! the medium is written again, with the bytes that were read, and synced: the last batch, because every earlier one
//! was durable before the one after it was begun, and zeros as far behind it as a batch that was cut may reach.

use super::frame::is_torn;
use super::recovery::{Segment, allocate, corrupt, rename, sync};
use super::segment::Scanned;
use super::{Error, Options};
use crate::io::buffer::{ALIGNMENT, AlignedBuffer};
use crate::io::disk::{Disk, FileId, OpenMode, Operation};
use crate::limits::{WAL_CUT_BYTES_MAX, WAL_PIECE_BYTES};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// More than what the log adds to an entry's data: mark, frame, the entry's own fields, padding.
const ENTRY_OVERHEAD: usize = 2 * ALIGNMENT;

/// A tail that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The segment.
    pub path: PathBuf,
    /// Where the cut is; zeros from here on.
    pub offset: u64,
    /// How many bytes behind it were not zeros or zeros between such.
    pub bytes: u64,
    /// What was wrong.
    pub reason: String,
}

/// Cuts the last segment's tail, in memory, if it may be cut, and refuses if not.
pub fn cut(segment: &mut Segment, scanned: &Scanned, options: &Options) -> Result<Option<Repair>, Error> {
    let Some(damage) = &scanned.damage else {
        return Ok(None);
    };
    // A record without any head before it: the head is synced before the segment gets its name.
    let headless = scanned.end == 0;
    // Etcd truncates files; a frame that reaches beyond the end of one of its files is a tear like any other.
    let beyond_end = scanned.key.is_none() && is_torn_at_end(&segment.bytes, damage.offset);
    let torn = damage.torn || beyond_end || options.pad_batches;
    if headless || damage.mark_behind.is_some() || !torn {
        return Err(corrupt(segment, damage));
    }
    assert_eq!(damage.offset, scanned.end);
    let tail = &mut segment.bytes[damage.offset as usize..];
    let bytes = tail.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    tail.fill(0);
    Ok(Some(Repair {
        path: segment.path.clone(),
        offset: damage.offset,
        bytes: bytes as u64,
        reason: damage.reason.clone(),
    }))
}

/// Whether the frame at `offset` claims more than the file holds.
fn is_torn_at_end(bytes: &[u8], offset: u64) -> bool {
    let rest = &bytes[offset as usize..];
    let Some((field, rest)) = rest.split_first_chunk() else {
        return true;
    };
    let length = u64::from_le_bytes(*field) & !(0xff << 56);
    length > rest.len() as u64 || is_torn(bytes, offset as usize)
}

/// Writes the log's end again and syncs it; afterwards what was read of the last segment is what is on the medium.
pub fn write_again<D: Disk + ?Sized>(
    disk: &mut D,
    directory: &Path,
    segment: &mut Segment,
    scanned: &Scanned,
    repair: Option<&Repair>,
    options: &Options,
) -> Result<(), Error> {
    let length = segment.bytes.len().next_multiple_of(ALIGNMENT);
    segment.bytes.resize(length, 0);
    if options.pad_batches && copy(disk, directory, segment, options)? {
        return Ok(());
    }
    let end = scanned.end as usize;
    let from = match (scanned.key, scanned.last_mark) {
        // No room for a copy: only what is cut is written. What was synced when it was opened has to do for the rest.
        _ if options.pad_batches && repair.is_none() => end.next_multiple_of(ALIGNMENT),
        _ if options.pad_batches => end,
        // A segment of etcd's does not say where its last batch begins.
        (None, _) | (Some(_), None) => 0,
        (Some(_), Some(mark)) => mark as usize,
    };
    let to = match (scanned.key, repair) {
        (None, _) => length,
        (Some(_), repair) => {
            let reach = WAL_CUT_BYTES_MAX.max(options.entry_bytes_max.saturating_add(ENTRY_OVERHEAD));
            end.saturating_add(repair.map_or(0, |cut| cut.bytes as usize).max(reach))
        }
    };
    let from = from / ALIGNMENT * ALIGNMENT;
    let to = to.min(length).next_multiple_of(ALIGNMENT);
    write(disk, segment.file, &segment.bytes, from..to)?;
    sync(disk, segment.file, options)
}

/// Puts a copy of the segment in its place, since no block with acknowledged bytes may be written again. Whether there
/// was room for it.
fn copy<D: Disk + ?Sized>(
    disk: &mut D,
    directory: &Path,
    segment: &mut Segment,
    options: &Options,
) -> Result<bool, Error> {
    let temporary = directory.join("0.tmp");
    let file = match disk.open(&temporary, OpenMode::CreateNew) {
        Err(error) if error.is_no_space() => return Ok(false),
        opened => opened?.0,
    };
    let filled = fill(disk, file, &segment.bytes, options);
    if matches!(&filled, Err(Error::Disk(error)) if error.is_no_space()) {
        disk.call(Operation::Close { file })?;
        disk.call(Operation::Remove { path: temporary })?;
        return Ok(false);
    }
    filled?;
    rename(disk, &temporary, &segment.path, options)?;
    let replaced = std::mem::replace(&mut segment.file, file);
    disk.call(Operation::Close { file: replaced })?;
    Ok(true)
}

fn fill<D: Disk + ?Sized>(disk: &mut D, file: FileId, bytes: &[u8], options: &Options) -> Result<(), Error> {
    allocate(disk, file, bytes.len() as u64)?;
    write(disk, file, bytes, 0..bytes.len())?;
    sync(disk, file, options)
}

/// Writes a range of a file that holds `bytes`; both ends are multiples of 4096.
fn write<D: Disk + ?Sized>(disk: &mut D, file: FileId, bytes: &[u8], range: Range<usize>) -> Result<(), Error> {
    for offset in range.clone().step_by(WAL_PIECE_BYTES) {
        let piece = &bytes[offset..range.end.min(offset + WAL_PIECE_BYTES)];
        let mut buffer = AlignedBuffer::zeroed(piece.len());
        buffer.copy_from_slice(piece);
        disk.call(Operation::Write {
            file,
            offset: offset as u64,
            buffer,
            durable: false,
        })?;
    }
    Ok(())
}
