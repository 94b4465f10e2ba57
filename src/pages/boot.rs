//! Reading all records' heads at boot, to rebuild the index: leaves only, in few and long reads.
//!
//! Leaves come in batches, in key order; within a batch they are read in the order in which they lie in the file, with
//! several reads in flight, so that an aged file is read nearly as fast as a fresh one. A batch can be decoded on any
//! thread.

use super::cache::Block;
use super::failure::StoreFailure;
use super::node::Node;
use super::page::{Corrupt, NodeRef, PageAddress, TreeId};
use super::record::{RecordHead, parse};
use super::root::{Root, not_a_record};
use super::store::{PageStore, read_outcome};
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Completion, Disk, Operation};
use crate::limits::pages::{BOOT_GAP_PAGES, BOOT_LEAVES, BOOT_READ_BYTES, BOOT_READS, PAGE_BYTES};
use std::collections::HashMap;

/// A walk over the leaves of all records of one root.
pub struct BootScan {
    root: Root,
    /// Inner nodes on the way to the next leaf: level, node, next child.
    path: Vec<(u8, Block, usize)>,
    /// A tree of one leaf, not yet read.
    single: Option<PageAddress>,
}

/// Some leaves, in key order.
pub struct LeafBatch {
    leaves: Vec<(PageAddress, Block)>,
    /// The extents of records whose user key does not fit into a leaf, by first page.
    extents: HashMap<u32, Block>,
}

impl LeafBatch {
    /// Visits the records of the batch in order.
    pub fn heads(&self, mut visit: impl FnMut(RecordHead<'_>)) -> Result<(), Corrupt> {
        for (address, block) in &self.leaves {
            let node = Node::new(block.bytes());
            for index in 0..node.count() {
                let entry = node.leaf_entry(index);
                let parsed = parse(&entry).ok_or_else(|| not_a_record(address))?;
                match entry.outside.filter(|_| parsed.key_outside > 0) {
                    None => visit(parsed.head),
                    Some(outside) => visit(parsed.head_with(self.extents[&outside.extent.page].outside(&outside))),
                }
            }
        }
        Ok(())
    }
}

/// Pages that one read brings.
struct Run {
    first: u32,
    pages: u32,
    /// Which leaves of the batch lie there.
    leaves: Vec<usize>,
}

impl BootScan {
    /// A scan of the newest commit from its first record on.
    pub fn new(store: &PageStore, disk: &mut dyn Disk) -> Result<BootScan, StoreFailure> {
        let root = store.root().clone();
        let start = root.inner.trees[TreeId::Records as usize];
        let mut scan = BootScan {
            root,
            path: Vec::new(),
            single: None,
        };
        match start.root {
            None => {}
            Some(leaf) if start.height == 1 => scan.single = Some(leaf.address(TreeId::Records as u8, 0)),
            Some(node) => scan.enter(store, disk, &node, start.height - 1)?,
        }
        Ok(scan)
    }

    fn enter(&mut self, store: &PageStore, disk: &mut dyn Disk, node: &NodeRef, level: u8) -> Result<(), StoreFailure> {
        let block = read(store, disk, &node.address(TreeId::Records as u8, level))?;
        self.path.push((level, block, 0));
        Ok(())
    }

    /// Reads the next leaves; `None` at the end. Nothing else may be in flight on the disk.
    pub fn next(&mut self, store: &PageStore, disk: &mut dyn Disk) -> Result<Option<LeafBatch>, StoreFailure> {
        assert_eq!(
            self.root.generation(),
            store.root().generation(),
            "a boot scan is of the newest commit"
        );
        let addresses = self.collect(store, disk)?;
        if addresses.is_empty() {
            return Ok(None);
        }
        let leaves = read_leaves(store, disk, &addresses)?;
        let mut extents = HashMap::new();
        for (_, block) in &leaves {
            let node = Node::new(block.bytes());
            for entry in (0..node.count()).map(|index| node.leaf_entry(index)) {
                if let Some(outside) = entry.outside
                    && parse(&entry).is_some_and(|parsed| parsed.key_outside > 0)
                    && !extents.contains_key(&outside.extent.page)
                {
                    extents.insert(outside.extent.page, read(store, disk, &outside.extent.address())?);
                }
            }
        }
        Ok(Some(LeafBatch { leaves, extents }))
    }

