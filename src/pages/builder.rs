//! Builds a tree from the left to the right: entries and whole subtrees come in key order, full nodes go out.
//!
//! Each level holds up to two nodes' worth of entries, so that the last two can be of even size. Values that lie in a
//! shared extent stay in one leaf with it: an extent has exactly one owner, and is freed with it.

use super::free::LimitReached;
use super::node::{self, CAPACITY, OUTSIDE_BYTES, Outside, SLOT_BYTES, decode_leaf_entry};
use super::output::Output;
use super::page::{ExtentRef, NODE_REF_BYTES, NodeRef, TreeId, pages_for};
use super::root::TreeRef;
use crate::limits::pages::{EXTENT_PACK_BYTES, EXTENT_TARGET_BYTES, PAGE_BYTES};
use std::collections::VecDeque;

/// An entry that waits for its node.
struct Item {
    /// As it will lie in the page.
    bytes: Box<[u8]>,
    extent: Option<ExtentRef>,
    /// The highest page it leads to.
    highest: u32,
}

impl Item {
    fn size(&self) -> usize {
        self.bytes.len() + SLOT_BYTES
    }
}

#[derive(Default)]
struct Level {
    items: VecDeque<Item>,
    bytes: usize,
}

impl Level {
    fn push(&mut self, item: Item) {
        self.bytes += item.size();
        self.items.push_back(item);
    }

    /// How many items go into the next node: as many as fit into `limit` bytes, but no cut within a shared extent.
    fn cut(&self, limit: usize) -> usize {
        let mut following = vec![None; self.items.len() + 1];
        for (index, item) in self.items.iter().enumerate().rev() {
            following[index] = item.extent.map(|extent| extent.page).or(following[index + 1]);
        }
        let (mut bytes, mut best, mut last) = (0, 0, None);
        for (index, item) in self.items.iter().enumerate() {
            bytes += item.size();
            last = item.extent.map(|extent| extent.page).or(last);
            if bytes > limit && best > 0 {
                break;
            }
            if last.is_none() || following[index + 1] != last {
                best = index + 1;
            }
        }
        assert!(best > 0, "an extent's values fit into a leaf");
        best
    }
}

/// A tree being built.
pub(super) struct Builder {
    tree: TreeId,
    levels: Vec<Level>,
    /// Entries whose values wait in `packed`, and entries between them.
    group: Vec<Item>,
    group_bytes: usize,
    packed: Vec<u8>,
}

impl Builder {
    pub fn new(tree: TreeId) -> Builder {
        Builder {
            tree,
            levels: Vec::new(),
            group: Vec::new(),
            group_bytes: 0,
            packed: Vec::new(),
        }
    }

    /// Adds an entry of an old leaf, with its extent where it is or was moved to.
    pub fn push_kept(&mut self, bytes: &[u8], outside: Option<Outside>, out: &mut Output) -> Result<(), LimitReached> {
        let mut bytes: Box<[u8]> = bytes.into();
        if let Some(outside) = outside {
            self.close_group(out)?;
            patch(&mut bytes, &outside);
        }
        let extent = outside.map(|outside| outside.extent);
        self.push_leaf_item(
            Item {
                bytes,
                extent,
                highest: extent.map_or(0, |extent| extent.last()),
            },
            out,
        )
    }

    /// Adds a new entry; `payload` goes into an extent.
    pub fn push_new(
        &mut self,
        key: &[u8],
        head: &[u8],
        payload: Option<&[u8]>,
        out: &mut Output,
    ) -> Result<(), LimitReached> {
        let mut bytes = Vec::with_capacity(4 + key.len() + head.len() + OUTSIDE_BYTES);
        let Some(payload) = payload else {
            node::encode_leaf_entry(&mut bytes, key, head, None);
            return self.push_leaf_item(
                Item {
                    bytes: bytes.into(),
                    extent: None,
                    highest: 0,
                },
                out,
            );
        };
        let length = payload.len() as u32;
        // Only records come in order of their keys for good, so only theirs share extents.
        if self.tree != TreeId::Records || payload.len() > EXTENT_PACK_BYTES / 2 {
            self.close_group(out)?;
            let outside = Outside {
                extent: out.extent(payload)?,
                offset: 0,
                length,
            };
            node::encode_leaf_entry(&mut bytes, key, head, Some(&outside));
            let (extent, highest) = (Some(outside.extent), outside.extent.last());
            return self.push_leaf_item(
                Item {
                    bytes: bytes.into(),
                    extent,
                    highest,
                },
                out,
            );
        }
        let (packed, together) = (self.packed.len(), self.packed.len() + payload.len());
        let filled = packed * 8 >= pages_for(packed) as usize * PAGE_BYTES * 7;
        let full = together > EXTENT_PACK_BYTES || (together > EXTENT_TARGET_BYTES && filled);
        if full || self.group_bytes > CAPACITY / 2 {
            self.close_group(out)?;
        }
        // The extent is not there yet: any reference serves until `close_group` puts the right one in its place.
        let extent = ExtentRef {
            page: u32::MAX,
            pages: 1,
            generation: 0,
            checksum: 0,
        };
        let outside = Outside {
            extent,
            offset: self.packed.len() as u32,
            length,
        };
        node::encode_leaf_entry(&mut bytes, key, head, Some(&outside));
        self.packed.extend_from_slice(payload);
        let item = Item {
            bytes: bytes.into(),
            extent: Some(extent),
            highest: 0,
        };
        self.group_bytes += item.size();
        self.group.push(item);
        Ok(())
    }

