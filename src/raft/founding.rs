//! How a log begins: with the membership changes that add a cluster's founders, as etcd writes them, or with nothing.

use super::logged::{to_wal, wal_state};
use super::replica::{Founder, ReplicaError, make_durable};
use super::storage::{LogStorage, Position};
use crate::io::disk::Disk;
use crate::wal;
use raft::eraftpb::{ConfChange, ConfChangeType, ConfState, Entry, EntryType, HardState};

/// The voters that a log begins with, before anything of it is applied: those whom its first entries, of term 1, add.
pub(super) fn founded_by(entries: &[wal::Entry]) -> ConfState {
    let founding = entries.iter().zip(1..).map_while(|(entry, index)| {
        (entry.index == index && entry.term == 1)
            .then(|| added_by(entry))
            .flatten()
    });
    ConfState {
        voters: founding.collect(),
        ..Default::default()
    }
}

/// Whom an entry adds as a voter.
pub(super) fn added_by(entry: &wal::Entry) -> Option<u64> {
    let change = (entry.kind == EntryType::EntryConfChange as u64)
        .then(|| <ConfChange as prost::Message>::decode(entry.data.clone()).ok())??;
    (change.change_type == ConfChangeType::AddNode as i32).then_some(change.node_id)
}

/// The beginning of a new log, as etcd writes it: the membership changes that add the founders, by id, committed in
/// term 1. Who joins a cluster begins with nothing.
pub(super) fn found<D: Disk>(
    disk: &mut D,
    wal: &mut wal::Writer,
    founders: &[Founder],
) -> Result<LogStorage, ReplicaError> {
    if founders.is_empty() {
        let (hard_state, conf_state) = Default::default();
        return Ok(LogStorage::new(Position::default(), [], hard_state, conf_state));
    }
    let mut founders = founders.to_vec();
    founders.sort_by_key(|founder| founder.id);
    let entries: Vec<Entry> = founders.iter().zip(1..).map(founding_entry).collect();
    let state = HardState {
        term: 1,
        vote: 0,
        commit: entries.len() as u64,
    };
    let logged: Vec<wal::Entry> = entries.iter().cloned().map(to_wal).collect();
    let ticket = wal.append(&logged, Some(&wal_state(&state)));
    make_durable(disk, wal, ticket)?;
    let conf_state = ConfState {
        voters: founders.iter().map(|founder| founder.id).collect(),
        ..Default::default()
    };
    Ok(LogStorage::new(Position::default(), entries, state, conf_state))
}

fn founding_entry((founder, index): (&Founder, u64)) -> Entry {
    let change = ConfChange {
        change_type: ConfChangeType::AddNode as i32,
        node_id: founder.id,
        context: founder.context.clone(),
        id: 0,
    };
    Entry {
        entry_type: EntryType::EntryConfChange as i32,
        term: 1,
        index,
        // AddNode is 0 in raftpb as well, and the field numbers agree.
        data: prost::Message::encode_to_vec(&change).into(),
        ..Default::default()
    }
}
