//! A checkpoint: a cut of the state machine becomes the file's newest commit.
//!
//! Data, barrier, meta, barrier. Until the meta page is written nothing of the newest commit is touched, so a
//! checkpoint that runs out of room is given up and the store is as before. From the meta write on there is no way
//! back: a failure ends the store.

use super::changes::{Changes, Records, TreeUpdates};
use super::failure::{Aborted, CutError, StoreFailure};
use super::free::{Batch, Cursor, FreeSpace};
use super::meta::Meta;
use super::output::Output;
use super::page::{ExtentRef, PageAddress, TREE_COUNT, TreeId};
use super::record::RecordId;
use super::rewrite::{Rewriter, Stop};
use super::root::{Root, StateFields, TreeRef};
use super::store::{Activity, InFlight, PageStore, read_outcome};
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Completion, Disk, Operation, Outcome};
use crate::limits::pages::{
    DELETE_PAGES, IN_FLIGHT_BYTES, KEY_MAX_BYTES, MEMBERSHIP_MAX_BYTES, PAGE_BYTES, RECLAIM_UNIT_RUNS,
    RELOCATE_FREE_PERCENT, RELOCATE_PAGES, STEP_UNITS,
};
use std::collections::BTreeMap;

/// An immutable cut of the state machine at one raft index.
pub struct Cut {
    /// New records in ascending order, all above those the store holds.
    pub records: Records,
    /// Records to be removed, ascending; one that is not there is passed over. They must stem from compactions at or
    /// below the cut's index. What is too much for one checkpoint comes back in the commit.
    pub deletes: Vec<RecordId>,
    /// Changes of the small trees.
    pub trees: BTreeMap<TreeId, TreeUpdates>,
    /// The state as of the cut.
    pub fields: StateFields,
    /// Whether it may use the room that is kept for when the disk is full. What a commit frees can be used two commits
    /// later, so after a compaction on a full disk one or two urgent cuts, even empty ones, let normal ones in again.
    pub urgent: bool,
    /// Now, in milliseconds of any monotonic clock: dates pins.
    pub now_ms: u64,
}

impl Cut {
    /// A cut that changes nothing but the fields.
    pub fn new(fields: StateFields, now_ms: u64) -> Cut {
        Cut {
            records: Box::new(std::iter::empty()),
            deletes: Vec::new(),
            trees: BTreeMap::new(),
            fields,
            urgent: false,
            now_ms,
        }
    }

    fn check(&self) -> Result<(), CutError> {
        if self.fields.membership.len() > MEMBERSHIP_MAX_BYTES {
            return Err(CutError::Membership {
                length: self.fields.membership.len(),
            });
        }
        for (&tree, updates) in &self.trees {
            if tree == TreeId::Records {
                return Err(CutError::Records);
            }
            if let Some(key) = updates.keys().find(|key| key.len() > KEY_MAX_BYTES) {
                return Err(CutError::Key {
                    tree,
                    length: key.len(),
                });
            }
        }
        if !self.deletes.is_sorted_by(|left, right| left < right) {
            return Err(CutError::Order);
        }
        Ok(())
    }
}

/// A checkpoint that became durable.
#[derive(Debug)]
pub struct Commit {
    /// The new state of the file.
    pub root: Root,
    /// Deletes that were not made; they belong into the next cut.
    pub remaining_deletes: Vec<RecordId>,
    /// Bytes written.
    pub written_bytes: u64,
}

/// How far the store is.
#[derive(Debug)]
pub enum Progress {
    /// There is nothing to do.
    Idle,
    /// More work can be done at once.
    Busy,
    /// Nothing can be done before an operation completes.
    Waiting,
    /// The checkpoint is durable. Some steps that give space back follow.
    Committed(Commit),
    /// The checkpoint was given up; the store is as before it began.
    Aborted(Aborted),
}

/// Where a checkpoint is.
enum Phase {
    /// Pages that nothing holds any more become available.
    Reclaim {
        live: Vec<u64>,
        cursor: Cursor,
    },
    Trees,
    FreeList,
    /// All data is queued.
    Data {
        free_list: (ExtentRef, u32),
    },
    Sync {
        free_list: (ExtentRef, u32),
    },
    Meta {
        free_list: (ExtentRef, u32),
    },
    Durable {
        free_list: (ExtentRef, u32),
    },
}

