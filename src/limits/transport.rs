//! Bounds of the peers' connections.

use std::time::Duration;

/// Longest message a peer may send by stream or pipeline. etcd takes 512 MiB; a member sends appends of about 1 MiB, or
/// of one entry, which is as long as a request may be.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Entries of one message: more than the shortest ones that fit an append of 1 MiB.
pub const MESSAGE_ENTRIES_MAX: usize = 1 << 18;
/// Longest context of a message, or of a read index. etcd's are of 8 bytes, its longest word of 16.
pub const CONTEXT_BYTES_MAX: usize = 1024;
/// Members that a configuration may name.
pub const CONFIGURATION_MEMBERS_MAX: usize = 1024;
/// Highest term and index believed: far from where adding to them overflows, and never reached by counting.
pub const POSITION_MAX: u64 = 1 << 62;

/// How long nothing may come on a stream, and nothing go out, before it counts as broken; etcd's default.
pub const CONNECTION_SILENCE: Duration = Duration::from_secs(5);

const _: () = assert!(super::RAFT_MESSAGE_BYTES_MAX < MESSAGE_BYTES_MAX as u64);
