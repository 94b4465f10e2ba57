//! What the members agree on: the log as it was applied, entry by entry, and the model that carries it out.
//!
//! The member that applies an entry first writes it down; every other, and every later life of each, has to apply the
//! same at the same index. The requests in it go through the naive model, which says what each has to be answered.

use crate::proto::etcdserverpb::InternalRaftRequest;
use crate::sim::model::{Answer, Model, Op};
use bytes::Bytes;
use prost::Message as _;
use raft::eraftpb::Entry;
use std::collections::BTreeMap;

/// An applied entry.
#[derive(Debug)]
struct Written {
    term: u64,
    kind: i32,
    data: Bytes,
}

/// What an entry has done to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// It was granted by this request.
    Granted {
        /// The lease.
        id: i64,
        /// The request.
        request: u64,
    },
    /// It was revoked: by a client, or, for `own`, by a member of its own accord.
    Revoked {
        /// The lease.
        id: i64,
        /// The request.
        request: u64,
        /// Whether a member did it.
        own: bool,
    },
}

/// The log and the store.
#[derive(Default)]
pub struct Ledger {
    entries: Vec<Written>,
    /// Requests of clients by id.
    asked: BTreeMap<u64, Op>,
    answers: BTreeMap<u64, Answer>,
    model: Model,
}

/// The id in a request's header.
pub fn request_id(request: &InternalRaftRequest) -> u64 {
    request.header.as_ref().map_or(0, |header| header.id)
}

impl Ledger {
    /// A client asks for this.
    pub fn ask(&mut self, id: u64, op: Op) {
        self.asked.insert(id, op);
    }

    /// The store behind the last entry.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Entries that some member applied.
    pub fn applied(&self) -> u64 {
        self.entries.len() as u64
    }

    /// What a request has to be answered; `None` while it is applied nowhere.
    pub fn answer(&self, id: u64) -> Option<&Answer> {
        self.answers.get(&id)
    }

    /// What a client asked for.
    pub fn op(&self, id: u64) -> Option<&Op> {
        self.asked.get(&id)
    }

    /// A member has applied an entry.
    pub fn applies(&mut self, entry: &Entry) -> Result<Option<LeaseEvent>, String> {
        let index = entry.index;
        if let Some(written) = self.entries.get(index as usize - 1) {
            let same = written.term == entry.term && written.kind == entry.entry_type && written.data == entry.data;
            return if same {
                Ok(None)
            } else {
                Err(format!(
                    "entry {index} was applied with term {}, now another is with term {}",
                    written.term, entry.term
                ))
            };
        }
        if index != self.applied() + 1 {
            return Err(format!("entry {index} was applied, before it only {}", self.applied()));
        }
        if self.entries.last().is_some_and(|last| last.term > entry.term) {
            return Err(format!(
                "entry {index} is of term {}, the one before of a later",
                entry.term
            ));
        }
        self.entries.push(Written {
            term: entry.term,
            kind: entry.entry_type,
            data: entry.data.clone(),
        });
        if entry.entry_type != 0 || entry.data.is_empty() {
            return Ok(None);
        }
        let request = InternalRaftRequest::decode(entry.data.clone())
            .map_err(|error| format!("entry {index} can't be read: {error}"))?;
        self.carry_out(&request)
    }

    fn carry_out(&mut self, request: &InternalRaftRequest) -> Result<Option<LeaseEvent>, String> {
        let id = request_id(request);
        let Some(op) = self.asked.get(&id) else {
            // One of a member itself.
            let Some(revoke) = &request.lease_revoke else {
                return Ok(None);
            };
            let event = LeaseEvent::Revoked {
                id: revoke.id,
                request: id,
                own: true,
            };
            let answer = self.model.apply(&Op::Revoke { id: revoke.id });
            return Ok(answer.is_ok.then_some(event));
        };
        let answer = self.model.apply(op);
        let event = match op {
            Op::Grant { id: lease, .. } if answer.is_ok => Some(LeaseEvent::Granted {
                id: *lease,
                request: id,
            }),
            Op::Revoke { id: lease } if answer.is_ok => Some(LeaseEvent::Revoked {
                id: *lease,
                request: id,
                own: false,
            }),
            _ => None,
        };
        if self.answers.insert(id, answer).is_some() {
            return Err(format!("request {id} was applied twice"));
        }
        Ok(event)
    }
}