/// A running checkpoint.
pub(super) struct Checkpoint {
    out: Output,
    phase: Phase,
    trees: [TreeRef; TREE_COUNT],
    rewriter: Rewriter,
    updates: BTreeMap<TreeId, TreeUpdates>,
    fields: StateFields,
    now_ms: u64,
    /// Pages wanted and not yet asked for.
    wanted: Vec<PageAddress>,
    reads: usize,
    remaining_deletes: Vec<RecordId>,
    aborted: Option<Aborted>,
    /// Pages for which the disk had no room.
    unbacked: Vec<(u32, u32)>,
}

impl Checkpoint {
    pub fn space(&self) -> &FreeSpace {
        &self.out.space
    }

    fn abort(&mut self, reason: Aborted) {
        self.aborted.get_or_insert(reason);
    }

    /// Does one unit of work on the trees.
    fn unit(&mut self, cache: &mut super::cache::PageCache) {
        let limit_bytes = u64::from(self.out.space.limit) * PAGE_BYTES as u64;
        match self.rewriter.advance(cache, &mut self.out) {
            Ok(None) => {}
            Ok(Some(root)) => {
                self.remaining_deletes.append(&mut self.rewriter.remaining);
                self.trees[self.rewriter.tree() as usize] = root;
                match next_tree(&self.rewriter, &mut self.updates, &self.trees) {
                    Some(rewriter) => self.rewriter = rewriter,
                    None => self.phase = Phase::FreeList,
                }
            }
            Err(Stop::Missing(addresses)) => self.wanted = addresses,
            Err(Stop::LimitReached) => self.abort(Aborted::Limit { limit_bytes }),
        }
    }
}

/// The rewriting of the tree after this one.
fn next_tree(
    done: &Rewriter,
    updates: &mut BTreeMap<TreeId, TreeUpdates>,
    trees: &[TreeRef; TREE_COUNT],
) -> Option<Rewriter> {
    let tree = *TreeId::ALL.get(done.tree() as usize + 1)?;
    let updates = updates.remove(&tree).unwrap_or_default();
    Some(Rewriter::new(
        trees[tree as usize],
        Changes::Tree { tree, updates },
        u32::MAX,
    ))
}

impl PageStore {
    /// Whether a checkpoint can begin.
    pub fn is_idle(&self) -> bool {
        matches!(self.activity, Activity::Idle)
    }

    /// Begins a checkpoint. The store must be idle.
    pub fn begin(&mut self, cut: Cut) -> Result<(), CutError> {
        assert!(self.is_idle(), "one checkpoint at a time");
        cut.check()?;
        let (live, cursor) = (self.live(), Cursor::default());
        // An urgent one spends the reserve on what it is for.
        let below = if cut.urgent { None } else { self.relocation_start() };
        let journal = self.space.journal(cut.urgent, below);
        let mut out = Output::new(self.next_generation, std::mem::take(&mut self.space), journal);
        if let Some(below) = below {
            (out.relocate_from, out.relocate_budget) = (below, RELOCATE_PAGES);
        }
        self.next_generation += 1;
        let delete_pages = if cut.urgent {
            DELETE_PAGES.min(self.options.reserve_pages / 8).max(8)
        } else {
            DELETE_PAGES
        };
        let trees = self.root.inner.trees;
        let changes = Changes::records(cut.deletes, cut.records);
        self.activity = Activity::Checkpoint(Box::new(Checkpoint {
            out,
            phase: Phase::Reclaim { live, cursor },
            trees,
            rewriter: Rewriter::new(trees[TreeId::Records as usize], changes, delete_pages),
            updates: cut.trees,
            fields: cut.fields,
            now_ms: cut.now_ms,
            wanted: Vec::new(),
            reads: 0,
            remaining_deletes: Vec::new(),
            aborted: None,
            unbacked: Vec::new(),
        }));
        Ok(())
    }

