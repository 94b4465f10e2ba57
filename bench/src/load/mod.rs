//! The load: one thread, many connections, calls from a workload.
//!
//! Closed loop: a call that ends is followed by the next on the same connection, and latency counts from the moment a
//! call is made. Open loop: calls are due at a fixed rate, whatever the server does, and latency counts from the moment
//! a call was due, so that a server that stalls is charged for every call that had to wait (no coordinated omission).

pub mod connection;
pub mod fields;
pub mod process;
mod ready;
pub mod recipe;
mod reply;
pub mod series;
pub mod workload;

use connection::{Connection, Finished};
use hdrhistogram::Histogram;
use process::cpu_time;
use ready::Ready;
use recipe::Recipe;
use series::{Second, Series};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use workload::Workload;

/// A server that answers nothing for so long has failed.
const SILENCE: Duration = Duration::from_secs(30);
/// The slowest call the histogram tells from others.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

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
    pub connections: usize,
    /// Calls in flight on each connection, at most.
    pub streams: usize,
    /// Calls due per second; closed loop if None.
    pub rate: Option<f64>,
    pub until: Until,
    pub seed: u64,
    /// The server's process.
    pub process: Option<u32>,
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
    /// The store's revision before and after, and by how much it has to have risen.
    pub revisions: (i64, i64),
    pub expected: u64,
}

/// Where a run stood at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    good: u64,
    bytes: u64,
    server_cpu: Option<Duration>,
    client_cpu: Duration,
}

struct Run<'a> {
    options: &'a Options,
    workload: &'a mut dyn Workload,
    recipes: Vec<Recipe>,
    message_bytes_max: usize,
    random: u64,
    started: u64,
    good: u64,
    failed: u64,
    expected: u64,
    bytes: u64,
    latency_ns: Histogram<u64>,
    series: Series,
    stopping: bool,
    exhausted: bool,
}

