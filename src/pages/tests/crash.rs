//! Power cuts, full disks and failing disks at every operation of a checkpoint.

use super::super::meta::{Slot, inspect};
use super::model::random_batch;
use super::*;
use crate::io::disk::Completion;
use crate::io::faulty::{Fault, FaultyDisk};
use crate::limits::pages::PAGE_BYTES;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn created(seed: u64) -> (FaultyDisk, PageStore) {
    let mut disk = FaultyDisk::new(seed);
    disk.set_delay_us(10..500);
    let store = PageStore::create(&mut disk, Path::new(PATH), options()).unwrap();
    (disk, store)
}

fn open(disk: &mut FaultyDisk) -> PageStore {
    let mut store = PageStore::open(disk, Path::new(PATH), options()).unwrap();
    store.settle(disk).unwrap();
    store
}

/// Opens the disk as a power cut left it: it holds one of the models, whole. Which one?
fn recovered(mut disk: FaultyDisk, models: &[&Model]) -> usize {
    let store = open(&mut disk);
    let held = dump(&mut disk, &store, store.root()).unwrap();
    let found = models.iter().position(|model| **model == held);
    let found = found.unwrap_or_else(|| panic!("after a power cut: commit {}, no model", store.root().generation()));
    assert_sound(&mut disk, &store, models[found]);
    found
}

/// Drives a checkpoint; `look` sees the disk before each turn. The models are the state before and after.
fn drive(
    disk: &mut FaultyDisk,
    store: &mut PageStore,
    batch: &Batch,
    mut look: impl FnMut(&FaultyDisk, bool),
) -> Result<Option<Aborted>, StoreFailure> {
    store.begin(batch.cut()).unwrap();
    let mut completions: Vec<Completion> = Vec::new();
    let mut committed = false;
    let mut aborted = None;
    loop {
        match store.step(disk)? {
            Progress::Idle => return Ok(aborted),
            Progress::Busy => {}
            Progress::Committed(_) => committed = true,
            Progress::Aborted(reason) => aborted = Some(reason),
            Progress::Waiting => {
                look(disk, committed);
                disk.wait(&mut completions);
                for completion in completions.drain(..) {
                    store.completed(completion)?;
                }
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_moment_leaves_the_last_or_the_new_state() {
    let (mut outcomes, mut points) = ([0, 0], 0);
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut disk, mut store) = created(seed);
        let mut model = Model::default();
        for _ in 0..6 {
            let batch = random_batch(&mut rng, &model, 40);
            let mut next = model.clone();
            next.apply(&batch);
            let mut left = None;
            drive(&mut disk, &mut store, &batch, |disk, committed| {
                for _ in 0..2 {
                    let cut = disk.after_power_cut(rng.random());
                    let found = recovered(cut.clone(), &[&model, &next]);
                    assert!(found == 1 || !committed, "a durable commit was lost");
                    outcomes[found] += 1;
                    points += 1;
                    if rng.random_bool(0.02) {
                        left = Some((cut, found));
                    }
                }
            })
            .unwrap();
            // Now and then life goes on after the power cut.
            if let Some((cut, found)) = left {
                disk = cut;
                store = open(&mut disk);
                if found == 0 {
                    continue;
                }
            }
            model = next;
        }
        assert!(disk.violations().is_empty());
    }
    assert!(
        outcomes.iter().all(|&count| count > 20),
        "{outcomes:?} at {points} points"
    );
}

/// Makes the newer meta a torn write, when both are whole. The generation of the older one.
fn tear_newer_meta(disk: &mut FaultyDisk) -> Option<u64> {
    let mut older_generation = None;
    disk.tamper(Path::new(PATH), |contents| {
        let mut pages = [vec![0; PAGE_BYTES], vec![0; PAGE_BYTES]];
        contents.read(0, &mut pages[0]);
        contents.read(PAGE_BYTES as u64, &mut pages[1]);
        let [Slot::Valid(first), Slot::Valid(second)] = [inspect(&pages[0]), inspect(&pages[1])] else {
            return;
        };
        let newer = usize::from(second.generation > first.generation);
        older_generation = Some(first.generation.min(second.generation));
        // Sectors of an earlier commit in its second half.
        let half = PAGE_BYTES / 2;
        contents.write((newer * PAGE_BYTES + half) as u64, &pages[1 - newer][half..]);
    });
    older_generation
}

#[test]
fn the_older_of_the_two_metas_stays_readable_until_it_is_replaced() {
    let mut looked = 0;
    for seed in 0..4 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut disk, mut store) = created(seed);
        let mut models = std::collections::BTreeMap::from([(1, Model::default())]);
        for _ in 0..8 {
            let model = models[&store.root().generation()].clone();
            let batch = random_batch(&mut rng, &model, 30);
            drive(&mut disk, &mut store, &batch, |disk, committed| {
                let mut cut = disk.after_power_cut(rng.random());
                // Once the new meta is durable, the one that was the newest is the older.
                if let Some(older) = tear_newer_meta(&mut cut).filter(|older| !committed && models.contains_key(older))
                {
                    let mut store = open(&mut cut);
                    assert_eq!(store.root().generation(), older);
                    assert_eq!(store.log_needed_after(), 0);
                    assert_eq!(store.take_warnings().len(), 1);
                    assert_sound(&mut cut, &store, &models[&older]);
                    looked += 1;
                }
            })
            .unwrap();
            assert_eq!(store.log_needed_after(), model.fields.applied_index);
            let reopened = PageStore::open(&mut disk, Path::new(PATH), options()).unwrap();
            assert_eq!(reopened.log_needed_after(), model.fields.applied_index);
            let mut next = model;
            next.apply(&batch);
            models.insert(store.root().generation(), next);
        }
    }
    assert!(looked > 40, "{looked} looks");
}

