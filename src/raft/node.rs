//! The raft node: raft-rs's `RawNode` behind a small sans-IO interface.
//!
//! Input: proposals, ticks, "this batch is persisted". Output: batches to persist, entries to apply. No disk, no clock,
//! no randomness of its own. Promises: an entry is handed out for apply only when it is committed and persisted here
//! (DESIGN 3 (3), also with one voter); proposals that raft drops are reported at once; a batch given to the log is
//! acknowledged to raft only by `persisted`, in order.

use super::storage::{LogStorage, Position};
use bytes::Bytes;
use raft::eraftpb::{ConfChange, ConfState, Entry, HardState, Message, MessageType};
use raft::{Config, RawNode, StateRole};
use std::collections::VecDeque;

/// What raft asks to be written before it may go on.
#[derive(Debug, Default)]
pub struct Batch {
    /// Entries to append to the log.
    pub entries: Vec<Entry>,
    /// The hard state, when it changed.
    pub hard_state: Option<HardState>,
    /// Whether it must be durable before `persisted` is called; a lone new commit index need not be.
    pub must_sync: bool,
}

/// Timing and identity of a node.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// This member's id, not 0.
    pub id: u64,
    /// Ticks without a leader before an election.
    pub election_ticks: usize,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// Index of the last entry the state machine holds.
    pub applied: u64,
    /// Whether elections begin with a round that does not raise the term.
    pub pre_vote: bool,
}

/// One member of the raft group.
pub struct Node {
    raw: RawNode<LogStorage>,
    /// Numbers of the Readys whose batches are not persisted yet, oldest first.
    unpersisted: VecDeque<u64>,
    /// Committed entries not taken yet.
    committed: VecDeque<Entry>,
}

