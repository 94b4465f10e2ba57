//! Seeded random requests: every option, odd keys and ranges, wrong values, deep transactions.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;
use rand::{Rng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use ringd::proto::etcdserverpb as pb;

use super::damage::avoid_panics;
use crate::support::etcd;

/// A longer txn is reported by its bytes: it may be nested too deeply for a decoder that recurses.
const LONGEST_DECODED: usize = 4000;

/// What is done to both servers next.
#[derive(Clone, Debug)]
pub enum Step {
    /// A call with one request message, compared by its method.
    Call { method: &'static str, request: Bytes },
    /// A call whose framed body is sent as it is.
    Framed { method: String, body: Bytes },
    /// A request on the keep-alive stream, answered by one message.
    KeepAlive(pb::LeaseKeepAliveRequest),
    /// A new watch on one of the watch streams.
    Watch { stream: usize, request: pb::WatchRequest },
    /// The end of a watch.
    CancelWatch { stream: usize, watch_id: i64 },
    /// A request on a watch stream that is never answered.
    Unanswered { stream: usize, request: pb::WatchRequest },
    /// Waits until every watch has everything, and compares what they received.
    CompareWatches,
}

/// The number of watch streams.
pub const STREAMS: usize = 2;
/// The most watches on a stream.
const WATCHES_PER_STREAM: usize = 12;
/// The most operations that etcd takes in one txn, nested ones included along the depth.
const MAX_OPERATIONS: usize = 128;
/// Depths of nested transactions around the limits of decoders and of etcd.
const DEPTHS: [usize; 11] = [1, 2, 3, 48, 49, 50, 51, 52, 127, 128, 129];
/// Lease ids that requests name.
const LEASES: [i64; 8] = [1, 2, 3, 77, 0x7fff_ffff_ffff_ffff, -5, 1_000_000_007, 4];

/// What the requests know of the state that the earlier ones left.
pub struct Generator {
    pub(super) random: ChaCha8Rng,
    /// The store's revision, from the last header.
    pub revision: i64,
    /// The last compaction.
    pub compacted: i64,
    /// Revisions in which one key may have changed twice. A compaction at such a revision makes etcd 3.7.1 remove the
    /// record that its index keeps: it removes by the generation that ended, and stops when the key is read.
    pub doubled: BTreeSet<i64>,
    /// Ids of the watches of each stream.
    pub watches: [Vec<i64>; STREAMS],
}

impl Generator {
    /// Starts with an empty store.
    pub fn new(random: ChaCha8Rng) -> Self {
        Self {
            random,
            revision: 1,
            compacted: 0,
            doubled: BTreeSet::new(),
            watches: Default::default(),
        }
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        match self.random.random_range(0..1000) {
            0..260 => call(etcd::PUT, &self.put()),
            260..420 => call(etcd::RANGE, &self.range()),
            420..480 => call(etcd::RANGE_STREAM, &self.range_for_stream()),
            480..560 => call(etcd::DELETE_RANGE, &self.delete()),
            560..720 => call(etcd::TXN, &self.txn()),
            720..728 => call(etcd::COMPACT, &self.compaction()),
            728..800 => self.lease(),
            800..850 => self.watch(),
            850..860 => self.cancel_watch(),
            860..868 => Step::CompareWatches,
            868..900 => call(etcd::HASH_KV, &self.hash_kv()),
            900..905 => call(etcd::STATUS, &pb::StatusRequest {}),
            905..910 => call(etcd::HASH, &pb::HashRequest {}),
            910..915 => call(
                etcd::MEMBER_LIST,
                &pb::MemberListRequest {
                    linearizable: self.coin(),
                },
            ),
            915..920 => call(
                etcd::ALARM,
                &pb::AlarmRequest {
                    alarm: self.pick(&[0, 1, 2, 3, -1]),
                    member_id: self.pick(&[0, 1, u64::MAX]),
                    ..Default::default()
                },
            ),
            920..925 => self.unknown(),
            925..930 => Step::Unanswered {
                stream: self.below(STREAMS),
                request: pb::WatchRequest { request_union: None },
            },
            _ => self.damaged(),
        }
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.random_range(0..bound)
    }

    pub(super) fn coin(&mut self) -> bool {
        self.random.random()
    }

    pub(super) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.random).expect("something to pick from")
    }

    pub(super) fn key(&mut self) -> Bytes {
        let odd: [&[u8]; 9] = [
            b"",
            b"\0",
            b"\xff",
            b"\xff\xff",
            b"a",
            b"a\0",
            b"aa",
            &[b'k'; 300],
            b"k0\xff\0",
        ];
        if self.one_in(12) {
            Bytes::from(self.pick(&odd).to_vec())
        } else {
            format!("k{:02}", self.below(40)).into()
        }
    }

    fn value(&mut self) -> Bytes {
        let length = match self.below(20) {
            0 => 0,
            1 => self.random.random_range(1000..5000),
            _ => self.random.random_range(1..40),
        };
        let byte = self.random.random();
        vec![byte; length].into()
    }

    fn range_end(&mut self, key: &Bytes) -> Bytes {
        match self.below(8) {
            0..3 => Bytes::new(),
            3 => Bytes::from_static(b"\0"),
            4 => etcd::prefix_end(key).into(),
            5 => etcd::prefix_end(b"k").into(),
            _ => self.key(),
        }
    }

    /// A revision: mostly one that is there, sometimes compacted, negative or in the future.
    fn past(&mut self) -> i64 {
        match self.below(10) {
            0..3 => 0,
            3 => self.pick(&[-1, i64::MIN, i64::MAX, self.revision + 1, self.revision + 10]),
            4 => self.compacted + self.pick(&[-1, 0, 1]),
            _ => self.random.random_range(self.compacted.max(1)..=self.revision),
        }
    }

    fn lease_id(&mut self) -> i64 {
        if self.one_in(3) { self.pick(&LEASES) } else { 0 }
    }

    pub(super) fn put(&mut self) -> pb::PutRequest {
        let ignore_value = self.one_in(10);
        let ignore_lease = self.one_in(10);
        pb::PutRequest {
            key: self.key(),
            value: if ignore_value && !self.one_in(5) {
                Bytes::new()
            } else {
                self.value()
            },
            lease: if ignore_lease && !self.one_in(5) {
                0
            } else {
                self.lease_id()
            },
            prev_kv: self.one_in(3),
            ignore_value,
            ignore_lease,
        }
    }

    pub(super) fn range(&mut self) -> pb::RangeRequest {
        let key = self.key();
        let mut range = pb::RangeRequest {
            range_end: self.range_end(&key),
            key,
            limit: self.pick(&[0, 0, 0, 1, 2, 5, 10, 1000, -1, i64::MIN, i64::MAX - 1, i64::MAX]),
            revision: self.past(),
            serializable: self.one_in(4),
            keys_only: self.one_in(4),
            count_only: self.one_in(8),
            ..Default::default()
        };
        if self.one_in(3) {
            range.sort_order = self.pick(&[0, 1, 2, 0, 1, 2, 7, -1]);
            range.sort_target = self.pick(&[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 9, -1]);
        }
        if self.one_in(5) {
            range.min_mod_revision = self.filter();
            range.max_mod_revision = self.filter();
            range.min_create_revision = self.filter();
            range.max_create_revision = self.filter();
        }
        range
    }

    fn filter(&mut self) -> i64 {
        let newest = self.revision;
        match self.below(6) {
            0..4 => 0,
            4 => self.random.random_range(1..=newest),
            _ => self.pick(&[-1, newest, newest + 1]),
        }
    }

    /// Mostly without sort and filters, which a stream refuses.
    pub(super) fn range_for_stream(&mut self) -> pb::RangeRequest {
        let range = self.range();
        if self.one_in(4) {
            return range;
        }
        pb::RangeRequest {
            sort_order: self.pick(&[0, 0, 1]),
            sort_target: 0,
            min_mod_revision: 0,
            max_mod_revision: 0,
            min_create_revision: 0,
            max_create_revision: 0,
            ..range
        }
    }

    pub(super) fn delete(&mut self) -> pb::DeleteRangeRequest {
        let key = self.key();
        let range_end = if self.one_in(3) {
            self.range_end(&key)
        } else {
            Bytes::new()
        };
        pb::DeleteRangeRequest {
            key,
            range_end,
            prev_kv: self.coin(),
        }
    }

    pub(super) fn hash_kv(&mut self) -> pb::HashKvRequest {
        pb::HashKvRequest { revision: self.past() }
    }

    pub(super) fn compaction(&mut self) -> pb::CompactionRequest {
        let between = self.random.random_range(self.compacted.max(1)..=self.revision);
        let revision = match self.below(12) {
            0 => self.pick(&[0, -1, i64::MIN, i64::MAX, self.revision + 1]),
            1 => self.revision,
            2 => self.compacted,
            _ => between,
        };
        pb::CompactionRequest {
            revision: if self.doubled.contains(&revision) { 0 } else { revision },
            physical: self.coin(),
        }
    }

    fn compare(&mut self) -> pb::Compare {
        use pb::compare::TargetUnion;
        let key = self.key();
        let number = self.pick(&[0, 1, 2, self.revision, self.revision / 2, 1, 77, -1]);
        let target_union = match self.below(6) {
            0 => Some(TargetUnion::Version(number)),
            1 => Some(TargetUnion::CreateRevision(number)),
            2 => Some(TargetUnion::ModRevision(number)),
            3 => Some(TargetUnion::Value(self.value())),
            4 => Some(TargetUnion::Lease(number)),
            _ => None,
        };
        let fitting = match &target_union {
            Some(TargetUnion::Version(_)) | None => 0,
            Some(TargetUnion::CreateRevision(_)) => 1,
            Some(TargetUnion::ModRevision(_)) => 2,
            Some(TargetUnion::Value(_)) => 3,
            Some(TargetUnion::Lease(_)) => 4,
        };
        pb::Compare {
            result: self.pick(&[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 9, -1]),
            target: if self.one_in(6) {
                self.pick(&[0, 1, 2, 3, 4, 8, -1])
            } else {
                fitting
            },
            range_end: if self.one_in(4) {
                self.range_end(&key)
            } else {
                Bytes::new()
            },
            key,
            target_union,
        }
    }

    fn operation(&mut self, nested: usize) -> pb::RequestOp {
        use pb::request_op::Request;
        let request = match self.below(if nested > 0 { 24 } else { 20 }) {
            0..9 => Request::RequestPut(self.put()),
            9..14 => Request::RequestRange(self.range()),
            14..19 => Request::RequestDeleteRange(self.delete()),
            19 => return self.empty_operation(),
            _ => Request::RequestTxn(self.small_txn(nested - 1)),
        };
        etcd::operation(request)
    }

    fn empty_operation(&mut self) -> pb::RequestOp {
        use pb::request_op::Request;
        let request = match self.below(8) {
            0 => None,
            1 => Some(Request::RequestPut(pb::PutRequest::default())),
            2 => Some(Request::RequestRange(pb::RangeRequest::default())),
            3 => Some(Request::RequestDeleteRange(pb::DeleteRangeRequest::default())),
            _ => Some(Request::RequestTxn(pb::TxnRequest::default())),
        };
        pb::RequestOp { request }
    }

    fn small_txn(&mut self, nested: usize) -> pb::TxnRequest {
        let [compares, success, failure] = [self.below(3), self.below(4), self.below(4)];
        pb::TxnRequest {
            compare: (0..compares).map(|_| self.compare()).collect(),
            success: (0..success).map(|_| self.operation(nested)).collect(),
            failure: (0..failure).map(|_| self.operation(nested)).collect(),
        }
    }

    pub(super) fn txn(&mut self) -> pb::TxnRequest {
        let mut txn = self.any_txn();
        avoid_panics(&mut txn);
        txn
    }

    fn any_txn(&mut self) -> pb::TxnRequest {
        match self.below(41) {
            0 => self.wide_txn(),
            1 => {
                let depth = self.pick(&DEPTHS);
                let innermost = self.small_txn(0);
                nested_txn(depth, innermost)
            }
            // Everything at every level, still within the budget of operations.
            40 => self.deep_txn(),
            2..8 => self.small_txn(3),
            8..14 => self.kubernetes_txn(),
            _ => self.small_txn(0),
        }
    }

    /// Compares and operations at every level, down either branch.
    fn deep_txn(&mut self) -> pb::TxnRequest {
        let depth = self.random.random_range(3..52);
        let mut txn = self.small_txn(0);
        for _ in 1..depth {
            let inner = etcd::operation(pb::request_op::Request::RequestTxn(txn));
            let beside = if self.one_in(8) {
                vec![self.operation(0)]
            } else {
                Vec::new()
            };
            let compare = if self.coin() { vec![self.compare()] } else { Vec::new() };
            let place = self.below(beside.len() + 1);
            let mut branch = beside;
            branch.insert(place, inner);
            let other = if self.one_in(6) {
                vec![self.operation(0)]
            } else {
                Vec::new()
            };
            let (success, failure) = if self.coin() { (branch, other) } else { (other, branch) };
            txn = pb::TxnRequest {
                compare,
                success,
                failure,
            };
        }
        txn
    }

    /// As many operations or compares as allowed, or one more.
    fn wide_txn(&mut self) -> pb::TxnRequest {
        let many = MAX_OPERATIONS + self.below(2);
        let puts = |prefix: &'static str| {
            let put = move |number| pb::request_op::Request::RequestPut(etcd::put(format!("{prefix}{number}"), "wide"));
            (0..many)
                .map(move |number| etcd::operation(put(number)))
                .collect::<Vec<_>>()
        };
        match self.below(4) {
            0 => pb::TxnRequest {
                compare: (0..many).map(|_| self.compare()).collect(),
                ..Default::default()
            },
            1 => pb::TxnRequest {
                failure: puts("w"),
                ..Default::default()
            },
            2 => {
                let mut success = puts("w");
                success[many - 1] = self.operation(1);
                pb::TxnRequest {
                    success,
                    ..Default::default()
                }
            }
            _ => pb::TxnRequest {
                success: puts("w"),
                ..Default::default()
            },
        }
    }

    /// What kube-apiserver sends: one compare of a revision, one write, one read in case it fails.
    fn kubernetes_txn(&mut self) -> pb::TxnRequest {
        use pb::request_op::Request;
        let key = self.key();
        let revision = self.pick(&[0, 0, self.revision]);
        let write = match self.coin() {
            true => Request::RequestPut(pb::PutRequest {
                key: key.clone(),
                value: self.value(),
                ..Default::default()
            }),
            false => Request::RequestDeleteRange(etcd::delete(&key)),
        };
        pb::TxnRequest {
            compare: vec![etcd::mod_revision_is(&key, revision)],
            success: vec![etcd::operation(write)],
            failure: vec![etcd::operation(Request::RequestRange(etcd::get(&key)))],
        }
    }

    pub(super) fn lease(&mut self) -> Step {
        let id = self.pick(&LEASES);
        match self.below(12) {
            0..4 => {
                // Long enough not to end during a run; shorter ones have a test of their own.
                let ttl = self.pick(&[100_000, 1_000_000, 9_000_000_000, 9_000_000_001, i64::MAX]);
                call(etcd::LEASE_GRANT, &pb::LeaseGrantRequest { ttl, id })
            }
            4 => call(etcd::LEASE_REVOKE, &pb::LeaseRevokeRequest { id }),
            5 => call(etcd::LEASE_REVOKE, &pb::LeaseRevokeRequest { id: 0 }),
            6..9 => call(
                etcd::LEASE_TIME_TO_LIVE,
                &pb::LeaseTimeToLiveRequest { id, keys: self.coin() },
            ),
            9 => call(etcd::LEASE_LEASES, &pb::LeaseLeasesRequest {}),
            _ => Step::KeepAlive(pb::LeaseKeepAliveRequest {
                id: if self.one_in(6) { self.pick(&[0, i64::MIN]) } else { id },
            }),
        }
    }

    fn watch(&mut self) -> Step {
        let stream = self.below(STREAMS);
        if self.watches[stream].len() >= WATCHES_PER_STREAM {
            return Step::CancelWatch {
                stream,
                watch_id: self.watches[stream].remove(0),
            };
        }
        let key = self.key();
        let range_end = if self.coin() {
            self.range_end(&key)
        } else {
            Bytes::new()
        };
        let start_revision = match self.below(10) {
            0..4 => 0,
            4 => self.pick(&[-1, i64::MIN, 1, self.compacted - 1]),
            5 => self.compacted + self.pick(&[0, 1]),
            6 => self.revision + self.random.random_range(0..4),
            _ => self.random.random_range(self.compacted.max(1)..=self.revision),
        };
        let filters: &[i32] = self.pick(&[&[], &[], &[], &[0], &[1], &[0, 1], &[5], &[-1, 1, 1]]);
        let request = pb::WatchCreateRequest {
            key,
            range_end,
            start_revision,
            filters: filters.to_vec(),
            prev_kv: self.coin(),
            watch_id: self.pick(&[0, 0, 0, 1, 2, 7, -3, -1, i64::MIN, i64::MAX, 1 << 40]),
            fragment: self.one_in(4),
            progress_notify: self.one_in(4),
        };
        Step::Watch {
            stream,
            request: etcd::create_watch(request),
        }
    }

    fn cancel_watch(&mut self) -> Step {
        let stream = self.below(STREAMS);
        if self.watches[stream].is_empty() || self.one_in(4) {
            return Step::Unanswered {
                stream,
                request: etcd::cancel_watch(999),
            };
        }
        let place = self.below(self.watches[stream].len());
        Step::CancelWatch {
            stream,
            watch_id: self.watches[stream].remove(place),
        }
    }
}

