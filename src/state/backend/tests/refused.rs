//! Database files that are not taken over, and what is said of them.

use super::*;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::proto::authpb;
use proptest::collection::vec;
use proptest::prelude::*;

fn key(main: i64, tombstone: bool) -> Vec<u8> {
    let (bytes, length) = Revision::new(main, 0).to_bytes(tombstone);
    bytes[..length].to_vec()
}

/// An otherwise empty database with this pair, taken over.
fn import_with(bucket: &[u8], key: &[u8], value: &[u8]) -> Result<(Imported, StateFields), String> {
    let mut contents: Contents = names::BUCKETS.map(|name| (name.to_vec(), BTreeMap::new())).into();
    contents
        .entry(bucket.to_vec())
        .or_default()
        .insert(key.into(), value.into());
    let mut disk = MemoryDisk::new();
    put_file(&mut disk, DATABASE, &database(&contents));
    let imported = imported(&mut disk).map_err(|error| error.to_string());
    match imported {
        Ok(imported) => {
            let store = PageStore::open(&mut disk, Path::new(IMPORTED), options()).unwrap();
            Ok((imported, store.root().fields().clone()))
        }
        Err(error) => {
            let names = disk.call(Operation::List { path: "/".into() }).unwrap();
            assert!(
                !format!("{names:?}").contains("imported"),
                "what is of no use is removed: {names:?}"
            );
            Err(error)
        }
    }
}

fn refusal(bucket: &[u8], key: &[u8], value: &[u8]) -> String {
    import_with(bucket, key, value).unwrap_err()
}

/// Expects that a pair is refused with this reason.
fn expect(bucket: &str, key: &[u8], value: &[u8], reason: &str) {
    let message = refusal(bucket.as_bytes(), key, value);
    let place = format!("/snapshot.db: bucket {bucket} has ");
    let end = format!(" under key {}", key.escape_ascii());
    assert!(message.starts_with(&place) && message.ends_with(&end), "{message}");
    assert!(message.contains(reason), "{message}, not {reason}");
}

#[test]
fn records_that_cannot_be_right_are_named() {
    let expect = |key: &[u8], value: &[u8], reason| expect("key", key, value, reason);
    expect(b"x", b"", "a record that has no revision");
    expect(&key(2, false), b"\x0a", "a record that is no mvccpb.KeyValue");
    let contradiction = "a record that contradicts itself";
    expect(&key(2, false), b"\x0a\x01k\x10\x02\x18\x03\x20\x01", contradiction);
    expect(&key(2, false), b"\x0a\x01k\x10\x03\x18\x02\x20\x01", contradiction);
    expect(&key(2, false), b"\x0a\x01k\x10\x02\x18\x02", contradiction);
    expect(&key(2, false), b"\x10\x02\x18\x02\x20\x01", contradiction);
    expect(&key(2, true), b"\x0a\x01k\x10\x02", contradiction);
    for main in [0, -2, i64::MIN, i64::MAX] {
        expect(&key(main, true), b"\x0a\x01k", "an impossible revision");
    }
}

#[test]
fn rows_that_cannot_be_right_are_named() {
    expect("lease", b"\0\0\0\0\0\0\0\x05", b"\x08\x06", "a lease of another id");
    expect("alarm", b"\xff", b"", "an alarm that is no AlarmMember");
    let no_id = "a member id that is no hexadecimal number";
    expect("members", b"A", b"{\"id\":10,\"peerURLs\":[]}", no_id);
    expect("members", b"0a", b"{\"id\":10,\"peerURLs\":[]}", no_id);
    expect(
        "members",
        b"a",
        b"{\"id\":11,\"peerURLs\":[]}",
        "a member of another id",
    );
    expect("members_removed", b"+a", b"removed", no_id);
    expect("cluster", b"clusterVersion", b"3.x", "a version that is none");
    expect("meta", b"term", b"3", "a number that has not eight bytes");
    expect(
        "meta",
        b"scheduledCompactRev",
        b"\0",
        "a compaction mark that is no revision",
    );
    expect("meta", b"storageVersion", b"3.8.0", "a storage version newer than 3.7");
    expect("auth", b"authEnabled", b"\x01", "authentication turned on");
    expect("authUsers", b"root", b"\x0a\x04root", "a user or role");
}

#[test]
fn memberships_that_cannot_be_taken_over_are_named() {
    let expect = |value: &[u8], reason| expect("meta", b"confState", value, reason);
    expect(b"{", "a membership that is not etcd's JSON");
    expect(b"{}", "a membership without voters");
    expect(b"{\"voters\":[1],\"voters_outgoing\":[1]}", "in the middle of a change");
    let many = ConfState {
        voters: (0..2_000).collect(),
        ..Default::default()
    };
    expect(&many.to_membership(), "too long for a page file");
}

