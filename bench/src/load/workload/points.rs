//! Calls of single keys, at random or in order.

use super::{Turn, Workload};
use crate::load::recipe::{Call, Recipe};

/// One or two kinds of calls.
pub struct Mix {
    pub recipes: Vec<Recipe>,
    pub keys: u64,
    /// Of a hundred calls, how many are of the second kind.
    pub second_share: u64,
    /// The next key of calls that go in order; None for random ones.
    pub next: Option<u64>,
}

impl Workload for Mix {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, turn: Turn) -> Option<Call> {
        let second = self.second_share > 0 && (turn.random >> 32) % 100 < self.second_share;
        let key = match &mut self.next {
            Some(next) => std::mem::replace(next, (*next + 1) % self.keys),
            None => turn.random % self.keys,
        };
        Some(Call {
            recipe: usize::from(second),
            key,
            ..Call::default()
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

    fn next(&mut self, _turn: Turn) -> Option<Call> {
        let key = self.next;
        self.next += 1;
        (key < self.keys).then_some(Call { key, ..Call::default() })
    }
}

/// Compactions at so many revisions behind the newest; while there is nothing to compact, gets.
pub struct Compactions {
    recipes: [Recipe; 2],
    behind: i64,
    /// The revision compacted last.
    last: i64,
}

impl Compactions {
    pub fn new(behind: i64) -> Self {
        Self {
            recipes: [Recipe::compact(), Recipe::count()],
            behind,
            last: 0,
        }
    }
}

impl Workload for Compactions {
    fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    fn next(&mut self, turn: Turn) -> Option<Call> {
        let revision = turn.newest - self.behind;
        let rises = revision > self.last;
        self.last = self.last.max(revision);
        Some(Call {
            recipe: usize::from(!rises),
            number: revision.max(0),
            ..Call::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::turn;
    use super::*;

    #[test]
    fn keys_in_order_begin_again() {
        let mut mix = Mix {
            recipes: vec![Recipe::put(8)],
            keys: 2,
            second_share: 0,
            next: Some(0),
        };
        let keys: Vec<_> = (0..5).map(|_| mix.next(turn(0, 99)).unwrap().key).collect();
        assert_eq!(keys, [0, 1, 0, 1, 0]);
    }

    #[test]
    fn what_is_compacted_rises() {
        let mut compactions = Compactions::new(100);
        let mut at = |newest| {
            let call = compactions.next(Turn { newest, ..turn(0, 0) }).unwrap();
            (call.recipe, call.number)
        };
        assert_eq!([at(50), at(150), at(150), at(151)], [(1, 0), (0, 50), (1, 50), (0, 51)]);
    }
}
