//! The load: one thread, a fixed number of calls in flight, `poll` over the connections.
//!
//! Closed loop: a call that ends is followed by the next on the same connection. Latency is from the moment a call is
//! made, just before it goes to the socket, to the moment its trailers were read from it.

mod connection;
pub mod process;
mod request;

pub use request::Operation;

use connection::{Connection, Finished};
use hdrhistogram::Histogram;
use process::cpu_time;
use prost::Message;
use ringd::proto::etcdserverpb::RangeResponse;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A server that answers nothing for so long has failed.
const SILENCE: Duration = Duration::from_secs(30);
/// The slowest call the histogram tells from others.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this long, of which the first part is not measured.
    Elapsed { warm_up: Duration, measured: Duration },
    /// After each key was called once, in order.
    EachKeyOnce,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub address: SocketAddr,
    pub operation: Operation,
    pub connections: usize,
    /// Calls in flight on each connection.
    pub streams: usize,
    pub keys: u64,
    pub value_bytes: usize,
    pub until: Until,
    pub seed: u64,
    /// The server's process.
    pub process: Option<u32>,
}

/// What a run showed. Times are of the measured part; `finished` and `failed` count the whole run.
pub struct Report {
    pub measured: u64,
    pub elapsed: Duration,
    pub latency_ns: Histogram<u64>,
    pub server_cpu: Option<Duration>,
    pub client_cpu: Duration,
    pub finished: u64,
    pub failed: u64,
    /// The store's revision before and after.
    pub revisions: (i64, i64),
}

/// Where a run stood at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    good: u64,
    server_cpu: Option<Duration>,
    client_cpu: Duration,
}

struct Run<'a> {
    options: &'a Options,
    random: u64,
    started: u64,
    good: u64,
    failed: u64,
    latency_ns: Histogram<u64>,
    stopping: bool,
}

/// Runs the load.
pub fn run(options: &Options) -> io::Result<Report> {
    let revision = revision(options)?;
    let reply_bytes_min = match options.operation {
        Operation::Put => 1,
        Operation::Get => options.value_bytes as u32,
    };
    let call = (options.operation, options.value_bytes);
    let mut connections = (0..options.connections)
        .map(|_| Connection::open(options.address, call, options.streams, reply_bytes_min))
        .collect::<io::Result<Vec<_>>>()?;
    let mut run = Run {
        options,
        random: options.seed,
        started: 0,
        good: 0,
        failed: 0,
        latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).map_err(io::Error::other)?,
        stopping: false,
    };
    let (from, to) = run.drive(&mut connections)?;
    let after = self::revision(options)?;
    Ok(Report {
        measured: to.good - from.good,
        elapsed: to.at - from.at,
        server_cpu: to
            .server_cpu
            .zip(from.server_cpu)
            .map(|(to, from)| to.saturating_sub(from)),
        client_cpu: to.client_cpu.saturating_sub(from.client_cpu),
        latency_ns: run.latency_ns,
        finished: run.good + run.failed,
        failed: run.failed,
        revisions: (revision, after),
    })
}

/// The store's revision, from the header of a get.
fn revision(options: &Options) -> io::Result<i64> {
    let mut connection = Connection::open(options.address, (Operation::Get, options.value_bytes), 1, 0)?;
    connection.start(0, 0, Instant::now());
    while connection.in_flight() > 0 {
        connection.flush()?;
        wait(std::slice::from_ref(&connection), &mut Vec::new())?;
        connection.receive(&mut |_| ())?;
    }
    let message = connection.last_reply().get(5..).unwrap_or_default();
    let response = RangeResponse::decode(message).map_err(io::Error::other)?;
    let header = response
        .header
        .ok_or_else(|| io::Error::other("the reply to a get has no header"))?;
    Ok(header.revision)
}

impl Run<'_> {
    /// Keeps the connections busy until the end, then lets the calls on their way end. Returns the measured part.
    fn drive(&mut self, connections: &mut [Connection]) -> io::Result<(Mark, Mark)> {
        let mut polled = Vec::with_capacity(connections.len());
        let began = Instant::now();
        let (warm_up, whole) = match self.options.until {
            Until::Elapsed { warm_up, measured } => (warm_up, Some(warm_up + measured)),
            Until::EachKeyOnce => (Duration::ZERO, None),
        };
        let mut from = None;
        let mut to = None;
        loop {
            let now = Instant::now();
            if from.is_none() && now - began >= warm_up {
                self.latency_ns.reset();
                from = Some(self.mark(now)?);
            }
            if to.is_none() && self.is_over(now - began, whole) {
                to = Some(self.mark(now)?);
                self.stopping = true;
            }
            for connection in &mut *connections {
                while !self.stopping && self.has_more() && connection.may_start() {
                    let key = self.next_key();
                    connection.start(key, self.random, now);
                    self.started += 1;
                }
                connection.flush()?;
            }
            let idle = connections.iter().all(|connection| connection.in_flight() == 0);
            if let (true, Some(from), Some(to)) = (idle, from, to) {
                return Ok((from, to));
            }
            if idle && self.has_more() && !self.stopping {
                return Err(io::Error::other(
                    "the server's windows or settings do not allow a single call",
                ));
            }
            if idle {
                continue;
            }
            wait(connections, &mut polled)?;
            for (connection, polled) in connections.iter_mut().zip(&polled) {
                if polled.revents & !libc::POLLOUT != 0 {
                    connection.receive(&mut |call| self.count(call))?;
                }
            }
        }
    }

    fn is_over(&self, elapsed: Duration, whole: Option<Duration>) -> bool {
        match whole {
            Some(whole) => elapsed >= whole,
            None => self.good + self.failed >= self.options.keys,
        }
    }

    fn has_more(&self) -> bool {
        !matches!(self.options.until, Until::EachKeyOnce) || self.started < self.options.keys
    }

    /// In order, or by splitmix64.
    #[inline]
    fn next_key(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        if matches!(self.options.until, Until::EachKeyOnce) {
            return self.started;
        }
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % self.options.keys
    }

    #[inline]
    fn count(&mut self, call: Finished) {
        if !call.good {
            self.failed += 1;
            return;
        }
        self.good += 1;
        if !self.stopping {
            self.latency_ns.saturating_record(call.latency.as_nanos() as u64);
        }
    }

    fn mark(&self, at: Instant) -> io::Result<Mark> {
        Ok(Mark {
            at,
            good: self.good,
            server_cpu: self.options.process.map(cpu_time).transpose()?,
            client_cpu: cpu_time(std::process::id())?,
        })
    }
}

/// Waits for any of the connections; `polled` gets one entry for each.
fn wait(connections: &[Connection], polled: &mut Vec<libc::pollfd>) -> io::Result<()> {
    polled.clear();
    polled.extend(connections.iter().map(|connection| libc::pollfd {
        fd: connection.socket().as_raw_fd(),
        events: libc::POLLIN | if connection.has_output() { libc::POLLOUT } else { 0 },
        revents: 0,
    }));
    // SAFETY: `polled` is an array of that many entries, which outlives the call.
    match unsafe {
        libc::poll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            SILENCE.as_millis() as i32,
        )
    } {
        0 => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer for {SILENCE:?}"),
        )),
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}
