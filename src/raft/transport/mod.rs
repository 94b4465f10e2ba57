//! etcd's peer protocol (rafthttp): how members' raft messages reach each other.
//!
//! `wire` translates messages to etcd's raftpb and back, `gate` says which of those that come raft may see. Source of
//! the protocol: etcd 3.7 `server/etcdserver/api/rafthttp`.

#[cfg(test)]
mod arbitrary;
pub mod codec;
pub mod counters;
mod driver;
pub mod fuzz;
pub mod gate;
pub mod identity;
pub mod outbox;
pub mod wire;

pub use driver::{Asker, PeerAnswer, Question};
pub use driver::{LocalFuture, Sink, SnapshotBody, SnapshotSource, Transport};