    fn push_leaf_item(&mut self, item: Item, out: &mut Output) -> Result<(), LimitReached> {
        if self.packed.is_empty() {
            return self.push(0, item, out);
        }
        self.group_bytes += item.size();
        self.group.push(item);
        if self.group_bytes > CAPACITY / 2 {
            self.close_group(out)
        } else {
            Ok(())
        }
    }

    /// Writes the values that wait and lets their entries go on.
    fn close_group(&mut self, out: &mut Output) -> Result<(), LimitReached> {
        if self.packed.is_empty() {
            return Ok(());
        }
        let extent = out.extent(&self.packed)?;
        self.packed.clear();
        self.group_bytes = 0;
        for mut item in std::mem::take(&mut self.group) {
            if item.extent.is_some() {
                let at = item.bytes.len() - OUTSIDE_BYTES;
                item.bytes[at..at + super::page::EXTENT_REF_BYTES].copy_from_slice(&extent.encode());
                item.extent = Some(extent);
                item.highest = extent.last();
            }
            self.push(0, item, out)?;
        }
        Ok(())
    }

    /// Adds a node of `level` and all below it as it is. Everything before it is closed first.
    pub fn push_subtree(
        &mut self,
        level: u8,
        key: &[u8],
        node: &NodeRef,
        out: &mut Output,
    ) -> Result<(), LimitReached> {
        self.close_group(out)?;
        for below in 0..=usize::from(level) {
            self.close(below, true, out)?;
        }
        self.push(usize::from(level) + 1, subtree(key, node), out)
    }

    /// Whether closing the levels up to `level` now would leave a node less than half full.
    pub fn underfull(&self, level: u8) -> bool {
        let levels = self.levels.iter().take(usize::from(level) + 1).enumerate();
        levels.into_iter().any(|(level, pending)| {
            let bytes = pending.bytes + if level == 0 { self.group_bytes } else { 0 };
            bytes > 0 && bytes < CAPACITY / 2
        })
    }

    fn push(&mut self, level: usize, item: Item, out: &mut Output) -> Result<(), LimitReached> {
        while self.levels.len() <= level + 1 {
            self.levels.push(Level::default());
        }
        self.levels[level].push(item);
        while self.levels[level].bytes > 2 * CAPACITY {
            self.emit(level, CAPACITY, out)?;
        }
        Ok(())
    }

    /// Writes out what waits on a level, in nodes of even size or the first ones full.
    fn close(&mut self, level: usize, even: bool, out: &mut Output) -> Result<(), LimitReached> {
        while self.levels.get(level).is_some_and(|pending| pending.bytes > 0) {
            let bytes = self.levels[level].bytes;
            let limit = if even && bytes > CAPACITY {
                (bytes / 2 + CAPACITY / 16).min(CAPACITY)
            } else {
                CAPACITY
            };
            self.emit(level, limit, out)?;
        }
        Ok(())
    }

    /// Writes one node of a level and hands its reference to the level above.
    fn emit(&mut self, level: usize, limit: usize, out: &mut Output) -> Result<(), LimitReached> {
        let pending = &mut self.levels[level];
        let count = pending.cut(limit);
        let items: Vec<Item> = pending.items.drain(..count).collect();
        let bytes: usize = items.iter().map(Item::size).sum();
        pending.bytes -= bytes;
        assert!(bytes <= CAPACITY, "a node of {bytes} bytes");
        let (tree, generation) = (self.tree as u8, out.generation);
        let entries = items.iter().map(|item| &item.bytes[..]);
        let (page, checksum) =
            out.node(|page, bytes| node::build(bytes, (tree, level as u8), (page, generation), entries))?;
        let highest = items.iter().map(|item| item.highest).fold(page, u32::max);
        let first = &items[0].bytes;
        let at = if level == 0 { 4 } else { 2 };
        let key = &first[at..at + usize::from(u16::from_le_bytes([first[0], first[1]]))];
        self.push(
            level + 1,
            subtree(
                key,
                &NodeRef {
                    page,
                    highest,
                    generation,
                    checksum,
                },
            ),
            out,
        )
    }

    /// Closes everything; the tree's root.
    pub fn finish(&mut self, out: &mut Output) -> Result<TreeRef, LimitReached> {
        self.close_group(out)?;
        // Records are only ever appended, so their nodes are best filled; other trees grow in the middle.
        let even = self.tree != TreeId::Records;
        let mut level = 0;
        while level < self.levels.len() {
            if self.levels[level + 1..].iter().all(|above| above.bytes == 0) {
                if self.levels[level].bytes == 0 {
                    break;
                }
                if let (true, [item]) = (level > 0, self.levels[level].items.make_contiguous()) {
                    let at = item.bytes.len() - NODE_REF_BYTES;
                    let root = Some(NodeRef::decode(&item.bytes[at..]).expect("encoded by this builder"));
                    return Ok(TreeRef {
                        root,
                        height: level as u8,
                    });
                }
            }
            self.close(level, even, out)?;
            level += 1;
        }
        Ok(TreeRef::default())
    }
}

fn subtree(key: &[u8], node: &NodeRef) -> Item {
    let mut bytes = Vec::with_capacity(2 + key.len() + NODE_REF_BYTES);
    node::encode_inner_entry(&mut bytes, key, node);
    Item {
        bytes: bytes.into(),
        extent: None,
        highest: node.highest,
    }
}

/// Puts another extent into a leaf entry that has one.
fn patch(bytes: &mut [u8], outside: &Outside) {
    debug_assert!(decode_leaf_entry(bytes).is_some_and(|entry| entry.outside.is_some()));
    let at = bytes.len() - OUTSIDE_BYTES;
    bytes[at..].copy_from_slice(&outside.encode());
}
