//! Frames by hand to the program under test and to etcd 3.7.1: what comes back has to be the same, frame for frame.
//!
//! Compared is what a client can tell apart: header fields, whether a status came in trailers or alone, messages,
//! resets, the end of the connection. Settings, window updates and acknowledgements are each server's own.
//!
//! What is left out because the two differ for a reason: compression (etcd takes gzip because one of its libraries
//! brings that along; ringd refuses it), header lists that RFC 9113 calls malformed and grpc-go takes, calls without
//! any DATA frame (etcd never answers those).

#[path = "wire/bodies.rs"]
mod bodies;
#[path = "wire/client.rs"]
mod client;
mod support;

use client::{Act, case, data, expect_same, open, open_on, plus, proper, read, read_with, silent, with, without};
use support::{etcd, frames};

#[test]
fn header_lists() {
    let range = || proper(etcd::RANGE);
    let wrong_type_first = plus(without(range(), "content-type"), "content-type", "text/plain");
    let unknown_fields = plus(plus(range(), "grpc-foo", "x"), "grpc-status", "5");
    let host_alone = plus(without(range(), ":authority"), "host", "x");
    let mut cases = vec![
        read_with("a proper call", range()),
        read_with("no te", without(range(), "te")),
        read_with("no content type", without(range(), "content-type")),
        read_with("no authority", without(range(), ":authority")),
        read_with("host alone", host_alone),
        read_with("two hosts", plus(plus(range(), "host", "x"), "host", "y")),
        read_with(
            "a wrong content type first",
            plus(wrong_type_first, "content-type", "application/grpc+proto"),
        ),
        read_with("unknown grpc fields", unknown_fields),
    ];
    for (name, value) in [
        ("host", "x"),
        ("connection", "close"),
        ("content-type", "application/json"),
        ("hasleader", "true"),
        ("hasleader", "no"),
        ("token", "abc"),
        ("client-api-version", "3.7.1"),
        ("user-agent", "x/1"),
        ("expect", "100-continue"),
        ("grpc-accept-encoding", "gzip,deflate"),
        ("x-large", &"x".repeat(60_000)),
        ("content-length", &read().len().to_string()),
    ] {
        cases.push(read_with(format!("{name} {value:.20}"), plus(range(), name, value)));
    }
    for path in [etcd::RANGE, etcd::RANGE_STREAM, etcd::WATCH] {
        let fields = plus(proper(path), "client-api-version", b"\xff\xfe".to_vec());
        cases.push(read_with(format!("an api version that is no text to {path}"), fields));
    }
    expect_same(&[], cases);
}

#[test]
fn content_types_methods_and_paths() {
    let range = || proper(etcd::RANGE);
    let mut cases = Vec::new();
    for content_type in [
        "application/grpc+proto",
        "application/grpc+json",
        "application/grpc+",
        "application/grpc;",
        "application/grpc;charset=utf-8",
        "application/grpc+PROTO",
        "Application/gRPC",
        "application/grpcx",
        "application/grpc-web",
        "application/json",
        "",
        "a\"b\\c",
    ] {
        let fields = with(range(), "content-type", content_type);
        cases.push(read_with(format!("content type {content_type:?}"), fields));
    }
    for method in ["GET", "PUT", "OPTIONS", "post", "HEAD"] {
        let fields = with(range(), ":method", method);
        cases.push(read_with(format!("method {method}"), fields.clone()));
        let fields = with(fields, "content-type", "text/plain");
        cases.push(case(
            format!("method {method} without gRPC"),
            vec![open_on(1, fields, true)],
        ));
    }
    for path in [
        "/",
        "//",
        "/x",
        "x",
        "/a/b",
        "/etcdserverpb.KV",
        "/etcdserverpb.KV/",
        "/etcdserverpb.KV/range",
        "/etcdserverpb.KV/Range?x=1",
        "*",
        "/etcdserverpb.KV/Range/",
        "//etcdserverpb.KV/Range",
        "/\u{fc}/\u{df}",
        "/a%20b/c d",
    ] {
        cases.push(read_with(format!("path {path:?}"), proper(path)));
    }
    expect_same(&[], cases);
}

