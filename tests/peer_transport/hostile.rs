//! Peers that are none, or don't keep to the protocol: the right status, or the end of the connection.

use super::member::{Command, Member, Setup};
use super::{TICK, listener};
use crate::support::http::{Answer, answer_to, exchange};
use raft::eraftpb::{Message, MessageType};
use ringd::limits::transport::SERVED_CONNECTIONS_MAX;
use ringd::raft::transport::codec::{encode_heartbeat, encode_message};
use ringd::raft::transport::wire;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub const CLUSTER: u64 = 0xc1;
/// The member under test, a member that is elsewhere, and one that was removed.
pub const OURS: u64 = 0xa1;
const OTHER: u64 = 0xa2;
const REMOVED: u64 = 0xa9;
const BOUND: Duration = Duration::from_secs(60);

/// A member of two, the other one being whoever listens at `other`.
fn member(other: String) -> (Member, String) {
    let (listener, url) = listener();
    let address = url.replace("http://", "");
    let setup = Setup {
        id: OURS,
        cluster_id: CLUSTER,
        members: vec![(OURS, url), (OTHER, other)],
        removed: vec![REMOVED],
        tick: TICK,
    };
    (Member::start(setup, listener), address)
}

/// A URL where nobody listens.
fn nowhere() -> String {
    let (listener, url) = listener();
    drop(listener);
    url
}

/// Everything that is logged in this process.
fn logged() -> String {
    static LOG: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = LOG.get_or_init(|| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = log.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || Sink(sink.clone()))
            .init();
        log
    });
    String::from_utf8_lossy(&log.lock().unwrap()).into_owned()
}

/// A request as a peer sends it, with these fields in the place of its own.
pub fn request(line: &str, cluster: u64, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let cluster = format!("{cluster:x}");
    let mut all = vec![
        ("Host", "peer"),
        ("X-Etcd-Cluster-ID", cluster.as_str()),
        ("X-Server-From", "77"),
        ("X-Server-Version", "3.7.1"),
        ("X-Min-Cluster-Version", "3.0.0"),
    ];
    for (name, value) in fields {
        all.retain(|(known, _)| known != name);
        all.push((name, value));
    }
    let length = body.len().to_string();
    if !body.is_empty() {
        all.push(("Content-Length", &length));
    }
    let mut text = format!("{line} HTTP/1.1\r\n");
    all.iter()
        .for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    [text.as_bytes(), b"\r\n", body].concat()
}

fn ask(address: &str, line: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
    let method = line.split(' ').next().expect("a method");
    answer_to(address, method, &request(line, CLUSTER, fields, body))
}

fn message(kind: MessageType, from: u64, to: u64) -> Message {
    let mut message = Message {
        from,
        to,
        term: 1,
        ..Message::default()
    };
    message.set_msg_type(kind);
    message
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(message, &mut bytes).expect("a message that can leave");
    bytes
}

#[test]
fn requests_are_refused_in_etcds_words() {
    logged();
    let (member, address) = member(nowhere());
    let text = |line, fields: &[(&str, &str)], body: &[u8]| {
        let answer = ask(&address, line, fields, body);
        (answer.status, answer.body)
    };
    let error = |status: u16, text: &str| (status, format!("{text}\n"));
    let heartbeat = encoded(&message(MessageType::MsgHeartbeat, 0x77, OURS));
    assert_eq!(text("POST /raft", &[], &heartbeat), (204, String::new()));
    let wrong_cluster = [("X-Etcd-Cluster-ID", "c2")];
    let old = [("X-Server-Version", "2.3.0")];
    for line in ["POST /raft", "POST /raft/snapshot", "GET /raft/stream/message/a2"] {
        assert_eq!(
            text(line, &wrong_cluster, &[]),
            error(412, "cluster ID mismatch"),
            "{line}"
        );
        assert_eq!(text(line, &old, &[]), error(412, "incompatible version"), "{line}");
    }
    for line in ["GET /raft", "PUT /raft/snapshot", "POST /raft/stream/message/a2"] {
        assert_eq!(text(line, &[], &[]), error(405, "Method Not Allowed"), "{line}");
    }
    assert_eq!(
        text("GET /raft/stream/message/a9", &[], &[]),
        error(410, "removed member")
    );
    assert_eq!(
        text("GET /raft/stream/message/a2", &[], &[]),
        error(412, "to field mismatch")
    );
    member.wait("for all connections to end", |seen| seen.served == 0);
}

