//! Every operation on real files, the same for each disk.

use super::{DiskOptions, RingDisk, ThreadDisk, WriteMethod};
use crate::io::buffer::{ALIGNMENT, AlignedBuffer};
use crate::io::disk::{Completion, Disk, FileId, OpenMode, Operation, Outcome};
use crate::reactor::Doorbell;
use std::path::Path;
use std::time::Duration;

/// Runs `check` on each disk and method, each in a directory of its own.
fn on_each_disk(check: impl Fn(&mut dyn Disk, &Path)) {
    let buffered = DiskOptions {
        direct: false,
        ..DiskOptions::default()
    };
    let unsynced = DiskOptions {
        no_fsync: true,
        ..DiskOptions::default()
    };
    for options in [DiskOptions::default(), buffered, unsynced] {
        for method in [WriteMethod::Dsync, WriteMethod::LinkedSync, WriteMethod::Thread] {
            let directory = tempfile::tempdir().unwrap();
            let bell = Doorbell::new("test").unwrap();
            check(&mut RingDisk::new(options, method, &bell).unwrap(), directory.path());
        }
        let directory = tempfile::tempdir().unwrap();
        let bell = Doorbell::new("test").unwrap();
        check(&mut ThreadDisk::new(options, &bell).unwrap(), directory.path());
    }
}

fn filled(length: usize, seed: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(length);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = seed.wrapping_add((index / 7) as u8);
    }
    buffer
}

fn write(disk: &mut dyn Disk, file: FileId, offset: u64, buffer: AlignedBuffer, durable: bool) {
    let outcome = disk.call(Operation::Write {
        file,
        offset,
        buffer,
        durable,
    });
    assert!(matches!(outcome, Ok(Outcome::Written { .. })), "{outcome:?}");
}

#[test]
fn what_was_written_is_read() {
    on_each_disk(|disk, directory| {
        let path = directory.join("file");
        let (file, length) = disk.open(&path, OpenMode::CreateNew).unwrap();
        assert_eq!(length, 0);
        write(disk, file, 0, filled(3 * ALIGNMENT, 1), false);
        write(disk, file, ALIGNMENT as u64, filled(ALIGNMENT, 9), true);
        disk.call(Operation::Sync { file }).unwrap();
        let (bytes, length) = disk.read(file, 0, 4 * ALIGNMENT).unwrap();
        assert_eq!(length, 3 * ALIGNMENT);
        assert_eq!(bytes[..ALIGNMENT], filled(3 * ALIGNMENT, 1)[..ALIGNMENT]);
        assert_eq!(bytes[ALIGNMENT..2 * ALIGNMENT], filled(ALIGNMENT, 9)[..]);
        assert_eq!(disk.read(file, 1 << 20, ALIGNMENT).unwrap().1, 0);
        disk.call(Operation::Close { file }).unwrap();
        let (_, length) = disk.open(&path, OpenMode::ReadOnly).unwrap();
        assert_eq!(length, 3 * ALIGNMENT as u64);
    });
}

#[test]
fn a_file_that_ends_within_a_block_is_read_to_its_end() {
    on_each_disk(|disk, directory| {
        let path = directory.join("odd");
        std::fs::write(&path, vec![7u8; 5000]).unwrap();
        let (file, length) = disk.open(&path, OpenMode::Existing).unwrap();
        assert_eq!(length, 5000);
        let (bytes, length) = disk.read(file, 0, 4 * ALIGNMENT).unwrap();
        assert_eq!(length, 5000);
        assert!(bytes[..5000].iter().all(|byte| *byte == 7));
    });
}

