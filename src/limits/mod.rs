//! Every bound of the server in one place.
//!
//! A queue, buffer, batch or count anywhere in ringd takes its bound from here, so that the worst case of memory
//! and latency can be read off one page. Relations between bounds are checked when the crate is compiled.

pub mod bbolt;
pub mod pages;
pub mod transport;

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

/// Bytes of entries kept in memory behind a checkpoint for followers that lag; who lags further gets a snapshot.
pub const RAFT_CATCHUP_BYTES_MAX: usize = 64 << 20;
/// While a snapshot is on its way: so many times what the event window may take, if that is more.
pub const SNAPSHOT_CATCHUP_WINDOWS: usize = 2;
/// How long a member that has received a snapshot may take to go on from there, as etcd has it.
pub const SNAPSHOT_CATCHUP_TIME: std::time::Duration = std::time::Duration::from_secs(30);
/// Bytes of entries that a leader has appended and that are not committed, above which it appends no more. More than
/// its own clients and those of four others may have under way; without a majority others give up and come again.
pub const RAFT_UNCOMMITTED_BYTES_MAX: u64 = 512 << 20;
/// Bytes of entries that a follower holds and has not applied, above which it takes no more.
pub const RAFT_UNAPPLIED_BYTES_MAX: usize = 128 << 20;
/// A write to the log that takes longer is said to be slow, as etcd has it.
pub const LOG_WRITE_SLOW: std::time::Duration = std::time::Duration::from_secs(1);
/// A read index that was not confirmed for this many ticks is asked for anew.
pub const RAFT_READ_RETRY_TICKS: u32 = 5;
/// Time between two lines about messages of peers that were refused.
pub const RAFT_REFUSAL_REPORT: std::time::Duration = std::time::Duration::from_secs(10);
/// Heartbeats in a row that speak of entries beyond the log, after which a member takes its log for lost.
pub const LOG_LOST_HEARTBEATS: u32 = 3;
/// A member counts as connected when its messages have come through for this long, as etcd has it.
pub const MEMBER_CONNECTED_LEAST: std::time::Duration = std::time::Duration::from_secs(5);
/// A learner is promoted when it has this much of the leader's log, as etcd has it.
pub const PROMOTION_MATCH_PERCENT: u64 = 90;
/// A member that has installed a snapshot begins anew after this long, so that the sender gets its answer.
pub const INSTALLED_MEMBER_STAYS: std::time::Duration = std::time::Duration::from_millis(300);
/// A removed member goes on for this long, so that others hear of it.
pub const REMOVED_MEMBER_STAYS: std::time::Duration = std::time::Duration::from_secs(1);
/// How long a proposal waits for a leader, or for its entry to come back from one, beyond two election time-outs: as
/// long as etcd's request time-out, by which its asker is answered.
pub const PROPOSAL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

// reactor: serve cores.

/// Memory that a serve core's executor registers for its own file I/O, which it hardly does: its least.
pub const SERVE_IO_MEMORY_BYTES: usize = 64 * 1024;
/// After this long a serve core looks for I/O even though tasks are still runnable.
pub const SERVE_PREEMPT: std::time::Duration = std::time::Duration::from_millis(1);
/// A serve core whose heartbeat is older than this is woken by a signal.
pub const SERVE_LATE: std::time::Duration = std::time::Duration::from_secs(1);
/// Weight of long reads among a serve core's work; all else has 1000.
pub const SERVE_ASIDE_SHARES: usize = 250;
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
/// Descriptors that no client's connection may take, and no more than one in so many of all: the log's segments, the
/// page file, snapshots and connections to other members need some. Connections of peers may take half of them.
pub const DESCRIPTORS_KEPT: u64 = 128;
pub const DESCRIPTORS_KEPT_PART: u64 = 4;
/// Time between two warnings that connections can't be accepted.
pub const ACCEPT_WARNING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);
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

// mvcc::index.

/// Keys that one slice of an index read looks at before it stops with the key to go on from: under 1 ms of work.
pub const INDEX_SLICE_ENTRIES: usize = 4096;
/// Pieces of retired index memory that the writer frees with a publication, if the batch did not retire more: some 50
/// µs.
pub const INDEX_FREE_PIECES: usize = 1024;
// --- http: what one connection may make the server hold or do ---------------------------------------------------

