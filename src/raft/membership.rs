//! Changes of the membership, and of who leads.
//!
//! A change is proposed alone, when none is under way (DESIGN 12 (16)). Apply decodes it itself, in raftpb's numbers,
//! and checks it as etcd does against the members applied so far: what is refused never reaches raft-rs, on any member.
//! What raft knows of the membership and what clients are told change in the same entry.

use super::apply::Applier;
use super::core::{Fatal, LogCore};
use super::messages::{Dropped, MemberChange, MemberError, MoveError, Reply, ToPeers};
use super::node::Proposed;
use super::waiters::Waiter;
use crate::limits::{MEMBER_CONNECTED_LEAST, PROMOTION_MATCH_PERCENT, REMOVED_MEMBER_STAYS};
use crate::state::members::Member;
use bytes::Bytes;
use prost::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, Entry};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// raftpb's numbers of the kinds of changes; raft-rs has another for learners and none for updates.
pub mod kind {
    /// A voter is added, or a learner promoted.
    pub const ADD: i32 = 0;
    /// A member goes.
    pub const REMOVE: i32 = 1;
    /// A member gets other peer URLs.
    pub const UPDATE: i32 = 2;
    /// A learner is added.
    pub const ADD_LEARNER: i32 = 3;
}

/// What a change carries, as etcd's JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Context {
    #[serde(flatten)]
    member: Member,
    #[serde(rename = "isPromote", default, skip_serializing_if = "std::ops::Not::not")]
    is_promote: bool,
}

fn is_promotion(change: &ConfChange) -> bool {
    let context = serde_json::from_slice::<Context>(&change.context);
    change.change_type == kind::ADD && context.is_ok_and(|context| context.is_promote)
}

/// A change that waits for its turn.
struct Pending {
    waiter: Waiter,
    id: u64,
    change: Bytes,
    until: Duration,
}

/// A transfer of leadership under way.
struct Transfer {
    waiter: Waiter,
    to: u64,
    until: Duration,
}

/// What is under way.
#[derive(Default)]
pub(super) struct MemberChanges {
    waiting: VecDeque<Pending>,
    transfer: Option<Transfer>,
    /// Members whose messages come through, and since when.
    connected: BTreeMap<u64, Duration>,
    /// Since when there has been no room for a checkpoint without which nothing more is applied.
    cannot_apply_since: Option<Duration>,
    /// When this member was seen to be removed.
    removed_at: Option<Duration>,
    /// Until when a member that stops waits for another to lead.
    leaving_until: Option<Duration>,
}

impl LogCore {
    /// Notes that messages of `id` come through, or not any more.
    pub(super) fn connected(&mut self, id: u64, is_connected: bool, now: Duration) {
        if is_connected {
            self.changes.connected.entry(id).or_insert(now);
        } else {
            self.changes.connected.remove(&id);
        }
    }

    /// Takes a client's change: refuses what etcd refuses before it is proposed.
    pub(super) fn change_members(&mut self, waiter: Waiter, id: u64, change: MemberChange, now: Duration) {
        if self.stopping {
            return self.drop_waiter(waiter, Dropped::Stopping);
        }
        let Waiter { core, token } = waiter;
        if let Err(error) = self.may_change(&change, now) {
            if matches!(change, MemberChange::Promote(_)) && error != MemberError::NotLeader {
                self.promotion_refused(error);
            }
            let result = Err(error);
            return self.replies.push((core, Reply::Members { token, result }));
        }
        let change = Bytes::from(self.encode(change, id).encode_to_vec());
        self.changes.waiting.push_back(Pending {
            waiter,
            id,
            change,
            until: now + self.proposal_timeout(),
        });
    }

