//! What a store ought to hold: etcd's rules for keys, leases and the quota's alarm, as naively as they can be written
//! down.
//!
//! Keeps the whole history for ever and answers from it by looking at everything. Shares no code with what it judges
//! but the type of a revision.

use crate::mvcc::revision::Revision;
use crate::proto::mvccpb::KeyValue;
use crc32c::crc32c_append;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Puts a key.
    Put(Put),
    /// Deletes the keys from the first up to, not including, the second; one key without it.
    Delete { key: String, end: Option<String> },
    /// Compares, then runs one of two lists of puts, deletes and gets.
    Txn {
        key: String,
        condition: Condition,
        then: Vec<Op>,
        otherwise: Vec<Op>,
    },
    /// In a transaction only: reads the keys as a delete names them, at a revision or, with 0, at its place.
    Get {
        key: String,
        end: Option<String>,
        revision: i64,
    },
    /// Grants a lease.
    Grant { id: i64, ttl_s: i64 },
    /// Revokes a lease and deletes its keys.
    Revoke { id: i64 },
    /// Compacts the history.
    Compact { revision: i64, physical: bool },
    /// The member's own: the quota is used up.
    Alarm,
    /// Takes that alarm back.
    Disarm,
}

impl Op {
    /// Whether the quota counts it and its alarm refuses it.
    pub fn takes_room(&self) -> bool {
        match self {
            Op::Put(_) | Op::Grant { .. } => true,
            Op::Txn { then, otherwise, .. } => then.iter().chain(otherwise).any(Op::takes_room),
            _ => false,
        }
    }
}

/// A put.
#[derive(Clone, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The lease, 0 for none.
    pub lease: i64,
}

impl fmt::Debug for Put {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, length, lease) = (&self.key, self.value.len(), self.lease);
        write!(formatter, "Put({key}, {length} bytes, lease {lease})")
    }
}

/// What a transaction compares of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its version is this, 0 for a key that does not exist.
    Version(i64),
    /// It has this value; a key that does not exist has none.
    Value(Vec<u8>),
}

/// One version of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was written.
    pub revision: Revision,
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// Main revision of its creation; 0 in a tombstone.
    pub create_revision: i64,
    /// 1 for the first; 0 in a tombstone.
    pub version: i64,
    /// The lease; 0 for none.
    pub lease: i64,
    /// Whether it is a deletion.
    pub tombstone: bool,
}

impl Record {
    /// The bytes of the `key` bucket.
    pub fn stored(&self) -> Vec<u8> {
        let key = self.key.clone().into_bytes().into();
        if self.tombstone {
            return KeyValue {
                key,
                ..Default::default()
            }
            .encode_to_vec();
        }
        KeyValue {
            key,
            create_revision: self.create_revision,
            mod_revision: self.revision.main,
            version: self.version,
            value: self.value.clone().into(),
            lease: self.lease,
        }
        .encode_to_vec()
    }
}

/// What a request has to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The store's revision afterwards.
    pub revision: i64,
    /// Whether it was carried out.
    pub is_ok: bool,
    /// Keys deleted by a delete, and whether a transaction's condition held.
    pub detail: i64,
    /// The record that a put replaced.
    pub previous: Option<Revision>,
    /// What the gets of a transaction found, in order of the keys.
    pub found: Vec<Vec<Revision>>,
}

/// The store.
#[derive(Clone, Debug)]
pub struct Model {
    history: Vec<Arc<Record>>,
    /// The history by key.
    versions: BTreeMap<String, Vec<Arc<Record>>>,
    live: BTreeMap<String, Arc<Record>>,
    leases: BTreeMap<i64, BTreeSet<String>>,
    revision: i64,
    compact_revision: i64,
    is_full: bool,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            history: Vec::new(),
            versions: BTreeMap::new(),
            live: BTreeMap::new(),
            leases: BTreeMap::new(),
            revision: 1,
            compact_revision: -1,
            is_full: false,
        }
    }
}

impl Model {
    /// The newest revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The compact revision; -1 before the first compaction.
    pub fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    /// Whether the alarm of a full quota is raised.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// All that ever happened, in order.
    pub fn history(&self) -> &[Arc<Record>] {
        &self.history
    }

    /// The leases and their keys.
    pub fn leases(&self) -> &BTreeMap<i64, BTreeSet<String>> {
        &self.leases
    }

    /// The record of a revision.
    pub fn record(&self, revision: Revision) -> Option<&Arc<Record>> {
        let at = self.history.partition_point(|record| record.revision < revision);
        self.history.get(at).filter(|record| record.revision == revision)
    }