/// Largest frame payload the server accepts (SETTINGS_MAX_FRAME_SIZE), in bytes.
pub const HTTP_FRAME_BYTES: usize = 16_384;
/// Largest decoded header list (names + values + 32 each, RFC 9113 §6.5.2) and largest encoded block, in bytes.
pub const HTTP_HEADER_LIST_BYTES: usize = 65_536;
/// Size of the HPACK table the server keeps for a client, and of the one it uses itself, in bytes.
pub const HTTP_HEADER_TABLE_BYTES: usize = 4_096;
/// CONTINUATION frames one header block may be cut into.
pub const HTTP_CONTINUATION_FRAMES: u32 = 16;
/// Receive window of a stream, in bytes.
pub const HTTP_STREAM_WINDOW: u32 = 1 << 20;
/// Receive window of a connection, in bytes.
pub const HTTP_CONNECTION_WINDOW: u32 = 4 << 20;
/// Open streams of a connection, whatever SETTINGS_MAX_CONCURRENT_STREAMS allows; more are refused.
pub const HTTP_STREAMS: usize = 65_536;
/// Bytes of a connection that may wait for its socket; above it nothing more is read or scheduled.
pub const HTTP_OUTPUT_BYTES: usize = 262_144;
/// Bytes of control frames among [`HTTP_OUTPUT_BYTES`]; above it the connection is closed.
pub const HTTP_CONTROL_BYTES: usize = 65_536;
/// Bytes a stream may queue for its windows before its producer is told to wait.
pub const HTTP_STREAM_QUEUE_BYTES: usize = 262_144;
/// Bytes all streams of a connection may queue before their producers are told to wait. Above it new streams are
/// refused, unless there is memory for more: one record, or one event, can be larger.
pub const HTTP_CONNECTION_QUEUE_BYTES: usize = 1 << 20;
/// Replies up to this size go ahead of bulk data that waits for its turn, in bytes.
pub const HTTP_DIRECT_BYTES: usize = 4_096;
/// Streams the server reset and whose late frames it still ignores.
pub const HTTP_RESET_MEMORY: usize = 256;
/// A response without progress for this long is reset, in seconds.
pub const HTTP_STALL_SECONDS: u64 = 30;
/// After the first GOAWAY of a shutdown, how long the client's answer is waited for, in seconds.
pub const HTTP_DRAIN_SECONDS: u64 = 5;
/// A connection that has not sent the whole preface after this long is closed, in seconds.
pub const HTTP_PREFACE_SECONDS: u64 = 120;
/// Token buckets (burst, tokens per second) for frames that cost work and bring none.
pub const HTTP_RESETS: (u32, u32) = (4_096, 512);
pub const HTTP_EMPTY_DATA: (u32, u32) = (1_024, 64);
pub const HTTP_SETTINGS: (u32, u32) = (128, 16);
pub const HTTP_PINGS: (u32, u32) = (1_024, 64);
pub const HTTP_WINDOW_UPDATES: (u32, u32) = (4_096, 1_024);
pub const HTTP_IDLE_FRAMES: (u32, u32) = (4_096, 256);
/// Tokens for WINDOW_UPDATE that each DATA frame sent gives back: one for the stream, one for the connection, spare.
pub const HTTP_WINDOW_UPDATES_PER_DATA: u32 = 4;
/// Such tokens for each stream that begins, and for each that was answered: clients raise a new stream's window at
/// once, and the connection's for answers without DATA too.
pub const HTTP_WINDOW_UPDATES_PER_STREAM: u32 = 2;
/// Tokens for PING that each DATA frame sent gives back: clients measure the bandwidth with one ping per round trip
/// while data comes.
pub const HTTP_PINGS_PER_DATA: u32 = 1;

/// Head of an HTTP/1.1 request (request line and headers), in bytes and headers.
pub const HTTP1_HEAD_BYTES: usize = 65_536;
pub const HTTP1_HEADERS: usize = 128;
/// A head that is not whole this long after its first byte closes the connection, in seconds (etcd's bound).
pub const HTTP1_HEAD_SECONDS: u64 = 300;
/// A chunk's size line with its extensions, and all trailer lines of a body, in bytes.
pub const HTTP1_CHUNK_LINE_BYTES: usize = 4_096;

