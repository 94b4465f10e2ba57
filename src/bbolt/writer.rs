//! Writing a file from front to back: first measured, then written, without ever going back.
//!
//! The meta pages come first and name the last page, and a receiver is told the length before the first byte. So what
//! goes into the file is gone through twice: [`Measure`] takes keys and the lengths of values, and makes a [`Plan`];
//! [`Writer`] takes keys and values, and makes bytes. Both hold a few pages, however long the file.

use super::format::{
    BUCKET_FLAG, BUCKET_HEADER, FIRST_DATA_PAGE, FREE_LIST_PAGE, META_PAGES, Meta, PAGE_BYTES, PAGE_HEADER, PageHeader,
    PageKind,
};
use super::tree::{Pages, Tree, Value};
use crate::limits::bbolt::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The transaction that the first meta page names; the second names the one before.
const TRANSACTION: u64 = 2;

/// Why a file can't be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A key that the format does not hold.
    #[error(
        "bucket {}: a key of {length} bytes can't be written: bbolt takes 1 to {KEY_BYTES_MAX}",
        bucket.escape_ascii()
    )]
    Key {
        /// The bucket.
        bucket: Vec<u8>,
        /// The key's length.
        length: usize,
    },
    /// A value longer than readers take.
    #[error(
        "bucket {}: a value of {length} bytes can't be written: the longest is {VALUE_BYTES_MAX}",
        bucket.escape_ascii()
    )]
    Value {
        /// The bucket.
        bucket: Vec<u8>,
        /// The value's length.
        length: usize,
    },
    /// A key or a bucket that does not follow the one before.
    #[error("bucket {}: key {} does not follow the one before", bucket.escape_ascii(), key.escape_ascii())]
    Order {
        /// The bucket.
        bucket: Vec<u8>,
        /// The key; empty if it is the bucket.
        key: Vec<u8>,
    },
    /// What was written is not what was measured.
    #[error("{written} pages were written and {measured} were measured: what was measured changed meanwhile")]
    Changed {
        /// Pages in the plan.
        measured: u64,
        /// Pages written until it was noticed.
        written: u64,
    },
}

/// What a file will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    root: u64,
    pages: u64,
    elements: u64,
}

impl Plan {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    /// Its length in pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// How many keys there are in all buckets.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    fn meta(&self, transaction: u64) -> Meta {
        Meta {
            page_bytes: PAGE_BYTES as u32,
            root: self.root,
            sequence: 0,
            free_list: FREE_LIST_PAGE,
            pages: self.pages,
            transaction,
        }
    }
}

/// The bucket that is being filled.
#[derive(Debug)]
struct Open {
    name: Vec<u8>,
    tree: Tree,
    last_key: Vec<u8>,
}

/// A file that grows: its finished buckets, and the one that is being filled.
#[derive(Debug)]
struct Growing {
    pages: Pages,
    buckets: Tree,
    open: Option<Open>,
    elements: u64,
}

impl Growing {
    fn new(bytes: Option<Vec<u8>>) -> Growing {
        Growing {
            pages: Pages {
                next: FIRST_DATA_PAGE,
                bytes,
            },
            buckets: Tree::new(),
            open: None,
            elements: 0,
        }
    }

    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        check_key(name, name)?;
        if self.open.as_ref().is_some_and(|open| open.name.as_slice() >= name) {
            return Err(WriteError::Order {
                bucket: name.to_vec(),
                key: Vec::new(),
            });
        }
        self.close();
        self.open = Some(Open {
            name: name.to_vec(),
            tree: Tree::new(),
            last_key: Vec::new(),
        });
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: Value<'_>) -> Result<(), WriteError> {
        let open = self.open.as_mut().expect("a key comes after its bucket");
        check_key(&open.name, key)?;
        if value.length() > VALUE_BYTES_MAX {
            return Err(WriteError::Value {
                bucket: open.name.clone(),
                length: value.length(),
            });
        }
        // Keys are not empty, so the first one is behind "no key" too.
        if open.last_key.as_slice() >= key {
            return Err(WriteError::Order {
                bucket: open.name.clone(),
                key: key.to_vec(),
            });
        }
        open.last_key.clear();
        open.last_key.extend_from_slice(key);
        open.tree.put(0, key, value, &mut self.pages);
        self.elements += 1;
        Ok(())
    }

    /// Ends the bucket that is being filled, if there is one.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let mut value = [0; BUCKET_HEADER + PAGE_HEADER];
        let value = match open.tree.finish(&mut self.pages) {
            Some(root) => {
                value[..8].copy_from_slice(&root.to_le_bytes());
                &value[..BUCKET_HEADER]
            }
            // As bbolt has it: no page, but one inside of the value.
            None => {
                let header = PageHeader {
                    id: 0,
                    kind: PageKind::Leaf,
                    count: 0,
                    overflow: 0,
                };
                value[BUCKET_HEADER..].copy_from_slice(&header.encode());
                &value[..]
            }
        };
        self.buckets
            .put(BUCKET_FLAG, &open.name, Value::Bytes(value), &mut self.pages);
    }

    fn finish(mut self) -> (Plan, Pages) {
        self.close();
        let root = self.buckets.finish(&mut self.pages);
        let root = root.unwrap_or_else(|| self.pages.add_empty_leaf());
        let plan = Plan {
            root,
            pages: self.pages.next,
            elements: self.elements,
        };
        (plan, self.pages)
    }
}

