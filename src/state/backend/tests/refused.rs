//! Database files that are not taken over, and what is said of them.

use super::*;
use crate::mvcc::revision::Revision;
use crate::proto::authpb;

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

#[test]
fn pairs_that_cannot_be_right_are_named() {
    let cases: &[(&[u8], &[u8], &[u8], &str)] = &[
        (
            b"key",
            b"x",
            b"",
            "bucket key has a record that has no revision under key x",
        ),
        (b"key", &key(2, false), b"\x0a", "a record that is no mvccpb.KeyValue"),
        (
            b"key",
            &key(2, false),
            b"\x0a\x01k\x10\x02\x18\x03\x20\x01",
            "a record that contradicts itself",
        ),
        (
            b"key",
            &key(2, false),
            b"\x10\x02\x18\x02\x20\x01",
            "a record that contradicts itself",
        ),
        (
            b"key",
            &key(2, true),
            b"\x0a\x01k\x10\x02",
            "a record that contradicts itself",
        ),
        (b"key", &key(0, true), b"\x0a\x01k", "an impossible revision"),
        (b"key", &key(i64::MAX, true), b"\x0a\x01k", "an impossible revision"),
        (b"key", &key(-2, true), b"\x0a\x01k", "an impossible revision"),
        (b"lease", b"\0\0\0\0\0\0\0\x05", b"\x08\x06", "a lease of another id"),
        (b"alarm", b"\xff", b"", "an alarm that is no AlarmMember"),
        (
            b"members",
            b"A",
            b"{\"id\":10,\"peerURLs\":[]}",
            "a member id that is no hexadecimal number",
        ),
        (
            b"members",
            b"a",
            b"{\"id\":11,\"peerURLs\":[]}",
            "a member of another id",
        ),
        (
            b"members_removed",
            b"+a",
            b"removed",
            "a member id that is no hexadecimal number",
        ),
        (b"cluster", b"clusterVersion", b"3.x", "a version that is none"),
        (b"meta", b"term", b"3", "a number that has not eight bytes"),
        (b"meta", b"confState", b"{}", "a membership without voters"),
        (
            b"meta",
            b"confState",
            b"{\"voters\":[1],\"voters_outgoing\":[1]}",
            "in the middle of a change",
        ),
        (
            b"meta",
            b"scheduledCompactRev",
            b"\0",
            "a compaction mark that is no revision",
        ),
        (b"meta", b"storageVersion", b"3.8.0", "a storage version newer than 3.7"),
        (b"auth", b"authEnabled", b"\x01", "authentication turned on"),
        (b"authUsers", b"root", b"\x0a\x04root", "a user or role"),
    ];
    for (bucket, key, value, reason) in cases {
        let message = refusal(bucket, key, value);
        assert!(
            message.starts_with("/snapshot.db: bucket ") && message.contains(reason),
            "{message}, not {reason}"
        );
    }
    let many: Vec<u64> = (0..2_000).collect();
    let text = serde_json::to_vec(&ConfState {
        voters: many,
        ..Default::default()
    })
    .unwrap();
    assert!(refusal(b"meta", b"confState", &text).contains("too long for a page file"));
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
