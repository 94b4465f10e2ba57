//! SIGTERM and SIGINT: nobody is let in any more, what is in flight is finished, streams are ended, a last checkpoint
//! holds everything, and the process ends with 0 in bounded time, whatever clients do.

mod support;

use ringd::pages::{self, PageStore};
use ringd::proto::etcdserverpb as pb;
use ringd::reactor::Doorbell;
use ringd::reactor::disk::{DiskOptions, ThreadDisk};
use std::cell::Cell;
use std::net::TcpStream;
use std::rc::Rc;
use std::time::{Duration, Instant};
use support::block_on;
use support::etcd;
use support::grpc::{Channel, Stream};
use support::server::{Program, Server};
use tokio::task::LocalSet;

/// How long a shutdown may take with a client that does not read: its 5 seconds, a checkpoint, and a slow machine.
const SHUTDOWN_MAX: Duration = Duration::from_secs(30);
/// Keys and their size in bytes: a list that is many times longer than the windows it is read with.
const KEYS: usize = 40;
const VALUE_BYTES: usize = 32 << 10;

async fn fill(server: &Server) -> i64 {
    let channel = Channel::connect(&server.address()).await.expect("a connection");
    let value = vec![b'x'; VALUE_BYTES];
    let mut revision = 0;
    for key in 0..KEYS {
        let put = etcd::put(format!("key/{key:03}"), &value);
        let answer: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
        revision = answer.header.expect("a header").revision;
    }
    revision
}

/// A list of everything, read as far as its first bytes.
async fn begin_list(server: &Server) -> (Stream, usize) {
    let channel = Channel::connect_with_windows(&server.address(), 64 << 10, 64 << 10).await;
    let channel = channel.expect("a connection");
    let mut list = channel.stream(etcd::RANGE, &[]).await.expect("a call");
    list.send(&etcd::get_prefix("key/")).expect("a request");
    list.finish_sending().expect("the request's end");
    let first = list.next_piece().await.expect("the call goes on").expect("a piece");
    (list, first.len())
}

/// Waits until nobody is let in any more.
async fn await_refusal(server: &Server) {
    let until = Instant::now() + SHUTDOWN_MAX;
    while TcpStream::connect(server.address()).is_ok() {
        assert!(Instant::now() < until, "connections are still accepted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The revision that the page file holds.
fn stored_revision(server: &Server) -> i64 {
    let bell = Doorbell::new("test").expect("a doorbell");
    let mut disk = ThreadDisk::new(DiskOptions::default(), &bell).expect("a disk");
    let path = server.data_directory().join("member/snap/db.ringd");
    let options = pages::Options::new(0..ringd::limits::pages::OPERATIONS as u64);
    let store = PageStore::open(&mut disk, &path, options).expect("the page file is sound");
    store.root().fields().revision
}

fn what_is_in_flight_is_finished(signal: &str) {
    let mut server = Server::start(Program::Ringd, &["--log-level=info"]);
    let mut acknowledged = 0;
    let local = LocalSet::new();
    block_on(local.run_until(async {
        acknowledged = fill(&server).await;
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let mut watch = channel.stream(etcd::WATCH, &[]).await.expect("a call");
        watch
            .send(&etcd::create_watch(pb::WatchCreateRequest::default()))
            .expect("a watch");
        let created: Option<pb::WatchResponse> = watch.next().await.expect("the call goes on");
        assert!(created.expect("an answer").created);
        let idle = TcpStream::connect(server.address()).expect("a connection");
        let (mut list, mut received) = begin_list(&server).await;
        server.signal(signal);
        await_refusal(&server).await;
        while let Some(piece) = list.next_piece().await.expect("a list begun is finished") {
            received += piece.len();
        }
        assert!(received > KEYS * VALUE_BYTES, "only {received} bytes of the list came");
        let ended = watch.next::<pb::WatchResponse>().await;
        assert!(!matches!(ended, Ok(Some(_))), "the watch goes on: {ended:?}");
        drop(idle);
    }));
    assert!(server.stop_told().success());
    let log = server.log();
    let last = log.lines().last().expect("a line");
    assert!(last.contains(r#""msg":"stopped""#), "the log ends with {last}");
    assert!(
        stored_revision(&server) >= acknowledged,
        "the last checkpoint lacks writes"
    );
    server.restart();
    let count: pb::RangeResponse = block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let request = pb::RangeRequest {
            count_only: true,
            ..etcd::get_prefix("key/")
        };
        channel.call(etcd::RANGE, &request).await.expect("a read")
    });
    assert_eq!(count.count, KEYS as i64);
}

#[test]
fn sigterm_finishes_what_is_in_flight() {
    what_is_in_flight_is_finished("TERM");
}

#[test]
fn sigint_finishes_what_is_in_flight() {
    what_is_in_flight_is_finished("INT");
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let mut server = Server::start(Program::Ringd, &[]);
    block_on(async {
        let acknowledged = fill(&server).await;
        let (_list, _) = begin_list(&server).await;
        let began = Instant::now();
        assert!(server.stop().success());
        assert!(began.elapsed() < SHUTDOWN_MAX, "it took {:?}", began.elapsed());
        assert!(
            stored_revision(&server) >= acknowledged,
            "the last checkpoint lacks writes"
        );
    });
}

#[test]
fn writers_hear_no_or_their_write_is_kept() {
    let mut server = Server::start(Program::Ringd, &[]);
    let address = server.address();
    let local = LocalSet::new();
    let acknowledged: Vec<usize> = block_on(local.run_until(async {
        let writing = Rc::new(Cell::new(0));
        let writers = (0..8).map(|writer| {
            let (address, writing) = (address.clone(), writing.clone());
            tokio::task::spawn_local(async move {
                let channel = Channel::connect(&address).await.expect("a connection");
                let mut written = 0;
                loop {
                    let put = etcd::put(format!("writer/{writer}/{written:06}"), "x");
                    if channel.call::<pb::PutResponse>(etcd::PUT, &put).await.is_err() {
                        return written;
                    }
                    writing.set(writing.get() + usize::from(written == 0));
                    written += 1;
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        while writing.get() < writers.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.signal("TERM");
        let mut acknowledged = Vec::new();
        for writer in writers {
            acknowledged.push(writer.await.expect("a writer ends"));
        }
        acknowledged
    }));
    assert!(server.stop_told().success());
    assert!(acknowledged.iter().all(|written| *written > 0), "{acknowledged:?}");
    server.restart();
    block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        for (writer, written) in acknowledged.into_iter().enumerate() {
            let request = pb::RangeRequest {
                count_only: true,
                ..etcd::get_prefix(&format!("writer/{writer}/"))
            };
            let found: pb::RangeResponse = channel.call(etcd::RANGE, &request).await.expect("a read");
            let found = found.count as usize;
            // One may have been written whose answer was cut off.
            assert!(
                found == written || found == written + 1,
                "writer {writer}: {found} of {written}"
            );
        }
    });
}
