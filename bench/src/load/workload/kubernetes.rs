//! What Kubernetes' nodes and pods do to a server.

use super::{Counts, Turn, Workload, since_epoch};
use crate::load::recipe::{Call, KEYS_MAX, Recipe};
use crate::load::reply::Reply;

/// Nodes that renew their lease objects, each in turn, as kubelets do: a Txn that puts if nobody else did. The objects
/// are made first.
pub struct Heartbeats {
    recipes: [Recipe; 2],
    /// The revision of each node's last change; 0 before its first and while one is on its way.
    revisions: Vec<i64>,
    made: u64,
    known: u64,
    turn: usize,
}

impl Heartbeats {
    pub fn new(nodes: u64, value_bytes: usize) -> Self {
        Self {
            recipes: [Recipe::put(value_bytes), Recipe::put_if_unchanged(value_bytes)],
            revisions: vec![0; nodes as usize],
            made: 0,
            known: 0,
            turn: 0,
        }
    }
}

impl Workload for Heartbeats {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, _turn: Turn) -> Option<Call> {
        let nodes = self.revisions.len();
        if self.made < nodes as u64 {
            self.made += 1;
            let key = self.made - 1;
            return Some(Call { key, ..Call::default() });
        }
        if !self.is_prepared() {
            return None;
        }
        // A node whose last update is still on its way is passed over.
        let node = (0..nodes)
            .map(|step| (self.turn + step) % nodes)
            .find(|node| self.revisions[*node] != 0)?;
        self.turn = (node + 1) % nodes;
        Some(Call {
            recipe: 1,
            key: node as u64,
            number: std::mem::take(&mut self.revisions[node]),
            ..Call::default()
        })
    }

    fn done(&mut self, _slot: usize, call: &Call, reply: &Reply) -> Counts {
        self.revisions[call.key as usize] = reply.revision;
        self.known += u64::from(self.known < self.made);
        Counts::Call
    }

    fn is_prepared(&self) -> bool {
        self.known == self.revisions.len() as u64
    }
}

/// Pods that come and go, one per slot at a time: created, changed `UPDATES` times, deleted, each by a Txn on the
/// revision of the change before, and read in between.
pub struct Churn {
    recipes: [Recipe; 3],
    pods: Vec<Pod>,
    /// The first pod's key.
    first: u64,
}

#[derive(Clone, Copy, Default)]
struct Pod {
    cycle: u64,
    step: usize,
    revision: i64,
}

/// Keys of pods are above this, and where a run begins depends on the clock: a pod must not be there when it is
/// created, and runs end with pods that live.
const PODS_FROM: u64 = KEYS_MAX / 2;
/// Status updates of a pod that starts.
const UPDATES: usize = 3;
const PUT: usize = 0;
const DELETE: usize = 1;
const GET: usize = 2;

impl Churn {
    pub fn new(slots: usize, value_bytes: usize) -> Self {
        Self {
            recipes: [
                Recipe::put_if_unchanged(value_bytes),
                Recipe::delete_if_unchanged(),
                Recipe::get(false, value_bytes),
            ],
            pods: vec![Pod::default(); slots],
            first: PODS_FROM + since_epoch().as_secs() % 4000 * 100_000,
        }
    }

    /// Create, then a get before each update, then delete.
    fn recipe(step: usize) -> usize {
        match step {
            0 => PUT,
            step if step > 2 * UPDATES => DELETE,
            step if step % 2 == 1 => GET,
            _ => PUT,
        }
    }
}

impl Workload for Churn {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, turn: Turn) -> Option<Call> {
        let slot = turn.slot;
        let pod = self.pods[slot];
        let number = pod.cycle * self.pods.len() as u64 + slot as u64;
        Some(Call {
            recipe: Self::recipe(pod.step),
            key: PODS_FROM + (self.first - PODS_FROM + number) % (KEYS_MAX - PODS_FROM),
            number: pod.revision,
            ..Call::default()
        })
    }

    fn done(&mut self, slot: usize, call: &Call, reply: &Reply) -> Counts {
        let pod = &mut self.pods[slot];
        match call.recipe {
            DELETE => {
                *pod = Pod {
                    cycle: pod.cycle + 1,
                    ..Pod::default()
                }
            }
            recipe => {
                pod.step += 1;
                if recipe == PUT {
                    pod.revision = reply.revision;
                }
            }
        }
        Counts::Call
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{reply, turn};
    use super::*;

    #[test]
    fn a_pod_is_made_read_and_changed_and_goes() {
        let mut churn = Churn::new(2, 64);
        let mut seen = Vec::new();
        for revision in 10..18 {
            let call = churn.next(turn(1, 0)).unwrap();
            seen.push((call.recipe, call.key - churn.first, call.number));
            churn.done(1, &call, &reply(revision));
        }
        let expected = [
            (PUT, 1, 0),
            (GET, 1, 10),
            (PUT, 1, 10),
            (GET, 1, 12),
            (PUT, 1, 12),
            (GET, 1, 14),
            (PUT, 1, 14),
            (DELETE, 1, 16),
        ];
        assert_eq!(seen, expected);
        let next = churn.next(turn(1, 0)).unwrap();
        assert_eq!((next.recipe, next.key - churn.first, next.number), (PUT, 3, 0));
        assert_eq!(churn.next(turn(0, 0)).unwrap().key, churn.first);
    }

    #[test]
    fn nodes_beat_with_the_revision_of_their_last_beat() {
        let mut beats = Heartbeats::new(2, 64);
        let first = beats.next(turn(0, 0)).unwrap();
        let second = beats.next(turn(1, 0)).unwrap();
        assert_eq!((first.number, second.number), (0, 0));
        assert!(beats.next(turn(2, 0)).is_none() && !beats.is_prepared());
        beats.done(1, &second, &reply(5));
        beats.done(0, &first, &reply(4));
        assert!(beats.is_prepared());
        let beat = beats.next(turn(0, 0)).unwrap();
        assert_eq!((beat.key, beat.number), (0, 4));
        assert_eq!(beats.next(turn(1, 0)).unwrap().number, 5);
        assert!(beats.next(turn(2, 0)).is_none(), "both are on their way");
        beats.done(0, &beat, &reply(6));
        assert_eq!(beats.next(turn(0, 0)).unwrap().number, 6);
    }
}
