//! Applying an entry: which request it holds, and whether the alarms let it through.

use crate::mvcc::index::Tree;
use crate::mvcc::revision::Revision;
use crate::mvcc::window::WindowView;
use crate::proto::etcdserverpb::{
    AlarmType, CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    TxnRequest,
};
use crate::state::State;
use crate::state::compare::Comparing;
use crate::state::error::StateError;
use crate::state::outcome::{Answer, Outcome, RangeOutcome};
use crate::state::plan::{Planner, needed_by_put, needed_by_txn};
use crate::state::quota;
use crate::state::read::Records;
use crate::state::run::{Deletion, Running, Work, Writing};
use crate::state::run_txn::{Deciding, TxnRun};
use crate::state::stand_in::StandIns;
use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;

/// A committed entry.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'e> {
    /// Its raft index, above that of the entry before.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// What it asks for; checked by `validate` before it was proposed.
    pub request: &'e InternalRaftRequest,
    /// Whether a client of this member waits for the answer. Without one, what only the answer needs is left out.
    pub answer: bool,
    /// The time, for the leases of a leader.
    pub now: Duration,
}

/// How far an entry is.
#[derive(Debug, PartialEq)]
pub enum Progress {
    /// Applied.
    Done(Outcome),
    /// The budget is used up: call [`State::resume`] before anything else that applies, publishes or checkpoints.
    More,
    /// Nothing was done: these records are needed.
    Needs(Vec<Revision>),
}

/// The window's records and the caller's.
struct Known<'a, R> {
    window: &'a WindowView,
    fetched: &'a R,
}

impl<R: Records> Records for Known<'_, R> {
    fn record(&self, revision: Revision) -> Option<&[u8]> {
        match self.window.get(revision) {
            Some(record) => Some(record.stored()),
            None => self.fetched.record(revision),
        }
    }

    fn kept(&self, revision: Revision) -> Option<Bytes> {
        self.window.kept(revision).or_else(|| self.fetched.kept(revision))
    }
}

impl State {
    /// The records outside of the window that decide about the request if it is applied next.
    pub fn needs(&self, request: &InternalRaftRequest) -> Vec<Revision> {
        let mut needed = match (&request.put, &request.txn) {
            (Some(put), _) => needed_by_put(put, self.keys()).into_iter().collect(),
            (None, Some(txn)) => needed_by_txn(txn, self.keys(), self.revision),
            (None, None) => return Vec::new(),
        };
        if !needed.is_empty() {
            let window = self.window.view();
            needed.retain(|revision| window.get(*revision).is_none());
        }
        needed
    }

    /// What may stand in for those of them whose values are only compared.
    pub fn stand_ins(&self, request: &InternalRaftRequest) -> StandIns {
        StandIns::new(request, self.keys())
    }

    /// Applies an entry. `fetched` has what [`State::needs`] names. `budget` bounds the work of this call: about a
    /// microsecond each, at least one record.
    ///
    /// # Panics
    /// When the entry is not behind the last one, or that one is not done.
    pub fn apply(&mut self, entry: &Entry<'_>, fetched: &impl Records, budget: usize) -> Progress {
        self.assert_follows(entry.index, entry.term);
        let begun = self.begin(entry, fetched);
        if let Err(StateError::MissingRecord(_)) = begun {
            return Progress::Needs(self.needs(entry.request));
        }
        (self.applied_index, self.applied_term) = (entry.index, entry.term);
        match begun {
            Ok(Begun::Answered(answer)) => self.done(Ok(answer)),
            Ok(Begun::Work(work)) => self.go_on(
                Box::new(Running::new(work, Writing::new(self.revision, entry.answer))),
                budget,
            ),
            Err(error) => self.done(Err(error)),
        }
    }

    /// Goes on with the entry whose last call returned [`Progress::More`].
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn resume(&mut self, budget: usize) -> Progress {
        let running = self.running.take().expect("an entry to resume");
        self.go_on(running, budget)
    }

