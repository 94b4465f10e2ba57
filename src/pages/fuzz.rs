//! Entry points for fuzzers: arbitrary bytes as a file, as a page, as a free list. None may panic or take much memory.

use super::boot::{BootScan, Decoded};
use super::failure::StoreFailure;
use super::free::FreeSpace;
use super::meta;
use super::node::Node;
use super::page::{NodeRef, checksum};
use super::record::parse;
use super::store::{Options, PageStore};
use crate::io::disk::{Disk, OpenMode, Operation, Outcome};
use crate::io::memory::MemoryDisk;
use crate::limits::pages::PAGE_BYTES;
use std::path::Path;

/// Opens the bytes as a page file and walks everything it leads to. Whether the file was taken.
pub fn file(bytes: &[u8]) -> bool {
    let path = Path::new("/fuzz.ringd");
    let mut disk = MemoryDisk::new();
    let Ok((file, _)) = disk.open(path, OpenMode::CreateNew) else {
        return false;
    };
    let mut buffer = crate::io::buffer::AlignedBuffer::zeroed(bytes.len().max(1));
    buffer[..bytes.len()].copy_from_slice(bytes);
    if !matches!(
        disk.call(Operation::Write {
            file,
            offset: 0,
            buffer,
            durable: true
        }),
        Ok(Outcome::Written { .. })
    ) {
        return false;
    }
    let Ok(store) = PageStore::open(&mut disk, path, Options::new(0..8)) else {
        return false;
    };
    // A damaged parent can lead to the same page again and again; the check refuses the second visit.
    if store.check(&mut disk).is_err() {
        return false;
    }
    let Ok(mut scan) = BootScan::new(&store, &mut disk) else {
        return false;
    };
    while let Ok(Some(batch)) = scan.next(&store, &mut disk) {
        let visited = match batch.heads(|_| {}) {
            Ok(Decoded::Whole) => Ok(()),
            Ok(Decoded::KeysOutside) => scan.heads(&store, &mut disk, &batch, |_| Ok::<(), StoreFailure>(())),
            Err(_) => return false,
        };
        if visited.is_err() {
            return false;
        }
        scan.recycle(batch);
    }
    true
}

/// Takes the bytes for a node whose checksum is right, and reads every entry.
pub fn node(bytes: &[u8]) {
    let mut page = vec![0; PAGE_BYTES];
    let length = bytes.len().min(PAGE_BYTES);
    page[..length].copy_from_slice(&bytes[..length]);
    let (tree, level) = (page[5], page[6]);
    let number = u32::from_le_bytes([page[8], page[9], page[10], page[11]]);
    let generation = u64::from_le_bytes([
        page[16], page[17], page[18], page[19], page[20], page[21], page[22], page[23],
    ]);
    let mut reference = NodeRef {
        page: number,
        highest: number,
        generation,
        checksum: 0,
    };
    reference.checksum = checksum(reference.address(tree, level).kind, &page);
    page[..4].copy_from_slice(&reference.checksum.to_le_bytes());
    let address = reference.address(tree, level);
    if Node::check(&address, &page).is_err() {
        return;
    }
    let node = Node::new(&page);
    for index in 0..node.count() {
        if level > 0 {
            let (key, _) = node.child(index);
            node.child_index(key);
            continue;
        }
        let entry = node.leaf_entry(index);
        assert_eq!(node.lower_bound(entry.key), index);
        if let Some(parsed) = parse(&entry)
            && entry.outside.is_none()
        {
            parsed.view(&[]);
        }
    }
}

/// Takes the bytes for a meta page, and for a free list.
pub fn meta_page(bytes: &[u8]) {
    let mut page = vec![0; PAGE_BYTES];
    let length = bytes.len().min(PAGE_BYTES);
    page[..length].copy_from_slice(&bytes[..length]);
    let slot = meta::inspect(&page);
    drop(meta::choose([slot.clone(), meta::Slot::Empty]));
    drop(meta::choose([meta::Slot::Empty, slot]));
    drop(FreeSpace::decode(bytes, 5, 1000));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{PATH, created, record};
    use super::super::{Cut, StateFields};
    use super::*;
    use proptest::prelude::*;

    fn a_file() -> Vec<u8> {
        let (mut disk, mut store) = created();
        for round in 0..3 {
            let mut cut = Cut::new(StateFields::default(), 0);
            cut.records = Box::new((0..300).map(move |at| record(2 + round * 300 + at, "key", (at * 5) as usize)));
            store.run(&mut disk, cut).unwrap().unwrap();
        }
        let contents = disk.volume().resolve(Path::new(PATH)).unwrap();
        disk.volume().contents(contents).unwrap().to_vec()
    }

    #[test]
    fn a_sound_file_is_walked_and_a_cut_one_is_not() {
        let whole = a_file();
        assert!(file(&whole));
        for length in [0, 1, 4096, 8192, 16384, 40000] {
            assert!(!file(&whole[..length]));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_changed_file_does_no_harm(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(a_file);
            let mut changed = WHOLE.clone();
            for (at, byte) in changes {
                *at.get_mut(&mut changed) = byte;
            }
            file(&changed);
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..20_000)) {
            prop_assert!(!file(&bytes));
            node(&bytes);
            meta_page(&bytes);
        }

        #[test]
        fn nearly_sound_nodes_do_no_harm(
            count in 0u16..6, used in 0u16..200, level in 0u8..3, body in prop::collection::vec(0u8..40, 0..200),
        ) {
            let mut page = vec![0, 0, 0, 0, 1, 0, level, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
            page.extend_from_slice(&count.to_le_bytes());
            page.extend_from_slice(&used.to_le_bytes());
            page.extend_from_slice(&[0; 4]);
            page.extend_from_slice(&body);
            node(&page);
        }
    }
}
