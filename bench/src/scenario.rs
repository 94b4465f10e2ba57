//! The command line: which scenario, with which knobs.

use crate::load::recipe::{KEYS_MAX, Recipe};
use crate::load::workload::{Churn, Fill, Heartbeats, LeaseCycles, Leases, Lists, Mix, Workload};
use crate::load::{Options, Until};
use std::path::PathBuf;
use std::time::Duration;

pub const USAGE: &str = "usage: ringd-bench SCENARIO [FLAG VALUE]...
scenarios; keys are random unless said, and calls unary:
  fill             puts every key once, in order
  put, get         of one key
  mixed            puts and gets
  txn-put          a Txn that puts one key
  txn-mixed        Txns that put or get one key
  range            lists of all keys, or with --limit pages of them
  lease-grant      new leases
  lease-keepalive  renews --keys leases, granted first, each slot on a stream of its own
  lease-churn      grants a lease, puts a key with it, revokes it
  heartbeats       --keys nodes renew their objects in turn, by a Txn on the last revision; made first
  churn            pods: create, three updates, delete, each by a Txn on the last revision, and gets in between
  watch            has flags of its own: ringd-bench watch --help
flags:
  --address 127.0.0.1:2379   the server
  --process PID              the server's process, for its CPU time and memory
  --connections 16
  --streams 32               calls in flight on each connection, at most
  --rate R                   calls due per second, late or not (an open loop); without it, as many as get answered
  --keys 1000000
  --value-bytes 256
  --consistency l            of gets and lists: l linearizable, s serializable
  --read-share 50            of mixed and txn-mixed, in percent
  --limit 0                  keys of a page, 0 for all
  --stream 0                 1 for lists by RangeStream
  --seconds 10               measured, after a fifth as long to warm up
  --seed 1                   of the keys' order
  --histogram FILE           the latencies in ns, HdrHistogram V2
Exits with 1 when a call failed or the revision did not rise by exactly the changes.";

/// The largest message etcd takes, less what goes around a value.
const VALUE_BYTES_MAX: usize = (3 << 19) - 256;

pub struct Scenario {
    pub options: Options,
    pub workload: Box<dyn Workload>,
    pub histogram: Option<PathBuf>,
}

struct Flags {
    options: Options,
    keys: u64,
    value_bytes: usize,
    serializable: bool,
    read_share: u64,
    limit: u64,
    stream: bool,
    seconds: f64,
    histogram: Option<PathBuf>,
}

/// What the arguments ask for.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Scenario, String> {
    let name = arguments.next().ok_or("the scenario is missing")?;
    let mut flags = read(arguments)?;
    check(&flags)?;
    let measured = Duration::from_secs_f64(flags.seconds);
    if name != "fill" {
        flags.options.until = Until::Elapsed {
            warm_up: measured / 5,
            measured,
        };
    }
    Ok(Scenario {
        workload: workload(&name, &flags)?,
        options: flags.options,
        histogram: flags.histogram,
    })
}

fn workload(name: &str, flags: &Flags) -> Result<Box<dyn Workload>, String> {
    let (keys, value_bytes) = (flags.keys, flags.value_bytes);
    let slots = flags.options.connections * flags.options.streams;
    let mix = |recipes: Vec<Recipe>| -> Box<dyn Workload> {
        let second_share = if recipes.len() > 1 { flags.read_share } else { 0 };
        Box::new(Mix {
            recipes,
            keys,
            second_share,
        })
    };
    let get = || Recipe::get(flags.serializable, value_bytes);
    Ok(match name {
        "fill" => Box::new(Fill {
            recipes: vec![Recipe::put(value_bytes)],
            keys,
            next: 0,
        }),
        "put" => mix(vec![Recipe::put(value_bytes)]),
        "get" => mix(vec![get()]),
        "mixed" => mix(vec![Recipe::put(value_bytes), get()]),
        "txn-put" => mix(vec![Recipe::txn(true, value_bytes)]),
        "txn-mixed" => mix(vec![Recipe::txn(true, value_bytes), Recipe::txn(false, value_bytes)]),
        "range" => Box::new(Lists {
            recipes: vec![Recipe::list(flags.serializable, flags.limit as i64, flags.stream)],
            keys,
            page: flags.limit,
        }),
        "lease-grant" => Box::new(Leases::granted()),
        "lease-keepalive" => Box::new(Leases::renewed(keys)),
        "lease-churn" => Box::new(LeaseCycles::new(slots, value_bytes)),
        "heartbeats" => Box::new(Heartbeats::new(keys, value_bytes)),
        "churn" => Box::new(Churn::new(slots, value_bytes)),
        _ => return Err(format!("there is no scenario {name:?}")),
    })
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Flags, String> {
    let mut flags = Flags {
        options: Options {
            address: ([127, 0, 0, 1], 2379).into(),
            connections: 16,
            streams: 32,
            rate: None,
            until: Until::Exhausted,
            seed: 1,
            process: None,
        },
        keys: 1_000_000,
        value_bytes: 256,
        serializable: false,
        read_share: 50,
        limit: 0,
        stream: false,
        seconds: 10.0,
        histogram: None,
    };
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--address" => flags.options.address = number(&flag, &value)?,
            "--process" => flags.options.process = Some(number(&flag, &value)?),
            "--connections" => flags.options.connections = number(&flag, &value)?,
            "--streams" => flags.options.streams = number(&flag, &value)?,
            "--rate" => flags.options.rate = Some(number(&flag, &value)?),
            "--keys" => flags.keys = number(&flag, &value)?,
            "--value-bytes" => flags.value_bytes = number(&flag, &value)?,
            "--consistency" if value == "l" || value == "s" => flags.serializable = value == "s",
            "--read-share" => flags.read_share = number(&flag, &value)?,
            "--limit" => flags.limit = number(&flag, &value)?,
            "--stream" => flags.stream = number::<u8>(&flag, &value)? != 0,
            "--seconds" => flags.seconds = number(&flag, &value)?,
            "--seed" => flags.options.seed = number(&flag, &value)?,
            "--histogram" => flags.histogram = Some(value.into()),
            "--consistency" => return Err(format!("--consistency {value:?} is neither l nor s")),
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    Ok(flags)
}

fn check(flags: &Flags) -> Result<(), String> {
    if flags.options.connections == 0 || flags.options.streams == 0 || !(1..KEYS_MAX).contains(&flags.keys) {
        return Err("it takes a connection, a stream, and 1 to 999999999 keys at least".into());
    }
    if !(8..=VALUE_BYTES_MAX).contains(&flags.value_bytes) {
        return Err(format!("--value-bytes: values have 8 to {VALUE_BYTES_MAX} bytes"));
    }
    if !(0.1..100_000.0).contains(&flags.seconds) {
        return Err("--seconds: a run takes a tenth of a second or longer".into());
    }
    if flags.options.rate.is_some_and(|rate| !(0.1..=1e8).contains(&rate)) {
        return Err("--rate: from 0.1 to 100000000 calls a second".into());
    }
    Ok(())
}

fn number<T: std::str::FromStr<Err: std::fmt::Display>>(flag: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|error| format!("{flag} {value:?}: {error}"))
}
