//! The writer: group commit, rotation, trimming.
//!
//! What is appended gathers; [`Writer::submit`] starts a batch when none is in flight, with all that has gathered up to
//! a bound; so the batch grows with the device's latency and a lone append never waits. A batch is one durable write,
//! aligned to blocks, that begins with the block the log ended in and opens with a mark. When a batch would not fit
//! into the segment, the log goes on in the one prepared ahead: its head is written durably, it gets its name, the
//! directory is synced, and only then is the batch written; all of the old segment is durable by then.
//!
//! The caller routes completions by token to [`Writer::completed`] and calls `submit` again afterwards, and at
//! [`Writer::deadline`]. An error of `completed` is the end: nothing is known about what is durable, nothing is ever
//! tried again, and the member has to stop.

use super::ahead::Ahead;
use super::frame::{FRAME_OVERHEAD_MAX, FrameWriter, MarkKey};
use super::housekeeping::Housekeeping;
use super::readback::{Positions, ReadBack};
use super::record::{Entry, HardState, Metadata, RecordKind, Snapshot};
use super::segment::{Place, SegmentName, write_head};
use super::{Error, Options, TOKENS};
use crate::io::buffer::{ALIGNMENT, AlignedBuffer};
use crate::io::disk::{Disk, DiskError, FileId, Operation, Outcome};
use crate::limits::{WAL_BATCH_BYTES_MAX, WAL_SPARE_BUFFER_BYTES_MAX};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names an append. Appends become durable in the order of their tickets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A batch has become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Persisted {
    /// Every append with this ticket or a lower one is durable.
    pub through: Ticket,
    /// The highest index of the durable log.
    pub last_index: u64,
    /// Entries in the batch.
    pub entries: usize,
    /// Bytes of the batch's records.
    pub bytes: usize,
}

/// The segment that is written to.
pub struct Live {
    file: FileId,
    name: SegmentName,
    /// Where the next batch begins.
    offset: u64,
    /// The bytes before `offset` in its block.
    tail: Vec<u8>,
    /// The running checksum at `offset`.
    crc: u32,
    /// The key of its marks; without one the segment is someone else's and only read.
    key: Option<MarkKey>,
    /// Whether there is anything behind the head.
    used: bool,
}

impl Live {
    /// A segment that ends at `offset`, where the block's earlier bytes are `tail`.
    pub fn new(file: FileId, name: SegmentName, offset: u64, tail: Vec<u8>, crc: u32, key: Option<MarkKey>) -> Live {
        assert_eq!(tail.len() as u64, offset % ALIGNMENT as u64);
        assert_eq!(offset % 8, 0, "frames are multiples of 8 bytes");
        Live {
            file,
            name,
            offset,
            tail,
            crc,
            key,
            used: true,
        }
    }

    /// The same, when there is nothing behind the head.
    pub fn unused(self) -> Live {
        Live { used: false, ..self }
    }
}

/// One record that waits for its batch.
struct Item {
    payload: Payload,
    /// Set on the last record of an append.
    ticket: Option<Ticket>,
}

enum Payload {
    Entry(Entry),
    State(HardState),
    Snapshot(Snapshot),
}

