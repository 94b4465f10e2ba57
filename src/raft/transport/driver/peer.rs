//! One peer: what is to be sent to it, whether it is active, its connections.

use super::connections::Connections;
use super::dial::DialError;
use super::url::Picker;
use super::{Inner, pipeline, probe, read};
use crate::limits::transport as limits;
use crate::raft::transport::counters::PeerCounters;
use crate::raft::transport::outbox::{Outbox, Way};
use crate::raft::transport::wire;
use crate::reactor::serve::{self, Notify};
use raft::eraftpb::Message;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::time::Instant;

/// Of a peer to which there is no connection, or one that broke.
const UNREACHABLE: &str = "peer can't be reached";

/// A peer. Its tasks hold it; they end when its connections are ended.
pub(super) struct Peer {
    pub id: u64,
    pub inner: Rc<Inner>,
    pub urls: RefCell<Picker>,
    pub outbox: RefCell<Outbox>,
    /// Woken when something waits for the stream in use, by way.
    wake: [RefCell<Rc<Notify>>; 2],
    /// Which stream to the peer is the one in use, by way; a later one takes the place of an earlier one.
    pub stream_number: [Cell<u64>; 2],
    pub connections: Rc<Connections>,
    /// Requests of the pipeline under way.
    pub workers: Cell<usize>,
    active_since: Cell<Option<Instant>>,
    /// Why it could last not be reached, as it was logged.
    told: RefCell<String>,
    /// Messages to it are being dropped, and that was logged.
    dropping: Cell<bool>,
    unreachable_reported: Cell<Option<Instant>>,
}

impl Peer {
    pub fn new(inner: &Rc<Inner>, id: u64, urls: Vec<String>) -> Rc<Peer> {
        Rc::new(Peer {
            id,
            inner: inner.clone(),
            urls: RefCell::new(Picker::new(urls)),
            outbox: RefCell::default(),
            wake: Default::default(),
            stream_number: Default::default(),
            connections: Rc::default(),
            workers: Cell::new(0),
            active_since: Cell::new(None),
            told: RefCell::default(),
            dropping: Cell::new(false),
            unreachable_reported: Cell::new(None),
        })
    }

    /// Starts to read its streams and to probe it. A member that is only learned of is answered and nothing else.
    pub fn start(self: &Rc<Self>) {
        serve::spawn(read::run(self.clone(), Way::Append));
        serve::spawn(read::run(self.clone(), Way::Message));
        serve::spawn(probe::run(self.clone()));
    }

    pub fn counters(&self) -> &PeerCounters {
        self.inner.counters.of(self.id)
    }

    pub fn is_stopped(&self) -> bool {
        self.connections.is_ended()
    }

    /// Queues a message.
    pub fn send(self: &Rc<Self>, message: Message) {
        let kind = message.msg_type();
        let pushed = self.outbox.borrow_mut().push(message);
        match pushed {
            Some(Way::Pipeline) => pipeline::wake(self),
            Some(way) => self.wake[way as usize].borrow().notify(),
            None => {
                self.counters().sent_failures.add(1);
                self.unreachable();
                if !self.dropping.replace(true) {
                    tracing::warn!(
                        "remote-peer-id" = format!("{:x}", self.id),
                        "message-type" = wire::name(kind),
                        "dropped internal Raft message since sending buffer is full"
                    );
                }
            }
        }
    }

    /// The next message of a way, with its length.
    pub fn pop(&self, way: Way) -> Option<(Message, usize)> {
        let popped = self.outbox.borrow_mut().pop(way);
        if popped.is_none() {
            self.dropping.set(false);
        }
        popped
    }

    /// A stream that just opened: what wakes it from now on. The one before it is woken for the last time.
    pub fn take_wake(&self, way: Way) -> Rc<Notify> {
        let wake = Rc::new(Notify::new());
        let before = self.wake[way as usize].replace(wake.clone());
        before.notify();
        wake
    }

    /// Tells raft that messages to the peer got lost. Raft learns as much from one report as from many.
    pub fn unreachable(&self) {
        let now = Instant::now();
        let reported = self.unreachable_reported.get();
        if reported.is_none_or(|last| now >= last + limits::UNREACHABLE_PAUSE) {
            self.unreachable_reported.set(Some(now));
            self.inner.sink.unreachable(self.id);
        }
    }

    /// Since when something has come through to it.
    pub fn active_since(&self) -> Option<Instant> {
        self.active_since.get()
    }

    /// Something came through.
    pub fn activate(&self) {
        if self.active_since.get().is_none() && !self.is_stopped() {
            self.active_since.set(Some(Instant::now()));
            self.told.borrow_mut().clear();
            self.counters().active.set(1);
            tracing::info!("peer-id" = format!("{:x}", self.id), "peer became active");
        }
    }

    /// A request did not come through, or the peer refused it.
    pub fn dial_failed(&self, source: &str, action: &str, error: &DialError) {
        let text = if error.is_refusal() {
            "peer is there and refuses this member"
        } else {
            UNREACHABLE
        };
        self.away(source, action, error, text);
    }

    /// Something did not come through.
    pub fn deactivate(&self, source: &str, action: &str, reason: &dyn Display) {
        self.away(source, action, reason, UNREACHABLE);
    }

    /// Said once, and again when the peer is away for another reason; with `text` if it was not active before.
    fn away(&self, source: &str, action: &str, reason: &dyn Display, text: &str) {
        if self.is_stopped() {
            return;
        }
        let error = format!("failed to {action} {:x} on {source} ({reason})", self.id);
        let was_active = self.active_since.take().is_some();
        if was_active {
            self.counters().active.set(0);
            self.counters().disconnected.add(1);
            tracing::warn!(
                "peer-id" = format!("{:x}", self.id),
                error,
                "peer became inactive (message send to peer failed)"
            );
        } else if *self.told.borrow() != reason.to_string() {
            tracing::warn!("peer-id" = format!("{:x}", self.id), error, "{text}");
        }
        *self.told.borrow_mut() = reason.to_string();
    }

    /// Uses other URLs.
    pub fn update(&self, urls: Vec<String>) {
        if self.urls.borrow().urls() != urls {
            *self.urls.borrow_mut() = Picker::new(urls);
        }
    }

    /// Ends its connections and with them its tasks.
    pub fn stop(&self) {
        self.connections.end();
        self.active_since.set(None);
        self.counters().active.set(0);
        for way in [Way::Append, Way::Message, Way::Pipeline] {
            self.outbox.borrow_mut().close(way);
        }
        self.wake.iter().for_each(|wake| wake.borrow().notify());
    }
}