const _: () = assert!(HTTP_CONTROL_BYTES < HTTP_OUTPUT_BYTES);
const _: () = assert!(HTTP_STREAM_QUEUE_BYTES <= HTTP_CONNECTION_QUEUE_BYTES);
const _: () = assert!(HTTP_DIRECT_BYTES < HTTP_FRAME_BYTES && HTTP_FRAME_BYTES < 1 << 24);
const _: () = assert!(HTTP_CONTINUATION_FRAMES as usize * HTTP_FRAME_BYTES >= HTTP_HEADER_LIST_BYTES);

// --- grpc --------------------------------------------------------------------------------------------------------

/// Bytes of unfinished messages a connection may hold; the call that goes beyond it fails.
pub const GRPC_ASSEMBLY_BYTES: usize = 64 << 20;
/// First allocation for a message that spans frames, in bytes; more only as bytes arrive.
pub const GRPC_ASSEMBLY_FIRST_BYTES: usize = 65_536;

// state: leases.

/// Keys of a lease that are kept in a list; more go into a tree.
pub const LEASE_KEYS_IN_LIST: usize = 32;
/// Out-of-date timer entries of leases below which nobody cleans up.
pub const LEASE_STALE_ENTRIES_MIN: usize = 1024;
/// Timer entries of leases that one turn looks at.
pub const LEASE_TIMER_BUDGET: usize = 4096;
/// Revocations per second that the leader is ready to propose; from so many leases on a new leader spreads expiries.
pub const LEASE_REVOKE_RATE_PER_SECOND: usize = 1000;
/// Expiries that a new leader lets fall into one second.
pub const LEASE_EXPIRIES_PER_SECOND: usize = 750;
/// How long a lease whose revocation was proposed stays out of sight of the timer.
pub const LEASE_REVOKE_RETRY: std::time::Duration = std::time::Duration::from_secs(3);

const _: () = assert!(LEASE_EXPIRIES_PER_SECOND < LEASE_REVOKE_RATE_PER_SECOND);

// mvcc::window.

/// Bytes of records in one block of the event window; a larger record has a block of its own.
pub const WINDOW_BLOCK_BYTES: usize = 1 << 20;
/// Record length assumed before any was seen, when a block's table of heads is sized.
pub const WINDOW_RECORD_BYTES_MIN: usize = 64;

// mvcc::watch: one call of a hub's `advance`, and what a batch of events may hold. A batch ends at a main revision, so
// one larger than these is a batch of its own.

/// Records that a batch looks at.
pub const WATCH_BATCH_RECORDS: usize = 2048;
/// Events of a batch, counted per watch.
pub const WATCH_BATCH_EVENTS: usize = 4096;
/// Encoded events of a batch, each counted once.
pub const WATCH_BATCH_BYTES: usize = 1 << 20;
/// Main revisions in a batch: etcd's number for one message to a watch that catches up.
pub const WATCH_BATCH_REVISIONS: usize = 1000;
/// Records, events and messages that one call works on for the watches in step, and again for those that lag.
pub const WATCH_ADVANCE_WORK: usize = 4096;
/// Watches that one call moves from one set to another.
pub const WATCH_MOVES: usize = 1024;
/// Pages of the page store that a batch asks for at once.
pub const WATCH_MISSING_PAGES: usize = 32;
/// Progress requests of one stream that wait for an answer; more are dropped, as etcd's full channel does.
pub const WATCH_PROGRESS_REQUESTS: u32 = 128;
/// Shortest interval of progress notifications; a shorter one is raised to it, as in etcd.
pub const WATCH_PROGRESS_INTERVAL_MIN: std::time::Duration = std::time::Duration::from_millis(100);
/// Events of at least this many bytes in one message are shared between messages instead of copied.
pub const WATCH_SHARED_BYTES_MIN: usize = 4096;
/// A message that shares the bytes of its batch keeps at most this many times its own length alive.
pub const WATCH_SHARED_FACTOR: usize = 8;

/// Time after which a page that the disk did not give is asked for again by watches that wait for it.
pub const WATCH_READ_RETRY: std::time::Duration = std::time::Duration::from_secs(1);

const _: () = assert!(WATCH_BATCH_RECORDS <= WATCH_ADVANCE_WORK);