#[test]
fn rule_1_the_page_file_and_its_name_are_synced_before_anything_is_read() {
    let (mut disk, store) = created(1);
    drop(store);
    disk.kill(2);
    disk.clear_events();
    let store = open(&mut disk);
    let done: Vec<_> = disk.events().iter().map(|event| event.operation).collect();
    assert_eq!(done[..4], ["open", "sync", "sync directory", "read"], "{done:?}");
    assert!(disk.events().iter().all(|event| event.error.is_none()));
    assert_sound(&mut disk, &store, &Model::default());
}

/// An opening that dies of a failed sync, in its process only: what the sync dropped still shows.
fn die_of_a_failed_sync(disk: &mut FaultyDisk, seed: u64) {
    disk.add_fault(Fault {
        operation: "sync",
        path: String::new(),
        skip: 0,
        times: 1,
        errno: libc::EIO,
    });
    let died = PageStore::open(disk, Path::new(PATH), options());
    assert!(matches!(died, Err(StoreFailure::Disk { .. })));
    disk.clear_faults();
    disk.kill(seed);
}

#[test]
fn a_meta_that_a_failed_sync_dropped_is_written_again_before_anything_follows_it() {
    let (mut believed, mut looks) = (0, 0);
    for seed in 0..4 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut disk, mut store) = created(seed);
        let mut model = Model::default();
        for _ in 0..5 {
            let batch = random_batch(&mut rng, &model, 20);
            let mut next = model.clone();
            next.apply(&batch);
            drive(&mut disk, &mut store, &batch, |disk, committed| {
                // The sync is over when it is the meta's turn, which is of interest most.
                let synced = disk.events().back().is_some_and(|event| event.operation == "sync");
                if !synced && rng.random_bool(0.9) {
                    return;
                }
                let mut disk = disk.clone();
                disk.kill(rng.random());
                die_of_a_failed_sync(&mut disk, rng.random());
                let mut store = open(&mut disk);
                let held = dump(&mut disk, &store, store.root()).unwrap();
                assert!(held == next || held == model);
                believed += usize::from(held == next && !committed);
                looks += 1;
                // Now, and when something has been written behind it.
                assert_eq!(recovered(disk.after_power_cut(rng.random()), &[&held]), 0);
                let batch = random_batch(&mut rng, &held, 20);
                let mut last = held;
                last.apply(&batch);
                drive(&mut disk, &mut store, &batch, |_, _| {}).unwrap();
                assert_eq!(recovered(disk.after_power_cut(rng.random()), &[&last]), 0);
            })
            .unwrap();
            model = next;
        }
    }
    assert!(believed > 4, "{believed} of {looks}");
}

