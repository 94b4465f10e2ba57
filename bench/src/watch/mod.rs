//! `ringd-bench watch`, `watch-latency` and `watch-get`: one writer and many watches. Each put stamps its value
//! with the time at which it was made, so that an event tells how long it took from the put's start to its receipt.
//!
//! Closed loop: no more than `depth` puts are on their way whose events have not all arrived. With a rate the puts
//! start at even distances instead, `depth` or not, and the time counts from when a put was due.

mod catch_up;
mod event;
mod get;
pub mod streams;

use crate::load::connection::Connection;
use crate::load::process::{self, Processes, cpu_time};
use crate::load::recipe::{Call, Recipe, key_of};
use crate::load::series;
use crate::wire::Wire;
use hdrhistogram::Histogram;
use ringd::proto::etcdserverpb::WatchCreateRequest;
use serde_json::json;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use streams::Streams;

const USAGE: &str = "usage: ringd-bench watch|watch-latency|watch-get [FLAG VALUE]...
  watch           one writer and many watches, each on one key; every watch's events are counted and looked at
  watch-latency   the same with a hundred puts a second, and ten streams with ten watches each
  watch-get       watches that start at the first of --events events of a key, and serializable gets, one at a time,
                  until each has them all; the gets are measured
flags, with etcd's names for them:
  --address 127.0.0.1:2379   the server (--endpoints)
  --process PID[,PID...]     the server's process, or its members', for their CPU time and memory
  --connections 16           that watch (--conns); of watch-latency 1, of watch-get 1
  --streams 64               on each connection; of watch-latency 10, of watch-get 1
  --watches 1                on each stream (--watch-per-stream, --watchers-per-stream; --watchers: on all of them);
                             of watch-latency 10, of watch-get 10000
  --keys 1                   watched evenly and put in turn (--watched-key-total)
  --prev-kv 0                1 to ask for previous values (--prevkv)
  --depth 4                  puts whose events have not all arrived
  --rate 0                   puts a second, at even distances; 0 for as many as go with the depth (--put-rate)
  --value-bytes 256          (--val-size)
  --events 8                 of watch-get
  --catch-up 0               1 to put nothing: each watch gets the whole history of every key, which has to be of
                             puts alone; --keys, --depth, --rate and --seconds mean nothing then
  --seconds 10               measured, after a fifth as long to warm up
  --histogram FILE           the latencies in ns, HdrHistogram V2; none of --catch-up
Exits with 1 when a put failed, or an event was lost, repeated or out of order.";

/// A server that sends nothing for so long has failed.
const SILENCE: Duration = Duration::from_secs(30);
/// Calls that the writing connection may have on their way.
const WRITES: usize = 4096;
/// Watches asked for before some must have been created: a server takes requests only as fast as it answers them.
const CREATING: usize = 2000;

struct Options {
    address: SocketAddr,
    process: Option<Processes>,
    connections: usize,
    streams: usize,
    watches: usize,
    keys: u64,
    prev_kv: bool,
    depth: u64,
    rate: f64,
    value_bytes: usize,
    measured: Duration,
    catch_up: bool,
    events: u64,
    histogram: Option<PathBuf>,
}

/// What a scenario does without flags.
fn usual(scenario: &str) -> Options {
    let options = Options {
        address: ([127, 0, 0, 1], 2379).into(),
        process: None,
        connections: 16,
        streams: 64,
        watches: 1,
        keys: 1,
        prev_kv: false,
        depth: 4,
        rate: 0.0,
        value_bytes: 256,
        measured: Duration::from_secs(10),
        catch_up: false,
        events: 8,
        histogram: None,
    };
    match scenario {
        "watch-latency" => Options {
            connections: 1,
            streams: 10,
            watches: 10,
            rate: 100.0,
            ..options
        },
        "watch-get" => Options {
            connections: 1,
            streams: 1,
            watches: 10_000,
            ..options
        },
        _ => options,
    }
}

