//! A tree node: one page of sorted entries. See `docs/pages.md` for the bytes.
//!
//! A node is checked as a whole when it is loaded (`Node::check`); after that its accessors rely on the structure.

use super::codec::{take_u16, take_u32, take_u64};
use super::page::{EXTENT_REF_BYTES, ExtentRef, Kind, NODE_REF_BYTES, NodeRef, PageAddress, checksum};
use crate::limits::pages::{HEIGHT_MAX, KEY_MAX_BYTES, PAGE_BYTES};
use std::cmp::Ordering;
use std::ops::Range;

/// Bytes before the slots.
pub(super) const HEADER_BYTES: usize = 32;
/// Bytes for slots and entries.
pub(super) const CAPACITY: usize = PAGE_BYTES - HEADER_BYTES;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = 2;
/// Bytes of a leaf entry's reference to bytes in an extent: the extent, offset, length.
pub(super) const OUTSIDE_BYTES: usize = EXTENT_REF_BYTES + 8;
/// Mark in the head's length of an entry with bytes in an extent.
const OUTSIDE: u16 = 0x8000;

/// Bytes of a leaf entry that lie in an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outside {
    pub extent: ExtentRef,
    pub offset: u32,
    pub length: u32,
}

impl Outside {
    pub fn encode(&self) -> [u8; OUTSIDE_BYTES] {
        let mut out = [0; OUTSIDE_BYTES];
        out[..EXTENT_REF_BYTES].copy_from_slice(&self.extent.encode());
        out[EXTENT_REF_BYTES..EXTENT_REF_BYTES + 4].copy_from_slice(&self.offset.to_le_bytes());
        out[EXTENT_REF_BYTES + 4..].copy_from_slice(&self.length.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Outside> {
        let extent = ExtentRef::decode(bytes.get(..EXTENT_REF_BYTES)?)?;
        let mut rest = &bytes[EXTENT_REF_BYTES..];
        let (offset, length) = (take_u32(&mut rest)?, take_u32(&mut rest)?);
        let end = u64::from(offset) + u64::from(length);
        (end <= u64::from(extent.pages) * PAGE_BYTES as u64).then_some(Outside { extent, offset, length })
    }
}

/// An entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafEntry<'a> {
    pub key: &'a [u8],
    pub head: &'a [u8],
    pub outside: Option<Outside>,
    /// The entry as it lies in the page.
    pub bytes: &'a [u8],
}

/// Appends a leaf entry; its `Outside` part, when it has one, are the last `OUTSIDE_BYTES`.
pub(super) fn encode_leaf_entry(out: &mut Vec<u8>, key: &[u8], head: &[u8], outside: Option<&Outside>) {
    assert!(key.len() <= KEY_MAX_BYTES && head.len() < usize::from(OUTSIDE));
    let mark = if outside.is_some() { OUTSIDE } else { 0 };
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(&(head.len() as u16 | mark).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(head);
    if let Some(outside) = outside {
        out.extend_from_slice(&outside.encode());
    }
}

/// Reads the leaf entry at the front of `bytes`; `None` when it does not fit.
pub(super) fn decode_leaf_entry(bytes: &[u8]) -> Option<LeafEntry<'_>> {
    let mut lengths = bytes;
    let key_length = usize::from(take_u16(&mut lengths)?);
    let head_field = take_u16(&mut lengths)?;
    let key_end = 4 + key_length;
    let head_end = key_end + usize::from(head_field & !OUTSIDE);
    let (outside, end) = if head_field & OUTSIDE == 0 {
        (None, head_end)
    } else {
        let end = head_end + OUTSIDE_BYTES;
        (Some(Outside::decode(bytes.get(head_end..end)?)?), end)
    };
    Some(LeafEntry {
        key: bytes.get(4..key_end)?,
        head: bytes.get(key_end..head_end)?,
        outside,
        bytes: bytes.get(..end)?,
    })
}

/// Appends an entry of an inner node.
pub(super) fn encode_inner_entry(out: &mut Vec<u8>, key: &[u8], child: &NodeRef) {
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&child.encode());
}

fn decode_inner_entry(bytes: &[u8]) -> Option<(&[u8], NodeRef, usize)> {
    let key_length = usize::from(take_u16(&mut &bytes[..])?);
    let key_end = 2 + key_length;
    let end = key_end + NODE_REF_BYTES;
    let child = NodeRef::decode(bytes.get(key_end..end)?)?;
    Some((bytes.get(2..key_end)?, child, end))
}

