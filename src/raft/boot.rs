//! Starting a log core: page store, index, log, and the replay of what the page store lacks.
//!
//! Blocking: nothing is served before this is over. Rules of the start (DESIGN 12 (1), issue's refusals): what is read
//! is made durable again before raft sees it; a log without our page file, or etcd's own data, is refused untouched.

use super::checkpoint::Checkpoints;
use super::core::{Fatal, LogCore, Options};
use super::directory::open_pages;
use super::install;
use super::loader::Loader;
use super::publication::Publication;
use super::replica::{Applied, Founder, Replica, ReplicaError, ReplicaOptions};
use super::restore::restore;
use super::storage::Position;
use crate::io::disk::{Disk, DiskError};
use crate::mvcc::readers::Readers;
use crate::pages::{self, Root, StoreFailure};
use crate::state::RestoreError;
use crate::state::lease::LessorConfig;
use crate::state::members::Member;
use crate::state::version;
use bytes::Bytes;
use raft::eraftpb::ConfState;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything a log core starts from.
#[derive(Clone, Debug)]
pub struct Boot {
    /// The data directory.
    pub data_directory: PathBuf,
    /// The log's directory.
    pub wal_directory: PathBuf,
    /// How the replica works.
    pub replica: ReplicaOptions,
    /// How the page store works.
    pub pages: pages::Options,
    /// Threads that decode the page store's records during the start; 0 decodes them between the reads.
    pub decoders: usize,
    /// The tokens of the log core's own reads, as many as may be in flight.
    pub loader_tokens: Range<u64>,
    /// How the log core works.
    pub options: Options,
    /// Leases.
    pub lessor: LessorConfig,
    /// This member as it is told to others.
    pub member: Member,
    /// With whom a new cluster begins, this member among them; empty for a member that joins one. A log that exists has
    /// its own beginning.
    pub founders: Vec<Member>,
    /// Ticks that count as gone when the member starts, for a first election without a whole time-out.
    pub ticks_ahead: usize,
    /// The cluster version to set when there is none.
    pub cluster_version: String,
    /// What serve cores read.
    pub readers: Readers,
}

/// Why the start failed.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A directory or file can't be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The directory holds etcd's data.
    #[error(
        "{path} is etcd's own data; ringd does not touch it: choose another --data-dir, or move the data over with a \
         snapshot when that is built"
    )]
    EtcdData {
        /// The file found.
        path: PathBuf,
    },
    /// There is a log but no page file.
    #[error(
        "{wal} holds a write-ahead log but {pages} is missing: it is etcd's directory, or the page file was lost; \
         ringd leaves it untouched: choose another --data-dir, or restore the file"
    )]
    LogWithoutPages {
        /// The log's directory.
        wal: PathBuf,
        /// The page file.
        pages: PathBuf,
    },
    /// There is a page file with data but no log.
    #[error(
        "{pages} holds data up to entry {applied} but {wal} has no write-ahead log: it was lost or --wal-dir is wrong"
    )]
    PagesWithoutLog {
        /// The log's directory.
        wal: PathBuf,
        /// The page file.
        pages: PathBuf,
        /// The page file's applied index.
        applied: u64,
    },
    /// The page store.
    #[error(transparent)]
    Pages(#[from] StoreFailure),
    /// A page needed for the start.
    #[error("{path}: {reason}; restore the member from a snapshot or from its peers")]
    Page {
        /// The page file.
        path: PathBuf,
        /// Which page and what is wrong.
        reason: String,
    },
    /// What the page store holds makes no state.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The log or raft.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// Replaying the log.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

/// raft's membership as the page store keeps it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Membership {
    voters: Vec<u64>,
    #[serde(default)]
    learners: Vec<u64>,
}

/// The membership as a commit has it; of none where nothing was committed.
pub(super) fn decode_membership(bytes: &[u8]) -> Result<ConfState, serde_json::Error> {
    if bytes.is_empty() {
        return Ok(ConfState::default());
    }
    let Membership { voters, learners } = serde_json::from_slice(bytes)?;
    Ok(ConfState::from((voters, learners)))
}

/// The membership as bytes of a commit.
pub(super) fn encode_membership(conf_state: &ConfState) -> Bytes {
    let membership = Membership {
        voters: conf_state.voters.clone(),
        learners: conf_state.learners.clone(),
    };
    serde_json::to_vec(&membership)
        .expect("numbers in lists are JSON")
        .into()
}