fn parse(mut options: Options, mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut watchers = None;
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--address" | "--endpoints" => options.address = number(&flag, &value)?,
            "--process" => options.process = Some(number(&flag, &value)?),
            "--connections" | "--conns" => options.connections = number(&flag, &value)?,
            "--streams" => options.streams = number(&flag, &value)?,
            "--watches" | "--watch-per-stream" | "--watchers-per-stream" => options.watches = number(&flag, &value)?,
            "--keys" | "--watched-key-total" => options.keys = number(&flag, &value)?,
            "--prev-kv" | "--prevkv" => options.prev_kv = value == "true" || number::<u8>(&flag, &value)? != 0,
            "--catch-up" => options.catch_up = number::<u8>(&flag, &value)? != 0,
            "--depth" => options.depth = number(&flag, &value)?,
            "--rate" | "--put-rate" => options.rate = number(&flag, &value)?,
            "--value-bytes" | "--val-size" => options.value_bytes = number(&flag, &value)?,
            "--watchers" => watchers = Some(number::<usize>(&flag, &value)?),
            "--histogram" => options.histogram = Some(value.into()),
            "--events" => options.events = number(&flag, &value)?,
            "--seconds" => {
                let seconds = number(&flag, &value)?;
                options.measured = Duration::try_from_secs_f64(seconds).map_err(|error| format!("{flag}: {error}"))?;
            }
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    if let Some(watchers) = watchers {
        let streams = options.connections * options.streams;
        if streams == 0 || !watchers.is_multiple_of(streams) {
            return Err(format!(
                "{watchers} watchers can't be spread evenly over {streams} streams"
            ));
        }
        options.watches = watchers / streams;
    }
    check(&options)?;
    Ok(options)
}

fn check(options: &Options) -> Result<(), String> {
    let watches = (options.connections * options.streams * options.watches) as u64;
    if options.keys == 0 || watches == 0 || !watches.is_multiple_of(options.keys) {
        return Err(format!(
            "{watches} watches can't be spread evenly over {} keys",
            options.keys
        ));
    }
    if !(1..=WRITES as u64).contains(&options.depth) || !(8..=16_000).contains(&options.value_bytes) {
        return Err(format!("depth is 1 to {WRITES}, and values have 8 to 16000 bytes"));
    }
    if options.events == 0 {
        return Err("a watch gets an event at least".into());
    }
    Ok(())
}

/// Does what the command line says, if it is about watches.
pub fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let names = ["watch", "watch-latency", "watch-get"];
    let scenario = arguments.next().filter(|command| names.contains(&command.as_str()))?;
    let options = match parse(usual(&scenario), arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("ringd-bench: {error}\n{USAGE}");
            return Some(ExitCode::from(2));
        }
    };
    let outcome = match (options.catch_up, scenario.as_str()) {
        (true, _) => catch_up::run(&options),
        (false, "watch-get") => get::run(&options),
        (false, _) => run(&options),
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringd-bench: {}: {error}", options.address);
            ExitCode::FAILURE
        }
    })
}

/// Runs the load and prints what it saw.
fn run(options: &Options) -> io::Result<()> {
    let mut load = Load::open(options)?;
    let (from, to) = load.drive()?;
    if load.latency_ns.is_empty() {
        return Err(io::Error::other("not a single event came"));
    }
    println!("{}", load.describe(from, to)?);
    if let Some(path) = &options.histogram {
        series::store(&load.latency_ns, path)?;
    }
    Ok(())
}

fn number<T: std::str::FromStr<Err: std::fmt::Display>>(flag: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|error| format!("{flag} {value:?}: {error}"))
}

/// Where a run stood at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    puts: u64,
    events: u64,
    server_cpu: Option<Duration>,
    client_cpu: Duration,
}

struct Load<'a> {
    options: &'a Options,
    put: Recipe,
    writer: Connection,
    watching: Vec<Streams>,
    /// Watches of each key.
    fan_out: u64,
    began: Instant,
    /// Puts that were made, and that were acknowledged.
    started: u64,
    done: u64,
    events: u64,
    latency_ns: Histogram<u64>,
}

