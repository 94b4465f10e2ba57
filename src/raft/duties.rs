//! What the leader does without being asked: expiring leases, writing down what is left of long ones, compacting
//! history. And renewals, which only the leader can answer.

use super::auto_compaction::Moment;
use super::core::LogCore;
use super::messages::{LeaderPlace, NotPrimary, Reply};
use super::reads::Asker;
use super::waiters::Waiter;
use crate::limits::{LEASE_CHECKPOINTS_PER_TURN, LEASE_REVOKES_PER_TURN};
use crate::proto::etcdserverpb::{
    CompactionRequest, InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest,
};
use crate::state::lease::Renewal;
use std::time::Duration;

impl LogCore {
    /// Renews a lease once this member is known to lead still (DESIGN 12 (20)).
    pub(super) fn renew(&mut self, waiter: Waiter, id: i64, now: Duration) {
        if self.was_leader && !self.replica.node().is_sole_voter() {
            self.reads.ask(Asker::Renewal(waiter, id), now);
        } else {
            self.renew_confirmed(waiter, id, now);
        }
    }

    pub(super) fn renew_confirmed(&mut self, waiter: Waiter, id: i64, now: Duration) {
        let ttl_s = match self.state.lessor_mut().renew(id, now) {
            Renewal::Renewed { ttl_s } => {
                self.counters.leases_renewed += 1;
                Some(ttl_s)
            }
            Renewal::NotFound => Some(0),
            Renewal::NotPrimary => None,
            Renewal::AwaitRevoke => {
                self.renewals.push((id, waiter));
                return;
            }
            Renewal::ClearCheckpoint => {
                // What is left at the last checkpoint must not outlive the renewal; asked again when that is applied.
                self.propose_checkpoints(vec![(id, 0)], now);
                self.renewals.push((id, waiter));
                return;
            }
        };
        self.replies.push((
            waiter.core,
            Reply::Renewed {
                token: waiter.token,
                ttl_s,
            },
        ));
    }

    /// Tells what is left of a lease, once this member is known to lead still and to have applied what others may know
    /// of already.
    pub(super) fn time_to_live(&mut self, waiter: Waiter, id: i64, keys: bool, now: Duration) {
        if self.was_leader && !self.replica.node().is_sole_voter() {
            self.reads.ask(Asker::TimeToLive(waiter, id, keys), now);
        } else {
            self.time_to_live_confirmed(waiter, id, keys, now);
        }
    }

    pub(super) fn time_to_live_confirmed(&mut self, waiter: Waiter, id: i64, keys: bool, now: Duration) {
        let Waiter { core, token } = waiter;
        let lease = if self.was_leader {
            Ok(self.state.lessor().time_to_live(id, keys, now))
        } else {
            Err(NotPrimary)
        };
        self.replies.push((core, Reply::TimeToLive { token, lease }));
    }

    /// Who leads, and where.
    pub(super) fn leader_place(&mut self) -> Option<LeaderPlace> {
        let leader = self.replica.node().leader();
        let member = self.state.members().get(leader)?;
        Some(LeaderPlace {
            is_self: leader == self.member_id,
            peer_urls: member.peer_urls.clone(),
        })
    }

    /// Says who leads from now on, as far as this member knows.
    pub(super) fn tell_leader(&mut self, leader: u64) {
        let term = self.replica.node().term();
        let name = |id| self.state.members().get(id).map_or("", |member| &member.name);
        let (member, was) = (
            format_args!("{:x}", self.member_id),
            format_args!("{:x}", self.last_leader),
        );
        match leader {
            0 => tracing::warn!(%member, term, was, name = name(self.last_leader), "lost the leader"),
            id if id == self.member_id => tracing::info!(%member, term, "became the leader"),
            id => tracing::info!(%member, term, leader = %format_args!("{id:x}"), name = name(id), "has a leader"),
        }
    }

    /// Lets serve cores see this member's place in the cluster.
    pub(super) fn note_standing(&mut self) {
        let own = self.state.members().get(self.member_id);
        let is_learner = own.is_some_and(|member| member.is_learner);
        self.standing.set(self.replica.node().leader(), is_learner);
    }

    pub(super) fn expire_leases(&mut self, now: Duration) {
        if !self.was_leader || self.stopping {
            return;
        }
        // What has run out was not renewed by another leader if this one led until after that (DESIGN 12 (20)).
        let led_until = self.led_until(now).min(now);
        let next = self.state.lessor().next_expiry();
        if next.is_some_and(|next| next <= now && next > led_until) {
            self.reads.want_confirmation();
        }
        for id in self.state.lessor_mut().expired(led_until, LEASE_REVOKES_PER_TURN) {
            self.counters.leases_expired += 1;
            let request = InternalRaftRequest {
                lease_revoke: Some(LeaseRevokeRequest { id }),
                ..Default::default()
            };
            self.propose_as_leader(request, now);
        }
        let due = self.state.lessor_mut().due_checkpoints(now, LEASE_CHECKPOINTS_PER_TURN);
        if !due.is_empty() {
            self.propose_checkpoints(due, now);
        }
    }

    /// Proposes that of each lease so many seconds are left.
    fn propose_checkpoints(&mut self, remaining: Vec<(i64, i64)>, now: Duration) {
        let checkpoints = remaining
            .into_iter()
            .map(|(id, remaining_ttl)| LeaseCheckpoint { id, remaining_ttl });
        let lease_checkpoint = Some(LeaseCheckpointRequest {
            checkpoints: checkpoints.collect(),
        });
        let request = InternalRaftRequest {
            lease_checkpoint,
            ..Default::default()
        };
        self.propose_as_leader(request, now);
    }

    /// Asks again for renewals that waited for these checkpoints.
    pub(super) fn renew_after(&mut self, checkpoints: &LeaseCheckpointRequest, now: Duration) {
        let written = |id: i64| checkpoints.checkpoints.iter().any(|checkpoint| checkpoint.id == id);
        let (again, waiting) = std::mem::take(&mut self.renewals)
            .into_iter()
            .partition(|(id, _)| written(*id));
        self.renewals = waiting;
        let again: Vec<(i64, Waiter)> = again;
        for (id, waiter) in again {
            self.renew(waiter, id, now);
        }
    }

    /// Leadership is over: renewals that waited for an entry of its own are the next leader's to answer. What was
    /// proposed may never be applied.
    pub(super) fn give_up_renewals(&mut self) {
        for (_, Waiter { core, token }) in self.renewals.drain(..) {
            self.replies.push((core, Reply::Renewed { token, ttl_s: None }));
        }
    }

    /// Lets the compactor look at the clock.
    pub(super) fn compact_by_itself(&mut self, now: Duration) {
        let Some(compactor) = self.compactor.as_mut().filter(|_| !self.stopping) else {
            return;
        };
        let readable = self.state.readable();
        let moment = Moment {
            now,
            revision: readable.revision,
            compact_revision: readable.compact_revision,
            is_leader: self.was_leader,
        };
        if let Some(revision) = compactor.look(moment) {
            let request = InternalRaftRequest {
                compaction: Some(CompactionRequest {
                    revision,
                    physical: false,
                }),
                ..Default::default()
            };
            self.propose_as_leader(request, now);
        }
    }
}
