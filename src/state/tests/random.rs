//! Random requests to the state and to the model: equal answers, equal history, equal hashes.

use super::harness::Member;
use super::model::Model;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    self as pb, Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    compare::TargetUnion, request_op::Request,
};
use crate::state::validate;
use bytes::Bytes;
use prost::Message;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

const KEYS: [&str; 7] = ["a", "ab", "b", "c", "d", "\0", "z\u{7f}"];

struct Generator {
    random: ChaCha8Rng,
    revision: i64,
    compact_revision: i64,
}

impl Generator {
    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    fn key(&mut self) -> Bytes {
        Bytes::from_static(KEYS.choose(&mut self.random).unwrap().as_bytes())
    }

    fn end(&mut self) -> Bytes {
        match self.random.random_range(0..10) {
            0..=4 => Bytes::new(),
            5 => Bytes::from_static(b"\0"),
            6 => Bytes::from_static(b"zz"),
            _ => self.key(),
        }
    }

    fn value(&mut self) -> Bytes {
        let length = self.random.random_range(0..3);
        (0..length).map(|_| self.random.random_range(b'0'..b'4')).collect()
    }

    fn lease(&mut self) -> i64 {
        if self.chance(40) {
            self.random.random_range(1..5)
        } else {
            0
        }
    }

    fn some_revision(&mut self) -> i64 {
        match self.random.random_range(0..10) {
            0..=5 => 0,
            6 => self.random.random_range(-2..=self.revision + 2),
            _ => self.random.random_range(self.compact_revision.max(0)..=self.revision),
        }
    }

    fn filter(&mut self) -> i64 {
        if self.chance(10) {
            self.random.random_range(1..=self.revision)
        } else {
            0
        }
    }

    fn range(&mut self) -> RangeRequest {
        RangeRequest {
            key: self.key(),
            range_end: self.end(),
            limit: if self.chance(30) {
                self.random.random_range(-1..5)
            } else {
                0
            },
            revision: self.some_revision(),
            sort_order: self.random.random_range(0..3),
            sort_target: self.random.random_range(0..5),
            serializable: self.chance(20),
            keys_only: self.chance(20),
            count_only: self.chance(10),
            min_mod_revision: self.filter(),
            max_mod_revision: self.filter(),
            min_create_revision: self.filter(),
            max_create_revision: self.filter(),
        }
    }