impl Load<'_> {
    /// Connects, and waits until every watch is created.
    fn open(options: &Options) -> io::Result<Load<'_>> {
        let watches = options.connections * options.streams * options.watches;
        let mut load = Load {
            options,
            put: Recipe::put(options.value_bytes),
            writer: Connection::open(options.address, 1, WRITES)?,
            watching: Vec::new(),
            fan_out: watches as u64 / options.keys,
            began: Instant::now(),
            started: 0,
            done: 0,
            events: 0,
            latency_ns: series::histogram()?,
        };
        for _ in 0..options.connections {
            load.watching.push(Streams::open(options.address)?);
        }
        let mut asked = 0;
        for _ in 0..options.streams {
            for connection in 0..options.connections {
                let watches = (0..options.watches).map(|watch| WatchCreateRequest {
                    key: key_of((asked + watch) as u64 % options.keys).into(),
                    prev_kv: options.prev_kv,
                    ..Default::default()
                });
                load.watching[connection].watch(watches.collect());
                asked += options.watches;
                load.await_created(asked.saturating_sub(CREATING))?;
            }
        }
        load.await_created(watches)?;
        Ok(load)
    }

    fn created(&self) -> usize {
        self.watching.iter().map(|connection| connection.created).sum()
    }

    fn await_created(&mut self, count: usize) -> io::Result<()> {
        while self.created() < count {
            self.turn(SILENCE)?;
        }
        Ok(())
    }

    /// Puts until the time is over, then waits for every event. Returns the measured part.
    fn drive(&mut self) -> io::Result<(Mark, Mark)> {
        self.began = Instant::now();
        let warm_up = self.options.measured / 5;
        let (mut from, mut to) = (None, None);
        loop {
            let now = Instant::now();
            if from.is_none() && now - self.began >= warm_up {
                self.latency_ns.reset();
                from = Some(self.mark(now)?);
            }
            if to.is_none() && now - self.began >= warm_up + self.options.measured {
                to = Some(self.mark(now)?);
            }
            let all_came = self.done == self.started && self.events == self.started * self.fan_out;
            if let (Some(from), Some(to), true) = (from, to, all_came) {
                return Ok((from, to));
            }
            let wait = if to.is_none() { self.start(now)? } else { SILENCE };
            self.turn(wait)?;
            if self.events > self.started * self.fan_out {
                return Err(io::Error::other(format!(
                    "{} events of {} puts",
                    self.events, self.started
                )));
            }
        }
    }

    /// Starts the puts that are due. Returns how long there is nothing to start.
    fn start(&mut self, now: Instant) -> io::Result<Duration> {
        let elapsed = now - self.began;
        loop {
            let due = match self.options.rate > 0.0 {
                true => Duration::from_secs_f64(self.started as f64 / self.options.rate),
                false => elapsed,
            };
            if due > elapsed {
                return Ok((due - elapsed).min(SILENCE));
            }
            let outstanding = (self.started * self.fan_out)
                .saturating_sub(self.events)
                .div_ceil(self.fan_out);
            let is_deep = self.options.rate == 0.0 && outstanding >= self.options.depth;
            let slot = self.writer.free_slot(self.put.length()).filter(|_| !is_deep);
            let Some(slot) = slot else { return Ok(SILENCE) };
            let call = Call {
                key: self.started % self.options.keys,
                ..Call::default()
            };
            self.writer.start(slot, &self.put, call, due.as_nanos() as u64, now);
            self.started += 1;
        }
    }

    /// Sends what there is to send, waits for something to come, and takes it.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        self.writer.wire.flush()?;
        for connection in &mut self.watching {
            connection.wire.flush()?;
        }
        let watching = self.watching.iter().map(|connection| &connection.wire);
        let polled = await_any(std::iter::once(&self.writer.wire).chain(watching), wait)?;
        let readable = |polled: &libc::pollfd| polled.revents & !libc::POLLOUT != 0;
        if polled.first().is_some_and(readable) {
            let (mut good, mut bad) = (0, 0);
            self.writer.receive(&mut |put| match put.good {
                true => good += 1,
                false => bad += 1,
            })?;
            self.done += good;
            if bad > 0 {
                return Err(io::Error::other(format!("{bad} puts failed")));
            }
        }
        for (connection, _) in self
            .watching
            .iter_mut()
            .zip(&polled[1..])
            .filter(|(_, polled)| readable(polled))
        {
            let now = self.began.elapsed().as_nanos() as u64;
            let (events, latency) = (&mut self.events, &mut self.latency_ns);
            connection.receive(&mut |event| {
                *events += 1;
                let stamp = event.value.first_chunk().map_or(0, |stamp| u64::from_le_bytes(*stamp));
                latency.saturating_record(now.saturating_sub(stamp));
            })?;
        }
        Ok(())
    }

    fn mark(&self, at: Instant) -> io::Result<Mark> {
        Ok(Mark {
            at,
            puts: self.done,
            events: self.events,
            server_cpu: self.options.process.map(cpu_time).transpose()?,
            client_cpu: cpu_time(std::process::id())?,
        })
    }

    fn describe(&self, from: Mark, to: Mark) -> io::Result<serde_json::Value> {
        let seconds = (to.at - from.at).as_secs_f64();
        let events = to.events - from.events;
        let per_event = |cpu: Duration| cpu.as_secs_f64() * 1e6 / events.max(1) as f64;
        let at = |share: f64| self.latency_ns.value_at_quantile(share) as f64 / 1e3;
        let server_cpu = to.server_cpu.zip(from.server_cpu);
        let client_cpu = to.client_cpu.saturating_sub(from.client_cpu);
        let resident = self.options.process.map(process::resident_bytes).transpose()?;
        Ok(json!({
            "calls": events,
            "seconds": seconds,
            "rate": events as f64 / seconds,
            "puts_rate": (to.puts - from.puts) as f64 / seconds,
            "p50_us": at(0.5),
            "p90_us": at(0.9),
            "p99_us": at(0.99),
            "p999_us": at(0.999),
            "max_us": self.latency_ns.max() as f64 / 1e3,
            "server_cpu_us": server_cpu.map(|(to, from)| per_event(to.saturating_sub(from))),
            "client_cpu_us": per_event(client_cpu),
            "client_busy": client_cpu.as_secs_f64() / seconds,
            "rss_bytes": resident.map(|(all, _)| all),
            "failed": 0,
            "latency": series::distribution(&self.latency_ns),
        }))
    }
}

