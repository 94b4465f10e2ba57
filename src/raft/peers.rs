//! What comes from other members, and what goes to them.
//!
//! Nothing reaches raft that the gate has not seen: raft-rs panics on what breaks its invariants. A follower that does
//! not get on with applying takes no more entries, while heartbeats and votes go on (DESIGN 12 (19)).

use super::core::LogCore;
use super::messages::{FromPeers, ToPeers};
use super::node::Node;
use super::transport::gate::{self, RaftState};
use crate::limits::{RAFT_REFUSAL_REPORT, RAFT_UNAPPLIED_BYTES_MAX};
use crate::state::members::Members;
use raft::StateRole;
use raft::eraftpb::Message;
use std::time::Duration;

/// Messages that the gate refused.
#[derive(Default)]
pub(super) struct Refused {
    /// How many since the last line about them.
    count: u64,
    /// When the next line may be written.
    report_at: Duration,
}

/// What the gate looks at.
struct Guarded<'a> {
    node: &'a Node,
    members: &'a Members,
}

impl RaftState for Guarded<'_> {
    fn id(&self) -> u64 {
        self.node.id()
    }

    fn role(&self) -> StateRole {
        self.node.role()
    }

    fn term(&self) -> u64 {
        self.node.term()
    }

    fn last_index(&self) -> u64 {
        self.node.last_index()
    }

    fn committed(&self) -> u64 {
        self.node.commit_index()
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        self.node.term_at(index)
    }

    fn is_member(&self) -> bool {
        self.node.is_member()
    }

    fn may_campaign(&self) -> bool {
        self.node.may_campaign()
    }

    fn is_removed(&self, id: u64) -> bool {
        self.members.is_removed(id)
    }
}

impl LogCore {
    /// Takes what the transport of peers' messages has.
    pub fn handle_peer(&mut self, event: FromPeers, now: Duration) {
        let node = self.replica.node();
        match event {
            FromPeers::Message(message) => self.step(*message, now),
            FromPeers::Unreachable(id) => node.unreachable(id),
            FromPeers::SnapshotSent { id, received } => node.snapshot_sent(id, received),
            FromPeers::Removed => self.told_removed(now),
            FromPeers::Connected { id, is_connected } => self.connected(id, is_connected, now),
        }
    }

    fn step(&mut self, message: Message, now: Duration) {
        let node = self.replica.node();
        let is_behind = node.log_bytes() > RAFT_UNAPPLIED_BYTES_MAX && !node.is_leader();
        if is_behind && !message.entries.is_empty() {
            // The leader hears nothing of it and tries again, as after a loss.
            return;
        }
        let guarded = Guarded {
            node,
            members: self.state.members(),
        };
        if let Err(refusal) = gate::check(&message, &guarded) {
            self.refused.count += 1;
            if now >= self.refused.report_at {
                tracing::warn!(
                    from = format_args!("{:x}", message.from),
                    kind = ?message.get_msg_type(),
                    count = self.refused.count,
                    "refused a message of a peer: {refusal}"
                );
                self.refused = Refused {
                    count: 0,
                    report_at: now + RAFT_REFUSAL_REPORT,
                };
            }
            return;
        }
        self.replica.node().step(message);
    }

    /// A message to `id` was lost before it was sent.
    pub fn unreachable(&mut self, id: u64) {
        self.replica.node().unreachable(id);
    }

    /// What the transport is to do, since the last call.
    pub fn take_to_peers(&mut self) -> std::vec::Drain<'_, ToPeers> {
        self.to_peers.drain(..)
    }
}
