//! Entries for fuzzers: arbitrary bytes through every parser of this room. None may panic, and none may hold memory out
//! of proportion to its bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::frame::{self, ErrorCode};
use super::hpack::{Decoder, Field, huffman};
use super::{Config, Connection, Event, HeaderList, StreamKey, http1};
use crate::limits::{HTTP_CONNECTION_QUEUE_BYTES, HTTP_HEADER_LIST_BYTES, HTTP_OUTPUT_BYTES};

/// A source of choices out of the fuzzer's bytes.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }
}

/// Header blocks, each behind a byte of length, for one decoder.
pub fn hpack(input: &[u8]) {
    let mut decoder = Decoder::new(4_096);
    let mut list = HeaderList::new(HTTP_HEADER_LIST_BYTES);
    let mut rest = input;
    while let Some((length, tail)) = rest.split_first() {
        let (block, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        if decoder.decode(block, &mut list).is_err() {
            return;
        }
        list.check_request();
        let bytes: usize = list.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(bytes <= HTTP_HEADER_LIST_BYTES);
        rest = tail;
    }
}

/// A Huffman string; what decodes has to encode to the same bytes.
pub fn huffman_string(input: &[u8]) {
    let mut plain = Vec::new();
    if huffman::decode(input, &mut plain).is_ok() {
        let mut encoded = Vec::new();
        huffman::encode(&plain, &mut encoded);
        assert_eq!(encoded, input);
    }
}

/// An HTTP/2 connection behind its preface, answered at random, its bytes cut at random. The first eighth of the input
/// makes the choices.
pub fn connection(input: &[u8]) {
    let (choices, wire) = input.split_at(input.len() / 8);
    let mut choices = Choices(choices);
    let mut now = Duration::from_secs(1);
    let mut connection = Connection::new(Arc::new(Config::default()), now);
    let mut bytes = frame::PREFACE.to_vec();
    frame::write_settings(&mut bytes, &[]);
    bytes.extend_from_slice(wire);
    let mut bytes = Bytes::from(bytes);
    while !bytes.is_empty() && connection.closed().is_none() {
        let length = (1 + usize::from(choices.next()) * 64).min(bytes.len());
        connection.receive(bytes.split_to(length), now);
        while let Some(event) = connection.next_event() {
            answer(&mut connection, event, &mut choices);
        }
        if choices.next() % 4 != 1 {
            let output = connection.take_output(Vec::new(), now);
            assert!(
                output.len() <= 2 * HTTP_OUTPUT_BYTES,
                "{} bytes of output",
                output.len()
            );
        }
        if choices.next() == 7 {
            now += Duration::from_secs(u64::from(choices.next()));
            connection.on_timer(now);
        }
        let bound = 2 * (HTTP_CONNECTION_QUEUE_BYTES + HTTP_OUTPUT_BYTES) + input.len();
        assert!(
            connection.buffered_bytes() <= bound,
            "{} bytes held",
            connection.buffered_bytes()
        );
    }
}

fn answer(connection: &mut Connection, event: Event, choices: &mut Choices<'_>) {
    let stream = match event {
        Event::Request { stream, .. } | Event::Trailers { stream } | Event::Writable { stream } => stream,
        Event::Data { stream, data, .. } => {
            connection.release(stream, data.len());
            stream
        }
        Event::Reset { stream, .. } => {
            assert!(!connection.is_open(stream));
            return;
        }
    };
    act(connection, stream, choices);
}

fn act(connection: &mut Connection, stream: StreamKey, choices: &mut Choices<'_>) {
    let length = usize::from(choices.next()) * 97;
    let end = choices.next().is_multiple_of(3);
    // What is out of order is refused, which is part of what is tried.
    let _ = match choices.next() % 7 {
        0 | 1 => connection.respond(stream, 200, &[Field::repeated("a", b"b")], end),
        2 => connection.send_data(stream, Bytes::from(vec![0; length]), end),
        3 => connection.send_data_with(stream, length, end, |out| out.resize(out.len() + length, 1)),
        4 => connection.send_trailers(stream, &[Field::new("c", b"d")]),
        5 => {
            connection.notify_writable(stream);
            Ok(())
        }
        _ => {
            connection.reset(stream, ErrorCode::CANCEL);
            Ok(())
        }
    };
}

/// An HTTP/1.1 connection whose requests are answered as soon as they are whole.
pub fn http1(input: &[u8]) {
    let now = Duration::from_secs(1);
    let mut connection = http1::Connection::new(10_000, now);
    let mut body = 0;
    for part in input.chunks(100) {
        connection.receive(part, now);
        while let Some(event) = connection.next_event() {
            match event {
                http1::Event::Request(request) => {
                    body = 0;
                    let _ = (request.path(), request.query(), request.get("host"));
                }
                http1::Event::Body(part) => {
                    body += part.len();
                    assert!(body <= 10_000);
                }
                http1::Event::End => {
                    let _ = connection.respond(200, &[], b"ok");
                }
            }
        }
        connection.take_output(Vec::new(), now);
    }
}

/// Responses on one connection, cut at the length that the first byte says.
pub fn responses(input: &[u8]) {
    let Some((&length, stream)) = input.split_first() else {
        return;
    };
    let mut responses = http1::client::Responses::new(10_000);
    let mut body = 0;
    for part in stream.chunks(1 + usize::from(length)).chain([&[][..]]) {
        responses.receive(part);
        loop {
            match responses.next_event() {
                Ok(Some(http1::client::ResponseEvent::Head(head))) => {
                    body = 0;
                    let _ = head.get("content-length");
                }
                Ok(Some(http1::client::ResponseEvent::Body(part))) => {
                    body += part.len();
                    assert!(body <= 10_000);
                }
                Ok(Some(http1::client::ResponseEvent::End)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}
