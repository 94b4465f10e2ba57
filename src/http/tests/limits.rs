//! What a hostile peer is told when it goes too far, and what an honest one may do without being told anything.

use std::time::Duration;

use bytes::Bytes;

use super::client::{Client, POST};
use crate::http::frame::{flag, kind, setting};
use crate::http::{CloseReason, Config, ErrorCode, Event, Field, Keepalive};
use crate::limits;

const CALM: ErrorCode = ErrorCode::ENHANCE_YOUR_CALM;

/// Repeats a frame until the connection ends; returns after how many.
#[track_caller]
fn flood(client: &mut Client, mut send: impl FnMut(&mut Client, u32)) -> u32 {
    for count in 0..100_000 {
        send(client, count);
        client.events();
        if client.server.closed().is_some() {
            client.assert_goaway(CALM);
            return count;
        }
        client.read();
    }
    panic!("never told to calm down");
}

#[test]
fn rapid_resets() {
    let mut client = Client::new();
    let count = flood(&mut client, |client, count| {
        let id = 2 * count + 1;
        client.post(id, false).frame(kind::RST_STREAM, 0, id, &[0, 0, 0, 8]);
    });
    assert!(
        count >= limits::HTTP_RESETS.0 && count < 2 * limits::HTTP_RESETS.0,
        "{count}"
    );
    let mut client = Client::new();
    for count in 0..20_000 {
        client.now += Duration::from_millis(3);
        client
            .post(2 * count + 1, false)
            .frame(kind::RST_STREAM, 0, 2 * count + 1, &[0, 0, 0, 8])
            .events();
    }
    assert_eq!(client.server.closed(), None, "cancelling now and then is fine");
}

#[test]
fn resets_that_the_peer_provokes() {
    let mut client = Client::new();
    flood(&mut client, |client, count| {
        let id = 2 * count + 1;
        client.post(id, true).window_update(id, 0);
    });
    let mut client = Client::new();
    flood(&mut client, |client, count| {
        client.frame(kind::HEADERS, flag::END_HEADERS, 2 * count + 1, &POST[..2]);
    });
}

#[test]
fn empty_data() {
    let mut client = Client::new();
    client.open(1, false);
    flood(&mut client, |client, _| {
        client.data(1, b"", false);
    });
    let mut client = Client::new();
    client.open(1, false);
    flood(&mut client, |client, _| {
        client.frame(kind::DATA, flag::PADDED, 1, &[3, 0, 0, 0]);
    });
}

#[test]
fn settings_pings_window_updates_priorities_and_unknown_frames() {
    type Send = fn(&mut Client, u32);
    let floods: [Send; 6] = [
        |client, _| {
            client.settings(&[]);
        },
        |client, _| {
            client.frame(kind::SETTINGS, flag::ACK, 0, &[]);
        },
        |client, count| {
            client.window_update(0, 1 + count % 2);
        },
        |client, _| {
            client.frame(kind::PRIORITY, 0, 1, &[0; 5]);
        },
        |client, _| {
            client.frame(0x42, 0, 0, b"");
        },
        |client, _| {
            client.frame(kind::PING, flag::ACK, 0, &[0; 8]);
        },
    ];
    for send in floods {
        flood(&mut Client::new(), send);
    }
    // Streams that answer forgive a ping for each part of the answer, and no more.
    let mut client = Client::new();
    let stream = client.open(1, false);
    client.server.respond(stream, 200, &[], false).unwrap();
    let count = flood(&mut client, |client, _| {
        client
            .server
            .send_data(stream, Bytes::from_static(b"x"), false)
            .unwrap();
        client.frame(kind::PING, 0, 0, &[0; 8]).frame(kind::PING, 0, 0, &[0; 8]);
        client.now += Duration::from_micros(10);
    });
    assert!(count >= limits::HTTP_PINGS.0);
}

#[test]
fn window_updates_for_what_was_sent_are_free() {
    let mut client = Client::new();
    let stream = client.open(1, true);
    client.server.respond(stream, 200, &[], false).unwrap();
    for _ in 0..20_000 {
        client
            .server
            .send_data(stream, Bytes::from_static(b"x"), false)
            .unwrap();
        client.read();
        client.window_update(0, 1).window_update(1, 1).events();
    }
    assert_eq!(client.server.closed(), None);
}

