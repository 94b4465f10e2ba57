//! raft-rs's messages as etcd's raftpb, and back: what peers say to each other and what the log holds.
//!
//! Source of the numbers: raft 3.7 `raftpb/raft.proto`. Both sides agree on most of them; where they differ, this is
//! the only place that knows:
//!
//! * `ConfChangeType`: a learner is added by 3, and 2 is an update, which raft-rs has not. Entries carry raftpb's bytes
//!   everywhere, so a change is translated by whoever looks at it ([`ConfChange`]).
//! * Fields 13 to 16 of raft-rs's message (a requested snapshot, the commit's term, priorities) mean something else in
//!   raftpb or nothing. They don't leave, and what stands there in a message that comes is not looked at. The commit
//!   index in votes and in responses means nothing without them and stays here too.
//! * Messages of a member to itself don't leave, and none of their types is read.
//!
//! Decoding copies nothing: payloads share the bytes they came in. It never panics; what it accepts is well-formed, no
//! more: whether raft may see it is for [`gate`](super::gate) to say.

mod change;
mod fields;
mod message;
#[cfg(test)]
mod tests;

pub use change::{Change, ConfChange};
pub use message::{decode, decode_entry, encode, encode_entry, encoded_length, entry_length, kind_of, name};

/// Why bytes are not the message they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It is not protobuf.
    #[error("malformed protobuf: {0}")]
    Malformed(&'static str),
    /// A field's value is of another wire type than the field.
    #[error("field `{0}` has the wrong wire type")]
    FieldType(&'static str),
    /// More elements than are taken.
    #[error("more than {max} `{field}`")]
    TooMany {
        /// The repeated field.
        field: &'static str,
        /// The bound.
        max: usize,
    },
    /// A field of bytes is longer than is taken.
    #[error("`{field}` of {length} bytes, {max} are taken")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        length: usize,
        /// The bound.
        max: usize,
    },
    /// No message type that goes from member to member: local to one, or of a later etcd.
    #[error("message type {0} is none that members send each other")]
    MessageType(u64),
    /// No entry type.
    #[error("unknown entry type {0}")]
    EntryType(u64),
    /// No kind of membership change.
    #[error("unknown type of membership change {0}")]
    ChangeType(u64),
}

/// Why a message can't leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// It is from this member to itself.
    #[error("messages of type {0} don't leave their member")]
    Local(i32),
    /// It asks for a snapshot in raft-rs's way, which raftpb has no word for.
    #[error("raftpb has no word for the request of a snapshot")]
    RequestSnapshot,
}
