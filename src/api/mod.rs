//! The gRPC services, etcd's error table, and the plain HTTP endpoints.
//!
//! One [`Api`] per serve core. `service` takes calls and replies apart; a file per service answers them; `answer` makes
//! bytes of outcomes; `tasks` are the reads that take long. Knows sockets only through `net`.

pub mod answer;
mod asking;
mod calls;
mod cluster;
mod confirm;
pub mod corruption;
mod counting;
mod downgrade;
pub mod error;
mod forward;
mod gets;
mod hash;
mod hashes;
mod health;
pub mod http;
mod keep_alive;
mod kv;
mod lease;
mod maintenance;
pub mod memory;
pub mod method;
mod metrics;
mod overseer;
mod peer;
mod question;
mod ranges;
mod reading;
pub mod records;
mod service;
mod short;
mod standing;
mod tasks;
pub mod versions;
mod waiting;
mod watch;
mod whole;

pub use answer::Identity;
pub use records::PageReads;
pub use service::{Api, Settings};