    fn encode(&self, change: MemberChange, id: u64) -> ConfChange {
        let with_context = |change_type, member: Member, is_promote| ConfChange {
            change_type,
            node_id: member.id,
            context: serde_json::to_vec(&Context { member, is_promote })
                .expect("a member is JSON")
                .into(),
            id,
        };
        let known = |id| self.state.members().get(id).cloned().unwrap_or_default();
        match change {
            MemberChange::Add(member) => {
                let kind = if member.is_learner {
                    kind::ADD_LEARNER
                } else {
                    kind::ADD
                };
                with_context(kind, member, false)
            }
            MemberChange::Remove(node_id) => ConfChange {
                change_type: kind::REMOVE,
                node_id,
                context: Bytes::new(),
                id,
            },
            MemberChange::Update { id: node_id, peer_urls } => {
                let is_learner = known(node_id).is_learner;
                let member = Member {
                    id: node_id,
                    peer_urls,
                    is_learner,
                    ..Default::default()
                };
                with_context(kind::UPDATE, member, false)
            }
            MemberChange::Promote(node_id) => {
                let member = Member {
                    id: node_id,
                    ..Default::default()
                };
                with_context(kind::ADD, member, true)
            }
        }
    }

    /// What etcd asks before it proposes a change (`etcd-surface` 4.10).
    fn may_change(&mut self, change: &MemberChange, now: Duration) -> Result<(), MemberError> {
        if let MemberChange::Promote(id) = change {
            self.may_promote(*id)?;
        }
        if !self.options.strict_reconfiguration {
            return Ok(());
        }
        let members = self.state.members();
        let voters = || members.iter().filter(|member| !member.is_learner);
        let started = |member: &&Member| !member.name.is_empty();
        let (count, started_count) = (voters().count(), voters().filter(started).count());
        let connected_since = |id: u64| id == self.member_id || self.is_connected(id, now);
        let active = voters().filter(|member| connected_since(member.id)).count();
        match change {
            MemberChange::Add(member) => {
                // From one member to two is how a lost cluster is made anew.
                let first = started_count == 1 && count == 1;
                if !member.is_learner && !first && started_count < quorum(count + 1) {
                    return Err(MemberError::NotEnoughStarted);
                }
                if active < quorum(count) {
                    return Err(MemberError::Unhealthy);
                }
            }
            MemberChange::Remove(id) => {
                let Some(member) = members.get(*id).filter(|member| !member.is_learner) else {
                    return Ok(());
                };
                if started_count - usize::from(started(&member)) < quorum(count - 1) {
                    return Err(MemberError::NotEnoughStarted);
                }
                if connected_since(*id) && active - 1 < quorum(count - 1) {
                    return Err(MemberError::Unhealthy);
                }
            }
            MemberChange::Promote(_) if started_count + 1 < quorum(count + 1) => {
                return Err(MemberError::NotEnoughStarted);
            }
            MemberChange::Promote(_) | MemberChange::Update { .. } => {}
        }
        Ok(())
    }

    fn may_promote(&mut self, id: u64) -> Result<(), MemberError> {
        if !self.replica.node().is_leader() {
            return Err(MemberError::NotLeader);
        }
        if self.state.members().get(id).is_none() {
            return Err(MemberError::NotFound);
        }
        let node = self.replica.node();
        let (last, _) = node.progress(self.member_id).unwrap_or_default();
        let (matched, _) = node.progress(id).unwrap_or_default();
        if matched.saturating_mul(100) < last.saturating_mul(PROMOTION_MATCH_PERCENT) {
            tracing::error!(
                "learner-id" = format_args!("{id:x}"),
                matched,
                "leader-matched" = last,
                "learner-ready-percent" = matched as f64 / last as f64,
                "ready-percent-threshold" = PROMOTION_MATCH_PERCENT as f64 / 100.0,
                "rejecting promote learner: learner is not ready"
            );
            return Err(MemberError::LearnerNotReady);
        }
        Ok(())
    }

    fn is_connected(&self, id: u64, now: Duration) -> bool {
        let since = self.changes.connected.get(&id);
        since.is_some_and(|since| now >= *since + MEMBER_CONNECTED_LEAST)
    }

    /// Whether messages of `id` have come through ever since `began`.
    pub(super) fn is_connected_since(&self, id: u64, began: Duration) -> bool {
        self.changes.connected.get(&id).is_some_and(|since| *since <= began)
    }

