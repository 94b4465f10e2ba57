//! A member in a test: the state, a page store made of maps, and answers made into responses as a serve core does it.

use crate::mvcc::index::RestoreBatch;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::pages::{Root, TreeId};
use crate::proto::etcdserverpb::{
    self as pb, InternalRaftRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request, response_op::Response,
};
use crate::proto::mvccpb::KeyValue;
use crate::state::compare::Comparing;
use crate::state::hash::{KvHash, KvHasher};
use crate::state::lease::LessorConfig;
use crate::state::outcome::{self, OperationOutcome, RangeOutcome, TxnOutcome};
use crate::state::plan::{decide_compared, needed_by_txn};
use crate::state::range::{Projection, RangeRun, Readable};
use crate::state::tests::model::Answer;
use crate::state::{CompactionProgress, Entry, Progress, Restore, State, StateError};
use bytes::Bytes;
use prost::Message;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

pub struct Member {
    pub state: State,
    pub index: u64,
    /// Records written by an apply call at most.
    pub budget: usize,
    pub answers: bool,
    /// Everything in the page store: records as stored, and the trees.
    records: BTreeMap<Revision, (bool, Bytes)>,
    trees: BTreeMap<(TreeId, Vec<u8>), Vec<u8>>,
    root: Root,
    pub now: Duration,
    pub view: View,
    /// How often a range had to be read inside of apply, a record was fetched, and an apply was resumed.
    pub seen: Cell<[usize; 3]>,
}

impl Member {
    pub fn new() -> Member {
        let mut state = State::new(LessorConfig::default());
        let root = Root::empty(Default::default());
        let view = state.publish(1, true, root.clone());
        Member {
            state,
            index: 0,
            budget: usize::MAX,
            answers: true,
            records: BTreeMap::new(),
            trees: BTreeMap::new(),
            root,
            now: Duration::ZERO,
            view,
            seen: Cell::default(),
        }
    }

    /// Applies and publishes, fetching records as asked.
    pub fn apply_raw(&mut self, request: &InternalRaftRequest) -> outcome::Outcome {
        self.index += 1;
        let needs = self.state.needs(request);
        let mut fetched = HashMap::new();
        let entry = Entry {
            index: self.index,
            term: 1,
            request,
            answer: self.answers,
            now: self.now,
        };
        if !needs.is_empty() {
            // Records that are only one of several possible needs may be missing without harm; all of them never.
            match self.state.apply(&entry, &fetched, self.budget) {
                Progress::Needs(missing) => {
                    self.saw(1);
                    assert_eq!(missing, needs);
                }
                progress => return self.finish(progress),
            }
            let stand_ins = self.state.stand_ins(request);
            fetched.extend(needs.iter().map(|at| {
                let stored = &self.records[at].1;
                let value = KeyValueView::decode(stored).expect("a record").value;
                let stand_in = stand_ins.of(*at, value);
                (*at, stand_in.unwrap_or_else(|| stored.clone()))
            }));
        }
        let progress = self.state.apply(&entry, &fetched, self.budget);
        self.finish(progress)
    }

    fn saw(&self, what: usize) {
        let mut seen = self.seen.get();
        seen[what] += 1;
        self.seen.set(seen);
    }

    fn finish(&mut self, mut progress: Progress) -> outcome::Outcome {
        loop {
            match progress {
                Progress::Done(outcome) => {
                    self.view = self.state.publish(1, true, self.root.clone());
                    assert_eq!(outcome.revision, self.view.revision);
                    return outcome;
                }
                Progress::More => {
                    self.saw(2);
                    progress = self.state.resume(self.budget);
                }
                Progress::Needs(needs) => panic!("{needs:?} were handed in"),
            }
        }
    }

    pub fn apply(&mut self, request: &InternalRaftRequest) -> Result<Answer, StateError> {
        let outcome = self.apply_raw(request);
        Ok(match outcome.answer? {
            outcome::Answer::Range(range) => Answer::Range(self.render_range(request.range.as_ref().unwrap(), range)),
            outcome::Answer::Put(put) => Answer::Put(self.render_put(&put)),
            outcome::Answer::Delete(delete) => Answer::Delete(self.render_delete(&delete)),
            outcome::Answer::Txn(txn) => Answer::Txn(self.render_txn(request.txn.as_ref().unwrap(), txn)),
            _ => Answer::Other,
        })
    }

    /// A plain range on the published view.
    pub fn range(&self, request: &RangeRequest) -> Result<pb::RangeResponse, StateError> {
        let run = RangeRun::new(request, self.readable())?;
        self.walk_finds_the_same(&run);
        Ok(self.run(run))
    }

