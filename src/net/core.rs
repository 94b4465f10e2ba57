//! All connections of one serve core: accepting, reading, the turn, the timer, shutdown.

use super::drive::Flushed;
use super::peer::{ConnectionKey, Net, PeerInfo};
use super::service::Service;
use crate::grpc;
use crate::http;
use crate::limits;
use crate::reactor::accept::{Accepted, AcceptedReceiver};
use crate::reactor::serve::{self, BellWaiter, Notify, Stream};
use std::cell::RefCell;
use std::net::Shutdown;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Settings of a core's connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// HTTP/2.
    pub http: Arc<http::Config>,
    /// gRPC.
    pub grpc: Arc<grpc::Config>,
    /// Longest body of an HTTP/1.1 request, in bytes.
    pub max_body: u64,
    /// Connections that the core takes; more are closed at once.
    pub connections: usize,
    /// What may wait to be sent on all of them, in bytes.
    pub answers_bytes: usize,
    /// What they may hold of messages that are not whole, in bytes.
    pub requests_bytes: usize,
    /// What is spoken on each listener, by its number; on further ones everything.
    pub listeners: Arc<[Speaks]>,
}

/// What the peers of a listener may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/2 with gRPC, and HTTP/1.1: the first bytes tell.
    #[default]
    Both,
    /// gRPC; who begins with something else is disconnected.
    Grpc,
    /// HTTP/1.1; HTTP/2 is refused in its words.
    Http1,
}

/// The connections and the service of the calling serve core. Clones are the same.
pub struct Core<S: Service> {
    shared: Rc<Shared<S>>,
}

struct Shared<S> {
    inner: RefCell<Inner<S>>,
    turn: Notify,
}

struct Inner<S> {
    service: S,
    net: Net,
}

impl<S: Service> Clone for Core<S> {
    fn clone(&self) -> Core<S> {
        let shared = self.shared.clone();
        Core { shared }
    }
}

impl<S: Service> Core<S> {
    /// Without connections yet; starts the tasks of the turn and of the timer on the calling core.
    pub fn new(service: S, options: Options) -> Core<S> {
        let net = Net::new(options);
        let core = Core {
            shared: Rc::new(Shared {
                inner: RefCell::new(Inner { service, net }),
                turn: Notify::new(),
            }),
        };
        serve::spawn(core.clone().run_turns());
        serve::spawn(run_timer(Rc::downgrade(&core.shared)));
        core
    }

    /// Lets the service do something outside of a connection's events, say with a mailbox's messages. What it sends is
    /// flushed, and `turn_end` called, at the end of the turn.
    pub fn with<R>(&self, act: impl FnOnce(&mut S, &mut Net) -> R) -> R {
        let mut inner = self.shared.inner.borrow_mut();
        let Inner { service, net } = &mut *inner;
        net.tick();
        let result = act(service, net);
        drop(inner);
        self.shared.turn.notify();
        result
    }

    /// Takes connections from the acceptor until it has stopped.
    pub async fn accept_all(&self, mut accepted: AcceptedReceiver, mut waiter: BellWaiter) {
        loop {
            match accepted.pop() {
                Some(connection) => self.accept(connection),
                None if accepted.is_closed() => return,
                None => {
                    waiter
                        .wait_unless(|| !accepted.is_empty() || accepted.is_closed())
                        .await
                }
            }
        }
    }

    /// Takes one connection.
    pub fn accept(&self, connection: Accepted) {
        let mut inner = self.shared.inner.borrow_mut();
        let net = &mut inner.net;
        if net.closing || net.peers.len() + net.lingering.len() >= net.options.connections {
            tracing::warn!(
                limit = net.options.connections,
                "closed a new connection: too many, or shutting down"
            );
            return;
        }
        let stream = Stream::from_socket(connection.socket);
        let info = PeerInfo {
            address: stream.peer_address(),
            listener: connection.listener,
        };
        let (key, resume) = net.insert(stream.clone(), info);
        serve::spawn(self.clone().read(key, stream, resume));
    }

