//! `--force-new-cluster`: a member whose fellows are gone for good goes on as the only one, as etcd has it.
//!
//! Before raft starts: what was not committed is dropped, for nobody can say any more whether it was acknowledged, then
//! come committed changes that remove everybody else. What was committed, and all that was acknowledged is, stays.

use super::founding::founded_by;
use super::membership::kind;
use super::replica::{Applied, ReplicaError, make_durable};
use crate::io::disk::Disk;
use crate::wal::{self, Recovered};
use prost::Message;
use raft::eraftpb::{ConfChange, EntryType};
use std::collections::BTreeSet;

/// Makes the member whose log this is the only one; durable when this returns.
pub(super) fn force<D: Disk>(
    disk: &mut D,
    mut recovered: Recovered,
    applied: &Applied,
) -> Result<Recovered, ReplicaError> {
    let last = recovered
        .entries
        .last()
        .map_or(recovered.entries_after, |entry| entry.index);
    // A commit index alone is not always in the log; what was applied was committed.
    let commit = recovered.hard_state.commit.max(applied.position.index).min(last);
    let member_id = recovered.metadata.node_id;
    let members = members(&recovered, applied, commit);
    if !members.voters.contains(&member_id) {
        return Err(ReplicaError::NoVoter { member_id });
    }
    let dropped = last - commit;
    recovered.entries.retain(|entry| entry.index <= commit);
    let others = members.voters.union(&members.learners).filter(|id| **id != member_id);
    let removals: Vec<wal::Entry> = others
        .zip(commit + 1..)
        .map(|(id, index)| removal(*id, recovered.hard_state.term, index))
        .collect();
    recovered.hard_state.commit = commit + removals.len() as u64;
    tracing::warn!(
        "local-member-id" = format!("{member_id:x}"),
        "wal-commit-index" = commit,
        "commit-index" = recovered.hard_state.commit,
        dropped,
        removed = removals.len(),
        "forcing restart member"
    );
    let ticket = recovered.writer.append(&removals, Some(&recovered.hard_state));
    make_durable(disk, &mut recovered.writer, ticket)?;
    recovered.entries.extend(removals);
    Ok(recovered)
}

struct Members {
    voters: BTreeSet<u64>,
    learners: BTreeSet<u64>,
}

/// Who is a member at the commit index.
fn members(recovered: &Recovered, applied: &Applied, commit: u64) -> Members {
    let begins = applied.position.index == 0;
    let state = match begins {
        true => founded_by(&recovered.entries),
        false => applied.conf_state.clone(),
    };
    let mut members = Members {
        voters: state.voters.iter().copied().collect(),
        learners: state.learners.iter().copied().collect(),
    };
    let later = recovered
        .entries
        .iter()
        .filter(|entry| entry.index > applied.position.index && entry.index <= commit);
    for entry in later.filter(|entry| entry.kind == EntryType::EntryConfChange as u64) {
        // One that can't be read ends the start when it is applied.
        let Ok(change) = ConfChange::decode(entry.data.clone()) else {
            continue;
        };
        let id = change.node_id;
        match change.change_type {
            kind::ADD => {
                members.learners.remove(&id);
                members.voters.insert(id);
            }
            kind::ADD_LEARNER => {
                members.learners.insert(id);
            }
            kind::REMOVE => {
                members.voters.remove(&id);
                members.learners.remove(&id);
            }
            _ => {}
        }
    }
    members
}

fn removal(node_id: u64, term: u64, index: u64) -> wal::Entry {
    let change = ConfChange {
        change_type: kind::REMOVE,
        node_id,
        ..Default::default()
    };
    wal::Entry {
        kind: EntryType::EntryConfChange as u64,
        term,
        index,
        data: change.encode_to_vec().into(),
    }
}
