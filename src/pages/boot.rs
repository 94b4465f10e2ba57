//! Reading all records' heads at boot, to rebuild the index: leaves only, in few and long reads.
//!
//! Leaves come in batches, in key order; within a batch they are read in the order in which they lie in the file,
//! with several reads in flight, so that an aged file is read nearly as fast as a fresh one. While one batch is used
//! the next is being read. A batch is verified and decoded on any thread. Memory: two batches, and what the caller
//! keeps of them.

use super::cache::Block;
use super::failure::StoreFailure;
use super::node::{LeafEntry, Node};
use super::page::{Corrupt, ExtentRef, PageAddress, TreeId};
use super::record::{Parsed, RecordHead, parse};
use super::root::{Root, not_a_record};
use super::store::{PageStore, read_outcome};
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Completion, Disk, DiskError, Operation};
use crate::limits::pages::{BOOT_GAP_PAGES, BOOT_LEAVES, BOOT_READ_BYTES, BOOT_READS, BOOT_SPARE_BYTES, PAGE_BYTES};
use std::collections::VecDeque;

const RECORDS: u8 = TreeId::Records as u8;

/// A walk over the leaves of all records of one root.
pub struct BootScan {
    root: Root,
    /// Nodes above the parents of leaves on the way to the next leaf: level, node, next child.
    path: Vec<(u8, Block, usize)>,
    /// Parents of leaves, read together, and the next child of the first.
    parents: VecDeque<Block>,
    next_child: usize,
    /// A tree of one leaf, not yet read.
    single: Option<PageAddress>,
    reading: Option<Reading>,
    spare: Spare,
}

/// Some leaves as they were read, in key order.
pub struct LeafBatch {
    addresses: Vec<PageAddress>,
    pages: ReadPages,
}

/// What a decoded batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All of it was visited.
    Whole,
    /// A user key lies outside its leaf: visit the batch anew with [`BootScan::heads`]. What was visited is void.
    KeysOutside,
}

impl LeafBatch {
    /// Verifies the leaves and visits their records in order.
    pub fn heads(&self, mut visit: impl FnMut(RecordHead<'_>)) -> Result<Decoded, Corrupt> {
        for (index, address) in self.addresses.iter().enumerate() {
            let leaf = self.leaf(index, address)?;
            for entry in (0..leaf.count()).map(|index| leaf.leaf_entry(index)) {
                let parsed = parse(&entry).ok_or_else(|| not_a_record(address))?;
                if outside_extent(&entry, &parsed).is_some() {
                    return Ok(Decoded::KeysOutside);
                }
                visit(parsed.head);
            }
        }
        Ok(Decoded::Whole)
    }

    fn leaf(&self, index: usize, address: &PageAddress) -> Result<Node<'_>, Corrupt> {
        let bytes = self.pages.page(index);
        Node::check(address, bytes).map_err(|reason| address.corrupt(reason))?;
        Ok(Node::new(bytes))
    }
}

fn outside_extent(entry: &LeafEntry<'_>, parsed: &Parsed<'_>) -> Option<ExtentRef> {
    let outside = entry.outside.filter(|_| parsed.key_outside > 0)?;
    Some(outside.extent)
}

impl BootScan {
    /// A scan of the newest commit from its first record on. Until its end nothing else may use the disk.
    pub fn new(store: &PageStore, disk: &mut dyn Disk) -> Result<BootScan, StoreFailure> {
        let root = store.root().clone();
        let start = root.inner.trees[TreeId::Records as usize];
        let mut scan = BootScan {
            root,
            path: Vec::new(),
            parents: VecDeque::new(),
            next_child: 0,
            single: None,
            reading: None,
            spare: Spare::default(),
        };
        match (start.root, start.height) {
            (None, _) => {}
            (Some(leaf), 1) => scan.single = Some(leaf.address(RECORDS, 0)),
            (Some(node), height) => {
                let level = height - 1;
                let block = read(store, disk, &node.address(RECORDS, level))?;
                match level {
                    1 => scan.parents.push_back(block),
                    _ => scan.path.push((level, block, 0)),
                }
            }
        }
        scan.read_on(store, disk)?;
        Ok(scan)
    }

    /// The next leaves; `None` at the end. Those that follow are being read when this returns.
    pub fn next(&mut self, store: &PageStore, disk: &mut dyn Disk) -> Result<Option<LeafBatch>, StoreFailure> {
        self.await_reads(store, disk);
        let Some(reading) = self.reading.take() else {
            return Ok(None);
        };
        let (addresses, pages) = reading.finish()?;
        self.read_on(store, disk)?;
        Ok(Some(LeafBatch { addresses, pages }))
    }

    /// Ends the scan before its end.
    pub fn stop(mut self, store: &PageStore, disk: &mut dyn Disk) {
        self.await_reads(store, disk);
    }

    /// Takes back the memory of a batch that is done with.
    pub fn recycle(&mut self, batch: LeafBatch) {
        for (buffer, _) in batch.pages.buffers {
            self.spare.put(buffer);
        }
    }

