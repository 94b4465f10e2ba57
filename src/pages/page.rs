//! What names a page: numbers, generations, checksums; and the two failures of reading one.
//!
//! A page is 8192 bytes. Tree nodes take one page, extents a run of pages. Whoever points to a node or an extent holds
//! its number, generation (the commit that wrote it) and checksum, so that a page that is old, torn or misplaced can't
//! be taken for the right one.

use super::codec::{take_u32, take_u64};
use crate::limits::pages::PAGE_BYTES;
use std::fmt;

/// Pages 0 and 1 hold the two metas.
pub(super) const FIRST_DATA_PAGE: u32 = 2;
/// Bytes of an encoded `NodeRef`.
pub(super) const NODE_REF_BYTES: usize = 20;
/// Bytes of an encoded `ExtentRef`.
pub(super) const EXTENT_REF_BYTES: usize = 20;

/// One of the trees of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TreeId {
    /// Records by revision; read through `Root::record` and `Root::scan`.
    Records = 0,
    /// Leases by id.
    Leases = 1,
    /// Users by name.
    Users = 2,
    /// Roles by name.
    Roles = 3,
    /// Members, and ids of removed ones.
    Members = 4,
    /// Raised alarms.
    Alarms = 5,
    /// Everything small that has no tree of its own.
    Meta = 6,
}

/// Trees a file has room for; part of the format.
pub(super) const TREE_COUNT: usize = 8;

impl TreeId {
    /// All trees, in the order in which a checkpoint writes them.
    pub const ALL: [TreeId; 7] = [
        TreeId::Records,
        TreeId::Leases,
        TreeId::Users,
        TreeId::Roles,
        TreeId::Members,
        TreeId::Alarms,
        TreeId::Meta,
    ];
}

/// A parent's knowledge of a tree node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRef {
    pub page: u32,
    /// The highest page number of the subtree, extents included: finds what keeps the file long.
    pub highest: u32,
    pub generation: u64,
    pub checksum: u32,
}

impl NodeRef {
    pub fn encode(&self) -> [u8; NODE_REF_BYTES] {
        let mut out = [0; NODE_REF_BYTES];
        out[..4].copy_from_slice(&self.page.to_le_bytes());
        out[4..8].copy_from_slice(&self.highest.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// Reads an encoding; `None` when it is cut short or names a page that can't be one.
    pub fn decode(mut bytes: &[u8]) -> Option<NodeRef> {
        let node = NodeRef {
            page: take_u32(&mut bytes)?,
            highest: take_u32(&mut bytes)?,
            generation: take_u64(&mut bytes)?,
            checksum: take_u32(&mut bytes)?,
        };
        (node.page >= FIRST_DATA_PAGE && node.highest >= node.page).then_some(node)
    }

    pub fn address(&self, tree: u8, level: u8) -> PageAddress {
        PageAddress {
            number: self.page,
            pages: 1,
            generation: self.generation,
            checksum: self.checksum,
            kind: Kind::Node { tree, level },
        }
    }
}

/// A leaf's knowledge of a run of pages that holds values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExtentRef {
    pub page: u32,
    pub pages: u32,
    pub generation: u64,
    pub checksum: u32,
}

impl ExtentRef {
    pub fn encode(&self) -> [u8; EXTENT_REF_BYTES] {
        let mut out = [0; EXTENT_REF_BYTES];
        out[..4].copy_from_slice(&self.page.to_le_bytes());
        out[4..8].copy_from_slice(&self.pages.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// Reads an encoding; `None` when it is cut short or names pages that can't be an extent.
    pub fn decode(mut bytes: &[u8]) -> Option<ExtentRef> {
        let extent = ExtentRef {
            page: take_u32(&mut bytes)?,
            pages: take_u32(&mut bytes)?,
            generation: take_u64(&mut bytes)?,
            checksum: take_u32(&mut bytes)?,
        };
        let ends = extent.page.checked_add(extent.pages).is_some();
        let bounded = extent.pages as usize <= crate::limits::pages::VALUE_MAX_BYTES / PAGE_BYTES + 1;
        (extent.page >= FIRST_DATA_PAGE && extent.pages > 0 && ends && bounded).then_some(extent)
    }

    pub fn last(&self) -> u32 {
        self.page + self.pages - 1
    }

    pub fn address(&self) -> PageAddress {
        PageAddress {
            number: self.page,
            pages: self.pages,
            generation: self.generation,
            checksum: self.checksum,
            kind: Kind::Extent,
        }
    }
}

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Node { tree: u8, level: u8 },
    Extent,
}

/// A page, or a run of pages, that a reader needs and its cache does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageAddress {
    pub(super) number: u32,
    pub(super) pages: u32,
    pub(super) generation: u64,
    pub(super) checksum: u32,
    pub(super) kind: Kind,
}

impl PageAddress {
    /// Where it starts in the file, in bytes; a multiple of 4096.
    pub fn offset(&self) -> u64 {
        u64::from(self.number) * PAGE_BYTES as u64
    }

    /// Its length in bytes; a multiple of 4096.
    pub fn length(&self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    /// What is said of it when it can't be read, or is not what it should be.
    pub fn corrupt(&self, reason: impl Into<String>) -> Corrupt {
        Corrupt {
            page: self.number,
            offset: self.offset(),
            generation: self.generation,
            reason: reason.into(),
        }
    }
}

/// A page that is not what its parent says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// The page's number.
    pub page: u32,
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// The commit that wrote it.
    pub generation: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "page {} at byte offset {} (written by commit {}) is damaged: {}",
            self.page, self.offset, self.generation, self.reason
        )
    }
}

impl std::error::Error for Corrupt {}

/// Why a read did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFailure {
    /// The cache lacks this page: load its bytes, hand them to `Root::insert`, call again.
    #[error("page {} is not in the cache", .0.number)]
    Missing(PageAddress),
    /// The page on disk is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The root was held too long and its pages may be reused (`PageStore::expire`).
    #[error("the read took too long: the state of revision {revision} is no longer kept")]
    Expired {
        /// The store revision of the root.
        revision: i64,
    },
}

/// The checksum of a whole page or extent. A node's own checksum field, its first four bytes, is left out.
pub(super) fn checksum(kind: Kind, bytes: &[u8]) -> u32 {
    match kind {
        Kind::Node { .. } => crc32c::crc32c(&bytes[4..]),
        Kind::Extent => crc32c::crc32c(bytes),
    }
}

/// Pages that `bytes` bytes take.
pub(super) fn pages_for(bytes: usize) -> u32 {
    bytes.div_ceil(PAGE_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_round_trip_and_refuse_the_meta_pages() {
        let node = NodeRef {
            page: 7,
            highest: 9,
            generation: 3,
            checksum: 11,
        };
        assert_eq!(NodeRef::decode(&node.encode()), Some(node));
        assert_eq!(NodeRef::decode(&NodeRef { page: 1, ..node }.encode()), None);
        assert_eq!(NodeRef::decode(&NodeRef { highest: 6, ..node }.encode()), None);
        let extent = ExtentRef {
            page: 7,
            pages: 9,
            generation: 3,
            checksum: 11,
        };
        assert_eq!(ExtentRef::decode(&extent.encode()), Some(extent));
        assert_eq!(ExtentRef::decode(&ExtentRef { pages: 0, ..extent }.encode()), None);
        assert_eq!(
            ExtentRef::decode(
                &ExtentRef {
                    pages: u32::MAX,
                    ..extent
                }
                .encode()
            ),
            None
        );
    }
}