// wal

/// Bytes of a segment, etcd's number: the log goes on in the next one when a batch would not fit.
pub const WAL_SEGMENT_BYTES: u64 = 64_000_000;
/// A batch takes what has gathered until it is this long; a larger entry is a batch of its own.
pub const WAL_BATCH_BYTES_MAX: usize = 1 << 20;
/// A batch whose tail was cut reaches at most so far behind the cut, by all that etcd's default for the size of a
/// request allows; a start writes so many zeros behind the log's end, or more where requests may be larger.
pub const WAL_CUT_BYTES_MAX: usize = 4 << 20;
/// Buffers of written batches are kept for reuse up to this size.
pub const WAL_SPARE_BUFFER_BYTES_MAX: usize = 2 << 20;
/// A segment is read, zeroed and repaired in pieces of this size.
pub const WAL_PIECE_BYTES: usize = 256 << 10;
/// The next segment is zeroed at this rate when nothing is waiting for it.
pub const WAL_ZERO_BYTES_PER_SECOND: u64 = 16 << 20;
/// The next segment is zeroed at least this many times as fast as the current one fills.
pub const WAL_ZERO_BYTES_PER_BYTE: u64 = 4;
/// How long after a lack of space preparing the next segment is tried again.
pub const WAL_SPACE_RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// Where entries lie is remembered about once in so many bytes of the log: what reading one back reads at least.
pub const WAL_POSITION_BYTES: u64 = 64 << 10;
/// A segment longer than this is not read: it can't be one of ours or etcd's.
pub const WAL_SEGMENT_READ_BYTES_MAX: u64 = 1 << 30;

const _: () = assert!(WAL_SEGMENT_BYTES.is_multiple_of(4096));
const _: () = assert!(WAL_PIECE_BYTES.is_multiple_of(4096));
const _: () = assert!(WAL_BATCH_BYTES_MAX as u64 * 4 < WAL_SEGMENT_BYTES);
const _: () = assert!(WAL_BATCH_BYTES_MAX <= WAL_SPARE_BUFFER_BYTES_MAX);
const _: () = assert!(WAL_BATCH_BYTES_MAX < WAL_CUT_BYTES_MAX);
// net

/// How often a core looks at its connections' clocks.
pub const NET_TICK: std::time::Duration = std::time::Duration::from_millis(250);
/// Events of one connection handed to the service before the others get their turn.
pub const NET_EVENTS_PER_TURN: usize = 1024;
/// Bytes of requests that are not whole yet, on all connections of a core, however large the memory budget is.
pub const NET_UNFINISHED_BYTES_MAX: usize = 128 << 20;
/// Keys looked at, directly for a connection's calls, that count as one of its events.
pub const NET_KEYS_PER_EVENT: usize = 16;
/// Bytes sent on one connection before the others get their turn.
pub const NET_FLUSH_BYTES: usize = 1 << 20;
/// Calls woken in one turn when answers take less memory again.
pub const NET_WAKE: usize = 64;
/// While answers take more memory than they may, connections that stand still for this long are closed.
pub const NET_SHED_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
/// Answers of a core that take so much memory are a burst, behind which memory is given back to the system.
pub const NET_BURST_BYTES: usize = 16 << 20;
/// Largest output buffer kept by an idle connection.
pub const NET_SPARE_BYTES: usize = 16 * 1024;
/// How long a connection that is over waits for its peer to close.
pub const NET_LINGER: std::time::Duration = std::time::Duration::from_secs(1);
/// How long the end of a core waits for its connections' tasks once their sockets are closed.
pub const NET_TASKS_END: std::time::Duration = std::time::Duration::from_millis(200);

// raft: the log core.

