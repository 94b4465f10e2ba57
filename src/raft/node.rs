//! The raft node: raft-rs's `RawNode` behind a small sans-IO interface.
//!
//! Input: proposals, messages of other members, ticks, "this batch is persisted". Output: batches to persist, messages,
//! entries to apply, read indexes. No disk, no clock, no randomness of its own. Promises: an entry is handed out for
//! apply only when it is committed and persisted here (DESIGN 3 (3), also with one voter); proposals that raft drops
//! are reported at once; a batch given to the log is acknowledged to raft only by `persisted`, in order; a message that
//! promises something durable is handed out only after that.

use super::storage::{LogStorage, Position};
use bytes::Bytes;
use raft::eraftpb::{ConfChange, ConfState, Entry, EntryType, HardState, Message, MessageType};
use raft::{Config, ProgressState, RawNode, SnapshotStatus, StateRole};
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

/// Where proposals went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposed {
    /// Into the log of this member, which leads: the position of the first; the others follow it directly.
    Appended(Position),
    /// To the leader, by a message that may be lost.
    Forwarded,
    /// Nowhere: there is no leader, or a transfer of leadership is under way.
    Dropped,
}

/// A confirmed read index: whoever asked before the context was made may read a state that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadIndex {
    /// The context of the request.
    pub context: Bytes,
    /// The commit index at which it was asked.
    pub index: u64,
}

/// A batch handed out and not reported as persisted.
struct Unpersisted {
    /// The number of its Ready.
    number: u64,
    /// Whether it has entries: nobody may campaign before they are persisted (DESIGN 12 (17)).
    has_entries: bool,
    /// Whether it changes term or vote.
    changes_term: bool,
    /// What may leave only then.
    messages: Vec<Message>,
}

/// One member of the raft group.
pub struct Node {
    pub(super) raw: RawNode<LogStorage>,
    /// Oldest first.
    unpersisted: VecDeque<Unpersisted>,
    /// Committed entries not taken yet.
    committed: VecDeque<Entry>,
    /// Messages that may leave.
    outgoing: Vec<Message>,
    read_indexes: Vec<ReadIndex>,
    /// Term and vote as of the last batch handed out.
    voted: (u64, u64),
    pub(super) election_ticks: usize,
    /// Where election time-outs come from in a simulation.
    pub(super) timeouts: Option<u64>,
    /// For a canary: messages leave before what they promise is persisted.
    sends_early: bool,
}

impl Node {
    /// A node that continues from `storage`.
    pub fn new(options: Options, mut storage: LogStorage) -> Result<Node, raft::Error> {
        storage.applied(options.applied);
        let config = Config {
            id: options.id,
            election_tick: options.election_ticks,
            heartbeat_tick: options.heartbeat_ticks,
            applied: options.applied,
            max_size_per_msg: crate::limits::RAFT_MESSAGE_BYTES_MAX,
            max_inflight_msgs: crate::limits::RAFT_INFLIGHT_MESSAGES_MAX,
            max_uncommitted_size: crate::limits::RAFT_UNCOMMITTED_BYTES_MAX,
            max_committed_size_per_ready: crate::limits::RAFT_COMMITTED_BYTES_PER_READY_MAX,
            check_quorum: true,
            pre_vote: options.pre_vote,
            batch_append: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, storage, &logger)?;
        let voted = (raw.raft.term, raw.raft.vote);
        Ok(Node {
            raw,
            unpersisted: VecDeque::new(),
            committed: VecDeque::new(),
            outgoing: Vec::new(),
            read_indexes: Vec::new(),
            voted,
            election_ticks: options.election_ticks,
            timeouts: None,
            sends_early: false,
        })
    }

    /// Begins an election at once; a sole voter wins it without waiting for its timer.
    pub fn campaign(&mut self) -> Result<(), raft::Error> {
        let result = self.raw.campaign();
        self.draw_election_timeout();
        result
    }

    /// Advances raft's clock by one tick. A follower's clock stops before an election while entries are on their way to
    /// the disk: a sole voter would lead with a log that is not its own yet (DESIGN 12 (17)).
    pub fn tick(&mut self) {
        let raft = &self.raw.raft;
        let would_campaign =
            raft.state != StateRole::Leader && raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if would_campaign && self.has_unpersisted_entries() {
            return;
        }
        let successor = self.successor();
        self.raw.tick();
        if let Some(id) = successor.filter(|_| !self.is_leader()) {
            self.hand_over_to(id);
        }
        self.draw_election_timeout();
    }

