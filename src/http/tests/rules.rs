//! One test per rule of RFC 9113 that a peer can break, and per thing a peer may do.

use std::time::Duration;

use bytes::Bytes;

use super::client::{Client, POST, frame_bytes};
use crate::http::frame::{flag, kind, setting};
use crate::http::{CloseReason, Config, ErrorCode, Event, Field, SendError, Sniffed, sniff};

const END_HEADERS: u8 = flag::END_HEADERS;
const WHOLE: u8 = flag::END_HEADERS | flag::END_STREAM;

/// A frame that has to end the connection, sent behind a stream 1 that is open and a stream 3 that is done.
#[track_caller]
fn ends(kind: u8, flags: u8, stream: u32, payload: &[u8], code: ErrorCode) {
    let mut client = Client::new();
    client.open(1, false);
    let done = client.open(3, true);
    client.server.respond(done, 200, &[], true).unwrap();
    client.read();
    let open = client.server.stream_count();
    assert_eq!(open, 1);
    client.frame(kind, flags, stream, payload);
    let resets: Vec<_> = client
        .events()
        .into_iter()
        .filter(|event| matches!(event, Event::Reset { .. }))
        .collect();
    assert_eq!(resets.len(), 1, "every open stream is reset with its connection");
    client.assert_goaway(code);
}

#[test]
fn faults_that_end_the_connection() {
    use ErrorCode as E;
    ends(kind::DATA, 0, 0, b"x", E::PROTOCOL_ERROR);
    ends(kind::DATA, 0, 5, b"x", E::PROTOCOL_ERROR);
    ends(kind::DATA, 0, 2, b"x", E::PROTOCOL_ERROR);
    ends(kind::DATA, flag::PADDED, 1, &[1], E::PROTOCOL_ERROR);
    ends(kind::DATA, flag::PADDED, 1, &[], E::PROTOCOL_ERROR);
    ends(kind::HEADERS, WHOLE, 0, &POST, E::PROTOCOL_ERROR);
    ends(kind::HEADERS, WHOLE, 2, &POST, E::PROTOCOL_ERROR);
    ends(kind::HEADERS, WHOLE, 3, &POST, E::STREAM_CLOSED);
    ends(kind::HEADERS, WHOLE, 5, &[0xff], E::COMPRESSION_ERROR);
    ends(
        kind::HEADERS,
        WHOLE | flag::PRIORITY,
        5,
        &[0, 0, 0, 0],
        E::FRAME_SIZE_ERROR,
    );
    ends(
        kind::HEADERS,
        WHOLE | flag::PRIORITY,
        5,
        &[0, 0, 0, 5, 1],
        E::PROTOCOL_ERROR,
    );
    ends(kind::HEADERS, WHOLE | flag::PADDED, 5, &[9, 0x83], E::PROTOCOL_ERROR);
    ends(kind::PRIORITY, 0, 0, &[0; 5], E::PROTOCOL_ERROR);
    ends(kind::PRIORITY, 0, 5, &[0; 4], E::FRAME_SIZE_ERROR);
    ends(kind::RST_STREAM, 0, 0, &[0; 4], E::PROTOCOL_ERROR);
    ends(kind::RST_STREAM, 0, 5, &[0; 4], E::PROTOCOL_ERROR);
    ends(kind::RST_STREAM, 0, 1, &[0; 3], E::FRAME_SIZE_ERROR);
    ends(kind::SETTINGS, 0, 1, &[], E::PROTOCOL_ERROR);
    ends(kind::SETTINGS, 0, 0, &[0; 5], E::FRAME_SIZE_ERROR);
    ends(kind::SETTINGS, flag::ACK, 0, &[0; 6], E::FRAME_SIZE_ERROR);
    ends(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2], E::PROTOCOL_ERROR);
    ends(kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0], E::FLOW_CONTROL_ERROR);
    ends(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff], E::PROTOCOL_ERROR);
    ends(kind::SETTINGS, 0, 0, &[0, 5, 1, 0, 0, 0], E::PROTOCOL_ERROR);
    ends(kind::PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2], E::PROTOCOL_ERROR);
    ends(kind::PING, 0, 1, &[0; 8], E::PROTOCOL_ERROR);
    ends(kind::PING, 0, 0, &[0; 7], E::FRAME_SIZE_ERROR);
    ends(kind::GOAWAY, 0, 1, &[0; 8], E::PROTOCOL_ERROR);
    ends(kind::GOAWAY, 0, 0, &[0; 7], E::FRAME_SIZE_ERROR);
    ends(kind::WINDOW_UPDATE, 0, 0, &[0; 4], E::PROTOCOL_ERROR);
    ends(kind::WINDOW_UPDATE, 0, 0, &[0; 3], E::FRAME_SIZE_ERROR);
    ends(kind::WINDOW_UPDATE, 0, 5, &[0, 0, 0, 1], E::PROTOCOL_ERROR);
    ends(
        kind::WINDOW_UPDATE,
        0,
        0,
        &[0x7f, 0xff, 0xff, 0xff],
        E::FLOW_CONTROL_ERROR,
    );
    ends(kind::CONTINUATION, END_HEADERS, 1, &POST, E::PROTOCOL_ERROR);
    ends(kind::DATA, 0, 1, &[0; 16_385], E::FRAME_SIZE_ERROR);
    ends(0x77, 0, 1, &[0; 16_385], E::FRAME_SIZE_ERROR);
}

