//! What serve cores ask of the log core, and what it answers.
//!
//! A token is the asker's own and comes back with the one answer to its request. Requests of one core are taken in
//! order; answers come when they are known, so not in order.

use super::counters::Counters;
use crate::mvcc::readers::Hold;
use crate::mvcc::view::View;
use crate::proto::etcdserverpb::{AlarmMember, AlarmType};
use crate::state::lease::TimeToLive;
use crate::state::members::Member;
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
    /// The member's state. Answered by `Status`.
    Status {
        /// The asker's.
        token: u64,
    },
    /// A read met a page that is damaged: raise CORRUPT. Not answered.
    Corrupt {
        /// Which file, page and offset, and what is wrong.
        description: String,
    },
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
    /// The request is not in the log and will not be.
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
        /// The answer.
        lease: Option<TimeToLive>,
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
    /// A new view was published: watches may have something to send.
    Published,
}

/// Why a proposal came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// There is no leader, or leadership changed.
    NoLeader,
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
