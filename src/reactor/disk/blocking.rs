//! Runs one disk operation with blocking system calls, on whatever thread calls it.

use super::DiskOptions;
use super::files::{self, OpenFile};
use crate::io::buffer::ALIGNMENT;
use crate::io::disk::{Operation, Outcome};
use crate::limits::DISK_CONTINUATIONS;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::Arc;

/// An operation on its way to a thread, with the file it is about.
pub(super) struct Job {
    pub(super) operation: Operation,
    pub(super) file: Option<Arc<OpenFile>>,
}

/// What came of a job.
pub(super) enum Finished {
    /// The operation is over.
    Outcome(Outcome),
    /// A file to be entered into the table.
    Opened(OpenFile, u64),
}

/// Runs `job` to its end.
pub(super) fn execute(job: Job, options: DiskOptions) -> io::Result<Finished> {
    let Job { operation, file } = job;
    let file = || match &file {
        Some(open) => &open.file,
        None => unreachable!("operations on a file are resolved before they are sent"),
    };
    match operation {
        Operation::Open { path, mode } => {
            return files::open(&path, mode, options.direct).map(|(file, length)| Finished::Opened(file, length));
        }
        Operation::Close { .. } => {}
        Operation::Read { offset, mut buffer, .. } => {
            let length = read(file(), offset, &mut buffer)?;
            return Ok(Finished::Outcome(Outcome::Read { buffer, length }));
        }
        Operation::Write {
            offset,
            buffer,
            durable,
            ..
        } => {
            write(file(), offset, &buffer, durable && !options.no_fsync)?;
            return Ok(Finished::Outcome(Outcome::Written { buffer }));
        }
        Operation::Sync { .. } if options.no_fsync => {}
        Operation::Sync { .. } => file().sync_data()?,
        Operation::Allocate { offset, length, .. } => fallocate(file(), 0, offset, length)?,
        Operation::PunchHole { offset, length, .. } => fallocate(file(), PUNCH_HOLE, offset, length)?,
        Operation::Truncate { length, .. } => file().set_len(length)?,
        Operation::Rename { from, to } => fs::rename(from, to)?,
        Operation::Remove { path } => fs::remove_file(path)?,
        Operation::CreateDirectory { path } => create_directory(&path)?,
        Operation::SyncDirectory { .. } if options.no_fsync => {}
        Operation::SyncDirectory { path } => File::open(path)?.sync_all()?,
        Operation::List { path } => return Ok(Finished::Outcome(Outcome::Listed { names: list(&path)? })),
    }
    Ok(Finished::Outcome(Outcome::Done))
}

/// The mode bits of fallocate that give a range's blocks back.
pub(super) const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// How a transfer goes on after `moved` more bytes, `done` before them.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::reactor) enum Progress {
    /// All there is was moved: this many bytes.
    Complete(usize),
    /// Go on from here.
    Continue(usize),
    /// A write that moves nothing.
    Stuck,
}

/// A read ends at the end of the file, which with O_DIRECT shows as a count that is no multiple of the alignment.
pub(in crate::reactor) fn after_read(done: usize, moved: usize, length: usize) -> Progress {
    let done = done + moved;
    assert!(done <= length, "read {done} bytes into {length}");
    if moved == 0 || done == length || !done.is_multiple_of(ALIGNMENT) {
        return Progress::Complete(done);
    }
    Progress::Continue(done)
}

/// A short write goes on at the last aligned offset, writing a part of a block again.
pub(super) fn after_write(done: usize, moved: usize, length: usize) -> Progress {
    let reached = done + moved;
    assert!(reached <= length, "wrote {reached} bytes of {length}");
    if reached == length {
        return Progress::Complete(length);
    }
    if moved == 0 {
        return Progress::Stuck;
    }
    Progress::Continue(reached - reached % ALIGNMENT)
}

/// The error of a write that made no progress though the system reported none.
pub(super) fn write_is_stuck() -> io::Error {
    io::Error::new(io::ErrorKind::WriteZero, "the system wrote nothing and gave no reason")
}

fn read(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    for _ in 0..DISK_CONTINUATIONS {
        let moved = match file.read_at(&mut buffer[done..], offset + done as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        match after_read(done, moved, buffer.len()) {
            Progress::Complete(done) => return Ok(done),
            Progress::Continue(reached) => done = reached,
            Progress::Stuck => unreachable!("a read that moves nothing is at the end of the file"),
        }
    }
    Err(io::Error::other("the read came in too many pieces"))
}

fn write(file: &File, offset: u64, buffer: &[u8], durable: bool) -> io::Result<()> {
    let flags = if durable { libc::RWF_DSYNC } else { 0 };
    let mut done = 0;
    for _ in 0..DISK_CONTINUATIONS {
        let rest = &buffer[done..];
        let part = libc::iovec {
            iov_base: rest.as_ptr().cast_mut().cast(),
            iov_len: rest.len(),
        };
        let position = libc::off_t::try_from(offset + done as u64).map_err(io::Error::other)?;
        // SAFETY: `part` describes `rest`, which outlives the call and is only read by it.
        let moved = unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, position, flags) };
        let Ok(moved) = usize::try_from(moved) else {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        };
        match after_write(done, moved, buffer.len()) {
            Progress::Complete(_) => return Ok(()),
            Progress::Continue(reached) => done = reached,
            Progress::Stuck => break,
        }
    }
    Err(write_is_stuck())
}

fn fallocate(file: &File, mode: i32, offset: u64, length: u64) -> io::Result<()> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    let length = libc::off_t::try_from(length).map_err(io::Error::other)?;
    loop {
        // SAFETY: no pointers are involved and the descriptor is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn create_directory(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        // A name that is no UTF-8 is none of ours; it is listed with replacement characters and matches nothing.
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_on_to_the_end_of_the_file() {
        assert_eq!(after_read(0, 8192, 8192), Progress::Complete(8192));
        assert_eq!(after_read(0, 4096, 8192), Progress::Continue(4096));
        assert_eq!(after_read(4096, 0, 8192), Progress::Complete(4096));
        assert_eq!(after_read(0, 5000, 8192), Progress::Complete(5000));
    }

    #[test]
    fn short_writes_go_on_at_a_block() {
        assert_eq!(after_write(0, 8192, 8192), Progress::Complete(8192));
        assert_eq!(after_write(0, 4608, 8192), Progress::Continue(4096));
        assert_eq!(after_write(4096, 512, 8192), Progress::Continue(4096));
        assert_eq!(after_write(4096, 0, 8192), Progress::Stuck);
    }
}
