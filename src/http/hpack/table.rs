//! The dynamic table of the decoder, RFC 7541 §2.3.2 and §4.
//!
//! Entries lie back to back in one growing buffer, oldest first; the front is cut off lazily, so inserting costs a copy
//! of the entry and no allocation. A connection that indexes nothing holds no memory.

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD;
use crate::http::headers::Class;

/// Dead bytes at the front of the buffer from which on it is worth moving the rest down.
const COMPACT_BYTES: usize = 1_024;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    start: u32,
    name_length: u16,
    value_length: u16,
    /// What the name means, decided once when the entry came in.
    pub class: Class,
    /// Whether name and value keep to RFC 9113 §8.2.1.
    pub valid: bool,
}

#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    bytes: Vec<u8>,
    /// Where the oldest entry starts in `bytes`.
    front: usize,
    /// Size by the RFC's count.
    size: usize,
    maximum: usize,
    /// Rises with every change, so that a user can tell whether what it read is still what it would read.
    generation: u32,
}

impl Table {
    pub fn new(maximum: usize) -> Self {
        // A table has to be addressable by an entry's u16 lengths.
        assert!(maximum <= usize::from(u16::MAX), "header table of {maximum} bytes");
        Self {
            entries: VecDeque::new(),
            bytes: Vec::new(),
            front: 0,
            size: 0,
            maximum,
            generation: 0,
        }
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The entry `index` places behind the newest, with its name and value.
    #[inline]
    pub fn get(&self, index: usize) -> Option<(Entry, &[u8], &[u8])> {
        let position = self.entries.len().checked_sub(index + 1)?;
        let entry = *self.entries.get(position)?;
        let start = entry.start as usize;
        let middle = start + usize::from(entry.name_length);
        let end = middle + usize::from(entry.value_length);
        Some((entry, &self.bytes[start..middle], &self.bytes[middle..end]))
    }

    pub fn resize(&mut self, maximum: usize) {
        self.maximum = maximum;
        self.evict(maximum);
        self.generation = self.generation.wrapping_add(1);
    }

    /// Inserts a name (the first `name_length` bytes of `field`) and its value (the rest). An entry larger than the
    /// table empties it, which is not an error (RFC 7541 §4.4).
    pub fn insert(&mut self, field: &[u8], name_length: usize, class: Class, valid: bool) {
        self.generation = self.generation.wrapping_add(1);
        let cost = field.len() + ENTRY_OVERHEAD;
        if cost > self.maximum {
            return self.evict(0);
        }
        self.evict(self.maximum - cost);
        if self.front >= COMPACT_BYTES && self.front * 2 >= self.bytes.len() {
            self.compact();
        }
        let entry = Entry {
            start: self.bytes.len() as u32,
            name_length: name_length as u16,
            value_length: (field.len() - name_length) as u16,
            class,
            valid,
        };
        self.bytes.extend_from_slice(field);
        self.entries.push_back(entry);
        self.size += cost;
    }

    fn evict(&mut self, limit: usize) {
        while self.size > limit {
            let Some(oldest) = self.entries.pop_front() else { break };
            let length = usize::from(oldest.name_length) + usize::from(oldest.value_length);
            self.front += length;
            self.size -= length + ENTRY_OVERHEAD;
        }
        if self.entries.is_empty() {
            debug_assert_eq!(self.size, 0);
            self.bytes.clear();
            self.front = 0;
        }
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.front);
        for entry in &mut self.entries {
            entry.start -= self.front as u32;
        }
        self.front = 0;
    }

    /// Bytes of memory held.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn insert(table: &mut Table, name: &str, value: &str) {
        let field = format!("{name}{value}");
        table.insert(field.as_bytes(), name.len(), Class::Other, true);
    }

    #[test]
    fn an_entry_larger_than_the_table_empties_it() {
        let mut table = Table::new(100);
        insert(&mut table, "a", "b");
        assert!(table.get(0).is_some());
        insert(&mut table, "name", &"v".repeat(65));
        assert!(table.get(0).is_none());
        assert_eq!(table.size(), 0);
        insert(&mut table, "name", &"v".repeat(64));
        assert_eq!(table.size(), 100);
    }

    #[test]
    fn memory_stays_near_the_tables_size_however_many_entries_pass() {
        let mut table = Table::new(4096);
        for i in 0..100_000 {
            insert(&mut table, "grpc-timeout", &format!("{i}m"));
        }
        assert!(table.memory() < 4 * 4096, "{} bytes", table.memory());
    }

    proptest! {
        #[test]
        fn behaves_as_a_queue_of_pairs(
            steps in proptest::collection::vec((0usize..600, 0usize..900, proptest::option::of(0usize..2000)), 1..200),
        ) {
            let mut table = Table::new(2000);
            let mut maximum = 2000;
            let mut model: VecDeque<(String, String)> = VecDeque::new();
            for (number, (name, value, resize)) in steps.into_iter().enumerate() {
                if let Some(size) = resize {
                    table.resize(size);
                    maximum = size;
                }
                let (name, value) = (format!("{number}{}", "n".repeat(name)), "v".repeat(value));
                insert(&mut table, &name, &value);
                model.push_front((name, value));
                let mut total = 0;
                model = model.into_iter().take_while(|(name, value)| {
                    total += name.len() + value.len() + ENTRY_OVERHEAD;
                    total <= maximum
                }).collect();
                for (index, (name, value)) in model.iter().enumerate() {
                    let (_, found_name, found_value) = table.get(index).unwrap();
                    prop_assert_eq!(found_name, name.as_bytes());
                    prop_assert_eq!(found_value, value.as_bytes());
                }
                prop_assert!(table.get(model.len()).is_none());
            }
        }
    }
}
