//! The log against etcd's own code: it reads what ringd wrote, ringd reads what it wrote, and each goes on in the
//! other's log. `tests/wal-reader` is the Go program on etcd's `wal` package; `go` builds it when the tests start.

use bytes::Bytes;
use ringd::io::buffer::AlignedBuffer;
use ringd::io::disk::{Completion, Disk, OpenMode, Operation};
use ringd::io::memory::MemoryDisk;
use ringd::reactor::Doorbell;
use ringd::reactor::disk::{DiskOptions, RingDisk, ThreadDisk, WriteMethod};
use ringd::wal::{self, ConfState, Entry, HardState, Metadata, Options, Recovered, Snapshot, Writer};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const WAL: &str = "/wal";
const SEGMENT: u64 = 64 << 10;
const METADATA: Metadata = Metadata {
    node_id: 0xabc,
    cluster_id: 0xdef,
};

fn options() -> Options {
    Options {
        segment_bytes: SEGMENT,
        ..Options::new(0x0123_4567_89ab_cdef, 0..3)
    }
}

/// Runs the Go program and returns what it printed.
fn etcd(arguments: &[&str]) -> Result<String, String> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wal-reader");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wal-reader");
        let built = Command::new("go")
            .arg("build")
            .arg("-o")
            .arg(&program)
            .arg(".")
            .current_dir(source)
            .output();
        let built = built.expect("these tests need the Go toolchain");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    });
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect("the program was just built");
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Copies the log out of a disk in memory.
fn export(disk: &MemoryDisk, to: &Path) {
    let volume = disk.volume();
    let directory = volume.resolve(Path::new(WAL)).unwrap();
    std::fs::create_dir_all(to).unwrap();
    for (name, inode) in volume.directory(directory).unwrap() {
        std::fs::write(to.join(name), volume.contents(*inode).unwrap().to_vec()).unwrap();
    }
}

/// Copies a log into a disk in memory.
fn import(from: &Path) -> MemoryDisk {
    let mut disk = MemoryDisk::new();
    disk.call(Operation::CreateDirectory { path: WAL.into() }).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let bytes = std::fs::read(found.path()).unwrap();
        let (file, _) = disk
            .open(&Path::new(WAL).join(found.file_name()), OpenMode::CreateNew)
            .unwrap();
        let mut buffer = AlignedBuffer::zeroed(bytes.len().max(1));
        buffer[..bytes.len()].copy_from_slice(&bytes);
        disk.call(Operation::Write {
            file,
            offset: 0,
            buffer,
            durable: false,
        })
        .unwrap();
        disk.call(Operation::Truncate {
            file,
            length: bytes.len() as u64,
        })
        .unwrap();
        disk.call(Operation::Close { file }).unwrap();
    }
    disk
}

/// Everything recovered, in the words of the Go program.
fn describe(recovered: &Recovered) -> String {
    let mut text = String::new();
    let Metadata { node_id, cluster_id } = recovered.metadata;
    writeln!(text, "member {node_id:x} cluster {cluster_id:x}").unwrap();
    let HardState { term, vote, commit } = recovered.hard_state;
    writeln!(text, "state {term} {vote} {commit}").unwrap();
    let list = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    for Snapshot {
        index,
        term,
        conf_state,
    } in &recovered.snapshots
    {
        let ConfState { voters, learners, .. } = conf_state.clone().unwrap_or_default();
        writeln!(
            text,
            "snapshot {index} {term} [{}] [{}]",
            list(&voters),
            list(&learners)
        )
        .unwrap();
    }
    for Entry {
        kind,
        term,
        index,
        data,
    } in &recovered.entries
    {
        let checksum = crc32c::crc32c(data);
        writeln!(text, "entry {kind} {term} {index} {} {checksum:08x}", data.len()).unwrap();
    }
    text
}

fn recover<D: Disk>(disk: &mut D, after: u64) -> Recovered {
    wal::recover(disk, Path::new(WAL), options(), after, 0).unwrap_or_else(|error| panic!("{error}"))
}

