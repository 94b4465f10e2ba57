//! The keys attached to one lease: a sorted list while they are few, a tree once they are many.
//!
//! Most leases have one key or none, and there may be a million leases; a few have very many keys.

use crate::limits::LEASE_KEYS_IN_LIST;
use std::collections::BTreeSet;

/// A set of keys, in order.
#[derive(Debug)]
pub enum Attached {
    /// Sorted.
    Few(Vec<Box<[u8]>>),
    /// More than fit the list.
    Many(BTreeSet<Box<[u8]>>),
}

impl Default for Attached {
    fn default() -> Attached {
        Attached::Few(Vec::new())
    }
}

impl Attached {
    /// Adds a key; nothing happens if it is there.
    pub fn insert(&mut self, key: &[u8]) {
        match self {
            Attached::Few(list) => {
                let Err(at) = list.binary_search_by(|other| other[..].cmp(key)) else {
                    return;
                };
                if list.len() < LEASE_KEYS_IN_LIST {
                    list.insert(at, key.into());
                } else {
                    let mut tree = BTreeSet::from_iter(std::mem::take(list));
                    tree.insert(key.into());
                    *self = Attached::Many(tree);
                }
            }
            Attached::Many(tree) => {
                tree.insert(key.into());
            }
        }
    }

    /// Removes a key; nothing happens if it is not there.
    pub fn remove(&mut self, key: &[u8]) {
        match self {
            Attached::Few(list) => {
                if let Ok(at) = list.binary_search_by(|other| other[..].cmp(key)) {
                    list.remove(at);
                }
            }
            Attached::Many(tree) => {
                tree.remove(key);
                if tree.len() <= LEASE_KEYS_IN_LIST / 2 {
                    *self = Attached::Few(std::mem::take(tree).into_iter().collect());
                }
            }
        }
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        match self {
            Attached::Few(list) => list.len(),
            Attached::Many(tree) => tree.len(),
        }
    }

    /// The keys, in order.
    pub fn iter(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match self {
            Attached::Few(list) => Box::new(list.iter().map(|key| &key[..])),
            Attached::Many(tree) => Box::new(tree.iter().map(|key| &key[..])),
        }
    }
}

impl IntoIterator for Attached {
    type Item = Box<[u8]>;
    type IntoIter = Box<dyn Iterator<Item = Box<[u8]>> + Send>;

    fn into_iter(self) -> Self::IntoIter {
        match self {
            Attached::Few(list) => Box::new(list.into_iter()),
            Attached::Many(tree) => Box::new(tree.into_iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_an_ordered_set(steps in prop::collection::vec((any::<bool>(), 0u8..80), 0..300)) {
            let (mut attached, mut model) = (Attached::default(), BTreeSet::new());
            for (insert, key) in steps {
                if insert {
                    attached.insert(&[key]);
                    model.insert(vec![key]);
                } else {
                    attached.remove(&[key]);
                    model.remove(&vec![key]);
                }
                prop_assert_eq!(attached.len(), model.len());
                prop_assert!(attached.iter().eq(model.iter().map(|key| &key[..])));
            }
            prop_assert!(attached.into_iter().eq(model.into_iter().map(Vec::into_boxed_slice)));
        }
    }
}
