//! Accepting connections: one thread takes them from all listeners and hands each to the least loaded serve core.
//!
//! Some of the process's descriptors are kept free: a log that can't open its next segment is the end of the member,
//! and whoever opens connections without end shall not bring that about, nor keep other members out.
//!
//! Load is recent work, not the number of connections: the share of a CPU that a core used of late, plus what the
//! connections given to it since then are expected to add. Cores that are equally busy get connections in turn.

use super::mailbox::{self, Refused};
use super::serve::CoreClock;
use super::{Doorbell, ListenSocket, start};
use crate::limits;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A connection on its way to a serve core.
#[derive(Debug)]
pub struct Accepted {
    /// The socket.
    pub socket: OwnedFd,
    /// Which of the acceptor's listeners it came in by, counted from 0.
    pub listener: usize,
}

/// Who gets the connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// The least loaded core.
    ToLeastLoaded,
    /// The first core, whatever its load: what comes there has to do with each other.
    ToFirst,
}

/// The receiving end on a serve core.
pub type AcceptedReceiver = mailbox::Receiver<Accepted, 1>;

/// One serve core as the acceptor sees it.
pub struct Target {
    clock: CoreClock,
    sender: mailbox::Sender<Accepted, 1>,
    cpu_time: Duration,
    load: Load,
}

/// What decides which core is next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Load {
    /// Share of a CPU used lately, between 0 and 1.
    busy: f64,
    /// Connections given to it since that was measured.
    given: u32,
    /// Connections given to it in all.
    total: u64,
}

/// What one more connection is taken to add to a core's load until it was measured.
const LOAD_OF_A_CONNECTION: f64 = 0.01;
/// Loads that differ by less count as equal.
const LOAD_STEP: f64 = 0.05;

impl Target {
    /// A mailbox for connections to the core with `clock`, woken by `bell`.
    pub fn new(clock: CoreClock, bell: &Doorbell, acceptor: &Doorbell) -> (Target, AcceptedReceiver) {
        let (sender, receiver) = mailbox::mailbox([limits::ACCEPTED_QUEUE], bell, acceptor);
        let target = Target {
            clock,
            sender,
            cpu_time: clock.cpu_time(),
            load: Load::default(),
        };
        (target, receiver)
    }
}

/// The accepting thread.
pub struct Acceptor {
    stop: Arc<AtomicBool>,
    bell: Doorbell,
    thread: Option<thread::JoinHandle<()>>,
}

impl Acceptor {
    /// Starts accepting from `listeners`. `bell` is the one the targets were made with.
    pub fn start(listeners: Vec<(ListenSocket, Goes)>, targets: Vec<Target>, bell: &Doorbell) -> io::Result<Acceptor> {
        assert!(!targets.is_empty(), "nobody to accept for");
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, bell_of_thread) = (stop.clone(), bell.clone());
        let thread = thread::Builder::new().name("accept".to_string()).spawn(move || {
            accept_until(&stopped, &listeners, targets, &bell_of_thread);
        })?;
        Ok(Acceptor {
            stop,
            bell: bell.clone(),
            thread: Some(thread),
        })
    }

    /// Stops accepting and closes the listeners; connections that wait in the kernel's queue are refused.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the accepting thread panicked");
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.end();
    }
}

fn accept_until(stop: &AtomicBool, listeners: &[(ListenSocket, Goes)], mut targets: Vec<Target>, bell: &Doorbell) {
    let mut sampled = Instant::now();
    let mut warnings = Warnings::default();
    while !stop.load(Ordering::Acquire) {
        wait(listeners, bell, stop);
        if sampled.elapsed() >= limits::LOAD_SAMPLE {
            sample(&mut targets, sampled.elapsed());
            sampled = Instant::now();
        }
        for (index, (listener, goes)) in listeners.iter().enumerate() {
            let targets = match goes {
                Goes::ToLeastLoaded => &mut targets[..],
                Goes::ToFirst => &mut targets[..1],
            };
            let last = last_descriptor(*goes, start::descriptors_max());
            accept_from(listener, index, targets, last, &mut warnings);
        }
    }
}

/// The highest descriptor that a connection may have where there are `max`. The system gives out the lowest that is
/// free, so as many are in use below it. A part is kept for the process itself, the half of it for what peers connect
/// to as well.
fn last_descriptor(goes: Goes, max: u64) -> u64 {
    let kept = limits::DESCRIPTORS_KEPT.min(max / limits::DESCRIPTORS_KEPT_PART);
    max - match goes {
        Goes::ToLeastLoaded => kept,
        Goes::ToFirst => kept / 2,
    }
}

/// Sleeps until a listener has a connection or the bell rings.
fn wait(listeners: &[(ListenSocket, Goes)], bell: &Doorbell, stop: &AtomicBool) {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let listeners = listeners.iter().map(|(listener, _)| listener);
    let mut entries: Vec<_> = listeners.map(|listener| entry(listener.as_raw_fd())).collect();
    entries.push(entry(bell.as_raw_fd()));
    bell.about_to_sleep();
    if !stop.load(Ordering::Acquire) {
        // SAFETY: the pointer and the length describe `entries`, which outlives the call.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, -1) };
    }
    bell.awake();
    if entries.last().is_some_and(|entry| entry.revents != 0) {
        bell.clear();
    }
}

