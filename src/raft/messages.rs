//! What serve cores ask of the log core, and what it answers.
//!
//! A token is the asker's own and comes back with the one answer to its request. Requests of one core are taken in
//! order; answers come when they are known, so not in order.

use super::counters::Counters;
use super::install::{Placed, Received, Taken};
use crate::mvcc::readers::Hold;
use crate::mvcc::view::View;
use crate::pages::Root;
use crate::proto::etcdserverpb::{AlarmMember, AlarmType};
use crate::state::lease::TimeToLive;
use crate::state::members::{Downgrade, Member};
use crate::state::outcome::Outcome;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// A request of a serve core.
#[derive(Debug)]
pub enum Request {
    /// Put an encoded `InternalRaftRequest`, already validated, through the log. Answered by `Applied` or `Dropped`.
    Propose {
        /// The asker's.
        token: u64,
        /// The id in the request's header, which no other request has: its answer is found by it when it has to go
        /// through another leader.
        id: u64,
        /// The encoded request.
        payload: Bytes,
        /// Bytes that the quota counts for it; 0 for what the quota does not hold back.
        quota_bytes: usize,
    },
    /// Renew a lease. Answered by `Renewed`.
    Renew {
        /// The asker's.
        token: u64,
        /// The lease.
        id: i64,
    },
    /// What is left of a lease. Answered by `TimeToLive`.
    TimeToLive {
        /// The asker's.
        token: u64,
        /// The lease.
        id: i64,
        /// Whether its keys are wanted.
        keys: bool,
    },
    /// The ids of all leases. Answered by `Leases`.
    Leases {
        /// The asker's.
        token: u64,
    },
    /// Who leads. Answered by `Leader`.
    Leader {
        /// The asker's.
        token: u64,
    },
    /// The member's state. Answered by `Status`.
    Status {
        /// The asker's.
        token: u64,
    },
    /// Confirm that what is published at the time of the answer contains everything that was committed when this was
    /// asked. Answered by `Readable` or `Dropped`.
    ReadIndex {
        /// The asker's.
        token: u64,
    },
    /// Change the membership. Answered by `Members` or `Dropped`.
    ChangeMembers {
        /// The asker's.
        token: u64,
        /// The id in the change, which no other request has.
        id: u64,
        /// The change.
        change: MemberChange,
    },
    /// Hand leadership to another member. Answered by `LeaderMoved`.
    MoveLeader {
        /// The asker's.
        token: u64,
        /// To whom.
        to: u64,
    },
    /// A read met a page that is damaged: raise CORRUPT. Not answered.
    Corrupt {
        /// Which file, page and offset, and what is wrong.
        description: String,
    },
    /// A member was found to hold something else than the others: raise CORRUPT for it, 0 for nobody knows whom. Not
    /// answered.
    RaiseCorrupt {
        /// The member's id.
        member: u64,
    },
    /// The cluster gets this version, if this member leads still. Not answered.
    SetClusterVersion {
        /// `major.minor.patch`.
        version: String,
    },
}

impl Request {
    /// Whether there is an answer to it.
    pub fn is_answered(&self) -> bool {
        !matches!(
            self,
            Request::Corrupt { .. } | Request::RaiseCorrupt { .. } | Request::SetClusterVersion { .. }
        )
    }
}

/// An answer of the log core.
#[derive(Debug)]
pub enum Reply {
    /// The entry was applied.
    Applied {
        /// The asker's.
        token: u64,
        /// What it did.
        outcome: Outcome,
        /// The state right behind the batch that the entry was applied in: where the records it names are found. One
        /// for all answers of a batch.
        view: Arc<View>,
        /// Keeps what the outcome's ranges will find in the index. To be dropped when they are answered; until then
        /// compactions wait. `None` when nothing in the batch has such ranges.
        hold: Option<Hold>,
    },
    /// The request came to nothing, as far as this member can tell.
    Dropped {
        /// The asker's.
        token: u64,
        /// Why.
        reason: Dropped,
    },
    /// How many seconds a renewed lease lives; 0 when there is none.
    Renewed {
        /// The asker's.
        token: u64,
        /// Seconds; `None` when this member does not lead.
        ttl_s: Option<i64>,
    },
    /// What is left of a lease; `None` when there is none.
    TimeToLive {
        /// The asker's.
        token: u64,
        /// The answer; only the leader has one.
        lease: Result<Option<TimeToLive>, NotPrimary>,
    },
    /// Who leads.
    Leader {
        /// The asker's.
        token: u64,
        /// `None` when nobody is known to.
        leader: Option<LeaderPlace>,
    },
    /// All lease ids.
    Leases {
        /// The asker's.
        token: u64,
        /// The next to expire first; shared by all who asked at about the same time.
        ids: Arc<[i64]>,
    },
    /// The member's state.
    Status {
        /// The asker's.
        token: u64,
        /// The state.
        status: Box<Status>,
    },
    /// What is published is recent enough.
    Readable {
        /// The asker's.
        token: u64,
    },
    /// A change of the membership was applied, or refused.
    Members {
        /// The asker's.
        token: u64,
        /// All members after it.
        result: Result<Vec<Member>, MemberError>,
    },
    /// How a transfer of leadership went.
    LeaderMoved {
        /// The asker's.
        token: u64,
        /// Done, or why not.
        result: Result<(), MoveError>,
    },
    /// A new view was published: watches may have something to send.
    Published,
}

