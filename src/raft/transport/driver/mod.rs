//! The transport itself: connections to and from peers, on one serve core.
//!
//! Everything here runs as tasks of the core that made the [`Transport`], and stays there. A peer has two streams that
//! it dialed and this side writes, two that this side dialed and reads, requests of the pipeline while streams are
//! missing, and a probe. What comes goes to the [`Sink`] if it is in order; what can't be sent is dropped, and raft
//! told that the peer can't be reached. Nothing waits for a peer longer than `limits::transport::CONNECTION_SILENCE`.

mod ask;
mod clock;
mod connections;
mod dial;
mod peer;
mod pipeline;
mod probe;
mod read;
mod serve;
mod served;
mod snapshot;
mod url;
mod wait;
mod write;

pub use ask::{Asker, PeerAnswer, Question};
pub use served::SnapshotBody;

use self::connections::Connections;
use self::peer::Peer;
use super::counters::Counters;
use super::identity::Local;
use super::outbox::cut_append;
use super::wire;
use crate::http::http1::{Connection, Request};
use crate::limits::transport as limits;
use crate::reactor::serve::{self as core, Stream};
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A future of the transport's core.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Who gets what peers send, and hears what became of what was sent. Called on the transport's core; must not block
/// it. It may call the transport.
pub trait Sink {
    /// A message came that is in order as far as can be seen from it ([`gate::form`](super::gate::form)). Whether it
    /// was taken; if not it is dropped.
    fn step(&self, message: Message) -> bool;
    /// Messages to a peer got lost (raft's `report_unreachable`).
    fn unreachable(&self, id: u64);
    /// A snapshot is with the peer, or is not (raft's `report_snapshot`).
    fn snapshot_sent(&self, id: u64, ok: bool);
    /// A member that is not known to be one asked for something, and is answered at these URLs from now on.
    fn learned(&self, id: u64, urls: Vec<String>);
    /// A peer says that this member was removed from the cluster.
    fn removed(&self, by: u64);
    /// A snapshot comes: its message and the database behind it. It is answered when the future ends: with the number
    /// of bytes taken once everything is durable and raft has the message, else with why not.
    fn receive_snapshot(&self, message: Message, body: SnapshotBody) -> LocalFuture<'static, Result<u64, String>>;
}

/// A database to be sent, part for part.
pub trait SnapshotSource {
    /// The next part; `None` at the end.
    fn next_part(&mut self) -> LocalFuture<'_, io::Result<Option<Bytes>>>;
}

/// What all parts share.
struct Inner {
    local: Local,
    sink: Rc<dyn Sink>,
    counters: Arc<Counters>,
    members: RefCell<BTreeMap<u64, Rc<Peer>>>,
    /// Who is answered without being known as a member.
    learned: RefCell<BTreeMap<u64, Rc<Peer>>>,
    removed: RefCell<BTreeSet<u64>>,
    /// Connections that peers made.
    served: Rc<Connections>,
    /// Memory taken by bodies of requests that are not whole.
    body_bytes: Cell<usize>,
    /// What was last said of whom in the log.
    complaints: RefCell<BTreeMap<String, String>>,
    /// Such lines since when.
    complaint_lines: Cell<Option<(Instant, u32)>>,
    told_removed: Cell<bool>,
}

impl Inner {
    fn is_removed(&self, id: u64) -> bool {
        self.removed.borrow().contains(&id)
    }

    fn member(&self, id: u64) -> Option<Rc<Peer>> {
        self.members.borrow().get(&id).cloned()
    }

    /// A peer says that this member is removed. Said on once.
    fn told_removed(&self, by: u64) {
        if !self.told_removed.replace(true) {
            tracing::error!(
                "peer-id" = format!("{by:x}"),
                "the member has been permanently removed from the cluster"
            );
            self.sink.removed(by);
        }
    }

