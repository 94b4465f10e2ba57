//! What the clients that mean harm send.

use std::time::Duration;

use crate::support::{
    frames::{self, Raw},
    grpc,
    server::Server,
};

/// The header list of a call.
pub fn call(path: &str) -> Vec<(&[u8], &[u8])> {
    vec![
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.as_bytes()),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
}

/// The frames of a unary call.
pub fn unary(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let mut bytes = frames::header_frames(stream, &call(path), false);
    bytes.extend(frames::frame(
        frames::DATA,
        frames::END_STREAM,
        stream,
        &grpc::frame(message),
    ));
    bytes
}

/// A header block with one field of 3900 bytes, which enters the table.
pub fn large_entry() -> Vec<u8> {
    let mut block = vec![0x40, 1, b'a', 0x7f];
    prost::encoding::encode_varint(3900 - 0x7f, &mut block);
    block.resize(block.len() + 3900, b'x');
    block
}

pub fn connect(server: &Server) -> Raw {
    Raw::connect(&server.address()).expect("a connection")
}

/// Sends and reads nothing, until the server has had enough or all is sent.
pub fn push(raw: &mut Raw, bytes: &[u8]) -> bool {
    let socket = raw.socket();
    socket
        .set_write_timeout(Some(Duration::from_millis(500)))
        .expect("a time-out");
    raw.send(bytes).is_ok()
}
