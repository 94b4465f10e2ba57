//! A client that writes frames by hand, well-formed or not, and reads the server's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::http::frame::{self, FrameHeader, HEADER_LENGTH, flag, kind};
use crate::http::hpack::Decoder;
use crate::http::{Config, Connection, ErrorCode, Event, HeaderList};

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A server's connection with a client's hand on it.
pub(crate) struct Client {
    pub server: Connection,
    pub now: Duration,
    pub out: Vec<u8>,
    decoder: Decoder,
}

/// `:method POST`, `:scheme http`, `:path /`, all from the static table.
pub(crate) const POST: [u8; 3] = [0x83, 0x86, 0x84];

pub(crate) fn frame_bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FrameHeader {
        length: payload.len(),
        kind,
        flags,
        stream,
    }
    .write(&mut out);
    out.extend_from_slice(payload);
    out
}

pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LENGTH>() {
        let header = FrameHeader::parse(header);
        let (payload, rest) = rest.split_at(header.length);
        let FrameHeader {
            kind, flags, stream, ..
        } = header;
        found.push(Frame {
            kind,
            flags,
            stream,
            payload: payload.to_vec(),
        });
        bytes = rest;
    }
    assert!(bytes.is_empty(), "output ends inside a frame");
    found
}

impl Client {
    /// A client that has sent nothing yet.
    pub fn silent(config: Config) -> Self {
        let now = Duration::from_secs(1);
        let server = Connection::new(Arc::new(config), now);
        Self {
            server,
            now,
            out: Vec::new(),
            decoder: Decoder::new(4096),
        }
    }

    /// A client past the handshake.
    pub fn with(config: Config) -> Self {
        let mut client = Self::silent(config);
        client.out.extend_from_slice(frame::PREFACE);
        client.frame(kind::SETTINGS, 0, 0, &[]);
        assert_eq!(client.events(), []);
        let kinds: Vec<_> = client.read().iter().map(|frame| (frame.kind, frame.flags)).collect();
        assert!(kinds.ends_with(&[(kind::SETTINGS, flag::ACK)]), "{kinds:?}");
        client
    }

    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> &mut Self {
        self.out.extend_from_slice(&frame_bytes(kind, flags, stream, payload));
        self
    }

    /// A POST to `/`, open for data or whole.
    pub fn post(&mut self, stream: u32, end: bool) -> &mut Self {
        let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
        self.frame(kind::HEADERS, flags, stream, &POST)
    }

    pub fn data(&mut self, stream: u32, payload: &[u8], end: bool) -> &mut Self {
        self.frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, payload)
    }

    pub fn settings(&mut self, settings: &[(u16, u32)]) -> &mut Self {
        frame::write_settings(&mut self.out, settings);
        self
    }

    pub fn window_update(&mut self, stream: u32, increment: u32) -> &mut Self {
        self.frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
    }

    /// Hands everything written so far to the server and takes its events.
    pub fn events(&mut self) -> Vec<Event> {
        let bytes = Bytes::from(std::mem::take(&mut self.out));
        self.server.receive(bytes, self.now);
        std::iter::from_fn(|| self.server.next_event()).collect()
    }

    /// The one event expected.
    pub fn event(&mut self) -> Event {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "{events:?}, closed: {:?}", self.server.closed());
        events.remove(0)
    }

    /// Opens a stream with a whole request and returns its key.
    pub fn open(&mut self, stream: u32, end: bool) -> crate::http::StreamKey {
        match self.post(stream, end).event() {
            Event::Request { stream, .. } => stream,
            other => panic!("{other:?}"),
        }
    }

    /// The frames that the server sends now.
    pub fn read(&mut self) -> Vec<Frame> {
        frames(&self.server.take_output(Vec::new(), self.now))
    }

    /// Bytes of DATA per stream that the server sends now, in order of turns.
    pub fn read_data(&mut self) -> Vec<(u32, usize)> {
        let data = self.read().into_iter().filter(|frame| frame.kind == kind::DATA);
        data.map(|frame| (frame.stream, frame.payload.len())).collect()
    }

    /// Decodes a HEADERS frame of the server, `:status` aside.
    pub fn headers(&mut self, frame: &Frame) -> Vec<(String, String)> {
        assert_eq!(frame.kind, kind::HEADERS);
        let mut list = HeaderList::new(1 << 20);
        self.decoder.forget();
        self.decoder.decode(&frame.payload, &mut list).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        list.iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    /// Asserts that the server ended the connection, and how.
    #[track_caller]
    pub fn assert_goaway(&mut self, code: ErrorCode) {
        self.events();
        let frames = self.read();
        let last = frames.last().expect("a GOAWAY frame");
        assert_eq!(last.kind, kind::GOAWAY, "{frames:?}");
        let found = ErrorCode(frame::read_u32(&last.payload[4..]));
        assert_eq!(found, code, "{}", String::from_utf8_lossy(&last.payload[8..]));
        assert!(self.server.closed().is_some());
        assert!(!self.server.wants_read());
    }

    /// Asserts that the server reset a stream, and how, and that the connection goes on.
    #[track_caller]
    pub fn assert_reset(&mut self, stream: u32, code: ErrorCode) {
        self.events();
        assert_eq!(self.server.closed(), None);
        let frames = self.read();
        let found = frames
            .iter()
            .find(|frame| frame.kind == kind::RST_STREAM && frame.stream == stream);
        let found = found.unwrap_or_else(|| panic!("no RST_STREAM in {frames:?}"));
        assert_eq!(ErrorCode(frame::read_u32(&found.payload)), code);
    }
}
