//! etcd's methods by name, and the requests that tests build often.

use ringd::proto::etcdserverpb as pb;

use super::grpc::{Channel, Status};

pub const RANGE: &str = "/etcdserverpb.KV/Range";
pub const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";
pub const PUT: &str = "/etcdserverpb.KV/Put";
pub const DELETE_RANGE: &str = "/etcdserverpb.KV/DeleteRange";
pub const TXN: &str = "/etcdserverpb.KV/Txn";
pub const COMPACT: &str = "/etcdserverpb.KV/Compact";
pub const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
pub const LEASE_TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
pub const LEASE_LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
pub const STATUS: &str = "/etcdserverpb.Maintenance/Status";
pub const HASH: &str = "/etcdserverpb.Maintenance/Hash";
pub const HASH_KV: &str = "/etcdserverpb.Maintenance/HashKV";
pub const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
pub const MOVE_LEADER: &str = "/etcdserverpb.Maintenance/MoveLeader";
pub const MEMBER_LIST: &str = "/etcdserverpb.Cluster/MemberList";
pub const MEMBER_ADD: &str = "/etcdserverpb.Cluster/MemberAdd";
pub const MEMBER_PROMOTE: &str = "/etcdserverpb.Cluster/MemberPromote";
pub const MEMBER_REMOVE: &str = "/etcdserverpb.Cluster/MemberRemove";

/// The end of the range of all keys that begin with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// A read of one key.
pub fn get(key: impl AsRef<[u8]>) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.as_ref().to_vec().into(),
        ..Default::default()
    }
}

/// A read of all keys that begin with `prefix`.
pub fn get_prefix(prefix: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        range_end: prefix_end(prefix.as_bytes()).into(),
        ..get(prefix)
    }
}

/// A put of one key.
pub fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> pb::PutRequest {
    pb::PutRequest {
        key: key.as_ref().to_vec().into(),
        value: value.as_ref().to_vec().into(),
        ..Default::default()
    }
}

/// A delete of one key.
pub fn delete(key: impl AsRef<[u8]>) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: key.as_ref().to_vec().into(),
        ..Default::default()
    }
}

/// An operation of a txn.
pub fn operation(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

/// A compare of a key's modification revision with a number.
pub fn mod_revision_is(key: impl AsRef<[u8]>, revision: i64) -> pb::Compare {
    pb::Compare {
        result: pb::compare::CompareResult::Equal as i32,
        target: pb::compare::CompareTarget::Mod as i32,
        key: key.as_ref().to_vec().into(),
        target_union: Some(pb::compare::TargetUnion::ModRevision(revision)),
        ..Default::default()
    }
}

/// A request that creates a watch.
pub fn create_watch(request: pb::WatchCreateRequest) -> pb::WatchRequest {
    pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(request)),
    }
}

/// A request that cancels a watch.
pub fn cancel_watch(watch_id: i64) -> pb::WatchRequest {
    let request = pb::WatchCancelRequest { watch_id };
    pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CancelRequest(request)),
    }
}

/// A request for progress.
pub fn request_progress() -> pb::WatchRequest {
    let request = pb::WatchProgressRequest {};
    pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::ProgressRequest(request)),
    }
}

/// The hash of the key space at `revision`, 0 for the newest.
pub async fn hash_at(channel: &Channel, revision: i64) -> Result<pb::HashKvResponse, Status> {
    channel.call(HASH_KV, &pb::HashKvRequest { revision }).await
}
