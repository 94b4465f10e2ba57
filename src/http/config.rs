//! What an operator may set about HTTP/2 connections.

use std::time::Duration;

use crate::limits::{HTTP_CONNECTION_WINDOW, HTTP_HEADER_LIST_BYTES, HTTP_STALL_SECONDS, HTTP_STREAM_WINDOW};

/// Settings of a server's HTTP/2 connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// SETTINGS_MAX_CONCURRENT_STREAMS; `u32::MAX` announces none. `limits::HTTP_STREAMS` holds besides.
    pub max_concurrent_streams: u32,
    /// Largest header list accepted, in bytes by RFC 9113 §6.5.2.
    pub max_header_list: u32,
    /// Receive window of each stream, in bytes, 65 535 to 2^31 - 1.
    pub stream_window: u32,
    /// Receive window of the connection, in bytes, 65 535 to 2^31 - 1.
    pub connection_window: u32,
    /// A response without progress for this long is reset.
    pub stall: Duration,
    pub keepalive: Keepalive,
}

/// Pings of both sides, as grpc-go's server handles them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// A client that pings more often than this is told to calm down.
    pub minimum_time: Duration,
    /// Whether a client may ping at that rate while it has no stream; otherwise once in two hours.
    pub permit_without_stream: bool,
    /// After this long without a byte from the client the server pings it.
    pub interval: Duration,
    /// After this long without an answer to that ping the connection is closed.
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_concurrent_streams: u32::MAX,
            max_header_list: HTTP_HEADER_LIST_BYTES as u32,
            stream_window: HTTP_STREAM_WINDOW,
            connection_window: HTTP_CONNECTION_WINDOW,
            stall: Duration::from_secs(HTTP_STALL_SECONDS),
            keepalive: Keepalive::default(),
        }
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            minimum_time: Duration::from_secs(5),
            permit_without_stream: false,
            interval: Duration::from_secs(2 * 60 * 60),
            timeout: Duration::from_secs(20),
        }
    }
}