    /// Hands the next change to raft when none is under way.
    pub(super) fn propose_change(&mut self, now: Duration) {
        while let Some(next) = self.changes.waiting.front() {
            let (late, node) = (next.until <= now, self.replica.node());
            let nobody = node.leader() == 0 || node.transferee().is_some() || node.has_pending_conf_change();
            if nobody && !late {
                return;
            }
            let Pending {
                waiter,
                id,
                change,
                until,
            } = self.changes.waiting.pop_front().expect("there is a first one");
            if late {
                self.drop_waiter(waiter, Dropped::Deadline);
                continue;
            }
            let bytes = change.len();
            match self.replica.node().propose_conf_change(change) {
                Proposed::Appended(position) => {
                    let mut dropped = Vec::new();
                    self.waiters.appended(position, Some(waiter), bytes, &mut dropped);
                    self.drop_waiters(dropped);
                }
                Proposed::Forwarded => {
                    let term = self.replica.node().term();
                    self.waiters.forwarded(id, term, Some(waiter), bytes, until);
                }
                Proposed::Dropped => self.drop_waiter(waiter, Dropped::NoLeader),
            }
        }
    }

    /// Applies a change that is committed. `waiter` is whoever waits for its position.
    pub(super) fn apply_conf_change(
        &mut self,
        entry: &Entry,
        waiter: Option<Waiter>,
        now: Duration,
    ) -> Result<(), Fatal> {
        let wrong = |reason: String| Fatal::Entry {
            index: entry.index,
            reason,
        };
        let change = ConfChange::decode(entry.data.clone()).map_err(|error| wrong(error.to_string()))?;
        let checked = self.check(&change).map_err(wrong)?;
        let waiter = waiter.or_else(|| self.waiters.take_forwarded(change.id));
        let is_promotion = is_promotion(&change);
        let result = match checked {
            Ok(context) => {
                self.carry_out(&change, context).map_err(wrong)?;
                self.members_changed(change.node_id, now);
                Ok(self.state.members().iter().cloned().collect())
            }
            Err(error) => {
                tracing::warn!(
                    member = format_args!("{:x}", change.node_id),
                    ?error,
                    "refused a change of the membership"
                );
                Err(error)
            }
        };
        if is_promotion && waiter.is_some() {
            match result {
                Ok(_) => self.counters.promotions += 1,
                Err(error) => self.promotion_refused(error),
            }
        }
        self.state.skip(entry.index, entry.term);
        self.applier.answer_members(waiter, result);
        Ok(())
    }

    fn promotion_refused(&mut self, error: MemberError) {
        let reason = match error {
            MemberError::LearnerNotReady => {
                "etcdserver: can only promote a learner member which is in sync with leader"
            }
            MemberError::NotFound => "membership: ID not found",
            MemberError::NotLearner => "membership: can only promote a learner member",
            MemberError::NotEnoughStarted => "etcdserver: re-configuration failed due to not enough started members",
            _ => "etcdserver: unhealthy cluster",
        };
        *self.counters.promotions_refused.entry(reason).or_default() += 1;
    }

    /// Whether a change can be made to the members applied so far; the outer error is one in the entry. Nobody can be
    /// member 0, so it is never found: clients may name it, and raft leaves out such a change by itself.
    fn check(&self, change: &ConfChange) -> Result<Result<Option<Context>, MemberError>, String> {
        let members = self.state.members();
        let id = change.node_id;
        if id == 0 || members.is_removed(id) {
            return Ok(Err(MemberError::NotFound));
        }
        let context = match change.change_type {
            kind::REMOVE => None,
            kind::ADD | kind::ADD_LEARNER | kind::UPDATE => {
                let context: Context = serde_json::from_slice(&change.context)
                    .map_err(|error| format!("its member is not etcd's JSON: {error}"))?;
                Some(context)
            }
            other => return Err(format!("membership change {other} is none of etcd's")),
        };
        let known = members.get(id);
        let url_in_use = |context: &Context| {
            let others = members.iter().filter(|member| member.id != id);
            let mut urls = others.flat_map(|member| &member.peer_urls);
            urls.any(|url| context.member.peer_urls.contains(url))
        };
        let learners = members.iter().filter(|member| member.is_learner).count();
        let refused = match (&context, change.change_type) {
            (None, _) | (_, kind::UPDATE) if known.is_none() => Some(MemberError::NotFound),
            (None, _) => None,
            (Some(context), kind::ADD) if context.is_promote => match known {
                None => Some(MemberError::NotFound),
                Some(member) => (!member.is_learner).then_some(MemberError::NotLearner),
            },
            (Some(context), _) if url_in_use(context) => Some(MemberError::PeerUrlExists),
            (Some(_), kind::UPDATE) => None,
            (Some(_), _) if known.is_some() => Some(MemberError::IdExists),
            (Some(_), kind::ADD_LEARNER) if learners >= self.options.learners_max => Some(MemberError::TooManyLearners),
            (Some(_), _) => None,
        };
        Ok(refused.map_or(Ok(context), Err))
    }

