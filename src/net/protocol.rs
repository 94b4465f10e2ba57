//! What a connection speaks, as one thing to the driver.

use crate::grpc;
use crate::http::http1;
use std::time::Duration;

/// What the connection's first bytes made it.
pub(super) enum Protocol {
    /// Too few bytes to tell.
    Unknown(Vec<u8>),
    /// HTTP/2 with gRPC on it.
    Grpc(Box<grpc::Connection>),
    /// HTTP/1.1.
    Http1(Box<Http1>),
}

/// An HTTP/1.1 connection and the request at hand.
pub(super) struct Http1 {
    pub(super) connection: http1::Connection,
    /// A request whose body is still on its way.
    pub(super) incoming: Option<(http1::Request, Vec<u8>)>,
    /// The request with which somebody else takes the connection over.
    pub(super) taken: Option<http1::Request>,
    /// Counts the requests handed to the service.
    pub(super) number: u32,
    pub(super) answer: Answer,
    /// The peer has ended its side: the answer to the request at hand is the last.
    pub(super) input_ended: bool,
}

/// Where the service is with the request at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// There is no request, or it is answered.
    None,
    /// Not begun.
    Due,
    /// Begun, in parts.
    Streaming,
}

impl Http1 {
    pub(super) fn new(max_body: u64, now: Duration) -> Http1 {
        Http1 {
            connection: http1::Connection::new(max_body, now),
            incoming: None,
            taken: None,
            number: 0,
            answer: Answer::None,
            input_ended: false,
        }
    }

    /// Bytes to be sent, and of a body that is not whole.
    pub(super) fn held_bytes(&self) -> (usize, usize) {
        let body = self.incoming.as_ref().map_or(0, |(_, body)| body.len());
        (self.connection.output_length(), body)
    }

    fn buffered_bytes(&self) -> usize {
        let (output, body) = self.held_bytes();
        output + body
    }
}

impl Protocol {
    /// Everything to send now, `spare` (an empty buffer) taking its place.
    pub(super) fn take_output(&mut self, spare: Vec<u8>, now: Duration) -> Vec<u8> {
        match self {
            Protocol::Unknown(_) => spare,
            Protocol::Grpc(grpc) => grpc.take_output(spare, now),
            Protocol::Http1(http1) => http1.connection.take_output(spare, now),
        }
    }

    /// Why the connection is over, if it is.
    pub(super) fn closed(&self) -> Option<String> {
        match self {
            Protocol::Unknown(_) => None,
            Protocol::Grpc(grpc) => grpc.closed().map(|reason| reason.to_string()),
            Protocol::Http1(http1) => http1
                .connection
                .is_closed()
                .then(|| "HTTP/1.1 exchange over".to_string()),
        }
    }

    pub(super) fn wants_read(&mut self) -> bool {
        match self {
            Protocol::Unknown(_) => true,
            Protocol::Grpc(grpc) => grpc.http().wants_read(),
            Protocol::Http1(http1) => http1.connection.wants_read() && !http1.input_ended && http1.taken.is_none(),
        }
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        match self {
            Protocol::Unknown(bytes) => bytes.len(),
            Protocol::Grpc(grpc) => grpc.buffered_bytes(),
            Protocol::Http1(http1) => http1.buffered_bytes(),
        }
    }

    /// Does what is due by the clock. Whether that was anything.
    pub(super) fn on_timer(&mut self, now: Duration) -> bool {
        match self {
            Protocol::Unknown(_) => false,
            Protocol::Grpc(grpc) => {
                let due = now >= grpc.http().deadline();
                if due {
                    grpc.http().on_timer(now);
                }
                due
            }
            Protocol::Http1(http1) => {
                http1.connection.on_timer(now);
                http1.connection.is_closed()
            }
        }
    }

    /// Announces the end to the peer.
    pub(super) fn shutdown(&mut self, now: Duration) {
        match self {
            Protocol::Unknown(_) => {}
            Protocol::Grpc(grpc) => grpc.http().shutdown(now),
            Protocol::Http1(http1) => http1.connection.shutdown(),
        }
    }
}
