//! What the heartbeats of a leader tell of this member's log: that entries are gone which it had acknowledged.
//!
//! Such a member has forgotten its votes as well. With its vote, or with what it is counted for, others could take for
//! stored on a majority what is not. So it ends, as etcd's does (`tocommit(…) is out of range`).
//!
//! **A correct cluster never gets here.** The commit index in a heartbeat is the lesser of what is committed and what
//! this member has acknowledged to its sender in the sender's term: a leader begins with 0 for everybody else, in
//! raft-rs as in etcd's raft. What is acknowledged is durable here, and so is the term in which it was. As long as
//! that term lasts, nothing takes it away again:
//!
//! * Appends cut off what differs from the leader's log, and what it has been acknowledged does not. Those of a leader
//!   of another term are of an earlier one, which raft ignores, or of a later one, with which the term is over.
//! * A snapshot is installed only where the log lacks the entry at which it ends. It is of committed entries, which
//!   every later leader has, so what was acknowledged ends before that one, and the log behind it
//!   (`install::begin_behind`). While it is being installed, nothing that comes is looked at (`handle_peer`).
//! * A start cuts off a torn tail, and nothing that was durable.
//!
//! Heartbeats of an earlier term are never judged, however late they come: the gate lets them through unseen, before
//! it looks at what they say, for raft ignores them.
//!
//! **One message shows nothing.** Peers are not believed: it takes [`LOG_LOST_HEARTBEATS`] of one leader in one term,
//! and none that are nearer to each other than half a tick, for reads are confirmed by heartbeats, too. Whatever fits
//! this log begins the row anew: another heartbeat, or an append that follows on an entry that is there. Of a leader
//! whom this member follows one of them comes every tick, whoever else sends what in its name.

use super::core::LogCore;
use super::transport::gate::Refusal;
use crate::limits::LOG_LOST_HEARTBEATS;
use raft::eraftpb::{Message, MessageType};
use std::time::Duration;

/// Entries are gone that this member had acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this member's log has lost entries that it had acknowledged: the log ends at {last}, and the leader {leader:x} \
     knows that entry {index} was in it; restore the data, or remove the member (`etcdctl member remove`), add it \
     again (`etcdctl member add`) and start it with an empty directory"
)]
pub struct LogLost {
    leader: u64,
    index: u64,
    last: u64,
}

/// Heartbeats in a row that speak of what the log does not have.
#[derive(Clone, Copy, Debug)]
struct Row {
    leader: u64,
    term: u64,
    count: u32,
    /// When the last one came that was counted.
    last_at: Duration,
}

/// What speaks against this member's log.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    row: Option<Row>,
    lost: Option<LogLost>,
}

impl Doubt {
    /// An error when the log has lost something.
    pub(super) fn check(&self) -> Result<(), LogLost> {
        self.lost.map_or(Ok(()), Err)
    }

    /// Counts a heartbeat. True when the row is long enough.
    fn count(&mut self, leader: u64, term: u64, now: Duration, tick: Duration) -> bool {
        let row = self.row.filter(|row| (row.leader, row.term) == (leader, term));
        let count = match row {
            Some(row) if now < row.last_at + tick / 2 => return false,
            row => row.map_or(0, |row| row.count) + 1,
        };
        self.row = Some(Row {
            leader,
            term,
            count,
            last_at: now,
        });
        count >= LOG_LOST_HEARTBEATS
    }
}

impl LogCore {
    /// Notes what a message, of which the gate has judged and which raft has not seen yet, says of this member's log.
    pub(super) fn note_doubt(&mut self, message: &Message, judged: &Result<(), Refusal>, now: Duration) {
        let node = self.replica.node();
        if message.term < node.term() {
            return;
        }
        let fits = match (message.msg_type(), judged) {
            (MessageType::MsgHeartbeat, Ok(())) => true,
            // It may also ask for what the log lacks.
            (MessageType::MsgAppend, Ok(())) => message.index <= node.last_index(),
            _ => false,
        };
        if fits {
            self.refused.doubt.row = None;
            return;
        }
        let Err(Refusal::BeyondLog { index, last }) = *judged else {
            return;
        };
        // In a term of which a member knows the leader, nobody else is believed to be it. One that has lost everything
        // is in no term yet, or has learned the term from an election.
        let (leader, known) = (message.from, node.leader());
        let may_lead = message.term > node.term() || known == 0 || known == leader;
        let speaks = may_lead && message.msg_type() == MessageType::MsgHeartbeat;
        let doubt = &mut self.refused.doubt;
        if speaks && doubt.count(leader, message.term, now, self.options.tick) {
            doubt.lost = Some(LogLost { leader, index, last });
        }
    }
}
