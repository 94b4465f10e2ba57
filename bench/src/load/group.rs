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

pub struct Group {
    pub name: &'static str,
    pub workload: Box<dyn Workload>,
    pub connections: Vec<Connection>,
    streams: usize,
    recipes: Vec<Recipe>,
    message_bytes_max: usize,
    random: u64,
    /// Connections that may take calls.
    touched: Vec<usize>,
    /// Calls of the workload that are due, for want of room not started.
    pending: VecDeque<(usize, Call)>,
    pace: Pace,
    total: u64,
    bears_refusals: bool,
    /// New calls that the workload began; not those it goes on with.
    begun: u64,
    pub counts: Tally,
    pub latency_ns: Histogram<u64>,
    /// The workload has no call, and waits for none.
    pub exhausted: bool,
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

/// When calls are due.
struct Pace {
    /// Between two calls of an open loop.
    interval: Option<Duration>,
    due: Instant,
    /// The connection that is asked first for room.
    turn: usize,
    /// A call is due and no connection has room.
    blocked: bool,
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
            workload: part.workload,
            touched: (0..connections.len()).collect(),
            connections,
            streams: part.streams,
            message_bytes_max: recipes.iter().map(Recipe::length).max().unwrap_or_default(),
            recipes,
            random: seed,
            pending: VecDeque::new(),
            pace: Pace {
                interval: part.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
                due: Instant::now(),
                turn: 0,
                blocked: false,
            },
            total: part.total.unwrap_or(u64::MAX),
            bears_refusals: part.bears_refusals,
            begun: 0,
            counts: Tally::default(),
            latency_ns: series::histogram()?,
            exhausted: false,
        })
    }

    pub fn in_flight(&self) -> u64 {
        self.counts.started - self.counts.good - self.counts.failed - self.counts.refused
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

    /// Starts what may start now. `began` says whether everything is prepared.
    pub fn start_calls(&mut self, began: bool, newest: i64, now: Instant) {
        if !began && self.workload.is_prepared() {
            return;
        }
        self.start_pending(now);
        if self.pace.interval.is_some() && began {
            return self.start_due(newest, now);
        }
        let mut waits = false;
        for at in 0..self.touched.len() {
            let which = self.touched[at];
            while let Some(slot) = self.connections[which].free_slot(self.message_bytes_max) {
                if !self.start_new(which, slot, newest, now) {
                    waits = true;
                    break;
                }
            }
        }
        self.start_pending(now);
        self.exhausted = waits && self.in_flight() == 0 && self.pending.is_empty();
    }

    /// Of an open loop: the next connection with room, in turn; what finds none stays due.
    fn start_due(&mut self, newest: i64, now: Instant) {
        self.pace.blocked = self.begun == self.total;
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
        self.start_pending(now);
        self.exhausted = self.begun == self.total && self.in_flight() == 0 && self.pending.is_empty();
    }

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
        let Some(call) = self.workload.next(turn) else {
            return false;
        };
        self.begun += 1;
        self.start(which, slot, call, due);
        while let Some(next) = self.workload.at_once() {
            self.pending.push_back(next);
        }
        true
    }

    /// Starts the calls that the workload goes on with, as far as there is room.
    fn start_pending(&mut self, now: Instant) {
        for _ in 0..self.pending.len() {
            let Some((slot, call)) = self.pending.pop_front() else {
                return;
            };
            let which = slot / self.streams;
            if self.connections[which].has_room(slot % self.streams, self.message_bytes_max) {
                self.start(which, slot % self.streams, call, now);
                self.touched.push(which);
            } else {
                self.pending.push_back((slot, call));
            }
        }
    }

    #[inline]
    fn start(&mut self, which: usize, slot: usize, call: Call, began: Instant) {
        self.counts.started += 1;
        self.connections[which].start(slot, &self.recipes[call.recipe], call, self.random, began);
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

    /// Reads once from a connection. `newest` rises with the answers. `latency` hears of each call that counts; without
    /// it none is recorded.
    pub fn receive(&mut self, which: usize, newest: &mut i64, mut latency: Option<impl FnMut(u64)>) -> io::Result<()> {
        let first_slot = which * self.streams;
        let (counts, workload, recipes) = (&mut self.counts, &mut self.workload, &self.recipes);
        let (histogram, pending, bears) = (&mut self.latency_ns, &mut self.pending, self.bears_refusals);
        self.connections[which].receive(&mut |call: Finished| {
            let Some(began) = count(counts, &mut **workload, recipes, first_slot, bears, &call) else {
                return;
            };
            *newest = (*newest).max(call.reply.revision);
            if let (Some(began), Some(latency)) = (began, &mut latency) {
                let latency_ns = call.ended.saturating_duration_since(began).as_nanos() as u64;
                histogram.saturating_record(latency_ns);
                latency(latency_ns);
            }
            while let Some(next) = workload.at_once() {
                pending.push_back(next);
            }
        })
    }
}

/// Counts a call. None if it failed, else when it began if it counts as one call, or the whole that it ended.
#[inline]
fn count(
    counts: &mut Tally,
    workload: &mut dyn Workload,
    recipes: &[Recipe],
    first_slot: usize,
    bears: bool,
    call: &Finished,
) -> Option<Option<Instant>> {
    if !call.good {
        *match call.refused && bears {
            true => &mut counts.refused,
            false => &mut counts.failed,
        } += 1;
        return None;
    }
    counts.good += 1;
    counts.bytes += call.bytes;
    let recipe = &recipes[call.call.recipe];
    if recipe.has_changed(&call.reply) {
        counts.expected += recipe.revisions;
        counts.changes += recipe.changes;
    }
    let began = match workload.done(first_slot + call.slot, &call.call, &call.reply) {
        Counts::Part => return Some(None),
        Counts::Call => call.began,
        Counts::Since(began) => began,
    };
    counts.measured += 1;
    Some(Some(began))
}
