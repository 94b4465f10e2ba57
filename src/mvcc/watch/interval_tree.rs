//! Intervals of keys with the watches on each, searched by a key: a treap whose nodes know the furthest end below them.
//!
//! Watches of the same interval share a node. With n intervals, `insert` and `remove` take O(log n) steps, and `stab`
//! O(log n) and a step or so per interval found; it tells how many nodes it looked at.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The end of an interval, itself excluded; `None` when it has no end.
pub(super) type End = Option<Arc<[u8]>>;

/// Number of a node; `NONE` for no node.
type NodeId = u32;
const NONE: NodeId = NodeId::MAX;

struct Node {
    start: Arc<[u8]>,
    end: End,
    /// The furthest end in this subtree.
    furthest: End,
    /// A parent's is at least its children's; drawn at random, which keeps the tree flat.
    priority: u64,
    left: NodeId,
    right: NodeId,
    watches: BTreeSet<u32>,
}

/// See the module's description.
pub(super) struct IntervalTree {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    root: NodeId,
    random: u64,
}

fn compare_ends(one: &End, other: &End) -> Ordering {
    match (one, other) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(one), Some(other)) => one.cmp(other),
    }
}

/// Whether an interval with this end reaches beyond `key`.
fn reaches(end: &End, key: &[u8]) -> bool {
    end.as_ref().is_none_or(|end| key < &**end)
}

