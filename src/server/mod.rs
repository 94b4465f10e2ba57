//! Boot and shutdown: reads `config`, assigns roles, wires everything.
//!
//! Order of the start: what the process may use, then the sockets (so that a port in use is found before anything is
//! written), the data directory's lock, the log core up to the point where it leads, the serve cores, and only then the
//! first accepted connection. Shutdown goes the other way and ends with a checkpoint.

pub mod budget;
mod claim;
mod cores;
mod discovery;
mod dns;
mod log_thread;
pub mod logging;
mod origin;
mod peers;
mod snapshots;

use crate::config::{CLUSTER_VERSION, Config, ETCD_VERSION, WalWriter};
use crate::limits::{BOOT_DECODERS_MAX, GRPC_OVERHEAD_BYTES, LOADER_READS, PIN_BYTES_MAX, pages::RESERVE_PAGES};
use crate::mvcc::readers::Readers;
use crate::raft::boot::{Boot, BootError};
use crate::raft::core::{Fatal, Options};
use crate::raft::replica::ReplicaOptions;
use crate::raft::transport::counters::Counters;
use crate::reactor::Doorbell;
use crate::reactor::ListenSocket;
use crate::reactor::accept::{Acceptor, Goes};
use crate::reactor::disk::{DiskOptions, WriteMethod};
use crate::reactor::log::Writer;
use crate::reactor::roles::{Allowance, Roles, RolesError, assign};
use crate::reactor::signals::{self, Termination};
use crate::reactor::socket::BindError;
use crate::reactor::start::{StartError, probe};
use crate::state::lease::LessorConfig;
use crate::state::members::Member;
use crate::{pages, wal};
use budget::Budget;
use claim::{listen, lock};
use cores::Cores;
use log_thread::{Ending, LogThread};
use origin::Origin;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;

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
    /// The cluster exists, and this member has run in it.
    #[error(
        "member {id:x} has already been bootstrapped: {url} knows that it has run; its data was lost or --data-dir is \
         wrong, and without it the member has forgotten what it acknowledged and voted for: restore the directory, or \
         remove the member (`etcdctl member remove {id:x}`), add it again (`etcdctl member add`) and start it with an \
         empty directory and --initial-cluster-state=existing"
    )]
    HasRun {
        /// This member's id.
        id: u64,
        /// Who said so.
        url: String,
    },
    /// The cluster to join is not the one found.
    #[error("--initial-cluster-state=existing: {problem}")]
    Join {
        /// What is wrong.
        problem: String,
    },
    /// Other members hold something else.
    #[error(
        "checkInitialHashKV failed: {0}; if the others agree with each other, remove this member (`etcdctl member \
         remove`), add it again and start it with an empty directory"
    )]
    Inconsistent(String),
    /// Nobody says with whom the cluster begins.
    #[error("discovery failed: {problem}")]
    Discovery {
        /// Why not.
        problem: String,
    },
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

impl ServerError {
    /// Whether it is in what the flags say, and not in the state of machine, data or cluster.
    pub fn is_of_the_flags(&self) -> bool {
        matches!(self, ServerError::Roles(_))
    }
}

/// What ends the server.
enum End {
    /// SIGTERM or SIGINT.
    Signal,
    /// The log core ended.
    Log(Result<(), Fatal>),
    /// No end yet: where the member comes from.
    Origin(Result<Origin, ServerError>),
    /// No end yet if it went well: what this member holds was compared with the others.
    Compared(Result<(), String>),
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
    if let Some(warning) = Budget::warning(config) {
        tracing::warn!("{warning}");
    }
    logging::tell_resources(&roles, &budget);
    let listeners = listen(config)?;
    let (ends, ended) = mpsc::channel();
    watch_signals(termination, ends.clone())?;
    let Some(origin) = find_origin(config, &ends, &ended)? else {
        return Ok(());
    };
    let _locks = lock(config)?;
    let mut life = Life {
        config,
        roles,
        budget,
        listeners,
        ends,
        ended,
        peer_counters: Arc::default(),
        is_forced: config.force_new_cluster,
        compares: config.gates.is_open("InitialCorruptCheck") && origin == Origin::default(),
    };
    let mut origin = origin;
    loop {
        match life.live(origin) {
            // The state of another member was installed: its log says who this one is.
            Err(ServerError::Fatal(Fatal::Installed)) => origin = Origin::default(),
            end => return end,
        }
    }
}

/// Finds out where the member comes from, for as long as that takes; `None` if the member is told to end meanwhile.
fn find_origin(
    config: &Config,
    ends: &mpsc::Sender<End>,
    ended: &mpsc::Receiver<End>,
) -> Result<Option<Origin>, ServerError> {
    let (config, ends) = (config.clone(), ends.clone());
    let find = move || {
        let _ = ends.send(End::Origin(Origin::of(&config)));
    };
    let thread = std::thread::Builder::new().name("origin".to_string());
    thread.spawn(find).map_err(system("ask other members"))?;
    match ended.recv() {
        Ok(End::Origin(origin)) => origin.map(Some),
        end => ending(end).map(|()| None),
    }
}

/// What stays over the lives of a member in one process.
struct Life<'a> {
    config: &'a Config,
    roles: Roles,
    budget: Budget,
    listeners: Vec<(ListenSocket, Goes)>,
    ends: mpsc::Sender<End>,
    ended: mpsc::Receiver<End>,
    /// What was counted of other members: a snapshot that came begins another life, and is to be seen in it.
    peer_counters: Arc<Counters>,
    /// Whether what the member holds is to be compared with the others before it serves. A new one holds nothing.
    compares: bool,
    /// Whether the member is to leave its cluster and be one of its own. Only once: others may join it then.
    is_forced: bool,
}