    /// Remembers where somebody who is not known can be answered.
    fn learn(self: &Rc<Self>, id: u64, urls: &str) {
        let is_known = id == 0
            || id == self.local.member_id
            || self.is_removed(id)
            || self.served.is_ended()
            || self.members.borrow().contains_key(&id)
            || self.learned.borrow().contains_key(&id);
        let urls: Vec<String> = urls
            .split(',')
            .filter(|url| !url.is_empty())
            .map(str::to_string)
            .collect();
        let is_sound = !urls.is_empty()
            && urls.len() <= limits::URLS_MAX
            && urls.iter().all(|url| url::PeerUrl::parse(url).is_ok());
        if is_known || !is_sound {
            return;
        }
        self.make_room_to_learn();
        let id_text = format!("{id:x}");
        tracing::info!(
            "remote-peer-id" = id_text,
            "remote-peer-urls" = urls.join(","),
            "added new remote peer"
        );
        let peer = Peer::new(self, id, urls.clone());
        self.learned.borrow_mut().insert(id, peer);
        self.sink.learned(id, urls);
    }

    /// Forgets one who was learned of if there are too many: one to whom nothing comes through, if there is such a one.
    fn make_room_to_learn(&self) {
        let mut learned = self.learned.borrow_mut();
        if learned.len() < limits::LEARNED_MAX {
            return;
        }
        let silent = learned.iter().find(|(_, peer)| peer.active_since().is_none());
        let oldest = silent.or_else(|| learned.iter().next()).map(|(id, _)| *id);
        if let Some(peer) = oldest.and_then(|id| learned.remove(&id)) {
            peer.stop();
        }
    }

    /// Whether another line about what is wrong may be written now.
    fn may_complain(&self) -> bool {
        let now = Instant::now();
        let (since, lines) = self.complaint_lines.get().unwrap_or((now, 0));
        let (since, lines) = if now >= since + Duration::from_secs(1) {
            (now, 0)
        } else {
            (since, lines)
        };
        let may = lines < limits::COMPLAINTS_PER_SECOND;
        self.complaint_lines.set(Some((since, lines + u32::from(may))));
        may
    }

    /// Logs what is wrong with somebody, unless that was the last thing that was said of them.
    fn complain(&self, about: &str, what: &str, reason: &dyn Display) {
        let reason = reason.to_string();
        let said = format!("{what}: {reason}");
        let mut complaints = self.complaints.borrow_mut();
        if complaints.get(about) == Some(&said) || !self.may_complain() {
            return;
        }
        tracing::warn!("remote-peer-id" = about, error = shortened_reason(&reason), "{what}");
        if complaints.len() >= limits::COMPLAINTS_MAX {
            complaints.clear();
        }
        complaints.insert(about.to_string(), said);
    }
}

fn shortened_reason(reason: &str) -> String {
    reason.chars().take(256).collect()
}

/// Connections to and from the peers of a member. Clones are the same transport.
#[derive(Clone)]
pub struct Transport {
    inner: Rc<Inner>,
}

impl Transport {
    /// A transport without peers yet, on the calling serve core. `counters` may be read on any core.
    pub fn new(local: Local, sink: Rc<dyn Sink>, counters: Arc<Counters>) -> Transport {
        Transport {
            inner: Rc::new(Inner {
                local,
                sink,
                counters,
                members: RefCell::default(),
                learned: RefCell::default(),
                removed: RefCell::default(),
                served: Rc::default(),
                body_bytes: Cell::new(0),
                complaints: RefCell::default(),
                complaint_lines: Cell::new(None),
                told_removed: Cell::new(false),
            }),
        }
    }

    /// Sends messages, each to the member it names, in their order. Those to nobody who is known are dropped. A
    /// snapshot's message is not sent without its database ([`send_snapshot`](Self::send_snapshot)): it counts as
    /// failed.
    pub fn send(&self, messages: Vec<Message>) {
        for message in messages {
            let Some(peer) = self.find(message.to) else {
                continue;
            };
            if message.msg_type() == MessageType::MsgSnapshot {
                self.inner.sink.snapshot_sent(peer.id, false);
                continue;
            }
            cut_append(message).into_iter().for_each(|part| peer.send(part));
        }
    }