/// A loaded node, borrowed.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    bytes: &'a [u8],
}

impl<'a> Node<'a> {
    /// A node over bytes that `check` accepted.
    pub fn new(bytes: &'a [u8]) -> Node<'a> {
        debug_assert_eq!(bytes.len(), PAGE_BYTES);
        Node { bytes }
    }

    /// Entries; at least one.
    pub fn count(&self) -> usize {
        usize::from(self.u16_at(24))
    }

    fn used(&self) -> usize {
        usize::from(self.u16_at(26))
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn entry_bytes(&self, index: usize) -> &'a [u8] {
        let start = usize::from(self.u16_at(HEADER_BYTES + SLOT_BYTES * index));
        let end = if index + 1 == self.count() {
            self.used()
        } else {
            usize::from(self.u16_at(HEADER_BYTES + SLOT_BYTES * (index + 1)))
        };
        &self.bytes[start..end]
    }

    /// The entry of a leaf.
    pub fn leaf_entry(&self, index: usize) -> LeafEntry<'a> {
        decode_leaf_entry(self.entry_bytes(index)).expect("a checked leaf")
    }

    /// Separator and reference of a child. The first child's separator bounds nothing.
    pub fn child(&self, index: usize) -> (&'a [u8], NodeRef) {
        let (key, child, _) = decode_inner_entry(self.entry_bytes(index)).expect("a checked inner node");
        (key, child)
    }

    fn leaf_key(&self, index: usize) -> &'a [u8] {
        let bytes = self.entry_bytes(index);
        &bytes[4..4 + usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))]
    }

    fn inner_key(&self, index: usize) -> &'a [u8] {
        let bytes = self.entry_bytes(index);
        &bytes[2..2 + usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))]
    }

    /// Index of the first entry of a leaf at or above `key`; `count` when there is none.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        match narrow(0..self.count(), key, |index| self.leaf_key(index)) {
            Ok(index) => index,
            Err(indices) => partition(indices, |index| self.leaf_key(index) < key),
        }
    }

    /// Index of the child whose range holds `key`.
    pub fn child_index(&self, key: &[u8]) -> usize {
        match narrow(1..self.count(), key, |index| self.inner_key(index)) {
            Ok(index) => index,
            Err(indices) => partition(indices, |index| self.inner_key(index) <= key) - 1,
        }
    }

    /// Where in a leaf the search for a key looks first: its first and its last entry.
    pub(super) fn ends(&self) -> [&'a [u8]; 2] {
        [self.entry_bytes(0), self.entry_bytes(self.count() - 1)]
    }

    /// The entry of a leaf that `key` probably has.
    pub(super) fn probable(&self, key: &[u8]) -> Option<&'a [u8]> {
        let index = guess(0..self.count(), leading_number(key)?, &|index| self.leaf_key(index))?;
        Some(self.entry_bytes(index))
    }

    /// Whether the bytes are the node that `address` names. Nothing about them is believed before.
    pub fn check(address: &PageAddress, bytes: &[u8]) -> Result<(), String> {
        let Kind::Node { tree, level } = address.kind else {
            return Err("not a node's address".into());
        };
        if bytes.len() != PAGE_BYTES {
            return Err(format!("{} bytes of {PAGE_BYTES} are there", bytes.len()));
        }
        let (stored, computed) = (
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            checksum(address.kind, bytes),
        );
        if (stored != computed || stored != address.checksum) && !cfg!(fuzzing) {
            return Err(format!(
                "checksum: computed {computed:#010x}, the page says {stored:#010x}, its parent {:#010x}",
                address.checksum
            ));
        }
        let mut header = &bytes[4..HEADER_BYTES];
        let kind = (take_u16(&mut header), take_u16(&mut header));
        if kind
            != (
                Some(u16::from_le_bytes([1, tree])),
                Some(u16::from_le_bytes([level, 0])),
            )
        {
            return Err(format!("not a node of tree {tree}, level {level}"));
        }
        let (number, generation) = (take_u64(&mut header), take_u64(&mut header));
        if number != Some(u64::from(address.number)) {
            return Err(format!("the page says it is number {}", number.unwrap_or(0)));
        }
        if generation != Some(address.generation) {
            return Err(format!("the page says it is of commit {}", generation.unwrap_or(0)));
        }
        Node { bytes }
            .check_entries(level, address.generation)
            .ok_or_else(|| "its entries are not in order".into())
    }

    fn check_entries(&self, level: u8, generation: u64) -> Option<()> {
        let (count, used) = (self.count(), self.used());
        let mut at = HEADER_BYTES + SLOT_BYTES * count;
        if count == 0 || used > PAGE_BYTES || at > used || level >= HEIGHT_MAX {
            return None;
        }
        let mut last: Option<&[u8]> = None;
        for index in 0..count {
            if usize::from(self.u16_at(HEADER_BYTES + SLOT_BYTES * index)) != at {
                return None;
            }
            let rest = self.bytes.get(at..used)?;
            let (key, length) = if level == 0 {
                let entry = decode_leaf_entry(rest)?;
                if entry
                    .outside
                    .is_some_and(|outside| outside.extent.generation > generation)
                {
                    return None;
                }
                (entry.key, entry.bytes.len())
            } else {
                let (key, child, length) = decode_inner_entry(rest)?;
                if child.generation > generation {
                    return None;
                }
                (key, length)
            };
            if key.len() > KEY_MAX_BYTES || last.is_some_and(|last| last >= key) {
                return None;
            }
            last = Some(key);
            at += length;
        }
        (at == used).then_some(())
    }
}

