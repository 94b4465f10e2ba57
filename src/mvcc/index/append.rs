//! A byte block of fixed capacity that one writer fills from the front while any number of readers read what is filled.
//!
//! The writer copies bytes behind the filled part and then stores the new length with release; a reader loads the
//! length with acquire and takes slices below it. Bytes below the length never change, so a slice stays valid as long
//! as the block. Cost: one copy per append, one load per read.

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
};
#[cfg(not(loom))]
use std::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
};

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
    #[cfg(not(loom))]
    pub fn filled(&self) -> &[u8] {
        let length = self.length.load(Ordering::Acquire);
        let start = self.bytes.as_ptr().cast::<u8>();
        // SAFETY: `length` never exceeds the capacity, the bytes below it are initialised (the block is zeroed at
        // creation) and nobody writes to them any more.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// A copy of the filled bytes: loom looks at each.
    #[cfg(loom)]
    pub fn filled(&self) -> Vec<u8> {
        let filled = &self.bytes[..self.length.load(Ordering::Acquire)];
        // SAFETY: as above; loom checks the accesses.
        filled.iter().map(|byte| byte.with(|byte| unsafe { *byte })).collect()
    }

    /// Bytes the block can hold.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }
}

impl AppendWriter {
    /// A new block of `capacity` bytes. Untouched memory of a large block is not resident.
    pub fn new(capacity: usize) -> AppendWriter {
        AppendWriter {
            block: Arc::new(AppendBlock {
                bytes: zeroed(capacity),
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
        // SAFETY: the bytes are above `length`, where only this writer, which is borrowed mutably, reads or writes.
        unsafe { with_bytes(&self.block.bytes[start..start + length], fill) };
        self.block.length.store(start + length, Ordering::Release);
    }
}

#[cfg(not(loom))]
fn zeroed(capacity: usize) -> Box<[UnsafeCell<u8>]> {
    let bytes = vec![0u8; capacity].into_boxed_slice();
    // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, so the allocation is one of `[UnsafeCell<u8>]` as well.
    unsafe { Box::from_raw(Box::into_raw(bytes) as *mut [UnsafeCell<u8>]) }
}

#[cfg(loom)]
fn zeroed(capacity: usize) -> Box<[UnsafeCell<u8>]> {
    (0..capacity).map(|_| UnsafeCell::new(0)).collect()
}

/// Lets `fill` write these bytes.
///
/// # Safety
/// No other access to them may be concurrent with the call.
#[cfg(not(loom))]
unsafe fn with_bytes(bytes: &[UnsafeCell<u8>], fill: impl FnOnce(&mut [u8])) {
    let start = UnsafeCell::raw_get(bytes.as_ptr());
    // SAFETY: in bounds, initialised, and nobody else looks, by the caller's promise. Going through
    // `UnsafeCell::raw_get` keeps the right to write.
    fill(unsafe { std::slice::from_raw_parts_mut(start, bytes.len()) });
}

/// # Safety
/// As the real one; loom reports a race instead.
#[cfg(loom)]
unsafe fn with_bytes(bytes: &[UnsafeCell<u8>], fill: impl FnOnce(&mut [u8])) {
    let mut copy = vec![0; bytes.len()];
    fill(&mut copy);
    for (byte, value) in bytes.iter().zip(copy) {
        // SAFETY: loom checks the access.
        byte.with_mut(|byte| unsafe { *byte = value });
    }
}

#[cfg(test)]
#[cfg(loom)]
mod model {
    use super::*;

    #[test]
    fn readers_see_whole_appends() {
        loom::model(|| {
            let mut writer = AppendWriter::new(3);
            let block = writer.block().clone();
            let reader = loom::thread::spawn(move || {
                for _ in 0..2 {
                    let filled = block.filled();
                    assert_eq!(filled, &[1, 2, 3][..filled.len()]);
                    assert_ne!(filled.len(), 1, "half an append");
                }
            });
            writer.append(2, |bytes| bytes.copy_from_slice(&[1, 2]));
            writer.append(1, |bytes| bytes[0] = 3);
            reader.join().unwrap();
            assert_eq!(writer.block().filled(), [1, 2, 3]);
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
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
