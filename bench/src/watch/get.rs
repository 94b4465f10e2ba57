//! Gets while watches catch up, as etcd's `benchmark watch-get` makes them: watches of one key start at the first of a
//! few events, and meanwhile a client makes serializable gets, one at a time, until each watch has every event.

use super::streams::Streams;
use super::{Options, SILENCE, await_any};
use crate::load::connection::Connection;
use crate::load::process::cpu_time;
use crate::load::recipe::{Call, Recipe, key_of};
use crate::load::revision;
use crate::load::series::{self, distribution, histogram};
use crate::wire::Wire;
use ringd::proto::etcdserverpb::WatchCreateRequest;
use serde_json::json;
use std::io;
use std::time::{Duration, Instant};

/// Watches of a connection asked for and not created, at most: what they take of the windows fits the smallest.
const CREATING: usize = 500;
const PUT: usize = 0;
const GET: usize = 1;

/// Runs it, and prints what was seen.
pub(super) fn run(options: &Options) -> io::Result<()> {
    let mut client = Connection::open(options.address, 2, 1)?;
    let recipes = [Recipe::put(options.value_bytes), Recipe::get(true, options.value_bytes)];
    let before = revision(options.address)?;
    for _ in 0..options.events {
        put(&mut client, &recipes)?;
    }
    let watches = options.connections * options.streams * options.watches;
    let server_cpu = || options.process.map(cpu_time).transpose();
    let (began, server_began, client_began) = (Instant::now(), server_cpu()?, cpu_time(std::process::id())?);
    let mut watching = (0..options.connections)
        .map(|_| Watching::open(options, before + 1))
        .collect::<io::Result<Vec<_>>>()?;
    let expected = options.events * watches as u64;
    let (mut events, mut gets, mut latency_ns) = (0, 0, histogram()?);
    start(&mut client, &recipes, GET);
    while events < expected {
        client.wire.flush()?;
        for connection in &mut watching {
            connection.ask();
            connection.streams.wire.flush()?;
        }
        let polled = await_all(&client, &watching)?;
        if polled.first().is_some_and(|polled| polled.revents != 0) {
            let mut ended = None;
            client.receive(&mut |call| ended = Some(call))?;
            if let Some(call) = ended {
                if !call.good {
                    return Err(io::Error::other("a get failed"));
                }
                latency_ns.saturating_record((call.ended - call.began).as_nanos() as u64);
                gets += 1;
                start(&mut client, &recipes, GET);
            }
        }
        for (connection, polled) in watching.iter_mut().zip(polled.iter().skip(1)) {
            if polled.revents != 0 {
                connection.streams.receive(&mut |_| events += 1)?;
            }
        }
    }
    let elapsed = began.elapsed();
    if events > expected {
        return Err(io::Error::other(format!("{events} events, and {expected} were made")));
    }
    let per_event = |cpu: Duration| cpu.as_secs_f64() * 1e6 / events.max(1) as f64;
    let server_used = server_cpu()?
        .zip(server_began)
        .map(|(after, before)| after.saturating_sub(before));
    let client_used = cpu_time(std::process::id())?.saturating_sub(client_began);
    let at = |share: f64| latency_ns.value_at_quantile(share) as f64 / 1e3;
    println!(
        "{}",
        json!({
            "calls": gets,
            "seconds": elapsed.as_secs_f64(),
            "rate": gets as f64 / elapsed.as_secs_f64(),
            "event_rate": events as f64 / elapsed.as_secs_f64(),
            "events": events,
            "p50_us": at(0.5),
            "p90_us": at(0.9),
            "p99_us": at(0.99),
            "p999_us": at(0.999),
            "max_us": latency_ns.max() as f64 / 1e3,
            "server_cpu_us": server_used.map(per_event),
            "client_cpu_us": per_event(client_used),
            "client_busy": client_used.as_secs_f64() / elapsed.as_secs_f64(),
            "failed": 0,
            "revision_rose": revision(options.address)? - before,
            "latency": distribution(&latency_ns),
        })
    );
    match &options.histogram {
        Some(path) => series::store(&latency_ns, path),
        None => Ok(()),
    }
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
