//! A number that one thread writes and every thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter or a gauge. With more than one writing thread additions get lost; nothing else goes wrong.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds to it: a load and a store, as cheap as of a plain number.
    pub fn add(&self, amount: u64) {
        self.set(self.get().wrapping_add(amount));
    }

    /// Subtracts from it; not below 0.
    pub fn subtract(&self, amount: u64) {
        self.set(self.get().saturating_sub(amount));
    }

    /// Makes it this number.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// A recent value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_on_another_thread_sees_every_addition_in_the_end() {
        let cell = Cell::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..10_000).for_each(|_| cell.add(3)));
            let mut before = 0;
            while before < 30_000 {
                let now = cell.get();
                assert!(now >= before && now % 3 == 0);
                before = now;
            }
        });
        cell.subtract(40_000);
        assert_eq!(cell.get(), 0);
    }
}
