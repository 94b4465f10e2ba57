//! The writer's side of the tree: changes to a copy-on-write B+tree of keys, and what has to be freed after them.
//!
//! A change to a live key is appended to its list and touches no node. Creations, deletions and prunings change nodes:
//! a node that was published is copied first, one that was made since is changed in place, so that a batch copies each
//! node at most once and a boot copies none. What a change makes unreachable from the tree is kept until the next
//! publication and freed when the readers of the last root are gone.

mod restore;

use super::entry::Entry;
use super::garbage::{Garbage, free_below};
use super::list::{List, Origin};
use super::node::{INNER_CHILDREN, Inner, Kind, LEAF_KEYS, Leaf, Node, common_prefix};
use super::read::Root;
use super::{KeyMeta, Put, ResumeKey};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use std::ops::ControlFlow;
use std::ptr::null_mut;

/// The index of one store in the hands of its writer.
///
/// A tree by itself is what boot and the installation of a snapshot fill; an [`super::IndexWriter`] shares one with
/// readers.
pub struct Tree {
    pub(super) root: *mut Node,
    /// Nodes of this batch were never published.
    batch: u64,
    /// Whether anything of the tree was ever published; if not, what is removed is freed at once.
    shared: bool,
    garbage: Vec<Garbage>,
    bytes: usize,
    keys: usize,
    revisions: usize,
    last: Revision,
}

// SAFETY: the tree owns everything that it points to, and its raw pointers are followed only through it.
unsafe impl Send for Tree {}
// SAFETY: through `&Tree` everything is only read.
unsafe impl Sync for Tree {}

/// A node that was divided: what stands right of it now, and the separator between the two.
struct Split {
    separator: Entry,
    right: *mut Node,
}

/// What an allocation of `size` bytes costs with the allocator's own overhead.
fn cost(size: usize) -> usize {
    (size + size_of::<usize>()).next_multiple_of(16)
}

const NODE_COST: usize = size_of::<Node>();

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

impl Tree {
    /// A tree without keys.
    pub fn new() -> Tree {
        Tree {
            root: Node::leaf(0, Leaf::of(&[], 0)),
            batch: 0,
            shared: false,
            garbage: Vec::new(),
            bytes: NODE_COST,
            keys: 0,
            revisions: 0,
            last: Revision::ZERO,
        }
    }

    /// Memory that the tree uses, in bytes, the allocator's overhead included; not what waits to be freed.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keys in the tree, deleted ones that a compaction has not removed yet included.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Revisions in the tree, tombstones included.
    pub fn revisions(&self) -> usize {
        self.revisions
    }

    /// The newest change.
    pub fn last_revision(&self) -> Revision {
        self.last
    }

