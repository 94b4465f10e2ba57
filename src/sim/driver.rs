//! Runs seeds on all CPUs, for the test programs of the simulations.
//!
//! A seed that fails ends the run, and the message says how to repeat it. Without more, as many seeds are run as fit
//! into a short time. Variables of the environment ask for others, here of a program that calls itself `X`: `X_SEEDS` a
//! number of seeds or a range `from..to`, `X_SEED` one; with `X_ALL` the run goes on behind a failure.

use super::report::Failure;
use std::env;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The form that runs when nobody asks for more.
#[derive(Clone, Copy, Debug)]
pub struct Quick {
    /// How long it draws seeds.
    pub time: Duration,
    /// Seeds that it runs however slow the machine is.
    pub seeds_min: usize,
    /// Seeds that it runs however fast the machine is: further ones are for longer runs.
    pub seeds_max: u64,
    /// Seeds that it begins with: they show what few do.
    pub first: &'static [u64],
}

/// A test program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// What its variables begin with.
    pub name: &'static str,
    /// What `cargo test` is told to repeat a seed.
    pub test: &'static str,
    /// Its quick form.
    pub quick: Quick,
}

/// Runs that went well.
#[derive(Debug)]
pub struct Runs<R> {
    /// What each has done.
    pub reports: Vec<R>,
    elapsed: Duration,
    is_single: bool,
}

/// A run in which a failed assertion is a failure like any other.
pub fn run_caught<R>(seed: u64, run: impl FnOnce(u64) -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        let reason = format!("panic: {}", text.unwrap_or_default());
        Err(Failure { seed, reason })
    })
}

fn number(text: &str) -> u64 {
    let parsed = text.trim().parse();
    parsed.unwrap_or_else(|_| panic!("not a seed: {text}"))
}

impl Program {
    fn variable(&self, end: &str) -> Option<String> {
        env::var(format!("{}_{end}", self.name)).ok()
    }

    /// The seeds asked for, and whether time may end the run before.
    fn seeds(&self) -> (Vec<u64>, bool) {
        if let Some(seed) = self.variable("SEED") {
            return (vec![number(&seed)], false);
        }
        let range = |Range { start, end }: Range<u64>| (start..end).collect();
        match self.variable("SEEDS") {
            None => {
                let drawn = 1..self.quick.seeds_max + 1;
                (self.quick.first.iter().copied().chain(drawn).collect(), true)
            }
            Some(text) => match text.split_once("..") {
                Some((from, to)) => (range(number(from)..number(to)), false),
                None => (range(1..number(&text) + 1), false),
            },
        }
    }

    /// Runs the seeds asked for. Panics when one fails, and says how to repeat it.
    pub fn run<R: Send>(&self, run: impl Fn(u64) -> Result<R, Failure> + Sync) -> Runs<R> {
        let (seeds, is_quick) = self.seeds();
        let begun = Instant::now();
        let next = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        let goes_on = self.variable("ALL").is_some();
        let done: Mutex<(Vec<R>, Vec<Failure>)> = Mutex::new((Vec::new(), Vec::new()));
        let work = || {
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let in_time = !is_quick || begun.elapsed() < self.quick.time || place < self.quick.seeds_min;
                let Some(seed) = seeds.get(place).copied().filter(|_| in_time) else {
                    return;
                };
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let result = run_caught(seed, &run);
                let mut done = done.lock().expect("no panic while it is held");
                match result {
                    Ok(report) => done.0.push(report),
                    Err(failure) => {
                        println!("seed {} failed: {}", failure.seed, failure.reason);
                        is_over.store(!goes_on, Ordering::Relaxed);
                        done.1.push(failure);
                    }
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, |count| count.get());
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let (reports, failures) = done.into_inner().expect("no panic while it was held");
        if let Some(Failure { seed, reason }) = failures.first() {
            panic!(
                "{} of {} seeds failed; seed {seed}: {reason}\nrepeat it: {}_SEED={seed} cargo test {}",
                failures.len(),
                failures.len() + reports.len(),
                self.name,
                self.test
            );
        }
        Runs {
            reports,
            elapsed: begun.elapsed(),
            is_single: seeds.len() == 1,
        }
    }
}

/// A name and what it counts in a run.
pub type Count<R> = (&'static str, fn(&R) -> u64);

impl<R> Runs<R> {
    /// Says what the runs have done, and panics when something that they are for never happened.
    pub fn summarize(&self, counts: &[Count<R>]) {
        let sums: Vec<(&str, u64)> = counts
            .iter()
            .map(|(what, field)| (*what, self.reports.iter().map(field).sum()))
            .collect();
        println!("{} seeds in {:.1?}: {sums:?}", self.reports.len(), self.elapsed);
        for (what, count) in sums {
            assert!(self.is_single || count > 0, "no {what} in {} seeds", self.reports.len());
        }
    }
}

/// Runs seeds, in which a promise is broken on purpose, until that is noticed by the check that it is for: one of
/// `said` is part of what that says. Panics when none does. Failed assertions are expected here.
pub fn notice<R>(what: &str, seeds: Range<u64>, said: &[&str], run: impl Fn(u64) -> Result<R, Failure>) {
    let count = seeds.end - seeds.start;
    for seed in seeds {
        if let Err(failure) = run_caught(seed, &run) {
            println!("{what}: seed {seed}: {}", failure.reason);
            if said.iter().any(|said| failure.reason.contains(said)) {
                return;
            }
        }
    }
    panic!("{what} was not noticed in {count} seeds");
}
