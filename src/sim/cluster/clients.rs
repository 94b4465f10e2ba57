//! Clients: each asks one thing after the other of some member, and gives up what is not answered.

use super::leases::Clocks;
use super::linear::{Asked, Operation, Told};
use super::{Canary, World};
use crate::mvcc::readers::Hold;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::RequestHeader;
use crate::raft::core::LogCore;
use crate::raft::messages::{Dropped, Reply, Request};
use crate::sim::load::{LONG_TTL_S, SHORT_LEASES, request};
use crate::sim::model::Op;
use crate::sim::observe::published;
use crate::sim::serve::{answer_of, gets};
use crate::state::outcome::Outcome;
use crate::state::read::for_each;
use prost::Message as _;
use std::ops::ControlFlow;

/// How long a client waits for an answer, in microseconds.
const PATIENCE_US: u64 = 4_000_000;

/// What a client waits for.
struct Waiting {
    token: u64,
    member: u64,
    since_us: u64,
    what: What,
}

enum What {
    /// An operation of the history, by its number.
    Operation(usize),
    Renewal {
        id: i64,
        grants: u64,
        asked: Clocks,
    },
}

/// A client.
pub struct Client {
    waiting: Option<Waiting>,
    member: u64,
    /// When it asks for something next.
    pub next_us: u64,
}

impl Client {
    /// A client that begins with this member.
    pub fn new(member: u64) -> Client {
        Client {
            waiting: None,
            member,
            next_us: 0,
        }
    }

    /// Whether nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_none()
    }
}

/// The token that an answer is for.
fn token_of(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Applied { token, .. }
        | Reply::Dropped { token, .. }
        | Reply::Readable { token }
        | Reply::Renewed { token, .. }
        | Reply::Members { token, .. }
        | Reply::LeaderMoved { token, .. } => Some(*token),
        _ => None,
    }
}

impl World {
    /// The moment of something in the order of all that clients see.
    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    pub(super) fn next_token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// A lease was ended by a member: to clients, somebody's request whose answer nobody saw.
    pub(super) fn ended_by_itself(&mut self, id: i64) {
        let called = self.moment();
        self.history.push(Operation {
            asked: Asked::Write(Op::Revoke { id }),
            called,
            returned: None,
        });
    }