#[test]
fn one_revision_has_one_record() {
    let mut contents: Contents = names::BUCKETS.map(|name| (name.to_vec(), BTreeMap::new())).into();
    let records = contents.get_mut(names::KEY).unwrap();
    records.insert(key(2, false), b"\x0a\x01k\x10\x02\x18\x02\x20\x01".into());
    records.insert(key(2, true), b"\x0a\x01k".into());
    let mut disk = MemoryDisk::new();
    put_file(&mut disk, DATABASE, &database(&contents));
    let message = imported(&mut disk).unwrap_err().to_string();
    assert!(message.contains("a second record of one revision"), "{message}");
}

#[test]
fn files_that_are_not_etcds_are_named() {
    let mut disk = MemoryDisk::new();
    put_file(
        &mut disk,
        DATABASE,
        &database(&Contents::from([(b"key".to_vec(), BTreeMap::new())])),
    );
    let message = imported(&mut disk).unwrap_err().to_string();
    assert_eq!(message, "/snapshot.db is not etcd's database: it has no bucket meta");
    let mut disk = MemoryDisk::new();
    put_file(&mut disk, DATABASE, b"text");
    assert!(matches!(imported(&mut disk), Err(ImportError::Read(_))));
    assert!(matches!(imported(&mut MemoryDisk::new()), Err(ImportError::Disk(_))));
}

#[test]
fn what_means_nothing_is_left_out_and_told() {
    let (imported, _) = import_with(b"meta", b"other", b"x").unwrap();
    assert_eq!(imported.skipped, ["meta other"]);
    assert_eq!(imported.fields.revision, 1);
    // Other buckets are not looked at.
    let (imported, _) = import_with(b"test", b"other", b"x").unwrap();
    assert!(imported.skipped.is_empty());
}

/// As `etcdutl snapshot restore --bump-revision` leaves it.
#[test]
fn a_raised_revision_is_kept() {
    let (imported, fields) = import_with(b"key", &key(1_000_000, false), b"").unwrap();
    assert_eq!(
        (imported.records, imported.fields.revision, fields.revision),
        (0, 1_000_000, 1_000_000)
    );
}

#[test]
fn rows_come_back_from_their_bytes() {
    let user = authpb::User {
        name: Bytes::from_static(b"root"),
        roles: vec!["root".into()],
        ..Default::default()
    };
    let role = authpb::Role {
        name: Bytes::from_static(b"reader"),
        ..Default::default()
    };
    for row in [
        Row::User(user),
        Row::Role(role),
        Row::AuthEnabled(true),
        Row::AuthRevision(7),
        Row::StorageVersion("3.6.0".into()),
        Row::Lease(Lease {
            id: i64::MIN,
            ttl: 1,
            remaining_ttl: 0,
        }),
        Row::RemovedMember(0xa),
        Row::FinishedCompaction(5),
        Row::Downgrade(Downgrade::default()),
    ] {
        let (bucket, key, value) = row.encode();
        assert_eq!(Row::decode(bucket, &key, &value), Ok(Some(row)));
    }
}

/// A sound database: puts and deletions, and a few rows.
fn sound() -> Vec<u8> {
    let mut contents: Contents = names::BUCKETS.map(|name| (name.to_vec(), BTreeMap::new())).into();
    let records = contents.get_mut(names::KEY).unwrap();
    for main in 2..400 {
        let mut value = Vec::new();
        let is_put = main % 3 > 0;
        let fields = KeyValueView {
            key: b"some key",
            value: b"some value",
            create_revision: main,
            mod_revision: main,
            version: 1,
            ..Default::default()
        };
        match is_put {
            true => fields.encode(&mut value),
            false => value.extend_from_slice(b"\x0a\x08some key"),
        }
        records.insert(key(main, !is_put), value);
    }
    let lease = Lease {
        id: 5,
        ttl: 60,
        remaining_ttl: 0,
    };
    let rows = [
        Row::Lease(lease),
        Row::Term(3),
        Row::RemovedMember(5),
        Row::AuthRevision(1),
    ];
    for (bucket, key, value) in rows.map(|row| row.encode()) {
        contents.get_mut(bucket).unwrap().insert(key, value);
    }
    database(&contents)
}

#[test]
fn a_sound_database_is_taken() {
    assert!(fuzz::import(&sound()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_changed_database_does_no_harm(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), in_front in any::<bool>(),
    ) {
        static SOUND: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(sound);
        let mut file = SOUND.clone();
        for (at, byte) in changes {
            // Elements are in front of a page, and its data behind.
            let at = at.index(file.len());
            file[if in_front { at / 4096 * 4096 + at % 300 } else { at }] = byte;
        }
        fuzz::import(&file);
    }

    #[test]
    fn arbitrary_rows_do_no_harm(bytes in vec(any::<u8>(), 0..60)) {
        fuzz::row(&bytes);
    }
}
