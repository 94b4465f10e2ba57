//! One writer and many readers at once: whatever a reader pins, it is one state of the planned history and stays it.

use super::check::{Reader, sound};
use crate::mvcc::index::{Index, IndexWriter, KeyMeta, NEWEST, Tree};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const KEYS: usize = 600;
const READERS: usize = 3;

/// What is published beside the root: what a reader may ask for. Counts the views that are alive.
struct View {
    main: i64,
    compact_main: i64,
    alive: Arc<AtomicUsize>,
}

impl View {
    fn new(main: i64, compact_main: i64, alive: &Arc<AtomicUsize>) -> View {
        alive.fetch_add(1, Ordering::Relaxed);
        View {
            main,
            compact_main,
            alive: Arc::clone(alive),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A history made beforehand, so that readers know every state without asking the writer.
struct Plan {
    /// Per main revision the changes: key, and the version or `None` for a deletion.
    changes: Vec<Vec<(usize, Option<KeyMeta>)>>,
    /// Per key its revisions in order.
    histories: Vec<Vec<(i64, Option<KeyMeta>)>>,
    /// Live keys per main revision.
    counts: Vec<u64>,
}

fn key(number: usize) -> Vec<u8> {
    format!("/registry/{}/namespace-{}/{number:04}", number % 3, number % 11).into_bytes()
}

impl Plan {
    fn new(seed: u64, mains: usize) -> Plan {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut live: Vec<Option<KeyMeta>> = vec![None; KEYS];
        let mut plan = Plan {
            changes: vec![Vec::new(); 2],
            histories: vec![Vec::new(); KEYS],
            counts: vec![0; 2],
        };
        for main in 2..mains as i64 {
            let mut numbers: Vec<usize> = (0..KEYS).choose_multiple(&mut random, 4);
            // One key is written all the time, so that its list grows while it is read.
            numbers.retain(|number| *number != 0);
            numbers.push(0);
            let mut changes: Vec<(usize, Option<KeyMeta>)> = Vec::new();
            for number in numbers {
                let revision = Revision::new(main, changes.len() as u32);
                let before = live[number];
                let deletes = before.is_some() && random.random_ratio(2, 5) && number != 0;
                live[number] = (!deletes).then(|| KeyMeta {
                    revision,
                    create_revision: before.map_or(main, |meta| meta.create_revision),
                    version: before.map_or(0, |meta| meta.version) + 1,
                    lease: random.random_range(0..2),
                });
                changes.push((number, live[number]));
                plan.histories[number].push((main, live[number]));
            }
            plan.changes.push(changes);
            plan.counts.push(live.iter().flatten().count() as u64);
        }
        plan
    }

    fn get(&self, number: usize, at_main: i64) -> Option<KeyMeta> {
        let history = &self.histories[number];
        history[..history.partition_point(|(main, _)| *main <= at_main)]
            .last()?
            .1
    }
}

fn write(plan: &Plan, writer: &mut IndexWriter<View>, alive: &Arc<AtomicUsize>, random: &mut ChaCha8Rng) {
    let mut compact_main = 0;
    let mut removed = Vec::new();
    for (main, changes) in plan.changes.iter().enumerate().skip(2) {
        let main = main as i64;
        for (sub, (number, meta)) in changes.iter().enumerate() {
            let revision = Revision::new(main, sub as u32);
            match meta {
                Some(meta) => assert_eq!(writer.put(&key(*number), revision, meta.lease).current, *meta),
                None => assert!(writer.delete(&key(*number), revision).is_some()),
            }
        }
        if random.random_ratio(1, 3) {
            writer.publish(View::new(main, compact_main, alive));
        }
        if main % 150 == 0 {
            compact_main = main - random.random_range(1..100);
            // The view says so before anything goes, and everything goes in a few publications.
            for number in 0..KEYS {
                if number % 100 == 0 {
                    writer.publish(View::new(main, compact_main, alive));
                }
                writer.prune(&key(number), compact_main, &mut removed);
            }
            sound(writer.tree());
        }
    }
    let last = plan.changes.len() as i64 - 1;
    writer.publish(View::new(last, compact_main, alive));
}

/// Checks one pinned state at one revision, in one of several ways.
fn look(plan: &Plan, index: &Index<View>, random: &mut ChaCha8Rng, seen: &mut i64) {
    let pinned = index.pin();
    let View { main, compact_main, .. } = *pinned.view();
    assert!(main >= *seen, "the view went back from {seen} to {main}");
    *seen = main;
    let newest = random.random_ratio(1, 3);
    let at_main = if newest {
        main
    } else {
        random.random_range(compact_main..=main)
    };
    let asked = if newest { NEWEST } else { at_main };
    match random.random_range(0..4) {
        0 => {
            let number = random.random_range(0..KEYS);
            assert_eq!(
                pinned.get(&key(number), asked),
                plan.get(number, at_main),
                "{number} at {at_main} of {main}"
            );
        }
        1 => assert_eq!(
            pinned.get(&key(0), asked),
            plan.get(0, at_main),
            "busy key at {at_main} of {main}"
        ),
        2 => {
            let (counted, resume) = pinned.count(b"", RangeEnd::Unbounded, asked);
            assert_eq!(
                (counted, resume),
                (plan.counts[at_main as usize], None),
                "count at {at_main} of {main}"
            );
        }
        _ => {
            let (start, end) = (key(random.random_range(0..KEYS)), key(random.random_range(0..KEYS)));
            let mut expected: BTreeMap<Vec<u8>, KeyMeta> = BTreeMap::new();
            for number in 0..KEYS {
                let key = key(number);
                if let Some(meta) = plan.get(number, at_main).filter(|_| start <= key && key < end) {
                    expected.insert(key, meta);
                }
            }
            let mut shown = BTreeMap::new();
            let resume = pinned.range(&start, RangeEnd::Before(&end), asked, |key, meta| {
                shown.insert(key.to_vec(), meta);
                std::ops::ControlFlow::Continue(())
            });
            assert_eq!((shown, resume), (expected, None), "range at {at_main} of {main}");
        }
    }
}

fn stress(seed: u64, mains: usize) {
    let plan = Plan::new(seed, mains);
    let alive = Arc::new(AtomicUsize::new(0));
    let mut writer = IndexWriter::new(Tree::new(), View::new(1, 0, &alive));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (plan, done, index) = (&plan, &done, Arc::clone(writer.index()));
            scope.spawn(move || {
                let mut random = ChaCha8Rng::seed_from_u64(seed + 1 + reader as u64);
                let (mut seen, mut looks) = (0, 0);
                while !done.load(Ordering::Acquire) || looks < 10 {
                    look(plan, &index, &mut random, &mut seen);
                    looks += 1;
                }
            });
        }
        // Ends the readers also when the writer panics.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let _done = Done(&done);
        write(&plan, &mut writer, &alive, &mut ChaCha8Rng::seed_from_u64(seed));
    });
    drop(writer);
    eventually(|| {
        crossbeam_epoch::pin().flush();
        alive.load(Ordering::Relaxed) == 0
    });
}

