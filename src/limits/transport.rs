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

// Queues towards one peer. What does not fit is dropped, and raft told that the peer can't be reached.

/// Messages that wait for a stream, etcd's number.
pub const STREAM_QUEUE_MESSAGES: usize = 4096;
/// Bytes that wait for the msgapp stream; a longer message goes if nothing else waits. They are shared with the log.
pub const APPEND_QUEUE_BYTES: usize = 32 << 20;
/// Bytes that wait for the message stream.
pub const MESSAGE_QUEUE_BYTES: usize = 16 << 20;
/// Messages that wait for the pipeline, etcd's number.
pub const PIPELINE_QUEUE_MESSAGES: usize = 64;
/// Bytes that wait for the pipeline.
pub const PIPELINE_QUEUE_BYTES: usize = 16 << 20;
/// Requests of a pipeline under way at once, etcd's number.
pub const PIPELINE_CONNECTIONS: usize = 4;
/// Entries' bytes in one append; longer ones are cut between entries.
pub const APPEND_BYTES: usize = super::RAFT_MESSAGE_BYTES_MAX as usize;
/// A stream's output is written when it is this long, before more is encoded.
pub const STREAM_WRITE_BYTES: usize = 256 << 10;

// Times.

/// How long a connection may take to be made.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts at a stream, etcd's.
pub const DIAL_PAUSE: Duration = Duration::from_millis(100);
/// A stream without messages has a heartbeat this often, so that the other side sees that it lives.
pub const STREAM_HEARTBEAT: Duration = Duration::from_nanos(CONNECTION_SILENCE.as_nanos() as u64 / 3);
/// Pause between two probes of a peer, etcd's.
pub const PROBE_PAUSE: Duration = Duration::from_secs(4);
/// A clock that differs from ours by more is told of, as etcd does.
pub const CLOCK_DIFFERENCE_REPORT: Duration = Duration::from_secs(1);
/// How long a peer may take nothing of a snapshot, or send nothing of it: disks stall for seconds on either side.
pub const SNAPSHOT_SILENCE: Duration = Duration::from_secs(30);
/// How long a peer may take to answer a snapshot once it has all of it: it has to be durable there.
pub const SNAPSHOT_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

// Connections.

/// Longest body of an answer that is read, where the answer is no stream.
pub const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Longest body of an answer to what members ask each other: a lease with many keys.
pub const ASKED_BYTES_MAX: u64 = 64 << 20;
/// Questions of one serve core to other members under way at once, each on a connection; and connections kept.
pub const ASKING_CONNECTIONS: usize = 16;
/// Longest body of a question about a lease, etcd's number.
pub const LEASE_QUESTION_BYTES_MAX: usize = 64 << 10;
/// Pause between two attempts to ask the leader, etcd's.
pub const ASK_PAUSE: Duration = Duration::from_millis(50);
/// Longest message in front of a snapshot, etcd's number.
pub const SNAPSHOT_MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Connections of peers that are served at once, streams of members aside: the oldest goes when another comes.
pub const SERVED_CONNECTIONS_MAX: usize = 256;
/// Members whose URLs were learned from their requests and that are not known to be members.
pub const LEARNED_MAX: usize = 16;
/// URLs of one member that are used.
pub const URLS_MAX: usize = 16;
/// What was last said of a peer, for so many peers at once.
pub const COMPLAINTS_MAX: usize = 64;

const _: () = assert!(STREAM_HEARTBEAT.as_nanos() * 2 < CONNECTION_SILENCE.as_nanos());
const _: () = assert!(PROBE_PAUSE.as_nanos() < CONNECTION_SILENCE.as_nanos());
/// Bytes of requests that are not whole, over all connections: no few peers, or who says so, fill the memory.
pub const BODIES_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// Lines of the log about peers that do something wrong, in a second: who alternates between two wrongs fills no disk.
pub const COMPLAINTS_PER_SECOND: u32 = 10;
/// Peers that counters are kept for, over the life of the process.
pub const COUNTED_PEERS_MAX: usize = 128;
/// One report that a peer can't be reached, in this time; raft learns nothing from more.
pub const UNREACHABLE_PAUSE: Duration = Duration::from_millis(50);