/// grpc-go measures the bandwidth with a ping for each round trip in which data came.
#[test]
fn pings_that_measure_the_bandwidth_are_free() {
    let mut client = Client::new();
    for count in 0..20_000 {
        let stream = client.open(2 * count + 1, true);
        client.server.respond(stream, 200, &[], false).unwrap();
        client.server.send_data(stream, Bytes::from_static(b"x"), true).unwrap();
        client.read();
        client.frame(kind::PING, 0, 0, &[0; 8]).events();
        client.now += Duration::from_micros(100);
    }
    assert_eq!(client.server.closed(), None);
}

/// gRPC's C core raises each new stream's window, and the connection's for each answer, be it trailers alone.
#[test]
fn window_updates_of_new_streams_and_of_answers_without_data_are_free() {
    let mut client = Client::new();
    let mut streams = Vec::new();
    for count in 0..8_000 {
        streams.push(client.open(2 * count + 1, true));
        client.window_update(2 * count + 1, 65_536).events();
    }
    for stream in streams {
        client.server.respond(stream, 200, &[], true).unwrap();
        client.read();
        client.window_update(0, 1).window_update(0, 1).events();
    }
    assert_eq!(client.server.closed(), None);
}

#[test]
fn frames_for_streams_that_are_gone() {
    let mut client = Client::new();
    let stream = client.open(1, false);
    client.server.reset(stream, ErrorCode::CANCEL);
    client.read();
    flood(&mut client, |client, _| {
        client.data(1, b"x", false);
    });
    let mut client = Client::new();
    for id in 0..20_000 {
        // An answer ahead of the request's end makes its last frame late, which is nobody's fault.
        let stream = client.open(2 * id + 1, false);
        client.server.respond(stream, 200, &[], true).unwrap();
        client.read();
        client.data(2 * id + 1, b"x", true).events();
    }
    assert_eq!(client.server.closed(), None);
}

#[test]
fn control_frames_that_are_not_read() {
    let mut client = Client::new();
    let stream = client.open(1, false);
    client.server.respond(stream, 200, &[], false).unwrap();
    client.read();
    for _ in 0..limits::HTTP_CONTROL_BYTES {
        client.now += Duration::from_secs(10);
        client.frame(kind::PING, 0, 0, &[0; 8]).events();
        if client.server.closed().is_some() {
            client.assert_goaway(CALM);
            return;
        }
        assert!(client.server.buffered_bytes() <= limits::HTTP_CONTROL_BYTES + 100);
    }
    panic!("never told to calm down");
}

#[test]
fn header_blocks_in_too_many_frames_or_too_long() {
    let mut client = Client::new();
    client.frame(kind::HEADERS, 0, 1, &POST);
    for _ in 0..=limits::HTTP_CONTINUATION_FRAMES {
        client.frame(kind::CONTINUATION, 0, 1, &[]);
    }
    client.assert_goaway(CALM);
    let mut client = Client::new();
    client.frame(kind::HEADERS, 0, 1, &POST);
    for _ in 0..5 {
        client.frame(kind::CONTINUATION, 0, 1, &[0; 16_384]);
    }
    client.assert_goaway(CALM);
}