    /// Of a leader: the other voter that is known to have most of the log.
    fn successor(&self) -> Option<u64> {
        let voters = self.conf_state().voters.iter().filter(|id| **id != self.id());
        let known = voters.filter_map(|id| Some((self.progress(*id)?.0, *id)));
        known.max().map(|(_, id)| id)
    }

    /// A leader that has not heard of a majority for too long has stepped down. If the others hear it all the same,
    /// they have been waiting for nothing, and would wait for an election time-out more: one is told to campaign.
    fn hand_over_to(&mut self, id: u64) {
        let mut message = Message {
            from: self.id(),
            to: id,
            term: self.term(),
            ..Default::default()
        };
        message.set_msg_type(MessageType::MsgTimeoutNow);
        self.outgoing.push(message);
    }

    /// Advances a follower's clock, so that a start needs no whole time-out before its first election. Does nothing on
    /// a leader.
    pub fn advance_ticks(&mut self, ticks: usize) {
        for _ in 0..ticks {
            let raft = &self.raw.raft;
            if raft.state == StateRole::Leader || raft.election_elapsed + 1 >= raft.randomized_election_timeout() {
                return;
            }
            self.raw.tick();
        }
    }

    fn has_unpersisted_entries(&self) -> bool {
        self.unpersisted.iter().any(|batch| batch.has_entries) || !self.raw.raft.raft_log.unstable_entries().is_empty()
    }

    /// Takes a message of another member. Messages that can't be right are refused before (`transport::gate`); what
    /// raft itself ignores, it ignores.
    pub fn step(&mut self, message: Message) {
        // Errors say that a message was of no use, which the sender finds out by itself.
        let _ = self.raw.step(message);
        self.draw_election_timeout();
    }

    /// Proposes payloads in order, as one message.
    pub fn propose(&mut self, payloads: Vec<Bytes>) -> Proposed {
        assert!(!payloads.is_empty());
        let entries = payloads.into_iter().map(|data| Entry {
            data,
            ..Default::default()
        });
        self.propose_entries(entries.collect())
    }

    /// Proposes a membership change, in raftpb's form. It goes alone (DESIGN 12 (16)).
    pub fn propose_conf_change(&mut self, change: Bytes) -> Proposed {
        self.propose_entries(vec![Entry {
            entry_type: EntryType::EntryConfChange as i32,
            data: change,
            ..Default::default()
        }])
    }

    fn propose_entries(&mut self, entries: Vec<Entry>) -> Proposed {
        let first = self.raw.raft.raft_log.last_index() + 1;
        let mut message = Message {
            from: self.raw.raft.id,
            entries,
            ..Default::default()
        };
        message.set_msg_type(MessageType::MsgPropose);
        if self.raw.step(message).is_err() {
            return Proposed::Dropped;
        }
        if !self.is_leader() {
            return Proposed::Forwarded;
        }
        Proposed::Appended(Position {
            index: first,
            term: self.term(),
        })
    }

    /// Asks for the commit index, confirmed by a majority. `context` must never have been used before, by anyone: a
    /// late answer to the first use would pass for one to the second. Without a leader, or before a new leader has
    /// committed something, raft drops the request without a word: ask again with another context (DESIGN 12 (15)).
    pub fn read_index(&mut self, context: Bytes) {
        self.raw.read_index(context.to_vec());
    }

    /// The read indexes confirmed since the last call.
    pub fn take_read_indexes(&mut self) -> Vec<ReadIndex> {
        std::mem::take(&mut self.read_indexes)
    }

    /// Asks the leader, which may be this member, to hand leadership to `id`.
    pub fn transfer_leader(&mut self, id: u64) {
        self.raw.transfer_leader(id);
    }

    /// Whom leadership is being handed to.
    pub fn transferee(&self) -> Option<u64> {
        self.raw.raft.lead_transferee
    }

    /// A message to `id` was lost on this side.
    pub fn unreachable(&mut self, id: u64) {
        self.raw.report_unreachable(id);
    }

    /// A snapshot was received by `id`, or not.
    pub fn snapshot_sent(&mut self, id: u64, received: bool) {
        let status = if received {
            SnapshotStatus::Finish
        } else {
            SnapshotStatus::Failure
        };
        self.raw.report_snapshot(id, status);
    }

