//! The tree of one bucket while it grows: keys come in order, a page leaves as soon as nothing can be added to it.
//!
//! In memory are a leaf that is not full and, of each level above, a branch that is not full: what is written lies
//! behind, and only its first key and number are still needed. A page is given its number when it leaves, so that the
//! file is made from front to back.
//!
//! A branch never has less than two children: bbolt takes that for granted when it deletes.

use super::format::{BranchElement, ELEMENT, LEAF_BYTES, LeafElement, PAGE_BYTES, PAGE_HEADER, PageHeader, PageKind};

/// A value: its bytes, or for measuring only their number.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Length(usize),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn length(self) -> usize {
        match self {
            Value::Length(length) => length,
            Value::Bytes(bytes) => bytes.len(),
        }
    }

    fn bytes(self) -> &'a [u8] {
        match self {
            Value::Length(_) => &[],
            Value::Bytes(bytes) => bytes,
        }
    }
}

/// Where pages go: into bytes, or nowhere but the count.
#[derive(Debug)]
pub(super) struct Pages {
    /// The number of the next page.
    pub next: u64,
    /// Bytes of pages that were not taken yet; `None` while measuring.
    pub bytes: Option<Vec<u8>>,
}

impl Pages {
    /// Adds a page with what its parts hold, and returns its number.
    fn add(&mut self, kind: PageKind, count: usize, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let id = self.next;
        let pages = length.div_ceil(PAGE_BYTES);
        self.next += pages as u64;
        if let Some(bytes) = &mut self.bytes {
            let header = PageHeader {
                id,
                kind,
                count: u16::try_from(count).expect("a leaf of the largest size holds no more"),
                overflow: u32::try_from(pages - 1).expect("values are bounded"),
            };
            let start = bytes.len();
            bytes.extend_from_slice(&header.encode());
            write(bytes);
            assert_eq!(bytes.len() - start, length, "page {id} is as long as was counted");
            bytes.resize(start + pages * PAGE_BYTES, 0);
        }
        id
    }

    /// Adds a leaf with nothing in it.
    pub fn add_empty_leaf(&mut self) -> u64 {
        self.add(PageKind::Leaf, 0, PAGE_HEADER, |_| {})
    }

    /// Adds a leaf with elements, of which `data` are the bytes one after the other.
    fn add_leaf(&mut self, elements: &[LeafElement], length: usize, data: [&[u8]; 2]) -> u64 {
        self.add(PageKind::Leaf, elements.len(), length, |bytes| {
            let mut position = elements.len() * ELEMENT;
            for element in elements {
                let encoded = LeafElement {
                    position: position as u32,
                    ..*element
                };
                bytes.extend_from_slice(&encoded.encode());
                position = position + element.key_length as usize + element.value_length as usize - ELEMENT;
            }
            data.iter().for_each(|part| bytes.extend_from_slice(part));
        })
    }

    fn add_branch(&mut self, children: &[Child], length: usize) -> u64 {
        self.add(PageKind::Branch, children.len(), length, |bytes| {
            let mut position = children.len() * ELEMENT;
            for Child { key, page } in children {
                let element = BranchElement {
                    position: position as u32,
                    key_length: key.len() as u32,
                    page: *page,
                };
                bytes.extend_from_slice(&element.encode());
                position = position + key.len() - ELEMENT;
            }
            children.iter().for_each(|child| bytes.extend_from_slice(&child.key));
        })
    }
}

/// A page that was written, as its parent names it.
#[derive(Debug)]
struct Child {
    /// Its first key.
    key: Vec<u8>,
    page: u64,
}

#[derive(Debug)]
struct Leaf {
    elements: Vec<LeafElement>,
    first_key: Vec<u8>,
    /// Keys and values.
    data: Vec<u8>,
    /// Length of the page so far.
    length: usize,
}

#[derive(Debug)]
struct Branch {
    children: Vec<Child>,
    length: usize,
}

