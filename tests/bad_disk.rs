//! ringd above its quota, on a disk that gets full, one that stops giving pages, one that gives other bytes than were
//! written, one that takes no more of the log, and one that knows no O_DIRECT.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ringd::proto::etcdserverpb as pb;
use support::grpc::{Channel, Status};
use support::mount::Mount;
use support::server::{Program, Server};
use support::{block_on, etcd};

const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
const TIMED_OUT: &str = "etcdserver: request timed out";
const CORRUPT: &str = "etcdserver: corrupt cluster";
/// Room for three segments of the log and some of the page file.
const SMALL_BYTES: u64 = 400 << 20;
const VALUE_BYTES: usize = 256 << 10;
/// Writes that are refused for so long will be refused until there is room.
const FULL_FOR: Duration = Duration::from_secs(4);
/// Within this time writes are taken again once there is room.
const SOON: Duration = Duration::from_secs(60);
const CODE_RESOURCE_EXHAUSTED: i32 = 8;
const CODE_INTERNAL: i32 = 13;
const CODE_DATA_LOSS: i32 = 15;

async fn put(channel: &Channel, key: &str, value: &[u8]) -> Result<i64, Status> {
    let answer: pb::PutResponse = channel.call(etcd::PUT, &etcd::put(key, value)).await?;
    Ok(answer.header.expect("a header").revision)
}

async fn get(channel: &Channel, key: &str) -> Result<Option<Vec<u8>>, Status> {
    let answer: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get(key)).await?;
    Ok(answer.kvs.first().map(|pair| pair.value.to_vec()))
}

async fn alarms(channel: &Channel) -> Vec<i32> {
    let answer: pb::AlarmResponse = channel
        .call(etcd::ALARM, &pb::AlarmRequest::default())
        .await
        .expect("alarms");
    answer.alarms.iter().map(|alarm| alarm.alarm).collect()
}

