//! What it takes for two answers to be the same.
//!
//! Statuses, heads and bytes have to be equal. Taken out before: raft's term, sizes and indexes of the log (each
//! member has its own), ids that the server chose, and the order of rows that a sort leaves open. A message also has
//! to be in the canonical encoding, so that equal content is equal bytes.

use prost::Message;
use ringd::proto::{etcdserverpb as pb, mvccpb};

use super::damage::decode;
use crate::support::{
    etcd,
    grpc::{Reply, Status},
};

/// How far apart the remaining seconds of a lease may be: the two servers grant it, and are asked, at slightly
/// different times, and on a loaded machine one of them is late.
const TTL_TOLERANCE: u64 = 3;
/// One more for so many seconds that were granted: long leases are asked about long after.
const TTL_TOLERANCE_SHARE: u64 = 1000;

/// Go's protobuf separates the words of its errors by a space or a no-break space, as the build's hash has it, so that
/// nobody compares the texts. Here it is a space.
pub fn settle_go_text(status: &mut Status) {
    status.message = status.message.replace('\u{a0}', " ");
}

/// Compares the answers of the two servers to one request. The error says what differs.
pub fn compare(method: &str, request: &[u8], subject: &Reply, reference: &Reply) -> Result<(), String> {
    if subject.status != reference.status || subject.head != reference.head {
        return Err("the statuses or heads differ".into());
    }
    if reference.status.code != 0 && subject.messages == reference.messages {
        return Ok(());
    }
    match method {
        etcd::RANGE => {
            let asked = decode::<pb::RangeRequest>(request).unwrap_or_default();
            same::<pb::RangeResponse>(subject, reference, |answer| settle_ties(&asked, answer))
        }
        etcd::RANGE_STREAM => merged_chunks_are_same(request, subject, reference),
        etcd::PUT => same::<pb::PutResponse>(subject, reference, |_| ()),
        etcd::DELETE_RANGE => same::<pb::DeleteRangeResponse>(subject, reference, |_| ()),
        etcd::TXN => {
            let asked = decode::<pb::TxnRequest>(request).unwrap_or_default();
            same::<pb::TxnResponse>(subject, reference, |answer| each_range(&asked, answer, settle_ties))
        }
        etcd::COMPACT => same::<pb::CompactionResponse>(subject, reference, |_| ()),
        etcd::LEASE_GRANT => {
            let named = decode::<pb::LeaseGrantRequest>(request).is_some_and(|asked| asked.id != 0);
            same::<pb::LeaseGrantResponse>(subject, reference, |answer| {
                answer.id = if named { answer.id } else { i64::from(answer.id > 0) };
            })
        }
        etcd::LEASE_REVOKE => same::<pb::LeaseRevokeResponse>(subject, reference, |_| ()),
        etcd::LEASE_KEEP_ALIVE => same::<pb::LeaseKeepAliveResponse>(subject, reference, |_| ()),
        etcd::LEASE_TIME_TO_LIVE => same_time_to_live(subject, reference),
        etcd::LEASE_LEASES => same::<pb::LeaseLeasesResponse>(subject, reference, |answer| {
            answer.leases.sort_by_key(|lease| lease.id);
        }),
        etcd::STATUS => same::<pb::StatusResponse>(subject, reference, |answer| {
            (answer.db_size, answer.db_size_in_use) = (0, 0);
            // Go prints one space or two between fields, as the build has it.
            answer
                .errors
                .iter_mut()
                .for_each(|error| *error = error.replace("  ", " "));
            answer.errors.sort();
            (answer.raft_index, answer.raft_applied_index, answer.raft_term) = (0, 0, 0);
        }),
        etcd::HASH_KV => same::<pb::HashKvResponse>(subject, reference, |_| ()),
        // Of the whole file, which is each member's own.
        etcd::HASH => same::<pb::HashResponse>(subject, reference, |answer| answer.hash = 0),
        // etcd lists alarms in the order of a Go map, which is any.
        etcd::ALARM => same::<pb::AlarmResponse>(subject, reference, |answer| {
            answer.alarms.sort_by_key(|alarm| (alarm.member_id, alarm.alarm));
        }),
        etcd::MEMBER_LIST => same::<pb::MemberListResponse>(subject, reference, |_| ()),
        _ if subject.messages == reference.messages => Ok(()),
        _ => Err("the messages differ".into()),
    }
}

/// A response that begins with the common header.
pub trait Answer: Message + Default + PartialEq {
    /// The header.
    fn header(&mut self) -> &mut Option<pb::ResponseHeader>;
}

