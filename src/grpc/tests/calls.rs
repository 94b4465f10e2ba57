//! Calls as a client that writes frames by hand sees them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::grpc::{Code, Config, Connection, Event, Status, message_prefix};
use crate::http::frame::{self, flag, kind};
use crate::http::hpack::{Decoder, Field};
use crate::http::{self, HeaderList};

const NOW: Duration = Duration::from_secs(1);

pub(super) struct Caller {
    pub server: Connection,
    decoder: Decoder,
}

/// A header block of literals.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| Field::new(name, value.as_bytes()))
        .collect();
    http::hpack::Encoder::default().encode_trailers(&fields, &mut out);
    out
}

pub(super) const CALL: [(&str, &str); 6] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    (":authority", "host"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];

pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    [&message_prefix(message.len())[..], message].concat()
}

/// What the server sent on a stream: header fields, data, trailers, whether it reset.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: String,
    pub header: Vec<(String, String)>,
    pub data: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub ended: bool,
    pub reset: bool,
}

impl Caller {
    pub fn new(config: Config) -> Self {
        let http = http::Connection::new(Arc::new(http::Config::default()), NOW);
        let mut server = Connection::new(http, Arc::new(config));
        let mut hello = frame::PREFACE.to_vec();
        frame::write_settings(&mut hello, &[]);
        server.receive(Bytes::from(hello), NOW);
        assert_eq!(server.next_event(), None);
        server.take_output(Vec::new(), NOW);
        Self {
            server,
            decoder: Decoder::new(4096),
        }
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.server.next_event()).collect()
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<Event> {
        let bytes = crate::http::tests::frame_bytes(kind, flags, stream, payload);
        self.server.receive(Bytes::from(bytes), NOW);
        self.events()
    }

    pub fn start(&mut self, stream: u32, extra: &[(&str, &str)], end: bool) -> Vec<Event> {
        self.start_with(stream, &[&CALL[..], extra].concat(), end)
    }

    pub fn start_with(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) -> Vec<Event> {
        let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
        self.send(kind::HEADERS, flags, stream, &block(fields))
    }

    pub fn data(&mut self, stream: u32, bytes: &[u8], end: bool) -> Vec<Event> {
        self.send(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, bytes)
    }

    pub fn answer(&mut self, stream: u32) -> Answer {
        let mut answer = Answer::default();
        let output = self.server.take_output(Vec::new(), NOW);
        for frame in crate::http::tests::frames(&output) {
            let fields = if frame.kind == kind::HEADERS {
                self.fields(&frame.payload)
            } else {
                Vec::new()
            };
            if frame.stream != stream {
                continue;
            }
            answer.ended |= frame.kind != kind::RST_STREAM && frame.flags & flag::END_STREAM != 0;
            match frame.kind {
                kind::HEADERS if fields[0].0 == ":status" => {
                    answer.status = fields[0].1.clone();
                    answer.header = fields[1..].to_vec();
                }
                kind::HEADERS => answer.trailers = fields,
                kind::DATA => answer.data.extend(frame.payload),
                kind::RST_STREAM => answer.reset = true,
                _ => {}
            }
        }
        answer
    }

    /// The fields of a block, `:status` first.
    fn fields(&mut self, block: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let status = match block {
            [0x88, ..] => Some("200".to_string()),
            [0x8c, ..] => Some("400".to_string()),
            [0x08, 3, a, b, c, ..] => Some(text(&[*a, *b, *c])),
            _ => None,
        };
        let mut list = HeaderList::new(1 << 20);
        self.decoder.forget();
        self.decoder.decode(block, &mut list).unwrap();
        let status = status.map(|status| (":status".to_string(), status));
        status
            .into_iter()
            .chain(list.iter().map(|(name, value)| (text(name), text(value))))
            .collect()
    }
}

pub(super) fn caller() -> Caller {
    Caller::new(Config {
        max_message: 1000,
        plain_http: false,
    })
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}

