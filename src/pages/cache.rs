//! A cache of verified pages, bounded in bytes, for one thread.
//!
//! Keyed by page number and generation, so that a page written anew is another entry. The least recently used goes
//! first; the last few used stay whatever their size, so that a reader that loads what it was told is missing always
//! gets on.

use super::node::{Node, Outside};
use super::page::{Corrupt, Kind, PageAddress, checksum};
use crate::limits::pages::CACHE_MIN_ENTRIES;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A verified page or extent.
pub(super) struct Block {
    bytes: Box<[u8]>,
}

impl Block {
    /// Copies and verifies what was read from `address`.
    pub fn verified(address: &PageAddress, bytes: &[u8]) -> Result<Block, Corrupt> {
        if bytes.len() < address.length() {
            let reason = format!("{} bytes of {} are there", bytes.len(), address.length());
            return Err(address.corrupt(reason));
        }
        let bytes = &bytes[..address.length()];
        match address.kind {
            Kind::Node { .. } => Node::check(address, bytes).map_err(|reason| address.corrupt(reason))?,
            Kind::Extent => {
                let computed = checksum(address.kind, bytes);
                if computed != address.checksum && !cfg!(fuzzing) {
                    let expected = address.checksum;
                    let reason =
                        format!("checksum of values: computed {computed:#010x}, its leaf says {expected:#010x}");
                    return Err(address.corrupt(reason));
                }
            }
        }
        Ok(Block { bytes: bytes.into() })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of a leaf entry that lie in this extent.
    pub fn outside(&self, outside: &Outside) -> &[u8] {
        &self.bytes[outside.offset as usize..(outside.offset + outside.length) as usize]
    }
}

type Key = (u32, u64, Kind);

const NONE: usize = usize::MAX;

struct Entry {
    key: Key,
    block: Arc<Block>,
    newer: usize,
    older: usize,
}

/// Verified pages of one thread.
pub struct PageCache {
    capacity: usize,
    used: usize,
    map: FxHashMap<Key, usize>,
    entries: Vec<Entry>,
    newest: usize,
    oldest: usize,
}

impl PageCache {
    /// An empty cache that holds up to `capacity` bytes of pages.
    pub fn new(capacity: usize) -> PageCache {
        PageCache {
            capacity,
            used: 0,
            map: FxHashMap::default(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Bytes of the pages it holds.
    pub fn used_bytes(&self) -> usize {
        self.used
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = PageCache::new(self.capacity);
    }

    fn key(address: &PageAddress) -> Key {
        (address.number, address.generation, address.kind)
    }

    /// The page, marked as just used.
    pub(super) fn get(&mut self, address: &PageAddress) -> Option<Arc<Block>> {
        let index = *self.map.get(&Self::key(address))?;
        if self.newest != index {
            self.unlink(index);
            self.link_newest(index);
        }
        Some(Arc::clone(&self.entries[index].block))
    }

    /// Whether the page is there.
    pub(super) fn contains(&self, address: &PageAddress) -> bool {
        self.map.contains_key(&Self::key(address))
    }

    /// Verifies the bytes read from `address` and keeps them.
    pub(super) fn insert(&mut self, address: &PageAddress, bytes: &[u8]) -> Result<(), Corrupt> {
        let block = Block::verified(address, bytes)?;
        let key = Self::key(address);
        if self.map.contains_key(&key) {
            return Ok(());
        }
        self.used += block.bytes.len();
        while self.used > self.capacity && self.entries.len() >= CACHE_MIN_ENTRIES {
            self.remove(self.oldest);
        }
        let index = self.entries.len();
        self.entries.push(Entry {
            key,
            block: Arc::new(block),
            newer: NONE,
            older: NONE,
        });
        self.map.insert(key, index);
        self.link_newest(index);
        Ok(())
    }

    fn link_newest(&mut self, index: usize) {
        let older = self.newest;
        self.entries[index].older = older;
        self.entries[index].newer = NONE;
        if older == NONE {
            self.oldest = index;
        } else {
            self.entries[older].newer = index;
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: usize) {
        let (newer, older) = (self.entries[index].newer, self.entries[index].older);
        if newer == NONE {
            self.newest = older;
        } else {
            self.entries[newer].older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.entries[older].newer = newer;
        }
    }

    fn remove(&mut self, index: usize) {
        self.unlink(index);
        let removed = self.entries.swap_remove(index);
        self.used -= removed.block.bytes.len();
        self.map.remove(&removed.key);
        let moved_from = self.entries.len();
        if index == moved_from {
            return;
        }
        let (key, newer, older) = {
            let moved = &self.entries[index];
            (moved.key, moved.newer, moved.older)
        };
        self.map.insert(key, index);
        if newer == NONE {
            self.newest = index;
        } else {
            self.entries[newer].older = index;
        }
        if older == NONE {
            self.oldest = index;
        } else {
            self.entries[older].newer = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::ExtentRef;
    use super::*;
    use crate::limits::pages::PAGE_BYTES;

    fn extent(page: u32, bytes: &[u8]) -> PageAddress {
        let pages = (bytes.len() / PAGE_BYTES) as u32;
        ExtentRef {
            page,
            pages,
            generation: 1,
            checksum: checksum(Kind::Extent, bytes),
        }
        .address()
    }

    #[test]
    fn drops_the_least_recently_used_and_stays_in_bounds() {
        let bytes = vec![7; PAGE_BYTES];
        let mut cache = PageCache::new(20 * PAGE_BYTES);
        for page in 2..22 {
            cache.insert(&extent(page, &bytes), &bytes).unwrap();
        }
        assert!(cache.get(&extent(2, &bytes)).is_some());
        for page in 22..30 {
            cache.insert(&extent(page, &bytes), &bytes).unwrap();
            assert!(cache.used_bytes() <= 20 * PAGE_BYTES);
        }
        assert!(cache.contains(&extent(2, &bytes)), "was used");
        assert!((3..11).all(|page| !cache.contains(&extent(page, &bytes))));
        assert!((11..30).all(|page| cache.contains(&extent(page, &bytes))));
    }

    #[test]
    fn keeps_a_path_however_small_it_is() {
        let bytes = vec![7; 4 * PAGE_BYTES];
        let mut cache = PageCache::new(1);
        for page in 0..50 {
            cache.insert(&extent(2 + 4 * page, &bytes), &bytes).unwrap();
        }
        assert!((50 - CACHE_MIN_ENTRIES..50).all(|page| cache.contains(&extent(2 + 4 * page as u32, &bytes))));
        assert_eq!(cache.used_bytes(), CACHE_MIN_ENTRIES * bytes.len());
    }

    #[test]
    fn damage_is_named() {
        let mut bytes = vec![7; PAGE_BYTES];
        let address = extent(3, &bytes);
        bytes[100] ^= 1;
        let corrupt = PageCache::new(0).insert(&address, &bytes).unwrap_err();
        assert_eq!((corrupt.page, corrupt.offset), (3, 3 * PAGE_BYTES as u64));
        assert!(PageCache::new(0).insert(&address, &bytes[..100]).is_err());
    }
}
