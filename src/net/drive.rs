//! One connection's part of a turn: bytes in, events to the service, output to the socket.

use super::core::Speaks;
use super::memory::Held;
use super::peer::{Call, Net, Peer, Slot, Writing};
use super::protocol::{Http1, Protocol};
use super::service::Service;
use crate::grpc::{self, CallId, Code, Event, Status};
use crate::http::{self, Sniffed};
use crate::limits;
use bytes::Bytes;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::time::Duration;

/// How a flush left a connection.
pub(super) enum Flushed {
    /// Everything is out.
    Done,
    /// The socket took enough for one turn; the rest goes in the next.
    Again,
    /// The socket is full: this buffer is to be written from here on, by a task of its own.
    Blocked(Vec<u8>, usize),
    /// The connection is over and was removed.
    Over,
}

impl Net {
    /// Takes what the socket gave.
    pub(super) fn receive<S: Service>(&mut self, service: &mut S, slot: usize, bytes: Bytes) {
        let now = self.tick();
        self.statistics.received_bytes += bytes.len() as u64;
        self.peers[slot].received = now;
        match &mut self.peers[slot].protocol {
            Protocol::Grpc(grpc) => grpc.receive(bytes, now),
            Protocol::Http1(http1) => http1.connection.receive(&bytes, now),
            Protocol::Unknown(seen) => {
                seen.extend_from_slice(&bytes);
                let sniffed = http::sniff(seen);
                let listener = self.peers[slot].info.listener;
                match (
                    self.options.listeners.get(listener).copied().unwrap_or_default(),
                    sniffed,
                ) {
                    (_, Sniffed::More) => return,
                    (Speaks::Grpc, Sniffed::Http1) => return self.disconnect(service, slot),
                    (Speaks::Http1, _) | (Speaks::Both, Sniffed::Http1) => self.begin_http1(slot, now),
                    (Speaks::Grpc | Speaks::Both, Sniffed::Http2) => self.begin_http2(slot, now),
                }
            }
        }
        self.pump(service, slot);
        self.mark(slot);
        self.recount(slot);
        let too_much = self.memory.held.requests > self.options.requests_bytes;
        if too_much && matches!(self.peers[slot].protocol, Protocol::Http1(_)) && self.peers[slot].counted.requests > 0
        {
            tracing::warn!("closed an HTTP/1.1 connection: bodies take all that --memory-budget has for requests");
            return self.disconnect(service, slot);
        }
        self.give_away(service, slot);
    }

    fn begin_http1(&mut self, slot: usize, now: Duration) {
        let peer = &mut self.peers[slot];
        let Protocol::Unknown(seen) = &mut peer.protocol else {
            return;
        };
        let mut http1 = Http1::new(self.options.max_body, peer.opened);
        http1.connection.receive(seen, now);
        peer.protocol = Protocol::Http1(Box::new(http1));
    }

    fn begin_http2(&mut self, slot: usize, now: Duration) {
        let peer = &mut self.peers[slot];
        let Protocol::Unknown(seen) = &mut peer.protocol else {
            return;
        };
        let seen = Bytes::from(std::mem::take(seen));
        let http = http::Connection::new(self.options.http.clone(), peer.opened);
        let mut grpc = grpc::Connection::new(http, self.options.grpc.clone());
        grpc.receive(seen, now);
        peer.protocol = Protocol::Grpc(Box::new(grpc));
    }

    /// Hands events to the service, so many that the other connections have their turn soon; the rest follows in the
    /// next turn. Whether there were any.
    fn pump<S: Service>(&mut self, service: &mut S, slot: usize) -> bool {
        let (assembly_max, queue_max) = (self.assembly_max(slot), self.queue_max(slot));
        if let Protocol::Grpc(grpc) = &mut self.peers[slot].protocol {
            grpc.set_assembly_max(assembly_max);
            grpc.http().set_queue_max(queue_max);
        }
        self.spent = 0;
        let mut count = 0;
        while count + self.spent < limits::NET_EVENTS_PER_TURN {
            if !self.next_event(service, slot) {
                self.peers[slot].behind = false;
                return count > 0;
            }
            count += 1;
        }
        self.peers[slot].behind = true;
        self.mark(slot);
        true
    }