/// Starts a log core. A sole voter leads when this returns, has applied an entry of its own term and has published
/// itself; any other has applied what it knows to be committed, and does the rest as it goes on.
pub fn start<D: Disk>(disk: &mut D, boot: Boot, now: impl Fn() -> Duration) -> Result<LogCore, BootError> {
    install::finish(disk, &boot)?;
    let store = open_pages(disk, &boot)?;
    let began = Instant::now();
    let state = restore(disk, &store, boot.lessor, boot.decoders)?;
    tracing::info!(
        keys = state.keys().keys(),
        revisions = state.keys().revisions(),
        revision = state.readable().revision,
        took = ?began.elapsed(),
        "restored the index from the page file"
    );
    if let Some(problem) = state.members().version().and_then(version::too_new) {
        return Err(Fatal::TooOld(problem).into());
    }
    let applied = applied(store.root(), store.path())?;
    let founders: Vec<Founder> = boot.founders.iter().map(founder).collect();
    let (replica, repair) = Replica::start(disk, &boot.wal_directory, boot.replica.clone(), &applied, &founders)?;
    if let Some(repair) = repair {
        tracing::warn!(
            file = %repair.path.display(), offset = repair.offset, bytes = repair.bytes, reason = repair.reason,
            "cut the torn tail of the write-ahead log; nothing acknowledged was in it"
        );
    }
    let loader = Loader::new(store.file(), boot.loader_tokens.clone(), boot.options.memory.cache);
    let checkpoints = Checkpoints::new(store);
    let member_id = replica.identity().member_id;
    let mut core = LogCore::assemble(
        boot.options,
        member_id,
        replica,
        state,
        checkpoints,
        loader,
        boot.readers.clone(),
    );
    let (began, restored) = (Instant::now(), core.state.applied_index());
    settle(&mut core, disk, &now, |core| {
        !core.replica.node().has_committed() && core.applier.is_idle()
    })?;
    core.publication = Some(Publication {
        name: boot.member.name.clone(),
        client_urls: boot.member.client_urls.clone(),
        cluster_version: boot.cluster_version.clone(),
    });
    if core.replica.node().is_sole_voter() {
        lead(&mut core, disk, &now)?;
    } else {
        core.replica.node().advance_ticks(boot.ticks_ahead);
        let root = core.checkpoints.store().root().clone();
        core.publish(root);
    }
    core.tell_members();
    tracing::info!(
        from = restored,
        to = core.state.applied_index(),
        leads = core.replica.node().is_leader(),
        took = ?began.elapsed(),
        "replayed the write-ahead log"
    );
    Ok(core)
}

/// A member that a cluster begins with: it has published nothing of itself yet.
fn founder(member: &Member) -> Founder {
    let context = serde_json::to_vec(&Member {
        name: String::new(),
        client_urls: Vec::new(),
        ..member.clone()
    });
    Founder {
        id: member.id,
        context: context.expect("a member is JSON").into(),
    }
}

pub(super) fn applied(root: &Root, path: &Path) -> Result<Applied, BootError> {
    let fields = root.fields();
    let conf_state = decode_membership(&fields.membership).map_err(|error| BootError::Page {
        path: path.to_path_buf(),
        reason: format!("the membership in its meta page is not JSON: {error}"),
    })?;
    let position = Position {
        index: fields.applied_index,
        term: fields.term,
    };
    Ok(Applied { position, conf_state })
}

/// Wins the election of a sole voter, applies an entry of the new term and publishes the member.
fn lead<D: Disk>(core: &mut LogCore, disk: &mut D, now: &impl Fn() -> Duration) -> Result<(), BootError> {
    core.replica
        .node()
        .campaign()
        .map_err(|error| BootError::Replica(error.into()))?;
    settle(core, disk, now, |core| core.replica.node().is_leader())?;
    let term = core.replica.node().term();
    settle(core, disk, now, |core| core.state.applied_term() == term)?;
    settle(core, disk, now, |core| {
        let last = core.replica.node().last_index();
        core.is_published() && core.state.applied_index() == last && core.is_quiet()
    })?;
    core.replies.clear();
    Ok(())
}

/// Turns the core until `done`.
fn settle<D: Disk>(
    core: &mut LogCore,
    disk: &mut D,
    now: &impl Fn() -> Duration,
    done: impl Fn(&mut LogCore) -> bool,
) -> Result<(), BootError> {
    let mut completions = Vec::new();
    loop {
        let busy = core.turn(disk, now())?;
        if done(core) {
            return Ok(());
        }
        if busy {
            disk.poll(&mut completions);
        } else {
            disk.wait(&mut completions);
        }
        for completion in completions.drain(..) {
            core.completed(completion)?;
        }
    }
}