impl IntervalTree {
    pub fn new() -> IntervalTree {
        IntervalTree {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NONE,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Adds a watch to the interval `start..end`.
    pub fn insert(&mut self, start: &Arc<[u8]>, end: &End, watch: u32) {
        self.root = self.insert_below(self.root, start, end, watch);
    }

    /// Takes a watch off the interval `start..end`. Returns whether it was there.
    pub fn remove(&mut self, start: &[u8], end: &End, watch: u32) -> bool {
        let mut node = self.root;
        while node != NONE {
            match self.compare(start, end, node) {
                Ordering::Less => node = self.node(node).left,
                Ordering::Greater => node = self.node(node).right,
                Ordering::Equal => break,
            }
        }
        if node == NONE || !self.node_mut(node).watches.remove(&watch) {
            return false;
        }
        if self.node(node).watches.is_empty() {
            self.root = self.remove_below(self.root, start, end);
        }
        true
    }

    /// Calls `found` with every watch on an interval that holds `key`. Returns the nodes looked at.
    pub fn stab(&self, key: &[u8], found: &mut impl FnMut(u32)) -> usize {
        self.stab_below(self.root, key, found)
    }

    fn stab_below(&self, id: NodeId, key: &[u8], found: &mut impl FnMut(u32)) -> usize {
        if id == NONE {
            return 0;
        }
        let node = self.node(id);
        if !reaches(&node.furthest, key) {
            return 1;
        }
        let mut visited = 1 + self.stab_below(node.left, key, found);
        if &*node.start <= key {
            if reaches(&node.end, key) {
                node.watches.iter().for_each(|watch| found(*watch));
            }
            visited += self.stab_below(node.right, key, found);
        }
        visited
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    fn compare(&self, start: &[u8], end: &End, id: NodeId) -> Ordering {
        let node = self.node(id);
        start.cmp(&node.start).then_with(|| compare_ends(end, &node.end))
    }

    /// xorshift: the shape of the tree is the same in every run.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn add_node(&mut self, start: &Arc<[u8]>, end: &End, watch: u32) -> NodeId {
        let node = Node {
            start: start.clone(),
            end: end.clone(),
            furthest: end.clone(),
            priority: self.next_random(),
            left: NONE,
            right: NONE,
            watches: BTreeSet::from([watch]),
        };
        match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        }
    }

    /// Inserts into the subtree of `id` and returns its new root.
    fn insert_below(&mut self, id: NodeId, start: &Arc<[u8]>, end: &End, watch: u32) -> NodeId {
        if id == NONE {
            return self.add_node(start, end, watch);
        }
        let side = self.compare(start, end, id);
        if side == Ordering::Equal {
            self.node_mut(id).watches.insert(watch);
            return id;
        }
        let child = self.insert_below(self.child(id, side), start, end, watch);
        *self.child_mut(id, side) = child;
        if self.node(child).priority > self.node(id).priority {
            return self.rotate(id, side);
        }
        self.renew_furthest(id);
        id
    }

    /// Removes the node of this interval, which is there, and returns the subtree's new root.
    fn remove_below(&mut self, id: NodeId, start: &[u8], end: &End) -> NodeId {
        let side = self.compare(start, end, id);
        if side == Ordering::Equal {
            let (left, right) = (self.node(id).left, self.node(id).right);
            self.free.push(id);
            return self.join(left, right);
        }
        let child = self.remove_below(self.child(id, side), start, end);
        *self.child_mut(id, side) = child;
        self.renew_furthest(id);
        id
    }

    /// One tree of two, all of `left` before all of `right`.
    fn join(&mut self, left: NodeId, right: NodeId) -> NodeId {
        if left == NONE || right == NONE {
            return if left == NONE { right } else { left };
        }
        let root = if self.node(left).priority > self.node(right).priority {
            let below = self.join(self.node(left).right, right);
            self.node_mut(left).right = below;
            left
        } else {
            let below = self.join(left, self.node(right).left);
            self.node_mut(right).left = below;
            right
        };
        self.renew_furthest(root);
        root
    }

    fn child(&self, id: NodeId, side: Ordering) -> NodeId {
        match side {
            Ordering::Less => self.node(id).left,
            _ => self.node(id).right,
        }
    }

    fn child_mut(&mut self, id: NodeId, side: Ordering) -> &mut NodeId {
        match side {
            Ordering::Less => &mut self.node_mut(id).left,
            _ => &mut self.node_mut(id).right,
        }
    }

    /// Lifts the child on `side` above its parent; returns the child.
    fn rotate(&mut self, parent: NodeId, side: Ordering) -> NodeId {
        let child = self.child(parent, side);
        let moved = self.child(child, side.reverse());
        *self.child_mut(parent, side) = moved;
        *self.child_mut(child, side.reverse()) = parent;
        self.renew_furthest(parent);
        self.renew_furthest(child);
        child
    }

    fn renew_furthest(&mut self, id: NodeId) {
        let node = self.node(id);
        let mut furthest = &node.end;
        for child in [node.left, node.right] {
            if child != NONE && compare_ends(&self.node(child).furthest, furthest).is_gt() {
                furthest = &self.node(child).furthest;
            }
        }
        let furthest = furthest.clone();
        self.node_mut(id).furthest = furthest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(tree: &IntervalTree, key: &[u8]) -> Vec<u32> {
        let mut watches = Vec::new();
        tree.stab(key, &mut |watch| watches.push(watch));
        watches.sort_unstable();
        watches
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..4)
    }

    proptest! {
        #[test]
        fn finds_what_a_list_finds(
            steps in prop::collection::vec(
                (key(), prop::option::of(key()), any::<bool>(), any::<prop::sample::Index>()),
                1..120,
            ),
            probes in prop::collection::vec(key(), 20),
        ) {
            let mut tree = IntervalTree::new();
            let mut list: Vec<(Arc<[u8]>, End, u32)> = Vec::new();
            for (number, (start, end, remove, which)) in steps.into_iter().enumerate() {
                if remove && !list.is_empty() {
                    let (start, end, watch) = list.swap_remove(which.index(list.len()));
                    prop_assert!(tree.remove(&start, &end, watch));
                    prop_assert!(!tree.remove(&start, &end, watch));
                } else {
                    let (start, end): (Arc<[u8]>, End) = (start.into(), end.map(Into::into));
                    tree.insert(&start, &end, number as u32);
                    list.push((start, end, number as u32));
                }
            }
            for probe in probes {
                let mut expected: Vec<u32> = list
                    .iter()
                    .filter(|(start, end, _)| **start <= *probe && end.as_ref().is_none_or(|end| *probe < **end))
                    .map(|(_, _, watch)| *watch)
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&tree, &probe), expected);
            }
            for (start, end, watch) in list {
                prop_assert!(tree.remove(&start, &end, watch));
            }
            prop_assert_eq!(tree.root, NONE);
        }
    }

    /// Intervals in order are the worst case of a tree that does not balance.
    #[test]
    fn looks_at_few_nodes_in_a_large_tree() {
        let mut tree = IntervalTree::new();
        for number in 0..20_000u32 {
            let start: Arc<[u8]> = format!("/registry/{number:05}/").into_bytes().into();
            let end: End = Some(format!("/registry/{number:05}0").into_bytes().into());
            tree.insert(&start, &end, number);
        }
        let mut watches = 0;
        let visited = tree.stab(b"/registry/12345/pod", &mut |watch| {
            assert_eq!(watch, 12_345);
            watches += 1;
        });
        assert_eq!(watches, 1);
        assert!(visited <= 100, "{visited} nodes looked at");
    }
}
