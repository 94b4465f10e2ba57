//! The serve core of a run: sends requests, takes answers, and holds them against the model.

use super::load::{SHORT_LEASES, SHORT_TTL_S, range_request, request};
use super::model::{Answer, Op};
use super::observe::{Reader, check_view, published};
use super::report::Canary;
use super::run::{Life, Run};
use crate::io::disk::Disk;
use crate::mvcc::readers::Hold;
use crate::mvcc::view::View;
use crate::proto::etcdserverpb::{AlarmType, InternalRaftRequest, LeaseRevokeRequest, RangeRequest};
use crate::raft::core::LogCore;
use crate::raft::messages::{Dropped, Reply, Request};
use crate::state::StateError;
use crate::state::outcome::{self, Outcome};
use bytes::Bytes;
use prost::Message;
use std::collections::VecDeque;
use std::time::Duration;

/// Token of what nobody waits for.
const NOBODY: u64 = 0;

/// A request under way, in the order of the log.
pub(super) struct Flight {
    token: u64,
    pub(super) op: Op,
    /// What it has to be answered, once it is known that it was applied.
    pub(super) answer: Option<Answer>,
    sent_at: Duration,
    /// Whether the data took up the quota when it was sent.
    is_above_quota: bool,
    /// Whether its refusal would have the member raise the alarm.
    raises_alarm: bool,
}

/// A renewal on its way.
pub(super) struct Renewing {
    token: u64,
    id: i64,
    sent_at: Duration,
}

/// Whether the member has its NOSPACE alarm raised.
pub(super) fn is_full(core: &LogCore) -> bool {
    core.state().alarms().is_raised(AlarmType::Nospace)
}

/// Which of the leases was revoked next, when the next record is of `key`: the one that had the key, or one that had
/// none.
pub(super) fn revoked_next(model: &super::model::Model, gone: &[i64], key: Option<&str>) -> Option<i64> {
    let keys = |id: &i64| model.leases().get(id);
    let owner = key.and_then(|key| gone.iter().find(|id| keys(id).is_some_and(|keys| keys.contains(key))));
    let keyless = || gone.iter().find(|id| keys(id).is_some_and(|keys| keys.is_empty()));
    owner.or_else(keyless).or_else(|| gone.first()).copied()
}

impl Run {
    pub(super) fn submit(&mut self, core: &mut LogCore) {
        let mut op = self.profile.draw_op(&mut self.random, &self.model);
        if self.canary == Canary::AnswerBeforePersist && matches!(op, Op::Grant { .. }) {
            // Only what is lost shall be noticed, not that a lease is there too early.
            op = Op::Revoke { id: 1 };
        }
        self.propose(core, op);
    }

    pub(super) fn propose(&mut self, core: &mut LogCore, op: Op) {
        self.next_token += 1;
        let token = self.next_token;
        let payload = Bytes::from(request(&op).encode_to_vec());
        let counts = op.takes_room() && self.canary != Canary::QuotaIgnored;
        let quota_bytes = if counts { payload.len() } else { 0 };
        let quota = self.boot.options.quota_bytes;
        let is_raising = self.in_flight.iter().any(|flight| flight.op == Op::Alarm);
        let now = self.now();
        let answer = (self.canary == Canary::AnswerBeforePersist).then(|| self.model.apply(&op));
        self.in_flight.push_back(Flight {
            token,
            is_above_quota: op.takes_room() && quota.is_some_and(|quota| core.pages().size() >= quota),
            raises_alarm: quota.is_some() && !is_raising && !is_full(core) && !core.is_making_room(),
            op,
            answer,
            sent_at: now,
        });
        core.handle(
            0,
            Request::Propose {
                token,
                id: token,
                payload,
                quota_bytes,
            },
            now,
        );
    }

