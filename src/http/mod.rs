//! Sans-IO HTTP/2 (RFC 9113, RFC 7541) and the server side of HTTP/1.1.
//!
//! Bytes and the time go in, events come out, bytes to send come out. Nothing here knows sockets, clocks, tasks, or
//! what the requests mean. What a peer can make a connection hold or do is bounded by `limits` and by [`Config`].
//!
//! * [`Connection`] is one HTTP/2 connection of a server: `receive` bytes, drain `next_event`, answer, `take_output`.
//! * [`http1::Connection`] is one HTTP/1.1 connection of a server.
//! * [`sniff`] tells by its first bytes which of the two a connection wants.

mod config;
pub mod connection;
pub mod date;
mod flow;
pub mod frame;
pub mod fuzz;
mod guard;
pub mod headers;
pub mod hpack;
pub mod http1;
mod input;
mod keepalive;
mod stream;

#[cfg(test)]
pub(crate) mod tests;

pub use config::{Config, Keepalive};
pub use connection::{CloseReason, Connection, Event, SendError};
pub use frame::ErrorCode;
pub use headers::HeaderList;
pub use hpack::Field;
pub use stream::StreamKey;

/// What the first bytes of a connection say about its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// The HTTP/2 preface, or enough of it that no HTTP/1 request can follow.
    Http2,
    /// Anything else.
    Http1,
    /// Too few bytes to tell.
    More,
}

/// Tells HTTP/2 with prior knowledge from HTTP/1.x by the first bytes received.
pub fn sniff(bytes: &[u8]) -> Sniffed {
    // No method of HTTP/1 begins with "PRI ", which the preface was made for.
    const ENOUGH: usize = 4;
    let length = bytes.len().min(ENOUGH);
    if bytes[..length] != frame::PREFACE[..length] {
        Sniffed::Http1
    } else if length < ENOUGH {
        Sniffed::More
    } else {
        Sniffed::Http2
    }
}
