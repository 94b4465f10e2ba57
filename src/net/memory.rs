//! What a core's connections hold in memory, against the core's shares of the memory budget.
//!
//! A part of an answer that takes a while to make has its room reserved first, so that many which begin together do not
//! all find the same room.
//!
//! Up to half of the share for answers, whoever has a window open may fill it. In the other half only those produce
//! more whose peers take it right away. When the share is used up nobody does, connections whose sockets are full are
//! not read, and those that have stood still the longest are closed. So peers that do not read cost the others
//! nothing but half of the share, and the server no more than all of it. New calls of a connection with much queued are
//! refused only beyond that half.
//!
//! Of requests that are not whole, the call that goes beyond the share fails. While they take more than half of it,
//! connections that leave theirs unfinished for the time of a stall are closed.

use super::peer::{Call, Net, Peer};
use super::protocol::Protocol;
use super::service::Service;
use crate::limits::{GRPC_ASSEMBLY_BYTES, HTTP_CONNECTION_QUEUE_BYTES, NET_BURST_BYTES, NET_SHED_AFTER, NET_WAKE};
use crate::reactor::allocator;
use rustc_hash::FxHashSet;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Bytes held for peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// To be sent.
    pub(super) answers: usize,
    /// Received, and not a whole message yet.
    pub(super) requests: usize,
}

/// Room for a part of an answer that is being made: it counts as if the part were queued. Dropped once that is, or will
/// not be.
#[derive(Debug)]
pub struct Reserved {
    promised: Rc<Cell<usize>>,
    bytes: usize,
}

impl Reserved {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.promised.set(self.promised.get() - self.bytes);
    }
}

/// All connections together.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) held: Held,
    /// To be queued before long, see [`Reserved`].
    promised: Rc<Cell<usize>>,
    /// The most that answers took since the allocator was last told to give back.
    answers_peak: usize,
    /// Calls that wait for room in the share, not for their peers, in turn.
    waiting: VecDeque<Call>,
    is_waiting: FxHashSet<Call>,
}

impl Memory {
    /// Takes note that a connection held `before` and holds `now`.
    pub(super) fn change(&mut self, before: Held, now: Held) {
        self.held.answers = self.held.answers + now.answers - before.answers;
        self.held.requests = self.held.requests + now.requests - before.requests;
    }

    /// What answers take, and will before long.
    fn answers(&self) -> usize {
        self.held.answers + self.promised.get()
    }

    /// Has a call woken when there is room.
    pub(super) fn wait(&mut self, call: Call) {
        if self.is_waiting.insert(call) {
            self.waiting.push_back(call);
        }
    }
}

impl Peer {
    /// What the connection holds.
    fn held(&self) -> Held {
        let (answers, requests) = match &self.protocol {
            Protocol::Unknown(bytes) => (0, bytes.len()),
            Protocol::Grpc(grpc) => (grpc.unsent_bytes(), grpc.unfinished_bytes()),
            Protocol::Http1(http1) => http1.held_bytes(),
        };
        Held {
            answers: answers + self.writing.map_or(0, |writing| writing.length),
            requests,
        }
    }
}

