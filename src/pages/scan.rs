//! Reading a tree in key order, in slices.
//!
//! A scan is a position. A step visits entries from it on until its budget is spent, a page is missing or the visitor
//! has enough; the position moves past each entry visited, so that the scan goes on where it was, in the same root or
//! in a newer one.

use super::cache::PageCache;
use super::node::{Node, Outside};
use super::page::{PageAddress, ReadFailure, TreeId};
use super::record::{Parsed, RecordHead, RecordId, RecordView, parse};
use super::root::{Root, not_a_record};
use std::ops::ControlFlow;

/// Why a step of a scan ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// Nothing lies at or behind the position.
    End,
    /// The budget is spent or the visitor broke off.
    More,
}

/// A position among the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordScan {
    next: RecordId,
}

impl RecordScan {
    /// A scan of the records at and after `from`.
    pub fn new(from: RecordId) -> RecordScan {
        RecordScan { next: from }
    }

    /// The id from which the next step goes on.
    pub fn position(&self) -> RecordId {
        self.next
    }

    /// Visits up to `budget` records in order. After `Missing` the position is behind the last one visited.
    pub fn step(
        &mut self,
        root: &Root,
        cache: &mut PageCache,
        budget: usize,
        mut visit: impl FnMut(RecordView<'_>) -> ControlFlow<()>,
    ) -> Result<Scanned, ReadFailure> {
        self.walk(root, cache, budget, |parsed, outside, cache| match outside {
            None => Ok(visit(parsed.view(&[]))),
            Some(outside) => {
                let extent = root.load(cache, &outside.extent.address())?;
                Ok(visit(parsed.view(extent.outside(&outside))))
            }
        })
    }

    /// As `step`, without reading values.
    pub fn step_heads(
        &mut self,
        root: &Root,
        cache: &mut PageCache,
        budget: usize,
        mut visit: impl FnMut(RecordHead<'_>) -> ControlFlow<()>,
    ) -> Result<Scanned, ReadFailure> {
        self.walk(root, cache, budget, |parsed, outside, cache| {
            match outside.filter(|_| parsed.key_outside > 0) {
                None => Ok(visit(parsed.head)),
                Some(outside) => {
                    let extent = root.load(cache, &outside.extent.address())?;
                    Ok(visit(parsed.head_with(extent.outside(&outside))))
                }
            }
        })
    }

    fn walk(
        &mut self,
        root: &Root,
        cache: &mut PageCache,
        budget: usize,
        mut visit: impl FnMut(&Parsed<'_>, Option<Outside>, &mut PageCache) -> Result<ControlFlow<()>, ReadFailure>,
    ) -> Result<Scanned, ReadFailure> {
        let mut left = budget;
        while left > 0 {
            let Some(found) = root.seek(cache, TreeId::Records, &self.next.encode())? else {
                return Ok(Scanned::End);
            };
            let node = Node::new(found.leaf.bytes());
            for index in found.index..node.count() {
                let entry = node.leaf_entry(index);
                let parsed = parse(&entry).ok_or_else(|| not_a_record(&found.address))?;
                let flow = visit(&parsed, entry.outside, cache)?;
                self.next = parsed.head.id.next();
                left -= 1;
                if left == 0 || flow.is_break() {
                    return Ok(Scanned::More);
                }
            }
            match found.upper.as_deref().map(RecordId::decode) {
                None => return Ok(Scanned::End),
                Some(Some(upper)) if upper >= self.next => self.next = upper,
                Some(_) => return Err(out_of_bounds(&found.address)),
            }
        }
        Ok(Scanned::More)
    }

    /// Up to `count` pages that the scan will read from its position on and the cache lacks, to be loaded together.
    /// Looks at the leaves of one parent and, with `values`, at the extents of the current leaf.
    pub fn ahead(&self, root: &Root, cache: &mut PageCache, count: usize, values: bool) -> Vec<PageAddress> {
        let key = self.next.encode();
        let start = root.inner.trees[TreeId::Records as usize];
        let Some(mut child) = start.root else {
            return Vec::new();
        };
        let mut missing = Vec::new();
        for level in (0..start.height).rev() {
            let address = child.address(TreeId::Records as u8, level);
            let Some(block) = cache.get(&address).cloned() else {
                if missing.is_empty() {
                    missing.push(address);
                }
                break;
            };
            let node = Node::new(block.bytes());
            if level == 0 {
                if values {
                    let extents = (node.lower_bound(&key)..node.count()).filter_map(|i| node.leaf_entry(i).outside);
                    let mut extents: Vec<_> = extents.map(|outside| outside.extent.address()).collect();
                    extents.dedup();
                    extents.retain(|address| !cache.contains(address));
                    missing.splice(0..0, extents);
                }
                break;
            }
            let index = node.child_index(&key);
            child = node.child(index).1;
            if level == 1 {
                let leaves = (index..node.count()).map(|i| node.child(i).1.address(TreeId::Records as u8, 0));
                missing.extend(leaves.filter(|address| !cache.contains(address)).take(count));
            }
        }
        missing.truncate(count);
        missing
    }
}

/// A position in a small tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeScan {
    tree: TreeId,
    next: Vec<u8>,
}

impl TreeScan {
    /// A scan of the keys at and after `from`.
    pub fn new(tree: TreeId, from: &[u8]) -> TreeScan {
        assert_ne!(tree, TreeId::Records, "records are read by `RecordScan`");
        TreeScan {
            tree,
            next: from.to_vec(),
        }
    }

    /// Visits up to `budget` keys and values in order. After `Missing` the position is behind the last one visited.
    pub fn step(
        &mut self,
        root: &Root,
        cache: &mut PageCache,
        budget: usize,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<Scanned, ReadFailure> {
        let mut left = budget;
        while left > 0 {
            let Some(found) = root.seek(cache, self.tree, &self.next)? else {
                return Ok(Scanned::End);
            };
            let node = Node::new(found.leaf.bytes());
            for index in found.index..node.count() {
                let entry = node.leaf_entry(index);
                let flow = match entry.outside {
                    None => visit(entry.key, entry.head),
                    Some(outside) => {
                        let extent = root.load(cache, &outside.extent.address())?;
                        visit(entry.key, extent.outside(&outside))
                    }
                };
                // The smallest key above this one.
                self.next.clear();
                self.next.extend_from_slice(entry.key);
                self.next.push(0);
                left -= 1;
                if left == 0 || flow.is_break() {
                    return Ok(Scanned::More);
                }
            }
            match found.upper {
                None => return Ok(Scanned::End),
                Some(upper) if upper >= self.next => self.next = upper,
                Some(_) => return Err(out_of_bounds(&found.address)),
            }
        }
        Ok(Scanned::More)
    }
}

fn out_of_bounds(address: &PageAddress) -> ReadFailure {
    address.corrupt("its keys pass its parent's bound").into()
}
