//! ringd: an etcd v3 server built as a thread-per-core io_uring storage server.
//!
//! The modules are rooms, and a room may use only rooms above it; `tests/architecture.rs` holds their order and the
//! exact edges. `ARCHITECTURE.md` describes the house.

pub mod api;
pub mod bbolt;
pub mod client;
pub mod config;
pub mod grpc;
pub mod http;
pub mod io;
pub mod limits;
pub mod metrics;
pub mod mvcc;
pub mod net;
pub mod pages;
pub mod proto;
pub mod raft;
pub mod reactor;
pub mod server;
pub mod sim;
pub mod state;
pub mod wal;
