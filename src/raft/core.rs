//! The log core: the one writer. Proposals in, durable log, apply, published views and answers out.
//!
//! Sans-IO: `handle` takes a request, `turn` does what can be done now, `completed` takes the end of a disk operation,
//! `deadline` says when to come again. Driven by a plain loop on a real ring in `server`, and by the simulator. It
//! never waits: a slow disk, a large entry or a checkpoint holds nobody else up.

use super::apply::Applier;
use super::auto_compaction::Compactor;
use super::checkpoint::{Checkpoints, Event, Pressure};
use super::counters::Counters;
use super::loader::{LoadError, Loader};
use super::membership::MemberChanges;
use super::memory::Memory;
use super::messages::{Dropped, Reply, Request, Status, ToPeers};
use super::peers::Refused;
use super::proposals::Proposals;
use super::publication::Publication;
use super::reads::{Asker, Reads};
use super::replica::{Identity, Replica, ReplicaError};
use super::retention::SnapshotsOnTheirWay;
use super::standing::Standing;
use super::waiters::{Waiter, Waiters};
use crate::config::values::AutoCompaction;
use crate::io::disk::{Completion, Disk};
use crate::limits::{INSTALLED_MEMBER_STAYS, SNAPSHOT_TAKEN_TIMEOUT};
use crate::mvcc::readers::Readers;
use crate::pages::{PageStore, StoreFailure};
use crate::proto::etcdserverpb::AlarmType;
use crate::state::State;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Why the member can't go on. The process ends; nothing acknowledged is lost by that.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The log or raft.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The page store.
    #[error(transparent)]
    Pages(#[from] StoreFailure),
    /// A record that decides about an entry can't be had.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A snapshot of another member took the place of this one's state: the member is to be started again.
    #[error("the state of another member was installed; the member begins anew with it")]
    Installed,
    /// Nobody knows whether it did: the member can't go on with either.
    #[error("the state of another member may have been installed or not: {0}; start the member again")]
    HalfInstalled(String),
    /// The log is not what it was.
    #[error(transparent)]
    LogLost(#[from] super::log_lost::LogLost),
    /// The member was removed from its cluster.
    #[error("this member was removed from the cluster; its data directory can be deleted")]
    Removed,
    /// The cluster has a version that is not this member's yet.
    #[error("{0}; start a newer version on this data directory")]
    TooOld(String),
    /// An entry of the log that can't be applied.
    #[error("entry {index} of the log can't be applied: {reason}")]
    Entry {
        /// Its index.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
}

/// What the log core is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Length of a raft tick.
    pub tick: Duration,
    /// How long followers wait for a leader's sign of life, at least.
    pub election_timeout: Duration,
    /// The member's own requests are counted from here: a number that no other member and no earlier life of this one
    /// comes near.
    pub first_id: u64,
    /// Learners that a cluster may have.
    pub learners_max: usize,
    /// Whether changes of the membership that endanger the quorum are refused.
    pub strict_reconfiguration: bool,
    /// Entries kept behind a checkpoint.
    pub catchup_entries: u64,
    /// Bytes of data at which writes are refused; `None` for no quota.
    pub quota_bytes: Option<u64>,
    /// What it may take of the member's memory.
    pub memory: Memory,
    /// How history is compacted without being asked.
    pub auto_compaction: AutoCompaction,
}

/// The log core.
pub struct LogCore {
    pub(super) options: Options,
    pub(super) member_id: u64,
    pub(super) replica: Replica,
    pub(super) state: State,
    pub(super) applier: Applier,
    pub(super) checkpoints: Checkpoints,
    pub(super) loader: Loader,
    pub(super) waiters: Waiters,
    pub(super) readers: Readers,
    /// Gathered for the next message to raft.
    pub(super) proposals: Proposals,
    pub(super) reads: Reads,
    pub(super) changes: MemberChanges,
    /// What this member has to say of itself.
    pub(super) publication: Option<Publication>,
    pub(super) publish_again_at: Duration,
    pub(super) replies: Vec<(usize, Reply)>,
    /// Who asked for the list of leases in this turn.
    lists: Vec<Waiter>,
    /// Renewals that wait for a lease's revocation.
    pub(super) renewals: Vec<(i64, Waiter)>,
    /// Bytes of entries applied since the last checkpoint was cut, and since the one before became durable.
    pub(super) dirty_bytes: u64,
    pub(super) cut_bytes: u64,
    pub(super) published: bool,
    /// The last entry contained in what is published.
    pub(super) published_index: u64,
    /// For the transport of peers' messages.
    pub(super) to_peers: Vec<ToPeers>,
    pub(super) standing: Arc<Standing>,
    pub(super) refused: Refused,
    /// Whether another member's state is to take the place of this one, which is not used any more then.
    pub(super) is_replaced: bool,
    /// Since when it can.
    pub(super) installed_at: Option<Duration>,
    /// Why it is not known whether it can.
    pub(super) half_installed: Option<String>,
    next_tick: Duration,
    /// Whether a member waits for a checkpoint to be sent to it.
    snapshot_wanted: bool,
    pub(super) snapshots_under_way: SnapshotsOnTheirWay,
    pub(super) was_leader: bool,
    pub(super) last_leader: u64,
    /// When this member last learned who leads, or that nobody does.
    pub(super) led_since: Duration,
    pub(super) counters: Counters,
    /// When a heartbeat to each member last left, while this one leads.
    pub(super) heartbeats: BTreeMap<u64, Duration>,
    /// Until when a NOSPACE alarm of this member that was proposed is waited for.
    pub(super) alarm_proposed: Option<Duration>,
    /// Whether NOSPACE was disarmed and room by the quota was on its way ever since.
    pub(super) disarmed: bool,
    pub(super) compactor: Option<Compactor>,
    /// A compaction that could not read a page waits until then.
    pub(super) compaction_retry_at: Duration,
    pub(super) stopping: bool,
    /// Whether the checkpoint that ends the member was cut. If it is given up, the log holds what it would have stored.
    last_checkpoint_cut: bool,
}

impl LogCore {
    pub(super) fn assemble(
        options: Options,
        member_id: u64,
        replica: Replica,
        state: State,
        checkpoints: Checkpoints,
        loader: Loader,
        readers: Readers,
    ) -> LogCore {
        LogCore {
            options,
            member_id,
            replica,
            state,
            applier: Applier::default(),
            checkpoints,
            loader,
            waiters: Waiters::default(),
            readers,
            proposals: Proposals::new(options.first_id),
            reads: Reads::new(options.first_id),
            changes: MemberChanges::default(),
            publication: None,
            publish_again_at: Duration::ZERO,
            replies: Vec::new(),
            lists: Vec::new(),
            renewals: Vec::new(),
            dirty_bytes: 0,
            cut_bytes: 0,
            published: false,
            published_index: 0,
            to_peers: Vec::new(),
            standing: Arc::default(),
            refused: Refused::default(),
            is_replaced: false,
            installed_at: None,
            half_installed: None,
            next_tick: Duration::ZERO,
            snapshot_wanted: false,
            snapshots_under_way: SnapshotsOnTheirWay::default(),
            was_leader: false,
            last_leader: 0,
            led_since: Duration::ZERO,
            counters: Counters::default(),
            heartbeats: BTreeMap::new(),
            alarm_proposed: None,
            disarmed: false,
            compactor: Compactor::new(options.auto_compaction),
            compaction_retry_at: Duration::ZERO,
            stopping: false,
            last_checkpoint_cut: false,
        }
    }

    /// The state, for its readers' end and for tests.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Who this member is.
    pub fn identity(&self) -> Identity {
        self.replica.identity()
    }

    /// Whether this member leads.
    pub fn leads(&mut self) -> bool {
        self.replica.node().is_leader()
    }

    /// The leader's id, 0 when there is none known.
    pub fn leader(&mut self) -> u64 {
        self.replica.node().leader()
    }

    /// Where serve cores see this member's place in the cluster.
    pub fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// The last entry of this member's log.
    pub fn last_index(&mut self) -> u64 {
        self.replica.node().last_index()
    }

    /// How many proposals are under way.
    pub fn pending(&self) -> usize {
        self.waiters.count() + self.proposals.count()
    }

    /// The page store, for its readers' end and for tests.
    pub fn pages(&self) -> &PageStore {
        self.checkpoints.store()
    }

    /// Sets raft's randomised election time-out: a simulation does so from its seed after every start.
    pub fn set_election_timeout(&mut self, ticks: usize) {
        self.replica.node().set_election_timeout(ticks);
    }

    /// As `set_election_timeout`, for this and every later term.
    pub fn seed_election_timeouts(&mut self, seed: u64) {
        self.replica.node().seed_election_timeouts(seed);
    }

    /// The node, for simulations.
    pub fn node(&mut self) -> &mut super::node::Node {
        self.replica.node()
    }

    /// Takes a request of serve core `core`.
    pub fn handle(&mut self, core: usize, request: Request, now: Duration) {
        match request {
            Request::Propose {
                token,
                id,
                payload,
                quota_bytes,
            } => {
                self.propose_for(Waiter { core, token }, id, payload, quota_bytes, now);
            }
            Request::ReadIndex { token } => self.reads.ask(Asker::Reader(Waiter { core, token }), now),
            Request::ChangeMembers { token, id, change } => {
                self.change_members(Waiter { core, token }, id, change, now);
            }
            Request::MoveLeader { token, to } => self.move_leader(Waiter { core, token }, to, now),
            Request::Renew { token, id } => self.renew(Waiter { core, token }, id, now),
            Request::TimeToLive { token, id, keys } => self.time_to_live(Waiter { core, token }, id, keys, now),
            Request::Leader { token } => {
                let leader = self.leader_place();
                self.replies.push((core, Reply::Leader { token, leader }));
            }
            Request::Leases { token } => self.lists.push(Waiter { core, token }),
            Request::Status { token } => {
                let status = Box::new(self.status(now));
                self.replies.push((core, Reply::Status { token, status }));
            }
            Request::Corrupt { description } => self.raise_corrupt(&description, now),
            Request::RaiseCorrupt { member } => self.propose_alarm(AlarmType::Corrupt, member, now),
            Request::SetClusterVersion { version } => self.set_cluster_version(version, now),
        }
    }

    pub(super) fn drop_waiter(&mut self, waiter: Waiter, reason: Dropped) {
        let refused = matches!(reason, Dropped::TooManyRequests | Dropped::NoSpace | Dropped::Stopping);
        self.counters.proposals_failed += u64::from(!refused);
        self.replies.push((
            waiter.core,
            Reply::Dropped {
                token: waiter.token,
                reason,
            },
        ));
    }

    fn status(&mut self, now: Duration) -> Status {
        let counters = Counters {
            log_bytes: self.replica.wal().written_bytes(),
            log_syncs: self.replica.syncs().clone(),
            ..self.counters.clone()
        };
        let pending = self.pending();
        let compaction_age = counters.compacted_at.map(|at| now.saturating_sub(at));
        let (size, keys) = (self.checkpoints.store().size(), self.state.keys().keys());
        let size_in_use = self.checkpoints.store().size_in_use();
        let member_id = self.member_id;
        let node = self.replica.node();
        Status {
            leader: node.leader(),
            is_leader: node.is_leader(),
            leads_surely: self.was_leader,
            is_learner: node.conf_state().learners.contains(&member_id),
            commit_index: node.commit_index(),
            term: node.term(),
            applied_index: self.state.applied_index(),
            size,
            size_in_use,
            alarms: self.state.alarms().list(AlarmType::None as i32),
            members: self.state.members().iter().cloned().collect(),
            cluster_version: self.state.members().version().map(str::to_string),
            downgrade: self.state.members().downgrade().cloned(),
            leases: self.state.lessor().len(),
            keys,
            pending,
            compaction_age,
            counters,
        }
    }

    /// Does what can be done now. True when there is more to do at once.
    pub fn turn<D: Disk>(&mut self, disk: &mut D, now: Duration) -> Result<bool, Fatal> {
        self.check_end(now)?;
        if self.is_replaced {
            return Ok(false);
        }
        self.tick(now);
        self.expire_leases(now);
        self.compact_by_itself(now);
        self.publish_member(now);
        self.hand_over(disk, now);
        let applying = self.apply_some(disk, now)?;
        // What apply proposed or committed goes on its way in the same turn.
        self.hand_over(disk, now);
        let checkpointing = self.checkpoint(disk, now)?;
        let compacting = self.compact_some(disk, now)?;
        self.publish_if_needed();
        self.note_standing();
        self.answer_reads(now);
        self.list_leases();
        Ok(applying || checkpointing || compacting)
    }

    /// Hands raft what was gathered for it, and others what raft made of it.
    fn hand_over<D: Disk>(&mut self, disk: &mut D, now: Duration) {
        self.propose_gathered(now);
        self.propose_change(now);
        self.confirm_reads(now);
        self.replica.pump(disk, now);
        self.watch_transfer(now);
        self.hand_out_messages(now);
    }

    /// Answers all who asked for the list of leases by one list: a turn makes at most one, however many ask.
    fn list_leases(&mut self) {
        if self.lists.is_empty() {
            return;
        }
        let ids: Arc<[i64]> = self.state.lessor().ids().into();
        for Waiter { core, token } in self.lists.drain(..) {
            let ids = ids.clone();
            self.replies.push((core, Reply::Leases { token, ids }));
        }
    }

    fn tick(&mut self, now: Duration) {
        if self.next_tick <= now {
            self.expire_reads(now);
            self.give_up_forwarded(now);
            self.leave_if_stalled(now);
            self.leave_if_full(now);
        }
        while self.next_tick <= now {
            self.replica.node().tick();
            // Old views and tree nodes go also while nothing is written.
            self.state.collect();
            // A clock that jumped is not made up for tick by tick.
            self.next_tick = if self.next_tick + 10 * self.options.tick < now {
                now
            } else {
                self.next_tick
            } + self.options.tick;
        }
        let leader = self.replica.node().leader();
        self.counters.leader_changes += u64::from(leader != 0 && leader != self.last_leader);
        if leader != self.last_leader {
            self.tell_leader(leader);
            self.last_leader = leader;
            self.led_since = now;
        }
        // What former leaders did about leases is known when an entry of the own term is applied (DESIGN 12 (15)).
        let is_leader = self.replica.node().is_leader() && self.state.applied_term() == self.replica.node().term();
        if is_leader != self.was_leader {
            self.was_leader = is_leader;
            if is_leader {
                let extend = if self.replica.node().is_sole_voter() {
                    Duration::ZERO
                } else {
                    self.options.election_timeout
                };
                self.state.lessor_mut().promote(now, extend);
            } else {
                self.state.lessor_mut().demote();
                self.give_up_renewals();
            }
        }
    }

    /// Whether apply must wait for a checkpoint to take what is dirty (DESIGN 12 (19)).
    pub(super) fn is_saturated(&self) -> bool {
        self.dirty_bytes + self.cut_bytes > self.options.memory.unstored_max
    }

    /// Begins a checkpoint when it is time for one.
    fn cut_if_due<D: Disk>(&mut self, disk: &mut D, now: Duration, pressure: Pressure) {
        self.snapshot_wanted |= self.replica.node_ref().take_snapshot_wanted();
        let due_bytes = match self.snapshot_wanted {
            true => 0,
            false => self.options.memory.checkpoint_at,
        };
        if self.applier.is_idle()
            && self
                .checkpoints
                .is_due(now, &self.state, self.dirty_bytes, due_bytes, pressure)
        {
            self.snapshot_wanted = false;
            self.cut();
            self.replica.pump(disk, now);
        }
    }

    fn checkpoint<D: Disk>(&mut self, disk: &mut D, now: Duration) -> Result<bool, Fatal> {
        if self.applier.no_space && self.checkpoints.has_room() {
            tracing::info!("there is room again; writes are taken");
            self.applier.no_space = false;
        }
        let pressure = self.pressure();
        let no_space = pressure == Pressure::Disk;
        self.cut_if_due(disk, now, pressure);
        let durable = self.replica.wal().durable();
        match self.checkpoints.step(disk, durable, now, pressure)? {
            Event::None => return Ok(false),
            Event::Busy => {}
            Event::Committed(committed) => {
                self.counters.checkpoints.observe_time(committed.took);
                self.cut_bytes = 0;
                // An entry that is half applied publishes when it is done, with the newest root.
                if self.applier.is_idle() {
                    self.publish(committed.root.clone());
                }
                let main = committed.root.fields().revision;
                self.state.window_mut().trim(main, self.options.memory.window);
                let membership = &committed.root.fields().membership;
                let conf_state = super::boot::decode_membership(membership).map_err(|error| Fatal::Entry {
                    index: committed.position.index,
                    reason: format!("the membership of its checkpoint: {error}"),
                })?;
                let position = committed.position;
                let kept = self.kept_behind(position.index, no_space, now);
                self.replica
                    .checkpointed(position, conf_state, kept.entries, kept.bytes_max);
                // The older of the two meta pages may have to be fallen back to (DESIGN 12 (6)).
                let needed = self.checkpoints.store().log_needed_after();
                let logged = if no_space { 0 } else { self.options.catchup_entries };
                let release = committed.position.index.saturating_sub(logged).min(needed);
                self.replica.wal().release_to(release);
            }
            Event::NoSpace(reason) => {
                self.dirty_bytes += std::mem::take(&mut self.cut_bytes);
                if !self.applier.no_space {
                    tracing::warn!("{reason}; writes are refused until there is room");
                }
                self.applier.no_space = true;
            }
            Event::Unreadable(reason) => {
                self.dirty_bytes += std::mem::take(&mut self.cut_bytes);
                tracing::warn!("{reason}; the checkpoint is tried again");
            }
            Event::Corrupt(description) => {
                self.dirty_bytes += std::mem::take(&mut self.cut_bytes);
                self.raise_corrupt(&description, now);
            }
        }
        Ok(true)
    }

    /// Cuts the state for a checkpoint.
    pub(super) fn cut(&mut self) {
        let ticket = self.replica.save_commit();
        let membership = super::boot::encode_membership(self.replica.node().conf_state());
        self.checkpoints.cut(&mut self.state, ticket, membership);
        self.cut_bytes = std::mem::take(&mut self.dirty_bytes);
    }

    pub(super) fn publish(&mut self, root: crate::pages::Root) {
        let node = self.replica.node();
        let (term, sole_voter) = (node.term(), node.is_sole_voter());
        self.state.publish(term, sole_voter, root);
        self.published_index = self.state.applied_index();
        self.published = true;
    }

    fn publish_if_needed(&mut self) {
        if std::mem::take(&mut self.published) {
            for core in 0..self.readers.cores() {
                self.replies.push((core, Reply::Published));
            }
        }
    }

    /// Takes the end of a disk operation.
    pub fn completed(&mut self, completion: Completion) -> Result<(), Fatal> {
        let token = completion.token;
        if self.replica.owns(token) {
            self.replica.completed(token, completion.result)?;
        } else if self.checkpoints.owns(token) {
            self.checkpoints.completed(completion)?;
        } else if self.loader.owns(token) {
            self.loader.completed(completion);
        } else {
            unreachable!("token {token} belongs to nobody");
        }
        Ok(())
    }

    /// When `turn` has something to do even if nothing comes in before.
    pub fn deadline(&self) -> Duration {
        // While leadership is being confirmed, nothing that has run out can be revoked.
        let may_expire = self.was_leader && !self.reads.is_under_way();
        let lease = self.state.lessor().next_expiry().filter(|_| may_expire);
        let log = self.replica.wal_deadline();
        let compactor = self.compactor.as_ref().and_then(Compactor::deadline);
        if self.is_replaced {
            // The transport says when there is more to do.
            let told = self.installed_at.map(|at| at + INSTALLED_MEMBER_STAYS);
            return told.unwrap_or(self.next_tick + SNAPSHOT_TAKEN_TIMEOUT);
        }
        [lease, log, compactor, self.read_deadline(), self.transfer_deadline()]
            .into_iter()
            .flatten()
            .fold(self.next_tick, Duration::min)
    }

    /// The answers since the last call, each with its serve core.
    pub fn take_replies(&mut self) -> std::vec::Drain<'_, (usize, Reply)> {
        self.replies.drain(..)
    }

    /// Ends in an orderly way, by steps: no proposals are taken from now on, what was proposed is applied, a last
    /// checkpoint is made. Call it after every turn; true when all of that is done.
    pub fn finish(&mut self) -> bool {
        self.stopping = true;
        if !self.is_quiet() || self.checkpoints.is_active() {
            return false;
        }
        let held = self.checkpoints.store().root().fields().applied_index;
        if held >= self.state.applied_index() || self.last_checkpoint_cut {
            return true;
        }
        if self.checkpoints.store().is_idle() {
            self.cut();
            self.last_checkpoint_cut = true;
        }
        false
    }

    /// Whether all that was proposed is applied, so that a last checkpoint can be cut.
    pub fn is_quiet(&mut self) -> bool {
        self.proposals.count() == 0
            && self.waiters.count() == 0
            && self.applier.is_idle()
            && self.replica.wal().is_idle()
    }
}
