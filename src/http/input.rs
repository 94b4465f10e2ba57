//! Cuts received bytes into frames, without copying the frames that lie whole within one chunk.
//!
//! A frame that is cut between chunks is put together in a buffer of its own, so that a slow peer never pins a whole
//! receive buffer of the driver.

use bytes::{Buf, Bytes, BytesMut};

use super::frame::{FrameHeader, HEADER_LENGTH, flag, kind};

/// Received bytes not yet parsed.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// The newest chunk, cut as it is parsed. Empty unless `partial` is empty or completed from it.
    chunk: Bytes,
    /// The beginning of a frame whose end has not come.
    partial: BytesMut,
}

/// A frame is longer than agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameTooLong;

impl Input {
    pub fn push(&mut self, bytes: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = bytes;
        } else {
            // The driver did not let the last chunk be parsed to its end; rare, so it may cost a copy.
            let mut joined = BytesMut::with_capacity(self.chunk.len() + bytes.len());
            joined.extend_from_slice(&self.chunk);
            joined.extend_from_slice(&bytes);
            self.chunk = joined.freeze();
        }
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.chunk.len() + self.partial.len()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The next `length` bytes, if all are there. Used for the preface.
    pub fn take_exact(&mut self, length: usize) -> Option<Bytes> {
        if self.partial.is_empty() && self.chunk.len() >= length {
            return Some(self.chunk.split_to(length));
        }
        self.fill(length);
        (self.partial.len() == length).then(|| self.partial.split().freeze())
    }

    /// The bytes at the front, as far as they lie together.
    pub fn peek(&self) -> &[u8] {
        if self.partial.is_empty() {
            &self.chunk
        } else {
            &self.partial
        }
    }

    /// The next whole frame: header and payload.
    #[inline]
    pub fn next_frame(&mut self, max_length: usize) -> Result<Option<(FrameHeader, Bytes)>, FrameTooLong> {
        if !self.partial.is_empty() {
            return self.next_partial(max_length);
        }
        let Some(start) = self.chunk.first_chunk::<HEADER_LENGTH>() else {
            self.keep_rest(HEADER_LENGTH);
            return Ok(None);
        };
        let header = FrameHeader::parse(start);
        if header.length > max_length {
            return Err(FrameTooLong);
        }
        let end = HEADER_LENGTH + header.length;
        if self.chunk.len() < end {
            self.keep_rest(end);
            return Ok(None);
        }
        let payload = self.chunk.slice(HEADER_LENGTH..end);
        self.chunk.advance(end);
        Ok(Some((header, payload)))
    }

    /// Takes an empty DATA frame that ends `stream`, if it is the very next. Many clients end their requests so;
    /// whoever answers the data before it then need not be told twice.
    #[inline]
    pub fn take_empty_end(&mut self, stream: u32) -> bool {
        let end = FrameHeader {
            length: 0,
            kind: kind::DATA,
            flags: flag::END_STREAM,
            stream,
        };
        let found = self.partial.is_empty() && self.chunk.starts_with(&end.bytes());
        if found {
            self.chunk.advance(HEADER_LENGTH);
        }
        found
    }

    fn next_partial(&mut self, max_length: usize) -> Result<Option<(FrameHeader, Bytes)>, FrameTooLong> {
        self.fill(HEADER_LENGTH);
        let Some(start) = self.partial.first_chunk::<HEADER_LENGTH>() else {
            return Ok(None);
        };
        let header = FrameHeader::parse(start);
        if header.length > max_length {
            return Err(FrameTooLong);
        }
        self.fill(HEADER_LENGTH + header.length);
        if self.partial.len() < HEADER_LENGTH + header.length {
            return Ok(None);
        }
        let mut frame = std::mem::take(&mut self.partial).freeze();
        frame.advance(HEADER_LENGTH);
        Ok(Some((header, frame)))
    }

    /// Moves bytes to `partial` until it holds `length`.
    fn fill(&mut self, length: usize) {
        let missing = length.saturating_sub(self.partial.len()).min(self.chunk.len());
        if missing > 0 {
            self.partial.extend_from_slice(&self.chunk.split_to(missing));
        }
        if self.chunk.is_empty() {
            self.chunk = Bytes::new();
        }
    }

    /// Moves what is left of the chunk to a buffer with room for `whole` bytes, and lets go of the chunk.
    fn keep_rest(&mut self, whole: usize) {
        if !self.chunk.is_empty() {
            self.partial.reserve(whole);
            self.partial.extend_from_slice(&self.chunk);
        }
        self.chunk = Bytes::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(input: &mut Input) -> Vec<(u8, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some((header, payload)) = input.next_frame(16_384).unwrap() {
            found.push((header.kind, payload.to_vec()));
        }
        found
    }

    fn wire(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, payload) in frames {
            FrameHeader {
                length: payload.len(),
                kind: *kind,
                flags: 0,
                stream: 1,
            }
            .write(&mut out);
            out.extend_from_slice(payload);
        }
        out
    }

    #[test]
    fn a_whole_frame_is_not_copied_and_a_cut_one_does_not_pin_its_chunk() {
        let bytes = Bytes::from(wire(&[(0, vec![7; 100]), (1, vec![8; 100])]));
        let mut input = Input::default();
        input.push(bytes.slice(..150));
        let (_, payload) = input.next_frame(16_384).unwrap().unwrap();
        assert_eq!(payload.as_ptr(), bytes[9..].as_ptr());
        drop(payload);
        assert!(input.next_frame(16_384).unwrap().is_none());
        assert!(bytes.is_unique(), "the rest was copied out");
        assert_eq!(input.len(), 41);
    }

    #[test]
    fn a_frame_too_long_is_refused_before_its_payload_comes() {
        let mut input = Input::default();
        input.push(Bytes::from_static(&[0, 0x40, 1, 0, 0, 0, 0, 0, 1]));
        assert_eq!(input.next_frame(16_384), Err(FrameTooLong));
        let mut input = Input::default();
        input.push(Bytes::from_static(&[0, 0x40]));
        assert_eq!(input.next_frame(16_384), Ok(None));
        input.push(Bytes::from_static(&[1, 0, 0, 0, 0, 0, 1]));
        assert_eq!(input.next_frame(16_384), Err(FrameTooLong));
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_they_are_cut(
            sent in proptest::collection::vec((0u8..12, proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
            cuts in proptest::collection::vec(1usize..200, 1..50),
            lazy: bool,
        ) {
            let bytes = Bytes::from(wire(&sent));
            let mut input = Input::default();
            let mut found = Vec::new();
            let mut position = 0;
            for cut in cuts.iter().cycle() {
                let end = (position + cut).min(bytes.len());
                input.push(bytes.slice(position..end));
                position = end;
                if !lazy || position == bytes.len() {
                    found.extend(frames(&mut input));
                }
                if position == bytes.len() {
                    break;
                }
            }
            prop_assert_eq!(found, sent);
            prop_assert_eq!(input.len(), 0);
        }
    }
}