    /// Lets the clients whose time has come ask, or give up.
    pub(super) fn clients_act(&mut self) -> Result<(), String> {
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            if client.next_us > self.now_us {
                continue;
            }
            let pause = self.random.below(self.pause_us);
            client.next_us = self.now_us + 1 + pause;
            if let Some(waiting) = &client.waiting {
                if self.now_us < waiting.since_us + PATIENCE_US {
                    continue;
                }
                // Whatever it was may have happened, or happen yet.
                client.waiting = None;
                self.report.unknown += 1;
            }
            if self.is_asking {
                self.ask_something(at)?;
            }
        }
        Ok(())
    }

    fn ask_something(&mut self, at: usize) -> Result<(), String> {
        let up: Vec<u64> = self.up().collect();
        if up.is_empty() {
            return Ok(());
        }
        let member = self.clients[at].member;
        if !up.contains(&member) || self.one_in(12) {
            self.clients[at].member = up[self.random.below(up.len() as u64) as usize];
        }
        let member = self.clients[at].member;
        match self.random.below(100) {
            0..55 => self.ask_to_write(at, member),
            55..75 => self.ask_to_read(at, member),
            75..88 => return self.read_locally(member),
            _ => self.ask_to_renew(at),
        }
        Ok(())
    }

    fn send(&mut self, at: usize, member: u64, what: What, token: u64, request: Request) {
        self.clients[at].waiting = Some(Waiting {
            token,
            member,
            since_us: self.now_us,
            what,
        });
        let now_us = self.now_us;
        let asked = self.members.get_mut(&member).expect("it is up");
        asked.requests.push(request);
        asked.wake(now_us);
    }

    /// The next request that changes something.
    fn draw_op(&mut self) -> Op {
        let mut op = self.plan.profile.draw_op(&mut self.random, self.ledger.model());
        if let Op::Grant { id, ttl_s } = &mut op {
            *ttl_s = if SHORT_LEASES.contains(id) {
                3 + *id % 4
            } else {
                LONG_TTL_S
            };
        }
        op
    }

    fn ask_to_write(&mut self, at: usize, member: u64) {
        let op = self.draw_op();
        let (token, called, clocks) = (self.next_token(), self.moment(), self.clocks());
        let mut request = request(&op);
        request.header = Some(RequestHeader {
            id: token,
            ..Default::default()
        });
        let request = Request::Propose {
            token,
            id: token,
            payload: request.encode_to_vec().into(),
            quota_bytes: 1,
        };
        self.history.push(Operation {
            asked: Asked::Write(op.clone()),
            called,
            returned: None,
        });
        let number = self.history.len() - 1;
        // What nobody can refuse.
        if self.canary == Canary::AnswerBeforeCommit && matches!(&op, Op::Put(put) if put.lease == 0) {
            // Acknowledged when it is sent.
            let returned = self.moment();
            self.history[number].returned = Some((returned, Told::Done));
        }
        if matches!(op, Op::Grant { .. }) {
            self.grants_asked.insert(token, clocks);
        }
        self.ledger.ask(token, op);
        self.send(at, member, What::Operation(number), token, request);
    }

    fn ask_to_read(&mut self, at: usize, member: u64) {
        let called = self.moment();
        let keys = self.plan.profile.keys;
        let first = self.random.below(keys);
        let end = self
            .random
            .coin()
            .then(|| format!("key{:04}", first + 1 + self.random.below(keys)));
        let key = format!("key{first:04}");
        self.history.push(Operation {
            asked: Asked::Read { key, end },
            called,
            returned: None,
        });
        let number = self.history.len() - 1;
        if self.canary == Canary::StaleRead {
            // Answered without asking anybody.
            return self.read_for(number, member);
        }
        let token = self.next_token();
        self.send(at, member, What::Operation(number), token, Request::ReadIndex { token });
    }

    fn ask_to_renew(&mut self, at: usize) {
        let known: Vec<i64> = SHORT_LEASES
            .filter(|id| self.ledger.model().leases().contains_key(id))
            .collect();
        // As the leader's alone can: whoever believes to be it.
        let leading: Vec<u64> = self.leading();
        if known.is_empty() || leading.is_empty() {
            return;
        }
        let id = known[self.random.below(known.len() as u64) as usize];
        let member = leading[self.random.below(leading.len() as u64) as usize];
        let (grants, asked, token) = (self.leases.grants(), self.clocks(), self.next_token());
        let what = What::Renewal { id, grants, asked };
        self.send(at, member, what, token, Request::Renew { token, id });
    }

    /// A serializable read: never older than the last that this life of the member has answered.
    fn read_locally(&mut self, member: u64) -> Result<(), String> {
        let asked = self.members.get_mut(&member).expect("it is up");
        let Some(core) = asked.core.as_ref().filter(|_| asked.paused_us <= self.now_us) else {
            return Ok(());
        };
        let view = published(core);
        if view.revision < asked.revision {
            return Err(format!(
                "member {member} shows revision {} behind {}",
                view.revision, asked.revision
            ));
        }
        asked.revision = view.revision;
        let rows = rows(core, "key", Some("key9"), view.revision);
        let expected = self.ledger.model().range("key", Some("key9"), view.revision);
        if view.revision > self.ledger.model().revision() || rows != expected {
            return Err(format!(
                "a serializable read of member {member} finds {rows:?} at revision {}, {expected:?} was expected",
                view.revision
            ));
        }
        self.report.local_reads += 1;
        Ok(())
    }

    /// Reads what a linearizable read asked for.
    fn read_for(&mut self, number: usize, member: u64) {
        let Asked::Read { key, end } = self.history[number].asked.clone() else {
            unreachable!("operation {number} is no read");
        };
        let Some(core) = self.members[&member].core.as_ref() else {
            return;
        };
        let view = published(core);
        let rows = rows(core, &key, end.as_deref(), view.revision);
        let rows = rows.into_iter().map(|revision| revision.main).collect();
        let revision = view.revision;
        self.report.reads += 1;
        let moment = self.moment();
        self.history[number].returned = Some((moment, Told::Found { revision, rows }));
    }

    /// Takes an answer of a member.
    pub(super) fn answered(&mut self, member: u64, reply: Reply) -> Result<(), String> {
        let Some(token) = token_of(&reply) else { return Ok(()) };
        let is_for = |client: &Client| client.waiting.as_ref().is_some_and(|waiting| waiting.token == token);
        let at = self.clients.iter().position(is_for);
        if let Reply::Applied {
            outcome, view, hold, ..
        } = &reply
        {
            // Right or wrong, whether somebody still waits or not.
            let told = self.judge(token, outcome)?;
            if view.revision < outcome.revision {
                return Err(format!(
                    "the answer to {token} is of revision {}, its view of {}",
                    outcome.revision, view.revision
                ));
            }
            self.run_ranges(member, token, outcome, hold.clone());
            if let Some(Waiting {
                what: What::Operation(number),
                ..
            }) = at.and_then(|at| self.clients[at].waiting.take())
            {
                self.report.acknowledged += 1;
                let moment = self.moment();
                if self.history[number].returned.is_none() {
                    self.history[number].returned = Some((moment, told));
                }
            }
            return Ok(());
        }
        let Some(at) = at else {
            return self.admin_answered(token, &reply);
        };
        let waiting = self.clients[at].waiting.take().expect("it is its");
        debug_assert_eq!(waiting.member, member);
        match (waiting.what, reply) {
            (What::Operation(number), Reply::Readable { .. }) => self.read_for(number, member),
            (What::Operation(number), Reply::Dropped { reason, .. }) => {
                self.report.dropped += 1;
                self.report.refused += u64::from(reason == Dropped::NoSpace);
                let is_refused = matches!(reason, Dropped::TooManyRequests | Dropped::NoSpace);
                if is_refused && self.ledger.answer(token).is_some() {
                    return Err(format!("{:?} was refused and happened", self.history[number].asked));
                }
            }
            (What::Renewal { id, grants, asked }, Reply::Renewed { ttl_s: Some(1..), .. }) => {
                self.leases.renewed(id, grants, &asked)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The ranges of a transaction are run some time after its answer.
    fn run_ranges(&mut self, member: u64, token: u64, outcome: &Outcome, hold: Option<Hold>) {
        if let (Some(op), Some(answer)) = (self.ledger.op(token), self.ledger.answer(token)) {
            let member = self.members.get_mut(&member).expect("it has answered");
            member
                .reads
                .answered(outcome, &answer.found, &gets(op, answer.detail == 1), hold);
        }
    }

    /// Holds an answer against the model.
    fn judge(&self, token: u64, outcome: &Outcome) -> Result<Told, String> {
        let op = self.ledger.op(token);
        let Some(expected) = self.ledger.answer(token) else {
            return Err(format!("{op:?} was answered and applied by nobody"));
        };
        let answered = answer_of(outcome, expected);
        if answered != *expected {
            return Err(format!("{op:?} was answered {answered:?}, expected was {expected:?}"));
        }
        Ok(Told::Written {
            revision: answered.revision,
            is_ok: answered.is_ok,
            detail: answered.detail,
        })
    }
}

/// What a range finds in what a member has published.
fn rows(core: &LogCore, key: &str, end: Option<&str>, main: i64) -> Vec<Revision> {
    let mut rows = Vec::new();
    let end = end.unwrap_or_default().as_bytes();
    for_each(&core.state().index().pin(), key.as_bytes(), end, main, |_, meta| {
        rows.push(meta.revision);
        ControlFlow::Continue(())
    });
    rows
}
