//! The messages, with raft-rs's names and field numbers.

use bytes::Bytes;

/// What an entry carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum EntryType {
    /// Data for the state machine.
    EntryNormal = 0,
    /// A `ConfChange`.
    EntryConfChange = 1,
    /// A `ConfChangeV2`.
    EntryConfChangeV2 = 2,
}

/// One entry of the log.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// What `data` is.
    #[prost(enumeration = "EntryType", tag = "1")]
    pub entry_type: i32,
    /// Term of the leader that proposed it.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// Position in the log.
    #[prost(uint64, tag = "3")]
    pub index: u64,
    /// The payload.
    #[prost(bytes = "bytes", tag = "4")]
    pub data: Bytes,
    /// The proposer's own note; never leaves the process.
    #[prost(bytes = "bytes", tag = "6")]
    pub context: Bytes,
    /// Unused.
    #[prost(bool, tag = "5")]
    pub sync_log: bool,
}

/// What a snapshot stands for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotMetadata {
    /// Membership at `index`.
    #[prost(message, optional, tag = "1")]
    pub conf_state: Option<ConfState>,
    /// The last entry contained.
    #[prost(uint64, tag = "2")]
    pub index: u64,
    /// Its term.
    #[prost(uint64, tag = "3")]
    pub term: u64,
}

/// A snapshot of the state machine.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Snapshot {
    /// The application's data.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    /// What it stands for.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<SnapshotMetadata>,
}

impl Snapshot {
    /// Whether it stands for nothing.
    pub fn is_empty(&self) -> bool {
        self.get_metadata().index == 0
    }
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum MessageType {
    MsgHup = 0,
    MsgBeat = 1,
    MsgPropose = 2,
    MsgAppend = 3,
    MsgAppendResponse = 4,
    MsgRequestVote = 5,
    MsgRequestVoteResponse = 6,
    MsgSnapshot = 7,
    MsgHeartbeat = 8,
    MsgHeartbeatResponse = 9,
    MsgUnreachable = 10,
    MsgSnapStatus = 11,
    MsgCheckQuorum = 12,
    MsgTransferLeader = 13,
    MsgTimeoutNow = 14,
    MsgReadIndex = 15,
    MsgReadIndexResp = 16,
    MsgRequestPreVote = 17,
    MsgRequestPreVoteResponse = 18,
}

/// A message between members, or from a member to itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    /// Its kind.
    #[prost(enumeration = "MessageType", tag = "1")]
    pub msg_type: i32,
    /// Receiver.
    #[prost(uint64, tag = "2")]
    pub to: u64,
    /// Sender.
    #[prost(uint64, tag = "3")]
    pub from: u64,
    /// The sender's term; 0 for local messages.
    #[prost(uint64, tag = "4")]
    pub term: u64,
    /// Term of the entry at `index`.
    #[prost(uint64, tag = "5")]
    pub log_term: u64,
    /// The entry before `entries`, or the one a response is about.
    #[prost(uint64, tag = "6")]
    pub index: u64,
    /// Entries to append.
    #[prost(message, repeated, tag = "7")]
    pub entries: Vec<Entry>,
    /// The sender's commit index.
    #[prost(uint64, tag = "8")]
    pub commit: u64,
    /// Term of the entry at `commit`.
    #[prost(uint64, tag = "15")]
    pub commit_term: u64,
    /// The snapshot of a MsgSnapshot.
    #[prost(message, optional, tag = "9")]
    pub snapshot: Option<Snapshot>,
    /// Index from which a snapshot is asked for.
    #[prost(uint64, tag = "13")]
    pub request_snapshot: u64,
    /// Whether a response refuses.
    #[prost(bool, tag = "10")]
    pub reject: bool,
    /// Where the refuser's log ends.
    #[prost(uint64, tag = "11")]
    pub reject_hint: u64,
    /// Context of a read index or of a leader transfer.
    #[prost(bytes = "bytes", tag = "12")]
    pub context: Bytes,
    /// Replaced by `priority`.
    #[prost(uint64, tag = "14")]
    pub deprecated_priority: u64,
    /// The sender's priority in an election.
    #[prost(int64, tag = "16")]
    pub priority: i64,
}

/// What must survive a crash besides the entries.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HardState {
    /// Current term.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Whom this member voted for in `term`.
    #[prost(uint64, tag = "2")]
    pub vote: u64,
    /// Commit index.
    #[prost(uint64, tag = "3")]
    pub commit: u64,
}

/// How a `ConfChangeV2` passes through joint consensus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ConfChangeTransition {
    /// Simple when possible, else implicit.
    Auto = 0,
    /// Joint, left by raft itself.
    Implicit = 1,
    /// Joint, left when the application says so.
    Explicit = 2,
}

/// A membership configuration.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfState {
    /// Voters.
    #[prost(uint64, repeated, packed = "false", tag = "1")]
    pub voters: Vec<u64>,
    /// Learners.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub learners: Vec<u64>,
    /// Voters of the configuration being left.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub voters_outgoing: Vec<u64>,
    /// Voters that become learners when it is left.
    #[prost(uint64, repeated, packed = "false", tag = "4")]
    pub learners_next: Vec<u64>,
    /// Whether raft leaves it by itself.
    #[prost(bool, tag = "5")]
    pub auto_leave: bool,
}

/// What a change does. raft-rs's numbers: etcd's have 2 for an update and 3 for a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ConfChangeType {
    /// Adds a voter, or makes a learner one.
    AddNode = 0,
    /// Removes a member.
    RemoveNode = 1,
    /// Adds a learner, or makes a voter one.
    AddLearnerNode = 2,
}

/// A change of one member.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfChange {
    /// What is done.
    #[prost(enumeration = "ConfChangeType", tag = "2")]
    pub change_type: i32,
    /// To whom.
    #[prost(uint64, tag = "3")]
    pub node_id: u64,
    /// The application's part.
    #[prost(bytes = "bytes", tag = "4")]
    pub context: Bytes,
    /// The proposer's id of the change.
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

/// One step of a `ConfChangeV2`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfChangeSingle {
    /// What is done.
    #[prost(enumeration = "ConfChangeType", tag = "1")]
    pub change_type: i32,
    /// To whom.
    #[prost(uint64, tag = "2")]
    pub node_id: u64,
}

/// Several changes at once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfChangeV2 {
    /// How it is passed through.
    #[prost(enumeration = "ConfChangeTransition", tag = "1")]
    pub transition: i32,
    /// The steps.
    #[prost(message, repeated, tag = "2")]
    pub changes: Vec<ConfChangeSingle>,
    /// The application's part.
    #[prost(bytes = "bytes", tag = "3")]
    pub context: Bytes,
}