    /// The record that a key had at a main revision, if it was alive.
    pub fn alive_at(&self, key: &str, main: i64) -> Option<&Arc<Record>> {
        let versions = self.versions.get(key)?;
        let behind = versions.partition_point(|record| record.revision.main <= main);
        versions[..behind].last().filter(|record| !record.tombstone)
    }

    /// What a range over the keys finds at a main revision.
    pub fn range(&self, key: &str, end: Option<&str>, main: i64) -> Vec<Revision> {
        let keys = self.versions.range(key.to_string()..);
        keys.map(|(key, _)| key.as_str())
            .take_while(|other| match end {
                Some(end) => *other < end,
                None => *other == key,
            })
            .filter_map(|key| self.alive_at(key, main))
            .map(|record| record.revision)
            .collect()
    }

    /// What happened after main revision `after`.
    pub fn events_after(&self, after: i64) -> &[Arc<Record>] {
        let at = self.history.partition_point(|record| record.revision.main <= after);
        &self.history[at..]
    }

    /// The newest record of every key as of a main revision, tombstones included.
    pub fn newest_at(&self, main: i64) -> BTreeMap<&str, &Arc<Record>> {
        let until = self.history.iter().take_while(|record| record.revision.main <= main);
        until.map(|record| (record.key.as_str(), record)).collect()
    }

    /// HashKV by etcd's rules (`etcd-surface` 4.12): of what lies at or below the compact revision it counts what a
    /// compaction at the asked revision would keep, or if that keeps nothing, what the last compaction kept.
    pub fn hash(&self, main: i64) -> u32 {
        let alive_at = |main: i64| -> BTreeSet<Revision> {
            let newest = self.newest_at(main).into_values();
            newest
                .filter(|record| !record.tombstone)
                .map(|record| record.revision)
                .collect()
        };
        let mut kept = alive_at(main);
        if kept.is_empty() {
            kept = alive_at(self.compact_revision);
        }
        let mut crc = crc32c_append(0, b"key");
        for record in self.history.iter().take_while(|record| record.revision.main <= main) {
            if record.revision.main > self.compact_revision || kept.contains(&record.revision) {
                let (bytes, length) = record.revision.to_bytes(record.tombstone);
                crc = crc32c_append(crc32c_append(crc, &bytes[..length]), &record.stored());
            }
        }
        crc
    }

    /// Carries a request out.
    pub fn apply(&mut self, op: &Op) -> Answer {
        let main = self.revision + 1;
        let (mut sub, mut found) = (0, Vec::new());
        let (is_ok, detail, previous) = match op {
            _ if self.is_full && op.takes_room() => (false, 0, None),
            Op::Put(put) if put.lease != 0 && !self.leases.contains_key(&put.lease) => (false, 0, None),
            Op::Put(put) => {
                let previous = self.live.get(&put.key).map(|record| record.revision);
                self.put(put, main, &mut sub);
                (true, 0, previous)
            }
            Op::Delete { key, end } => (true, self.delete(key, end.as_deref(), main, &mut sub), None),
            Op::Txn {
                key,
                condition,
                then,
                otherwise,
            } => {
                let holds = self.holds(key, condition);
                let branch = if holds { then } else { otherwise };
                let is_readable = branch.iter().all(|op| self.is_readable(op));
                for op in branch.iter().filter(|_| is_readable) {
                    self.run_in_txn(op, main, &mut sub, &mut found);
                }
                (is_readable, i64::from(is_readable && holds), None)
            }
            Op::Get { .. } => unreachable!("{op:?} outside of a transaction"),
            Op::Alarm => {
                self.is_full = true;
                (true, 0, None)
            }
            Op::Disarm => {
                self.is_full = false;
                (true, 0, None)
            }
            Op::Grant { id, .. } => (self.grant(*id), 0, None),
            Op::Revoke { id } => (self.revoke(*id, main, &mut sub), 0, None),
            Op::Compact { revision, .. } => {
                let is_ok = *revision > self.compact_revision && *revision <= self.revision;
                if is_ok {
                    self.compact_revision = *revision;
                }
                (is_ok, 0, None)
            }
        };
        if sub > 0 {
            self.revision = main;
        }
        Answer {
            revision: self.revision,
            is_ok,
            detail,
            previous,
            found,
        }
    }

    fn is_readable(&self, op: &Op) -> bool {
        match op {
            Op::Get { revision, .. } => *revision == 0 || (self.compact_revision..=self.revision).contains(revision),
            _ => true,
        }
    }

