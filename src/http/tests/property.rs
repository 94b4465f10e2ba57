//! Whole conversations, cut and interleaved at random, against what they have to come to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::client::{frame_bytes, frames};
use crate::http::frame::{self, flag, kind, read_u32, setting};
use crate::http::{Config, Connection, Event, Field, fuzz};

const NOW: Duration = Duration::from_secs(1);

/// A request: its body's parts, whether padded, and how long its answer is.
#[derive(Clone, Debug)]
struct Exchange {
    parts: Vec<Vec<u8>>,
    padding: u8,
    reply: usize,
    trailers: bool,
    cut_headers: bool,
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let part = proptest::collection::vec(any::<u8>(), 0..3_000);
    (
        proptest::collection::vec(part, 0..5),
        0u8..40,
        0usize..90_000,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(parts, padding, reply, trailers, cut_headers)| Exchange {
            parts,
            padding,
            reply,
            trailers,
            cut_headers,
        })
}

/// The frames of one request, as units that must not be torn apart.
fn request_frames(id: u32, exchange: &Exchange) -> Vec<Vec<u8>> {
    let mut block = super::client::POST.to_vec();
    block.extend_from_slice(&[0x40, 1, b'n', 3]);
    block.extend_from_slice(format!("{id:03}").as_bytes());
    let mut units = Vec::new();
    if exchange.cut_headers {
        let mut unit = frame_bytes(kind::HEADERS, 0, id, &block[..4]);
        unit.extend(frame_bytes(kind::CONTINUATION, flag::END_HEADERS, id, &block[4..]));
        units.push(unit);
    } else {
        units.push(frame_bytes(kind::HEADERS, flag::END_HEADERS, id, &block));
    }
    for part in &exchange.parts {
        if exchange.padding > 0 {
            let padding = vec![0; usize::from(exchange.padding)];
            let payload = [&[exchange.padding], &part[..], &padding].concat();
            units.push(frame_bytes(kind::DATA, flag::PADDED, id, &payload));
        } else {
            units.push(frame_bytes(kind::DATA, 0, id, part));
        }
    }
    units.push(frame_bytes(kind::DATA, flag::END_STREAM, id, b""));
    units
}

/// Interleaves the frames of all requests by `order`, requests beginning in the order of their ids.
fn interleave(exchanges: &[Exchange], order: &[u8]) -> Vec<u8> {
    let mut queues: Vec<std::collections::VecDeque<Vec<u8>>> = exchanges
        .iter()
        .enumerate()
        .map(|(index, exchange)| request_frames(2 * index as u32 + 1, exchange).into())
        .collect();
    let mut wire = frame::PREFACE.to_vec();
    frame::write_settings(&mut wire, &[(setting::INITIAL_WINDOW_SIZE, 1_000)]);
    for queue in &mut queues {
        wire.extend(queue.pop_front().unwrap());
    }
    let mut order = order.iter().cycle();
    while queues.iter().any(|queue| !queue.is_empty()) {
        let start = usize::from(*order.next().unwrap()) % queues.len();
        let next = (0..queues.len())
            .map(|step| (start + step) % queues.len())
            .find(|index| !queues[*index].is_empty());
        wire.extend(queues[next.unwrap()].pop_front().unwrap());
    }
    wire
}

/// The server's side: collects bodies, answers each request when it is whole.
#[derive(Default)]
struct Served {
    bodies: BTreeMap<u32, Vec<u8>>,
    names: BTreeMap<u32, Vec<u8>>,
}

