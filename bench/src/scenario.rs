//! The command line: which scenario, with which knobs.

use crate::flags::Flags;
use crate::load::group::Part;
use crate::load::recipe::{List, Recipe};
use crate::load::workload::{
    Churn, Compactions, Fill, Flood, Heartbeats, LeaseCycles, Leases, Lists, Mix, Relist, Stm, Workload,
};
use crate::load::{Options, Until};
use std::path::PathBuf;
use std::time::Duration;

pub const USAGE: &str = "usage: ringd-bench SCENARIO [FLAG VALUE]...
scenarios; keys are random unless said, and calls unary:
  fill             puts every key once, in order
  put, get         of one key
  mixed            puts and gets
  txn-put          Txns that put --txn-ops keys
  txn-mixed        Txns that put --txn-ops keys, and Txns that get one key, or --limit of them
  stm              software transactions as etcd's clients make them: --keys-per-txn keys are read, and --txn-wr-percent
                   of them put if none was changed meanwhile, else all of it again; each counts as one call
  range            lists of all keys; with --limit parts of them, with --prefix-digits those with a common prefix, with
                   --paginate 1 page by page at one revision, a whole list counting as one call
  lease-grant      new leases
  lease-keepalive  renews --keys leases, granted first, each slot on a stream of its own
  lease-churn      grants a lease, puts a key with it, revokes it
  lease-flood      --keys leases of two seconds, each granted and given a key, which counts as one call; then waits
                   until the server has ended all of them
  heartbeats       --keys nodes renew their objects in turn, by a Txn on the last revision; made first; with --every S
                   each of them every S seconds, which is an open loop
  churn            pods: create, three updates, delete, each by a Txn on the last revision, and gets in between; ten
                   watches (--watchers) hold all of it with previous values
  list-storm       churn while four clients (--lists) list all keys again and again
  apiserver-restart  each connection is an apiserver that has started anew: its --streams resources, equal parts of the
                   keys, are listed at once, by pages of 500 keys (--limit), and then watched; counts as one call
  watch, watch-latency, watch-get   have flags of their own: ringd-bench watch --help
flags, with etcd's names for them:
  --address 127.0.0.1:2379   the server (--endpoints)
  --process PID[,PID...]     the server's process, or its members', for their CPU time and memory
  --connections 16           (--conns)
  --streams 32               calls in flight on each connection, at most (--clients: on all of them)
  --rate R                   calls due per second, late or not (an open loop); without it, as many as get answered
  --total N                  ends after N calls instead of after --seconds, without a warm-up
  --refusals 0               1 to bear, and count apart, calls of put, get, mixed and Txns that the server refuses
                             because too many wait
  --seconds 10               measured, after a fifth as long to warm up
  --seed 1                   of the keys' order
  --histogram FILE           the latencies in ns, HdrHistogram V2
  --keys 1000000             (--key-space-size, --nodes, --leases)
  --sequential-keys 0        1 for keys in order
  --value-bytes 256          (--val-size)
  --consistency l            of gets and lists: l linearizable, s serializable
  --read-share 50            of mixed and txn-mixed, in percent (--rw-ratio)
  --limit 0, --paginate 0, --prefix-digits 0, --stream 0 (1: RangeStream), --keys-only 0, --count-only 0    of lists
  --txn-ops 1, --keys-per-txn 2, --txn-wr-percent 50
and beside any of them:
  --watchers N               watches of all keys with previous values; every change has to reach each of them
  --lists N                  clients that list all keys, as lists are asked for by the flags above
  --put-rate R               puts of random keys a second
  --compact-interval S       a compaction every S seconds
  --compact-index-delta 1000 so many revisions behind the newest
Exits with 1 when a call failed or the revision did not rise by exactly the changes.";

/// Of an apiserver's lists.
const APISERVER_PAGE: u64 = 500;

pub struct Scenario {
    pub options: Options,
    /// The first is measured, the others go on beside it.
    pub parts: Vec<Part>,
    pub histogram: Option<PathBuf>,
}

/// What the arguments ask for.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Scenario, String> {
    let name = arguments.next().ok_or("the scenario is missing")?;
    let mut flags = usual(&name).read(arguments)?;
    let measured = Duration::from_secs_f64(flags.seconds);
    let until = match name.as_str() {
        "fill" | "lease-flood" => {
            flags.total = Some(flags.keys);
            Until::Exhausted
        }
        _ if flags.total.is_some() => Until::Exhausted,
        _ => Until::Elapsed {
            warm_up: measured / 5,
            measured,
        },
    };
    if name == "lease-flood" && flags.watchers > 0 {
        return Err("lease-flood: no watchers beside it, since what they get comes after its end".into());
    }
    let bears = ["put", "get", "mixed", "txn-put", "txn-mixed"];
    if flags.refusals && !bears.contains(&name.as_str()) {
        return Err(format!(
            "--refusals: what comes next of {name} depends on each call's answer"
        ));
    }
    if name == "heartbeats" && flags.every > 0.0 {
        flags.rate = Some(flags.keys as f64 / flags.every);
    }
    let mut parts = vec![Part {
        name: "",
        workload: workload(&name, &flags)?,
        connections: flags.connections,
        streams: flags.streams,
        rate: flags.rate,
        total: flags.total,
        bears_refusals: flags.refusals,
    }];
    parts.extend(beside(&flags));
    Ok(Scenario {
        options: Options {
            address: flags.address,
            until,
            seed: flags.seed,
            process: flags.process,
            watchers: flags.watchers,
        },
        parts,
        histogram: flags.histogram,
    })
}

