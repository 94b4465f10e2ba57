//! What a disk remembers about an operation in flight: who asked, what for, since when.

use super::blocking::Finished;
use super::files::{FileTable, OpenFile};
use crate::io::disk::{Completion, DiskError, FileId, Operation, Outcome};
use crate::reactor::stall;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The file or path an operation is about.
pub(super) enum Subject {
    File(Arc<OpenFile>),
    Path(PathBuf),
}

impl Subject {
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Subject::File(file) => file.name(),
            Subject::Path(path) => path.clone(),
        }
    }
}

/// An operation in flight.
pub(super) struct Pending {
    pub(super) token: u64,
    pub(super) name: &'static str,
    pub(super) subject: Subject,
    /// The file that is forgotten when the operation has completed.
    closes: Option<FileId>,
    pub(super) since: Instant,
}

impl Pending {
    pub(super) fn new(token: u64, operation: &Operation, file: Option<Arc<OpenFile>>) -> Pending {
        let closes = match operation {
            Operation::Close { file } => Some(*file),
            _ => None,
        };
        Pending {
            token,
            name: match operation {
                Operation::Write { durable: true, .. } => "durable write",
                _ => operation.name(),
            },
            subject: match file {
                Some(file) => Subject::File(file),
                None => Subject::Path(operation.path().unwrap_or(Path::new("")).to_path_buf()),
            },
            closes,
            since: Instant::now(),
        }
    }

    pub(super) fn error(&self, source: io::Error) -> DiskError {
        DiskError {
            operation: self.name,
            path: self.subject.path(),
            source,
        }
    }

    /// What came of it on a helper thread; the files of the disk learn of one that was opened or closed.
    pub(super) fn complete(&self, result: io::Result<Finished>, files: &mut FileTable) -> Completion {
        self.report_stall();
        if let Some(id) = self.closes {
            files.remove(id);
        }
        let result = match result {
            Ok(Finished::Outcome(outcome)) => Ok(outcome),
            Ok(Finished::Opened(file, length)) => Ok(Outcome::Opened {
                file: files.insert(file),
                length,
            }),
            Err(source) => Err(self.error(source)),
        };
        Completion {
            token: self.token,
            result,
        }
    }

    /// Tells the stall watch if the operation took too long.
    pub(super) fn report_stall(&self) {
        stall::report(self.since.elapsed(), self);
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of {}", self.name, self.subject.path().display())
    }
}
