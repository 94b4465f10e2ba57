//! Closing and removing segments that are not needed any more, one operation at a time.

use super::Error;
use crate::io::disk::{Disk, DiskError, FileId, Operation, Outcome};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// The queue of what is to be done.
pub struct Housekeeping {
    directory: PathBuf,
    sync: bool,
    token: u64,
    tasks: VecDeque<Task>,
    in_flight: bool,
}

enum Task {
    Close(FileId),
    Remove(PathBuf),
    SyncDirectory,
}

impl Housekeeping {
    /// Nothing to do yet.
    pub fn new(directory: &Path, sync: bool, token: u64) -> Housekeeping {
        Housekeeping {
            directory: directory.to_path_buf(),
            sync,
            token,
            tasks: VecDeque::new(),
            in_flight: false,
        }
    }

    /// Whether an operation is in flight.
    pub fn in_flight(&self) -> bool {
        self.in_flight
    }

    /// Has a file closed.
    pub fn close(&mut self, file: FileId) {
        self.tasks.push_back(Task::Close(file));
    }

    /// Has a file removed. The directory is synced before the next is, so that a power cut leaves no gap in the log.
    pub fn remove(&mut self, path: PathBuf) {
        self.tasks.push_back(Task::Remove(path));
        if self.sync {
            self.tasks.push_back(Task::SyncDirectory);
        }
    }

    /// Submits the next task.
    pub fn pump<D: Disk + ?Sized>(&mut self, disk: &mut D) {
        if self.in_flight {
            return;
        }
        let Some(task) = self.tasks.pop_front() else { return };
        self.in_flight = true;
        let operation = match task {
            Task::Close(file) => Operation::Close { file },
            Task::Remove(path) => Operation::Remove { path },
            Task::SyncDirectory => Operation::SyncDirectory {
                path: self.directory.clone(),
            },
        };
        disk.submit(self.token, operation);
    }

    /// Takes the end of the operation in flight.
    pub fn completed(&mut self, result: Result<Outcome, DiskError>) -> Result<(), Error> {
        assert!(self.in_flight, "a completion although nothing was in flight");
        self.in_flight = false;
        match result {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }
}