    /// Renews a lease, now and then.
    pub(super) fn renew(&mut self, core: &mut LogCore) {
        let known: Vec<i64> = SHORT_LEASES.filter(|id| self.model.leases().contains_key(id)).collect();
        let now = self.now();
        if self.canary == Canary::LateExpiry && self.leases.is_ending(now) {
            for id in known {
                core.handle(0, Request::Renew { token: NOBODY, id }, now);
            }
            return;
        }
        let seldom = if self.is_expiring() { 40 } else { 12 };
        if known.is_empty() || !self.one_in(seldom) {
            return;
        }
        let id = known[self.random.below(known.len() as u64) as usize];
        if self.canary == Canary::EarlyExpiry && !self.sung && self.in_flight.is_empty() {
            self.sung = true;
            let lease_revoke = Some(LeaseRevokeRequest { id });
            let request = InternalRaftRequest {
                lease_revoke,
                ..Default::default()
            };
            core.propose_own(request, now);
            return;
        }
        self.next_token += 1;
        let token = self.next_token;
        self.renewing.push(Renewing {
            token,
            id,
            sent_at: now,
        });
        core.handle(0, Request::Renew { token, id }, now);
    }

    /// One turn of the log core, of the serve core, and of the clock.
    pub(super) fn turn(&mut self, core: &mut LogCore) -> Result<Life, String> {
        // Runs on other threads hold guards, too, and with them this one's old views and the pages of those.
        core.state().index().wait_for_guards();
        let now = self.now();
        let busy = match core.turn(&mut self.disk, now) {
            Ok(busy) => busy,
            Err(error) => return self.ended(core, error.to_string()),
        };
        let replies: Vec<Reply> = core.take_replies().map(|(_, reply)| reply).collect();
        for reply in replies {
            self.replied(reply)?;
        }
        self.own_entries(core)?;
        self.serve(core)?;
        let mut completions = Vec::new();
        self.disk.poll(&mut completions);
        if completions.is_empty() && !busy {
            let deadline = core.deadline().as_micros() as u64;
            let next = self.disk.next_due().unwrap_or(deadline).min(deadline);
            self.disk.set_now(next.max(self.disk.now() + 1));
        }
        for completion in completions {
            if let Err(error) = core.completed(completion) {
                return self.ended(core, error.to_string());
            }
        }
        Ok(Life::On)
    }

    /// What the serve core does beside answers: watches and reads.
    fn serve(&mut self, core: &LogCore) -> Result<(), String> {
        if self.canary == Canary::AnswerBeforePersist {
            // The model runs ahead of what can be seen.
            return Ok(());
        }
        let now = self.now();
        self.watchers.turn(core, &self.disk, &self.model, now)?;
        self.reads.turn(core)?;
        if self.one_in(60) {
            self.reads.begin(core, &self.model);
        }
        if self.one_in(40) {
            self.read(core)?;
        }
        Ok(())
    }

    /// A fatal error is right after an injected one only.
    fn ended(&mut self, core: &mut LogCore, error: String) -> Result<Life, String> {
        if !self.errors_injected {
            return Err(format!("the member gave up: {error}"));
        }
        // What was refused is in no log, whether its client was told or not.
        let replies: Vec<Reply> = core.take_replies().map(|(_, reply)| reply).collect();
        for reply in replies {
            if let Reply::Dropped { token, reason } = reply {
                self.dropped(token, reason)?;
            }
        }
        Ok(Life::Ended)
    }

    fn replied(&mut self, reply: Reply) -> Result<(), String> {
        match reply {
            Reply::Applied {
                token,
                outcome,
                view,
                hold,
            } => self.applied(token, &outcome, &view, hold),
            Reply::Dropped { token, reason } => self.dropped(token, reason),
            Reply::Renewed { token, ttl_s } if token != NOBODY => self.renewed(token, ttl_s),
            _ => Ok(()),
        }
    }