/// A call with a request message.
pub fn call(method: &'static str, request: &impl Message) -> Step {
    Step::Call {
        method,
        request: request.encode_to_vec().into(),
    }
}

/// `innermost` inside `depth - 1` transactions that hold nothing else.
pub fn nested_txn(depth: usize, innermost: pb::TxnRequest) -> pb::TxnRequest {
    (1..depth).fold(innermost, |inner, _| pb::TxnRequest {
        success: vec![etcd::operation(pb::request_op::Request::RequestTxn(inner))],
        ..Default::default()
    })
}

/// A request in words, for a failure's report.
pub fn describe(step: &Step) -> String {
    fn words<R: Message + Default + std::fmt::Debug>(request: &Bytes) -> String {
        R::decode(request.clone()).map_or_else(|error| format!("{error}: {request:02x?}"), |it| format!("{it:?}"))
    }
    let Step::Call { method, request } = step else {
        return format!("{step:?}");
    };
    let text = match *method {
        etcd::RANGE | etcd::RANGE_STREAM => words::<pb::RangeRequest>(request),
        etcd::PUT => words::<pb::PutRequest>(request),
        etcd::DELETE_RANGE => words::<pb::DeleteRangeRequest>(request),
        etcd::TXN if request.len() < LONGEST_DECODED => words::<pb::TxnRequest>(request),
        etcd::COMPACT => words::<pb::CompactionRequest>(request),
        etcd::LEASE_GRANT => words::<pb::LeaseGrantRequest>(request),
        etcd::LEASE_REVOKE => words::<pb::LeaseRevokeRequest>(request),
        etcd::LEASE_TIME_TO_LIVE => words::<pb::LeaseTimeToLiveRequest>(request),
        etcd::HASH_KV => words::<pb::HashKvRequest>(request),
        etcd::ALARM => words::<pb::AlarmRequest>(request),
        _ => format!("{request:02x?}"),
    };
    format!("{method} {text}\n    bytes {request:02x?}")
}