    /// Ends all connections: tells the service and the peers, waits at most `bound` for calls to end, and closes what
    /// is left. Connections no longer accepted are not this core's business: stop the acceptor first.
    pub async fn shutdown(&self, bound: Duration) {
        self.with(|service, net| {
            service.shutting_down(net);
            net.announce_shutdown();
        });
        let until = Instant::now() + bound;
        while Instant::now() < until && !self.shared.inner.borrow().net.peers.is_empty() {
            serve::sleep(Duration::from_millis(5)).await;
        }
        self.with(|service, net| {
            let slots: Vec<usize> = net.peers.iter().map(|(slot, _)| slot).collect();
            slots.into_iter().for_each(|slot| net.disconnect(service, slot));
        });
        // Lets the peers read the last of it.
        while Instant::now() < until && !self.shared.inner.borrow().net.lingering.is_empty() {
            serve::sleep(Duration::from_millis(5)).await;
        }
        self.with(|_, net| {
            net.ended = true;
            net.lingering
                .drain(..)
                .for_each(|(_, stream)| stream.shutdown(Shutdown::Both));
        });
        // The tasks go with their sockets, so that the service, and the mailboxes it holds, go with the last `Core`.
        let until = Instant::now() + limits::NET_TASKS_END;
        while Instant::now() < until && Rc::strong_count(&self.shared) > 1 {
            serve::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A connection's reading task.
    async fn read(self, key: ConnectionKey, stream: Stream, resume: Rc<Notify>) {
        loop {
            let wants_read = {
                let net = &mut self.shared.inner.borrow_mut().net;
                net.find(key).map(|slot| net.wants_read(slot))
            };
            match wants_read {
                Some(true) => {}
                Some(false) => {
                    resume.notified().await;
                    continue;
                }
                None if self.shared.inner.borrow_mut().net.was_given_away(key) => return,
                None => return self.drain(&stream).await,
            }
            let received = stream.receive().await;
            self.with(|service, net| {
                let Some(slot) = net.find(key) else { return };
                match received {
                    Ok(bytes) if !bytes.is_empty() => net.receive(service, slot, bytes),
                    Ok(_) if net.end_input(slot) => {}
                    _ => net.disconnect(service, slot),
                }
            });
        }
    }

    /// Reads away what a peer still sends on a connection that is over, until it ends or the timer closes the socket.
    async fn drain(&self, stream: &Stream) {
        while stream.receive().await.is_ok_and(|bytes| !bytes.is_empty()) {}
        let closed = |other: &Stream| other.is_same(stream);
        self.shared
            .inner
            .borrow_mut()
            .net
            .lingering
            .retain(|(_, other)| !closed(other));
    }

    /// Writes what a socket did not take at once.
    async fn write(self, key: ConnectionKey, stream: Stream, buffer: Vec<u8>, mut sent: usize) {
        let mut failed = false;
        while sent < buffer.len() && !failed {
            match stream.write(&buffer[sent..]).await {
                Ok(taken) if taken > 0 => sent += taken,
                _ => failed = true,
            }
            let net = &mut self.shared.inner.borrow_mut().net;
            let now = net.tick();
            let Some(slot) = net.find(key) else { return };
            if let Some(writing) = &mut net.peers[slot].writing {
                net.statistics.sent_bytes += (writing.left - (buffer.len() - sent)) as u64;
                writing.left = buffer.len() - sent;
                writing.progressed = now;
            }
        }
        self.with(|service, net| {
            let Some(slot) = net.find(key) else { return };
            if failed {
                return net.disconnect(service, slot);
            }
            net.peers[slot].writing = None;
            net.recount(slot);
            net.mark(slot);
        });
    }

    /// At the end of every turn: the service sends what it has gathered, then every marked connection is flushed.
    async fn run_turns(self) {
        let mut marked = Vec::new();
        loop {
            self.shared.turn.notified().await;
            let mut inner = self.shared.inner.borrow_mut();
            let Inner { service, net } = &mut *inner;
            if net.ended {
                return;
            }
            net.tick();
            service.turn_end(net);
            std::mem::swap(&mut marked, &mut net.dirty);
            let mut any_events = false;
            for slot in marked.drain(..) {
                let Some(peer) = net.peers.get_mut(slot) else { continue };
                if !std::mem::take(&mut peer.dirty) {
                    continue;
                }
                let flushed = net.flush(service, slot, &mut any_events);
                net.recount(slot);
                if let Flushed::Blocked(buffer, sent) = flushed {
                    let (key, stream) = (net.key_of(slot), net.peers[slot].stream.clone());
                    serve::spawn(self.clone().write(key, stream, buffer, sent));
                }
                net.give_away(service, slot);
            }
            any_events |= net.wake_waiting(service);
            if any_events || !net.dirty.is_empty() {
                self.shared.turn.notify();
            }
        }
    }
}

/// Looks at the connections' clocks again and again while there is a core.
async fn run_timer<S: Service>(shared: Weak<Shared<S>>) {
    loop {
        serve::sleep(limits::NET_TICK).await;
        let Some(shared) = shared.upgrade() else { return };
        Core { shared }.with(|service, net| net.on_timer(service));
    }
}
