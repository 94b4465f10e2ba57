//! A store that is exported and imported is the same store, and what lies between is what etcd has.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn fields() -> StateFields {
    StateFields {
        revision: 9,
        compact_revision: 4,
        applied_index: 17,
        term: 3,
        membership: ConfState {
            voters: vec![7, 9],
            ..Default::default()
        }
        .to_membership()
        .into(),
    }
}

fn rows() -> Vec<(TreeId, Vec<u8>, Vec<u8>)> {
    let rows = [
        (
            TreeId::Leases,
            Row::Lease(Lease {
                id: -5,
                ttl: 30,
                remaining_ttl: 0,
            }),
        ),
        (
            TreeId::Leases,
            Row::Lease(Lease {
                id: 77,
                ttl: 60,
                remaining_ttl: 12,
            }),
        ),
        (TreeId::Alarms, Row::Alarm(AlarmMember { member_id: 7, alarm: 1 })),
        (
            TreeId::Members,
            Row::Member(Member {
                id: 7,
                name: "a".into(),
                ..Default::default()
            }),
        ),
        (
            TreeId::Members,
            Row::Member(Member {
                id: 9,
                is_learner: true,
                ..Default::default()
            }),
        ),
        (TreeId::Members, Row::RemovedMember(8)),
        (TreeId::Members, Row::RemovedMember(0xffff_ffff_ffff_ffff)),
        (TreeId::Meta, Row::AuthEnabled(false)),
        (TreeId::Meta, Row::AuthRevision(1)),
        (TreeId::Meta, Row::ClusterVersion("3.7.1".into())),
        (
            TreeId::Meta,
            Row::Downgrade(Downgrade {
                target_version: "3.6.0".into(),
                enabled: true,
            }),
        ),
        (TreeId::Meta, Row::ScheduledCompaction(4)),
        (TreeId::Meta, Row::FinishedCompaction(3)),
    ];
    let encode = |(tree, row): (TreeId, Row)| {
        let (_, key, value) = row.encode();
        // In the page store the removed ones lie among the members.
        (tree, key, value)
    };
    rows.into_iter().map(encode).collect()
}

fn live(main: i64, sub: u32, key: &[u8], value: Vec<u8>) -> NewRecord {
    NewRecord {
        id: RecordId::new(main, sub),
        key: Bytes::copy_from_slice(key),
        create_revision: main,
        version: 1,
        value: value.into(),
        ..Default::default()
    }
}

fn tombstone(main: i64, sub: u32, key: &[u8]) -> NewRecord {
    NewRecord {
        id: RecordId::new(main, sub),
        tombstone: true,
        key: Bytes::copy_from_slice(key),
        ..Default::default()
    }
}

#[test]
fn a_store_becomes_etcds_buckets() {
    let mut disk = MemoryDisk::new();
    let mut leased = live(3, 1, b"k", b"v".to_vec());
    (leased.lease, leased.create_revision, leased.version) = (77, 2, 2);
    let records = vec![live(2, 0, b"k", vec![]), leased, tombstone(9, 0, b"k")];
    let store = store(&mut disk, records, &rows(), fields());
    let file = exported(&mut disk, &store, 3).unwrap();
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let found: Vec<String> = contents(&file)
        .iter()
        .flat_map(|(bucket, pairs)| {
            let line = |(key, value): (&Vec<u8>, &Vec<u8>)| format!("{} {}={}", text(bucket), text(key), text(value));
            [text(bucket)]
                .into_iter()
                .chain(pairs.iter().map(line))
                .collect::<Vec<_>>()
        })
        .collect();
    let wanted = [
        r"alarm",
        r"alarm \x08\x07\x10\x01=",
        r"auth",
        r"auth authEnabled=\x00",
        r"auth authRevision=\x00\x00\x00\x00\x00\x00\x00\x01",
        r"authRoles",
        r"authUsers",
        r"cluster",
        r"cluster clusterVersion=3.7.1",
        r#"cluster downgrade={\"target-version\":\"3.6.0\",\"enabled\":true}"#,
        r"key",
        r"key \x00\x00\x00\x00\x00\x00\x00\x02_\x00\x00\x00\x00\x00\x00\x00\x00=\n\x01k\x10\x02\x18\x02 \x01",
        r"key \x00\x00\x00\x00\x00\x00\x00\x03_\x00\x00\x00\x00\x00\x00\x00\x01=\n\x01k\x10\x02\x18\x03 \x02*\x01v0M",
        r"key \x00\x00\x00\x00\x00\x00\x00\t_\x00\x00\x00\x00\x00\x00\x00\x00t=\n\x01k",
        r"lease",
        r"lease \x00\x00\x00\x00\x00\x00\x00M=\x08M\x10<\x18\x0c",
        r"lease \xff\xff\xff\xff\xff\xff\xff\xfb=\x08\xfb\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x1e",
        r"members",
        r#"members 7={\"id\":7,\"peerURLs\":[],\"name\":\"a\"}"#,
        r#"members 9={\"id\":9,\"peerURLs\":[],\"isLearner\":true}"#,
        r"members_removed",
        r"members_removed 8=removed",
        r"members_removed ffffffffffffffff=removed",
        r"meta",
        r#"meta confState={\"voters\":[7,9],\"auto_leave\":false}"#,
        r"meta consistent_index=\x00\x00\x00\x00\x00\x00\x00\x11",
        r"meta finishedCompactRev=\x00\x00\x00\x00\x00\x00\x00\x03_\x00\x00\x00\x00\x00\x00\x00\x00",
        r"meta scheduledCompactRev=\x00\x00\x00\x00\x00\x00\x00\x04_\x00\x00\x00\x00\x00\x00\x00\x00",
        r"meta storageVersion=3.7.0",
        r"meta term=\x00\x00\x00\x00\x00\x00\x00\x03",
    ];
    assert_eq!(found, wanted);
}