/// A frame that has to reset its stream only; stream 1 is open, 3 is answered, 5 has sent its request.
#[track_caller]
fn resets(kind: u8, flags: u8, stream: u32, payload: &[u8], code: ErrorCode) {
    let mut client = Client::new();
    client.open(1, false);
    let done = client.open(3, true);
    client.server.respond(done, 200, &[], true).unwrap();
    client.open(5, true);
    client.read();
    client.frame(kind, flags, stream, payload).assert_reset(stream, code);
    client.frame(kind::RST_STREAM, 0, stream, &[0; 4]).events();
    assert_eq!(client.server.closed(), None);
}

#[test]
fn faults_that_reset_a_stream() {
    use ErrorCode as E;
    let list = |fields: &[(&str, &str)]| {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| Field::new(name, value.as_bytes()))
            .collect();
        let mut out = POST.to_vec();
        crate::http::hpack::Encoder::default().encode_trailers(&fields, &mut out);
        out
    };
    resets(kind::DATA, 0, 3, b"x", E::STREAM_CLOSED);
    resets(kind::DATA, 0, 5, b"x", E::STREAM_CLOSED);
    resets(kind::HEADERS, WHOLE, 5, &[0x0f, 0, 0], E::STREAM_CLOSED);
    resets(kind::HEADERS, END_HEADERS, 1, &[], E::PROTOCOL_ERROR);
    resets(kind::HEADERS, WHOLE, 1, &POST, E::PROTOCOL_ERROR);
    resets(kind::HEADERS, WHOLE, 7, &POST[..2], E::PROTOCOL_ERROR);
    resets(kind::HEADERS, WHOLE, 7, &list(&[("Upper", "x")]), E::PROTOCOL_ERROR);
    resets(
        kind::HEADERS,
        WHOLE,
        7,
        &list(&[("connection", "close")]),
        E::PROTOCOL_ERROR,
    );
    resets(
        kind::HEADERS,
        WHOLE,
        7,
        &list(&[("content-length", "1")]),
        E::PROTOCOL_ERROR,
    );
    resets(kind::WINDOW_UPDATE, 0, 1, &[0; 4], E::PROTOCOL_ERROR);
    resets(
        kind::WINDOW_UPDATE,
        0,
        1,
        &[0x7f, 0xff, 0xff, 0xff],
        E::FLOW_CONTROL_ERROR,
    );
    resets(kind::PRIORITY, 0, 1, &[0; 4], E::FRAME_SIZE_ERROR);
    resets(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0], E::PROTOCOL_ERROR);
}

#[test]
fn things_that_are_ignored() {
    let mut client = Client::new();
    client.open(1, false);
    client.frame(0x55, 0xff, 1, b"unknown type");
    client.frame(kind::PRIORITY, 0, 9, &[0, 0, 0, 1, 0]);
    client.frame(kind::GOAWAY, 0, 0, &[0; 20]);
    client.frame(kind::SETTINGS, flag::ACK, 0, &[]);
    client.frame(kind::SETTINGS, 0, 0, &[0xff, 0xff, 1, 2, 3, 4]);
    client.frame(kind::PING, flag::ACK, 0, &[1; 8]);
    assert_eq!(client.events(), []);
    assert_eq!(client.server.closed(), None);
    let (first, second) = (client.open(3, true), client.open(5, true));
    client.server.respond(first, 200, &[], true).unwrap();
    client.server.reset(second, ErrorCode::CANCEL);
    client.read();
    client.window_update(3, 5).frame(kind::RST_STREAM, 0, 3, &[0; 4]);
    client.data(5, b"late", false).frame(kind::HEADERS, WHOLE, 5, &[]);
    assert_eq!(client.events(), []);
    assert_eq!(client.read(), []);
    assert_eq!(client.server.closed(), None);
}

