//! A file over many cycles of writing and compaction; pins and their expiry; reading it all at boot.

use super::model::random_batch;
use super::*;
use crate::limits::pages::{PAGE_BYTES, RELOCATE_PAGES, RESERVE_PAGES};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// A hundred rounds in which each of some keys is overwritten and what is superseded goes.
fn age(disk: &mut MemoryDisk, store: &mut PageStore, keys: i64, rounds: i64, length: usize) -> (Model, Vec<u64>) {
    let mut model = Model::default();
    let mut newest: Vec<RecordId> = Vec::new();
    let mut sizes = Vec::new();
    let mut rng = StdRng::seed_from_u64(3);
    let mut main = 1;
    for round in 0..rounds {
        let mut batch = Batch::default();
        if round == 0 {
            for _ in 0..keys {
                main += 1;
                batch.records.push(record(main, "key", length));
                newest.push(RecordId::new(main, 0));
            }
        } else {
            newest.shuffle(&mut rng);
            for id in newest.iter_mut().take(keys as usize / 5) {
                main += 1;
                batch.records.push(record(main, "key", length));
                batch.deletes.push(std::mem::replace(id, RecordId::new(main, 0)));
            }
        }
        batch.deletes.sort();
        batch.fields = StateFields {
            revision: main,
            applied_index: round as u64,
            ..StateFields::default()
        };
        store.run(disk, batch.cut()).unwrap().unwrap();
        model.apply(&batch);
        sizes.push(store.size());
    }
    (model, sizes)
}

#[test]
fn an_aged_file_levels_off() {
    for length in [200, 1500] {
        let (mut disk, mut store) = created();
        let (model, sizes) = age(&mut disk, &mut store, 2000, 60, length);
        assert_sound(&mut disk, &store, &model);
        let (early, late) = (sizes[15..30].iter().max().unwrap(), sizes[45..].iter().max().unwrap());
        assert!(late * 10 <= early * 11, "grows: {sizes:?}");
        let live = model.records.len() as u64 * (length as u64 + 40);
        assert!(*late < 5 * live, "{late} bytes for {live}");
    }
}

#[test]
fn space_comes_back_while_serving() {
    let (mut disk, mut store) = created();
    let mut model = Model::default();
    let mut batch = Batch::default();
    for main in 2..20_000 {
        batch.records.push(record(
            main,
            &format!("key-{main}"),
            if main % 3 == 0 { 3000 } else { 400 },
        ));
    }
    store.run(&mut disk, batch.cut()).unwrap().unwrap();
    model.apply(&batch);
    let pinned = (store.root().clone(), model.clone());
    let full = store.size();
    // One record in twenty stays, spread over the whole file, the last ones at its very end.
    let batch = Batch {
        deletes: model.records.keys().copied().filter(|id| id.main % 20 != 0).collect(),
        ..Batch::default()
    };
    store.run(&mut disk, batch.cut()).unwrap().unwrap();
    model.apply(&batch);
    let idle = |store: &mut PageStore, disk: &mut MemoryDisk, rounds: u64| {
        for _ in 0..rounds {
            store.run(disk, Batch::default().cut()).unwrap().unwrap();
        }
    };
    idle(&mut store, &mut disk, 10);
    assert_sound(&mut disk, &store, &model);
    assert!(
        dump(&mut disk, &store, &pinned.0).unwrap() == pinned.1,
        "the pinned root changed"
    );
    assert!(store.pins(5)[0].held_bytes * 2 > full);
    assert!(store.size() * 2 > full, "the pin keeps the pages");
    drop(pinned);
    let mut sizes = Vec::new();
    for _ in 0..30 {
        idle(&mut store, &mut disk, 1);
        assert_sound(&mut disk, &store, &model);
        sizes.push(store.size());
    }
    let (size, in_use) = (store.size(), store.size_in_use());
    assert!(
        size < full / 5 && size < 3 * in_use,
        "{size} bytes of {full}, {in_use} in use: {sizes:?}"
    );
    let inode = disk.volume().resolve(Path::new(PATH)).unwrap();
    let contents = disk.volume().contents(inode).unwrap();
    assert!(
        contents.allocated() < full / 3,
        "{} bytes are allocated",
        contents.allocated()
    );
    let store = PageStore::open(&mut disk, Path::new(PATH), options()).unwrap();
    assert_sound(&mut disk, &store, &model);
}

