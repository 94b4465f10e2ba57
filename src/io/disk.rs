//! The disk as seen by `wal` and `pages`: operations submitted, completions polled.
//!
//! Ordering: operations of one `Disk` may complete in any order; a caller that needs B after A submits B when A has
//! completed. Durability: a write is durable when it completed with `durable: true`, or when a later `Sync` of the same
//! file, submitted after its completion, has completed. A created, renamed or removed name is durable after a
//! `SyncDirectory` of its directory submitted afterwards. An operation can't be cancelled: its buffer belongs to the
//! disk until the completion hands it back.

use super::buffer::AlignedBuffer;
use std::fmt;
use std::path::{Path, PathBuf};

/// A file opened through a `Disk`, valid until its `Close` completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// How `Open` treats an existing or a missing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; opened for reading and writing.
    Existing,
    /// The file must exist; opened for reading only.
    ReadOnly,
    /// The file must not exist; created empty, mode 0600.
    CreateNew,
}

/// One request to the disk. Offsets and lengths of `Read` and `Write` are multiples of 4096 (`buffer::ALIGNMENT`).
#[derive(Clone, Debug)]
pub enum Operation {
    /// Opens a file; completes with `Outcome::Opened`.
    Open { path: PathBuf, mode: OpenMode },
    /// Closes the file.
    Close { file: FileId },
    /// Reads into `buffer` from `offset`; completes with `Outcome::Read`, short at the end of the file.
    Read {
        file: FileId,
        offset: u64,
        buffer: AlignedBuffer,
    },
    /// Writes the whole of `buffer` at `offset` (short writes are continued by the implementation); completes with
    /// `Outcome::Written`. With `durable` the data and the metadata needed to read it back are on the medium first.
    Write {
        file: FileId,
        offset: u64,
        buffer: AlignedBuffer,
        durable: bool,
    },
    /// fdatasync.
    Sync { file: FileId },
    /// Reserves blocks for `length` bytes from `offset`, growing the file when it is shorter.
    Allocate { file: FileId, offset: u64, length: u64 },
    /// Gives the blocks of a range back; it reads as zeros afterwards, the file's length stays.
    PunchHole { file: FileId, offset: u64, length: u64 },
    /// Sets the file's length.
    Truncate { file: FileId, length: u64 },
    /// Renames within one file system, replacing `to`.
    Rename { from: PathBuf, to: PathBuf },
    /// Removes a file.
    Remove { path: PathBuf },
    /// Creates a directory, mode 0700; succeeds if it exists.
    CreateDirectory { path: PathBuf },
    /// fsync of a directory.
    SyncDirectory { path: PathBuf },
    /// Names of the entries of a directory, sorted; completes with `Outcome::Listed`.
    List { path: PathBuf },
}

impl Operation {
    /// Its name, as errors and rules for faults have it.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Open { .. } => "open",
            Operation::Close { .. } => "close",
            Operation::Read { .. } => "read",
            Operation::Write { .. } => "write",
            Operation::Sync { .. } => "sync",
            Operation::Allocate { .. } => "allocate",
            Operation::PunchHole { .. } => "punch hole",
            Operation::Truncate { .. } => "truncate",
            Operation::Rename { .. } => "rename",
            Operation::Remove { .. } => "remove",
            Operation::CreateDirectory { .. } => "create directory",
            Operation::SyncDirectory { .. } => "sync directory",
            Operation::List { .. } => "list",
        }
    }

    /// The open file it is about, if it is not about a name.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Operation::Close { file }
            | Operation::Read { file, .. }
            | Operation::Write { file, .. }
            | Operation::Sync { file }
            | Operation::Allocate { file, .. }
            | Operation::PunchHole { file, .. }
            | Operation::Truncate { file, .. } => Some(*file),
            _ => None,
        }
    }

    /// The name it is about, if it is not about an open file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Operation::Rename { from: path, .. }
            | Operation::Open { path, .. }
            | Operation::Remove { path }
            | Operation::CreateDirectory { path }
            | Operation::SyncDirectory { path }
            | Operation::List { path } => Some(path),
            _ => None,
        }
    }
}

