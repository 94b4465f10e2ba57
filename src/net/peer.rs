//! The connections of one serve core, and what a service can do with them.

use super::core::Options;
use super::memory::{Held, Memory};
use super::protocol::Protocol;
use crate::grpc::{self, CallId, Status};
use crate::http::{ErrorCode, SendError};
use crate::limits;
use crate::reactor::serve::{Notify, Stream};
use bytes::Bytes;
use slab::Slab;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Names a connection of a core for as long as the core runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionKey {
    slot: u32,
    generation: u32,
}

/// Names a call on a core. A call that is over is named by nothing again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Call {
    /// The connection it came in by.
    pub connection: ConnectionKey,
    /// The call on its connection.
    pub id: CallId,
}

/// Who is on the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The peer's address; `None` on a Unix socket.
    pub address: Option<SocketAddr>,
    /// Which of the listeners it came in by.
    pub listener: usize,
}

/// Counters of one core since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections open now.
    pub connections: usize,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Sends, each of one connection's output of a turn.
    pub sends: u64,
}

/// A call as the driver remembers it, by its stream's slot.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) id: CallId,
    pub(super) tag: u64,
    pub(super) deadline: Option<Duration>,
}

/// A buffer that the socket did not take whole, while its own task writes the rest.
#[derive(Clone, Copy)]
pub(super) struct Writing {
    pub(super) left: usize,
    /// The whole buffer, which goes when all of it is written.
    pub(super) length: usize,
    /// When the socket last took something.
    pub(super) progressed: Duration,
}

/// One connection.
pub(super) struct Peer {
    pub(super) generation: u32,
    pub(super) info: PeerInfo,
    pub(super) stream: Stream,
    pub(super) protocol: Protocol,
    pub(super) opened: Duration,
    /// When something last came.
    pub(super) received: Duration,
    pub(super) calls: Vec<Option<Slot>>,
    pub(super) writing: Option<Writing>,
    /// What it held when that was last looked at.
    pub(super) counted: Held,
    /// An empty buffer for the next output.
    pub(super) spare: Vec<u8>,
    pub(super) dirty: bool,
    /// Events were left for the next turn; nothing is read before they are handed out.
    pub(super) behind: bool,
    /// Wakes the reading task when it may read again.
    pub(super) resume: Rc<Notify>,
}

/// The connections of one serve core. What is sent is flushed at the end of the turn.
pub struct Net {
    pub(super) peers: Slab<Peer>,
    pub(super) dirty: Vec<usize>,
    pub(super) statistics: Statistics,
    pub(super) memory: Memory,
    pub(super) options: Options,
    pub(super) closing: bool,
    /// The turns are over.
    pub(super) ended: bool,
    /// Sockets whose last output is out, until the peer has closed its side or the time comes.
    pub(super) lingering: Vec<(Duration, Stream)>,
    /// Connections that somebody else has taken over, until their reading tasks have ended.
    pub(super) given_away: Vec<ConnectionKey>,
    pub(super) began: Instant,
    /// What the events handed out in the running pump have cost beyond themselves, in events.
    pub(super) spent: usize,
    now: Duration,
    generation: u32,
}

impl Net {
    pub(super) fn new(options: Options) -> Net {
        Net {
            peers: Slab::new(),
            dirty: Vec::new(),
            statistics: Statistics::default(),
            memory: Memory::default(),
            options,
            closing: false,
            ended: false,
            lingering: Vec::new(),
            given_away: Vec::new(),
            began: Instant::now(),
            spent: 0,
            now: Duration::ZERO,
            generation: 0,
        }
    }

    /// The core's time, since it began, as of the last event.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Reads the clock.
    pub(super) fn tick(&mut self) -> Duration {
        self.now = self.began.elapsed();
        self.now
    }

