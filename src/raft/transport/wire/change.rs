//! `raftpb.ConfChange`: what an entry of type `EntryConfChange` holds.

use super::WireError;
use super::fields::{Fields, Sink};
use bytes::Bytes;
use raft::eraftpb;

/// What is done to a member, by raftpb's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Change {
    /// A voter is added, or a learner made one.
    #[default]
    AddNode = 0,
    /// A member is removed.
    RemoveNode = 1,
    /// What is known of a member changes. raft-rs has no such change, and needs none: raft's state stays as it is.
    UpdateNode = 2,
    /// A learner is added.
    AddLearnerNode = 3,
}

/// A change of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChange {
    /// The proposer's id of the change.
    pub id: u64,
    /// What is done.
    pub change: Change,
    /// To whom.
    pub node_id: u64,
    /// The member as etcd's JSON; empty for a removal.
    pub context: Bytes,
}

impl ConfChange {
    /// Appends the encoded change to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.nonzero(1, self.id);
        out.field(2, self.change as u64);
        out.nonzero(3, self.node_id);
        out.bytes(4, &self.context);
    }

    /// Reads a change. Its context shares `bytes`.
    pub fn decode(bytes: Bytes) -> Result<ConfChange, WireError> {
        let mut change = ConfChange::default();
        let mut fields = Fields(bytes);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => change.id = value.number("id")?,
                2 => {
                    change.change = match value.number("type")? {
                        0 => Change::AddNode,
                        1 => Change::RemoveNode,
                        2 => Change::UpdateNode,
                        3 => Change::AddLearnerNode,
                        other => return Err(WireError::ChangeType(other)),
                    }
                }
                3 => change.node_id = value.number("node_id")?,
                4 => change.context = value.bytes("context")?,
                _ => {}
            }
        }
        Ok(change)
    }

    /// The change as raft-rs takes it; `None` if there is nothing in it for raft.
    pub fn for_raft(&self) -> Option<eraftpb::ConfChange> {
        let change_type = match self.change {
            Change::AddNode => eraftpb::ConfChangeType::AddNode,
            Change::RemoveNode => eraftpb::ConfChangeType::RemoveNode,
            Change::AddLearnerNode => eraftpb::ConfChangeType::AddLearnerNode,
            Change::UpdateNode => return None,
        };
        Some(eraftpb::ConfChange {
            change_type: change_type as i32,
            node_id: self.node_id,
            context: self.context.clone(),
            id: self.id,
        })
    }
}