#[test]
fn messages_and_strangers_are_refused() {
    logged();
    let (member, address) = member(nowhere());
    let text = |line, fields: &[(&str, &str)], body: &[u8]| {
        let answer = ask(&address, line, fields, body);
        (answer.status, answer.body)
    };
    let error = |status: u16, text: &str| (status, format!("{text}\n"));
    let unprocessed = error(500, "error processing raft message");
    let from = [("X-Server-From", "a9")];
    let wrong_cluster = [("X-Etcd-Cluster-ID", "c2")];
    ask(&address, "POST /raft", &wrong_cluster, &[]);
    ask(&address, "POST /raft", &[("X-Server-Version", "2.3.0")], &[]);
    let unknown = error(404, "error sender not found");
    let urls = [("X-PeerURLs", "http://10.0.0.9:2380,http://10.0.0.8:2380")];
    assert_eq!(text("GET /raft/stream/msgapp/a7", &urls, &[]), unknown);
    let learned = member.wait("to learn", |seen| !seen.learned.is_empty()).learned;
    let urls = ["http://10.0.0.9:2380", "http://10.0.0.8:2380"].map(str::to_string);
    assert_eq!(learned, [(0xa7, urls.to_vec())]);
    let to_other = encoded(&message(MessageType::MsgHeartbeat, 0x77, OTHER));
    assert_eq!(text("POST /raft", &[], &to_other), unprocessed);
    let of_removed = encoded(&message(MessageType::MsgHeartbeat, REMOVED, OURS));
    assert_eq!(text("POST /raft", &from, &of_removed), unprocessed);
    let someone = encoded(&message(MessageType::MsgHeartbeat, 0x78, OURS));
    assert_eq!(
        text("POST /raft", &[], &someone),
        error(500, "error processing raft message")
    );
    assert_eq!(
        text("POST /raft", &[], b"garbage"),
        error(400, "error unmarshalling raft message")
    );
    let mut no_snapshot = Vec::new();
    encode_message(
        &message(MessageType::MsgHeartbeatResponse, 0x77, OURS),
        &mut no_snapshot,
    )
    .unwrap();
    assert_eq!(
        text("POST /raft/snapshot", &[], &no_snapshot),
        error(400, "wrong raft message type")
    );
    assert_eq!(ask(&address, "POST /raft/snapshot", &[], &[0xff; 20]).status, 400);
    assert_eq!(ask(&address, "GET /raft/probing", &[], &[]).status, 200);
    let said = logged();
    for reason in ["cluster `c2`", "version is `2.3.0`", "says it is of 78", "was removed"] {
        assert!(said.contains(reason), "{reason} in {said}");
    }
    // The same again is not said again.
    for _ in 0..20 {
        ask(&address, "POST /raft", &wrong_cluster, &[]);
    }
    let count = logged().matches("cluster `c2`").count();
    assert!(count <= said.matches("cluster `c2`").count() + 1, "{count} lines");
    member.wait("for all connections to end", |seen| seen.served == 0);
}

