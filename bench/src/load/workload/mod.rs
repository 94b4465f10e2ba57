//! What is called: for each slot, a call's place on a connection, which call comes next.
//!
//! A workload knows what its calls depend on (the revision of a key's last change, the lease a slot holds) and nothing
//! of connections and time.

mod kubernetes;
mod leases;
mod lists;
mod points;
mod stm;

pub use kubernetes::{Churn, Heartbeats};
pub use leases::{Flood, LeaseCycles, Leases};
pub use lists::{Lists, Relist};
pub use points::{Compactions, Fill, Mix};
pub use stm::Stm;

use super::recipe::{Call, Recipe};
use super::reply::Reply;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A free slot that may make a call.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub slot: usize,
    /// Uniform.
    pub random: u64,
    /// When the call is due.
    pub due: Instant,
    /// The newest revision that any answer of the run named.
    pub newest: i64,
}

/// What a call that ended well counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// One call.
    Call,
    /// A part of something that goes on.
    Part,
    /// The last part of something that began then, which counts as one call.
    Since(Instant),
}

/// A source of calls.
pub trait Workload {
    /// The kinds of calls it makes; `Call::recipe` is an index into it.
    fn recipes(&self) -> &[Recipe];

    /// The next call of a free slot. None if there is none now: after the last one, or while others have to end first.
    fn next(&mut self, turn: Turn) -> Option<Call>;

    /// A call of that slot ended well.
    fn done(&mut self, _slot: usize, _call: &Call, _reply: &Reply) -> Counts {
        Counts::Call
    }

    /// A call that is due at once, in a slot that is free; asked for after `next` and `done` until there is none.
    fn at_once(&mut self) -> Option<(usize, Call)> {
        None
    }

    /// Whether what is to be measured may begin. Calls before that prepare it.
    fn is_prepared(&self) -> bool {
        true
    }

    /// By how much the store's revision rises by itself after the run, as leases expire.
    fn rises_after(&self) -> u64 {
        0
    }

    /// What else is to be told of the run.
    fn told(&self) -> Option<(&'static str, u64)> {
        None
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn turn(slot: usize, random: u64) -> Turn {
        Turn {
            slot,
            random,
            due: Instant::now(),
            newest: 0,
        }
    }

    pub fn reply(revision: i64) -> Reply {
        Reply {
            revision,
            ..Reply::default()
        }
    }
}
