//! Copy on write: walks the part of a tree that changes and builds the new tree from it.
//!
//! Subtrees without a change are taken over by reference. A neighbour is read as well when a node would otherwise be
//! left less than half full. The same walk moves pages from the file's end towards its start.

use super::builder::Builder;
use super::cache::{Block, PageCache};
use super::changes::{Change, Changes};
use super::free::LimitReached;
use super::node::{Node, Outside};
use super::output::Output;
use super::page::{ExtentRef, NodeRef, PageAddress, TreeId, pages_for};
use super::record::RecordId;
use super::root::TreeRef;
use crate::limits::pages::{APPEND_UNIT_RECORDS, EXTENT_PACK_BYTES, PAGE_BYTES, READ_AHEAD};

/// Why a unit of work was not done.
pub(super) enum Stop {
    /// The cache lacks these pages; the first ones are needed, the rest soon.
    Missing(Vec<PageAddress>),
    /// The file may not grow.
    LimitReached,
}

impl From<LimitReached> for Stop {
    fn from(_: LimitReached) -> Stop {
        Stop::LimitReached
    }
}

struct Frame {
    node: Block,
    level: u8,
    next: usize,
    upper: Option<Vec<u8>>,
}

impl Frame {
    /// Separator, reference and upper bound of a child.
    fn child(&self, index: usize) -> (&[u8], NodeRef, Option<&[u8]>) {
        let node = Node::new(self.node.bytes());
        let (key, child) = node.child(index);
        let upper = if index + 1 < node.count() {
            Some(node.child(index + 1).0)
        } else {
            self.upper.as_deref()
        };
        (key, child, upper)
    }
}

/// What becomes of an extent whose leaf is rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Keep,
    /// Nothing in it lives.
    Drop,
    /// Little of it lives: its values go into new extents.
    Repack,
    /// It lies where the file is to become shorter.
    Move,
}

struct Plan {
    extent: ExtentRef,
    live_bytes: usize,
    live: usize,
    fate: Fate,
    moved: Option<ExtentRef>,
}

enum State {
    Start(TreeRef),
    Walk,
    Leaf {
        block: Block,
        upper: Option<Vec<u8>>,
        plans: Vec<Plan>,
    },
    /// Changes between the last entry of a leaf and the next leaf.
    Tail {
        upper: Option<Vec<u8>>,
    },
    Finish,
}

/// The rewriting of one tree.
pub(super) struct Rewriter {
    tree: TreeId,
    changes: Changes,
    frames: Vec<Frame>,
    builder: Builder,
    state: State,
    /// Deletes are made until this many pages are written.
    delete_pages: u32,
    /// Deletes not made.
    pub remaining: Vec<RecordId>,
}

impl Rewriter {
    pub fn new(start: TreeRef, changes: Changes, delete_pages: u32) -> Rewriter {
        let tree = changes.tree();
        let (frames, builder, state) = (Vec::new(), Builder::new(tree), State::Start(start));
        Rewriter {
            tree,
            changes,
            frames,
            builder,
            state,
            delete_pages,
            remaining: Vec::new(),
        }
    }

    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// Does one unit of work; the new tree when all is done. After `Missing` it is called again when those pages are
    /// in the cache.
    pub fn advance(&mut self, cache: &mut PageCache, out: &mut Output) -> Result<Option<TreeRef>, Stop> {
        match &mut self.state {
            State::Start(start) => {
                let start = *start;
                match start.root {
                    None => self.state = State::Tail { upper: None },
                    Some(root) if !self.changes.touch(None) && !out.wants_move(root.highest) => return Ok(Some(start)),
                    Some(root) => self.descend(&root, start.height - 1, None, cache, out)?,
                }
            }
            State::Walk => self.walk(cache, out)?,
            State::Leaf { .. } => self.leaf(cache, out)?,
            State::Tail { .. } => self.tail(out)?,
            State::Finish => return Ok(Some(self.builder.finish(out)?)),
        }
        Ok(None)
    }

