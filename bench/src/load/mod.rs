//! The load: one thread, many connections, calls from workloads.
//!
//! Closed loop: a call that ends is followed by the next on the same connection, and latency counts from the moment a
//! call is made. Open loop: calls are due at a fixed rate, whatever the server does, and latency counts from the moment
//! a call was due, so that a server that stalls is charged for every call that had to wait (no coordinated omission).

pub mod connection;
pub mod fields;
pub mod group;
pub mod process;
mod ready;
pub mod recipe;
mod reply;
pub mod series;
mod watchers;
pub mod workload;

use connection::Connection;
use group::{Group, Part, Tally};
use hdrhistogram::Histogram;
use process::cpu_time;
use ready::Ready;
use recipe::Recipe;
use series::{Second, Series};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use watchers::Watchers;

/// A server that answers nothing for so long has failed.
const SILENCE: Duration = Duration::from_secs(30);
/// The slowest call the histogram tells from others.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// Between two looks at what a server does by itself after a run.
const LOOK: Duration = Duration::from_millis(50);

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this long, of which the first part is not measured.
    Elapsed { warm_up: Duration, measured: Duration },
    /// When the workload has no more calls and all have ended.
    Exhausted,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub address: SocketAddr,
    pub until: Until,
    pub seed: u64,
    /// The server's process.
    pub process: Option<process::Processes>,
    /// Watches of all keys, held meanwhile.
    pub watchers: usize,
}

/// What a run showed. Times are of the measured part; `finished`, `failed` and `expected` count the whole run.
pub struct Report {
    pub measured: u64,
    /// Bytes of the replies.
    pub bytes: u64,
    pub elapsed: Duration,
    pub latency_ns: Histogram<u64>,
    pub series: Vec<Second>,
    pub server_cpu: Option<Duration>,
    pub client_cpu: Duration,
    pub finished: u64,
    pub failed: u64,
    /// Calls of the whole run that the server refused, if those are borne.
    pub refused: u64,
    /// The store's revision before and after, and by how much it has to have risen.
    pub revisions: (i64, i64),
    pub expected: u64,
    /// What else the workload tells.
    pub told: Option<(&'static str, u64)>,
    /// What went on beside it.
    pub beside: Vec<Beside>,
    /// Events that watches got.
    pub events: u64,
    /// How long the server went on by itself after the run.
    pub drained: Option<Duration>,
}

/// What went on beside a load, in the measured part.
pub struct Beside {
    pub name: &'static str,
    pub measured: u64,
    pub bytes: u64,
    pub latency_ns: Histogram<u64>,
}

/// Where a run stood at one moment.
#[derive(Clone)]
struct Mark {
    at: Instant,
    /// By group.
    counts: Vec<Tally>,
    events: u64,
    server_cpu: Option<Duration>,
    client_cpu: Duration,
}

struct Run<'a> {
    options: &'a Options,
    /// The first is the one that is measured.
    groups: Vec<Group>,
    watchers: Watchers,
    /// The group and the connection behind each number of `ready`; watchers come behind the last group.
    places: Vec<(usize, usize)>,
    ready: Ready,
    /// Whether room to write is waited for, by number.
    full: Vec<bool>,
    series: Series,
    newest: i64,
    began: Option<Instant>,
    stopping: bool,
}

