//! The flags of a load, ours and those that etcd's own `benchmark` has for the same.

use crate::load::process::Processes;
use crate::load::recipe::{KEYS_MAX, KEYS_PER_CALL, List, NUMBERS_PER_CALL, Shows};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The largest message etcd takes, less what goes around a value.
const VALUE_BYTES_MAX: usize = (3 << 19) - 256;
/// Of etcd's `range --paginate`.
const PAGE_KEYS: u64 = 10_000;
/// The largest value with which an answer is sure to tell all of its numbers in its first frame.
const STM_VALUE_BYTES_MAX: usize = 8192;

#[derive(Clone, Debug)]
pub struct Flags {
    pub address: SocketAddr,
    pub process: Option<Processes>,
    pub connections: usize,
    pub streams: usize,
    pub rate: Option<f64>,
    pub total: Option<u64>,
    pub refusals: bool,
    pub seconds: f64,
    pub seed: u64,
    pub histogram: Option<PathBuf>,
    pub keys: u64,
    pub sequential: bool,
    pub value_bytes: usize,
    pub list: List,
    pub paginate: bool,
    /// Keys that share all but so many digits are a list.
    pub prefix_digits: u32,
    pub read_share: u64,
    pub txn_ops: usize,
    pub keys_per_txn: usize,
    pub write_percent: usize,
    /// Seconds between two renewals of a node.
    pub every: f64,
    pub watchers: usize,
    /// Clients that list all keys meanwhile.
    pub lists: usize,
    /// Puts a second meanwhile.
    pub put_rate: f64,
    /// Seconds.
    pub compact_interval: Option<f64>,
    pub compact_index_delta: i64,
}

impl Default for Flags {
    fn default() -> Flags {
        Flags {
            address: ([127, 0, 0, 1], 2379).into(),
            process: None,
            connections: 16,
            streams: 32,
            rate: None,
            total: None,
            refusals: false,
            seconds: 10.0,
            seed: 1,
            histogram: None,
            keys: 1_000_000,
            sequential: false,
            value_bytes: 256,
            list: List::default(),
            paginate: false,
            prefix_digits: 0,
            read_share: 50,
            txn_ops: 1,
            keys_per_txn: 2,
            write_percent: 50,
            every: 0.0,
            watchers: 0,
            lists: 0,
            put_rate: 0.0,
            compact_interval: None,
            compact_index_delta: 1000,
        }
    }
}