    /// Sends a snapshot's message and database; how that went is told to the sink.
    pub fn send_snapshot(&self, message: Message, source: Box<dyn SnapshotSource>) {
        assert_eq!(
            message.msg_type(),
            MessageType::MsgSnapshot,
            "{}",
            wire::name(message.msg_type())
        );
        match self.find(message.to) {
            Some(peer) => core::spawn(snapshot::run(peer, message, source)),
            None => self.inner.sink.snapshot_sent(message.to, false),
        }
    }

    fn find(&self, id: u64) -> Option<Rc<Peer>> {
        let learned = || self.inner.learned.borrow().get(&id).cloned();
        self.inner.member(id).or_else(learned)
    }

    /// Who the members are, this one or not, with their URLs, and who was removed: connections of who is no member any
    /// more are ended, those to new ones made.
    pub fn set_members(&self, members: Vec<(u64, Vec<String>)>, removed: Vec<u64>) {
        let inner = &self.inner;
        *inner.removed.borrow_mut() = removed.into_iter().collect();
        let own = inner.local.member_id;
        let wanted: BTreeMap<_, _> = members.into_iter().filter(|(id, _)| *id != own).collect();
        let leaving: Vec<_> = {
            let known = inner.members.borrow();
            known.keys().filter(|id| !wanted.contains_key(id)).copied().collect()
        };
        for id in leaving {
            if let Some(peer) = inner.members.borrow_mut().remove(&id) {
                tracing::info!("removed-remote-peer-id" = format!("{id:x}"), "removed remote peer");
                peer.stop();
            }
        }
        for (id, urls) in wanted {
            // It was answered through the pipeline only until now.
            if let Some(peer) = inner.learned.borrow_mut().remove(&id) {
                peer.stop();
            }
            let known = inner.member(id);
            match known {
                Some(peer) => peer.update(urls),
                None if inner.served.is_ended() => {}
                None => {
                    let id_text = format!("{id:x}");
                    tracing::info!(
                        "remote-peer-id" = id_text,
                        "remote-peer-urls" = urls.join(","),
                        "added remote peer"
                    );
                    let peer = Peer::new(inner, id, urls);
                    inner.members.borrow_mut().insert(id, peer.clone());
                    peer.start();
                }
            }
        }
        let stale = inner.removed.borrow().clone();
        inner.learned.borrow_mut().retain(|id, peer| {
            let stays = !stale.contains(id);
            if !stays {
                peer.stop();
            }
            stays
        });
    }

    /// Whether a request's path is one that the transport serves.
    pub fn serves(path: &str) -> bool {
        serve::is_of_raft(path)
    }

    /// Serves a connection whose first request was just read, its body not yet, and all that follow on it.
    pub fn serve(&self, stream: Stream, connection: Connection, request: Request) {
        core::spawn(serve::run(self.inner.clone(), stream, connection, Some(request)));
    }

    /// Serves a connection from its beginning. Paths that are not raft's are not found.
    pub fn accept(&self, stream: Stream) {
        let connection = Connection::new(limits::MESSAGE_BYTES_MAX as u64, Duration::ZERO);
        core::spawn(serve::run(self.inner.clone(), stream, connection, None));
    }

    /// Since when a member has been active without a break; `None` if it is not.
    pub fn active_since(&self, id: u64) -> Option<Instant> {
        self.inner.member(id)?.active_since()
    }

    /// How many members are active.
    pub fn active_peers(&self) -> usize {
        let members = self.inner.members.borrow();
        members.values().filter(|peer| peer.active_since().is_some()).count()
    }

    /// Connections that peers have made and that are open.
    pub fn served_connections(&self) -> usize {
        self.inner.served.count()
    }

    /// Ends all connections, for good. Tasks that dial end when that ends.
    pub fn stop(&self) {
        let peers = std::mem::take(&mut *self.inner.members.borrow_mut());
        let learned = std::mem::take(&mut *self.inner.learned.borrow_mut());
        peers.values().chain(learned.values()).for_each(|peer| peer.stop());
        self.inner.served.end();
    }
}