/// Page cache of the log core, for records that decide about entries; a small memory budget makes it smaller.
pub const LOG_CORE_CACHE_BYTES: usize = 8 << 20;
/// Pairs of a small tree restored between two looks at what is missing.
pub const RESTORE_SLICE: usize = 4096;
/// Bytes of keys in a batch of records at boot from which on it is taken over, when keys are too long for their leaves.
pub const RESTORE_KEY_BYTES: usize = 8 << 20;
/// Most threads that decode records at boot: the one that writes the index keeps up with no more.
pub const BOOT_DECODERS_MAX: usize = 4;
/// Bytes of entries behind the page store that call for a checkpoint; a small memory budget makes it less.
pub const CHECKPOINT_DIRTY_BYTES: u64 = 32 << 20;
/// A checkpoint is made at least this often while anything changes.
pub const CHECKPOINT_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);
/// Removed records left over from earlier checkpoints that call for one.
pub const CHECKPOINT_REMOVED_MAX: usize = 10_000;
/// Time until a checkpoint that found no room is tried again.
pub const CHECKPOINT_RETRY: std::time::Duration = std::time::Duration::from_millis(500);
/// How often that time doubles while checkpoints go on being given up.
pub const CHECKPOINT_RETRY_DOUBLINGS: u32 = 4;
/// A compaction that could not read a page is tried again after this time.
pub const COMPACTION_RETRY: std::time::Duration = std::time::Duration::from_secs(10);
/// While there is no room a checkpoint is made this long after the last, whatever there is to write.
pub const CHECKPOINT_SPACE_RETRY: std::time::Duration = std::time::Duration::from_secs(2);
/// Within this part of the quota (one in so many) below it, checkpoints are made for the room they give back.
pub const CHECKPOINT_QUOTA_MARGIN: u64 = 8;
/// Time between two of those. It doubles with each that gave nothing back, up to the interval of all.
pub const CHECKPOINT_QUOTA_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// So much of the page file, in percent, must be of no use for them: a little more than what the page store lets lie.
pub const CHECKPOINT_GARBAGE_PERCENT: u64 = pages::RELOCATE_FREE_PERCENT as u64 + 5;
/// After so many in a row that gave nothing back room is not expected any more.
pub const CHECKPOINT_FRUITLESS_MAX: u32 = 5;
/// Bytes of entries behind the page store at which no more are applied; a small memory budget makes it less.
pub const UNSTORED_BYTES_MAX: u64 = 8 * CHECKPOINT_DIRTY_BYTES;
/// About what a lease takes, the keys attached to it aside.
pub const LEASE_BYTES: usize = 256;
/// Pages that the log core reads together for records that decide about an entry.
pub const LOADER_READS: u64 = 64;
/// Records looked ahead at for such pages.
pub const LOADER_AHEAD_RECORDS: usize = 256;
/// Records written, or fetched, in one slice of apply.
pub const APPLY_SLICE_RECORDS: usize = 1000;
/// Bytes of records written, or fetched, in one slice of apply, beyond which it ends.
pub const APPLY_SLICE_BYTES: u64 = 4 << 20;
/// Entries applied between two publications.
pub const APPLY_BATCH_ENTRIES: usize = 1024;
/// Records looked at in one slice of a compaction.
pub const COMPACTION_SLICE_RECORDS: usize = 1000;
/// Proposals that may wait to be applied.
pub const PROPOSALS_PENDING_MAX: usize = 20_000;
/// Bytes of proposals that may wait to be applied; a small memory budget makes it less.
pub const PROPOSALS_PENDING_BYTES_MAX: usize = 64 << 20;
const _: () = assert!(RAFT_UNCOMMITTED_BYTES_MAX > 5 * PROPOSALS_PENDING_BYTES_MAX as u64);
/// Lease revocations proposed in one turn.
pub const LEASE_REVOKES_PER_TURN: usize = 500;
/// Leases whose remaining time is written down by one proposal.
pub const LEASE_CHECKPOINTS_PER_TURN: usize = 1000;
/// Time between two such notes of a lease, as etcd has it.
pub const LEASE_CHECKPOINT_INTERVAL: std::time::Duration = std::time::Duration::from_secs(300);

const _: () = assert!(UNSTORED_BYTES_MAX > CHECKPOINT_DIRTY_BYTES);

// state::apply

/// Keys of a deletion that are collected before they are deleted.
pub const APPLY_SLICE_KEYS: usize = 1024;
/// What looking through a slice of the index costs of apply's budget, in which writing a record costs 1.
pub const APPLY_SLICE_COST: usize = 128;
/// Bytes of a put's record that cost 1 more.
pub const APPLY_BYTES_PER_COST: usize = 4096;
/// The largest main revision that a stored record may claim: room for 2^16 more is left above it.
pub const RESTORE_REVISION_MAX: i64 = i64::MAX - (1 << 16);

