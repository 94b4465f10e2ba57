//! The meta page: which state the file holds. See `docs/pages.md` for the bytes.
//!
//! A meta is written as 16 sectors of 512 bytes, each with its own checksum and the commit's generation. That tells a
//! torn write (sound sectors of two commits) from damage (a sector that is not sound), and only the former lets the
//! start fall back to the older meta.

use super::codec::{take, take_u8, take_u32, take_u64};
use super::page::{ExtentRef, FIRST_DATA_PAGE, NODE_REF_BYTES, NodeRef, TREE_COUNT};
use super::root::{StateFields, TreeRef};
use crate::limits::pages::{HEIGHT_MAX, MEMBERSHIP_MAX_BYTES, PAGE_BYTES};
use bytes::Bytes;

const SECTOR: usize = 512;
const SECTORS: usize = PAGE_BYTES / SECTOR;
const SECTOR_HEADER: usize = 16;
const PAYLOAD: usize = SECTOR - SECTOR_HEADER;
const MAGIC: &[u8; 8] = b"ringdpgs";
/// The version of the file format.
const FORMAT: u32 = 1;

const _: () =
    assert!(512 + EXTENT_BYTES + TREE_COUNT * (NODE_REF_BYTES + 1) + MEMBERSHIP_MAX_BYTES < SECTORS * PAYLOAD);
const EXTENT_BYTES: usize = super::page::EXTENT_REF_BYTES;

/// The content of a meta page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub generation: u64,
    pub trees: [TreeRef; TREE_COUNT],
    pub fields: StateFields,
    /// The file's length in pages.
    pub file_pages: u32,
    /// Where the free list lies, and its length in bytes.
    pub free_list: Option<(ExtentRef, u32)>,
}

impl Meta {
    /// The last page that the commit uses.
    pub fn last_page(&self) -> u32 {
        let roots = self.trees.iter().filter_map(|tree| tree.root);
        let roots = roots.map(|root| root.highest);
        let list = self.free_list.map(|(extent, _)| extent.last());
        roots.chain(list).max().unwrap_or(FIRST_DATA_PAGE - 1)
    }

    /// Writes the meta into a zeroed page.
    pub fn encode(&self, page: &mut [u8]) {
        let mut out = Vec::with_capacity(SECTORS * PAYLOAD);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&self.fields.revision.to_le_bytes());
        out.extend_from_slice(&self.fields.compact_revision.to_le_bytes());
        out.extend_from_slice(&self.fields.applied_index.to_le_bytes());
        out.extend_from_slice(&self.fields.term.to_le_bytes());
        out.extend_from_slice(&self.file_pages.to_le_bytes());
        match &self.free_list {
            None => out.extend_from_slice(&[0; 4 + EXTENT_BYTES]),
            Some((extent, length)) => {
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(&extent.encode());
            }
        }
        for tree in &self.trees {
            out.push(tree.height);
            out.extend_from_slice(&tree.root.map_or([0; NODE_REF_BYTES], |root| root.encode()));
        }
        assert!(self.fields.membership.len() <= MEMBERSHIP_MAX_BYTES);
        out.extend_from_slice(&(self.fields.membership.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.fields.membership);
        out.resize(SECTORS * PAYLOAD, 0);
        for (index, (sector, payload)) in page.chunks_exact_mut(SECTOR).zip(out.chunks_exact(PAYLOAD)).enumerate() {
            sector[4..8].copy_from_slice(&[index as u8, SECTORS as u8, 0, 0]);
            sector[8..SECTOR_HEADER].copy_from_slice(&self.generation.to_le_bytes());
            sector[SECTOR_HEADER..].copy_from_slice(payload);
            let checksum = crc32c::crc32c(&sector[4..]);
            sector[..4].copy_from_slice(&checksum.to_le_bytes());
        }
    }

    fn decode(generation: u64, mut bytes: &[u8]) -> Result<Meta, String> {
        let bytes = &mut bytes;
        let short = || "its content is cut short".to_string();
        if take(bytes, 8) != Some(MAGIC) {
            return Err("it is not a ringd page file".into());
        }
        let format = take_u32(bytes).ok_or_else(short)?;
        if format != FORMAT {
            return Err(format!("it has format {format}, this program reads format {FORMAT}"));
        }
        let page_bytes = take_u32(bytes).ok_or_else(short)?;
        if page_bytes as usize != PAGE_BYTES {
            return Err(format!(
                "its pages have {page_bytes} bytes, this program's {PAGE_BYTES}"
            ));
        }
        Self::decode_body(generation, bytes).ok_or_else(|| "its content is not consistent".into())
    }

