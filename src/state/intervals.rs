//! Which keys the operations of a transaction write, to refuse two writes of one key.
//!
//! etcd's rule (`etcd-surface` 4.1, items 4 and 5) to the letter: a put conflicts with another put of the same key and
//! with a delete interval that holds its key, and deletes never conflict with each other. A branch of a nested
//! transaction is checked by itself first. Then the puts of both its branches together are checked against this level's
//! deletes and against the puts and deletes of siblings before it; its deletes count for what follows only. A delete's
//! `range_end` is compared as the bytes it is, so "from the key on" (one zero byte) holds no key here: a put beside it
//! is let through, as by etcd.

use crate::proto::etcdserverpb::{RequestOp, TxnRequest, request_op::Request};
use crate::state::error::StateError;
use std::collections::{BTreeMap, BTreeSet};

/// Refuses a transaction one of whose branches writes a key twice.
///
/// Recursion is as deep as the request, which `depth` has bounded. The cost is O(n log² n) in the number of operations.
pub fn check_duplicate_keys(request: &TxnRequest) -> Result<(), StateError> {
    Footprint::of(&request.success)?;
    Footprint::of(&request.failure)?;
    Ok(())
}

/// What a list of operations writes.
#[derive(Default)]
struct Footprint<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Intervals<'a>,
}

impl<'a> Footprint<'a> {
    fn of(operations: &'a [RequestOp]) -> Result<Footprint<'a>, StateError> {
        let mut level = Footprint::default();
        for operation in operations {
            if let Some(Request::RequestDeleteRange(delete)) = &operation.request {
                level.deletes.insert(&delete.key, &delete.range_end);
            }
        }
        for operation in operations {
            if let Some(Request::RequestTxn(nested)) = &operation.request {
                let mut branches = Footprint::of(&nested.success)?;
                branches.merge(Footprint::of(&nested.failure)?);
                level.absorb(branches)?;
            }
        }
        for operation in operations {
            if let Some(Request::RequestPut(put)) = &operation.request {
                let key = &put.key[..];
                if level.deletes.contains(key) || !level.puts.insert(key) {
                    return Err(StateError::DuplicateKey);
                }
            }
        }
        Ok(level)
    }

    /// Adds a nested transaction, whose puts must be new to this level.
    fn absorb(&mut self, nested: Footprint<'a>) -> Result<(), StateError> {
        let (small, large) = by_size(&self.puts, &nested.puts);
        let twice = small.iter().any(|key| large.contains(key));
        if twice || self.deletes.any_in(&nested.puts) {
            return Err(StateError::DuplicateKey);
        }
        self.merge(nested);
        Ok(())
    }

    /// Adds all of `other`, the smaller into the larger, so that a key is moved at most log n times on its way up.
    fn merge(&mut self, mut other: Footprint<'a>) {
        if self.puts.len() < other.puts.len() {
            std::mem::swap(&mut self.puts, &mut other.puts);
        }
        self.puts.extend(other.puts);
        if self.deletes.len() < other.deletes.len() {
            std::mem::swap(&mut self.deletes, &mut other.deletes);
        }
        self.deletes.merge(other.deletes);
    }
}

fn by_size<'s, 'a>(
    a: &'s BTreeSet<&'a [u8]>,
    b: &'s BTreeSet<&'a [u8]>,
) -> (&'s BTreeSet<&'a [u8]>, &'s BTreeSet<&'a [u8]>) {
    if a.len() <= b.len() { (a, b) } else { (b, a) }
}

/// A set of keys made of single keys and of half-open intervals, the intervals disjoint.
#[derive(Default)]
struct Intervals<'a> {
    points: BTreeSet<&'a [u8]>,
    /// Start to end, start below end.
    ranges: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Intervals<'a> {
    fn len(&self) -> usize {
        self.points.len() + self.ranges.len()
    }

    fn insert(&mut self, key: &'a [u8], range_end: &'a [u8]) {
        if range_end.is_empty() {
            self.points.insert(key);
        } else if key < range_end {
            self.insert_range(key, range_end);
        }
    }

    fn insert_range(&mut self, mut start: &'a [u8], mut end: &'a [u8]) {
        if let Some((&before, &its_end)) = self.ranges.range(..start).next_back()
            && its_end >= start
        {
            start = before;
            end = end.max(its_end);
        }
        while let Some((&after, &its_end)) = self.ranges.range(start..=end).next() {
            self.ranges.remove(after);
            end = end.max(its_end);
        }
        self.ranges.insert(start, end);
    }

    fn contains(&self, key: &[u8]) -> bool {
        let range = || self.ranges.range(..=key).next_back().is_some_and(|(_, &end)| key < end);
        self.points.contains(key) || range()
    }

    /// Whether any of `keys` is in the set; costs in proportion to the smaller of the two.
    fn any_in(&self, keys: &BTreeSet<&'a [u8]>) -> bool {
        if keys.len() <= self.len() {
            return keys.iter().any(|key| self.contains(key));
        }
        let in_range = |(&start, &end): (&&'a [u8], &&'a [u8])| keys.range(start..end).next().is_some();
        self.points.iter().any(|key| keys.contains(key)) || self.ranges.iter().any(in_range)
    }

