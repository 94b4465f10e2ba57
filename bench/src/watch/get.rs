//! Gets while watches catch up, as etcd's `benchmark watch-get` makes them: watches of one key start at the first of a
//! few events, and meanwhile a client makes serializable gets, one at a time, until each watch has every event.

use super::streams::Streams;
use super::{Options, SILENCE, await_any};
use crate::load::connection::Connection;
use crate::load::process::cpu_time;
use crate::load::recipe::{Call, Recipe, key_of};
use crate::load::revision;
use crate::load::series;
use crate::wire::Wire;
use hdrhistogram::Histogram;
use ringd::proto::etcdserverpb::WatchCreateRequest;
use serde_json::json;
use std::io;
use std::time::{Duration, Instant};

/// Watches of a connection asked for and not created, at most: what they take of the windows fits the smallest.
const CREATING: usize = 500;
const PUT: usize = 0;
const GET: usize = 1;

/// What was seen.
struct Seen {
    events: u64,
    elapsed: Duration,
    server_cpu: Option<Duration>,
    client_cpu: Duration,
    latency_ns: Histogram<u64>,
}

/// Runs it, and prints what was seen.
pub(super) fn run(options: &Options) -> io::Result<()> {
    let mut client = Connection::open(options.address, 2, 1)?;
    let recipes = [Recipe::put(options.value_bytes), Recipe::get(true, options.value_bytes)];
    let before = revision(options.address)?;
    for _ in 0..options.events {
        put(&mut client, &recipes)?;
    }
    let seen = catch_up(options, &mut client, &recipes, before + 1)?;
    println!("{}", describe(&seen, revision(options.address)? - before));
    match &options.histogram {
        Some(path) => series::store(&seen.latency_ns, path),
        None => Ok(()),
    }
}

/// Gets while watches from a revision on catch up.
fn catch_up(
    options: &Options,
    client: &mut Connection,
    recipes: &[Recipe; 2],
    start_revision: i64,
) -> io::Result<Seen> {
    let expected = options.events * (options.connections * options.streams * options.watches) as u64;
    let server_cpu = || options.process.map(cpu_time).transpose();
    let (began, server_began, client_began) = (Instant::now(), server_cpu()?, cpu_time(std::process::id())?);
    let mut watching = (0..options.connections)
        .map(|_| Watching::open(options, start_revision))
        .collect::<io::Result<Vec<_>>>()?;
    let (mut events, mut latency_ns) = (0, series::histogram()?);
    start(client, recipes, GET);
    while events < expected {
        client.wire.flush()?;
        for connection in &mut watching {
            connection.ask();
            connection.streams.wire.flush()?;
        }
        let polled = await_all(client, &watching)?;
        if polled.first().is_some_and(|polled| polled.revents != 0) {
            let mut ended = None;
            client.receive(&mut |call| ended = Some(call))?;
            if let Some(call) = ended {
                if !call.good {
                    return Err(io::Error::other("a get failed"));
                }
                latency_ns.saturating_record((call.ended - call.began).as_nanos() as u64);
                start(client, recipes, GET);
            }
        }
        for (connection, polled) in watching.iter_mut().zip(polled.iter().skip(1)) {
            if polled.revents != 0 {
                connection.streams.receive(&mut |_| events += 1)?;
            }
        }
    }
    if events > expected {
        return Err(io::Error::other(format!("{events} events, and {expected} were made")));
    }
    Ok(Seen {
        events,
        elapsed: began.elapsed(),
        server_cpu: server_cpu()?
            .zip(server_began)
            .map(|(after, before)| after.saturating_sub(before)),
        client_cpu: cpu_time(std::process::id())?.saturating_sub(client_began),
        latency_ns,
    })
}

fn describe(seen: &Seen, revision_rose: i64) -> serde_json::Value {
    let seconds = seen.elapsed.as_secs_f64();
    let per_event = |cpu: Duration| cpu.as_secs_f64() * 1e6 / seen.events.max(1) as f64;
    let at = |share: f64| seen.latency_ns.value_at_quantile(share) as f64 / 1e3;
    json!({
        "calls": seen.latency_ns.len(),
        "seconds": seconds,
        "rate": seen.latency_ns.len() as f64 / seconds,
        "event_rate": seen.events as f64 / seconds,
        "events": seen.events,
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
        "max_us": seen.latency_ns.max() as f64 / 1e3,
        "server_cpu_us": seen.server_cpu.map(per_event),
        "client_cpu_us": per_event(seen.client_cpu),
        "client_busy": seen.client_cpu.as_secs_f64() / seconds,
        "failed": 0,
        "revision_rose": revision_rose,
        "latency": series::distribution(&seen.latency_ns),
    })
}

/// A connection and the watches it has still to ask for.
struct Watching {
    streams: Streams,
    numbers: Vec<u32>,
    watch: WatchCreateRequest,
    asked: usize,
    wanted: usize,
}

impl Watching {
    fn open(options: &Options, start_revision: i64) -> io::Result<Watching> {
        let mut streams = Streams::open(options.address)?;
        Ok(Watching {
            numbers: (0..options.streams).map(|_| streams.open_stream()).collect(),
            streams,
            watch: WatchCreateRequest {
                key: key_of(0).into(),
                start_revision,
                prev_kv: options.prev_kv,
                ..Default::default()
            },
            asked: 0,
            wanted: options.streams * options.watches,
        })
    }

    /// Asks for more, as far as a server is sure to take it.
    fn ask(&mut self) {
        let most = self.streams.created + CREATING;
        while self.asked < self.wanted.min(most) {
            let number = self.numbers[self.asked % self.numbers.len()];
            self.streams.add(number, self.watch.clone());
            self.asked += 1;
        }
    }
}

fn start(client: &mut Connection, recipes: &[Recipe; 2], recipe: usize) {
    let call = Call {
        recipe,
        ..Call::default()
    };
    client.start(0, &recipes[recipe], call, 1, Instant::now());
}

/// Puts once, to its end.
fn put(client: &mut Connection, recipes: &[Recipe; 2]) -> io::Result<()> {
    start(client, recipes, PUT);
    let mut good = None;
    while good.is_none() {
        client.wire.flush()?;
        await_all(client, &[])?;
        client.receive(&mut |call| good = Some(call.good))?;
    }
    match good {
        Some(true) => Ok(()),
        _ => Err(io::Error::other("a put failed")),
    }
}

fn await_all(client: &Connection, watching: &[Watching]) -> io::Result<Vec<libc::pollfd>> {
    let watching = watching.iter().map(|connection| &connection.streams.wire);
    let wires: Vec<&Wire> = std::iter::once(&client.wire).chain(watching).collect();
    await_any(wires.into_iter(), SILENCE)
}
