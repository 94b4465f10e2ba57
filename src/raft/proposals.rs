//! Proposals on their way into the log: gathered for one message a turn, held while there is nobody to take them, sent
//! to the leader where that is another member.

use super::core::LogCore;
use super::messages::Dropped;
use super::node::Proposed;
use super::storage::Position;
use super::waiters::Waiter;
use crate::limits::{PROPOSAL_TIMEOUT, PROPOSALS_PENDING_MAX, RAFT_MESSAGE_BYTES_MAX};
use crate::proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use bytes::Bytes;
use prost::Message;
use std::time::Duration;

/// One proposal.
pub(super) struct Proposal {
    /// Who waits; nobody for a proposal of the member itself.
    waiter: Option<Waiter>,
    /// The id in the request's header.
    id: u64,
    payload: Bytes,
    /// When it is given up.
    until: Duration,
    /// Whether only the leader may make it: it is dropped, not forwarded, when this member no longer leads.
    leaders_only: bool,
}

/// What was gathered since the last message to raft.
#[derive(Default)]
pub(super) struct Proposals {
    gathered: Vec<Proposal>,
    bytes: usize,
    next_id: u64,
}

impl Proposals {
    /// Ids of the member's own requests begin at `first_id`.
    pub fn new(first_id: u64) -> Proposals {
        Proposals {
            next_id: first_id,
            ..Proposals::default()
        }
    }

    /// How many are gathered.
    pub fn count(&self) -> usize {
        self.gathered.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// An id for a request of the member itself.
    pub fn next_id(&mut self) -> u64 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    fn push(&mut self, proposal: Proposal) {
        self.bytes += proposal.payload.len();
        self.gathered.push(proposal);
    }

    fn take(&mut self) -> Vec<Proposal> {
        self.bytes = 0;
        std::mem::take(&mut self.gathered)
    }
}

impl LogCore {
    /// Takes a client's proposal, unless there is a reason not to.
    pub(super) fn propose_for(&mut self, waiter: Waiter, id: u64, payload: Bytes, quota_bytes: usize, now: Duration) {
        let pending_bytes = self.waiters.bytes() + self.proposals.bytes();
        let drop_for = if self.stopping {
            Some(Dropped::Stopping)
        } else if self.waiters.count() + self.proposals.count() >= PROPOSALS_PENDING_MAX
            || (pending_bytes > 0 && pending_bytes + payload.len() > self.options.memory.pending_max)
        {
            Some(Dropped::TooManyRequests)
        } else if quota_bytes > 0 && !self.has_room(quota_bytes, now) {
            Some(Dropped::NoSpace)
        } else {
            None
        };
        if let Some(reason) = drop_for {
            self.drop_waiter(waiter, reason);
            return;
        }
        self.proposals.push(Proposal {
            waiter: Some(waiter),
            id,
            payload,
            until: now + self.proposal_timeout(),
            leaders_only: false,
        });
    }

    /// Proposes a request of the member itself, for which nobody waits, through whoever leads.
    pub fn propose_own(&mut self, request: InternalRaftRequest, now: Duration) {
        self.propose_of_member(request, now, false);
    }

    /// Proposes what only the leader may: nothing, if this member does not lead any more by then.
    pub(super) fn propose_as_leader(&mut self, request: InternalRaftRequest, now: Duration) {
        self.propose_of_member(request, now, true);
    }

    fn propose_of_member(&mut self, mut request: InternalRaftRequest, now: Duration, leaders_only: bool) {
        let id = self.proposals.next_id();
        // etcd's members look at the header of every entry.
        request.header = Some(RequestHeader {
            id,
            ..Default::default()
        });
        self.proposals.push(Proposal {
            waiter: None,
            id,
            payload: request.encode_to_vec().into(),
            until: now + self.proposal_timeout(),
            leaders_only,
        });
    }

    pub(super) fn proposal_timeout(&self) -> Duration {
        PROPOSAL_TIMEOUT + 2 * self.options.election_timeout
    }