    pub(super) fn root(&self) -> Root<'_> {
        // SAFETY: the root is valid while the tree is, and nothing is freed while the tree is borrowed.
        Root::new(unsafe { &*self.root })
    }

    /// As [`super::Pinned::warm`], of the writer's own state.
    pub fn warm(&self, keys: &[&[u8]]) {
        self.root().warm(keys, |_| {});
    }

    /// As [`super::Pinned::get`], of the writer's own state.
    pub fn get(&self, key: &[u8], at_main: i64) -> Option<KeyMeta> {
        self.root().get(key, at_main)
    }

    /// As [`super::Pinned::get_before`], of the writer's own state.
    pub fn get_before(&self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        self.root().get_before(key, revision)
    }

    /// As [`super::Pinned::range`], of the writer's own state.
    pub fn range(
        &self,
        start: &[u8],
        end: RangeEnd<'_>,
        at_main: i64,
        visit: impl FnMut(&[u8], KeyMeta) -> ControlFlow<()>,
    ) -> Option<ResumeKey> {
        self.root().range(start, end, at_main, visit)
    }

    /// As [`super::Pinned::count`], of the writer's own state.
    pub fn count(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> (u64, Option<ResumeKey>) {
        self.root().count(start, end, at_main)
    }

    /// As [`super::Pinned::is_kept`], of the writer's own state.
    pub fn is_kept(&self, key: &[u8], revision: Revision, compact_main: i64) -> bool {
        self.root().is_kept(key, revision, compact_main)
    }

    /// Records that `key` was written at `revision` with `lease` (0: none).
    ///
    /// # Panics
    /// When `revision` is not above the newest change of the tree: revisions are made by the one writer, in order.
    pub fn put(&mut self, key: &[u8], revision: Revision, lease: i64) -> Put {
        let found = self.root().entry(key);
        self.advance(revision);
        let previous = match found {
            // SAFETY: found in the writer's tree.
            Some(entry) => unsafe { entry.revisions() }.newest(),
            None => None,
        };
        match found {
            None => self.create(key, revision, false, None, lease),
            Some(entry) => {
                self.append(entry, revision, false, lease);
                if previous.is_none() {
                    self.mark(key, true, revision.main);
                }
            }
        }
        let (create_revision, version) = match previous {
            Some(meta) => (meta.create_revision, meta.version + 1),
            None => (revision.main, 1),
        };
        let current = KeyMeta {
            revision,
            create_revision,
            version,
            lease,
        };
        Put { previous, current }
    }

    /// Records that `key` was deleted at `revision` and tells what it was. Changes nothing when the key does not exist.
    ///
    /// # Panics
    /// As [`Tree::put`].
    pub fn delete(&mut self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        let entry = self.root().entry(key)?;
        // SAFETY: found in the writer's tree.
        let previous = unsafe { entry.revisions() }.newest()?;
        self.advance(revision);
        self.append(entry, revision, true, 0);
        self.mark(key, false, revision.main);
        Some(previous)
    }

    /// Removes what a compaction at `compact_main` makes unreadable of one key, and appends the revisions that went,
    /// and whether each was a tombstone, to `removed`, oldest first.
    ///
    /// Kept are all revisions above `compact_main` and the newest one at or below it, but not if that is a tombstone
    /// from before `compact_main`: one exactly there is still seen by a watch from there, and goes with the next
    /// compaction. A key with nothing left leaves the tree.
    pub fn prune(&mut self, key: &[u8], compact_main: i64, removed: &mut Vec<(Revision, bool)>) {
        let Some(entry) = self.root().entry(key) else {
            return;
        };
        // SAFETY: found in the writer's tree.
        let (list, revisions) = unsafe { (entry.list(), entry.revisions()) };
        let obsolete = revisions.obsolete_at(compact_main);
        if obsolete == 0 {
            return;
        }
        removed.extend((0..obsolete).map(|index| revisions.revision(index)));
        self.revisions -= obsolete;
        if obsolete == revisions.len() {
            self.remove(key);
        } else {
            // Readers of older roots may still need what goes: they keep the old entry.
            // SAFETY: the list is in the tree, and `obsolete` is below its length.
            let kept = unsafe { list.suffix(obsolete) };
            let copy = Entry::new(key, kept);
            self.gain_entry(copy);
            self.gain_list(kept);
            let (leaf, at) = self.own_leaf(key, None);
            leaf.keys.replace(at, copy);
        }
        self.lose_entry(entry);
        self.lose_list(list);
    }

    fn advance(&mut self, revision: Revision) {
        assert!(
            revision > self.last,
            "the index is at {:?}, a change at {revision:?} came too late",
            self.last
        );
        self.last = revision;
    }

    /// Appends to the list of a key that is in the tree.
    fn append(&mut self, entry: Entry, revision: Revision, tombstone: bool, lease: i64) {
        self.revisions += 1;
        // SAFETY: the entry is in the writer's tree, and this is the only thread that appends.
        unsafe {
            let list = entry.list();
            if list.push(revision, tombstone, lease) {
                return;
            }
            let grown = list.grown(lease != 0);
            assert!(grown.push(revision, tombstone, lease), "a list has room after it grew");
            self.gain_list(grown);
            entry.set_list(grown);
            self.lose_list(list);
        }
    }

    /// Makes the entry of a key that is not in the tree.
    fn create(&mut self, key: &[u8], revision: Revision, tombstone: bool, origin: Option<Origin>, lease: i64) {
        let list = List::new(1, origin, lease != 0);
        // SAFETY: the list is new.
        let pushed = unsafe { list.push(revision, tombstone, lease) };
        assert!(pushed, "a new list has room for one revision");
        let entry = Entry::new(key, list);
        self.gain_list(list);
        self.gain_entry(entry);
        self.keys += 1;
        self.revisions += 1;
        let (root, split) = self.insert(self.root, entry, !tombstone, revision.main);
        self.root = root;
        if let Some(Split { separator, right }) = split {
            self.root = self.gain_inner(Inner::of(&[root, right], &[separator]));
        }
    }

    /// Notes that a key in the tree was created anew or deleted.
    fn mark(&mut self, key: &[u8], live: bool, main: i64) {
        let (leaf, at) = self.own_leaf(key, Some((live, main)));
        leaf.set_live(at, live);
        leaf.changed = leaf.changed.max(main);
    }

    /// The leaf and position of a key in the tree, with the nodes on the way made changeable. `created` is whether a
    /// creation (else a deletion) and when, for the counts on the way.
    fn own_leaf(&mut self, key: &[u8], created: Option<(bool, i64)>) -> (&mut Leaf, usize) {
        self.root = self.own(self.root);
        let mut node = self.root;
        loop {
            // SAFETY: an own node is reachable for nobody else.
            match unsafe { &mut (*node).kind } {
                Kind::Inner(inner) => {
                    let at = inner.child_for(key);
                    if let Some((live, main)) = created {
                        inner.counts[at] = if live {
                            inner.counts[at] + 1
                        } else {
                            inner.counts[at] - 1
                        };
                        inner.changed[at] = inner.changed[at].max(main);
                    }
                    node = self.own(inner.children[at]);
                    inner.children[at] = node;
                }
                Kind::Leaf(leaf) => match leaf.keys.search(key) {
                    Ok(at) => return (leaf, at),
                    Err(_) => unreachable!("the key was found in this tree before"),
                },
            }
        }
    }

    /// Puts a new entry below `node`, which comes back changeable, and divided if it was full.
    fn insert(&mut self, node: *mut Node, entry: Entry, live: bool, main: i64) -> (*mut Node, Option<Split>) {
        let node = self.own(node);
        // SAFETY: the entry is in the tree; an own node is reachable for nobody else.
        let (key, kind): (&[u8], _) = unsafe { (entry.key(), &mut (*node).kind) };
        let split = match kind {
            Kind::Leaf(leaf) => {
                let at = leaf.keys.search(key).expect_err("a key is created once");
                leaf.changed = leaf.changed.max(main);
                self.insert_in_leaf(leaf, at, entry, live)
            }
            Kind::Inner(inner) => {
                let at = inner.child_for(key);
                let (child, split) = self.insert(inner.children[at], entry, live, main);
                inner.set_child(at, child);
                split.and_then(|split| self.insert_in_inner(inner, at + 1, split))
            }
        };
        (node, split)
    }

    fn insert_in_leaf(&mut self, leaf: &mut Leaf, at: usize, entry: Entry, live: bool) -> Option<Split> {
        if !leaf.keys.is_full() {
            leaf.insert(at, entry, live);
            return None;
        }
        // Keys that come in order leave full leaves behind.
        let cut = if at == LEAF_KEYS { LEAF_KEYS } else { LEAF_KEYS / 2 };
        let mut right = leaf.split_off(cut);
        match at < cut {
            true => leaf.insert(at, entry, live),
            false => right.insert(at - cut, entry, live),
        }
        let separator = self.gain_separator(leaf, &right);
        let right = self.gain_leaf(right);
        Some(Split { separator, right })
    }

    fn insert_in_inner(&mut self, inner: &mut Inner, at: usize, split: Split) -> Option<Split> {
        if inner.len() < INNER_CHILDREN {
            inner.insert(at, split.separator, split.right);
            return None;
        }
        if at == INNER_CHILDREN {
            let right = self.gain_inner(Inner::of(&[split.right], &[]));
            return Some(Split { right, ..split });
        }
        let cut = INNER_CHILDREN / 2;
        let (separator, mut right) = inner.split_off(cut);
        match at <= cut {
            true => inner.insert(at, split.separator, split.right),
            false => right.insert(at - cut, split.separator, split.right),
        }
        let right = self.gain_inner(right);
        Some(Split { separator, right })
    }

    /// Takes a dead key out of the tree. Its entry stays the caller's.
    fn remove(&mut self, key: &[u8]) {
        self.keys -= 1;
        self.root = self.remove_below(self.root, key);
        // SAFETY: the root is the writer's own after the removal.
        while let Kind::Inner(inner) = unsafe { &(*self.root).kind }
            && inner.len() == 1
        {
            let only = inner.children[0];
            self.lose_node(self.root);
            self.root = only;
        }
    }

    fn remove_below(&mut self, node: *mut Node, key: &[u8]) -> *mut Node {
        let node = self.own(node);
        // SAFETY: an own node is reachable for nobody else.
        match unsafe { &mut (*node).kind } {
            Kind::Leaf(leaf) => {
                let at = leaf.keys.search(key).expect("the key was found in this tree before");
                leaf.remove(at);
            }
            Kind::Inner(inner) => {
                let at = inner.child_for(key);
                let child = self.remove_below(inner.children[at], key);
                inner.set_child(at, child);
                if inner.child(at).is_sparse() && inner.len() > 1 {
                    self.join(inner, at.max(1));
                }
            }
        }
        node
    }

    /// Makes one of the children `at - 1` and `at`, or evens them out if one cannot hold both.
    fn join(&mut self, inner: &mut Inner, at: usize) {
        let left = self.own(inner.children[at - 1]);
        let right = self.own(inner.children[at]);
        let separator = inner.remove(at);
        // SAFETY: own nodes are reachable for nobody else, and the two are different nodes.
        let split = match unsafe { (&mut (*left).kind, &mut (*right).kind) } {
            (Kind::Leaf(one), Kind::Leaf(two)) => {
                self.lose_entry(separator);
                join_leaves(one, two).then(|| self.gain_separator(one, two))
            }
            (Kind::Inner(one), Kind::Inner(two)) => join_inners(one, separator, two),
            _ => unreachable!("neighbours are of one kind"),
        };
        inner.set_child(at - 1, left);
        match split {
            Some(separator) => inner.insert(at, separator, right),
            None => self.lose_node(right),
        }
    }

    /// A node that the writer may change: this one if it was never published, else a copy in its place.
    fn own(&mut self, node: *mut Node) -> *mut Node {
        // SAFETY: the node is in the writer's tree.
        let published = unsafe { &*node };
        if published.batch == self.batch {
            return node;
        }
        let copy = Node {
            batch: self.batch,
            kind: published.kind.clone(),
        };
        self.bytes += NODE_COST;
        self.lose_node(node);
        Box::into_raw(Box::new(copy))
    }

    fn gain_leaf(&mut self, leaf: Leaf) -> *mut Node {
        self.bytes += NODE_COST;
        Node::leaf(self.batch, leaf)
    }

    fn gain_inner(&mut self, inner: Inner) -> *mut Node {
        self.bytes += NODE_COST;
        Node::inner(self.batch, inner)
    }

    fn gain_entry(&mut self, entry: Entry) {
        // SAFETY: the entry is new.
        self.bytes += cost(unsafe { entry.size() });
    }

    fn gain_list(&mut self, list: List) {
        // SAFETY: the list is new.
        self.bytes += cost(unsafe { list.size() });
    }

    /// The shortest key that is above every key of `left` and not above any of `right`.
    fn gain_separator(&mut self, left: &Leaf, right: &Leaf) -> Entry {
        let (last, first) = (left.keys.key(left.keys.len() - 1), right.keys.key(0));
        let separator = Entry::separator(&first[..common_prefix(last, first) + 1]);
        self.gain_entry(separator);
        separator
    }

    fn lose_node(&mut self, node: *mut Node) {
        self.bytes -= NODE_COST;
        self.retire(Garbage::Node(node));
    }

    fn lose_entry(&mut self, entry: Entry) {
        // SAFETY: not freed before it is retired.
        self.bytes -= cost(unsafe { entry.size() });
        self.retire(Garbage::Entry(entry));
    }

    fn lose_list(&mut self, list: List) {
        // SAFETY: not freed before it is retired.
        self.bytes -= cost(unsafe { list.size() });
        self.retire(Garbage::List(list));
    }

    fn retire(&mut self, garbage: Garbage) {
        if self.shared {
            self.garbage.push(garbage);
        }
    }

    /// Takes the place of another tree, all of which becomes garbage.
    pub(super) fn replace(&mut self, tree: Tree) {
        let mut old = std::mem::replace(self, tree);
        self.shared = true;
        self.garbage.append(&mut old.garbage);
        self.garbage
            .push(Garbage::Subtree(std::mem::replace(&mut old.root, null_mut())));
    }

    /// Ends the batch: from here on the nodes of the tree may be published, and what was retired so far is handed over.
    pub(super) fn seal(&mut self) -> Vec<Garbage> {
        self.batch += 1;
        self.shared = true;
        std::mem::take(&mut self.garbage)
    }
}

