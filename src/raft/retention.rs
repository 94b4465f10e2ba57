//! How much of the log a leader keeps in memory behind its checkpoints, for members that do not have it yet.
//!
//! Without a reason a few thousand entries, as etcd does (`--snapshot-catchup-entries`), within a bound of bytes. While
//! a snapshot is on its way, and for a while after it arrived, everything behind that snapshot: else a member that
//! takes long to get it finds the log gone on without it, and needs the next snapshot, for ever (etcd keeps its log for
//! as long, and for half a minute more). That is bounded too, by what the event window may take.

use super::core::LogCore;
use crate::limits::{RAFT_CATCHUP_BYTES_MAX, SNAPSHOT_CATCHUP_TIME, SNAPSHOT_CATCHUP_WINDOWS};
use std::time::Duration;

/// Of a leader: what is kept for those who get snapshots.
#[derive(Debug, Default)]
pub(super) struct SnapshotsOnTheirWay {
    /// The entry that the oldest of them stands for; entries behind it are kept.
    index: u64,
    /// Until when, if no snapshot is on its way by then.
    until: Duration,
}

/// What stays behind a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Entries before the checkpoint's.
    pub entries: u64,
    /// Bytes of all entries, at most.
    pub bytes_max: usize,
}

impl LogCore {
    /// Notes the snapshots that are on their way now.
    pub(super) fn note_snapshots(&mut self, now: Duration) {
        let Some(index) = self.replica.node_ref().oldest_snapshot_under_way() else {
            return;
        };
        let noted = &mut self.snapshots_under_way;
        let is_older = now >= noted.until || index < noted.index;
        noted.index = if is_older { index } else { noted.index };
        noted.until = now + SNAPSHOT_CATCHUP_TIME;
    }

    /// What to keep behind a checkpoint at `index`. A member that is short of room, or alone, keeps nothing.
    pub(super) fn kept_behind(&mut self, index: u64, no_space: bool, now: Duration) -> Kept {
        self.note_snapshots(now);
        let entries = self.options.catchup_entries;
        let usual = Kept {
            entries,
            bytes_max: RAFT_CATCHUP_BYTES_MAX,
        };
        let noted = &self.snapshots_under_way;
        let node = self.replica.node_ref();
        if no_space || node.is_alone() {
            Kept { entries: 0, ..usual }
        } else if now < noted.until && node.is_leader() {
            Kept {
                entries: entries.max(index.saturating_sub(noted.index)),
                bytes_max: RAFT_CATCHUP_BYTES_MAX.max(SNAPSHOT_CATCHUP_WINDOWS * self.options.memory.window),
            }
        } else {
            usual
        }
    }
}