    /// Of a leader: the entry that the oldest snapshot stands for of those that are on their way to members.
    pub fn oldest_snapshot_under_way(&self) -> Option<u64> {
        if !self.is_leader() {
            return None;
        }
        let progress = self.raw.raft.prs().iter();
        let under_way = progress.filter(|(_, progress)| progress.state == ProgressState::Snapshot);
        under_way.map(|(_, progress)| progress.pending_snapshot).min()
    }

    /// The next batch to persist. Call until `None`; the batches must be persisted in this order, and `persisted`
    /// called for each.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if !self.raw.has_ready() {
            return None;
        }
        let mut ready = self.raw.ready();
        let must_sync = ready.must_sync();
        let entries = ready.take_entries();
        let hard_state = ready.hs().cloned();
        self.committed.extend(ready.take_committed_entries());
        let confirmed = ready.take_read_states().into_iter();
        self.read_indexes.extend(confirmed.map(|state| ReadIndex {
            context: state.request_ctx.into(),
            index: state.index,
        }));
        assert!(ready.snapshot().is_empty(), "snapshots are installed beside raft");
        let storage = self.raw.mut_store();
        storage.append(entries.iter().cloned());
        if let Some(hard_state) = &hard_state {
            storage.set_hard_state(hard_state.clone());
        }
        let voted = (self.raw.raft.term, self.raw.raft.vote);
        let changes_term = voted != self.voted;
        self.voted = voted;
        let term_is_persisted = !changes_term && !self.unpersisted.iter().any(|batch| batch.changes_term);
        let mut messages = ready.take_messages();
        messages.extend(ready.take_persisted_messages());
        messages
            .iter_mut()
            .for_each(|message| self.begin_at_first_entry(message));
        let is_leader = self.is_leader();
        let (mut free, bound): (Vec<_>, Vec<_>) = messages
            .into_iter()
            .partition(|message| self.sends_early || leaves_at_once(message, term_is_persisted, is_leader));
        self.outgoing.append(&mut free);
        self.unpersisted.push_back(Unpersisted {
            number: ready.number(),
            has_entries: !entries.is_empty(),
            changes_term,
            messages: bound,
        });
        self.raw.advance_append_async(ready);
        Some(Batch {
            entries,
            hard_state,
            must_sync,
        })
    }

    /// Lets an append begin where its entries do. raft-rs joins what it has for a follower in one message, and with an
    /// append without entries it does so wherever that one ends: after a follower was found to lack more than thought,
    /// entries would follow on one that they do not follow. etcd's raft ends over such a message.
    fn begin_at_first_entry(&self, message: &mut Message) {
        let Some(first) = message.entries.first().map(|entry| entry.index) else {
            return;
        };
        if message.get_msg_type() != MessageType::MsgAppend || message.index + 1 == first {
            return;
        }
        match self.term_at(first - 1) {
            Some(term) => (message.index, message.log_term) = (first - 1, term),
            // What precedes them was released meanwhile: the follower's next answer says what it lacks.
            None => message.entries = Default::default(),
        }
    }

    /// The oldest batch that was not yet reported is durable (or did not need to be).
    pub fn persisted(&mut self) {
        let mut batch = self.unpersisted.pop_front().expect("a batch was handed out");
        self.outgoing.append(&mut batch.messages);
        // raft-rs panics when a leader that was removed hears of its own entries. They count for nothing any more;
        // should it follow once again, the next batch tells of these, too.
        if !self.is_leader() || self.is_member() {
            self.raw.on_persist_ready(batch.number);
        }
    }

    /// The messages that may leave, each to its `to`. They may be lost, repeated and overtaken by others.
    pub fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outgoing)
    }

    /// The next entry to apply, in log order.
    pub fn next_committed(&mut self) -> Option<Entry> {
        self.committed.pop_front()
    }

    /// Those that [`Node::next_committed`] will give.
    pub fn committed(&self) -> impl Iterator<Item = &Entry> {
        self.committed.iter()
    }

    /// Whether committed entries wait to be taken.
    pub fn has_committed(&self) -> bool {
        !self.committed.is_empty()
    }

    /// The state machine holds everything up to `index`.
    pub fn applied(&mut self, index: u64) {
        self.raw.advance_apply_to(index);
        self.raw.mut_store().applied(index);
    }

    /// Whether a membership change may be in the log and is not applied.
    pub fn has_pending_conf_change(&self) -> bool {
        self.is_leader() && self.raw.raft.has_pending_conf()
    }

    /// Makes an applied membership change effective in raft and returns the new membership.
    pub fn apply_conf_change(&mut self, change: &ConfChange) -> Result<ConfState, raft::Error> {
        let conf_state = self.raw.apply_conf_change(change)?;
        self.raw.mut_store().set_conf_state(conf_state.clone());
        self.draw_election_timeout();
        Ok(conf_state)
    }

    /// A durable checkpoint holds everything up to `position`, with this membership. Of the entries it contains, `kept`
    /// stay in memory for followers that lag, within `bytes_max`.
    pub fn checkpointed(&mut self, position: Position, conf_state: ConfState, kept: u64, bytes_max: usize) {
        let storage = self.raw.mut_store();
        storage.set_snapshot(position, conf_state);
        storage.release_to(position.index, kept, bytes_max);
    }

    /// As [`LogStorage::take_snapshot_wanted`](super::storage::LogStorage::take_snapshot_wanted).
    pub fn take_snapshot_wanted(&self) -> bool {
        self.raw.store().take_snapshot_wanted()
    }

    /// Payload bytes of the entries that are not applied.
    pub fn unapplied_bytes(&self) -> usize {
        self.raw.store().unapplied_bytes()
    }

    /// The oldest entry that is held in memory.
    pub fn first_index(&self) -> u64 {
        self.raw.raft.raft_log.first_index()
    }

    /// Whether this member leads.
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Whether this member alone decides: it votes and nobody else does.
    pub fn is_sole_voter(&self) -> bool {
        self.conf_state().voters == [self.raw.raft.id]
    }

    /// Whether there is no other member.
    pub fn is_alone(&self) -> bool {
        self.is_sole_voter() && self.conf_state().learners.is_empty()
    }

    /// This member's id.
    pub fn id(&self) -> u64 {
        self.raw.raft.id
    }

    /// Its part in the current term.
    pub fn role(&self) -> StateRole {
        self.raw.raft.state
    }

    /// Whether the membership that raft goes by contains this member.
    pub fn is_member(&self) -> bool {
        self.raw.raft.prs().get(self.raw.raft.id).is_some()
    }

    /// Whether it may stand for election now: it is a voter, and nothing of its log is unpersisted.
    pub fn may_campaign(&self) -> bool {
        self.raw.raft.promotable() && !self.has_unpersisted_entries()
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

    /// The last entry that is durable here.
    pub fn persisted_index(&self) -> u64 {
        self.raw.raft.raft_log.persisted
    }

    /// Term of an entry still held, or of the last released one.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    /// The applied membership.
    pub fn conf_state(&self) -> &ConfState {
        self.raw.store().conf_state()
    }

    /// Of a leader: the last entry that `id` is known to have, and whether it was heard of in the last election
    /// time-out. `None` for who is no member, and on others than the leader.
    pub fn progress(&self, id: u64) -> Option<(u64, bool)> {
        if !self.is_leader() {
            return None;
        }
        let progress = self.raw.raft.prs().get(id)?;
        Some((progress.matched, progress.recent_active))
    }

    /// Of a leader: one line about what it knows of the others, for simulations.
    pub fn describe_progress(&self) -> String {
        let told = self.raw.raft.prs().iter().map(|(id, progress)| {
            let (state, matched, next) = (progress.state, progress.matched, progress.next_idx);
            format!("{id} {state:?} {matched}<{next} pending {}", progress.pending_snapshot)
        });
        if self.is_leader() {
            told.collect::<Vec<_>>().join(", ")
        } else {
            String::new()
        }
    }

    /// For a canary: messages leave from now on without regard to what is persisted.
    pub fn set_sends_early(&mut self, early: bool) {
        self.sends_early = early;
    }

    /// An entry of the log that is held in memory.
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        self.raw.store().entry(index)
    }
}

/// Whether a message may leave before the batch it came with is persisted. A leader's appends may: that replicates and
/// persists at the same time. What promises nothing about the log may, once the term it names is persisted, so that
/// heartbeats never wait behind a write.
fn leaves_at_once(message: &Message, term_is_persisted: bool, is_leader: bool) -> bool {
    match message.get_msg_type() {
        MessageType::MsgAppendResponse | MessageType::MsgRequestVoteResponse | MessageType::MsgRequestVote => false,
        MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot | MessageType::MsgTimeoutNow => {
            is_leader
        }
        _ => term_is_persisted,
    }
}