/// What a successful operation brings back.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing besides having succeeded.
    Done,
    /// The file and its length in bytes.
    Opened { file: FileId, length: u64 },
    /// The buffer handed in and how many of its bytes were filled.
    Read { buffer: AlignedBuffer, length: usize },
    /// The buffer handed in, for reuse.
    Written { buffer: AlignedBuffer },
    /// Names of a directory's entries.
    Listed { names: Vec<String> },
}

/// A failed operation: what was tried, on which path, and the system's answer.
#[derive(Debug)]
pub struct DiskError {
    /// The operation's name, e.g. `write`.
    pub operation: &'static str,
    /// The file or directory it was meant for.
    pub path: PathBuf,
    /// The system's error, with errno.
    pub source: std::io::Error,
}

impl DiskError {
    /// Whether the medium is full (ENOSPC or EDQUOT), the one failure that is survived.
    pub fn is_no_space(&self) -> bool {
        matches!(self.source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
    }

    /// Whether the path does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == std::io::ErrorKind::NotFound
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.operation, self.path.display(), self.source)
    }
}

impl std::error::Error for DiskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The end of one operation.
#[derive(Debug)]
pub struct Completion {
    /// The token the operation was submitted with.
    pub token: u64,
    /// What came of it.
    pub result: Result<Outcome, DiskError>,
}

/// A disk. Not shared between threads; each thread that needs one has its own.
pub trait Disk {
    /// Takes an operation. Never blocks; what can't be handed to the kernel at once is queued.
    fn submit(&mut self, token: u64, operation: Operation);

    /// Moves what has completed to the end of `completions`. Never blocks.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// As `poll`, but when nothing has completed and something is in flight, waits until something has.
    fn wait(&mut self, completions: &mut Vec<Completion>);

    /// Runs one operation to its end, for boot and recovery. Must not be used while others are in flight.
    fn call(&mut self, operation: Operation) -> Result<Outcome, DiskError> {
        let mut completions = Vec::with_capacity(1);
        self.submit(u64::MAX, operation);
        while completions.is_empty() {
            self.wait(&mut completions);
        }
        assert_eq!(completions.len(), 1, "call: another operation was in flight");
        let completion = completions.swap_remove(0);
        assert_eq!(completion.token, u64::MAX);
        completion.result
    }

    /// `call(Open)`.
    fn open(&mut self, path: &Path, mode: OpenMode) -> Result<(FileId, u64), DiskError> {
        match self.call(Operation::Open {
            path: path.to_path_buf(),
            mode,
        })? {
            Outcome::Opened { file, length } => Ok((file, length)),
            other => unreachable!("open answered {other:?}"),
        }
    }

    /// `call(Read)`: up to `length` bytes (a multiple of 4096) from `offset`; the count says how many were there.
    fn read(&mut self, file: FileId, offset: u64, length: usize) -> Result<(AlignedBuffer, usize), DiskError> {
        match self.call(Operation::Read {
            file,
            offset,
            buffer: AlignedBuffer::zeroed(length),
        })? {
            Outcome::Read { buffer, length } => Ok((buffer, length)),
            other => unreachable!("read answered {other:?}"),
        }
    }

    /// Makes a file with these contents, or replaces it: written under the name `temporary`, synced, then renamed.
    /// The name is durable after a `SyncDirectory`, which is the caller's.
    fn create_whole(&mut self, path: &Path, temporary: &Path, buffer: AlignedBuffer) -> Result<(), DiskError> {
        let leftover = temporary.to_path_buf();
        match self.call(Operation::Remove { path: leftover }) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let (file, _) = self.open(temporary, OpenMode::CreateNew)?;
        for operation in [
            Operation::Write {
                file,
                offset: 0,
                buffer,
                durable: false,
            },
            Operation::Sync { file },
            Operation::Close { file },
            Operation::Rename {
                from: temporary.to_path_buf(),
                to: path.to_path_buf(),
            },
        ] {
            self.call(operation)?;
        }
        Ok(())
    }

    /// `call(List)`.
    fn list(&mut self, path: &Path) -> Result<Vec<String>, DiskError> {
        match self.call(Operation::List {
            path: path.to_path_buf(),
        })? {
            Outcome::Listed { names } => Ok(names),
            other => unreachable!("list answered {other:?}"),
        }
    }
}