impl Net {
    /// Counts anew what a connection holds.
    pub(super) fn recount(&mut self, slot: usize) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let now = peer.held();
        let before = std::mem::replace(&mut peer.counted, now);
        self.memory.change(before, now);
    }

    /// Whether answers take all there is for them.
    pub(super) fn is_full(&self) -> bool {
        self.memory.held.answers >= self.options.answers_bytes
    }

    /// Whether a call with a window may produce for it.
    pub(super) fn may_produce(&self, slot: usize, call: Call) -> bool {
        let (held, max) = (self.memory.answers(), self.options.answers_bytes);
        if held < max / 2 {
            return true;
        }
        let peer = &self.peers[slot];
        held < max && peer.writing.is_none() && matches!(&peer.protocol, Protocol::Grpc(grpc) if grpc.flows(call.id))
    }

    /// Whether there is memory for answers to a call, however much its peer takes now.
    pub fn has_memory(&self, call: Call) -> bool {
        let slot = self.find(call.connection);
        slot.is_none_or(|slot| self.may_produce(slot, call))
    }

    /// Reserves room for `bytes` of an answer, if its peer takes any now and others leave some: then even for more than
    /// that, since a record is not divided. Else, as after [`Net::notify_writable`], the service is told when there may
    /// be.
    pub fn reserve(&mut self, call: Call, bytes: usize) -> Option<Reserved> {
        if self.capacity(call) == 0 {
            self.notify_writable(call);
            return None;
        }
        let promised = self.memory.promised.clone();
        promised.set(promised.get() + bytes);
        Some(Reserved { promised, bytes })
    }

    /// How much a connection may hold of unfinished messages.
    pub(super) fn assembly_max(&self, slot: usize) -> usize {
        let others = self.memory.held.requests - self.peers[slot].counted.requests;
        self.options
            .requests_bytes
            .saturating_sub(others)
            .min(GRPC_ASSEMBLY_BYTES)
    }

    /// Above how many bytes queued on a connection new calls of it are refused: not while all connections together hold
    /// less than half of the share. A client with one connection reads large records and calls beside that.
    pub(super) fn queue_max(&self, slot: usize) -> usize {
        let others = self.memory.held.answers - self.peers[slot].counted.answers;
        (self.options.answers_bytes / 2)
            .saturating_sub(others)
            .max(HTTP_CONNECTION_QUEUE_BYTES)
    }

    /// Wakes calls that have waited for room in the share. Whether there were any.
    pub(super) fn wake_waiting<S: Service>(&mut self, service: &mut S) -> bool {
        let mut woken = false;
        for _ in 0..NET_WAKE.min(self.memory.waiting.len()) {
            if self.is_full() {
                break;
            }
            let Some(call) = self.memory.waiting.pop_front() else {
                break;
            };
            let Some((slot, tag)) = self
                .find(call.connection)
                .and_then(|slot| Some((slot, self.tag(slot, call.id)?)))
            else {
                self.memory.is_waiting.remove(&call);
                continue;
            };
            let (room, worth) = (self.may_produce(slot, call), self.own_capacity(call) > 0);
            if worth && !room {
                self.memory.waiting.push_back(call);
                continue;
            }
            self.memory.is_waiting.remove(&call);
            if worth {
                service.writable(self, call, tag);
                woken = true;
            } else {
                self.notify_writable(call);
            }
        }
        woken
    }

    /// Has the allocator give back what a burst of answers left behind it.
    pub(super) fn give_back(&mut self) {
        let Memory { held, answers_peak, .. } = &mut self.memory;
        *answers_peak = held.answers.max(*answers_peak);
        if *answers_peak >= NET_BURST_BYTES && held.answers < *answers_peak / 4 {
            *answers_peak = held.answers;
            allocator::give_back();
        }
    }

    /// Closes connections that stand still while answers take more than there is for them, those first that have done
    /// so the longest.
    pub(super) fn shed<S: Service>(&mut self, service: &mut S, now: Duration) {
        if self.memory.held.answers <= self.options.answers_bytes {
            return;
        }
        let mut standing: Vec<(Duration, usize)> = Vec::new();
        for (slot, peer) in &mut self.peers {
            let writing = peer.writing.map(|writing| writing.progressed);
            let stalled = match &mut peer.protocol {
                Protocol::Grpc(grpc) => grpc.http().stalled_since(),
                _ => None,
            };
            let since = writing.into_iter().chain(stalled).min();
            if let Some(since) = since.filter(|since| peer.counted.answers > 0 && now >= *since + NET_SHED_AFTER) {
                standing.push((since, slot));
            }
        }
        standing.sort_unstable();
        for (_, slot) in standing {
            if self.memory.held.answers <= self.options.answers_bytes {
                return;
            }
            tracing::warn!(
                peer = ?self.peers[slot].info.address,
                bytes = self.peers[slot].counted.answers,
                "closed a connection that is not read: answers take all that --memory-budget has for them"
            );
            self.disconnect(service, slot);
        }
    }
}
