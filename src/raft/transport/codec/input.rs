//! Bytes of a stream put together to pieces of known length.

use bytes::{Buf, Bytes};

/// Memory taken at once for a piece, before its bytes are there.
const RESERVE_MAX: usize = 64 << 10;

/// Received bytes, and the piece that is being put together.
#[derive(Debug, Default)]
pub(super) struct Input {
    received: Bytes,
    piece: Vec<u8>,
}

impl Input {
    /// Takes bytes. What was received before has to be used up.
    pub fn receive(&mut self, bytes: Bytes) {
        assert!(self.received.is_empty(), "bytes before the last ones were used up");
        self.received = bytes;
    }

    /// Whether a piece has begun.
    pub fn is_within(&self) -> bool {
        !self.piece.is_empty()
    }

    /// The next `length` bytes when they have come. Ask for the same length until they have.
    pub fn piece(&mut self, length: usize) -> Option<Bytes> {
        let take = (length - self.piece.len()).min(self.received.len());
        if self.piece.capacity() - self.piece.len() < take {
            // Doubles what is there, and ends at exactly the length.
            let more = self.piece.len().max(take).max(RESERVE_MAX);
            self.piece.reserve_exact(more.min(length - self.piece.len()));
        }
        self.piece.extend_from_slice(&self.received[..take]);
        self.received.advance(take);
        (self.piece.len() == length).then(|| Bytes::from(std::mem::take(&mut self.piece)))
    }

    /// Bytes of memory taken for the piece.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.piece.capacity()
    }

    /// What was received and is not part of a piece.
    pub fn into_rest(self) -> Bytes {
        self.received
    }

    /// A byte.
    pub fn byte(&mut self) -> Option<u8> {
        (!self.received.is_empty()).then(|| self.received.get_u8())
    }

    /// 8 bytes as a number, the highest first.
    pub fn number(&mut self) -> Option<u64> {
        if self.piece.is_empty() && self.received.len() >= 8 {
            return Some(self.received.get_u64());
        }
        Some(self.piece(8)?.get_u64())
    }
}
