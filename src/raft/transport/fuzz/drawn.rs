//! Messages made of a fuzzer's bytes: near enough to a member's state to get through the gate now and then.

use super::member::Member;
use crate::raft::transport::gate::RaftState;
use crate::raft::transport::wire::{Change, ConfChange, kind_of};
use raft::eraftpb::{ConfState, Entry, EntryType, Message, Snapshot, SnapshotMetadata};

/// The bytes left.
pub struct Drawn<'a>(pub &'a [u8]);

impl Drawn<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    /// A number, mostly `around` or close to it.
    fn number(&mut self, around: u64) -> u64 {
        match self.byte() {
            0..=127 => around,
            byte @ 128..=191 => around.wrapping_add(u64::from(byte & 15)).wrapping_sub(6),
            byte @ 192..=239 => u64::from(byte & 15),
            240..=243 => u64::MAX,
            244..=247 => 1 << 62,
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    fn member(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=239 => u64::from(byte % 5) + 1,
            240 => 0,
            241 => u64::MAX,
            _ => 99,
        }
    }

    /// A message of a peer of `member`.
    pub fn message(&mut self, member: &Member) -> Message {
        let kind = self.byte();
        let mut message = Message {
            msg_type: match kind_of(u64::from(kind % 19)) {
                Some(kind) => kind as i32,
                None => i32::from(kind),
            },
            to: if self.byte() < 250 { member.id() } else { self.member() },
            from: self.member(),
            term: self.number(member.term()),
            ..Message::default()
        };
        message.index = self.number(member.last_index());
        message.log_term = self.number(member.term_at(message.index).unwrap_or(1));
        message.commit = self.number(member.committed());
        message.reject = self.byte() & 1 == 1;
        message.reject_hint = self.number(message.index);
        message.context = match self.byte() {
            0..=127 => bytes::Bytes::new(),
            byte => vec![byte & 3; 8].into(),
        };
        if matches!(kind % 19, 2 | 15) && self.byte() < 240 {
            message.term = 0;
        }
        let count = match kind % 19 {
            3 => self.byte() % 5,
            2 | 15 | 16 => 1 + u8::from(self.byte() > 200),
            _ => u8::from(self.byte() > 250),
        };
        for step in 1..=u64::from(count) {
            let index = self.number(message.index.wrapping_add(step));
            let term = self.number(message.log_term.max(1));
            message.entries.push(self.entry(term, index));
        }
        if kind % 19 == 7 {
            message.snapshot = self.snapshot(&message);
        }
        message
    }

    pub fn entry(&mut self, term: u64, index: u64) -> Entry {
        let kind = self.byte();
        let entry_type = match kind {
            0..=199 => EntryType::EntryNormal as i32,
            200..=249 => EntryType::EntryConfChange as i32,
            _ => i32::from(kind & 3),
        };
        let mut data = vec![kind; usize::from(kind & 31)];
        if entry_type == EntryType::EntryConfChange as i32 && kind < 248 {
            let changes = [
                Change::AddNode,
                Change::RemoveNode,
                Change::UpdateNode,
                Change::AddLearnerNode,
            ];
            let change = ConfChange {
                change: changes[usize::from(kind & 3)],
                node_id: self.member(),
                ..ConfChange::default()
            };
            data.clear();
            change.encode(&mut data);
        }
        Entry {
            entry_type,
            term,
            index,
            data: data.into(),
            ..Entry::default()
        }
    }

    fn snapshot(&mut self, message: &Message) -> Option<Snapshot> {
        let mut ids = |most: u8| (0..self.byte() % most).map(|_| self.member()).collect::<Vec<_>>();
        let (voters, learners) = (ids(5), ids(3));
        let odd = self.byte() > 240;
        let conf_state = ConfState {
            voters,
            learners,
            voters_outgoing: if odd { vec![self.member()] } else { Vec::new() },
            learners_next: Vec::new(),
            auto_leave: odd && self.byte() > 127,
        };
        let metadata = SnapshotMetadata {
            conf_state: Some(conf_state),
            index: self.number(message.index.wrapping_add(3)),
            term: self.number(message.term),
        };
        (self.byte() < 250).then(|| Snapshot {
            data: bytes::Bytes::new(),
            metadata: Some(metadata),
        })
    }
}
