//! A cache of verified pages, bounded in bytes, for one thread.
//!
//! Keyed by page number and generation, so that a page written anew is another entry. A clock hand looks for what was
//! not used since it last came by; the last few used stay whatever their size, so that a reader that loads what it was
//! told is missing always gets on.

use super::node::{Node, Outside};
use super::page::{Corrupt, Kind, PageAddress, checksum};
use crate::limits::pages::CACHE_MIN_ENTRIES;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A verified page or extent, shared by its clones.
#[derive(Clone)]
pub(super) struct Block(Arc<[u8]>);

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
        Ok(Block(bytes.into()))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes of a leaf entry that lie in this extent.
    pub fn outside(&self, outside: &Outside) -> &[u8] {
        &self.0[outside.offset as usize..(outside.offset + outside.length) as usize]
    }
}

type Key = (u32, u64, Kind);

/// Where a page is: what a reader needs beside its place in the round, which a use only writes to.
struct Held {
    block: Block,
    /// Its place in `entries`.
    index: usize,
}

struct Entry {
    key: Key,
    length: usize,
    /// The cache's count of uses when this was last used.
    used_at: u64,
    /// Used since the hand came by.
    referenced: bool,
}

/// Verified pages of one thread.
pub struct PageCache {
    capacity: usize,
    bytes: usize,
    uses: u64,
    hand: usize,
    map: FxHashMap<Key, Held>,
    entries: Vec<Entry>,
}

impl PageCache {
    /// An empty cache that holds up to `capacity` bytes of pages.
    pub fn new(capacity: usize) -> PageCache {
        PageCache {
            capacity,
            bytes: 0,
            uses: 0,
            hand: 0,
            map: FxHashMap::default(),
            entries: Vec::new(),
        }
    }

    /// Bytes of the pages it holds.
    pub fn used_bytes(&self) -> usize {
        self.bytes
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = PageCache::new(self.capacity);
    }

    fn key(address: &PageAddress) -> Key {
        (address.number, address.generation, address.kind)
    }

    /// The page, marked as just used.
    pub(super) fn get(&mut self, address: &PageAddress) -> Option<&Block> {
        let held = self.map.get(&Self::key(address))?;
        self.uses += 1;
        let entry = &mut self.entries[held.index];
        entry.used_at = self.uses;
        entry.referenced = true;
        Some(&held.block)
    }

    /// The page, without a mark.
    pub(super) fn peek(&self, address: &PageAddress) -> Option<&Block> {
        Some(&self.map.get(&Self::key(address))?.block)
    }

    /// Whether the page is there.
    pub(super) fn contains(&self, address: &PageAddress) -> bool {
        self.peek(address).is_some()
    }

    /// Verifies the bytes read from `address` and keeps them.
    pub(super) fn insert(&mut self, address: &PageAddress, bytes: &[u8]) -> Result<(), Corrupt> {
        let block = Block::verified(address, bytes)?;
        let key = Self::key(address);
        if self.map.contains_key(&key) {
            return Ok(());
        }
        let length = block.0.len();
        self.bytes += length;
        let mut evicted = false;
        while self.bytes > self.capacity && self.entries.len() >= CACHE_MIN_ENTRIES {
            self.evict();
            evicted = true;
        }
        self.uses += 1;
        let index = self.entries.len();
        self.map.insert(key, Held { block, index });
        self.entries.push(Entry {
            key,
            length,
            used_at: self.uses,
            // A page of a long scan is used once and goes first.
            referenced: false,
        });
        if evicted {
            self.move_behind_hand();
        }
        Ok(())
    }

    /// Puts the newest entry where the hand is and moves the hand on, so that it has a whole round to be used again.
    fn move_behind_hand(&mut self) {
        let newest = self.entries.len() - 1;
        self.hand = self.hand.min(newest);
        self.entries.swap(self.hand, newest);
        self.note_place(self.hand);
        self.note_place(newest);
        self.hand += 1;
    }

    /// Removes what the hand finds unused. There are more entries than those that were used last.
    fn evict(&mut self) {
        loop {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let uses = self.uses;
            let entry = &mut self.entries[self.hand];
            let recent = uses - entry.used_at < CACHE_MIN_ENTRIES as u64 - 1;
            if recent || entry.referenced {
                entry.referenced = false;
                self.hand += 1;
                continue;
            }
            let removed = self.entries.swap_remove(self.hand);
            self.bytes -= removed.length;
            self.map.remove(&removed.key);
            if self.hand < self.entries.len() {
                self.note_place(self.hand);
            }
            return;
        }
    }

    /// An entry was moved to `index`.
    fn note_place(&mut self, index: usize) {
        let held = self.map.get_mut(&self.entries[index].key);
        held.expect("every entry is in the map").index = index;
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
    fn drops_what_was_not_used_and_stays_in_bounds() {
        let bytes = vec![7; PAGE_BYTES];
        let mut cache = PageCache::new(40 * PAGE_BYTES);
        for page in 2..200 {
            cache.insert(&extent(page, &bytes), &bytes).unwrap();
            assert!(cache.get(&extent(2, &bytes)).is_some(), "used all the time");
            assert!(cache.used_bytes() <= 40 * PAGE_BYTES);
        }
        assert_eq!(cache.used_bytes(), 40 * PAGE_BYTES);
        assert_eq!(
            (2..200).filter(|&page| cache.contains(&extent(page, &bytes))).count(),
            40
        );
        cache.clear();
        assert_eq!(cache.used_bytes(), 0);
    }

    /// What is used comes to stay, however much else is used between its first use and its second.
    #[test]
    fn takes_up_what_is_used_now() {
        let bytes = vec![7; PAGE_BYTES];
        let mut cache = PageCache::new(40 * PAGE_BYTES);
        let mut visit = |page: u32| {
            let address = extent(page, &bytes);
            let hit = cache.get(&address).is_some();
            if !hit {
                cache.insert(&address, &bytes).unwrap();
            }
            hit
        };
        for page in 2..100 {
            visit(page);
        }
        let mut hits = 0;
        for _ in 0..4 {
            hits = 0;
            for page in 200..230 {
                hits += u32::from(visit(page));
                for _ in 0..3 * CACHE_MIN_ENTRIES {
                    visit(300);
                }
            }
        }
        assert_eq!(hits, 30);
    }

    #[test]
    fn keeps_a_path_however_small_it_is() {
        let bytes = vec![7; 4 * PAGE_BYTES];
        let mut cache = PageCache::new(1);
        for page in 0..50 {
            cache.insert(&extent(2 + 4 * page, &bytes), &bytes).unwrap();
        }
        assert!((51 - CACHE_MIN_ENTRIES..50).all(|page| cache.contains(&extent(2 + 4 * page as u32, &bytes))));
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
