//! The safety rules of the log, one by one, each by what it prevents.

use super::*;
use crate::io::disk::Operation;
use crate::io::faulty::{Event, Fault};
use crate::io::volume::Contents;
use crate::wal::frame::MarkKey;
use crate::wal::record::Metadata;
use crate::wal::segment::{SegmentName, write_head};

/// Three batches of one entry each; where each begins, and where the last ends.
fn three_batches(length: usize) -> (Bench, [u64; 4]) {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    let mut ends = [end(&bench); 4];
    for (place, index) in (1..=3).enumerate() {
        bench.put(1, index, length);
        bench.flush();
        ends[place + 1] = end(&bench);
    }
    (bench, ends)
}

/// Where the last segment's records end.
fn end(bench: &Bench) -> u64 {
    let bytes = contents(&bench.disk, &last_path(bench)).to_vec();
    let last = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    last.next_multiple_of(8) as u64
}

fn last_path(bench: &Bench) -> std::path::PathBuf {
    bench.segment_path(bench.writer.segments().len() - 1)
}

fn contents<'a>(disk: &'a FaultyDisk, path: &Path) -> &'a Contents {
    disk.volume().contents(disk.volume().resolve(path).unwrap()).unwrap()
}

fn flip(contents: &mut Contents, offset: u64) {
    let mut byte = [0];
    contents.read(offset, &mut byte);
    contents.write(offset, &[byte[0] ^ 1]);
}

fn refusal(disk: &mut FaultyDisk) -> (std::path::PathBuf, u64, String) {
    match reopen(disk, 0) {
        Err(Error::Corrupt { path, offset, reason }) => (path, offset, reason),
        Err(error) => panic!("{error}"),
        Ok(recovered) => panic!("{} entries were recovered", recovered.entries.len()),
    }
}

fn position(events: &[Event], from: usize, wanted: impl Fn(&Event) -> bool) -> usize {
    from + events[from..]
        .iter()
        .position(wanted)
        .unwrap_or_else(|| panic!("not in {:#?}", &events[from..]))
}

#[test]
fn rule_1_what_was_only_in_the_cache_is_synced_before_it_is_believed() {
    let lost = |sync: bool| {
        let options = Options {
            unsafe_no_fsync: !sync,
            ..options()
        };
        let mut lost = 0;
        for seed in 0..100 {
            let mut bench = Bench::new(FaultyDisk::new(seed), super::options());
            bench.put(1, 1, 3000);
            bench.submit();
            bench.disk.kill(seed);
            let recovered = recover(&mut bench.disk, Path::new(DIRECTORY), options.clone(), 0, 0).unwrap();
            bench.disk.power_cut(seed);
            let again = reopen(&mut bench.disk, 0).unwrap();
            lost += usize::from(again.entries != recovered.entries);
        }
        lost
    };
    assert_eq!(lost(true), 0);
    assert!(
        lost(false) > 5,
        "without the sync, entries that raft was shown are gone"
    );
}

#[test]
fn rule_1_a_name_that_was_only_in_the_cache_is_synced_before_anything_is_acknowledged_under_it() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    bench.disk.set_delay_us(1..50);
    let mut index = 0;
    while !bench
        .disk
        .events()
        .iter()
        .any(|event| event.operation == "rename" && event.path.ends_with("wal/0.tmp"))
    {
        index += 1;
        bench.put(1, index, 3000);
        bench.step().unwrap();
    }
    bench.disk.kill(1);
    bench.disk.clear_events();
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!(recovered.writer.segments().len(), 2, "the name is there");
    let last = recovered.writer.last_index();
    let mut bench = Bench {
        writer: recovered.writer,
        disk: bench.disk,
    };
    bench.put(1, last + 1, 100);
    bench.flush();
    for seed in 0..30 {
        let recovered = reopen(&mut bench.disk.after_power_cut(seed), 0).unwrap();
        assert_eq!(recovered.writer.last_index(), last + 1);
    }
}

#[test]
fn rule_2_damage_before_a_mark_refuses_the_start_and_names_file_and_offset() {
    let (bench, starts) = three_batches(2000);
    for batch in 0..2 {
        // A flipped bit, and a sector of zeros as a tear would leave it.
        let changes: [fn(&mut Contents, u64); 2] = [
            |contents, start| flip(contents, start + 1000),
            |contents, start| contents.write((start + 1000) / 512 * 512, &[0; 512]),
        ];
        for change in changes {
            let mut disk = bench.disk.clone();
            disk.tamper(&last_path(&bench), |contents| change(contents, starts[batch]));
            let (path, offset, reason) = refusal(&mut disk);
            assert_eq!(path, last_path(&bench));
            assert!(offset >= starts[batch] && offset < starts[batch + 1]);
            assert!(
                reason.contains(&format!("a later batch begins at offset {}", starts[batch + 1])),
                "{reason}"
            );
            assert_eq!(contents(&disk, &path).to_vec().len() as u64, SEGMENT, "untouched");
        }
    }
}