fn check_key(bucket: &[u8], key: &[u8]) -> Result<(), WriteError> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(WriteError::Key {
        bucket: bucket.to_vec(),
        length: key.len(),
    })
}

/// The first pass: how long the file will be.
#[derive(Debug)]
pub struct Measure {
    growing: Growing,
}

impl Default for Measure {
    fn default() -> Measure {
        Measure::new()
    }
}

impl Measure {
    /// Begins.
    pub fn new() -> Measure {
        Measure {
            growing: Growing::new(None),
        }
    }

    /// Begins a bucket; names ascend.
    pub fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        self.growing.bucket(name)
    }

    /// Takes the next key of the bucket, and how long its value is; keys ascend.
    ///
    /// # Panics
    /// Before the first bucket.
    pub fn put(&mut self, key: &[u8], value_length: usize) -> Result<(), WriteError> {
        self.growing.put(key, Value::Length(value_length))
    }

    /// Ends.
    pub fn finish(self) -> Plan {
        self.growing.finish().0
    }
}

/// The second pass: the file's bytes. Takes the same buckets and keys again, and values as long as they were said to
/// be.
#[derive(Debug)]
pub struct Writer {
    plan: Plan,
    growing: Growing,
}

impl Writer {
    /// Begins a file that was measured.
    pub fn new(plan: Plan) -> Writer {
        let mut bytes = Vec::with_capacity(FIRST_DATA_PAGE as usize * PAGE_BYTES);
        for id in 0..FIRST_DATA_PAGE {
            let kind = match id {
                FREE_LIST_PAGE => PageKind::FreeList,
                _ => PageKind::Meta,
            };
            let header = PageHeader {
                id,
                kind,
                count: 0,
                overflow: 0,
            };
            bytes.extend_from_slice(&header.encode());
            if id < META_PAGES {
                bytes.extend_from_slice(&plan.meta(TRANSACTION - id).encode());
            }
            bytes.resize((id as usize + 1) * PAGE_BYTES, 0);
        }
        Writer {
            plan,
            growing: Growing::new(Some(bytes)),
        }
    }

    /// The next bucket.
    pub fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        self.growing.bucket(name)?;
        self.check()
    }

    /// The next key of the bucket, with its value.
    ///
    /// # Panics
    /// Before the first bucket.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.growing.put(key, Value::Bytes(value))?;
        self.check()
    }

    /// Bytes that can be taken: whole pages.
    pub fn ready(&self) -> usize {
        self.growing.pages.bytes.as_ref().map_or(0, Vec::len)
    }

    /// Takes the bytes made since the last call. They follow those.
    pub fn take(&mut self) -> Vec<u8> {
        let bytes = self.growing.pages.bytes.as_mut();
        bytes.map(std::mem::take).unwrap_or_default()
    }

    /// Ends the file and returns its last bytes.
    pub fn finish(self) -> Result<Vec<u8>, WriteError> {
        let (written, pages) = self.growing.finish();
        if written != self.plan {
            return Err(WriteError::Changed {
                measured: self.plan.pages,
                written: written.pages,
            });
        }
        Ok(pages.bytes.unwrap_or_default())
    }

    /// A receiver must not get more bytes than it was told.
    fn check(&self) -> Result<(), WriteError> {
        if self.growing.pages.next < self.plan.pages {
            return Ok(());
        }
        Err(WriteError::Changed {
            measured: self.plan.pages,
            written: self.growing.pages.next,
        })
    }
}
