//! Boot and shutdown: reads `config`, assigns roles, wires everything.
//!
//! Order of the start: what the process may use, then the sockets (so that a port in use is found before anything is
//! written), the data directory's lock, the log core up to the point where it leads, the serve cores, and only then the
//! first accepted connection. Shutdown goes the other way and ends with a checkpoint.

pub mod budget;
mod claim;
pub mod identity;
mod log_thread;
pub mod logging;

use crate::api::memory::ReadMemory;
use crate::api::{Api, PageReads, Settings};
use crate::config::{CLUSTER_VERSION, Config, ETCD_VERSION, WalWriter};
use crate::limits::{
    ANSWER_MAILBOX, BOOT_DECODERS_MAX, CONNECTIONS_PER_CORE, NET_UNFINISHED_BYTES_MAX, PIN_BYTES_MAX,
    PUBLISHED_MAILBOX, REQUEST_MAILBOX, SHUTDOWN_CONNECTIONS, SHUTDOWN_CORE, pages::RESERVE_PAGES,
};
use crate::mvcc::readers::Readers;
use crate::net;
use crate::raft::boot::{Boot, BootError};
use crate::raft::core::{Fatal, Options};
use crate::raft::directory::PAGE_FILE;
use crate::raft::messages::{Reply, Request};
use crate::raft::replica::ReplicaOptions;
use crate::reactor::Doorbell;
use crate::reactor::accept::{Acceptor, Target};
use crate::reactor::disk::{DiskOptions, WriteMethod};
use crate::reactor::log::Writer;
use crate::reactor::mailbox::{Receiver, Sender, mailbox};
use crate::reactor::roles::{Allowance, Roles, RolesError, assign};
use crate::reactor::serve::{self, BellWaiter, CoreOptions, Notify, PageFileReader, ServeCore};
use crate::reactor::signals::{self, Termination};
use crate::reactor::socket::BindError;
use crate::reactor::start::{StartError, probe};
use crate::state::lease::LessorConfig;
use crate::state::members::Member;
use crate::{api, grpc, http, pages, wal};
use budget::Budget;
use claim::{listen, listener_kinds, lock};
use log_thread::{LogThread, Port};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Why the server did not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The machine does not offer what the reactor needs.
    #[error(transparent)]
    Start(#[from] StartError),
    /// `--cores` does not fit.
    #[error(transparent)]
    Roles(#[from] RolesError),
    /// A URL can't be listened on.
    #[error("--{flag}: {problem}")]
    Listen {
        /// The flag.
        flag: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A socket can't be bound.
    #[error("--{flag}: {source}")]
    Bind {
        /// The flag.
        flag: &'static str,
        /// Where, and why not.
        source: BindError,
    },
    /// A directory is in use, or can't be.
    #[error("--{flag}: {path}: {problem}")]
    Directory {
        /// The flag that names it.
        flag: &'static str,
        /// Which.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A cluster is asked for.
    #[error("--initial-cluster: clusters of more than one member are not built yet; name only this member (--name)")]
    Cluster,
    /// The data can't be served.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The member's life is over.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// A thread or a signal handler could not be set up.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// What ends the server.
enum End {
    /// SIGTERM or SIGINT.
    Signal,
    /// The log core ended.
    Log(Result<(), Fatal>),
}

/// Runs a member until it is told to stop or can't go on.
pub fn run(config: &Config) -> Result<(), ServerError> {
    crate::reactor::allocator::map_large_pieces();
    logging::tell_configuration(config);
    let termination = take_signals()?;
    probe()?;
    let allowance = Allowance::of_this_process().map_err(system("ask which CPUs may be used"))?;
    let roles = assign((config.cores > 0).then_some(config.cores), &allowance)?;
    let budget = Budget::of(config);
    let listeners = listen(config)?;
    let _locks = lock(config)?;
    let (ends, ended) = mpsc::channel();
    watch_signals(termination, ends.clone())?;
    let stop = Arc::new(AtomicBool::new(false));
    let log_bell = Doorbell::new("log").map_err(system("make a doorbell"))?;
    let readers = Readers::new(roles.serve.len());
    let (ports_sender, ports_receiver) = mpsc::channel();
    let (started_sender, started) = mpsc::channel();
    let thread = LogThread {
        role: roles.log.clone(),
        writer: writer(config.wal_writer),
        disk: DiskOptions {
            no_fsync: config.unsafe_no_fsync,
            ..DiskOptions::default()
        },
        boot_cpus: roles.cpus(),
        boot: boot(config, &roles, &budget, &readers),
        bell: log_bell.clone(),
        stop: stop.clone(),
    };
    let log = std::thread::Builder::new()
        .name(roles.log.name.clone())
        .spawn(move || {
            let result = thread.run(&started_sender, &ports_receiver);
            drop(started_sender);
            let _ = ends.send(End::Log(result));
        })
        .map_err(system("start the log core's thread"))?;
    let index = match started.recv() {
        Ok(index) => index?,
        Err(_) => return ending(ended.recv()),
    };
    let cores = Cores::start(config, &budget, &roles, &log_bell, &readers, &index)?;
    let Cores {
        serving,
        targets,
        ports,
        stops,
        acceptor_bell,
    } = cores;
    let _ = ports_sender.send(ports);
    let acceptor = Acceptor::start(listeners, targets, &acceptor_bell, None).map_err(system("start accepting"))?;
    say_ready(config, serving.len());
    let end = ended.recv();
    tracing::info!("stopping");
    acceptor.stop();
    stops.iter().for_each(StopCore::stop);
    for core in serving {
        core.join(SHUTDOWN_CORE);
    }
    stop.store(true, Ordering::Release);
    log_bell.ring();
    match end {
        Ok(End::Signal) => {
            let end = ending(ended.recv());
            let _ = log.join();
            end
        }
        other => ending(other),
    }
}

/// Says in etcd's words that the member serves.
fn say_ready(config: &Config, cores: usize) {
    tracing::info!(
        name = config.name,
        version = ETCD_VERSION,
        cores,
        "ready to serve client requests"
    );
    for url in &config.listen_client_urls {
        tracing::info!(
            address = url.text,
            "serving client traffic insecurely; this is strongly discouraged!"
        );
    }
}

fn ending(end: Result<End, mpsc::RecvError>) -> Result<(), ServerError> {
    match end {
        Ok(End::Log(result)) => Ok(result?),
        // A second signal: the operator will not wait.
        Ok(End::Signal) | Err(_) => Ok(()),
    }
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> ServerError {
    move |source| ServerError::System { what, source }
}

/// Signals from here on: those that ask for the end are held back, and none ends the process for a file's size.
fn take_signals() -> Result<Termination, ServerError> {
    signals::ignore_file_size_signal().map_err(system("ignore SIGXFSZ"))?;
    Termination::hold_back().map_err(system("watch for signals"))
}

fn watch_signals(termination: Termination, ends: mpsc::Sender<End>) -> Result<(), ServerError> {
    let waiting = move || {
        loop {
            let signal = termination.wait();
            tracing::info!(signal, "received a signal");
            if ends.send(End::Signal).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_string());
    thread.spawn(waiting).map_err(system("watch for signals"))?;
    Ok(())
}

fn boot(config: &Config, roles: &Roles, budget: &Budget, readers: &Readers) -> Boot {
    let identity = identity::of_sole_member(&config.advertise_peer_urls, &config.cluster_token);
    let election_ticks = config
        .election_timeout
        .as_millis()
        .div_ceil(config.heartbeat_interval.as_millis());
    let wal = wal::Options {
        max_wals: config.max_wals,
        unsafe_no_fsync: config.unsafe_no_fsync,
        pad_batches: config.wal_pad_batches,
        ..wal::Options::new(rand::random(), 0..wal::TOKENS)
    };
    let member = Member {
        id: identity.member_id,
        name: config.name.clone(),
        peer_urls: config.advertise_peer_urls.clone(),
        client_urls: config.advertise_client_urls.clone(),
        is_learner: false,
    };
    let min_ttl_s = (3 * config.election_timeout / 2).as_secs_f64().ceil() as i64;
    Boot {
        data_directory: config.data_directory.clone(),
        wal_directory: config.wal_directory.clone(),
        replica: ReplicaOptions {
            identity,
            election_ticks: election_ticks as usize,
            heartbeat_ticks: 1,
            pre_vote: config.pre_vote,
            catchup_entries: config.catchup_entries,
            wal,
        },
        pages: pages::Options {
            cache_bytes: budget.log_core.cache,
            reserve_pages: reserve_pages(budget.log_core.checkpoint_at),
            limit_bytes: config.quota_bytes.map_or(u64::MAX, page_file_limit),
            ..pages::Options::new(1000..1000 + crate::limits::pages::OPERATIONS as u64)
        },
        decoders: (roles.cores() - 1).min(BOOT_DECODERS_MAX),
        loader_token: 999,
        options: Options {
            tick: config.heartbeat_interval,
            election_timeout: config.election_timeout,
            first_id: request_ids(identity.member_id),
            learners_max: config.learners_max,
            strict_reconfiguration: config.strict_reconfiguration,
            catchup_entries: config.catchup_entries,
            quota_bytes: config.quota_bytes,
            memory: budget.log_core,
            auto_compaction: config.auto_compaction,
        },
        lessor: LessorConfig {
            min_ttl_s,
            checkpoint_interval: config
                .gates
                .is_open("LeaseCheckpoint")
                .then_some(crate::limits::LEASE_CHECKPOINT_INTERVAL),
        },
        founders: vec![member.clone()],
        member,
        ticks_ahead: 0,
        cluster_version: CLUSTER_VERSION.to_string(),
        readers: readers.clone(),
    }
}

/// Where a member's own requests begin to count: half of the numbers lie apart from those that clients' get.
fn request_ids(member_id: u64) -> u64 {
    (member_id << 48) | u64::from(rand::random::<u32>())
}

/// The reactor's name for `--wal-writer`.
fn writer(choice: WalWriter) -> Writer {
    match choice {
        WalWriter::Ring => Writer::Ring(WriteMethod::Dsync),
        WalWriter::RingLinked => Writer::Ring(WriteMethod::LinkedSync),
        WalWriter::RingHelper => Writer::Ring(WriteMethod::Thread),
        WalWriter::Threads => Writer::Threads,
    }
}

/// Pages kept for when the disk is full: room for what may wait for a checkpoint then, in full leaves and a spine.
fn reserve_pages(checkpoint_at: u64) -> u32 {
    let waiting = 2 * checkpoint_at;
    let pages = (waiting + waiting / 4) / crate::limits::pages::PAGE_BYTES as u64;
    u32::try_from(pages).unwrap_or(u32::MAX).max(RESERVE_PAGES)
}

/// The longest that the page file may get. The quota holds writes back long before; what else takes room are pages that
/// were freed and are held by readers or by the older of the two commits.
fn page_file_limit(quota_bytes: u64) -> u64 {
    quota_bytes.saturating_mul(2).saturating_add(PIN_BYTES_MAX)
}

/// Tells a serve core to stop.
struct StopCore {
    flag: Arc<AtomicBool>,
    bell: Doorbell,
}

impl StopCore {
    fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// The serve cores and what connects them.
struct Cores {
    serving: Vec<ServeCore>,
    targets: Vec<Target>,
    ports: Vec<Port>,
    stops: Vec<StopCore>,
    acceptor_bell: Doorbell,
}

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
    bell: Doorbell,
    stop: Arc<AtomicBool>,
    accepted: mpsc::Receiver<(crate::reactor::accept::AcceptedReceiver, Doorbell)>,
}

impl Cores {
    fn start(
        config: &Config,
        budget: &Budget,
        roles: &Roles,
        log_bell: &Doorbell,
        readers: &Readers,
        index: &Arc<crate::mvcc::index::Index<crate::mvcc::view::View>>,
    ) -> Result<Cores, ServerError> {
        let acceptor_bell = Doorbell::new("accept").map_err(system("make a doorbell"))?;
        let mut cores = Cores {
            serving: Vec::new(),
            targets: Vec::new(),
            ports: Vec::new(),
            stops: Vec::new(),
            acceptor_bell,
        };
        let settings = settings(config, budget, Arc::new(Api::registry(roles.serve.len())));
        let net = net_options(config, budget, roles.serve.len());
        let cache_bytes = budget.page_caches / roles.serve.len();
        for (number, role) in roles.serve.iter().enumerate() {
            let bell = Doorbell::new(&role.name).map_err(system("make a doorbell"))?;
            let accept_bell = Doorbell::new(&role.name).map_err(system("make a doorbell"))?;
            let (requests, request_receiver) = mailbox([REQUEST_MAILBOX], log_bell, &bell);
            let (reply_sender, replies) = mailbox([ANSWER_MAILBOX, PUBLISHED_MAILBOX], &bell, log_bell);
            let stop = Arc::new(AtomicBool::new(false));
            let (accepted_sender, accepted) = mpsc::channel();
            let seat = Seat {
                number,
                settings: settings.clone(),
                net: net.clone(),
                page_file: config.data_directory.join("member").join("snap").join(PAGE_FILE),
                cache_bytes,
                index: index.clone(),
                readers: readers.clone(),
                requests,
                replies,
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
            cores.ports.push(Port {
                requests: request_receiver,
                replies: reply_sender,
                places: Vec::new(),
            });
            cores.stops.push(StopCore { flag: stop, bell });
        }
        Ok(cores)
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
        let ended = connections.clone();
        take_replies(connections, self.replies, waiter, &self.stop, ended).await;
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
    mut waiter: BellWaiter,
    stop: &AtomicBool,
    ended: net::Core<Api>,
) {
    let mut stopping = false;
    loop {
        connections.with(|api, net| {
            while let Some(reply) = replies.pop() {
                api.reply(net, reply);
            }
        });
        if stop.load(Ordering::Acquire) && !stopping {
            stopping = true;
            let ended = ended.clone();
            serve::spawn(async move { ended.shutdown(SHUTDOWN_CONNECTIONS).await });
        }
        if stopping && connections.with(|_, net| net.statistics().connections == 0) {
            return;
        }
        if stopping {
            // Connections end without ringing this bell.
            serve::sleep(Duration::from_millis(2)).await;
        } else {
            waiter
                .wait_unless(|| !replies.is_empty() || stop.load(Ordering::Acquire))
                .await;
        }
    }
}

fn settings(config: &Config, budget: &Budget, metrics: Arc<crate::metrics::Registry>) -> Settings {
    let identity = identity::of_sole_member(&config.advertise_peer_urls, &config.cluster_token);
    Settings {
        identity: api::Identity {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
        },
        request_ids: rand::random(),
        max_txn_operations: config.max_txn_operations,
        max_request_bytes: config.max_request_bytes,
        quota_reported: config.quota_reported,
        version: ETCD_VERSION,
        storage_version: CLUSTER_VERSION,
        request_timeout: Duration::from_secs(5) + 2 * config.election_timeout,
        progress_interval: config.progress_interval,
        metrics,
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