    /// Looks at the next child: takes it over, or goes into it.
    fn walk(&mut self, cache: &mut PageCache, out: &mut Output) -> Result<(), Stop> {
        let Some(frame) = self.frames.last_mut() else {
            self.state = State::Finish;
            return Ok(());
        };
        if frame.next == Node::new(frame.node.bytes()).count() {
            self.frames.pop();
            return Ok(());
        }
        if out.pages_written >= self.delete_pages {
            self.remaining.append(&mut self.changes.stop_deletes());
        }
        let level = frame.level - 1;
        let (key, child, upper) = frame.child(frame.next);
        if !self.changes.touch(upper) && !out.wants_move(child.highest) && !self.builder.underfull(level) {
            self.builder.push_subtree(level, key, &child, out)?;
            frame.next += 1;
            return Ok(());
        }
        let upper = upper.map(<[u8]>::to_vec);
        self.descend(&child, level, upper, cache, out)
    }

    fn descend(
        &mut self,
        child: &NodeRef,
        level: u8,
        upper: Option<Vec<u8>>,
        cache: &mut PageCache,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let address = child.address(self.tree as u8, level);
        let Some(block) = cache.get(&address).cloned() else {
            return Err(Stop::Missing(self.ahead(address, cache, out)));
        };
        out.free(child.page, 1, child.generation);
        if let Some(frame) = self.frames.last_mut() {
            frame.next += 1;
        }
        if level > 0 {
            self.frames.push(Frame {
                node: block,
                level,
                next: 0,
                upper,
            });
            self.state = State::Walk;
        } else {
            let plans = self.plan(&block, out);
            self.state = State::Leaf { block, upper, plans };
        }
        Ok(())
    }

    /// The page that is needed now, and those of its siblings that will be.
    fn ahead(&mut self, needed: PageAddress, cache: &PageCache, out: &Output) -> Vec<PageAddress> {
        let mut missing = vec![needed];
        let Some(frame) = self.frames.last() else {
            return missing;
        };
        for index in frame.next + 1..Node::new(frame.node.bytes()).count() {
            if missing.len() == READ_AHEAD {
                break;
            }
            let (key, child, upper) = frame.child(index);
            let address = child.address(self.tree as u8, frame.level - 1);
            let wanted = self.changes.touch_range(key, upper) || out.wants_move(child.highest);
            if wanted && !cache.contains(&address) {
                missing.push(address);
            }
        }
        missing
    }

    /// Decides about the extents of a leaf.
    fn plan(&self, block: &Block, out: &Output) -> Vec<Plan> {
        let node = Node::new(block.bytes());
        let mut plans: Vec<Plan> = Vec::new();
        for index in 0..node.count() {
            let entry = node.leaf_entry(index);
            let Some(outside) = entry.outside else {
                continue;
            };
            let extent = outside.extent;
            if plans.last().is_none_or(|plan| plan.extent != extent) {
                plans.push(Plan {
                    extent,
                    live_bytes: 0,
                    live: 0,
                    fate: Fate::Keep,
                    moved: None,
                });
            }
            if let Some(plan) = plans.last_mut().filter(|_| !self.changes.touch_key(entry.key)) {
                plan.live += 1;
                plan.live_bytes += outside.length as usize;
            }
        }
        for plan in &mut plans {
            let bytes = plan.extent.pages as usize * PAGE_BYTES;
            let shared = self.tree == TreeId::Records && bytes <= EXTENT_PACK_BYTES;
            plan.fate = if plan.live == 0 {
                Fate::Drop
            } else if shared && plan.live_bytes * 2 < bytes && pages_for(plan.live_bytes) < plan.extent.pages {
                Fate::Repack
            } else if out.wants_move(plan.extent.last()) {
                Fate::Move
            } else {
                Fate::Keep
            };
        }
        plans
    }

