//! Flow control and the scheduler.

use std::time::Duration;

use bytes::Bytes;

use super::client::Client;
use crate::http::frame::{flag, kind, setting};
use crate::http::{CloseReason, Config, ErrorCode, Event, Field, StreamKey};
use crate::limits::{HTTP_CONNECTION_QUEUE_BYTES, HTTP_OUTPUT_BYTES, HTTP_STREAM_QUEUE_BYTES};

fn respond(client: &mut Client, id: u32) -> StreamKey {
    let stream = client.open(id, true);
    client.server.respond(stream, 200, &[], false).unwrap();
    stream
}

fn bulk(length: usize) -> Bytes {
    Bytes::from(vec![7; length])
}

#[test]
fn a_stream_stops_at_its_window_and_goes_on_with_it() {
    let mut client = Client::new();
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 10)]);
    let stream = respond(&mut client, 1);
    client.server.send_data(stream, bulk(25), true).unwrap();
    assert_eq!(client.read_data(), [(1, 10)]);
    assert!(!client.server.has_output());
    client.window_update(1, 3).events();
    assert_eq!(client.read_data(), [(1, 3)]);
    client.window_update(1, 100).events();
    let frames = client.read();
    assert_eq!((frames[0].flags, frames[0].payload.len()), (flag::END_STREAM, 12));
    assert_eq!(client.server.stream_count(), 0);
}

#[test]
fn trailers_wait_behind_data_and_data_behind_data() {
    let mut client = Client::new();
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 4)]);
    let stream = respond(&mut client, 1);
    client.server.send_data(stream, bulk(6), false).unwrap();
    client.server.send_data(stream, bulk(1), false).unwrap();
    client
        .server
        .send_trailers(stream, &[Field::repeated("grpc-status", b"0")])
        .unwrap();
    let other = respond(&mut client, 3);
    client.server.send_data(other, bulk(1), false).unwrap();
    client
        .server
        .send_trailers(other, &[Field::repeated("grpc-status", b"0")])
        .unwrap();
    let frames = client.read();
    for header in frames.iter().filter(|frame| frame.kind == kind::HEADERS) {
        client.headers(header);
    }
    client.window_update(1, 10).events();
    let frames = client.read();
    let kinds: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.payload.len())).collect();
    assert_eq!(kinds, [(kind::DATA, 3), (kind::HEADERS, 1)]);
    assert_eq!(client.headers(&frames[1]), [("grpc-status".into(), "0".into())]);
    assert_eq!(frames[1].flags & flag::END_STREAM, flag::END_STREAM);
}

#[test]
fn the_connections_window_holds_all_streams() {
    let mut client = Client::new();
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    let (first, second) = (respond(&mut client, 1), respond(&mut client, 3));
    client.server.send_data(first, bulk(60_000), false).unwrap();
    client.server.send_data(second, bulk(60_000), false).unwrap();
    let sent: usize = client.read_data().iter().map(|(_, length)| length).sum();
    assert_eq!(sent, 65_535);
    assert!(!client.server.has_output());
    client.window_update(0, 100_000).events();
    let sent: usize = client.read_data().iter().map(|(_, length)| length).sum();
    assert_eq!(sent, 120_000 - 65_535);
}

