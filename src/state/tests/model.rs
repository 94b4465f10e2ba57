//! etcd's semantics, spelled out on a plain list of records: slow and obvious.

use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    self as pb, Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, TxnRequest,
    compare::TargetUnion, request_op::Request, response_op::Response,
};
use crate::proto::mvccpb::KeyValue;
use crate::state::StateError;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// A record of the history.
#[derive(Clone, Debug)]
pub struct Record {
    pub revision: Revision,
    pub tombstone: bool,
    pub kv: KeyValue,
}

/// The response of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Range(pb::RangeResponse),
    Put(pb::PutResponse),
    Delete(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Other,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub history: Vec<Record>,
    pub revision: i64,
    pub compact_revision: i64,
    /// Id to TTL.
    pub leases: BTreeMap<i64, i64>,
    /// Records of the entry being applied.
    changes: u32,
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader {
        revision,
        ..Default::default()
    })
}

impl Model {
    pub fn new() -> Model {
        Model {
            history: Vec::new(),
            revision: 1,
            compact_revision: -1,
            leases: BTreeMap::new(),
            changes: 0,
        }
    }

    fn newest(&self, key: &[u8], at_main: i64) -> Option<&Record> {
        self.history
            .iter()
            .rfind(|record| record.kv.key == key && record.revision.main <= at_main)
    }

    pub fn get(&self, key: &[u8], at_main: i64) -> Option<&KeyValue> {
        self.newest(key, at_main)
            .filter(|record| !record.tombstone)
            .map(|record| &record.kv)
    }

    fn live(&self, key: &[u8], range_end: &[u8], at_main: i64) -> Vec<KeyValue> {
        let end = RangeEnd::from_request(range_end);
        let all: BTreeSet<&Bytes> = self.history.iter().map(|record| &record.kv.key).collect();
        let inside = all.into_iter().filter(|other| end.contains(key, other));
        inside.filter_map(|key| self.get(key, at_main).cloned()).collect()
    }

    /// The revision that a read sees at this point of the entry.
    fn current(&self) -> i64 {
        self.revision + i64::from(self.changes > 0)
    }