    /// The addresses of the next leaves.
    fn collect(&mut self, store: &PageStore, disk: &mut dyn Disk) -> Result<Vec<PageAddress>, StoreFailure> {
        let mut addresses: Vec<PageAddress> = self.single.take().into_iter().collect();
        while addresses.len() < BOOT_LEAVES {
            let Some((level, block, next)) = self.path.last_mut() else {
                break;
            };
            let node = Node::new(block.bytes());
            if *next == node.count() {
                self.path.pop();
                continue;
            }
            let (_, child) = node.child(*next);
            let below = *level - 1;
            *next += 1;
            if below == 0 {
                addresses.push(child.address(TreeId::Records as u8, 0));
            } else {
                self.enter(store, disk, &child, below)?;
            }
        }
        Ok(addresses)
    }
}

fn read(store: &PageStore, disk: &mut dyn Disk, address: &PageAddress) -> Result<Block, StoreFailure> {
    let (buffer, length) = disk
        .read(store.file(), address.offset(), address.length())
        .map_err(failed)?;
    Block::verified(address, &buffer[..length]).map_err(|source| corrupt(store, source))
}

fn failed(source: crate::io::disk::DiskError) -> StoreFailure {
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

/// Joins leaves that lie close together into runs.
fn runs(addresses: &[PageAddress]) -> Vec<Run> {
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_unstable_by_key(|&index| addresses[index].number);
    let mut runs: Vec<Run> = Vec::new();
    for index in order {
        let page = addresses[index].number;
        match runs.last_mut() {
            Some(run)
                if page <= run.first + run.pages + BOOT_GAP_PAGES
                    && ((page - run.first + 1) as usize) * PAGE_BYTES <= BOOT_READ_BYTES =>
            {
                run.pages = page - run.first + 1;
                run.leaves.push(index);
            }
            _ => runs.push(Run {
                first: page,
                pages: 1,
                leaves: vec![index],
            }),
        }
    }
    runs
}

fn read_leaves(
    store: &PageStore,
    disk: &mut dyn Disk,
    addresses: &[PageAddress],
) -> Result<Vec<(PageAddress, Block)>, StoreFailure> {
    let runs = runs(addresses);
    let mut blocks: Vec<Option<Block>> = addresses.iter().map(|_| None).collect();
    let mut completions: Vec<Completion> = Vec::new();
    let (mut submitted, mut completed) = (0, 0);
    let mut failure = None;
    let first_token = store.options.tokens.start;
    let in_flight_max = BOOT_READS.min(store.slots.len());
    let mut tokens: Vec<(u64, usize)> = (0..in_flight_max as u64)
        .map(|token| (first_token + token, 0))
        .collect();
    let mut spare: Vec<usize> = (0..in_flight_max).collect();
    while completed < submitted || (submitted < runs.len() && failure.is_none()) {
        while submitted < runs.len() && failure.is_none() {
            let Some(slot) = spare.pop() else {
                break;
            };
            let run = &runs[submitted];
            let buffer = AlignedBuffer::zeroed(run.pages as usize * PAGE_BYTES);
            let offset = u64::from(run.first) * PAGE_BYTES as u64;
            tokens[slot].1 = submitted;
            disk.submit(
                tokens[slot].0,
                Operation::Read {
                    file: store.file(),
                    offset,
                    buffer,
                },
            );
            submitted += 1;
        }
        disk.wait(&mut completions);
        for Completion { token, result } in completions.drain(..) {
            let slot = (token - first_token) as usize;
            spare.push(slot);
            completed += 1;
            let run = &runs[tokens[slot].1];
            let taken = result.map_err(failed).and_then(|outcome| {
                let (buffer, length) = read_outcome(outcome);
                take_leaves(run, &buffer[..length], addresses, &mut blocks).map_err(|source| corrupt(store, source))
            });
            failure = failure.or(taken.err());
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(addresses.iter().copied().zip(blocks.into_iter().flatten()).collect()),
    }
}

fn take_leaves(
    run: &Run,
    bytes: &[u8],
    addresses: &[PageAddress],
    blocks: &mut [Option<Block>],
) -> Result<(), Corrupt> {
    for &index in &run.leaves {
        let from = (addresses[index].number - run.first) as usize * PAGE_BYTES;
        let page = bytes.get(from..).unwrap_or(&[]);
        blocks[index] = Some(Block::verified(&addresses[index], page)?);
    }
    Ok(())
}
