//! The serve cores: what each is given, its life, and what connects it to the log core.

use super::End;
use super::Life;
use super::ServerError;
use super::budget::Budget;
use super::claim::listener_kinds;
use super::log_thread::{Member, PeerPort, Port, Ports};
use super::peers::{PeerSeat, Peers};
use super::system;
use crate::api::corruption::{self, Comparisons};
use crate::api::memory::ReadMemory;
use crate::api::{self, Api, PageReads, Settings};
use crate::config::{Config, ETCD_VERSION};
use crate::limits::{
    ANSWER_MAILBOX, CONNECTIONS_PER_CORE, NET_UNFINISHED_BYTES_MAX, PEER_MAILBOX, PUBLISHED_MAILBOX, REQUEST_MAILBOX,
    SHUTDOWN_CONNECTIONS, SHUTDOWN_CORE,
};
use crate::mvcc::readers::Readers;
use crate::raft::directory::PAGE_FILE;
use crate::raft::messages::{Reply, Request};
use crate::raft::replica::Identity;
use crate::raft::transport::identity::Local;
use crate::reactor::Doorbell;
use crate::reactor::accept::Target;
use crate::reactor::mailbox::{Receiver, Sender, mailbox};
use crate::reactor::serve::{self, BellWaiter, CoreOptions, Notify, PageFileReader, ServeCore};
use crate::state::members;
use crate::{grpc, http, net};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Tells a serve core to stop.
pub struct StopCore {
    flag: Arc<AtomicBool>,
    bell: Doorbell,
}

impl StopCore {
    /// Tells it.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// The serve cores and what connects them.
pub struct Cores {
    /// The threads.
    pub serving: Vec<ServeCore>,
    /// Where connections go.
    pub targets: Vec<Target>,
    /// The log core's ends.
    pub ports: Ports,
    /// How to stop them.
    pub stops: Vec<StopCore>,
    /// Of the thread that accepts.
    pub acceptor_bell: Doorbell,
}

/// The serve core on which peers' connections live.
const PEER_CORE: usize = 0;

/// What one serve core is given.
struct Seat {
    number: usize,
    settings: Settings,
    net: net::Options,
    page_file: PathBuf,
    cache_bytes: usize,
    index: Arc<crate::mvcc::index::Index<crate::mvcc::view::View>>,
    readers: Readers,
    requests: Sender<Request, 1>,
    replies: Receiver<Reply, 2>,
    peers: Option<(Local, PeerSeat)>,
    /// Where to say that the member holds what these others hold, if that is wanted.
    compared: Option<(Vec<members::Member>, mpsc::Sender<End>)>,
    comparisons: Comparisons,
    bell: Doorbell,
    stop: Arc<AtomicBool>,
    accepted: mpsc::Receiver<(crate::reactor::accept::AcceptedReceiver, Doorbell)>,
}

fn bell_of(name: &str) -> Result<Doorbell, ServerError> {
    Doorbell::new(name).map_err(system("make a doorbell"))
}

/// The mailboxes between the log core and the transport, which lives on the core with `bell`.
fn peer_mailboxes(log_bell: &Doorbell, bell: &Doorbell) -> (PeerPort, PeerSeat) {
    let (event_sender, events) = mailbox([PEER_MAILBOX], log_bell, bell);
    let (order_sender, orders) = mailbox([PEER_MAILBOX], bell, log_bell);
    let port = PeerPort {
        events,
        orders: order_sender,
        kept: Vec::new(),
    };
    let seat = PeerSeat {
        events: event_sender,
        orders,
    };
    (port, seat)
}

/// This member as peers are told of it.
fn local(config: &Config, identity: Identity) -> Local {
    Local {
        member_id: identity.member_id,
        cluster_id: identity.cluster_id,
        peer_urls: config.advertise_peer_urls.clone(),
        version: ETCD_VERSION,
    }
}

impl Cores {
    /// Starts them all; they serve when their first connections come.
    pub fn start(
        life: &Life<'_>,
        log_bell: &Doorbell,
        readers: &Readers,
        member: &Member,
        compared: Option<mpsc::Sender<End>>,
    ) -> Result<Cores, ServerError> {
        let Life {
            config, roles, budget, ..
        } = life;
        let acceptor_bell = bell_of("accept")?;
        let bells = roles.serve.iter().map(|role| bell_of(&role.name));
        let bells: Vec<Doorbell> = bells.collect::<Result<_, _>>()?;
        let (peer_port, seat) = peer_mailboxes(log_bell, &bells[PEER_CORE]);
        let mut peers = Some((local(config, member.identity), seat));
        let mut compared = compared.map(|ends| (member.members.clone(), ends));
        let mut cores = Cores::none(peer_port, acceptor_bell);
        let registry = Arc::new(Api::registry(roles.serve.len()));
        let settings = Settings {
            peers: life.peer_counters.clone(),
            ..settings(config, budget, member, registry)
        };
        let net = net_options(config, budget, roles.serve.len());
        for (number, role) in roles.serve.iter().enumerate() {
            let bell = bells[number].clone();
            let accept_bell = bell_of(&role.name)?;
            let (requests, request_receiver) = mailbox([REQUEST_MAILBOX], log_bell, &bell);
            let (reply_sender, replies) = mailbox([ANSWER_MAILBOX, PUBLISHED_MAILBOX], &bell, log_bell);
            let stop = Arc::new(AtomicBool::new(false));
            let (accepted_sender, accepted) = mpsc::channel();
            let seat = Seat {
                number,
                settings: settings.clone(),
                net: net.clone(),
                page_file: config.data_directory.join("member").join("snap").join(PAGE_FILE),
                cache_bytes: budget.page_caches / roles.serve.len(),
                index: member.index.clone(),
                readers: readers.clone(),
                requests,
                replies,
                peers: peers.take_if(|_| number == PEER_CORE),
                compared: compared.take_if(|_| number == PEER_CORE),
                comparisons: comparisons(config),
                bell: bell.clone(),
                stop: stop.clone(),
                accepted,
            };
            let options = CoreOptions {
                name: role.name.clone(),
                cpus: Some(role.cpus.clone()),
            };
            let core = ServeCore::start(options, move || seat.serve())?;
            let (target, receiver) = Target::new(core.clock(), &accept_bell, &cores.acceptor_bell);
            let _ = accepted_sender.send((receiver, accept_bell));
            cores.serving.push(core);
            cores.targets.push(target);
            cores.ports.cores.push(Port {
                requests: request_receiver,
                replies: reply_sender,
                places: Vec::new(),
            });
            cores.stops.push(StopCore { flag: stop, bell });
        }
        Ok(cores)
    }

