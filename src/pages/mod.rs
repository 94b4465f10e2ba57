//! The page store: a checksummed copy-on-write B+tree in one file.
//!
//! Keeps every record of the history by revision, and small trees for leases, users, roles, members, alarms and the
//! rest. A checkpoint adds a batch of changes and becomes the file's state by one write of a meta page, or not at all.
//! Readers work on a [`Root`] with a [`PageCache`] of their own; see `docs/pages.md` for the format and its rules.
//! This room knows nothing of what the records mean, uses no clock and reaches the disk only through `io::disk`.

mod boot;
mod builder;
mod cache;
mod changes;
mod check;
mod checkpoint;
mod codec;
mod failure;
mod free;
pub mod fuzz;
mod meta;
mod node;
mod output;
mod page;
pub mod prefetch;
mod record;
mod rewrite;
mod root;
mod runs;
mod scan;
mod space;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod warm;

pub use boot::{BootScan, Decoded, LeafBatch};
pub use cache::PageCache;
pub use changes::{Records, TreeUpdates};
pub use check::Check;
pub use checkpoint::{Commit, Cut, Progress};
pub use failure::{Aborted, CutError, StoreFailure};
pub use page::{Corrupt, PageAddress, ReadFailure, TreeId};
pub use record::{NewRecord, Record, RecordHead, RecordId, RecordView};
pub use root::{Root, StateFields, TreeValue};
pub use scan::{RecordScan, Scanned, TreeScan};
pub use store::{Options, PageStore, Pin};
