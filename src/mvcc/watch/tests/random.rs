//! Random streams, stalls, compactions and resumptions under the checker.

use super::checker::{Asked, Checker};
use super::*;
use crate::mvcc::watch::watch::IN_STEP;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

const STREAMS: u64 = 3;
/// This one always takes messages.
const FAST: StreamId = 0;

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Operation>),
    /// Many keys in one transaction.
    WriteMany(usize),
    Create {
        stream: StreamId,
        span: Index,
        /// How far behind the store's revision it starts; beyond the revision when negative, 0 for "now".
        behind: i64,
        options: WatchOptions,
    },
    Cancel(StreamId, Index),
    /// Cancel a watch and make it anew from what was seen.
    Resume(StreamId, Index),
    Reopen(StreamId),
    /// The client reads that many messages.
    Read(StreamId, usize),
    /// How much room a stream has from now on.
    Room(StreamId, usize),
    Compact(i64),
    Checkpoint(i64),
    /// The window starts anew, as after an installed snapshot.
    Jump,
    Advance,
    Settle,
    AskProgress(StreamId),
    Wait(u64),
}

const SPANS: &[(&str, &str)] = &[
    ("a", ""),
    ("b", ""),
    ("e", ""),
    ("a", "c"),
    ("b", "e"),
    ("a", "\0"),
    ("c", "\0"),
    ("m", "n"),
    ("", ""),
];

fn operation() -> impl Strategy<Value = Operation> {
    let key = prop::sample::select(vec!["a", "b", "c", "d", "e", "m1"]);
    (key, any::<bool>(), 0usize..60).prop_map(|(key, is_put, length)| match is_put {
        true => put(key, &"v".repeat(length)),
        false => delete(key),
    })
}

fn options() -> impl Strategy<Value = WatchOptions> {
    let filter = prop::bool::weighted(0.15);
    (filter, filter, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(no_put, no_delete, prev_kv, fragment, progress_notify)| WatchOptions {
            no_put,
            no_delete,
            prev_kv,
            fragment,
            progress_notify,
        },
    )
}

fn write() -> impl Strategy<Value = Step> {
    prop::collection::vec(operation(), 1..4).prop_map(Step::Write)
}

