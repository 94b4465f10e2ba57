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

fn caller() -> Caller {
    Caller::new(Config {
        max_message: 1000,
        plain_http: false,
    })
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
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
