//! Which messages of peers raft may see.
//!
//! raft-rs trusts its peers: a message that breaks its invariants ends the process (`fatal!`, an index out of bounds,
//! an addition that overflows), or worse, is believed. So everything is checked here first, in two parts. [`form`]
//! needs nothing but the message: its type, sender, terms, indexes, entries and sizes. [`check`] also looks at the
//! member's own state ([`RaftState`]), which has to be that in which raft will see the message: call it right before
//! the step.
//!
//! What is refused no correct member sends, with two exceptions: messages that were on their way when their sender was
//! removed, and, when members' logs differ where they must not, all messages that would make it worse.
//!
//! Checked against raft 0.7. Each rule says what raft does without it; `gate/tests.rs` shows that it does.

#[cfg(test)]
mod tests;

use super::wire::{self, ConfChange};
use crate::limits::transport::{CONTEXT_BYTES_MAX, POSITION_MAX};
use raft::StateRole;
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType};

/// Why raft may not see a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is addressed to another member.
    #[error("it is for member {0:x}")]
    NotForUs(u64),
    /// It names no sender, or this member.
    #[error("its sender is said to be {0:x}")]
    Sender(u64),
    /// It came from another member than it says.
    #[error("it came from member {came_from:x} and says it is of {says:x}")]
    OtherSender {
        /// Who sent it.
        came_from: u64,
        /// Who it says did.
        says: u64,
    },
    /// The sender was removed from the cluster.
    #[error("member {0:x} was removed from the cluster")]
    Removed(u64),
    /// Members don't send it.
    #[error("no member sends another a message of type {0}")]
    Kind(i32),
    /// It has a term where it must have none, or the other way round, or one that nobody can have reached.
    #[error("its term is {0}")]
    Term(u64),
    /// A number that nobody can have reached.
    #[error("its {field} is {value}")]
    Number {
        /// The field.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// Entries that can't stand where it says.
    #[error("its entries are wrong: {0}")]
    Entries(String),
    /// A context that is missing or too long.
    #[error("its context has {0} bytes")]
    Context(usize),
    /// A snapshot raft can't take.
    #[error("its snapshot is wrong: {0}")]
    Snapshot(&'static str),
    /// It vouches for entries that the log does not have. What heartbeats say by that: `raft::log_lost`.
    #[error("it speaks of index {index}, and the log ends at {last}")]
    BeyondLog {
        /// The index.
        index: u64,
        /// The log's last one.
        last: u64,
    },
    /// It contradicts what is committed here: one of the two members has lost or changed its log.
    #[error("entry {index} is of term {theirs} there, and committed with term {ours} here")]
    Diverged {
        /// The entry's index.
        index: u64,
        /// The sender's term of it.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// It would end in a role that can't be taken now.
    #[error("this member can't lead now: it is no voter, or something is not persisted yet")]
    MayNotLead,
    /// Only a leader that is in its own configuration can take it.
    #[error("this member does not lead the cluster, or is no longer in it")]
    NotLeading,
}

/// What the gate has to know of the member.
pub trait RaftState {
    /// The member's id.
    fn id(&self) -> u64;
    /// Its part in the current term.
    fn role(&self) -> StateRole;
    /// The current term.
    fn term(&self) -> u64;
    /// The log's last index, persisted or not.
    fn last_index(&self) -> u64;
    /// The commit index.
    fn committed(&self) -> u64;
    /// The term of an entry that is held, or of the last one that is no longer; else `None`, or 0.
    fn term_at(&self, index: u64) -> Option<u64>;
    /// Whether raft's configuration names the member itself, as a voter or a learner.
    fn is_member(&self) -> bool;
    /// Whether it may stand for election: it is a voter, and everything raft asked to be persisted, entries or a
    /// snapshot, is.
    fn may_campaign(&self) -> bool;
    /// Whether this member was once removed from the cluster.
    fn is_removed(&self, id: u64) -> bool;
}

/// Checks what can be seen from the message alone. `sender` is who it came from, if that is known.
pub fn form(message: &Message, local: u64, sender: Option<u64>) -> Result<(), Refusal> {
    let kind = u64::try_from(message.msg_type).ok().and_then(wire::kind_of);
    let kind = kind.ok_or(Refusal::Kind(message.msg_type))?;
    if message.to != local {
        return Err(Refusal::NotForUs(message.to));
    }
    if message.from == 0 || message.from == local {
        return Err(Refusal::Sender(message.from));
    }
    // What is passed on to the leader keeps the name of who asked; a transfer bears that of who is to lead.
    use MessageType::{MsgPropose, MsgReadIndex, MsgTransferLeader};
    let is_forwarded = matches!(kind, MsgPropose | MsgReadIndex | MsgTransferLeader);
    if let Some(came_from) = sender.filter(|sender| *sender != message.from && !is_forwarded) {
        let says = message.from;
        return Err(Refusal::OtherSender { came_from, says });
    }
    numbers(message)?;
    // With a term raft can't pass these on, and without one it takes the others for its own.
    let has_term = !matches!(kind, MsgPropose | MsgReadIndex);
    if has_term != (message.term != 0) || message.term > POSITION_MAX {
        return Err(Refusal::Term(message.term));
    }
    if message.context.len() > CONTEXT_BYTES_MAX {
        return Err(Refusal::Context(message.context.len()));
    }
    match kind {
        MessageType::MsgAppend => append(message)?,
        MessageType::MsgPropose => proposal(message)?,
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => read_index(message)?,
        _ if !message.entries.is_empty() => {
            return Err(Refusal::Entries(format!("{} has none", wire::name(kind))));
        }
        _ => {}
    }
    if kind == MessageType::MsgSnapshot {
        snapshot(message)?;
    }
    Ok(())
}

/// raft adds to these.
fn numbers(message: &Message) -> Result<(), Refusal> {
    let fields = [
        ("index", message.index),
        ("logTerm", message.log_term),
        ("commit", message.commit),
        ("rejectHint", message.reject_hint),
    ];
    match fields.into_iter().find(|(_, value)| *value > POSITION_MAX) {
        Some((field, value)) => Err(Refusal::Number { field, value }),
        None => Ok(()),
    }
}

/// Entries have to follow each other and the entry they are appended to. raft takes position and term as they are:
/// with a gap it panics, and an entry of term 0 is one it thinks it has.
fn append(message: &Message) -> Result<(), Refusal> {
    let wrong = |text: String| Err(Refusal::Entries(text));
    // Only the log's very beginning is of term 0: raft would find it beyond the log's end as well.
    if (message.index == 0) != (message.log_term == 0) || message.log_term > message.term {
        return wrong(format!(
            "they follow entry {} of term {} in term {}",
            message.index, message.log_term, message.term
        ));
    }
    let (mut index, mut term) = (message.index, message.log_term.max(1));
    for entry in &message.entries {
        index += 1;
        if entry.index != index {
            return wrong(format!("entry {} stands at {index}", entry.index));
        }
        if entry.term < term || entry.term > message.term {
            return wrong(format!(
                "entry {index} of term {} behind term {term} in term {}",
                entry.term, message.term
            ));
        }
        term = entry.term;
        content(entry.entry_type, &entry.data)?;
    }
    Ok(())
}

/// An empty proposal ends a leader.
fn proposal(message: &Message) -> Result<(), Refusal> {
    if message.entries.is_empty() {
        return Err(Refusal::Entries("there is none".to_string()));
    }
    let mut entries = message.entries.iter();
    entries.try_for_each(|entry| content(entry.entry_type, &entry.data))
}

/// Every member would have to apply them, and none could. Nothing more may be refused here than what no leader, etcd's
/// included, appends: it would send the entry again for ever.
fn content(kind: i32, data: &bytes::Bytes) -> Result<(), Refusal> {
    match EntryType::try_from(kind) {
        Ok(EntryType::EntryNormal) => Ok(()),
        Ok(EntryType::EntryConfChange) => match ConfChange::decode(data.clone()) {
            Ok(_) => Ok(()),
            Err(error) => Err(Refusal::Entries(format!("a membership change: {error}"))),
        },
        Ok(EntryType::EntryConfChangeV2) => Err(Refusal::Entries("a ConfChangeV2".to_string())),
        Err(_) => Err(Refusal::Entries(format!("an entry of type {kind}"))),
    }
}

/// Whether every member can apply an entry, as far as its form goes.
pub fn is_sound(entry: &Entry) -> bool {
    content(entry.entry_type, &entry.data).is_ok()
}

/// raft takes the first entry without looking, and keeps its data as the name of a round.
fn read_index(message: &Message) -> Result<(), Refusal> {
    let [entry] = &message.entries[..] else {
        return Err(Refusal::Entries(format!("{}, and not one", message.entries.len())));
    };
    match entry.data.len() {
        1..=CONTEXT_BYTES_MAX => Ok(()),
        length => Err(Refusal::Context(length)),
    }
}

/// raft installs a snapshot's configuration and panics if it does not come out as it stands there.
fn snapshot(message: &Message) -> Result<(), Refusal> {
    let wrong = |text| Err(Refusal::Snapshot(text));
    let metadata = message.get_snapshot().get_metadata();
    if metadata.index == 0 || metadata.index > POSITION_MAX {
        return wrong("it stands for no entry");
    }
    if metadata.term == 0 || metadata.term > message.term {
        return wrong("its term is 0 or of the future");
    }
    let ConfState {
        voters,
        learners,
        voters_outgoing,
        learners_next,
        auto_leave,
    } = metadata.get_conf_state();
    if !voters_outgoing.is_empty() || !learners_next.is_empty() || *auto_leave {
        return wrong("it is between two configurations");
    }
    let mut ids: Vec<u64> = voters.iter().chain(learners).copied().collect();
    ids.sort_unstable();
    if voters.is_empty() || ids[0] == 0 || ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return wrong("its configuration has no voter, member 0, or a member twice");
    }
    Ok(())
}

/// Checks everything about a message, right before raft is to see it.
pub fn check(message: &Message, state: &impl RaftState) -> Result<(), Refusal> {
    form(message, state.id(), None)?;
    if state.is_removed(message.from) {
        return Err(Refusal::Removed(message.from));
    }
    // raft looks no further than at the term of what comes from an earlier one.
    if message.term != 0 && message.term < state.term() {
        return Ok(());
    }
    match message.msg_type() {
        MessageType::MsgAppend => check_append(message, state),
        MessageType::MsgHeartbeat => within_log(message.commit, state),
        MessageType::MsgSnapshot => {
            let metadata = message.get_snapshot().get_metadata();
            same_as_committed(metadata.index, metadata.term, state)
        }
        MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse if leads(message, state) => {
            // A leader outside of its configuration looks for its own progress, which is not there.
            if !state.is_member() {
                return Err(Refusal::NotLeading);
            }
            // It would send the follower a commit index beyond that one's log.
            within_log(if message.reject { 0 } else { message.index }, state)
        }
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            let counts = matches!(state.role(), StateRole::Candidate | StateRole::PreCandidate);
            may_lead(!counts || message.reject, state)
        }
        MessageType::MsgTimeoutNow => may_lead(state.role() != StateRole::Follower && !is_newer(message, state), state),
        // It has a term, which keeps a follower from passing it on.
        MessageType::MsgTransferLeader if state.role() != StateRole::Leader => Err(Refusal::NotLeading),
        _ => Ok(()),
    }
}

