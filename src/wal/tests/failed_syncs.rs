//! What a failed sync dropped although reads go on showing it: no later start takes it for durable.

use super::*;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{OpenMode, Operation};
use crate::io::faulty::Fault;
use crate::wal::frame::{FRAME_HEADER, FrameWriter, MarkKey};
use crate::wal::record::RecordKind;
use crate::wal::segment::{SegmentName, write_head};

/// A start that dies of a failed sync, the first behind `skip` of the log's, in its process only: what the sync dropped
/// still shows.
fn die_of_a_failed_sync(disk: &mut FaultyDisk, options: &Options, skip: u64, seed: u64) {
    disk.add_fault(Fault {
        operation: "sync",
        path: ".wal".into(),
        skip,
        times: 1,
        errno: libc::EIO,
    });
    let died = recover(disk, Path::new(DIRECTORY), options.clone(), 0, 0);
    assert!(matches!(died, Err(Error::Disk(_))));
    disk.clear_faults();
    disk.kill(seed);
}

/// Writes one more entry behind what a start found, cuts the power, and starts again: what was acknowledged by then,
/// and what is found.
fn go_on(
    disk: FaultyDisk,
    recovered: Recovered,
    options: &Options,
    seed: u64,
) -> (Vec<Entry>, Result<Recovered, Error>) {
    let mut expected = recovered.entries;
    let next = expected.len() as u64 + 1;
    let mut bench = Bench {
        writer: recovered.writer,
        disk,
    };
    bench.put(2, next, 100);
    bench.flush();
    expected.push(entry(2, next, 100));
    bench.disk.power_cut(seed);
    let again = recover(&mut bench.disk, Path::new(DIRECTORY), options.clone(), 0, 0);
    (expected, again)
}

#[test]
fn rule_1_what_a_failed_sync_dropped_is_written_again_before_anything_follows_it() {
    for pad_batches in [false, true] {
        let options = Options {
            pad_batches,
            ..options()
        };
        let mut survived = 0;
        for seed in 0..60 {
            let mut bench = Bench::new(FaultyDisk::new(seed), options.clone());
            bench.put(1, 1, 3000);
            bench.flush();
            bench.put(1, 2, 6000);
            bench.submit();
            bench.disk.kill(seed);
            die_of_a_failed_sync(&mut bench.disk, &options, 0, seed);
            let recovered = recover(&mut bench.disk, Path::new(DIRECTORY), options.clone(), 0, 0).unwrap();
            survived += usize::from(recovered.entries.len() == 2);
            let (expected, again) = go_on(bench.disk, recovered, &options, seed);
            let again = again.unwrap_or_else(|error| panic!("padded {pad_batches}, seed {seed}: {error}"));
            assert_eq!(again.entries, expected);
        }
        assert!(survived > 10, "{survived}");
    }
}

/// A tail that was cut by a start whose sync failed does not come back with the next power cut, however long it was.
#[test]
fn rule_1_a_cut_that_was_never_durable_is_made_again() {
    const LARGE: usize = 6 << 20;
    let options = Options {
        segment_bytes: 16 << 20,
        entry_bytes_max: LARGE,
        ..options()
    };
    let mut cuts = 0;
    for seed in 0..12 {
        let mut bench = Bench::new(FaultyDisk::new(seed), options.clone());
        bench.put(1, 1, 3000);
        bench.flush();
        bench.put(1, 2, LARGE);
        bench.submit();
        bench.disk.power_cut(seed);
        // The first sync is of what is read, the second of what is cut.
        die_of_a_failed_sync(&mut bench.disk, &options, 1, seed);
        let recovered = recover(&mut bench.disk, Path::new(DIRECTORY), options.clone(), 0, 0).unwrap();
        if recovered.entries.len() > 1 {
            continue;
        }
        cuts += 1;
        bench.disk.power_cut(seed);
        let inode = bench.disk.volume().resolve(&bench.segment_path(0)).unwrap();
        let mut behind = vec![0; options.segment_bytes as usize];
        bench.disk.volume().contents(inode).unwrap().read(8192, &mut behind);
        assert!(behind.iter().all(|&byte| byte == 0), "seed {seed}: some of it is back");
    }
    assert!(cuts > 5, "{cuts}");
}

