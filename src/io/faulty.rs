//! A disk for simulation: a volatile cache, delays and faults, all decided by a seed.
//!
//! * **Time** is virtual, in microseconds. An operation is due between `delay_us.start` and `delay_us.end` after it was
//!   submitted; it takes effect and completes when it is polled at or after that. Operations that are due together
//!   complete in random order. [`Disk::wait`] moves the clock to the next due operation; a simulation that has a clock
//!   of its own moves it with [`FaultyDisk::set_now`] and asks for [`FaultyDisk::next_due`].
//! * **Loss.** [`FaultyDisk::power_cut`] leaves what `medium` says a power cut leaves; [`FaultyDisk::kill`] ends the
//!   process only: what was written is still there, but what was not synced can still be lost by a later power cut.
//!   Operations in flight happen wholly, in part or not at all, and never complete. To look at many outcomes of one
//!   moment, clone the disk: [`FaultyDisk::after_power_cut`].
//! * **Faults** are rules ([`Fault`]) and a capacity ([`FaultyDisk::set_capacity`]). A write that fails may have
//!   written part of its bytes. After a failed sync the bytes it covered are gone for good, although reads still show
//!   them and the next sync succeeds, as on Linux.
//! * **Records.** Completed operations are recorded ([`FaultyDisk::events`], the newest `EVENTS_MAX`);
//!   [`FaultyDisk::violations`] lists writes and syncs of a file one of whose writes or syncs had failed before.

use super::disk::{Completion, Disk, DiskError, FileId, Operation, Outcome};
use super::medium::{Change, Medium, NameChange, Random};
use super::volume::{Contents, InodeId, Volume, errno};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How many completed operations are remembered.
pub const EVENTS_MAX: usize = 1 << 16;

/// A rule that makes operations fail.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The operation's name as in `DiskError::operation`; empty for any.
    pub operation: &'static str,
    /// Part of the path; empty for any.
    pub path: String,
    /// How many matching operations succeed first.
    pub skip: u64,
    /// How many fail after that.
    pub times: u64,
    /// The error they fail with, e.g. `libc::EIO`.
    pub errno: i32,
}

/// One completed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token it was submitted with.
    pub token: u64,
    /// Its name as in `DiskError::operation`.
    pub operation: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// Where, for operations on a range.
    pub offset: u64,
    /// How many bytes, or the new length.
    pub length: u64,
    /// Whether a write asked to be durable.
    pub durable: bool,
    /// errno, when it failed.
    pub error: Option<i32>,
}

#[derive(Clone)]
struct InFlight {
    token: u64,
    operation: Operation,
    due_us: u64,
    /// Random order among operations that are due together.
    order: u64,
    /// Changes the medium had seen at submission: what a sync is sure to cover.
    covered: u64,
}

/// The disk. Clone it to keep a state.
#[derive(Clone)]
pub struct FaultyDisk {
    volume: Volume,
    medium: Medium,
    random: Random,
    in_flight: Vec<InFlight>,
    now_us: u64,
    delay_us: Range<u64>,
    faults: Vec<Fault>,
    syncs_lie: bool,
    barriers_lie: bool,
    failed: BTreeSet<InodeId>,
    events: VecDeque<Event>,
    violations: Vec<Event>,
}

impl FaultyDisk {
    /// An empty disk with a root directory, without faults, without delays, without limit.
    pub fn new(seed: u64) -> FaultyDisk {
        FaultyDisk {
            volume: Volume::new(),
            medium: Medium::new(),
            random: Random::new(seed),
            in_flight: Vec::new(),
            now_us: 0,
            delay_us: 0..1,
            faults: Vec::new(),
            syncs_lie: false,
            barriers_lie: false,
            failed: BTreeSet::new(),
            events: VecDeque::new(),
            violations: Vec::new(),
        }
    }

    /// How long operations take from now on; the end is not included.
    pub fn set_delay_us(&mut self, delay_us: Range<u64>) {
        assert!(!delay_us.is_empty());
        self.delay_us = delay_us;
    }

    /// Moves the clock, never backwards.
    pub fn set_now(&mut self, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
    }

    /// The clock, in microseconds.
    pub fn now(&self) -> u64 {
        self.now_us
    }