#[test]
fn rule_2_a_lost_mark_with_marks_behind_it_refuses_the_start() {
    let (mut bench, starts) = three_batches(2000);
    bench.disk.tamper(&last_path(&bench), |contents| {
        contents.write(starts[1] / 8 * 8, &[0; 1024])
    });
    let (_, offset, reason) = refusal(&mut bench.disk);
    assert_eq!(offset, starts[1]);
    assert!(
        reason.starts_with("a record's beginning is missing; a later batch begins"),
        "{reason}"
    );
}

#[test]
fn rule_2_a_torn_tail_is_cut_and_a_rotten_one_is_not() {
    let (bench, starts) = three_batches(2000);
    let mut torn = bench.disk.clone();
    torn.tamper(&last_path(&bench), |contents| {
        contents.write((starts[2] + 1000) / 512 * 512, &[0; 512])
    });
    let recovered = reopen(&mut torn, 0).unwrap();
    assert_eq!(recovered.entries.len(), 2);
    let repair = recovered.repair.unwrap();
    assert!(repair.offset > starts[2] && repair.offset < starts[3]);
    assert_eq!(repair.path, last_path(&bench));

    let mut rotten = bench.disk.clone();
    rotten.tamper(&last_path(&bench), |contents| flip(contents, starts[2] + 1000));
    assert!(refusal(&mut rotten).2.starts_with("checksum is 0x"));
}

#[test]
fn rule_2_the_cut_is_zeroed_to_the_end_and_synced_before_the_first_append() {
    let (mut bench, starts) = three_batches(9_000);
    bench.disk.tamper(&last_path(&bench), |contents| {
        contents.write((starts[1] + 600) / 512 * 512, &[0; 512])
    });
    bench.disk.tamper(&last_path(&bench), |contents| {
        // The third batch was never written; the second's torn part reaches over many blocks.
        contents.write(starts[2], &vec![0; (starts[3] - starts[2]) as usize]);
    });
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    let cut = recovered.repair.as_ref().unwrap().offset;
    let durable = bench.disk.durable_contents(&last_path(&bench)).unwrap().to_vec();
    assert!(
        durable[cut as usize..].iter().all(|&byte| byte == 0),
        "zeros, and durable"
    );

    let mut bench = Bench {
        writer: recovered.writer,
        disk: bench.disk,
    };
    bench.put(2, 2, 100);
    bench.flush();
    bench.disk.power_cut(1);
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!(recovered.repair, None);
    assert_eq!(recovered.entries[1..], [entry(2, 2, 100)]);
}

#[test]
fn rule_2_what_clients_store_never_looks_like_a_mark() {
    let (mut bench, starts) = three_batches(100);
    // A client stores what it read of the log itself, at every alignment.
    let log = contents(&bench.disk, &last_path(&bench)).to_vec();
    let mut data = Vec::new();
    for shift in 0..8 {
        data.extend_from_slice(&log[..starts[3] as usize]);
        data.resize(data.len() + shift, 7);
    }
    bench.writer.append(
        &[Entry {
            kind: 0,
            term: 1,
            index: 4,
            data: data.into(),
        }],
        None,
    );
    bench.flush();
    bench.disk.tamper(&last_path(&bench), |contents| {
        contents.write((starts[3] / 512 + 1) * 512, &[0; 512])
    });
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!(
        recovered.entries.len(),
        3,
        "torn, and nothing behind it is mistaken for a batch"
    );
}

#[test]
fn rule_3_the_tail_block_is_rewritten_with_an_identical_prefix() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    let mut before = contents(&bench.disk, &last_path(&bench)).to_vec();
    for index in 1..40 {
        let end = end(&bench) as usize;
        bench.put(1, index, index as usize * 5);
        bench.flush();
        let after = contents(&bench.disk, &last_path(&bench)).to_vec();
        assert_eq!(after[..end], before[..end]);
        before = after;
    }
}

