//! The same requests to the program under test and to etcd 3.7.1: the answers have to be the same, byte for byte.
//!
//! Each run has one seed that is always the same and one that never is. `RINGD_DIFFERENTIAL=seed:count` repeats a
//! random run, or makes it longer, and takes several of them behind commas; a failure prints the line to use.

#[path = "differential/alarms.rs"]
mod alarms;
#[path = "differential/answers.rs"]
mod answers;
#[path = "differential/backend.rs"]
mod backend;
#[path = "differential/canaries.rs"]
mod canaries;
#[path = "differential/damage.rs"]
mod damage;
#[path = "differential/exceptions.rs"]
mod exceptions;
#[path = "differential/named.rs"]
mod named;
#[path = "differential/pair.rs"]
mod pair;
#[path = "differential/requests.rs"]
mod requests;
mod support;
#[path = "differential/watching.rs"]
mod watching;

use pair::{Difference, Pair};
use support::{block_on, server::Program};

/// How many requests a random run sends when nothing else is asked.
const QUICK_COUNT: u64 = 3000;
/// What 3.5.1 is sent: a seed and a count that meet every exception.
const VERSION_SEED: u64 = 6;
const VERSION_COUNT: u64 = 1500;
/// The seed of the run that is always the same.
const FIXED_SEED: u64 = 1;

fn expect_same<T>(result: Result<T, Difference>) {
    if let Err(difference) = result {
        panic!("{difference}");
    }
}

/// The seeds and the counts to run: the asked one, or the fixed seed and a new one.
fn runs() -> Vec<(u64, u64)> {
    let Ok(asked) = std::env::var("RINGD_DIFFERENTIAL") else {
        return vec![(FIXED_SEED, QUICK_COUNT), (rand::random_range(0..1 << 32), QUICK_COUNT)];
    };
    let runs = asked.split(',').map(|run| {
        let (seed, count) = run.split_once(':').expect("RINGD_DIFFERENTIAL is seed:count");
        (seed.parse().expect("a seed"), count.parse().expect("a count"))
    });
    runs.collect()
}

#[test]
fn random_requests() {
    block_on(async {
        for (seed, count) in runs() {
            println!("RINGD_DIFFERENTIAL={seed}:{count}");
            let mut pair = Pair::start(Program::subject()).await;
            expect_same(pair.run_random(seed, count).await);
            println!("seed {seed}: {count} requests, all answers the same");
            pair.tally()
                .iter()
                .for_each(|(outcome, times)| println!("{times:6} {outcome}"));
        }
    });
}

/// The list of exceptions is the difference between the two versions: 3.5.1 passes with it.
#[test]
fn version_3_5_1_differs_as_listed() {
    block_on(async {
        let mut pair = Pair::start(Program::Etcd351).await;
        expect_same(pair.run_random(VERSION_SEED, VERSION_COUNT).await);
        let used = pair
            .tally()
            .keys()
            .filter(|outcome| outcome.starts_with("exception:"))
            .count();
        assert_eq!(
            used,
            pair.exceptions(),
            "an exception that explains nothing: {:#?}",
            pair.tally()
        );
    });
}
