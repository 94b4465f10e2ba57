//! `raftpb.Message` and what is in it.
//!
//! Written are a message's type, an entry's type, term and index, and everything that is not zero, in the order of the
//! numbers: etcd from 3.7 writes what is set, older ones also zeros, and all read both.

use super::fields::{Fields, Length, Sink, Value};
use super::{Unsendable, WireError};
use crate::limits::transport as limits;
use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot, SnapshotMetadata};

/// raft-rs's type of a message by raftpb's number, if it goes from member to member.
pub fn kind_of(number: u64) -> Option<MessageType> {
    Some(match number {
        2 => MessageType::MsgPropose,
        3 => MessageType::MsgAppend,
        4 => MessageType::MsgAppendResponse,
        5 => MessageType::MsgRequestVote,
        6 => MessageType::MsgRequestVoteResponse,
        7 => MessageType::MsgSnapshot,
        8 => MessageType::MsgHeartbeat,
        9 => MessageType::MsgHeartbeatResponse,
        13 => MessageType::MsgTransferLeader,
        14 => MessageType::MsgTimeoutNow,
        15 => MessageType::MsgReadIndex,
        16 => MessageType::MsgReadIndexResp,
        17 => MessageType::MsgRequestPreVote,
        18 => MessageType::MsgRequestPreVoteResponse,
        _ => return None,
    })
}

/// etcd's name of a message type, for log lines.
pub fn name(kind: MessageType) -> &'static str {
    match kind {
        MessageType::MsgHup => "MsgHup",
        MessageType::MsgBeat => "MsgBeat",
        MessageType::MsgPropose => "MsgProp",
        MessageType::MsgAppend => "MsgApp",
        MessageType::MsgAppendResponse => "MsgAppResp",
        MessageType::MsgRequestVote => "MsgVote",
        MessageType::MsgRequestVoteResponse => "MsgVoteResp",
        MessageType::MsgSnapshot => "MsgSnap",
        MessageType::MsgHeartbeat => "MsgHeartbeat",
        MessageType::MsgHeartbeatResponse => "MsgHeartbeatResp",
        MessageType::MsgUnreachable => "MsgUnreachable",
        MessageType::MsgSnapStatus => "MsgSnapStatus",
        MessageType::MsgCheckQuorum => "MsgCheckQuorum",
        MessageType::MsgTransferLeader => "MsgTransferLeader",
        MessageType::MsgTimeoutNow => "MsgTimeoutNow",
        MessageType::MsgReadIndex => "MsgReadIndex",
        MessageType::MsgReadIndexResp => "MsgReadIndexResp",
        MessageType::MsgRequestPreVote => "MsgPreVote",
        MessageType::MsgRequestPreVoteResponse => "MsgPreVoteResp",
    }
}

/// raftpb's number of a message's type, if the message may leave. The numbers of what both have are the same.
fn number_of(message: &Message) -> Result<u64, Unsendable> {
    if message.request_snapshot != 0 {
        return Err(Unsendable::RequestSnapshot);
    }
    let number = u64::try_from(message.msg_type).ok();
    number
        .filter(|number| kind_of(*number).is_some())
        .ok_or(Unsendable::Local(message.msg_type))
}

/// The commit index as far as raftpb has it: appends, heartbeats and snapshots carry one.
fn commit_of(message: &Message) -> u64 {
    use MessageType::{MsgAppend, MsgHeartbeat, MsgSnapshot};
    match message.msg_type() {
        MsgAppend | MsgHeartbeat | MsgSnapshot => message.commit,
        _ => 0,
    }
}

/// Appends the encoded message to `out`.
pub fn encode(message: &Message, out: &mut Vec<u8>) -> Result<(), Unsendable> {
    number_of(message)?;
    out.reserve(encoded_length(message));
    put_message(out, message);
    Ok(())
}

/// Bytes that `encode` would append.
pub fn encoded_length(message: &Message) -> usize {
    measure(|length| put_message(length, message))
}

/// Appends an encoded entry to `out`.
pub fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    put_entry(out, entry);
}

/// Bytes that `encode_entry` would append.
pub fn entry_length(entry: &Entry) -> usize {
    measure(|length| put_entry(length, entry))
}

fn measure(write: impl FnOnce(&mut Length)) -> usize {
    let mut length = Length::default();
    write(&mut length);
    length.0
}

fn put_message(out: &mut impl Sink, message: &Message) {
    out.field(1, message.msg_type as u64);
    out.nonzero(2, message.to);
    out.nonzero(3, message.from);
    out.nonzero(4, message.term);
    out.nonzero(5, message.log_term);
    out.nonzero(6, message.index);
    for entry in &message.entries {
        out.head(7, entry_length(entry));
        put_entry(out, entry);
    }
    out.nonzero(8, commit_of(message));
    if let Some(snapshot) = &message.snapshot {
        out.head(9, measure(|length| put_snapshot(length, snapshot)));
        put_snapshot(out, snapshot);
    }
    out.nonzero(10, message.reject.into());
    out.nonzero(11, message.reject_hint);
    out.bytes(12, &message.context);
}

