//! A snapshot of another member on its way in: its bytes into a file, a page file of that, and the page file's name.
//!
//! Everything here runs beside the log core, on a disk of its own, and blocks. Whenever it ends, the member goes on
//! with what it has, until the page file has the name under which a start looks for it (`install`, DESIGN 12 (9)):
//! what was only received a start throws away.

use super::directory::{INSTALLING_FILE, RECEIVED_FILE, SNAPSHOT_FILE};
use super::install::{Placed, Received};
use super::storage::Position;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, DiskError, FileId, OpenMode, Operation, Outcome};
use crate::limits::{self, SNAPSHOT_WRITE_BYTES};
use crate::pages;
use crate::state::backend::{Import, ImportProgress, Imported};
use raft::eraftpb::Message;
use std::path::{Path, PathBuf};

/// One that is being received.
pub struct Intake {
    directory: PathBuf,
    message: Message,
    file: FileId,
    /// Bytes that were not written yet, and how many.
    piece: AlignedBuffer,
    filled: usize,
    written: u64,
}

impl Intake {
    /// Begins to receive the database that belongs to `message`, into a file in `directory`, where the page file is.
    pub fn begin<D: Disk>(disk: &mut D, directory: &Path, message: Message) -> Result<Intake, String> {
        let begun = remove(disk, directory, SNAPSHOT_FILE)
            .and_then(|()| disk.open(&directory.join(SNAPSHOT_FILE), OpenMode::CreateNew));
        let (file, _) = begun.map_err(|error| error.to_string())?;
        Ok(Intake {
            directory: directory.to_path_buf(),
            message,
            file,
            piece: AlignedBuffer::zeroed(SNAPSHOT_WRITE_BYTES),
            filled: 0,
            written: 0,
        })
    }

    /// Takes the next bytes. After an error only `abandon` is of use.
    pub fn take<D: Disk>(&mut self, disk: &mut D, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let length = bytes.len().min(self.piece.len() - self.filled);
            self.piece[self.filled..self.filled + length].copy_from_slice(&bytes[..length]);
            (self.filled, bytes) = (self.filled + length, &bytes[length..]);
            if self.filled == self.piece.len() {
                self.write(disk).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn write<D: Disk>(&mut self, disk: &mut D) -> Result<(), DiskError> {
        let piece = std::mem::replace(&mut self.piece, AlignedBuffer::zeroed(0));
        let written = disk.call(Operation::Write {
            file: self.file,
            offset: self.written,
            buffer: piece.with_length(self.filled),
            durable: false,
        })?;
        self.written += self.filled as u64;
        self.filled = 0;
        match written {
            Outcome::Written { buffer } => self.piece = buffer.with_length(SNAPSHOT_WRITE_BYTES),
            other => unreachable!("write answered {other:?}"),
        }
        Ok(())
    }

    /// All bytes were taken: makes a durable page file of them, under [`RECEIVED_FILE`]. Says what it contains, and how
    /// many bytes there were.
    pub fn finish<D: Disk>(mut self, disk: &mut D) -> Result<(Received, u64), String> {
        if let Err(error) = self.end(disk) {
            self.abandon(disk);
            return Err(error.to_string());
        }
        let made = make_pages(disk, &self.directory);
        // What is left of it the next start removes.
        let _ = remove(disk, &self.directory, SNAPSHOT_FILE);
        let fields = made?.fields;
        let position = Position {
            index: fields.applied_index,
            term: fields.term,
        };
        let announced = self.message.get_snapshot().get_metadata().index;
        if position.index < announced {
            throw_away(disk, &self.directory);
            return Err(format!(
                "the snapshot is said to contain entry {announced} and ends at entry {}",
                position.index
            ));
        }
        let received = Received {
            message: Box::new(self.message),
            position,
        };
        Ok((received, self.written))
    }

    /// Writes what is left, to the byte, and closes the file.
    fn end<D: Disk>(&mut self, disk: &mut D) -> Result<(), DiskError> {
        let length = self.written + self.filled as u64;
        if self.filled > 0 {
            self.write(disk)?;
        }
        self.written = length;
        let file = self.file;
        disk.call(Operation::Truncate { file, length })?;
        disk.call(Operation::Close { file }).map(|_| ())
    }

    /// Gives up: no more bytes will come.
    pub fn abandon<D: Disk>(self, disk: &mut D) {
        // What is left of it the next start removes.
        let _ = disk.call(Operation::Close { file: self.file });
        let _ = remove(disk, &self.directory, SNAPSHOT_FILE);
    }
}

/// Makes a page file of the database that was received.
fn make_pages<D: Disk>(disk: &mut D, directory: &Path) -> Result<Imported, String> {
    let options = pages::Options::new(0..limits::pages::OPERATIONS as u64);
    let (database, pages) = (directory.join(SNAPSHOT_FILE), directory.join(RECEIVED_FILE));
    let import = Import::new(disk, &database, &pages, options);
    let mut import = import.map_err(|error| error.to_string())?;
    loop {
        match import.step(disk) {
            Ok(ImportProgress::More(_)) => {}
            Ok(ImportProgress::Done(imported)) => return Ok(imported),
            Err(error) => {
                // What is left of it the next start removes.
                let _ = import.abandon(disk);
                return Err(error.to_string());
            }
        }
    }
}

/// Gives the page file of the snapshot that was received the name under which a start installs it, durably.
pub fn put_in_place<D: Disk>(disk: &mut D, directory: &Path) -> Placed {
    let (from, to) = (directory.join(RECEIVED_FILE), directory.join(INSTALLING_FILE));
    if let Err(error) = disk.call(Operation::Rename { from, to }) {
        return Placed::No(error.to_string());
    }
    let path = directory.to_path_buf();
    match disk.call(Operation::SyncDirectory { path }) {
        Ok(_) => Placed::Yes,
        // It has the name, and may have lost it after the next power cut.
        Err(error) => Placed::Unknown(error.to_string()),
    }
}

/// Removes that page file.
pub fn throw_away<D: Disk>(disk: &mut D, directory: &Path) {
    // What is left of it the next start removes.
    let _ = remove(disk, directory, RECEIVED_FILE);
}

fn remove<D: Disk>(disk: &mut D, directory: &Path, name: &str) -> Result<(), DiskError> {
    let path = directory.join(name);
    match disk.call(Operation::Remove { path }) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