    /// A read-only transaction on the published view.
    pub fn read_txn(&self, request: &TxnRequest) -> Result<pb::TxnResponse, StateError> {
        let pinned = self.state.index().pin();
        let needed = needed_by_txn(request, &pinned, self.view.revision);
        let fetched: HashMap<_, _> = needed.into_iter().map(|at| (at, self.stored(at))).collect();
        let mut comparing = Comparing::new(request);
        while !comparing.step(&pinned, self.view.revision, &fetched) {}
        let decided = decide_compared(request, &comparing, &pinned, self.readable(), &fetched)?;
        let ranges = decided
            .ranges
            .into_iter()
            .map(|run| Response::ResponseRange(self.run(run)));
        Ok(pb::TxnResponse {
            header: header(decided.revision),
            succeeded: decided.succeeded,
            responses: ranges
                .map(|response| pb::ResponseOp {
                    response: Some(response),
                })
                .collect(),
        })
    }

    pub fn readable(&self) -> Readable {
        Readable {
            revision: self.view.revision,
            compact_revision: self.view.compact_revision,
        }
    }

    fn stored(&self, at: Revision) -> Bytes {
        match self.view.window.get(at) {
            Some(record) => Bytes::copy_from_slice(record.stored()),
            None => self.records[&at].1.clone(),
        }
    }

    fn key_value(&self, at: Revision) -> KeyValue {
        KeyValue::decode(self.stored(at)).unwrap()
    }

    fn run(&self, mut run: RangeRun) -> pb::RangeResponse {
        while !run.step(&self.state.index().pin()) {}
        let values: Vec<_> = match run.needs_values() {
            true => run
                .rows()
                .iter()
                .map(|row| self.key_value(row.revision).value)
                .collect(),
            false => Vec::new(),
        };
        let found = run.finish(|place| &values[place]);
        let kvs = found.rows.into_iter().map(|row| match found.projection {
            Projection::Record => self.key_value(row.revision),
            Projection::WithoutValue => KeyValue {
                value: Bytes::new(),
                ..self.key_value(row.revision)
            },
            Projection::FromIndex => KeyValue {
                key: row.key.unwrap().into_vec().into(),
                create_revision: row.create_revision,
                mod_revision: row.revision.main,
                version: row.version,
                ..Default::default()
            },
        });
        pb::RangeResponse {
            header: header(found.revision),
            kvs: kvs.collect(),
            more: found.more,
            count: found.count,
        }
    }

    /// A run in key order that gives its rows away a few at a time shows the rows, the count and what is cut off of one
    /// that keeps them.
    fn walk_finds_the_same(&self, run: &RangeRun) {
        if !run.is_in_key_order() {
            return;
        }
        let (mut walk, mut whole) = (run.afresh(), run.clone());
        while !whole.step(&self.state.index().pin()) {}
        let mut rows = Vec::new();
        while !{
            let done = walk.step_within(&self.state.index().pin(), 3);
            assert!(walk.rows().len() <= 3);
            rows.extend(walk.take_rows());
            done
        } {}
        let (walked, whole) = (walk.finish(|_| &[]), whole.finish(|_| &[]));
        assert_eq!(rows, whole.rows);
        assert_eq!((walked.count, walked.more), (whole.count, whole.more));
    }

    fn render_range(&self, request: &RangeRequest, range: RangeOutcome) -> pb::RangeResponse {
        match range {
            RangeOutcome::Later { revision, at_main } => self.run(RangeRun::resolved(request, revision, at_main)),
            RangeOutcome::Found(run) => {
                self.saw(0);
                self.run(*run)
            }
            RangeOutcome::Skipped => panic!("an answer was asked for"),
        }
    }

    fn render_put(&self, put: &outcome::PutOutcome) -> pb::PutResponse {
        pb::PutResponse {
            header: header(put.revision),
            prev_kv: put.previous.map(|at| self.key_value(at)),
        }
    }

    fn render_delete(&self, delete: &outcome::DeleteOutcome) -> pb::DeleteRangeResponse {
        pb::DeleteRangeResponse {
            header: header(delete.revision),
            deleted: delete.deleted,
            prev_kvs: delete.previous.iter().map(|at| self.key_value(*at)).collect(),
        }
    }

    fn render_txn(&self, request: &TxnRequest, txn: TxnOutcome) -> pb::TxnResponse {
        let operations = if txn.succeeded {
            &request.success
        } else {
            &request.failure
        };
        assert_eq!(operations.len(), txn.operations.len());
        let responses = operations.iter().zip(txn.operations);
        pb::TxnResponse {
            header: header(txn.revision),
            succeeded: txn.succeeded,
            responses: responses
                .map(|(operation, outcome)| self.render_operation(operation, outcome))
                .collect(),
        }
    }

