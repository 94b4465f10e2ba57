//! Linearizable reads: rounds of read indexes, each for all who wait when it begins.
//!
//! A round asks raft for the commit index, confirmed by a majority, with a context that was never used before (raft-rs
//! finds rounds by their contexts: a late answer to a first use would confirm a second). Who asks while one is under
//! way joins the next. A round that is not answered in time, or whose leader is gone, begins anew with another context,
//! for raft drops rounds without a word when there is no leader, or a new one has committed nothing yet (DESIGN 12
//! (15)). The answer leaves when a view that contains the index is published. The same rounds confirm leadership to
//! those who need to know that it lasted past a moment: renewals and expiry of leases (DESIGN 12 (20)).

use super::core::LogCore;
use super::messages::{Dropped, Reply};
use super::waiters::Waiter;
use crate::limits::RAFT_READ_RETRY_TICKS;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::time::Duration;

/// Who waits for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A serve core that has reads to answer.
    Reader(Waiter),
    /// The renewal of a lease, on the leader.
    Renewal(Waiter, i64),
    /// What is left of a lease, and whether its keys are wanted, on the leader.
    TimeToLive(Waiter, i64, bool),
}

/// One who waits, and since when.
type Waiting = (Duration, Asker);

/// A round that is not confirmed yet.
struct Round {
    context: Bytes,
    askers: Vec<Waiting>,
    began: Duration,
    /// Who led, in which term.
    led: (u64, u64),
}

/// All rounds.
pub(super) struct Reads {
    waiting: Vec<Waiting>,
    round: Option<Round>,
    /// Confirmed, and waiting for their index to be published.
    confirmed: VecDeque<(u64, Vec<Waiting>)>,
    /// Leadership in `confirmed_term` was confirmed at a time after this one.
    confirmed_at: Duration,
    confirmed_term: u64,
    /// Whether leadership has to be confirmed although nobody waits.
    wanted: bool,
    next_context: u64,
}

impl Reads {
    /// Contexts are counted from `first_context`, which differs from one life of the member to the next.
    pub fn new(first_context: u64) -> Reads {
        Reads {
            waiting: Vec::new(),
            round: None,
            confirmed: VecDeque::new(),
            confirmed_at: Duration::ZERO,
            confirmed_term: 0,
            wanted: false,
            next_context: first_context,
        }
    }

    /// Adds one who waits.
    pub fn ask(&mut self, asker: Asker, now: Duration) {
        self.waiting.push((now, asker));
    }

    /// Begins a round even if nobody asks.
    pub fn want_confirmation(&mut self) {
        self.wanted = true;
    }

    /// Whether a round is under way, or has to begin.
    pub fn is_under_way(&self) -> bool {
        self.wanted || self.round.is_some()
    }

    fn context(&mut self, member_id: u64) -> Bytes {
        self.next_context = self.next_context.wrapping_add(1);
        let mut context = BytesMut::with_capacity(16);
        context.put_u64(member_id);
        context.put_u64(self.next_context);
        context.freeze()
    }
}

impl LogCore {
    /// Takes confirmations and begins the next round if there is need for one.
    pub(super) fn confirm_reads(&mut self, now: Duration) {
        let node = self.replica.node();
        let (leads, term) = (node.is_leader(), node.term());
        let led = (node.leader(), term);
        for read_index in node.take_read_indexes() {
            let Some(round) = self.reads.round.take_if(|round| round.context == read_index.context) else {
                continue;
            };
            if leads && round.led == led {
                (self.reads.confirmed_at, self.reads.confirmed_term) = (round.began, term);
            }
            self.reads.confirmed.push_back((read_index.index, round.askers));
        }
        let retry = RAFT_READ_RETRY_TICKS * self.options.tick;
        let overdue = |round: &mut Round| round.led != led || now >= round.began + retry;
        if let Some(mut round) = self.reads.round.take_if(overdue) {
            self.counters.reads_failed += u64::from(round.led != led);
            round.askers.append(&mut self.reads.waiting);
            self.reads.waiting = round.askers;
        }
        let needed = !self.reads.waiting.is_empty() || (self.reads.wanted && leads);
        // A leader confirms nothing before it has committed an entry of its own term.
        let can = if leads {
            self.state.applied_term() == term
        } else {
            led.0 != 0
        };
        if !needed || !can || self.reads.round.is_some() {
            return;
        }
        self.reads.wanted = false;
        let context = self.reads.context(self.member_id);
        self.reads.round = Some(Round {
            context: context.clone(),
            askers: std::mem::take(&mut self.reads.waiting),
            began: now,
            led,
        });
        self.replica.node().read_index(context);
    }

    /// Gives up those who have waited for a leader, or a majority, for too long.
    pub(super) fn expire_reads(&mut self, now: Duration) {
        let timeout = self.proposal_timeout();
        let is_late = |(since, _): &mut Waiting| *since + timeout <= now;
        let mut late: Vec<Waiting> = self.reads.waiting.extract_if(.., is_late).collect();
        if let Some(round) = &mut self.reads.round {
            late.extend(round.askers.extract_if(.., is_late));
        }
        self.counters.reads_timed_out += u64::from(!late.is_empty());
        for (_, asker) in late {
            let (Asker::Reader(waiter) | Asker::Renewal(waiter, _) | Asker::TimeToLive(waiter, ..)) = asker;
            self.drop_waiter(waiter, Dropped::TimedOut);
        }
    }

    /// A time up to which this member is known to have led; nothing that ended before it can have been renewed by
    /// another leader.
    pub(super) fn led_until(&mut self, now: Duration) -> Duration {
        let node = self.replica.node();
        if node.is_sole_voter() {
            now
        } else if self.reads.confirmed_term == node.term() {
            self.reads.confirmed_at
        } else {
            Duration::ZERO
        }
    }

    /// Answers those whose index is contained in what is published.
    pub(super) fn answer_reads(&mut self, now: Duration) {
        while let Some((index, _)) = self.reads.confirmed.front() {
            if *index > self.published_index {
                return;
            }
            let (_, askers) = self.reads.confirmed.pop_front().expect("there is a first one");
            for (_, asker) in askers {
                match asker {
                    Asker::Reader(Waiter { core, token }) => self.replies.push((core, Reply::Readable { token })),
                    Asker::Renewal(waiter, id) => self.renew_confirmed(waiter, id, now),
                    Asker::TimeToLive(waiter, id, keys) => self.time_to_live_confirmed(waiter, id, keys, now),
                }
            }
        }
    }

    /// When an unanswered round begins anew.
    pub(super) fn read_deadline(&self) -> Option<Duration> {
        let round = self.reads.round.as_ref()?;
        Some(round.began + RAFT_READ_RETRY_TICKS * self.options.tick)
    }
}
