//! The bytes of a bbolt file's pages: headers, elements, meta pages (`docs/bbolt.md`). All integers are little endian.

/// Size of the pages that are written. Readers take what the meta page says.
pub(super) const PAGE_BYTES: usize = 4096;
/// A leaf takes elements up to this size, if need be in overflow pages: of values of half a page and more little room
/// would be used in leaves of one page.
pub(super) const LEAF_BYTES: usize = 8 * PAGE_BYTES;
/// Sizes of pages that bbolt may have written: those of its machines.
pub(super) const PAGE_BYTES_RANGE: std::ops::RangeInclusive<usize> = 1024..=65_536;
/// Length of a page's header.
pub(super) const PAGE_HEADER: usize = 16;
/// Length of an element of a leaf, and of a branch, without its bytes.
pub(super) const ELEMENT: usize = 16;
/// Length of a bucket's value, without an inline page.
pub(super) const BUCKET_HEADER: usize = 16;
/// Length of a meta, behind its page's header.
pub(super) const META: usize = 64;
/// A leaf element with this flag is a bucket.
pub(super) const BUCKET_FLAG: u32 = 0x01;
/// The first pages: the metas and the free list.
pub(super) const META_PAGES: u64 = 2;
pub(super) const FREE_LIST_PAGE: u64 = 2;
pub(super) const FIRST_DATA_PAGE: u64 = 3;

/// What is wrong with a page that is not meant to be a meta page.
pub(super) const NOT_A_META: &str = "it is no bbolt meta page";

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Branch,
    Leaf,
    Meta,
    FreeList,
}

impl PageKind {
    fn flags(self) -> u16 {
        match self {
            PageKind::Branch => 0x01,
            PageKind::Leaf => 0x02,
            PageKind::Meta => 0x04,
            PageKind::FreeList => 0x10,
        }
    }

    fn of(flags: u16) -> Option<PageKind> {
        let kinds = [PageKind::Branch, PageKind::Leaf, PageKind::Meta, PageKind::FreeList];
        kinds.into_iter().find(|kind| kind.flags() == flags)
    }
}

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Its number.
    pub id: u64,
    pub kind: PageKind,
    /// Elements.
    pub count: u16,
    /// Pages that follow and belong to it.
    pub overflow: u32,
}

impl PageHeader {
    pub fn encode(&self) -> [u8; PAGE_HEADER] {
        let mut out = [0; PAGE_HEADER];
        out[..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..10].copy_from_slice(&self.kind.flags().to_le_bytes());
        out[10..12].copy_from_slice(&self.count.to_le_bytes());
        out[12..].copy_from_slice(&self.overflow.to_le_bytes());
        out
    }

    /// `None` when the flags name no kind of page.
    pub fn decode(bytes: &[u8; PAGE_HEADER]) -> Option<PageHeader> {
        Some(PageHeader {
            id: u64_at(bytes, 0),
            kind: PageKind::of(u16::from_le_bytes([bytes[8], bytes[9]]))?,
            count: u16::from_le_bytes([bytes[10], bytes[11]]),
            overflow: u32_at(bytes, 12),
        })
    }
}

/// An element of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeafElement {
    pub flags: u32,
    /// Where its bytes begin, counted from the element: the key, then the value.
    pub position: u32,
    pub key_length: u32,
    pub value_length: u32,
}

impl LeafElement {
    pub fn encode(&self) -> [u8; ELEMENT] {
        let mut out = [0; ELEMENT];
        for (at, field) in [self.flags, self.position, self.key_length, self.value_length]
            .into_iter()
            .enumerate()
        {
            out[at * 4..at * 4 + 4].copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8; ELEMENT]) -> LeafElement {
        LeafElement {
            flags: u32_at(bytes, 0),
            position: u32_at(bytes, 4),
            key_length: u32_at(bytes, 8),
            value_length: u32_at(bytes, 12),
        }
    }
}

/// An element of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BranchElement {
    /// Where its key begins, counted from the element.
    pub position: u32,
    pub key_length: u32,
    /// The child's page.
    pub page: u64,
}

impl BranchElement {
    pub fn encode(&self) -> [u8; ELEMENT] {
        let mut out = [0; ELEMENT];
        out[..4].copy_from_slice(&self.position.to_le_bytes());
        out[4..8].copy_from_slice(&self.key_length.to_le_bytes());
        out[8..].copy_from_slice(&self.page.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; ELEMENT]) -> BranchElement {
        BranchElement {
            position: u32_at(bytes, 0),
            key_length: u32_at(bytes, 4),
            page: u64_at(bytes, 8),
        }
    }
}

/// What a meta page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub page_bytes: u32,
    /// The root of the bucket of buckets, and its sequence.
    pub root: u64,
    pub sequence: u64,
    /// The free list's page; `u64::MAX` if it was not written.
    pub free_list: u64,
    /// All pages in use lie before this one.
    pub pages: u64,
    /// The transaction that wrote it.
    pub transaction: u64,
}

impl Meta {
    pub fn encode(&self) -> [u8; META] {
        let mut out = [0; META];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..12].copy_from_slice(&self.page_bytes.to_le_bytes());
        let fields = [self.root, self.sequence, self.free_list, self.pages, self.transaction];
        for (at, field) in fields.into_iter().enumerate() {
            out[16 + at * 8..24 + at * 8].copy_from_slice(&field.to_le_bytes());
        }
        Meta::seal(&mut out);
        out
    }

    /// Sets the checksum.
    pub fn seal(bytes: &mut [u8; META]) {
        let sum = checksum(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
    }

    /// The error says what is wrong.
    pub fn decode(bytes: &[u8; META]) -> Result<Meta, &'static str> {
        if u32_at(bytes, 0) != MAGIC {
            return Err(NOT_A_META);
        }
        if u32_at(bytes, 4) != VERSION {
            return Err("it has another version of the format than 2");
        }
        if u64_at(bytes, 56) != checksum(&bytes[..56]) {
            return Err("its checksum is wrong");
        }
        Ok(Meta {
            page_bytes: u32_at(bytes, 8),
            root: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            free_list: u64_at(bytes, 32),
            pages: u64_at(bytes, 40),
            transaction: u64_at(bytes, 48),
        })
    }
}

/// FNV-1a of 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_fnv_1a() {
        // Test vectors of draft-eastlake-fnv.
        assert_eq!(checksum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(checksum(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let meta = Meta {
            page_bytes: 4096,
            root: 7,
            sequence: 1,
            free_list: u64::MAX,
            pages: 8,
            transaction: 9,
        };
        assert_eq!(Meta::decode(&meta.encode()), Ok(meta));
        for at in 0..META {
            let mut changed = meta.encode();
            changed[at] ^= 0x10;
            assert!(Meta::decode(&changed).is_err(), "byte {at}");
        }
        let header = PageHeader {
            id: 5,
            kind: PageKind::Leaf,
            count: 3,
            overflow: 2,
        };
        assert_eq!(PageHeader::decode(&header.encode()), Some(header));
        assert_eq!(PageHeader::decode(&[0; 16]), None);
    }
}
