//! The node loop around raft-rs and the log core: propose, persist, apply, answer.

pub mod node;
pub mod replica;
pub mod storage;