    /// Moves one extent of the leaf, or merges the leaf with its changes.
    fn leaf(&mut self, cache: &mut PageCache, out: &mut Output) -> Result<(), Stop> {
        let State::Leaf { block, plans, .. } = &mut self.state else {
            unreachable!("called in this state");
        };
        let block = block.clone();
        let mut repacked = Vec::new();
        let mut missing = Vec::new();
        for plan in plans.iter_mut() {
            let address = plan.extent.address();
            match (plan.fate, cache.get(&address).cloned()) {
                (Fate::Move, None) if plan.moved.is_none() => return Err(Stop::Missing(vec![address])),
                (Fate::Move, Some(bytes)) if plan.moved.is_none() => {
                    let moved = out.extent(bytes.bytes())?;
                    assert_eq!((moved.pages, moved.checksum), (plan.extent.pages, plan.extent.checksum));
                    plan.moved = Some(moved);
                    return Ok(());
                }
                (Fate::Repack, None) => missing.push(address),
                (Fate::Repack, Some(bytes)) => repacked.push((plan.extent, bytes)),
                _ => {}
            }
        }
        if !missing.is_empty() {
            missing.truncate(READ_AHEAD);
            return Err(Stop::Missing(missing));
        }
        let State::Leaf { upper, plans, .. } = std::mem::replace(&mut self.state, State::Walk) else {
            unreachable!("called in this state");
        };
        for plan in plans.iter().filter(|plan| plan.fate != Fate::Keep) {
            out.free(plan.extent.page, plan.extent.pages, plan.extent.generation);
        }
        self.merge(&block, &plans, &repacked, out)?;
        self.state = State::Tail { upper };
        Ok(())
    }

    fn merge(
        &mut self,
        block: &Block,
        plans: &[Plan],
        repacked: &[(ExtentRef, Block)],
        out: &mut Output,
    ) -> Result<(), Stop> {
        let node = Node::new(block.bytes());
        let mut plan_index = 0;
        self.changes.follow(node.leaf_entry(node.count() - 1).key);
        for index in 0..node.count() {
            let entry = node.leaf_entry(index);
            let mut replaced = false;
            while let Some((key, change)) = self.changes.next_to(entry.key) {
                replaced = *key == *entry.key;
                if let Change::Put { head, payload } = change {
                    self.builder.push_new(&key, &head, payload.as_deref(), out)?;
                }
            }
            while entry
                .outside
                .is_some_and(|outside| plans[plan_index].extent != outside.extent)
            {
                plan_index += 1;
            }
            if replaced {
                continue;
            }
            let Some(outside) = entry.outside else {
                self.builder.push_kept(entry.bytes, None, out)?;
                continue;
            };
            let plan = &plans[plan_index];
            if plan.fate == Fate::Repack {
                let (_, values) = repacked
                    .iter()
                    .find(|(extent, _)| *extent == plan.extent)
                    .expect("loaded before");
                self.builder
                    .push_new(entry.key, entry.head, Some(values.outside(&outside)), out)?;
            } else {
                let outside = Outside {
                    extent: plan.moved.unwrap_or(plan.extent),
                    ..outside
                };
                self.builder.push_kept(entry.bytes, Some(outside), out)?;
            }
        }
        Ok(())
    }

    fn tail(&mut self, out: &mut Output) -> Result<(), Stop> {
        let State::Tail { upper } = &self.state else {
            unreachable!("called in this state");
        };
        for _ in 0..APPEND_UNIT_RECORDS {
            let Some((key, change)) = self.changes.next_before(upper.as_deref()) else {
                self.state = State::Walk;
                return Ok(());
            };
            if let Change::Put { head, payload } = change {
                let long = payload
                    .as_ref()
                    .is_some_and(|payload| payload.len() > EXTENT_PACK_BYTES);
                self.builder.push_new(&key, &head, payload.as_deref(), out)?;
                if long {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