/// What the log itself has in flight.
enum Flight {
    Idle,
    Batch {
        /// The segment as it is once the batch is durable: offset, tail, checksum.
        end: (u64, Vec<u8>, u32),
        persisted: Persisted,
    },
    Rotation {
        step: RotationStep,
        submitted: bool,
        /// The name the next segment has until it is renamed.
        temporary: PathBuf,
        next: Box<Live>,
    },
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RotationStep {
    Head,
    Rename,
    SyncDirectory,
}

/// Writes a log.
pub struct Writer {
    options: Options,
    directory: PathBuf,
    metadata: Metadata,
    /// All segments, oldest first; the last is the live one.
    segments: VecDeque<SegmentName>,
    live: Live,
    flight: Flight,
    queue: VecDeque<Item>,
    queued_bytes: usize,
    /// The ticket given last, and the last that is durable.
    given: Ticket,
    durable: Ticket,
    /// As of the last append.
    last_index: u64,
    /// As of the last batch.
    written_index: u64,
    written_state: HardState,
    written_bytes: u64,
    released: u64,
    positions: Positions,
    spare: Option<AlignedBuffer>,
    ahead: Ahead,
    housekeeping: Housekeeping,
}

impl Writer {
    pub(super) fn new(
        options: Options,
        directory: &Path,
        metadata: Metadata,
        hard_state: HardState,
        segments: Vec<SegmentName>,
        live: Live,
        last_index: u64,
    ) -> Writer {
        assert!(options.tokens.end - options.tokens.start >= TOKENS);
        assert_eq!(options.segment_bytes % ALIGNMENT as u64, 0);
        assert_eq!(segments.last(), Some(&live.name));
        let token = options.tokens.start;
        Writer {
            ahead: Ahead::new(directory, &options, token + 1),
            housekeeping: Housekeeping::new(directory, !options.unsafe_no_fsync, token + 2),
            options,
            directory: directory.to_path_buf(),
            metadata,
            segments: segments.into(),
            live,
            flight: Flight::Idle,
            queue: VecDeque::new(),
            queued_bytes: 0,
            given: Ticket(0),
            durable: Ticket(0),
            last_index,
            written_index: last_index,
            written_state: hard_state,
            written_bytes: 0,
            released: 0,
            positions: Positions::default(),
            spare: None,
        }
    }

    /// Gathers entries and, behind them, a hard state. The entries follow each other; the first may lie at or below the
    /// log's last index, which ends the log there. Returns the ticket that says when all of it is durable; with nothing
    /// to write that is the ticket given last.
    pub fn append(&mut self, entries: &[Entry], hard_state: Option<&HardState>) -> Ticket {
        for entry in entries {
            assert!(
                entry.index > 0 && entry.index <= self.last_index + 1,
                "a gap before entry {}",
                entry.index
            );
            self.last_index = entry.index;
            self.push(Payload::Entry(entry.clone()));
        }
        if let Some(state) = hard_state.filter(|state| !state.is_empty()) {
            self.push(Payload::State(*state));
        }
        self.close_append()
    }

    /// Gathers a snapshot record: everything up to its index is, or is about to be, in the page store.
    pub fn save_snapshot(&mut self, snapshot: &Snapshot) -> Ticket {
        assert!(
            snapshot.index == 0 || snapshot.conf_state.is_some(),
            "etcd starts from a snapshot's conf state"
        );
        self.last_index = self.last_index.max(snapshot.index);
        self.push(Payload::Snapshot(snapshot.clone()));
        self.close_append()
    }

    fn push(&mut self, payload: Payload) {
        self.queued_bytes += payload.bytes_max();
        self.queue.push_back(Item { payload, ticket: None });
    }

    fn close_append(&mut self) -> Ticket {
        if let Some(item) = self.queue.back_mut().filter(|item| item.ticket.is_none()) {
            self.given.0 += 1;
            item.ticket = Some(self.given);
        }
        self.given
    }

    /// Submits what can be: a batch or a step of a rotation if none is in flight, the next step of preparing a segment,
    /// the next removal. `now` is the caller's clock, which never goes back.
    pub fn submit<D: Disk + ?Sized>(&mut self, disk: &mut D, now: Duration) {
        if self.has_failed() {
            return;
        }
        self.pump_log(disk);
        self.ahead.pump(disk, now, self.written_bytes);
        self.housekeeping.pump(disk);
    }

    /// Whether a completion with this token is the writer's.
    pub fn owns(&self, token: u64) -> bool {
        (self.options.tokens.start..self.options.tokens.start + TOKENS).contains(&token)
    }

