//! Entry points for fuzzers: arbitrary bytes as a pair of etcd's backend, and as a database file that is taken over.

use super::{Import, ImportProgress, Row, names};
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, OpenMode, Operation};
use crate::io::memory::MemoryDisk;
use crate::pages::{Options, PageStore};
use std::path::Path;

/// Takes the bytes for a pair: the first says which bucket, the second how long the key is. What is understood has to
/// come back from its own bytes.
pub fn row(bytes: &[u8]) {
    let [bucket, key_length, rest @ ..] = bytes else {
        return;
    };
    let bucket = names::BUCKETS[usize::from(*bucket) % names::BUCKETS.len()];
    let (key, value) = rest.split_at(rest.len().min(usize::from(*key_length)));
    if let Ok(Some(row)) = Row::decode(bucket, key, value) {
        let (again, key, value) = row.encode();
        assert_eq!(again, bucket);
        assert_eq!(Row::decode(bucket, &key, &value), Ok(Some(row)));
    }
}

/// Takes the bytes over. Whether they were a database; then the page file has to be sound.
pub fn import(bytes: &[u8]) -> bool {
    let mut disk = MemoryDisk::new();
    let [database, pages] = ["/fuzz.db", "/fuzz.ringd"].map(Path::new);
    let put = |disk: &mut MemoryDisk| {
        let (file, _) = disk.open(database, OpenMode::CreateNew)?;
        let mut buffer = AlignedBuffer::zeroed(bytes.len().max(1));
        buffer[..bytes.len()].copy_from_slice(bytes);
        let (offset, durable) = (0, true);
        disk.call(Operation::Write {
            file,
            offset,
            buffer,
            durable,
        })?;
        disk.call(Operation::Close { file })
    };
    let options = || Options::new(0..8);
    if put(&mut disk).is_err() {
        return false;
    }
    let Ok(mut import) = Import::new(&mut disk, database, pages, options()) else {
        return false;
    };
    let imported = loop {
        match import.step(&mut disk) {
            Ok(ImportProgress::More(_)) => {}
            Ok(ImportProgress::Done(imported)) => break imported,
            Err(_) => {
                import.abandon(&mut disk).expect("a disk in memory");
                return false;
            }
        }
    };
    let store = PageStore::open(&mut disk, pages, options()).expect("a page file just made");
    store.check(&mut disk).expect("a sound page file");
    assert_eq!(*store.root().fields(), imported.fields);
    true
}
