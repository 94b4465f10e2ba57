//! A root: one committed state of the file, readable from any thread.
//!
//! A clone is cheap and is a pin: while one lives, the pages of its state are not reused, so a reader keeps its root
//! for as long as a read of one of its pages is in flight. Reads are plain functions over a cache of the caller's: what
//! the cache lacks comes back as `ReadFailure::Missing`, the caller loads it, hands it to `Root::insert` and calls
//! again. Nothing here blocks.

use super::cache::{Block, PageCache};
use super::node::Node;
use super::page::{Corrupt, NodeRef, PageAddress, ReadFailure, TREE_COUNT, TreeId};
use super::record::{Record, RecordId, parse};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a commit says about the state machine, in the same atomic write as the trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateFields {
    /// The store revision.
    pub revision: i64,
    /// Everything below it may be compacted.
    pub compact_revision: i64,
    /// The raft index of the last entry contained.
    pub applied_index: u64,
    /// The term of that entry.
    pub term: u64,
    /// Conf state and membership as the owner encodes them, up to `limits::pages::MEMBERSHIP_MAX_BYTES`.
    pub membership: Bytes,
}

/// Where a tree starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeRef {
    /// `None` when the tree is empty.
    pub root: Option<NodeRef>,
    /// Levels; 0 when it is empty, 1 when the root is a leaf.
    pub height: u8,
}

pub(super) struct RootInner {
    pub generation: u64,
    pub trees: [TreeRef; TREE_COUNT],
    pub fields: StateFields,
    /// Set before pages of this state may be reused although it is still held.
    pub expired: AtomicBool,
}

/// One committed state.
#[derive(Clone)]
pub struct Root {
    pub(super) inner: Arc<RootInner>,
}

/// A value of a small tree. Holds the pages it lies in.
#[derive(Clone)]
pub struct TreeValue {
    leaf: Block,
    index: usize,
    extent: Option<Block>,
}

impl std::ops::Deref for TreeValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let entry = Node::new(self.leaf.bytes()).leaf_entry(self.index);
        match (&self.extent, entry.outside) {
            (Some(extent), Some(outside)) => extent.outside(&outside),
            _ => entry.head,
        }
    }
}

impl std::fmt::Debug for TreeValue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TreeValue({} bytes)", self.len())
    }
}

/// Where a search ended: a leaf, the first entry at or above the key, and where the next leaf starts.
pub(super) struct Found {
    pub leaf: Block,
    pub address: PageAddress,
    pub index: usize,
    /// The next leaf's lower bound; `None` in the last leaf.
    pub upper: Option<Vec<u8>>,
}

impl Root {
    pub(super) fn new(generation: u64, trees: [TreeRef; TREE_COUNT], fields: StateFields) -> Root {
        let expired = AtomicBool::new(false);
        Root {
            inner: Arc::new(RootInner {
                generation,
                trees,
                fields,
                expired,
            }),
        }
    }

    /// A root of no file, with nothing in it: what a store that was just born has.
    pub fn empty(fields: StateFields) -> Root {
        Root::new(0, [TreeRef::default(); TREE_COUNT], fields)
    }

    /// The number of its commit; rises with every checkpoint.
    pub fn generation(&self) -> u64 {
        self.inner.generation
    }

    /// Revision, applied index, membership and so on as of this commit.
    pub fn fields(&self) -> &StateFields {
        &self.inner.fields
    }

    /// Verifies bytes read from the address that a read named as missing, and keeps them in the cache.
    pub fn insert(&self, cache: &mut PageCache, address: &PageAddress, bytes: &[u8]) -> Result<(), ReadFailure> {
        match cache.insert(address, bytes) {
            Ok(()) => Ok(()),
            // Pages of an expired root may have been written anew.
            Err(_) if self.is_expired() => Err(self.expired()),
            Err(corrupt) => Err(corrupt.into()),
        }
    }

    /// Whether the store has stopped keeping this state (`PageStore::expire`); reads fail from then on.
    pub fn is_expired(&self) -> bool {
        self.inner.expired.load(Ordering::SeqCst)
    }