/// Makes one node of two neighbours if it is roomy enough, else evens them out. The separator between the two comes
/// back if both are still needed.
fn join_inners(one: &mut Inner, separator: Entry, two: &mut Inner) -> Option<Entry> {
    let children = [&one.children[..one.len()], &two.children[..two.len()]].concat();
    let separators = [one.separators.entries(), &[separator], two.separators.entries()].concat();
    let keep = kept_left(children.len(), INNER_CHILDREN);
    *one = Inner::of(&children[..keep], &separators[..keep - 1]);
    if keep == children.len() {
        return None;
    }
    *two = Inner::of(&children[keep..], &separators[keep..]);
    Some(separators[keep - 1])
}

/// As `join_inners`; whether both are still needed.
fn join_leaves(one: &mut Leaf, two: &mut Leaf) -> bool {
    let keys: Vec<(Entry, bool)> = one.marked_keys().chain(two.marked_keys()).collect();
    let changed = one.changed.max(two.changed);
    let keep = kept_left(keys.len(), LEAF_KEYS);
    *one = Leaf::of(&keys[..keep], changed);
    *two = Leaf::of(&keys[keep..], changed);
    keep < keys.len()
}

/// How many of `total` places go to the left one of two neighbours of `capacity` each: all if that leaves some room.
fn kept_left(total: usize, capacity: usize) -> usize {
    if total <= capacity * 3 / 4 { total } else { total / 2 }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A replaced tree has given its root away.
        if !self.root.is_null() {
            // SAFETY: whoever shared the tree drops it only when there are no readers; what is in the tree is in it
            // once, and what is in the garbage is not in the tree.
            unsafe { free_below(self.root) };
        }
    }
}
