//! Bytes, sizes, names, and reading what nobody wrote.

use super::*;
use crate::io::disk::Operation;
use crate::wal::record::{ConfState, Snapshot};
use crate::wal::segment::SegmentName;
use proptest::prelude::*;

/// The first 0x40 bytes of a log made by etcd 3.7.1 for member abc of cluster def.
const ETCD_HEAD: [u8; 0x40] = [
    0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x84, 0x08, 0x04, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x01, 0x10, 0xc6, 0xfd, 0xd8, 0x93, 0x0c, //
    0x1a, 0x06, 0x08, 0xbc, 0x15, 0x10, 0xef, 0x1b, 0x0e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x82, //
    0x08, 0x05, 0x10, 0xc0, 0x81, 0x8f, 0x84, 0x03, 0x1a, 0x04, 0x08, 0x00, 0x10, 0x00, 0x00, 0x00,
];
/// Its next frame, up to the payload: entry 1 of kind 1 and term 1 with 97 bytes from `&` on.
const ETCD_ENTRY: [u8; 25] = [
    0x73, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x85, 0x08, 0x02, 0x10, 0xba, 0xe5, 0xbf, 0xb1, 0x07, 0x1a, 0x69, 0x08,
    0x01, 0x10, 0x01, 0x18, 0x01, 0x22,
];
/// The frame after that: hard state 1, 7, 0.
const ETCD_STATE: [u8; 24] = [
    0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x03, 0x10, 0xb4, 0x9c, 0xa9, 0x80, 0x0d, 0x1a, 0x06, 0x08,
    0x01, 0x10, 0x07, 0x18, 0x00,
];

fn segment_bytes(bench: &Bench, position: usize) -> Vec<u8> {
    let volume = bench.disk.volume();
    let inode = volume.resolve(&bench.segment_path(position)).unwrap();
    volume.contents(inode).unwrap().to_vec()
}

#[test]
fn the_bytes_are_etcds_with_a_format_record_and_marks_between() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    let data: Vec<u8> = (0..97u8).map(|place| b'&' + place).collect();
    let entry = Entry {
        kind: 1,
        term: 1,
        index: 1,
        data: data.clone().into(),
    };
    bench.writer.append(
        &[entry],
        Some(&HardState {
            term: 1,
            vote: 7,
            commit: 0,
        }),
    );
    bench.flush();
    let bytes = segment_bytes(&bench, 0);
    assert_eq!(bytes.len() as u64, SEGMENT);
    let format = [
        0x14, 0, 0, 0, 0, 0, 0, 0x84, 0x08, 4, 0x10, 0xc0, 0x81, 0x8f, 0x84, 0x03, 0x1a, 10, b'F', 1, 0xed, 0x5e, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let mark = [
        0x0f, 0, 0, 0, 0, 0, 0, 0x81, 0x08, 4, 0x10, 0xc0, 0x81, 0x8f, 0x84, 0x03, 0x1a, 5, b'M',
    ];
    let mut at = 0;
    let mut expect = |part: &[u8], padding: usize| {
        assert_eq!(bytes[at..at + part.len()], *part, "at {at}");
        at += part.len() + padding;
    };
    expect(&ETCD_HEAD, 0);
    expect(&format, 0);
    expect(&mark, 4 + 1);
    expect(&ETCD_ENTRY, 1);
    expect(&data, 5);
    expect(&ETCD_STATE, 0);
    assert!(bytes[at..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_new_log_is_empty_and_says_whose_it_is() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    assert_eq!(bench.disk.list(Path::new("/")).unwrap(), ["wal"]);
    bench.disk.power_cut(3);
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!(
        (recovered.metadata, recovered.hard_state),
        (METADATA, HardState::default())
    );
    assert_eq!(recovered.snapshots, [Snapshot::default()]);
    assert!(recovered.entries.is_empty());
    let again = create(&mut bench.disk, Path::new(DIRECTORY), METADATA, options());
    assert_eq!(again.err().unwrap().to_string(), "log: /wal holds a log already");
    let missing = recover(&mut bench.disk, Path::new("/other"), options(), 0, 0);
    assert_eq!(missing.err().unwrap().to_string(), "log: no segment in /other");
}

#[test]
fn creating_is_atomic_with_and_without_the_directory() {
    for in_place in [false, true] {
        for skip in 0.. {
            let mut disk = FaultyDisk::new(skip);
            if in_place {
                disk.call(Operation::CreateDirectory { path: DIRECTORY.into() })
                    .unwrap();
                disk.call(Operation::SyncDirectory { path: "/".into() }).unwrap();
            }
            let fault = crate::io::faulty::Fault {
                operation: "",
                path: String::new(),
                skip,
                times: u64::MAX,
                errno: libc::EIO,
            };
            disk.add_fault(fault);
            let done = create(&mut disk, Path::new(DIRECTORY), METADATA, options()).is_ok();
            disk.clear_faults();
            disk.power_cut(skip);
            if done {
                assert!(reopen(&mut disk, 0).is_ok());
                break;
            }
            match crate::wal::exists(&mut disk, Path::new(DIRECTORY)).unwrap() {
                true => assert!(reopen(&mut disk, 0).is_ok(), "cut off after {skip} operations"),
                false => drop(create(&mut disk, Path::new(DIRECTORY), METADATA, options()).unwrap()),
            }
        }
    }
}

#[test]
fn an_entry_may_be_longer_than_a_batch_and_than_a_segment() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    let lengths = [100, 20_000, 70_000, 3_000_000, 5];
    for (index, length) in (1..).zip(lengths) {
        bench.put(1, index, length);
    }
    bench.flush();
    bench.disk.power_cut(1);
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    let read: Vec<usize> = recovered.entries.iter().map(|entry| entry.data.len()).collect();
    assert_eq!(read, lengths);
    assert_eq!(recovered.entries[3], entry(1, 4, 3_000_000));
}

#[test]
fn segments_are_named_by_the_index_that_follows_and_open_with_the_hard_state() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    for index in 1..=40 {
        bench
            .writer
            .append(&[entry(1, index, 2000)], Some(&state(1, index - 1)));
        bench.flush();
    }
    let names: Vec<SegmentName> = bench.writer.segments().collect();
    assert_eq!(names.len(), 3);
    assert_eq!(
        names[1],
        SegmentName {
            sequence: 1,
            first_index: 16
        }
    );
    assert_eq!(
        names[2],
        SegmentName {
            sequence: 2,
            first_index: 31
        }
    );
    let recovered = reopen(&mut bench.disk, 30).unwrap();
    assert_eq!(recovered.entries_after, 30);
    assert_eq!(recovered.term_after, Some(1));
    assert_eq!(recovered.entries.first(), Some(&entry(1, 31, 2000)));
    assert_eq!(recovered.hard_state, state(1, 39));
    let with_margin = recover(&mut bench.disk, Path::new(DIRECTORY), options(), 30, 7).unwrap();
    assert_eq!((with_margin.entries_after, with_margin.entries.len()), (23, 17));
}