/// A call may end in a message's prefix, which grpc-go takes for no message, but not in its body.
#[test]
fn a_call_that_ends_within_a_message_is_cut_off() {
    let whole = framed(b"ab");
    for length in 0..whole.len() {
        let mut caller = caller();
        let Some(Event::Started { call, .. }) = caller.start(1, &[], false).pop() else {
            panic!("no call began");
        };
        let expected = if length < 5 {
            Event::HalfClosed { call }
        } else {
            Event::CutOff { call }
        };
        assert_eq!(caller.data(1, &whole[..length], true), [expected], "{length} bytes");
        caller.server.finish(call, &Status::cut_off_unary()).unwrap();
        assert_refused(&caller.answer(1), "200", "2", "unexpected EOF");
    }
}

#[test]
fn a_unary_call_goes_there_and_back() {
    let mut caller = caller();
    for stream in [1, 3, 5] {
        let events = caller.start(stream, &[("grpc-timeout", "5S"), ("token", "t")], false);
        let [Event::Started { call, timeout }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(timeout, Some(Duration::from_secs(5)));
        assert_eq!(caller.server.request().method(), Ok(("a.B", "C")));
        assert_eq!(
            caller.server.request().metadata().get("token").as_deref(),
            Some(&b"t"[..])
        );
        let events = caller.data(stream, &framed(b"ping"), true);
        assert_eq!(
            events,
            [Event::Message {
                call,
                message: Bytes::from_static(b"ping"),
                last: true
            }]
        );
        caller
            .server
            .reply(call, 4, |out| out.extend_from_slice(b"pong"))
            .unwrap();
        let answer = caller.answer(stream);
        assert_eq!(answer.status, "200");
        assert_eq!(answer.header, [pair("content-type", "application/grpc")]);
        assert_eq!(answer.data, framed(b"pong"));
        assert_eq!(answer.trailers, [pair("grpc-status", "0")]);
        assert!(answer.ended && !answer.reset);
        assert!(!caller.server.is_open(call));
        assert!(caller.server.finish(call, &Status::OK).is_err());
    }
}

#[test]
fn an_error_is_one_header_frame() {
    let mut caller = caller();
    let events = caller.start(1, &[], false);
    let [Event::Started { call, .. }] = events[..] else {
        panic!("{events:?}")
    };
    caller
        .server
        .finish(call, &Status::new(Code::NotFound, "100% gone"))
        .unwrap();
    let answer = caller.answer(1);
    assert_eq!(
        answer.header,
        [
            pair("content-type", "application/grpc"),
            pair("grpc-status", "5"),
            pair("grpc-message", "100%25 gone")
        ]
    );
    assert!(answer.ended && answer.reset, "the caller had not finished");
    assert_eq!(caller.data(1, &framed(b"late"), true), []);
    assert_eq!(caller.server.closed(), None);
}

/// Starts a call that must be refused, and returns the answer.
#[track_caller]
fn refused(fields: &[(&str, &str)]) -> Answer {
    let mut caller = caller();
    assert_eq!(caller.start_with(1, fields, false), []);
    let answer = caller.answer(1);
    assert!(answer.ended && answer.reset, "{answer:?}");
    assert_eq!(caller.server.closed(), None);
    answer
}

#[track_caller]
fn assert_refused(answer: &Answer, http_status: &str, code: &str, message: &str) {
    assert_eq!(answer.status, http_status);
    assert_eq!(
        answer.header[1..],
        [pair("grpc-status", code), pair("grpc-message", message)]
    );
}

fn without(name: &str) -> Vec<(&'static str, &'static str)> {
    CALL.into_iter().filter(|(found, _)| *found != name).collect()
}

pub(super) fn with(extra: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&CALL[..], extra].concat()
}

