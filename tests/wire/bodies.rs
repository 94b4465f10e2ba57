//! What callers send behind their headers: wrong, cut off, too much, in odd pieces and orders, or not at all.

use prost::Message;
use ringd::proto::etcdserverpb as pb;

use crate::{
    client::{
        Act, Case, case, data, expect_same, open, open_on, perform_on_both, plus, proper, read, silent,
        silent_after_end, with,
    },
    support::{etcd, frames, grpc},
};

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const HEALTH_LIST: &str = "/grpc.health.v1.Health/List";

/// The prefix of a message of 3 MiB, more than etcd takes.
const TOO_LARGE: [u8; 5] = [0, 0, 0x30, 0, 0];
/// A message that no protobuf decoder takes.
const UNREADABLE: [u8; 6] = [0, 0, 0, 0, 1, 0x0a];

/// Bodies that are wrong from the first message on.
const WRONG: [(&str, &[u8]); 11] = [
    ("nothing", &[]),
    ("a prefix cut off", &[0, 0, 0]),
    ("a message cut off", &[0, 0, 0, 0, 9, 8]),
    ("a prefix alone", &[0, 0, 0, 0, 9]),
    ("a message too large", &TOO_LARGE),
    ("the largest message", &[0, 255, 255, 255, 255]),
    ("a compressed message", &[1, 0, 0, 0, 0]),
    ("an unknown flag", &[2, 0, 0, 0, 0]),
    ("an unknown flag on a message cut off", &[2, 0, 0, 0, 4, 1]),
    ("a message that can't be read", &UNREADABLE),
    ("a wire type that is none", &[0, 0, 0, 0, 1, 0x0f]),
];

/// What may come behind a right message.
const BEHIND: [(&str, &[u8]); 6] = [
    ("a message that can't be read", &UNREADABLE),
    ("an unknown flag", &[3, 0, 0, 0, 1, 0x0a]),
    ("a message too large", &TOO_LARGE),
    ("a message cut off", &[0, 0, 0, 0, 9, 8]),
    ("a prefix cut off", &[0, 0]),
    ("an empty message", &[0, 0, 0, 0, 0]),
];

fn sent(name: String, path: &str, body: Vec<u8>, end: bool) -> Case {
    let acts = vec![open(proper(path)), data(body, end)];
    if end && path != etcd::WATCH {
        case(name, acts)
    } else {
        silent(name, acts)
    }
}

#[test]
fn bodies() {
    let mut cases = Vec::new();
    for path in [
        etcd::RANGE,
        etcd::PUT,
        etcd::RANGE_STREAM,
        etcd::WATCH,
        etcd::LEASE_KEEP_ALIVE,
        etcd::STATUS,
        HEALTH_CHECK,
        HEALTH_WATCH,
    ] {
        for (name, body) in WRONG {
            cases.push(sent(format!("{name} to {path}"), path, body.to_vec(), true));
        }
    }
    for path in [etcd::RANGE, etcd::PUT, etcd::RANGE_STREAM] {
        for (name, behind) in BEHIND {
            let body = [&read()[..], behind].concat();
            cases.push(sent(
                format!("{name} behind a right message to {path}"),
                path,
                body,
                true,
            ));
        }
    }
    for (name, body) in WRONG {
        let text = format!("{name} and no half-close");
        cases.push(sent(text.clone() + " to a put", etcd::PUT, body.to_vec(), false));
        cases.push(sent(text + " to a stream", etcd::RANGE_STREAM, body.to_vec(), false));
    }
    expect_same(&[], cases);
}

#[test]
fn health() {
    let of_unknown = || [&[0, 0, 0, 0, 3][..], b"\x0a\x01x"].concat();
    let whole = |name: &str, path, body| silent(name, vec![open(proper(path)), data(body, true)]);
    let cases = vec![
        whole("a check", HEALTH_CHECK, vec![0; 5]),
        whole("a check of an unknown service", HEALTH_CHECK, of_unknown()),
        whole("a watch", HEALTH_WATCH, vec![0; 5]),
        whole("a watch of an unknown service", HEALTH_WATCH, of_unknown()),
        whole("a list", HEALTH_LIST, vec![0; 5]),
        silent(
            "a watch without half-close",
            vec![open(proper(HEALTH_WATCH)), data(vec![0; 5], false)],
        ),
    ];
    expect_same(&[], cases);
}