    pub fn range(&self, request: &RangeRequest) -> Result<pb::RangeResponse, StateError> {
        let current = self.current();
        if request.revision > current {
            return Err(StateError::FutureRevision);
        }
        let at_main = if request.revision <= 0 {
            current
        } else {
            request.revision
        };
        if at_main < self.compact_revision {
            return Err(StateError::Compacted);
        }
        let mut kvs = self.live(&request.key, &request.range_end, at_main);
        let mut response = pb::RangeResponse {
            header: header(current),
            count: kvs.len() as i64,
            ..Default::default()
        };
        if request.count_only {
            return Ok(response);
        }
        let within = |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
        kvs.retain(|kv| within(kv.mod_revision, request.min_mod_revision, request.max_mod_revision));
        kvs.retain(|kv| {
            within(
                kv.create_revision,
                request.min_create_revision,
                request.max_create_revision,
            )
        });
        let limit = if request.limit > 0 {
            request.limit as usize
        } else {
            usize::MAX
        };
        let filtered = [request.min_mod_revision, request.max_mod_revision] != [0, 0]
            || [request.min_create_revision, request.max_create_revision] != [0, 0];
        // The quirk: without an order the limit goes by key, and one more is read. Then comes the sort by target, and
        // then the cut.
        if request.sort_order == 0 && !filtered {
            kvs.truncate(limit.saturating_add(1));
        }
        sort(&mut kvs, request);
        if kvs.len() > limit {
            kvs.truncate(limit);
            response.more = true;
        }
        if request.keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
                if request.sort_target != 4 {
                    kv.lease = 0;
                }
            }
        }
        response.kvs = kvs;
        Ok(response)
    }

    fn next_revision(&mut self) -> Revision {
        self.changes += 1;
        Revision::new(self.revision + 1, self.changes - 1)
    }

    fn check_put(&self, request: &PutRequest) -> Result<Option<KeyValue>, StateError> {
        if request.lease != 0 && !self.leases.contains_key(&request.lease) {
            return Err(StateError::LeaseNotFound);
        }
        let before = self.get(&request.key, self.current()).cloned();
        if (request.ignore_value || request.ignore_lease) && before.is_none() {
            return Err(StateError::KeyNotFound);
        }
        Ok(before)
    }

    /// `kept` is what the put finds before the entry.
    fn put(&mut self, request: &PutRequest, kept: Option<KeyValue>) -> pb::PutResponse {
        let before = self.get(&request.key, self.current()).cloned();
        let revision = self.next_revision();
        let kept = kept.unwrap_or_default();
        let kv = KeyValue {
            key: request.key.clone(),
            create_revision: before.as_ref().map_or(revision.main, |kv| kv.create_revision),
            mod_revision: revision.main,
            version: before.as_ref().map_or(0, |kv| kv.version) + 1,
            value: if request.ignore_value {
                kept.value
            } else {
                request.value.clone()
            },
            lease: if request.ignore_lease {
                kept.lease
            } else {
                request.lease
            },
        };
        self.history.push(Record {
            revision,
            tombstone: false,
            kv,
        });
        pb::PutResponse {
            header: header(revision.main),
            prev_kv: before.filter(|_| request.prev_kv),
        }
    }

    fn delete(&mut self, request: &DeleteRangeRequest) -> pb::DeleteRangeResponse {
        let before = self.live(&request.key, &request.range_end, self.current());
        for kv in &before {
            let revision = self.next_revision();
            let kv = KeyValue {
                key: kv.key.clone(),
                ..Default::default()
            };
            self.history.push(Record {
                revision,
                tombstone: true,
                kv,
            });
        }
        pb::DeleteRangeResponse {
            header: header(self.current()),
            deleted: before.len() as i64,
            prev_kvs: if request.prev_kv { before } else { Vec::new() },
        }
    }

    fn compare(&self, compare: &Compare) -> bool {
        let kvs = self.live(&compare.key, &compare.range_end, self.revision);
        if kvs.is_empty() {
            return compare.target != 3 && one_holds(compare, &KeyValue::default());
        }
        kvs.iter().all(|kv| one_holds(compare, kv))
    }

    /// The chosen branches of a transaction and its nested ones, in order.
    fn path(&self, request: &TxnRequest, path: &mut Vec<bool>) {
        let succeeded = request.compare.iter().all(|compare| self.compare(compare));
        path.push(succeeded);
        for operation in if succeeded { &request.success } else { &request.failure } {
            if let Some(Request::RequestTxn(nested)) = &operation.request {
                self.path(nested, path);
            }
        }
    }

    fn check(&self, request: &TxnRequest, path: &mut impl Iterator<Item = bool>) -> Result<(), StateError> {
        let succeeded = path.next().unwrap();
        for operation in if succeeded { &request.success } else { &request.failure } {
            match operation.request.as_ref().unwrap() {
                Request::RequestRange(range) if range.revision == 0 => {}
                Request::RequestRange(range) if range.revision > self.revision => {
                    return Err(StateError::FutureRevision);
                }
                Request::RequestRange(range) if range.revision < self.compact_revision => {
                    return Err(StateError::Compacted);
                }
                Request::RequestRange(_) | Request::RequestDeleteRange(_) => {}
                Request::RequestPut(put) => {
                    self.check_put(put)?;
                }
                Request::RequestTxn(nested) => self.check(nested, path)?,
            }
        }
        Ok(())
    }

    fn execute(
        &mut self,
        request: &TxnRequest,
        before: &Model,
        path: &mut impl Iterator<Item = bool>,
    ) -> pb::TxnResponse {
        let succeeded = path.next().unwrap();
        let mut responses = Vec::new();
        for operation in if succeeded { &request.success } else { &request.failure } {
            let response = match operation.request.as_ref().unwrap() {
                Request::RequestRange(range) => Response::ResponseRange(self.range(range).unwrap()),
                Request::RequestPut(put) => {
                    let kept = before.get(&put.key, before.revision).cloned();
                    Response::ResponsePut(self.put(put, kept))
                }
                Request::RequestDeleteRange(delete) => Response::ResponseDeleteRange(self.delete(delete)),
                Request::RequestTxn(nested) => Response::ResponseTxn(self.execute(nested, before, path)),
            };
            responses.push(pb::ResponseOp {
                response: Some(response),
            });
        }
        pb::TxnResponse {
            header: header(0),
            succeeded,
            responses,
        }
    }

    pub fn txn(&mut self, request: &TxnRequest) -> Result<pb::TxnResponse, StateError> {
        let mut path = Vec::new();
        self.path(request, &mut path);
        self.check(request, &mut path.iter().copied())?;
        let before = self.clone();
        let mut response = self.execute(request, &before, &mut path.into_iter());
        response.header = header(self.current());
        Ok(response)
    }

    pub fn apply(&mut self, request: &InternalRaftRequest) -> Result<Answer, StateError> {
        let answer = self.apply_one(request);
        self.revision = self.current();
        self.changes = 0;
        answer
    }

    fn apply_one(&mut self, request: &InternalRaftRequest) -> Result<Answer, StateError> {
        if let Some(range) = &request.range {
            return self.range(range).map(Answer::Range);
        }
        if let Some(put) = &request.put {
            let kept = self.check_put(put)?;
            return Ok(Answer::Put(self.put(put, kept)));
        }
        if let Some(delete) = &request.delete_range {
            return Ok(Answer::Delete(self.delete(delete)));
        }
        if let Some(txn) = &request.txn {
            return self.txn(txn).map(Answer::Txn);
        }
        if let Some(compaction) = &request.compaction {
            if compaction.revision <= self.compact_revision {
                return Err(StateError::Compacted);
            }
            if compaction.revision > self.revision {
                return Err(StateError::FutureRevision);
            }
            self.compact_revision = compaction.revision;
        }
        if let Some(grant) = &request.lease_grant {
            if self.leases.contains_key(&grant.id) {
                return Err(StateError::LeaseExists);
            }
            self.leases.insert(grant.id, grant.ttl.max(2));
        }
        if let Some(revoke) = &request.lease_revoke {
            self.leases.remove(&revoke.id).ok_or(StateError::LeaseNotFound)?;
            for key in self.attached(revoke.id) {
                self.delete(&DeleteRangeRequest {
                    key,
                    ..Default::default()
                });
            }
        }
        Ok(Answer::Other)
    }

    /// The keys of a lease, in order.
    pub fn attached(&self, lease: i64) -> Vec<Bytes> {
        let live = self.live(b"", b"\0", self.current());
        live.into_iter()
            .filter(|kv| kv.lease == lease)
            .map(|kv| kv.key)
            .collect()
    }

    /// The revision that a compaction at `at_main` keeps of each key, and whether it is a tombstone.
    fn kept(&self, at_main: i64) -> BTreeMap<&Bytes, (Revision, bool)> {
        let before = self.history.iter().filter(|record| record.revision.main <= at_main);
        before
            .map(|record| (&record.kv.key, (record.revision, record.tombstone)))
            .collect()
    }

    /// The records that are left when all compactions are done.
    pub fn stored(&self) -> BTreeSet<Revision> {
        let compact = self.compact_revision;
        let newer = self
            .history
            .iter()
            .map(|record| record.revision)
            .filter(|revision| revision.main > compact);
        let kept = self.kept(compact).into_values();
        newer
            .chain(
                kept.filter(|(at, tombstone)| !tombstone || at.main == compact)
                    .map(|(at, _)| at),
            )
            .collect()
    }

    pub fn hash_kv(&self, wanted: i64) -> Result<u32, StateError> {
        let compact = self.compact_revision;
        if wanted > 0 && wanted < compact {
            return Err(StateError::Compacted);
        }
        if wanted > self.revision {
            return Err(StateError::FutureRevision);
        }
        let asked = if wanted == 0 { self.revision } else { wanted };
        let live = |at_main| -> BTreeSet<Revision> {
            self.kept(at_main)
                .into_values()
                .filter(|(_, tombstone)| !tombstone)
                .map(|(at, _)| at)
                .collect()
        };
        let (mut keep, stored) = (live(asked), self.stored());
        if keep.is_empty() {
            keep = stored.clone();
        }
        let mut bytes = b"key".to_vec();
        for record in self.history.iter().filter(|record| stored.contains(&record.revision)) {
            let Record {
                revision,
                tombstone,
                kv,
            } = record;
            if revision.main > asked
                || (revision.main <= compact && !keep.contains(revision))
                || (revision.main == compact && *tombstone)
            {
                continue;
            }
            let (key, length) = revision.to_bytes(*tombstone);
            bytes.extend_from_slice(&key[..length]);
            bytes.extend(kv.encode_to_vec());
        }
        Ok(crc32c::crc32c(&bytes))
    }
}