#[test]
fn space_is_reserved_given_back_and_cut() {
    on_each_disk(|disk, directory| {
        let path = directory.join("space");
        let (file, _) = disk.open(&path, OpenMode::CreateNew).unwrap();
        let length = 8 * ALIGNMENT as u64;
        let (offset, block) = (ALIGNMENT as u64, ALIGNMENT as u64);
        disk.call(Operation::Allocate {
            file,
            offset: 0,
            length,
        })
        .unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length);
        write(disk, file, 0, filled(8 * ALIGNMENT, 1), true);
        disk.call(Operation::PunchHole {
            file,
            offset,
            length: block,
        })
        .unwrap();
        let (bytes, _) = disk.read(file, 0, 3 * ALIGNMENT).unwrap();
        assert!(bytes[ALIGNMENT..2 * ALIGNMENT].iter().all(|byte| *byte == 0));
        assert!(bytes[2 * ALIGNMENT..].iter().any(|byte| *byte != 0));
        disk.call(Operation::Truncate { file, length: block }).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), block);
    });
}

#[test]
fn names_come_and_go() {
    on_each_disk(|disk, directory| {
        let inner = directory.join("member");
        for _ in 0..2 {
            disk.call(Operation::CreateDirectory { path: inner.clone() }).unwrap();
        }
        for name in ["b", "a"] {
            disk.open(&inner.join(name), OpenMode::CreateNew).unwrap();
        }
        assert_eq!(disk.list(&inner).unwrap(), ["a", "b"]);
        let (from, to) = (inner.join("a"), inner.join("b"));
        disk.call(Operation::Rename { from, to: to.clone() }).unwrap();
        disk.call(Operation::SyncDirectory { path: inner.clone() }).unwrap();
        assert_eq!(disk.list(&inner).unwrap(), ["b"]);
        disk.call(Operation::Remove { path: to }).unwrap();
        assert!(disk.list(&inner).unwrap().is_empty());
    });
}

#[test]
fn errors_name_operation_and_path() {
    on_each_disk(|disk, directory| {
        let path = directory.join("missing");
        let error = disk.open(&path, OpenMode::Existing).unwrap_err();
        assert!(error.is_not_found());
        assert_eq!((error.operation, &error.path), ("open", &path));
        disk.open(&path, OpenMode::CreateNew).unwrap();
        let error = disk.open(&path, OpenMode::CreateNew).unwrap_err();
        assert_eq!(error.source.kind(), std::io::ErrorKind::AlreadyExists);
        let (file, _) = disk.open(&path, OpenMode::ReadOnly).unwrap();
        let (buffer, durable) = (AlignedBuffer::zeroed(ALIGNMENT), true);
        let error = disk
            .call(Operation::Write {
                file,
                offset: 0,
                buffer,
                durable,
            })
            .unwrap_err();
        assert_eq!((error.operation, &error.path), ("durable write", &path));
        assert_eq!(error.source.raw_os_error(), Some(libc::EBADF));
        let error = disk
            .call(Operation::Read {
                file,
                offset: 1 << 63,
                buffer: AlignedBuffer::zeroed(1),
            })
            .unwrap_err();
        assert_eq!((error.operation, &error.path), ("read", &path));
    });
}

/// Segments of the log, and their directory, are renamed while they are open.
#[test]
fn errors_name_a_renamed_file_as_it_is_called_now() {
    on_each_disk(|disk, directory| {
        let [made, member] = ["member.tmp", "member"].map(|name| directory.join(name));
        disk.call(Operation::CreateDirectory { path: made.clone() }).unwrap();
        std::fs::write(made.join("0.tmp"), "").unwrap();
        let (file, _) = disk.open(&made.join("0.tmp"), OpenMode::ReadOnly).unwrap();
        let rename = |disk: &mut dyn Disk, from, to| disk.call(Operation::Rename { from, to }).unwrap();
        rename(disk, made.join("0.tmp"), made.join("0.wal"));
        rename(disk, made, member.clone());
        let error = disk.call(Operation::Truncate { file, length: 7 }).unwrap_err();
        assert_eq!(error.path, member.join("0.wal"));
    });
}