    /// Visits the records of a batch in order, those too whose user key lies outside the leaf: slower, as it reads
    /// values beside which such keys lie, one after the other.
    pub fn heads<E: From<StoreFailure>>(
        &mut self,
        store: &PageStore,
        disk: &mut dyn Disk,
        batch: &LeafBatch,
        mut visit: impl FnMut(RecordHead<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.await_reads(store, disk);
        let mut last: Option<(u32, Block)> = None;
        for (index, address) in batch.addresses.iter().enumerate() {
            let leaf = batch.leaf(index, address).map_err(|source| corrupt(store, source))?;
            for entry in (0..leaf.count()).map(|index| leaf.leaf_entry(index)) {
                let parsed = parse(&entry).ok_or_else(|| corrupt(store, not_a_record(address)))?;
                let (Some(extent), Some(outside)) = (outside_extent(&entry, &parsed), entry.outside) else {
                    visit(parsed.head)?;
                    continue;
                };
                let block = match last.take() {
                    Some((page, block)) if page == extent.page => block,
                    _ => read(store, disk, &extent.address())?,
                };
                visit(parsed.head_with(block.outside(&outside)))?;
                last = Some((extent.page, block));
            }
        }
        Ok(())
    }

    /// Begins to read the next leaves, if there are any.
    fn read_on(&mut self, store: &PageStore, disk: &mut dyn Disk) -> Result<(), StoreFailure> {
        assert!(self.reading.is_none());
        assert_eq!(
            self.root.generation(),
            store.root().generation(),
            "a boot scan is of the newest commit"
        );
        let addresses = self.collect(store, disk)?;
        if !addresses.is_empty() {
            let mut reading = Reading::new(addresses, store);
            reading.submit(store, disk, &mut self.spare);
            self.reading = Some(reading);
        }
        Ok(())
    }

    /// Waits until nothing is in flight.
    fn await_reads(&mut self, store: &PageStore, disk: &mut dyn Disk) {
        if let Some(reading) = &mut self.reading {
            reading.run(store, disk, &mut self.spare);
        }
    }

    /// The addresses of the next leaves.
    fn collect(&mut self, store: &PageStore, disk: &mut dyn Disk) -> Result<Vec<PageAddress>, StoreFailure> {
        let mut addresses: Vec<PageAddress> = self.single.take().into_iter().collect();
        while addresses.len() < BOOT_LEAVES && self.has_parent(store, disk)? {
            let node = Node::new(self.parents[0].bytes());
            let (from, to) = (self.next_child, node.count());
            let to = to.min(from + BOOT_LEAVES - addresses.len());
            addresses.extend((from..to).map(|index| node.child(index).1.address(RECORDS, 0)));
            self.next_child = to;
            if to == node.count() {
                self.parents.pop_front();
                self.next_child = 0;
            }
        }
        Ok(addresses)
    }

    /// Whether there are more leaves; then their parent is in memory.
    fn has_parent(&mut self, store: &PageStore, disk: &mut dyn Disk) -> Result<bool, StoreFailure> {
        while self.parents.is_empty() {
            let Some((level, block, next)) = self.path.last_mut() else {
                return Ok(false);
            };
            let (level, node) = (*level - 1, Node::new(block.bytes()));
            if *next == node.count() {
                self.path.pop();
            } else if level == 1 {
                let addresses = (0..node.count()).map(|index| node.child(index).1.address(RECORDS, 1));
                let mut reading = Reading::new(addresses.collect(), store);
                *next = node.count();
                reading.run(store, disk, &mut self.spare);
                let (addresses, pages) = reading.finish()?;
                for (index, address) in addresses.iter().enumerate() {
                    let block = Block::verified(address, pages.page(index));
                    self.parents.push_back(block.map_err(|source| corrupt(store, source))?);
                }
            } else {
                let child = node.child(*next).1.address(RECORDS, level);
                *next += 1;
                let block = read(store, disk, &child)?;
                self.path.push((level, block, 0));
            }
        }
        Ok(true)
    }
}

fn read(store: &PageStore, disk: &mut dyn Disk, address: &PageAddress) -> Result<Block, StoreFailure> {
    let (buffer, length) = disk
        .read(store.file(), address.offset(), address.length())
        .map_err(failed)?;
    Block::verified(address, &buffer[..length]).map_err(|source| corrupt(store, source))
}

fn failed(source: DiskError) -> StoreFailure {
    StoreFailure::Disk {
        doing: "reading records",
        source,
    }
}

fn corrupt(store: &PageStore, source: Corrupt) -> StoreFailure {
    StoreFailure::Corrupt {
        path: store.path().to_path_buf(),
        source,
    }
}

/// Pages that one read brings.
struct Run {
    first: u32,
    pages: u32,
}

/// Pages read, by the order in which they were asked for.
struct ReadPages {
    /// One for each run, and how much of it was filled.
    buffers: Vec<(AlignedBuffer, usize)>,
    /// Of each page the run and the place in it, in bytes.
    places: Vec<(u32, u32)>,
}

impl ReadPages {
    /// A page, or what there is of it.
    fn page(&self, index: usize) -> &[u8] {
        let (run, from) = self.places[index];
        let (buffer, length) = &self.buffers[run as usize];
        let filled = &buffer[..*length];
        let page = filled.get(from as usize..).unwrap_or(&[]);
        &page[..page.len().min(PAGE_BYTES)]
    }
}

/// Single pages being read.
struct Reading {
    addresses: Vec<PageAddress>,
    runs: Vec<Run>,
    places: Vec<(u32, u32)>,
    buffers: Vec<Option<(AlignedBuffer, usize)>>,
    submitted: usize,
    completed: usize,
    /// The run that each token is used for.
    tokens: Vec<usize>,
    free_tokens: Vec<usize>,
    failure: Option<DiskError>,
}

impl Reading {
    fn new(addresses: Vec<PageAddress>, store: &PageStore) -> Reading {
        let (runs, places) = runs(&addresses);
        let in_flight_max = BOOT_READS.min(store.slots.len());
        Reading {
            addresses,
            places,
            buffers: runs.iter().map(|_| None).collect(),
            runs,
            submitted: 0,
            completed: 0,
            tokens: vec![0; in_flight_max],
            free_tokens: (0..in_flight_max).rev().collect(),
            failure: None,
        }
    }