#[test]
fn an_entry_at_an_old_index_ends_the_log_there() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    for index in 1..=9 {
        bench.put(1, index, 10);
    }
    bench.flush();
    bench
        .writer
        .append(&[entry(2, 4, 10), entry(2, 5, 10)], Some(&state(2, 3)));
    bench.flush();
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    let log: Vec<(u64, u64)> = recovered
        .entries
        .iter()
        .map(|entry| (entry.term, entry.index))
        .collect();
    assert_eq!(log, [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5)]);
    assert_eq!(recovered.writer.last_index(), 5);
}

#[test]
fn an_installed_snapshot_stands_for_the_entries_below_it() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    for index in 1..=5 {
        bench.put(1, index, 10);
    }
    let conf_state = Some(ConfState {
        voters: vec![1],
        ..ConfState::default()
    });
    let snapshot = Snapshot {
        index: 100,
        term: 3,
        conf_state,
    };
    bench.writer.save_snapshot(&snapshot);
    bench.flush();
    let uncommitted = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!(
        (uncommitted.entries_after, uncommitted.entries.len()),
        (0, 5),
        "nobody knows it to be committed"
    );

    let mut bench = Bench {
        writer: uncommitted.writer,
        disk: bench.disk,
    };
    bench.writer.append(&[], Some(&state(3, 100)));
    bench.flush();
    let installed = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!(
        (installed.entries_after, installed.term_after, installed.entries.len()),
        (100, Some(3), 0)
    );
    assert_eq!(installed.snapshots.last(), Some(&snapshot));

    let mut bench = Bench {
        writer: installed.writer,
        disk: bench.disk,
    };
    bench.put(3, 101, 10);
    bench.flush();
    let continued = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!((continued.entries_after, continued.entries.len()), (100, 1));
}

#[test]
fn gathers_while_a_batch_is_in_flight_and_never_waits_when_none_is() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    bench.settle();
    bench.disk.set_delay_us(100..101);
    bench.disk.clear_events();
    let first = bench.put(1, 1, 10);
    bench.submit();
    assert_eq!(bench.disk.in_flight(), 1, "a lone append is written at once");
    for index in 2..=20 {
        bench.put(1, index, 10);
        bench.submit();
    }
    assert_eq!(bench.disk.in_flight(), 1, "one batch is in flight");
    let persisted = bench.step().unwrap();
    assert_eq!(
        (persisted.len(), persisted[0].through, persisted[0].entries),
        (1, first, 1)
    );
    let persisted = bench.step().unwrap();
    assert_eq!((persisted[0].entries, persisted[0].last_index), (19, 20));
    assert!(bench.writer.is_idle());
    assert_eq!(
        bench
            .disk
            .events()
            .iter()
            .filter(|event| event.operation == "write")
            .count(),
        2
    );
    assert_eq!(
        bench.writer.append(&[], None),
        bench.writer.durable(),
        "nothing to write is durable"
    );
}

