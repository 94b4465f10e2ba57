//! Sans-IO gRPC over `http`: message framing, status and trailers, metadata, deadlines.
//!
//! [`Connection`] is one connection of a server: calls and their messages come out as events, replies go in. It knows
//! the wire protocol and the texts by which grpc-go reports its violations, and nothing of the services.

mod connection;
pub mod fuzz;
mod message;
mod request;
mod status;
mod timeout;

#[cfg(test)]
mod tests;

pub use crate::http::StreamKey as CallId;
pub use connection::{Config, Connection, Event};
pub use message::{MessageReader, PREFIX_LENGTH, message_prefix};
pub use request::{Metadata, Request, decode_binary, encode_binary};
pub use status::{Code, Status, decode_message, encode_message, quote};
pub use timeout::parse_timeout;