#[test]
fn a_wrong_preface_ends_the_connection() {
    let mut client = Client::silent(Config::default());
    client.out = b"PRI * HTTP/2.0\r\n\r\nXX".to_vec();
    client.assert_goaway(ErrorCode::PROTOCOL_ERROR);
    let mut client = Client::silent(Config::default());
    client.out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    client
        .frame(kind::PING, 0, 0, &[0; 8])
        .assert_goaway(ErrorCode::PROTOCOL_ERROR);
    let mut client = Client::silent(Config::default());
    client.out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    client
        .frame(kind::SETTINGS, flag::ACK, 0, &[])
        .assert_goaway(ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn first_bytes_tell_the_protocol() {
    assert_eq!(sniff(b""), Sniffed::More);
    assert_eq!(sniff(b"PR"), Sniffed::More);
    assert_eq!(sniff(b"PRI "), Sniffed::Http2);
    assert_eq!(sniff(b"PUT"), Sniffed::Http1);
    assert_eq!(sniff(b"G"), Sniffed::Http1);
    assert_eq!(sniff(b"\x16\x03"), Sniffed::Http1);
}

#[test]
fn the_servers_settings_come_first() {
    let mut client = Client::silent(Config {
        max_concurrent_streams: 7,
        ..Config::default()
    });
    let frames = client.read();
    assert_eq!(
        (frames[0].kind, frames[0].flags, frames[0].stream),
        (kind::SETTINGS, 0, 0)
    );
    let settings: Vec<_> = frames[0]
        .payload
        .chunks(6)
        .map(|entry| {
            (
                u16::from_be_bytes([entry[0], entry[1]]),
                crate::http::frame::read_u32(&entry[2..]),
            )
        })
        .collect();
    assert!(settings.contains(&(setting::MAX_CONCURRENT_STREAMS, 7)));
    assert!(settings.contains(&(setting::INITIAL_WINDOW_SIZE, Config::default().stream_window)));
    assert_eq!(frames[1].kind, kind::WINDOW_UPDATE);
}

#[test]
fn settings_and_pings_are_acknowledged() {
    let mut client = Client::new();
    client
        .settings(&[(setting::MAX_FRAME_SIZE, 1 << 20)])
        .frame(kind::PING, 0, 0, b"01234567")
        .events();
    let frames = client.read();
    assert_eq!((frames[0].kind, frames[0].flags), (kind::SETTINGS, flag::ACK));
    assert_eq!(
        (frames[1].kind, frames[1].flags, &frames[1].payload[..]),
        (kind::PING, flag::ACK, &b"01234567"[..])
    );
}

#[test]
fn a_header_block_may_be_cut_padded_and_weighted() {
    let mut client = Client::new();
    let padded = [&[2, 0, 0, 0, 9, 16], &POST[..1], &[0, 0]].concat();
    client.frame(kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, &padded);
    client
        .frame(kind::CONTINUATION, 0, 1, &POST[1..2])
        .frame(kind::CONTINUATION, 0, 1, &[]);
    client.frame(kind::CONTINUATION, flag::END_HEADERS, 1, &POST[2..]);
    assert!(matches!(client.event(), Event::Request { end: false, .. }));
    assert_eq!(client.server.request().path(), b"/");
    client
        .frame(kind::HEADERS, 0, 3, &POST)
        .data(1, b"x", false)
        .assert_goaway(ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn a_request_may_end_with_trailers() {
    let mut client = Client::new();
    let stream = client.open(1, false);
    client
        .data(1, b"x", false)
        .frame(kind::HEADERS, WHOLE, 1, &[0, 1, b'a', 1, b'b']);
    let events = client.events();
    assert_eq!(events[1], Event::Trailers { stream });
    // The block of trailers must not be taken for the request's list when it repeats a request's block.
    client
        .frame(kind::HEADERS, END_HEADERS, 3, &POST)
        .frame(kind::HEADERS, WHOLE, 3, &POST)
        .events();
    client.post(5, true);
    assert!(
        client
            .events()
            .iter()
            .any(|event| matches!(event, Event::Request { stream, .. } if stream.id() == 5))
    );
}

#[test]
fn an_empty_last_frame_is_taken_along_with_the_data_before_it() {
    let mut client = Client::new();
    let stream = client.open(1, false);
    client.data(1, b"x", false).data(1, b"", true);
    assert_eq!(
        client.events(),
        [Event::Data {
            stream,
            data: Bytes::from_static(b"x"),
            end: true
        }]
    );
    let stream = client.open(3, false);
    client.data(3, b"x", false);
    assert_eq!(
        client.events(),
        [Event::Data {
            stream,
            data: Bytes::from_static(b"x"),
            end: false
        }]
    );
    client.data(3, b"", true);
    assert_eq!(
        client.events(),
        [Event::Data {
            stream,
            data: Bytes::new(),
            end: true
        }]
    );
}

#[test]
fn content_length_has_to_fit_the_data() {
    for (parts, good) in [
        (&[("ab", false), ("c", true)][..], true),
        (&[("abcd", false)], false),
        (&[("ab", true)], false),
        (&[("abc", false), ("", true)], true),
    ] {
        let mut client = Client::new();
        let block = [&POST[..], &[0x0f, 0x0d, 1, b'3']].concat();
        client.frame(kind::HEADERS, END_HEADERS, 1, &block);
        for (data, end) in parts {
            client.data(1, data.as_bytes(), *end);
        }
        if good {
            assert!(
                client
                    .events()
                    .iter()
                    .any(|event| matches!(event, Event::Data { end: true, .. }))
            );
        } else {
            client.assert_reset(1, ErrorCode::PROTOCOL_ERROR);
        }
    }
}

#[test]
fn responses_go_out_in_order_and_only_once() {
    let mut client = Client::new();
    let stream = client.open(1, true);
    let server = &mut client.server;
    assert_eq!(
        server.send_data(stream, Bytes::new(), true),
        Err(SendError::OutOfOrder("no header yet"))
    );
    server.respond(stream, 200, &[Field::new("a", b"b")], false).unwrap();
    assert_eq!(
        server.respond(stream, 200, &[], false),
        Err(SendError::OutOfOrder("header sent twice"))
    );
    server.send_data(stream, Bytes::from_static(b"one"), false).unwrap();
    server
        .send_data_with(stream, 3, false, |out| out.extend_from_slice(b"two"))
        .unwrap();
    server.send_data_with(stream, 0, false, |_| {}).unwrap();
    server.send_trailers(stream, &[Field::new("c", b"d")]).unwrap();
    assert_eq!(server.send_data(stream, Bytes::new(), true), Err(SendError::Gone));
    let frames = client.read();
    let kinds: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.flags)).collect();
    assert_eq!(
        kinds,
        [(kind::HEADERS, END_HEADERS), (kind::DATA, 0), (kind::HEADERS, WHOLE)]
    );
    assert_eq!(client.headers(&frames[0]), [("a".into(), "b".into())]);
    assert_eq!(frames[1].payload, b"onetwo");
    assert_eq!(client.headers(&frames[2]), [("c".into(), "d".into())]);
    assert_eq!(client.server.stream_count(), 0);
}

#[test]
fn a_header_list_longer_than_a_frame_is_cut() {
    let mut client = Client::new();
    let stream = client.open(1, true);
    let long = vec![b'x'; 40_000];
    client
        .server
        .respond(stream, 200, &[Field::new("a", &long)], true)
        .unwrap();
    let frames = client.read();
    let kinds: Vec<_> = frames
        .iter()
        .map(|frame| (frame.kind, frame.flags, frame.stream))
        .collect();
    let continued = kind::CONTINUATION;
    assert_eq!(
        kinds,
        [
            (kind::HEADERS, flag::END_STREAM, 1),
            (continued, 0, 1),
            (continued, END_HEADERS, 1)
        ]
    );
    let mut whole = frames[0].clone();
    whole.payload = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
    assert_eq!(client.headers(&whole)[0].1.len(), 40_000);
}

#[test]
fn a_response_before_the_end_of_its_request_ends_that_too() {
    let mut client = Client::new();
    let stream = client.open(1, false);
    client.server.respond(stream, 200, &[], true).unwrap();
    client.assert_reset(1, ErrorCode::NO_ERROR);
    client.data(1, b"late", false).data(1, b"later", true);
    assert_eq!(client.events(), []);
    assert_eq!(client.read(), []);
}

#[test]
fn a_reset_by_the_peer_drops_what_was_queued() {
    let mut client = Client::new();
    let stream = client.open(1, true);
    client.server.respond(stream, 200, &[], false).unwrap();
    client
        .server
        .send_data(stream, Bytes::from(vec![0; 300_000]), false)
        .unwrap();
    client.read();
    assert!(client.server.queued(stream) > 0);
    client.frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    assert_eq!(
        client.events(),
        [Event::Reset {
            stream,
            code: ErrorCode::CANCEL
        }]
    );
    assert_eq!(client.server.buffered_bytes(), 0);
    assert_eq!(
        client.server.send_data(stream, Bytes::new(), true),
        Err(SendError::Gone)
    );
    assert_eq!((client.server.capacity(stream), client.server.queued(stream)), (0, 0));
    client.server.reset(stream, ErrorCode::CANCEL);
    client.server.release(stream, 1);
    client.server.notify_writable(stream);
    assert_eq!(client.events(), []);
    assert_eq!(client.read(), []);
}

#[test]
fn the_peers_table_size_is_kept_to() {
    let mut client = Client::new();
    let fields = [Field::repeated("content-type", b"application/grpc")];
    for (id, size, expected) in [(1, 4096, 0x88), (3, 0, 0x20), (5, 0, 0x88)] {
        client.settings(&[(setting::HEADER_TABLE_SIZE, size)]);
        let stream = client.open(id, true);
        client.server.respond(stream, 200, &fields, true).unwrap();
        let frames = client.read();
        let header = frames.last().unwrap().clone();
        assert_eq!(header.payload[0], expected);
        assert_eq!(
            client.headers(&header),
            [("content-type".into(), "application/grpc".into())]
        );
    }
}

#[test]
fn a_shutdown_serves_what_is_on_its_way() {
    let mut client = Client::new();
    let first = client.open(1, true);
    client.server.shutdown(client.now);
    let frames = client.read();
    assert_eq!(
        (frames[0].kind, &frames[0].payload[..4]),
        (kind::GOAWAY, &[0x7f, 0xff, 0xff, 0xff][..])
    );
    let ping = frames[1].payload.clone();
    let second = client.open(3, true);
    client.frame(kind::PING, flag::ACK, 0, &ping);
    assert_eq!(client.events(), []);
    let frames = client.read();
    assert_eq!(
        (frames[0].kind, &frames[0].payload[..4]),
        (kind::GOAWAY, &[0, 0, 0, 3][..])
    );
    client.post(5, false).data(5, b"x", true);
    assert_eq!(client.events(), [], "above the last stream");
    assert_eq!(client.server.closed(), None);
    client.server.respond(first, 200, &[], true).unwrap();
    client.server.respond(second, 200, &[], true).unwrap();
    assert_eq!(client.server.closed(), Some(CloseReason::Drained));
    assert_eq!(client.read().len(), 2);
}

#[test]
fn a_shutdown_does_not_wait_for_a_silent_peer() {
    let mut client = Client::new();
    client.server.shutdown(client.now);
    client.server.on_timer(client.now + Duration::from_secs(4));
    assert_eq!(client.server.closed(), None);
    client.server.on_timer(client.now + Duration::from_secs(5));
    assert_eq!(client.server.closed(), Some(CloseReason::Drained));
    let mut client = Client::silent(Config::default());
    client.server.shutdown(client.now);
    assert_eq!(client.server.closed(), Some(CloseReason::Drained));
}

#[test]
fn a_lost_socket_resets_every_stream() {
    let mut client = Client::new();
    let streams = [client.open(1, true), client.open(3, false)];
    client.server.disconnect();
    let events = client.events();
    assert_eq!(
        events,
        streams.map(|stream| Event::Reset {
            stream,
            code: ErrorCode::CANCEL
        })
    );
    assert!(!client.server.has_output());
    client.out = frame_bytes(kind::PING, 0, 0, &[0; 8]);
    assert_eq!(client.events(), []);
}
