//! What comes from other members, and what goes to them.
//!
//! Nothing reaches raft that the gate has not seen: raft-rs panics on what breaks its invariants. A follower that does
//! not get on with applying takes no more entries, while heartbeats and votes go on (DESIGN 12 (19)).

use super::core::{Fatal, LogCore};
use super::log_lost::Doubt;
use super::messages::{FromPeers, ToPeers};
use super::node::Node;
use super::transport::gate::{self, RaftState, Refusal};
use crate::limits::{RAFT_REFUSAL_REPORT, RAFT_UNAPPLIED_BYTES_MAX};
use crate::state::legacy;
use crate::state::members::Members;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType, Snapshot, SnapshotMetadata};
use std::time::Duration;

/// Messages that the gate refused.
#[derive(Default)]
pub(super) struct Refused {
    /// How many since the last line about them.
    count: u64,
    /// When the next line may be written.
    report_at: Duration,
    /// What some of them say of this member's log.
    pub(super) doubt: Doubt,
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
        let about_snapshots = matches!(event, FromPeers::Snapshot(_) | FromPeers::SnapshotInPlace(_));
        if self.is_replaced && !about_snapshots {
            // It would be the old state's answer.
            return;
        }
        match event {
            FromPeers::Message(message) => self.step(*message, now),
            FromPeers::Unreachable(id) => self.replica.node().unreachable(id),
            FromPeers::SnapshotSent { id, received } => {
                self.note_snapshots(now);
                self.replica.node().snapshot_sent(id, received);
            }
            FromPeers::Removed => self.told_removed(now),
            FromPeers::Connected { id, is_connected } => self.connected(id, is_connected, now),
            FromPeers::Snapshot(received) => self.take_snapshot(received, now),
            FromPeers::SnapshotInPlace(placed) => self.snapshot_in_place(placed, now),
        }
    }

    /// Whether the gate lets a message pass.
    pub(super) fn admit(&mut self, message: &Message) -> Result<(), Refusal> {
        let guarded = Guarded {
            node: self.replica.node(),
            members: self.state.members(),
        };
        gate::check(message, &guarded)
    }

    /// Gives out what raft wants sent; a snapshot with the state that it stands for.
    pub(super) fn hand_out_messages(&mut self, now: Duration) {
        let messages = self.replica.node().take_messages();
        self.time_heartbeats(&messages, now);
        let is_snapshot = |message: &Message| message.get_msg_type() == MessageType::MsgSnapshot;
        let (snapshots, messages): (Vec<Message>, Vec<Message>) = messages.into_iter().partition(is_snapshot);
        if !messages.is_empty() {
            self.to_peers.push(ToPeers::Messages(messages));
        }
        for mut message in snapshots {
            let root = self.checkpoints.store().root().clone();
            let fields = root.fields();
            // The newest checkpoint may be newer than the one that raft knows of.
            let metadata = SnapshotMetadata {
                conf_state: super::boot::decode_membership(&fields.membership).ok(),
                index: fields.applied_index,
                term: fields.term,
            };
            message.snapshot = Some(Snapshot {
                // Members before 3.7 can't do without.
                data: legacy::snapshot(self.state.members()).into(),
                metadata: Some(metadata),
            });
            self.to_peers.push(ToPeers::Snapshot {
                message: Box::new(message),
                root,
            });
        }
    }

    /// Counts heartbeats that leave late: this member has more to do than it can.
    fn time_heartbeats(&mut self, messages: &[Message], now: Duration) {
        if !self.replica.node().is_leader() {
            return self.heartbeats.clear();
        }
        let expected = 2 * self.options.tick;
        let beats = messages
            .iter()
            .filter(|message| message.get_msg_type() == MessageType::MsgHeartbeat);
        for message in beats {
            let before = self.heartbeats.insert(message.to, now);
            let late = before.map_or(Duration::ZERO, |before| now.saturating_sub(before + expected));
            if late > Duration::ZERO {
                self.counters.heartbeats_late += 1;
                tracing::warn!(
                    to = format_args!("{:x}", message.to),
                    "expected-duration" = ?expected,
                    "exceeded-duration" = ?late,
                    "leader failed to send out heartbeat on time; took too long, leader is overloaded"
                );
            }
        }
    }

    pub(super) fn step(&mut self, message: Message, now: Duration) {
        let node = self.replica.node();
        let is_behind = node.unapplied_bytes() > RAFT_UNAPPLIED_BYTES_MAX && !node.is_leader();
        if is_behind && !message.entries.is_empty() {
            // The leader hears nothing of it and tries again, as after a loss.
            return;
        }
        let judged = self.admit(&message);
        self.note_doubt(&message, &judged, now);
        match judged {
            Ok(()) => self.replica.node().step(message),
            Err(refusal) => self.refuse(&message, &refusal, now),
        }
    }

    fn refuse(&mut self, message: &Message, refusal: &Refusal, now: Duration) {
        self.refused.count += 1;
        if now >= self.refused.report_at {
            tracing::warn!(
                from = format_args!("{:x}", message.from),
                kind = ?message.get_msg_type(),
                count = self.refused.count,
                "refused a message of a peer: {refusal}"
            );
            self.refused.count = 0;
            self.refused.report_at = now + RAFT_REFUSAL_REPORT;
        }
    }

    /// An error when this member's life is over.
    pub(super) fn check_end(&self, now: Duration) -> Result<(), Fatal> {
        self.refused.doubt.check()?;
        self.check_removed(now)?;
        self.check_replaced(now)
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
