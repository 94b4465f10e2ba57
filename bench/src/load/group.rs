//! A group of connections with one workload, its arrivals and its counts: the load that is measured is one, and each
//! thing that goes on beside it.

use super::connection::{Connection, Finished};
use super::ready::Ready;
use super::recipe::{Call, Recipe};
use super::series;
use super::workload::{Counts, Turn, Workload};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// What a group is made of.
pub struct Part {
    pub name: &'static str,
    pub workload: Box<dyn Workload>,
    pub connections: usize,
    /// Calls in flight on each connection, at most.
    pub streams: usize,
    /// Calls due per second; closed loop if None.
    pub rate: Option<f64>,
    /// Calls after which it has none any more.
    pub total: Option<u64>,
    /// Whether refused calls are counted apart and no failure. The workload does not hear of them.
    pub bears_refusals: bool,
}

/// Of the whole run.
#[derive(Clone, Copy, Default)]
pub struct Tally {
    pub started: u64,
    pub good: u64,
    pub failed: u64,
    /// Calls that the server refused for having too much to do, and the load is to bear.
    pub refused: u64,
    /// What counts as calls.
    pub measured: u64,
    pub bytes: u64,
    /// By how much the store's revision has to have risen, and how many keys were changed.
    pub expected: u64,
    pub changes: u64,
}

pub struct Group {
    pub name: &'static str,
    pub connections: Vec<Connection>,
    /// Calls in flight on each of them, at most.
    streams: usize,
    pub ledger: Ledger,
    /// Connections that may take calls, or have something to send.
    touched: Vec<usize>,
    pace: Pace,
    message_bytes_max: usize,
    random: u64,
    total: u64,
    /// New calls that the workload began; not those it goes on with.
    begun: u64,
    /// The workload has no call, and waits for none.
    pub exhausted: bool,
}

/// What is called, and what came of it.
pub struct Ledger {
    pub workload: Box<dyn Workload>,
    recipes: Vec<Recipe>,
    /// Calls of the workload that are due, for want of room not started.
    pending: VecDeque<(usize, Call)>,
    bears_refusals: bool,
    pub counts: Tally,
    pub latency_ns: Histogram<u64>,
    /// The newest revision that an answer named.
    pub newest: i64,
}

/// When calls are due.
struct Pace {
    /// Between two calls of an open loop.
    interval: Option<Duration>,
    due: Instant,
    /// The connection that is asked first for room.
    turn: usize,
    /// No call can start before something comes.
    blocked: bool,
}

impl Ledger {
    /// Counts a call in `slot` of the group that has ended. Returns how long it took, or the whole that it ended, if
    /// that counts as a call.
    #[inline]
    fn ended(&mut self, slot: usize, call: &Finished) -> Option<Duration> {
        if !call.good {
            let refused = call.refused && self.bears_refusals;
            self.counts.refused += u64::from(refused);
            self.counts.failed += u64::from(!refused);
            return None;
        }
        self.counts.good += 1;
        self.counts.bytes += call.bytes;
        self.newest = self.newest.max(call.reply.revision);
        let recipe = &self.recipes[call.call.recipe];
        if recipe.has_changed(&call.reply) {
            self.counts.expected += recipe.revisions;
            self.counts.changes += recipe.changes;
        }
        let counts = self.workload.done(slot, &call.call, &call.reply);
        self.gather();
        let began = match counts {
            Counts::Part => return None,
            Counts::Call => call.began,
            Counts::Since(began) => began,
        };
        self.counts.measured += 1;
        Some(call.ended.saturating_duration_since(began))
    }

    /// Takes the calls that the workload goes on with.
    #[inline]
    fn gather(&mut self) {
        while let Some(next) = self.workload.at_once() {
            self.pending.push_back(next);
        }
    }
}

