//! Reading a file: its meta pages, its buckets, their keys in order.
//!
//! Nothing that the file says is believed unseen: page numbers, kinds, bounds and the order of keys are checked as they
//! are met, so that damage ends in an error and neither in a loop nor in a panic. Keys that must ascend and lie between
//! their parents' are also what keeps a page from being visited over and over.

use super::cursor::Cursor;
use super::error::ReadError;
use super::format::{META, META_PAGES, Meta, NOT_A_META, PAGE_BYTES_RANGE, PAGE_HEADER};
use super::source::Source;
use std::sync::Arc;

/// An open file: what its newest meta page says.
#[derive(Clone, Debug)]
pub struct File {
    pub(super) shape: Arc<Shape>,
    meta: Meta,
}

/// What reading a page takes.
#[derive(Debug)]
pub(super) struct Shape {
    pub name: Arc<str>,
    pub page_bytes: usize,
    /// All pages lie before this one.
    pub pages: u64,
}

impl Shape {
    pub fn offset(&self, page: u64) -> u64 {
        page.saturating_mul(self.page_bytes as u64)
    }

    pub fn read(&self, source: &mut dyn Source, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let length = buffer.len();
        source.read_at(offset, buffer).map_err(|source| ReadError::Source {
            file: self.name.clone(),
            offset,
            length,
            source,
        })
    }

    pub fn damaged(&self, page: u64, offset: u64, reason: &'static str) -> ReadError {
        ReadError::Damaged {
            file: self.name.clone(),
            page,
            offset,
            reason,
        }
    }
}

/// A bucket, as its parent names it.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Its sequence number, which etcd does not use.
    pub sequence: u64,
    pub(super) root: BucketRoot,
    /// Buckets around it.
    pub(super) nesting: usize,
}

#[derive(Clone, Debug)]
pub(super) enum BucketRoot {
    Page(u64),
    /// A page inside of the bucket's value, where it lies, and in which page.
    Inline {
        bytes: Vec<u8>,
        offset: u64,
        page: u64,
    },
}

impl File {
    /// Opens a file. The name is what errors call it.
    pub fn open(source: &mut dyn Source, name: &str) -> Result<File, ReadError> {
        let name: Arc<str> = name.into();
        let meta = newest_meta(source, &name)?;
        let shape = Shape {
            name,
            page_bytes: meta.page_bytes as usize,
            pages: meta.pages,
        };
        let (length, needed) = (source.length(), shape.offset(meta.pages));
        if length < needed {
            return Err(ReadError::Cut {
                file: shape.name,
                length,
                needed,
            });
        }
        Ok(File {
            shape: Arc::new(shape),
            meta,
        })
    }

    /// The bucket that holds the others.
    pub fn root(&self) -> Bucket {
        Bucket {
            sequence: self.meta.sequence,
            root: BucketRoot::Page(self.meta.root),
            nesting: 0,
        }
    }

    /// Goes through a bucket of this file from its first key on.
    pub fn cursor(&self, bucket: &Bucket) -> Cursor {
        Cursor::new(self.shape.clone(), bucket)
    }

    /// The end of the file's last page in use: its length, unless something was appended.
    pub fn length(&self) -> u64 {
        self.shape.offset(self.meta.pages)
    }

    /// The transaction that wrote it.
    pub fn transaction(&self) -> u64 {
        self.meta.transaction
    }
}

const ABSENT: &str = "the file ends before it";

/// The sound meta page of the newest transaction.
fn newest_meta(source: &mut dyn Source, name: &Arc<str>) -> Result<Meta, ReadError> {
    let first = read_meta(source, name, 0)?;
    // Where the second lies is said by the first; without it, it lies behind a page of any size.
    let page_sizes = match &first {
        Ok(meta) => vec![meta.page_bytes as usize],
        Err(_) => sizes().collect(),
    };
    let mut second = Err(ABSENT);
    for page_bytes in page_sizes {
        let read = read_meta(source, name, page_bytes as u64)?;
        let read = match read {
            Ok(meta) if meta.page_bytes as usize != page_bytes => Err("its page size is another"),
            read => read,
        };
        // Of several places the one counts that has a meta page, if a damaged one.
        if read.is_ok() || second == Err(ABSENT) || second == Err(NOT_A_META) {
            second = read;
        }
    }
    match (first, second) {
        (Ok(first), Ok(second)) if second.transaction > first.transaction => Ok(second),
        (Ok(first), _) => Ok(first),
        (Err(_), Ok(second)) => Ok(second),
        (Err(first), Err(second)) => Err(ReadError::NoMeta {
            file: name.clone(),
            first,
            second,
        }),
    }
}

/// The meta of the page at an offset, or what is wrong with it.
fn read_meta(source: &mut dyn Source, name: &Arc<str>, offset: u64) -> Result<Result<Meta, &'static str>, ReadError> {
    let mut page = [0; PAGE_HEADER + META];
    if source.length() < offset + page.len() as u64 {
        return Ok(Err(ABSENT));
    }
    let shape = Shape {
        name: name.clone(),
        page_bytes: 0,
        pages: 0,
    };
    shape.read(source, offset, &mut page)?;
    let meta = page.last_chunk::<META>().expect("a page of this length");
    Ok(Meta::decode(meta).and_then(|meta| match () {
        () if !sizes().any(|size| size == meta.page_bytes as usize) => Err("it names an impossible page size"),
        () if !(META_PAGES..meta.pages).contains(&meta.root) => Err("its root lies outside of the file"),
        () => Ok(meta),
    }))
}

/// Sizes that pages can have.
fn sizes() -> impl Iterator<Item = usize> {
    let mut size = *PAGE_BYTES_RANGE.start();
    std::iter::from_fn(move || {
        let this = size;
        size *= 2;
        PAGE_BYTES_RANGE.contains(&this).then_some(this)
    })
}
