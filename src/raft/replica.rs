//! A raft node whose log is durable: the node's batches go through the write-ahead log, and raft hears of them when
//! they are on the medium.
//!
//! Sans-IO: driven by `pump` and `completed` over any `Disk`. Promises: batches become durable in raft's order; an
//! entry comes out of `next_committed` only when it is committed and durable here; a commit index alone never costs a
//! write of its own, it rides with the next batch (or with `save_commit`, before a checkpoint: DESIGN 12 (5)).

use super::alone;
use super::counters::Counters;
use super::founding::{found, founded_by};
use super::logged::{from_wal, to_wal, wal_state};
use super::node::{Node, Options};
use super::storage::{LogStorage, Position};
use crate::io::disk::{Disk, DiskError, Outcome};
use crate::limits::LOG_WRITE_SLOW;
use crate::metrics::Histogram;
use crate::wal;
use bytes::Bytes;
use raft::eraftpb::{ConfState, HardState};
use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

/// Who a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's id.
    pub cluster_id: u64,
    /// The member's id.
    pub member_id: u64,
}

/// A member that a cluster begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// Its id.
    pub id: u64,
    /// The member as etcd's JSON, which its membership change carries.
    pub context: Bytes,
}

/// What the state machine holds when a replica starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// The last entry contained.
    pub position: Position,
    /// Membership at that entry; empty for a state in which nothing was applied yet.
    pub conf_state: ConfState,
}

/// Why a replica can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The write-ahead log failed.
    #[error(transparent)]
    Wal(#[from] wal::Error),
    /// Nobody said who a new member is.
    #[error("{} is gone since this start began; start again", directory.display())]
    LogGone {
        /// The log's directory.
        directory: std::path::PathBuf,
    },
    /// raft-rs refused the state.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
    /// A member without a vote can't be a cluster.
    #[error(
        "--force-new-cluster: this member, {member_id:x}, has no vote in its cluster; force another one, or restore a \
         snapshot into a new cluster"
    )]
    NoVoter {
        /// This member.
        member_id: u64,
    },
    /// The page store is ahead of the log by entries nobody has.
    #[error(
        "the write-ahead log ends at entry {last}, before entry {applied} that the page store holds: the end of it was \
         lost; restore the member from its peers or from a snapshot"
    )]
    LogTooShort {
        /// The log's last entry.
        last: u64,
        /// The page store's applied index.
        applied: u64,
    },
}

/// How a replica keeps time and log.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// Who a new member is; `None` when its log exists, which says so.
    pub identity: Option<Identity>,
    /// Ticks without a leader before an election.
    pub election_ticks: usize,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// Whether elections begin with a pre-vote.
    pub pre_vote: bool,
    /// Entries kept behind the applied ones.
    pub catchup_entries: u64,
    /// Whether the member is to be the only one from now on, whatever its log says.
    pub alone: bool,
    /// How the log is written.
    pub wal: wal::Options,
}

/// A node with its durable log.
pub struct Replica {
    identity: Identity,
    node: Node,
    wal: wal::Writer,
    /// For every batch handed to the log and not reported to raft: when it is durable.
    waiting: VecDeque<wal::Ticket>,
    /// A hard state that need not be durable at once and waits for the next batch.
    lazy_state: Option<HardState>,
    /// When the write to the log that is in flight was handed over.
    writing_since: Option<Duration>,
    /// Whether it was said that it is slow.
    is_slow: bool,
    /// When something last became durable, or nothing waited for that.
    progressed_at: Duration,
    syncs: Histogram,
}

