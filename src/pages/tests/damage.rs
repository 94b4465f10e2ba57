//! Damaged pages: each kind is noticed and named, by readers, by checkpoints, at boot.

use super::*;
use std::collections::BTreeSet;

/// A store whose file has every kind of page, and nothing old in it.
fn prepared() -> (MemoryDisk, Model) {
    let (mut disk, mut store) = created();
    let mut model = Model::default();
    let mut batch = Batch::default();
    for main in 2..700 {
        batch.records.push(record(
            main,
            &format!("key-{main}"),
            if main % 2 == 0 { 700 } else { 300 },
        ));
    }
    batch.records.push(record(700, "long", 50_000));
    for lease in 0..300u32 {
        batch
            .trees
            .push((TreeId::Leases, lease.to_be_bytes().to_vec(), Some(vec![1; 100].into())));
    }
    batch
        .trees
        .push((TreeId::Users, b"root".to_vec(), Some(vec![1; 3000].into())));
    store.run(&mut disk, batch.cut()).unwrap().unwrap();
    model.apply(&batch);
    (disk, model)
}

fn flip(disk: &mut MemoryDisk, offset: u64) {
    let inode = disk.volume().resolve(Path::new(PATH)).unwrap();
    let contents = disk.volume_mut().contents_mut(inode).unwrap();
    let mut byte = [0];
    contents.read(offset, &mut byte);
    contents.write(offset, &[byte[0] ^ 0x10]);
}

/// Opens and reads a file with a damaged page: what kind of page is said to be damaged, and which. `None` when the page
/// is in nobody's use.
fn find_damage(disk: &mut MemoryDisk, page: u64, offset: u64, model: &Model) -> Option<(&'static str, u64)> {
    let mut store = match PageStore::open(disk, Path::new(PATH), options()) {
        Err(StoreFailure::Meta {
            page, offset: sector, ..
        }) => {
            assert_eq!(sector, offset / 512 * 512);
            return Some(("meta", page as u64));
        }
        Err(StoreFailure::Corrupt { source, .. }) => return Some(("free list", u64::from(source.page))),
        Err(other) => panic!("{other}"),
        Ok(store) => store,
    };
    if page < 2 {
        assert_eq!(store.take_warnings().len(), 1);
        return Some(("older meta", page));
    }
    let root = store.root().clone();
    match dump(disk, &store, &root) {
        Ok(found) => {
            let sound = found == *model && store.check(disk).is_ok();
            assert!(sound, "page {page} reads wrong unnoticed");
            None
        }
        Err(ReadFailure::Corrupt(corrupt)) => {
            assert!(store.check(disk).is_err());
            assert_eq!(corrupt.offset, u64::from(corrupt.page) * 8192);
            let name = format!("page {} at byte offset {}", corrupt.page, corrupt.offset);
            assert!(corrupt.to_string().contains(&name));
            let kind = if corrupt.reason.contains("values") {
                "extent"
            } else {
                "node"
            };
            Some((kind, u64::from(corrupt.page)))
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_flipped_bit_in_any_page_is_noticed_and_named() {
    let (disk, model) = prepared();
    let length = {
        let inode = disk.volume().resolve(Path::new(PATH)).unwrap();
        disk.volume().contents(inode).unwrap().length()
    };
    let mut noticed = BTreeSet::new();
    let mut unnoticed = 0;
    for page in 0..length / 8192 {
        let offset = page * 8192 + (page * 1237) % 8192;
        let mut disk = disk.clone();
        flip(&mut disk, offset);
        let Some((kind, named)) = find_damage(&mut disk, page, offset, &model) else {
            unnoticed += 1;
            continue;
        };
        noticed.insert(kind);
        // An extent is named by its first page.
        assert!(named <= page && page < named + 7, "page {page}, named {named}");
    }
    assert_eq!(noticed, ["extent", "free list", "meta", "node", "older meta"].into());
    let used = PageStore::open(&mut disk.clone(), Path::new(PATH), options())
        .unwrap()
        .size_in_use()
        / 8192;
    assert_eq!(
        unnoticed,
        length / 8192 - used,
        "only pages in nobody's use may be damaged unnoticed"
    );
}

#[test]
fn a_checkpoint_that_meets_a_damaged_page_is_given_up_and_others_still_work() {
    let (disk, mut model) = prepared();
    let mut disk = disk.clone();
    let mut store = PageStore::open(&mut disk, Path::new(PATH), options()).unwrap();
    let root = store.root().clone();
    let mut cache = PageCache::new(1 << 20);
    let ahead = loop {
        let ahead = RecordScan::new(RecordId::new(100, 0)).ahead(&root, &mut cache, 1, false);
        let (bytes, length) = disk.read(store.file(), ahead[0].offset(), ahead[0].length()).unwrap();
        root.insert(&mut cache, &ahead[0], &bytes[..length]).unwrap();
        if root.record(&mut cache, RecordId::new(101, 0)).is_ok() {
            break ahead[0];
        }
    };
    flip(&mut disk, ahead.offset() + 5000);
    let mut batch = Batch {
        deletes: vec![RecordId::new(100, 0)],
        ..Batch::default()
    };
    match store.run(&mut disk, batch.cut()).unwrap() {
        Err(Aborted::Corrupt(corrupt)) => assert_eq!(corrupt.offset, ahead.offset()),
        other => panic!("{other:?}"),
    }
    batch.deletes = vec![RecordId::new(600, 0)];
    batch.records.push(record(701, "more", 10));
    store.run(&mut disk, batch.cut()).unwrap().unwrap();
    model.apply(&batch);
    let root = store.root().clone();
    let failure = dump(&mut disk, &store, &root).unwrap_err();
    assert!(matches!(failure, ReadFailure::Corrupt(corrupt) if corrupt.offset == ahead.offset()));
    flip(&mut disk, ahead.offset() + 5000);
    assert_sound(&mut disk, &store, &model);
}

#[test]
fn a_file_cut_short_is_refused_with_its_length() {
    let (disk, _) = prepared();
    let inode = disk.volume().resolve(Path::new(PATH)).unwrap();
    for length in [0, 5000, 8192, 16384, 100_000] {
        let mut disk = disk.clone();
        disk.volume_mut().contents_mut(inode).unwrap().truncate(length);
        match PageStore::open(&mut disk, Path::new(PATH), options()) {
            Err(StoreFailure::Meta { .. }) => assert!(length < 16384),
            Err(StoreFailure::Cut {
                length: found, needed, ..
            }) => assert!(found == length && needed > length),
            other => panic!("{length}: {other:?}"),
        }
    }
}
