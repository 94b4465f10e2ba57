//! The nodes of the tree: sorted keys, and beside them live marks in a leaf, children and live counts in an inner node.
//!
//! A node is immutable from the moment it is published; the writer changes only nodes that it made after the last
//! publication. Counts and live marks describe the root that the node belongs to; `changed` says since which revision
//! they hold, so that a read at that revision or later may use them instead of looking at the keys.
//!
//! **Who may follow the pointers.** A `&Node` is made from a root that is pinned, or from the writer's own root.
//! Entries and children of such a node are retired only after the root they belong to was replaced, so they are valid
//! for as long as the reference is. Every `unsafe` below relies on this and on nothing else.
//!
//! Keys are compared by what lies in the node itself: the beginning that all its keys have in common, and of each key a
//! fragment of the eight bytes that follow. Only keys with equal fragments are looked into. A descent waits for memory
//! once per node and level, not once per comparison: that is most of what it costs.

use super::entry::Entry;
use std::cmp::Ordering;

/// Keys in a leaf: as many as a word has bits for live marks.
pub const LEAF_KEYS: usize = 64;
/// Children of an inner node; chosen so that both kinds of node are of one size.
pub const INNER_CHILDREN: usize = 26;
/// Bytes of the common beginning that a node keeps. Longer ones are checked at one of the keys.
const PREFIX_BYTES: usize = 56;
/// Fragments in a cache line.
const LINE: usize = 8;

/// A node, and the number of the writer's batch that made it.
#[derive(Clone)]
pub struct Node {
    pub batch: u64,
    pub kind: Kind,
}

#[derive(Clone)]
pub enum Kind {
    Leaf(Leaf),
    Inner(Inner),
}

#[derive(Clone)]
pub struct Leaf {
    pub keys: Keys<LEAF_KEYS>,
    /// Bit `i` is set when key `i` exists, at `changed` and ever since.
    pub live: u64,
    /// Main revision of the newest creation or deletion among the keys.
    pub changed: i64,
}

#[derive(Clone)]
pub struct Inner {
    /// Separator `i` is above every key of child `i` and not above any key of child `i + 1`.
    pub separators: Keys<{ INNER_CHILDREN - 1 }>,
    pub children: [*mut Node; INNER_CHILDREN],
    /// Live keys below each child.
    pub counts: [u64; INNER_CHILDREN],
    /// The newest creation or deletion below each child.
    pub changed: [i64; INNER_CHILDREN],
}

/// Up to `N` sorted keys.
#[derive(Clone)]
pub struct Keys<const N: usize> {
    length: u32,
    /// Bytes that all keys have in common at their start.
    prefix: u32,
    /// The first of these bytes.
    prefix_bytes: [u8; PREFIX_BYTES],
    fragments: [u64; N],
    entries: [Entry; N],
}

impl Node {
    pub fn leaf(batch: u64, leaf: Leaf) -> *mut Node {
        Box::into_raw(Box::new(Node {
            batch,
            kind: Kind::Leaf(leaf),
        }))
    }

    pub fn inner(batch: u64, inner: Inner) -> *mut Node {
        Box::into_raw(Box::new(Node {
            batch,
            kind: Kind::Inner(inner),
        }))
    }

    /// Live keys below this node, for a read at [`Node::changed`] or later.
    pub fn live(&self) -> u64 {
        match &self.kind {
            Kind::Leaf(leaf) => u64::from(leaf.live.count_ones()),
            Kind::Inner(inner) => inner.counts[..inner.len()].iter().sum(),
        }
    }

    /// Main revision of the newest creation or deletion below this node; 0 when there is none.
    pub fn changed(&self) -> i64 {
        match &self.kind {
            Kind::Leaf(leaf) => leaf.changed,
            Kind::Inner(inner) => inner.changed[..inner.len()].iter().copied().max().unwrap_or(0),
        }
    }

    /// Whether the node is so empty that it should join a neighbour.
    pub fn is_sparse(&self) -> bool {
        match &self.kind {
            Kind::Leaf(leaf) => leaf.keys.len() < LEAF_KEYS / 4,
            Kind::Inner(inner) => inner.len() < INNER_CHILDREN / 4,
        }
    }
}

impl Leaf {
    /// A leaf of keys, each with its live mark.
    pub fn of(marked_keys: &[(Entry, bool)], changed: i64) -> Leaf {
        let entries: Vec<Entry> = marked_keys.iter().map(|(entry, _)| *entry).collect();
        let live = marked_keys
            .iter()
            .enumerate()
            .map(|(at, (_, live))| u64::from(*live) << at);
        Leaf {
            keys: Keys::of(&entries),
            live: live.sum(),
            changed,
        }
    }

    pub fn marked_keys(&self) -> impl Iterator<Item = (Entry, bool)> {
        self.keys
            .entries()
            .iter()
            .enumerate()
            .map(|(at, entry)| (*entry, self.is_live(at)))
    }

