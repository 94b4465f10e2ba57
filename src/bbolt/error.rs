//! What can be wrong with a bbolt file that is read.

use std::io;
use std::sync::Arc;

/// Why a file can't be read. Names the file and, of damage, page and offset.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file's bytes could not be read.
    #[error("{file}: {length} bytes at offset {offset} can't be read: {source}")]
    Source {
        /// The file.
        file: Arc<str>,
        /// Where.
        offset: u64,
        /// How many bytes.
        length: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// Neither meta page is whole.
    #[error("{file} is no bbolt file, or a damaged one: of meta page 0 {first}, of meta page 1 {second}; take another")]
    NoMeta {
        /// The file.
        file: Arc<str>,
        /// What is wrong with the first.
        first: &'static str,
        /// What is wrong with the second.
        second: &'static str,
    },
    /// The file ends before its last page.
    #[error("{file} is cut: it has {length} bytes and needs {needed}; copy or send it again")]
    Cut {
        /// The file.
        file: Arc<str>,
        /// Its length.
        length: u64,
        /// The end of its last page.
        needed: u64,
    },
    /// A page that can't be right.
    #[error("{file} is damaged in page {page}, at offset {offset}: {reason}; take another copy")]
    Damaged {
        /// The file.
        file: Arc<str>,
        /// The page.
        page: u64,
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        reason: &'static str,
    },
}
