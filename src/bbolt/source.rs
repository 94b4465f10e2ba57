//! Where a reader gets a file's bytes from.

use crate::io::buffer::{ALIGNMENT, AlignedBuffer};
use crate::io::disk::{Disk, FileId, Operation, Outcome};
use crate::limits::bbolt::READ_AHEAD_BYTES_MAX;
use std::io;

/// Bytes that can be read at any place.
pub trait Source {
    /// How many there are.
    fn length(&self) -> u64;

    /// Fills the buffer from `offset` on, or fails: also if there are not as many bytes.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Source for &[u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let found = start.and_then(|start| self.get(start..)?.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A file of the operating system; not for threads that must not block.
impl Source for std::fs::File {
    fn length(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

/// A file of a [`Disk`], read in larger and larger pieces as long as it is read from front to back.
#[derive(Debug)]
pub struct DiskFile {
    file: FileId,
    length: u64,
    /// The piece read last, where it begins and how much of it was filled.
    piece: AlignedBuffer,
    start: u64,
    filled: usize,
    /// Length of the next piece.
    ahead: usize,
}

/// Shortest piece.
const PIECE: usize = 4 * ALIGNMENT;

impl DiskFile {
    /// A file that was opened with this length.
    pub fn new(file: FileId, length: u64) -> DiskFile {
        DiskFile {
            file,
            length,
            piece: AlignedBuffer::zeroed(0),
            start: 0,
            filled: 0,
            ahead: PIECE,
        }
    }

    /// The file, for closing it.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// For reading from it while nothing else is in flight on the disk.
    pub fn on<'a>(&'a mut self, disk: &'a mut dyn Disk) -> OnDisk<'a> {
        OnDisk { file: self, disk }
    }

    /// Reads the piece in which `offset` lies.
    fn load(&mut self, disk: &mut dyn Disk, offset: u64) -> io::Result<()> {
        let start = offset - offset % ALIGNMENT as u64;
        let goes_on = start == self.start + self.filled as u64;
        self.ahead = if goes_on {
            (self.ahead * 2).min(READ_AHEAD_BYTES_MAX)
        } else {
            PIECE
        };
        let buffer = std::mem::replace(&mut self.piece, AlignedBuffer::zeroed(0));
        let buffer = match buffer.capacity() < self.ahead {
            true => AlignedBuffer::zeroed(self.ahead),
            false => buffer.with_length(self.ahead),
        };
        self.filled = 0;
        let read = Operation::Read {
            file: self.file,
            offset: start,
            buffer,
        };
        match disk.call(read).map_err(io::Error::other)? {
            Outcome::Read { buffer, length } => {
                (self.piece, self.start, self.filled) = (buffer, start, length);
                Ok(())
            }
            other => unreachable!("read answered {other:?}"),
        }
    }
}

/// A [`DiskFile`] with its disk.
pub struct OnDisk<'a> {
    file: &'a mut DiskFile,
    disk: &'a mut dyn Disk,
}

impl Source for OnDisk<'_> {
    fn length(&self) -> u64 {
        self.file.length
    }

    fn read_at(&mut self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let file = &mut *self.file;
            let inside = |file: &DiskFile| {
                let at = usize::try_from(offset.checked_sub(file.start)?).ok()?;
                (at < file.filled).then_some(at)
            };
            if inside(file).is_none() {
                file.load(self.disk, offset)?;
            }
            let at = inside(file).ok_or(io::ErrorKind::UnexpectedEof)?;
            let length = buffer.len().min(file.filled - at);
            let (filled, rest) = buffer.split_at_mut(length);
            filled.copy_from_slice(&file.piece[at..at + length]);
            buffer = rest;
            offset += length as u64;
        }
        Ok(())
    }
}
