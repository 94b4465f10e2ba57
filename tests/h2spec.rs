//! RFC 9113 conformance, as judged by h2spec: the Go program is built from its module and run, strict cases included,
//! against a plain blocking server around `http::Connection`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringd::http::{Config, Connection, Event, Field};

/// Cases that may fail, each with the reason.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// How long h2spec waits for an answer, on a loaded machine; by itself it gives up after 2 seconds.
const PATIENCE_SECONDS: &str = "30";

#[test]
fn h2spec_finds_no_fault() {
    let program = build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || serve(socket));
        }
    });
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("h2spec.xml");
    let output = Command::new(program)
        .args([
            "--strict",
            "--timeout",
            PATIENCE_SECONDS,
            "--port",
            &port.to_string(),
            "--junit-report",
        ])
        .arg(&report)
        .output()
        .expect("h2spec runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (passed, failed) = outcome(&std::fs::read_to_string(&report).expect("h2spec's report"));
    let unexpected: Vec<_> = failed
        .iter()
        .filter(|case| !EXCEPTIONS.iter().any(|(name, _)| case.contains(name)))
        .collect();
    assert!(unexpected.is_empty(), "h2spec: {unexpected:#?}\n{text}");
    assert_eq!(failed.len(), EXCEPTIONS.len(), "an exception is no longer needed");
    assert!(passed > 140, "h2spec ran {passed} cases only:\n{text}");
}

/// Builds h2spec, or finds it built.
fn build() -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("h2spec");
    let status = Command::new("go")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg("github.com/summerwind/h2spec/cmd/h2spec")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/h2spec"))
        .status()
        .expect("h2spec is a Go program: install Go to run this test");
    assert!(status.success(), "go build of h2spec: {status}");
    program
}

/// Counts what passed and names what failed or was skipped in a JUnit report.
fn outcome(report: &str) -> (usize, Vec<String>) {
    let mut passed = 0;
    let mut failed = Vec::new();
    for case in report.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or(case);
        if ["<failure", "<error", "<skipped"]
            .iter()
            .any(|mark| case.contains(mark))
        {
            failed.push(case.to_string());
        } else {
            passed += 1;
        }
    }
    (passed, failed)
}

/// Serves one connection: every request is answered with a few bytes.
fn serve(mut socket: TcpStream) {
    let start = Instant::now();
    // A limit on streams, so that the case about it is run.
    let config = Config {
        max_concurrent_streams: 100,
        ..Config::default()
    };
    let mut connection = Connection::new(Arc::new(config), Duration::ZERO);
    let mut buffer = [0; 65_536];
    loop {
        while let Some(event) = connection.next_event() {
            answer(&mut connection, event);
        }
        let output = connection.take_output(Vec::new(), start.elapsed());
        if socket.write_all(&output).is_err() || connection.closed().is_some() {
            break;
        }
        match socket.read(&mut buffer) {
            Ok(length @ 1..) => connection.receive(Bytes::copy_from_slice(&buffer[..length]), start.elapsed()),
            _ => break,
        }
    }
    // What the peer still sends is read, or the close would be a reset that overtakes the GOAWAY.
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let _ = socket.set_read_timeout(Some(Duration::from_millis(500)));
    while matches!(socket.read(&mut buffer), Ok(1..)) {}
}

fn answer(connection: &mut Connection, event: Event) {
    let stream = match event {
        Event::Request { stream, end: true } | Event::Trailers { stream } => stream,
        Event::Data { stream, data, end } => {
            connection.release(stream, data.len());
            if !end {
                return;
            }
            stream
        }
        _ => return,
    };
    let fields = [Field::repeated("content-type", b"text/plain")];
    connection.respond(stream, 200, &fields, false).expect("a response");
    connection
        .send_data(stream, Bytes::from_static(b"ringd answers"), true)
        .expect("a body");
}