/// Puts new keys until they are refused for good; how many were taken in all.
async fn fill(channel: &Channel, mut taken: usize) -> usize {
    let mut refused_since: Option<Instant> = None;
    loop {
        match put(channel, &format!("fill/{taken:05}"), &vec![taken as u8; VALUE_BYTES]).await {
            Ok(_) => {
                taken += 1;
                refused_since = None;
                assert!(
                    taken as u64 * (VALUE_BYTES as u64) < SMALL_BYTES,
                    "more fits than there is room for"
                );
            }
            // A machine with much else to do may be that slow.
            Err(status) if status.message == TIMED_OUT => {}
            Err(status) => {
                assert_eq!(
                    (status.code, status.message.as_str()),
                    (CODE_RESOURCE_EXHAUSTED, NO_SPACE)
                );
                if refused_since.get_or_insert_with(Instant::now).elapsed() > FULL_FOR {
                    return taken;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn await_room(channel: &Channel, value: &[u8]) {
    // Attempts are counted, so that a machine that stood still meanwhile has taken none of them.
    let pause = Duration::from_millis(100);
    for _ in 0..SOON.as_millis() / pause.as_millis() {
        let Err(status) = put(channel, "room", value).await else {
            return;
        };
        assert!([NO_SPACE, TIMED_OUT].contains(&status.message.as_str()), "{status:?}");
        tokio::time::sleep(pause).await;
    }
    panic!("writes are refused {SOON:?} after there was room");
}

/// What goes on while writes are refused.
async fn assert_lives(channel: &Channel, taken: usize) {
    let last = get(channel, &format!("fill/{:05}", taken - 1))
        .await
        .expect("reads go on");
    assert_eq!(last, Some(vec![(taken - 1) as u8; VALUE_BYTES]));
    let mut renewals = channel.stream(etcd::LEASE_KEEP_ALIVE, &[]).await.expect("a stream");
    renewals.send(&pb::LeaseKeepAliveRequest { id: 7 }).expect("a renewal");
    let renewed: Option<pb::LeaseKeepAliveResponse> = renewals.next().await.expect("leases go on");
    assert_eq!(renewed.expect("an answer").ttl, 1000);
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_again_by_itself() {
    let Some(mount) = Mount::tmpfs(SMALL_BYTES) else { return };
    block_on(async {
        let mut server = Server::start_in(&mount.path(), Program::Ringd, &[]);
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let grant = pb::LeaseGrantRequest { ttl: 1000, id: 7 };
        let _: pb::LeaseGrantResponse = channel.call(etcd::LEASE_GRANT, &grant).await.expect("a lease");
        // Somebody else's file takes the room, and gives it back.
        let ballast = mount.path().join("ballast");
        let file = File::create(&ballast).expect("a file");
        let full = (0..SMALL_BYTES / VALUE_BYTES as u64)
            .map(|at| file.write_all_at(&[1; VALUE_BYTES], at * VALUE_BYTES as u64))
            .find_map(Result::err);
        assert_eq!(full.and_then(|error| error.raw_os_error()), Some(libc::ENOSPC));
        let taken = fill(&channel, 1).await;
        assert_lives(&channel, taken).await;
        drop(file);
        std::fs::remove_file(&ballast).expect("remove the ballast");
        await_room(&channel, b"?").await;
        // The server's own data takes it, and a compaction gives it back.
        let taken = fill(&channel, taken).await;
        assert_lives(&channel, taken).await;
        let all = pb::DeleteRangeRequest {
            range_end: etcd::prefix_end(b"fill/").into(),
            ..etcd::delete("fill/")
        };
        let deleted: pb::DeleteRangeResponse = channel.call(etcd::DELETE_RANGE, &all).await.expect("deletes go on");
        let compaction = pb::CompactionRequest {
            revision: deleted.header.expect("a header").revision,
            physical: true,
        };
        let _: pb::CompactionResponse = channel
            .call(etcd::COMPACT, &compaction)
            .await
            .expect("compactions go on");
        await_room(&channel, b"?").await;
        let revision = put(&channel, "last", b"write").await.expect("writes are taken again");
        server.kill();
        server.restart();
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        assert_eq!(get(&channel, "last").await, Ok(Some(b"write".to_vec())));
        assert_eq!(put(&channel, "after", b"").await, Ok(revision + 1));
    });
}

/// As with etcd after compacting, defragmenting and disarming, but for the defragmentation.
#[test]
fn a_full_quota_is_left_by_a_compaction_and_one_disarm() {
    block_on(async {
        let server = Server::start(Program::Ringd, &["--quota-backend-bytes=33554432"]);
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let taken = fill(&channel, 0).await;
        assert!(taken * VALUE_BYTES > 24 << 20, "refused after {taken}");
        assert_eq!(alarms(&channel).await, [pb::AlarmType::Nospace as i32]);
        let all = pb::DeleteRangeRequest {
            range_end: etcd::prefix_end(b"fill/").into(),
            ..etcd::delete("fill/")
        };
        let deleted: pb::DeleteRangeResponse = channel.call(etcd::DELETE_RANGE, &all).await.expect("deletes go on");
        let compaction = pb::CompactionRequest {
            revision: deleted.header.expect("a header").revision,
            physical: true,
        };
        let compacted: pb::CompactionResponse = channel.call(etcd::COMPACT, &compaction).await.expect("a compaction");
        let disarm = pb::AlarmRequest {
            member_id: compacted.header.expect("a header").member_id,
            action: pb::alarm_request::AlarmAction::Deactivate as i32,
            alarm: pb::AlarmType::Nospace as i32,
        };
        let _: pb::AlarmResponse = channel.call(etcd::ALARM, &disarm).await.expect("disarmed");
        await_room(&channel, &[b'?'; VALUE_BYTES]).await;
        assert!(alarms(&channel).await.is_empty(), "it was not raised again meanwhile");
    });
}

/// A server whose keys are in its page file only.
async fn stored(parent: &Path, arguments: &[&str]) -> (Server, Channel) {
    let mut server = Server::start_in(parent, Program::Ringd, arguments);
    let channel = Channel::connect(&server.address()).await.expect("a connection");
    for key in 0..200 {
        put(&channel, &format!("{key}"), &vec![key as u8; 20_000])
            .await
            .expect("a put");
    }
    assert!(server.stop().success());
    server.restart();
    let channel = Channel::connect(&server.address()).await.expect("a connection");
    (server, channel)
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_of_that_call_alone() {
    let Some(mount) = Mount::ext4(256 << 20) else { return };
    let log = tempfile::tempdir().expect("a directory for the log");
    block_on(async {
        let flag = format!("--wal-dir={}", log.path().join("wal").display());
        let (mut server, channel) = stored(&mount.path(), &[&flag]).await;
        mount.cut_medium(1 << 20);
        for _ in 0..2 {
            let status = get(&channel, "77").await.expect_err("the medium is gone");
            assert_eq!(status.code, CODE_INTERNAL, "{status:?}");
            let names = ["db.ringd", "at byte offset ", "(os error 5)"];
            assert!(names.iter().all(|part| status.message.contains(part)), "{status:?}");
        }
        let began = Instant::now();
        while !server.log().contains("a page could not be read: read ") {
            assert!(began.elapsed() < SOON, "it is not logged: {}", server.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(alarms(&channel).await.is_empty(), "that says nothing of what is stored");
        put(&channel, "new", b"value").await.expect("writes go on");
        assert_eq!(get(&channel, "new").await, Ok(Some(b"value".to_vec())));
        assert!(server.is_running());
        server.kill();
    });
}

#[test]
fn a_damaged_page_raises_the_corrupt_alarm_and_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        let (mut server, channel) = stored(directory.path(), &[]).await;
        let path = server.data_directory().join("member/snap/db.ringd");
        let file = File::options().write(true).open(&path).expect("the page file");
        let length = file.metadata().expect("its length").len();
        // All but the two meta pages.
        file.write_all_at(&vec![0xa5; (length - 16384) as usize], 16384)
            .expect("damage");
        file.sync_all().expect("a sync");
        let status = get(&channel, "77").await.expect_err("the page is damaged");
        assert_eq!((status.code, status.message.as_str()), (CODE_DATA_LOSS, CORRUPT));
        let began = Instant::now();
        while alarms(&channel).await != [pb::AlarmType::Corrupt as i32] {
            assert!(began.elapsed() < SOON, "no alarm is raised");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let log = server.log();
        let line = log
            .lines()
            .find(|line| line.contains("raising the CORRUPT alarm"))
            .expect("it is logged");
        for part in ["db.ringd", "page ", "at byte offset "] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(server.is_running());
        server.kill();
    });
}

#[test]
fn a_failed_write_of_the_log_ends_the_process_and_names_the_file() {
    /// No file may grow beyond it; more than the page file and the server's messages come to.
    const FILE_BYTES: u64 = 4 << 20;
    for writer in ["ring", "ring-linked", "ring-helper", "threads"] {
        let mut server = Server::start(Program::Ringd, &[&format!("--wal-writer={writer}")]);
        let taken = block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            bound_file_sizes(server.process_id(), FILE_BYTES);
            let mut taken = 0;
            while put(&channel, &format!("{taken}"), &vec![taken as u8; VALUE_BYTES])
                .await
                .is_ok()
            {
                taken += 1;
                assert!(taken as u64 * (VALUE_BYTES as u64) < FILE_BYTES, "more fits than may");
            }
            taken
        });
        assert_eq!(server.stop_told().code(), Some(1), "{writer}");
        let log = server.log();
        let line = log.lines().find(|line| line.contains("(os error 27)"));
        let line = line.unwrap_or_else(|| panic!("{writer}: the errno is not logged: {log}"));
        let wal = server.data_directory().join("member/wal");
        let names = |file: std::fs::DirEntry| line.contains(&file.path().display().to_string());
        let mut files = std::fs::read_dir(wal).expect("the log's directory");
        assert!(
            files.any(|file| names(file.expect("a file"))),
            "{writer}: no file is named: {line}"
        );
        server.restart();
        block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            for key in 0..taken {
                let value = get(&channel, &format!("{key}")).await.expect("a read");
                assert_eq!(
                    value,
                    Some(vec![key as u8; VALUE_BYTES]),
                    "{writer}: {key} was acknowledged"
                );
            }
        });
    }
}

#[test]
fn a_file_system_without_direct_io_is_used_with_one_warning() {
    let Some(mount) = Mount::ramfs() else { return };
    block_on(async {
        let mut server = Server::start_in(&mount.path(), Program::Ringd, &[]);
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        put(&channel, "key", b"value").await.expect("a put");
        let warnings = server.log().matches("the file system refuses O_DIRECT").count();
        assert_eq!(warnings, 1, "{}", server.log());
        server.kill();
        server.restart();
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        assert_eq!(get(&channel, "key").await, Ok(Some(b"value".to_vec())));
        server.kill();
    });
}

/// Lets no file of a running process grow beyond so many bytes: writes there fail with EFBIG.
fn bound_file_sizes(process: u32, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: `limit` outlives the call, and no old limit is asked for.
    let result = unsafe { libc::prlimit(process as i32, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(result, 0, "prlimit: {}", std::io::Error::last_os_error());
}
