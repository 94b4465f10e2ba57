//! What a disk remembers about an operation in flight: who asked, what for, since when.

use super::files::OpenFile;
use crate::io::disk::{DiskError, FileId, Operation};
use crate::reactor::stall;
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
    pub(super) fn path(&self) -> &Path {
        match self {
            Subject::File(file) => &file.path,
            Subject::Path(path) => path,
        }
    }
}

/// An operation in flight.
pub(super) struct Pending {
    pub(super) token: u64,
    pub(super) name: &'static str,
    pub(super) subject: Subject,
    /// The file that is forgotten when the operation has completed.
    pub(super) closes: Option<FileId>,
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
            name: name_of(operation),
            subject: file.map_or_else(|| Subject::Path(path_of(operation)), Subject::File),
            closes,
            since: Instant::now(),
        }
    }

    pub(super) fn error(&self, source: io::Error) -> DiskError {
        DiskError {
            operation: self.name,
            path: self.subject.path().to_path_buf(),
            source,
        }
    }

    /// Tells the stall watch if the operation took too long.
    pub(super) fn report_stall(&self) {
        stall::report(self.since.elapsed(), &self.label());
    }

    pub(super) fn label(&self) -> String {
        format!("{} of {}", self.name, self.subject.path().display())
    }
}

fn name_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::Open { .. } => "open",
        Operation::Close { .. } => "close",
        Operation::Read { .. } => "read",
        Operation::Write { durable: false, .. } => "write",
        Operation::Write { durable: true, .. } => "durable write",
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

fn path_of(operation: &Operation) -> PathBuf {
    match operation {
        Operation::Rename { from: path, .. }
        | Operation::Open { path, .. }
        | Operation::Remove { path }
        | Operation::CreateDirectory { path }
        | Operation::SyncDirectory { path }
        | Operation::List { path } => path.clone(),
        _ => PathBuf::new(),
    }
}