#[test]
fn creation_is_whole_or_nothing() {
    for seed in 0..60 {
        let mut disk = FaultyDisk::new(seed);
        disk.add_fault(Fault {
            operation: "",
            path: String::new(),
            skip: seed % 8,
            times: 1,
            errno: libc::EIO,
        });
        let created = PageStore::create(&mut disk, Path::new(PATH), options());
        let acknowledged = created.is_ok();
        let mut disk = disk.after_power_cut(seed);
        disk.clear_faults();
        match PageStore::open(&mut disk, Path::new(PATH), options()) {
            Ok(store) => assert_sound(&mut disk, &store, &Model::default()),
            Err(StoreFailure::Disk { source, .. }) => assert!(source.is_not_found() && !acknowledged),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A store with some commits on it, ready for one more.
fn prepared(seed: u64) -> (FaultyDisk, PageStore, Model, Batch) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut disk, mut store) = created(seed);
    let mut model = Model::default();
    for _ in 0..4 {
        let batch = random_batch(&mut rng, &model, 60);
        store.run(&mut disk, batch.cut()).unwrap().unwrap();
        model.apply(&batch);
    }
    let mut batch = random_batch(&mut rng, &model, 200);
    batch.deletes = model.records.keys().copied().filter(|_| rng.random_bool(0.5)).collect();
    (disk, store, model, batch)
}

#[test]
fn no_space_at_any_write_gives_the_checkpoint_up_and_a_later_one_succeeds() {
    for seed in 0..3 {
        let mut skip = 0;
        loop {
            let (mut disk, mut store, mut model, batch) = prepared(seed);
            disk.add_fault(Fault {
                operation: "write",
                path: PATH.into(),
                skip,
                times: 3,
                errno: libc::ENOSPC,
            });
            match drive(&mut disk, &mut store, &batch, |_, _| {}) {
                Ok(None) => break,
                Ok(Some(Aborted::DiskFull(_))) => {}
                // The meta write: from here on there is no way back.
                Err(StoreFailure::Disk {
                    doing: "writing a meta page",
                    ..
                }) => {
                    assert!(matches!(store.step(&mut disk), Err(StoreFailure::Dead)));
                    skip += 1;
                    continue;
                }
                other => panic!("{other:?}"),
            }
            disk.clear_faults();
            assert_sound(&mut disk, &store, &model);
            assert_eq!(recovered(disk.after_power_cut(seed), &[&model]), 0);
            assert!(drive(&mut disk, &mut store, &batch, |_, _| {}).unwrap().is_none());
            model.apply(&batch);
            assert_sound(&mut disk, &store, &model);
            skip += 1;
        }
        assert!(skip > 3, "{skip} writes");
    }
}

#[test]
fn an_error_of_any_operation_is_typed_and_nothing_is_tried_again() {
    for operation in ["write", "sync", "read", "allocate", "truncate", "punch hole"] {
        for skip in 0.. {
            let (mut disk, mut store, model, batch) = prepared(7);
            let mut next = model.clone();
            next.apply(&batch);
            disk.add_fault(Fault {
                operation,
                path: PATH.into(),
                skip,
                times: 1,
                errno: libc::EIO,
            });
            match drive(&mut disk, &mut store, &batch, |_, _| {}) {
                Ok(None) if !store.take_warnings().is_empty() => assert_sound(&mut disk, &store, &next),
                Ok(None) => {
                    assert!(
                        skip > 0 || !matches!(operation, "write" | "sync" | "read"),
                        "{operation} is never used"
                    );
                    break;
                }
                Ok(Some(Aborted::Read(_))) => {
                    assert_eq!(operation, "read");
                    assert_sound(&mut disk, &store, &model);
                }
                Err(StoreFailure::Disk { source, .. }) => {
                    assert_eq!(source.source.raw_os_error(), Some(libc::EIO));
                    assert!(matches!(store.step(&mut disk), Err(StoreFailure::Dead)));
                }
                other => panic!("{operation}: {other:?}"),
            }
            assert!(disk.violations().is_empty(), "{operation}: {:?}", disk.violations());
            disk.clear_faults();
            recovered(disk.after_power_cut(skip), &[&model, &next]);
        }
    }
}

/// What was refused goes in from the reserve, and room comes from compaction, batch by batch.
fn compact_urgently(disk: &mut FaultyDisk, store: &mut PageStore, model: &mut Model, refused: Batch) {
    let mut urgent = Batch {
        urgent: true,
        ..refused
    };
    urgent.deletes = model.records.keys().copied().collect();
    for round in 0.. {
        assert!(round < 60, "compaction does not get on: {:?}", urgent.deletes);
        let left = store.run(disk, urgent.cut()).unwrap().unwrap().remaining_deletes;
        urgent.deletes.retain(|id| !left.contains(id));
        model.apply(&urgent);
        if left.is_empty() {
            break;
        }
        urgent = Batch {
            urgent: true,
            deletes: left,
            fields: model.fields.clone(),
            ..Batch::default()
        };
    }
}

#[test]
fn on_a_full_disk_the_reserve_lets_a_compaction_through() {
    let mut disk = FaultyDisk::new(1);
    let options = Options {
        reserve_pages: 300,
        ..Options::new(0..64)
    };
    let mut store = PageStore::create(&mut disk, Path::new(PATH), options).unwrap();
    let mut model = Model::default();
    let mut main = 1;
    let mut next_batch = |model: &Model, count: i64| {
        let mut batch = Batch::default();
        for _ in 0..count {
            main += 1;
            batch.records.push(record(main, &format!("key-{main}"), 700));
        }
        batch.fields = StateFields {
            revision: main,
            applied_index: model.fields.applied_index + 1,
            ..model.fields.clone()
        };
        batch
    };
    let first = next_batch(&model, 500);
    store.run(&mut disk, first.cut()).unwrap().unwrap();
    model.apply(&first);
    disk.set_capacity(Some(disk.volume().allocated() + (2 << 20)));
    let mut filled = 0;
    let refused = loop {
        let batch = next_batch(&model, 500);
        match store.run(&mut disk, batch.cut()).unwrap() {
            Ok(_) => model.apply(&batch),
            Err(Aborted::DiskFull(_)) => break batch,
            Err(other) => panic!("{other}"),
        }
        filled += 1;
        assert!(filled < 50, "the disk never got full");
    };
    assert_sound(&mut disk, &store, &model);
    compact_urgently(&mut disk, &mut store, &mut model, refused);
    assert_sound(&mut disk, &store, &model);
    // What a commit frees is usable two commits later; until then normal checkpoints are refused, urgent ones are not.
    for _ in 0..2 {
        let nothing = Batch {
            urgent: true,
            fields: model.fields.clone(),
            ..Batch::default()
        };
        store.run(&mut disk, nothing.cut()).unwrap().unwrap();
    }
    for _ in 0..4 {
        let batch = next_batch(&model, 100);
        store.run(&mut disk, batch.cut()).unwrap().unwrap();
        model.apply(&batch);
    }
    assert_sound(&mut disk, &store, &model);
}

#[test]
fn a_disk_that_was_full_is_found_to_have_room_again() {
    for limit_bytes in [u64::MAX, 4 << 20] {
        let (mut disk, _) = created(1);
        let options = Options {
            reserve_pages: 20,
            limit_bytes,
            ..Options::new(0..64)
        };
        let mut store = PageStore::open(&mut disk, Path::new(PATH), options).unwrap();
        let mut model = Model::default();
        for round in 0..6 {
            let mut batch = Batch {
                deletes: model.records.keys().copied().collect(),
                ..Batch::default()
            };
            batch
                .records
                .extend((0..300).map(|at| record(2 + round * 300 + at, "key", 400)));
            if round == 3 {
                disk.add_fault(Fault {
                    operation: "write",
                    path: PATH.into(),
                    skip: 1,
                    times: 1,
                    errno: libc::ENOSPC,
                });
                disk.add_fault(Fault {
                    operation: "allocate",
                    path: PATH.into(),
                    skip: 0,
                    times: 1,
                    errno: libc::ENOSPC,
                });
                let refused = store.run(&mut disk, batch.cut()).unwrap();
                assert!(matches!(refused, Err(Aborted::DiskFull(_))), "{refused:?}");
                disk.clear_faults();
            }
            store.run(&mut disk, batch.cut()).unwrap().unwrap();
            model.apply(&batch);
            assert_sound(&mut disk, &store, &model);
        }
        assert!(!store.space().full, "limit {limit_bytes}");
    }
}

/// A disk that passes over barriers: meta pages can be durable before the data they name.
struct WithoutBarriers<'a>(&'a mut FaultyDisk, Vec<Completion>);