    /// Counters since the start.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            connections: self.peers.len(),
            ..self.statistics
        }
    }

    /// Who is behind a connection that is still open.
    pub fn peer(&self, connection: ConnectionKey) -> Option<&PeerInfo> {
        let slot = self.find(connection)?;
        Some(&self.peers[slot].info)
    }

    /// Answers a unary call: header, one message of exactly `length` bytes that `write` appends, status OK.
    ///
    /// # Panics
    /// If `write` appends another number of bytes.
    pub fn reply(&mut self, call: Call, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        self.sending(call, |grpc| grpc.reply(call.id, length, write))
    }

    /// Sends the response's header if it is not out, for callers that wait for it.
    pub fn send_header(&mut self, call: Call) -> Result<(), SendError> {
        self.sending(call, |grpc| grpc.send_header(call.id))
    }

    /// Sends a message without copying it until its turn comes.
    pub fn send_message(&mut self, call: Call, message: Bytes) -> Result<(), SendError> {
        self.sending(call, |grpc| grpc.send_message(call.id, message))
    }

    /// Sends a message of exactly `length` bytes, which `write` appends in place if it can go at once.
    ///
    /// # Panics
    /// If `write` appends another number of bytes.
    pub fn send_message_with(
        &mut self,
        call: Call,
        length: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendError> {
        self.sending(call, |grpc| grpc.send_message_with(call.id, length, write))
    }

    /// Begins a message of `length` bytes that comes in parts, as room for it comes up.
    pub fn begin_message(&mut self, call: Call, length: usize) -> Result<(), SendError> {
        self.sending(call, |grpc| grpc.begin_message(call.id, length))
    }

    /// Sends the next part of the message begun last.
    ///
    /// # Panics
    /// If the parts are longer than the message.
    pub fn send_part(&mut self, call: Call, part: Bytes) -> Result<(), SendError> {
        self.sending(call, |grpc| grpc.send_part(call.id, part))
    }

    /// Ends a call.
    pub fn finish(&mut self, call: Call, status: &Status) -> Result<(), SendError> {
        self.sending(call, |grpc| grpc.finish(call.id, status))
    }

    /// Ends a call without a status.
    pub fn cancel(&mut self, call: Call, code: ErrorCode) {
        let _ = self.sending(call, |grpc| {
            grpc.cancel(call.id, code);
            Ok(())
        });
    }

    /// While paused, a call's caller may send no more than its window.
    pub fn set_paused(&mut self, call: Call, paused: bool) {
        let _ = self.sending(call, |grpc| {
            grpc.set_paused(call.id, paused);
            Ok(())
        });
    }

    /// Bytes that are worth producing for a call now, and that there is memory for; 0 if it is over.
    pub fn capacity(&self, call: Call) -> usize {
        match self.find(call.connection) {
            Some(slot) if self.may_produce(slot, call) => self.own_capacity(call),
            _ => 0,
        }
    }

    /// Tells that an event took a look at `keys` keys: its connection gets its next turn the sooner.
    pub fn spend(&mut self, keys: usize) {
        self.spent += keys / limits::NET_KEYS_PER_EVENT;
    }

    /// Throws away what a caller still sends; see [`grpc::Connection::ignore_input`](crate::grpc::Connection).
    pub fn ignore_input(&mut self, call: Call) {
        let _ = self.sending(call, |grpc| {
            grpc.ignore_input(call.id);
            Ok(())
        });
    }

    /// Bytes that a call's peer is ready to take.
    pub(super) fn own_capacity(&self, call: Call) -> usize {
        self.grpc(call.connection).map_or(0, |grpc| grpc.capacity(call.id))
    }

    /// Asks for one [`Service::writable`](super::Service::writable) when there is room.
    pub fn notify_writable(&mut self, call: Call) {
        if self.own_capacity(call) > 0 && self.capacity(call) == 0 {
            return self.memory.wait(call);
        }
        let _ = self.sending(call, |grpc| {
            grpc.notify_writable(call.id);
            Ok(())
        });
    }

    /// Whether a call can still be answered.
    pub fn is_open(&self, call: Call) -> bool {
        self.grpc(call.connection).is_some_and(|grpc| grpc.is_open(call.id))
    }

    /// Bytes held for all peers: received and not handed on, queued, or waiting to be sent.
    pub fn buffered_bytes(&self) -> usize {
        self.peers.iter().map(|(_, peer)| peer.buffered_bytes()).sum()
    }

    /// Adds a connection.
    pub(super) fn insert(&mut self, stream: Stream, info: PeerInfo) -> (ConnectionKey, Rc<Notify>) {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let resume = Rc::new(Notify::new());
        let opened = self.tick();
        let slot = self.peers.insert(Peer {
            generation,
            info,
            stream,
            protocol: Protocol::Unknown(Vec::new()),
            opened,
            received: opened,
            calls: Vec::new(),
            writing: None,
            counted: Held::default(),
            spare: Vec::new(),
            dirty: false,
            behind: false,
            resume: resume.clone(),
        });
        let slot = u32::try_from(slot).expect("descriptors are fewer than 2^32");
        (ConnectionKey { slot, generation }, resume)
    }

    /// The slot of a connection that is still open.
    pub(super) fn find(&self, key: ConnectionKey) -> Option<usize> {
        let slot = key.slot as usize;
        let peer = self.peers.get(slot)?;
        (peer.generation == key.generation).then_some(slot)
    }

    pub(super) fn key_of(&self, slot: usize) -> ConnectionKey {
        let generation = self.peers[slot].generation;
        ConnectionKey {
            slot: slot as u32,
            generation,
        }
    }

    /// Has a connection flushed at the end of the turn.
    pub(super) fn mark(&mut self, slot: usize) {
        let peer = &mut self.peers[slot];
        if !peer.dirty {
            peer.dirty = true;
            self.dirty.push(slot);
        }
    }

    fn grpc(&self, connection: ConnectionKey) -> Option<&grpc::Connection> {
        match &self.peers[self.find(connection)?].protocol {
            Protocol::Grpc(grpc) => Some(grpc),
            _ => None,
        }
    }

    /// Sends something on a call, and counts what is held by it.
    fn sending(
        &mut self,
        call: Call,
        act: impl FnOnce(&mut grpc::Connection) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let slot = self.find(call.connection).ok_or(SendError::Gone)?;
        self.mark(slot);
        let result = match &mut self.peers[slot].protocol {
            Protocol::Grpc(grpc) => act(grpc),
            _ => Err(SendError::Gone),
        };
        self.recount(slot);
        result
    }
}

impl Peer {
    pub(super) fn buffered_bytes(&self) -> usize {
        self.writing.map_or(0, |writing| writing.left) + self.protocol.buffered_bytes()
    }

    /// The driver's notes on a call.
    pub(super) fn slot(&self, id: CallId) -> Option<&Slot> {
        self.calls.get(id.slot())?.as_ref().filter(|slot| slot.id == id)
    }

    /// Takes notes on a call that began.
    pub(super) fn remember(&mut self, slot: Slot) {
        let index = slot.id.slot();
        if self.calls.len() <= index {
            self.calls.resize(index + 1, None);
        }
        self.calls[index] = Some(slot);
    }
}