    fn put(&mut self) -> PutRequest {
        let (ignore_value, ignore_lease) = (self.chance(15), self.chance(15));
        PutRequest {
            key: self.key(),
            value: if ignore_value { Bytes::new() } else { self.value() },
            lease: if ignore_lease { 0 } else { self.lease() },
            prev_kv: self.chance(40),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        DeleteRangeRequest {
            key: self.key(),
            range_end: self.end(),
            prev_kv: self.chance(50),
        }
    }

    fn compare(&mut self) -> Compare {
        let number = self.random.random_range(0..4).min(self.revision);
        let union = match self.random.random_range(0..6) {
            0 => Some(TargetUnion::Version(number)),
            1 => Some(TargetUnion::CreateRevision(self.random.random_range(0..=self.revision))),
            2 => Some(TargetUnion::ModRevision(self.random.random_range(0..=self.revision))),
            3 => Some(TargetUnion::Value(self.value())),
            4 => Some(TargetUnion::Lease(self.lease())),
            _ => None,
        };
        // Mostly the target that belongs to the union.
        let target = match &union {
            Some(TargetUnion::Version(_)) => 0,
            Some(TargetUnion::CreateRevision(_)) => 1,
            Some(TargetUnion::ModRevision(_)) => 2,
            Some(TargetUnion::Value(_)) => 3,
            Some(TargetUnion::Lease(_)) => 4,
            None => self.random.random_range(0..5),
        };
        let results = if self.chance(5) { 6 } else { 4 };
        Compare {
            result: self.random.random_range(0..results),
            target: if self.chance(10) {
                self.random.random_range(0..6)
            } else {
                target
            },
            key: self.key(),
            target_union: union,
            range_end: if self.chance(25) { self.end() } else { Bytes::new() },
        }
    }

    fn txn(&mut self, depth: u32) -> TxnRequest {
        let compares = self.random.random_range(0..3);
        TxnRequest {
            compare: (0..compares).map(|_| self.compare()).collect(),
            success: self.operations(depth),
            failure: self.operations(depth),
        }
    }

    fn operations(&mut self, depth: u32) -> Vec<RequestOp> {
        let count = self.random.random_range(0..4);
        (0..count).map(|_| self.operation(depth)).collect()
    }

    fn operation(&mut self, depth: u32) -> RequestOp {
        let request = match self.random.random_range(0..10) {
            0..=2 => Request::RequestRange(RangeRequest {
                revision: 0,
                ..self.range()
            }),
            3 => Request::RequestRange(self.range()),
            4..=6 => Request::RequestPut(self.put()),
            7 => Request::RequestDeleteRange(self.delete()),
            _ if depth > 0 => Request::RequestTxn(self.txn(depth - 1)),
            _ => Request::RequestPut(self.put()),
        };
        RequestOp { request: Some(request) }
    }

    fn read_only(&mut self) -> TxnRequest {
        let mut txn = self.txn(0);
        for operation in txn.success.iter_mut().chain(&mut txn.failure) {
            operation.request = Some(Request::RequestRange(self.range()));
        }
        txn
    }

    fn request(&mut self) -> InternalRaftRequest {
        let empty = InternalRaftRequest::default();
        match self.random.random_range(0..100) {
            0..=24 => InternalRaftRequest {
                put: Some(self.put()),
                ..empty
            },
            25..=34 => InternalRaftRequest {
                delete_range: Some(self.delete()),
                ..empty
            },
            35..=79 => loop {
                let txn = self.txn(3);
                if validate::check_txn(&txn, 128).is_ok() {
                    break InternalRaftRequest {
                        txn: Some(txn),
                        ..empty
                    };
                }
            },
            80..=82 => InternalRaftRequest {
                range: Some(self.range()),
                ..empty
            },
            83..=91 => {
                let grant = pb::LeaseGrantRequest {
                    id: self.random.random_range(1..5),
                    ttl: 10,
                };
                InternalRaftRequest {
                    lease_grant: Some(grant),
                    ..empty
                }
            }
            92..=95 => {
                let revoke = pb::LeaseRevokeRequest {
                    id: self.random.random_range(1..5),
                };
                InternalRaftRequest {
                    lease_revoke: Some(revoke),
                    ..empty
                }
            }
            _ => {
                let (low, high) = (self.compact_revision - 1, self.revision + 1);
                let revision = self.random.random_range(low.max(high - 12)..=high);
                let compaction = pb::CompactionRequest {
                    revision,
                    physical: false,
                };
                InternalRaftRequest {
                    compaction: Some(compaction),
                    ..empty
                }
            }
        }
    }
}

struct Pair {
    generator: Generator,
    member: Member,
    model: Model,
    /// Entries since the last checkpoint.
    log: Vec<InternalRaftRequest>,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let random = ChaCha8Rng::seed_from_u64(seed);
        let generator = Generator {
            random,
            revision: 1,
            compact_revision: -1,
        };
        Pair {
            generator,
            member: Member::new(),
            model: Model::new(),
            log: Vec::new(),
        }
    }

    fn step(&mut self) {
        self.generator.revision = self.model.revision;
        self.generator.compact_revision = self.model.compact_revision;
        self.member.budget = if self.generator.chance(50) { 1 } else { usize::MAX };
        let request = self.generator.request();
        let expected = self.model.apply(&request);
        let answer = self.member.apply(&request);
        assert_eq!(answer, expected, "{request:?}");
        self.log.push(request);
        assert_eq!(self.member.view.revision, self.model.revision);
        assert_eq!(self.member.view.compact_revision, self.model.compact_revision);

        let range = self.generator.range();
        assert_eq!(self.member.range(&range), self.model.range(&range), "{range:?}");
        let txn = self.generator.read_only();
        assert_eq!(self.member.read_txn(&txn), self.model.clone().txn(&txn), "{txn:?}");
        match self.generator.random.random_range(0..40) {
            0..=2 => self.compact(),
            3 | 4 => {
                self.member.checkpoint();
                self.log.clear();
            }
            5 => self.restart(),
            6..=9 => self.compare_all(),
            _ => {}
        }
    }