    /// A request was refused. The first one that the quota refuses has the member propose its alarm in its place.
    fn dropped(&mut self, token: u64, reason: Dropped) -> Result<(), String> {
        self.report.refused += 1;
        let at = self.in_flight.iter().position(|flight| flight.token == token);
        let Some(at) = at.filter(|at| self.in_flight[*at].answer.is_none()) else {
            return Err(format!("request {token} was dropped after it was applied"));
        };
        let is_raising = self.in_flight.iter().any(|flight| flight.op == Op::Alarm);
        let flight = &mut self.in_flight[at];
        if reason == Dropped::NoSpace && flight.raises_alarm && !is_raising {
            flight.op = Op::Alarm;
            flight.token = NOBODY;
            self.report.alarms += 1;
        } else {
            self.in_flight.remove(at);
        }
        Ok(())
    }

    fn renewed(&mut self, token: u64, ttl_s: Option<i64>) -> Result<(), String> {
        let at = self.renewing.iter().position(|renewing| renewing.token == token);
        let at = at.ok_or_else(|| format!("an answer for renewal {token}, which nobody waits for"))?;
        let Renewing { id, sent_at, .. } = self.renewing.swap_remove(at);
        match ttl_s {
            Some(0) => self.not_renewed.push(id),
            Some(SHORT_TTL_S) => {
                self.report.renewed += 1;
                if self.model.leases().contains_key(&id) {
                    self.leases.begin(id, sent_at, self.now());
                }
            }
            other => return Err(format!("the renewal of lease {id} was answered {other:?}")),
        }
        Ok(())
    }

    /// An acknowledgement: everything before it in the log was applied as well, whether it was answered or not.
    fn applied(&mut self, token: u64, outcome: &Outcome, view: &View, hold: Option<Hold>) -> Result<(), String> {
        let Some(at) = self.in_flight.iter().position(|flight| flight.token == token) else {
            return Err(format!("an answer for request {token}, which nobody waits for"));
        };
        for flight in self.in_flight.iter_mut().take(at + 1) {
            if flight.answer.is_none() {
                flight.answer = Some(self.model.apply(&flight.op));
            }
        }
        let flight = self.in_flight.remove(at).expect("it was just found");
        self.in_flight
            .retain(|flight| flight.token != NOBODY || flight.answer.is_none());
        let expected = flight.answer.as_ref().expect("it was just applied");
        let answered = answer_of(outcome, expected);
        self.report.acknowledged += 1;
        self.note(answered.revision as u64);
        if answered != *expected || (outcome.answer == Err(StateError::NoSpace)) != self.is_refused(&flight.op) {
            let error = outcome.answer.as_ref().err();
            return Err(format!(
                "{:?} was answered {answered:?} ({error:?}), expected was {expected:?}",
                flight.op
            ));
        }
        if flight.is_above_quota && answered.is_ok {
            return Err(format!("{:?} was taken although the quota was used up", flight.op));
        }
        if view.revision < answered.revision {
            return Err(format!(
                "the view of the answer shows revision {}, the answer says {}",
                view.revision, answered.revision
            ));
        }
        match flight.op {
            Op::Grant { id, .. } if answered.is_ok => self.leases.begin(id, flight.sent_at, self.now()),
            Op::Revoke { id } if answered.is_ok => self.leases.revoked(id),
            _ => {}
        }
        self.report.late_ranges += answered.found.len() as u64;
        self.reads
            .answered(outcome, &answered.found, &gets(&flight.op, answered.detail == 1), hold);
        self.check_previous(&answered, view)
    }

    /// Whether the alarm refuses a request; with the canary the model is ahead of it.
    fn is_refused(&self, op: &Op) -> bool {
        self.model.is_full() && op.takes_room()
    }