impl Disk for WithoutBarriers<'_> {
    fn submit(&mut self, token: u64, operation: crate::io::disk::Operation) {
        match operation {
            crate::io::disk::Operation::Sync { .. } => {
                let result = Ok(crate::io::disk::Outcome::Done);
                self.1.push(Completion { token, result });
            }
            other => self.0.submit(token, other),
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.1);
        self.0.poll(completions);
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
        if completions.is_empty() {
            self.0.wait(completions);
        }
    }
}

/// Whether power cuts after commits are noticed to break something, when the disk is driven wrongly.
fn breaks(spoil: impl Fn(&mut FaultyDisk), barriers: bool) -> bool {
    (0..40).any(|seed| {
        let (mut disk, mut store, mut model, batch) = prepared(seed);
        spoil(&mut disk);
        let commit = if barriers {
            store.run(&mut disk, batch.cut())
        } else {
            store.run(&mut WithoutBarriers(&mut disk, Vec::new()), batch.cut())
        };
        commit.unwrap().unwrap();
        model.apply(&batch);
        let mut disk = disk.after_power_cut(seed);
        let Ok(store) = PageStore::open(&mut disk, Path::new(PATH), options()) else {
            return true;
        };
        store.check(&mut disk).is_err() || !dump(&mut disk, &store, store.root()).is_ok_and(|found| found == model)
    })
}

#[test]
fn canaries_are_noticed() {
    assert!(!breaks(|_| {}, true), "nothing was spoiled");
    assert!(
        breaks(|disk| disk.set_syncs_lie(true), true),
        "syncs that do nothing go unnoticed"
    );
    assert!(breaks(|_| {}, false), "meta pages before their data go unnoticed");
}
