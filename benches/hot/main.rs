//! `cargo bench`: the parts of a call that cost most, each alone, in one thread and without a disk or a socket, so that
//! a change that makes one slower is seen. `scripts/bench-commits` compares two commits by them.
//!
//! Times are of the thread's CPU (`clock`). Each bench says in its module what it measures; those that work on many
//! things at once also give the time of one of them ("thrpt").

mod apply;
mod calls;
mod clock;
mod hpack;
mod index;
mod pages;
mod wal;
mod watch;
mod window;

use clock::ThreadTime;
use criterion::{Criterion, criterion_group, criterion_main};
use std::time::Duration;

/// What all benches are run with; the flags of `cargo bench` win.
fn criterion() -> Criterion<ThreadTime> {
    Criterion::default()
        .with_measurement(ThreadTime)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30)
}

/// Numbers that look drawn at random and are the same in every run: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Keys as Kubernetes has them: a long common start.
fn key(number: u64) -> String {
    format!("/registry/pods/namespace-{:03}/pod-{number:09}", number % 100)
}

criterion_group! {
    name = hot;
    config = criterion();
    targets = calls::bench, hpack::bench, index::bench, window::bench, apply::bench, pages::bench, wal::bench,
        watch::bench
}
criterion_main!(hot);
