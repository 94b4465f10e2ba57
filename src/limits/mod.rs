//! Every bound of the server in one place.
//!
//! A queue, buffer, batch or count anywhere in ringd takes its bound from here, so that the worst case of memory
//! and latency can be read off one page. Relations between bounds are checked when the crate is compiled.

pub mod pages;

// reactor

/// Waiting longer than this for a queue, a disk or a turn of the loop is logged as a stall.
pub const STALL_REPORT: std::time::Duration = std::time::Duration::from_millis(100);
/// Log lines about stalls per second; the rest is only counted.
pub const STALL_REPORTS_PER_SECOND: u64 = 10;
/// Submission queue entries of the log core's ring; more operations than that queue in memory.
pub const LOG_RING_ENTRIES: u32 = 256;
/// Attempts to continue a short or interrupted transfer before it counts as failed.
pub const DISK_CONTINUATIONS: u32 = 64;

// raft: the node's own batching, as etcd sets it (`etcd-surface` 6.5).

/// Bytes of entries in one append message.
pub const RAFT_MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Append messages on their way to one follower.
pub const RAFT_INFLIGHT_MESSAGES_MAX: usize = 512;
/// Bytes of committed entries handed out by one Ready.
pub const RAFT_COMMITTED_BYTES_PER_READY_MAX: u64 = 16 << 20;
