//! Why a request is refused, by its form or by the state it meets.
//!
//! `Display` gives the text that etcd puts on the wire (`etcd-surface` 2), so that a table elsewhere only has to add
//! the status code. Variants that no client of etcd can meet say in their own words what was wrong.

use crate::mvcc::revision::Revision;

/// A refusal. Equal requests on equal states give equal refusals on every member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A key is empty where one is needed.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// An operation without content, or `ignore_value` / `ignore_lease` on a key that does not exist.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// `ignore_value` together with a value.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// `ignore_lease` together with a lease.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// More compares or operations, nested ones counted, than the configured maximum.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOperations,
    /// Two writes of one key in one branch of a transaction.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// A sort order or target outside the enumeration.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// `RangeStream` with another order than ascending by key.
    #[error("RangeStream does not support custom sort orders")]
    StreamSortOrder,
    /// `RangeStream` with a bound on modification or creation revisions.
    #[error("RangeStream does not support revision filters")]
    StreamRevisionFilter,
    /// The revision lies before the compact revision, or, for a compaction, not after it.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision does not exist yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// A NOSPACE alarm is active.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// A CORRUPT alarm is active.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// No lease has this id.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease with this id exists.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// A time to live above 9 000 000 000 s.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// This member does not lead, so it does not know how long leases last.
    #[error("not a primary lessor")]
    NotPrimary,
    /// The message is nested deeper than can be decoded.
    #[error("message is nested more than {limit} levels deep; send a flatter one")]
    NestedTooDeep {
        /// The deepest that is decoded.
        limit: usize,
    },
    /// The bytes are no protobuf message.
    #[error("malformed message at byte {offset}: {reason}")]
    Malformed {
        /// Where, in bytes from the start.
        offset: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// A log entry whose request this version does not apply.
    #[error("log entry {index} holds a request that this version does not apply: {request}")]
    NotBuilt {
        /// The entry's raft index.
        index: u64,
        /// The field of `InternalRaftRequest`.
        request: &'static str,
    },
    /// A log entry with no request in it.
    #[error("log entry {index} holds no request")]
    EmptyRequest {
        /// The entry's raft index.
        index: u64,
    },
    /// Attributes for a member that the cluster does not have.
    #[error("no member {0:x} to set attributes of")]
    UnknownMember(u64),
    /// A cluster version that is not `major.minor.patch`.
    #[error("cluster version {0:?} is not of the form major.minor.patch")]
    BadVersion(String),
    /// A record that decides was not handed to `apply` although `needs` named it.
    #[error("apply was not given record {0:?}, which the request depends on")]
    MissingRecord(Revision),
}