/// Runs the load.
pub fn run(options: &Options, workload: &mut dyn Workload) -> io::Result<Report> {
    let recipes = workload.recipes().to_vec();
    let revision = revision(options.address)?;
    let mut connections = (0..options.connections)
        .map(|_| Connection::open(options.address, recipes.len(), options.streams))
        .collect::<io::Result<Vec<_>>>()?;
    let mut run = Run {
        options,
        message_bytes_max: recipes.iter().map(Recipe::length).max().unwrap_or_default(),
        workload,
        recipes,
        random: options.seed,
        started: 0,
        good: 0,
        failed: 0,
        expected: 0,
        bytes: 0,
        latency_ns: series::histogram()?,
        series: Series::new(options.process)?,
        stopping: false,
        exhausted: false,
    };
    let (from, to) = run.drive(&mut connections)?;
    let after = self::revision(options.address)?;
    Ok(Report {
        measured: to.good - from.good,
        bytes: to.bytes - from.bytes,
        elapsed: to.at - from.at,
        server_cpu: to
            .server_cpu
            .zip(from.server_cpu)
            .map(|(to, from)| to.saturating_sub(from)),
        client_cpu: to.client_cpu.saturating_sub(from.client_cpu),
        latency_ns: run.latency_ns,
        series: run.series.seconds,
        finished: run.good + run.failed,
        failed: run.failed,
        revisions: (revision, after),
        expected: run.expected,
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

fn silence() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {SILENCE:?}"))
}

impl Run<'_> {
    /// Keeps the connections busy until the end, then lets the calls on their way end. Returns the measured part.
    fn drive(&mut self, connections: &mut [Connection]) -> io::Result<(Mark, Mark)> {
        let mut ready = Ready::new()?;
        for (which, connection) in connections.iter().enumerate() {
            ready.add(connection.wire.socket().as_fd(), which)?;
        }
        let mut full = vec![false; connections.len()];
        let mut touched: Vec<usize> = (0..connections.len()).collect();
        let mut events = Vec::new();
        let mut clock = Clock::new(self.options);
        let (mut from, mut to) = (None, None);
        let mut heard = Instant::now();
        loop {
            let now = Instant::now();
            if clock.began.is_none() && self.workload.is_prepared() {
                clock.begin(now);
                touched = (0..connections.len()).collect();
            }
            if from.is_none() && clock.is_warm(now) {
                self.latency_ns.reset();
                from = Some(self.mark(now)?);
                self.series.begin(now)?;
            }
            if from.is_some() && to.is_none() {
                self.series.tick(now)?;
                if clock.is_over(now) || self.exhausted && self.in_flight() == 0 {
                    to = Some(self.mark(now)?);
                    self.stopping = true;
                }
            }
            if let (true, Some(from), Some(to)) = (self.in_flight() == 0, from, to) {
                return Ok((from, to));
            }
            self.start_calls(connections, &mut touched, &mut clock, now)?;
            for &which in &touched {
                let connection = &mut connections[which];
                connection.wire.flush()?;
                if connection.wire.has_output() != full[which] {
                    full[which] = connection.wire.has_output();
                    ready.change(connection.wire.socket().as_fd(), which, full[which])?;
                }
            }
            touched.clear();
            events.clear();
            ready.wait(clock.wait(self.in_flight(), self.stopping), &mut events)?;
            if !events.is_empty() || self.in_flight() == 0 {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE {
                return Err(silence());
            }
            for &(which, readable) in &events {
                if readable {
                    let first_slot = which * self.options.streams;
                    connections[which].receive(&mut |call| self.count(first_slot, call))?;
                }
                touched.push(which);
            }
        }
    }

    /// Starts what may start now; connections that got calls are in `touched` after.
    fn start_calls(
        &mut self,
        connections: &mut [Connection],
        touched: &mut Vec<usize>,
        clock: &mut Clock,
        now: Instant,
    ) -> io::Result<()> {
        if self.stopping {
            return Ok(());
        }
        if clock.interval.is_none() || clock.began.is_none() {
            let mut waits = false;
            for &which in &*touched {
                while let Some(slot) = connections[which].free_slot(self.message_bytes_max) {
                    if !self.start(&mut connections[which], which, slot, now) {
                        waits = true;
                        break;
                    }
                }
            }
            self.exhausted = waits && matches!(self.options.until, Until::Exhausted);
            if waits && !self.exhausted && self.in_flight() == 0 && self.workload.is_prepared() && clock.began.is_some()
            {
                return Err(io::Error::other("the workload has no call to make"));
            }
            return Ok(());
        }
        // The next connection with room, in turn; what finds none stays due.
        while clock.due <= now {
            let found = (0..connections.len())
                .map(|step| (clock.turn + step) % connections.len())
                .find_map(|which| Some((which, connections[which].free_slot(self.message_bytes_max)?)));
            let Some((which, slot)) = found else { break };
            if !self.start(&mut connections[which], which, slot, clock.due) {
                break;
            }
            clock.turn = which + 1;
            clock.due += clock.interval.unwrap_or_default();
            touched.push(which);
        }
        Ok(())
    }

    #[inline]
    fn start(&mut self, connection: &mut Connection, which: usize, slot: usize, began: Instant) -> bool {
        let random = self.next_random();
        let Some(call) = self.workload.next(which * self.options.streams + slot, random) else {
            return false;
        };
        self.started += 1;
        connection.start(slot, &self.recipes[call.recipe], call, self.random, began);
        true
    }

    fn in_flight(&self) -> u64 {
        self.started - self.good - self.failed
    }

    /// splitmix64.
    #[inline]
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    #[inline]
    fn count(&mut self, first_slot: usize, call: Finished) {
        if !call.good {
            self.failed += 1;
            return;
        }
        self.good += 1;
        self.bytes += call.bytes;
        self.expected += self.recipes[call.call.recipe].revisions;
        self.workload.done(first_slot + call.slot, &call.call, &call.reply);
        if !self.stopping {
            let latency_ns = call.latency.as_nanos() as u64;
            self.latency_ns.saturating_record(latency_ns);
            self.series.record(latency_ns);
        }
    }

    fn mark(&self, at: Instant) -> io::Result<Mark> {
        Ok(Mark {
            at,
            good: self.good,
            bytes: self.bytes,
            server_cpu: self.options.process.map(cpu_time).transpose()?,
            client_cpu: cpu_time(std::process::id())?,
        })
    }
}

/// When the measured part begins and ends, and when calls are due.
struct Clock {
    /// When the workload was prepared.
    began: Option<Instant>,
    warm_up: Duration,
    whole: Option<Duration>,
    /// Between two calls of an open loop.
    interval: Option<Duration>,
    due: Instant,
    /// The connection that is asked first for room.
    turn: usize,
}

impl Clock {
    fn new(options: &Options) -> Self {
        let (warm_up, whole) = match options.until {
            Until::Elapsed { warm_up, measured } => (warm_up, Some(warm_up + measured)),
            Until::Exhausted => (Duration::ZERO, None),
        };
        Self {
            began: None,
            warm_up,
            whole,
            interval: options.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            due: Instant::now(),
            turn: 0,
        }
    }

    fn begin(&mut self, now: Instant) {
        self.began = Some(now);
        self.due = now;
    }

    fn is_warm(&self, now: Instant) -> bool {
        self.began.is_some_and(|began| now - began >= self.warm_up)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.began
            .zip(self.whole)
            .is_some_and(|(began, whole)| now - began >= whole)
    }

    /// How long to sleep if no connection stirs.
    fn wait(&self, in_flight: u64, stopping: bool) -> Duration {
        let longest = if in_flight == 0 {
            Duration::ZERO
        } else {
            Duration::from_secs(1)
        };
        match (self.began, self.interval) {
            (Some(_), Some(_)) if !stopping => self
                .due
                .saturating_duration_since(Instant::now())
                .min(Duration::from_secs(1)),
            _ => longest,
        }
    }
}
