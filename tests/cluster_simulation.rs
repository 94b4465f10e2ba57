//! Whole clusters on simulated disks, clocks and a simulated network that loses, repeats and reorders, judged by a
//! naive model and by a search for an order of what clients saw. Each seed is one run and repeats to the byte.
//!
//! Without more it runs as many seeds as fit into a short time. `RINGD_CLUSTER_SEEDS` gives a number of seeds, or a
//! range `from..to`; `RINGD_CLUSTER_SEED` repeats one; with `RINGD_CLUSTER_ALL` it goes on behind a failure.

use ringd::sim::cluster::{Canary, Failure, Report, run};
use std::{
    env,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long the quick form draws seeds.
const QUICK: Duration = Duration::from_secs(25);
/// Seeds that the quick form runs however slow the machine is.
const QUICK_SEEDS_MIN: u64 = 10;
/// Seeds that the quick form runs however fast the machine is: further ones are for longer runs.
const QUICK_SEEDS_MAX: u64 = 300;
/// Seeds within which every canary has to be noticed.
const CANARY_SEEDS: u64 = 60;

/// A run in which a failed assertion is a failure like any other.
fn run_caught(seed: u64, canary: Canary) -> Result<Report, Failure> {
    catch_unwind(AssertUnwindSafe(|| run(seed, canary))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        let reason = format!("panic: {}", text.unwrap_or_default());
        Err(Failure { seed, reason })
    })
}

/// The seeds asked for, and whether time may end the run before.
fn seeds() -> (Range<u64>, bool) {
    let number = |text: &str| {
        text.trim()
            .parse::<u64>()
            .unwrap_or_else(|_| panic!("not a seed: {text}"))
    };
    if let Ok(seed) = env::var("RINGD_CLUSTER_SEED") {
        let seed = number(&seed);
        return (seed..seed + 1, false);
    }
    match env::var("RINGD_CLUSTER_SEEDS") {
        Err(_) => (1..QUICK_SEEDS_MAX + 1, true),
        Ok(text) => match text.split_once("..") {
            Some((from, to)) => (number(from)..number(to), false),
            None => (1..number(&text) + 1, false),
        },
    }
}

#[test]
fn clusters_keep_every_promise() {
    let (range, is_quick) = seeds();
    let begun = Instant::now();
    let next = AtomicU64::new(range.start);
    let failed = AtomicBool::new(false);
    let keeps_going = env::var_os("RINGD_CLUSTER_ALL").is_some();
    let done: Mutex<(Vec<Report>, Vec<Failure>)> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let in_time = !is_quick || begun.elapsed() < QUICK || seed < range.start + QUICK_SEEDS_MIN;
            if seed >= range.end || !in_time || failed.load(Ordering::Relaxed) {
                return;
            }
            let result = run_caught(seed, Canary::None);
            let mut done = done.lock().expect("no panic while it is held");
            match result {
                Ok(report) => done.0.push(report),
                Err(failure) => {
                    println!("seed {} failed: {}", failure.seed, failure.reason);
                    failed.store(!keeps_going, Ordering::Relaxed);
                    done.1.push(failure);
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (reports, failures) = done.into_inner().expect("no panic while it was held");
    if let Some(failure) = failures.first() {
        panic!(
            "{} of {} seeds failed; seed {}: {}\nrepeat it: RINGD_CLUSTER_SEED={} cargo test --test cluster_simulation \
             clusters_keep",
            failures.len(),
            failures.len() + reports.len(),
            failure.seed,
            failure.reason,
            failure.seed
        );
    }
    summarize(&reports, begun.elapsed(), range.end - range.start == 1);
}

/// Says what the runs have done, and fails when something that they are for never happened.
fn summarize(reports: &[Report], elapsed: Duration, is_single: bool) {
    let sum = |field: fn(&Report) -> u64| reports.iter().map(field).sum::<u64>();
    let counts = [
        ("entries", sum(|report| report.entries)),
        ("writes acknowledged", sum(|report| report.acknowledged)),
        ("requests dropped", sum(|report| report.dropped)),
        ("requests given up", sum(|report| report.unknown)),
        ("linearizable reads", sum(|report| report.reads)),
        ("serializable reads", sum(|report| report.local_reads)),
        ("crashes", sum(|report| report.crashes)),
        ("starts", sum(|report| report.starts)),
        ("pauses", sum(|report| report.pauses)),
        ("cuts", sum(|report| report.cuts)),
        ("jumps of clocks", sum(|report| report.jumps)),
        ("terms with a leader", sum(|report| report.leaders)),
        ("transfers", sum(|report| report.transfers)),
        ("members joined", sum(|report| report.joined)),
        ("leases renewed", sum(|report| report.renewed)),
        ("leases ended", sum(|report| report.expired)),
        ("messages of watches", sum(|report| report.watch_messages)),
        ("messages arrived", sum(|report| report.messages)),
        ("messages lost", sum(|report| report.lost)),
        ("checkpoints", sum(|report| report.checkpoints)),
    ];
    println!("{} seeds in {elapsed:.1?}: {counts:?}", reports.len());
    for (what, count) in counts {
        assert!(is_single || count > 0, "no {what} in {} seeds", reports.len());
    }
}

#[test]
fn a_seed_repeats_to_the_byte() {
    for seed in [3, 8] {
        let first = run_caught(seed, Canary::None).unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.reason));
        let again = run_caught(seed, Canary::None).expect("it succeeded before");
        assert_eq!(again, first, "seed {seed}");
    }
}

/// Runs seeds until a canary is noticed by the check that it is for: one of `said` is part of what that says. Begins
/// with `from`, which noticed it once.
fn notice_as(canary: Canary, from: u64, said: &[&str]) {
    // Failed assertions are expected here.
    for seed in from..from + CANARY_SEEDS {
        if let Err(failure) = run_caught(seed, canary) {
            println!("{canary:?}: seed {seed}: {}", failure.reason);
            if said.iter().any(|said| failure.reason.contains(said)) {
                return;
            }
        }
    }
    panic!("{canary:?} was not noticed in {CANARY_SEEDS} seeds");
}

#[test]
fn sending_before_persisting_is_noticed() {
    notice_as(
        Canary::SendBeforePersist,
        1,
        &["not linearizable", "both lead", "was applied"],
    );
}

#[test]
fn disks_that_lie_about_syncs_are_noticed() {
    notice_as(Canary::SyncsLie, 1, &[""]);
}

#[test]
fn a_stale_read_is_noticed() {
    notice_as(Canary::StaleRead, 1, &["not linearizable"]);
}

#[test]
fn a_dropped_event_is_noticed() {
    notice_as(Canary::DroppedEvent, 1, &["watch client"]);
}

#[test]
fn an_answer_before_commit_is_noticed() {
    notice_as(Canary::AnswerBeforeCommit, 1, &["not linearizable"]);
}

#[test]
fn an_expiry_without_confirmed_leadership_is_noticed() {
    notice_as(
        Canary::UnconfirmedExpiry,
        11,
        &["a member ended lease", "was renewed and is gone"],
    );
}