#[test]
fn a_change_of_the_initial_window_moves_open_streams() {
    let mut client = Client::new();
    let stream = respond(&mut client, 1);
    client.server.send_data(stream, bulk(65_000), false).unwrap();
    client.read();
    client
        .settings(&[(setting::INITIAL_WINDOW_SIZE, 100)])
        .window_update(0, 1 << 20)
        .events();
    client.read();
    client.server.send_data(stream, bulk(1_000), false).unwrap();
    assert_eq!(client.read_data(), [], "the window is negative");
    client.window_update(1, 64_900).events();
    assert_eq!(client.read_data(), []);
    client.window_update(1, 10).events();
    assert_eq!(client.read_data(), [(1, 10)]);
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 120)]).events();
    assert_eq!(client.read_data(), [(1, 20)], "a raise makes streams ready");
    client
        .window_update(1, 0x7fff_ffff - 1_000)
        .settings(&[(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
    client.assert_goaway(ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn streams_take_turns_by_frames_whoever_came_first() {
    let mut client = Client::new();
    client
        .settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)])
        .window_update(0, 1 << 20);
    let streams: Vec<_> = [1, 3, 5].map(|id| respond(&mut client, id)).into();
    client.read();
    client.server.send_data(streams[0], bulk(50_000), true).unwrap();
    for _ in 0..10 {
        client.server.send_data(streams[1], bulk(5_000), false).unwrap();
    }
    client.server.send_data(streams[2], bulk(16_385), true).unwrap();
    let turns = [
        (1, 16_384),
        (3, 16_384),
        (5, 16_384),
        (1, 16_384),
        (3, 16_384),
        (5, 1),
        (1, 16_384),
        (3, 16_384),
        (1, 848),
        (3, 848),
    ];
    assert_eq!(client.read_data(), turns);
}

#[test]
fn parts_that_leave_together_share_a_frame() {
    let mut client = Client::new();
    let (first, second) = (respond(&mut client, 1), respond(&mut client, 3));
    client.read();
    for _ in 0..20 {
        client.server.send_data(first, bulk(1_000), false).unwrap();
    }
    for _ in 0..2 {
        client.server.send_data(second, bulk(10), false).unwrap();
        client.server.send_data(first, bulk(10), false).unwrap();
    }
    client.server.send_data(first, bulk(0), true).unwrap();
    let frames = client.read();
    let shape: Vec<_> = frames
        .iter()
        .map(|frame| (frame.stream, frame.payload.len(), frame.flags))
        .collect();
    let end = flag::END_STREAM;
    assert_eq!(
        shape,
        [
            (1, 16_000, 0),
            (1, 4_000, 0),
            (3, 10, 0),
            (1, 10, 0),
            (3, 10, 0),
            (1, 10, end)
        ]
    );
    client.server.send_data(second, bulk(5), false).unwrap();
    assert_eq!(client.read_data(), [(3, 5)]);
    client.server.send_data(second, bulk(6), true).unwrap();
    assert_eq!(client.read_data(), [(3, 6)], "what was taken is not touched");
}

#[test]
fn small_replies_and_control_frames_pass_bulk() {
    let mut client = Client::new();
    client
        .settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)])
        .window_update(0, 1 << 20);
    let big = respond(&mut client, 1);
    client.read();
    client.server.send_data(big, bulk(900_000), true).unwrap();
    let first = client.read_data();
    assert!(
        first.iter().map(|(_, length)| length).sum::<usize>() <= HTTP_OUTPUT_BYTES + 16_384,
        "bounded"
    );
    client.frame(kind::PING, 0, 0, &[0; 8]).events();
    let small = respond(&mut client, 3);
    client.server.send_data(small, bulk(100), true).unwrap();
    let frames = client.read();
    let kinds: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.stream)).take(4).collect();
    assert_eq!(
        kinds,
        [(kind::PING, 0), (kind::HEADERS, 3), (kind::DATA, 3), (kind::DATA, 1)]
    );
}

#[test]
fn producers_are_woken_when_there_is_room() {
    let mut client = Client::new();
    client
        .settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 24)])
        .window_update(0, 1 << 24);
    let stream = respond(&mut client, 1);
    assert_eq!(client.server.capacity(stream), HTTP_STREAM_QUEUE_BYTES);
    client
        .server
        .send_data(stream, bulk(HTTP_STREAM_QUEUE_BYTES), false)
        .unwrap();
    assert_eq!(client.server.capacity(stream), 0);
    client.server.notify_writable(stream);
    assert_eq!(client.events(), []);
    client.read();
    assert_eq!(client.events(), [Event::Writable { stream }]);
    assert_eq!(client.events(), [], "told once");
    client.server.notify_writable(stream);
    assert_eq!(client.events(), [Event::Writable { stream }], "there is room already");
}

#[test]
fn producers_wait_for_the_windows_not_for_memory() {
    let mut client = Client::new();
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
    let stream = respond(&mut client, 1);
    assert_eq!(client.server.capacity(stream), 0);
    client.server.notify_writable(stream);
    client.window_update(1, 10);
    assert_eq!(client.events(), [Event::Writable { stream }]);
    assert_eq!(client.server.capacity(stream), 10);
    client.server.send_data(stream, bulk(10), false).unwrap();
    client.server.notify_writable(stream);
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 5_000)]);
    assert_eq!(client.events(), [Event::Writable { stream }]);
    client.server.notify_writable(stream);
    client.events();
    client.server.reset(stream, ErrorCode::CANCEL);
    client.window_update(1, 10);
    assert_eq!(client.events(), []);
}

#[test]
fn all_queues_together_are_bounded() {
    let mut client = Client::new();
    client
        .settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 24)])
        .window_update(0, 1 << 24);
    let streams: Vec<_> = (0..8).map(|i| respond(&mut client, 2 * i + 1)).collect();
    let mut total = 0;
    for stream in &streams {
        let capacity = client.server.capacity(*stream);
        client.server.send_data(*stream, bulk(capacity), false).unwrap();
        total += capacity;
    }
    assert_eq!(total, HTTP_CONNECTION_QUEUE_BYTES);
    client.server.notify_writable(streams[7]);
    assert_eq!(client.events(), []);
    client.read();
    assert_eq!(client.events(), [Event::Writable { stream: streams[7] }]);
    client
        .server
        .send_data(streams[7], bulk(HTTP_CONNECTION_QUEUE_BYTES), false)
        .unwrap();
    client.post(101, true).assert_reset(101, ErrorCode::REFUSED_STREAM);
}

