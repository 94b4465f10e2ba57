//! Tests of the whole room.

mod harness;
mod model;
mod random;
mod rules;
