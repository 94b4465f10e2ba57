//! What is called: for each slot, a call's place on a connection, which call comes next.
//!
//! A workload knows what its calls depend on (the revision of a key's last change, the lease a slot holds) and nothing
//! of connections and time.

use super::recipe::{Call, KEYS_MAX, Recipe};
use super::reply::Reply;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of calls.
pub trait Workload {
    /// The kinds of calls it makes; `Call::recipe` is an index into it.
    fn recipes(&self) -> &[Recipe];

    /// The next call of a free slot; `random` is uniform. None if there is none now: after the last one, or while
    /// others have to end first.
    fn next(&mut self, slot: usize, random: u64) -> Option<Call>;

    /// A call of that slot ended well.
    fn done(&mut self, _slot: usize, _call: &Call, _reply: &Reply) {}

    /// Whether what is to be measured may begin. Calls before that prepare it.
    fn is_prepared(&self) -> bool {
        true
    }
}

/// Random keys; one or two kinds of calls.
pub struct Mix {
    pub recipes: Vec<Recipe>,
    pub keys: u64,
    /// Of a hundred calls, how many are of the second kind.
    pub second_share: u64,
}

impl Workload for Mix {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, _slot: usize, random: u64) -> Option<Call> {
        let second = self.second_share > 0 && (random >> 32) % 100 < self.second_share;
        Some(Call {
            recipe: usize::from(second),
            key: random % self.keys,
            number: 0,
        })
    }
}

/// Every key once, in order.
pub struct Fill {
    pub recipes: Vec<Recipe>,
    pub keys: u64,
    pub next: u64,
}

impl Workload for Fill {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, _slot: usize, _random: u64) -> Option<Call> {
        let key = self.next;
        self.next += 1;
        (key < self.keys).then_some(Call {
            recipe: 0,
            key,
            number: 0,
        })
    }
}

/// The same list again and again: from the first key, or, with pages, from where a random page starts.
pub struct Lists {
    pub recipes: Vec<Recipe>,
    pub keys: u64,
    /// Keys of a page; 0 for the whole list.
    pub page: u64,
}

impl Workload for Lists {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, _slot: usize, random: u64) -> Option<Call> {
        let pages = self.keys.checked_div(self.page).unwrap_or(1).max(1);
        Some(Call {
            recipe: 0,
            key: random % pages * self.page,
            number: 0,
        })
    }
}

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

    fn next(&mut self, _slot: usize, _random: u64) -> Option<Call> {
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
        })
    }

    fn done(&mut self, _slot: usize, call: &Call, reply: &Reply) {
        self.revisions[call.key as usize] = reply.revision;
        self.known += u64::from(self.known < self.made);
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

    fn next(&mut self, slot: usize, _random: u64) -> Option<Call> {
        let pod = self.pods[slot];
        let number = pod.cycle * self.pods.len() as u64 + slot as u64;
        Some(Call {
            recipe: Self::recipe(pod.step),
            key: PODS_FROM + (self.first - PODS_FROM + number) % (KEYS_MAX - PODS_FROM),
            number: pod.revision,
        })
    }

    fn done(&mut self, slot: usize, call: &Call, reply: &Reply) {
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
    }
}

/// Leases that are granted, get a key and are revoked with it, one per slot at a time.
pub struct LeaseCycles {
    recipes: [Recipe; 3],
    /// Per slot: which lease, and what comes next for it.
    slots: Vec<(i64, usize)>,
}

impl LeaseCycles {
    pub fn new(slots: usize, value_bytes: usize) -> Self {
        Self {
            recipes: [
                Recipe::lease_grant(),
                Recipe::put_with_lease(value_bytes),
                Recipe::lease_revoke(true),
            ],
            slots: (0..slots).map(|slot| (lease_id(slot as u64), 0)).collect(),
        }
    }
}

impl Workload for LeaseCycles {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, slot: usize, _random: u64) -> Option<Call> {
        let (number, recipe) = self.slots[slot];
        Some(Call {
            recipe,
            key: slot as u64,
            number,
        })
    }

    fn done(&mut self, slot: usize, _call: &Call, _reply: &Reply) {
        let slots = self.slots.len() as i64;
        let (number, step) = &mut self.slots[slot];
        *step = (*step + 1) % 3;
        if *step == 0 {
            *number += slots;
        }
    }
}

