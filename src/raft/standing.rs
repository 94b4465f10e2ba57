//! What every call asks of this member's place in the cluster: who leads, and whether it has a vote. Written by the log
//! core, read by all serve cores without asking it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The member's place, as of the log core's last turn.
#[derive(Debug, Default)]
pub struct Standing {
    leader: AtomicU64,
    is_learner: AtomicBool,
}

impl Standing {
    /// The leader's id; 0 when this member knows none.
    pub fn leader(&self) -> u64 {
        self.leader.load(Ordering::Relaxed)
    }

    /// Whether this member is a learner.
    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// Notes both.
    pub fn set(&self, leader: u64, is_learner: bool) {
        self.leader.store(leader, Ordering::Relaxed);
        self.is_learner.store(is_learner, Ordering::Relaxed);
    }
}
