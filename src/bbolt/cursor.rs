//! Going through a bucket in key order: the pages from its root to an element, and what is checked on the way.

use super::error::ReadError;
use super::format::{
    BUCKET_FLAG, BUCKET_HEADER, BranchElement, ELEMENT, LeafElement, META_PAGES, PAGE_HEADER, PageHeader, PageKind,
    u64_at,
};
use super::reader::{Bucket, BucketRoot, Shape};
use super::source::Source;
use crate::limits::bbolt::{DEPTH_MAX, KEY_BYTES_MAX, NESTING_MAX, PAGE_READ_BYTES_MAX, VALUE_BYTES_MAX};
use std::sync::Arc;

/// A key and what it stands for.
#[derive(Debug)]
pub struct Element<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What stands under it.
    pub content: Content<'a>,
}

/// What a key stands for.
#[derive(Debug)]
pub enum Content<'a> {
    /// A value.
    Value(&'a [u8]),
    /// A bucket, to be gone through by a cursor of its own. Buckets can be inside of one another, in a damaged file
    /// even the same ones again and again: who follows all of them has to bound what is done.
    Bucket(Bucket),
}

/// A position in a bucket. Holds a piece of each page on the way from the root, and one value.
#[derive(Debug)]
pub struct Cursor {
    shape: Arc<Shape>,
    levels: Vec<Level>,
    /// The bucket, until it is begun.
    start: Option<BucketRoot>,
    nesting: usize,
    /// The last key.
    last: Vec<u8>,
}

impl Cursor {
    pub(super) fn new(shape: Arc<Shape>, bucket: &Bucket) -> Cursor {
        Cursor {
            shape,
            levels: Vec::new(),
            start: Some(bucket.root.clone()),
            nesting: bucket.nesting,
            last: Vec::new(),
        }
    }

    /// The next element; `None` behind the last. After an error there is nothing more.
    pub fn next(&mut self, source: &mut dyn Source) -> Result<Option<Element<'_>>, ReadError> {
        match self.find(source) {
            Ok(false) => Ok(None),
            Ok(true) => {
                let Cursor {
                    shape,
                    levels,
                    nesting,
                    last,
                    ..
                } = self;
                let level = levels.last_mut().expect("an element was found in a leaf");
                level.element(shape, source, *nesting, last).map(Some)
            }
            Err(error) => {
                self.levels.clear();
                Err(error)
            }
        }
    }

    /// Goes to the next leaf that has an element left. Whether there is one.
    fn find(&mut self, source: &mut dyn Source) -> Result<bool, ReadError> {
        if let Some(root) = self.start.take() {
            let page = match root {
                BucketRoot::Page(id) => Page::open(&self.shape, source, id)?,
                BucketRoot::Inline { bytes, offset, page } => Page::inside(&self.shape, bytes, offset, page)?,
            };
            self.levels.push(Level::new(page, Vec::new(), None));
        }
        loop {
            let depth = self.levels.len();
            let Some(level) = self.levels.last_mut() else {
                return Ok(false);
            };
            if level.next == level.page.count {
                self.levels.pop();
                continue;
            }
            if level.page.kind == PageKind::Leaf {
                return Ok(true);
            }
            let (id, lower, upper) = level.child(&self.shape, source)?;
            if depth == DEPTH_MAX {
                return Err(level.page.damaged(&self.shape, 0, "the tree is too deep"));
            }
            let page = Page::open(&self.shape, source, id)?;
            self.levels.push(Level::new(page, lower, upper));
        }
    }
}

/// A page on the way, and the keys between which its own have to lie.
#[derive(Debug)]
struct Level {
    page: Page,
    /// The next element.
    next: u16,
    /// Of a branch: the next element's key, read with the one before.
    next_key: Vec<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

impl Level {
    fn new(page: Page, lower: Vec<u8>, upper: Option<Vec<u8>>) -> Level {
        Level {
            page,
            next: 0,
            next_key: Vec::new(),
            lower,
            upper,
        }
    }

    fn is_inside(&self, key: &[u8]) -> bool {
        key >= self.lower.as_slice() && self.upper.as_deref().is_none_or(|upper| key < upper)
    }

