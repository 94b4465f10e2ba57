//! What the log core may take of the member's memory.

use crate::limits::{
    CHECKPOINT_DIRTY_BYTES, LOG_CORE_CACHE_BYTES, PROPOSALS_PENDING_BYTES_MAX, UNSTORED_BYTES_MAX, WINDOW_BYTES_MAX,
};

/// The log core's part of `--memory-budget`, in bytes. The default is the most of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The event window after a checkpoint. Until the next one it may grow by what is not stored yet.
    pub window: usize,
    /// Entries behind the page store that call for a checkpoint.
    pub checkpoint_at: u64,
    /// Entries behind the page store at which apply waits for a checkpoint. They are held twice: as entries, and as
    /// records in the window.
    pub unstored_max: u64,
    /// Proposals that are not applied yet.
    pub pending_max: usize,
    /// Page cache for records that decide about entries; the page store's own has the same size.
    pub cache: usize,
    /// Index and leases, above which writes that add to them are refused as by the quota.
    pub index_max: usize,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            window: WINDOW_BYTES_MAX,
            checkpoint_at: CHECKPOINT_DIRTY_BYTES,
            unstored_max: UNSTORED_BYTES_MAX,
            pending_max: PROPOSALS_PENDING_BYTES_MAX,
            cache: LOG_CORE_CACHE_BYTES,
            index_max: usize::MAX,
        }
    }
}