impl Replica {
    /// Opens the log in `directory`, or makes it with `founders` as the voters of a new cluster, none for a member that
    /// joins one; everything read is durable again before this returns.
    pub fn start<D: Disk>(
        disk: &mut D,
        directory: &Path,
        options: ReplicaOptions,
        applied: &Applied,
        founders: &[Founder],
    ) -> Result<(Replica, Option<wal::Repair>), ReplicaError> {
        let after = applied.position.index;
        let recovered = recover(disk, directory, &options, applied)?;
        let (identity, wal, storage, repair) = match recovered {
            Some(mut recovered) => {
                // As with etcd, what the command line says of the cluster is for its beginning only.
                let wal::Metadata { node_id, cluster_id } = recovered.metadata;
                let identity = Identity {
                    cluster_id,
                    member_id: node_id,
                };
                let storage = if recovered.writer.last_index() == 0 && applied.position.index == 0 {
                    // Only the log itself was made before: this is its first start still.
                    found(disk, &mut recovered.writer, founders)?
                } else {
                    storage_of(&recovered, applied)?
                };
                (identity, recovered.writer, storage, recovered.repair)
            }
            None => {
                let Some(identity) = options.identity else {
                    let directory = directory.to_path_buf();
                    return Err(ReplicaError::LogGone { directory });
                };
                let metadata = wal::Metadata {
                    node_id: identity.member_id,
                    cluster_id: identity.cluster_id,
                };
                let mut wal = wal::create(disk, directory, metadata, options.wal.clone())?;
                let storage = found(disk, &mut wal, founders)?;
                (identity, wal, storage, None)
            }
        };
        let node_options = Options {
            id: identity.member_id,
            election_ticks: options.election_ticks,
            heartbeat_ticks: options.heartbeat_ticks,
            applied: after,
            pre_vote: options.pre_vote,
        };
        let node = Node::new(node_options, storage)?;
        Ok((
            Replica {
                identity,
                node,
                wal,
                waiting: VecDeque::new(),
                lazy_state: None,
                writing_since: None,
                is_slow: false,
                progressed_at: Duration::ZERO,
                syncs: Counters::default().log_syncs,
            },
            repair,
        ))
    }

    /// Who this member is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The raft node, to be looked at.
    pub fn node_ref(&self) -> &Node {
        &self.node
    }

    /// The node: its state and its clock.
    pub fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// The log's writer.
    pub fn wal(&mut self) -> &mut wal::Writer {
        &mut self.wal
    }

    /// When the log has something to do even if nothing completes before.
    pub fn wal_deadline(&self) -> Option<Duration> {
        self.wal.deadline()
    }

    /// Hands raft's batches to the log and what is durable back to raft, until neither has anything to do now.
    pub fn pump<D: Disk + ?Sized>(&mut self, disk: &mut D, now: Duration) {
        self.time_writes(now);
        if self.waiting.is_empty() {
            self.progressed_at = now;
        }
        loop {
            while let Some(batch) = self.node.next_batch() {
                self.append(batch);
            }
            self.wal.submit(disk, now);
            self.time_writes(now);
            let durable = self.wal.durable();
            let before = self.waiting.len();
            while self.waiting.front().is_some_and(|ticket| *ticket <= durable) {
                self.waiting.pop_front();
                self.progressed_at = now;
                self.node.persisted();
            }
            if self.waiting.len() == before {
                return;
            }
        }
    }

    /// Watches writes to the log go by.
    fn time_writes(&mut self, now: Duration) {
        let waited = self.writing_for(now);
        let (is_writing, is_slow) = (self.wal.is_writing(), waited >= LOG_WRITE_SLOW);
        if is_slow && !self.is_slow {
            let directory = self.wal.directory().display();
            tracing::warn!(%directory, ?waited, "a write to the log takes long; the disk may be overloaded or stalled");
        }
        self.is_slow = is_writing && is_slow;
        if is_writing {
            self.writing_since.get_or_insert(now);
        } else if self.writing_since.take().is_some() {
            self.syncs.observe_time(waited);
            if is_slow {
                tracing::warn!(took = ?waited, "a write to the log was slow");
            }
        }
    }

