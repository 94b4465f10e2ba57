//! The next segment, made in the background before it is needed.
//!
//! A temporary file is created, its space reserved at once (so that a lack of it shows while the current segment still
//! has room), zeroed by real writes, one piece at a time, and synced. Writes into blocks that were written before cost
//! the device half of what writes into reserved ones do. The pieces share the device with the log: they are spread
//! over time and over the log's own progress, and go at full speed only when the log waits for the segment or space had
//! run out. Without space the file is given up, the lack is reported and everything tried again a little later.

use super::{Error, Options};
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, DiskError, FileId, OpenMode, Operation, Outcome};
use crate::limits::{WAL_PIECE_BYTES, WAL_SPACE_RETRY, WAL_ZERO_BYTES_PER_BYTE, WAL_ZERO_BYTES_PER_SECOND};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The temporary names, as etcd has them: two in turn, because the next segment is begun while the one before is still
/// getting its name.
const TEMPORARY: [&str; 2] = ["0.tmp", "1.tmp"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing is there; begin at this time.
    Wait(Duration),
    Open,
    Allocate(FileId),
    Zero(FileId),
    Sync(FileId),
    Ready(FileId),
    /// Giving up after a lack of space.
    Close(FileId),
    Remove,
}

/// The preparation of one segment at a time.
pub struct Ahead {
    directory: PathBuf,
    /// Which of the temporary names is in use.
    turn: usize,
    segment_bytes: u64,
    sync: bool,
    token: u64,
    step: Step,
    in_flight: bool,
    now: Duration,
    zeroed: u64,
    /// When zeroing began, and how much the log had written then.
    began: (Duration, u64),
    /// How much the log has written.
    written: u64,
    no_space: bool,
    urgent: bool,
    piece: Option<AlignedBuffer>,
}

