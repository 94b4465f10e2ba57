//! The replicated state machine: a pure function of (state, entry).

pub mod depth;
pub mod error;
mod intervals;
pub mod lease;
pub mod validate;
