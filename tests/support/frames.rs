//! HTTP/2 frames by hand: a blocking client that sends whatever it is told to and writes down what comes back.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use ringd::http::{HeaderList, hpack::Decoder};

/// The bytes that open an HTTP/2 connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Frame types.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
/// Flags.
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
/// The bytes of a frame's head.
const HEAD: usize = 9;
/// The longest payload that may be sent without asking.
const LONGEST_PAYLOAD: usize = 16_384;
/// Bytes of header lists that are read.
const HEADER_LIST: usize = 1 << 20;

/// A frame as it came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block of literals that enter no table.
pub fn header_block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        push_text(&mut block, name);
        push_text(&mut block, value);
    }
    block
}

/// A length of seven bits and more, then the text as it is.
fn push_text(block: &mut Vec<u8>, text: &[u8]) {
    if text.len() < 0x7f {
        block.push(text.len() as u8);
    } else {
        block.push(0x7f);
        prost::encoding::encode_varint((text.len() - 0x7f) as u64, block);
    }
    block.extend_from_slice(text);
}

/// A connection.
pub struct Raw {
    socket: TcpStream,
    received: Vec<u8>,
    decoder: Decoder,
}

impl Raw {
    /// Connects, and sends preface and empty settings.
    pub fn connect(address: &str) -> io::Result<Self> {
        let mut raw = Self::connect_silently(address)?;
        raw.send(PREFACE)?;
        raw.send(&frame(SETTINGS, 0, 0, b""))?;
        Ok(raw)
    }

    /// Connects and sends nothing.
    pub fn connect_silently(address: &str) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            received: Vec::new(),
            decoder: Decoder::new(4096),
        })
    }

    /// The socket beneath.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Sends a header list, in as many frames as it takes.
    pub fn headers(&mut self, stream: u32, fields: &[(&[u8], &[u8])], end: bool) -> io::Result<()> {
        self.send(&header_frames(stream, fields, end))
    }

    /// Sends data, in as many frames as it takes. Windows are not looked at.
    pub fn data(&mut self, stream: u32, bytes: &[u8], end: bool) -> io::Result<()> {
        let pieces: Vec<&[u8]> = match bytes {
            [] => vec![b""],
            bytes => bytes.chunks(LONGEST_PAYLOAD).collect(),
        };
        for (place, piece) in pieces.iter().enumerate() {
            let last = end && place + 1 == pieces.len();
            self.send(&frame(DATA, if last { END_STREAM } else { 0 }, stream, piece))?;
        }
        Ok(())
    }

    /// The next frame; `None` when none comes before `deadline`. An error when the connection ends.
    pub fn next(&mut self, deadline: Instant) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take() {
                return Ok(Some(frame));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let mut piece = [0; 65_536];
            match self.socket.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.received.extend_from_slice(&piece[..length]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self) -> Option<Frame> {
        let head = self.received.get(..HEAD)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes(head[5..HEAD].try_into().expect("four bytes")) & 0x7fff_ffff;
        let payload = self.received.get(HEAD..HEAD + length)?.to_vec();
        self.received.drain(..HEAD + length);
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// The fields of a HEADERS frame that stands alone, without padding or priority, as text.
    pub fn fields(&mut self, frame: &Frame) -> Vec<(String, String)> {
        let mut list = HeaderList::new(HEADER_LIST);
        self.decoder.decode(&frame.payload, &mut list).expect("a header block");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        list.iter().map(|(name, value)| (text(name), text(value))).collect()
    }
}

/// The frames of a header list.
pub fn header_frames(stream: u32, fields: &[(&[u8], &[u8])], end: bool) -> Vec<u8> {
    let block = header_block(fields);
    let mut pieces = block.chunks(LONGEST_PAYLOAD).peekable();
    let mut bytes = Vec::new();
    let mut kind = HEADERS;
    while let Some(piece) = pieces.next() {
        let end_stream = if end && kind == HEADERS { END_STREAM } else { 0 };
        let end_headers = if pieces.peek().is_none() { END_HEADERS } else { 0 };
        bytes.extend(frame(kind, end_stream | end_headers, stream, piece));
        kind = CONTINUATION;
    }
    bytes
}