    /// For how long the write to the log that is in flight has been there.
    pub fn writing_for(&self, now: Duration) -> Duration {
        self.writing_since
            .map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// For how long the log has made nothing durable of what waits for that: its disk stalls, or has no room for the
    /// next segment.
    pub fn stands_still_for(&self, now: Duration) -> Duration {
        match self.waiting.is_empty() {
            true => Duration::ZERO,
            false => now.saturating_sub(self.progressed_at),
        }
    }

    /// How long writes to the log took, from the turn that handed one over to the turn that saw it durable.
    pub fn syncs(&self) -> &Histogram {
        &self.syncs
    }

    fn append(&mut self, batch: super::node::Batch) {
        if let Some(state) = batch.hard_state {
            self.lazy_state = Some(state);
        }
        if batch.entries.is_empty() && !batch.must_sync {
            // Nothing here must be durable, but raft expects its batches reported in order.
            self.waiting
                .push_back(self.waiting.back().copied().unwrap_or(self.wal.durable()));
            return;
        }
        let entries: Vec<_> = batch.entries.into_iter().map(to_wal).collect();
        let state = self.lazy_state.take().map(|state| wal_state(&state));
        self.waiting.push_back(self.wal.append(&entries, state.as_ref()));
    }

    /// Appends a commit index that waits for company, and says when it is durable.
    pub fn save_commit(&mut self) -> wal::Ticket {
        match self.lazy_state.take() {
            Some(state) => self.wal.append(&[], Some(&wal_state(&state))),
            None => self.wal.append(&[], None),
        }
    }

    /// Records that a durable checkpoint holds everything up to `position`, with this membership. Of the entries it
    /// contains, `kept` stay in memory for followers that lag, within `bytes_max`.
    pub fn checkpointed(
        &mut self,
        position: Position,
        conf_state: ConfState,
        kept: u64,
        bytes_max: usize,
    ) -> wal::Ticket {
        let recorded = wal::ConfState {
            voters: conf_state.voters.clone(),
            learners: conf_state.learners.clone(),
            ..Default::default()
        };
        self.node.checkpointed(position, conf_state, kept, bytes_max);
        self.wal.save_snapshot(&wal::Snapshot {
            index: position.index,
            term: position.term,
            conf_state: Some(recorded),
        })
    }

    /// Whether the token belongs to the log.
    pub fn owns(&self, token: u64) -> bool {
        self.wal.owns(token)
    }

    /// Takes the end of a disk operation of the log. An error ends this member's life.
    pub fn completed(&mut self, token: u64, result: Result<Outcome, DiskError>) -> Result<(), ReplicaError> {
        self.wal.completed(token, result)?;
        Ok(())
    }
}

/// The log, if there is one.
fn recover<D: Disk>(
    disk: &mut D,
    directory: &Path,
    options: &ReplicaOptions,
    applied: &Applied,
) -> Result<Option<wal::Recovered>, ReplicaError> {
    if !wal::exists(disk, directory)? {
        return Ok(None);
    }
    let (wal, kept) = (options.wal.clone(), options.catchup_entries);
    let recovered = wal::recover(disk, directory, wal, applied.position.index, kept)?;
    Ok(Some(match options.alone {
        true => alone::force(disk, recovered, applied)?,
        false => recovered,
    }))
}

/// raft's view of a recovered log. The commit index is lifted to what the page store holds (DESIGN 12 (5)).
fn storage_of(recovered: &wal::Recovered, applied: &Applied) -> Result<LogStorage, ReplicaError> {
    let released_term = match recovered.term_after {
        Some(term) => term,
        None if recovered.entries_after == applied.position.index => applied.position.term,
        None => 0,
    };
    let released = Position {
        index: recovered.entries_after,
        term: released_term,
    };
    let last = recovered.entries.last().map_or(released.index, |entry| entry.index);
    if last < applied.position.index {
        return Err(ReplicaError::LogTooShort {
            last,
            applied: applied.position.index,
        });
    }
    let state = &recovered.hard_state;
    let hard_state = HardState {
        term: state.term,
        vote: state.vote,
        commit: state.commit.max(applied.position.index).min(last),
    };
    let conf_state = if applied.position.index == 0 {
        founded_by(&recovered.entries)
    } else {
        applied.conf_state.clone()
    };
    let entries = recovered.entries.iter().map(from_wal);
    let mut storage = LogStorage::new(released, entries, hard_state, conf_state);
    if applied.position.index > 0 {
        // What the page store holds can be sent to who lags, however long the next checkpoint is off.
        storage.set_snapshot(applied.position, applied.conf_state.clone());
    }
    Ok(storage)
}

/// Writes until a ticket is durable.
pub(super) fn make_durable<D: Disk>(
    disk: &mut D,
    wal: &mut wal::Writer,
    ticket: wal::Ticket,
) -> Result<(), ReplicaError> {
    let mut completions = Vec::new();
    while wal.durable() < ticket {
        wal.submit(disk, Duration::ZERO);
        disk.wait(&mut completions);
        for completion in completions.drain(..) {
            wal.completed(completion.token, completion.result)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::node::Proposed;
    use super::*;
    use crate::io::faulty::FaultyDisk;
    use crate::io::memory::MemoryDisk;
    use raft::eraftpb::EntryType;

    const IDENTITY: Identity = Identity {
        cluster_id: 0xc,
        member_id: 0x7,
    };

    fn options(identity: Option<Identity>) -> ReplicaOptions {
        let wal = wal::Options {
            segment_bytes: 1 << 20,
            ..wal::Options::new(1, 0..wal::TOKENS)
        };
        ReplicaOptions {
            identity,
            election_ticks: 10,
            heartbeat_ticks: 1,
            pre_vote: true,
            catchup_entries: 10,
            alone: false,
            wal,
        }
    }

    fn founders() -> [Founder; 1] {
        [Founder {
            id: IDENTITY.member_id,
            context: Bytes::from_static(b"{}"),
        }]
    }

    /// A leading replica, and what it committed on the way there.
    fn start(disk: &mut impl Disk, applied: &Applied) -> (Replica, Vec<(u64, Bytes)>) {
        let directory = Path::new("/data/member/wal");
        let (mut replica, _) = Replica::start(disk, directory, options(Some(IDENTITY)), applied, &founders()).unwrap();
        settle(&mut replica, disk);
        // raft-rs lets nobody campaign who has not applied a committed membership change.
        let mut found = committed(&mut replica);
        replica.node().campaign().unwrap();
        settle(&mut replica, disk);
        found.extend(committed(&mut replica));
        (replica, found)
    }

    fn settle(replica: &mut Replica, disk: &mut impl Disk) {
        settle_at(replica, disk, Duration::ZERO);
    }

    fn settle_at(replica: &mut Replica, disk: &mut impl Disk, now: Duration) {
        let mut completions = Vec::new();
        replica.pump(disk, now);
        while replica.wal().in_flight() > 0 {
            disk.wait(&mut completions);
            for completion in completions.drain(..) {
                replica.completed(completion.token, completion.result).unwrap();
            }
            replica.pump(disk, now);
        }
    }

    fn committed(replica: &mut Replica) -> Vec<(u64, Bytes)> {
        let entries: Vec<_> = std::iter::from_fn(|| replica.node().next_committed()).collect();
        if let Some(last) = entries.last() {
            replica.node().applied(last.index);
        }
        entries
            .into_iter()
            .filter(|entry| entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty())
            .map(|entry| (entry.index, entry.data))
            .collect()
    }

    fn disk() -> MemoryDisk {
        let mut disk = MemoryDisk::new();
        make_directories(&mut disk);
        disk
    }

    fn make_directories(disk: &mut impl Disk) {
        for path in ["/data", "/data/member"] {
            disk.call(crate::io::disk::Operation::CreateDirectory { path: path.into() })
                .unwrap();
        }
    }

    /// A log that has no room for its next segment has no write in flight, and stands still all the same.
    #[test]
    fn a_log_without_room_stands_still() {
        const SECOND: Duration = Duration::from_secs(1);
        let mut disk = FaultyDisk::new(1);
        make_directories(&mut disk);
        let (mut replica, _) = start(&mut disk, &Applied::default());
        settle_at(&mut replica, &mut disk, SECOND);
        let capacity = disk.volume().allocated();
        disk.set_capacity(Some(capacity));
        let mut now = 2 * SECOND;
        // Three times what the segments hold that are there.
        for _ in 0..60 {
            replica.node().propose(vec![vec![b'v'; 100_000].into()]);
            settle_at(&mut replica, &mut disk, now);
            now += SECOND / 100;
        }
        assert!(!replica.wal().is_writing() && replica.wal().no_space());
        now += 5 * SECOND;
        settle_at(&mut replica, &mut disk, now);
        assert_eq!(replica.writing_for(now), Duration::ZERO);
        assert!(replica.stands_still_for(now) >= 5 * SECOND);
        disk.set_capacity(None);
        for _ in 0..10 {
            now += SECOND;
            settle_at(&mut replica, &mut disk, now);
        }
        assert_eq!(replica.stands_still_for(now), Duration::ZERO);
        assert_eq!(committed(&mut replica).len(), 60);
    }

    #[test]
    fn proposals_come_back_committed_and_survive_a_restart() {
        let mut disk = disk();
        let (mut replica, _) = start(&mut disk, &Applied::default());
        let proposed = replica.node().propose(vec!["a".into(), "b".into()]);
        let Proposed::Appended(first) = proposed else {
            panic!("{proposed:?}");
        };
        settle(&mut replica, &mut disk);
        let expected = vec![(first.index, Bytes::from("a")), (first.index + 1, Bytes::from("b"))];
        assert_eq!(committed(&mut replica), expected);
        drop(replica);
        let (replica, found) = start(&mut disk, &Applied::default());
        assert_eq!(found, expected);
        drop(replica);
        let applied = Applied {
            position: Position {
                index: first.index,
                term: first.term,
            },
            conf_state: ConfState::from((vec![0x7], vec![])),
        };
        let (mut replica, found) = start(&mut disk, &applied);
        assert_eq!(found, expected[1..]);
        assert!(replica.node().term() > first.term);
    }

    #[test]
    fn a_lone_commit_index_costs_no_write() {
        let mut disk = disk();
        let (mut replica, _) = start(&mut disk, &Applied::default());
        replica.node().propose(vec!["a".into()]);
        replica.pump(&mut disk, Duration::ZERO);
        settle(&mut replica, &mut disk);
        let before = replica.wal().durable();
        assert_eq!(committed(&mut replica).len(), 1);
        settle(&mut replica, &mut disk);
        assert_eq!(replica.wal().durable(), before);
        let ticket = replica.save_commit();
        assert!(ticket > before);
        settle(&mut replica, &mut disk);
        assert!(replica.wal().durable() >= ticket);
    }

    #[test]
    fn the_log_says_who_the_member_is() {
        let mut disk = disk();
        let directory = Path::new("/data/member/wal");
        let begin = |disk: &mut MemoryDisk, identity| {
            Replica::start(disk, directory, options(identity), &Applied::default(), &founders())
        };
        assert!(matches!(begin(&mut disk, None), Err(ReplicaError::LogGone { .. })));
        drop(start(&mut disk, &Applied::default()));
        let other = Identity {
            cluster_id: 0xd,
            member_id: 0x8,
        };
        for identity in [None, Some(other)] {
            let (replica, _) = begin(&mut disk, identity).unwrap();
            assert_eq!(replica.identity(), IDENTITY);
        }
    }
}
