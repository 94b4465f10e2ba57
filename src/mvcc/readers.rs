//! Which revisions are being read in slices, core by core, and which will be read by answers on their way.
//!
//! A read that yields seeks again in a newer root, from which a compaction may have pruned what it still needs. So a
//! core publishes the lowest revision among its running reads, and the removal part of a compaction begins only when
//! every core's is high enough (DESIGN 12 (10)). One word per core, written by that core alone, read by the log core.
//!
//! An answer from inside a transaction is made from the index after apply, on another core, some time later. Nobody
//! there knows of it before it arrives, so the log core gives it a [`Hold`], which keeps what it will read until it is
//! dropped (DESIGN 12 (13)).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// The lowest revision read on each core.
#[derive(Clone, Debug)]
pub struct Readers {
    lowest: Arc<[AtomicI64]>,
}

impl Readers {
    /// For `cores` cores, on none of which anything is read.
    pub fn new(cores: usize) -> Readers {
        Readers {
            lowest: (0..cores).map(|_| AtomicI64::new(i64::MAX)).collect(),
        }
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.lowest.len()
    }

    /// Says what a core reads: the lowest revision, `i64::MAX` for nothing. A read that begins must look at the compact
    /// revision again after this.
    pub fn set(&self, core: usize, lowest: i64) {
        self.lowest[core].store(lowest, Ordering::SeqCst);
    }

    /// The lowest revision read anywhere.
    pub fn lowest(&self) -> i64 {
        self.lowest
            .iter()
            .map(|lowest| lowest.load(Ordering::SeqCst))
            .min()
            .unwrap_or(i64::MAX)
    }
}

/// Keeps a compaction from removing what an answer will read, until this and all its clones are dropped.
#[derive(Clone, Debug)]
pub struct Hold(#[expect(dead_code, reason = "it counts who holds it")] Arc<()>);

/// The log core's side of the holds that it gave out.
#[derive(Debug, Default)]
pub struct Holds {
    given: Vec<(i64, Arc<()>)>,
}

impl Holds {
    /// A hold on what a read at `at_main` sees.
    pub fn give(&mut self, at_main: i64) -> Hold {
        self.forget_dropped();
        let count = Arc::new(());
        self.given.push((at_main, count.clone()));
        Hold(count)
    }

    /// The lowest revision held; `i64::MAX` for none.
    pub fn lowest(&mut self) -> i64 {
        self.forget_dropped();
        self.given.iter().map(|(at_main, _)| *at_main).min().unwrap_or(i64::MAX)
    }

    fn forget_dropped(&mut self) {
        // `get_mut` looks with acquire order: what was read under a hold is behind it when the hold is found dropped.
        self.given.retain_mut(|(_, count)| Arc::get_mut(count).is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_lasts_until_its_last_clone() {
        let mut holds = Holds::default();
        let (low, high) = (holds.give(5), holds.give(9));
        let clone = low.clone();
        assert_eq!(holds.lowest(), 5);
        drop(low);
        assert_eq!(holds.lowest(), 5);
        std::thread::spawn(move || drop(clone)).join().unwrap();
        assert_eq!(holds.lowest(), 9);
        drop(high);
        assert_eq!(holds.lowest(), i64::MAX);
    }

    #[test]
    fn the_lowest_counts() {
        let readers = Readers::new(2);
        assert_eq!(readers.lowest(), i64::MAX);
        readers.set(0, 9);
        readers.set(1, 7);
        assert_eq!(readers.lowest(), 7);
        readers.set(1, i64::MAX);
        assert_eq!(readers.lowest(), 9);
    }
}