#[test]
fn receive_windows_are_given_back_as_data_is_used() {
    let config = Config {
        stream_window: 65_536,
        connection_window: 131_072,
        ..Config::default()
    };
    let mut client = Client::with(config);
    let stream = client.open(1, false);
    for _ in 0..4 {
        client.data(1, &[0; 16_384], false);
    }
    assert_eq!(client.events().len(), 4);
    let updates: Vec<_> = client.read().iter().map(|frame| (frame.kind, frame.stream)).collect();
    assert_eq!(updates, [(kind::WINDOW_UPDATE, 0)], "the connection's at once");
    client.server.release(stream, 20_000);
    assert_eq!(client.read(), []);
    client.server.release(stream, 40_000);
    let frames = client.read();
    assert_eq!((frames[0].kind, frames[0].stream), (kind::WINDOW_UPDATE, 1));
    assert_eq!(frames[0].payload, 60_000u32.to_be_bytes());
    for _ in 0..3 {
        client.data(1, &[0; 16_384], false);
    }
    assert_eq!(client.events().len(), 3);
    client
        .data(1, &[0; 16_384], false)
        .assert_reset(1, ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn padding_counts_and_is_given_back_by_itself() {
    let config = Config {
        stream_window: 65_535,
        connection_window: 65_535,
        ..Config::default()
    };
    let mut client = Client::with(config);
    let stream = client.open(1, false);
    let mut padded = vec![255];
    padded.resize(256, 0);
    for round in 0..2_000 {
        client.frame(kind::DATA, flag::PADDED, 1, &padded[..256]);
        padded[0] = 254;
        let events = client.events();
        assert_eq!(events.len(), usize::from(round > 0), "{:?}", client.server.closed());
        for event in events {
            let Event::Data { data, .. } = event else {
                panic!("{event:?}")
            };
            client.server.release(stream, data.len());
        }
        client.read();
    }
}

#[test]
fn data_for_streams_that_are_gone_still_counts_for_the_connection() {
    let config = Config {
        stream_window: 65_535,
        connection_window: 65_535,
        ..Config::default()
    };
    let mut client = Client::with(config);
    let stream = client.open(1, false);
    client.server.reset(stream, ErrorCode::CANCEL);
    client.read();
    let mut updates = 0;
    for _ in 0..20 {
        client.data(1, &[0; 16_384], false).events();
        updates += client
            .read()
            .iter()
            .filter(|frame| frame.kind == kind::WINDOW_UPDATE)
            .count();
    }
    assert!(updates >= 6);
    assert_eq!(client.server.closed(), None);
}

#[test]
fn a_response_that_does_not_move_is_reset() {
    let mut client = Client::new();
    client.settings(&[(setting::INITIAL_WINDOW_SIZE, 100)]);
    let (queued, waiting, idle) = (
        respond(&mut client, 1),
        respond(&mut client, 3),
        respond(&mut client, 5),
    );
    client.server.send_data(queued, bulk(500), false).unwrap();
    client.server.send_data(waiting, bulk(100), false).unwrap();
    client.server.notify_writable(waiting);
    client.events();
    client.read();
    let start = client.now;
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(client.server.stalled_since(), Some(start));
    client.server.on_timer(at(29));
    client.now = at(29);
    client.window_update(1, 1);
    assert_eq!(client.events(), []);
    client.read();
    client.server.on_timer(at(30));
    let reset = |stream| Event::Reset {
        stream,
        code: ErrorCode::CANCEL,
    };
    assert_eq!(client.events(), [reset(waiting)]);
    client.read();
    client.server.on_timer(at(59));
    assert_eq!(client.events(), [reset(queued)]);
    assert_eq!(
        client.server.stalled_since(),
        Some(at(59)),
        "its RST_STREAM is not out yet"
    );
    client.read();
    assert_eq!(client.server.stalled_since(), None);
    assert!(client.server.is_open(idle), "nothing to say is no stall");
}

#[test]
fn a_peer_that_reads_nothing_is_given_up() {
    let mut client = Client::new();
    let stream = respond(&mut client, 1);
    client.server.send_data(stream, bulk(10), true).unwrap();
    client.server.on_timer(client.now + Duration::from_secs(29));
    assert_eq!(client.server.closed(), None);
    client.server.on_timer(client.now + Duration::from_secs(30));
    assert_eq!(client.server.closed(), Some(CloseReason::Stalled));
}

#[test]
fn nothing_is_read_while_output_waits_above_its_bound() {
    let mut client = Client::new();
    client
        .settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)])
        .window_update(0, 1 << 20);
    client.events();
    client.read();
    let mut answered = 0;
    for id in 0..100 {
        client.post(2 * id + 1, true);
    }
    let mut events = client.events().into_iter();
    while let Some(Event::Request { stream, .. }) = events.next() {
        client.server.respond(stream, 200, &[], false).unwrap();
        client.server.send_data(stream, bulk(16_000), true).unwrap();
        answered += 1;
    }
    assert!(answered > 10);
    assert!(!client.server.wants_read());
    client.post(1_001, true);
    assert_eq!(client.events(), []);
    while client.server.has_output() {
        client.read();
    }
    assert!(client.server.wants_read());
    assert_eq!(client.events().len(), 1, "parsed once there is room");
}