/// Calls that are sent slowly, in odd pieces and orders, or left open.
#[test]
fn orders() {
    let put = grpc::frame(&etcd::put("k", "v").encode_to_vec()).to_vec();
    let unread = |name: &str, path, body: &[u8]| {
        let body = body.to_vec();
        silent(name, vec![open(proper(path)), data(body, false)])
    };
    let mut bytewise = vec![open(proper(etcd::RANGE))];
    bytewise.extend(read().into_iter().map(|byte| data(vec![byte], false)));
    let mut ended = bytewise.clone();
    ended.push(data(vec![], true));
    let late = vec![
        open(proper(etcd::PUT)),
        data(put.clone(), false),
        Act::AwaitAnswer(1),
        data(put.clone(), false),
    ];
    let not_grpc = with(proper(etcd::RANGE), "content-type", "x/y");
    let mut cases = vec![
        case("byte by byte", ended),
        case("byte by byte without half-close", bytewise),
        unread("a stream of answers without half-close", etcd::RANGE_STREAM, &read()),
        unread(
            "a bad range for a stream without half-close",
            etcd::RANGE_STREAM,
            &[0; 5],
        ),
        case(
            "a bad range for a stream",
            vec![open(proper(etcd::RANGE_STREAM)), data([0; 5], true)],
        ),
        silent("a watch that asks nothing", vec![open(proper(etcd::WATCH))]),
        silent(
            "keep-alives that ask nothing",
            vec![open(proper(etcd::LEASE_KEEP_ALIVE))],
        ),
        case(
            "keep-alives that end",
            vec![open(proper(etcd::LEASE_KEEP_ALIVE)), data([], true)],
        ),
        silent("a unary call without its message", vec![open(proper(etcd::RANGE))]),
        silent(
            "an unknown method without a message",
            vec![open(proper("/etcdserverpb.KV/Nothing"))],
        ),
        silent("a refused content type without an end", vec![open(not_grpc)]),
        unread("a put without a half-close", etcd::PUT, &put),
        unread("a refused put without a half-close", etcd::PUT, &[0; 5]),
        silent("data after the answer", late),
    ];
    cases.extend(resets());
    expect_same(&[], cases);
}

/// Calls that are reset, and others behind them.
fn resets() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in [etcd::RANGE, etcd::RANGE_STREAM, etcd::WATCH, etcd::LEASE_KEEP_ALIVE] {
        let cancel = || Act::Bytes(frames::frame(frames::RST_STREAM, 0, 1, &[0, 0, 0, 8]));
        let another = || {
            [
                open_on(3, proper(etcd::RANGE), false),
                Act::Data {
                    stream: 3,
                    bytes: read(),
                    end: true,
                },
            ]
        };
        let within = vec![open(proper(path)), data(&read()[..4], false), cancel()];
        let twice = vec![open(proper(path)), cancel(), cancel()];
        for (name, acts) in [("a reset within a message", within), ("two resets", twice)] {
            let acts = acts.into_iter().chain(another()).collect();
            cases.push(case(format!("{name} to {path}, and another call"), acts));
        }
    }
    cases
}

/// Calls whose time is over while they wait. In grpc-go the handler's answer and a reset race; ringd always answers.
#[test]
fn expiries() {
    let open_for = |path| open(plus(proper(path), "grpc-timeout", "150m"));
    let create = etcd::create_watch(pb::WatchCreateRequest {
        key: "k".into(),
        ..Default::default()
    });
    let create = grpc::frame(&create.encode_to_vec());
    let mut cases = vec![silent_after_end(
        "a watch",
        vec![open_for(etcd::WATCH), data(&create[..], false)],
    )];
    for path in [
        etcd::WATCH,
        etcd::LEASE_KEEP_ALIVE,
        etcd::RANGE,
        etcd::RANGE_STREAM,
        HEALTH_WATCH,
    ] {
        cases.push(silent_after_end(
            format!("nothing sent to {path}"),
            vec![open_for(path)],
        ));
    }
    for (name, ours, theirs) in perform_on_both(&[], cases) {
        let status = "(\"grpc-message\", \"context deadline exceeded\"), (\"grpc-status\", \"4\")]";
        let answer = ours
            .iter()
            .position(|line| line.ends_with(status))
            .unwrap_or_else(|| panic!("{name}: {ours:#?}"));
        assert_eq!(&ours[answer + 1..], ["1: end", "1: reset [0, 0, 0, 0]"], "{name}");
        let reset = [&ours[..answer], &["1: reset [0, 0, 0, 8]".to_string()]].concat();
        assert!(theirs == ours || theirs == reset, "{name}: {ours:#?} and {theirs:#?}");
    }
}