fn put_entry(out: &mut impl Sink, entry: &Entry) {
    out.field(1, entry.entry_type as u64);
    out.field(2, entry.term);
    out.field(3, entry.index);
    out.bytes(4, &entry.data);
}

fn put_snapshot(out: &mut impl Sink, snapshot: &Snapshot) {
    out.bytes(1, &snapshot.data);
    if let Some(metadata) = &snapshot.metadata {
        out.head(2, measure(|length| put_metadata(length, metadata)));
        put_metadata(out, metadata);
    }
}

fn put_metadata(out: &mut impl Sink, metadata: &SnapshotMetadata) {
    if let Some(state) = &metadata.conf_state {
        out.head(1, measure(|length| put_conf_state(length, state)));
        put_conf_state(out, state);
    }
    out.field(2, metadata.index);
    out.field(3, metadata.term);
}

fn put_conf_state(out: &mut impl Sink, state: &ConfState) {
    let lists = [
        &state.voters,
        &state.learners,
        &state.voters_outgoing,
        &state.learners_next,
    ];
    for (field, list) in (1..).zip(lists) {
        list.iter().for_each(|id| out.field(field, *id));
    }
    out.field(5, state.auto_leave.into());
}

/// Reads a message. Its payloads share `bytes`.
pub fn decode(bytes: Bytes) -> Result<Message, WireError> {
    let mut message = Message::default();
    let mut fields = Fields(bytes);
    let mut number = 0;
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => number = value.number("type")?,
            2 => message.to = value.number("to")?,
            3 => message.from = value.number("from")?,
            4 => message.term = value.number("term")?,
            5 => message.log_term = value.number("logTerm")?,
            6 => message.index = value.number("index")?,
            7 => {
                if message.entries.len() == limits::MESSAGE_ENTRIES_MAX {
                    let max = limits::MESSAGE_ENTRIES_MAX;
                    return Err(WireError::TooMany { field: "entries", max });
                }
                message.entries.push(decode_entry(value.bytes("entries")?)?);
            }
            8 => message.commit = value.number("commit")?,
            9 => {
                let snapshot = message.snapshot.get_or_insert_default();
                merge_snapshot(snapshot, value.bytes("snapshot")?)?;
            }
            10 => message.reject = value.number("reject")? != 0,
            11 => message.reject_hint = value.number("rejectHint")?,
            12 => message.context = bounded("context", value, limits::CONTEXT_BYTES_MAX)?,
            _ => {}
        }
    }
    let kind = kind_of(number).ok_or(WireError::MessageType(number))?;
    message.msg_type = kind as i32;
    // Older members send an empty one with everything.
    if kind != MessageType::MsgSnapshot {
        message.snapshot = None;
    }
    message.commit = commit_of(&message);
    Ok(message)
}

/// Reads an entry. Its payload shares `bytes`.
pub fn decode_entry(bytes: Bytes) -> Result<Entry, WireError> {
    let mut entry = Entry::default();
    let mut fields = Fields(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => {
                entry.entry_type = match value.number("Type")? {
                    0 => EntryType::EntryNormal,
                    1 => EntryType::EntryConfChange,
                    2 => EntryType::EntryConfChangeV2,
                    other => return Err(WireError::EntryType(other)),
                } as i32;
            }
            2 => entry.term = value.number("Term")?,
            3 => entry.index = value.number("Index")?,
            4 => entry.data = value.bytes("Data")?,
            _ => {}
        }
    }
    Ok(entry)
}

/// Protobuf joins the parts of a message field that comes more than once.
fn merge_snapshot(snapshot: &mut Snapshot, bytes: Bytes) -> Result<(), WireError> {
    let mut fields = Fields(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => snapshot.data = value.bytes("data")?,
            2 => {
                let metadata = snapshot.metadata.get_or_insert_default();
                merge_metadata(metadata, value.bytes("metadata")?)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn merge_metadata(metadata: &mut SnapshotMetadata, bytes: Bytes) -> Result<(), WireError> {
    let mut fields = Fields(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => {
                let state = metadata.conf_state.get_or_insert_default();
                merge_conf_state(state, value.bytes("conf_state")?)?;
            }
            2 => metadata.index = value.number("index")?,
            3 => metadata.term = value.number("term")?,
            _ => {}
        }
    }
    Ok(())
}

fn merge_conf_state(state: &mut ConfState, bytes: Bytes) -> Result<(), WireError> {
    let max = limits::CONFIGURATION_MEMBERS_MAX;
    let mut fields = Fields(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => value.numbers("voters", &mut state.voters, max)?,
            2 => value.numbers("learners", &mut state.learners, max)?,
            3 => value.numbers("voters_outgoing", &mut state.voters_outgoing, max)?,
            4 => value.numbers("learners_next", &mut state.learners_next, max)?,
            5 => state.auto_leave = value.number("auto_leave")? != 0,
            _ => {}
        }
    }
    Ok(())
}

fn bounded(field: &'static str, value: Value, max: usize) -> Result<Bytes, WireError> {
    let bytes = value.bytes(field)?;
    let length = bytes.len();
    if length > max {
        return Err(WireError::TooLong { field, length, max });
    }
    Ok(bytes)
}