    fn render_operation(&self, operation: &RequestOp, outcome: OperationOutcome) -> pb::ResponseOp {
        let response = match (operation.request.as_ref(), outcome) {
            (Some(Request::RequestRange(request)), OperationOutcome::Range(range)) => {
                Some(Response::ResponseRange(self.render_range(request, range)))
            }
            (_, OperationOutcome::Put(put)) => Some(Response::ResponsePut(self.render_put(&put))),
            (_, OperationOutcome::Delete(delete)) => Some(Response::ResponseDeleteRange(self.render_delete(&delete))),
            (Some(Request::RequestTxn(request)), OperationOutcome::Txn(txn)) => {
                Some(Response::ResponseTxn(self.render_txn(request, txn)))
            }
            (None, OperationOutcome::Empty) => None,
            (request, outcome) => panic!("{outcome:?} for {request:?}"),
        };
        pb::ResponseOp { response }
    }

    /// Does the removal of all compactions.
    pub fn compact(&mut self, budget: usize) {
        loop {
            match self.state.compaction_step(budget) {
                CompactionProgress::Idle => break,
                CompactionProgress::More => {}
                CompactionProgress::Finished(revision) => assert!(revision <= self.view.compact_revision),
                CompactionProgress::NeedsRecords { from, through } => {
                    let records = self.records.range(from..=Revision::new(through, u32::MAX));
                    let keys: Vec<_> = records
                        .take(budget)
                        .map(|(at, (_, bytes))| (*at, KeyValue::decode(bytes.clone()).unwrap().key))
                        .collect();
                    let next = match keys.last() {
                        Some((at, _)) if keys.len() == budget => Revision::new(at.main, at.sub + 1),
                        _ => Revision::new(through + 1, 0),
                    };
                    self.state.compact_records(keys.into_iter().map(|(_, key)| key), next);
                }
            }
        }
        self.view = self.state.publish(1, true, self.root.clone());
    }

    /// A checkpoint.
    pub fn checkpoint(&mut self) {
        let changes = self.state.take_changes();
        let new = Revision::new(self.root.fields().revision + 1, 0);
        for record in changes.window.scan(new) {
            let stored = Bytes::copy_from_slice(record.stored());
            self.records.insert(record.revision, (record.tombstone, stored));
        }
        for (removed, tombstone) in changes.removed {
            let record = self
                .records
                .remove(&removed)
                .expect("only what exists is removed, and once");
            assert_eq!(record.0, tombstone);
        }
        for update in changes.updates {
            match update.value {
                Some(value) => self.trees.insert((update.tree, update.key), value),
                None => self.trees.remove(&(update.tree, update.key)),
            };
        }
        let fields = crate::pages::StateFields {
            revision: changes.revision,
            compact_revision: changes.compact_revision,
            applied_index: changes.applied_index,
            term: changes.applied_term,
            ..Default::default()
        };
        self.root = Root::empty(fields);
    }

    /// Starts again from the last checkpoint; the caller applies what came after.
    pub fn restart(&mut self) {
        let mut restore = Restore::new(LessorConfig::default(), &self.root);
        for ((tree, key), value) in &self.trees {
            restore.pair(*tree, key, value).unwrap();
        }
        let mut batch = RestoreBatch::default();
        for (at, (tombstone, bytes)) in &self.records {
            let record = KeyValueView::decode(bytes).unwrap();
            batch.push(*at, &record, *tombstone).unwrap();
        }
        batch.sort();
        restore.records(&batch).unwrap();
        self.state = restore.finish();
        self.index = self.state.applied_index();
        self.view = self.state.publish(1, true, self.root.clone());
    }

    /// All records of window and page store, in order.
    pub fn history(&self) -> BTreeMap<Revision, (bool, Bytes)> {
        let mut all = self.records.clone();
        for record in self.view.window.scan(Revision::ZERO) {
            all.entry(record.revision)
                .or_insert((record.tombstone, Bytes::copy_from_slice(record.stored())));
        }
        all
    }

    /// The revisions in the page store.
    pub fn stored_revisions(&self) -> impl Iterator<Item = Revision> {
        self.records.keys().copied()
    }

    pub fn hash_kv(&self, wanted: i64) -> Result<KvHash, StateError> {
        let pinned = self.state.index().pin();
        let mut hasher = KvHasher::new(wanted, self.readable())?;
        while !hasher.prepare(&pinned) {}
        for (at, (tombstone, bytes)) in self.history() {
            let key = KeyValue::decode(bytes.clone()).unwrap().key;
            if !hasher.feed(&pinned, at, tombstone, &key, &bytes) {
                break;
            }
        }
        Ok(hasher.finish())
    }
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader {
        revision,
        ..Default::default()
    })
}