    fn run_in_txn(&mut self, op: &Op, main: i64, sub: &mut u32, found: &mut Vec<Vec<Revision>>) {
        match op {
            Op::Put(put) => self.put(put, main, sub),
            Op::Delete { key, end } => drop(self.delete(key, end.as_deref(), main, sub)),
            Op::Get { key, end, revision } => {
                let at_main = if *revision == 0 { main } else { *revision };
                found.push(self.range(key, end.as_deref(), at_main));
            }
            other => unreachable!("{other:?} in a transaction"),
        }
    }

    fn holds(&self, key: &str, condition: &Condition) -> bool {
        let record = self.live.get(key);
        match condition {
            Condition::Version(version) => record.map_or(0, |record| record.version) == *version,
            Condition::Value(value) => record.is_some_and(|record| record.value == *value),
        }
    }

    fn grant(&mut self, id: i64) -> bool {
        let is_new = !self.leases.contains_key(&id);
        self.leases.entry(id).or_default();
        is_new
    }

    fn revoke(&mut self, id: i64, main: i64, sub: &mut u32) -> bool {
        let Some(keys) = self.leases.get(&id).cloned() else {
            return false;
        };
        for key in keys {
            self.delete(&key, None, main, sub);
        }
        self.leases.remove(&id);
        true
    }

    fn put(&mut self, put: &Put, main: i64, sub: &mut u32) {
        let before = self.live.get(&put.key).cloned();
        let revision = Revision::new(main, *sub);
        *sub += 1;
        self.detach(before.as_deref());
        if let Some(keys) = self.leases.get_mut(&put.lease) {
            keys.insert(put.key.clone());
        }
        let record = Arc::new(Record {
            revision,
            key: put.key.clone(),
            value: put.value.clone(),
            create_revision: before.as_ref().map_or(main, |before| before.create_revision),
            version: before.as_ref().map_or(0, |before| before.version) + 1,
            lease: put.lease,
            tombstone: false,
        });
        self.live.insert(put.key.clone(), record.clone());
        self.append(record);
    }

    fn append(&mut self, record: Arc<Record>) {
        self.versions
            .entry(record.key.clone())
            .or_default()
            .push(record.clone());
        self.history.push(record);
    }

    fn delete(&mut self, key: &str, end: Option<&str>, main: i64, sub: &mut u32) -> i64 {
        let keys: Vec<String> = match end {
            None => self
                .live
                .get(key)
                .map(|record| record.key.clone())
                .into_iter()
                .collect(),
            Some(end) if key < end => {
                let range = self.live.range(key.to_string()..end.to_string());
                range.map(|(key, _)| key.clone()).collect()
            }
            Some(_) => Vec::new(),
        };
        for key in &keys {
            let before = self.live.remove(key);
            self.detach(before.as_deref());
            self.append(Arc::new(Record {
                revision: Revision::new(main, *sub),
                key: key.clone(),
                value: Vec::new(),
                create_revision: 0,
                version: 0,
                lease: 0,
                tombstone: true,
            }));
            *sub += 1;
        }
        keys.len() as i64
    }

    fn detach(&mut self, record: Option<&Record>) {
        let Some(record) = record else { return };
        if let Some(keys) = self.leases.get_mut(&record.lease) {
            keys.remove(&record.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, lease: i64) -> Op {
        Op::Put(Put {
            key: key.into(),
            value: b"v".to_vec(),
            lease,
        })
    }

    #[test]
    fn revisions_versions_and_leases_follow_etcds_rules() {
        let mut model = Model::default();
        assert!(!model.apply(&put("a", 9)).is_ok, "no such lease");
        model.apply(&Op::Grant { id: 9, ttl_s: 60 });
        assert_eq!(model.apply(&put("a", 9)).revision, 2);
        assert_eq!(model.apply(&put("b", 9)).revision, 3);
        let again = model.apply(&put("a", 0));
        assert_eq!((again.revision, again.previous), (4, Some(Revision::new(2, 0))));
        assert_eq!(model.apply(&Op::Revoke { id: 9 }).revision, 5);
        let alive: Vec<_> = model
            .newest_at(5)
            .into_values()
            .filter(|record| !record.tombstone)
            .collect();
        assert_eq!(alive.len(), 1);
        assert_eq!((alive[0].key.as_str(), alive[0].version), ("a", 2));
        let compact = Op::Compact {
            revision: 5,
            physical: false,
        };
        assert!(model.apply(&compact).is_ok);
        assert!(!model.apply(&compact).is_ok);
        assert_eq!(model.revision(), 5);
    }
}