    /// Makes a checked change, in raft and in what clients are told.
    fn carry_out(&mut self, change: &ConfChange, context: Option<Context>) -> Result<(), String> {
        let id = change.node_id;
        let raft_kind = match change.change_type {
            kind::REMOVE => Some(ConfChangeType::RemoveNode),
            kind::ADD => Some(ConfChangeType::AddNode),
            kind::ADD_LEARNER => Some(ConfChangeType::AddLearnerNode),
            _ => None,
        };
        if let Some(raft_kind) = raft_kind {
            let change = ConfChange {
                change_type: raft_kind as i32,
                node_id: id,
                ..Default::default()
            };
            let applied = self.replica.node().apply_conf_change(&change);
            applied.map_err(|error| error.to_string())?;
        }
        let members = self.state.members_mut();
        match (context, change.change_type) {
            (None, _) => members.remove(id),
            (Some(_), kind::ADD) if members.get(id).is_some() => members.promote(id),
            (Some(context), kind::UPDATE) => members.set_peer_urls(id, context.member.peer_urls),
            (Some(context), kind) => members.add(Member {
                is_learner: kind == kind::ADD_LEARNER,
                ..context.member
            }),
        }
        Ok(())
    }

    fn members_changed(&mut self, id: u64, now: Duration) {
        if id == self.member_id && self.state.members().is_removed(id) {
            tracing::warn!("this member was removed from the cluster; stopping");
            self.changes.removed_at = Some(now);
        }
        if self.state.members().get(id).is_none() {
            self.changes.connected.remove(&id);
        }
        self.tell_members();
    }

    /// Tells the transport who the others are.
    pub(super) fn tell_members(&mut self) {
        let members = self.state.members();
        let others = members.iter().filter(|member| member.id != self.member_id);
        self.to_peers.push(ToPeers::Members {
            members: others.cloned().collect(),
            removed: members.removed().collect(),
        });
    }

    /// Another member says that this one is no member any more.
    pub(super) fn told_removed(&mut self, now: Duration) {
        self.changes.removed_at.get_or_insert(now);
    }

    /// Ends a member that was removed, once the others and its clients can have heard of it.
    pub(super) fn check_removed(&self, now: Duration) -> Result<(), Fatal> {
        match self.changes.removed_at {
            Some(at) if now >= at + REMOVED_MEMBER_STAYS => Err(Fatal::Removed),
            _ => Ok(()),
        }
    }

    /// Begins to hand leadership to `to`.
    pub(super) fn move_leader(&mut self, waiter: Waiter, to: u64, now: Duration) {
        let Waiter { core, token } = waiter;
        let node = self.replica.node();
        let is_voter = node.conf_state().voters.contains(&to);
        let refused = if !node.is_leader() {
            Some(MoveError::NotLeader)
        } else if !is_voter || self.changes.transfer.is_some() {
            Some(MoveError::BadTransferee)
        } else {
            None
        };
        if let Some(error) = refused {
            let result = Err(error);
            return self.replies.push((core, Reply::LeaderMoved { token, result }));
        }
        node.transfer_leader(to);
        self.changes.transfer = Some(Transfer {
            waiter,
            to,
            until: now + self.proposal_timeout(),
        });
    }

