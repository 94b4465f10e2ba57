//! Making a log, and reading one at boot.
//!
//! Nothing is believed before it has been synced again: the directory, its parent and each segment are synced, then
//! read. Only the last segment's tail may be cut, and only if no mark lies behind the damage and a write cut short
//! explains it; the cut is zeroed, and the log's end written again and synced, before the writer exists (`repair`).
//! Everything else that is wrong refuses the start and names file and offset.

use super::frame::MarkKey;
use super::readback::Positions;
use super::record::{Entry, HardState, Malformed, Metadata, RecordKind, Snapshot};
use super::repair::{Repair, cut, write_again};
use super::segment::{Damage, Place, Scanned, SegmentName, scan, write_head};
use super::writer::{Live, Writer};
use super::{Error, Options};
use crate::io::buffer::{ALIGNMENT, AlignedBuffer};
use crate::io::disk::{Disk, FileId, OpenMode, Operation};
use crate::limits::{WAL_PIECE_BYTES, WAL_SEGMENT_READ_BYTES_MAX};
use std::path::{Path, PathBuf};

/// What a log holds.
pub struct Recovered {
    /// Whose log it is.
    pub metadata: Metadata,
    /// raft's hard state.
    pub hard_state: HardState,
    /// The snapshots recorded in what was read, at or below the commit index, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// The index before the first of `entries`: at most the one asked for, unless a snapshot was installed above it.
    pub entries_after: u64,
    /// The term of the entry at `entries_after`, if the log says it.
    pub term_after: Option<u64>,
    /// The entries after `entries_after`, without gaps.
    pub entries: Vec<Entry>,
    /// What was cut off, if a power cut had torn the tail.
    pub repair: Option<Repair>,
    /// Continues the log.
    pub writer: Writer,
}

