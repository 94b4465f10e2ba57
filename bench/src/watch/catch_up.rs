//! Watches that start at the first revision: how fast a server reads its history back to them.

use super::streams::Streams;
use super::{Options, SILENCE, await_any};
use crate::load::process::{self, cpu_time};
use crate::load::revision;
use ringd::proto::etcdserverpb::WatchCreateRequest;
use serde_json::json;
use std::io;
use std::time::{Duration, Instant};

/// Runs it, and prints what was seen.
pub(super) fn run(options: &Options) -> io::Result<()> {
    let newest = revision(options.address)? as u64;
    let server_cpu = || options.process.map(cpu_time).transpose();
    let (began, cpu) = (Instant::now(), server_cpu()?);
    let mut watching = Vec::new();
    for _ in 0..options.connections {
        let mut connection = Streams::open(options.address)?;
        for _ in 0..options.streams {
            let watch = WatchCreateRequest {
                key: vec![0].into(),
                range_end: vec![0].into(),
                start_revision: 1,
                prev_kv: options.prev_kv,
                ..Default::default()
            };
            connection.watch(vec![watch; options.watches]);
        }
        watching.push(connection);
    }
    let watches = options.connections * options.streams * options.watches;
    // The first revision is 2, and each is a put.
    let expected = (newest - 1) * watches as u64;
    let (mut events, mut bytes, mut first) = (0, 0, None);
    while events < expected {
        for connection in &mut watching {
            connection.wire.flush()?;
        }
        let polled = await_any(watching.iter().map(|connection| &connection.wire), SILENCE)?;
        for (connection, _) in watching
            .iter_mut()
            .zip(&polled)
            .filter(|(_, polled)| polled.revents != 0)
        {
            connection.receive(&mut |event| {
                events += 1;
                bytes += event.value.len() as u64;
            })?;
        }
        first = first.or_else(|| (events > 0).then(|| began.elapsed()));
    }
    let elapsed = began.elapsed();
    let used = server_cpu()?
        .zip(cpu)
        .map(|(after, before)| after.saturating_sub(before));
    let resident = options.process.map(process::resident_bytes).transpose()?;
    println!(
        "{}",
        json!({
            "calls": events,
            "seconds": elapsed.as_secs_f64(),
            "rate": events as f64 / elapsed.as_secs_f64(),
            "value_bytes_rate": bytes as f64 / elapsed.as_secs_f64(),
            "first_us": first.unwrap_or_default().as_secs_f64() * 1e6,
            "server_cpu_us": used.map(|used: Duration| used.as_secs_f64() * 1e6 / events.max(1) as f64),
            "rss_bytes": resident.map(|(all, _)| all),
        })
    );
    Ok(())
}
