//! What the black-box tests share: servers as processes, and a small gRPC client that shows raw answers.
//!
//! The tests know a server by its command line and its ports only. Which program is under test is chosen by the
//! environment variable `RINGD_TEST_SUBJECT` (see [`server::Program::subject`]).

#![allow(dead_code)]

pub mod cluster;
pub mod confined;
pub mod ending;
pub mod etcd;
pub mod frames;
pub mod grpc;
pub mod http;
pub mod mount;
pub mod proxy;
pub mod roaming;
pub mod server;

use std::future::Future;

/// Runs a test's future on a runtime of its own, on the calling thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the test")
        .block_on(future)
}

/// A number from the environment, or `default` when the variable is not set. Panics, naming it, on anything else.
pub fn number_from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text
            .parse()
            .unwrap_or_else(|error| panic!("{name}={text} is not a number: {error}")),
    }
}