#[test]
fn a_batch_is_bounded_and_an_append_is_durable_when_all_of_it_is() {
    let options = Options {
        segment_bytes: 64 << 20,
        ..options()
    };
    let mut bench = Bench::new(FaultyDisk::new(1), options);
    let entries: Vec<Entry> = (1..=30).map(|index| entry(1, index, 100_000)).collect();
    let ticket = bench.writer.append(&entries, None);
    let mut through = Ticket(0);
    let mut batches = 0;
    while !bench.writer.is_idle() {
        for persisted in bench.step().unwrap() {
            assert!(persisted.bytes <= crate::limits::WAL_BATCH_BYTES_MAX);
            assert!(through < ticket);
            through = persisted.through;
            batches += 1;
        }
    }
    assert_eq!((batches, through), (3, ticket));
    assert_eq!(bench.writer.queued_bytes(), 0);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        crate::wal::fuzz(&bytes);
    }

    #[test]
    fn damaged_segments_are_read_without_panic(
        changes in prop::collection::vec((0..4000usize, any::<u8>()), 1..20),
        length in 0..5000usize,
    ) {
        static SEGMENT: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let segment = SEGMENT.get_or_init(|| {
            let mut bench = Bench::new(FaultyDisk::new(1), options());
            for index in 1..=20 {
                bench.writer.append(&[entry(1, index, 100)], Some(&state(1, index)));
                bench.flush();
            }
            segment_bytes(&bench, 0)
        });
        let mut bytes = segment.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(length);
        crate::wal::fuzz(&bytes);
    }
}

/// All entries from `low` on, read back from the log.
fn read_back(bench: &mut Bench, low: u64) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    while let Some(mut reading) = bench.writer.read_back(low + entries.len() as u64, u64::MAX) {
        let before = entries.len();
        while let Some(operation) = reading.operation() {
            let result = bench.disk.call(operation);
            entries.extend(reading.completed(result).unwrap().into_iter().flatten());
        }
        if entries.len() == before {
            break;
        }
    }
    entries
}

#[test]
fn entries_are_read_back_as_they_count_now() {
    let options = Options {
        segment_bytes: 256 << 10,
        ..options()
    };
    let mut bench = Bench::new(FaultyDisk::new(1), options.clone());
    let mut model: Vec<Entry> = Vec::new();
    let mut random = Random::new(9);
    for round in 1..400 {
        let first = match random.below(5) {
            0 => 1 + model.len() as u64 - random.below(model.len() as u64 / 4 + 1),
            _ => 1 + model.len() as u64,
        };
        model.truncate(first as usize - 1);
        let entries: Vec<Entry> = (first..=first + random.below(4))
            .map(|index| entry(round, index, random.below(9000) as usize))
            .collect();
        model.extend_from_slice(&entries);
        bench.writer.append(&entries, Some(&state(round, 0)));
        bench.flush();
        if round % 20 == 0 {
            let low = 1 + random.below(model.len() as u64);
            assert!(
                read_back(&mut bench, low) == model[low as usize - 1..],
                "round {round}, from {low}"
            );
        }
    }
    assert!(bench.writer.segments().len() > 10);
    let recovered = recover(&mut bench.disk, Path::new(DIRECTORY), options, 0, 0).unwrap();
    let mut bench = Bench {
        writer: recovered.writer,
        disk: bench.disk,
    };
    assert!(read_back(&mut bench, 1) == model);
    assert!(
        bench
            .writer
            .read_back(model.len() as u64 + 1, u64::MAX)
            .is_some_and(|mut reading| {
                let opened = bench.disk.call(reading.operation().unwrap());
                reading.completed(opened).unwrap();
                let read = bench.disk.call(reading.operation().unwrap());
                reading.completed(read).unwrap();
                let closed = bench.disk.call(reading.operation().unwrap());
                reading.completed(closed).unwrap() == Some(vec![])
            })
    );

    let path = bench.segment_path(bench.writer.segments().len() - 1);
    bench
        .disk
        .tamper(&path, |contents| contents.write(600, &[0xee; 100_000]));
    let mut reading = bench.writer.read_back(model.len() as u64, u64::MAX).unwrap();
    let opened = bench.disk.call(reading.operation().unwrap());
    reading.completed(opened).unwrap();
    let read = bench.disk.call(reading.operation().unwrap());
    let error = reading.completed(read).err().unwrap().to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
}