    fn compact(&mut self) {
        let budget = self.generator.random.random_range(1..6);
        self.member.compact(budget);
    }

    /// From the last checkpoint, with the log applied again.
    fn restart(&mut self) {
        self.member.restart();
        self.member.answers = false;
        for request in &self.log {
            let _ = self.member.apply_raw(request);
        }
        self.member.answers = true;
        self.compare_all();
    }

    fn compare_all(&mut self) {
        for lease in 1..5 {
            let left = self.member.state.lessor().time_to_live(lease, true, self.member.now);
            assert_eq!(
                left.as_ref().map(|left| left.granted_ttl_s),
                self.model.leases.get(&lease).copied()
            );
            let keys = left.map_or(Vec::new(), |left| left.keys);
            assert!(
                keys.iter()
                    .map(|key| &key[..])
                    .eq(self.model.attached(lease).iter().map(|key| &key[..]))
            );
        }
        for wanted in [
            0,
            1,
            self.generator.some_revision(),
            self.model.compact_revision,
            self.model.revision,
        ] {
            let hash = self.member.hash_kv(wanted).map(|hash| hash.hash);
            assert_eq!(hash, self.model.hash_kv(wanted), "HashKV at {wanted}");
        }
    }

    /// Nothing is left that compaction should have removed, and the rest is byte for byte what etcd stores.
    fn compare_stored(&mut self) {
        self.member.compact(3);
        self.member.checkpoint();
        let expected = self.model.stored();
        let stored: BTreeSet<_> = self.member.stored_revisions().collect();
        let differing: Vec<_> = stored.symmetric_difference(&expected).collect();
        assert!(
            differing.is_empty(),
            "compacted at {}: {differing:?}",
            self.model.compact_revision
        );
        let history = self.member.history();
        for record in self
            .model
            .history
            .iter()
            .filter(|record| expected.contains(&record.revision))
        {
            let (tombstone, bytes) = &history[&record.revision];
            assert_eq!(
                (*tombstone, &bytes[..]),
                (record.tombstone, &record.kv.encode_to_vec()[..])
            );
        }
        let keys = self.member.state.keys();
        assert_eq!(keys.revisions(), expected.len(), "the index has what the store has");
    }
}

#[test]
fn equals_the_model() {
    let mut seen = [0; 3];
    for seed in 0..100 {
        let mut pair = Pair::new(seed);
        for _ in 0..120 {
            pair.step();
        }
        pair.compare_all();
        pair.compare_stored();
        pair.compare_all();
        seen = std::array::from_fn(|what| seen[what] + pair.member.seen.get()[what]);
    }
    assert!(
        seen.iter().all(|times| *times > 50),
        "the requests lead nowhere special: {seen:?}"
    );
}

/// Two members, one of them in the smallest slices and without a client, write the same bytes.
#[test]
fn equal_entries_make_equal_members() {
    for seed in 100..120 {
        let mut pair = Pair::new(seed);
        let mut other = Member::new();
        (other.budget, other.answers) = (1, false);
        for _ in 0..150 {
            pair.generator.revision = pair.model.revision;
            pair.generator.compact_revision = pair.model.compact_revision;
            let request = pair.generator.request();
            let _ = pair.model.apply(&request);
            let (ours, theirs) = (pair.member.apply_raw(&request), other.apply_raw(&request));
            assert_eq!(ours.answer.is_ok(), theirs.answer.is_ok());
            assert_eq!(ours.answer.err(), theirs.answer.err());
        }
        let all = |member: &Member| {
            let scan = member.view.window.scan(Revision::ZERO);
            scan.map(|record| (record.revision, record.previous, record.event().to_vec()))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(&pair.member), all(&other));
        assert_eq!(pair.member.hash_kv(0), other.hash_kv(0));
        let (ours, theirs) = (pair.member.state.take_changes(), other.state.take_changes());
        assert_eq!((ours.updates, ours.revision), (theirs.updates, theirs.revision));
    }
}