/// Runs the first part, and the others beside it.
pub fn run(options: &Options, parts: Vec<Part>) -> io::Result<Report> {
    let before = revision(options.address)?;
    let mut run = Run::open(options, parts, before)?;
    let (from, to) = run.drive()?;
    let sum = |count: fn(&Tally) -> u64| run.groups.iter().map(|group| count(&group.ledger.counts)).sum::<u64>();
    let rises_after = run
        .groups
        .iter()
        .map(|group| group.ledger.workload.rises_after())
        .sum::<u64>();
    let expected = sum(|counts| counts.expected) + rises_after;
    let drained = match rises_after {
        0 => None,
        _ => Some(await_revision(options.address, before + expected as i64, to.at)?),
    };
    let after = revision(options.address)?;
    let (finished, failed) = (sum(|counts| counts.good + counts.failed), sum(|counts| counts.failed));
    let refused = sum(|counts| counts.refused);
    let mut groups = run.groups.into_iter();
    let main = groups.next().expect("the part that is measured");
    let beside = groups.enumerate().map(|(at, group)| Beside {
        name: group.name,
        measured: to.counts[at + 1].measured - from.counts[at + 1].measured,
        bytes: to.counts[at + 1].bytes - from.counts[at + 1].bytes,
        latency_ns: group.ledger.latency_ns,
    });
    Ok(Report {
        measured: to.counts[0].measured - from.counts[0].measured,
        bytes: to.counts[0].bytes - from.counts[0].bytes,
        elapsed: to.at - from.at,
        server_cpu: to
            .server_cpu
            .zip(from.server_cpu)
            .map(|(to, from)| to.saturating_sub(from)),
        client_cpu: to.client_cpu.saturating_sub(from.client_cpu),
        told: main.ledger.workload.told(),
        latency_ns: main.ledger.latency_ns,
        series: run.series.seconds,
        finished,
        failed,
        refused,
        revisions: (before, after),
        expected,
        beside: beside.collect(),
        events: to.events - from.events,
        drained,
    })
}

/// The store's revision, from the header of a get.
pub fn revision(address: SocketAddr) -> io::Result<i64> {
    let recipe = Recipe::count();
    let mut connection = Connection::open(address, 1, 1)?;
    let mut ready = Ready::new()?;
    ready.add(connection.wire.socket().as_fd(), 0)?;
    connection.start(0, &recipe, recipe::Call::default(), 0, Instant::now());
    connection.wire.flush()?;
    let mut answer = None;
    while answer.is_none() {
        let mut events = Vec::new();
        ready.wait(SILENCE, &mut events)?;
        if events.is_empty() {
            return Err(silence());
        }
        connection.receive(&mut |call| answer = Some(call))?;
    }
    match answer {
        Some(call) if call.good => Ok(call.reply.revision),
        _ => Err(io::Error::other("a get for the store's revision failed")),
    }
}

/// Waits until the store has come to a revision by itself; how long that took from `since`. It has to go on rising.
fn await_revision(address: SocketAddr, wanted: i64, since: Instant) -> io::Result<Duration> {
    let (mut last, mut rose) = (0, Instant::now());
    loop {
        let now = revision(address)?;
        if now >= wanted {
            return Ok(since.elapsed());
        }
        if now > last {
            (last, rose) = (now, Instant::now());
        }
        if rose.elapsed() > SILENCE {
            let said = format!("the revision has stood at {now} for {SILENCE:?}, and {wanted} was expected");
            return Err(io::Error::new(io::ErrorKind::TimedOut, said));
        }
        std::thread::sleep(LOOK);
    }
}

fn silence() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {SILENCE:?}"))
}