    /// The next child of a branch: its page, and between which keys its own lie.
    #[allow(clippy::type_complexity)]
    fn child(&mut self, shape: &Shape, source: &mut dyn Source) -> Result<(u64, Vec<u8>, Option<Vec<u8>>), ReadError> {
        let (element, key) = self.branch_element(shape, source, self.next)?;
        // All but the first were compared with their neighbours when they were read ahead.
        let is_right = match self.next {
            0 => self.is_inside(&key),
            _ => key == self.next_key,
        };
        if !is_right {
            return Err(self.misplaced(shape, self.next));
        }
        self.next += 1;
        let upper = match self.next < self.page.count {
            false => self.upper.clone(),
            true => {
                let (_, following) = self.branch_element(shape, source, self.next)?;
                if following <= key || !self.is_inside(&following) {
                    return Err(self.misplaced(shape, self.next));
                }
                self.next_key.clone_from(&following);
                Some(following)
            }
        };
        Ok((element.page, key, upper))
    }

    fn misplaced(&self, shape: &Shape, index: u16) -> ReadError {
        let at = element_position(index);
        self.page
            .damaged(shape, at, "a key is not between the keys beside and above it")
    }

    fn branch_element(
        &mut self,
        shape: &Shape,
        source: &mut dyn Source,
        index: u16,
    ) -> Result<(BranchElement, Vec<u8>), ReadError> {
        let at = element_position(index);
        let element = BranchElement::decode(&self.page.element(shape, source, at)?);
        let key_at = at + u64::from(element.position);
        check_key(element.key_length).map_err(|reason| self.page.damaged(shape, at, reason))?;
        let key = self
            .page
            .bytes(shape, source, key_at, element.key_length as usize)?
            .to_vec();
        Ok((element, key))
    }

    /// The next element of a leaf. `last` is the key before it, and then its own.
    fn element(
        &mut self,
        shape: &Shape,
        source: &mut dyn Source,
        nesting: usize,
        last: &mut Vec<u8>,
    ) -> Result<Element<'_>, ReadError> {
        let index = self.next;
        self.next += 1;
        let at = element_position(index);
        let element = LeafElement::decode(&self.page.element(shape, source, at)?);
        let damaged = |page: &Page, reason| Err(page.damaged(shape, at, reason));
        if let Err(reason) = check_key(element.key_length) {
            return damaged(&self.page, reason);
        }
        let (key_length, value_length) = (element.key_length as usize, element.value_length as usize);
        if value_length > VALUE_BYTES_MAX {
            return damaged(&self.page, "a value is too long");
        }
        if element.flags & !BUCKET_FLAG != 0 {
            return damaged(&self.page, "an element is of an unknown kind");
        }
        let bytes_at = at + u64::from(element.position);
        let place = self.page.range(shape, source, bytes_at, key_length + value_length)?;
        let key = &self.page.piece[place.start..place.start + key_length];
        if key <= last.as_slice() || !self.is_inside(key) {
            return Err(self.misplaced(shape, index));
        }
        last.clear();
        last.extend_from_slice(key);
        let (key, value) = self.page.piece[place].split_at(key_length);
        let content = match element.flags {
            0 => Content::Value(value),
            _ => match bucket(shape, &self.page, bytes_at + key_length as u64, value, nesting + 1) {
                Ok(bucket) => Content::Bucket(bucket),
                Err(reason) => return damaged(&self.page, reason),
            },
        };
        Ok(Element { key, content })
    }
}

/// Reads a bucket's value. The error says what is wrong.
fn bucket(shape: &Shape, page: &Page, at: u64, value: &[u8], nesting: usize) -> Result<Bucket, &'static str> {
    if nesting > NESTING_MAX {
        return Err("buckets are nested too deeply");
    }
    let (header, inline) = value
        .split_at_checked(BUCKET_HEADER)
        .ok_or("a bucket's value is too short")?;
    let root = match u64_at(header, 0) {
        0 if inline.len() > shape.page_bytes => return Err("a bucket's inline page is too long"),
        0 => BucketRoot::Inline {
            bytes: inline.to_vec(),
            offset: page.start + at + BUCKET_HEADER as u64,
            page: page.id,
        },
        root => BucketRoot::Page(root),
    };
    Ok(Bucket {
        sequence: u64_at(header, 8),
        root,
        nesting,
    })
}

fn check_key(length: u32) -> Result<(), &'static str> {
    match length as usize {
        0 => Err("a key is empty"),
        1..=KEY_BYTES_MAX => Ok(()),
        _ => Err("a key is too long"),
    }
}

/// Where in its page an element lies.
fn element_position(index: u16) -> u64 {
    (PAGE_HEADER + usize::from(index) * ELEMENT) as u64
}

