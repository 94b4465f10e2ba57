//! Whole clusters on simulated disks, clocks and a simulated network that loses, repeats and reorders, judged by a
//! naive model and by a search for an order of what clients saw. Each seed is one run and repeats to the byte.
//!
//! Without more it runs as many seeds as fit into a short time. `RINGD_CLUSTER_SEEDS` gives a number of seeds, or a
//! range `from..to`; `RINGD_CLUSTER_SEED` repeats one; with `RINGD_CLUSTER_ALL` it goes on behind a failure.

use ringd::sim::cluster::{Canary, Failure, Report, run};
use ringd::sim::driver::{self, Program, Quick};
use std::time::Duration;

const PROGRAM: Program = Program {
    name: "RINGD_CLUSTER",
    test: "--test cluster_simulation clusters_keep",
    quick: Quick {
        time: Duration::from_secs(25),
        seeds_min: 200,
        seeds_max: 300,
        first: &[],
    },
};
/// Seeds within which every canary has to be noticed.
const CANARY_SEEDS: u64 = 60;

fn run_caught(seed: u64, canary: Canary) -> Result<Report, Failure> {
    driver::run_caught(seed, |seed| run(seed, canary))
}

#[test]
fn clusters_keep_every_promise() {
    PROGRAM.run(|seed| run(seed, Canary::None)).summarize(&[
        ("entries", |report| report.entries),
        ("writes acknowledged", |report| report.acknowledged),
        ("requests dropped", |report| report.dropped),
        ("requests given up", |report| report.unknown),
        ("linearizable reads", |report| report.reads),
        ("serializable reads", |report| report.local_reads),
        ("crashes", |report| report.crashes),
        ("starts", |report| report.starts),
        ("pauses", |report| report.pauses),
        ("cuts", |report| report.cuts),
        ("jumps of clocks", |report| report.jumps),
        ("terms with a leader", |report| report.leaders),
        ("transfers", |report| report.transfers),
        ("members joined", |report| report.joined),
        ("leases renewed", |report| report.renewed),
        ("leases ended", |report| report.expired),
        ("messages of watches", |report| report.watch_messages),
        ("messages arrived", |report| report.messages),
        ("messages lost", |report| report.lost),
        ("checkpoints", |report| report.checkpoints),
        ("snapshots", |report| report.snapshots),
        ("snapshots that broke off", |report| report.broken_snapshots),
        ("snapshots that came again", |report| report.repeated_snapshots),
        ("snapshots of what was known", |report| report.known_snapshots),
        ("snapshots installed", |report| report.installed),
        ("members promoted", |report| report.promoted),
        ("members removed", |report| report.removed),
        ("starts in vain", |report| report.interrupted_starts),
        ("lives ended by disk errors", |report| report.disk_errors),
        ("full disks", |report| report.full_disks),
        ("requests refused for want of room", |report| report.refused),
    ]);
}

/// What a deposed leader had appended behind the end of its successor's log was waited for until somebody wrote again.
#[test]
fn seeds_that_failed_once() {
    for seed in [12472] {
        if let Err(failure) = run_caught(seed, Canary::None) {
            panic!("seed {seed} failed: {}", failure.reason);
        }
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
    let seeds = from..from + CANARY_SEEDS;
    driver::notice(&format!("{canary:?}"), seeds, said, |seed| run(seed, canary));
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

#[test]
fn a_value_that_a_snapshot_brought_differently_is_noticed() {
    notice_as(Canary::AlteredSnapshot, 4, &["HashKV", "not linearizable"]);
}