/// Measures how busy each core was since the last time, half of it weighed against what was known before.
fn sample(targets: &mut [Target], interval: Duration) {
    for target in targets {
        let cpu_time = target.clock.cpu_time();
        let busy = cpu_time.saturating_sub(target.cpu_time).as_secs_f64() / interval.as_secs_f64();
        target.cpu_time = cpu_time;
        target.load.busy = (target.load.busy + busy.min(1.0)) / 2.0;
        target.load.given = 0;
    }
}

/// Accepts a bounded number of connections, so that no listener starves another.
fn accept_from(listener: &ListenSocket, index: usize, targets: &mut [Target], last: u64, warnings: &mut Warnings) {
    for _ in 0..limits::ACCEPTED_QUEUE {
        match listener.accept() {
            Ok(socket) if socket.as_raw_fd() as u64 >= last => {
                if warnings.is_due(Instant::now()) {
                    let address = listener.local_address();
                    tracing::warn!(
                        last,
                        "closed a connection on {address}: too few descriptors are left; raise LimitNOFILE"
                    );
                }
            }
            Ok(socket) => {
                let accepted = Accepted {
                    socket,
                    listener: index,
                };
                if !hand_over(accepted, targets) && warnings.is_due(Instant::now()) {
                    tracing::warn!("no serve core takes a connection: closed it");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Out of descriptors or memory: the connection stays in the kernel's queue. Trying at once would spin.
                if warnings.is_due(Instant::now()) {
                    tracing::warn!("could not accept a connection on {}: {error}", listener.local_address());
                }
                thread::sleep(Duration::from_millis(50));
                return;
            }
        }
    }
}

/// Warnings that are worth it once in a while: what they tell of may last for days.
#[derive(Default)]
struct Warnings {
    last: Option<Instant>,
}

impl Warnings {
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self
            .last
            .is_none_or(|last| now >= last + limits::ACCEPT_WARNING_INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

/// Errors that accept reports about the connection it would have returned (accept(2)).
fn is_of_one_connection(error: &io::Error) -> bool {
    let of_network = [
        libc::ENETDOWN,
        libc::EPROTO,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
    ];
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
    ) || error.raw_os_error().is_some_and(|errno| of_network.contains(&errno))
}

/// Gives a connection to the least loaded core that has room; closes it when none has. Whether one had.
fn hand_over(mut connection: Accepted, targets: &mut [Target]) -> bool {
    let loads: Vec<Load> = targets.iter().map(|target| target.load).collect();
    for index in by_load(&loads) {
        let target = &mut targets[index];
        match target.sender.send(0, connection) {
            Ok(()) => {
                target.load.given += 1;
                target.load.total += 1;
                return true;
            }
            Err(Refused::Full(back) | Refused::Closed(back)) => connection = back,
        }
    }
    false
}

/// The cores from least to most loaded.
fn by_load(loads: &[Load]) -> Vec<usize> {
    let step = |load: &Load| {
        let expected = load.busy + f64::from(load.given) * LOAD_OF_A_CONNECTION;
        (expected / LOAD_STEP) as u64
    };
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by_key(|&index| (step(&loads[index]), loads[index].total));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_less_busy_core_comes_first() {
        let load = |busy, given, total| Load { busy, given, total };
        assert_eq!(by_load(&[load(0.9, 0, 1), load(0.1, 0, 100)]), [1, 0]);
        assert_eq!(by_load(&[load(0.11, 0, 7), load(0.12, 0, 5)]), [1, 0]);
        // A burst fills the idle core only until it is expected to be as busy as the other.
        assert_eq!(by_load(&[load(0.0, 30, 30), load(0.2, 0, 0)]), [1, 0]);
    }

    #[test]
    fn some_descriptors_are_kept_from_clients_and_fewer_from_peers() {
        let last = |max| [Goes::ToLeastLoaded, Goes::ToFirst].map(|goes| last_descriptor(goes, max));
        assert_eq!(last(65_536), [65_408, 65_472]);
        assert_eq!(last(256), [192, 224], "a quarter, where there are few");
    }

    #[test]
    fn warnings_are_few() {
        let (mut warnings, begin) = (Warnings::default(), Instant::now());
        let due = (0..600).filter(|at| warnings.is_due(begin + *at * Duration::from_millis(50)));
        assert_eq!(due.count(), 3, "in 30 seconds");
    }

    #[test]
    fn a_burst_is_spread_over_idle_cores() {
        let mut loads = [Load::default(); 3];
        for _ in 0..90 {
            let next = by_load(&loads)[0];
            loads[next].given += 1;
            loads[next].total += 1;
        }
        assert!(loads.iter().all(|load| load.total == 30), "{loads:?}");
    }
}
