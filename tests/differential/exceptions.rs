//! What etcd 3.5.1 answers differently from 3.7.1, and the little that ringd does.
//!
//! A difference that an exception explains is passed over. A request that would leave the two versions in different
//! states is not sent to them at all.

use std::collections::BTreeMap;

use prost::Message;
use ringd::proto::etcdserverpb::{self as pb, watch_request::RequestUnion};

use super::answers::{each_range, settle_all_ties};
use super::requests::Step;
use crate::support::{etcd, grpc::Reply, server::Program};

/// A difference between the two versions.
struct Exception {
    /// The change in etcd that explains it.
    change: &'static str,
    /// Rewrites the 3.5.1 answer (third) as 3.7.1 would have given it, knowing its answer (fourth).
    explain: fn(&str, &[u8], &mut Reply, &Reply),
}

/// The list, found by running 3.5.1 against 3.7.1.
const SINCE_3_5_1: &[Exception] = &[
    Exception {
        change: "3.7 adds KV.RangeStream",
        explain: range_stream,
    },
    Exception {
        change: "3.6 adds hash_revision to HashKV's answer",
        explain: hash_revision,
    },
    Exception {
        change: "3.6 answers HashKV of a compacted revision with the hash made by that compaction",
        explain: compaction_hash,
    },
    Exception {
        change: "3.7 checks a txn's operations one by one, so that another error may come first",
        explain: txn_error,
    },
    Exception {
        change: "grpc-go 1.46 answers a malformed method name with Unimplemented",
        explain: malformed_method,
    },
    Exception {
        change: "3.6 adds storageVersion, dbSizeQuota and downgradeInfo to Status",
        explain: status_fields,
    },
    Exception {
        change: "3.7 answers keys_only from the index, without the lease",
        explain: keys_only_lease,
    },
    Exception {
        change: "the Go of 3.7 leaves a few rows that are equal in what is sorted by in the order of their keys",
        explain: order_of_equals,
    },
];

/// What ringd answers differently.
///
/// etcd keeps, in memory only and until a restart, the hash that each of the last compactions computed while it read
/// the whole store, over what it was about to remove. A compaction of ringd reads no more than it removes, so there
/// is no such hash: HashKV of that revision is the hash of what is kept, or an error once a later compaction has passed
/// it.
///
/// A RangeStream with a target to sort by and no order is one that etcd sorts page by page, going on behind the key
/// that a page ends with after the sort: rows between are lost or come twice. ringd sorts the whole range.
const OF_RINGD: &[Exception] = &[
    Exception {
        change: "HashKV of a compacted revision is of what is kept, not what the compaction met",
        explain: compaction_hash,
    },
    Exception {
        change: "RangeStream with a sort target loses no rows between pages",
        explain: sorted_stream,
    },
];

/// The exceptions that hold for the subject.
pub struct Exceptions {
    subject: Program,
    list: &'static [Exception],
}

