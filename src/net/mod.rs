//! Listeners and the connection driver that moves bytes between a socket and `http`.
//!
//! A serve core has one [`Core`]: all its connections, the [`Service`] that answers them, and the turn that flushes. A
//! connection has one task that reads; bytes become events of the service at once. What the service sends, from an
//! event or later from a mailbox, only marks the connection; at the end of the turn, behind everything that was
//! runnable, the service hears [`Service::turn_end`] and every marked connection is flushed in one send. A peer that
//! does not read blocks only itself: what it leaves unsent is bounded by `http`, and reading from it stops.
//!
//! The protocol is told by the first bytes: HTTP/2 goes to gRPC, anything else to HTTP/1.1, as far as the listener
//! allows.

mod core;
mod drive;
mod exchange;
mod memory;
mod peer;
mod protocol;
mod service;

pub use self::core::{Core, Options, Speaks};
pub use exchange::Exchange;
pub use memory::Reserved;
pub use peer::{Call, ConnectionKey, Net, PeerInfo, Statistics};
pub use service::Service;

#[cfg(test)]
mod tests;
