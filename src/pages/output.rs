//! Where a checkpoint puts its pages: allocation, buffers, and the writes to be submitted.
//!
//! Nodes and extents go to two streams of consecutive pages, so that leaves lie together, in key order, and are written
//! with few operations.

use super::free::{FreeSpace, Freed, Journal, LimitReached};
use super::page::{ExtentRef, pages_for};
use crate::io::buffer::AlignedBuffer;
use crate::limits::pages::{CHUNK_PAGES, PAGE_BYTES, WRITE_BYTES};
use std::collections::VecDeque;

/// Consecutive pages being filled.
struct Chunk {
    start: u32,
    length: u32,
    used: u32,
    buffer: AlignedBuffer,
}

/// A write that waits to be submitted.
pub(super) struct QueuedWrite {
    pub offset: u64,
    pub buffer: AlignedBuffer,
}

/// The pages of one checkpoint.
pub(super) struct Output {
    pub generation: u64,
    pub space: FreeSpace,
    pub journal: Journal,
    /// Pages in use before and no longer.
    pub freed: Vec<Freed>,
    /// Pages written so far.
    pub pages_written: u32,
    /// Pages from here on are moved down while the budget lasts.
    pub relocate_from: u32,
    pub relocate_budget: u32,
    nodes: Option<Chunk>,
    extents: Option<Chunk>,
    queue: VecDeque<QueuedWrite>,
    queued_bytes: usize,
}

impl Output {
    pub fn new(generation: u64, space: FreeSpace, journal: Journal) -> Output {
        Output {
            generation,
            space,
            journal,
            freed: Vec::new(),
            pages_written: 0,
            relocate_from: u32::MAX,
            relocate_budget: 0,
            nodes: None,
            extents: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
        }
    }

    /// Whether something with this highest page is to be moved.
    pub fn wants_move(&self, highest: u32) -> bool {
        self.relocate_budget > 0 && highest >= self.relocate_from
    }

    /// Notes that pages of an older commit are no longer in use.
    pub fn free(&mut self, start: u32, length: u32, born: u64) {
        assert!(born < self.generation, "page {start} is of this commit");
        self.freed.push(Freed { start, length, born });
        if start + length > self.relocate_from {
            self.relocate_budget = self.relocate_budget.saturating_sub(length);
        }
    }

    /// Lets `fill` write one page into a zeroed buffer, given its number; returns the number and what `fill` returned.
    pub fn node(&mut self, fill: impl FnOnce(u32, &mut [u8]) -> u32) -> Result<(u32, u32), LimitReached> {
        if self.nodes.as_ref().is_none_or(|chunk| chunk.used == chunk.length) {
            let full = self.nodes.take();
            self.finish_chunk(full);
            self.nodes = Some(self.chunk(CHUNK_PAGES)?);
        }
        let chunk = self.nodes.as_mut().expect("just made");
        let (page, bytes) = chunk.next(1);
        let checksum = fill(page, bytes);
        self.pages_written += 1;
        Ok((page, checksum))
    }

    /// Writes an extent of these bytes, padded with zeros.
    pub fn extent(&mut self, bytes: &[u8]) -> Result<ExtentRef, LimitReached> {
        assert!(!bytes.is_empty());
        let pages = pages_for(bytes.len());
        self.pages_written += pages;
        if pages > CHUNK_PAGES {
            return self.long_extent(bytes, pages);
        }
        if self
            .extents
            .as_ref()
            .is_none_or(|chunk| chunk.length - chunk.used < pages)
        {
            let full = self.extents.take();
            self.finish_chunk(full);
            let mut chunk = self.chunk(CHUNK_PAGES)?;
            if chunk.length < pages {
                self.space.give_back(&mut self.journal, chunk.start, chunk.length);
                let start = self.space.take(&mut self.journal, pages)?;
                chunk = Chunk::new(start, pages);
            }
            self.extents = Some(chunk);
        }
        let chunk = self.extents.as_mut().expect("just made");
        let (page, buffer) = chunk.next(pages);
        buffer[..bytes.len()].copy_from_slice(bytes);
        let checksum = crc32c::crc32c(buffer);
        Ok(ExtentRef {
            page,
            pages,
            generation: self.generation,
            checksum,
        })
    }