/// Whether the directory holds a log.
pub fn exists<D: Disk + ?Sized>(disk: &mut D, directory: &Path) -> Result<bool, Error> {
    match disk.list(directory) {
        Ok(names) => Ok(names.iter().any(|name| SegmentName::parse(name).is_some())),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes a new log: in a temporary directory that is renamed when it is durable, or, when `directory` exists already,
/// in place, where the segment gets its name last.
pub fn create<D: Disk + ?Sized>(
    disk: &mut D,
    directory: &Path,
    metadata: Metadata,
    options: Options,
) -> Result<Writer, Error> {
    if exists(disk, directory)? {
        return Err(Error::Exists {
            directory: directory.to_path_buf(),
        });
    }
    let name = SegmentName::default();
    let parent = directory.parent().unwrap_or(Path::new("/"));
    let in_place = disk.list(directory).is_ok();
    let workplace = if in_place {
        directory.to_path_buf()
    } else {
        let mut temporary = directory.as_os_str().to_owned();
        temporary.push(".tmp");
        PathBuf::from(temporary)
    };
    disk.call(Operation::CreateDirectory {
        path: workplace.clone(),
    })?;
    remove_leftovers(disk, &workplace, !in_place)?;

    let temporary = workplace.join("0.tmp");
    let (file, _) = disk.open(&temporary, OpenMode::CreateNew)?;
    let live = make_first_segment(disk, file, name, &metadata, &options)?;
    rename(disk, &temporary, &workplace.join(name.file_name()), &options)?;
    if !in_place {
        rename(disk, &workplace, directory, &options)?;
    } else {
        sync_directory(disk, parent, &options)?;
    }
    Ok(Writer::new(
        options,
        directory,
        metadata,
        HardState::default(),
        vec![name],
        live,
        0,
    ))
}

/// Removes what an earlier attempt left: temporary segments, and with `all` everything.
fn remove_leftovers<D: Disk + ?Sized>(disk: &mut D, directory: &Path, all: bool) -> Result<(), Error> {
    for name in disk.list(directory)? {
        if all || name.ends_with(".tmp") {
            let path = directory.join(name);
            disk.call(Operation::Remove { path })?;
        }
    }
    Ok(())
}

pub(super) fn rename<D: Disk + ?Sized>(disk: &mut D, from: &Path, to: &Path, options: &Options) -> Result<(), Error> {
    disk.call(Operation::Rename {
        from: from.to_path_buf(),
        to: to.to_path_buf(),
    })?;
    sync_directory(disk, to.parent().unwrap_or(Path::new("/")), options)
}

fn sync_directory<D: Disk + ?Sized>(disk: &mut D, path: &Path, options: &Options) -> Result<(), Error> {
    if !options.unsafe_no_fsync {
        let path = path.to_path_buf();
        disk.call(Operation::SyncDirectory { path })?;
    }
    Ok(())
}

pub(super) fn sync<D: Disk + ?Sized>(disk: &mut D, file: FileId, options: &Options) -> Result<(), Error> {
    if !options.unsafe_no_fsync {
        disk.call(Operation::Sync { file })?;
    }
    Ok(())
}

/// Reserves the first `length` bytes of a file where the file system can.
pub(super) fn allocate<D: Disk + ?Sized>(disk: &mut D, file: FileId, length: u64) -> Result<(), Error> {
    let offset = 0;
    let allocated = disk.call(Operation::Allocate { file, offset, length });
    Ok(super::ahead::tolerate_unsupported(allocated.map(|_| ()))?)
}

fn make_first_segment<D: Disk + ?Sized>(
    disk: &mut D,
    file: FileId,
    name: SegmentName,
    metadata: &Metadata,
    options: &Options,
) -> Result<Live, Error> {
    allocate(disk, file, options.segment_bytes)?;
    write_zeros(disk, file, 0, options.segment_bytes)?;
    let key = MarkKey(options.mark_key);
    let mut buffer = AlignedBuffer::zeroed(ALIGNMENT);
    let (length, crc) = write_head(&mut buffer, name, 0, metadata, &HardState::default(), key);
    let tail = buffer[..length].to_vec();
    let durable = !options.unsafe_no_fsync;
    disk.call(Operation::Write {
        file,
        offset: 0,
        buffer,
        durable,
    })?;
    sync(disk, file, options)?;
    Ok(Live::new(file, name, length as u64, tail, crc, Some(key)).unused())
}

/// Writes zeros over a range, both ends of which are multiples of 4096.
fn write_zeros<D: Disk + ?Sized>(disk: &mut D, file: FileId, from: u64, to: u64) -> Result<(), Error> {
    let mut offset = from;
    while offset < to {
        let length = (to - offset).min(WAL_PIECE_BYTES as u64);
        disk.call(Operation::Write {
            file,
            offset,
            buffer: AlignedBuffer::zeroed(length as usize),
            durable: false,
        })?;
        offset += length;
    }
    Ok(())
}

/// One segment as read.
pub(super) struct Segment {
    pub name: SegmentName,
    pub path: PathBuf,
    pub file: FileId,
    pub bytes: Vec<u8>,
}

/// Reads the log in `directory` and makes it ready for writing. `after` is the last index the caller has durably
/// applied; entries from up to `margin` before it are handed over as well, for raft and its followers.
pub fn recover<D: Disk + ?Sized>(
    disk: &mut D,
    directory: &Path,
    options: Options,
    after: u64,
    margin: u64,
) -> Result<Recovered, Error> {
    if !exists(disk, directory)? {
        return Err(Error::Missing {
            directory: directory.to_path_buf(),
        });
    }
    remove_leftovers(disk, directory, false)?;
    let mut names = settled_names(disk, directory, &options)?;
    let mut last = open_last(disk, directory, &mut names, &options)?;
    let (start, first) = choose_start(directory, &names, after, margin)?;

    let mut log = Log::new(start);
    let mut previous: Option<(SegmentName, u32)> = None;
    for name in &names[first..names.len() - 1] {
        let segment = open_and_read(disk, directory, *name, &options)?;
        let scanned = read_segment(&segment, previous, &mut log)?;
        if let Some(damage) = scanned.damage {
            return Err(corrupt(&segment, &damage));
        }
        previous = Some((*name, scanned.crc));
        disk.call(Operation::Close { file: segment.file })?;
    }
    let scanned = read_segment(&last, previous, &mut log)?;
    let repair = cut(&mut last, &scanned, &options)?;
    let Some(metadata) = log.metadata else {
        return Err(Error::Corrupt {
            path: last.path,
            offset: 0,
            reason: "the log does not say whose it is".to_string(),
        });
    };
    log.settle();
    write_again(disk, directory, &mut last, &scanned, repair.as_ref(), &options)?;

    let block = scanned.end as usize / ALIGNMENT * ALIGNMENT;
    let tail = last.bytes[block..scanned.end as usize].to_vec();
    let live = Live::new(last.file, last.name, scanned.end, tail, scanned.crc, scanned.key);
    let last_index = log.last_index;
    let mut writer = Writer::new(options, directory, metadata, log.hard_state, names, live, last_index);
    writer.set_positions(log.positions);
    Ok(Recovered {
        metadata,
        hard_state: log.hard_state,
        snapshots: log.snapshots,
        entries_after: log.after,
        term_after: log.term_after,
        entries: log.entries,
        repair,
        writer,
    })
}

/// The segments in order, once the names are durable.
fn settled_names<D: Disk + ?Sized>(
    disk: &mut D,
    directory: &Path,
    options: &Options,
) -> Result<Vec<SegmentName>, Error> {
    sync_directory(disk, directory.parent().unwrap_or(Path::new("/")), options)?;
    sync_directory(disk, directory, options)?;
    let names = disk.list(directory)?;
    let mut names: Vec<SegmentName> = names.iter().filter_map(|name| SegmentName::parse(name)).collect();
    names.sort();
    Ok(names)
}

/// Opens and reads the newest segment that holds anything; newer ones that hold nothing at all, not even a head, never
/// held anything and are removed.
fn open_last<D: Disk + ?Sized>(
    disk: &mut D,
    directory: &Path,
    names: &mut Vec<SegmentName>,
    options: &Options,
) -> Result<Segment, Error> {
    loop {
        let Some(name) = names.last().copied() else {
            return Err(Error::Missing {
                directory: directory.to_path_buf(),
            });
        };
        let segment = open_and_read(disk, directory, name, options)?;
        let empty = segment.bytes.iter().all(|&byte| byte == 0);
        if !empty {
            return Ok(segment);
        }
        if names.len() == 1 {
            return Err(Error::Corrupt {
                path: segment.path,
                offset: 0,
                reason: "the only segment is empty".to_string(),
            });
        }
        disk.call(Operation::Close { file: segment.file })?;
        disk.call(Operation::Remove { path: segment.path })?;
        sync_directory(disk, directory, options)?;
        names.pop();
    }
}

/// Chooses the index to read after, and the position of the segment to begin with.
fn choose_start(directory: &Path, names: &[SegmentName], after: u64, margin: u64) -> Result<(u64, usize), Error> {
    let contiguous = names
        .windows(2)
        .rposition(|pair| pair[0].sequence.checked_add(1) != Some(pair[1].sequence))
        .map_or(0, |gap| gap + 1);
    let first_index = names[contiguous].first_index;
    if first_index > after.saturating_add(1) {
        return Err(Error::Trimmed {
            directory: directory.to_path_buf(),
            after,
            first_index,
        });
    }
    // The segment that holds the entry at `start` itself, too, if there is one: raft wants its term.
    let start = after.saturating_sub(margin).max(first_index.min(after));
    let chosen = names.iter().rposition(|name| name.first_index <= start);
    Ok((start, chosen.unwrap_or(contiguous).max(contiguous)))
}

/// Syncs a segment, then reads it.
fn open_and_read<D: Disk + ?Sized>(
    disk: &mut D,
    directory: &Path,
    name: SegmentName,
    options: &Options,
) -> Result<Segment, Error> {
    let path = directory.join(name.file_name());
    let (file, length) = disk.open(&path, OpenMode::Existing)?;
    sync(disk, file, options)?;
    if length > WAL_SEGMENT_READ_BYTES_MAX {
        return Err(Error::Corrupt {
            path,
            offset: 0,
            reason: format!("{length} bytes are no segment; at most {WAL_SEGMENT_READ_BYTES_MAX} are read"),
        });
    }
    let mut bytes = Vec::with_capacity(length as usize);
    while (bytes.len() as u64) < length {
        let (piece, filled) = disk.read(file, bytes.len() as u64, WAL_PIECE_BYTES)?;
        if filled == 0 {
            return Err(Error::Corrupt {
                path,
                offset: bytes.len() as u64,
                reason: format!("the file ends before its length of {length} bytes"),
            });
        }
        bytes.extend_from_slice(&piece[..filled]);
    }
    Ok(Segment {
        name,
        path,
        file,
        bytes,
    })
}

fn read_segment(segment: &Segment, previous: Option<(SegmentName, u32)>, log: &mut Log) -> Result<Scanned, Error> {
    let crc = previous.map(|(_, crc)| crc);
    let scanned = scan(&segment.bytes, segment.name.sequence, crc, |place, kind, data| {
        log.take(segment.name, place, kind, data)
            .map_err(|reason| Error::Corrupt {
                path: segment.path.clone(),
                offset: place.offset,
                reason,
            })
    })?;
    match (&scanned.damage, previous) {
        (Some(damage), Some((before, _))) if damage.offset == 0 => Err(Error::Corrupt {
            path: segment.path.clone(),
            offset: 0,
            reason: format!("{}; it does not continue {}", damage.reason, before.file_name()),
        }),
        _ => Ok(scanned),
    }
}

pub(super) fn corrupt(segment: &Segment, damage: &Damage) -> Error {
    let reason = match damage.mark_behind {
        Some(mark) => format!("{}; a later batch begins at offset {mark}", damage.reason),
        None => damage.reason.clone(),
    };
    Error::Corrupt {
        path: segment.path.clone(),
        offset: damage.offset,
        reason,
    }
}

/// A record's payload.
pub enum Payload {
    /// Whose log it is.
    Metadata(Metadata),
    /// An entry.
    Entry(Entry),
    /// The hard state.
    State(HardState),
    /// A snapshot.
    Snapshot(Snapshot),
    /// Nothing the log's reader wants.
    Checksum,
}

/// Decodes a record's data by its kind.
pub fn decode_payload(kind: RecordKind, data: &[u8]) -> Result<Payload, Malformed> {
    Ok(match kind {
        RecordKind::Metadata => Payload::Metadata(Metadata::decode(data)?),
        RecordKind::Entry => Payload::Entry(Entry::decode(data)?),
        RecordKind::State => Payload::State(HardState::decode(data)?),
        RecordKind::Snapshot => Payload::Snapshot(Snapshot::decode(data)?),
        RecordKind::Checksum => Payload::Checksum,
    })
}

/// What the records read so far amount to.
struct Log {
    metadata: Option<Metadata>,
    hard_state: HardState,
    snapshots: Vec<Snapshot>,
    after: u64,
    term_after: Option<u64>,
    entries: Vec<Entry>,
    last_index: u64,
    positions: Positions,
    /// A snapshot beyond the commit index, whose own commit index has not come yet. What stands before it is not what
    /// leads to it, however long it is.
    installed: Option<Snapshot>,
}

impl Log {
    fn new(after: u64) -> Log {
        Log {
            metadata: None,
            hard_state: HardState::default(),
            snapshots: Vec::new(),
            after,
            term_after: (after == 0).then_some(0),
            entries: Vec::new(),
            last_index: 0,
            positions: Positions::default(),
            installed: None,
        }
    }

    /// The log goes on behind a snapshot.
    fn start_behind(&mut self, index: u64, term: u64) {
        if index > self.after {
            (self.after, self.term_after) = (index, Some(term));
        }
        self.entries.clear();
    }

    fn take(&mut self, segment: SegmentName, place: Place, kind: RecordKind, data: &[u8]) -> Result<(), String> {
        match decode_payload(kind, data).map_err(|malformed| format!("{kind:?} record: {malformed}"))? {
            Payload::Metadata(metadata) => match self.metadata.replace(metadata) {
                Some(before) if before != metadata => Err(format!(
                    "the log belongs to member {:x} of cluster {:x}, this segment to member {:x} of cluster {:x}",
                    before.node_id, before.cluster_id, metadata.node_id, metadata.cluster_id
                )),
                _ => Ok(()),
            },
            Payload::Entry(entry) => {
                self.positions.note(entry.index, segment, place);
                self.take_entry(entry)
            }
            Payload::State(state) => {
                self.hard_state = state;
                if let Some(installed) = self.installed.take_if(|installed| installed.index <= state.commit) {
                    self.start_behind(installed.index, installed.term);
                    self.last_index = installed.index;
                }
                Ok(())
            }
            Payload::Snapshot(snapshot) => {
                // A checkpoint holds nothing that is not known to be committed; a snapshot of another member does.
                if snapshot.index > self.hard_state.commit {
                    self.installed = Some(snapshot.clone());
                }
                self.last_index = self.last_index.max(snapshot.index);
                if snapshot.index == self.after {
                    self.term_after = Some(snapshot.term);
                }
                self.snapshots.push(snapshot);
                Ok(())
            }
            Payload::Checksum => Ok(()),
        }
    }

    /// An entry ends the log behind its own index: what was there was never committed.
    fn take_entry(&mut self, entry: Entry) -> Result<(), String> {
        self.last_index = entry.index;
        if entry.index <= self.after {
            self.entries.clear();
            if entry.index == self.after {
                self.term_after = Some(entry.term);
            }
            return Ok(());
        }
        let place = entry.index - self.after - 1;
        if place > self.entries.len() as u64 {
            let expected = self.after + self.entries.len() as u64 + 1;
            let Some(snapshot) = self
                .snapshots
                .iter()
                .rev()
                .find(|snapshot| snapshot.index + 1 == entry.index)
            else {
                return Err(format!("entry {} follows where {expected} is missing", entry.index));
            };
            self.after = snapshot.index;
            self.term_after = Some(snapshot.term);
            self.entries.clear();
        } else {
            self.entries.truncate(place as usize);
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Leaves out snapshots nobody committed; an installed one above all entries replaces them.
    fn settle(&mut self) {
        let commit = self.hard_state.commit;
        self.snapshots.retain(|snapshot| snapshot.index <= commit);
        let last = self.after + self.entries.len() as u64;
        if let Some(installed) = self.snapshots.iter().rev().find(|snapshot| snapshot.index > last) {
            let (index, term) = (installed.index, installed.term);
            self.start_behind(index, term);
        }
    }
}
