//! Tests of whole gRPC connections.

mod calls;
mod peer;
