//! The log core's thread: mailboxes in, the log core's turns, mailboxes out, one wait.

use crate::io::disk::Disk;
use crate::limits::{
    ANSWER_LANE, LOG_REQUESTS_PER_TURN, PEER_LANE, PUBLISHED_LANE, SHUTDOWN_LEAVE, SHUTDOWN_LEAVE_LOOK, SHUTDOWN_LOG,
};
use crate::raft::boot::{self, Boot, BootError};
use crate::raft::core::{Fatal, LogCore};
use crate::raft::messages::{FromPeers, Reply, Request, ToPeers};
use crate::raft::replica::Identity;
use crate::raft::standing::Standing;
use crate::reactor::disk::DiskOptions;
use crate::reactor::log::{LogReactor, Writer};
use crate::reactor::mailbox::{Place, Receiver, Refused, Sender};
use crate::reactor::{Doorbell, roles};
use crate::state::members;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// One serve core's ends of the mailboxes.
pub struct Port {
    /// Its requests.
    pub requests: Receiver<Request, 1>,
    /// Answers to it, and the news of publications.
    pub replies: Sender<Reply, 2>,
    /// A place for the answer of every request that was taken.
    pub places: Vec<Place>,
}

/// The ends of the mailboxes to and from the transport of peers' messages.
pub struct PeerPort {
    /// What it received.
    pub events: Receiver<FromPeers, 1>,
    /// What it is to do.
    pub orders: Sender<ToPeers, 1>,
    /// Orders that found no room and must not be lost: of each kind one or a few.
    pub kept: Vec<ToPeers>,
}

/// All mailboxes of the log core.
pub struct Ports {
    /// Of the serve cores.
    pub cores: Vec<Port>,
    /// Of the transport.
    pub peers: PeerPort,
}

/// What the thread is told.
pub struct LogThread {
    /// Where it runs.
    pub role: roles::Role,
    /// Its disk.
    pub writer: Writer,
    /// How the disk behaves.
    pub disk: DiskOptions,
    /// Where it runs, with threads of its own, until it leads: nobody else needs the CPUs then.
    pub boot_cpus: roles::CpuSet,
    /// What it starts from.
    pub boot: Boot,
    /// Its doorbell.
    pub bell: Doorbell,
    /// How it is told to end.
    pub ending: Arc<Ending>,
}

/// How the log core is told to end, in two steps: leadership leaves while peers can still be talked to, then the rest.
#[derive(Default)]
pub struct Ending {
    /// Set when leadership is to go to another member.
    leave: AtomicBool,
    /// Set by the log core when it has, or will not.
    left: AtomicBool,
    /// Set when the thread is to finish.
    stop: AtomicBool,
}

impl Ending {
    /// Asks the log core to hand leadership over, and waits for that; it takes no longer than an election would.
    pub fn leave(&self, bell: &Doorbell) {
        self.leave.store(true, Ordering::Release);
        bell.ring();
        let began = Instant::now();
        while !self.left.load(Ordering::Acquire) && began.elapsed() < SHUTDOWN_LEAVE {
            std::thread::sleep(SHUTDOWN_LEAVE_LOOK);
        }
    }

    /// Asks it to finish.
    pub fn stop(&self, bell: &Doorbell) {
        self.stop.store(true, Ordering::Release);
        bell.ring();
    }

    fn is_begun(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.leave.load(Ordering::Acquire) && !self.left.load(Ordering::Acquire)
    }
}

/// A member that has started.
pub struct Member {
    /// Who it is.
    pub identity: Identity,
    /// What serve cores read.
    pub index: Arc<crate::mvcc::index::Index<crate::mvcc::view::View>>,
    /// Its place in the cluster.
    pub standing: Arc<Standing>,
    /// All members, as this one knows them.
    pub members: Vec<members::Member>,
}

/// How a start went.
pub type Started = Result<Member, BootError>;

impl LogThread {
    /// Runs the log core to its end. Says over `started` when it leads; then waits for its ports.
    pub fn run(self, started: &mpsc::Sender<Started>, ports: &mpsc::Receiver<Ports>) -> Result<(), Fatal> {
        self.boot_cpus.pin_this_thread();
        let mut reactor = match LogReactor::new(self.writer, self.disk, &self.bell) {
            Ok(reactor) => reactor,
            Err(source) => {
                let path = self.boot.data_directory.clone();
                let error = crate::io::disk::DiskError {
                    operation: "set up the disk for",
                    path,
                    source,
                };
                let _ = started.send(Err(error.into()));
                return Ok(());
            }
        };
        let began = Instant::now();
        let mut core = match boot::start(reactor.disk(), self.boot, || began.elapsed()) {
            Ok(core) => core,
            Err(error) => {
                let _ = started.send(Err(error));
                return Ok(());
            }
        };
        self.role.cpus.pin_this_thread();
        let _ = started.send(Ok(Member {
            identity: core.identity(),
            index: core.state().index().clone(),
            standing: core.standing().clone(),
            members: core.state().members().iter().cloned().collect(),
        }));
        let Ok(mut ports) = ports.recv() else { return Ok(()) };
        serve(&mut core, &mut reactor, &mut ports, &self.ending, began)
    }
}