fn records() -> impl Strategy<Value = Vec<NewRecord>> {
    let value = prop_oneof![
        8 => 0..200usize,
        3 => 400..5_000usize,
        1 => 0..80_000usize
    ];
    let key = prop_oneof![8 => 1..40usize, 1 => 900..1_500usize];
    let record = (
        1..4i64,
        0..3u32,
        any::<bool>(),
        key,
        value,
        prop_oneof![Just(0i64), any::<i64>()],
    );
    vec(record, 0..150).prop_map(|steps| {
        let (mut main, mut sub) = (2, 0);
        let make =
            |(ahead, aside, is_tombstone, key_length, value_length, lease): (i64, u32, bool, usize, usize, i64)| {
                match aside {
                    0 => (main, sub) = (main + ahead, 0),
                    _ => sub += aside,
                }
                let key = vec![b'a' + key_length as u8 % 26; key_length];
                match is_tombstone {
                    true => tombstone(main, sub, &key),
                    false => NewRecord {
                        lease,
                        ..live(main, sub, &key, vec![value_length as u8; value_length])
                    },
                }
            };
        steps.into_iter().map(make).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_exported_is_imported(records in records(), budget in 1..200usize, rows_wanted in any::<bool>()) {
        let mut disk = MemoryDisk::new();
        let mut said = fields();
        said.revision = records.last().map_or(4, |record| record.id.main).max(4);
        let mut rows = rows();
        if !rows_wanted {
            // What every database of etcd has is not lacking after an import.
            rows.retain(|(_, key, _)| key == names::AUTH_REVISION);
            said = StateFields { compact_revision: -1, revision: said.revision, ..Default::default() };
            said.revision = records.last().map_or(1, |record| record.id.main);
        }
        let count = records.len() as u64;
        let store = store(&mut disk, records, &rows, said);
        let file = exported(&mut disk, &store, budget).unwrap();
        put_file(&mut disk, DATABASE, &file);
        let imported = imported(&mut disk).unwrap();
        prop_assert_eq!(imported.records, count);
        prop_assert!(imported.skipped.is_empty());
        let again = PageStore::open(&mut disk, Path::new(IMPORTED), options()).unwrap();
        again.check(&mut disk).unwrap();
        prop_assert_eq!(everything(&mut disk, &again), everything(&mut disk, &store));
        prop_assert_eq!(&imported.fields, again.root().fields());
        // Both meta pages say so: a start that falls back loses nothing.
        prop_assert_eq!(again.log_needed_after(), imported.fields.applied_index);
        // And the same store is the same file.
        prop_assert!(exported(&mut disk, &again, budget).unwrap() == file);
    }
}

/// More than one checkpoint's worth.
#[test]
fn a_large_file_is_imported_in_batches() {
    let mut disk = MemoryDisk::new();
    let records: Vec<_> = (2..502)
        .map(|main| live(main, 0, b"key", vec![main as u8; 100_000]))
        .collect();
    let said = StateFields {
        revision: 501,
        compact_revision: -1,
        ..Default::default()
    };
    let (_, key, value) = Row::AuthRevision(1).encode();
    let store = store(&mut disk, records, &[(TreeId::Meta, key, value)], said);
    let file = exported(&mut disk, &store, 10).unwrap();
    put_file(&mut disk, DATABASE, &file);
    let mut import = Import::new(&mut disk, Path::new(DATABASE), Path::new(IMPORTED), options()).unwrap();
    let mut steps = 0;
    let imported = loop {
        match import.step(&mut disk).unwrap() {
            ImportProgress::More(records) => assert!((1..=500).contains(&records)),
            ImportProgress::Done(imported) => break imported,
        }
        steps += 1;
        // Before it is whole it says nothing of the log.
        let unfinished = PageStore::open(&mut disk, Path::new(IMPORTED), options()).unwrap();
        assert_eq!(unfinished.root().fields().applied_index, 0);
    };
    assert_eq!((steps, imported.records), (2, 500));
    let again = PageStore::open(&mut disk, Path::new(IMPORTED), options()).unwrap();
    assert!(everything(&mut disk, &again) == everything(&mut disk, &store));
}
