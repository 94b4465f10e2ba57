//! What goes over a stream between peers: raft messages, one behind the other, and heartbeats of the connection.
//!
//! There are two kinds of streams. On a *message* stream each message is its length, 8 bytes with the highest first,
//! and itself; a heartbeat is a message that names nobody. A *msgapp* stream carries appends only and leaves out what
//! the receiver knows ([`AppendEncoder`]). Source: etcd 3.7 `rafthttp/msg_codec.go`, `rafthttp/msgappv2_codec.go`.
//!
//! Decoders take bytes as they come, in whatever pieces. They believe no length: memory is taken as bytes arrive, up
//! to the bounds of `limits::transport`. Every message's bytes are memory of its own, so that keeping an entry keeps
//! nothing else.

mod append;
mod input;
mod message;
#[cfg(test)]
mod tests;

pub use append::{AppendDecoder, AppendEncoder};
pub use message::{MessageDecoder, encode_heartbeat, encode_message};

use super::wire::WireError;
use raft::eraftpb::Message;

/// What comes out of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// The connection lives.
    Heartbeat,
    /// A message for raft.
    Message(Box<Message>),
    /// A message of a type that no member sends today. A later etcd might: it is no reason to end the stream.
    Unknown(u64),
}

/// Why a stream can't be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A length beyond the bound.
    #[error("{what} of {length} bytes announced, {max} are taken")]
    TooLong {
        /// What was announced.
        what: &'static str,
        /// Its length.
        length: u64,
        /// The bound.
        max: usize,
    },
    /// More entries than are taken.
    #[error("an append of {count} entries announced, {max} are taken")]
    TooMany {
        /// Entries announced.
        count: u64,
        /// The bound.
        max: usize,
    },
    /// A message that is none.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// No item of a msgapp stream.
    #[error("item of type {0} on a msgapp stream")]
    ItemType(u8),
    /// A message of another kind on a msgapp stream.
    #[error("{0} on a msgapp stream")]
    NotAppend(&'static str),
}