    /// Hands what was gathered to raft, as one message where this member leads.
    pub(super) fn propose_gathered(&mut self, now: Duration) {
        if self.proposals.count() == 0 {
            return;
        }
        let node = self.replica.node();
        let (leader, is_leader) = (node.leader(), node.is_leader());
        if leader == 0 || node.transferee().is_some() {
            return self.hold(now);
        }
        if is_leader {
            let proposals = self.proposals.take();
            return self.append_proposals(proposals);
        }
        let mut message = Vec::new();
        let mut bytes = 0;
        for proposal in self.proposals.take() {
            if proposal.leaders_only {
                continue;
            }
            if bytes > 0 && bytes + proposal.payload.len() > RAFT_MESSAGE_BYTES_MAX as usize {
                self.forward(std::mem::take(&mut message), now);
                bytes = 0;
            }
            bytes += proposal.payload.len();
            message.push(proposal);
        }
        self.forward(message, now);
    }

    /// Keeps what nobody can take now, as etcd does, until it is too late for it.
    fn hold(&mut self, now: Duration) {
        for proposal in self.proposals.take() {
            if !proposal.leaders_only && proposal.until > now {
                self.proposals.push(proposal);
            } else if let Some(waiter) = proposal.waiter {
                self.drop_waiter(waiter, Dropped::Deadline);
            }
        }
    }

    /// Gives up what went to another leader and is not heard of in time, or whose leader is no more: an entry of a
    /// later one's own is applied.
    pub(super) fn give_up_forwarded(&mut self, now: Duration) {
        let term = self.replica.node().term();
        for waiter in self.waiters.expire(now) {
            let reason = self.reason_of_silence(now);
            self.drop_waiter(waiter, reason);
        }
        if self.state.applied_term() == term {
            for waiter in self.waiters.leader_is_of(term) {
                self.drop_waiter(waiter, Dropped::LeaderFailed);
            }
        }
    }

    /// What etcd names as the likely reason that what was forwarded a time-out ago was not heard of.
    fn reason_of_silence(&mut self, now: Duration) -> Dropped {
        let began = now.saturating_sub(self.proposal_timeout());
        let leader = self.replica.node().leader();
        if leader == 0 {
            Dropped::TimedOut
        } else if began < self.led_since && self.led_since < began + 2 * self.options.election_timeout {
            Dropped::LeaderFailed
        } else if leader != self.member_id && !self.is_connected_since(leader, began) {
            Dropped::ConnectionLost
        } else {
            Dropped::TimedOut
        }
    }

    fn append_proposals(&mut self, proposals: Vec<Proposal>) {
        let mut payloads = Vec::with_capacity(proposals.len());
        let mut waiters = Vec::with_capacity(proposals.len());
        for proposal in proposals {
            waiters.push((proposal.waiter, proposal.payload.len()));
            payloads.push(proposal.payload);
        }
        match self.replica.node().propose(payloads) {
            Proposed::Appended(first) => {
                let mut dropped = Vec::new();
                for ((waiter, bytes), index) in waiters.into_iter().zip(first.index..) {
                    let position = Position {
                        index,
                        term: first.term,
                    };
                    self.waiters.appended(position, waiter, bytes, &mut dropped);
                }
                self.drop_waiters(dropped);
            }
            Proposed::Forwarded | Proposed::Dropped => {
                self.drop_waiters(waiters.into_iter().filter_map(|(waiter, _)| waiter));
            }
        }
    }

    fn forward(&mut self, proposals: Vec<Proposal>, now: Duration) {
        if proposals.is_empty() {
            return;
        }
        let payloads = proposals.iter().map(|proposal| proposal.payload.clone()).collect();
        if self.replica.node().propose(payloads) != Proposed::Forwarded {
            return self.drop_waiters(proposals.into_iter().filter_map(|proposal| proposal.waiter));
        }
        let term = self.replica.node().term();
        for proposal in proposals {
            let until = now.max(proposal.until);
            let bytes = proposal.payload.len();
            self.waiters.forwarded(proposal.id, term, proposal.waiter, bytes, until);
        }
    }

    pub(super) fn drop_waiters(&mut self, waiters: impl IntoIterator<Item = Waiter>) {
        for waiter in waiters {
            self.drop_waiter(waiter, Dropped::NoLeader);
        }
    }
}
