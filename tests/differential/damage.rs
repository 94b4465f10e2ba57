//! Requests that are broken, and those that would break etcd itself.
//!
//! Some valid requests stop etcd 3.7.1 or make it lose data. They are not sent; ringd is asked alone about them, by
//! tests of their own.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;
use rand::Rng;
use ringd::{
    proto::{etcdserverpb as pb, schema::Described},
    state::depth,
};

use super::requests::{Generator, Step};
use crate::support::{etcd, grpc};

/// A lease that ends during a run would make the answers a matter of time.
const SHORTEST_LEASE_S: i64 = 10_000;

/// Decodes what etcd takes: fields of another wire type are unknown ones.
pub fn decode<M: Message + Default + Described>(request: &[u8]) -> Option<M> {
    depth::decode(Bytes::copy_from_slice(request)).ok()
}

impl Generator {
    /// A request with bytes cut off, changed or added.
    pub(super) fn damaged(&mut self) -> Step {
        loop {
            let (method, mut request) = self.whole();
            self.damage(&mut request);
            if !is_dangerous(method, &request, &self.doubled) {
                return Step::Call {
                    method,
                    request: request.into(),
                };
            }
        }
    }

    /// A request to be damaged.
    fn whole(&mut self) -> (&'static str, Vec<u8>) {
        match self.below(16) {
            0..3 => (etcd::PUT, self.put().encode_to_vec()),
            3..5 => (etcd::DELETE_RANGE, self.delete().encode_to_vec()),
            5..7 => (etcd::RANGE, self.range().encode_to_vec()),
            7..10 => (etcd::TXN, self.txn().encode_to_vec()),
            10 => (etcd::RANGE_STREAM, self.range_for_stream().encode_to_vec()),
            11 => (etcd::COMPACT, self.compaction().encode_to_vec()),
            12 => (etcd::HASH_KV, self.hash_kv().encode_to_vec()),
            _ => match self.lease() {
                Step::Call { method, request } => (method, request.to_vec()),
                _ => (etcd::STATUS, Vec::new()),
            },
        }
    }

    fn damage(&mut self, request: &mut Vec<u8>) {
        match self.below(6) {
            0 if !request.is_empty() => request.truncate(self.random.random_range(0..request.len())),
            1 => request.extend((0..self.below(4) + 1).map(|_| self.random.random::<u8>())),
            2 => request.extend([0xf8, 0x7f, 1]),
            // A field twice, or two messages merged.
            3 => request.extend_from_within(..),
            4 if !request.is_empty() => {
                let place = self.below(request.len());
                request.insert(place, self.random.random());
            }
            _ if !request.is_empty() => {
                let place = self.below(request.len());
                request[place] = self.random.random();
            }
            _ => {}
        }
    }

    /// Paths that name no method, and frames that are wrong.
    pub(super) fn unknown(&mut self) -> Step {
        let method = self.pick(&[
            "/etcdserverpb.KV/Nothing",
            "/etcdserverpb.Nothing/Range",
            "/nothing",
            "/",
            "//",
            "/etcdserverpb.KV/",
            "/etcdserverpb.KV/Range/",
            "/etcdserverpb.kv/Range",
            etcd::RANGE,
            etcd::RANGE_STREAM,
            etcd::LEASE_LEASES,
            etcd::STATUS,
        ]);
        Step::Framed {
            method: method.into(),
            body: self.odd_body(),
        }
    }

    fn odd_body(&mut self) -> Bytes {
        let request = self.range().encode_to_vec();
        let mut body = grpc::frame(&request).to_vec();
        match self.below(7) {
            0 => body.clear(),
            1 => body.truncate(self.below(5)),
            2 => body.truncate(body.len() - self.below(request.len().max(1))),
            3 => body[0] = self.random.random(),
            4 => body.extend_from_slice(&grpc::frame(&request)),
            5 => body.extend_from_slice(&grpc::frame(b"")[..self.random.random_range(1..5)]),
            _ => {}
        }
        body.into()
    }
}

/// True for a request that etcd must not be sent, or whose outcome is a matter of time. `doubled` are revisions that
/// changed a key twice.
fn is_dangerous(method: &str, request: &[u8], doubled: &BTreeSet<i64>) -> bool {
    match method {
        etcd::TXN => decode::<pb::TxnRequest>(request).is_some_and(|txn| deletes(&txn)),
        etcd::COMPACT => {
            decode::<pb::CompactionRequest>(request).is_some_and(|asked| doubled.contains(&asked.revision))
        }
        // An id that the server chooses is another one on each.
        etcd::LEASE_GRANT => {
            decode::<pb::LeaseGrantRequest>(request).is_some_and(|asked| asked.ttl < SHORTEST_LEASE_S || asked.id == 0)
        }
        _ => false,
    }
}

/// Whether a txn deletes anything, in a nested one too.
pub fn deletes(txn: &pb::TxnRequest) -> bool {
    use pb::request_op::Request;
    txn.success
        .iter()
        .chain(&txn.failure)
        .any(|operation| match &operation.request {
            Some(Request::RequestDeleteRange(_)) => true,
            Some(Request::RequestTxn(txn)) => deletes(txn),
            _ => false,
        })
}

/// Changes what makes etcd 3.7.1 panic in the middle of a txn, with the entry in its log for good: a put with
/// `ignore_value` or `ignore_lease` whose key an earlier operation of the same txn deleted. The check for duplicates
/// lets that through when the delete is "from the key on": it takes the end `\0` as that byte, below which no key is.
pub fn avoid_panics(txn: &mut pb::TxnRequest) {
    if deletes(txn) {
        forbid_ignoring(txn);
    }
}

fn forbid_ignoring(txn: &mut pb::TxnRequest) {
    use pb::request_op::Request;
    for operation in txn.success.iter_mut().chain(&mut txn.failure) {
        match &mut operation.request {
            Some(Request::RequestPut(put)) => (put.ignore_value, put.ignore_lease) = (false, false),
            Some(Request::RequestTxn(txn)) => forbid_ignoring(txn),
            _ => {}
        }
    }
}