    fn expired(&self) -> ReadFailure {
        ReadFailure::Expired {
            revision: self.inner.fields.revision,
        }
    }

    /// The record of exactly this revision.
    pub fn record(&self, cache: &mut PageCache, id: RecordId) -> Result<Option<Record>, ReadFailure> {
        let Some((leaf, index, extent)) = self.lookup(cache, TreeId::Records, &id.encode())? else {
            return Ok(None);
        };
        Ok(Some(Record { leaf, index, extent }))
    }

    /// The value of a key of a small tree.
    pub fn get(&self, cache: &mut PageCache, tree: TreeId, key: &[u8]) -> Result<Option<TreeValue>, ReadFailure> {
        assert_ne!(tree, TreeId::Records, "records are read by `record`");
        let found = self.lookup(cache, tree, key)?;
        Ok(found.map(|(leaf, index, extent)| TreeValue { leaf, index, extent }))
    }

    #[allow(clippy::type_complexity)]
    fn lookup(
        &self,
        cache: &mut PageCache,
        tree: TreeId,
        key: &[u8],
    ) -> Result<Option<(Block, usize, Option<Block>)>, ReadFailure> {
        let Some((leaf, address)) = self.descend(cache, tree, key, |_, _| ())? else {
            return Ok(None);
        };
        let node = Node::new(leaf.bytes());
        let index = node.lower_bound(key);
        if index == node.count() || node.leaf_entry(index).key != key {
            return Ok(None);
        }
        let entry = node.leaf_entry(index);
        if tree == TreeId::Records && parse(&entry).is_none() {
            return Err(not_a_record(&address).into());
        }
        let extent = match entry.outside {
            None => None,
            Some(outside) => Some(self.load(cache, &outside.extent.address())?),
        };
        Ok(Some((leaf, index, extent)))
    }

    /// The page from the cache, to be kept.
    pub(super) fn load(&self, cache: &mut PageCache, address: &PageAddress) -> Result<Block, ReadFailure> {
        self.look(cache, address).cloned()
    }

    /// The page from the cache.
    fn look<'c>(&self, cache: &'c mut PageCache, address: &PageAddress) -> Result<&'c Block, ReadFailure> {
        match cache.get(address) {
            Some(block) => Ok(block),
            None if self.is_expired() => Err(self.expired()),
            None => Err(ReadFailure::Missing(*address)),
        }
    }

    /// The leaf where `key` is or would be; `None` in an empty tree.
    pub(super) fn seek(&self, cache: &mut PageCache, tree: TreeId, key: &[u8]) -> Result<Option<Found>, ReadFailure> {
        let mut upper = None;
        let leaf = self.descend(cache, tree, key, |node, index| {
            if index + 1 < node.count() {
                upper = Some(node.child(index + 1).0.to_vec());
            }
        })?;
        Ok(leaf.map(|(leaf, address)| Found {
            index: Node::new(leaf.bytes()).lower_bound(key),
            leaf,
            address,
            upper,
        }))
    }

    /// The leaf, and at each node on the way there which child was taken.
    fn descend(
        &self,
        cache: &mut PageCache,
        tree: TreeId,
        key: &[u8],
        mut taken: impl FnMut(Node<'_>, usize),
    ) -> Result<Option<(Block, PageAddress)>, ReadFailure> {
        let start = self.inner.trees[tree as usize];
        let Some(mut child) = start.root else {
            return Ok(None);
        };
        for level in (1..start.height).rev() {
            let node = Node::new(self.look(cache, &child.address(tree as u8, level))?.bytes());
            let index = node.child_index(key);
            taken(node, index);
            child = node.child(index).1;
        }
        let address = child.address(tree as u8, 0);
        Ok(Some((self.load(cache, &address)?, address)))
    }
}

impl std::fmt::Debug for Root {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Root(commit {}, revision {})",
            self.inner.generation, self.inner.fields.revision
        )
    }
}

pub(super) fn not_a_record(address: &PageAddress) -> Corrupt {
    address.corrupt("an entry is not a record")
}
