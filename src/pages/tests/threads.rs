//! Readers on other threads while checkpoints reuse pages: a held root never changes.

use super::*;
use crate::io::disk::{Completion, Operation};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// One file system for several threads.
#[derive(Clone)]
struct SharedDisk(Arc<Mutex<MemoryDisk>>, Vec<(u64, Operation)>);

impl Disk for SharedDisk {
    fn submit(&mut self, token: u64, operation: Operation) {
        self.1.push((token, operation));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        for (token, operation) in self.1.drain(..) {
            let result = self.0.lock().unwrap().call(operation);
            completions.push(Completion { token, result });
        }
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }
}

/// Every record of a round has the round in its value, and each round replaces all records of the one before.
fn read_round(disk: &mut SharedDisk, store_file: crate::io::disk::FileId, root: &Root, cache: &mut PageCache) -> u64 {
    let mut scan = RecordScan::new(RecordId::ZERO);
    let mut rounds = std::collections::BTreeSet::new();
    let mut count = 0;
    loop {
        let scanned = scan.step(root, cache, 50, |view| {
            rounds.insert(u64::from_le_bytes(view.value[..8].try_into().unwrap()));
            count += 1;
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(Scanned::End) => break,
            Ok(Scanned::More) => {}
            Err(ReadFailure::Missing(address)) => {
                let (bytes, length) = disk.read(store_file, address.offset(), address.length()).unwrap();
                root.insert(cache, &address, &bytes[..length]).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((rounds.len(), count), (1, 300), "a mixture of rounds {rounds:?}");
    rounds.pop_first().unwrap()
}

#[test]
fn held_roots_never_change_under_readers_on_other_threads() {
    let (disk, mut store) = created();
    let mut disk = SharedDisk(Arc::new(Mutex::new(disk)), Vec::new());
    let published = Arc::new(Mutex::new(None::<Root>));
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let file = store.file();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (published, stop, reads) = (Arc::clone(&published), Arc::clone(&stop), Arc::clone(&reads));
            let mut disk = disk.clone();
            std::thread::spawn(move || {
                let mut cache = PageCache::new(0);
                while !stop.load(Ordering::Relaxed) {
                    let root = published.lock().unwrap().clone();
                    let Some(root) = root else {
                        std::thread::yield_now();
                        continue;
                    };
                    let round = read_round(&mut disk, file, &root, &mut cache);
                    assert_eq!(round, root.fields().applied_index);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut deletes = Vec::new();
    let mut round = 0;
    while round < 40 || (reads.load(Ordering::Relaxed) < 40 && round < 4000) {
        round += 1;
        let mut batch = Batch::default();
        for at in 0..300 {
            let mut new = record(1 + round * 300 + at, "key", 0);
            let mut value = (round as u64).to_le_bytes().to_vec();
            value.resize(if at % 3 == 0 { 900 } else { 200 }, round as u8);
            new.value = value.into();
            batch.records.push(new);
        }
        batch.deletes = std::mem::take(&mut deletes);
        batch.fields.applied_index = round as u64;
        deletes = batch.records.iter().map(|record| record.id).collect();
        let root = store.run(&mut disk, batch.cut()).unwrap().unwrap().root;
        *published.lock().unwrap() = Some(root);
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(reads.load(Ordering::Relaxed) >= 40, "the readers got on");
    assert!(store.size() < 16 << 20, "pages were used again");
    assert_eq!(store.check(&mut disk).unwrap().lost_pages, 0);
}