/// What a scenario does without flags.
fn usual(name: &str) -> Flags {
    let mut flags = Flags::default();
    match name {
        "churn" => flags.watchers = 10,
        "list-storm" => (flags.watchers, flags.lists) = (10, 4),
        "apiserver-restart" => {
            (flags.connections, flags.streams) = (1, 20);
            flags.list.limit = APISERVER_PAGE;
        }
        _ => {}
    }
    flags
}

fn workload(name: &str, flags: &Flags) -> Result<Box<dyn Workload>, String> {
    let (keys, value_bytes) = (flags.keys, flags.value_bytes);
    let slots = flags.connections * flags.streams;
    let mix = |recipes: Vec<Recipe>, operations: usize| -> Box<dyn Workload> {
        Box::new(Mix {
            second_share: if recipes.len() > 1 { flags.read_share } else { 0 },
            recipes,
            keys: keys - (operations as u64 - 1),
            next: flags.sequential.then_some(0),
        })
    };
    let get = || Recipe::get(flags.list.serializable, value_bytes);
    let txn_put = || Recipe::txn_put(flags.txn_ops, value_bytes);
    Ok(match name {
        "fill" => Box::new(Fill {
            recipes: vec![Recipe::put(value_bytes)],
            keys,
            next: 0,
        }),
        "put" => mix(vec![Recipe::put(value_bytes)], 1),
        "get" => mix(vec![get()], 1),
        "mixed" => mix(vec![Recipe::put(value_bytes), get()], 1),
        "txn-put" => mix(vec![txn_put()], flags.txn_ops),
        "txn-mixed" => mix(vec![txn_put(), Recipe::txn_get(flags.list.limit)], flags.txn_ops),
        "stm" => {
            flags.check_stm()?;
            let (per_txn, write_percent) = (flags.keys_per_txn, flags.write_percent);
            Box::new(Stm::new(slots, keys, per_txn, write_percent, value_bytes))
        }
        "range" if flags.paginate => Box::new(Relist::new(slots, 1, keys, flags.list, false)),
        "range" => Box::new(lists(flags)?),
        "lease-grant" => Box::new(Leases::granted()),
        "lease-keepalive" => Box::new(Leases::renewed(keys)),
        "lease-churn" => Box::new(LeaseCycles::new(slots, value_bytes)),
        "lease-flood" => Box::new(Flood::new(slots, keys, value_bytes)),
        "heartbeats" => Box::new(Heartbeats::new(keys, value_bytes)),
        "churn" | "list-storm" => Box::new(Churn::new(slots, value_bytes)),
        "apiserver-restart" => {
            let resources = flags.streams as u64;
            if !keys.is_multiple_of(resources) {
                return Err(format!(
                    "apiserver-restart: {resources} resources can't share {keys} keys evenly"
                ));
            }
            Box::new(Relist::new(flags.connections, flags.streams, keys, flags.list, true))
        }
        _ => return Err(format!("there is no scenario {name:?}")),
    })
}

/// One list after the other.
fn lists(flags: &Flags) -> Result<Lists, String> {
    let part = match flags.prefix_digits {
        0 => flags.list.limit,
        digits => 10_u64.pow(digits),
    };
    if part > flags.keys {
        return Err(format!("{part} keys are asked for, and there are {}", flags.keys));
    }
    let list = List {
        ends: flags.prefix_digits > 0,
        ..flags.list
    };
    Ok(Lists {
        recipes: vec![Recipe::list(list)],
        keys: flags.keys,
        part,
    })
}

/// What goes on beside the load.
fn beside(flags: &Flags) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |name, workload: Box<dyn Workload>, connections, streams, rate| {
        parts.push(Part {
            name,
            workload,
            connections,
            streams,
            rate,
            total: None,
            bears_refusals: false,
        });
    };
    if flags.lists > 0 {
        let lists = Relist::new(flags.lists, 1, flags.keys, flags.list, false);
        add("lists", Box::new(lists), flags.lists, 1, None);
    }
    if flags.put_rate > 0.0 {
        let puts = Mix {
            recipes: vec![Recipe::put(flags.value_bytes)],
            keys: flags.keys,
            second_share: 0,
            next: None,
        };
        add("puts", Box::new(puts), 1, 64, Some(flags.put_rate));
    }
    if let Some(seconds) = flags.compact_interval {
        let compactions = Compactions::new(flags.compact_index_delta);
        add("compactions", Box::new(compactions), 1, 1, Some(1.0 / seconds));
    }
    parts
}
