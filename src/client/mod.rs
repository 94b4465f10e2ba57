//! The Rust client. So far what a member needs at its start: one call at a time, blocking.

pub mod unary;
