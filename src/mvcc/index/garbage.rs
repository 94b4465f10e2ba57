//! What is no longer reachable from the tree, and how it is freed.

use super::entry::Entry;
use super::list::List;
use super::node::{Kind, Node};

/// Memory that is no longer reachable from the tree.
pub enum Garbage {
    Node(*mut Node),
    /// A separator, or a key whose list is retired by itself.
    Entry(Entry),
    List(List),
    /// A node and everything below it: of a tree that was replaced as a whole.
    Subtree(*mut Node),
}

// SAFETY: garbage owns its memory, and nobody else looks at it when it is dropped.
unsafe impl Send for Garbage {}

impl Drop for Garbage {
    fn drop(&mut self) {
        // SAFETY: every piece is retired once, when its last place in the tree is gone, and dropped when no reader can
        // reach it any more.
        unsafe {
            match self {
                Garbage::Node(node) => drop(Box::from_raw(*node)),
                Garbage::Entry(entry) => entry.free(),
                Garbage::List(list) => list.free(),
                Garbage::Subtree(node) => free_below(*node),
            }
        }
    }
}

impl Garbage {
    /// Frees this piece; of a subtree only its root, and leaves the parts in `parts`. So no step is long.
    pub fn free(self, parts: &mut Vec<Garbage>) {
        if let Garbage::Subtree(node) = self
            // SAFETY: as in `drop`.
            && let Kind::Inner(inner) = unsafe { &(*node).kind }
        {
            parts.extend(
                inner.children[..inner.len()]
                    .iter()
                    .map(|child| Garbage::Subtree(*child)),
            );
            parts.extend(
                inner
                    .separators
                    .entries()
                    .iter()
                    .map(|separator| Garbage::Entry(*separator)),
            );
            parts.push(Garbage::Node(node));
            std::mem::forget(self);
        }
    }
}

/// # Safety
/// The node must be part of a tree that nobody uses any more.
pub unsafe fn free_below(node: *mut Node) {
    // SAFETY: by the caller's promise.
    unsafe {
        match &(*node).kind {
            Kind::Leaf(leaf) => {
                for entry in leaf.keys.entries() {
                    entry.list().free();
                    entry.free();
                }
            }
            Kind::Inner(inner) => {
                inner.children[..inner.len()]
                    .iter()
                    .for_each(|child| free_below(*child));
                inner.separators.entries().iter().for_each(|separator| separator.free());
            }
        }
        drop(Box::from_raw(node));
    }
}
