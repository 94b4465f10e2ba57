//! A byte block of fixed capacity that one writer fills from the front while any number of readers read what is filled.
//!
//! The writer copies bytes behind the filled part and then stores the new length with release; a reader loads the
//! length with acquire and takes slices below it. Bytes below the length never change, so a slice stays valid as long
//! as the block. Cost: one copy per append, one load per read.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The shared side: read only.
pub struct AppendBlock {
    bytes: Box<[UnsafeCell<u8>]>,
    length: AtomicUsize,
}

// SAFETY: bytes at or above `length` are touched by the one `AppendWriter` alone (it can't be cloned); bytes below it
// are only read. The release store of `length` orders the writer's copies before any reader's acquire load that sees
// it.
unsafe impl Sync for AppendBlock {}

/// The writing side of a block. There is one per block.
pub struct AppendWriter {
    block: Arc<AppendBlock>,
}

impl AppendBlock {
    /// The filled bytes.
    pub fn filled(&self) -> &[u8] {
        let length = self.length.load(Ordering::Acquire);
        let start = self.bytes.as_ptr().cast::<u8>();
        // SAFETY: `length` never exceeds the capacity, the bytes below it are initialised (the block is zeroed at
        // creation) and nobody writes to them any more.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Bytes the block can hold.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }
}

impl AppendWriter {
    /// A new block of `capacity` bytes. Untouched memory of a large block is not resident.
    pub fn new(capacity: usize) -> AppendWriter {
        let zeroed = vec![0u8; capacity].into_boxed_slice();
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, so the allocation is one of `[UnsafeCell<u8>]` as well.
        let bytes = unsafe { Box::from_raw(Box::into_raw(zeroed) as *mut [UnsafeCell<u8>]) };
        AppendWriter {
            block: Arc::new(AppendBlock {
                bytes,
                length: AtomicUsize::new(0),
            }),
        }
    }

    /// The shared side.
    pub fn block(&self) -> &Arc<AppendBlock> {
        &self.block
    }

    /// Bytes still free.
    pub fn free(&self) -> usize {
        self.block.capacity() - self.length()
    }

    /// Bytes filled.
    pub fn length(&self) -> usize {
        self.block.length.load(Ordering::Relaxed)
    }

    /// Fills the next `length` bytes by `fill` and makes them readable. Panics when the block has less room.
    pub fn append(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        let start = self.length();
        assert!(
            length <= self.block.capacity() - start,
            "append of {length} bytes to a block with {} free",
            self.free()
        );
        let pointer = self.block.bytes[start..].as_ptr();
        // SAFETY: the range lies inside the allocation and above `length`, where only this writer, which is borrowed
        // mutably, reads or writes. Going through `UnsafeCell::raw_get` keeps the right to write.
        let target = unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(pointer), length) };
        fill(target);
        self.block.length.store(start + length, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_to_the_brim() {
        let mut writer = AppendWriter::new(4);
        writer.append(3, |bytes| bytes.copy_from_slice(b"abc"));
        writer.append(0, |_| {});
        writer.append(1, |bytes| bytes[0] = b'd');
        assert_eq!(writer.block().filled(), b"abcd");
        assert_eq!(writer.free(), 0);
    }

    #[test]
    #[should_panic(expected = "append of 2 bytes")]
    fn refuses_more_than_it_holds() {
        AppendWriter::new(1).append(2, |_| {});
    }

    /// Readers on other threads see only whole appends, and never a byte change.
    #[test]
    fn readers_see_whole_appends() {
        const RECORDS: usize = 20_000;
        let mut writer = AppendWriter::new(RECORDS * 8);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let block = writer.block().clone();
                std::thread::spawn(move || {
                    let mut seen = 0;
                    while seen < RECORDS {
                        let filled = block.filled();
                        assert_eq!(filled.len() % 8, 0);
                        for (number, record) in filled.chunks_exact(8).enumerate().skip(seen) {
                            assert_eq!(u64::from_le_bytes(record.try_into().unwrap()), number as u64);
                        }
                        seen = filled.len() / 8;
                    }
                })
            })
            .collect();
        for number in 0..RECORDS as u64 {
            writer.append(8, |bytes| bytes.copy_from_slice(&number.to_le_bytes()));
        }
        for reader in readers {
            reader.join().unwrap();
        }
    }
}