#[test]
fn rule_1_of_a_segment_of_etcds_all_is_written_again() {
    for seed in 0..20 {
        let mut bench = Bench::new(FaultyDisk::new(seed), options());
        let name = SegmentName::default();
        let path = bench.segment_path(0);
        let mut bytes = vec![0; SEGMENT as usize];
        let (head, crc) = write_head(&mut bytes, name, 0, &METADATA, &HardState::default(), MarkKey(1));
        // The head without the format record, then entries that nobody synced.
        let format = head - FRAME_HEADER - 24;
        bytes[format..].fill(0);
        let mut writer = FrameWriter::new(&mut bytes, format, crc);
        let mut scratch = Vec::new();
        for index in 1..=8 {
            let entry = entry(1, index, 2000);
            scratch.clear();
            entry.encode_head(&mut scratch);
            writer.put(RecordKind::Entry, &scratch, &entry.data);
        }
        bench.disk.kill(seed);
        let (file, _) = bench.disk.open(&path, OpenMode::Existing).unwrap();
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(&bytes);
        let (offset, durable) = (0, false);
        let write = Operation::Write {
            file,
            offset,
            buffer,
            durable,
        };
        bench.disk.call(write).unwrap();
        bench.disk.kill(seed);
        die_of_a_failed_sync(&mut bench.disk, &options(), 0, seed);
        let recovered = reopen(&mut bench.disk, 0).unwrap();
        assert_eq!((recovered.entries.len(), recovered.repair), (8, None));
        let mut bench = Bench {
            writer: recovered.writer,
            disk: bench.disk,
        };
        bench.put(2, 9, 100);
        bench.flush();
        assert_eq!(bench.writer.segments().len(), 2);
        bench.disk.power_cut(seed);
        assert_eq!(reopen(&mut bench.disk, 0).unwrap().entries.len(), 9);
    }
}

#[test]
fn rule_2_a_cut_whose_sync_failed_is_zeroed_again() {
    let mut cut = 0;
    for seed in 0..60 {
        let mut bench = Bench::new(FaultyDisk::new(seed), options());
        bench.put(1, 1, 3000);
        bench.flush();
        bench.put(1, 2, 9000);
        bench.submit();
        bench.disk.power_cut(seed);
        let probe = reopen(&mut bench.disk.clone(), 0).unwrap();
        if probe.repair.is_none() {
            continue;
        }
        cut += 1;
        die_of_a_failed_sync(&mut bench.disk, &options(), 1, seed);
        let recovered = reopen(&mut bench.disk, 0).unwrap();
        assert_eq!(recovered.entries, [entry(1, 1, 3000)]);
        let path = bench.segment_path(0);
        let durable = bench.disk.durable_contents(&path).unwrap().to_vec();
        let bytes = bench
            .disk
            .volume()
            .contents(bench.disk.volume().resolve(&path).unwrap())
            .unwrap()
            .to_vec();
        assert!(durable == bytes, "seed {seed}: what shows is on the medium");
    }
    assert!(cut >= 10, "{cut}");
}

#[test]
fn on_a_full_disk_a_log_with_padding_starts_without_the_copy() {
    let options = Options {
        pad_batches: true,
        ..options()
    };
    let mut torn = 0;
    for seed in 0..20 {
        let mut bench = Bench::new(FaultyDisk::new(seed), options.clone());
        bench.put(1, 1, 3000);
        bench.flush();
        bench.put(1, 2, 9000);
        bench.submit();
        bench.disk.power_cut(seed);
        let room = bench.disk.volume().allocated() + SEGMENT / 2;
        bench.disk.set_capacity(Some(room));
        let recovered = recover(&mut bench.disk, Path::new(DIRECTORY), options.clone(), 0, 0).unwrap();
        torn += usize::from(recovered.repair.is_some());
        assert_eq!(bench.disk.list(Path::new(DIRECTORY)).unwrap().len(), 1);
        let (expected, again) = go_on(bench.disk, recovered, &options, seed);
        let again = again.unwrap();
        assert_eq!((again.entries, again.repair), (expected, None));
    }
    assert!(torn > 2, "{torn}");
}