    /// Hands out every event there is, at the end of a connection.
    fn pump_all<S: Service>(&mut self, service: &mut S, slot: usize) {
        self.peers[slot].behind = true;
        while self.peers[slot].behind && self.pump(service, slot) {}
    }

    /// Handles the next event. Whether there was one.
    fn next_event<S: Service>(&mut self, service: &mut S, slot: usize) -> bool {
        let Protocol::Grpc(grpc) = &mut self.peers[slot].protocol else {
            return self.next_http1(service, slot);
        };
        let Some(event) = grpc.next_event() else {
            return false;
        };
        self.dispatch(service, slot, event);
        true
    }

    fn dispatch<S: Service>(&mut self, service: &mut S, slot: usize, event: Event) {
        let connection = self.key_of(slot);
        let named = |id| Call { connection, id };
        match event {
            Event::Started { call: id, timeout } => {
                let peer = &self.peers[slot];
                let Protocol::Grpc(grpc) = &peer.protocol else { return };
                let head = service.head(&grpc.request(), &peer.info);
                let tag = service.started(self, named(id), head, timeout);
                let deadline = timeout.map(|timeout| self.now().saturating_add(timeout));
                self.peers[slot].remember(Slot { id, tag, deadline });
            }
            Event::Message {
                call: id,
                message,
                last,
            } => {
                if let Some(tag) = self.tag(slot, id) {
                    service.message(self, named(id), tag, message, last);
                }
            }
            Event::HalfClosed { call: id } => {
                if let Some(tag) = self.tag(slot, id) {
                    service.half_closed(self, named(id), tag);
                }
            }
            Event::CutOff { call: id } => {
                if let Some(tag) = self.tag(slot, id) {
                    service.cut_off(self, named(id), tag);
                }
            }
            Event::Cancelled { call: id } => {
                if let Some(tag) = self.tag(slot, id) {
                    service.cancelled(self, named(id), tag);
                }
            }
            Event::Writable { call: id } => {
                if let Some(tag) = self.tag(slot, id) {
                    service.writable(self, named(id), tag);
                }
            }
            Event::Http(_) => {}
        }
    }

    pub(super) fn tag(&self, slot: usize, id: CallId) -> Option<u64> {
        Some(self.peers[slot].slot(id)?.tag)
    }