fn create(behind: std::ops::Range<i64>) -> impl Strategy<Value = Step> {
    let create = (0..STREAMS, any::<Index>(), behind, options());
    create.prop_map(|(stream, span, behind, options)| Step::Create {
        stream,
        span,
        behind,
        options,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    prop_oneof![
        12 => write(),
        1 => (5usize..40).prop_map(Step::WriteMany),
        6 => create(-3..30),
        1 => (stream.clone(), any::<Index>()).prop_map(|(stream, which)| Step::Cancel(stream, which)),
        2 => (stream.clone(), any::<Index>()).prop_map(|(stream, which)| Step::Resume(stream, which)),
        1 => stream.clone().prop_map(Step::Reopen),
        6 => (stream.clone(), 1usize..8).prop_map(|(stream, count)| Step::Read(stream, count)),
        3 => (1..STREAMS, 0usize..5).prop_map(|(stream, room)| Step::Room(stream, room)),
        1 => (0i64..20).prop_map(Step::Compact),
        2 => (0i64..20).prop_map(Step::Checkpoint),
        1 => Just(Step::Jump),
        12 => Just(Step::Advance),
        3 => Just(Step::Settle),
        3 => stream.prop_map(Step::AskProgress),
        1 => (1u64..1000).prop_map(Step::Wait),
    ]
}

/// Steps that ask for progress again and again, while watches begin, lag and end.
fn step_of_progress() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    prop_oneof![
        12 => write(),
        2 => (5usize..40).prop_map(Step::WriteMany),
        6 => create(-4..8),
        2 => (stream.clone(), any::<Index>()).prop_map(|(stream, which)| Step::Cancel(stream, which)),
        1 => stream.clone().prop_map(Step::Reopen),
        3 => (1..STREAMS, 0usize..5).prop_map(|(stream, room)| Step::Room(stream, room)),
        4 => (stream.clone(), 1usize..8).prop_map(|(stream, count)| Step::Read(stream, count)),
        1 => (0i64..8).prop_map(Step::Checkpoint),
        24 => Just(Step::Advance),
        1 => Just(Step::Settle),
        12 => stream.prop_map(Step::AskProgress),
        2 => (300u64..1000).prop_map(Step::Wait),
    ]
}

/// A store, a hub and its clients.
struct Run {
    world: World,
    hub: Hub,
    sink: Sink,
    checker: Checker,
    now: Duration,
    has_jumped: bool,
}

impl Run {
    fn new(hub: Hub) -> Run {
        let mut run = Run {
            world: World::new(),
            hub,
            sink: Sink::default(),
            checker: Checker::default(),
            now: Duration::ZERO,
            has_jumped: false,
        };
        (0..STREAMS).for_each(|stream| run.hub.open(stream, run.now));
        run
    }

    fn create(&mut self, stream: StreamId, key: &[u8], range_end: &[u8], start_revision: i64, options: WatchOptions) {
        let request = CreateRequest {
            key,
            range_end,
            start_revision,
            options,
            ..CreateRequest::default()
        };
        self.checker.ask(
            stream,
            Asked {
                key: if key.is_empty() { b"\0".to_vec() } else { key.to_vec() },
                range_end: range_end.to_vec(),
                options,
                start: start_revision,
                revision: self.world.revision,
            },
        );
        self.hub
            .create(stream, request, &self.world.view(), self.now, &mut self.sink);
    }

    fn read(&mut self, stream: StreamId, count: usize) -> Result<(), String> {
        for _ in 0..count {
            let Some(response) = self.sink.queues.get_mut(&stream).and_then(VecDeque::pop_front) else {
                break;
            };
            self.checker.take(&self.world, stream, response)?;
        }
        self.hub.writable(stream);
        Ok(())
    }

    fn pick(&self, stream: StreamId, which: &Index) -> Option<i64> {
        let active = self.checker.active(stream);
        (!active.is_empty()).then(|| active[which.index(active.len())])
    }

    fn write_many(&mut self, count: usize) {
        let keys: Vec<_> = (0..count).map(|number| put(&format!("m{number:02}"), "many")).collect();
        self.world.write(&keys);
    }

    fn perform(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Write(operations) => {
                let mut keys = std::collections::BTreeSet::new();
                let once = operations.iter().filter(|operation| match operation {
                    Operation::Put(key, _) | Operation::Delete(key) => keys.insert(key.clone()),
                });
                self.world.write(&once.cloned().collect::<Vec<_>>());
            }
            Step::WriteMany(count) => self.write_many(*count),
            Step::Create {
                stream,
                span,
                behind,
                options,
            } => {
                let (key, range_end) = SPANS[span.index(SPANS.len())];
                let start = if *behind == 0 {
                    0
                } else {
                    (self.world.revision - behind + 1).max(1)
                };
                self.create(*stream, key.as_bytes(), range_end.as_bytes(), start, *options);
            }
            Step::Cancel(stream, which) => {
                if let Some(id) = self.pick(*stream, which) {
                    self.hub.cancel(*stream, id, &self.world.view(), &mut self.sink);
                }
            }
            Step::Resume(stream, which) => self.resume(*stream, which),
            Step::Reopen(stream) => {
                self.hub.close(*stream);
                self.sink.take(*stream);
                self.checker.forget(*stream);
                self.hub.open(*stream, self.now);
            }
            Step::Read(stream, count) => self.read(*stream, *count)?,
            Step::Room(stream, room) => {
                self.sink.room.insert(*stream, *room);
                self.hub.writable(*stream);
            }
            Step::Compact(behind) => {
                let revision = self.world.revision - behind;
                if revision > self.world.compact_revision {
                    self.world.compact(revision);
                }
            }
            Step::Checkpoint(behind) => {
                let in_step = self.hub.groups[IN_STEP].next;
                self.world
                    .checkpoint((self.world.revision + 1 - behind).clamp(2, in_step.max(2)));
            }
            Step::Jump => {
                self.has_jumped = true;
                self.world.checkpoint(self.world.revision + 1);
            }
            Step::Advance => {
                self.world.step(&mut self.hub, &mut self.sink, self.now);
            }
            Step::Settle => self.world.settle(&mut self.hub, &mut self.sink, self.now),
            Step::AskProgress(stream) => self.hub.request_progress(*stream),
            Step::Wait(seconds) => self.now += Duration::from_secs(*seconds),
        }
        Ok(())
    }

    fn resume(&mut self, stream: StreamId, which: &Index) {
        let Some(id) = self.pick(stream, which) else { return };
        let known = &self.checker.watches[&(stream, id)];
        if known.seen == 0 {
            return;
        }
        let (asked, from) = (known.asked.clone(), known.seen + 1);
        self.hub.cancel(stream, id, &self.world.view(), &mut self.sink);
        self.create(stream, &asked.key, &asked.range_end, from, asked.options);
    }

    /// All clients read everything; then each has all, and progress is the store's revision.
    fn finish(&mut self) -> Result<(), String> {
        self.sink.room.clear();
        for stream in 0..STREAMS {
            self.hub.writable(stream);
            self.hub.request_progress(stream);
        }
        self.world.settle(&mut self.hub, &mut self.sink, self.now);
        for stream in 0..STREAMS {
            self.read(stream, usize::MAX)?;
        }
        self.checker.finish(&self.world)?;
        for stream in 0..STREAMS {
            let revision = self.world.revision;
            let active = self.checker.active(stream);
            let has_begun = |id: &i64| self.checker.watches[&(stream, *id)].has_begun(revision);
            let is_answered = !active.is_empty() && active.iter().all(has_begun);
            self.hub.request_progress(stream);
            self.world.settle(&mut self.hub, &mut self.sink, self.now);
            let answers = self.sink.take(stream);
            let revisions: Vec<_> = answers
                .iter()
                .map(|one| one.header.as_ref().unwrap().revision)
                .collect();
            if revisions != vec![revision; usize::from(is_answered)] {
                return Err(format!("progress {revisions:?} at rest at {revision}"));
            }
        }
        assert_eq!(self.hub.sizes(), self.hub.count_sizes());
        let lagging = self.hub.sizes().2;
        if lagging > 0 || self.hub.groups.len() > 1 {
            return Err(format!(
                "{lagging} watches lag at rest in {} groups",
                self.hub.groups.len()
            ));
        }
        Ok(())
    }

    fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            self.perform(step)?;
            // A client that always reads is never told that it is too late, unless the store jumped.
            self.read(FAST, usize::MAX)?;
            let is_late = |known: &super::checker::Known| known.is_canceled && known.asked.start == 0;
            let mut fast = self.checker.watches.range((FAST, i64::MIN)..=(FAST, i64::MAX));
            if !self.has_jumped && fast.any(|(_, known)| is_late(known)) {
                return Err("a watch in step was canceled".into());
            }
        }
        self.finish()
    }
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(128) })]

    #[test]
    fn clients_get_what_they_are_promised(steps in prop::collection::vec(step(), 1..160)) {
        let mut run = Run::new(small_hub(1));
        if let Err(reason) = run.run(&steps) {
            panic!("{reason}");
        }
    }

    #[test]
    fn no_progress_is_ahead_or_goes_back(steps in prop::collection::vec(step_of_progress(), 1..120)) {
        let mut run = Run::new(small_hub(1));
        if let Err(reason) = run.run(&steps) {
            panic!("{reason}");
        }
    }
}

