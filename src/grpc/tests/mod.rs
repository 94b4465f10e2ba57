//! Tests of whole gRPC connections.

mod calls;
mod input;
mod peer;
