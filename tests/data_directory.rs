//! Data directories as the real programs leave and find them. In the wrong hands (etcd on one of ringd's, ringd on
//! one of etcd's) the start ends with an error that says so, and not a byte of the directory changes.

mod support;

use ringd::proto::etcdserverpb as pb;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use support::ending::Ended;
use support::etcd;
use support::grpc::Channel;
use support::server::{Program, Server};

const ETCDS: [Program; 2] = [Program::Etcd351, Program::Reference];
/// Keys written before each start of the wrong program.
const KEYS: usize = 20;

/// Every file and directory below a directory: length and checksum of the files.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Option<(usize, u32)>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
            found.insert(path, None);
        } else {
            let bytes = fs::read(&path).expect("a file");
            found.insert(path, Some((bytes.len(), crc32c::crc32c(&bytes))));
        }
    }
    found
}

fn write(server: &Server, round: usize) {
    support::block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        for key in 0..KEYS {
            let put = etcd::put(format!("key/{round}/{key}"), "value");
            let _: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
        }
    });
}

fn count(server: &Server) -> usize {
    support::block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let found: pb::RangeResponse = channel
            .call(etcd::RANGE, &etcd::get_prefix("key/"))
            .await
            .expect("a read");
        found.kvs.len()
    })
}

/// Starts etcd on ringd's directory, which must fail at the file that is there for it.
fn etcd_is_kept_out(server: &Server) {
    let before = contents(&server.data_directory());
    for program in ETCDS {
        let ended = Ended::of(server.command(program));
        assert_ne!(ended.code, Some(0), "{program:?}: {}", ended.output);
        for said in ["failed to open database", "member/snap/db", "invalid database"] {
            assert!(ended.output.contains(said), "{program:?}: {}", ended.output);
        }
        assert_eq!(
            contents(&server.data_directory()),
            before,
            "{program:?} changed something"
        );
    }
    let guard = fs::read_to_string(server.data_directory().join("member/snap/db")).expect("the guard is text");
    assert!(guard.contains("start ringd on this directory"), "{guard}");
}

#[test]
fn etcd_does_not_start_on_a_directory_of_ringds() {
    let mut server = Server::start(Program::Ringd, &[]);
    etcd_ends_while_ringd_runs(&server);
    write(&server, 0);
    server.kill();
    etcd_is_kept_out(&server);
    server.restart();
    write(&server, 1);
    assert!(server.stop().success());
    etcd_is_kept_out(&server);
    server.restart();
    assert_eq!(count(&server), 2 * KEYS);
}

/// While ringd runs its ports are taken as well, so only that etcd ends is looked at.
fn etcd_ends_while_ringd_runs(server: &Server) {
    for program in ETCDS {
        assert_ne!(Ended::of(server.command(program)).code, Some(0), "{program:?}");
    }
}

/// Starts ringd on a directory of etcd's.
fn ringd_refuses(server: &Server, said: &[&str]) {
    let before = contents(&server.data_directory());
    Ended::of(server.command(Program::Ringd)).expect(1, said);
    assert_eq!(contents(&server.data_directory()), before, "ringd changed something");
}

fn a_directory_of_etcds_is_refused(program: Program) {
    let mut server = Server::start(program, &[]);
    write(&server, 0);
    server.kill();
    let snap = server.data_directory().join("member/snap");
    let database = snap.join("db");
    let named = database.to_str().expect("UTF-8");
    ringd_refuses(&server, &[named, "etcd's own data", "choose another --data-dir"]);
    server.restart();
    assert_eq!(count(&server), KEYS);
    // Each version has a way of its own to end on a signal.
    server.stop();
    ringd_refuses(&server, &[named, "etcd's own data"]);
    // The log alone, with and without the directory that the database was in.
    let log = ["member/wal", "db.ringd is missing", "choose another --data-dir"];
    fs::remove_file(&database).expect("the database is removed");
    ringd_refuses(&server, &log);
    fs::remove_dir_all(&snap).expect("its directory is removed");
    ringd_refuses(&server, &log);
}

/// The page file knows of entries that the log has lost.
#[test]
fn a_log_that_lost_its_entries_is_refused() {
    let mut server = Server::start(Program::Ringd, &[]);
    write(&server, 0);
    assert!(server.stop().success());
    let segment = server
        .data_directory()
        .join("member/wal/0000000000000000-0000000000000000.wal");
    let log = fs::OpenOptions::new()
        .write(true)
        .open(segment)
        .expect("the first segment");
    // Within the header, before the first entry.
    log.set_len(100).expect("the log is cut");
    let ended = Ended::of(server.command(Program::Ringd));
    ended.expect(1, &["the write-ahead log ends at entry 0", "restore the member"]);
}

/// Bytes of the log up to the last that is not 0, after some puts one after the other.
fn log_bytes(arguments: &[&str]) -> usize {
    let mut server = Server::start(Program::Ringd, arguments);
    write(&server, 0);
    server.kill();
    let segment = server
        .data_directory()
        .join("member/wal/0000000000000000-0000000000000000.wal");
    let bytes = fs::read(segment).expect("the first segment");
    server.restart();
    assert_eq!(count(&server), KEYS);
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
}

#[test]
fn a_flag_pads_every_batch() {
    let blocks = KEYS * 4096;
    let (padded, dense) = (log_bytes(&["--wal-pad-batches"]), log_bytes(&[]));
    assert!(padded > blocks && dense < blocks, "{padded} and {dense} bytes");
}

#[test]
fn ringd_does_not_start_on_a_directory_of_3_5_1() {
    a_directory_of_etcds_is_refused(Program::Etcd351);
}

#[test]
fn ringd_does_not_start_on_a_directory_of_3_7_1() {
    a_directory_of_etcds_is_refused(Program::Reference);
}
