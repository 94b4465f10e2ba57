//! Tests of the whole room.

mod harness;
mod model;
mod random;
mod requests;
mod rules_kv;
mod rules_store;