/// What is left when power fails on a medium that damages the whole block it was writing, and a block with acknowledged
/// bytes in it was being written.
fn after_a_shorn_block(pad_batches: bool) -> Result<Recovered, Error> {
    let options = Options {
        pad_batches,
        ..options()
    };
    let mut bench = Bench::new(FaultyDisk::new(1), options.clone());
    bench.put(1, 1, 100);
    bench.flush();
    let path = last_path(&bench);
    bench.disk.clear_events();
    bench.put(1, 2, 100);
    let mut in_flight = bench.disk.clone();
    bench.flush();
    let write = bench.disk.events().iter().find(|event| event.durable).unwrap().clone();
    in_flight.tamper(&path, |contents| {
        contents.write(write.offset, &vec![0xa5; write.length as usize])
    });
    in_flight.power_cut(1);
    recover(&mut in_flight, Path::new(DIRECTORY), options, 0, 0)
}

#[test]
fn rule_3_a_medium_that_shears_blocks_needs_padded_batches() {
    assert!(after_a_shorn_block(false).is_err(), "refused rather than believed");
    let recovered = after_a_shorn_block(true).unwrap();
    assert_eq!(recovered.entries, [entry(1, 1, 100)]);
    assert!(recovered.repair.is_some());
}

#[test]
fn rule_4_a_segment_is_made_zeroed_synced_headed_named_and_synced_before_its_first_batch() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    bench.disk.clear_events();
    for index in 1..=12 {
        bench.put(1, index, 3000);
        bench.flush();
    }
    assert_eq!(bench.writer.segments().len(), 2);
    let events: Vec<Event> = bench.disk.events().iter().cloned().collect();
    let temporary = Path::new(DIRECTORY).join("0.tmp");
    let (old, new) = (bench.segment_path(0), bench.segment_path(1));
    let on = |path: &Path, operation: &'static str| {
        let path = path.to_path_buf();
        move |event: &Event| event.path == path && event.operation == operation
    };
    let opened = position(&events, 0, on(&temporary, "open"));
    let allocated = position(&events, opened, on(&temporary, "allocate"));
    let zeroed = position(&events, allocated, on(&temporary, "write"));
    assert_eq!((events[zeroed].offset, events[zeroed].length), (0, SEGMENT));
    let synced = position(&events, zeroed, on(&temporary, "sync"));
    let headed = position(&events, synced, on(&temporary, "write"));
    assert!(events[headed].durable);
    let named = position(&events, headed, on(&temporary, "rename"));
    let settled = position(&events, named, on(Path::new(DIRECTORY), "sync directory"));
    let first = position(&events, settled, on(&new, "write"));
    assert!(events[first].durable);
    assert!(
        events[..settled].iter().all(|event| event.path != new),
        "nothing is written under the new name before"
    );
    let last_of_old = events.iter().rposition(on(&old, "write")).unwrap();
    assert!(
        last_of_old < headed,
        "all of the old segment is durable before the new one is"
    );
    assert_eq!(events[first].offset, 0);
}

#[test]
fn rule_4_an_empty_segment_after_the_last_is_dropped_and_its_number_used_again() {
    for length in [0, SEGMENT] {
        let (mut bench, _) = three_batches(100);
        let name = SegmentName {
            sequence: 1,
            first_index: 4,
        };
        let path = Path::new(DIRECTORY).join(name.file_name());
        let mode = crate::io::disk::OpenMode::CreateNew;
        let (file, _) = bench.disk.open(&path, mode).unwrap();
        bench.disk.call(Operation::Truncate { file, length }).unwrap();
        let recovered = reopen(&mut bench.disk, 0).unwrap();
        assert_eq!(recovered.entries.len(), 3);
        assert!(
            bench
                .disk
                .open(&path, crate::io::disk::OpenMode::Existing)
                .unwrap_err()
                .is_not_found()
        );
        let mut bench = Bench {
            writer: recovered.writer,
            disk: bench.disk,
        };
        bench.put_all(4..=20, 3000);
        bench.flush();
        assert_eq!(reopen(&mut bench.disk, 0).unwrap().entries.len(), 20);
    }
}