    pub fn is_live(&self, at: usize) -> bool {
        self.live >> at & 1 == 1
    }

    pub fn set_live(&mut self, at: usize, live: bool) {
        self.live = self.live & !(1 << at) | u64::from(live) << at;
    }

    pub fn insert(&mut self, at: usize, entry: Entry, live: bool) {
        self.keys.insert(at, entry);
        let low = self.live & below(at);
        self.live = low | u64::from(live) << at | (self.live & !below(at)) << 1;
    }

    pub fn remove(&mut self, at: usize) -> Entry {
        let low = self.live & below(at);
        self.live = low | self.live >> 1 & !below(at);
        self.keys.remove(at)
    }

    /// Cuts the keys from `at` on into a leaf of their own.
    pub fn split_off(&mut self, at: usize) -> Leaf {
        let right = Leaf {
            keys: Keys::of(&self.keys.entries()[at..]),
            live: if at < LEAF_KEYS { self.live >> at } else { 0 },
            changed: self.changed,
        };
        self.keys.truncate(at);
        self.live &= below(at);
        right
    }

    /// Live keys at positions `from..to`.
    pub fn live_between(&self, from: usize, to: usize) -> u64 {
        u64::from((self.live & below(to) & !below(from)).count_ones())
    }
}

/// A mask of the bits below `at`.
fn below(at: usize) -> u64 {
    if at < 64 { (1 << at) - 1 } else { u64::MAX }
}

impl Inner {
    /// A node above `children`, of which there is at least one, with a separator between every two.
    pub fn of(children: &[*mut Node], separators: &[Entry]) -> Inner {
        assert_eq!(
            children.len(),
            separators.len() + 1,
            "a separator between every two children"
        );
        let mut inner = Inner {
            separators: Keys::of(separators),
            children: [std::ptr::null_mut(); INNER_CHILDREN],
            counts: [0; INNER_CHILDREN],
            changed: [0; INNER_CHILDREN],
        };
        children
            .iter()
            .enumerate()
            .for_each(|(at, child)| inner.set_child(at, *child));
        inner
    }

    /// Number of children.
    pub fn len(&self) -> usize {
        self.separators.len() + 1
    }

    /// The child that holds `key` if any does.
    pub fn child_for(&self, key: &[u8]) -> usize {
        match self.separators.search(key) {
            Ok(at) => at + 1,
            Err(at) => at,
        }
    }

    /// The last child that can hold a key below `end`.
    pub fn child_before(&self, end: &[u8]) -> usize {
        match self.separators.search(end) {
            Ok(at) | Err(at) => at,
        }
    }

    pub fn child(&self, at: usize) -> &Node {
        assert!(at < self.len(), "child {at} of {}", self.len());
        // SAFETY: children of a reachable node are valid (see above).
        unsafe { &*self.children[at] }
    }

    /// Sets a child and takes over what it says of itself.
    pub fn set_child(&mut self, at: usize, child: *mut Node) {
        self.children[at] = child;
        // SAFETY: the writer has just made or found the child in its own tree.
        let child = unsafe { &*child };
        self.counts[at] = child.live();
        self.changed[at] = child.changed();
    }

    /// Makes `child` number `at`; `separator` stands between it and its left neighbour.
    pub fn insert(&mut self, at: usize, separator: Entry, child: *mut Node) {
        let length = self.len();
        self.separators.insert(at - 1, separator);
        self.children.copy_within(at..length, at + 1);
        self.counts.copy_within(at..length, at + 1);
        self.changed.copy_within(at..length, at + 1);
        self.set_child(at, child);
    }

    /// Takes child `at`, which is not the first, and the separator to its left out.
    pub fn remove(&mut self, at: usize) -> Entry {
        let length = self.len();
        self.children.copy_within(at + 1..length, at);
        self.counts.copy_within(at + 1..length, at);
        self.changed.copy_within(at + 1..length, at);
        self.separators.remove(at - 1)
    }

    /// Cuts the children from `at` on into a node of their own; the separator between the two comes back too.
    pub fn split_off(&mut self, at: usize) -> (Entry, Inner) {
        let right = Inner::of(&self.children[at..self.len()], &self.separators.entries()[at..]);
        let separator = self.separators.entries()[at - 1];
        self.separators.truncate(at - 1);
        (separator, right)
    }
}

impl<const N: usize> Keys<N> {
    /// Sorted keys, at most `N`.
    pub fn of(entries: &[Entry]) -> Keys<N> {
        let mut keys = Keys {
            length: entries.len() as u32,
            prefix: 0,
            prefix_bytes: [0; PREFIX_BYTES],
            fragments: [0; N],
            entries: [Entry::NONE; N],
        };
        keys.entries[..entries.len()].copy_from_slice(entries);
        keys.refresh();
        keys
    }

