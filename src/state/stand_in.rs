//! What stands in for records whose values a transaction only compares.
//!
//! A compare of an interval may need every record of the store, and they can't all be held. But a value matters only by
//! how it stands to the values that the request compares with: below the first, equal to one, or between two. So a few
//! records made of the request's own values, shared by as many revisions as there are, do instead of those fetched.

use crate::mvcc::index::KeyReader;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{InternalRaftRequest, TxnRequest, request_op::Request};
use crate::state::compare::{needs_values, wanted_value};
use crate::state::plan::needed_by_put;
use bytes::Bytes;

/// The stand-ins for one request.
#[derive(Debug, Default)]
pub struct StandIns {
    /// The values compared with, ascending, each once; beside each a record of it, and one of the next value there is.
    wanted: Vec<(Bytes, [Bytes; 2])>,
    below: Bytes,
    /// Records whose values a put keeps, ascending: nothing stands in for them.
    kept: Vec<Revision>,
}

impl StandIns {
    /// For a request that is applied to `keys` next.
    pub fn new(request: &InternalRaftRequest, keys: &impl KeyReader) -> StandIns {
        let mut values = Vec::new();
        let mut kept = Vec::new();
        kept.extend(request.put.as_ref().and_then(|put| needed_by_put(put, keys)));
        if let Some(txn) = &request.txn {
            collect(txn, keys, &mut values, &mut kept);
        }
        kept.sort_unstable();
        values.sort_unstable();
        values.dedup();
        let pair = |value: &[u8]| [record(value), record(&[value, b"\0"].concat())];
        StandIns {
            wanted: values
                .into_iter()
                .map(|value| (Bytes::copy_from_slice(value), pair(value)))
                .collect(),
            below: record(b""),
            kept,
        }
    }

    /// The stand-in for the record of a revision that has this value. `None` when the record itself is needed.
    pub fn of(&self, revision: Revision, value: &[u8]) -> Option<Bytes> {
        if self.kept.binary_search(&revision).is_ok() {
            return None;
        }
        let standing = self.wanted.binary_search_by(|(wanted, _)| wanted[..].cmp(value));
        Some(match standing {
            Ok(at) => self.wanted[at].1[0].clone(),
            Err(0) => self.below.clone(),
            Err(above) => self.wanted[above - 1].1[1].clone(),
        })
    }
}

/// A stored record of nothing but a value.
fn record(value: &[u8]) -> Bytes {
    let mut stored = Vec::new();
    let view = KeyValueView {
        value,
        ..KeyValueView::default()
    };
    view.encode(&mut stored);
    stored.into()
}

fn collect<'a>(txn: &'a TxnRequest, keys: &impl KeyReader, values: &mut Vec<&'a [u8]>, kept: &mut Vec<Revision>) {
    values.extend(
        txn.compare
            .iter()
            .filter(|compare| needs_values(compare))
            .map(wanted_value),
    );
    for operation in txn.success.iter().chain(&txn.failure) {
        match &operation.request {
            Some(Request::RequestPut(put)) => kept.extend(needed_by_put(put, keys)),
            Some(Request::RequestTxn(nested)) => collect(nested, keys, values, kept),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::index::Tree;
    use crate::proto::etcdserverpb::{Compare, RequestOp, compare::CompareTarget, compare::TargetUnion};
    use crate::state::compare::value_of;
    use std::collections::HashMap;

    /// How a value stands to each of those compared with, its stand-in does.
    #[test]
    fn a_stand_in_compares_as_the_value_does() {
        let values: [&[u8]; 9] = [
            b"",
            b"\0",
            b"a",
            b"a\0",
            b"a\0\0",
            b"b",
            b"\xff",
            b"\xff\0",
            b"\xff\xff",
        ];
        for chosen in 0..1 << values.len() {
            let wanted: Vec<&[u8]> = (0..values.len())
                .filter(|at| chosen >> at & 1 == 1)
                .map(|at| values[at])
                .collect();
            // Half of them in a nested transaction.
            let (outer, inner) = wanted.split_at(wanted.len() / 2);
            let nested = Request::RequestTxn(txn(inner, vec![]));
            let operation = RequestOp { request: Some(nested) };
            let request = InternalRaftRequest {
                txn: Some(txn(outer, vec![operation])),
                ..Default::default()
            };
            let stand_ins = StandIns::new(&request, &Tree::new());
            for value in values {
                let revision = Revision::new(2, 0);
                let stand_in = stand_ins.of(revision, value).expect("it is only compared");
                let records = HashMap::from([(revision, stand_in)]);
                let stand_in = value_of(&records, revision).expect("a record");
                for wanted in &wanted {
                    assert_eq!(stand_in.cmp(wanted), value.cmp(wanted), "{value:?} and {wanted:?}");
                }
            }
        }
    }

    fn txn(wanted: &[&[u8]], success: Vec<RequestOp>) -> TxnRequest {
        let compare = wanted.iter().map(|value| Compare {
            target: CompareTarget::Value as i32,
            target_union: Some(TargetUnion::Value(Bytes::copy_from_slice(value))),
            ..Default::default()
        });
        TxnRequest {
            compare: compare.collect(),
            success,
            failure: vec![],
        }
    }
}
