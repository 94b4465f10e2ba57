//! Bodies of HTTP/1.1 requests: of known length, or in chunks (RFC 9112 §7.1).

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::HTTP1_CHUNK_LINE_BYTES;

/// What is left of a body.
#[derive(Debug)]
pub(super) struct Body {
    state: State,
    /// Bytes handed on so far.
    taken: u64,
    /// Bytes of trailer lines so far.
    trailer_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes, then the end.
    Sized(u64),
    /// A chunk's size line comes.
    ChunkSize,
    /// So many bytes of a chunk, then its line break.
    Chunk(u64),
    /// The line break behind a chunk comes.
    ChunkEnd,
    /// Trailer lines come, the last one empty.
    Trailers,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    More,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    TooLarge,
    Malformed(&'static str),
}

impl Body {
    pub fn sized(length: u64) -> Self {
        Self {
            state: State::Sized(length),
            taken: 0,
            trailer_bytes: 0,
        }
    }

    pub fn chunked() -> Self {
        Self {
            state: State::ChunkSize,
            taken: 0,
            trailer_bytes: 0,
        }
    }

    /// Whether nothing is to come for certain.
    pub fn is_empty(&self) -> bool {
        self.state == State::Sized(0)
    }

    /// The length as far as it is known ahead.
    pub fn announced(&self) -> u64 {
        if let State::Sized(length) = self.state {
            length
        } else {
            0
        }
    }

    /// Takes the next piece off `input`; `max` bounds the sum of all.
    pub fn next(&mut self, input: &mut BytesMut, max: u64) -> Result<Piece, BodyError> {
        loop {
            match self.state {
                State::Sized(0) => return Ok(Piece::End),
                State::Sized(left) => {
                    let Some(data) = self.take(input, left) else {
                        return Ok(Piece::More);
                    };
                    self.state = State::Sized(left - data.len() as u64);
                    return Ok(Piece::Data(data));
                }
                State::Chunk(left) => {
                    let Some(data) = self.take(input, left) else {
                        return Ok(Piece::More);
                    };
                    let left = left - data.len() as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                    return Ok(Piece::Data(data));
                }
                State::ChunkSize => {
                    let Some(line) = take_line(input)? else {
                        return Ok(Piece::More);
                    };
                    let size = chunk_size(&line)?;
                    if size > max.saturating_sub(self.taken) {
                        return Err(BodyError::TooLarge);
                    }
                    self.state = if size == 0 { State::Trailers } else { State::Chunk(size) };
                }
                State::ChunkEnd => {
                    let Some(line) = take_line(input)? else {
                        return Ok(Piece::More);
                    };
                    if !line.is_empty() {
                        return Err(BodyError::Malformed("no line break behind a chunk"));
                    }
                    self.state = State::ChunkSize;
                }
                State::Trailers => {
                    let Some(line) = take_line(input)? else {
                        return Ok(Piece::More);
                    };
                    if line.is_empty() {
                        self.state = State::Sized(0);
                        continue;
                    }
                    self.trailer_bytes += line.len();
                    if self.trailer_bytes > HTTP1_CHUNK_LINE_BYTES {
                        return Err(BodyError::Malformed("trailers too long"));
                    }
                }
            }
        }
    }

    fn take(&mut self, input: &mut BytesMut, left: u64) -> Option<Bytes> {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        if length == 0 {
            return None;
        }
        self.taken += length as u64;
        Some(input.split_to(length).freeze())
    }
}

/// Takes a line that ends in CR LF, without its end.
fn take_line(input: &mut BytesMut) -> Result<Option<Bytes>, BodyError> {
    let window = &input[..input.len().min(HTTP1_CHUNK_LINE_BYTES)];
    match memchr::memchr(b'\n', window) {
        Some(0) => Err(BodyError::Malformed("line ends without CR")),
        Some(end) if input[end - 1] != b'\r' => Err(BodyError::Malformed("line ends without CR")),
        Some(end) => {
            let line = input.split_to(end - 1).freeze();
            input.advance(2);
            Ok(Some(line))
        }
        None if input.len() >= HTTP1_CHUNK_LINE_BYTES => Err(BodyError::Malformed("line too long")),
        None => Ok(None),
    }
}

/// The size of a chunk; extensions behind a semicolon are ignored.
fn chunk_size(line: &[u8]) -> Result<u64, BodyError> {
    let digits = line
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii_end();
    if digits.is_empty() || digits.len() > 15 {
        return Err(BodyError::Malformed("malformed chunk size"));
    }
    let mut size = 0;
    for digit in digits {
        let value = (*digit as char)
            .to_digit(16)
            .ok_or(BodyError::Malformed("malformed chunk size"))?;
        size = size << 4 | u64::from(value);
    }
    Ok(size)
}