    /// When the next operation in flight is due.
    pub fn next_due(&self) -> Option<u64> {
        self.in_flight.iter().map(|operation| operation.due_us).min()
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Adds a rule. The first rule that matches an operation decides about it.
    pub fn add_fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Takes all rules away.
    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// Bytes that can be allocated in all; `None` is without end.
    pub fn set_capacity(&mut self, capacity: Option<u64>) {
        self.volume.capacity = capacity;
    }

    /// For canaries: syncs and durable writes succeed without making anything durable.
    pub fn set_syncs_lie(&mut self, lie: bool) {
        self.syncs_lie = lie;
    }

    /// For canaries: syncs of files succeed without making anything durable, so that a durable write behind one can be
    /// on the medium before what was written ahead of it.
    pub fn set_barriers_lie(&mut self, lie: bool) {
        self.barriers_lie = lie;
    }

    /// The files as a reader sees them now, cache included.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// What would survive the worst power cut of the file at `path`, which is looked up among the names readers see.
    pub fn durable_contents(&self, path: &Path) -> Option<&Contents> {
        self.medium.durable(self.volume.resolve(path).ok()?)
    }

    /// Changes a file behind everyone's back, cache and medium, e.g. to let a bit rot. What was not synced is durable
    /// afterwards.
    pub fn tamper(&mut self, path: &Path, change: impl FnOnce(&mut Contents)) {
        let Ok(contents) = self
            .volume
            .resolve(path)
            .and_then(|inode| self.volume.contents_mut(inode))
        else {
            panic!("tamper: no file {}", path.display());
        };
        change(contents);
        self.medium = Medium::holding(self.volume.inodes());
    }

    /// Completed operations, oldest first, at most the newest `EVENTS_MAX`.
    pub fn events(&self) -> &VecDeque<Event> {
        &self.events
    }

    /// Forgets the recorded events.
    pub fn clear_events(&mut self) {
        self.events.clear();
    }

    /// Writes and syncs submitted to a file after one of its writes or syncs had failed with anything but ENOSPC.
    pub fn violations(&self) -> &[Event] {
        &self.violations
    }

    /// The disk as it is found after a power cut now.
    pub fn after_power_cut(&self, seed: u64) -> FaultyDisk {
        let mut disk = self.clone();
        disk.power_cut(seed);
        disk
    }

    /// A power cut: unsynced sectors and names are kept or lost as the seed decides, nothing is open, nothing in
    /// flight. Faults, capacity, delays and records stay.
    pub fn power_cut(&mut self, seed: u64) {
        self.random = Random::new(seed);
        self.abandon_in_flight();
        let inodes = self.medium.power_cut(&mut self.random);
        self.volume = Volume::from_inodes(inodes, self.volume.capacity);
        self.medium = Medium::holding(self.volume.inodes());
        self.failed.clear();
    }

    /// The end of the process, not of the machine: what was written stays in the cache, nothing is open.
    pub fn kill(&mut self, seed: u64) {
        self.random = Random::new(seed);
        self.abandon_in_flight();
        self.volume.close_all();
        self.failed.clear();
    }

    /// Operations in flight happen or not, in random order; none is durable by itself.
    fn abandon_in_flight(&mut self) {
        let mut in_flight = std::mem::take(&mut self.in_flight);
        for operation in &mut in_flight {
            operation.order = self.random.bits();
        }
        in_flight.sort_by_key(|operation| operation.order);
        for InFlight { mut operation, .. } in in_flight {
            match &mut operation {
                Operation::Write { durable, .. } => *durable = false,
                Operation::Sync { .. } | Operation::SyncDirectory { .. } => continue,
                _ => {}
            }
            if self.random.coin() {
                // A failed operation changes nothing; the process that would have been told is gone.
                let _ = self.perform(operation, 0);
            }
        }
    }

    /// Takes the operations that are due, in the order in which they complete.
    fn take_due(&mut self) -> Vec<InFlight> {
        let now = self.now_us;
        let (mut due, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.in_flight)
            .into_iter()
            .partition(|operation| operation.due_us <= now);
        self.in_flight = waiting;
        due.sort_by_key(|operation| (operation.due_us, operation.order));
        due
    }

    fn complete(&mut self, in_flight: InFlight) -> Completion {
        let InFlight {
            token,
            operation,
            covered,
            ..
        } = in_flight;
        let mut event = self.event(token, &operation);
        let file = file_of(&operation).filter(|_| makes_durable(&operation));
        let inode = file.and_then(|file| self.volume.inode_of(file));
        let result = match self.injected(&event) {
            None => self.perform(operation, covered),
            Some(number) => {
                self.perform_failing(operation, covered);
                Err(DiskError {
                    operation: event.operation,
                    path: event.path.clone(),
                    source: errno(number),
                })
            }
        };
        if let Err(error) = &result {
            event.error = error.source.raw_os_error();
            if let Some(inode) = inode.filter(|_| !error.is_no_space()) {
                self.failed.insert(inode);
            }
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        Completion { token, result }
    }

    fn event(&self, token: u64, operation: &Operation) -> Event {
        let (offset, length, durable) = match operation {
            Operation::Read { offset, buffer, .. } => (*offset, buffer.len() as u64, false),
            Operation::Write {
                offset,
                buffer,
                durable,
                ..
            } => (*offset, buffer.len() as u64, *durable),
            Operation::Allocate { offset, length, .. } | Operation::PunchHole { offset, length, .. } => {
                (*offset, *length, false)
            }
            Operation::Truncate { length, .. } => (0, *length, false),
            _ => (0, 0, false),
        };
        Event {
            token,
            operation: operation.name(),
            path: self.volume.path_of(operation),
            offset,
            length,
            durable,
            error: None,
        }
    }

    /// The error a rule wants for an operation.
    fn injected(&mut self, event: &Event) -> Option<i32> {
        let path = event.path.to_string_lossy();
        let matches = |fault: &&mut Fault| {
            fault.times > 0
                && (fault.operation.is_empty() || fault.operation == event.operation)
                && path.contains(&fault.path)
        };
        let fault = self.faults.iter_mut().find(matches)?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        fault.times -= 1;
        Some(fault.errno)
    }

    /// What a failing operation does all the same.
    fn perform_failing(&mut self, operation: Operation, covered: u64) {
        match operation {
            Operation::Write {
                file,
                offset,
                mut buffer,
                ..
            } => {
                let written = self.random.below(buffer.len() as u64 / 4096 + 1) as usize * 4096;
                if written > 0 {
                    let mut part = super::buffer::AlignedBuffer::zeroed(written);
                    part.copy_from_slice(&buffer[..written]);
                    std::mem::swap(&mut part, &mut buffer);
                    let durable = false;
                    let _ = self.perform(
                        Operation::Write {
                            file,
                            offset,
                            buffer,
                            durable,
                        },
                        0,
                    );
                }
            }
            Operation::Sync { file } => {
                if let Some(inode) = self.volume.inode_of(file) {
                    self.medium.sync_failed(inode, covered, &mut self.random);
                }
            }
            _ => {}
        }
    }

    /// Lets an operation take effect, in the cache and where it belongs on the medium.
    fn perform(&mut self, operation: Operation, covered: u64) -> Result<Outcome, DiskError> {
        let note = self.note(&operation);
        let outcome = self.volume.run(operation)?;
        match note {
            Note::Nothing => {}
            Note::Create {
                parent,
                name,
                directory,
            } => {
                let inode = self.volume.directory(parent).map(|entries| entries[&name]);
                let inode = inode.unwrap_or_else(|error| panic!("{name} was created in no directory: {error}"));
                self.medium.create(inode, directory);
                self.medium.change_name(parent, NameChange::Insert { name, inode });
            }
            Note::Name { parent, change } => self.medium.change_name(parent, change),
            Note::Change { inode, change, durable } => {
                self.medium.change(inode, change, durable && !self.syncs_lie);
            }
            Note::Sync { inode } if !self.syncs_lie && !self.barriers_lie => self.medium.sync(inode, covered),
            Note::SyncDirectory { inode } if !self.syncs_lie => {
                self.medium.sync_directory(inode, covered);
                let volume = &self.volume;
                self.medium.forget(|inode| volume.inodes().contains_key(&inode));
            }
            Note::Sync { .. } | Note::SyncDirectory { .. } => {}
        }
        Ok(outcome)
    }

    /// What an operation means to the medium if it succeeds.
    fn note(&self, operation: &Operation) -> Note {
        let change = |file: FileId, change: Change, durable: bool| match self.volume.inode_of(file) {
            Some(inode) => Note::Change { inode, change, durable },
            None => Note::Nothing,
        };
        match operation {
            Operation::Write {
                file,
                offset,
                buffer,
                durable,
            } => change(*file, Change::write(*offset, buffer), *durable),
            Operation::Allocate { file, offset, length } => {
                let (offset, length) = (*offset, *length);
                change(*file, Change::Allocate { offset, length }, false)
            }
            Operation::PunchHole { file, offset, length } => {
                let (offset, length) = (*offset, *length);
                change(*file, Change::Punch { offset, length }, false)
            }
            Operation::Truncate { file, length } => change(*file, Change::Truncate { length: *length }, false),
            Operation::Sync { file } => match self.volume.inode_of(*file) {
                Some(inode) => Note::Sync { inode },
                None => Note::Nothing,
            },
            Operation::SyncDirectory { path } => match self.volume.resolve(path) {
                Ok(inode) => Note::SyncDirectory { inode },
                Err(_) => Note::Nothing,
            },
            Operation::Open { path, mode } if *mode == super::disk::OpenMode::CreateNew => self.creates(path, false),
            Operation::CreateDirectory { path } if self.volume.resolve(path).is_err() => self.creates(path, true),
            Operation::Remove { path } => match self.volume.parent(path) {
                Ok((parent, name)) => Note::Name {
                    parent,
                    change: NameChange::Remove { name },
                },
                Err(_) => Note::Nothing,
            },
            Operation::Rename { from, to } => self.renames(from, to),
            _ => Note::Nothing,
        }
    }

    fn creates(&self, path: &Path, directory: bool) -> Note {
        match self.volume.parent(path) {
            Ok((parent, name)) => Note::Create {
                parent,
                name,
                directory,
            },
            Err(_) => Note::Nothing,
        }
    }

    fn renames(&self, from: &Path, to: &Path) -> Note {
        match (
            self.volume.parent(from),
            self.volume.parent(to),
            self.volume.resolve(from),
        ) {
            (Ok((parent, from)), Ok((_, to)), Ok(inode)) => {
                let change = NameChange::Rename { from, to, inode };
                Note::Name { parent, change }
            }
            _ => Note::Nothing,
        }
    }
}

/// What an operation means to the medium.
enum Note {
    Nothing,
    Create {
        parent: InodeId,
        name: String,
        directory: bool,
    },
    Name {
        parent: InodeId,
        change: NameChange,
    },
    Change {
        inode: InodeId,
        change: Change,
        durable: bool,
    },
    Sync {
        inode: InodeId,
    },
    SyncDirectory {
        inode: InodeId,
    },
}

fn file_of(operation: &Operation) -> Option<FileId> {
    match operation {
        Operation::Write { file, .. } | Operation::Sync { file } => Some(*file),
        _ => None,
    }
}

/// Whether a failure of the operation leaves it unknown what is durable.
fn makes_durable(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { .. } | Operation::Sync { .. })
}

impl Disk for FaultyDisk {
    fn submit(&mut self, token: u64, operation: Operation) {
        let inode = file_of(&operation).and_then(|file| self.volume.inode_of(file));
        if inode.is_some_and(|inode| self.failed.contains(&inode)) {
            self.violations.push(self.event(token, &operation));
        }
        let span = self.delay_us.end - self.delay_us.start;
        self.in_flight.push(InFlight {
            token,
            operation,
            due_us: self.now_us + self.delay_us.start + self.random.below(span),
            order: self.random.bits(),
            covered: self.medium.now(),
        });
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        for operation in self.take_due() {
            completions.push(self.complete(operation));
        }
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        if let Some(due_us) = self.next_due() {
            self.set_now(due_us);
        }
        self.poll(completions);
    }
}

mod aside;
#[cfg(test)]
mod tests;
