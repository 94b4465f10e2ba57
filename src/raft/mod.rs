//! The node loop around raft-rs and the log core: propose, persist, apply, answer.
//!
//! `node` is raft-rs behind a small interface, `replica` a node with its durable log, `core` the log core: replica,
//! state machine and checkpoints together. All of it is sans-IO and runs in the simulator as it ships. `messages` is
//! what serve cores and the log core say to each other.

mod alone;
mod apply;
mod auto_compaction;
pub mod boot;
mod checkpoint;
pub mod core;
pub mod counters;
pub mod directory;
mod duties;
mod elections;
mod founding;
pub mod install;
pub mod intake;
mod loader;
pub mod log_lost;
mod logged;
mod membership;
pub mod memory;
pub mod messages;
pub mod node;
mod peers;
mod proposals;
mod publication;
mod reads;
pub mod replica;
mod restore;
mod retention;
mod room;
pub mod standing;
pub mod storage;
pub mod transport;
mod waiters;

pub use loader::stored_bytes;

#[cfg(test)]
mod tests;