    /// Takes the end of an operation of the writer's.
    pub fn completed(&mut self, token: u64, result: Result<Outcome, DiskError>) -> Result<Option<Persisted>, Error> {
        let outcome = match token - self.options.tokens.start {
            0 => self.log_completed(result),
            1 => self.ahead.completed(result).map(|()| None),
            2 => self.housekeeping.completed(result).map(|()| None),
            _ => unreachable!("token {token} is not the writer's"),
        };
        match &outcome {
            Ok(_) => self.trim(),
            Err(_) => self.flight = Flight::Failed,
        }
        outcome
    }

    /// When `submit` has something to do even if nothing completes and nothing is appended before.
    pub fn deadline(&self) -> Option<Duration> {
        self.ahead.deadline().filter(|_| !self.has_failed())
    }

    /// Whether there was no space for the next segment at the last attempt. Writes ought to be refused until it is
    /// over: the room left in the current segment is needed for what frees space.
    pub fn no_space(&self) -> bool {
        self.ahead.no_space()
    }

    /// Whether an operation has failed for good.
    pub fn has_failed(&self) -> bool {
        matches!(self.flight, Flight::Failed)
    }

    /// Whether all that was appended is durable.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && matches!(self.flight, Flight::Idle | Flight::Failed)
    }

    /// Operations of the writer's in flight.
    pub fn in_flight(&self) -> usize {
        let log = !matches!(self.flight, Flight::Idle | Flight::Failed);
        usize::from(log) + usize::from(self.ahead.in_flight()) + usize::from(self.housekeeping.in_flight())
    }

    /// The directory of its segments.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a batch is on its way to the disk.
    pub fn is_writing(&self) -> bool {
        matches!(self.flight, Flight::Batch { .. })
    }

    /// Bytes of batches since the log was opened.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Bytes that wait for a batch, at most.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Everything with this ticket or a lower one is durable.
    pub fn durable(&self) -> Ticket {
        self.durable
    }

    /// The highest index appended.
    pub fn last_index(&self) -> u64 {
        self.last_index
    }