/// Waits until a connection has something, takes something if it is to, or the time is over.
fn await_any<'a>(wires: impl Iterator<Item = &'a Wire>, wait: Duration) -> io::Result<Vec<libc::pollfd>> {
    let polled = wires.map(|wire| libc::pollfd {
        fd: wire.socket().as_raw_fd(),
        events: libc::POLLIN | if wire.has_output() { libc::POLLOUT } else { 0 },
        revents: 0,
    });
    let mut polled: Vec<_> = polled.collect();
    let timeout = libc::timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    // SAFETY: `polled` is an array of that many entries, which outlives the call, as does the time.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as u64, &timeout, std::ptr::null()) };
    match ready {
        0 if wait >= SILENCE => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("nothing came for {SILENCE:?}"),
        )),
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            error => Err(error),
        },
        _ => Ok(polled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Options, String> {
        parse(usual("watch"), text.split_whitespace().map(str::to_string))
    }

    #[test]
    fn flags_are_read_and_checked() {
        let read = options("--streams 10 --keys 32 --rate 12.5 --prev-kv 1 --seconds 0.5").unwrap();
        assert_eq!((read.connections, read.streams, read.keys), (16, 10, 32));
        assert_eq!(
            (read.rate, read.prev_kv, read.measured),
            (12.5, true, Duration::from_millis(500))
        );
        for wrong in [
            "--keys 3",
            "--depth 0",
            "--value-bytes 7",
            "--what 1",
            "--rate",
            "--seconds -1",
            "--watchers 1023",
        ] {
            assert!(options(wrong).is_err(), "{wrong}");
        }
    }
}