fn serve(
    core: &mut LogCore,
    reactor: &mut LogReactor,
    ports: &mut Ports,
    ending: &Ending,
    began: Instant,
) -> Result<(), Fatal> {
    let mut completions = Vec::new();
    let mut last_checkpoint: Option<Duration> = None;
    loop {
        reactor.begin_turn();
        let now = began.elapsed();
        // Raft's own traffic goes first (DESIGN 12 (18)).
        let mut busy = take_events(core, &mut ports.peers, now);
        busy |= take_requests(core, &mut ports.cores, now);
        reactor.disk().poll(&mut completions);
        for completion in completions.drain(..) {
            core.completed(completion)?;
        }
        busy |= core.turn(reactor.disk(), now)?;
        send_replies(core, &mut ports.cores);
        send_orders(core, &mut ports.peers);
        reactor.end_turn();
        if ending.leave.load(Ordering::Acquire) && core.leave(now) {
            ending.left.store(true, Ordering::Release);
        }
        if ending.stop.load(Ordering::Acquire) {
            let since = *last_checkpoint.get_or_insert(now);
            if core.finish() || now > since + SHUTDOWN_LOG {
                return Ok(());
            }
        }
        if !busy {
            let until = core.deadline().saturating_sub(began.elapsed());
            let has_work = || {
                ending.is_begun()
                    || !ports.peers.events.is_empty()
                    || ports.cores.iter_mut().any(|port| !port.requests.is_empty())
            };
            reactor.wait(Some(until.max(Duration::from_micros(100))), has_work);
        }
    }
}

/// Takes what peers sent. True when some was left.
fn take_events(core: &mut LogCore, port: &mut PeerPort, now: Duration) -> bool {
    for _ in 0..LOG_REQUESTS_PER_TURN {
        match port.events.pop() {
            Some(event) => core.handle_peer(event, now),
            None => return false,
        }
    }
    !port.events.is_empty()
}

/// Tells the transport what to do. Messages that find no room are lost, as they may be; who the members are is not.
fn send_orders(core: &mut LogCore, port: &mut PeerPort) {
    let mut lost = Vec::new();
    let waiting = std::mem::take(&mut port.kept);
    for order in waiting.into_iter().chain(core.take_to_peers()) {
        match port.orders.push(PEER_LANE, order) {
            Err(Refused::Full(ToPeers::Messages(messages))) => lost.extend(messages),
            Err(Refused::Full(order)) => port.kept.push(order),
            Ok(()) | Err(Refused::Closed(_)) => {}
        }
    }
    for message in lost {
        core.unreachable(message.to);
    }
    port.orders.ring();
}

/// Takes requests, each with a place for its answer set aside (DESIGN 12 (18)). True when some were left.
fn take_requests(core: &mut LogCore, ports: &mut [Port], now: Duration) -> bool {
    let mut left = false;
    for (number, port) in ports.iter_mut().enumerate() {
        for taken in 0.. {
            if taken == LOG_REQUESTS_PER_TURN {
                left = true;
                break;
            }
            let Some(place) = port.replies.reserve(ANSWER_LANE) else {
                break;
            };
            let Some(request) = port.requests.pop() else {
                port.replies.release(place);
                break;
            };
            if request.is_answered() {
                port.places.push(place);
            } else {
                port.replies.release(place);
            }
            core.handle(number, request, now);
        }
    }
    left
}

fn send_replies(core: &mut LogCore, ports: &mut [Port]) {
    for (number, reply) in core.take_replies() {
        let port = &mut ports[number];
        if matches!(reply, Reply::Published) {
            // A core that has such a message to read will see this publication, too.
            let _ = port.replies.push(PUBLISHED_LANE, reply);
            continue;
        }
        let place = port.places.pop().expect("a place was set aside for every answer");
        port.replies.push_reserved(place, reply);
    }
    for port in ports {
        port.replies.ring();
    }
}