#[test]
fn bodies_are_bounded() {
    let (member, address) = member(nowhere());
    let huge = [("Content-Length", "100000000000")];
    assert_eq!(ask(&address, "POST /raft", &huge, &[]).status, 413);
    let chunked = request("POST /raft", CLUSTER, &[("Transfer-Encoding", "chunked")], &[]);
    let announced = exchange(&address, &[&chunked[..], b"ffffffffff\r\n"].concat());
    assert!(
        announced.starts_with(b"HTTP/1.1 413"),
        "{}",
        String::from_utf8_lossy(&announced)
    );
    // A message in front of a snapshot that says it is huge.
    let mut envelope = (1u64 << 60).to_be_bytes().to_vec();
    envelope.extend_from_slice(&[0; 100]);
    let answer = ask(&address, "POST /raft/snapshot", &[], &envelope);
    assert!(answer.status == 400 && answer.body.contains("announced"), "{answer:?}");
    // A database that ends too soon.
    let mut message = message(MessageType::MsgSnapshot, OTHER, OURS);
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (9, 1);
    *metadata.mut_conf_state() = (vec![OURS], vec![]).into();
    let mut body = Vec::new();
    encode_message(&message, &mut body).unwrap();
    let fields = [("Content-Length", "5000"), ("X-Server-From", "a2")];
    let mut cut = TcpStream::connect(&address).unwrap();
    let head = request("POST /raft/snapshot", CLUSTER, &fields, &[]);
    cut.write_all(&[&head[..], &body[..], &[7; 1000]].concat()).unwrap();
    cut.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    cut.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 500") && answer.contains("failed to save KV snapshot"),
        "{answer}"
    );
    assert_eq!(member.counters.of(OTHER).snapshots_received.failed.get(), 1);
    member.wait("for all connections to end", |seen| seen.served == 0);
}

#[test]
fn silence_ends_a_connection() {
    let (member, address) = member(nowhere());
    let began = Instant::now();
    let ends = |sent: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.write_all(sent).unwrap();
        stream
    };
    let nothing = ends(b"");
    let half = ends(b"POST /raft HTTP/1.1\r\nHost:");
    let body = ends(&request("POST /raft", CLUSTER, &[("Content-Length", "10")], &[]));
    for mut stream in [nothing, half, body] {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "ended after {:?}",
        began.elapsed()
    );
    member.wait("for all connections to end", |seen| seen.served == 0);
}

#[test]
fn a_later_stream_takes_the_place_of_an_earlier_one() {
    let (member, address) = member(nowhere());
    let open = || {
        let fields = [("X-Raft-To", "a1"), ("X-Server-From", "a2")];
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        let asked = request("GET /raft/stream/message/a2", CLUSTER, &fields, &[]);
        stream.write_all(&asked).unwrap();
        let mut head = [0; 15];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        stream
    };
    let mut first = open();
    let mut second = open();
    let mut rest = Vec::new();
    let _ = first.read_to_end(&mut rest);
    // The second one lives: votes and heartbeats go by it.
    let mut some = [0; 200];
    second.read_exact(&mut some).unwrap();
    drop(second);
    member.wait("for all connections to end", |seen| seen.served == 0);
}

/// Who leaves more requests unfinished than there may be keeps no member out: the oldest of them go, streams never.
#[test]
fn unfinished_requests_keep_no_member_out() {
    let (member, address) = member(nowhere());
    let open = |line: &str, fields: &[(&str, &str)]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.write_all(&request(line, CLUSTER, fields, &[])).unwrap();
        stream
    };
    let begins = |stream: &mut TcpStream| {
        let mut head = [0; 15];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
    };
    let to_us = [("X-Raft-To", "a1"), ("X-Server-From", "a2")];
    let mut early = open("GET /raft/stream/msgapp/a2", &to_us);
    begins(&mut early);
    let requests = 0..SERVED_CONNECTIONS_MAX + 20;
    let unfinished: Vec<TcpStream> = requests
        .map(|_| open("POST /raft", &[("Content-Length", "1000000")]))
        .collect();
    let mut late = open("GET /raft/stream/message/a2", &to_us);
    begins(&mut late);
    let mut some = [0; 8];
    early.read_exact(&mut some).expect("the stream goes on");
    drop((early, late, unfinished));
    member.wait("for all connections to end", |seen| seen.served == 0);
}

