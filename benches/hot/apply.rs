//! The state machine: 64 entries applied and published, as a batch under load is; per entry. `put`: 256 bytes to random
//! keys of 100 000. `update`: the transaction by which Kubernetes updates, whose comparison holds.

use super::calls::kubernetes_update;
use super::clock::ThreadTime;
use super::{Random, key};
use bytes::Bytes;
use criterion::{Criterion, Throughput};
use ringd::mvcc::revision::Revision;
use ringd::pages::Root;
use ringd::proto::etcdserverpb::compare::TargetUnion;
use ringd::proto::etcdserverpb::request_op::Request;
use ringd::proto::etcdserverpb::{InternalRaftRequest, PutRequest};
use ringd::state::lease::LessorConfig;
use ringd::state::{Entry, Progress, State};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

const KEYS: u64 = 100_000;
const BATCH: u64 = 64;
/// As `limits` has it for the server; here it only has to be enough.
const BUDGET: usize = 1000;
const WINDOW_BYTES: usize = 32 << 20;

struct Member {
    state: State,
    index: u64,
    root: Root,
    fetched: HashMap<Revision, Bytes>,
}

impl Member {
    fn new() -> Member {
        let mut member = Member {
            state: State::new(LessorConfig::default()),
            index: 0,
            root: Root::empty(Default::default()),
            fetched: HashMap::new(),
        };
        for number in 0..KEYS {
            member.apply(&put(number));
        }
        member.publish();
        member
    }

    /// Returns the revision after it.
    fn apply(&mut self, request: &InternalRaftRequest) -> i64 {
        self.index += 1;
        let entry = Entry {
            index: self.index,
            term: 1,
            request,
            answer: true,
            now: Duration::ZERO,
        };
        let Progress::Done(outcome) = self.state.apply(&entry, &self.fetched, BUDGET) else {
            panic!("entry {} is not done in one call", self.index);
        };
        assert!(black_box(&outcome).answer.is_ok());
        outcome.revision
    }

    fn publish(&mut self) {
        black_box(self.state.publish(1, true, self.root.clone()));
        let revision = self.state.readable().revision;
        self.state.window_mut().trim(revision, WINDOW_BYTES);
    }
}

fn put(number: u64) -> InternalRaftRequest {
    InternalRaftRequest {
        put: Some(PutRequest {
            key: key(number).into(),
            value: vec![b'v'; 256].into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("apply");
    group.throughput(Throughput::Elements(BATCH));
    let mut member = Member::new();
    let mut random = Random(2);
    let puts: Vec<_> = (0..4096).map(|_| put(random.below(KEYS))).collect();
    group.bench_function("put", |bencher| {
        bencher.iter(|| {
            (0..BATCH).for_each(|_| {
                member.apply(&puts[random.below(4096) as usize]);
            });
            member.publish();
        });
    });
    let mut update = kubernetes_update();
    let Some(Request::RequestPut(first)) = update.success[0].request.clone() else {
        unreachable!("an update puts")
    };
    let mut revision = member.apply(&InternalRaftRequest {
        put: Some(first),
        ..Default::default()
    });
    group.bench_function("update", |bencher| {
        bencher.iter(|| {
            (0..BATCH).for_each(|_| {
                update.compare[0].target_union = Some(TargetUnion::ModRevision(revision));
                let request = InternalRaftRequest {
                    txn: Some(update.clone()),
                    ..Default::default()
                };
                let after = member.apply(&request);
                assert_eq!(after, revision + 1, "the comparison holds");
                revision = after;
            });
            member.publish();
        });
    });
    group.finish();
}
