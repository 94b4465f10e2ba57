//! The log core's thread: mailboxes in, the log core's turns, mailboxes out, one wait.

use crate::io::disk::Disk;
use crate::limits::{ANSWER_LANE, LOG_REQUESTS_PER_TURN, PUBLISHED_LANE, SHUTDOWN_LOG};
use crate::raft::boot::{self, Boot, BootError};
use crate::raft::core::{Fatal, LogCore};
use crate::raft::messages::{Reply, Request};
use crate::reactor::disk::DiskOptions;
use crate::reactor::log::{LogReactor, Writer};
use crate::reactor::mailbox::{Place, Receiver, Sender};
use crate::reactor::{Doorbell, roles};
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
    /// Set when the thread is to finish.
    pub stop: Arc<AtomicBool>,
}

/// How a start went.
pub type Started = Result<Arc<crate::mvcc::index::Index<crate::mvcc::view::View>>, BootError>;

impl LogThread {
    /// Runs the log core to its end. Says over `started` when it leads; then waits for its ports.
    pub fn run(self, started: &mpsc::Sender<Started>, ports: &mpsc::Receiver<Vec<Port>>) -> Result<(), Fatal> {
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
        let _ = started.send(Ok(core.state().index().clone()));
        let Ok(mut ports) = ports.recv() else { return Ok(()) };
        serve(&mut core, &mut reactor, &mut ports, &self.stop, began)
    }
}

fn serve(
    core: &mut LogCore,
    reactor: &mut LogReactor,
    ports: &mut [Port],
    stop: &AtomicBool,
    began: Instant,
) -> Result<(), Fatal> {
    let mut completions = Vec::new();
    let mut last_checkpoint: Option<Duration> = None;
    loop {
        reactor.begin_turn();
        let now = began.elapsed();
        let mut busy = take_requests(core, ports, now);
        reactor.disk().poll(&mut completions);
        for completion in completions.drain(..) {
            core.completed(completion)?;
        }
        busy |= core.turn(reactor.disk(), now)?;
        send_replies(core, ports);
        reactor.end_turn();
        if stop.load(Ordering::Acquire) {
            let since = *last_checkpoint.get_or_insert(now);
            if core.finish() || now > since + SHUTDOWN_LOG {
                return Ok(());
            }
        }
        if !busy {
            let until = core.deadline().saturating_sub(began.elapsed());
            let has_work = || stop.load(Ordering::Acquire) || ports.iter_mut().any(|port| !port.requests.is_empty());
            reactor.wait(Some(until.max(Duration::from_micros(100))), has_work);
        }
    }
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
            if matches!(request, Request::Corrupt { .. }) {
                port.replies.release(place);
            } else {
                port.places.push(place);
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
