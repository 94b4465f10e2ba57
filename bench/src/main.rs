//! `ringd-bench`: loads one etcd server and prints what it saw as one JSON object; `scripts/bench` compares servers
//! with it.

mod load;
mod watch;

use load::{Operation, Options, Report, Until, process};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: ringd-bench fill|put|get [FLAG VALUE]...
  fill  puts every key once, in order
  put   puts random keys
  get   gets random keys, linearizable
  watch has flags of its own: ringd-bench watch --help
flags:
  --address 127.0.0.1:2379   the server
  --process PID              the server's process, for its CPU time and memory
  --connections 16
  --streams 32               calls in flight on each connection
  --keys 1000000
  --value-bytes 256
  --seconds 10               measured, after a fifth as long to warm up
  --seed 1                   of the keys' order
Exits with 1 when a call failed or the revision did not rise by exactly the puts.";

fn main() -> ExitCode {
    if let Some(code) = watch::main() {
        return code;
    }
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("ringd-bench: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = load::run(&options).and_then(|report| {
        println!("{}", describe(&options, &report)?);
        Ok(faults(&options, &report))
    });
    let faults = outcome.unwrap_or_else(|error| vec![format!("{}: {error}", options.address)]);
    for fault in &faults {
        eprintln!("ringd-bench: {fault}");
    }
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let command = arguments.next().ok_or("what to do is missing")?;
    let operation = match command.as_str() {
        "fill" | "put" => Operation::Put,
        "get" => Operation::Get,
        other => return Err(format!("{other:?} is nothing it can do")),
    };
    let mut options = Options {
        address: ([127, 0, 0, 1], 2379).into(),
        operation,
        connections: 16,
        streams: 32,
        keys: 1_000_000,
        value_bytes: 256,
        until: Until::EachKeyOnce,
        seed: 1,
        process: None,
    };
    let mut seconds = 10.0;
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--address" => options.address = number(&flag, &value)?,
            "--process" => options.process = Some(number(&flag, &value)?),
            "--connections" => options.connections = number(&flag, &value)?,
            "--streams" => options.streams = number(&flag, &value)?,
            "--keys" => options.keys = number(&flag, &value)?,
            "--value-bytes" => options.value_bytes = number(&flag, &value)?,
            "--seconds" => seconds = number(&flag, &value)?,
            "--seed" => options.seed = number(&flag, &value)?,
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    if options.connections == 0 || options.streams == 0 || !(1..1_000_000_000).contains(&options.keys) {
        return Err("it takes a connection, a stream, and 1 to 999999999 keys at least".into());
    }
    if !(8..=16_000).contains(&options.value_bytes) || !(0.1..100_000.0).contains(&seconds) {
        return Err("values have 8 to 16000 bytes, and a run takes a tenth of a second or longer".into());
    }
    if command != "fill" {
        let measured = Duration::from_secs_f64(seconds);
        options.until = Until::Elapsed {
            warm_up: measured / 5,
            measured,
        };
    }
    Ok(options)
}

fn number<T: std::str::FromStr<Err: std::fmt::Display>>(flag: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|error| format!("{flag} {value:?}: {error}"))
}

fn describe(options: &Options, report: &Report) -> std::io::Result<serde_json::Value> {
    let at = |share: f64| report.latency_ns.value_at_quantile(share) as f64 / 1e3;
    let per_call = |cpu: Duration| cpu.as_secs_f64() * 1e6 / report.measured.max(1) as f64;
    let resident = options.process.map(process::resident_bytes).transpose()?;
    Ok(json!({
        "calls": report.measured,
        "seconds": report.elapsed.as_secs_f64(),
        "rate": report.measured as f64 / report.elapsed.as_secs_f64(),
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "max_us": report.latency_ns.max() as f64 / 1e3,
        "server_cpu_us": report.server_cpu.map(per_call),
        "client_cpu_us": per_call(report.client_cpu),
        "client_busy": report.client_cpu.as_secs_f64() / report.elapsed.as_secs_f64(),
        "rss_bytes": resident.map(|(all, _)| all),
        "rss_anonymous_bytes": resident.map(|(_, anonymous)| anonymous),
        "failed": report.failed,
        "revision_rose": report.revisions.1 - report.revisions.0,
    }))
}

/// Why the run's numbers do not count.
fn faults(options: &Options, report: &Report) -> Vec<String> {
    let mut faults = Vec::new();
    if report.failed > 0 {
        faults.push(format!("{} of {} calls failed", report.failed, report.finished));
    }
    let rose = report.revisions.1 - report.revisions.0;
    let puts = match options.operation {
        Operation::Put => report.finished - report.failed,
        Operation::Get => 0,
    };
    if rose != puts as i64 {
        faults.push(format!("the revision rose by {rose}, with {puts} puts"));
    }
    if report.measured == 0 {
        faults.push("not a single call ended".into());
    }
    faults
}