    fn decode_body(generation: u64, bytes: &mut &[u8]) -> Option<Meta> {
        let revision = take_u64(bytes)? as i64;
        let compact_revision = take_u64(bytes)? as i64;
        let (applied_index, term) = (take_u64(bytes)?, take_u64(bytes)?);
        let file_pages = take_u32(bytes)?;
        let list_length = take_u32(bytes)?;
        let extent = take(bytes, EXTENT_BYTES)?;
        let free_list = if list_length == 0 {
            None
        } else {
            Some((ExtentRef::decode(extent)?, list_length))
        };
        if let Some((extent, length)) = free_list
            && (extent.last() >= file_pages || u64::from(length) > u64::from(extent.pages) * PAGE_BYTES as u64)
        {
            return None;
        }
        let mut trees = [TreeRef::default(); TREE_COUNT];
        for tree in &mut trees {
            tree.height = take_u8(bytes)?;
            let root = take(bytes, NODE_REF_BYTES)?;
            if tree.height > 0 {
                let root = NodeRef::decode(root)?;
                if tree.height > HEIGHT_MAX || root.highest >= file_pages || root.generation > generation {
                    return None;
                }
                tree.root = Some(root);
            }
        }
        let length = take_u32(bytes)? as usize;
        if length > MEMBERSHIP_MAX_BYTES {
            return None;
        }
        let membership = Bytes::copy_from_slice(take(bytes, length)?);
        let fields = StateFields {
            revision,
            compact_revision,
            applied_index,
            term,
            membership,
        };
        Some(Meta {
            generation,
            trees,
            fields,
            file_pages,
            free_list,
        })
    }
}

/// What a meta page holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Zeros: never written.
    Empty,
    Valid(Box<Meta>),
    /// Sound sectors of several writes; the newest is of this generation.
    Torn {
        newest: u64,
    },
    /// A sector that is not sound, or sound sectors that make no sense. `newest` is of the sound ones.
    Damaged {
        newest: Option<u64>,
        sector: usize,
        reason: String,
    },
}

/// Looks at a meta page.
pub(super) fn inspect(page: &[u8]) -> Slot {
    let mut payload = Vec::with_capacity(SECTORS * PAYLOAD);
    let mut generations = Vec::with_capacity(SECTORS);
    let mut damage = None;
    for (index, sector) in page.chunks_exact(SECTOR).enumerate() {
        match check_sector(index, sector) {
            Ok(generation) => generations.push(generation),
            Err(reason) => {
                damage.get_or_insert((index, reason));
            }
        }
        payload.extend_from_slice(&sector[SECTOR_HEADER..]);
    }
    let (newest, oldest) = (generations.iter().max().copied(), generations.iter().min().copied());
    if let Some((sector, reason)) = damage {
        return Slot::Damaged {
            newest: newest.filter(|&newest| newest > 0),
            sector,
            reason,
        };
    }
    match (newest, oldest) {
        (Some(0), _) | (None, _) => Slot::Empty,
        (Some(newest), oldest) if oldest != Some(newest) => Slot::Torn { newest },
        (Some(generation), _) => match Meta::decode(generation, &payload) {
            Ok(meta) => Slot::Valid(Box::new(meta)),
            Err(reason) => Slot::Damaged {
                newest: Some(generation),
                sector: 0,
                reason,
            },
        },
    }
}

/// The generation of a sector, 0 when it was never written.
fn check_sector(index: usize, sector: &[u8]) -> Result<u64, String> {
    if sector.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let stored = u32::from_le_bytes([sector[0], sector[1], sector[2], sector[3]]);
    let computed = crc32c::crc32c(&sector[4..]);
    if stored != computed && !cfg!(fuzzing) {
        return Err(format!(
            "checksum: computed {computed:#010x}, the sector says {stored:#010x}"
        ));
    }
    if sector[4..8] != [index as u8, SECTORS as u8, 0, 0] {
        return Err("the sector belongs elsewhere".into());
    }
    let mut generation = &sector[8..SECTOR_HEADER];
    match take_u64(&mut generation) {
        Some(generation) if generation > 0 => Ok(generation),
        _ => Err("the sector has no generation".into()),
    }
}

/// The meta to start from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub meta: Box<Meta>,
    /// The page it was found in; the next commit writes the other.
    pub slot: usize,
    /// The other meta, when it is whole.
    pub older: Option<Box<Meta>>,
    /// Higher than any generation on the file.
    pub next_generation: u64,
    /// Why the other meta was passed over, when it was not simply the older one.
    pub note: Option<String>,
}

/// Why no meta can be trusted: the page, the offset in the file, the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub page: usize,
    pub offset: u64,
    pub reason: String,
}