    /// Sends what a marked connection has to send, as far as the socket takes it. Sets `any_events` if room that came
    /// up made the service do something.
    pub(super) fn flush<S: Service>(&mut self, service: &mut S, slot: usize, any_events: &mut bool) -> Flushed {
        let mut sent = 0;
        loop {
            *any_events |= self.pump(service, slot);
            let behind = self.peers[slot].behind;
            let now = self.now();
            let peer = &mut self.peers[slot];
            if peer.writing.is_some() {
                return Flushed::Done;
            }
            let spare = std::mem::take(&mut peer.spare);
            let output = peer.protocol.take_output(spare, now);
            if output.is_empty() {
                peer.spare = shrunk(output);
                if behind {
                    return Flushed::Again;
                }
                return self.after_flush(service, slot);
            }
            self.statistics.sends += 1;
            let taken = match self.peers[slot].stream.try_write(&[IoSlice::new(&output)]) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => {
                    self.disconnect(service, slot);
                    return Flushed::Over;
                }
            };
            self.statistics.sent_bytes += taken as u64;
            let peer = &mut self.peers[slot];
            if taken < output.len() {
                let length = output.len();
                peer.writing = Some(Writing {
                    left: length - taken,
                    length,
                    progressed: now,
                });
                return Flushed::Blocked(output, taken);
            }
            peer.spare = output;
            peer.spare.clear();
            sent += taken;
            if sent >= limits::NET_FLUSH_BYTES || behind {
                self.mark(slot);
                return Flushed::Again;
            }
        }
    }

    /// Nothing is left to be sent: ends a connection that is over, lets the others read.
    fn after_flush<S: Service>(&mut self, service: &mut S, slot: usize) -> Flushed {
        let peer = &mut self.peers[slot];
        if let Some(reason) = peer.protocol.closed() {
            tracing::debug!(peer = ?peer.info.address, "connection closed: {reason}");
            self.forget_exchange(service, slot);
            self.remove(slot, Shutdown::Write);
            return Flushed::Over;
        }
        peer.resume.notify();
        Flushed::Done
    }

    /// Whether the connection's task should read on.
    pub(super) fn wants_read(&mut self, slot: usize) -> bool {
        let is_full = self.is_full();
        let peer = &mut self.peers[slot];
        !peer.behind && peer.protocol.wants_read() && !(is_full && peer.writing.is_some())
    }

    /// The socket is gone: tells the service of every call, and forgets the connection.
    pub(super) fn disconnect<S: Service>(&mut self, service: &mut S, slot: usize) {
        if let Protocol::Grpc(grpc) = &mut self.peers[slot].protocol {
            grpc.http().disconnect();
        }
        self.pump_all(service, slot);
        self.forget_exchange(service, slot);
        self.remove(slot, Shutdown::Both);
    }

    /// Forgets a connection. With `Shutdown::Write` the peer gets time to read the end and to close its side: closing
    /// a socket with unread input would make the kernel throw away what is still on its way.
    fn remove(&mut self, slot: usize, side: Shutdown) {
        let peer = self.peers.remove(slot);
        self.memory.change(peer.counted, Held::default());
        peer.stream.shutdown(side);
        peer.resume.notify();
        if side == Shutdown::Write {
            self.lingering.push((self.now() + limits::NET_LINGER, peer.stream));
        }
    }

    /// Does what is due by the clock, on every connection.
    pub(super) fn on_timer<S: Service>(&mut self, service: &mut S) {
        let now = self.tick();
        let crowded = self.memory.held.requests > self.options.requests_bytes / 2;
        let slots: Vec<usize> = self.peers.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.expire_calls(service, slot, now);
            let stall = self.options.http.stall;
            let peer = &mut self.peers[slot];
            let stalled = peer.writing.is_some_and(|writing| now >= writing.progressed + stall);
            let silent = matches!(peer.protocol, Protocol::Unknown(_))
                && now >= peer.opened + Duration::from_secs(limits::HTTP_PREFACE_SECONDS);
            // Parts of requests that nobody goes on with make room for others.
            let hoarding = crowded && peer.counted.requests > 0 && now >= peer.received + stall;
            if stalled || silent || hoarding {
                self.disconnect(service, slot);
                continue;
            }
            if peer.protocol.on_timer(now) {
                self.mark(slot);
            }
        }
        self.shed(service, now);
        self.give_back();
        self.lingering.retain(|(until, stream)| {
            let stays = now < *until;
            if !stays {
                stream.shutdown(Shutdown::Both);
            }
            stays
        });
    }

    /// Ends the calls whose time is over, as grpc-go's server does.
    fn expire_calls<S: Service>(&mut self, service: &mut S, slot: usize, now: Duration) {
        for index in 0..self.peers[slot].calls.len() {
            let Peer { calls, protocol, .. } = &mut self.peers[slot];
            let Protocol::Grpc(grpc) = protocol else { return };
            let Some(entry) = calls[index].filter(|entry| entry.deadline.is_some_and(|deadline| now >= deadline))
            else {
                continue;
            };
            calls[index] = None;
            let status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");
            if grpc.finish(entry.id, &status).is_ok() {
                self.mark(slot);
                let call = Call {
                    connection: self.key_of(slot),
                    id: entry.id,
                };
                service.cancelled(self, call, entry.tag);
            }
        }
    }

    /// Announces the end to every peer.
    pub(super) fn announce_shutdown(&mut self) {
        let now = self.tick();
        self.closing = true;
        let slots: Vec<usize> = self.peers.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.peers[slot].protocol.shutdown(now);
            if matches!(self.peers[slot].protocol, Protocol::Unknown(_)) {
                self.remove(slot, Shutdown::Write);
            } else {
                self.mark(slot);
            }
        }
    }
}

/// An output buffer that once grew large is not kept.
fn shrunk(mut buffer: Vec<u8>) -> Vec<u8> {
    if buffer.capacity() > limits::NET_SPARE_BYTES {
        buffer = Vec::new();
    }
    buffer
}
