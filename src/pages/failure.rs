//! What can go wrong with the store as a whole.

use super::page::{Corrupt, TreeId};
use crate::io::disk::DiskError;
use crate::limits::pages::{KEY_MAX_BYTES, MEMBERSHIP_MAX_BYTES};
use std::path::PathBuf;

/// The store can't be used, or not any more. None of these is to be retried on the same store.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// An operation failed whose failure leaves the state of the file unknown, or that the start needs.
    #[error("page file: while {doing}: {source}")]
    Disk {
        /// What the store was doing.
        doing: &'static str,
        /// The system's answer.
        source: DiskError,
    },
    /// Neither meta page can be trusted.
    #[error(
        "page file {path}: meta page {page} at byte offset {offset}: {reason}; restore the member from a snapshot or \
         from its peers"
    )]
    Meta {
        /// The file.
        path: PathBuf,
        /// 0 or 1.
        page: usize,
        /// Of the damaged sector.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A page that the start needs is damaged.
    #[error("page file {path}: {source}; restore the member from a snapshot or from its peers")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Which page, where, why.
        source: Corrupt,
    },
    /// The file ends before its last page.
    #[error("page file {path}: it has {length} bytes, its newest commit uses at least {needed}: the file was cut")]
    Cut {
        /// The file.
        path: PathBuf,
        /// The file's length in bytes.
        length: u64,
        /// Where its last used page ends.
        needed: u64,
    },
    /// The store was used after a failure.
    #[error("page file: the store failed before and takes no more work")]
    Dead,
}

/// Why a checkpoint was given up. The store is as it was before it began.
#[derive(Debug, thiserror::Error)]
pub enum Aborted {
    /// The disk is full.
    #[error("no room for a checkpoint: {0}")]
    DiskFull(DiskError),
    /// The file would grow beyond its limit, or into the room kept for urgent checkpoints.
    #[error("no room for a checkpoint: the page file has reached its limit of {limit_bytes} bytes")]
    Limit {
        /// The limit.
        limit_bytes: u64,
    },
    /// A page that the checkpoint had to read is damaged.
    #[error("a checkpoint met a damaged page: {0}")]
    Corrupt(Corrupt),
    /// A page that the checkpoint had to read could not be read.
    #[error("a checkpoint could not read a page: {0}")]
    Read(DiskError),
}

/// A cut that the format can't hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// A key of a small tree is too long.
    #[error("a key of the tree {tree:?} has {length} bytes, at most {KEY_MAX_BYTES} are possible")]
    Key {
        /// Which tree.
        tree: TreeId,
        /// The key's length.
        length: usize,
    },
    /// Updates are given for the tree of records.
    #[error("records are changed through `records` and `deletes`, not as updates of a tree")]
    Records,
    /// The membership bytes are too long.
    #[error("the membership has {length} bytes, at most {MEMBERSHIP_MAX_BYTES} are possible")]
    Membership {
        /// Their length.
        length: usize,
    },
    /// The deletes are not in ascending order.
    #[error("the deletes are not in ascending order")]
    Order,
}
