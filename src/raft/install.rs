//! Taking the state over from another member: a snapshot in place of what this one holds (DESIGN 12 (9)).
//!
//! The snapshot was received, made a page file of, and that was synced, before the log core hears of it. Then, in this
//! order: the log core stops using its state; the page file gets the name under which a start finds it; the log begins
//! anew behind it; it takes the place of the old page file. The last two are done by the start that follows, as by any
//! start that finds the work half done.

use super::boot::{Boot, BootError, applied};
use super::core::{Fatal, LogCore};
use super::directory::{INSTALLING_FILE, PAGE_FILE, RECEIVED_FILE, SNAPSHOT_FILE};
use super::logged::wal_state;
use super::messages::ToPeers;
use super::replica::{Applied, ReplicaError, ReplicaOptions, make_durable};
use super::storage::Position;
use crate::io::disk::{Disk, DiskError, Operation};
use crate::limits::INSTALLED_MEMBER_STAYS;
use crate::pages::PageStore;
use crate::wal;
use raft::eraftpb::{HardState, Message};
use std::path::Path;
use std::time::Duration;

/// A snapshot that was received and is a durable page file, under [`RECEIVED_FILE`].
#[derive(Debug)]
pub struct Received {
    /// The message that it came with.
    pub message: Box<Message>,
    /// The last entry that it contains.
    pub position: Position,
}

/// Finishes an installation that the last life of the member began.
pub(super) fn finish<D: Disk>(disk: &mut D, boot: &Boot) -> Result<(), BootError> {
    let snap = boot.data_directory.join("member").join("snap");
    let names = match disk.list(&snap) {
        Err(error) if error.is_not_found() => return Ok(()),
        other => other?,
    };
    for name in [RECEIVED_FILE, SNAPSHOT_FILE] {
        if names.iter().any(|other| other == name) {
            let path = snap.join(name);
            disk.call(Operation::Remove { path })?;
        }
    }
    if !names.iter().any(|name| name == INSTALLING_FILE) {
        return Ok(());
    }
    // The last life may have died before the name was durable, and without it the log must not begin anew (DESIGN 12
    // (1)).
    disk.call(Operation::SyncDirectory { path: snap.clone() })?;
    let path = snap.join(INSTALLING_FILE);
    let store = PageStore::open(disk, &path, boot.pages.clone())?;
    let applied = applied(store.root(), &path)?;
    let file = store.file();
    drop(store);
    disk.call(Operation::Close { file })?;
    begin_behind(disk, &boot.wal_directory, &boot.replica, &applied)?;
    put_in_place(disk, &path, &snap.join(PAGE_FILE))?;
    tracing::info!(index = applied.position.index, "installed a snapshot of another member");
    Ok(())
}

/// Lets the log in `directory` go on behind a snapshot of another member. What it held before is not what led there;
/// its term and vote stay. Durable when this returns.
pub(super) fn begin_behind<D: Disk>(
    disk: &mut D,
    directory: &Path,
    options: &ReplicaOptions,
    applied: &Applied,
) -> Result<(), ReplicaError> {
    let Position { index, term } = applied.position;
    let mut recovered = wal::recover(disk, directory, options.wal.clone(), index, 0)?;
    let before = &recovered.hard_state;
    let hard_state = HardState {
        term: before.term.max(term),
        vote: if before.term >= term { before.vote } else { 0 },
        commit: index,
    };
    let recorded = wal::ConfState {
        voters: applied.conf_state.voters.clone(),
        learners: applied.conf_state.learners.clone(),
        ..Default::default()
    };
    // One batch: the commit index is what makes the snapshot the log's beginning.
    recovered.writer.save_snapshot(&wal::Snapshot {
        index,
        term,
        conf_state: Some(recorded),
    });
    let ticket = recovered.writer.append(&[], Some(&wal_state(&hard_state)));
    make_durable(disk, &mut recovered.writer, ticket)?;
    // The disk is left with nothing in flight.
    let mut completions = Vec::new();
    while recovered.writer.in_flight() > 0 {
        disk.wait(&mut completions);
        for completion in completions.drain(..) {
            recovered.writer.completed(completion.token, completion.result)?;
        }
    }
    Ok(())
}

/// Gives a file another name, durably.
fn put_in_place<D: Disk + ?Sized>(disk: &mut D, from: &Path, to: &Path) -> Result<(), DiskError> {
    let (from, to) = (from.to_path_buf(), to.to_path_buf());
    let path = to.parent().unwrap_or(Path::new("/")).to_path_buf();
    disk.call(Operation::Rename { from, to })?;
    disk.call(Operation::SyncDirectory { path }).map(|_| ())
}

/// What is to become of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// This member has what it contains: the page file is of no use.
    Known,
    /// The page file is to get the name [`INSTALLING_FILE`], durably, and the log core to be told.
    Installs,
}

/// Whether the page file has got that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It has, durably.
    Yes,
    /// It has not, and why not: the state stays what it was.
    No(String),
    /// It may have, and what went wrong: only the next start finds out.
    Unknown(String),
}

impl LogCore {
    /// Takes a snapshot that was received, and says what is to become of its page file. One that says nothing new, or
    /// that the gate refuses, is thrown away. With any other this member's life on its old state is over: it does
    /// nothing from here on.
    pub(super) fn take_snapshot(&mut self, received: Received, now: Duration) {
        let Position { index, term } = received.position;
        let node = self.replica.node();
        let is_known = index <= node.commit_index() || node.term_at(index) == Some(term);
        let taken = if self.is_replaced {
            Err("another snapshot is being installed".to_string())
        } else if is_known {
            // raft moves its commit index up to it, or answers that it has it.
            self.step(*received.message, now);
            Ok(Taken::Known)
        } else {
            let admitted = self.admit(&received.message);
            admitted
                .map(|()| Taken::Installs)
                .map_err(|refusal| refusal.to_string())
        };
        if taken == Ok(Taken::Installs) {
            tracing::info!(index, "takes the state over from another member");
            self.is_replaced = true;
        }
        self.to_peers.push(ToPeers::SnapshotTaken(taken));
    }

    /// The page file that replaces this state is where a start finds it. The member is told to begin anew, by
    /// [`Fatal::Installed`], a little later, when the sender has its answer.
    pub(super) fn snapshot_in_place(&mut self, placed: Placed, now: Duration) {
        match placed {
            Placed::Yes => self.installed_at = Some(now),
            Placed::No(reason) => {
                tracing::warn!("a snapshot is not installed: {reason}");
                self.is_replaced = false;
            }
            // What this state promised from here on, the next start could throw away.
            Placed::Unknown(reason) => self.half_installed = Some(reason),
        }
    }

    /// An error when the time has come to begin anew with another member's state.
    pub(super) fn check_replaced(&self, now: Duration) -> Result<(), Fatal> {
        if let Some(reason) = &self.half_installed {
            return Err(Fatal::HalfInstalled(reason.clone()));
        }
        match self.installed_at {
            Some(at) if now >= at + INSTALLED_MEMBER_STAYS => Err(Fatal::Installed),
            _ => Ok(()),
        }
    }
}
