//! A byte buffer aligned for O_DIRECT.

use std::ops::{Deref, DerefMut};

/// Alignment of address, offset and length that every device ringd supports accepts for O_DIRECT.
pub const ALIGNMENT: usize = 4096;

/// A zeroed, owned, 4096-byte aligned buffer whose length is a multiple of 4096.
pub struct AlignedBuffer {
    /// Over-allocated by one alignment and never grown, so that the aligned part stays where it is.
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    /// A zeroed buffer of `length` bytes rounded up to the alignment.
    pub fn zeroed(length: usize) -> AlignedBuffer {
        let length = length.next_multiple_of(ALIGNMENT);
        let bytes = vec![0u8; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        assert!(start <= ALIGNMENT);
        AlignedBuffer { bytes, start, length }
    }

    /// Bytes this buffer can have without a new allocation.
    pub fn capacity(&self) -> usize {
        (self.bytes.len() - self.start) / ALIGNMENT * ALIGNMENT
    }

    /// The same buffer with a length of `length` rounded up to the alignment, which its capacity allows. What the
    /// bytes are is left open.
    pub fn with_length(mut self, length: usize) -> AlignedBuffer {
        let length = length.next_multiple_of(ALIGNMENT);
        assert!(length <= self.capacity());
        self.length = length;
        self
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> AlignedBuffer {
        let mut copy = AlignedBuffer::zeroed(self.length);
        copy.copy_from_slice(self);
        copy
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "AlignedBuffer({} bytes)", self.length)
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_rounded_up() {
        for length in [1, 4096, 4097, 1 << 20] {
            let buffer = AlignedBuffer::zeroed(length);
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.len(), length.next_multiple_of(ALIGNMENT));
            assert!(buffer.capacity() >= buffer.len());
            let shorter = buffer.with_length(1);
            assert_eq!(shorter.len(), ALIGNMENT);
            assert_eq!(shorter.as_ptr() as usize % ALIGNMENT, 0);
        }
    }
}
