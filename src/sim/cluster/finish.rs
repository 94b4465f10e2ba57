//! The end of a run: nothing is wrong any more, the cluster becomes whole by itself, and then it is looked through.

use super::{World, linear};
use crate::sim::load::SHORT_LEASES;
use crate::sim::observe::{Observed, check_view, published};

/// Within this time a cluster without faults has a leader and serves, in microseconds.
const WHOLE_US: u64 = 20_000_000;
/// How long clients ask on after that.
const AFTERWARDS_US: u64 = 2_000_000;
/// Within this time all leases that clients no longer renew have ended.
const LEASES_US: u64 = 40_000_000;

impl World {
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.calm()?;
        let until = self.now_us + AFTERWARDS_US;
        self.wait("writes are answered again", |world| {
            world.now_us >= until && world.has_recovered()
        })?;
        self.is_asking = false;
        self.wait("all members have applied everything", World::is_at_rest)?;
        self.let_leases_end()?;
        self.wait("all members have applied everything", World::is_at_rest)?;
        self.judge_members()?;
        linear::check(&self.history, self.ledger.model())
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) -> Result<(), String> {
        let until = self.now_us + WHOLE_US;
        let acknowledged = self.report.acknowledged;
        while !done(self) {
            if self.now_us > until {
                let since = self.report.acknowledged - acknowledged;
                let states = self.describe();
                return Err(format!("never: {what}; {since} requests were acknowledged; {states}"));
            }
            self.step()?;
            self.end_harm()?;
        }
        Ok(())
    }

    /// One line about every member.
    fn describe(&mut self) -> String {
        let mut lines = Vec::new();
        for member in self.members.values_mut() {
            let Some(core) = &mut member.core else {
                lines.push(format!("{}: down", member.id));
                continue;
            };
            let (leads, applied, pending) = (core.leads(), core.state().applied_index(), core.pending());
            let (leader, last) = (core.leader(), core.last_index());
            let (term, commit) = (core.node().term(), core.node().commit_index());
            let progress = core.node().describe_progress();
            lines.push(format!(
                "{}: term {term}, leads {leads}, leader {leader}, log {applied}/{commit}/{last}, open {pending}, \
                 {progress}",
                member.id
            ));
        }
        let transfers = self.transfers.iter().map(|transfer| transfer.describe());
        lines.extend(transfers);
        lines.join("; ")
    }

    /// Whether writes go through, as all clients had an answer since the last look.
    fn has_recovered(&mut self) -> bool {
        let calls = self.history.iter().rev().take(5);
        calls.filter(|operation| operation.returned.is_some()).count() > 0 && self.leading().len() == 1
    }

    /// Whether nothing is under way and every member that belongs to the cluster has everything.
    fn is_at_rest(&mut self) -> bool {
        let applied = self.ledger.applied();
        self.clients.iter().all(|client| client.is_idle())
            && self.transfers.is_empty()
            && self.current().iter().all(|id| {
                let core = self.members.get_mut(id).and_then(|member| member.core.as_mut());
                core.is_some_and(|core| {
                    core.state().applied_index() == applied && core.last_index() == applied && core.pending() == 0
                })
            })
    }

    /// The members by the newest membership that any of them has.
    fn current(&self) -> Vec<u64> {
        let up = self.members.values().filter_map(|member| member.core.as_ref());
        let newest = up.max_by_key(|core| core.state().applied_index());
        newest.map_or(Vec::new(), |core| {
            core.state().members().iter().map(|member| member.id).collect()
        })
    }

    fn let_leases_end(&mut self) -> Result<(), String> {
        let until = self.now_us + LEASES_US;
        let left = |world: &World| {
            SHORT_LEASES
                .clone()
                .any(|id| world.ledger.model().leases().contains_key(&id))
        };
        while left(self) {
            if self.now_us > until {
                let leases: Vec<i64> = self.ledger.model().leases().keys().copied().collect();
                return Err(format!("of the leases {leases:?} some outlive their time"));
            }
            self.step()?;
            self.end_harm()?;
        }
        Ok(())
    }

    /// Everything that every member holds.
    fn judge_members(&mut self) -> Result<(), String> {
        for id in self.current() {
            let member = self.members.get_mut(&id).expect("it is at rest");
            let core = member.core.as_ref().expect("it is at rest");
            let now = member.clock.at(self.now_us);
            let model = self.ledger.model();
            let view = published(core);
            let judged = Observed::of(core, &member.disk).and_then(|observed| match observed.differs(model) {
                Some(difference) => Err(difference),
                None => check_view(core, &view, &member.disk, model, &mut self.random),
            });
            let now = std::time::Duration::from_micros(now);
            let judged = judged.and_then(|()| member.watchers.drain(core, &member.disk, model, now));
            judged.map_err(|reason| format!("member {id} in the end: {reason}"))?;
            self.report.checkpoints += core.pages().root().generation();
            if let Some(violation) = member.disk.violations().first() {
                return Err(format!("member {id} wrote on a file after an error: {violation:?}"));
            }
            let revision = view.revision as u64;
            self.note(revision);
            self.note(self.now_us);
        }
        Ok(())
    }
}
