//! Random checkpoints, deletes, pins and reopenings against the model.

use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(in super::super) const LENGTHS: [usize; 8] = [0, 10, 300, 512, 513, 1500, 9000, 40_000];

/// The next batch: some records, deletes of a share of the old ones, tree updates.
pub(in super::super) fn random_batch(rng: &mut StdRng, model: &Model, size: usize) -> Batch {
    let mut main = model.fields.revision.max(1);
    let mut batch = Batch::default();
    let style = rng.random_range(0..LENGTHS.len());
    for _ in 0..rng.random_range(0..=size) {
        main += rng.random_range(1..3);
        for sub in 0..rng.random_range(1..3) {
            let length = if rng.random_bool(0.7) {
                LENGTHS[style.min(5)]
            } else {
                LENGTHS[rng.random_range(0..8)]
            };
            let mut new = record(main, &format!("key-{}", rng.random_range(0..500)), length);
            new.id.sub = sub;
            new.lease = if rng.random_bool(0.2) { rng.random() } else { 0 };
            new.tombstone = rng.random_bool(0.1);
            if rng.random_bool(0.01) {
                new.key = vec![b'k'; rng.random_range(900..3000)].into();
            }
            batch.records.push(new);
        }
    }
    let share = [0.0, 0.0, 0.05, 0.5, 0.95][rng.random_range(0..5)];
    let (from, to) = (rng.random_range(0..=main), rng.random_range(0..=main));
    let range = RecordId::new(from.min(to), 0)..RecordId::new(from.max(to), 0);
    batch.deletes = model
        .records
        .range(range)
        .map(|(id, _)| *id)
        .filter(|_| rng.random_bool(share))
        .collect();
    if rng.random_bool(0.1) {
        batch.deletes.push(RecordId::new(main + 100, 0));
    }
    for _ in 0..rng.random_range(0..=size) {
        let tree = TreeId::ALL[rng.random_range(1..7)];
        let key = format!("{:0width$}", rng.random_range(0..400), width = rng.random_range(1..30)).into_bytes();
        let value = rng
            .random_bool(0.6)
            .then(|| Bytes::from(vec![rng.random::<u8>(); LENGTHS[rng.random_range(0..7)]]));
        batch.trees.push((tree, key, value));
    }
    let mut keys = std::collections::BTreeSet::new();
    batch.trees.retain(|(tree, key, _)| keys.insert((*tree, key.clone())));
    batch.fields = StateFields {
        revision: main,
        compact_revision: from.min(to),
        applied_index: model.fields.applied_index + 1,
        term: 2,
        membership: vec![3; rng.random_range(0..100)].into(),
    };
    batch
}

fn run_seed(seed: u64, rounds: usize, size: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut disk, mut store) = created();
    let mut model = Model::default();
    let mut pins: Vec<(Root, Model)> = Vec::new();
    for _ in 0..rounds {
        let batch = random_batch(&mut rng, &model, size);
        let commit = store.run(&mut disk, batch.cut()).unwrap().unwrap();
        assert!(commit.remaining_deletes.is_empty());
        model.apply(&batch);
        if rng.random_bool(0.3) {
            pins.push((commit.root, model.clone()));
        }
        if rng.random_bool(0.3) && !pins.is_empty() {
            let (root, model) = pins.swap_remove(rng.random_range(0..pins.len()));
            assert!(
                dump(&mut disk, &store, &root).unwrap() == model,
                "a pinned root changed"
            );
        }
        if rng.random_bool(0.15) {
            pins.clear();
            store = PageStore::open(&mut disk, Path::new(PATH), options()).unwrap();
        }
        assert_sound(&mut disk, &store, &model);
    }
    for (root, model) in pins {
        assert!(
            dump(&mut disk, &store, &root).unwrap() == model,
            "a pinned root changed"
        );
    }
}

#[test]
fn small_batches_match_the_model() {
    for seed in 0..12 {
        run_seed(seed, 25, 20);
    }
}

#[test]
fn large_batches_match_the_model() {
    for seed in 100..102 {
        run_seed(seed, 8, 1500);
    }
}