// state::backend.

/// Bytes of a database file that an export hands out at a time, or one record if that is longer.
pub const EXPORT_CHUNK_BYTES: usize = 64 << 10;
/// Bytes of records and rows that an import gathers for one checkpoint, or one record if that is longer.
pub const IMPORT_BATCH_BYTES: usize = 16 << 20;
/// Names of unknown rows that an import keeps to tell of them.
pub const IMPORT_SKIPPED_MAX: usize = 16;

// api.

/// The lane of requests to the log core.
pub const API_MAILBOX_LANE: usize = 0;
/// Requests of a serve core that the log core has not answered, and bytes of the proposals among them.
pub const API_WAITING: usize = 65_536;
/// Streams that asked for a leader are ended when none was known for so many election time-outs, etcd's number.
pub const LEADERLESS_ELECTIONS: u32 = 3;
/// The log core gives up what it can't answer by itself, with the reason; a serve core waits this much longer for that.
pub const API_LOG_CORE_GRACE: std::time::Duration = std::time::Duration::from_millis(500);
/// Requests of a serve core that are passed on to the leader at once.
pub const API_FORWARDS: usize = 16_384;
pub const API_WAITING_BYTES: usize = 64 << 20;
/// Keep-alives of a stream that are not answered; with more, no more of them are taken.
pub const API_KEEP_ALIVES: usize = 1024;
/// Bytes of requests that a serve core keeps until their callers have sent all.
pub const API_HELD_BYTES: usize = 16 << 20;
/// Rows that a range answers in its call's own turn; more go to a task.
pub const API_DIRECT_ROWS: usize = 16;
/// Pages loaded for a range of so few rows before it goes the way of long ones.
pub const API_SHORT_LOADS: usize = 4 * API_DIRECT_ROWS;
/// Rows a task looks at between two yields.
pub const API_SLICE_ROWS: usize = 1000;
/// Rows that a long range finds at a time.
pub const API_WALK_ROWS: usize = 128;
/// How long a read waits for memory that other reads hold, and how often it looks.
pub const API_MEMORY_WAIT: std::time::Duration = std::time::Duration::from_secs(30);
pub const API_MEMORY_POLL: std::time::Duration = std::time::Duration::from_millis(5);
/// What a record takes beside its bytes while it is kept for an answer.
pub const FETCHED_RECORD_BYTES: usize = 96;
/// Bytes of an answer that is made in its call's own turn even when answers take more memory than they should: about
/// what a call that waits takes.
pub const API_DIRECT_BYTES: usize = 4 << 10;
/// Room for a response's header: four numbers of at most ten bytes, their tags and the length.
pub const API_HEADER_BYTES: usize = 64;
/// Bytes a task produces at a time.
pub const API_PART_BYTES: usize = 64 << 10;
/// Rows in every chunk of a RangeStream but the last.
pub const API_STREAM_ROWS_MIN: usize = 10;

// server.