impl Branch {
    fn new() -> Branch {
        Branch {
            children: Vec::new(),
            length: PAGE_HEADER,
        }
    }

    fn push(&mut self, child: Child) {
        self.length += ELEMENT + child.key.len();
        self.children.push(child);
    }

    /// Writes what it holds, and holds nothing any more.
    fn flush(&mut self, pages: &mut Pages) -> Child {
        let page = pages.add_branch(&self.children, self.length);
        let full = std::mem::replace(self, Branch::new());
        let key = full.children.into_iter().next().expect("a branch has children").key;
        Child { key, page }
    }
}

/// A tree that grows at its end.
#[derive(Debug)]
pub(super) struct Tree {
    leaf: Leaf,
    /// The branches that are not full, lowest first.
    branches: Vec<Branch>,
}

impl Tree {
    pub fn new() -> Tree {
        Tree {
            leaf: Leaf {
                elements: Vec::new(),
                first_key: Vec::new(),
                data: Vec::new(),
                length: PAGE_HEADER,
            },
            branches: Vec::new(),
        }
    }

    /// Adds an element behind all others. The caller has checked order and lengths.
    pub fn put(&mut self, flags: u32, key: &[u8], value: Value<'_>, pages: &mut Pages) {
        let length = ELEMENT + key.len() + value.length();
        if self.leaf.length + length > LEAF_BYTES {
            self.flush_leaf(pages);
        }
        let element = LeafElement {
            flags,
            position: 0,
            key_length: key.len() as u32,
            value_length: value.length() as u32,
        };
        if PAGE_HEADER + length > LEAF_BYTES {
            // Too large to share a leaf: it is written at once, and not copied before.
            let page = pages.add_leaf(&[element], PAGE_HEADER + length, [key, value.bytes()]);
            self.add_child(
                0,
                Child {
                    key: key.to_vec(),
                    page,
                },
                pages,
            );
            return;
        }
        if self.leaf.elements.is_empty() {
            self.leaf.first_key = key.to_vec();
        }
        self.leaf.elements.push(element);
        self.leaf.length += length;
        if pages.bytes.is_some() {
            self.leaf.data.extend_from_slice(key);
            self.leaf.data.extend_from_slice(value.bytes());
        }
    }

    /// Writes what is left and returns the root's page; `None` for a tree without elements.
    pub fn finish(mut self, pages: &mut Pages) -> Option<u64> {
        self.flush_leaf(pages);
        let mut level = 0;
        loop {
            let branch = self.branches.get_mut(level)?;
            if let [only] = &branch.children[..] {
                return Some(only.page);
            }
            let child = branch.flush(pages);
            level += 1;
            if level == self.branches.len() {
                return Some(child.page);
            }
            self.add_child(level, child, pages);
        }
    }

    fn flush_leaf(&mut self, pages: &mut Pages) {
        let leaf = &mut self.leaf;
        if leaf.elements.is_empty() {
            return;
        }
        let page = pages.add_leaf(&leaf.elements, leaf.length, [&leaf.data, &[]]);
        let key = std::mem::take(&mut leaf.first_key);
        leaf.elements.clear();
        leaf.data.clear();
        leaf.length = PAGE_HEADER;
        self.add_child(0, Child { key, page }, pages);
    }

    /// Adds a page to its level. If the branch there is full all but its last child leave: with the new one there are
    /// two again.
    fn add_child(&mut self, level: usize, child: Child, pages: &mut Pages) {
        if level == self.branches.len() {
            self.branches.push(Branch::new());
        }
        let branch = &mut self.branches[level];
        if branch.length + ELEMENT + child.key.len() <= PAGE_BYTES || branch.children.len() <= 2 {
            return branch.push(child);
        }
        let last = branch.children.pop().expect("it has more than two");
        branch.length -= ELEMENT + last.key.len();
        let full = branch.flush(pages);
        branch.push(last);
        branch.push(child);
        self.add_child(level + 1, full, pages);
    }
}
