//! The message types that `raft` 0.7 expects of its `raft-proto` dependency, under the same public names, written by
//! hand with prost derives.
//!
//! Why not the published crate: its build needs a protoc, an old prost, and its prost payloads are `Vec<u8>`, copied
//! with every clone. Here payloads are [`bytes::Bytes`], shared. The numbers are raft-rs's (`eraftpb`), which differ
//! from etcd's `raftpb` in places (`ConfChangeType`, fields 13 to 16 of `Message`): bytes for disk and wire are made
//! and read by ringd's own translation, never by encoding these types.

mod accessors;
mod confchange;
pub mod eraftpb;

pub use confchange::{ConfChangeI, conf_state_eq, new_conf_change_single, parse_conf_change, stringify_conf_change};

/// What a user of raft usually imports.
pub mod prelude {
    pub use crate::eraftpb::{
        ConfChange, ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType,
        HardState, Message, MessageType, Snapshot, SnapshotMetadata,
    };
}

/// Conversions.
pub mod util {
    use crate::eraftpb::ConfState;

    impl<Voters, Learners> From<(Voters, Learners)> for ConfState
    where
        Voters: IntoIterator<Item = u64>,
        Learners: IntoIterator<Item = u64>,
    {
        fn from((voters, learners): (Voters, Learners)) -> ConfState {
            ConfState {
                voters: voters.into_iter().collect(),
                learners: learners.into_iter().collect(),
                ..Default::default()
            }
        }
    }
}