/// Guesses before a search by halves.
const GUESSES: usize = 2;

/// The first eight bytes of a key, which order as the key does.
fn leading_number(key: &[u8]) -> Option<u64> {
    key.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Narrows the search for `key` among sorted keys: its index if it was met, else where the first key above it is.
///
/// Keys that are numbers, as those of records, lie about evenly, so that a guess is nearly right, and each look at an
/// entry is a wait for memory.
fn narrow<'k>(indices: Range<usize>, key: &[u8], key_at: impl Fn(usize) -> &'k [u8]) -> Result<usize, Range<usize>> {
    let Range {
        start: mut low,
        end: mut high,
    } = indices;
    let Some(wanted) = leading_number(key) else {
        return Err(low..high);
    };
    for _ in 0..GUESSES {
        let Some(guess) = guess(low..high, wanted, &key_at) else {
            break;
        };
        match key_at(guess).cmp(key) {
            Ordering::Equal => return Ok(guess),
            Ordering::Less => low = guess + 1,
            Ordering::Greater => high = guess,
        }
    }
    Err(low..high)
}

/// Where among `indices` a key that begins with the number `wanted` would be if the keys lay evenly; `None` if it is
/// not between them.
fn guess<'k>(indices: Range<usize>, wanted: u64, key_at: &impl Fn(usize) -> &'k [u8]) -> Option<usize> {
    let last_index = indices.end.checked_sub(1).filter(|last| *last > indices.start)?;
    let first = leading_number(key_at(indices.start))?;
    let last = leading_number(key_at(last_index))?;
    let span = last.checked_sub(first).filter(|span| *span > 0)?;
    let into = wanted.checked_sub(first).filter(|into| *into <= span)?;
    let places = (last_index - indices.start) as u128;
    Some(indices.start + (u128::from(into) * places / u128::from(span)) as usize)
}