    /// Prepares a member that leads for its end, by steps: the one that has most of the log is asked to take over. True
    /// when another leads, nobody can, or it takes longer than an election would.
    pub fn leave(&mut self, now: Duration) -> bool {
        let node = self.replica.node();
        if !node.is_leader() || node.is_sole_voter() {
            return true;
        }
        if let Some(until) = self.changes.leaving_until {
            return now >= until;
        }
        self.changes.leaving_until = Some(now + self.options.election_timeout);
        match self.followers().max() {
            Some((_, to)) => {
                tracing::info!(to = format_args!("{to:x}"), "hands leadership over before it stops");
                self.replica.node().transfer_leader(to);
                false
            }
            None => true,
        }
    }

    /// Of a leader: the other voters that were heard of lately, each behind the last entry that it is known to have.
    fn followers(&mut self) -> impl Iterator<Item = (u64, u64)> {
        let own = self.member_id;
        let node = self.replica.node();
        let voters = node.conf_state().voters.iter().filter(move |id| **id != own);
        voters.filter_map(|id| {
            let (matched, is_active) = node.progress(*id)?;
            is_active.then_some((matched, *id))
        })
    }

    /// A leader whose log takes nothing while those of a majority get on without it hands leadership over: heartbeats
    /// do not wait for the disk, so nobody else would notice, and it can answer nobody.
    pub(super) fn leave_if_stalled(&mut self, now: Duration) {
        let waited = self.replica.stands_still_for(now);
        let node = self.replica.node();
        if waited < self.options.election_timeout || !node.is_leader() || node.transferee().is_some() {
            return;
        }
        let (persisted, voters) = (node.persisted_index(), node.conf_state().voters.len());
        let ahead: Vec<(u64, u64)> = self.followers().filter(|(matched, _)| *matched > persisted).collect();
        if let Some((_, to)) = ahead.iter().max().filter(|_| ahead.len() >= quorum(voters)) {
            tracing::warn!(
                to = format_args!("{to:x}"),
                ?waited,
                "hands leadership over, for its log stands still"
            );
            self.replica.node().transfer_leader(*to);
        }
    }

    /// A leader without room that has applied as much as it may until there is some hands leadership over: its log may
    /// have room for long, and what others pass on to it would gather here. To whom comes next by id, for that one may
    /// be no better off.
    pub(super) fn leave_if_full(&mut self, now: Duration) {
        if !self.applier.no_space || !self.is_saturated() {
            self.changes.cannot_apply_since = None;
            return;
        }
        let since = *self.changes.cannot_apply_since.get_or_insert(now);
        let (own, node) = (self.member_id, self.replica.node());
        if now < since + self.options.election_timeout || !node.is_leader() || node.transferee().is_some() {
            return;
        }
        let committed = node.commit_index();
        let others = self.followers().filter(|(matched, _)| *matched >= committed);
        let next = others.min_by_key(|(_, id)| (*id < own, *id));
        if let Some((_, to)) = next {
            tracing::warn!(
                to = format_args!("{to:x}"),
                "hands leadership over, for there is no room to apply more"
            );
            self.replica.node().transfer_leader(to);
        }
    }

    /// Answers who waits for a transfer once it is over.
    pub(super) fn watch_transfer(&mut self, now: Duration) {
        let leader = self.replica.node().leader();
        let over = |transfer: &mut Transfer| transfer.to == leader || transfer.until <= now;
        if let Some(transfer) = self.changes.transfer.take_if(over) {
            let result = if transfer.to == leader {
                Ok(())
            } else {
                Err(MoveError::TimedOut)
            };
            let Waiter { core, token } = transfer.waiter;
            self.replies.push((core, Reply::LeaderMoved { token, result }));
        }
    }

    /// When a transfer is given up.
    pub(super) fn transfer_deadline(&self) -> Option<Duration> {
        Some(self.changes.transfer.as_ref()?.until)
    }
}

impl Applier {
    /// Keeps an answer about the members until what it tells is published.
    fn answer_members(&mut self, waiter: Option<Waiter>, result: Result<Vec<Member>, MemberError>) {
        self.members_answers
            .extend(waiter.map(|Waiter { core, token }| (core, Reply::Members { token, result })));
    }
}

fn quorum(count: usize) -> usize {
    count / 2 + 1
}