fn one_holds(compare: &Compare, kv: &KeyValue) -> bool {
    let number = |actual: i64, wanted: Option<i64>| actual.cmp(&wanted.unwrap_or(0));
    let order = match (compare.target, &compare.target_union) {
        (0, Some(TargetUnion::Version(wanted))) => number(kv.version, Some(*wanted)),
        (0, _) => number(kv.version, None),
        (1, Some(TargetUnion::CreateRevision(wanted))) => number(kv.create_revision, Some(*wanted)),
        (1, _) => number(kv.create_revision, None),
        (2, Some(TargetUnion::ModRevision(wanted))) => number(kv.mod_revision, Some(*wanted)),
        (2, _) => number(kv.mod_revision, None),
        (3, Some(TargetUnion::Value(wanted))) => kv.value.cmp(wanted),
        (3, _) => kv.value[..].cmp(b""),
        (4, Some(TargetUnion::Lease(wanted))) => number(kv.lease, Some(*wanted)),
        (4, _) => number(kv.lease, None),
        _ => std::cmp::Ordering::Equal,
    };
    match compare.result {
        0 => order.is_eq(),
        1 => order.is_gt(),
        2 => order.is_lt(),
        3 => order.is_ne(),
        _ => true,
    }
}

/// Equal ones stay in the order of their keys, also from the last to the first.
fn sort(kvs: &mut [KeyValue], request: &RangeRequest) {
    let by = |kv: &KeyValue| match request.sort_target {
        1 => (kv.version, Bytes::new()),
        2 => (kv.create_revision, Bytes::new()),
        3 => (kv.mod_revision, Bytes::new()),
        4 => (0, kv.value.clone()),
        _ => (0, kv.key.clone()),
    };
    match request.sort_order {
        2 => kvs.sort_by_key(|kv| std::cmp::Reverse(by(kv))),
        _ => kvs.sort_by_key(by),
    }
}