/// Leases granted once, each with an id of its own; with `renew`, that is the preparation and they are renewed after.
pub struct Leases {
    recipes: Vec<Recipe>,
    leases: u64,
    granted: u64,
    answered: u64,
}

impl Leases {
    /// Renewals of `leases` leases, at random.
    pub fn renewed(leases: u64) -> Self {
        Self {
            recipes: vec![Recipe::lease_grant(), Recipe::lease_keep_alive()],
            leases,
            granted: 0,
            answered: 0,
        }
    }

    /// New leases without end.
    pub fn granted() -> Self {
        Self {
            recipes: vec![Recipe::lease_grant()],
            leases: u64::MAX,
            granted: 0,
            answered: 0,
        }
    }
}

impl Workload for Leases {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, _slot: usize, random: u64) -> Option<Call> {
        if self.granted < self.leases {
            self.granted += 1;
            return Some(Call {
                number: lease_id(self.granted),
                ..Call::default()
            });
        }
        self.is_prepared().then(|| Call {
            recipe: 1,
            key: 0,
            number: lease_id(1 + random % self.leases),
        })
    }

    fn done(&mut self, _slot: usize, call: &Call, _reply: &Reply) {
        self.answered += u64::from(call.recipe == 0);
    }

    fn is_prepared(&self) -> bool {
        self.recipes.len() == 1 || self.answered == self.leases
    }
}

/// Ids of a run's leases: apart from those of runs before it on the same server, by the clock.
fn lease_id(number: u64) -> i64 {
    static BASE: OnceLock<i64> = OnceLock::new();
    let base = BASE.get_or_init(|| (since_epoch().as_millis() as i64 & 0xff_ffff_ffff) << 20);
    base + number as i64
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(revision: i64) -> Reply {
        Reply {
            revision,
            ..Reply::default()
        }
    }

    #[test]
    fn a_pod_is_made_read_and_changed_and_goes() {
        let mut churn = Churn::new(2, 64);
        let mut seen = Vec::new();
        for revision in 10..18 {
            let call = churn.next(1, 0).unwrap();
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
        let next = churn.next(1, 0).unwrap();
        assert_eq!((next.recipe, next.key - churn.first, next.number), (PUT, 3, 0));
        assert_eq!(churn.next(0, 0).unwrap().key, churn.first);
    }

    #[test]
    fn nodes_beat_with_the_revision_of_their_last_beat() {
        let mut beats = Heartbeats::new(2, 64);
        let first = beats.next(0, 0).unwrap();
        let second = beats.next(1, 0).unwrap();
        assert_eq!((first.number, second.number), (0, 0));
        assert!(beats.next(2, 0).is_none() && !beats.is_prepared());
        beats.done(1, &second, &reply(5));
        beats.done(0, &first, &reply(4));
        assert!(beats.is_prepared());
        let beat = beats.next(0, 0).unwrap();
        assert_eq!((beat.key, beat.number), (0, 4));
        assert_eq!(beats.next(1, 0).unwrap().number, 5);
        assert!(beats.next(2, 0).is_none(), "both are on their way");
        beats.done(0, &beat, &reply(6));
        assert_eq!(beats.next(0, 0).unwrap().number, 6);
    }

    #[test]
    fn a_lease_is_granted_used_and_revoked() {
        let mut cycles = LeaseCycles::new(3, 64);
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let call = cycles.next(2, 0).unwrap();
                cycles.done(2, &call, &reply(1));
                (call.recipe, call.number - lease_id(0))
            })
            .collect();
        assert_eq!(calls, [(0, 2), (1, 2), (2, 2), (0, 5)]);
    }

    #[test]
    fn leases_are_renewed_once_all_are_granted() {
        let mut leases = Leases::renewed(1);
        let grant = leases.next(0, 0).unwrap();
        assert!(leases.next(1, 0).is_none() && !leases.is_prepared());
        leases.done(0, &grant, &reply(0));
        assert_eq!(
            leases.next(0, 77).unwrap(),
            Call {
                recipe: 1,
                key: 0,
                number: grant.number
            }
        );
    }
}