impl Served {
    fn on(&mut self, connection: &mut Connection, event: Event, exchanges: &[Exchange]) {
        match event {
            Event::Request { stream, .. } => {
                let name = connection.request().get("n").unwrap().to_vec();
                self.names.insert(stream.id(), name);
            }
            Event::Data { stream, data, end } => {
                connection.release(stream, data.len());
                self.bodies.entry(stream.id()).or_default().extend_from_slice(&data);
                if end {
                    let exchange = &exchanges[stream.id() as usize / 2];
                    let reply: Vec<u8> = (0..exchange.reply).map(|position| (position % 251) as u8).collect();
                    connection
                        .respond(stream, 200, &[Field::repeated("a", b"b")], false)
                        .unwrap();
                    connection
                        .send_data(stream, Bytes::from(reply), !exchange.trailers)
                        .unwrap();
                    if exchange.trailers {
                        connection.send_trailers(stream, &[Field::repeated("c", b"d")]).unwrap();
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The client's side: collects replies and opens windows a little at a time.
#[derive(Default)]
struct Received {
    replies: BTreeMap<u32, Vec<u8>>,
    ended: Vec<u32>,
    windows: BTreeMap<u32, i64>,
    connection_window: i64,
}

impl Received {
    fn on(&mut self, output: &[u8], step: u32) -> Vec<u8> {
        let mut back = Vec::new();
        for frame in frames(output) {
            if frame.kind == kind::DATA {
                let length = frame.payload.len() as i64;
                let window = self.windows.entry(frame.stream).or_insert(1_000);
                *window -= length;
                self.connection_window -= length;
                assert!(*window >= 0 && self.connection_window >= 0, "sent beyond a window");
                assert!(frame.payload.len() <= 16_384);
                self.replies
                    .entry(frame.stream)
                    .or_default()
                    .extend_from_slice(&frame.payload);
                if frame.flags & flag::END_STREAM == 0 {
                    *window += i64::from(step);
                    frame::write_window_update(&mut back, frame.stream, step);
                }
                if length > 0 {
                    self.connection_window += length;
                    frame::write_window_update(&mut back, 0, length as u32);
                }
            }
            if matches!(frame.kind, kind::DATA | kind::HEADERS) && frame.flags & flag::END_STREAM != 0 {
                self.ended.push(frame.stream);
            }
            assert_ne!(frame.kind, kind::GOAWAY, "{:?}", read_u32(&frame.payload[4..]));
            assert_ne!(frame.kind, kind::RST_STREAM);
        }
        back
    }
}

fn converse(exchanges: &[Exchange], wire: &[u8], cuts: &[usize], step: u32) -> (Served, Received) {
    let mut connection = Connection::new(Arc::new(Config::default()), NOW);
    let mut served = Served::default();
    let mut received = Received {
        connection_window: 65_535,
        ..Received::default()
    };
    let mut wire = Bytes::copy_from_slice(wire);
    let mut cuts = cuts.iter().cycle();
    loop {
        let length = (*cuts.next().unwrap()).min(wire.len());
        connection.receive(wire.split_to(length), NOW);
        while let Some(event) = connection.next_event() {
            served.on(&mut connection, event, exchanges);
        }
        let output = connection.take_output(Vec::new(), NOW);
        let back = received.on(&output, step);
        assert_eq!(connection.closed(), None);
        if back.is_empty() && wire.is_empty() && !connection.has_output() {
            break;
        }
        // The answer goes in behind what is still on its way: frames stay whole, as the cut is only in how they arrive.
        wire = Bytes::from([&wire[..], &back].concat());
    }
    assert_eq!(connection.stream_count(), 0);
    assert_eq!(connection.buffered_bytes(), 0);
    (served, received)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_conversation_comes_to_the_same_however_it_is_cut(
        exchanges in proptest::collection::vec(exchange(), 1..6),
        order: [u8; 16],
        cuts in proptest::collection::vec(1usize..2_000, 1..20),
        step in 1_000u32..20_000,
    ) {
        let wire = interleave(&exchanges, &order);
        let (served, received) = converse(&exchanges, &wire, &cuts, step);
        for (index, exchange) in exchanges.iter().enumerate() {
            let id = 2 * index as u32 + 1;
            prop_assert_eq!(&served.names[&id], &format!("{id:03}").into_bytes());
            prop_assert_eq!(&served.bodies[&id], &exchange.parts.concat());
            let reply = received.replies.get(&id).cloned().unwrap_or_default();
            prop_assert_eq!(reply.len(), exchange.reply);
            prop_assert!(reply.iter().enumerate().all(|(position, byte)| *byte == (position % 251) as u8));
        }
        let mut ended = received.ended.clone();
        ended.sort();
        prop_assert_eq!(ended, (0..exchanges.len() as u32).map(|index| 2 * index + 1).collect::<Vec<_>>());
    }

    #[test]
    fn fuzz_entries_take_anything(input in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        fuzz::hpack(&input);
        fuzz::huffman_string(&input);
        fuzz::connection(&input);
        fuzz::http1(&input);
    }

    #[test]
    fn the_connection_takes_any_frames(
        choices: [u8; 128],
        sent in proptest::collection::vec(
            (0u8..11, any::<u8>(), 0u32..12, proptest::collection::vec(any::<u8>(), 0..40)), 0..40),
    ) {
        let mut wire = Vec::new();
        for (kind, flags, stream, payload) in sent {
            let payload = if kind == kind::HEADERS { [&super::client::POST[..], &payload].concat() } else { payload };
            wire.extend(frame_bytes(kind, flags, stream, &payload));
        }
        let mut input: Vec<u8> = choices.iter().copied().cycle().take(wire.len() / 7 + 1).collect();
        input.extend(wire);
        fuzz::connection(&input);
    }
}

#[test]
fn a_conversation_may_come_byte_by_byte() {
    let exchange = Exchange {
        parts: vec![b"abc".to_vec(), vec![]],
        padding: 3,
        reply: 2_500,
        trailers: true,
        cut_headers: true,
    };
    let exchanges = [
        exchange.clone(),
        Exchange {
            padding: 0,
            trailers: false,
            cut_headers: false,
            ..exchange
        },
    ];
    let wire = interleave(&exchanges, &[0, 1]);
    for cut in 1..40 {
        let (served, _) = converse(&exchanges, &wire, &[cut], 1_000);
        assert_eq!(served.bodies[&1], b"abc");
        assert_eq!(served.bodies[&3], b"abc");
    }
}