    /// The segments there are, oldest first.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = SegmentName> + '_ {
        self.segments.iter().copied()
    }

    /// Says that entries below `index` are not needed: they lie before durable checkpoints and before what followers
    /// may ask for. Segments that hold nothing else go, oldest first, as long as there are more than `max_wals`; when
    /// space has run out, all of them.
    pub fn release_to(&mut self, index: u64) {
        self.released = self.released.max(index);
        self.trim();
    }

    /// Reads entries from `low` on, below `high`, back from the log: `None` if `low` is not in its durable part or not
    /// known to be. One reading brings at least one entry and ends after some ten thousand bytes; go on behind it.
    pub fn read_back(&self, low: u64, high: u64) -> Option<ReadBack> {
        self.positions
            .read_back(&self.directory, low, high, self.live.name, self.live.offset)
    }

    pub(super) fn set_positions(&mut self, positions: Positions) {
        self.positions = positions;
    }

    fn trim(&mut self) {
        let kept = match (self.no_space(), self.options.max_wals) {
            (true, _) => 1,
            (false, 0) => usize::MAX,
            (false, max_wals) => max_wals,
        };
        while self.segments.len() > kept && self.segments[1].first_index < self.released {
            let Some(oldest) = self.segments.pop_front() else {
                return;
            };
            self.positions.forget(oldest);
            self.housekeeping.remove(self.directory.join(oldest.file_name()));
        }
    }

    fn pump_log<D: Disk + ?Sized>(&mut self, disk: &mut D) {
        match &self.flight {
            Flight::Idle if self.queue.is_empty() => {}
            Flight::Idle => {
                let (count, bytes) = self.next_batch();
                match self.live.key {
                    Some(key) if self.fits(bytes) => self.submit_batch(disk, key, count, bytes),
                    _ => self.rotate(disk),
                }
            }
            Flight::Rotation {
                step, submitted: false, ..
            } => self.submit_rotation_step(disk, *step),
            Flight::Rotation { .. } | Flight::Batch { .. } | Flight::Failed => {}
        }
    }

    /// How many of the gathered records the next batch takes, at least one, and the most bytes they can be.
    fn next_batch(&self) -> (usize, usize) {
        let (mut count, mut bytes) = (0, MARK_BYTES_MAX);
        for item in &self.queue {
            let more = item.payload.bytes_max();
            if count > 0 && bytes + more > WAL_BATCH_BYTES_MAX {
                break;
            }
            (count, bytes) = (count + 1, bytes + more);
        }
        if self.options.pad_batches {
            bytes += 2 * ALIGNMENT;
        }
        (count, bytes)
    }

    /// Whether a batch of at most `bytes` goes into the live segment; an unused one takes anything and grows.
    fn fits(&self, bytes: usize) -> bool {
        !self.live.used || self.live.offset + bytes as u64 <= self.options.segment_bytes
    }

    fn submit_batch<D: Disk + ?Sized>(&mut self, disk: &mut D, key: MarkKey, count: usize, bytes: usize) {
        let live = &self.live;
        let (offset, crc) = (live.offset, live.crc);
        let place = Place { offset, crc };
        let start = live.tail.len();
        let mut buffer = match self.spare.take() {
            Some(spare) if spare.capacity() >= start + bytes => {
                let capacity = spare.capacity();
                spare.with_length(capacity)
            }
            _ => AlignedBuffer::zeroed(start + bytes),
        };
        buffer[..start].copy_from_slice(&live.tail);
        let mut frames = FrameWriter::new(&mut buffer, start, live.crc);
        frames.put_mark(key, live.name.sequence, live.offset);
        let (mut through, mut entries, mut scratch) = (self.durable, 0, Vec::new());
        for item in self.queue.drain(..count) {
            self.queued_bytes -= item.payload.bytes_max();
            entries += usize::from(matches!(item.payload, Payload::Entry(_)));
            through = item.ticket.unwrap_or(through);
            item.payload.write(&mut frames, &mut scratch);
            match item.payload {
                Payload::Entry(entry) => {
                    self.positions.note(entry.index, live.name, place);
                    self.written_index = entry.index;
                }
                Payload::State(state) => self.written_state = state,
                Payload::Snapshot(snapshot) => self.written_index = self.written_index.max(snapshot.index),
            }
        }
        if self.options.pad_batches {
            frames.pad_to(ALIGNMENT);
        }
        let (position, crc) = (frames.position(), frames.crc());
        assert!(position <= start + bytes, "a batch is longer than was planned");
        let length = position.next_multiple_of(ALIGNMENT);
        buffer[position..length].fill(0);
        let tail = buffer[position / ALIGNMENT * ALIGNMENT..position].to_vec();
        let written = position - start;
        self.written_bytes += written as u64;
        self.flight = Flight::Batch {
            end: (live.offset + written as u64, tail, crc),
            persisted: Persisted {
                through,
                last_index: self.written_index,
                entries,
                bytes: written,
            },
        };
        let operation = Operation::Write {
            file: live.file,
            offset: live.offset - start as u64,
            buffer: buffer.with_length(length),
            durable: !self.options.unsafe_no_fsync,
        };
        disk.submit(self.options.tokens.start, operation);
    }

    /// Goes on in the prepared segment if there is one; else the log waits for it.
    fn rotate<D: Disk + ?Sized>(&mut self, disk: &mut D) {
        let Some((file, temporary)) = self.ahead.take() else {
            return;
        };
        let name = SegmentName {
            sequence: self.live.name.sequence + 1,
            first_index: self.written_index + 1,
        };
        let mut head = AlignedBuffer::zeroed(ALIGNMENT);
        let key = MarkKey(self.options.mark_key);
        let (length, crc) = write_head(&mut head, name, self.live.crc, &self.metadata, &self.written_state, key);
        let next = Live::new(file, name, length as u64, head[..length].to_vec(), crc, Some(key)).unused();
        self.flight = Flight::Rotation {
            step: RotationStep::Head,
            submitted: false,
            temporary,
            next: Box::new(next),
        };
        self.submit_rotation_step(disk, RotationStep::Head);
    }

    fn submit_rotation_step<D: Disk + ?Sized>(&mut self, disk: &mut D, step: RotationStep) {
        let Flight::Rotation {
            submitted,
            temporary,
            next,
            ..
        } = &mut self.flight
        else {
            unreachable!("no rotation is under way");
        };
        assert!(!*submitted);
        *submitted = true;
        let operation = match step {
            RotationStep::Head => {
                let mut buffer = AlignedBuffer::zeroed(ALIGNMENT);
                buffer[..next.tail.len()].copy_from_slice(&next.tail);
                Operation::Write {
                    file: next.file,
                    offset: 0,
                    buffer,
                    durable: !self.options.unsafe_no_fsync,
                }
            }
            RotationStep::Rename => Operation::Rename {
                from: temporary.clone(),
                to: self.directory.join(next.name.file_name()),
            },
            RotationStep::SyncDirectory => Operation::SyncDirectory {
                path: self.directory.clone(),
            },
        };
        disk.submit(self.options.tokens.start, operation);
    }

    fn log_completed(&mut self, result: Result<Outcome, DiskError>) -> Result<Option<Persisted>, Error> {
        match std::mem::replace(&mut self.flight, Flight::Failed) {
            Flight::Batch { end, persisted } => {
                if let Outcome::Written { buffer } = result? {
                    self.spare = Some(buffer).filter(|buffer| buffer.capacity() <= WAL_SPARE_BUFFER_BYTES_MAX);
                }
                assert!(persisted.through >= self.durable);
                (self.live.offset, self.live.tail, self.live.crc) = end;
                self.live.used = true;
                self.durable = persisted.through;
                self.flight = Flight::Idle;
                Ok(Some(persisted))
            }
            Flight::Rotation {
                step,
                submitted,
                temporary,
                next,
            } => {
                assert!(submitted);
                result?;
                self.flight = self.after_rotation_step(step, temporary, next);
                Ok(None)
            }
            Flight::Failed => Ok(None),
            Flight::Idle => unreachable!("a completion although nothing was in flight"),
        }
    }

    fn after_rotation_step(&mut self, step: RotationStep, temporary: PathBuf, next: Box<Live>) -> Flight {
        let step = match step {
            RotationStep::Head => RotationStep::Rename,
            RotationStep::Rename if !self.options.unsafe_no_fsync => RotationStep::SyncDirectory,
            RotationStep::Rename | RotationStep::SyncDirectory => {
                assert_eq!(next.name.sequence, self.live.name.sequence + 1);
                self.segments.push_back(next.name);
                self.housekeeping.close(self.live.file);
                self.live = *next;
                return Flight::Idle;
            }
        };
        Flight::Rotation {
            step,
            submitted: false,
            temporary,
            next,
        }
    }
}