/// The reserve, too, is behind what is in use in the end, so that a small quota can be got out of.
/// Fills a file of so many pages, deletes all but the newest records, which are at its end, and gives checkpoints
/// time to shrink it.
fn shrinks_to_what_is_in_use(options: Options, pages: u32) {
    let mut disk = MemoryDisk::new();
    let mut store = PageStore::create(&mut disk, Path::new(PATH), options).unwrap();
    let mut model = Model::default();
    let mut main = 1;
    while store.size() < u64::from(pages) * PAGE_BYTES as u64 {
        let mut batch = Batch::default();
        for _ in 0..100 {
            main += 1;
            batch.records.push(record(main, &format!("key-{main}"), 3000));
        }
        store.run(&mut disk, batch.cut()).unwrap().unwrap();
        model.apply(&batch);
    }
    let batch = Batch {
        deletes: model.records.keys().copied().filter(|id| id.main < main - 50).collect(),
        ..Batch::default()
    };
    store.run(&mut disk, batch.cut()).unwrap().unwrap();
    model.apply(&batch);
    let mut sizes = Vec::new();
    for _ in 0..20 {
        store.run(&mut disk, Batch::default().cut()).unwrap().unwrap();
        sizes.push(store.size());
    }
    assert_sound(&mut disk, &store, &model);
    let in_use = store.size_in_use();
    assert!(store.size() < 2 * in_use, "{in_use} bytes are in use of {sizes:?}");
}

#[test]
fn a_file_smaller_than_its_reserve_shrinks_to_what_is_in_use() {
    let options = Options {
        reserve_pages: RESERVE_PAGES,
        ..options()
    };
    shrinks_to_what_is_in_use(options, RESERVE_PAGES / 4);
}

#[test]
fn a_file_shorter_than_what_one_checkpoint_moves_shrinks_to_what_is_in_use() {
    shrinks_to_what_is_in_use(options(), RELOCATE_PAGES / 4);
}

#[test]
fn a_reader_over_its_time_is_ended_and_its_pages_are_used_again() {
    let (mut disk, mut store) = created();
    let mut batch = Batch::default();
    batch.records.extend((2..2000).map(|main| record(main, "key", 300)));
    store.run(&mut disk, batch.cut()).unwrap().unwrap();
    let held = store.root().clone();
    let mut cache = PageCache::new(1 << 20);
    load(&mut disk, &store, &held, &mut cache, |cache| {
        held.record(cache, RecordId::new(50, 0))
    })
    .unwrap()
    .unwrap();
    let mut scan = RecordScan::new(RecordId::new(1500, 0));
    let Err(ReadFailure::Missing(in_flight)) = scan.step(&held, &mut cache, 1, |_| ControlFlow::Continue(())) else {
        panic!("a page of the middle is not in the cache yet");
    };
    let mut all = Batch {
        deletes: batch.records.iter().map(|record| record.id).collect(),
        ..Batch::default()
    };
    all.fields.applied_index = 1000;
    store.run(&mut disk, all.cut()).unwrap().unwrap();
    let pins = store.pins(1700);
    assert_eq!(
        (pins.len(), pins[0].generation, pins[0].age_ms),
        (1, held.generation(), 700)
    );
    assert!(pins[0].held_bytes > 600_000);
    store.expire(held.generation());
    assert!(held.is_expired() && store.pins(1700).is_empty());
    for main in 3..8 {
        let mut more = Batch::default();
        more.records
            .extend((0..1000).map(|at| record(main * 1000 + at, "key", 300)));
        store.run(&mut disk, more.cut()).unwrap().unwrap();
    }
    // What its read brings now is another commit's page: not damage, but its end.
    let (bytes, length) = disk.read(store.file(), in_flight.offset(), in_flight.length()).unwrap();
    let late = held.insert(&mut cache, &in_flight, &bytes[..length]);
    assert_eq!(late, Err(ReadFailure::Expired { revision: 0 }));
    let missing = held.record(&mut cache, RecordId::new(1500, 0));
    assert!(matches!(missing, Err(ReadFailure::Expired { .. })), "{missing:?}");
}

#[test]
fn deletes_beyond_the_budget_come_back() {
    let (mut disk, mut store) = created();
    let mut batch = Batch::default();
    batch.records.extend((2..4000).map(|main| record(main, "key", 300)));
    store.run(&mut disk, batch.cut()).unwrap().unwrap();
    let mut model = Model::default();
    model.apply(&batch);
    let mut deletes: Vec<RecordId> = model.records.keys().copied().filter(|id| id.main % 2 == 0).collect();
    let mut rounds = 0;
    while !deletes.is_empty() {
        // An urgent cut with a reserve of nothing has the smallest budget.
        let batch = Batch {
            deletes: deletes.clone(),
            urgent: true,
            ..Batch::default()
        };
        let left = store.run(&mut disk, batch.cut()).unwrap().unwrap().remaining_deletes;
        assert!(left.len() < deletes.len() && deletes.ends_with(&left));
        deletes.truncate(deletes.len() - left.len());
        model.apply(&Batch {
            deletes,
            ..Batch::default()
        });
        assert_sound(&mut disk, &store, &model);
        deletes = left;
        rounds += 1;
    }
    assert!(rounds > 3);
}

