//! Tests of the faulty disk.

use super::*;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::OpenMode;
use std::collections::BTreeSet;

fn filled(byte: u8, length: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(length);
    buffer.fill(byte);
    buffer
}

fn write(file: FileId, byte: u8, durable: bool) -> Operation {
    Operation::Write {
        file,
        offset: 0,
        buffer: filled(byte, 4096),
        durable,
    }
}

/// A disk with a durable file `/f` of one block of ones.
fn with_file() -> (FaultyDisk, FileId) {
    let mut disk = FaultyDisk::new(1);
    let (file, _) = disk.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    disk.call(write(file, 1, true)).unwrap();
    disk.call(Operation::SyncDirectory { path: "/".into() }).unwrap();
    (disk, file)
}

/// The distinct contents of `/f` over many power cuts.
fn outcomes(disk: &FaultyDisk) -> BTreeSet<Vec<u8>> {
    let contents = |seed| {
        let after = disk.after_power_cut(seed);
        let inode = after.volume().resolve(Path::new("/f")).unwrap();
        after.volume().contents(inode).unwrap().to_vec()
    };
    (0..200).map(contents).collect()
}

#[test]
fn what_was_synced_survives_and_what_was_not_is_torn_by_sector() {
    let (mut disk, file) = with_file();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![1; 4096]]));

    disk.call(write(file, 2, false)).unwrap();
    let torn = outcomes(&disk);
    assert!(
        torn.contains(&vec![1; 4096]) && torn.contains(&vec![2; 4096]),
        "all lost and all kept happen"
    );
    assert!(torn.len() > 20, "tears happen");
    for contents in &torn {
        for sector in contents.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is old or new");
        }
    }
    assert!(
        torn.iter().any(|contents| contents[0] == 1 && contents[512] == 2),
        "sectors are reordered"
    );

    disk.call(Operation::Sync { file }).unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![2; 4096]]));
}

#[test]
fn a_sync_covers_only_writes_that_completed_before_it_was_submitted() {
    for seed in 0..20 {
        let (mut disk, file) = with_file();
        disk.random = Random::new(seed);
        disk.submit(1, write(file, 2, false));
        disk.submit(2, Operation::Sync { file });
        disk.poll(&mut Vec::new());
        assert!(outcomes(&disk).contains(&vec![1; 4096]), "the write may be lost");
    }
}

#[test]
fn a_durable_write_survives_although_earlier_ones_of_the_same_sectors_do_not() {
    let (mut disk, file) = with_file();
    disk.call(write(file, 2, false)).unwrap();
    disk.call(write(file, 3, true)).unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![3; 4096]]));
}

#[test]
fn names_are_lost_unless_their_directory_was_synced() {
    let (mut disk, _) = with_file();
    disk.call(Operation::Rename {
        from: "/f".into(),
        to: "/g".into(),
    })
    .unwrap();
    let names = |disk: &FaultyDisk| -> BTreeSet<Vec<String>> {
        (0..50)
            .map(|seed| disk.after_power_cut(seed).list(Path::new("/")).unwrap())
            .collect()
    };
    assert_eq!(
        names(&disk),
        BTreeSet::from([vec!["f".to_string()], vec!["g".to_string()]])
    );
    disk.call(Operation::SyncDirectory { path: "/".into() }).unwrap();
    assert_eq!(names(&disk), BTreeSet::from([vec!["g".to_string()]]));
    disk.call(Operation::Remove { path: "/g".into() }).unwrap();
    assert_eq!(names(&disk).len(), 2);
}

#[test]
fn a_killed_process_loses_nothing_it_wrote_until_the_power_is_cut() {
    let (mut disk, file) = with_file();
    disk.call(write(file, 2, false)).unwrap();
    disk.kill(7);
    let (file, _) = disk.open(Path::new("/f"), OpenMode::Existing).unwrap();
    assert_eq!(disk.read(file, 0, 4096).unwrap().0[0], 2);
    assert!(outcomes(&disk).contains(&vec![1; 4096]));
    disk.call(Operation::Sync { file }).unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![2; 4096]]));
}

