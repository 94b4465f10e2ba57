//! Leases: granted, renewed, used and revoked, or left to expire.

use super::{Counts, Turn, Workload, since_epoch};
use crate::load::recipe::{Call, KEYS_MAX, LEASE_TTL, Recipe};
use crate::load::reply::Reply;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Instant;

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
                Recipe::lease_grant(LEASE_TTL),
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

    fn next(&mut self, turn: Turn) -> Option<Call> {
        let slot = turn.slot;
        let (number, recipe) = self.slots[slot];
        Some(Call {
            recipe,
            key: CYCLES_FROM + slot as u64,
            number,
            ..Call::default()
        })
    }

    fn done(&mut self, slot: usize, _call: &Call, _reply: &Reply) -> Counts {
        let slots = self.slots.len() as i64;
        let (number, step) = &mut self.slots[slot];
        *step = (*step + 1) % 3;
        if *step == 0 {
            *number += slots;
        }
        Counts::Call
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
            recipes: vec![Recipe::lease_grant(LEASE_TTL), Recipe::lease_keep_alive()],
            leases,
            granted: 0,
            answered: 0,
        }
    }

    /// New leases without end.
    pub fn granted() -> Self {
        Self {
            recipes: vec![Recipe::lease_grant(LEASE_TTL)],
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

    fn next(&mut self, turn: Turn) -> Option<Call> {
        if self.granted < self.leases {
            self.granted += 1;
            return Some(Call {
                number: lease_id(self.granted),
                ..Call::default()
            });
        }
        self.is_prepared().then(|| Call {
            recipe: 1,
            number: lease_id(1 + turn.random % self.leases),
            ..Call::default()
        })
    }

    fn done(&mut self, _slot: usize, call: &Call, _reply: &Reply) -> Counts {
        self.answered += u64::from(call.recipe == 0);
        Counts::Call
    }

    fn is_prepared(&self) -> bool {
        self.recipes.len() == 1 || self.answered == self.leases
    }
}

/// Many leases of the shortest time to live, each granted and given a key, which counts as one call; the server ends
/// them.
pub struct Flood {
    recipes: [Recipe; 2],
    leases: u64,
    granted: u64,
    /// Per slot, when its lease was due.
    began: Vec<Instant>,
    queue: VecDeque<(usize, Call)>,
}

/// Of a flood's leases. No server grants less: an election's time and half of it, in whole seconds.
const FLOOD_TTL: i64 = 2;
/// The keys of a flood's leases are above this, where no other load has its keys.
const FLOOD_FROM: u64 = KEYS_MAX / 4;
const FLOOD_KEYS: u64 = KEYS_MAX / 8;
/// And those of leases that are revoked above this.
const CYCLES_FROM: u64 = FLOOD_FROM + FLOOD_KEYS;

impl Flood {
    pub fn new(slots: usize, leases: u64, value_bytes: usize) -> Self {
        Self {
            recipes: [Recipe::lease_grant(FLOOD_TTL), Recipe::put_with_lease(value_bytes)],
            leases,
            granted: 0,
            began: vec![Instant::now(); slots],
            queue: VecDeque::new(),
        }
    }
}

impl Workload for Flood {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, turn: Turn) -> Option<Call> {
        if self.granted == self.leases {
            return None;
        }
        self.granted += 1;
        self.began[turn.slot] = turn.due;
        Some(Call {
            key: FLOOD_FROM + self.granted % FLOOD_KEYS,
            number: lease_id(self.granted),
            ..Call::default()
        })
    }

    fn done(&mut self, slot: usize, call: &Call, _reply: &Reply) -> Counts {
        if call.recipe == 1 {
            return Counts::Since(self.began[slot]);
        }
        self.queue.push_back((slot, Call { recipe: 1, ..*call }));
        Counts::Part
    }

    fn at_once(&mut self) -> Option<(usize, Call)> {
        self.queue.pop_front()
    }

    fn rises_after(&self) -> u64 {
        self.granted
    }
}

/// Ids of a run's leases: apart from those of runs before it on the same server, by the clock.
fn lease_id(number: u64) -> i64 {
    static BASE: OnceLock<i64> = OnceLock::new();
    let base = BASE.get_or_init(|| (since_epoch().as_millis() as i64 & 0xff_ffff_ffff) << 20);
    base + number as i64
}

#[cfg(test)]
mod tests {
    use super::super::tests::{reply, turn};
    use super::*;

    #[test]
    fn a_lease_is_granted_used_and_revoked() {
        let mut cycles = LeaseCycles::new(3, 64);
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let call = cycles.next(turn(2, 0)).unwrap();
                cycles.done(2, &call, &reply(1));
                (call.recipe, call.number - lease_id(0))
            })
            .collect();
        assert_eq!(calls, [(0, 2), (1, 2), (2, 2), (0, 5)]);
    }

    #[test]
    fn leases_are_renewed_once_all_are_granted() {
        let mut leases = Leases::renewed(1);
        let grant = leases.next(turn(0, 0)).unwrap();
        assert!(leases.next(turn(1, 0)).is_none() && !leases.is_prepared());
        leases.done(0, &grant, &reply(0));
        assert_eq!(
            leases.next(turn(0, 77)).unwrap(),
            Call {
                recipe: 1,
                number: grant.number,
                ..Call::default()
            }
        );
    }

    #[test]
    fn a_flood_ends_and_its_leases_too() {
        let mut flood = Flood::new(2, 1, 8);
        let due = turn(1, 0);
        let grant = flood.next(due).unwrap();
        assert!(flood.next(turn(0, 0)).is_none());
        assert_eq!(flood.done(1, &grant, &reply(0)), Counts::Part);
        let (slot, put) = flood.at_once().unwrap();
        assert_eq!((slot, put.recipe, put.number), (1, 1, grant.number));
        assert_eq!(flood.done(1, &put, &reply(0)), Counts::Since(due.due));
        assert_eq!(flood.rises_after(), 1);
    }
}