    fn none(peers: PeerPort, acceptor_bell: Doorbell) -> Cores {
        Cores {
            serving: Vec::new(),
            targets: Vec::new(),
            ports: Ports {
                cores: Vec::new(),
                peers,
            },
            stops: Vec::new(),
            acceptor_bell,
        }
    }
}

/// Ends serve cores.
pub fn end(stops: &[StopCore], serving: Vec<ServeCore>) {
    stops.iter().for_each(StopCore::stop);
    for core in serving {
        core.join(SHUTDOWN_CORE);
    }
}

/// What is compared with other members, and how often.
fn comparisons(config: &Config) -> Comparisons {
    let periodic = Some(config.corrupt_check_time).filter(|time| !time.is_zero());
    let compactions = config.gates.is_open("CompactHashCheck");
    Comparisons {
        periodic,
        compactions: compactions.then_some(config.compact_hash_check_time),
    }
}

impl Seat {
    /// A serve core's life.
    async fn serve(self) {
        let file = match PageFileReader::open(&self.page_file).await {
            Ok((file, _)) => file,
            Err(error) => return tracing::error!("a serve core can't start: {error}"),
        };
        let pages = PageReads::new(file, self.cache_bytes);
        let counters = self.settings.peers.clone();
        let api = Api::new(
            self.settings,
            self.index,
            pages,
            self.number,
            self.requests,
            self.readers,
        );
        let connections = net::Core::new(api, self.net);
        connections.with(|api, _| api.attach(connections.clone()));
        let Ok((accepted, accept_bell)) = self.accepted.recv() else {
            return;
        };
        let accepting = connections.clone();
        match BellWaiter::new(&accept_bell) {
            Ok(waiter) => serve::spawn(async move { accepting.accept_all(accepted, waiter).await }),
            Err(error) => return tracing::error!("a serve core can't accept: {error}"),
        }
        let done = Rc::new(Notify::new());
        serve::spawn(expire(connections.clone(), done.clone()));
        let waiter = match BellWaiter::new(&self.bell) {
            Ok(waiter) => waiter,
            Err(error) => return tracing::error!("a serve core can't be woken: {error}"),
        };
        let peers = self.peers.map(|(local, seat)| {
            let peers = Peers::start(local, counters, seat, &self.page_file);
            connections.with(|api, _| api.serve_peers(peers.transport().clone()));
            serve::spawn(api::versions::watch(connections.clone()));
            compare(&connections, self.comparisons, self.compared);
            peers
        });
        take_replies(connections, self.replies, peers, waiter, &self.stop).await;
    }
}

/// Compares what the member holds with the others, once and again, as far as that is wanted.
fn compare(
    connections: &net::Core<Api>,
    comparisons: Comparisons,
    first: Option<(Vec<members::Member>, mpsc::Sender<End>)>,
) {
    if let Some((members, ends)) = first {
        let connections = connections.clone();
        serve::spawn(async move {
            let result = corruption::compare_at_start(connections, members).await;
            let _ = ends.send(End::Compared(result));
        });
    }
    if let Some(interval) = comparisons.periodic {
        serve::spawn(corruption::watch(connections.clone(), interval));
    }
    if let Some(interval) = comparisons.compactions {
        serve::spawn(corruption::watch_compactions(connections.clone(), interval));
    }
}

/// Gives up requests whose time is over, again and again.
async fn expire(connections: net::Core<Api>, _done: Rc<Notify>) {
    loop {
        let until_tick = connections.with(|api, net| api.next_watch_tick().map(|tick| tick.saturating_sub(net.now())));
        let sleep = until_tick.unwrap_or(crate::limits::NET_TICK);
        serve::sleep(sleep.clamp(Duration::from_millis(5), crate::limits::NET_TICK)).await;
        if connections.with(|api, net| {
            api.watch_tick(net.now());
            api.expire_requests(net);
            api.end_leaderless(net);
            api.is_stopping()
        }) {
            return;
        }
    }
}

/// Hands replies to the services until the core is told to stop; then ends its connections.
async fn take_replies(
    connections: net::Core<Api>,
    mut replies: Receiver<Reply, 2>,
    mut peers: Option<Peers>,
    mut waiter: BellWaiter,
    stop: &AtomicBool,
) {
    let mut stopping = false;
    loop {
        connections.with(|api, net| {
            while let Some(reply) = replies.pop() {
                api.reply(net, reply);
            }
        });
        if let Some(peers) = &mut peers {
            peers.work();
        }
        if stop.load(Ordering::Acquire) && !stopping {
            stopping = true;
            let ended = connections.clone();
            serve::spawn(async move { ended.shutdown(SHUTDOWN_CONNECTIONS).await });
        }
        if stopping && connections.with(|_, net| net.statistics().connections == 0) {
            peers.iter().for_each(Peers::stop);
            return;
        }
        if stopping {
            if replies.is_closed() {
                connections.with(|api, net| api.log_core_ended(net));
            }
            // Connections end without ringing this bell.
            serve::sleep(Duration::from_millis(2)).await;
        } else {
            waiter
                .wait_unless(|| {
                    let has_orders = peers.as_mut().is_some_and(Peers::has_orders);
                    has_orders || !replies.is_empty() || stop.load(Ordering::Acquire)
                })
                .await;
        }
    }
}

fn settings(config: &Config, budget: &Budget, member: &Member, metrics: Arc<crate::metrics::Registry>) -> Settings {
    let identity = member.identity;
    Settings {
        identity: api::Identity {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
        },
        request_ids: rand::random(),
        max_txn_operations: config.max_txn_operations,
        max_request_bytes: config.max_request_bytes,
        quota_reported: config.quota_reported,
        gates: config.gates.clone(),
        version: ETCD_VERSION,
        request_timeout: Duration::from_secs(5) + 2 * config.election_timeout,
        progress_interval: config.progress_interval,
        metrics,
        peers: Arc::default(),
        local: local(config, identity),
        standing: member.standing.clone(),
        election_timeout: config.election_timeout,
        // Reads may hold twice as much for a time.
        read_memory: ReadMemory::new(budget.reads / 2),
        offers: listener_kinds(config).into_iter().map(|(_, offer)| offer).collect(),
    }
}

fn net_options(config: &Config, budget: &Budget, cores: usize) -> net::Options {
    let keepalive = http::Keepalive {
        minimum_time: config.keepalive_min_time,
        permit_without_stream: false,
        interval: config.keepalive_interval,
        timeout: config.keepalive_timeout,
    };
    let http = http::Config {
        max_concurrent_streams: config.max_concurrent_streams,
        keepalive,
        ..Default::default()
    };
    // etcd lets a message be half a MiB longer than a request.
    let max_message = config.max_request_bytes + crate::limits::GRPC_OVERHEAD_BYTES;
    let grpc = grpc::Config {
        max_message,
        plain_http: false,
    };
    net::Options {
        http: Arc::new(http),
        grpc: Arc::new(grpc),
        max_body: max_message as u64,
        connections: CONNECTIONS_PER_CORE,
        // A core has to hold a message, however many there are.
        answers_bytes: (budget.answers / cores).max(max_message),
        requests_bytes: (budget.requests / cores).min(NET_UNFINISHED_BYTES_MAX).max(max_message),
        listeners: listener_kinds(config).into_iter().map(|(speaks, _)| speaks).collect(),
    }
}