/// Somebody in the place of the other member, who answers each connection with these bytes.
fn answers_with(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> (String, Arc<AtomicUsize>) {
    let (listener, url): (TcpListener, _) = listener();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let _ = stream.write_all(&answer(&String::from_utf8_lossy(&head)));
            counted.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
            // What was answered is left open: it is for the other side to end it.
            if kept.len() > 16 {
                kept.clear();
            }
        }
    });
    (url, count)
}

fn stream_of(chunk: &[u8]) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nX-Server-Version: 3.7.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let size = format!("{:x}\r\n", chunk.len());
    [head.as_bytes(), size.as_bytes(), chunk, b"\r\n"].concat()
}

#[test]
fn streams_that_break_are_dialed_again() {
    logged();
    let huge = u64::MAX.to_be_bytes();
    let garbage = [9u8; 100];
    let answers: [(&str, Vec<u8>); 6] = [
        ("announced", stream_of(&[&[2][..], &huge].concat())),
        ("", stream_of(&garbage)),
        ("no head of a response", b"SSH-2.0-none\r\n\r\n".to_vec()),
        (
            "no streams",
            b"HTTP/1.1 200 OK\r\nX-Server-Version: 2.0.0\r\n\r\n".to_vec(),
        ),
        ("cluster ID mismatch", answer(412, "cluster ID mismatch\n")),
        ("status 500", answer(500, "no\n")),
    ];
    for (reason, bytes) in answers {
        let (url, count) = answers_with(move |_| bytes.clone());
        let (member, _) = member(url);
        let until = Instant::now() + BOUND;
        while count.load(Ordering::SeqCst) < 6 {
            assert!(Instant::now() < until, "{reason}: not dialed again");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(logged().contains(reason), "{reason} was not said");
        drop(member);
    }
    let lines = logged();
    let lines = lines
        .lines()
        .filter(|line| line.contains("no streams that this member knows"));
    assert!(lines.count() <= 4, "one reason is said again and again");
}

fn answer(status: u16, text: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into_bytes()
}

#[test]
fn a_stream_that_is_cut_or_silent_is_dialed_again() {
    // Half a message, and nothing more; on the other stream a heartbeat, and nothing more.
    let (url, count) = answers_with(|head| {
        let mut chunk = vec![0, 0, 0, 0, 0, 0, 0, 9, 8];
        if head.contains("/message/") {
            chunk.clear();
            encode_heartbeat(&mut chunk);
        } else if head.contains("/msgapp/") {
            chunk = vec![0, 1, 0, 0];
        }
        stream_of(&chunk)
    });
    let began = Instant::now();
    let (member, _) = member(url);
    member.wait("for the peer to be active", |seen| seen.active == 1);
    let until = Instant::now() + BOUND;
    while count.load(Ordering::SeqCst) < 20 && began.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(5));
    }
    member.wait("for it to be given up", |seen| {
        seen.active == 0 || began.elapsed() > Duration::from_secs(8)
    });
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "given up after {:?}",
        began.elapsed()
    );
    assert!(Instant::now() < until);
}

/// A member is told by a peer that it was removed, and tells it on once.
#[test]
fn a_removed_member_is_told_so() {
    let (url, count) = answers_with(|_| answer(410, "removed member\n"));
    let (member, _) = member(url);
    let seen = member.wait("to be told", |seen| !seen.removed_by.is_empty());
    assert_eq!(seen.removed_by, [OTHER]);
    while count.load(Ordering::SeqCst) < 6 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(member.seen().removed_by.len(), 1);
    member.tell(Command::Propose(Vec::new()));
}

/// Strangers who name themselves take the places of each other, and no more memory than there are places.
#[test]
fn strangers_are_few() {
    let (member, address) = member(nowhere());
    let fields = [("X-PeerURLs", "http://10.0.0.9:2380")];
    for id in 0x100..0x140 {
        let line = format!("GET /raft/stream/message/{id:x}");
        assert_eq!(ask(&address, &line, &fields, &[]).status, 404);
    }
    let seen = member.wait("to learn", |seen| seen.learned.len() == 0x40);
    assert_eq!(seen.learned.last().map(|(id, _)| *id), Some(0x13f));
}
