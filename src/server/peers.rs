//! Peers on the serve core where their connections live: the transport of raft's messages, between its mailboxes.

use super::snapshots::{self, Sending};
use crate::limits::{PEER_CONNECTED_LOOK, PEER_LANE, SNAPSHOT_TAKEN_LOOK, SNAPSHOT_TAKEN_TIMEOUT};
use crate::pages::Root;
use crate::raft::install::{Placed, Taken};
use crate::raft::messages::{FromPeers, ToPeers};
use crate::raft::transport::counters::Counters;
use crate::raft::transport::identity::Local;
use crate::raft::transport::{LocalFuture, Sink, SnapshotBody, Transport};
use crate::reactor::mailbox::{Receiver, Refused, Sender};
use crate::reactor::serve::{self, PageFileReader};
use raft::eraftpb::Message;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The ends of the mailboxes between the log core and the transport.
pub struct PeerSeat {
    /// To the log core.
    pub events: Sender<FromPeers, 1>,
    /// From it.
    pub orders: Receiver<ToPeers, 1>,
}

/// The transport at work.
pub struct Peers {
    transport: Transport,
    orders: Receiver<ToPeers, 1>,
    outlet: Rc<Outlet>,
    /// Who was a member when that was last told, and who of them was connected.
    members: Rc<RefCell<Vec<u64>>>,
    page_file: PathBuf,
}

/// The way to the log core.
struct Outlet {
    events: RefCell<Sender<FromPeers, 1>>,
    /// Events that must not be lost, and found no room. No more than a few for each peer.
    waiting: RefCell<VecDeque<FromPeers>>,
    /// Where snapshots are received.
    directory: PathBuf,
    /// Whether one is being received: one at a time.
    receiving: Cell<bool>,
    /// Whether the log core was asked about it, and what it says.
    asked: Cell<Asked>,
    taken: RefCell<Option<Result<Taken, String>>>,
}

/// Whether the log core was asked about a snapshot.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Asked {
    /// It was not, or has answered.
    #[default]
    No,
    /// It was, and its answer is waited for.
    Yes,
    /// It was, and its answer is of no use any more. Until it comes no other snapshot is received: the answer would
    /// pass for the one to that.
    InVain,
}

impl Outlet {
    /// Whether the log core will have it.
    fn offer(&self, event: FromPeers) -> bool {
        self.post_waiting() && self.events.borrow_mut().send(PEER_LANE, event).is_ok()
    }

    /// Sends it now or when there is room.
    fn post(&self, event: FromPeers) {
        self.waiting.borrow_mut().push_back(event);
        self.post_waiting();
    }

    /// Whether nothing waits any more.
    fn post_waiting(&self) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(event) = waiting.pop_front() {
            if let Err(Refused::Full(event)) = self.events.borrow_mut().send(PEER_LANE, event) {
                waiting.push_front(event);
                return false;
            }
        }
        true
    }
}

impl Outlet {
    async fn receive(&self, message: Message, body: SnapshotBody) -> Result<u64, String> {
        let from = format!("{:x}", message.from);
        let index = message.get_snapshot().get_metadata().index;
        tracing::info!("remote-peer-id" = from, index, "receiving a snapshot");
        let (received, bytes) = snapshots::receive(self.directory.clone(), message, body).await?;
        self.asked.set(Asked::Yes);
        self.post(FromPeers::Snapshot(received));
        let began = Instant::now();
        while began.elapsed() < SNAPSHOT_TAKEN_TIMEOUT {
            serve::sleep(SNAPSHOT_TAKEN_LOOK).await;
            let Some(taken) = self.taken.take() else { continue };
            return match taken {
                Ok(Taken::Installs) => {
                    let placed = snapshots::put_in_place(self.directory.clone()).await;
                    self.post(FromPeers::SnapshotInPlace(placed.clone()));
                    match placed {
                        Placed::Yes => Ok(bytes),
                        Placed::No(reason) | Placed::Unknown(reason) => Err(reason),
                    }
                }
                Ok(Taken::Known) => {
                    snapshots::throw_away(self.directory.clone()).await;
                    Ok(bytes)
                }
                Err(reason) => {
                    snapshots::throw_away(self.directory.clone()).await;
                    Err(reason)
                }
            };
        }
        self.asked.set(Asked::InVain);
        snapshots::throw_away(self.directory.clone()).await;
        Err("the log core did not take it in time".to_string())
    }

    /// The log core says what is to become of a snapshot.
    fn taken(&self, taken: Result<Taken, String>) {
        if self.asked.replace(Asked::No) == Asked::Yes {
            *self.taken.borrow_mut() = Some(taken);
            return;
        }
        self.receiving.set(false);
        if taken == Ok(Taken::Installs) {
            let reason = "it was decided too late".to_string();
            self.post(FromPeers::SnapshotInPlace(Placed::No(reason)));
        }
    }
}

