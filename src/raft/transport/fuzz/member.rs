//! A member for the gate to guard: raft-rs itself on a log in memory, its writes done when one says so.

use crate::raft::transport::gate::{RaftState, Refusal, check};
use crate::raft::transport::wire::ConfChange;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::storage::MemStorage;
use raft::{Config, RawNode, StateRole};
use std::collections::VecDeque;

/// A member whose state is in memory.
pub struct Member {
    pub raw: RawNode<MemStorage>,
    /// Readys not persisted yet: their number, and the index of their snapshot.
    unpersisted: VecDeque<(u64, u64)>,
    /// Committed entries, not applied yet.
    committed: VecDeque<Entry>,
    /// The member was removed and stopped.
    pub stopped: bool,
    pub removed: Vec<u64>,
    /// Messages raft wants sent.
    pub sent: Vec<Message>,
}

impl Member {
    pub fn new(id: u64, voters: &[u64], learners: &[u64]) -> Member {
        let config = Config {
            id,
            election_tick: 10,
            heartbeat_tick: 1,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            max_inflight_msgs: 4,
            max_size_per_msg: 64,
            ..Config::default()
        };
        let storage = MemStorage::new_with_conf_state((voters.to_vec(), learners.to_vec()));
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        Member {
            raw: RawNode::new(&config, storage, &logger).expect("a sound configuration"),
            unpersisted: VecDeque::new(),
            committed: VecDeque::new(),
            stopped: false,
            removed: vec![99],
            sent: Vec::new(),
        }
    }

    /// Lets raft see a message if the gate does.
    pub fn receive(&mut self, message: Message) -> Result<(), Refusal> {
        check(&message, self)?;
        // What raft drops, it says so.
        let _ = self.raw.step(message);
        Ok(())
    }

    /// Takes what raft wants done, and leaves it unpersisted.
    pub fn turn(&mut self) {
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            self.sent.extend(ready.take_messages());
            self.sent.extend(ready.take_persisted_messages());
            self.committed.extend(ready.take_committed_entries());
            let snapshot = ready.snapshot().clone();
            let mut store = self.raw.mut_store().wl();
            if !snapshot.is_empty() {
                self.committed.clear();
                store.apply_snapshot(snapshot.clone()).expect("a newer snapshot");
            }
            store.append(ready.entries()).expect("entries that follow");
            if let Some(state) = ready.hs() {
                store.set_hardstate(state.clone());
            }
            drop(store);
            self.unpersisted
                .push_back((ready.number(), snapshot.get_metadata().index));
            self.raw.advance_append_async(ready);
        }
    }

    /// The oldest write is done.
    pub fn persist(&mut self) {
        let Some((number, snapshot)) = self.unpersisted.pop_front() else {
            return;
        };
        self.raw.on_persist_ready(number);
        if snapshot > 0 && self.unpersisted.iter().all(|(_, later)| *later == 0) {
            self.raw.advance_apply_to(snapshot);
        }
    }

    /// Everything is written, and what came of it too.
    pub fn persist_all(&mut self) {
        self.turn();
        while !self.unpersisted.is_empty() {
            self.persist();
            self.turn();
        }
    }

    /// Applies what is committed and persisted.
    pub fn apply(&mut self) {
        while let Some(entry) = self.committed.pop_front() {
            if entry.get_entry_type() == EntryType::EntryConfChange {
                self.change(&entry);
            }
            if self.stopped {
                return;
            }
            self.raw.advance_apply_to(entry.index);
        }
    }

    fn change(&mut self, entry: &Entry) {
        let change = ConfChange::decode(entry.data.clone()).expect("the gate looked at it");
        let Some(change) = change.for_raft() else { return };
        if let Ok(state) = self.raw.apply_conf_change(&change) {
            self.raw.mut_store().wl().set_conf_state(state);
        }
        self.stopped = !self.is_member();
    }

    /// Proposes an entry.
    pub fn propose(&mut self, entry: Entry) {
        let mut message = Message {
            from: self.raw.raft.id,
            entries: vec![entry],
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgPropose);
        let _ = self.raw.step(message);
    }

    /// Becomes leader, if the others vote for it.
    pub fn elect(&mut self) {
        self.persist_all();
        if !self.may_campaign() || self.role() == StateRole::Leader {
            return;
        }
        let _ = self.raw.campaign();
        for (kind, term) in [
            (MessageType::MsgRequestPreVoteResponse, self.term() + 1),
            (MessageType::MsgRequestVoteResponse, self.term() + 1),
        ] {
            self.persist_all();
            for from in [2, 3] {
                let mut vote = Message {
                    to: self.id(),
                    from,
                    term,
                    ..Message::default()
                };
                vote.set_msg_type(kind);
                let _ = self.receive(vote);
            }
        }
    }

    /// Time goes on. A sole voter wins its election in the tick, so that nothing may be unpersisted then.
    pub fn tick(&mut self) {
        self.persist_all();
        self.raw.tick();
    }
}

impl RaftState for Member {
    fn id(&self) -> u64 {
        self.raw.raft.id
    }

    fn role(&self) -> StateRole {
        self.raw.raft.state
    }

    fn term(&self) -> u64 {
        self.raw.raft.term
    }

    fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    fn is_member(&self) -> bool {
        self.raw.raft.prs().get(self.id()).is_some()
    }

    fn may_campaign(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.raw.raft.promotable() && log.persisted == log.last_index() && self.unpersisted.is_empty()
    }

    fn is_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }
}
