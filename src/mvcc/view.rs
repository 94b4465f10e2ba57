//! What is published with every batch: one consistent state of the store.

use super::window::WindowView;
use crate::pages::Root;

/// A state of the store, immutable. A clone is a pin: it keeps window blocks and pages of the old root alive.
#[derive(Clone, Debug)]
pub struct View {
    /// The store revision.
    pub revision: i64,
    /// Reads below it fail; -1 before the first compaction.
    pub compact_revision: i64,
    /// Raft index of the last entry applied.
    pub applied_index: u64,
    /// Raft term of this member when the view was published.
    pub term: u64,
    /// Whether this member alone decides: then what is published is always recent enough for a linearizable read.
    pub sole_voter: bool,
    /// The newest part of the history.
    pub window: WindowView,
    /// The part up to the last checkpoint; overlaps the window.
    pub pages: Root,
}