impl Group {
    /// Connects.
    pub fn open(part: Part, address: SocketAddr, seed: u64) -> io::Result<Self> {
        let recipes = part.workload.recipes().to_vec();
        let connections = (0..part.connections)
            .map(|_| Connection::open(address, recipes.len(), part.streams))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            name: part.name,
            touched: (0..connections.len()).collect(),
            connections,
            streams: part.streams,
            message_bytes_max: recipes.iter().map(Recipe::length).max().unwrap_or_default(),
            ledger: Ledger {
                workload: part.workload,
                recipes,
                pending: VecDeque::new(),
                bears_refusals: part.bears_refusals,
                counts: Tally::default(),
                latency_ns: series::histogram()?,
                newest: 0,
            },
            pace: Pace {
                interval: part.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
                due: Instant::now(),
                turn: 0,
                blocked: false,
            },
            random: seed,
            total: part.total.unwrap_or(u64::MAX),
            begun: 0,
            exhausted: false,
        })
    }

    pub fn in_flight(&self) -> u64 {
        let counts = &self.ledger.counts;
        counts.started - counts.good - counts.failed - counts.refused
    }

    /// Everything was prepared; an open loop's first call is due after its first interval.
    pub fn begin(&mut self, now: Instant) {
        self.pace.due = now + self.pace.interval.unwrap_or_default();
        self.touched = (0..self.connections.len()).collect();
    }

    /// When it has something to do though nothing comes; None if only what comes can bring that about.
    pub fn next_due(&self) -> Option<Instant> {
        (self.pace.interval.is_some() && !self.pace.blocked).then_some(self.pace.due)
    }

    /// Notes that a connection was heard of or has room.
    pub fn touch(&mut self, which: usize) {
        self.touched.push(which);
    }

    /// Sends what is queued. `full` says of each connection, numbered from `first` on, whether `ready` tells of room.
    pub fn flush(&mut self, first: usize, full: &mut [bool], ready: &Ready) -> io::Result<()> {
        self.touched.sort_unstable();
        self.touched.dedup();
        for which in self.touched.drain(..) {
            let wire = &mut self.connections[which].wire;
            wire.flush()?;
            if wire.has_output() != full[first + which] {
                full[first + which] = wire.has_output();
                ready.change(wire.socket().as_fd(), first + which, wire.has_output())?;
            }
        }
        Ok(())
    }

    /// Starts what may start now. `began` says whether everything is prepared, `newest` is the newest revision known.
    pub fn start_calls(&mut self, began: bool, newest: i64, now: Instant) {
        if !began && self.ledger.workload.is_prepared() {
            return;
        }
        self.start_pending(now);
        if self.pace.interval.is_some() && began {
            self.start_due(newest, now);
        } else {
            self.start_free(newest, now);
        }
        self.start_pending(now);
        self.exhausted &= self.in_flight() == 0 && self.ledger.pending.is_empty();
    }

    /// Of a closed loop: on each connection that was heard of as many as there is room for.
    fn start_free(&mut self, newest: i64, now: Instant) {
        self.exhausted = false;
        for at in 0..self.touched.len() {
            let which = self.touched[at];
            while let Some(slot) = self.connections[which].free_slot(self.message_bytes_max) {
                if !self.start_new(which, slot, newest, now) {
                    self.exhausted = true;
                    break;
                }
            }
        }
    }

    /// Of an open loop: on the next connection with room, in turn; what finds none stays due.
    fn start_due(&mut self, newest: i64, now: Instant) {
        self.exhausted = self.begun == self.total;
        self.pace.blocked = self.exhausted;
        while self.pace.due <= now && !self.pace.blocked {
            let (count, turn) = (self.connections.len(), self.pace.turn);
            let started = (turn..turn + count).map(|which| which % count).find(|&which| {
                let slot = self.connections[which].free_slot(self.message_bytes_max);
                slot.is_some_and(|slot| self.start_new(which, slot, newest, self.pace.due))
            });
            let Some(which) = started else {
                self.pace.blocked = true;
                break;
            };
            self.pace.turn = (which + 1) % count;
            self.pace.due += self.pace.interval.unwrap_or_default();
            self.pace.blocked = self.begun == self.total;
            self.touched.push(which);
        }
    }

    /// Starts a new call of the workload, if it has one.
    #[inline]
    fn start_new(&mut self, which: usize, slot: usize, newest: i64, due: Instant) -> bool {
        if self.begun == self.total {
            return false;
        }
        let turn = Turn {
            slot: which * self.streams + slot,
            random: self.next_random(),
            due,
            newest,
        };
        let Some(call) = self.ledger.workload.next(turn) else {
            return false;
        };
        self.ledger.gather();
        self.begun += 1;
        self.start(which, slot, call, due);
        true
    }

    /// Starts the calls that the workload goes on with, as far as there is room.
    fn start_pending(&mut self, now: Instant) {
        for _ in 0..self.ledger.pending.len() {
            let Some((slot, call)) = self.ledger.pending.pop_front() else {
                return;
            };
            let (which, place) = (slot / self.streams, slot % self.streams);
            if self.connections[which].has_room(place, self.message_bytes_max) {
                self.start(which, place, call, now);
                self.touched.push(which);
            } else {
                self.ledger.pending.push_back((slot, call));
            }
        }
    }

    #[inline]
    fn start(&mut self, which: usize, slot: usize, call: Call, began: Instant) {
        self.ledger.counts.started += 1;
        self.connections[which].start(slot, &self.ledger.recipes[call.recipe], call, self.random, began);
    }

    /// splitmix64.
    #[inline]
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Reads once from a connection. `latency` hears of each call that counts; without it none is recorded.
    pub fn receive(&mut self, which: usize, mut latency: Option<impl FnMut(u64)>) -> io::Result<()> {
        let (ledger, first_slot) = (&mut self.ledger, which * self.streams);
        self.connections[which].receive(&mut |call: Finished| {
            let took = ledger.ended(first_slot + call.slot, &call);
            if let (Some(took), Some(latency)) = (took, &mut latency) {
                let latency_ns = took.as_nanos() as u64;
                ledger.latency_ns.saturating_record(latency_ns);
                latency(latency_ns);
            }
        })
    }
}
