//! The operator: moves leadership, lets members join as learners, makes them voters, removes members.

use super::World;
use super::member::{Member, described};
use crate::raft::messages::{MemberChange, Reply, Request};
use crate::state::members::Member as Described;

/// Members that a cluster has at most.
const MEMBERS_MAX: usize = 6;
/// Voters that it keeps.
const VOTERS_MIN: usize = 3;

impl World {
    fn ask_as_operator(&mut self, member: u64, request: impl FnOnce(u64) -> Request) {
        let token = self.next_token();
        let now_us = self.now_us;
        let asked = self.members.get_mut(&member).expect("it is up");
        asked.requests.push(request(token));
        asked.wake(now_us);
    }

    /// The membership as a member has it that believes to lead.
    fn membership(&mut self) -> Option<(u64, Vec<Described>)> {
        let leader = self.leading().last().copied()?;
        let core = self.members[&leader].core.as_ref()?;
        Some((leader, core.state().members().iter().cloned().collect()))
    }

    pub(super) fn move_leadership(&mut self) {
        let Some((leader, members)) = self.membership() else {
            return;
        };
        let to = members[self.random.below(members.len() as u64) as usize].id;
        self.ask_as_operator(leader, |token| Request::MoveLeader { token, to });
    }

    pub(super) fn change_membership(&mut self) {
        let Some((leader, members)) = self.membership() else {
            return;
        };
        let learner = members.iter().find(|member| member.is_learner).map(|member| member.id);
        let voters: Vec<u64> = members
            .iter()
            .filter(|member| !member.is_learner)
            .map(|member| member.id)
            .collect();
        let change = match (learner, self.random.below(3)) {
            (Some(id), 0..2) => MemberChange::Promote(id),
            (Some(id), _) => MemberChange::Remove(id),
            (None, 0) if voters.len() > VOTERS_MIN => {
                MemberChange::Remove(voters[self.random.below(voters.len() as u64) as usize])
            }
            (None, _) if members.len() < MEMBERS_MAX => {
                let id = 1 + self.members.keys().last().copied().unwrap_or_default();
                MemberChange::Add(Described {
                    name: String::new(),
                    is_learner: true,
                    ..described(id)
                })
            }
            _ => return,
        };
        // A promotion is the leader's to decide about; all else any member takes.
        let asked = match &change {
            MemberChange::Promote(_) => leader,
            _ => self.somebody().unwrap_or(leader),
        };
        let noted = change.clone();
        self.ask_as_operator(asked, |token| Request::ChangeMembers {
            token,
            id: token,
            change,
        });
        self.admin_asked.insert(self.tokens, noted);
    }

    /// Counts what the operator was told.
    pub(super) fn admin_answered(&mut self, token: u64, reply: &Reply) -> Result<(), String> {
        match (reply, self.admin_asked.remove(&token)) {
            (Reply::LeaderMoved { result: Ok(()), .. }, _) => self.report.transfers += 1,
            (Reply::Members { result: Ok(_), .. }, Some(MemberChange::Promote(_))) => self.report.promoted += 1,
            (Reply::Members { result: Ok(_), .. }, Some(MemberChange::Remove(_))) => self.report.removed += 1,
            _ => {}
        }
        Ok(())
    }

    /// Starts whoever was added, whether the operator was told or not, and notes who is no member any more.
    pub(super) fn welcome(&mut self) -> Result<(), String> {
        let mut added: Vec<u64> = Vec::new();
        for member in self.members.values() {
            let Some(core) = &member.core else { continue };
            let known = core.state().members().iter().map(|other| other.id);
            added.extend(known.filter(|id| !self.members.contains_key(id)));
        }
        added.sort_unstable();
        added.dedup();
        for id in added {
            self.report.joined += 1;
            let member = Member::new(id, &[], &self.plan, &mut self.random);
            self.members.insert(id, member);
            self.start(id)?;
        }
        Ok(())
    }
}
