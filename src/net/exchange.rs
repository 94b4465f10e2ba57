//! HTTP/1.1 requests: handing them to the service, and its answers.

use super::memory::Held;
use super::peer::{ConnectionKey, Net, Peer};
use super::protocol::{Answer, Http1, Protocol};
use super::service::Service;
use crate::http::http1::{self, ResponseError};

/// Names one request and its answer on a core. An exchange that is over is named by nothing again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Exchange {
    /// The connection it came in by.
    pub connection: ConnectionKey,
    number: u32,
}

impl Net {
    /// Sends a whole answer to a request.
    pub fn respond(
        &mut self,
        exchange: Exchange,
        status: u16,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(), ResponseError> {
        let http1 = self.answering(exchange)?;
        http1.connection.respond(status, fields, body)?;
        http1.answer = Answer::None;
        Ok(())
    }

    /// Begins an answer whose body comes in parts.
    pub fn start_response(
        &mut self,
        exchange: Exchange,
        status: u16,
        fields: &[(&str, &str)],
    ) -> Result<(), ResponseError> {
        let http1 = self.answering(exchange)?;
        http1.connection.start_response(status, fields)?;
        http1.answer = Answer::Streaming;
        Ok(())
    }

    /// Sends a part of the body of an answer begun. Wait while [`Self::response_backlog`] is large.
    pub fn send_response_part(&mut self, exchange: Exchange, part: &[u8]) -> Result<(), ResponseError> {
        self.answering(exchange)?.connection.send_part(part)
    }

    /// Ends an answer that came in parts.
    pub fn finish_response(&mut self, exchange: Exchange) -> Result<(), ResponseError> {
        let http1 = self.answering(exchange)?;
        http1.connection.finish_response()?;
        http1.answer = Answer::None;
        Ok(())
    }

    /// Gives up an answer that was begun: the peer sees that it is cut.
    pub fn abort_response(&mut self, exchange: Exchange) {
        if let Ok(http1) = self.answering(exchange) {
            http1.connection.abort();
            http1.answer = Answer::None;
        }
    }

    /// Bytes of an answer that wait to be sent.
    pub fn response_backlog(&self, exchange: Exchange) -> usize {
        let Some(slot) = self.find(exchange.connection) else {
            return 0;
        };
        self.peers[slot].buffered_bytes()
    }

    /// The connection of a request that is not answered yet.
    fn answering(&mut self, exchange: Exchange) -> Result<&mut Http1, ResponseError> {
        let slot = self.find(exchange.connection).ok_or(ResponseError::NoRequest)?;
        self.mark(slot);
        match &mut self.peers[slot].protocol {
            Protocol::Http1(http1) if http1.number == exchange.number && http1.answer != Answer::None => Ok(http1),
            _ => Err(ResponseError::NoRequest),
        }
    }

    /// Handles the next event of an HTTP/1.1 connection. Whether there was one.
    pub(super) fn next_http1<S: Service>(&mut self, service: &mut S, slot: usize) -> bool {
        let connection = self.key_of(slot);
        let listener = self.peers[slot].info.listener;
        let Protocol::Http1(http1) = &mut self.peers[slot].protocol else {
            return false;
        };
        if http1.taken.is_some() {
            return false;
        }
        match http1.connection.next_event() {
            None => return false,
            Some(http1::Event::Request(request)) if service.takes_over(listener, &request) => {
                http1.taken = Some(request);
                return false;
            }
            Some(http1::Event::Request(request)) => http1.incoming = Some((request, Vec::new())),
            Some(http1::Event::Body(part)) => {
                // Of a request that was answered early the rest is dropped.
                if let Some((_, body)) = &mut http1.incoming {
                    body.extend_from_slice(&part);
                }
            }
            Some(http1::Event::End) => {
                if let Some((request, body)) = http1.incoming.take() {
                    http1.number = http1.number.wrapping_add(1);
                    http1.answer = Answer::Due;
                    let number = http1.number;
                    service.http_request(self, Exchange { connection, number }, request, body);
                }
            }
        }
        true
    }

    /// Gives a connection away if it was taken over. One whose earlier answers are still being written is ended
    /// instead: its peer tries again.
    pub(super) fn give_away<S: Service>(&mut self, service: &mut S, slot: usize) {
        let Some(Peer {
            protocol: Protocol::Http1(http1),
            ..
        }) = self.peers.get_mut(slot)
        else {
            return;
        };
        let Some(request) = http1.taken.take() else { return };
        if self.peers[slot].writing.is_some() {
            return self.disconnect(service, slot);
        }
        self.given_away.push(self.key_of(slot));
        let peer = self.peers.remove(slot);
        self.memory.change(peer.counted, Held::default());
        peer.resume.notify();
        if let Protocol::Http1(http1) = peer.protocol {
            service.take_over(peer.stream, http1.connection, request);
        }
    }

    /// Whether a connection was given away. Told once.
    pub(super) fn was_given_away(&mut self, key: ConnectionKey) -> bool {
        let before = self.given_away.len();
        self.given_away.retain(|other| *other != key);
        self.given_away.len() < before
    }

    /// Tells the service that nobody waits for its answer any more.
    pub(super) fn forget_exchange<S: Service>(&mut self, service: &mut S, slot: usize) {
        let connection = self.key_of(slot);
        let Protocol::Http1(http1) = &mut self.peers[slot].protocol else {
            return;
        };
        let number = http1.number;
        http1.connection.abort();
        if std::mem::replace(&mut http1.answer, Answer::None) != Answer::None {
            service.http_gone(self, Exchange { connection, number });
        }
    }

    /// The peer has ended its side of the connection. A request that came whole is still answered; whether it was so.
    pub(super) fn end_input(&mut self, slot: usize) -> bool {
        let Protocol::Http1(http1) = &mut self.peers[slot].protocol else {
            return false;
        };
        let is_waiting = http1.answer == Answer::Due;
        if is_waiting {
            http1.input_ended = true;
            http1.connection.shutdown();
        }
        is_waiting
    }
}