impl Node {
    /// A node that continues from `storage`.
    pub fn new(options: Options, storage: LogStorage) -> Result<Node, raft::Error> {
        let config = Config {
            id: options.id,
            election_tick: options.election_ticks,
            heartbeat_tick: options.heartbeat_ticks,
            applied: options.applied,
            max_size_per_msg: crate::limits::RAFT_MESSAGE_BYTES_MAX,
            max_inflight_msgs: crate::limits::RAFT_INFLIGHT_MESSAGES_MAX,
            max_committed_size_per_ready: crate::limits::RAFT_COMMITTED_BYTES_PER_READY_MAX,
            check_quorum: true,
            pre_vote: options.pre_vote,
            batch_append: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        Ok(Node {
            raw: RawNode::new(&config, storage, &logger)?,
            unpersisted: VecDeque::new(),
            committed: VecDeque::new(),
        })
    }

    /// Begins an election at once; a sole voter wins it without waiting for its timer.
    pub fn campaign(&mut self) -> Result<(), raft::Error> {
        self.raw.campaign()
    }

    /// Advances raft's clock by one tick.
    pub fn tick(&mut self) {
        self.raw.tick();
    }

    /// Proposes payloads in order, as one message. Returns the position of the first; the others follow it directly.
    /// `None` when raft dropped them all (no leader, or a transfer is under way): none of them is in the log.
    pub fn propose(&mut self, payloads: Vec<Bytes>) -> Option<Position> {
        assert!(!payloads.is_empty());
        let entries = payloads
            .into_iter()
            .map(|data| Entry {
                data,
                ..Default::default()
            })
            .collect();
        let first = self.raw.raft.raft_log.last_index() + 1;
        let mut message = Message {
            from: self.raw.raft.id,
            entries,
            ..Default::default()
        };
        message.set_msg_type(MessageType::MsgPropose);
        self.raw.step(message).ok()?;
        if !self.is_leader() {
            return None;
        }
        Some(Position {
            index: first,
            term: self.term(),
        })
    }

    /// The next batch to persist. Call until `None`; the batches must be persisted in this order, and `persisted`
    /// called for each. Messages to other members are dropped: there are none with a single voter.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if !self.raw.has_ready() {
            return None;
        }
        let mut ready = self.raw.ready();
        let must_sync = ready.must_sync();
        let entries = ready.take_entries();
        let hard_state = ready.hs().cloned();
        self.committed.extend(ready.take_committed_entries());
        assert!(ready.snapshot().is_empty(), "a single voter receives no snapshots");
        let storage = self.raw.mut_store();
        storage.append(entries.iter().cloned());
        if let Some(hard_state) = &hard_state {
            storage.set_hard_state(hard_state.clone());
        }
        self.unpersisted.push_back(ready.number());
        self.raw.advance_append_async(ready);
        Some(Batch {
            entries,
            hard_state,
            must_sync,
        })
    }

    /// The oldest batch that was not yet reported is durable (or did not need to be).
    pub fn persisted(&mut self) {
        let number = self.unpersisted.pop_front().expect("a batch was handed out");
        self.raw.on_persist_ready(number);
    }

    /// The next entry to apply, in log order.
    pub fn next_committed(&mut self) -> Option<Entry> {
        self.committed.pop_front()
    }

    /// Whether committed entries wait to be taken.
    pub fn has_committed(&self) -> bool {
        !self.committed.is_empty()
    }

    /// The state machine holds everything up to `index`.
    pub fn applied(&mut self, index: u64) {
        self.raw.advance_apply_to(index);
    }

    /// Makes an applied membership change effective in raft and returns the new membership.
    pub fn apply_conf_change(&mut self, change: &ConfChange) -> Result<ConfState, raft::Error> {
        let conf_state = self.raw.apply_conf_change(change)?;
        self.raw.mut_store().set_conf_state(conf_state.clone());
        Ok(conf_state)
    }

    /// Entries up to `index` are no longer needed in memory.
    pub fn release_to(&mut self, index: u64) {
        self.raw.mut_store().release_to(index);
    }

    /// Payload bytes of the entries held in memory.
    pub fn log_bytes(&self) -> usize {
        self.raw.store().bytes()
    }

    /// Whether this member leads.
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// The leader's id, 0 when there is none known.
    pub fn leader(&self) -> u64 {
        self.raw.raft.leader_id
    }

    /// The current term.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// The commit index.
    pub fn commit_index(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// The last entry's index.
    pub fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// Term of an entry still held, or of the last released one.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    /// The applied membership.
    pub fn conf_state(&self) -> &ConfState {
        self.raw.store().conf_state()
    }

    /// Sets the randomised election time-out. raft-rs draws it from a thread-local generator; a simulation that must
    /// reproduce sets it from its seed after every reset.
    pub fn set_election_timeout(&mut self, ticks: usize) {
        self.raw.raft.set_randomized_election_timeout(ticks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(applied: u64) -> Node {
        let conf_state = ConfState {
            voters: vec![7],
            ..Default::default()
        };
        let storage = LogStorage::new(Position::default(), [], HardState::default(), conf_state);
        let options = Options {
            id: 7,
            election_ticks: 10,
            heartbeat_ticks: 1,
            applied,
            pre_vote: true,
        };
        Node::new(options, storage).unwrap()
    }

    fn drain(node: &mut Node) -> Vec<u64> {
        let mut batches = Vec::new();
        while let Some(batch) = node.next_batch() {
            batches.extend(batch.entries.iter().map(|entry| entry.index));
            node.persisted();
        }
        batches
    }

    #[test]
    fn a_sole_voter_leads_and_commits_only_what_is_persisted() {
        let mut node = single(0);
        node.campaign().unwrap();
        assert_eq!(drain(&mut node), [1]);
        assert!(node.is_leader());
        let position = node.propose(vec!["a".into(), "b".into()]).unwrap();
        assert_eq!(
            position,
            Position {
                index: 2,
                term: node.term()
            }
        );
        while node.next_committed().is_some() {}
        let batch = node.next_batch().unwrap();
        assert!(batch.must_sync);
        assert_eq!(batch.entries.len(), 2);
        while let Some(batch) = node.next_batch() {
            assert!(batch.entries.is_empty());
        }
        assert!(!node.has_committed(), "committed before it was persisted");
        node.persisted();
        drain(&mut node);
        let applied: Vec<_> = std::iter::from_fn(|| node.next_committed())
            .map(|entry| entry.data)
            .collect();
        assert_eq!(applied, ["a", "b"]);
        node.applied(3);
        node.release_to(2);
        assert_eq!(node.term_at(2), Some(node.term()));
    }

    #[test]
    fn proposals_without_a_leader_are_dropped() {
        let mut node = single(0);
        assert_eq!(node.propose(vec!["a".into()]), None);
        assert_eq!(node.last_index(), 0);
    }
}