#[test]
fn requests_that_are_no_calls_are_refused_as_grpc_go_refuses_them() {
    let answer = refused(&without("content-type"));
    assert_refused(&answer, "415", "3", "invalid gRPC request content-type \"\"");
    let json = [&without("content-type")[..], &[("content-type", "application/json")]].concat();
    assert_refused(
        &refused(&json),
        "415",
        "3",
        "invalid gRPC request content-type \"application/json\"",
    );
    let get = [&[(":method", "GET")], &CALL[1..]].concat();
    assert_refused(
        &refused(&get),
        "405",
        "13",
        "Received a HEADERS frame with :method \"GET\" which should be POST",
    );
    let answer = refused(&with(&[("grpc-timeout", "5x")]));
    assert_refused(
        &answer,
        "400",
        "13",
        "malformed grpc-timeout: transport: timeout unit is not recognized: \"5x\"",
    );
    let answer = refused(&with(&[("a-bin", "!")]));
    assert_eq!(answer.status, "400");
    assert!(
        answer.header[2]
            .1
            .starts_with("malformed binary metadata \"!\" in header \"a-bin\"")
    );
    let answer = refused(&with(&[("host", "a"), ("host", "b")]));
    assert_refused(
        &answer,
        "400",
        "13",
        "num values of :authority: 1, num values of host: 2, both must only have 1 value as per HTTP/2 spec",
    );
    assert_refused(
        &refused(&with(&[("grpc-timeout", "0S")])),
        "200",
        "4",
        "context deadline exceeded",
    );
}

#[test]
fn the_responses_content_type_repeats_the_requests() {
    for (sent, expected) in [
        ("application/grpc+proto", "application/grpc+proto"),
        ("application/grpc;x", "application/grpc+x"),
    ] {
        let mut caller = caller();
        let fields = [
            &without("content-type")[..],
            &[("content-type", sent), ("grpc-encoding", "identity")],
        ]
        .concat();
        let events = caller.start_with(1, &fields, true);
        let [Event::Started { call, .. }, Event::HalfClosed { call: same }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(call, same);
        caller.server.send_header(call).unwrap();
        caller.server.send_header(call).unwrap();
        caller.server.finish(call, &Status::no_unary_message()).unwrap();
        let answer = caller.answer(1);
        assert_eq!(answer.header, [pair("content-type", expected)]);
        assert_eq!(answer.trailers, [pair("grpc-status", "2"), pair("grpc-message", "EOF")]);
    }
}

#[test]
fn broken_messages_end_their_call_and_nothing_else() {
    for (bytes, end, code, message) in [
        (
            message_prefix(1001).to_vec(),
            false,
            "8",
            "grpc: received message larger than max (1001 vs. 1000)",
        ),
        (
            vec![1, 0, 0, 0, 0],
            false,
            "13",
            "grpc: compressed flag set with identity or empty encoding",
        ),
        (
            vec![9, 0, 0, 0, 0],
            false,
            "13",
            "grpc: received unexpected payload format 9",
        ),
    ] {
        let mut caller = caller();
        let events = caller.start(1, &[], false);
        let [Event::Started { call, .. }] = events[..] else {
            panic!("{events:?}")
        };
        caller.start(3, &[], false);
        caller.answer(3);
        assert_eq!(caller.data(1, &bytes, end), [Event::Cancelled { call }]);
        let answer = caller.answer(1);
        assert_eq!(answer.reset, !end);
        assert_refused(&answer, "200", code, message);
        assert!(!caller.server.is_open(call));
        assert_eq!(caller.data(3, &framed(b"x"), true).len(), 1);
    }
}

#[test]
fn messages_of_a_stream_come_one_by_one() {
    let mut caller = caller();
    let events = caller.start(1, &[], false);
    let [Event::Started { call, .. }] = events[..] else {
        panic!("{events:?}")
    };
    let message = |text: &'static str, last| Event::Message {
        call,
        message: Bytes::from_static(text.as_bytes()),
        last,
    };
    let both = [framed(b"one"), framed(b"two")].concat();
    assert_eq!(
        caller.data(1, &both, false),
        [message("one", false), message("two", false)]
    );
    assert_eq!(caller.data(1, &both[..10], false), [message("one", false)]);
    assert_eq!(caller.server.buffered_bytes(), 0);
    assert_eq!(caller.data(1, &both[10..15], false), []);
    assert_eq!(caller.server.buffered_bytes(), 2);
    assert_eq!(caller.data(1, &both[15..], true), [message("two", true)]);
    for _ in 0..3 {
        caller.server.send_message(call, Bytes::from_static(b"reply")).unwrap();
        assert_eq!(caller.answer(1).data, framed(b"reply"));
    }
    caller.server.finish(call, &Status::OK).unwrap();
    let answer = caller.answer(1);
    assert!(answer.ended && !answer.reset);
    assert_eq!(answer.trailers, [pair("grpc-status", "0")]);
}