impl Flags {
    /// Reads and checks the flags of a scenario over what it does without them.
    pub fn read(mut self, mut arguments: impl Iterator<Item = String>) -> Result<Flags, String> {
        let mut clients = None;
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--clients" => clients = Some(number::<usize>(&flag, &value)?),
                _ if self.set_load(&flag, &value)? || self.set_calls(&flag, &value)? => {}
                _ if self.set_beside(&flag, &value)? => {}
                _ => return Err(format!("there is no flag {flag}")),
            }
        }
        if let Some(clients) = clients {
            if self.connections == 0 || !clients.is_multiple_of(self.connections) {
                return Err("--clients: a multiple of the connections".into());
            }
            self.streams = clients / self.connections;
        }
        self.check()?;
        Ok(self)
    }

    fn set_load(&mut self, flag: &str, value: &str) -> Result<bool, String> {
        match flag {
            "--address" | "--endpoints" => self.address = number(flag, value)?,
            "--process" => self.process = Some(number(flag, value)?),
            "--connections" | "--conns" => self.connections = number(flag, value)?,
            "--streams" => self.streams = number(flag, value)?,
            "--rate" => self.rate = Some(number(flag, value)?),
            "--total" => self.total = Some(number(flag, value)?),
            "--refusals" => self.refusals = switch(flag, value)?,
            "--seconds" => self.seconds = number(flag, value)?,
            "--seed" => self.seed = number(flag, value)?,
            "--histogram" => self.histogram = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_calls(&mut self, flag: &str, value: &str) -> Result<bool, String> {
        match flag {
            "--keys" | "--key-space-size" | "--nodes" | "--leases" => self.keys = number(flag, value)?,
            "--sequential-keys" => self.sequential = switch(flag, value)?,
            "--value-bytes" | "--val-size" => self.value_bytes = number(flag, value)?,
            "--consistency" if value == "l" || value == "s" => self.list.serializable = value == "s",
            "--consistency" => return Err(format!("--consistency {value:?} is neither l nor s")),
            "--limit" => self.list.limit = number(flag, value)?,
            "--stream" => self.list.stream = switch(flag, value)?,
            "--paginate" => self.paginate = switch(flag, value)?,
            "--prefix-digits" => self.prefix_digits = number(flag, value)?,
            "--keys-only" if switch(flag, value)? => self.list.shows = Shows::Keys,
            "--count-only" if switch(flag, value)? => self.list.shows = Shows::Count,
            "--keys-only" | "--count-only" => {}
            "--read-share" => self.read_share = number(flag, value)?,
            "--rw-ratio" => {
                let ratio: f64 = number(flag, value)?;
                self.read_share = (100.0 * ratio / (1.0 + ratio)).round() as u64;
            }
            "--txn-ops" => self.txn_ops = number(flag, value)?,
            "--keys-per-txn" => self.keys_per_txn = number(flag, value)?,
            "--txn-wr-percent" => self.write_percent = number(flag, value)?,
            "--every" => self.every = number(flag, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_beside(&mut self, flag: &str, value: &str) -> Result<bool, String> {
        match flag {
            "--watchers" => self.watchers = number(flag, value)?,
            "--lists" => self.lists = number(flag, value)?,
            "--put-rate" => self.put_rate = number(flag, value)?,
            "--compact-interval" => self.compact_interval = Some(number(flag, value)?),
            "--compact-index-delta" => self.compact_index_delta = number(flag, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check(&mut self) -> Result<(), String> {
        if self.connections == 0 || self.streams == 0 || !(1..KEYS_MAX / 4).contains(&self.keys) {
            return Err("it takes a connection, a stream, and 1 to 249999999 keys at least".into());
        }
        if !(8..=VALUE_BYTES_MAX).contains(&self.value_bytes) {
            return Err(format!("--value-bytes: values have 8 to {VALUE_BYTES_MAX} bytes"));
        }
        if !(0.1..100_000.0).contains(&self.seconds) {
            return Err("--seconds: a run takes a tenth of a second or longer".into());
        }
        let rates = [self.rate, Some(self.put_rate).filter(|rate| *rate != 0.0)];
        if rates.into_iter().flatten().any(|rate| !(0.1..=1e8).contains(&rate)) {
            return Err("--rate, --put-rate: from 0.1 to 100000000 calls a second".into());
        }
        if self
            .compact_interval
            .is_some_and(|seconds| !(0.01..=1e6).contains(&seconds))
        {
            return Err("--compact-interval: seconds, from 0.01 to 1000000".into());
        }
        if self.compact_index_delta < 0 || self.read_share > 100 || self.write_percent > 100 {
            return Err("--compact-index-delta is not below 0, and shares are percents, 0 to 100".into());
        }
        if !(1..=KEYS_PER_CALL).contains(&self.txn_ops) || self.txn_ops as u64 > self.keys {
            return Err(format!("--txn-ops: 1 to {KEYS_PER_CALL}, and not more than keys"));
        }
        if !(1..=NUMBERS_PER_CALL).contains(&self.keys_per_txn) {
            return Err(format!("--keys-per-txn: 1 to {NUMBERS_PER_CALL}"));
        }
        if self.prefix_digits > 6 || self.total == Some(0) || !(0.0..=1e6).contains(&self.every) {
            return Err("--prefix-digits: 0 to 6; --total: 1 or more; --every: 0 to 1000000 seconds".into());
        }
        if self.paginate && self.list.limit == 0 {
            self.list.limit = PAGE_KEYS;
        }
        Ok(())
    }

    /// What the scenario `stm` asks of them beside.
    pub fn check_stm(&self) -> Result<(), String> {
        if self.keys_per_txn as u64 > self.keys || self.value_bytes > STM_VALUE_BYTES_MAX {
            return Err(format!(
                "stm: --keys-per-txn is not above --keys, and values have at most {STM_VALUE_BYTES_MAX} bytes"
            ));
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr<Err: std::fmt::Display>>(flag: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|error| format!("{flag} {value:?}: {error}"))
}

/// 1, 0, or the words that etcd's tool takes.
fn switch(flag: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("{flag} {value:?} is neither 1 nor 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Flags, String> {
        Flags::default().read(text.split_whitespace().map(str::to_string))
    }

    #[test]
    fn etcds_names_mean_the_same() {
        let flags = read("--conns 10 --clients 100 --val-size 64 --key-space-size 5 --rw-ratio 3 --total 7").unwrap();
        assert_eq!((flags.connections, flags.streams, flags.value_bytes), (10, 10, 64));
        assert_eq!((flags.keys, flags.read_share, flags.total), (5, 75, Some(7)));
        let flags = read("--compact-interval 0.5 --compact-index-delta 10 --paginate true --count-only 1").unwrap();
        assert_eq!((flags.compact_interval, flags.compact_index_delta), (Some(0.5), 10));
        assert_eq!((flags.list.limit, flags.list.shows), (10_000, Shows::Count));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        for wrong in [
            "--keys 0",
            "--clients 17",
            "--value-bytes 7",
            "--rate 0",
            "--txn-ops 129",
            "--keys-per-txn 5",
            "--consistency x",
            "--stream maybe",
            "--seconds",
            "--what 1",
            "--read-share 101",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