#[test]
fn operations_in_flight_may_happen_and_never_complete() {
    let (mut disk, file) = with_file();
    disk.submit(1, write(file, 2, true));
    let found = outcomes(&disk);
    assert!(found.contains(&vec![1; 4096]) && found.contains(&vec![2; 4096]) && found.len() > 2);
    disk.power_cut(1);
    let mut completions = Vec::new();
    disk.wait(&mut completions);
    assert!(completions.is_empty());
}

#[test]
fn faults_hit_what_they_name_and_a_failed_sync_loses_its_bytes_for_good() {
    let (mut disk, file) = with_file();
    let errno = libc::EIO;
    disk.add_fault(Fault {
        operation: "sync",
        path: "f".into(),
        skip: 1,
        times: 1,
        errno,
    });
    disk.call(Operation::Sync { file }).unwrap();
    disk.call(write(file, 2, false)).unwrap();
    let error = disk.call(Operation::Sync { file }).unwrap_err();
    assert_eq!(error.to_string(), "sync /f: Input/output error (os error 5)");
    assert!(disk.violations().is_empty());
    disk.call(Operation::Sync { file }).unwrap();
    assert_eq!(disk.violations().len(), 1, "the sync was tried again");
    assert_ne!(outcomes(&disk), BTreeSet::from([vec![2; 4096]]));
    assert_eq!(disk.read(file, 0, 4096).unwrap().0[0], 2, "the cache still shows it");
}

#[test]
fn delays_reorder_completions_and_waiting_moves_the_clock() {
    let (mut disk, file) = with_file();
    disk.set_delay_us(10..1000);
    for token in 0..10 {
        disk.submit(token, Operation::Sync { file });
    }
    let mut completions = Vec::new();
    disk.poll(&mut completions);
    assert!(completions.is_empty());
    while disk.in_flight() > 0 {
        let due = disk.next_due();
        disk.wait(&mut completions);
        assert_eq!(due, Some(disk.now()));
    }
    let tokens: Vec<u64> = completions.iter().map(|completion| completion.token).collect();
    assert_eq!(tokens.len(), 10);
    assert!(!tokens.is_sorted());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let (mut disk, file) = with_file();
        disk.random = Random::new(seed);
        disk.set_delay_us(0..100);
        for token in 0..20 {
            disk.submit(token, write(file, token as u8, token % 3 == 0));
        }
        let mut completions = Vec::new();
        while completions.len() < 10 {
            disk.wait(&mut completions);
        }
        disk.power_cut(seed);
        let inode = disk.volume().resolve(Path::new("/f")).unwrap();
        (disk.events().clone(), disk.volume().contents(inode).unwrap().to_vec())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_disk_whose_syncs_lie_loses_what_it_promised() {
    let (mut disk, file) = with_file();
    disk.set_syncs_lie(true);
    disk.call(write(file, 2, true)).unwrap();
    disk.call(Operation::Sync { file }).unwrap();
    assert!(outcomes(&disk).contains(&vec![1; 4096]));
}

#[test]
fn a_second_user_works_beside_what_is_in_flight_until_the_machine_dies() {
    let (mut disk, file) = with_file();
    disk.set_delay_us(1_000..1_001);
    disk.submit(1, write(file, 2, true));
    let mut aside = disk.aside(3);
    let (other, _) = aside.open(Path::new("/g"), OpenMode::CreateNew).unwrap();
    aside.call(write(other, 3, true)).unwrap();
    assert!(!aside.is_dead());
    let error = aside.call(Operation::Sync { file: other }).unwrap_err();
    assert!(aside.is_dead(), "{error}");
    assert_eq!((disk.in_flight(), disk.now()), (1, 0));
    disk.close_in_order();
    assert_eq!(disk.in_flight(), 0);
    let inode = disk.volume().resolve(Path::new("/f")).unwrap();
    assert_eq!(disk.volume().contents(inode).unwrap().to_vec(), [2; 4096]);
    assert_eq!(disk.durable_contents(Path::new("/g")).unwrap().to_vec(), [3; 4096]);
}
