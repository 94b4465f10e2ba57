//! Which revisions are being read in slices, core by core.
//!
//! A read that yields seeks again in a newer root, from which a compaction may have pruned what it still needs. So a
//! core publishes the lowest revision among its running reads, and the removal part of a compaction begins only when
//! every core's is high enough (DESIGN 12 (10)). One word per core, written by that core alone, read by the log core.

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

#[cfg(test)]
mod tests {
    use super::*;

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
