//! Entries for fuzzers: arbitrary bytes through every parser of this room. None may panic, and none may hold memory out
//! of proportion to its bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::message::MessageReader;
use super::{Code, Config, Connection, Event, Status, decode_binary, decode_message, parse_timeout, quote};
use crate::http::frame::{self, kind};
use crate::http::{self, Field};
use crate::limits::GRPC_ASSEMBLY_BYTES;

/// The small parsers: timeouts, metadata, status messages, quoting.
pub fn values(input: &[u8]) {
    let _ = parse_timeout(input);
    let _ = decode_binary(input);
    let _ = decode_message(input);
    let _ = quote(input);
}

/// A stream of messages, cut at every byte that the first byte divides.
pub fn messages(input: &[u8]) {
    let Some((cut, rest)) = input.split_first() else { return };
    let mut reader = MessageReader::default();
    for part in rest.chunks(usize::from(*cut).max(1)) {
        let mut data = Bytes::copy_from_slice(part);
        loop {
            match reader.next(&mut data, 1_000, b"gzip") {
                Ok(Some(message)) => assert!(message.len() <= 1_000),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(data.is_empty() && reader.held() <= 1_000);
    }
}

/// A connection that opens a few calls, each with a header field of the input's, and then takes the input as frames.
pub fn connection(input: &[u8]) {
    let (head, wire) = input.split_at(input.len() / 4);
    let now = Duration::from_secs(1);
    let http = http::Connection::new(Arc::new(http::Config::default()), now);
    let plain_http = input.len().is_multiple_of(2);
    let mut connection = Connection::new(
        http,
        Arc::new(Config {
            max_message: 1_000,
            plain_http,
        }),
    );
    let mut bytes = frame::PREFACE.to_vec();
    frame::write_settings(&mut bytes, &[]);
    for (index, name) in ["grpc-timeout", "grpc-encoding", "content-type", "a-bin", ":path"]
        .iter()
        .enumerate()
    {
        write_call(&mut bytes, 2 * index as u32 + 1, name, head);
    }
    bytes.extend_from_slice(wire);
    for part in bytes.chunks(61) {
        connection.receive(Bytes::copy_from_slice(part), now);
        while let Some(event) = connection.next_event() {
            answer(&mut connection, event);
        }
        assert!(connection.buffered_bytes() <= GRPC_ASSEMBLY_BYTES);
        connection.take_output(Vec::new(), now);
    }
}

fn write_call(out: &mut Vec<u8>, stream: u32, name: &str, value: &[u8]) {
    let path = Field::new(":path", b"/a.B/C");
    let fields = [
        Field::new(":method", b"POST"),
        Field::new(":scheme", b"http"),
        if name == ":path" { Field::new(name, value) } else { path },
        Field::new("content-type", b"application/grpc"),
        if name == ":path" {
            Field::new("x", b"y")
        } else {
            Field::new(name, value)
        },
    ];
    let mut block = Vec::new();
    http::hpack::Encoder::default().encode_trailers(&fields, &mut block);
    let length = block.len();
    if length <= 16_384 {
        frame::FrameHeader {
            length,
            kind: kind::HEADERS,
            flags: frame::flag::END_HEADERS,
            stream,
        }
        .write(out);
        out.extend_from_slice(&block);
    }
}

fn answer(connection: &mut Connection, event: Event) {
    // What is out of order is refused, which is part of what is tried.
    let _ = match event {
        Event::Started { call, .. } => {
            let request = connection.request();
            let _ = (request.method(), request.authority(), request.metadata().iter().count());
            connection.set_paused(call, true);
            Ok(())
        }
        Event::Message { call, message, last } => {
            connection.set_paused(call, false);
            let echoed = connection.send_message(call, message);
            if last {
                connection.finish(call, &Status::OK)
            } else {
                echoed
            }
        }
        Event::CutOff { call } => connection.finish(call, &Status::cut_off_unary()),
        Event::HalfClosed { call } => connection.finish(call, &Status::new(Code::Aborted, "half\u{1f}")),
        Event::Cancelled { call } => {
            assert!(!connection.is_open(call));
            Ok(())
        }
        Event::Writable { .. } => Ok(()),
        Event::Http(http::Event::Request { stream, .. }) => connection.http().respond(stream, 404, &[], true),
        Event::Http(_) => Ok(()),
    };
}
