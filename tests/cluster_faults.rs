//! Clusters of three processes under load whose leader is killed, paused and cut off from the others, again and again,
//! and whose members are replaced one by one: no acknowledged write is lost, no linearizable read is stale, no client
//! sees a revision go back, watches see every event once, leases live as long as somebody keeps them alive and no
//! longer.
//!
//! By itself each fault comes once. `RINGD_FAULTS=50` has each come fifty times, best in a release build with
//! `--nocapture`, which shows how long writes were refused. `RINGD_TEST_SUBJECT` does the same to three etcds.

mod support;

#[path = "cluster_faults/clients.rs"]
mod clients;
#[path = "cluster_faults/faults.rs"]
mod faults;
#[path = "cluster_faults/history.rs"]
mod history;
#[path = "cluster_faults/replacement.rs"]
mod replacement;
#[path = "cluster_faults/stage.rs"]
mod stage;
#[path = "cluster_faults/strangers.rs"]
mod strangers;

use faults::Fault;
use support::number_from_environment;

/// How often each fault comes.
const TIMES: &str = "RINGD_FAULTS";

#[test]
fn a_leader_killed_or_paused_costs_no_promise() {
    faults::run(&[Fault::Killed, Fault::Paused], number_from_environment(TIMES, 1));
}

#[test]
fn a_leader_cut_off_costs_no_promise() {
    let cuts = [Fault::CutOff, Fault::Unheard, Fault::Deaf];
    faults::run(&cuts, number_from_environment(TIMES, 1));
}

#[test]
fn replacing_every_member_costs_no_promise() {
    replacement::run();
}

#[test]
fn peers_that_send_nonsense_or_nothing_cost_no_promise() {
    strangers::run();
}