    fn go_on(&mut self, running: Box<Running>, budget: usize) -> Progress {
        match self.run(running, budget.max(1)) {
            Ok(answer) => self.done(answer),
            Err(running) => {
                self.running = Some(running);
                Progress::More
            }
        }
    }

    fn done(&self, answer: Result<Answer, StateError>) -> Progress {
        Progress::Done(Outcome {
            revision: self.revision,
            answer,
        })
    }

    /// In etcd's order, should an entry hold more than one request.
    fn begin(&mut self, entry: &Entry<'_>, fetched: &impl Records) -> Result<Begun, StateError> {
        let request = entry.request;
        if let Some(begun) = self.begin_cluster(request) {
            return begun;
        }
        self.check_alarms(request)?;
        if let Some(range) = &request.range {
            return self.begin_range(range);
        }
        if let Some(put) = &request.put {
            return self.apply_put(put, fetched, entry.answer);
        }
        if let Some(delete) = &request.delete_range {
            return Ok(self.begin_delete(delete));
        }
        if let Some(txn) = &request.txn {
            return self.begin_txn(txn, fetched);
        }
        if let Some(compaction) = &request.compaction {
            return self.begin_compaction(compaction);
        }
        self.begin_lease_or_alarm(entry)
    }

    fn begin_cluster(&mut self, request: &InternalRaftRequest) -> Option<Result<Begun, StateError>> {
        let result = if let Some(version) = &request.cluster_version_set {
            self.members.set_version(version)
        } else if let Some(attributes) = &request.cluster_member_attr_set {
            self.members.set_attributes(attributes)
        } else if let Some(downgrade) = &request.downgrade_info_set {
            self.members.set_downgrade(downgrade);
            Ok(())
        } else {
            request.downgrade_version_test.as_ref()?;
            Ok(())
        };
        Some(result.map(|()| Begun::Answered(Answer::Cluster)))
    }

    /// What a raised alarm forbids. CORRUPT goes before NOSPACE.
    fn check_alarms(&self, request: &InternalRaftRequest) -> Result<(), StateError> {
        let writes = request.put.is_some() || request.lease_grant.is_some() || request.txn.is_some();
        let others = request.range.is_some()
            || request.delete_range.is_some()
            || request.compaction.is_some()
            || request.lease_revoke.is_some();
        if (writes || others) && self.alarms.is_raised(AlarmType::Corrupt) {
            return Err(StateError::Corrupt);
        }
        if writes && self.alarms.is_raised(AlarmType::Nospace) {
            let puts_nothing = request.txn.as_ref().is_some_and(|txn| quota::txn_bytes(txn) == 0);
            if !puts_nothing {
                return Err(StateError::NoSpace);
            }
        }
        Ok(())
    }

    fn begin_range(&self, range: &RangeRequest) -> Result<Begun, StateError> {
        let at_main = self.readable().resolve(range.revision)?;
        let later = RangeOutcome::Later {
            revision: self.revision,
            at_main,
        };
        Ok(Begun::Answered(Answer::Range(later)))
    }

    fn apply_put(&mut self, put: &PutRequest, fetched: &impl Records, answer: bool) -> Result<Begun, StateError> {
        let window = self.window.view();
        let known = Known {
            window: &window,
            fetched,
        };
        let kept = self.planner(&known, &Comparing::default(), |planner| planner.check_put(put))?;
        Ok(Begun::Answered(self.run_one_put(put, kept.as_ref(), answer)))
    }

    fn begin_delete(&self, delete: &DeleteRangeRequest) -> Begun {
        Begun::Work(Work::Delete(Deletion::new(delete, self.revision)))
    }

    fn begin_txn(&self, txn: &TxnRequest, fetched: &impl Records) -> Result<Begun, StateError> {
        let window = self.window.view();
        let known = Known {
            window: &window,
            fetched,
        };
        let comparing = Comparing::new(txn);
        if comparing.is_done() {
            let steps = self.planner(&known, &comparing, |planner| planner.plan(txn))?;
            return Ok(Begun::Work(Work::Txn(TxnRun::execute(steps))));
        }
        let mut records = HashMap::new();
        for revision in needed_by_txn(txn, self.keys(), self.revision) {
            if window.get(revision).is_none() {
                let record = fetched.kept(revision).ok_or(StateError::MissingRecord(revision))?;
                records.insert(revision, record);
            }
        }
        let records = Deciding {
            window,
            fetched: records,
        };
        Ok(Begun::Work(Work::Txn(TxnRun::compare(txn.clone(), records))))
    }

