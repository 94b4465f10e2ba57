//! etcd's error table: which gRPC status stands for what went wrong (`etcd-surface` 2).
//!
//! clientv3 recognises errors by their text, so texts are etcd's to the byte.

use crate::grpc::{Code, Status};
use crate::raft::messages::Dropped;
use crate::state::StateError;

/// The status of a refusal.
pub fn status(error: &StateError) -> Status {
    let code = match error {
        StateError::EmptyKey
        | StateError::KeyNotFound
        | StateError::ValueProvided
        | StateError::LeaseProvided
        | StateError::TooManyOperations
        | StateError::DuplicateKey
        | StateError::InvalidSortOption => Code::InvalidArgument,
        StateError::StreamSortOrder | StateError::StreamRevisionFilter | StateError::NotBuilt { .. } => {
            Code::Unimplemented
        }
        StateError::Compacted | StateError::FutureRevision | StateError::LeaseTtlTooLarge => Code::OutOfRange,
        StateError::NoSpace => Code::ResourceExhausted,
        StateError::Corrupt => Code::DataLoss,
        StateError::LeaseNotFound => Code::NotFound,
        StateError::LeaseExists => Code::FailedPrecondition,
        StateError::NestedTooDeep { .. } | StateError::Malformed { .. } => {
            return Status::unreadable_request(unreadable(error).unwrap_or_default());
        }
        StateError::NotPrimary
        | StateError::EmptyRequest { .. }
        | StateError::UnknownMember(_)
        | StateError::BadVersion(_)
        | StateError::MissingRecord(_) => Code::Unknown,
    };
    Status::new(code, error.to_string())
}

/// The status of a refusal in a call that streams, where grpc-go has other words for a message that can't be read.
pub fn stream_status(error: &StateError) -> Status {
    unreadable(error).map_or_else(|| status(error), Status::unreadable_message)
}

/// What Go's protobuf says of a message that can't be read. What exactly is wrong would be another text than etcd's.
fn unreadable(error: &StateError) -> Option<&'static str> {
    match error {
        StateError::NestedTooDeep { .. } => Some("proto: exceeded maximum recursion depth"),
        StateError::Malformed { .. } => Some("proto: cannot parse invalid wire-format data"),
        _ => None,
    }
}

/// The status of a proposal that came to nothing.
pub fn dropped(reason: Dropped) -> Status {
    match reason {
        Dropped::NoLeader => Status::new(Code::Unavailable, "etcdserver: leader changed"),
        Dropped::Deadline => Status::new(Code::DeadlineExceeded, "context deadline exceeded"),
        Dropped::TimedOut => timed_out(),
        Dropped::ConnectionLost => Status::new(
            Code::Unavailable,
            "etcdserver: request timed out, possibly due to connection lost",
        ),
        Dropped::LeaderFailed => Status::new(
            Code::Unavailable,
            "etcdserver: request timed out, possibly due to previous leader failure",
        ),
        Dropped::TooManyRequests => Status::new(Code::ResourceExhausted, "etcdserver: too many requests"),
        Dropped::NoSpace => status(&StateError::NoSpace),
        Dropped::Stopping => stopped(),
    }
}

/// No answer in time.
pub fn timed_out() -> Status {
    Status::new(Code::Unavailable, "etcdserver: request timed out")
}

/// This member knows no leader.
pub fn no_leader() -> Status {
    Status::new(Code::Unavailable, "etcdserver: no leader")
}

/// A learner does not answer this.
pub fn not_for_learners() -> Status {
    Status::new(Code::FailedPrecondition, "etcdserver: rpc not supported for learner")
}

/// The member is stopping.
pub fn stopped() -> Status {
    Status::new(Code::Unavailable, "etcdserver: server stopped")
}

/// The encoded request is longer than `--max-request-bytes`.
pub fn too_large() -> Status {
    Status::new(Code::InvalidArgument, "etcdserver: request is too large")
}

/// `client-api-version` is no text.
pub fn unknown_version() -> Status {
    Status::new(Code::InvalidArgument, "etcdserver: invalid client api version")
}

/// The answer would take more memory than there is for all reads together.
pub fn too_much_memory(max: usize) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "etcdserver: request is too large: it needs more than the {max} bytes that --memory-budget leaves for \
             reads; ask for less at a time"
        ),
    )
}

/// A call that is not built yet.
pub fn not_built(service: &str, method: &str) -> Status {
    Status::new(
        Code::Unimplemented,
        format!("unknown method {method} for service {service}"),
    )
}

/// A page that the answer needs could not be read. etcd has no words for it: it maps its file, and ends by a signal.
pub fn page_not_read(description: &str) -> Status {
    Status::new(
        Code::Internal,
        format!("etcdserver: a page could not be read: {description}"),
    )
}

/// A page that the answer needs is damaged.
pub fn corrupt() -> Status {
    status(&StateError::Corrupt)
}

/// The read took longer than the state it began with is kept.
pub fn expired() -> Status {
    Status::new(Code::Unavailable, "etcdserver: request timed out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_texts_are_etcds() {
        let table = [
            (StateError::EmptyKey, 3, "etcdserver: key is not provided"),
            (
                StateError::Compacted,
                11,
                "etcdserver: mvcc: required revision has been compacted",
            ),
            (
                StateError::FutureRevision,
                11,
                "etcdserver: mvcc: required revision is a future revision",
            ),
            (StateError::NoSpace, 8, "etcdserver: mvcc: database space exceeded"),
            (StateError::LeaseNotFound, 5, "etcdserver: requested lease not found"),
            (StateError::LeaseExists, 9, "etcdserver: lease already exists"),
            (StateError::LeaseTtlTooLarge, 11, "etcdserver: too large lease TTL"),
            (StateError::Corrupt, 15, "etcdserver: corrupt cluster"),
            (
                StateError::NestedTooDeep { limit: 10_000 },
                13,
                "grpc: error unmarshalling request: proto: exceeded maximum recursion depth",
            ),
            (
                StateError::StreamSortOrder,
                12,
                "RangeStream does not support custom sort orders",
            ),
        ];
        for (error, code, text) in table {
            let status = status(&error);
            assert_eq!((status.code as u8, &*status.message), (code, text));
        }
    }
}