fn is_newer(message: &Message, state: &impl RaftState) -> bool {
    message.term > state.term()
}

fn leads(message: &Message, state: &impl RaftState) -> bool {
    state.role() == StateRole::Leader && !is_newer(message, state)
}

/// Winning or beginning an election with something unpersisted ends raft.
fn may_lead(changes_nothing: bool, state: &impl RaftState) -> Result<(), Refusal> {
    if changes_nothing || state.may_campaign() {
        Ok(())
    } else {
        Err(Refusal::MayNotLead)
    }
}

fn within_log(index: u64, state: &impl RaftState) -> Result<(), Refusal> {
    let last = state.last_index();
    if index > last {
        return Err(Refusal::BeyondLog { index, last });
    }
    Ok(())
}

/// Nothing may say that a committed entry is another.
fn check_append(message: &Message, state: &impl RaftState) -> Result<(), Refusal> {
    same_as_committed(message.index, message.log_term, state)?;
    let committed = state.committed();
    let mut known = message.entries.iter().take_while(|entry| entry.index <= committed);
    known.try_for_each(|entry| same_as_committed(entry.index, entry.term, state))
}

fn same_as_committed(index: u64, theirs: u64, state: &impl RaftState) -> Result<(), Refusal> {
    if index > state.committed() {
        return Ok(());
    }
    match state.term_at(index) {
        // No entry is of term 0: raft says that of those it does not hold.
        Some(ours) if ours != theirs && ours != 0 => Err(Refusal::Diverged { index, theirs, ours }),
        _ => Ok(()),
    }
}
