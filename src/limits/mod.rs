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
/// Memory that a serve core's executor registers for its own file I/O, which it hardly does: its least.
pub const SERVE_IO_MEMORY_BYTES: usize = 64 * 1024;
/// After this long a serve core looks for I/O even though tasks are still runnable.
pub const SERVE_PREEMPT: std::time::Duration = std::time::Duration::from_millis(1);
/// How often a serve core looks whether its turns are on time.
pub const SERVE_HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(250);
/// Most bytes taken from a socket at once, and size of a core's receive buffer.
pub const RECEIVE_BYTES: usize = 64 * 1024;
/// With less than this left the receive buffer is replaced.
pub const RECEIVE_BYTES_LEAST: usize = 16 * 1024;
/// Most parts of one vectored send.
pub const WRITE_PARTS: usize = 64;
/// Reads of page files in flight on one serve core.
pub const PAGE_READS_IN_FLIGHT: usize = 64;
/// Length of the kernel's queue of connections not yet accepted.
pub const ACCEPT_BACKLOG: i32 = 4096;
/// Connections on their way from the accepting thread to one serve core.
pub const ACCEPTED_QUEUE: usize = 1024;
/// How often the accepting thread looks at the serve cores' load.
pub const LOAD_SAMPLE: std::time::Duration = std::time::Duration::from_millis(500);

const _: () = assert!(RECEIVE_BYTES_LEAST < RECEIVE_BYTES);
const _: () = assert!(ACCEPTED_QUEUE.is_power_of_two());

// state

/// Message levels of a request at which decoding gives up, as Go's protobuf does.
pub const MAX_MESSAGE_LEVELS: usize = 10_000;
/// Levels of unknown groups in a request at which decoding gives up.
pub const MAX_GROUP_LEVELS: usize = 100;
/// Levels of nested transactions that are decoded; it bounds the stack, and so `--max-txn-ops` has no effect beyond it.
pub const MAX_TXN_LEVELS: usize = 256;
// Index.

/// Keys that one slice of an index read looks at before it stops with the key to go on from: under 1 ms of work.
pub const INDEX_SLICE_ENTRIES: usize = 4096;