    /// From which page on pages are to be moved down, when much of what lies below the highest page in use is free. The
    /// reserve counts there like any other free page: it belongs behind what is in use.
    fn relocation_start(&self) -> Option<u32> {
        if self.space_return_off || self.space.full {
            return None;
        }
        let roots = self.root.inner.trees.iter().filter_map(|tree| tree.root);
        let highest = roots.map(|root| root.highest).max()?;
        let holes = self.space.available.count_in(0..highest);
        if u64::from(holes) * 100 < u64::from(highest) * u64::from(RELOCATE_FREE_PERCENT) {
            return None;
        }
        // What is moved takes room beyond the reserve until its old pages are free.
        let spare = self.space.available.pages().saturating_sub(self.space.reserve);
        let (lowest_hole, _) = self.space.available.iter().next()?;
        // In a short file that is all there is behind the lowest hole.
        let start = (highest + 1)
            .saturating_sub(RELOCATE_PAGES.min(spare / 2))
            .max(lowest_hole + 1);
        (start <= highest).then_some(start)
    }

    /// Whether a token is one of the store's.
    pub fn owns(&self, token: u64) -> bool {
        self.options.tokens.contains(&token)
    }

    /// Does a bounded amount of work and submits what it leads to.
    pub fn step(&mut self, disk: &mut dyn Disk) -> Result<Progress, StoreFailure> {
        if self.dead {
            return Err(StoreFailure::Dead);
        }
        match &self.activity {
            Activity::Idle => Ok(Progress::Idle),
            Activity::SpaceReturn(_) => Ok(self.step_space_return(disk)),
            Activity::Checkpoint(checkpoint) if checkpoint.aborted.is_some() => Ok(self.step_abort()),
            Activity::Checkpoint(_) => Ok(self.step_checkpoint(disk)),
        }
    }

    fn step_checkpoint(&mut self, disk: &mut dyn Disk) -> Progress {
        self.work();
        self.submit_waiting(disk);
        let (idle, free) = (self.in_flight == 0, self.in_flight < self.slots.len());
        let Activity::Checkpoint(checkpoint) = &mut self.activity else {
            unreachable!("called in this activity");
        };
        if checkpoint.aborted.is_some() {
            return Progress::Busy;
        }
        match checkpoint.phase {
            Phase::Reclaim { .. } => Progress::Busy,
            Phase::Trees if checkpoint.reads > 0 || !checkpoint.wanted.is_empty() => Progress::Waiting,
            Phase::Trees | Phase::FreeList if !free => Progress::Waiting,
            Phase::Trees | Phase::FreeList
                if self.in_flight_bytes + checkpoint.out.queued_bytes() >= IN_FLIGHT_BYTES =>
            {
                Progress::Waiting
            }
            Phase::Trees | Phase::FreeList => Progress::Busy,
            Phase::Data { free_list } if idle && checkpoint.out.queued_bytes() == 0 => {
                checkpoint.phase = Phase::Sync { free_list };
                self.submit(disk, InFlight::Sync, Operation::Sync { file: self.file });
                Progress::Waiting
            }
            Phase::Sync { free_list } if idle => {
                checkpoint.phase = Phase::Meta { free_list };
                let operation = self.meta_write(free_list);
                self.submit(disk, InFlight::Meta, operation);
                Progress::Waiting
            }
            Phase::Durable { free_list } => self.commit(free_list),
            Phase::Data { .. } | Phase::Sync { .. } | Phase::Meta { .. } => Progress::Waiting,
        }
    }

    /// Rewrites trees until the step's budget is spent, a page is missing or enough is in flight.
    fn work(&mut self) {
        let Activity::Checkpoint(checkpoint) = &mut self.activity else {
            unreachable!("called in this activity");
        };
        for _ in 0..STEP_UNITS {
            let pending = self.in_flight_bytes + checkpoint.out.queued_bytes();
            if checkpoint.aborted.is_some() || pending >= IN_FLIGHT_BYTES {
                return;
            }
            match &mut checkpoint.phase {
                Phase::Reclaim { live, cursor } => {
                    let space = &mut checkpoint.out.space;
                    if space.reclaim(cursor, self.older_generation, live, RECLAIM_UNIT_RUNS) {
                        checkpoint.phase = Phase::Trees;
                    }
                }
                Phase::Trees if checkpoint.reads == 0 && checkpoint.wanted.is_empty() => {
                    checkpoint.unit(&mut self.cache)
                }
                Phase::FreeList => {
                    let limit_bytes = u64::from(checkpoint.out.space.limit) * PAGE_BYTES as u64;
                    match checkpoint.out.free_list(self.free_list.map(|(extent, _)| extent)) {
                        Ok(free_list) => checkpoint.phase = Phase::Data { free_list },
                        Err(_) => checkpoint.abort(Aborted::Limit { limit_bytes }),
                    }
                }
                _ => return,
            }
        }
    }