impl Exceptions {
    /// Those of the subject; the reference has none.
    pub fn of(subject: Program) -> Self {
        let list = match subject {
            Program::Etcd351 => SINCE_3_5_1,
            Program::Ringd => OF_RINGD,
            // 3.6 is compared with in clusters alone.
            Program::Reference | Program::Etcd36 => &[],
        };
        Self { subject, list }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Rewrites the subject's answer as 3.7.1 would have given it, and counts the exceptions that did something.
    pub fn apply(
        &self,
        method: &str,
        request: &[u8],
        subject: &mut Reply,
        reference: &Reply,
        tally: &mut BTreeMap<String, u64>,
    ) {
        for exception in self.list {
            let before = subject.clone();
            (exception.explain)(method, request, subject, reference);
            if *subject != before {
                *tally.entry(format!("exception: {}", exception.change)).or_default() += 1;
            }
        }
    }

    /// True for a step that would leave the two versions in different states, `newest` being the revision.
    pub fn avoids(&self, step: &Step, newest: i64) -> bool {
        let alike = match step {
            Step::Call { method, request } => is_understood_alike(method, request),
            // An older grpc-go has another word for a prefix cut off, and the body may ask for any sort.
            Step::Framed { method, .. } => {
                let known = [etcd::RANGE, etcd::RANGE_STREAM, etcd::LEASE_LEASES, etcd::STATUS];
                !known.contains(&method.as_str())
            }
            // 3.6.6 refuses a negative start; 3.6.2 no longer sends old events to a watch that starts in the future; a
            // watch that is named -1 gets no events before.
            Step::Watch {
                request:
                    pb::WatchRequest {
                        request_union: Some(RequestUnion::CreateRequest(watch)),
                    },
                ..
            } => (0..=newest).contains(&watch.start_revision) && watch.watch_id != -1,
            _ => true,
        };
        self.subject == Program::Etcd351 && !alike
    }
}

/// False for bytes that only one of the two protobuf decoders takes, and for sort options that do not exist: 3.5.1
/// panics on some of them, later versions refuse them.
fn is_understood_alike(method: &str, request: &[u8]) -> bool {
    match method {
        etcd::PUT => pb::PutRequest::decode(request).is_ok(),
        etcd::DELETE_RANGE => pb::DeleteRangeRequest::decode(request).is_ok(),
        etcd::RANGE => pb::RangeRequest::decode(request).is_ok_and(|range| sort_is_known(&range)),
        etcd::TXN => pb::TxnRequest::decode(request).is_ok_and(|txn| sorts_are_known(&txn)),
        etcd::COMPACT => pb::CompactionRequest::decode(request).is_ok(),
        etcd::HASH_KV => pb::HashKvRequest::decode(request).is_ok(),
        etcd::LEASE_GRANT => pb::LeaseGrantRequest::decode(request).is_ok(),
        etcd::LEASE_REVOKE => pb::LeaseRevokeRequest::decode(request).is_ok(),
        etcd::LEASE_TIME_TO_LIVE => pb::LeaseTimeToLiveRequest::decode(request).is_ok(),
        etcd::LEASE_LEASES => pb::LeaseLeasesRequest::decode(request).is_ok(),
        etcd::STATUS => pb::StatusRequest::decode(request).is_ok(),
        etcd::ALARM => pb::AlarmRequest::decode(request).is_ok(),
        _ => true,
    }
}

fn sort_is_known(range: &pb::RangeRequest) -> bool {
    (0..=2).contains(&range.sort_order) && (0..=4).contains(&range.sort_target)
}

fn sorts_are_known(txn: &pb::TxnRequest) -> bool {
    use pb::request_op::Request;
    txn.success
        .iter()
        .chain(&txn.failure)
        .all(|operation| match &operation.request {
            Some(Request::RequestRange(range)) => sort_is_known(range),
            Some(Request::RequestTxn(txn)) => sorts_are_known(txn),
            _ => true,
        })
}

fn range_stream(method: &str, _request: &[u8], subject: &mut Reply, reference: &Reply) {
    if method == etcd::RANGE_STREAM && subject.status.message.starts_with("unknown method RangeStream") {
        *subject = reference.clone();
    }
}

fn sorted_stream(method: &str, request: &[u8], subject: &mut Reply, reference: &Reply) {
    let pages = |reply: &Reply| -> Option<Vec<pb::RangeResponse>> {
        let chunks = reply.messages.iter();
        chunks
            .map(|chunk| pb::RangeStreamResponse::decode(chunk.clone()).ok()?.range_response)
            .collect()
    };
    let (Some(ours), Some(theirs)) = (pages(subject), pages(reference)) else {
        return;
    };
    let asked = pb::RangeRequest::decode(request).unwrap_or_default();
    let is_sorted = asked.sort_target != pb::range_request::SortTarget::Key as i32;
    let is_paged = theirs.len() > 1 || theirs.last().is_some_and(|page| page.more);
    let is_successful = subject.status.code == 0 && reference.status.code == 0;
    let revision = |pages: &[pb::RangeResponse]| Some(pages.last()?.header.as_ref()?.revision);
    if method == etcd::RANGE_STREAM && is_successful && is_sorted && is_paged && revision(&ours) == revision(&theirs) {
        *subject = reference.clone();
    }
}

/// Rewrites a message of the subject's answer.
fn rewrite<R: Message + Default>(subject: &mut Reply, reference: &Reply, change: impl Fn(&mut R, &R)) {
    for (ours, theirs) in subject.messages.iter_mut().zip(&reference.messages) {
        if let (Ok(mut message), Ok(theirs)) = (R::decode(ours.clone()), R::decode(theirs.clone())) {
            change(&mut message, &theirs);
            *ours = message.encode_to_vec().into();
        }
    }
}

fn hash_revision(method: &str, _request: &[u8], subject: &mut Reply, reference: &Reply) {
    if method == etcd::HASH_KV {
        rewrite::<pb::HashKvResponse>(subject, reference, |ours, theirs| {
            ours.hash_revision = theirs.hash_revision
        });
    }
}

/// The reference has the hash of a compaction when its answer names a compaction before the revision that was asked for
/// and is already compacted on the subject.
fn compaction_hash(method: &str, request: &[u8], subject: &mut Reply, reference: &Reply) {
    let (Ok(theirs), Ok(asked)) = (
        reference.message::<pb::HashKvResponse>(),
        pb::HashKvRequest::decode(request),
    ) else {
        return;
    };
    let is_compacted = match subject.message::<pb::HashKvResponse>() {
        Ok(ours) => ours.compact_revision >= asked.revision,
        Err(status) => status.message.ends_with("required revision has been compacted"),
    };
    if method == etcd::HASH_KV && is_compacted && theirs.compact_revision < asked.revision {
        *subject = reference.clone();
    }
}

fn txn_error(method: &str, _request: &[u8], subject: &mut Reply, reference: &Reply) {
    if method == etcd::TXN && subject.status.code > 0 && reference.status.code > 0 {
        subject.status.clone_from(&reference.status);
    }
}

fn malformed_method(_method: &str, _request: &[u8], subject: &mut Reply, reference: &Reply) {
    if subject.status.code == 8 && subject.status.message.starts_with("malformed method name") {
        subject.status.code = reference.status.code;
    }
}

fn status_fields(method: &str, _request: &[u8], subject: &mut Reply, reference: &Reply) {
    if method == etcd::STATUS {
        rewrite::<pb::StatusResponse>(subject, reference, |ours, theirs| {
            ours.version.clone_from(&theirs.version);
            ours.storage_version.clone_from(&theirs.storage_version);
            ours.db_size_quota = theirs.db_size_quota;
            ours.downgrade_info.clone_from(&theirs.downgrade_info);
        });
    }
}

fn order_of_equals(method: &str, request: &[u8], subject: &mut Reply, reference: &Reply) {
    fn is_same_but_for_order<R: Message + Default + PartialEq>(
        subject: &Reply,
        reference: &Reply,
        settle: impl Fn(&mut R),
    ) -> bool {
        let settled = |reply: &Reply| {
            let mut answer = R::decode(reply.messages.first()?.clone()).ok()?;
            settle(&mut answer);
            Some(answer)
        };
        settled(subject).is_some() && settled(subject) == settled(reference)
    }
    let explained = match method {
        etcd::RANGE => {
            let asked = pb::RangeRequest::decode(request).unwrap_or_default();
            is_same_but_for_order(subject, reference, |answer| settle_all_ties(&asked, answer))
        }
        etcd::TXN => {
            let asked = pb::TxnRequest::decode(request).unwrap_or_default();
            is_same_but_for_order(subject, reference, |answer| each_range(&asked, answer, settle_all_ties))
        }
        _ => false,
    };
    if explained {
        subject.messages = reference.messages.clone();
    }
}

fn keys_only_lease(method: &str, request: &[u8], subject: &mut Reply, reference: &Reply) {
    match method {
        etcd::RANGE => {
            let asked = pb::RangeRequest::decode(request).unwrap_or_default();
            rewrite::<pb::RangeResponse>(subject, reference, |ours, _| forget_leases(&asked, ours));
        }
        etcd::TXN => {
            let asked = pb::TxnRequest::decode(request).unwrap_or_default();
            rewrite::<pb::TxnResponse>(subject, reference, |ours, _| each_range(&asked, ours, forget_leases));
        }
        _ => {}
    }
}

fn forget_leases(asked: &pb::RangeRequest, answer: &mut pb::RangeResponse) {
    if asked.keys_only && asked.sort_target != pb::range_request::SortTarget::Value as i32 {
        answer.kvs.iter_mut().for_each(|kv| kv.lease = 0);
    }
}
