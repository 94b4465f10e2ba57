//! The changes a checkpoint makes to one tree, taken in key order.

use super::page::TreeId;
use super::record::{ID_BYTES, NewRecord, RecordId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;

/// Updates of a small tree: the new value of a key, or `None` to delete it.
pub type TreeUpdates = BTreeMap<Vec<u8>, Option<Bytes>>;

/// Records in ascending order.
pub type Records = Box<dyn Iterator<Item = NewRecord> + Send>;

/// A key of any tree.
pub(super) enum Key {
    Record([u8; ID_BYTES]),
    Bytes(Vec<u8>),
}

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Key::Record(bytes) => bytes,
            Key::Bytes(bytes) => bytes,
        }
    }
}

/// What happens to a key.
pub(super) enum Change {
    Delete,
    /// The head of its leaf entry, and what goes into an extent.
    Put {
        head: Vec<u8>,
        payload: Option<Bytes>,
    },
}

/// The changes not yet made.
pub(super) enum Changes {
    Records {
        deletes: Vec<RecordId>,
        /// The first delete not yet made.
        at: usize,
        records: Peekable<Records>,
        last: Option<RecordId>,
    },
    Tree {
        tree: TreeId,
        updates: TreeUpdates,
    },
}

impl Changes {
    /// Changes of the records: `deletes` ascending.
    pub fn records(deletes: Vec<RecordId>, records: Records) -> Changes {
        Changes::Records {
            deletes,
            at: 0,
            records: records.peekable(),
            last: None,
        }
    }

    pub fn tree(&self) -> TreeId {
        match self {
            Changes::Records { .. } => TreeId::Records,
            Changes::Tree { tree, .. } => *tree,
        }
    }

    /// Whether a change lies before `upper`; `None` is behind every key.
    pub fn touch(&mut self, upper: Option<&[u8]>) -> bool {
        match self {
            Changes::Records {
                deletes, at, records, ..
            } => match upper {
                None => *at < deletes.len() || records.peek().is_some(),
                Some(upper) => deletes.get(*at).is_some_and(|delete| delete.encode()[..] < *upper),
            },
            Changes::Tree { updates, .. } => match (updates.first_key_value(), upper) {
                (Some((first, _)), Some(upper)) => first.as_slice() < upper,
                (first, None) => first.is_some(),
                (None, _) => false,
            },
        }
    }

    /// Whether a change lies at `low` or behind, and before `upper`.
    pub fn touch_range(&mut self, low: &[u8], upper: Option<&[u8]>) -> bool {
        match self {
            Changes::Records {
                deletes, at, records, ..
            } => {
                let rest = &deletes[*at..];
                let next = rest.get(rest.partition_point(|delete| delete.encode()[..] < *low));
                match upper {
                    None => next.is_some() || records.peek().is_some(),
                    Some(upper) => next.is_some_and(|delete| delete.encode()[..] < *upper),
                }
            }
            Changes::Tree { updates, .. } => {
                let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
                updates.range::<[u8], _>((Bound::Included(low), upper)).next().is_some()
            }
        }
    }

    /// Whether exactly this key is changed.
    pub fn touch_key(&self, key: &[u8]) -> bool {
        match self {
            Changes::Records { deletes, at, .. } => deletes[*at..]
                .binary_search_by(|delete| delete.encode()[..].cmp(key))
                .is_ok(),
            Changes::Tree { updates, .. } => updates.contains_key(key),
        }
    }

    /// Takes the first change at or before `key`.
    pub fn next_to(&mut self, key: &[u8]) -> Option<(Key, Change)> {
        match self {
            Changes::Records { deletes, at, .. } => {
                let id = deletes.get(*at)?.encode();
                if id[..] > *key {
                    return None;
                }
                *at += 1;
                Some((Key::Record(id), Change::Delete))
            }
            Changes::Tree { updates, .. } => {
                let first = updates.first_entry()?;
                if first.key().as_slice() > key {
                    return None;
                }
                Some(put_or_delete(first.remove_entry()))
            }
        }
    }

    /// Takes the first change before `upper`; `None` is behind every key.
    pub fn next_before(&mut self, upper: Option<&[u8]>) -> Option<(Key, Change)> {
        if !self.touch(upper) {
            return None;
        }
        match self {
            Changes::Records {
                deletes,
                at,
                records,
                last,
            } => {
                if *at < deletes.len() {
                    let id = deletes[*at].encode();
                    *at += 1;
                    return Some((Key::Record(id), Change::Delete));
                }
                let record = records.next()?;
                assert!(
                    last.is_none_or(|last| last < record.id),
                    "records come in order: {:?}",
                    record.id
                );
                assert!(record.id.main >= 0, "a revision is not negative: {:?}", record.id);
                *last = Some(record.id);
                let (head, payload) = record.encode();
                Some((Key::Record(record.id.encode()), Change::Put { head, payload }))
            }
            Changes::Tree { updates, .. } => updates.pop_first().map(put_or_delete),
        }
    }

    /// Says that the tree holds a record of this key, its last: new ones must come behind it.
    pub fn follow(&mut self, key: &[u8]) {
        if let Changes::Records { last, .. } = self {
            *last = (*last).max(RecordId::decode(key));
        }
    }

    /// Gives up the deletes not yet made.
    pub fn stop_deletes(&mut self) -> Vec<RecordId> {
        match self {
            Changes::Records { deletes, at, .. } => {
                let left = deletes.split_off(*at);
                deletes.truncate(*at);
                left
            }
            Changes::Tree { .. } => Vec::new(),
        }
    }
}

fn put_or_delete((key, value): (Vec<u8>, Option<Bytes>)) -> (Key, Change) {
    let change = match value {
        None => Change::Delete,
        Some(value) if value.len() > crate::limits::pages::INLINE_VALUE_MAX_BYTES => Change::Put {
            head: Vec::new(),
            payload: Some(value),
        },
        Some(value) => Change::Put {
            head: value.into(),
            payload: None,
        },
    };
    (Key::Bytes(key), change)
}