/// What a fixed series of runs sees, and the first complaint.
fn fixed_runs(count: usize, prepare: impl Fn(&mut Run)) -> (Checker, Option<String>) {
    let mut runner = TestRunner::deterministic();
    let mut total = Checker::default();
    for _ in 0..count {
        let steps = prop::collection::vec(step(), 160)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let mut run = Run::new(small_hub(1));
        prepare(&mut run);
        let result = run.run(&steps);
        total.events += run.checker.events;
        total.progresses += run.checker.progresses;
        total.compactions += run.checker.compactions;
        total.fragments += run.checker.fragments;
        if let Err(reason) = result {
            return (total, Some(reason));
        }
    }
    (total, None)
}

#[test]
fn runs_see_all_that_can_happen() {
    let (total, complaint) = fixed_runs(24, |_| {});
    assert_eq!(complaint, None);
    let seen = (total.events, total.progresses, total.compactions, total.fragments);
    assert!(seen.0 > 1000 && seen.1 > 50 && seen.2 > 10 && seen.3 > 10, "{seen:?}");
}

/// Canaries: a hub that loses one event is found out, whether the watch was in step or catching up.
#[test]
fn canary_one_lost_event_is_found_out() {
    for number in [0, 3, 10] {
        let (_, complaint) = fixed_runs(8, |run| run.hub.in_step.lose = Some(number));
        assert!(complaint.is_some(), "in step, event {number}");
        let (_, complaint) = fixed_runs(8, |run| {
            let mut batch = super::super::batch::Batch::new(0, run.hub.bounds);
            batch.lose = Some(number);
            run.hub.spare = Some(batch);
        });
        assert!(complaint.is_some(), "catching up, event {number}");
    }
}
