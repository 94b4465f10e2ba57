//! The checks of a client's request that need no state (`etcd-surface` 4.1, 4.3, 4.4), error for error as etcd does
//! them.
//!
//! They run before a request is proposed. `apply` does not repeat them.

use crate::proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, range_request::SortOrder,
    range_request::SortTarget, request_op::Request,
};
use crate::state::error::StateError;
use crate::state::intervals::check_duplicate_keys;

/// Checks a `Range`, alone or in a transaction.
pub fn check_range(request: &RangeRequest) -> Result<(), StateError> {
    check_key(&request.key)?;
    let known = SortOrder::is_valid(request.sort_order) && SortTarget::is_valid(request.sort_target);
    if known {
        Ok(())
    } else {
        Err(StateError::InvalidSortOption)
    }
}

/// Checks a `RangeStream`, which knows one order and no filters.
pub fn check_range_stream(request: &RangeRequest) -> Result<(), StateError> {
    check_range(request)?;
    if !has_default_order(request) {
        return Err(StateError::StreamSortOrder);
    }
    if has_revision_filter(request) {
        return Err(StateError::StreamRevisionFilter);
    }
    Ok(())
}

/// Checks a `Put`, alone or in a transaction.
pub fn check_put(request: &PutRequest) -> Result<(), StateError> {
    check_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(StateError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(StateError::LeaseProvided);
    }
    Ok(())
}

/// Checks a `DeleteRange`, alone or in a transaction.
pub fn check_delete(request: &DeleteRangeRequest) -> Result<(), StateError> {
    check_key(&request.key)
}

/// Checks a `Txn` whose widest level may have `max_txn_ops` compares or operations.
///
/// Recursion ends with the budget, which every level takes at least one from, and with the request, whose depth
/// `depth::decode_txn` has bounded.
pub fn check_txn(request: &TxnRequest, max_txn_ops: usize) -> Result<(), StateError> {
    check_level(request, max_txn_ops)?;
    check_duplicate_keys(request)
}

fn check_level(request: &TxnRequest, budget: usize) -> Result<(), StateError> {
    let width = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    let rest = budget.checked_sub(width).ok_or(StateError::TooManyOperations)?;
    for compare in &request.compare {
        check_key(&compare.key)?;
    }
    let mut operations = request.success.iter().chain(&request.failure);
    operations.try_for_each(|operation| check_operation(operation, rest))
}

fn check_operation(operation: &RequestOp, budget: usize) -> Result<(), StateError> {
    match &operation.request {
        Some(Request::RequestRange(range)) => check_range(range),
        Some(Request::RequestPut(put)) => check_put(put),
        Some(Request::RequestDeleteRange(delete)) => check_delete(delete),
        Some(Request::RequestTxn(nested)) => check_level(nested, budget),
        None => Err(StateError::KeyNotFound),
    }
}

fn check_key(key: &[u8]) -> Result<(), StateError> {
    if key.is_empty() {
        Err(StateError::EmptyKey)
    } else {
        Ok(())
    }
}

/// Whether the rows come in the order the index has them, so that a limit can be applied while reading.
pub(crate) fn has_default_order(request: &RangeRequest) -> bool {
    let (key, ascend) = (SortTarget::Key as i32, SortOrder::Ascend as i32);
    request.sort_order == SortOrder::None as i32 || (request.sort_target == key && request.sort_order == ascend)
}

/// Whether rows are filtered by their revisions.
pub(crate) fn has_revision_filter(request: &RangeRequest) -> bool {
    let filters = [request.min_mod_revision, request.max_mod_revision];
    filters != [0, 0] || request.min_create_revision != 0 || request.max_create_revision != 0
}

/// Whether a transaction can be answered from a view: every operation of both branches is a range. A nested transaction
/// counts as a write.
pub fn is_read_only(request: &TxnRequest) -> bool {
    operations(request).all(|operation| matches!(operation.request, Some(Request::RequestRange(_))))
}

/// Whether a transaction needs no agreement before it is read: every operation of both branches is a serializable
/// range.
pub fn is_serializable(request: &TxnRequest) -> bool {
    let serializable =
        |operation: &RequestOp| matches!(&operation.request, Some(Request::RequestRange(range)) if range.serializable);
    operations(request).all(serializable)
}