fn flush<D: Disk>(disk: &mut D, writer: &mut Writer) {
    let mut completions = Vec::new();
    while !writer.is_idle() {
        writer.submit(disk, Duration::ZERO);
        disk.wait(&mut completions);
        for Completion { token, result } in completions.drain(..) {
            writer.completed(token, result).unwrap();
        }
    }
}

fn entry(term: u64, index: u64) -> Entry {
    let data: Vec<u8> = (0..index * 89 % 3000).map(|place| (index * 3 + place) as u8).collect();
    Entry {
        kind: index % 3,
        term,
        index,
        data: Bytes::from(data),
    }
}

/// Appends one entry at a time, now and then two, with hard states and snapshots between; rotates several times.
fn write_some<D: Disk>(disk: &mut D, writer: &mut Writer, term: u64, first: u64, count: u64) {
    for index in first..first + count {
        let state = HardState {
            term,
            vote: 3,
            commit: index - index.min(4),
        };
        writer.append(&[entry(term, index)], Some(&state));
        if index % 3 != 0 {
            flush(disk, writer);
        }
        if index % 50 == 0 {
            let conf_state = ConfState {
                voters: vec![1, 0xabc],
                learners: vec![9],
                ..ConfState::default()
            };
            writer.save_snapshot(&Snapshot {
                index: index - 10,
                term,
                conf_state: Some(conf_state),
            });
        }
    }
    flush(disk, writer);
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn ours() -> (MemoryDisk, Writer) {
    let mut disk = MemoryDisk::new();
    let mut writer = wal::create(&mut disk, Path::new(WAL), METADATA, options()).unwrap();
    write_some(&mut disk, &mut writer, 1, 1, 130);
    write_some(&mut disk, &mut writer, 2, 128, 40);
    assert!(writer.segments().len() >= 3);
    (disk, writer)
}

#[test]
fn etcd_reads_what_ringd_wrote() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut disk, _) = ours();
    export(&disk, temporary.path());
    assert_eq!(
        etcd(&["read", path(temporary.path()), "0", "0"]).unwrap(),
        describe(&recover(&mut disk, 0))
    );
    let later = etcd(&["read", path(temporary.path()), "140", "2"]).unwrap();
    let entries = |text: &str| {
        text.lines()
            .filter(|line| line.starts_with("entry"))
            .map(String::from)
            .collect::<Vec<_>>()
    };
    assert_eq!(entries(&later), entries(&describe(&recover(&mut disk, 140))));
}

#[test]
fn etcd_reads_padded_batches() {
    let temporary = tempfile::tempdir().unwrap();
    let mut disk = MemoryDisk::new();
    let padded = Options {
        pad_batches: true,
        ..options()
    };
    let mut writer = wal::create(&mut disk, Path::new(WAL), METADATA, padded).unwrap();
    write_some(&mut disk, &mut writer, 1, 1, 60);
    export(&disk, temporary.path());
    assert_eq!(
        etcd(&["read", path(temporary.path()), "0", "0"]).unwrap(),
        describe(&recover(&mut disk, 0))
    );
}

#[test]
fn ringd_reads_what_etcd_wrote_and_goes_on() {
    let temporary = tempfile::tempdir().unwrap();
    let theirs = temporary.path().join("theirs");
    etcd(&["write", path(&theirs), &SEGMENT.to_string(), "150"]).unwrap();
    let mut disk = import(&theirs);
    let recovered = recover(&mut disk, 0);
    assert!(recovered.writer.segments().len() >= 3);
    assert_eq!(recovered.entries.len(), 149);
    assert_eq!(etcd(&["read", path(&theirs), "0", "0"]).unwrap(), describe(&recovered));

    let mut writer = recovered.writer;
    write_some(&mut disk, &mut writer, 5, 150, 60);
    let both = temporary.path().join("both");
    export(&disk, &both);
    let recovered = recover(&mut disk, 0);
    assert_eq!(recovered.entries.len(), 209);
    assert_eq!(etcd(&["read", path(&both), "0", "0"]).unwrap(), describe(&recovered));
}

