//! A walk over everything the newest commit holds: every page is sound, reachable once, and not free; no page is lost.

use super::cache::Block;
use super::failure::StoreFailure;
use super::node::Node;
use super::page::{Corrupt, ExtentRef, FIRST_DATA_PAGE, NodeRef, PageAddress, TreeId};
use super::record::parse;
use super::runs::RunSet;
use super::store::{PageStore, read_outcome};
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, Operation};

/// What a walk found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Nodes of all trees.
    pub nodes: u64,
    /// Extents of all trees.
    pub extents: u64,
    /// Records.
    pub records: u64,
    /// Entries of the small trees.
    pub entries: u64,
    /// Pages that belong to nothing: neither in use nor free.
    pub lost_pages: u64,
}

struct Walk<'a> {
    disk: &'a mut dyn Disk,
    store: &'a PageStore,
    seen: RunSet,
    report: Check,
}

impl PageStore {
    /// Reads and checks everything. Between checkpoints, with nothing else in flight on the disk.
    pub fn check(&self, disk: &mut dyn Disk) -> Result<Check, StoreFailure> {
        assert!(self.is_idle(), "a check runs between checkpoints");
        let mut walk = Walk {
            disk,
            store: self,
            seen: RunSet::default(),
            report: Check::default(),
        };
        for (index, tree) in self.root.inner.trees.iter().enumerate() {
            let Some(root) = tree.root else {
                continue;
            };
            walk.subtree(index as u8, tree.height - 1, &root, &[], None)?;
        }
        if let Some((extent, _)) = self.free_list {
            walk.mark(&extent.address())?;
        }
        let pending = self
            .space
            .pending
            .iter()
            .flat_map(|batch| &batch.runs)
            .map(|freed| (freed.start, freed.length));
        let free: Vec<(u32, u32)> = self.space.available.iter().chain(pending).collect();
        for (start, length) in free {
            if !walk.seen.disjoint(start, length) {
                let extent = ExtentRef {
                    page: start,
                    pages: length,
                    generation: 0,
                    checksum: 0,
                };
                return Err(walk.failure(extent.address().corrupt("in use and free at once")));
            }
            walk.seen.insert(start, length);
        }
        let all = self.space.file_pages - FIRST_DATA_PAGE;
        walk.report.lost_pages = u64::from(all - walk.seen.pages());
        Ok(walk.report)
    }
}

impl Walk<'_> {
    fn failure(&self, source: Corrupt) -> StoreFailure {
        StoreFailure::Corrupt {
            path: self.store.path().to_path_buf(),
            source,
        }
    }

    fn mark(&mut self, address: &PageAddress) -> Result<(), StoreFailure> {
        if address.number + address.pages > self.store.space.file_pages {
            return Err(self.failure(address.corrupt("behind the end of the file")));
        }
        if !self.seen.disjoint(address.number, address.pages) {
            return Err(self.failure(address.corrupt("two parents lead to it")));
        }
        self.seen.insert(address.number, address.pages);
        Ok(())
    }

    fn read(&mut self, address: &PageAddress) -> Result<Block, StoreFailure> {
        self.mark(address)?;
        let buffer = AlignedBuffer::zeroed(address.length());
        let operation = Operation::Read {
            file: self.store.file,
            offset: address.offset(),
            buffer,
        };
        let outcome = self.disk.call(operation).map_err(|source| StoreFailure::Disk {
            doing: "checking it",
            source,
        })?;
        let (buffer, length) = read_outcome(outcome);
        Block::verified(address, &buffer[..length]).map_err(|corrupt| self.failure(corrupt))
    }

    /// Checks a subtree whose keys lie from `low` up to before `upper`; the highest page it leads to.
    fn subtree(
        &mut self,
        tree: u8,
        level: u8,
        node: &NodeRef,
        low: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<u32, StoreFailure> {
        let address = node.address(tree, level);
        let block = self.read(&address)?;
        self.report.nodes += 1;
        let (page, mut highest) = (Node::new(block.bytes()), node.page);
        for index in 0..page.count() {
            let key = if level == 0 {
                let entry = page.leaf_entry(index);
                if let Some(outside) = entry.outside {
                    let earlier = index.checked_sub(1).and_then(|index| page.leaf_entry(index).outside);
                    let shared = (0..index).any(|index| {
                        page.leaf_entry(index)
                            .outside
                            .is_some_and(|earlier| earlier.extent == outside.extent)
                    });
                    if !shared && earlier != Some(outside) {
                        self.read(&outside.extent.address())?;
                        self.report.extents += 1;
                    }
                    highest = highest.max(outside.extent.last());
                }
                if tree == TreeId::Records as u8 {
                    parse(&entry).ok_or_else(|| self.failure(address.corrupt("an entry is not a record")))?;
                    self.report.records += 1;
                } else {
                    self.report.entries += 1;
                }
                entry.key
            } else {
                let (key, child) = page.child(index);
                // The first separator bounds nothing.
                let low = if index == 0 { low } else { key };
                let next = if index + 1 < page.count() {
                    Some(page.child(index + 1).0)
                } else {
                    upper
                };
                highest = highest.max(self.subtree(tree, level - 1, &child, low, next)?);
                if index == 0 {
                    continue;
                }
                key
            };
            if key < low || upper.is_some_and(|upper| key >= upper) {
                return Err(self.failure(address.corrupt("a key lies outside of its parent's bounds")));
            }
        }
        if highest != node.highest {
            let reason = format!(
                "its parent says it leads to page {} at most, it leads to {highest}",
                node.highest
            );
            return Err(self.failure(address.corrupt(reason)));
        }
        Ok(highest)
    }
}