/// Chooses the newest meta; the older one only when the newer is a torn write.
pub(super) fn choose(slots: [Slot; 2]) -> Result<Chosen, Refused> {
    let chosen = |meta: Box<Meta>, slot, newest: u64, note| {
        let next_generation = newest.max(meta.generation) + 1;
        Ok(Chosen {
            meta,
            slot,
            older: None,
            next_generation,
            note,
        })
    };
    let refused = |page: usize, sector: usize, reason: String| {
        Err(Refused {
            page,
            offset: (page * PAGE_BYTES + sector * SECTOR) as u64,
            reason,
        })
    };
    let (meta, slot, other) = match slots {
        [Slot::Valid(first), Slot::Valid(second)] if first.generation == second.generation => {
            return refused(1, 0, format!("both metas say they are commit {}", first.generation));
        }
        [Slot::Valid(first), Slot::Valid(second)] => {
            let newer = usize::from(second.generation > first.generation);
            let (older, meta) = if newer == 1 { (first, second) } else { (second, first) };
            return Ok(Chosen {
                older: Some(older),
                ..chosen(meta, newer, 0, None)?
            });
        }
        [Slot::Valid(meta), other] => (meta, 0, other),
        [other, Slot::Valid(meta)] => (meta, 1, other),
        [Slot::Damaged { sector, reason, .. }, _] => return refused(0, sector, reason),
        [_, Slot::Damaged { sector, reason, .. }] => return refused(1, sector, reason),
        [first, _] => {
            let reason = if first == Slot::Empty {
                "both metas were never written"
            } else {
                "no meta is whole"
            };
            return refused(0, 0, reason.into());
        }
    };
    match other {
        Slot::Empty if meta.generation == 1 => chosen(meta, slot, 0, None),
        Slot::Empty => refused(1 - slot, 0, "zeros where a meta was written before".into()),
        Slot::Torn { newest } if newest > meta.generation => {
            let note = format!("meta page {} is a torn write of commit {newest}", 1 - slot);
            chosen(meta, slot, newest, Some(note))
        }
        Slot::Torn { newest } => refused(
            1 - slot,
            0,
            format!("a torn write of commit {newest}, which had succeeded"),
        ),
        // The newer meta is whole, so the older one is only noted; the next commit overwrites it.
        Slot::Damaged {
            newest: Some(newest),
            sector,
            reason,
        } if newest < meta.generation => {
            let note = format!(
                "the older meta, page {}, is damaged in sector {sector}: {reason}",
                1 - slot
            );
            chosen(meta, slot, 0, Some(note))
        }
        Slot::Damaged { sector, reason, .. } => refused(1 - slot, sector, reason),
        Slot::Valid(_) => unreachable!("handled above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn meta(generation: u64) -> Meta {
        let mut trees = [TreeRef::default(); TREE_COUNT];
        let root = NodeRef {
            page: 3,
            highest: 5,
            generation: 1,
            checksum: 9,
        };
        trees[0] = TreeRef {
            root: Some(root),
            height: 2,
        };
        Meta {
            generation,
            trees,
            fields: StateFields {
                revision: 40 + generation as i64,
                compact_revision: 7,
                applied_index: 90,
                term: 3,
                membership: Bytes::from(vec![5; 3000]),
            },
            file_pages: 8,
            free_list: Some((
                ExtentRef {
                    page: 6,
                    pages: 1,
                    generation,
                    checksum: 4,
                },
                12,
            )),
        }
    }

    fn page(generation: u64) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        meta(generation).encode(&mut page);
        page
    }

    #[test]
    fn the_newest_is_chosen() {
        assert_eq!(inspect(&page(4)), Slot::Valid(Box::new(meta(4))));
        let chosen = choose([inspect(&page(4)), inspect(&page(5))]).unwrap();
        assert_eq!((chosen.meta.generation, chosen.slot, chosen.next_generation), (5, 1, 6));
        let chosen = choose([inspect(&page(1)), Slot::Empty]).unwrap();
        assert_eq!((chosen.meta.generation, chosen.slot), (1, 0));
        assert!(choose([inspect(&page(2)), Slot::Empty]).is_err());
        assert!(choose([Slot::Empty, Slot::Empty]).is_err());
    }

    #[test]
    fn every_torn_write_falls_back_and_never_reuses_its_generation() {
        let (old, new) = (page(3), page(5));
        for kept in 1..(1u32 << SECTORS) - 1 {
            let mut torn = new.clone();
            for sector in (0..SECTORS).filter(|sector| kept & (1 << sector) != 0) {
                torn[sector * SECTOR..(sector + 1) * SECTOR]
                    .copy_from_slice(&old[sector * SECTOR..(sector + 1) * SECTOR]);
            }
            if kept % 97 != 0 && kept.count_ones() > 1 {
                continue;
            }
            let chosen = choose([inspect(&page(4)), inspect(&torn)]).unwrap();
            assert_eq!((chosen.meta.generation, chosen.slot, chosen.next_generation), (4, 0, 6));
            assert!(chosen.note.is_some());
        }
    }

    #[test]
    fn every_flipped_bit_of_the_newer_stops_the_start_and_of_the_older_is_noted() {
        for bit in 0..PAGE_BYTES * 8 {
            if bit % 7 != 0 {
                continue;
            }
            let mut newer = page(5);
            newer[bit / 8] ^= 1 << (bit % 8);
            let refused = choose([inspect(&page(4)), inspect(&newer)]).unwrap_err();
            assert_eq!(
                (refused.page, refused.offset),
                (1, (PAGE_BYTES + bit / 8 / SECTOR * SECTOR) as u64)
            );
            let mut older = page(3);
            older[bit / 8] ^= 1 << (bit % 8);
            let chosen = choose([inspect(&page(4)), inspect(&older)]).unwrap();
            assert_eq!(chosen.meta.generation, 4);
            assert!(chosen.note.is_some());
        }
        assert!(choose([inspect(&page(4)), inspect(&[0xff; PAGE_BYTES])]).is_err());
    }
}
