//! What a serve core's connections are answered by.

use super::exchange::Exchange;
use super::peer::{Call, Net, PeerInfo};
use crate::grpc::{Request, Status};
use crate::http::http1;
use crate::reactor::serve::Stream;
use bytes::Bytes;
use std::net::Shutdown;
use std::time::Duration;

/// The services of one serve core. Every method is called on that core and must not block it; answers go out through
/// the [`Net`] that is passed along, now or in any later call, until the call is finished or
/// [`cancelled`](Self::cancelled).
pub trait Service: 'static {
    /// What is kept of a call's path and metadata.
    type Head;

    /// Looks at the header list of a call that begins, which is gone afterwards.
    fn head(&mut self, request: &Request<'_>, peer: &PeerInfo) -> Self::Head;

    /// A call began. What is returned comes back with every later event of the call: a key into a table of the
    /// service's. With a `timeout` the call is cancelled by itself, at most a tick of `limits::NET_TICK` late.
    fn started(&mut self, net: &mut Net, call: Call, head: Self::Head, timeout: Option<Duration>) -> u64;

    /// A message came. With `last` the caller has sent all it had to, and `half_closed` is not called. The bytes may
    /// share a receive buffer of the core: copy them to keep them for long.
    fn message(&mut self, net: &mut Net, call: Call, tag: u64, message: Bytes, last: bool);

    /// The caller has sent all it had to.
    fn half_closed(&mut self, net: &mut Net, call: Call, tag: u64);

    /// The caller has sent all it had to, and ended within a message.
    fn cut_off(&mut self, net: &mut Net, call: Call, tag: u64) {
        // A call that is gone needs no status.
        let _ = net.finish(call, &Status::cut_off_stream());
        self.cancelled(net, call, tag);
    }

    /// The call is over without having been finished: nothing more can be sent. Forget it.
    fn cancelled(&mut self, net: &mut Net, call: Call, tag: u64);

    /// There is room again, after [`Net::notify_writable`].
    fn writable(&mut self, net: &mut Net, call: Call, tag: u64);

    /// An HTTP/1.1 request came, with its body, which is at most `Options::max_body` long. Answer it through [`Net`].
    fn http_request(&mut self, net: &mut Net, exchange: Exchange, request: http1::Request, body: Vec<u8>) {
        let (_, _) = (request, body);
        let fields = [("Content-Type", "text/plain; charset=utf-8")];
        // The peer may be gone, which `http_gone` tells.
        let _ = net.respond(exchange, 404, &fields, b"404 page not found\n");
    }

    /// Whether the connection on which this HTTP/1.1 request begins, on the listener of that number, is to be somebody
    /// else's from here on: `take_over` gets it then.
    fn takes_over(&self, listener: usize, request: &http1::Request) -> bool {
        let (_, _) = (listener, request);
        false
    }

    /// Takes over a connection whose request's head was just read, its body not yet, and all that follow on it.
    fn take_over(&mut self, stream: Stream, connection: http1::Connection, request: http1::Request) {
        let (_, _) = (connection, request);
        stream.shutdown(Shutdown::Both);
    }

    /// An HTTP/1.1 request will not be answered: its connection is gone. Forget it.
    fn http_gone(&mut self, net: &mut Net, exchange: Exchange) {
        let (_, _) = (net, exchange);
    }

    /// Everything that was runnable has run: the moment to send what was gathered to other cores. What is sent through
    /// `net` here still goes with this turn.
    fn turn_end(&mut self, net: &mut Net);

    /// The core shuts down: end the calls that would not end by themselves.
    fn shutting_down(&mut self, net: &mut Net);
}