/// Turns "the file system can't reserve space" into success: zeroing allocates the blocks as well.
pub fn tolerate_unsupported(result: Result<(), DiskError>) -> Result<(), DiskError> {
    match result {
        Err(error) if error.source.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}

impl Ahead {
    /// Nothing prepared yet, to begin at once.
    pub fn new(directory: &Path, options: &Options, token: u64) -> Ahead {
        Ahead {
            directory: directory.to_path_buf(),
            turn: 0,
            segment_bytes: options.segment_bytes,
            sync: !options.unsafe_no_fsync,
            token,
            step: Step::Wait(Duration::ZERO),
            in_flight: false,
            now: Duration::ZERO,
            zeroed: 0,
            began: (Duration::ZERO, 0),
            written: 0,
            no_space: false,
            urgent: false,
            piece: None,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(TEMPORARY[self.turn])
    }

    /// Whether the last attempt failed for lack of space.
    pub fn no_space(&self) -> bool {
        self.no_space
    }

    /// Whether an operation is in flight.
    pub fn in_flight(&self) -> bool {
        self.in_flight
    }

    /// The prepared file and its temporary name, if it is ready; the next one is begun then.
    pub fn take(&mut self) -> Option<(FileId, PathBuf)> {
        let Step::Ready(file) = self.step else {
            self.urgent = true;
            return None;
        };
        self.step = Step::Wait(Duration::ZERO);
        self.urgent = false;
        let path = self.path();
        self.turn = 1 - self.turn;
        Some((file, path))
    }

    /// When there is something to do although nothing completes before.
    pub fn deadline(&self) -> Option<Duration> {
        match self.step {
            _ if self.in_flight => None,
            Step::Wait(until) => Some(until),
            Step::Zero(_) => {
                let missing = self.zeroed.saturating_sub(self.allowance());
                Some(self.now + Duration::from_micros(missing.saturating_mul(1_000_000) / WAL_ZERO_BYTES_PER_SECOND))
            }
            _ => None,
        }
    }

    /// How many bytes may have been zeroed by now, less the one piece that is always allowed.
    fn allowance(&self) -> u64 {
        if self.urgent || self.no_space {
            return u64::MAX;
        }
        let elapsed = self.now.saturating_sub(self.began.0).as_micros().min(1 << 40) as u64;
        let by_progress = self
            .written
            .saturating_sub(self.began.1)
            .saturating_mul(WAL_ZERO_BYTES_PER_BYTE);
        by_progress.saturating_add(elapsed * (WAL_ZERO_BYTES_PER_SECOND >> 10) / (1_000_000 >> 10))
    }

    /// Submits what is due. `written` is how many bytes the log has written in its life, `now` the caller's clock,
    /// which never goes back.
    pub fn pump<D: Disk + ?Sized>(&mut self, disk: &mut D, now: Duration, written: u64) {
        (self.now, self.written) = (now, written);
        if self.in_flight {
            return;
        }
        if matches!(self.step, Step::Wait(until) if until <= now) {
            self.step = Step::Open;
        }
        let path = self.path();
        let operation = match self.step {
            Step::Wait(_) | Step::Ready(_) => return,
            Step::Zero(_) if self.zeroed > self.allowance() => return,
            Step::Open => Operation::Open {
                path,
                mode: OpenMode::CreateNew,
            },
            Step::Allocate(file) => Operation::Allocate {
                file,
                offset: 0,
                length: self.segment_bytes,
            },
            Step::Zero(file) => self.next_piece(file),
            Step::Sync(file) => Operation::Sync { file },
            Step::Close(file) => Operation::Close { file },
            Step::Remove => Operation::Remove { path },
        };
        self.in_flight = true;
        disk.submit(self.token, operation);
    }

    fn next_piece(&mut self, file: FileId) -> Operation {
        let length = (self.segment_bytes - self.zeroed).min(WAL_PIECE_BYTES as u64) as usize;
        assert!(length > 0);
        let buffer = match self.piece.take() {
            Some(buffer) if buffer.len() == length => buffer,
            _ => AlignedBuffer::zeroed(length),
        };
        Operation::Write {
            file,
            offset: self.zeroed,
            buffer,
            durable: false,
        }
    }

    /// Takes the end of the operation in flight. Any failure but a lack of space is the end.
    pub fn completed(&mut self, result: Result<Outcome, DiskError>) -> Result<(), Error> {
        assert!(self.in_flight, "a completion although nothing was in flight");
        self.in_flight = false;
        let result = match self.step {
            Step::Allocate(_) if result.is_err() => tolerate_unsupported(result.map(|_| ())).map(|()| Outcome::Done),
            _ => result,
        };
        match result {
            Ok(outcome) => self.advance(outcome),
            Err(error) if error.is_no_space() => self.give_up(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn advance(&mut self, outcome: Outcome) {
        self.step = match (self.step, outcome) {
            (Step::Open, Outcome::Opened { file, .. }) => Step::Allocate(file),
            (Step::Allocate(file), _) => {
                self.zeroed = 0;
                self.began = (self.now, self.written);
                Step::Zero(file)
            }
            (Step::Zero(file), Outcome::Written { buffer }) => {
                self.zeroed += buffer.len() as u64;
                self.piece = Some(buffer);
                match self.zeroed >= self.segment_bytes {
                    true if self.sync => Step::Sync(file),
                    true => Step::Ready(file),
                    false => Step::Zero(file),
                }
            }
            (Step::Sync(file), _) => Step::Ready(file),
            (Step::Close(_), _) => Step::Remove,
            (Step::Remove, _) => Step::Wait(self.now + WAL_SPACE_RETRY),
            (step, outcome) => unreachable!("preparing a segment: {step:?} was answered with {outcome:?}"),
        };
        if matches!(self.step, Step::Ready(_)) {
            assert_eq!(self.zeroed, self.segment_bytes);
            self.no_space = false;
            self.piece = None;
        }
    }

    fn give_up(&mut self) {
        self.no_space = true;
        self.piece = None;
        self.step = match self.step {
            Step::Allocate(file) | Step::Zero(file) | Step::Sync(file) => Step::Close(file),
            _ => Step::Wait(self.now + WAL_SPACE_RETRY),
        };
    }
}
