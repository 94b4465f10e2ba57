//! One HTTP/2 connection as seen by the clients of this package: a socket, frames in and out, the decoder of header
//! blocks, and the connection's window for what is received. What frames mean is the clients' own.
//!
//! Windows are large and given back as they are used, so that no server ever waits for this client. An error ends the
//! run: a connection is not used after one.

use ringd::http::HeaderList;
use ringd::http::frame::{FrameHeader, HEADER_LENGTH, PREFACE, flag, kind, setting};
use ringd::http::hpack::Decoder;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Bytes of a gRPC message's prefix: not compressed, then the length.
pub const PREFIX_LENGTH: usize = 5;
/// The window a connection starts with, RFC 9113 §6.9.2.
pub const INITIAL_WINDOW: u32 = 65_535;
/// The table of header fields that a connection starts with, RFC 7541 §4.2.
pub const TABLE_BYTES: usize = 4096;
/// Stream numbers end at 2^31; a run that gets near is stopped.
pub const LAST_STREAM: u32 = 0x7fff_fff0;
/// What all streams may receive before the next WINDOW_UPDATE is due.
const CONNECTION_WINDOW: u32 = 1 << 30;
const LIST_BYTES: usize = 16 << 10;

pub struct Wire {
    socket: TcpStream,
    input: Input,
    /// What waits to be sent; frames are appended.
    pub output: Vec<u8>,
    written: usize,
    decoder: Decoder,
    /// The header list decoded last.
    pub list: HeaderList,
    /// Bytes of DATA that were not given back to the connection's window yet.
    received: u32,
}

/// Bytes that came, cut into frames.
#[derive(Default)]
pub struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    /// The next frame that is whole.
    #[inline]
    pub fn next(&mut self) -> Option<(FrameHeader, &[u8])> {
        let rest = &self.bytes[self.start..self.end];
        let (header, behind) = rest.split_first_chunk::<HEADER_LENGTH>()?;
        let header = FrameHeader::parse(header);
        let payload = behind.get(..header.length)?;
        self.start += HEADER_LENGTH + header.length;
        Some((header, payload))
    }
}

impl Wire {
    /// Connects, and queues preface, settings and a large window. The socket blocks.
    pub fn connect(address: SocketAddr, input_bytes: usize, stream_window: u32) -> io::Result<Wire> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let mut wire = Wire {
            socket,
            input: Input {
                bytes: vec![0; input_bytes].into(),
                start: 0,
                end: 0,
            },
            output: Vec::with_capacity(input_bytes),
            written: 0,
            decoder: Decoder::new(TABLE_BYTES),
            list: HeaderList::new(LIST_BYTES),
            received: 0,
        };
        wire.output.extend_from_slice(PREFACE);
        let settings = [(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, stream_window)];
        wire.frame(kind::SETTINGS, 0, 0, settings.len() * 6);
        for (id, value) in settings {
            wire.output.extend_from_slice(&id.to_be_bytes());
            wire.output.extend_from_slice(&value.to_be_bytes());
        }
        wire.grant(0, CONNECTION_WINDOW - INITIAL_WINDOW);
        Ok(wire)
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Starts a frame, whose payload of `length` bytes the caller appends to the output.
    #[inline]
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, length: usize) {
        let header = FrameHeader {
            length,
            kind,
            flags,
            stream,
        };
        header.write(&mut self.output);
    }

    /// Gives bytes back to the window of a stream, or of the connection (0).
    pub fn grant(&mut self, stream: u32, bytes: u32) {
        self.frame(kind::WINDOW_UPDATE, 0, stream, 4);
        self.output.extend_from_slice(&bytes.to_be_bytes());
    }

    /// Counts a DATA frame against the connection's window.
    #[inline]
    pub fn take_from_window(&mut self, length: usize) {
        self.received += length as u32;
        if self.received > CONNECTION_WINDOW / 2 {
            self.grant(0, self.received);
            self.received = 0;
        }
    }

    /// Answers the server's settings.
    pub fn acknowledge_settings(&mut self) {
        self.frame(kind::SETTINGS, flag::ACK, 0, 0);
    }

    /// Answers a PING.
    pub fn answer_ping(&mut self, payload: &[u8]) {
        self.frame(kind::PING, flag::ACK, 0, payload.len());
        self.output.extend_from_slice(payload);
    }

    /// Decodes a header block into `list`.
    pub fn decode(&mut self, block: &[u8]) -> io::Result<()> {
        self.decoder.decode(block, &mut self.list).map_err(io::Error::other)?;
        Ok(())
    }

    /// The header list decoded last, to be shown.
    pub fn fields(&self) -> String {
        let fields = self.list.iter();
        fields
            .map(|(name, value)| format!(" {}: {}", name.escape_ascii(), value.escape_ascii()))
            .collect()
    }

    /// Whether bytes wait for the socket to take them.
    pub fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.has_output() {
            match self.socket.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads once. The input goes back with `put_back` when its frames are handled; `None` if nothing came.
    pub fn read(&mut self) -> io::Result<Option<Input>> {
        let Input { bytes, end, .. } = &mut self.input;
        loop {
            match self.socket.read(&mut bytes[*end..]) {
                Ok(0) => {
                    return Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "the server closed the connection",
                    ));
                }
                Ok(count) => *end += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(Some(std::mem::take(&mut self.input)));
        }
    }

    /// Keeps the part of a frame that is not whole for the next `read`.
    pub fn put_back(&mut self, mut input: Input) {
        input.bytes.copy_within(input.start..input.end, 0);
        input.end -= input.start;
        input.start = 0;
        self.input = input;
    }
}

/// Appends what a gRPC message of `length` bytes begins with.
#[inline]
pub fn write_prefix(out: &mut Vec<u8>, length: usize) {
    out.push(0);
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

/// The length of the message behind a prefix.
#[inline]
pub fn message_length(prefix: &[u8; PREFIX_LENGTH]) -> usize {
    u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize
}