    /// Submits queued writes and wanted reads as far as there are tokens.
    fn submit_waiting(&mut self, disk: &mut dyn Disk) {
        while self.in_flight < self.slots.len() {
            let Activity::Checkpoint(checkpoint) = &mut self.activity else {
                return;
            };
            if checkpoint.aborted.is_some() {
                return;
            }
            if let Some(address) = checkpoint.wanted.pop() {
                checkpoint.reads += 1;
                let buffer = AlignedBuffer::zeroed(address.length());
                let operation = Operation::Read {
                    file: self.file,
                    offset: address.offset(),
                    buffer,
                };
                self.submit(disk, InFlight::Read { address }, operation);
            } else if let Some(write) = checkpoint.out.pop() {
                let bytes = write.buffer.len();
                self.in_flight_bytes += bytes;
                let (file, offset, buffer) = (self.file, write.offset, write.buffer);
                let operation = Operation::Write {
                    file,
                    offset,
                    buffer,
                    durable: false,
                };
                let page = (offset / PAGE_BYTES as u64) as u32;
                self.submit(disk, InFlight::Write { page, bytes }, operation);
            } else {
                return;
            }
        }
    }

    fn meta_write(&self, free_list: (ExtentRef, u32)) -> Operation {
        let Activity::Checkpoint(checkpoint) = &self.activity else {
            unreachable!("called in this activity");
        };
        let meta = Meta {
            generation: checkpoint.out.generation,
            trees: checkpoint.trees,
            fields: checkpoint.fields.clone(),
            file_pages: checkpoint.out.space.file_pages,
            free_list: Some(free_list),
        };
        assert!(meta.generation > self.root.generation(), "commits are numbered upwards");
        let mut buffer = AlignedBuffer::zeroed(PAGE_BYTES);
        meta.encode(&mut buffer);
        let offset = (1 - self.meta_slot) as u64 * PAGE_BYTES as u64;
        Operation::Write {
            file: self.file,
            offset,
            buffer,
            durable: true,
        }
    }

    pub(super) fn submit(&mut self, disk: &mut dyn Disk, what: InFlight, operation: Operation) {
        let slot = self
            .slots
            .iter()
            .position(Option::is_none)
            .expect("fewer in flight than slots");
        self.slots[slot] = Some(what);
        self.in_flight += 1;
        disk.submit(self.options.tokens.start + slot as u64, operation);
    }

    /// Takes the end of one of the store's operations.
    pub fn completed(&mut self, completion: Completion) -> Result<(), StoreFailure> {
        assert!(self.owns(completion.token), "not a token of the store");
        let slot = (completion.token - self.options.tokens.start) as usize;
        let what = self.slots[slot].take().expect("the operation was in flight");
        self.in_flight -= 1;
        if let InFlight::Write { bytes, .. } = what {
            self.in_flight_bytes -= bytes;
        }
        let doing = match (what, &mut self.activity) {
            (InFlight::Space, _) => {
                self.space_returned(completion.result);
                return Ok(());
            }
            (InFlight::Read { address }, Activity::Checkpoint(checkpoint)) => {
                checkpoint.reads -= 1;
                match completion.result {
                    Ok(outcome) => {
                        let (buffer, length) = read_outcome(outcome);
                        if let Err(corrupt) = self.cache.insert(&address, &buffer[..length]) {
                            checkpoint.abort(Aborted::Corrupt(corrupt));
                        }
                    }
                    Err(error) => checkpoint.abort(Aborted::Read(error)),
                }
                return Ok(());
            }
            (InFlight::Write { page, bytes }, Activity::Checkpoint(checkpoint)) => match completion.result {
                Ok(_) => return Ok(()),
                Err(error) if error.is_no_space() => {
                    checkpoint.out.space.full = true;
                    checkpoint.unbacked.push((page, (bytes / PAGE_BYTES) as u32));
                    checkpoint.abort(Aborted::DiskFull(error));
                    return Ok(());
                }
                Err(error) => ("writing pages", error),
            },
            (InFlight::Sync, Activity::Checkpoint(_)) => match completion.result {
                Ok(_) => return Ok(()),
                Err(error) => ("syncing pages", error),
            },
            (InFlight::Meta, Activity::Checkpoint(checkpoint)) => match completion.result {
                Ok(Outcome::Written { .. }) => {
                    if let Phase::Meta { free_list } = checkpoint.phase {
                        checkpoint.phase = Phase::Durable { free_list };
                    }
                    return Ok(());
                }
                Ok(other) => unreachable!("a write answered {other:?}"),
                Err(error) => ("writing a meta page", error),
            },
            (what, _) => unreachable!("{what:?} without a checkpoint"),
        };
        self.dead = true;
        Err(StoreFailure::Disk {
            doing: doing.0,
            source: doing.1,
        })
    }