#[test]
fn a_segment_that_is_missing_foreign_or_unchained_refuses_the_start() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    (1..=60).for_each(|index| {
        bench.put(1, index, 2000);
        bench.flush();
    });
    assert!(bench.writer.segments().len() >= 4);
    let (first, second) = (bench.segment_path(0), bench.segment_path(1));
    let names: Vec<SegmentName> = bench.writer.segments().collect();

    let mut missing = bench.disk.clone();
    missing.call(Operation::Remove { path: second.clone() }).unwrap();
    let error = reopen(&mut missing, 0).err().unwrap();
    let expected = format!(
        "entries after 0 are needed, but /wal begins at {}",
        names[2].first_index
    );
    assert!(error.to_string().contains(&expected), "{error}");
    assert!(
        reopen(&mut missing, names[2].first_index).is_ok(),
        "what lies before the gap is not needed"
    );

    let mut cut_short = bench.disk.clone();
    cut_short.tamper(&first, |contents| contents.write(SEGMENT - 8192, &[0; 8192]));
    let (path, offset, reason) = refusal(&mut cut_short);
    assert!(path == first || (path == second && offset == 0), "{reason}");

    let mut foreign = bench.disk.clone();
    let mut head = vec![0; 4096];
    let other = Metadata { node_id: 1, ..METADATA };
    let crc = {
        let bytes = contents(&foreign, &first).to_vec();
        let scanned = crate::wal::segment::scan(&bytes, 0, None, |_, _, _| Ok::<_, Error>(()));
        scanned.unwrap().crc
    };
    write_head(&mut head, names[1], crc, &other, &HardState::default(), MarkKey(1));
    foreign.tamper(&second, |contents| contents.write(0, &head));
    let (path, _, reason) = refusal(&mut foreign);
    assert_eq!(path, second);
    assert_eq!(
        reason,
        "the log belongs to member abc of cluster def, this segment to member 1 of cluster def"
    );

    let mut unchained = bench.disk.clone();
    write_head(
        &mut head,
        names[1],
        crc ^ 1,
        &METADATA,
        &HardState::default(),
        MarkKey(1),
    );
    unchained.tamper(&second, |contents| contents.write(0, &head));
    let reason = refusal(&mut unchained).2;
    assert!(
        reason.contains("it does not continue 0000000000000000-0000000000000000.wal"),
        "{reason}"
    );
}

#[test]
fn damage_in_a_segment_that_is_not_the_last_refuses_the_start() {
    let mut bench = Bench::new(FaultyDisk::new(1), options());
    for index in 1..=20 {
        bench.put(1, index, 2500);
        bench.flush();
    }
    let path = bench.segment_path(0);
    let length = contents(&bench.disk, &path).length();
    let bytes = contents(&bench.disk, &path).to_vec();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() as u64;
    bench
        .disk
        .tamper(&path, |contents| contents.write(end / 512 * 512, &[0; 512]));
    assert_eq!(contents(&bench.disk, &path).length(), length);
    assert_eq!(refusal(&mut bench.disk).0, path);
}

#[test]
fn a_failed_operation_is_fatal_and_nothing_is_tried_again() {
    let cases = [
        ("write", "0000000000000000-0000000000000000.wal", libc::EIO),
        ("write", "0000000000000000-0000000000000000.wal", libc::ENOSPC),
        ("write", "0.tmp", libc::EIO),
        ("sync", "0.tmp", libc::EIO),
        ("rename", "0.tmp", libc::EIO),
        ("sync directory", "wal", libc::EIO),
        ("write", "0000000000000001", libc::EIO),
    ];
    for (operation, path, errno) in cases {
        let mut bench = Bench::new(FaultyDisk::new(1), options());
        bench.disk.set_delay_us(1..50);
        bench.disk.add_fault(Fault {
            operation,
            path: path.into(),
            skip: 0,
            times: 1,
            errno,
        });
        let mut index = 0;
        let error = loop {
            index += 1;
            bench.put(1, index, 3000);
            match bench.step() {
                Ok(_) => assert!(index < 1000, "{operation} {path} was never tried"),
                Err(error) => break error,
            }
        };
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("log: {operation} ")) && text.contains(path),
            "{text}"
        );
        assert!(text.contains(&format!("os error {errno}")), "{text}");
        assert!(bench.writer.has_failed());
        while bench.disk.in_flight() > 0 {
            let _ = bench.step();
        }
        bench.put(1, index + 1, 10);
        bench.submit();
        assert_eq!(bench.disk.in_flight(), 0);
        assert!(bench.disk.violations().is_empty());
        assert_eq!(bench.writer.deadline(), None);
    }
}

#[test]
fn leftovers_of_an_earlier_life_are_removed() {
    let (mut bench, _) = three_batches(100);
    while bench.disk.list(Path::new(DIRECTORY)).unwrap().len() < 2 {
        bench.step().unwrap();
    }
    bench.disk.kill(1);
    let recovered = reopen(&mut bench.disk, 0).unwrap();
    assert_eq!(bench.disk.list(Path::new(DIRECTORY)).unwrap().len(), 1);
    let mut bench = Bench {
        writer: recovered.writer,
        disk: bench.disk,
    };
    bench.settle();
}