#[test]
fn etcd_goes_on_in_a_log_of_ringds_and_ringd_again() {
    let temporary = tempfile::tempdir().unwrap();
    let (disk, _) = ours();
    export(&disk, temporary.path());
    etcd(&["append", path(temporary.path()), &SEGMENT.to_string(), "2", "0", "0"]).unwrap();
    for count in ["3", "90"] {
        let mut disk = import(temporary.path());
        let recovered = recover(&mut disk, 0);
        assert_eq!(recovered.repair, None);
        assert_eq!(
            etcd(&["read", path(temporary.path()), "0", "0"]).unwrap(),
            describe(&recovered)
        );
        let mut writer = recovered.writer;
        let next = writer.last_index() + 1;
        write_some(&mut disk, &mut writer, 9, next, 5);
        std::fs::remove_dir_all(temporary.path()).unwrap();
        export(&disk, temporary.path());
        etcd(&["append", path(temporary.path()), &SEGMENT.to_string(), count, "0", "0"]).unwrap();
    }
    let mut disk = import(temporary.path());
    assert_eq!(
        etcd(&["read", path(temporary.path()), "0", "0"]).unwrap(),
        describe(&recover(&mut disk, 0))
    );
}

#[test]
fn a_tail_that_etcd_would_repair_is_repaired() {
    let temporary = tempfile::tempdir().unwrap();
    let theirs = temporary.path().join("theirs");
    etcd(&["write", path(&theirs), "1000000", "60"]).unwrap();
    let mut disk = import(&theirs);
    let whole = recover(&mut disk, 0);
    let segment = Path::new(WAL).join(whole.writer.segments().last().unwrap().file_name());
    let inode = disk.volume().resolve(&segment).unwrap();
    let bytes = disk.volume().contents(inode).unwrap().to_vec();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    let torn = end / 512 * 512 - 512;
    disk.volume_mut()
        .contents_mut(inode)
        .unwrap()
        .write(torn as u64, &[0; 512]);
    let repaired = recover(&mut disk, 0);
    let repair = repaired.repair.as_ref().unwrap();
    assert!(repair.offset <= torn as u64 + 512);
    assert!(repaired.entries.len() < whole.entries.len());
    assert_eq!(repaired.entries[..], whole.entries[..repaired.entries.len()]);
    export(&disk, &temporary.path().join("repaired"));
    let read = etcd(&["read", path(&temporary.path().join("repaired")), "0", "0"]).unwrap();
    assert_eq!(read, describe(&repaired));
}

/// The log through a real disk: made, written over several segments, recovered, continued, and read by etcd.
fn on_a_real_disk<D: Disk>(mut disk: impl FnMut() -> D) {
    let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = temporary.path().join("wal");
    let mut first = disk();
    let mut writer = wal::create(&mut first, &directory, METADATA, options()).unwrap();
    write_some(&mut first, &mut writer, 1, 1, 130);
    while writer.in_flight() > 0 {
        let mut completions = Vec::new();
        first.wait(&mut completions);
        for Completion { token, result } in completions {
            writer.completed(token, result).unwrap();
        }
    }
    drop((first, writer));
    let mut second = disk();
    let recovered = wal::recover(&mut second, &directory, options(), 0, 0).unwrap();
    assert_eq!(recovered.entries.len(), 130);
    let mut writer = recovered.writer;
    write_some(&mut second, &mut writer, 2, 128, 40);
    drop((second, writer));
    let mut third = disk();
    let recovered = wal::recover(&mut third, &directory, options(), 0, 0).unwrap();
    assert!(recovered.writer.segments().len() >= 3);
    assert_eq!(
        etcd(&["read", path(&directory), "0", "0"]).unwrap(),
        describe(&recovered)
    );
}

#[test]
fn the_log_works_on_the_blocking_disk() {
    let bell = Doorbell::new("test").unwrap();
    on_a_real_disk(|| ThreadDisk::new(DiskOptions::default(), &bell).unwrap());
}

#[test]
fn the_log_works_on_the_ring() {
    let bell = Doorbell::new("test").unwrap();
    on_a_real_disk(|| RingDisk::new(DiskOptions::default(), WriteMethod::Dsync, &bell).unwrap());
}