impl Life<'_> {
    /// What the log core's thread is told.
    fn log_thread(&mut self, origin: Origin, readers: &Readers, bell: &Doorbell, ending: &Arc<Ending>) -> LogThread {
        let mut boot = boot(self.config, &self.roles, &self.budget, readers, origin);
        boot.replica.alone = std::mem::take(&mut self.is_forced);
        LogThread {
            role: self.roles.log.clone(),
            writer: writer(self.config.wal_writer),
            disk: DiskOptions {
                no_fsync: self.config.unsafe_no_fsync,
                ..DiskOptions::default()
            },
            boot_cpus: self.roles.cpus(),
            boot,
            bell: bell.clone(),
            ending: ending.clone(),
        }
    }

    /// Serves until the member is told to stop, can't go on, or is to begin anew.
    fn live(&mut self, origin: Origin) -> Result<(), ServerError> {
        let end_of_log = Arc::new(Ending::default());
        let log_bell = Doorbell::new("log").map_err(system("make a doorbell"))?;
        let readers = Readers::new(self.roles.serve.len());
        let thread = self.log_thread(origin, &readers, &log_bell, &end_of_log);
        let ends = self.ends.clone();
        let compared = std::mem::take(&mut self.compares).then(|| ends.clone());
        let is_compared = compared.is_some();
        let (ports_sender, ports_receiver) = mpsc::channel();
        let (started_sender, started) = mpsc::channel();
        let log = std::thread::Builder::new()
            .name(self.roles.log.name.clone())
            .spawn(move || {
                let result = thread.run(&started_sender, &ports_receiver);
                drop(started_sender);
                let _ = ends.send(End::Log(result));
            })
            .map_err(system("start the log core's thread"))?;
        let member = match started.recv() {
            Ok(member) => member?,
            Err(_) => return ending(self.ended.recv()),
        };
        let cores = Cores::start(self, &log_bell, &readers, &member, compared)?;
        if is_compared {
            let end = self.ended.recv();
            if !matches!(end, Ok(End::Compared(Ok(())))) {
                cores::end(&cores.stops, cores.serving);
                drop(ports_sender);
                let _ = log.join();
                return ending(end);
            }
        }
        let _ = ports_sender.send(cores.ports);
        let sockets = self
            .listeners
            .iter()
            .map(|(socket, goes)| Ok((socket.another()?, *goes)));
        let sockets = sockets.collect::<Result<_, _>>().map_err(system("listen"))?;
        let acceptor =
            Acceptor::start(sockets, cores.targets, &cores.acceptor_bell).map_err(system("start accepting"))?;
        say_ready(self.config, cores.serving.len());
        let end = self.ended.recv();
        tracing::info!("stopping");
        if matches!(end, Ok(End::Signal)) {
            end_of_log.leave(&log_bell);
        }
        if !matches!(&end, Ok(End::Log(Err(Fatal::Installed)))) {
            // Who comes now is refused, and not left waiting for nobody.
            self.listeners.clear();
        }
        acceptor.stop();
        cores::end(&cores.stops, cores.serving);
        end_of_log.stop(&log_bell);
        match end {
            Ok(End::Signal) => {
                let end = ending(self.ended.recv());
                let _ = log.join();
                end
            }
            other => ending(other),
        }
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
        Ok(End::Compared(result)) => result.map_err(ServerError::Inconsistent),
        // A second signal: the operator will not wait.
        Ok(End::Signal | End::Origin(_)) | Err(_) => Ok(()),
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

fn boot(config: &Config, roles: &Roles, budget: &Budget, readers: &Readers, origin: Origin) -> Boot {
    let election_ticks = config
        .election_timeout
        .as_millis()
        .div_ceil(config.heartbeat_interval.as_millis());
    let wal = wal::Options {
        max_wals: config.max_wals,
        unsafe_no_fsync: config.unsafe_no_fsync,
        entry_bytes_max: config.max_request_bytes.saturating_add(GRPC_OVERHEAD_BYTES),
        pad_batches: config.wal_pad_batches,
        ..wal::Options::new(rand::random(), 0..wal::TOKENS)
    };
    let member = Member {
        name: config.name.clone(),
        peer_urls: config.advertise_peer_urls.clone(),
        client_urls: config.advertise_client_urls.clone(),
        ..Default::default()
    };
    let min_ttl_s = (3 * config.election_timeout / 2).as_secs_f64().ceil() as i64;
    Boot {
        data_directory: config.data_directory.clone(),
        wal_directory: config.wal_directory.clone(),
        replica: ReplicaOptions {
            identity: origin.identity,
            election_ticks: election_ticks as usize,
            heartbeat_ticks: 1,
            pre_vote: config.pre_vote,
            catchup_entries: config.catchup_entries,
            alone: false,
            wal,
        },
        pages: pages::Options {
            cache_bytes: budget.log_core.cache,
            reserve_pages: reserve_pages(budget.log_core.checkpoint_at),
            limit_bytes: config.quota_bytes.map_or(u64::MAX, page_file_limit),
            ..pages::Options::new(1000..1000 + crate::limits::pages::OPERATIONS as u64)
        },
        decoders: (roles.cores() - 1).min(BOOT_DECODERS_MAX),
        loader_tokens: 900..900 + LOADER_READS,
        options: Options {
            tick: config.heartbeat_interval,
            election_timeout: config.election_timeout,
            first_id: rand::random(),
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
        founders: origin.founders,
        member,
        ticks_ahead: if config.advance_election {
            (election_ticks as usize).saturating_sub(1)
        } else {
            0
        },
        cluster_version: CLUSTER_VERSION.to_string(),
        readers: readers.clone(),
    }
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