#[test]
fn a_call_may_end_with_an_empty_frame_or_with_trailers() {
    let mut caller = caller();
    let events = caller.start(1, &[], false);
    let [Event::Started { call, .. }] = events[..] else {
        panic!("{events:?}")
    };
    caller.data(1, &framed(b"x"), false);
    assert_eq!(caller.data(1, b"", true), [Event::HalfClosed { call }]);
    let events = caller.start(3, &[], false);
    let [Event::Started { call, .. }] = events[..] else {
        panic!("{events:?}")
    };
    let flags = flag::END_HEADERS | flag::END_STREAM;
    assert_eq!(
        caller.send(kind::HEADERS, flags, 3, &block(&[("a", "b")])),
        [Event::HalfClosed { call }]
    );
}

#[test]
fn a_caller_that_goes_away_is_told_once() {
    let mut caller = caller();
    let mut calls = Vec::new();
    for stream in [1, 3, 5] {
        let events = caller.start(stream, &[], false);
        let [Event::Started { call, .. }] = events[..] else {
            panic!("{events:?}")
        };
        calls.push(call);
    }
    caller.data(1, &message_prefix(100), false);
    caller.data(1, b"part", false);
    let events = caller.send(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    assert_eq!(events, [Event::Cancelled { call: calls[0] }]);
    assert_eq!(caller.server.buffered_bytes(), 0);
    assert!(caller.server.finish(calls[0], &Status::OK).is_err());
    caller.server.cancel(calls[1], crate::http::ErrorCode::CANCEL);
    assert!(caller.answer(3).reset);
    caller.server.http().disconnect();
    assert_eq!(caller.events(), [Event::Cancelled { call: calls[2] }]);
    assert_eq!(caller.events(), []);
}

#[test]
fn a_paused_call_holds_its_caller_to_its_window() {
    let updates = |caller: &mut Caller| {
        let output = caller.server.take_output(Vec::new(), NOW);
        let frames = crate::http::tests::frames(&output);
        frames
            .iter()
            .filter(|frame| frame.kind == kind::WINDOW_UPDATE && frame.stream == 1)
            .count()
    };
    let mut caller = caller();
    let events = caller.start(1, &[], false);
    let [Event::Started { call, .. }] = events[..] else {
        panic!("{events:?}")
    };
    caller.server.set_paused(call, true);
    let many: Vec<u8> = (0..16).flat_map(|_| framed(&[7; 1000])).collect();
    for _ in 0..60 {
        assert_eq!(caller.data(1, &many, false).len(), 16);
    }
    assert_eq!(updates(&mut caller), 0);
    caller.server.set_paused(call, false);
    assert_eq!(updates(&mut caller), 1);
    for _ in 0..60 {
        caller.data(1, &many, false);
    }
    assert_eq!(updates(&mut caller), 1);
}

#[test]
fn a_message_may_be_sent_in_parts() {
    let mut caller = caller();
    let events = caller.start(1, &[], true);
    let Event::Started { call, .. } = events[0] else {
        panic!("{events:?}")
    };
    caller.server.begin_message(call, 6).unwrap();
    caller.server.send_part(call, Bytes::from_static(b"abc")).unwrap();
    assert!(caller.server.capacity(call) > 0);
    caller.server.send_part(call, Bytes::from_static(b"def")).unwrap();
    caller.server.finish(call, &Status::OK).unwrap();
    assert_eq!(caller.answer(1).data, framed(b"abcdef"));
    let events = caller.start(3, &[], true);
    let Event::Started { call, .. } = events[0] else {
        panic!("{events:?}")
    };
    caller.server.begin_message(call, 6).unwrap();
    caller
        .server
        .finish(call, &Status::new(Code::Unavailable, "gone"))
        .unwrap();
    let answer = caller.answer(3);
    assert!(answer.reset && !answer.ended, "a message cut short has no status");
}

#[test]
fn unfinished_messages_of_a_connection_are_bounded() {
    let mut caller = Caller::new(Config {
        max_message: 1 << 30,
        plain_http: false,
    });
    let part = vec![0; 16_000];
    let mut stream = 1;
    let mut cancelled = 0;
    for _ in 0..6 {
        let events = caller.start(stream, &[], false);
        assert!(matches!(events[..], [Event::Started { .. }]));
        caller.data(stream, &message_prefix(1 << 30), false);
        for _ in 0..1_000 {
            if caller
                .data(stream, &part, false)
                .iter()
                .any(|event| matches!(event, Event::Cancelled { .. }))
            {
                cancelled += 1;
                break;
            }
            caller.server.take_output(Vec::new(), NOW);
        }
        assert!(caller.server.buffered_bytes() <= crate::limits::GRPC_ASSEMBLY_BYTES + part.len());
        stream += 2;
    }
    assert!(cancelled >= 1);
}

#[test]
fn plain_http_is_handed_on_if_asked_for() {
    let mut caller = Caller::new(Config {
        max_message: 1000,
        plain_http: true,
    });
    let fields = [&without("content-type")[..], &[("x", "y")]].concat();
    let events = caller.start_with(1, &fields, false);
    let [Event::Http(http::Event::Request { stream, end: false })] = events[..] else {
        panic!("{events:?}")
    };
    let data = Bytes::from_static(b"{}");
    let expected = Event::Http(http::Event::Data {
        stream,
        data,
        end: true,
    });
    assert_eq!(caller.data(1, b"{}", true), [expected]);
    caller.server.http().respond(stream, 400, &[], true).unwrap();
    assert_eq!(caller.answer(1).status, "400");
    let events = caller.start(3, &[], true);
    assert!(matches!(events[0], Event::Started { .. }));
}

#[test]
fn metadata_shows_the_callers_fields_and_not_grpcs() {
    let mut caller = caller();
    let fields = [
        ("grpc-timeout", "1S"),
        ("token", "t"),
        ("b-bin", "AAE="),
        ("token", "u"),
        ("user-agent", "x"),
    ];
    caller.start(1, &fields, true);
    let request = caller.server.request();
    assert_eq!(request.authority(), Some(&b"host"[..]));
    let metadata = request.metadata();
    assert_eq!(metadata.get("token").as_deref(), Some(&b"t"[..]));
    assert_eq!(metadata.get("b-bin").as_deref(), Some(&[0, 1][..]));
    assert_eq!(metadata.get("grpc-timeout"), None);
    assert_eq!(metadata.get("te"), None);
    let names: Vec<_> = metadata.iter().map(|(name, _)| name.to_vec()).collect();
    assert_eq!(
        names,
        [&b"content-type"[..], b"token", b"b-bin", b"token", b"user-agent"]
    );
}

proptest::proptest! {
    #[test]
    fn fuzz_entries_take_anything(input in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600)) {
        crate::grpc::fuzz::values(&input);
        crate::grpc::fuzz::messages(&input);
        crate::grpc::fuzz::connection(&input);
    }
}
