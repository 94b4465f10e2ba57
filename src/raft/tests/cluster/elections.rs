//! Elections after a leader's end: in turn, without waiting for each other, and without a time-out that is drawn.

use super::*;

/// Ticks of an election time-out.
const ELECTION: usize = 10;

impl Cluster {
    /// Ticks until another leads after `gone` have gone, and who.
    fn fail_over(&mut self, gone: &[u64]) -> (usize, u64) {
        gone.iter().for_each(|id| self.stop(*id));
        for ticks in 1..=2 * ELECTION {
            self.tick();
            if let [leader] = self.leaders()[..] {
                return (ticks, leader);
            }
        }
        panic!("no leader");
    }
}

#[test]
fn the_next_member_leads_as_soon_as_others_may_vote() {
    for phase in 0..ELECTION {
        let mut cluster = Cluster::new(&[1, 2, 3]);
        let mut leader = cluster.elect();
        for number in 0..6 {
            assert!(cluster.put(leader, "a") > 0);
            (0..phase).for_each(|_| cluster.tick());
            let (ticks, next) = cluster.fail_over(&[leader]);
            assert_eq!((ticks, next), (ELECTION + 1, leader % 3 + 1), "phase {phase}, {number}");
            cluster.start(leader);
            leader = cluster.elect();
            assert_eq!(leader, next, "who comes back changes nothing");
        }
    }
}

/// With two of five gone, and with one that lacks an entry, whoever comes next waits one turn longer.
#[test]
fn a_member_that_can_not_lead_is_passed_over() {
    let mut cluster = Cluster::new(&[1, 2, 3, 4, 5]);
    let leader = cluster.elect();
    let after = |id: u64, steps: u64| (id - 1 + steps) % 5 + 1;
    cluster.put(leader, "a");
    let gone = [leader, after(leader, 1)];
    assert_eq!(cluster.fail_over(&gone), (ELECTION + 3, after(leader, 2)));
    gone.iter().for_each(|id| cluster.start(*id));
    let leader = cluster.elect();
    // Heartbeats still come through.
    let lacking = after(leader, 1);
    cluster.lost_to = Some((lacking, MessageType::MsgAppend));
    cluster.put(leader, "b");
    assert_eq!(cluster.fail_over(&[leader]), (ELECTION + 3, after(leader, 2)));
    cluster.lost_to = None;
    cluster.start(leader);
    cluster.elect();
    (0..ELECTION).for_each(|_| cluster.tick());
    cluster.assert_equal();
}

/// Members whose clocks tick at different moments, as they do: nobody stands in vain.
#[test]
fn clocks_out_of_step_cost_no_election() {
    for late in 1..=3 {
        let mut cluster = Cluster::new(&[1, 2, 3]);
        let leader = cluster.elect();
        let term = cluster.up.get_mut(&leader).unwrap().core.node().term();
        cluster.stop(leader);
        let mut ticks = 0;
        while cluster.leaders().is_empty() {
            ticks += 1;
            assert!(ticks <= 2 * ELECTION, "no leader with member {late} late");
            for is_late in [false, true] {
                for (id, bench) in &mut cluster.up {
                    bench.now += if (*id == late) == is_late { TICK } else { Duration::ZERO };
                }
                cluster.settle();
            }
        }
        let next = cluster.leaders()[0];
        assert_eq!((ticks, next), (ELECTION + 1, leader % 3 + 1));
        assert_eq!(cluster.up.get_mut(&next).unwrap().core.node().term(), term + 1);
    }
}
