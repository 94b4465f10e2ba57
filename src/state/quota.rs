//! What a request may add to the database, as etcd estimates it (`etcd-surface` 4.11).
//!
//! The API compares size and cost with the quota and has an alarm raised. The state machine itself knows the alarm
//! only, so that members whose files differ in size stay equal.

use crate::proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op::Request};

/// Cost of a lease, in bytes.
pub const LEASE_BYTES: usize = 64;
/// Cost of a key's metadata, in bytes.
const KEY_BYTES: usize = 256;

/// Cost of a put, in bytes.
pub fn put_bytes(request: &PutRequest) -> usize {
    KEY_BYTES + request.key.len() + request.value.len()
}

/// Cost of the dearer branch of a transaction, nested ones included, in bytes. 0 means that no branch puts anything.
pub fn txn_bytes(request: &TxnRequest) -> usize {
    let branch = |operations: &[RequestOp]| operations.iter().map(operation_bytes).sum::<usize>();
    branch(&request.success).max(branch(&request.failure))
}

fn operation_bytes(operation: &RequestOp) -> usize {
    match &operation.request {
        Some(Request::RequestPut(put)) => put_bytes(put),
        Some(Request::RequestTxn(nested)) => txn_bytes(nested),
        _ => 0,
    }
}