#[test]
fn header_lists_too_large_are_answered_with_431_and_the_table_stays_in_step() {
    let config = Config {
        max_header_list: 220,
        ..Config::default()
    };
    let mut client = Client::with(config);
    let mut block = POST.to_vec();
    block.extend_from_slice(&[0x40, 1, b'a', 100]);
    block.extend_from_slice(&[b'x'; 100]);
    client.frame(kind::HEADERS, flag::END_HEADERS, 1, &block);
    assert_eq!(client.events(), []);
    let frames = client.read();
    assert_eq!(frames[0].payload[..5], [8, 3, b'4', b'3', b'1']);
    assert_eq!((frames[1].kind, frames[1].stream), (kind::RST_STREAM, 1));
    // What was cut off is in the table nonetheless.
    client.frame(
        kind::HEADERS,
        flag::END_HEADERS | flag::END_STREAM,
        3,
        &[0x82, 0x86, 0xbe],
    );
    client.assert_reset(3, ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn streams_beyond_the_limit_are_refused_and_freed_ones_count_again() {
    let mut client = Client::with(Config {
        max_concurrent_streams: 2,
        ..Config::default()
    });
    let stream = client.open(1, true);
    client.open(3, false);
    client.post(5, true).assert_reset(5, ErrorCode::REFUSED_STREAM);
    client.server.respond(stream, 200, &[], true).unwrap();
    client.open(7, true);
}

#[test]
fn too_many_pings_are_answered_as_grpc_go_answers_them() {
    let mut client = Client::new();
    client.open(1, false);
    for _ in 0..4 {
        client.frame(kind::PING, 0, 0, &[0; 8]);
        client.now += Duration::from_secs(1);
    }
    client.events();
    let frames = client.read();
    let goaway = frames.last().unwrap();
    assert_eq!(goaway.kind, kind::GOAWAY);
    assert_eq!(goaway.payload[4..8], CALM.0.to_be_bytes());
    assert_eq!(&goaway.payload[8..], b"too_many_pings");
    assert_eq!(
        client.server.closed(),
        Some(CloseReason::Fault {
            code: CALM,
            reason: "too_many_pings"
        })
    );
}

#[test]
fn a_silent_peer_is_pinged_and_given_up() {
    let keepalive = Keepalive {
        interval: Duration::from_secs(60),
        ..Keepalive::default()
    };
    let mut client = Client::with(Config {
        keepalive,
        ..Config::default()
    });
    assert_eq!(client.server.deadline(), client.now + Duration::from_secs(60));
    client.now += Duration::from_secs(60);
    client.server.on_timer(client.now);
    let frames = client.read();
    assert_eq!((frames[0].kind, frames[0].flags), (kind::PING, 0));
    client.frame(kind::PING, flag::ACK, 0, &[0; 8]).events();
    client.now += Duration::from_secs(60);
    client.server.on_timer(client.now);
    assert_eq!(client.read().len(), 1);
    client.server.on_timer(client.now + Duration::from_secs(20));
    assert_eq!(client.server.closed(), Some(CloseReason::KeepaliveTimeout));
}

#[test]
fn a_peer_without_a_preface_is_given_up() {
    let mut client = Client::silent(Config::default());
    client.out = b"PRI * HTTP".to_vec();
    client.events();
    client.read();
    client
        .server
        .on_timer(client.now + Duration::from_secs(limits::HTTP_PREFACE_SECONDS - 1));
    assert_eq!(client.server.closed(), None);
    client
        .server
        .on_timer(client.now + Duration::from_secs(limits::HTTP_PREFACE_SECONDS));
    assert_eq!(client.server.closed(), Some(CloseReason::PrefaceTimeout));
}

#[test]
fn an_idle_connection_is_small_even_after_a_busy_time() {
    let mut client = Client::new();
    let streams: Vec<_> = (0..5_000).map(|id| client.open(2 * id + 1, true)).collect();
    for stream in streams {
        client
            .server
            .respond(stream, 200, &[Field::repeated("a", b"b")], true)
            .unwrap();
    }
    while client.server.has_output() {
        client.read();
    }
    assert_eq!(client.server.buffered_bytes(), 0);
    let size = size_of_val(&client.server);
    assert!(size < 1_024, "{size} bytes");
}

#[test]
fn thousands_of_streams_at_once_are_served() {
    let mut client = Client::new();
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 1)]);
    let streams: Vec<_> = (0..10_000).map(|id| client.open(2 * id + 1, true)).collect();
    for stream in &streams {
        client.server.respond(*stream, 200, &[], false).unwrap();
        client
            .server
            .send_data(*stream, Bytes::from_static(b"abc"), true)
            .unwrap();
    }
    while client.server.has_output() {
        client.read();
    }
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 3)]);
    let events: Vec<Event> = client.events();
    assert_eq!(events, []);
    while client.server.has_output() {
        client.read();
    }
    assert_eq!(client.server.stream_count(), 0);
}