macro_rules! answers {
    ($($message:ident),*) => {
        $(impl Answer for pb::$message {
            fn header(&mut self) -> &mut Option<pb::ResponseHeader> {
                &mut self.header
            }
        })*
    };
}

answers!(
    RangeResponse,
    PutResponse,
    DeleteRangeResponse,
    TxnResponse,
    CompactionResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseKeepAliveResponse,
    LeaseTimeToLiveResponse,
    LeaseLeasesResponse,
    StatusResponse,
    HashKvResponse,
    HashResponse,
    AlarmResponse,
    MemberListResponse,
    WatchResponse
);

/// Decodes a message, refuses any but the canonical encoding, and takes out the term.
pub fn read<R: Answer>(message: &[u8]) -> Result<R, String> {
    let mut answer = R::decode(message).map_err(|error| format!("an answer does not decode: {error}"))?;
    if answer.encode_to_vec() != message {
        return Err("an answer is not in the canonical encoding".into());
    }
    if let Some(header) = answer.header() {
        header.raft_term = header.raft_term.min(1);
    }
    Ok(answer)
}

fn same<R: Answer>(subject: &Reply, reference: &Reply, settle: impl Fn(&mut R)) -> Result<(), String> {
    if subject.messages.len() != reference.messages.len() {
        return Err("the numbers of messages differ".into());
    }
    for (ours, theirs) in subject.messages.iter().zip(&reference.messages) {
        let (mut ours, mut theirs) = (read::<R>(ours)?, read::<R>(theirs)?);
        settle(&mut ours);
        settle(&mut theirs);
        if ours != theirs {
            return Err("the messages differ".into());
        }
    }
    Ok(())
}

/// Remaining seconds may differ a little; keys come in any order.
fn same_time_to_live(subject: &Reply, reference: &Reply) -> Result<(), String> {
    let decoded = |reply: &Reply| pb::LeaseTimeToLiveResponse::decode(reply.messages.first()?.clone()).ok();
    if let (Some(ours), Some(theirs)) = (decoded(subject), decoded(reference)) {
        let tolerance = TTL_TOLERANCE + theirs.granted_ttl.unsigned_abs() / TTL_TOLERANCE_SHARE;
        let (ours, theirs) = (ours.ttl, theirs.ttl);
        if ours.abs_diff(theirs) > tolerance || (ours < 0) != (theirs < 0) {
            return Err(format!("the remaining seconds differ: {ours} and {theirs}"));
        }
    }
    same::<pb::LeaseTimeToLiveResponse>(subject, reference, |answer| {
        answer.ttl = 0;
        answer.keys.sort();
    })
}

/// What is compared of a stream of chunks is their merge; the last chunk alone carries header, more and count.
fn merged_chunks_are_same(request: &[u8], subject: &Reply, reference: &Reply) -> Result<(), String> {
    let asked = decode::<pb::RangeRequest>(request).unwrap_or_default();
    let (mut ours, mut theirs) = (merge_chunks(subject)?, merge_chunks(reference)?);
    settle_ties(&asked, &mut ours);
    settle_ties(&asked, &mut theirs);
    if ours != theirs {
        return Err("the merged chunks differ".into());
    }
    Ok(())
}

fn merge_chunks(reply: &Reply) -> Result<pb::RangeResponse, String> {
    let mut merged = pb::RangeResponse::default();
    for (place, message) in reply.messages.iter().enumerate() {
        let chunk = pb::RangeStreamResponse::decode(message.clone()).map_err(|error| error.to_string())?;
        if chunk.encode_to_vec() != *message {
            return Err("a chunk is not in the canonical encoding".into());
        }
        let chunk = chunk.range_response.ok_or("a chunk without a range response")?;
        let last = place + 1 == reply.messages.len();
        if last != chunk.header.is_some() || (!last && (chunk.more || chunk.count != 0)) {
            return Err("header, more and count belong to the last chunk alone".into());
        }
        merged
            .merge(chunk.encode_to_vec().as_slice())
            .map_err(|error| error.to_string())?;
    }
    if let Some(header) = merged.header.as_mut() {
        header.raft_term = header.raft_term.min(1);
    }
    Ok(merged)
}

/// So many rows Go sorts by insertion, which leaves equal ones in the order of their keys.
const FEW_ROWS: i64 = 12;

/// Puts rows that a sort leaves in any order into the order of their keys, but for those few that it does not.
fn settle_ties(asked: &pb::RangeRequest, answer: &mut pb::RangeResponse) {
    if answer.count > FEW_ROWS {
        settle_all_ties(asked, answer);
    }
}

