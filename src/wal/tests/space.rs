//! Space: running out of it, and giving it back by trimming the log.

use super::*;
use crate::io::faulty::{Event, Fault};
use crate::wal::segment::SegmentName;

#[test]
fn without_space_for_the_next_segment_the_log_says_so_goes_on_and_recovers_by_itself() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    bench.disk.set_capacity(Some(SEGMENT + 8192));
    bench.step().unwrap();
    while !bench.writer.no_space() {
        bench.step().unwrap();
    }
    bench.put(1, 1, 3000);
    bench.flush();
    assert!(
        bench.writer.no_space(),
        "what is in the current segment is still written"
    );

    bench.put_all(2..=20, 3000);
    for _ in 0..100 {
        bench.step().unwrap();
    }
    assert!(!bench.writer.is_idle(), "the rest waits for space");
    assert!(bench.disk.now() >= 5_000_000, "and is tried again in good time");
    let last_written = bench.writer.durable();
    bench.disk.set_capacity(None);
    assert!(bench.flush() > last_written);
    assert!(!bench.writer.no_space());
    bench.disk.power_cut(1);
    assert_eq!(reopen(&mut bench.disk, 0).unwrap().entries.len(), 20);
}

#[test]
fn space_that_runs_out_while_zeroing_is_survived_too() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    bench.disk.clear_events();
    bench.disk.add_fault(Fault {
        operation: "write",
        path: "0.tmp".into(),
        skip: 0,
        times: 2,
        errno: libc::ENOSPC,
    });
    bench.disk.add_fault(Fault {
        operation: "open",
        path: "0.tmp".into(),
        skip: 0,
        times: 2,
        errno: libc::EDQUOT,
    });
    for index in 1..=20 {
        bench.put(1, index, 3000);
        bench.flush();
    }
    assert!(!bench.writer.no_space());
    let errors: Vec<&Event> = bench
        .disk
        .events()
        .iter()
        .filter(|event| event.error.is_some())
        .collect();
    assert_eq!(errors.len(), 4, "{errors:#?}");
    assert_eq!(reopen(&mut bench.disk, 0).unwrap().entries.len(), 20);
}

#[test]
fn rule_5_only_what_was_released_is_trimmed_and_max_wals_are_kept() {
    let mut bench = Bench::new(
        FaultyDisk::new(1),
        Options {
            max_wals: 2,
            ..options()
        },
    );
    (1..=80).for_each(|index| {
        bench.put(1, index, 3000);
        bench.flush();
    });
    bench.settle();
    assert!(bench.writer.segments().len() > 6, "nothing was released");
    let third = bench.writer.segments().nth(2).unwrap();
    bench.writer.release_to(third.first_index);
    bench.settle();
    assert_eq!(
        bench.writer.segments().next().unwrap().sequence,
        1,
        "the entry at the index itself stays, and before"
    );
    bench.writer.release_to(third.first_index + 1);
    bench.settle();
    assert_eq!(bench.writer.segments().next(), Some(third));
    assert!(reopen(&mut bench.disk.clone(), third.first_index).is_ok());
    assert!(reopen(&mut bench.disk.clone(), third.first_index - 2).is_err());
    bench.writer.release_to(80);
    bench.settle();
    assert_eq!(bench.writer.segments().len(), 2);
    let names = bench.disk.list(Path::new(DIRECTORY)).unwrap();
    assert_eq!(names.iter().filter(|name| name.ends_with(".wal")).count(), 2);
}

#[test]
fn segments_are_removed_one_by_one_so_that_no_gap_can_arise() {
    let mut bench = Bench::new(
        FaultyDisk::new(1),
        Options {
            max_wals: 1,
            ..options()
        },
    );
    (1..=80).for_each(|index| {
        bench.put(1, index, 3000);
        bench.flush();
    });
    bench.settle();
    bench.disk.set_delay_us(10..200);
    bench.writer.release_to(80);
    let mut cuts = 0;
    while bench.writer.in_flight() > 0 || cuts < 30 {
        for seed in 0..5 {
            let mut disk = bench.disk.after_power_cut(seed);
            let names: Vec<SegmentName> = disk
                .list(Path::new(DIRECTORY))
                .unwrap()
                .iter()
                .filter_map(|name| SegmentName::parse(name))
                .collect();
            assert!(
                names.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence),
                "{names:?}"
            );
            cuts += 1;
        }
        bench.step().unwrap();
    }
}

#[test]
fn without_space_released_segments_go_whatever_max_wals_says() {
    let mut bench = Bench::new(
        FaultyDisk::new(1),
        Options {
            max_wals: 0,
            ..options()
        },
    );
    (1..=40).for_each(|index| {
        bench.put(1, index, 3000);
        bench.flush();
    });
    bench.settle();
    bench.writer.release_to(40);
    bench.settle();
    assert!(bench.writer.segments().len() > 3);
    bench.disk.set_capacity(Some(bench.disk.volume().allocated()));
    (41..=80).for_each(|index| {
        bench.put(1, index, 3000);
        bench.flush();
    });
    assert!(bench.writer.segments().next().unwrap().sequence > 0);
}