    pub fn len(&self) -> usize {
        self.length as usize
    }

    pub fn is_full(&self) -> bool {
        self.len() == N
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries[..self.len()]
    }

    /// The key at a position.
    pub fn key(&self, at: usize) -> &[u8] {
        // SAFETY: entries of a reachable node are valid (see above).
        unsafe { self.entries()[at].key() }
    }

    /// Where `key` is, or where it would have to go.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        match self.side(key) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.len()),
            Ordering::Equal => {}
        }
        let prefix = self.prefix as usize;
        let fragments = &self.fragments[..self.len()];
        let wanted = fragment(key, prefix);
        let low = rank(fragments, wanted);
        // Equal fragments, of which there is seldom more than one, are told apart by what follows.
        let equal = fragments[low..]
            .iter()
            .take_while(|fragment| **fragment == wanted)
            .count();
        let rest = &key[prefix..];
        let run = &self.entries[low..low + equal];
        // SAFETY: entries of a reachable node are valid (see above).
        let found = run.binary_search_by(|entry| unsafe { entry.key() }[prefix..].cmp(rest));
        found.map(|at| low + at).map_err(|at| low + at)
    }

    /// The entry at which `key` is, if it is here, as far as that shows without looking at the keys themselves.
    pub fn near(&self, key: &[u8]) -> Option<&Entry> {
        let fragments = &self.fragments[..self.len()];
        let place = rank(fragments, fragment(key, self.prefix as usize));
        self.entries().get(place).or(self.entries().last())
    }

    /// On which side of all keys here `key` lies; equal when it begins as they do.
    fn side(&self, key: &[u8]) -> Ordering {
        let prefix = self.prefix as usize;
        let kept = prefix.min(PREFIX_BYTES);
        let side = key[..key.len().min(kept)].cmp(&self.prefix_bytes[..kept]);
        if side.is_eq() && prefix > kept {
            return key[..key.len().min(prefix)].cmp(&self.key(0)[..prefix]);
        }
        side
    }

    pub fn insert(&mut self, at: usize, entry: Entry) {
        assert!(
            !self.is_full() && at <= self.len(),
            "no place {at} among {} keys",
            self.len()
        );
        let length = self.len();
        // SAFETY: the writer has just made the entry.
        let key: &[u8] = unsafe { entry.key() };
        let prefix = self.prefix as usize;
        let fits = length > 0 && self.side(key).is_eq();
        self.entries.copy_within(at..length, at + 1);
        self.fragments.copy_within(at..length, at + 1);
        self.entries[at] = entry;
        self.fragments[at] = fragment(key, prefix);
        self.length += 1;
        if !fits {
            self.refresh();
        }
    }

    pub fn remove(&mut self, at: usize) -> Entry {
        let length = self.len();
        let entry = self.entries()[at];
        self.entries.copy_within(at + 1..length, at);
        self.fragments.copy_within(at + 1..length, at);
        self.length -= 1;
        self.entries[length - 1] = Entry::NONE;
        entry
    }

    /// Puts another entry of the same key in the place of one.
    pub fn replace(&mut self, at: usize, entry: Entry) -> Entry {
        assert!(at < self.len(), "key {at} of {}", self.len());
        std::mem::replace(&mut self.entries[at], entry)
    }

    fn truncate(&mut self, length: usize) {
        self.entries[length..].fill(Entry::NONE);
        self.length = length as u32;
        self.refresh();
    }

    /// Finds out anew what all keys have in common, and the fragments behind it.
    fn refresh(&mut self) {
        let Some(last) = self.len().checked_sub(1) else {
            self.prefix = 0;
            return;
        };
        let prefix = common_prefix(self.key(0), self.key(last));
        self.prefix = prefix as u32;
        let kept = prefix.min(PREFIX_BYTES);
        // SAFETY: entries of a reachable node are valid (see above).
        let first: &[u8] = unsafe { self.entries[0].key() };
        self.prefix_bytes[..kept].copy_from_slice(&first[..kept]);
        for at in 0..self.len() {
            self.fragments[at] = fragment(self.key(at), prefix);
        }
    }
}

/// The first eight bytes behind `prefix`, as a number that compares as they do; a shorter rest is filled with zeroes.
fn fragment(key: &[u8], prefix: usize) -> u64 {
    let rest = key.get(prefix..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

/// How many of the sorted fragments are below `wanted`. Looks into each cache line once, without waiting for one before
/// asking for the next, and then at all of one line.
fn rank(fragments: &[u64], wanted: u64) -> usize {
    let lines = fragments.chunks_exact(LINE);
    let before = LINE * lines.filter(|line| line[LINE - 1] < wanted).count();
    before
        + fragments[before..]
            .iter()
            .take(LINE)
            .filter(|fragment| **fragment < wanted)
            .count()
}

/// How many bytes two keys have in common at their start.
pub fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
