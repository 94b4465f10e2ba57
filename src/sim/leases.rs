//! When leases may end, and when they have to: what a client reckons from the answers it got.
//!
//! A lease lives for its time at least, from its grant, its last renewal or the member's last start on. It ends soon
//! after. Only short leases are watched; the others outlive the run.

use super::load::{SHORT_LEASES, SHORT_TTL_S};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a short lease lives.
const TTL: Duration = Duration::from_secs(SHORT_TTL_S as u64);
/// A lease with less left than this may end before what is under way is done.
const ALMOST_OVER: Duration = Duration::from_secs(30);
/// How much later than its time a lease may end on a member that gets turns: a revocation that got lost is proposed
/// again after three seconds.
const LATE: Duration = Duration::from_secs(10);

/// The time of a lease.
#[derive(Clone, Copy, Debug)]
struct Term {
    /// It lives until then.
    not_before: Duration,
    /// It does not live much longer than until then.
    not_after: Duration,
}

/// The short leases and their times.
#[derive(Debug, Default)]
pub struct LeaseTimes {
    terms: BTreeMap<i64, Term>,
}

impl LeaseTimes {
    /// A lease was granted or renewed: asked for at `asked`, known at `known`.
    pub fn begin(&mut self, id: i64, asked: Duration, known: Duration) {
        if SHORT_LEASES.contains(&id) {
            let term = Term {
                not_before: asked + TTL,
                not_after: known + TTL,
            };
            self.terms.insert(id, term);
        }
    }

    /// A lease was revoked by a client.
    pub fn revoked(&mut self, id: i64) {
        self.terms.remove(&id);
    }

    /// The member was started: the leases that are there have all their time again.
    pub fn restarted(&mut self, ids: impl Iterator<Item = i64>, now: Duration) {
        self.terms.clear();
        for id in ids {
            self.begin(id, now, now);
        }
    }

    /// A lease is gone and no client has revoked it.
    pub fn expired(&mut self, id: i64, now: Duration) -> Result<(), String> {
        match self.terms.remove(&id) {
            None => Err(format!("the member revoked lease {id}, which does not end")),
            Some(term) if now < term.not_before => {
                let early = term.not_before - now;
                Err(format!("lease {id} ended {early:?} early"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether a lease may end before what is proposed now is done. The first to end, too, if it is late.
    pub fn is_ending(&self, now: Duration) -> bool {
        self.terms.values().any(|term| term.not_before < now + ALMOST_OVER)
    }

    /// Leases that may have ended, or may do so at once.
    pub fn ending(&self, now: Duration) -> Vec<i64> {
        let ending = self
            .terms
            .iter()
            .filter(|(_, term)| term.not_before < now + ALMOST_OVER);
        ending.map(|(id, _)| *id).collect()
    }

    /// When the last of them has to be gone.
    pub fn all_gone_at(&self) -> Option<Duration> {
        self.terms.values().map(|term| term.not_after + LATE).max()
    }

    /// A lease that should be gone.
    pub fn overdue(&self, now: Duration) -> Option<i64> {
        let overdue = self.terms.iter().find(|(_, term)| term.not_after + LATE < now);
        overdue.map(|(id, _)| *id)
    }

    /// Checks what the member says is left of a lease.
    pub fn check_left(&self, id: i64, left_s: i64, now: Duration) -> Result<(), String> {
        let Some(term) = self.terms.get(&id) else { return Ok(()) };
        let least = term.not_before.saturating_sub(now).as_secs() as i64;
        let most = term.not_after.saturating_sub(now).as_secs() as i64;
        if left_s <= most && (left_s >= least || now >= term.not_before) {
            return Ok(());
        }
        Err(format!(
            "lease {id} has {left_s} s left, {least} to {most} were expected"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_neither_early_nor_late() {
        let at = Duration::from_secs;
        let mut times = LeaseTimes::default();
        times.begin(SHORT_LEASES.start, at(10), at(12));
        assert!(!times.is_ending(at(20)) && times.is_ending(at(60)));
        assert_eq!(
            (times.overdue(at(82)), times.overdue(at(83))),
            (None, Some(SHORT_LEASES.start))
        );
        for (left_s, is_right) in [(50, false), (46, false), (47, true), (49, true)] {
            assert_eq!(
                times.check_left(SHORT_LEASES.start, left_s, at(23)).is_ok(),
                is_right,
                "{left_s}"
            );
        }
        times.begin(SHORT_LEASES.start, at(50), at(50));
        let mut early = LeaseTimes {
            terms: times.terms.clone(),
        };
        assert!(early.expired(SHORT_LEASES.start, at(109)).is_err());
        assert!(times.expired(SHORT_LEASES.start, at(110)).is_ok());
        assert!(
            times.expired(SHORT_LEASES.start, at(110)).is_err(),
            "it was gone already"
        );
    }
}