/// Requests of one serve core that wait for the log core; a power of two.
pub const REQUEST_MAILBOX: usize = 8192;
/// Answers that wait for one serve core; a power of two.
pub const ANSWER_MAILBOX: usize = 32_768;
/// News of publications that wait for one serve core: one that was not read stands for all later ones.
pub const PUBLISHED_MAILBOX: usize = 2;
/// Lane of the answers.
pub const ANSWER_LANE: usize = 0;
/// Lane of the news of publications.
pub const PUBLISHED_LANE: usize = 1;
/// Messages, or orders, between the log core and the transport of peers' messages.
pub const PEER_MAILBOX: usize = 4096;
/// Their only lane.
pub const PEER_LANE: usize = 0;
/// How often it is looked who of the members is connected.
pub const PEER_CONNECTED_LOOK: std::time::Duration = std::time::Duration::from_millis(250);
/// Bytes a second of a snapshot to one follower, at most.
pub const SNAPSHOT_BYTES_PER_SECOND: u64 = 128 << 20;
/// Records that one step of a snapshot looks at: under 1 ms of work.
pub const SNAPSHOT_STEP_RECORDS: usize = 256;
/// Pages that a snapshot reads ahead.
pub const SNAPSHOT_READS_AHEAD: usize = 16;
/// Page cache of a snapshot that is sent.
pub const SNAPSHOT_CACHE_BYTES: usize = 8 << 20;
/// Bytes of a snapshot that is received, written at a time.
pub const SNAPSHOT_WRITE_BYTES: usize = 1 << 20;
/// How long the log core may take to say what becomes of a received snapshot, and how often that is looked at.
pub const SNAPSHOT_TAKEN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
pub const SNAPSHOT_TAKEN_LOOK: std::time::Duration = std::time::Duration::from_millis(5);
/// How long another member is waited for when it is asked who is in its cluster.
pub const PEER_ASK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
/// Longest answer to that, in bytes.
pub const PEER_ASK_BYTES: u64 = 4 << 20;
/// Requests taken from one serve core before the others get their turn.
pub const LOG_REQUESTS_PER_TURN: usize = 4096;
/// Connections of one serve core.
pub const CONNECTIONS_PER_CORE: usize = 50_000;
/// The least that `--memory-budget` may be.
pub const MEMORY_BUDGET_MIN: u64 = 64 << 20;
/// Most memory of the event window, whatever the budget allows.
pub const WINDOW_BYTES_MAX: usize = 384 << 20;
/// Most memory of all page caches of serve cores together.
pub const PAGE_CACHE_BYTES_MAX: usize = 1 << 30;
/// What a gRPC message may be longer than `--max-request-bytes`.
pub const GRPC_OVERHEAD_BYTES: usize = 512 << 10;
/// Time connections have to end in an orderly way.
pub const SHUTDOWN_CONNECTIONS: std::time::Duration = std::time::Duration::from_secs(5);
/// Time a serve core has to end.
pub const SHUTDOWN_CORE: std::time::Duration = std::time::Duration::from_secs(8);
/// Longest time in which a member that stops hands leadership over, and how often that is looked at.
pub const SHUTDOWN_LEAVE: std::time::Duration = std::time::Duration::from_secs(5);
pub const SHUTDOWN_LEAVE_LOOK: std::time::Duration = std::time::Duration::from_millis(2);
/// Time the log core has for its last checkpoint.
pub const SHUTDOWN_LOG: std::time::Duration = std::time::Duration::from_secs(20);

const _: () = assert!(ANSWER_MAILBOX >= PROPOSALS_PENDING_MAX);

/// A reader that holds a state of the page store longer than this is ended.
pub const PIN_AGE_MAX: std::time::Duration = std::time::Duration::from_secs(600);
/// A reader that keeps more than this of the page file from being reused is ended.
pub const PIN_BYTES_MAX: u64 = 4 << 30;

// metrics.

/// API versions that clients name and that are counted apart on one core.
pub const METRICS_CLIENT_VERSIONS: usize = 16;

// What members do with each other's answers.

/// Pause between two looks at the versions of all members, etcd's; and how soon a new leader sees that it is one.
pub const VERSIONS_PAUSE: std::time::Duration = std::time::Duration::from_secs(4);
pub const VERSIONS_LOOK: std::time::Duration = std::time::Duration::from_millis(100);
/// Hashes made for other members at once on one core.
pub const PEER_HASHES_MAX: usize = 4;
/// Hashes of compactions kept to be compared, etcd's number.
pub const COMPACTION_HASHES_KEPT: usize = 10;

// client.

/// Longest request, and longest answer, of a call that a start makes.
pub const UNARY_REQUEST_BYTES_MAX: usize = 8 << 10;
pub const UNARY_ANSWER_BYTES_MAX: usize = 4 << 20;
/// Longest list of headers in such an answer.
pub const UNARY_HEADER_BYTES_MAX: usize = 64 << 10;

// Discovery.

/// How long a name server may take, how often all are asked, and how long its answer by UDP may be.
pub const DNS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
pub const DNS_ATTEMPTS: u32 = 2;
pub const DNS_MESSAGE_BYTES_MAX: usize = 4096;
/// Labels and pointers of one name.
pub const DNS_JUMPS_MAX: usize = 128;
/// Doublings of the pause between two attempts to reach a discovery service, which begins with two seconds; etcd's.
pub const DISCOVERY_PAUSE_DOUBLINGS: u32 = 7;
/// Pause between two looks for members that have still to come.
pub const DISCOVERY_LOOK: std::time::Duration = std::time::Duration::from_millis(200);
