//! The stores behind the same answers: ringd's exported as etcd's database holds what etcd's own holds, etcd serves
//! from it, and etcd's own is imported and exported again without a change. What etcd stores of users, roles, alarms
//! and leases is understood.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ringd::{
    bbolt::{Content, File},
    io::disk::Disk,
    pages::{self, PageCache, PageStore, ReadFailure},
    proto::etcdserverpb as pb,
    reactor::{
        Doorbell,
        disk::{DiskOptions, ThreadDisk},
    },
    state::backend::{Export, ExportError, Exported, Import, ImportProgress, Imported, Row, names},
};

use super::{expect_same, pair::Pair};
use crate::support::{
    block_on, etcd,
    grpc::Channel,
    server::{Program, Server, tool},
};

/// Buckets, keys and values.
type Contents = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn options() -> pages::Options {
    pages::Options::new(0..64)
}

/// Exports what a page file holds, with a small cache and in small steps.
fn export(disk: &mut ThreadDisk, pages: &Path, to: &Path) {
    let store = PageStore::open(disk, pages, options()).expect("a page file");
    let mut cache = PageCache::new(1 << 20);
    let mut export = Export::new(store.root().clone());
    let mut file = Vec::new();
    loop {
        match export.step(&mut cache, 100) {
            Ok(Exported::Chunk(mut chunk)) => file.append(&mut chunk),
            Ok(Exported::End) => break,
            Ok(_) => {}
            Err(ExportError::Page(ReadFailure::Missing(first))) => {
                let ahead = export.ahead(&mut cache, 8);
                for address in [first].into_iter().chain(ahead) {
                    let (buffer, length) = disk
                        .read(store.file(), address.offset(), address.length())
                        .expect("a page");
                    store
                        .root()
                        .insert(&mut cache, &address, &buffer[..length])
                        .expect("a sound page");
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(Some(file.len() as u64), export.length());
    fs::write(to, file).expect("a database file");
}

/// Imports a database of etcd's into a page file.
fn import(disk: &mut ThreadDisk, database: &Path, pages: &Path) -> Imported {
    let mut import = Import::new(disk, database, pages, options()).unwrap_or_else(|error| panic!("{error}"));
    loop {
        match import.step(disk).unwrap_or_else(|error| panic!("{error}")) {
            ImportProgress::More(_) => {}
            ImportProgress::Done(imported) => return imported,
        }
    }
}

fn contents(path: &Path) -> Contents {
    let mut source = fs::File::open(path).expect("a database file");
    let file = File::open(&mut source, &path.display().to_string()).unwrap_or_else(|error| panic!("{error}"));
    let mut contents = Contents::new();
    let mut buckets = file.cursor(&file.root());
    while let Some(element) = buckets.next(&mut source).expect("a sound file") {
        let Content::Bucket(bucket) = element.content else {
            panic!("a value outside of a bucket")
        };
        let pairs = contents
            .entry(String::from_utf8_lossy(element.key).into_owned())
            .or_default();
        let mut cursor = file.cursor(&bucket);
        while let Some(element) = cursor.next(&mut source).expect("a sound file") {
            let Content::Value(value) = element.content else {
                panic!("a bucket inside of a bucket")
            };
            pairs.insert(element.key.to_vec(), value.to_vec());
        }
    }
    contents
}

/// Says where two databases differ.
fn expect_same_contents(ours: &Contents, theirs: &Contents) {
    let of = |contents: &Contents, bucket: &str| contents.get(bucket).cloned().unwrap_or_default();
    let buckets = ours
        .keys()
        .chain(theirs.keys())
        .collect::<std::collections::BTreeSet<_>>();
    let mut differences = Vec::new();
    for bucket in buckets {
        let (ours, theirs) = (of(ours, bucket), of(theirs, bucket));
        for key in ours
            .keys()
            .chain(theirs.keys())
            .collect::<std::collections::BTreeSet<_>>()
        {
            if ours.get(key) != theirs.get(key) {
                let text = |value: Option<&Vec<u8>>| value.map(|value| value.escape_ascii().to_string());
                differences.push(format!(
                    "{bucket} {}: {:?}, etcd's {:?}",
                    key.escape_ascii(),
                    text(ours.get(key)),
                    text(theirs.get(key))
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Runs etcdutl and returns what it printed.
fn etcdutl(arguments: &[&str]) -> String {
    let output = Command::new(tool("reference/etcdutl"))
        .args(arguments)
        .output()
        .expect("etcdutl");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdutl {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a server answers about everything it holds, headers left aside.
async fn answers(server: &Server, revisions: &[i64]) -> Vec<String> {
    let channel = Channel::connect(&server.address()).await.expect("a connection");
    let mut answers = Vec::new();
    for &revision in revisions {
        let hash = etcd::hash_at(&channel, revision)
            .await
            .map(|hash| (hash.hash, hash.compact_revision));
        answers.push(format!("hash at {revision}: {hash:?}"));
        let all = pb::RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            revision,
            ..Default::default()
        };
        let range: Result<pb::RangeResponse, _> = channel.call(etcd::RANGE, &all).await;
        answers.push(format!(
            "range at {revision}: {:?}",
            range.map(|range| (range.count, range.kvs))
        ));
    }
    let leases: pb::LeaseLeasesResponse = channel
        .call(etcd::LEASE_LEASES, &pb::LeaseLeasesRequest {})
        .await
        .expect("leases");
    let mut ids: Vec<i64> = leases.leases.iter().map(|lease| lease.id).collect();
    ids.sort_unstable();
    for id in ids {
        let asked = pb::LeaseTimeToLiveRequest { id, keys: true };
        let lease: pb::LeaseTimeToLiveResponse = channel.call(etcd::LEASE_TIME_TO_LIVE, &asked).await.expect("a lease");
        let mut keys = lease.keys;
        keys.sort_unstable();
        answers.push(format!("lease {id}: {} {keys:?}", lease.granted_ttl));
    }
    answers
}

fn database(server: &Server) -> PathBuf {
    server.data_directory().join("member/snap/db")
}

fn page_file(server: &Server) -> PathBuf {
    server.data_directory().join("member/snap/db.ringd")
}

#[test]
fn exported_and_imported_stores_are_etcds() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    let bell = Doorbell::new("test").expect("a bell");
    let mut disk = ThreadDisk::new(DiskOptions::default(), &bell).expect("a disk");
    let (mut pair, revisions, wanted) = block_on(async {
        let mut pair = Pair::start(Program::Ringd).await;
        expect_same(pair.run_random(11, 2_000).await);
        let newest = expect_revision(&pair).await;
        let revisions = [newest, newest - 1, newest - 20, newest / 2, 2];
        let [subject, _] = pair.servers();
        let wanted = answers(subject, &revisions).await;
        (pair, revisions, wanted)
    });
    let [ours, theirs] = pair.stop();
    // With records in it that a compaction has removed and the next checkpoint would delete.
    let exported = at("exported.db");
    export(&mut disk, &page_file(ours), &exported);

    // etcd's tools read it.
    let status = etcdutl(&["snapshot", "status", "-w", "json", exported.to_str().expect("text")]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["revision"], revisions[0], "{status}");

    // etcd serves from it.
    let mut restored = Server::reference(&[]);
    restored.kill();
    fs::remove_dir_all(restored.data_directory()).expect("the directory of a server that was killed");
    etcdutl(&[
        "snapshot",
        "restore",
        exported.to_str().expect("text"),
        "--skip-hash-check",
        "--data-dir",
        restored.data_directory().to_str().expect("text"),
        "--initial-cluster=default=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
    ]);
    restored.restart();
    let answered = block_on(answers(&restored, &revisions));
    assert_eq!(answered.len(), wanted.len());
    answered
        .iter()
        .zip(&wanted)
        .for_each(|(answer, wanted)| assert_eq!(answer, wanted));

    // It is what etcd holds.
    ours.restart();
    ours.stop();
    export(&mut disk, &page_file(ours), &at("later.db"));
    let mut both = [contents(&at("later.db")), contents(&database(theirs))];
    for contents in &mut both {
        // Starting once more took an entry and a term.
        let meta = contents.get_mut("meta").expect("a bucket");
        meta.retain(|key, _| key != names::CONSISTENT_INDEX && key != names::TERM);
    }
    expect_same_contents(&both[0], &both[1]);

    // Theirs comes back as it was.
    let imported = import(&mut disk, &database(theirs), &at("imported.ringd"));
    assert_eq!((imported.fields.revision, imported.skipped), (revisions[0], vec![]));
    export(&mut disk, &at("imported.ringd"), &at("again.db"));
    expect_same_contents(&contents(&at("again.db")), &contents(&database(theirs)));
}

async fn expect_revision(pair: &Pair) -> i64 {
    let [subject, _] = pair.servers();
    let channel = Channel::connect(&subject.address()).await.expect("a connection");
    let range: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get("x")).await.expect("a read");
    range.header.expect("a header").revision
}

/// Runs etcdctl against a server.
fn etcdctl(server: &Server, arguments: &[&str]) {
    let mut command = Command::new(tool("reference/etcdctl"));
    let output = command
        .arg("--endpoints")
        .arg(server.address())
        .args(arguments)
        .output();
    let output = output.expect("etcdctl");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {arguments:?}: {said}");
}

/// A long history: many keys and revisions, deletions, a compaction, leases. Returns the revision.
fn fill(server: &Server) -> i64 {
    block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let grant = pb::LeaseGrantRequest { ttl: 10_000, id: 77 };
        let _: pb::LeaseGrantResponse = channel.call(etcd::LEASE_GRANT, &grant).await.expect("a lease");
        for number in 0..3_000usize {
            let key = format!("key/{}", number * 7 % 900);
            if number % 11 == 0 {
                let _: pb::DeleteRangeResponse = channel
                    .call(etcd::DELETE_RANGE, &etcd::delete(&key))
                    .await
                    .expect("a deletion");
                continue;
            }
            let put = pb::PutRequest {
                lease: if number % 5 == 0 { 77 } else { 0 },
                ..etcd::put(&key, vec![number as u8; number % 1_000 * (1 + number % 300 / 299 * 90)])
            };
            let _: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
        }
        let compact = pb::CompactionRequest {
            revision: 1_500,
            physical: true,
        };
        let compacted: pb::CompactionResponse = channel.call(etcd::COMPACT, &compact).await.expect("a compaction");
        compacted.header.expect("a header").revision
    })
}

fn raise_alarm(server: &Server) {
    block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let alarm = pb::AlarmRequest {
            action: pb::alarm_request::AlarmAction::Activate as i32,
            alarm: pb::AlarmType::Nospace as i32,
            member_id: 9,
        };
        let _: pb::AlarmResponse = channel.call(etcd::ALARM, &alarm).await.expect("an alarm");
    });
}

/// How many rows there are of each kind. All have to be understood, and to come back from what was understood.
fn kinds(contents: &Contents) -> Vec<String> {
    let mut kinds = BTreeMap::<String, usize>::new();
    for (bucket, pairs) in contents.iter().filter(|(bucket, _)| *bucket != "key") {
        for (key, value) in pairs {
            let row = Row::decode(bucket.as_bytes(), key, value).unwrap_or_else(|reason| panic!("{reason}"));
            let row = row.unwrap_or_else(|| panic!("{bucket} {} means nothing", key.escape_ascii()));
            assert_eq!(row.encode(), (bucket.as_bytes(), key.clone(), value.clone()), "{row:?}");
            let kind = format!("{row:?}");
            *kinds
                .entry(kind.split('(').next().unwrap_or_default().into())
                .or_default() += 1;
        }
    }
    kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect()
}

#[test]
fn databases_of_etcd_are_understood() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bell = Doorbell::new("test").expect("a bell");
    let mut disk = ThreadDisk::new(DiskOptions::default(), &bell).expect("a disk");
    for program in [Program::Etcd351, Program::Reference] {
        let at = |name: &str| directory.path().join(format!("{program:?}.{name}"));
        let mut server = Server::start(program, &["--unsafe-no-fsync"]);
        let revision = fill(&server);
        server.stop();
        let stored = contents(&database(&server));
        let imported = import(&mut disk, &database(&server), &at("ringd"));
        assert_eq!(imported.records as usize, stored["key"].len());
        assert_eq!(
            (imported.fields.revision, imported.fields.compact_revision),
            (revision, 1_500)
        );
        export(&mut disk, &at("ringd"), &at("db"));
        expect_same_contents(&contents(&at("db")), &stored);

        server.restart();
        raise_alarm(&server);
        for command in [
            "user add root:secret",
            "user add someone --no-password",
            "role add readers",
            "role grant-permission readers read a b",
            "user grant-role someone readers",
            "user grant-role root root",
            "auth enable",
        ] {
            etcdctl(&server, &command.split(' ').collect::<Vec<_>>());
        }
        server.stop();
        let one_each = "Alarm AuthEnabled AuthRevision ClusterVersion ConfState ConsistentIndex FinishedCompaction \
                        Lease Member Role ScheduledCompaction StorageVersion Term";
        let known = one_each
            .split(' ')
            .filter(|kind| program == Program::Reference || *kind != "StorageVersion");
        let wanted: Vec<_> = known.map(|kind| format!("{kind} 1")).chain(["User 2".into()]).collect();
        assert_eq!(kinds(&contents(&database(&server))), wanted);
        // Nothing that was closed is opened.
        let refused = Import::new(&mut disk, &database(&server), &at("refused"), options());
        let refused = refused.unwrap_or_else(|error| panic!("{error}")).step(&mut disk);
        let message = refused.map(|_| ()).expect_err("authentication").to_string();
        assert!(
            message.contains("bucket auth has authentication turned on"),
            "{message}"
        );
    }
}