/// Only the leader knows when leases end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPrimary;

/// Where the leader is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderPlace {
    /// It is this member.
    pub is_self: bool,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
}

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new member.
    Add(Member),
    /// A member goes, and its id never comes back.
    Remove(u64),
    /// Other peer URLs for a member.
    Update {
        /// Which.
        id: u64,
        /// Where peers reach it from now on.
        peer_urls: Vec<String>,
    },
    /// A learner becomes a voter.
    Promote(u64),
}

/// Why a change of the membership was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberError {
    /// The id is a member's already.
    IdExists,
    /// A member has one of the peer URLs already.
    PeerUrlExists,
    /// There is no such member, or it was removed.
    NotFound,
    /// It votes already.
    NotLearner,
    /// There are as many learners as `--max-learners` allows.
    TooManyLearners,
    /// Too few of the members that would be have started.
    NotEnoughStarted,
    /// Too few members are connected.
    Unhealthy,
    /// The learner lags too far behind the leader, whose log says how far.
    LearnerNotReady,
    /// Only the leader can tell.
    NotLeader,
}

/// Why leadership was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveError {
    /// This member does not lead.
    NotLeader,
    /// The other one can't.
    BadTransferee,
    /// It took too long.
    TimedOut,
}

/// What the transport of peers' messages tells the log core.
#[derive(Debug)]
pub enum FromPeers {
    /// A message of another member.
    Message(Box<raft::eraftpb::Message>),
    /// A message to this member was lost.
    Unreachable(u64),
    /// Another member says that this one was removed from the cluster.
    Removed,
    /// Messages of a member come through, or not any more.
    Connected {
        /// Whose.
        id: u64,
        /// Whether they do.
        is_connected: bool,
    },
    /// A snapshot was received, and a page file made of it.
    Snapshot(Received),
    /// Whether the page file of the snapshot that is to be installed has the name that a start looks for.
    SnapshotInPlace(Placed),
    /// A snapshot was sent.
    SnapshotSent {
        /// To whom.
        id: u64,
        /// Whether it arrived.
        received: bool,
    },
}

/// What the log core tells the transport.
#[derive(Debug)]
pub enum ToPeers {
    /// Messages that may leave now, each to its `to`.
    Messages(Vec<raft::eraftpb::Message>),
    /// A snapshot: its message, and the state that goes with it.
    Snapshot {
        /// The message.
        message: Box<raft::eraftpb::Message>,
        /// The state.
        root: Root,
    },
    /// What is to become of the snapshot that was handed over last.
    SnapshotTaken(Result<Taken, String>),
    /// Who the others are.
    Members {
        /// All members but this one.
        members: Vec<Member>,
        /// Ids of those removed.
        removed: Vec<u64>,
    },
}

/// Why a proposal came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Leadership changed, or there is no leader. It is in no log that this member knows of; a former leader may still
    /// bring in what this one had sent before.
    NoLeader,
    /// There was no leader in time; it will not come to be.
    Deadline,
    /// The leader it went to failed; it may have come to be.
    LeaderFailed,
    /// The leader it went to is not connected; it may have come to be.
    ConnectionLost,
    /// It took too long, for no reason known; it may have come to be.
    TimedOut,
    /// Too much is waiting to be applied.
    TooManyRequests,
    /// The quota is used up or the disk is full.
    NoSpace,
    /// The member is stopping.
    Stopping,
}

/// What `Maintenance.Status`, the health endpoints and the metrics tell of a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The leader's id; 0 for none.
    pub leader: u64,
    /// Whether this member leads.
    pub is_leader: bool,
    /// Whether it leads and has applied an entry of its own term.
    pub leads_surely: bool,
    /// Whether it has no vote.
    pub is_learner: bool,
    /// The commit index.
    pub commit_index: u64,
    /// The last index applied.
    pub applied_index: u64,
    /// The current term.
    pub term: u64,
    /// Bytes of the data as the quota counts them.
    pub size: u64,
    /// Bytes of them in use.
    pub size_in_use: u64,
    /// The alarms raised.
    pub alarms: Vec<AlarmMember>,
    /// The members.
    pub members: Vec<Member>,
    /// The cluster's version once it is set.
    pub cluster_version: Option<String>,
    /// The downgrade that is under way, or was last.
    pub downgrade: Option<Downgrade>,
    /// Leases.
    pub leases: usize,
    /// Live and dead keys in the index.
    pub keys: usize,
    /// Proposals that wait to be applied.
    pub pending: usize,
    /// Time since the last compaction was done.
    pub compaction_age: Option<Duration>,
    /// What was counted since the start.
    pub counters: Counters,
}

impl Status {
    /// Whether an alarm of this kind is raised by any member.
    pub fn has_alarm(&self, alarm: AlarmType) -> bool {
        self.alarms.iter().any(|member| member.alarm == alarm as i32)
    }
}