    fn long_extent(&mut self, bytes: &[u8], pages: u32) -> Result<ExtentRef, LimitReached> {
        let page = self.space.take(&mut self.journal, pages)?;
        Ok(self.enqueue_extent(page, pages, bytes))
    }

    /// Frees the old free list and writes the one of this commit; its extent and length in bytes. Nothing can be
    /// allocated afterwards.
    pub fn free_list(&mut self, old: Option<ExtentRef>) -> Result<(ExtentRef, u32), LimitReached> {
        self.flush();
        if let Some(old) = old {
            self.free(old.page, old.pages, old.generation);
        }
        // Taking its own pages out of a run changes one gap of the list.
        let pages = pages_for(self.space.encode(&self.freed).len() + 64);
        let page = self.space.take(&mut self.journal, pages)?;
        let list = self.space.encode(&self.freed);
        assert!(pages_for(list.len()) <= pages);
        self.pages_written += pages;
        Ok((self.enqueue_extent(page, pages, &list), list.len() as u32))
    }

    fn enqueue_extent(&mut self, page: u32, pages: u32, bytes: &[u8]) -> ExtentRef {
        let mut checksum = 0;
        let mut offset = u64::from(page) * PAGE_BYTES as u64;
        let mut at = 0;
        while at < pages as usize * PAGE_BYTES {
            let length = (pages as usize * PAGE_BYTES - at).min(WRITE_BYTES);
            let mut buffer = AlignedBuffer::zeroed(length);
            let part = &bytes[at.min(bytes.len())..(at + length).min(bytes.len())];
            buffer[..part.len()].copy_from_slice(part);
            checksum = crc32c::crc32c_append(checksum, &buffer);
            self.enqueue(offset, buffer);
            offset += length as u64;
            at += length;
        }
        ExtentRef {
            page,
            pages,
            generation: self.generation,
            checksum,
        }
    }

    fn chunk(&mut self, pages: u32) -> Result<Chunk, LimitReached> {
        let (start, length) = self.space.take_some(&mut self.journal, pages)?;
        Ok(Chunk::new(start, length))
    }

    fn finish_chunk(&mut self, chunk: Option<Chunk>) {
        let Some(Chunk {
            start,
            length,
            used,
            buffer,
        }) = chunk
        else {
            return;
        };
        if used < length {
            self.space.give_back(&mut self.journal, start + used, length - used);
        }
        if used == 0 {
            return;
        }
        let bytes = used as usize * PAGE_BYTES;
        let buffer = if used == length {
            buffer
        } else {
            let mut shorter = AlignedBuffer::zeroed(bytes);
            shorter.copy_from_slice(&buffer[..bytes]);
            shorter
        };
        self.enqueue(u64::from(start) * PAGE_BYTES as u64, buffer);
    }

    fn enqueue(&mut self, offset: u64, buffer: AlignedBuffer) {
        self.queued_bytes += buffer.len();
        self.queue.push_back(QueuedWrite { offset, buffer });
    }

    /// Ends both streams: what is left of them is free again.
    pub fn flush(&mut self) {
        let (nodes, extents) = (self.nodes.take(), self.extents.take());
        self.finish_chunk(nodes);
        self.finish_chunk(extents);
    }

    /// The next write to be submitted.
    pub fn pop(&mut self) -> Option<QueuedWrite> {
        let write = self.queue.pop_front()?;
        self.queued_bytes -= write.buffer.len();
        Some(write)
    }

    /// Bytes of the writes not yet popped.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }
}

impl Chunk {
    fn new(start: u32, length: u32) -> Chunk {
        let buffer = AlignedBuffer::zeroed(length as usize * PAGE_BYTES);
        Chunk {
            start,
            length,
            used: 0,
            buffer,
        }
    }

    fn next(&mut self, pages: u32) -> (u32, &mut [u8]) {
        assert!(self.used + pages <= self.length);
        let (from, page) = (self.used as usize * PAGE_BYTES, self.start + self.used);
        self.used += pages;
        (page, &mut self.buffer[from..from + pages as usize * PAGE_BYTES])
    }
}