#[test]
fn boot_reads_all_heads_in_order() {
    let mut rng = StdRng::seed_from_u64(11);
    let mut with_keys_outside = 0;
    for size in [0, 1, 30, 2500] {
        let (mut disk, mut store) = created();
        let mut model = Model::default();
        for _ in 0..4 {
            let batch = random_batch(&mut rng, &model, size);
            store.run(&mut disk, batch.cut()).unwrap().unwrap();
            model.apply(&batch);
        }
        let mut scan = BootScan::new(&store, &mut disk).unwrap();
        let mut found = Vec::new();
        while let Some(batch) = scan.next(&store, &mut disk).unwrap() {
            let fields =
                |head: RecordHead<'_>| (head.id, head.key.to_vec(), head.version, head.lease, head.value_length);
            let mut of_batch = Vec::new();
            if batch.heads(|head| of_batch.push(fields(head))).unwrap() == Decoded::KeysOutside {
                of_batch.clear();
                let take = |head: RecordHead<'_>| {
                    of_batch.push(fields(head));
                    Ok::<(), StoreFailure>(())
                };
                scan.heads(&store, &mut disk, &batch, take).unwrap();
                with_keys_outside += 1;
            }
            found.append(&mut of_batch);
            scan.recycle(batch);
        }
        let expected = model.records.values().map(|record| {
            (
                record.id,
                record.key.to_vec(),
                record.version,
                record.lease,
                record.value.len(),
            )
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
    assert!(with_keys_outside > 0, "no long key was drawn");
}

#[test]
fn cuts_that_the_format_cannot_hold_are_refused() {
    let (mut disk, mut store) = created();
    let mut refused = |change: &dyn Fn(&mut Cut)| {
        let mut cut = Cut::new(StateFields::default(), 0);
        change(&mut cut);
        store.begin(cut).unwrap_err()
    };
    let error = refused(&|cut| cut.fields.membership = vec![0; 4097].into());
    assert_eq!(error, CutError::Membership { length: 4097 });
    let error = refused(&|cut| drop(cut.trees.entry(TreeId::Users).or_default().insert(vec![7; 1025], None)));
    assert_eq!(
        error,
        CutError::Key {
            tree: TreeId::Users,
            length: 1025
        }
    );
    let error = refused(&|cut| cut.trees = [(TreeId::Records, TreeUpdates::new())].into());
    assert_eq!(error, CutError::Records);
    let error = refused(&|cut| cut.deletes = vec![RecordId::new(2, 0), RecordId::new(2, 0)]);
    assert_eq!(error, CutError::Order);
    store
        .run(&mut disk, Cut::new(StateFields::default(), 0))
        .unwrap()
        .unwrap();
}

#[test]
fn the_file_never_passes_its_limit() {
    let mut disk = MemoryDisk::new();
    let limited = Options {
        limit_bytes: 1 << 20,
        ..options()
    };
    let mut store = PageStore::create(&mut disk, Path::new(PATH), limited).unwrap();
    let mut model = Model::default();
    let mut rng = StdRng::seed_from_u64(5);
    let mut refused = 0;
    for _ in 0..40 {
        let main = model.fields.revision.max(1);
        let mut batch = Batch::default();
        batch.records.extend((1..200).map(|at| record(main + at, "key", 400)));
        batch.fields.revision = main + 200;
        match store.run(&mut disk, batch.cut()).unwrap() {
            Ok(_) => model.apply(&batch),
            Err(Aborted::Limit { limit_bytes }) => {
                assert_eq!(limit_bytes, 1 << 20);
                refused += 1;
                let deletes = model.records.keys().copied().filter(|_| rng.random_bool(0.8)).collect();
                let batch = Batch {
                    deletes,
                    urgent: true,
                    fields: model.fields.clone(),
                    ..Batch::default()
                };
                if let Ok(commit) = store.run(&mut disk, batch.cut()).unwrap() {
                    let left = commit.remaining_deletes;
                    let deletes = batch.deletes.iter().copied().filter(|id| !left.contains(id)).collect();
                    model.apply(&Batch { deletes, ..batch });
                }
            }
            Err(other) => panic!("{other}"),
        }
        assert!(store.size() <= 1 << 20);
        assert_sound(&mut disk, &store, &model);
    }
    assert!(refused > 2, "the limit was never met");
}