/// The most bytes of a mark's frame.
const MARK_BYTES_MAX: usize = FRAME_OVERHEAD_MAX + 5;
/// The most bytes of three numbers as fields: all of a hard state, and of an entry but its payload.
const THREE_NUMBERS_MAX: usize = 3 * 11;

impl Payload {
    /// The most bytes its frame can be.
    fn bytes_max(&self) -> usize {
        FRAME_OVERHEAD_MAX
            + match self {
                Payload::Entry(entry) => THREE_NUMBERS_MAX + 11 + entry.data.len(),
                Payload::State(_) => THREE_NUMBERS_MAX,
                Payload::Snapshot(snapshot) => {
                    let mut data = Vec::new();
                    snapshot.encode(&mut data);
                    data.len()
                }
            }
    }

    fn write(&self, frames: &mut FrameWriter<'_>, scratch: &mut Vec<u8>) {
        scratch.clear();
        match self {
            Payload::Entry(entry) => {
                entry.encode_head(scratch);
                frames.put(RecordKind::Entry, scratch, &entry.data);
            }
            Payload::State(state) => {
                state.encode(scratch);
                frames.put(RecordKind::State, scratch, &[]);
            }
            Payload::Snapshot(snapshot) => {
                snapshot.encode(scratch);
                frames.put(RecordKind::Snapshot, scratch, &[]);
            }
        }
    }
}