/// The sink as the transport holds it.
struct Inlet(Rc<Outlet>);

impl Sink for Inlet {
    fn step(&self, message: Message) -> bool {
        self.0.offer(FromPeers::Message(Box::new(message)))
    }

    fn unreachable(&self, id: u64) {
        // The next loss tells it again.
        self.0.offer(FromPeers::Unreachable(id));
    }

    fn snapshot_sent(&self, id: u64, received: bool) {
        self.0.post(FromPeers::SnapshotSent { id, received });
    }

    fn learned(&self, _id: u64, _urls: Vec<String>) {}

    fn removed(&self, _by: u64) {
        self.0.post(FromPeers::Removed);
    }

    fn receive_snapshot(&self, message: Message, body: SnapshotBody) -> LocalFuture<'static, Result<u64, String>> {
        let outlet = self.0.clone();
        Box::pin(async move {
            if outlet.receiving.replace(true) {
                return Err("another snapshot is being received".to_string());
            }
            let result = outlet.receive(message, body).await;
            outlet.receiving.set(outlet.asked.get() == Asked::InVain);
            result
        })
    }
}

impl Peers {
    /// Starts the transport on the calling core.
    ///
    /// `page_file` is that of the member; snapshots are read from it, and received beside it.
    pub fn start(local: Local, counters: Arc<Counters>, seat: PeerSeat, page_file: &Path) -> Peers {
        let outlet = Rc::new(Outlet {
            events: RefCell::new(seat.events),
            waiting: RefCell::default(),
            directory: page_file.parent().unwrap_or(Path::new(".")).to_path_buf(),
            receiving: Cell::new(false),
            asked: Cell::default(),
            taken: RefCell::default(),
        });
        let transport = Transport::new(local, Rc::new(Inlet(outlet.clone())), counters);
        let members = Rc::new(RefCell::new(Vec::new()));
        serve::spawn(tell_connected(
            transport.clone(),
            outlet.clone(),
            Rc::downgrade(&members),
        ));
        Peers {
            transport,
            orders: seat.orders,
            outlet,
            members,
            page_file: page_file.to_path_buf(),
        }
    }

    /// What serves peers' connections.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Whether the log core wants something done.
    pub fn has_orders(&mut self) -> bool {
        !self.orders.is_empty()
    }

    /// Does what the log core wants done.
    pub fn work(&mut self) {
        self.outlet.post_waiting();
        while let Some(order) = self.orders.pop() {
            match order {
                ToPeers::Messages(messages) => self.transport.send(messages),
                ToPeers::Snapshot { message, root } => self.send_snapshot(*message, root),
                ToPeers::SnapshotTaken(taken) => self.outlet.taken(taken),
                ToPeers::Members { members, removed } => {
                    *self.members.borrow_mut() = members.iter().map(|member| member.id).collect();
                    let members = members.into_iter().map(|member| (member.id, member.peer_urls));
                    self.transport.set_members(members.collect(), removed);
                }
            }
        }
    }

    fn send_snapshot(&self, message: Message, root: Root) {
        let (transport, outlet, path) = (self.transport.clone(), self.outlet.clone(), self.page_file.clone());
        serve::spawn(async move {
            match PageFileReader::open(&path).await {
                Ok((file, _)) => transport.send_snapshot(message, Box::new(Sending::new(root, file))),
                Err(error) => {
                    tracing::warn!("a snapshot is not sent: {error}");
                    outlet.post(FromPeers::SnapshotSent {
                        id: message.to,
                        received: false,
                    });
                }
            }
        });
    }

    /// Ends all connections of peers.
    pub fn stop(&self) {
        self.transport.stop();
    }
}

/// Tells the log core who is connected, again and again while there are peers.
async fn tell_connected(transport: Transport, outlet: Rc<Outlet>, members: std::rc::Weak<RefCell<Vec<u64>>>) {
    let mut told = BTreeSet::new();
    loop {
        serve::sleep(PEER_CONNECTED_LOOK).await;
        let Some(members) = members.upgrade() else { return };
        let members: Vec<u64> = members.borrow().clone();
        let connected = |id: &u64| transport.active_since(*id).is_some();
        let now: BTreeSet<u64> = members.into_iter().filter(connected).collect();
        for id in now.symmetric_difference(&told) {
            let is_connected = now.contains(id);
            outlet.post(FromPeers::Connected { id: *id, is_connected });
        }
        told = now;
    }
}