fn operations(request: &TxnRequest) -> impl Iterator<Item = &RequestOp> {
    request.success.iter().chain(&request.failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::Compare;
    use bytes::Bytes;

    fn range(key: &'static str) -> RangeRequest {
        RangeRequest {
            key: Bytes::from_static(key.as_bytes()),
            ..Default::default()
        }
    }

    fn operation(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn ranges(count: usize) -> Vec<RequestOp> {
        (0..count)
            .map(|_| operation(Request::RequestRange(range("k"))))
            .collect()
    }

    #[test]
    fn single_operations() {
        assert_eq!(check_range(&range("")), Err(StateError::EmptyKey));
        assert_eq!(check_range(&range("k")), Ok(()));
        for (sort_order, sort_target) in [(3, 0), (-1, 0), (0, 5), (1, -1)] {
            let request = RangeRequest {
                sort_order,
                sort_target,
                ..range("k")
            };
            assert_eq!(check_range(&request), Err(StateError::InvalidSortOption));
        }
        assert_eq!(
            check_range(&RangeRequest {
                sort_order: 9,
                ..range("")
            }),
            Err(StateError::EmptyKey)
        );
        let put = PutRequest {
            key: "k".into(),
            ..Default::default()
        };
        assert_eq!(check_put(&PutRequest::default()), Err(StateError::EmptyKey));
        assert_eq!(check_put(&put), Ok(()));
        let value = PutRequest {
            ignore_value: true,
            value: "v".into(),
            ..put.clone()
        };
        assert_eq!(check_put(&value), Err(StateError::ValueProvided));
        assert_eq!(
            check_put(&PutRequest {
                ignore_value: true,
                ..put.clone()
            }),
            Ok(())
        );
        let lease = PutRequest {
            ignore_lease: true,
            lease: 1,
            ..put
        };
        assert_eq!(check_put(&lease), Err(StateError::LeaseProvided));
        assert_eq!(check_delete(&DeleteRangeRequest::default()), Err(StateError::EmptyKey));
    }

    #[test]
    fn streams_know_one_order() {
        let ascend = RangeRequest {
            sort_order: 1,
            ..range("k")
        };
        assert_eq!(check_range_stream(&ascend), Ok(()));
        assert_eq!(
            check_range_stream(&RangeRequest {
                sort_target: 4,
                ..range("k")
            }),
            Ok(()),
            "no order asked"
        );
        assert_eq!(
            check_range_stream(&RangeRequest {
                sort_order: 2,
                ..range("k")
            }),
            Err(StateError::StreamSortOrder)
        );
        assert_eq!(
            check_range_stream(&RangeRequest {
                sort_target: 1,
                ..ascend
            }),
            Err(StateError::StreamSortOrder)
        );
        let filtered = RangeRequest {
            max_create_revision: -1,
            ..range("k")
        };
        assert_eq!(check_range_stream(&filtered), Err(StateError::StreamRevisionFilter));
    }

    #[test]
    fn the_budget_of_operations() {
        let flat = |count| TxnRequest {
            success: ranges(count),
            failure: ranges(count),
            ..Default::default()
        };
        assert_eq!(check_txn(&flat(128), 128), Ok(()));
        assert_eq!(check_txn(&flat(129), 128), Err(StateError::TooManyOperations));
        let nested = |width: usize, inner: TxnRequest| {
            let mut success = ranges(width - 1);
            success.push(operation(Request::RequestTxn(inner)));
            TxnRequest {
                success,
                ..Default::default()
            }
        };
        assert_eq!(check_txn(&nested(64, flat(64)), 128), Ok(()));
        assert_eq!(
            check_txn(&nested(64, flat(65)), 128),
            Err(StateError::TooManyOperations)
        );
        assert_eq!(
            check_txn(&nested(128, flat(1)), 128),
            Err(StateError::TooManyOperations)
        );
        assert_eq!(check_txn(&nested(128, flat(0)), 128), Ok(()));
        let compare = vec![
            Compare {
                key: "k".into(),
                ..Default::default()
            };
            129
        ];
        assert_eq!(
            check_txn(
                &TxnRequest {
                    compare,
                    ..Default::default()
                },
                128
            ),
            Err(StateError::TooManyOperations)
        );
    }

    #[test]
    fn the_first_error_in_order_wins() {
        let compare = vec![Compare::default()];
        let request = TxnRequest {
            compare,
            success: vec![RequestOp { request: None }],
            ..Default::default()
        };
        assert_eq!(check_txn(&request, 128), Err(StateError::EmptyKey));
        let empty = || vec![RequestOp { request: None }];
        let request = TxnRequest {
            success: empty(),
            failure: ranges(200),
            ..Default::default()
        };
        assert_eq!(check_txn(&request, 128), Err(StateError::TooManyOperations));
        assert_eq!(
            check_txn(
                &TxnRequest {
                    success: empty(),
                    ..Default::default()
                },
                128
            ),
            Err(StateError::KeyNotFound)
        );
        let unset = operation(Request::RequestPut(PutRequest::default()));
        let request = TxnRequest {
            success: vec![unset],
            failure: empty(),
            ..Default::default()
        };
        assert_eq!(check_txn(&request, 128), Err(StateError::EmptyKey));
    }

    #[test]
    fn which_transactions_only_read() {
        let serializable = RangeRequest {
            serializable: true,
            ..range("k")
        };
        let reads = |ranges: Vec<RangeRequest>| {
            let success = ranges
                .into_iter()
                .map(|range| operation(Request::RequestRange(range)))
                .collect();
            TxnRequest {
                success,
                ..Default::default()
            }
        };
        assert!(is_read_only(&TxnRequest::default()) && is_serializable(&TxnRequest::default()));
        assert!(is_serializable(&reads(vec![serializable.clone()])));
        let mixed = reads(vec![serializable, range("k")]);
        assert!(is_read_only(&mixed) && !is_serializable(&mixed));
        let nested = operation(Request::RequestTxn(TxnRequest::default()));
        assert!(!is_read_only(&TxnRequest {
            failure: vec![nested],
            ..Default::default()
        }));
    }
}