    /// The record that a put replaced is readable in the view that came with the answer.
    fn check_previous(&self, answered: &Answer, view: &View) -> Result<(), String> {
        let readable = answered
            .previous
            .filter(|previous| view.compact_revision < previous.main);
        if let Some(previous) = readable {
            let stored = Reader::new(&self.disk).record(view, previous)?;
            let expected = self.model.record(previous).map(|record| record.stored());
            if expected.as_deref() != Some(&stored[..]) {
                return Err(format!("the previous record {previous:?} is not what was put"));
            }
        }
        Ok(())
    }

    /// What the member itself put into the log: its alarm, and the ends of leases.
    fn own_entries(&mut self, core: &LogCore) -> Result<(), String> {
        while is_full(core) && self.in_flight.front().is_some_and(|flight| flight.op == Op::Alarm) {
            self.in_flight.pop_front();
            self.model.apply(&Op::Alarm);
        }
        loop {
            let gone: Vec<i64> = SHORT_LEASES.filter(|id| self.is_gone(core, *id)).collect();
            if gone.is_empty() {
                break;
            }
            let records = Reader::new(&self.disk).records_after(&published(core), self.model.revision())?;
            let key = records
                .first()
                .and_then(|(_, _, stored)| super::observe::key_of(stored));
            let id = revoked_next(&self.model, &gone, key.as_deref()).expect("one is gone");
            self.leases.expired(id, self.now())?;
            self.report.expired += 1;
            self.model.apply(&Op::Revoke { id });
        }
        for id in std::mem::take(&mut self.not_renewed) {
            if self.model.leases().contains_key(&id) && !revoking(&self.in_flight, id) {
                return Err(format!("lease {id} lives, but was not renewed"));
            }
        }
        Ok(())
    }

    /// Whether a lease is gone that the model has and no client has revoked.
    fn is_gone(&self, core: &LogCore, id: i64) -> bool {
        self.model.leases().contains_key(&id) && !core.state().lessor().contains(id) && !revoking(&self.in_flight, id)
    }

    /// A linearizable read of everything.
    fn read(&mut self, core: &LogCore) -> Result<(), String> {
        let newest = published(core);
        let view = match &self.earlier {
            Some(earlier) if self.canary == Canary::StaleRead => earlier.clone(),
            _ => newest.clone(),
        };
        if self.canary == Canary::StaleRead && (newest.revision > 1) {
            self.earlier = Some(newest);
        }
        let waiting = self
            .in_flight
            .iter()
            .any(|flight| matches!(flight.op, Op::Compact { .. }));
        if waiting {
            // Its effect may be visible before its answer.
            return Ok(());
        }
        check_view(core, &view, &self.disk, &self.model, &mut self.random)
    }
}

fn revoking(in_flight: &VecDeque<Flight>, wanted: i64) -> bool {
    in_flight
        .iter()
        .any(|flight| matches!(flight.op, Op::Revoke { id } if id == wanted))
}

/// The ranges of the branch of a transaction that was taken.
pub(super) fn gets(op: &Op, succeeded: bool) -> Vec<RangeRequest> {
    let Op::Txn { then, otherwise, .. } = op else {
        return Vec::new();
    };
    let branch = if succeeded { then } else { otherwise };
    let ranges = branch.iter().filter_map(|op| match op {
        Op::Get { key, end, revision } => Some(range_request(key, end.as_deref(), *revision)),
        _ => None,
    });
    ranges.collect()
}

/// What an outcome says, as far as the model predicts it. What its ranges find is seen later.
pub(super) fn answer_of(outcome: &Outcome, expected: &Answer) -> Answer {
    let (mut detail, mut previous) = (0, None);
    match &outcome.answer {
        Ok(outcome::Answer::Put(put)) => previous = put.previous,
        Ok(outcome::Answer::Delete(delete)) => detail = delete.deleted,
        Ok(outcome::Answer::Txn(txn)) => detail = i64::from(txn.succeeded),
        _ => {}
    }
    Answer {
        revision: outcome.revision,
        is_ok: outcome.answer.is_ok(),
        detail,
        previous,
        found: expected.found.clone(),
    }
}