/// More operations than the ring has entries, in flight together; each token comes back once with its own bytes.
#[test]
fn many_operations_in_flight() {
    const COUNT: u64 = 700;
    on_each_disk(|disk, directory| {
        let (file, _) = disk.open(&directory.join("many"), OpenMode::CreateNew).unwrap();
        let mut completions: Vec<Completion> = Vec::new();
        let collect = |disk: &mut dyn Disk, completions: &mut Vec<Completion>| {
            let mut seen = vec![false; COUNT as usize];
            while seen.contains(&false) {
                disk.wait(completions);
                for completion in completions.drain(..) {
                    let token = completion.token;
                    assert!(
                        !std::mem::replace(&mut seen[token as usize], true),
                        "{token} completed twice"
                    );
                    if let Outcome::Read { buffer, length } = completion.result.unwrap() {
                        assert_eq!(length, ALIGNMENT);
                        assert_eq!(buffer[..], filled(ALIGNMENT, token as u8)[..], "block {token}");
                    }
                }
            }
        };
        for token in 0..COUNT {
            let (offset, buffer) = (token * ALIGNMENT as u64, filled(ALIGNMENT, token as u8));
            let durable = token % 100 == 0;
            disk.submit(
                token,
                Operation::Write {
                    file,
                    offset,
                    buffer,
                    durable,
                },
            );
        }
        collect(disk, &mut completions);
        for token in 0..COUNT {
            let (offset, buffer) = (token * ALIGNMENT as u64, AlignedBuffer::zeroed(ALIGNMENT));
            disk.submit(token, Operation::Read { file, offset, buffer });
        }
        collect(disk, &mut completions);
        disk.poll(&mut completions);
        assert!(completions.is_empty());
    });
}

#[test]
fn dropping_a_ring_disk_waits_for_its_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dropped");
    let bell = Doorbell::new("test").unwrap();
    let mut disk = RingDisk::new(DiskOptions::default(), WriteMethod::Dsync, &bell).unwrap();
    let (file, _) = disk.open(&path, OpenMode::CreateNew).unwrap();
    for token in 0..300 {
        let (offset, buffer) = (token * ALIGNMENT as u64, filled(ALIGNMENT, 3));
        disk.submit(
            token,
            Operation::Write {
                file,
                offset,
                buffer,
                durable: false,
            },
        );
    }
    drop(disk);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 300 * ALIGNMENT as u64);
}

#[test]
fn parking_ends_by_bell_time_and_completion() {
    let directory = tempfile::tempdir().unwrap();
    let bell = Doorbell::new("test").unwrap();
    let mut disk = RingDisk::new(DiskOptions::default(), WriteMethod::Dsync, &bell).unwrap();
    let start = std::time::Instant::now();
    disk.park(Some(Duration::from_millis(20)), || false);
    assert!(start.elapsed() >= Duration::from_millis(20));
    disk.park(None, || true);
    let ringer = bell.clone();
    let (parking, parks) = std::sync::mpsc::channel();
    let ringing = std::thread::spawn(move || {
        while parks.recv().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
            ringer.ring();
        }
    });
    for _ in 0..3 {
        // Two rings that nobody waited for between are one: the next comes when this one was heard.
        parking.send(()).unwrap();
        disk.park(Some(Duration::from_secs(60)), || false);
    }
    assert!(start.elapsed() < Duration::from_secs(60));
    drop(parking);
    ringing.join().unwrap();
    let (file, _) = disk.open(&directory.path().join("f"), OpenMode::CreateNew).unwrap();
    let (buffer, durable) = (AlignedBuffer::zeroed(1), true);
    disk.submit(
        5,
        Operation::Write {
            file,
            offset: 0,
            buffer,
            durable,
        },
    );
    let mut completions = Vec::new();
    while completions.is_empty() {
        disk.park(None, || false);
        disk.poll(&mut completions);
    }
    assert_eq!(completions[0].token, 5);
}
