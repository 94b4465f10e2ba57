//! Revisions, the lock-free index, the event window, watch cursors and compaction.

pub mod index;
pub mod interval;
pub mod readers;
pub mod record;
pub mod revision;
pub mod view;
pub mod watch;
pub mod window;