/// Waits for what the epoch delays: other tests hold guards of the same one for a while.
fn eventually(mut done: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("what was retired never came home");
}

#[test]
fn views_and_replaced_trees_are_freed_by_the_writer_bit_by_bit() {
    let alive = Arc::new(AtomicUsize::new(0));
    let mut tree = Tree::new();
    for number in 0..120_000 {
        tree.put(&key(number), Revision::new(2, number as u32), 0);
    }
    let mut writer = IndexWriter::new(tree, View::new(2, 0, &alive));
    let index = Arc::clone(writer.index());
    let pinned = index.pin();
    writer.replace(Tree::new());
    writer.publish(View::new(2, 0, &alive));
    for _ in 0..1000 {
        assert!(!writer.collect(), "nothing is freed while it is pinned");
    }
    assert_eq!(alive.load(Ordering::Relaxed), 2);
    assert!(pinned.get(&key(7), NEWEST).is_some());
    drop(pinned);
    eventually(|| writer.collect());
    assert_eq!(alive.load(Ordering::Relaxed), 1, "a view goes before the memory");
    let mut steps = 1;
    while writer.collect() {
        steps += 1;
    }
    assert!(steps > 1, "120 000 keys are more than one step");
}

#[test]
fn readers_see_planned_states_only() {
    let mains = if cfg!(miri) { 400 } else { 4000 };
    (0..2).for_each(|seed| stress(seed * 100, mains));
}

#[test]
fn slices_in_new_pins_show_one_revision() {
    let mut writer = IndexWriter::new(Tree::new(), 1);
    for number in 0..2000 {
        writer.put(&key(number), Revision::new(2, number as u32), 0);
    }
    writer.publish(2);
    let mut next = Some(Vec::new());
    let (mut seen, mut main) = (Vec::new(), 2);
    while let Some(start) = next {
        let pinned = writer.index().pin();
        next = pinned.range(&start, RangeEnd::Unbounded, 2, |key, meta| {
            seen.push((key.to_vec(), meta.revision.main));
            if seen.len() % 50 == 0 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        });
        drop(pinned);
        main += 1;
        for (sub, number) in (0..3000).step_by(7).enumerate() {
            let (key, revision) = (key(number), Revision::new(main, sub as u32));
            match main % 3 {
                0 => drop(writer.delete(&key, revision)),
                _ => drop(writer.put(&key, revision, 0)),
            }
        }
        writer.publish(main);
    }
    assert_eq!(seen.len(), 2000);
    assert!(seen.is_sorted() && seen.iter().all(|(_, main)| *main == 2));
    assert!(writer.index().pin().count_all(b"", RangeEnd::Unbounded, 2) == 2000);
}