/// A page, of which a piece is in memory.
#[derive(Debug)]
struct Page {
    id: u64,
    kind: PageKind,
    count: u16,
    /// Where it lies in the file.
    start: u64,
    /// Its length, with the pages that belong to it.
    length: u64,
    /// What is in memory, and where in the page that begins.
    piece: Vec<u8>,
    piece_at: u64,
}

impl Page {
    fn open(shape: &Shape, source: &mut dyn Source, id: u64) -> Result<Page, ReadError> {
        let start = shape.offset(id);
        let damaged = |reason| Err(shape.damaged(id, start, reason));
        if !(META_PAGES..shape.pages).contains(&id) {
            return damaged("a page lies outside of the file");
        }
        let mut piece = vec![0; shape.page_bytes];
        shape.read(source, start, &mut piece)?;
        let header = piece.first_chunk().and_then(PageHeader::decode);
        let Some(header) = header.filter(|header| matches!(header.kind, PageKind::Branch | PageKind::Leaf)) else {
            return damaged("it is neither branch nor leaf");
        };
        if header.id != id {
            return damaged("it has another page's number");
        }
        let pages = 1 + u64::from(header.overflow);
        if pages > shape.pages - id {
            return damaged("it reaches beyond the file");
        }
        let length = pages * shape.page_bytes as u64;
        let rest = match length <= PAGE_READ_BYTES_MAX as u64 {
            true => length as usize - piece.len(),
            false => 0,
        };
        if rest > 0 {
            let read = piece.len();
            piece.resize(read + rest, 0);
            shape.read(source, start + read as u64, &mut piece[read..])?;
        }
        let page = Page {
            id,
            kind: header.kind,
            count: header.count,
            start,
            length,
            piece,
            piece_at: 0,
        };
        page.checked(shape)
    }

    /// The page inside of a bucket's value.
    fn inside(shape: &Shape, bytes: Vec<u8>, start: u64, id: u64) -> Result<Page, ReadError> {
        let header = bytes.first_chunk().and_then(PageHeader::decode);
        let Some(header) = header.filter(|header| header.kind == PageKind::Leaf) else {
            return Err(shape.damaged(id, start, "a bucket's inline page is no leaf"));
        };
        let page = Page {
            id,
            kind: header.kind,
            count: header.count,
            start,
            length: bytes.len() as u64,
            piece: bytes,
            piece_at: 0,
        };
        page.checked(shape)
    }

    fn checked(self, shape: &Shape) -> Result<Page, ReadError> {
        if self.kind == PageKind::Branch && self.count == 0 {
            return Err(self.damaged(shape, 0, "it is a branch without children"));
        }
        if element_position(self.count) > self.length {
            return Err(self.damaged(shape, 0, "it has more elements than room"));
        }
        Ok(self)
    }

    /// Damage at a place of this page.
    fn damaged(&self, shape: &Shape, at: u64, reason: &'static str) -> ReadError {
        shape.damaged(self.id, self.start + at, reason)
    }

    fn element(&mut self, shape: &Shape, source: &mut dyn Source, at: u64) -> Result<[u8; ELEMENT], ReadError> {
        let bytes = self.bytes(shape, source, at, ELEMENT)?;
        Ok(*bytes.first_chunk().expect("as many bytes as were asked for"))
    }

    fn bytes(&mut self, shape: &Shape, source: &mut dyn Source, at: u64, length: usize) -> Result<&[u8], ReadError> {
        let place = self.range(shape, source, at, length)?;
        Ok(&self.piece[place])
    }

    /// Where in the piece these bytes of the page are; another piece is read if they are not in it.
    fn range(
        &mut self,
        shape: &Shape,
        source: &mut dyn Source,
        at: u64,
        length: usize,
    ) -> Result<std::ops::Range<usize>, ReadError> {
        if at.saturating_add(length as u64) > self.length {
            return Err(self.damaged(shape, at, "an element reaches beyond its page"));
        }
        let is_here = at >= self.piece_at && at + length as u64 <= self.piece_at + self.piece.len() as u64;
        if !is_here {
            let rest = (self.length - at) as usize;
            self.piece.clear();
            self.piece.resize(length.max(shape.page_bytes.min(rest)), 0);
            self.piece_at = at;
            shape.read(source, self.start + at, &mut self.piece)?;
        }
        let start = (at - self.piece_at) as usize;
        Ok(start..start + length)
    }
}