    /// Hands as many reads to the disk as may be in flight.
    fn submit(&mut self, store: &PageStore, disk: &mut dyn Disk, spare: &mut Spare) {
        while self.submitted < self.runs.len() && self.failure.is_none() {
            let Some(token) = self.free_tokens.pop() else {
                break;
            };
            let run = &self.runs[self.submitted];
            self.tokens[token] = self.submitted;
            let operation = Operation::Read {
                file: store.file(),
                offset: u64::from(run.first) * PAGE_BYTES as u64,
                buffer: spare.take(run.pages),
            };
            disk.submit(store.options.tokens.start + token as u64, operation);
            self.submitted += 1;
        }
    }

    /// Brings it to its end.
    fn run(&mut self, store: &PageStore, disk: &mut dyn Disk, spare: &mut Spare) {
        let mut completions: Vec<Completion> = Vec::new();
        loop {
            self.submit(store, disk, spare);
            if self.completed == self.submitted {
                return;
            }
            disk.wait(&mut completions);
            for Completion { token, result } in completions.drain(..) {
                let token = (token - store.options.tokens.start) as usize;
                self.free_tokens.push(token);
                self.completed += 1;
                match result {
                    Ok(outcome) => self.buffers[self.tokens[token]] = Some(read_outcome(outcome)),
                    Err(error) => self.failure = self.failure.take().or(Some(error)),
                }
            }
        }
    }

    fn finish(self) -> Result<(Vec<PageAddress>, ReadPages), StoreFailure> {
        if let Some(error) = self.failure {
            return Err(failed(error));
        }
        let buffers: Option<Vec<_>> = self.buffers.into_iter().collect();
        let pages = ReadPages {
            buffers: buffers.expect("every read has completed"),
            places: self.places,
        };
        Ok((self.addresses, pages))
    }
}

/// Joins pages that lie close together into runs, and says where each page is.
fn runs(addresses: &[PageAddress]) -> (Vec<Run>, Vec<(u32, u32)>) {
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_unstable_by_key(|&index| addresses[index].number);
    let mut runs: Vec<Run> = Vec::new();
    let mut places = vec![(0, 0); addresses.len()];
    for index in order {
        let page = addresses[index].number;
        match runs.last_mut() {
            Some(run)
                if page <= run.first + run.pages + BOOT_GAP_PAGES
                    && ((page - run.first + 1) as usize) * PAGE_BYTES <= BOOT_READ_BYTES =>
            {
                // A damaged parent may name a page twice.
                run.pages = run.pages.max(page - run.first + 1);
            }
            _ => runs.push(Run { first: page, pages: 1 }),
        }
        let run = runs.len() - 1;
        places[index] = (run as u32, (page - runs[run].first) * PAGE_BYTES as u32);
    }
    (runs, places)
}

/// Buffers to use again, by the power of two of pages that they hold.
#[derive(Default)]
struct Spare {
    classes: [Vec<AlignedBuffer>; CLASSES],
    bytes: usize,
}

const CLASSES: usize = (BOOT_READ_BYTES / PAGE_BYTES).ilog2() as usize + 1;

impl Spare {
    fn take(&mut self, pages: u32) -> AlignedBuffer {
        let class = pages.next_power_of_two().trailing_zeros() as usize;
        let capacity = PAGE_BYTES << class;
        let buffer = match self.classes[class].pop() {
            Some(buffer) => {
                self.bytes -= capacity;
                buffer
            }
            None => AlignedBuffer::zeroed(capacity),
        };
        buffer.with_length(pages as usize * PAGE_BYTES)
    }

    fn put(&mut self, buffer: AlignedBuffer) {
        let class = (buffer.capacity() / PAGE_BYTES).ilog2() as usize;
        let capacity = PAGE_BYTES << class;
        if self.bytes + capacity <= BOOT_SPARE_BYTES {
            self.bytes += capacity;
            self.classes[class].push(buffer);
        }
    }
}