    /// Waits for what is in flight, then gives everything back.
    fn step_abort(&mut self) -> Progress {
        if self.in_flight > 0 {
            return Progress::Waiting;
        }
        let Activity::Checkpoint(checkpoint) = std::mem::replace(&mut self.activity, Activity::Idle) else {
            unreachable!("called in this activity");
        };
        let Output { mut space, journal, .. } = checkpoint.out;
        let grown = space.undo(journal);
        for (start, length) in checkpoint.unbacked {
            space.note_unbacked(start, length);
        }
        self.space = space;
        self.note_sizes();
        self.begin_space_return(grown);
        Progress::Aborted(checkpoint.aborted.expect("called when aborted"))
    }

    /// The meta is durable: the new state is the store's.
    fn commit(&mut self, free_list: (ExtentRef, u32)) -> Progress {
        let Activity::Checkpoint(checkpoint) = std::mem::replace(&mut self.activity, Activity::Idle) else {
            unreachable!("called in this activity");
        };
        let Checkpoint {
            out,
            trees,
            fields,
            now_ms,
            remaining_deletes,
            ..
        } = *checkpoint;
        self.older_generation = self.root.generation();
        self.older_applied_index = self.root.fields().applied_index;
        self.space = out.space;
        self.space.pending.push(Batch {
            generation: out.generation,
            runs: out.freed,
        });
        self.root = Root::new(out.generation, trees, fields);
        self.meta_slot = 1 - self.meta_slot;
        self.free_list = Some(free_list);
        self.publish(now_ms);
        self.note_sizes();
        self.begin_space_return(false);
        let written_bytes = (u64::from(out.pages_written) + 1) * PAGE_BYTES as u64;
        Progress::Committed(Commit {
            root: self.root.clone(),
            remaining_deletes,
            written_bytes,
        })
    }

    /// Finishes what follows a checkpoint, so that the next can begin. For boot, tests and tools.
    pub fn settle(&mut self, disk: &mut dyn Disk) -> Result<(), StoreFailure> {
        assert!(
            !matches!(self.activity, Activity::Checkpoint(_)),
            "no checkpoint is running"
        );
        let mut completions = Vec::new();
        while let Progress::Waiting | Progress::Busy = self.step(disk)? {
            disk.wait(&mut completions);
            for completion in completions.drain(..) {
                self.completed(completion)?;
            }
        }
        Ok(())
    }

    /// Runs a whole checkpoint with a disk on which nothing else is in flight. For boot, tests and tools.
    pub fn run(&mut self, disk: &mut dyn Disk, cut: Cut) -> Result<Result<Commit, Aborted>, StoreFailure> {
        if let Err(error) = self.begin(cut) {
            panic!("a cut that the caller checked: {error}");
        }
        let mut answer = None;
        let mut completions = Vec::new();
        loop {
            match self.step(disk)? {
                Progress::Idle => return Ok(answer.expect("a checkpoint ends before the store is idle")),
                Progress::Busy => {}
                Progress::Committed(commit) => answer = Some(Ok(commit)),
                Progress::Aborted(reason) => answer = Some(Err(reason)),
                Progress::Waiting => {
                    disk.wait(&mut completions);
                    for completion in completions.drain(..) {
                        self.completed(completion)?;
                    }
                }
            }
        }
    }
}