    pub(crate) fn planner<R: Records, T>(
        &self,
        records: &R,
        comparing: &Comparing,
        decide: impl FnOnce(Planner<'_, Tree, R>) -> T,
    ) -> T {
        let lease_exists = |id| self.lessor.contains(id);
        decide(Planner {
            keys: self.keys(),
            readable: self.readable(),
            lease_exists: &lease_exists,
            records,
            comparing,
        })
    }

    fn begin_compaction(&mut self, request: &CompactionRequest) -> Result<Begun, StateError> {
        self.compaction.schedule(request.revision, self.revision)?;
        Ok(Begun::Answered(Answer::Compaction))
    }

    fn begin_lease_or_alarm(&mut self, entry: &Entry<'_>) -> Result<Begun, StateError> {
        let request = entry.request;
        if let Some(LeaseGrantRequest { id, ttl }) = request.lease_grant {
            let ttl_s = self.lessor.grant(id, ttl, entry.now)?;
            return Ok(Begun::Answered(Answer::LeaseGrant { id, ttl_s }));
        }
        if let Some(revoke) = &request.lease_revoke {
            let keys = self.lessor.take_keys(revoke.id).ok_or(StateError::LeaseNotFound)?;
            return Ok(Begun::Work(Work::Revoke {
                id: revoke.id,
                keys: Box::new(keys),
            }));
        }
        if let Some(checkpoints) = &request.lease_checkpoint {
            for checkpoint in &checkpoints.checkpoints {
                self.lessor
                    .checkpoint(checkpoint.id, checkpoint.remaining_ttl, entry.now);
            }
            return Ok(Begun::Answered(Answer::LeaseCheckpoint));
        }
        if let Some(alarm) = &request.alarm {
            return Ok(Begun::Answered(Answer::Alarm(self.alarms.apply(alarm))));
        }
        Err(match auth_request(request) {
            Some(name) => StateError::NotBuilt {
                index: entry.index,
                request: name,
            },
            None => StateError::EmptyRequest { index: entry.index },
        })
    }
}

enum Begun {
    Answered(Answer),
    Work(Work),
}

/// The name of the auth request that the entry holds.
fn auth_request(request: &InternalRaftRequest) -> Option<&'static str> {
    let held = [
        (request.authenticate.is_some(), "authenticate"),
        (request.auth_enable.is_some(), "auth_enable"),
        (request.auth_disable.is_some(), "auth_disable"),
        (request.auth_status.is_some(), "auth_status"),
        (request.auth_user_add.is_some(), "auth_user_add"),
        (request.auth_user_delete.is_some(), "auth_user_delete"),
        (request.auth_user_change_password.is_some(), "auth_user_change_password"),
        (request.auth_user_grant_role.is_some(), "auth_user_grant_role"),
        (request.auth_user_get.is_some(), "auth_user_get"),
        (request.auth_user_revoke_role.is_some(), "auth_user_revoke_role"),
        (request.auth_role_add.is_some(), "auth_role_add"),
        (
            request.auth_role_grant_permission.is_some(),
            "auth_role_grant_permission",
        ),
        (request.auth_role_get.is_some(), "auth_role_get"),
        (
            request.auth_role_revoke_permission.is_some(),
            "auth_role_revoke_permission",
        ),
        (request.auth_role_delete.is_some(), "auth_role_delete"),
        (request.auth_user_list.is_some(), "auth_user_list"),
        (request.auth_role_list.is_some(), "auth_role_list"),
    ];
    held.into_iter().find(|(is_held, _)| *is_held).map(|(_, name)| name)
}
