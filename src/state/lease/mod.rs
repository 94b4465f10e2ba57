//! Leases: who has which, which keys hang on it, and when it is due (`etcd-surface` 4.7).
//!
//! What is replicated is a lease's id, its time to live, its checkpointed remainder and its keys; `grant`, `revoke`,
//! `checkpoint`, `attach` and `detach` are called by `apply` alone and depend on nothing else. When a lease expires is
//! known by the leader only, between `promote` and `demote`, and never by apply: `expired` names leases that the leader
//! is to propose revocations for. Time is passed in, as the duration since any fixed moment.

mod attached;
mod deadlines;

use crate::limits::{LEASE_EXPIRIES_PER_SECOND, LEASE_REVOKE_RATE_PER_SECOND, LEASE_REVOKE_RETRY, LEASE_TIMER_BUDGET};
use crate::proto::leasepb;
use crate::state::error::StateError;
use attached::Attached;
use deadlines::Deadlines;
use prost::Message;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// The longest time to live that can be granted, in seconds.
pub const MAX_TTL_S: i64 = 9_000_000_000;

/// What the operator sets.
#[derive(Clone, Copy, Debug)]
pub struct LessorConfig {
    /// The shortest time to live, in seconds; shorter wishes are raised to it. Three half election timeouts, rounded
    /// up.
    pub min_ttl_s: i64,
    /// How often the remainder of a long lease goes through the log; `None` when the feature is off.
    pub checkpoint_interval: Option<Duration>,
}

impl Default for LessorConfig {
    fn default() -> LessorConfig {
        LessorConfig {
            min_ttl_s: 2,
            checkpoint_interval: None,
        }
    }
}

/// All leases.
#[derive(Debug, Default)]
pub struct Lessor {
    config: LessorConfig,
    leases: HashMap<i64, Lease>,
    primary: bool,
    expiries: Deadlines,
    checkpoints: Deadlines,
    /// Leases that the next checkpoint has to write or delete.
    changed: BTreeSet<i64>,
}

#[derive(Debug)]
struct Lease {
    ttl_s: i64,
    /// What was left at the last checkpoint, in seconds; 0 when there is none.
    remaining_ttl_s: i64,
    /// `None` on members that do not lead.
    expiry: Option<Duration>,
    /// The time of its valid entry among the expiries.
    wake_at: Option<Duration>,
    /// The time of its valid entry among the checkpoints.
    checkpoint_at: Option<Duration>,
    keys: Attached,
}

/// What became of a wish to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Renewed for this many seconds.
    Renewed {
        /// The lease's time to live.
        ttl_s: i64,
    },
    /// Propose a checkpoint with remainder 0 for it, and ask again when that is applied.
    ClearCheckpoint,
    /// It has expired and its revocation is under way. Answer 0 when it is revoked, or `NotPrimary` when leadership
    /// ends.
    AwaitRevoke,
    /// There is no such lease: answer 0.
    NotFound,
    /// Only the leader can tell.
    NotPrimary,
}

/// What a lease is asked for by `LeaseTimeToLive`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// As granted, in seconds.
    pub granted_ttl_s: i64,
    /// Whole seconds left, cut toward zero, negative between expiry and revocation; `None` on members that do not lead.
    pub remaining_s: Option<i64>,
    /// The keys, if asked for.
    pub keys: Vec<Box<[u8]>>,
}

impl Lease {
    fn new(ttl_s: i64, remaining_ttl_s: i64) -> Lease {
        Lease {
            ttl_s,
            remaining_ttl_s,
            expiry: None,
            wake_at: None,
            checkpoint_at: None,
            keys: Attached::default(),
        }
    }

    /// How long it runs from a renewal on, in seconds.
    fn run_s(&self) -> i64 {
        if self.remaining_ttl_s > 0 {
            self.remaining_ttl_s
        } else {
            self.ttl_s
        }
    }

    fn encode(&self, id: i64) -> Vec<u8> {
        leasepb::Lease {
            id,
            ttl: self.ttl_s,
            remaining_ttl: self.remaining_ttl_s,
        }
        .encode_to_vec()
    }
}

impl Lessor {
    /// No leases yet, and not leading.
    pub fn new(config: LessorConfig) -> Lessor {
        Lessor {
            config,
            ..Lessor::default()
        }
    }

    /// Takes over a stored lease at boot, before its keys are attached.
    pub fn restore(&mut self, stored: &leasepb::Lease) {
        let ttl_s = stored.ttl.max(self.config.min_ttl_s);
        self.leases.insert(stored.id, Lease::new(ttl_s, stored.remaining_ttl));
    }

    /// Grants a lease; returns the time to live that it got, in seconds.
    pub fn grant(&mut self, id: i64, ttl_s: i64, now: Duration) -> Result<i64, StateError> {
        if id == 0 {
            return Err(StateError::LeaseNotFound);
        }
        if ttl_s > MAX_TTL_S {
            return Err(StateError::LeaseTtlTooLarge);
        }
        if self.leases.contains_key(&id) {
            return Err(StateError::LeaseExists);
        }
        let ttl_s = ttl_s.max(self.config.min_ttl_s);
        self.leases.insert(id, Lease::new(ttl_s, 0));
        self.changed.insert(id);
        if self.primary {
            self.refresh(id, now, Duration::ZERO);
            self.schedule_checkpoint(id, now);
        }
        Ok(ttl_s)
    }