/// The first of `indices` for which `before` does not hold, given that it holds for those at their front.
fn partition(indices: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (indices.start, indices.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Writes a node into a zeroed page and returns its checksum.
pub(super) fn build<'a>(
    page: &mut [u8],
    (tree, level): (u8, u8),
    (number, generation): (u32, u64),
    entries: impl ExactSizeIterator<Item = &'a [u8]>,
) -> u32 {
    assert_eq!(page.len(), PAGE_BYTES);
    let count = entries.len();
    assert!(count > 0, "a node has an entry");
    page[4..8].copy_from_slice(&[1, tree, level, 0]);
    page[8..16].copy_from_slice(&u64::from(number).to_le_bytes());
    page[16..24].copy_from_slice(&generation.to_le_bytes());
    page[24..26].copy_from_slice(&(count as u16).to_le_bytes());
    let mut at = HEADER_BYTES + SLOT_BYTES * count;
    for (index, entry) in entries.enumerate() {
        let slot = HEADER_BYTES + SLOT_BYTES * index;
        page[slot..slot + SLOT_BYTES].copy_from_slice(&(at as u16).to_le_bytes());
        page[at..at + entry.len()].copy_from_slice(entry);
        at += entry.len();
    }
    page[26..28].copy_from_slice(&(at as u16).to_le_bytes());
    let checksum = checksum(Kind::Node { tree, level }, page);
    page[..4].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    fn leaf(keys: &[&[u8]]) -> (Vec<u8>, PageAddress) {
        let entries: Vec<Vec<u8>> = keys
            .iter()
            .map(|key| {
                let mut out = Vec::new();
                encode_leaf_entry(&mut out, key, b"head", None);
                out
            })
            .collect();
        let mut page = vec![0; PAGE_BYTES];
        let checksum = build(&mut page, (2, 0), (9, 5), entries.iter().map(Vec::as_slice));
        let node = NodeRef {
            page: 9,
            highest: 9,
            generation: 5,
            checksum,
        };
        (page, node.address(2, 0))
    }

    fn inner(keys: &[Vec<u8>]) -> Vec<u8> {
        let child = NodeRef {
            page: 9,
            highest: 9,
            generation: 5,
            checksum: 0,
        };
        let entries = keys.iter().map(|key| {
            let mut out = Vec::new();
            encode_inner_entry(&mut out, key, &child);
            out
        });
        let entries: Vec<Vec<u8>> = entries.collect();
        let mut page = vec![0; PAGE_BYTES];
        build(&mut page, (2, 1), (9, 5), entries.iter().map(Vec::as_slice));
        page
    }

    #[test]
    fn leaf_is_found_again() {
        let (page, address) = leaf(&[b"a", b"c", b"e"]);
        assert_eq!(Node::check(&address, &page), Ok(()));
        let node = Node::new(&page);
        assert_eq!(node.count(), 3);
        assert_eq!(node.leaf_entry(1).key, b"c");
        assert_eq!(node.lower_bound(b"a"), 0);
        assert_eq!(node.lower_bound(b"b"), 1);
        assert_eq!(node.lower_bound(b"f"), 3);
    }

    #[test]
    fn numbers_and_words_are_found_where_they_belong() {
        let mut rng = StdRng::seed_from_u64(11);
        for round in 0..300 {
            let mut keys = BTreeSet::new();
            for _ in 0..rng.random_range(1..60) {
                let main: u64 = match round % 4 {
                    0 => rng.random_range(0..20),
                    1 => rng.random_range(1 << 40..(1 << 40) + 100),
                    2 => rng.random(),
                    _ => 1 << rng.random_range(0..64),
                };
                let mut key = main.to_be_bytes().to_vec();
                key.extend([0, 0, 0, rng.random_range(0..3)]);
                key.truncate(if rng.random_bool(0.1) {
                    rng.random_range(0..9)
                } else {
                    12
                });
                keys.insert(key);
            }
            let keys: Vec<Vec<u8>> = keys.into_iter().collect();
            let (page, _) = leaf(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let parent = inner(&keys);
            for key in &keys {
                for last in [0, 1, 255] {
                    let wanted = [&key[..], &[last]].concat();
                    for wanted in [&key[..], &key[..key.len().saturating_sub(1)], &wanted] {
                        let expected = keys.partition_point(|key| &key[..] < wanted);
                        assert_eq!(Node::new(&page).lower_bound(wanted), expected, "{wanted:?} in {keys:?}");
                        let expected = keys.partition_point(|key| &key[..] <= wanted).saturating_sub(1);
                        assert_eq!(
                            Node::new(&parent).child_index(wanted),
                            expected,
                            "{wanted:?} in {keys:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn disorder_and_every_flipped_bit_are_refused() {
        let (page, address) = leaf(&[b"c", b"a"]);
        assert_eq!(Node::check(&address, &page), Err("its entries are not in order".into()));
        let (mut page, address) = leaf(&[b"a", b"c"]);
        for byte in 0..PAGE_BYTES {
            page[byte] ^= 1 << (byte % 8);
            assert!(Node::check(&address, &page).is_err(), "byte {byte}");
            page[byte] ^= 1 << (byte % 8);
        }
        assert_eq!(Node::check(&address, &page), Ok(()));
    }
}
