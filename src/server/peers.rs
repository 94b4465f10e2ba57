//! Peers on the serve core where their connections live: the transport of raft's messages, between its mailboxes.

use crate::limits::{PEER_CONNECTED_LOOK, PEER_LANE};
use crate::raft::messages::{FromPeers, ToPeers};
use crate::raft::transport::counters::Counters;
use crate::raft::transport::identity::Local;
use crate::raft::transport::{LocalFuture, Sink, SnapshotBody, Transport};
use crate::reactor::mailbox::{Receiver, Refused, Sender};
use crate::reactor::serve;
use raft::eraftpb::Message;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

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
}

/// The way to the log core.
struct Outlet {
    events: RefCell<Sender<FromPeers, 1>>,
    /// Events that must not be lost, and found no room. No more than a few for each peer.
    waiting: RefCell<VecDeque<FromPeers>>,
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

impl Sink for Outlet {
    fn step(&self, message: Message) -> bool {
        self.offer(FromPeers::Message(Box::new(message)))
    }

    fn unreachable(&self, id: u64) {
        // The next loss tells it again.
        self.offer(FromPeers::Unreachable(id));
    }

    fn snapshot_sent(&self, id: u64, received: bool) {
        self.post(FromPeers::SnapshotSent { id, received });
    }

    fn learned(&self, _id: u64, _urls: Vec<String>) {}

    fn removed(&self, _by: u64) {
        self.post(FromPeers::Removed);
    }

    fn receive_snapshot(&self, _message: Message, _body: SnapshotBody) -> LocalFuture<'static, Result<u64, String>> {
        Box::pin(std::future::ready(Err(
            "this member does not take snapshots yet: start it with the log of the others complete".to_string(),
        )))
    }
}

impl Peers {
    /// Starts the transport on the calling core.
    pub fn start(local: Local, counters: Arc<Counters>, seat: PeerSeat) -> Peers {
        let outlet = Rc::new(Outlet {
            events: RefCell::new(seat.events),
            waiting: RefCell::default(),
        });
        let transport = Transport::new(local, outlet.clone(), counters);
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
                ToPeers::Members { members, removed } => {
                    *self.members.borrow_mut() = members.iter().map(|member| member.id).collect();
                    let members = members.into_iter().map(|member| (member.id, member.peer_urls));
                    self.transport.set_members(members.collect(), removed);
                }
            }
        }
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
