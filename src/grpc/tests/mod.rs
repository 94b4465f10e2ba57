//! Tests of whole gRPC connections.

mod calls;