    fn merge(&mut self, other: Intervals<'a>) {
        self.points.extend(other.points);
        for (start, end) in other.ranges {
            self.insert_range(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::{DeleteRangeRequest, PutRequest};
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn put(key: &str) -> RequestOp {
        let put = PutRequest {
            key: bytes(key),
            ..Default::default()
        };
        RequestOp {
            request: Some(Request::RequestPut(put)),
        }
    }

    fn delete(key: &str, end: &str) -> RequestOp {
        let delete = DeleteRangeRequest {
            key: bytes(key),
            range_end: bytes(end),
            prev_kv: false,
        };
        RequestOp {
            request: Some(Request::RequestDeleteRange(delete)),
        }
    }

    fn txn(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        RequestOp {
            request: Some(Request::RequestTxn(TxnRequest {
                compare: vec![],
                success,
                failure,
            })),
        }
    }

    fn accepts(success: Vec<RequestOp>) -> bool {
        check_duplicate_keys(&TxnRequest {
            success,
            ..Default::default()
        })
        .is_ok()
    }

    #[test]
    fn puts_and_deletes_of_one_level() {
        assert!(accepts(vec![put("a"), put("b"), delete("c", "")]));
        assert!(!accepts(vec![put("a"), put("a")]));
        assert!(!accepts(vec![put("a"), delete("a", "")]));
        assert!(!accepts(vec![delete("a", "c"), put("b")]));
        assert!(accepts(vec![delete("a", "c"), put("c")]));
        assert!(accepts(vec![delete("a", "c"), delete("b", "d"), delete("b", "")]));
        assert!(
            accepts(vec![delete("a", "\0"), put("b")]),
            "a delete from the key on holds no key in this check"
        );
        assert!(accepts(vec![delete("c", "a"), put("b")]));
        let both = TxnRequest {
            success: vec![put("a")],
            failure: vec![put("a")],
            ..Default::default()
        };
        assert!(check_duplicate_keys(&both).is_ok());
        let failure = TxnRequest {
            failure: vec![put("a"), put("a")],
            ..Default::default()
        };
        assert_eq!(check_duplicate_keys(&failure), Err(StateError::DuplicateKey));
    }

    #[test]
    fn nested_levels() {
        assert!(
            accepts(vec![txn(vec![put("a")], vec![put("a")])]),
            "branches exclude each other"
        );
        assert!(!accepts(vec![txn(vec![put("a")], vec![]), put("a")]));
        assert!(!accepts(vec![txn(vec![put("a")], vec![]), txn(vec![], vec![put("a")])]));
        assert!(
            !accepts(vec![txn(vec![put("b")], vec![]), delete("a", "c")]),
            "this level's deletes come first"
        );
        assert!(
            accepts(vec![txn(vec![put("b")], vec![]), txn(vec![delete("a", "c")], vec![])]),
            "a later sibling's do not"
        );
        assert!(!accepts(vec![
            txn(vec![delete("a", "c")], vec![]),
            txn(vec![put("b")], vec![])
        ]));
        assert!(!accepts(vec![txn(vec![delete("a", "c")], vec![]), put("b")]));
        assert!(accepts(vec![txn(vec![put("b")], vec![delete("b", "")])]));
        assert!(!accepts(vec![txn(vec![txn(vec![put("x"), put("x")], vec![])], vec![])]));
    }

    type Found = Result<(HashSet<Bytes>, Vec<(Bytes, Bytes)>), ()>;

    /// The rule spelled out with lists.
    fn naive(operations: &[RequestOp]) -> Found {
        let holds = |deletes: &[(Bytes, Bytes)], key: &Bytes| {
            deletes.iter().any(|(start, end)| {
                if end.is_empty() {
                    start == key
                } else {
                    start <= key && key < end
                }
            })
        };
        let (mut puts, mut deletes) = (HashSet::new(), Vec::new());
        for operation in operations {
            if let Some(Request::RequestDeleteRange(delete)) = &operation.request {
                deletes.push((delete.key.clone(), delete.range_end.clone()));
            }
        }
        for operation in operations {
            if let Some(Request::RequestTxn(nested)) = &operation.request {
                let (then_puts, then_deletes) = naive(&nested.success)?;
                let (else_puts, else_deletes) = naive(&nested.failure)?;
                for key in then_puts.iter().chain(&else_puts) {
                    if puts.contains(key) || holds(&deletes, key) {
                        return Err(());
                    }
                }
                puts.extend(then_puts.into_iter().chain(else_puts));
                deletes.extend(then_deletes.into_iter().chain(else_deletes));
            }
        }
        for operation in operations {
            if let Some(Request::RequestPut(put)) = &operation.request
                && (holds(&deletes, &put.key) || !puts.insert(put.key.clone()))
            {
                return Err(());
            }
        }
        Ok((puts, deletes))
    }

    fn operation() -> impl Strategy<Value = RequestOp> {
        let key = "[a-z]{1,2}";
        let leaf = prop_oneof![
            4 => key.prop_map(|key| put(&key)),
            1 => (key, prop_oneof![Just(String::new()), Just("\0".into()), key.prop_map(String::from)])
                .prop_map(|(key, end)| delete(&key, &end)),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let list = || prop::collection::vec(inner.clone(), 0..4);
            (list(), list()).prop_map(|(success, failure)| txn(success, failure))
        })
    }

    proptest! {
        #[test]
        fn equals_the_naive_rule(operations in prop::collection::vec(operation(), 0..6)) {
            prop_assert_eq!(accepts(operations.clone()), naive(&operations).is_ok());
        }
    }
}
