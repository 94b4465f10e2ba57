//! What can be wrong with a log, or with the disk under it.

use crate::io::disk::DiskError;
use std::fmt;
use std::path::PathBuf;

/// Why a log can't be made, read or written. None of these is survived by trying again.
#[derive(Debug)]
pub enum Error {
    /// The disk refused an operation. While serving, this ends the member: what is durable is not known any more.
    Disk(DiskError),
    /// Bytes that had been acknowledged are damaged or missing.
    Corrupt {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// There is no log in the directory.
    Missing {
        /// The directory.
        directory: PathBuf,
    },
    /// There is a log already.
    Exists {
        /// The directory.
        directory: PathBuf,
    },
    /// The log does not reach back as far as needed.
    Trimmed {
        /// The directory.
        directory: PathBuf,
        /// The last index the caller has.
        after: u64,
        /// The first index of the oldest segment.
        first_index: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Disk(error) => write!(formatter, "log: {error}"),
            Error::Corrupt { path, offset, reason } => write!(
                formatter,
                "log: {} is damaged at offset {offset}: {reason}; what follows had been acknowledged, so the start is \
                 refused: restore the member from a backup or replace it in its cluster",
                path.display()
            ),
            Error::Missing { directory } => write!(formatter, "log: no segment in {}", directory.display()),
            Error::Exists { directory } => write!(formatter, "log: {} holds a log already", directory.display()),
            Error::Trimmed {
                directory,
                after,
                first_index,
            } => write!(
                formatter,
                "log: entries after {after} are needed, but {} begins at {first_index}; a segment is missing",
                directory.display()
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Disk(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Error {
        Error::Disk(error)
    }
}
