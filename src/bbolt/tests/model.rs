//! Written and read again, against maps.

use super::*;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, OpenMode, Operation};
use crate::io::memory::MemoryDisk;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::path::Path;

fn bytes(lengths: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    (vec(any::<u8>(), 1..8), lengths).prop_map(|(seed, length)| seed.iter().copied().cycle().take(length).collect())
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![8 => bytes(1..40), 1 => bytes(1..6_000), 1 => bytes(32_760..32_769)]
}

fn values() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![8 => bytes(0..300), 2 => bytes(3_900..4_200), 1 => bytes(0..100_000)]
}

fn buckets() -> impl Strategy<Value = Contents> {
    btree_map(keys(), btree_map(keys(), values(), 0..60), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_written_is_read(wanted in buckets()) {
        let file = written(&wanted).unwrap();
        prop_assert_eq!(contents(&mut &file[..]).unwrap(), wanted);
    }
}

/// Sizes around everything that makes another page or level, and more levels than the property reaches.
#[test]
fn trees_of_all_heights_are_read() {
    for count in [0, 1, 2, 3, 100, 101, 12_000, 60_000] {
        let wanted = Contents::from([
            (b"a".to_vec(), records(count, |at| (at % 300) as usize)),
            (b"b".to_vec(), BTreeMap::new()),
        ]);
        let file = written(&wanted).unwrap();
        assert!(contents(&mut &file[..]).unwrap() == wanted, "{count} keys");
    }
    // Keys so long that a branch holds two: a high tree.
    let long = |at: u16| ([&at.to_be_bytes()[..], &[7; 3_000]].concat(), vec![1; 20]);
    let wanted = Contents::from([(b"long".to_vec(), (0..300).map(long).collect())]);
    assert!(contents(&mut &written(&wanted).unwrap()[..]).unwrap() == wanted);
}

/// What stays in memory does not grow with what was put in.
#[test]
fn memory_is_bounded_by_a_few_pages() {
    let mut measure = Measure::new();
    measure.bucket(b"key").unwrap();
    for at in 0..200_000u64 {
        measure.put(&at.to_be_bytes(), 100).unwrap();
    }
    let mut writer = Writer::new(measure.finish());
    writer.bucket(b"key").unwrap();
    let mut length = 0;
    for at in 0..200_000u64 {
        writer.put(&at.to_be_bytes(), &[3; 100]).unwrap();
        // A leaf and a branch of each level can leave at once, behind the first three pages.
        assert!(writer.ready() <= 16 * 4096, "{} bytes are ready", writer.ready());
        length += writer.take().len();
    }
    assert!(length > 23 << 20);
}

#[test]
fn what_the_format_does_not_hold_is_refused() {
    let mut measure = Measure::new();
    measure.bucket(b"b").unwrap();
    measure.put(b"k", 0).unwrap();
    let order = |bucket: &[u8], key: &[u8]| {
        Err(WriteError::Order {
            bucket: bucket.to_vec(),
            key: key.to_vec(),
        })
    };
    assert_eq!(measure.put(b"k", 0), order(b"b", b"k"));
    assert_eq!(measure.put(b"a", 0), order(b"b", b"a"));
    assert_eq!(measure.bucket(b"b"), order(b"b", b""));
    assert_eq!(measure.bucket(b"a"), order(b"a", b""));
    for length in [0, 32_769] {
        let error = measure.put(&vec![9; length], 0).unwrap_err();
        assert_eq!(
            error,
            WriteError::Key {
                bucket: b"b".to_vec(),
                length
            }
        );
    }
    let error = measure.put(b"l", (1 << 30) + 1).unwrap_err();
    assert!(error.to_string().contains("a value of 1073741825 bytes"), "{error}");
    assert!(measure.bucket(&[]).is_err());
}

#[test]
fn a_second_pass_that_differs_is_noticed() {
    let mut measure = Measure::new();
    measure.bucket(b"b").unwrap();
    for at in 0..100u64 {
        measure.put(&at.to_be_bytes(), 1_000).unwrap();
    }
    let plan = measure.finish();
    // Less than was measured.
    let mut writer = Writer::new(plan.clone());
    writer.bucket(b"b").unwrap();
    let changed = |written| WriteError::Changed {
        measured: plan.pages(),
        written,
    };
    assert_eq!(writer.finish().unwrap_err(), changed(4));
    // More: noticed before more bytes are given out than were said.
    let mut writer = Writer::new(plan.clone());
    writer.bucket(b"b").unwrap();
    let mut given = writer.take().len() as u64;
    let error = (0..1_000u64)
        .find_map(|at| {
            let result = writer.put(&at.to_be_bytes(), &[0; 1_000]);
            if result.is_ok() {
                given += writer.take().len() as u64;
            }
            result.err()
        })
        .unwrap();
    assert!(matches!(error, WriteError::Changed { .. }), "{error}");
    assert!(given < plan.length());
}

#[test]
fn a_file_on_a_disk_is_read_in_pieces() {
    let wanted = Contents::from([(b"key".to_vec(), records(5_000, |at| (at % 700) as usize))]);
    let bytes = written(&wanted).unwrap();
    let mut disk = MemoryDisk::new();
    let path = Path::new("/snapshot.db");
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer.copy_from_slice(&bytes);
    let (file, _) = disk.open(path, OpenMode::CreateNew).unwrap();
    disk.call(Operation::Write {
        file,
        offset: 0,
        buffer,
        durable: true,
    })
    .unwrap();
    let mut whole = crate::bbolt::DiskFile::new(file, bytes.len() as u64);
    assert!(contents(&mut whole.on(&mut disk)).unwrap() == wanted);
    // One that is said to be longer than it is.
    disk.call(Operation::Truncate { file, length: 40_960 }).unwrap();
    let mut cut = crate::bbolt::DiskFile::new(file, bytes.len() as u64);
    let error = contents(&mut cut.on(&mut disk)).unwrap_err();
    assert!(matches!(error, ReadError::Source { .. }), "{error}");
}

#[test]
fn little_room_is_left_empty() {
    for value_length in [100, 1_000, 2_100, 2_500, 5_000, 9_000, 100_000] {
        let mut measure = Measure::new();
        measure.bucket(b"key").unwrap();
        for at in 0..2_000u64 {
            measure.put(&at.to_be_bytes(), value_length).unwrap();
        }
        let needed = 2_000 * (16 + 8 + value_length as u64);
        let length = measure.finish().length();
        assert!(
            length * 100 <= needed * 112,
            "{length} bytes for {needed} of elements of {value_length}"
        );
    }
}