impl<'a> Run<'a> {
    fn open(options: &'a Options, parts: Vec<Part>, newest: i64) -> io::Result<Run<'a>> {
        let opened = parts
            .into_iter()
            .enumerate()
            .map(|(at, part)| Group::open(part, options.address, options.seed + ((at as u64) << 32)));
        let groups = opened.collect::<io::Result<Vec<_>>>()?;
        let watchers = Watchers::open(options.address, options.watchers)?;
        let ready = Ready::new()?;
        let mut places = Vec::new();
        let sockets = groups.iter().enumerate().flat_map(|(group, each)| {
            let connections = each.connections.iter().enumerate();
            connections.map(move |(which, connection)| ((group, which), connection.wire.socket()))
        });
        let watching = watchers.connections.iter().enumerate();
        let watching = watching.map(|(which, connection)| ((groups.len(), which), connection.wire.socket()));
        for (place, socket) in sockets.chain(watching) {
            ready.add(socket.as_fd(), places.len())?;
            places.push(place);
        }
        Ok(Run {
            options,
            full: vec![false; places.len()],
            groups,
            watchers,
            places,
            ready,
            series: Series::new(options.process)?,
            newest,
            began: None,
            stopping: false,
        })
    }

    /// Keeps the connections busy until the end, then lets the calls on their way end. Returns the measured part.
    fn drive(&mut self) -> io::Result<(Mark, Mark)> {
        let (mut from, mut to) = (None, None);
        let mut events = Vec::new();
        let mut heard = Instant::now();
        loop {
            let now = Instant::now();
            if self.began.is_none() && self.groups.iter().all(|group| group.ledger.workload.is_prepared()) {
                self.began = Some(now);
                self.groups.iter_mut().for_each(|group| group.begin(now));
            }
            if from.is_none() && self.has_passed(now, true) {
                self.groups.iter_mut().for_each(|group| group.ledger.latency_ns.reset());
                from = Some(self.mark(now)?);
                self.series.begin(now)?;
            }
            if from.is_some() && to.is_none() {
                self.series.tick(now)?;
                if self.has_passed(now, false) {
                    to = Some(self.mark(now)?);
                    self.stopping = true;
                }
            }
            let in_flight = self.in_flight();
            if let (0, Some(from), Some(to)) = (in_flight, &from, &to)
                && self.watchers.have(self.changes())?
            {
                return Ok((from.clone(), to.clone()));
            }
            if !self.stopping {
                for group in &mut self.groups {
                    group.start_calls(self.began.is_some(), self.newest, now);
                }
                if self.groups[0].exhausted
                    && self.began.is_some()
                    && matches!(self.options.until, Until::Elapsed { .. })
                {
                    return Err(io::Error::other("the workload has no call to make"));
                }
            }
            self.flush()?;
            events.clear();
            self.ready.wait(self.wait(), &mut events)?;
            // Without calls on their way nothing has to come, but for the last events of watches.
            let may_be_silent = in_flight == 0 && (self.watchers.count == 0 || !self.stopping);
            if !events.is_empty() || may_be_silent {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE {
                return Err(silence());
            }
            self.receive(&events)?;
        }
    }

    fn in_flight(&self) -> u64 {
        self.groups.iter().map(Group::in_flight).sum()
    }

    fn changes(&self) -> u64 {
        self.groups.iter().map(|group| group.ledger.counts.changes).sum()
    }

    /// Whether the warm-up has passed, or the whole run.
    fn has_passed(&self, now: Instant, warm_up_only: bool) -> bool {
        let Some(began) = self.began else { return false };
        match self.options.until {
            Until::Elapsed { warm_up, measured } => {
                now - began >= warm_up + if warm_up_only { Duration::ZERO } else { measured }
            }
            Until::Exhausted => warm_up_only || self.groups[0].exhausted,
        }
    }

    /// Sends what the groups have queued.
    fn flush(&mut self) -> io::Result<()> {
        let mut first = 0;
        for group in &mut self.groups {
            group.flush(first, &mut self.full, &self.ready)?;
            first += group.connections.len();
        }
        // Their windows and acknowledgements always find room.
        for connection in &mut self.watchers.connections {
            connection.wire.flush()?;
        }
        Ok(())
    }

    fn receive(&mut self, events: &[(usize, bool)]) -> io::Result<()> {
        for &(number, readable) in events {
            let (at, which) = self.places[number];
            if at == self.groups.len() {
                self.watchers.receive(which)?;
                continue;
            }
            let group = &mut self.groups[at];
            if readable {
                let series = &mut self.series;
                let latency = (!self.stopping).then_some(|latency_ns| {
                    if at == 0 {
                        series.record(latency_ns);
                    }
                });
                group.receive(which, latency)?;
                self.newest = self.newest.max(group.ledger.newest);
            }
            group.touch(which);
        }
        Ok(())
    }

    /// How long to sleep if no connection stirs.
    fn wait(&self) -> Duration {
        let longest = match (self.in_flight(), self.watchers.count, self.began) {
            (0, 0, _) | (0, _, None) => Duration::ZERO,
            _ => Duration::from_secs(1),
        };
        if self.stopping || self.began.is_none() {
            return longest;
        }
        let due = self.groups.iter().filter_map(Group::next_due).min();
        match due {
            Some(due) => due
                .saturating_duration_since(Instant::now())
                .min(Duration::from_secs(1)),
            None => longest,
        }
    }

    fn mark(&self, at: Instant) -> io::Result<Mark> {
        Ok(Mark {
            at,
            counts: self.groups.iter().map(|group| group.ledger.counts).collect(),
            events: self.watchers.events,
            server_cpu: self.options.process.map(cpu_time).transpose()?,
            client_cpu: cpu_time(std::process::id())?,
        })
    }
}
