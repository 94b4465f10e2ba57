//! What a serve core asks of its log core: tokens for the answers, bounds on what is not answered, and its time-out.

use super::error;
use super::service::Api;
use super::waiting::Waiting;
use crate::limits::{API_LOG_CORE_GRACE, API_MAILBOX_LANE, API_WAITING, API_WAITING_BYTES};
use crate::net::Net;
use crate::raft::messages::{Dropped, Request};
use crate::reactor::mailbox::{Refused, Sender};
use slab::Slab;
use std::collections::VecDeque;
use std::time::Duration;

/// A request that the log core has not answered yet.
struct Asked {
    generation: u32,
    waiting: Waiting,
    /// When it is given up.
    until: Duration,
    /// What it takes in memory.
    bytes: usize,
}

/// The requests of one core.
pub(super) struct Asking {
    waiting: Slab<Asked>,
    /// Bytes of the proposals among them.
    bytes: usize,
    generation: u32,
    requests: Sender<Request, 1>,
    /// What the full mailbox did not take. No longer than what waits, and a few that nobody waits for.
    backlog: VecDeque<Request>,
}

impl Asking {
    pub fn new(requests: Sender<Request, 1>) -> Asking {
        Asking {
            waiting: Slab::new(),
            bytes: 0,
            generation: 0,
            requests,
            backlog: VecDeque::new(),
        }
    }

    /// Takes out what waits for the answer with this token; `None` if it was given up.
    pub fn answered(&mut self, token: u64) -> Option<Waiting> {
        let key = token as u32 as usize;
        let asked = self.waiting.get(key)?;
        (u64::from(asked.generation) == token >> 32).then(|| self.remove(key))
    }

    fn remove(&mut self, key: usize) -> Waiting {
        let asked = self.waiting.remove(key);
        self.bytes -= asked.bytes;
        asked.waiting
    }

    /// Sends a request that is not answered, or has a token.
    pub fn post(&mut self, request: Request) {
        if !self.backlog.is_empty() {
            self.backlog.push_back(request);
            return;
        }
        match self.requests.push(API_MAILBOX_LANE, request) {
            Ok(()) | Err(Refused::Closed(_)) => {}
            Err(Refused::Full(request)) => self.backlog.push_back(request),
        }
    }

    /// Sends what found no room before, and wakes the log core.
    pub fn post_backlog(&mut self) {
        while let Some(request) = self.backlog.pop_front() {
            if let Err(Refused::Full(request)) = self.requests.push(API_MAILBOX_LANE, request) {
                self.backlog.push_front(request);
                break;
            }
        }
        self.requests.ring();
    }
}

impl Api {
    /// Sends a request to the log core, whose reply will find `waiting`.
    pub(super) fn ask(&mut self, net: &mut Net, waiting: Waiting, request: impl FnOnce(u64) -> Request) {
        self.ask_for(net, waiting, 0, request);
    }

    /// As `ask`, for a request of `bytes` bytes. With too much waiting already it is given up at once, so that a log
    /// core that falls behind costs no more memory.
    pub(super) fn ask_for(
        &mut self,
        net: &mut Net,
        waiting: Waiting,
        bytes: usize,
        request: impl FnOnce(u64) -> Request,
    ) {
        let asking = &mut self.asking;
        let is_too_much = asking.bytes > 0 && asking.bytes + bytes > API_WAITING_BYTES;
        if is_too_much || asking.waiting.len() >= API_WAITING {
            return self.give_up(net, waiting, &error::dropped(Dropped::TooManyRequests));
        }
        asking.generation = asking.generation.wrapping_add(1);
        asking.bytes += bytes;
        let key = asking.waiting.insert(Asked {
            generation: asking.generation,
            waiting,
            until: net.now() + self.settings.request_timeout + API_LOG_CORE_GRACE,
            bytes,
        });
        asking.post(request((u64::from(asking.generation) << 32) | key as u64));
    }

    /// Sends a request that is not answered.
    pub(super) fn post(&mut self, request: Request) {
        self.asking.post(request);
    }

    /// The log core has ended, perhaps because the member begins anew with another one's state: gives up what waits for
    /// it. Nobody else can answer, and connections end when their calls have. What is asked on that occasion is left
    /// for the next call.
    pub fn log_core_ended(&mut self, net: &mut Net) {
        let keys: Vec<usize> = self.asking.waiting.iter().map(|(key, _)| key).collect();
        for key in keys {
            let waiting = self.asking.remove(key);
            self.give_up(net, waiting, &error::stopped());
        }
    }

    /// Gives up requests that waited too long, as etcd's request time-out does.
    pub fn expire_requests(&mut self, net: &mut Net) {
        let now = net.now();
        let waiting = self.asking.waiting.iter();
        let late: Vec<usize> = waiting
            .filter(|(_, asked)| asked.until <= now)
            .map(|(key, _)| key)
            .collect();
        for key in late {
            let waiting = self.asking.remove(key);
            self.give_up(net, waiting, &error::timed_out());
        }
    }
}
