//! What is kept of a request to the log core until its answer comes.

use super::service::Caller;
use std::rc::Rc;

/// What a reply of the log core is for.
pub(super) enum Waiting {
    /// The answer to a write.
    Write { caller: Caller, payload: WriteRequest },
    /// A keep-alive of a stream.
    KeepAlive { caller: Caller, nth: u64 },
    /// `LeaseTimeToLive`.
    TimeToLive { caller: Caller, id: i64, keys: bool },
    /// `LeaseLeases`.
    Leases { caller: Caller },
    /// Reads that wait for the confirmation that what they will see is recent enough.
    Reads { reads: Vec<super::confirm::Read> },
    /// A change of the membership.
    Members {
        caller: Caller,
        changed: super::cluster::Changed,
    },
    /// `MoveLeader`.
    Transfer { caller: Caller },
    /// A question of another member over plain HTTP.
    Peer { question: super::question::Question },
    /// Whatever a task asks on its own.
    Task { answer: Rc<super::forward::Awaited> },
    /// A member's status, for an RPC or a plain HTTP request.
    Status { want: super::maintenance::StatusFor },
}

/// What has to be known of a write to answer it.
pub(super) enum WriteRequest {
    /// `Put`.
    Put,
    /// `DeleteRange`.
    Delete,
    /// `Txn`.
    Txn(Box<crate::proto::etcdserverpb::TxnRequest>),
    /// `Compact`.
    Compact,
    /// `LeaseGrant`.
    LeaseGrant,
    /// `LeaseRevoke`.
    LeaseRevoke,
    /// `Alarm`.
    Alarm,
    /// `Downgrade`, with the version that the cluster had.
    Downgrade { version: String },
}