/// Puts rows that are equal in what is sorted by into the order of their keys. Where a limit cuts through such rows,
/// any of them may have been left out, so that only the value sorted by counts.
pub fn settle_all_ties(asked: &pb::RangeRequest, answer: &mut pb::RangeResponse) {
    let target = pb::range_request::SortTarget::try_from(asked.sort_target).unwrap_or_default();
    if target == pb::range_request::SortTarget::Key {
        return;
    }
    let by = |kv: &mvccpb::KeyValue| sorted_by(target, kv);
    // Without an order and filters the limit cuts the rows by their keys, before they are sorted.
    let filters = [
        asked.min_mod_revision,
        asked.max_mod_revision,
        asked.min_create_revision,
        asked.max_create_revision,
    ];
    let is_cut_sorted = asked.sort_order != pb::range_request::SortOrder::None as i32 || filters != [0; 4];
    let cut = answer.more && is_cut_sorted;
    let last = answer.kvs.last().map(by);
    for rows in answer.kvs.chunk_by_mut(|left, right| by(left) == by(right)) {
        if cut && last.as_ref() == rows.first().map(by).as_ref() {
            rows.fill(mvccpb::KeyValue::default());
        } else {
            rows.sort_by(|left, right| left.key.cmp(&right.key));
        }
    }
}

fn sorted_by(target: pb::range_request::SortTarget, kv: &mvccpb::KeyValue) -> (i64, bytes::Bytes) {
    use pb::range_request::SortTarget;
    match target {
        SortTarget::Key => (0, kv.key.clone()),
        SortTarget::Version => (kv.version, bytes::Bytes::new()),
        SortTarget::Create => (kv.create_revision, bytes::Bytes::new()),
        SortTarget::Mod => (kv.mod_revision, bytes::Bytes::new()),
        SortTarget::Value => (0, kv.value.clone()),
    }
}

/// Shows every range of a transaction with its answer.
pub fn each_range(
    asked: &pb::TxnRequest,
    answer: &mut pb::TxnResponse,
    see: fn(&pb::RangeRequest, &mut pb::RangeResponse),
) {
    let branch = if answer.succeeded {
        &asked.success
    } else {
        &asked.failure
    };
    for (operation, response) in branch.iter().zip(&mut answer.responses) {
        use pb::{request_op::Request, response_op::Response};
        match (&operation.request, &mut response.response) {
            (Some(Request::RequestRange(asked)), Some(Response::ResponseRange(answer))) => see(asked, answer),
            (Some(Request::RequestTxn(asked)), Some(Response::ResponseTxn(answer))) => each_range(asked, answer, see),
            _ => {}
        }
    }
}

/// An answer in words, for a failure's report.
pub fn describe(method: &str, reply: &Reply) -> String {
    fn words<R: Message + Default + std::fmt::Debug>(message: &bytes::Bytes) -> String {
        R::decode(message.clone()).map_or_else(|error| format!("{error}: {message:02x?}"), |it| format!("{it:?}"))
    }
    let describe_message: fn(&bytes::Bytes) -> String = match method {
        etcd::RANGE => words::<pb::RangeResponse>,
        etcd::RANGE_STREAM => words::<pb::RangeStreamResponse>,
        etcd::PUT => words::<pb::PutResponse>,
        etcd::DELETE_RANGE => words::<pb::DeleteRangeResponse>,
        etcd::TXN => words::<pb::TxnResponse>,
        etcd::COMPACT => words::<pb::CompactionResponse>,
        etcd::LEASE_GRANT => words::<pb::LeaseGrantResponse>,
        etcd::LEASE_REVOKE => words::<pb::LeaseRevokeResponse>,
        etcd::LEASE_KEEP_ALIVE => words::<pb::LeaseKeepAliveResponse>,
        etcd::LEASE_TIME_TO_LIVE => words::<pb::LeaseTimeToLiveResponse>,
        etcd::LEASE_LEASES => words::<pb::LeaseLeasesResponse>,
        etcd::STATUS => words::<pb::StatusResponse>,
        etcd::HASH_KV => words::<pb::HashKvResponse>,
        etcd::HASH => words::<pb::HashResponse>,
        etcd::ALARM => words::<pb::AlarmResponse>,
        etcd::MEMBER_LIST => words::<pb::MemberListResponse>,
        etcd::WATCH => words::<pb::WatchResponse>,
        _ => |message| format!("{message:02x?}"),
    };
    let messages: Vec<String> = reply.messages.iter().map(describe_message).collect();
    format!(
        "{:?}, head {:?}, {} message(s)\n    {}",
        reply.status,
        reply.head,
        messages.len(),
        messages.join("\n    ")
    )
}