#[test]
fn timeouts() {
    let mut cases = Vec::new();
    for timeout in [
        "",
        "1",
        "S",
        "1S",
        "99999999H",
        "123456789S",
        "00000001S",
        "1x",
        "-1S",
        "+1S",
        "1 S",
        "1s",
        "0S",
        "0n",
        "1.5S",
        "\u{661}S",
    ] {
        let fields = plus(proper(etcd::RANGE), "grpc-timeout", timeout);
        cases.push(read_with(format!("timeout {timeout:?}"), fields));
    }
    for first in ["0S", "x"] {
        let twice = plus(plus(proper(etcd::RANGE), "grpc-timeout", first), "grpc-timeout", "9S");
        cases.push(read_with(format!("two timeouts, first {first}"), twice));
    }
    expect_same(&[], cases);
}

#[test]
fn metadata() {
    let mut cases = Vec::new();
    for value in [
        "",
        "Zg",
        "Zg==",
        "Zg=",
        "Z",
        "Zm9v!",
        "!",
        "Zm9vYg",
        "Zg==,Zg==",
        "Z g=",
        "Zm 9v",
        "====",
        "Zm9vZm9v-_",
        "Zm9=",
        "Zh",
        "Zh==",
        "Zg=x",
        "Zg==Zm9v",
    ] {
        let fields = plus(proper(etcd::RANGE), "x-bin", value);
        cases.push(read_with(format!("binary metadata {value:?}"), fields));
    }
    for name in ["-bin", "grpc-x-bin", "grpc-trace-bin", "grpc-tags-bin"] {
        let fields = plus(proper(etcd::RANGE), name, "!");
        cases.push(read_with(format!("binary metadata in {name}"), fields));
    }
    for faults in [
        [("x-bin", "!"), ("grpc-timeout", "x")],
        [("grpc-timeout", "x"), ("x-bin", "!")],
    ] {
        let fields = faults
            .into_iter()
            .fold(proper(etcd::RANGE), |fields, (name, value)| plus(fields, name, value));
        cases.push(read_with(format!("two faults {faults:?}"), fields));
    }
    expect_same(&[], cases);
}

#[test]
fn encodings() {
    let mut cases = Vec::new();
    for encoding in ["identity", "", "snappy", "\"x\""] {
        for path in [etcd::RANGE, etcd::WATCH, "/etcdserverpb.KV/Nothing", "/nothing"] {
            let fields = plus(proper(path), "grpc-encoding", encoding);
            cases.push(read_with(format!("encoding {encoding:?} to {path}"), fields));
        }
        let mut compressed = read();
        compressed[0] = 1;
        let fields = plus(proper(etcd::RANGE), "grpc-encoding", encoding);
        let acts = vec![open(fields), data(compressed, true)];
        cases.push(case(format!("compressed flag with {encoding:?}"), acts));
    }
    expect_same(&[], cases);
}

/// Pings more often than `--grpc-keepalive-min-time` allows.
#[test]
fn too_many_pings() {
    let ping = || Act::Bytes(frames::frame(frames::PING, 0, 0, &[7; 8]));
    let mut cases = Vec::new();
    for count in 1..6 {
        let pings = (0..count).map(|_| ping());
        let with_call = [open(proper(etcd::WATCH))].into_iter().chain(pings.clone()).collect();
        cases.push(silent(format!("{count} pings with a call"), with_call));
        cases.push(silent(format!("{count} pings without a call"), pings.collect()));
    }
    expect_same(&[], cases);
}

/// More calls at a time than `--max-concurrent-streams` allows.
#[test]
fn max_concurrent_streams() {
    let watches = |count: u32| (0..count).map(|number| open_on(number * 2 + 1, proper(etcd::WATCH), false));
    let refusals = [
        open_on(5, with(proper(etcd::RANGE), ":method", "GET"), true),
        open_on(7, proper("/nothing"), true),
    ];
    let cases = vec![
        silent("four watches of two", watches(4).collect()),
        silent("refusals beyond the limit", watches(2).chain(refusals).collect()),
    ];
    expect_same(&["--max-concurrent-streams=2"], cases);
}