    /// Whether there is such a lease, expired or not.
    pub fn contains(&self, id: i64) -> bool {
        self.leases.contains_key(&id)
    }

    /// Number of leases.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is no lease.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The keys of a lease, in order, to be deleted before `revoke`; the lease has none from now on.
    pub(crate) fn take_keys(&mut self, id: i64) -> Option<impl Iterator<Item = Box<[u8]>> + Send + use<>> {
        self.leases
            .get_mut(&id)
            .map(|lease| std::mem::take(&mut lease.keys).into_iter())
    }

    /// Removes a lease, whose keys are gone already.
    pub(crate) fn revoke(&mut self, id: i64) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        debug_assert_eq!(lease.keys.len(), 0, "a lease is revoked after its keys");
        self.changed.insert(id);
        let leases = &self.leases;
        if lease.wake_at.is_some() {
            self.expiries
                .mark_stale(|at, id| leases.get(&id).is_some_and(|lease| lease.wake_at == Some(at)));
        }
        if lease.checkpoint_at.is_some() {
            self.checkpoints
                .mark_stale(|at, id| leases.get(&id).is_some_and(|lease| lease.checkpoint_at == Some(at)));
        }
    }

    /// Notes how much of a lease was left. An unknown lease is no error.
    pub fn checkpoint(&mut self, id: i64, remaining_ttl_s: i64, now: Duration) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.remaining_ttl_s = remaining_ttl_s;
        self.changed.insert(id);
        if self.primary {
            self.schedule_checkpoint(id, now);
        }
    }

    /// Hangs a key on a lease. An unknown lease is ignored, as at boot from a store whose key names one that is gone.
    pub fn attach(&mut self, id: i64, key: &[u8]) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.keys.insert(key);
        }
    }

    /// Takes a key off a lease.
    pub fn detach(&mut self, id: i64, key: &[u8]) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.keys.remove(key);
        }
    }

    /// Renews a lease from `now` on.
    pub fn renew(&mut self, id: i64, now: Duration) -> Renewal {
        if !self.primary {
            return Renewal::NotPrimary;
        }
        let Some(lease) = self.leases.get_mut(&id) else {
            return Renewal::NotFound;
        };
        if lease.expiry.is_some_and(|expiry| expiry <= now) {
            return Renewal::AwaitRevoke;
        }
        if lease.remaining_ttl_s > 0 && self.config.checkpoint_interval.is_some() {
            return Renewal::ClearCheckpoint;
        }
        let ttl_s = lease.ttl_s;
        self.refresh(id, now, Duration::ZERO);
        Renewal::Renewed { ttl_s }
    }

    /// What is left of a lease; `None` when there is no such lease.
    pub fn time_to_live(&self, id: i64, with_keys: bool, now: Duration) -> Option<TimeToLive> {
        let lease = self.leases.get(&id)?;
        let remaining_s = lease.expiry.map(|expiry| match expiry.checked_sub(now) {
            Some(left) => seconds(left),
            None => -seconds(now.saturating_sub(expiry)),
        });
        let keys = if with_keys {
            lease.keys.iter().map(Box::from).collect()
        } else {
            Vec::new()
        };
        Some(TimeToLive {
            granted_ttl_s: lease.ttl_s,
            remaining_s,
            keys,
        })
    }

    /// All ids, the next to expire first; by id where that does not tell.
    pub fn ids(&self) -> Vec<i64> {
        let mut ids: Vec<_> = self.leases.iter().map(|(id, lease)| (lease.expiry, *id)).collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Starts to lead: every lease runs for its whole time, or for what its checkpoint says, plus `extend`; where more
    /// than the rate of revocations can take would expire within a second, later ones get more.
    pub fn promote(&mut self, now: Duration, extend: Duration) {
        self.primary = true;
        self.expiries.clear();
        self.checkpoints.clear();
        let mut order: Vec<(Duration, i64)> = Vec::with_capacity(self.leases.len());
        for (id, lease) in &mut self.leases {
            let left = extend + Duration::from_secs(lease.run_s().max(0) as u64);
            lease.expiry = Some(now.saturating_add(left));
            (lease.wake_at, lease.checkpoint_at) = (None, None);
            order.push((left, *id));
        }
        if order.len() >= LEASE_REVOKE_RATE_PER_SECOND {
            order.sort_unstable();
            self.spread(&order, now, extend);
        }
        for (_, id) in order {
            self.schedule_expiry(id);
            self.schedule_checkpoint(id, now);
        }
    }

    /// Moves expiries apart: `order` has what is left of each lease, shortest first.
    fn spread(&mut self, order: &[(Duration, i64)], now: Duration, extend: Duration) {
        const SECOND: Duration = Duration::from_secs(1);
        let (mut window, mut expiries) = (order[0].0, 0usize);
        let mut window_end = window + SECOND;
        for &(left, id) in order {
            if left > window_end {
                (window, window_end, expiries) = (left, left + SECOND, 1);
                continue;
            }
            expiries += 1;
            if expiries <= LEASE_EXPIRIES_PER_SECOND {
                continue;
            }
            let pile = SECOND.mul_f64(expiries as f64 / LEASE_EXPIRIES_PER_SECOND as f64);
            let delay = pile.saturating_sub(left - window);
            window_end = window + delay;
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.expiry = Some(now.saturating_add(left).saturating_add(delay));
            }
        }
        debug_assert!(order.iter().all(|(left, _)| *left >= extend));
    }

    /// Stops to lead: no lease expires here any more.
    pub fn demote(&mut self) {
        self.primary = false;
        self.expiries.clear();
        self.checkpoints.clear();
        for lease in self.leases.values_mut() {
            (lease.expiry, lease.wake_at, lease.checkpoint_at) = (None, None, None);
        }
    }

    /// Whether this member leads, so that renewals and expiry happen here.
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// At most `max` leases that are due, for the leader to propose revocations of. A lease that is named stays away
    /// for three seconds, then is named again if it is still there. Bounded work: what is left over comes with the next
    /// call.
    pub fn expired(&mut self, now: Duration, max: usize) -> Vec<i64> {
        let mut due = Vec::new();
        for _ in 0..LEASE_TIMER_BUDGET {
            if due.len() == max {
                break;
            }
            let Some((at, id)) = self.expiries.pop_due(now) else {
                break;
            };
            let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.wake_at == Some(at)) else {
                self.expiries.popped_stale();
                continue;
            };
            let expiry = lease.expiry.unwrap_or(Duration::MAX);
            let wake_at = if expiry <= now {
                due.push(id);
                now + LEASE_REVOKE_RETRY
            } else {
                expiry
            };
            lease.wake_at = Some(wake_at);
            self.expiries.push(wake_at, id);
        }
        due
    }

    /// When `expired` may next have something to do.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.expiries.next()
    }

    /// At most `max` leases whose remainder, in seconds, is due to be checkpointed through the log.
    pub fn due_checkpoints(&mut self, now: Duration, max: usize) -> Vec<(i64, i64)> {
        let mut due = Vec::new();
        for _ in 0..LEASE_TIMER_BUDGET {
            if due.len() == max {
                break;
            }
            let Some((at, id)) = self.checkpoints.pop_due(now) else {
                break;
            };
            let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.checkpoint_at == Some(at)) else {
                self.checkpoints.popped_stale();
                continue;
            };
            lease.checkpoint_at = None;
            let Some(left) = lease
                .expiry
                .and_then(|expiry| expiry.checked_sub(now))
                .filter(|left| !left.is_zero())
            else {
                continue;
            };
            let remaining_s = seconds(left) + i64::from(left.subsec_nanos() > 0);
            if remaining_s < lease.ttl_s {
                due.push((id, remaining_s));
            } else {
                self.schedule_checkpoint(id, now);
            }
        }
        due
    }

    /// What changed since the last call, by id: the stored form of a lease (key, value), or no value if it is gone.
    pub(crate) fn take_changes(&mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let changed = std::mem::take(&mut self.changed);
        let stored = |id: i64| {
            (
                id.to_be_bytes().to_vec(),
                self.leases.get(&id).map(|lease| lease.encode(id)),
            )
        };
        changed.into_iter().map(stored).collect()
    }

    fn refresh(&mut self, id: i64, now: Duration, extend: Duration) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let run = Duration::from_secs(lease.run_s().max(0) as u64);
        let expiry = now.saturating_add(run).saturating_add(extend);
        lease.expiry = Some(expiry);
        match lease.wake_at {
            // The entry comes up earlier than needed and is put in again then.
            Some(at) if at <= expiry => {}
            Some(_) => {
                self.schedule_expiry(id);
                let leases = &self.leases;
                self.expiries
                    .mark_stale(|at, id| leases.get(&id).is_some_and(|lease| lease.wake_at == Some(at)));
            }
            None => self.schedule_expiry(id),
        }
    }

    fn schedule_expiry(&mut self, id: i64) {
        if let Some(lease) = self.leases.get_mut(&id)
            && let Some(expiry) = lease.expiry
        {
            lease.wake_at = Some(expiry);
            self.expiries.push(expiry, id);
        }
    }

    fn schedule_checkpoint(&mut self, id: i64, now: Duration) {
        let (Some(interval), Some(lease)) = (self.config.checkpoint_interval, self.leases.get_mut(&id)) else {
            return;
        };
        if lease.checkpoint_at.is_none() && lease.run_s() > seconds(interval) {
            lease.checkpoint_at = Some(now + interval);
            self.checkpoints.push(now + interval, id);
        }
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
