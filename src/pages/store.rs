//! The store: the file, its newest commit, its free space, and the readers that hold older commits.
//!
//! Owned by one thread. A checkpoint is begun with a [`Cut`] and then driven with [`PageStore::step`] and
//! [`PageStore::completed`] (`checkpoint`); afterwards the store gives space back (`space`).

use super::cache::PageCache;
use super::checkpoint::Checkpoint;
use super::failure::StoreFailure;
use super::free::FreeSpace;
use super::meta::{self, Chosen, Meta};
use super::page::{ExtentRef, FIRST_DATA_PAGE, PageAddress, TREE_COUNT, checksum};
use super::root::{Root, RootInner, StateFields, TreeRef};
use super::space::SpaceReturn;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, DiskError, FileId, OpenMode, Operation, Outcome};
use crate::limits::pages::{
    CHUNK_PAGES, OPERATIONS, PAGE_BYTES, RESERVE_PAGES, WRITER_CACHE_BYTES, WRITER_CACHE_BYTES_MIN,
};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// How a store behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens of the disk that are the store's own. At most `limits::pages::OPERATIONS` are used.
    pub tokens: Range<u64>,
    /// Pages kept for urgent checkpoints. They must hold what may wait for a checkpoint when the disk gets full.
    pub reserve_pages: u32,
    /// The file never gets longer than this many bytes.
    pub limit_bytes: u64,
    /// Bytes of the checkpoints' page cache.
    pub cache_bytes: usize,
}

impl Options {
    /// The default reserve and no limit but the format's.
    pub fn new(tokens: Range<u64>) -> Options {
        Options {
            tokens,
            reserve_pages: RESERVE_PAGES,
            limit_bytes: u64::MAX,
            cache_bytes: WRITER_CACHE_BYTES,
        }
    }
}

/// An older commit that is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The commit.
    pub generation: u64,
    /// Since when it is not the newest any more: milliseconds, by the times given with the cuts.
    pub age_ms: u64,
    /// Bytes of the file that can't be reused because of it.
    pub held_bytes: u64,
}

pub(super) struct Published {
    pub generation: u64,
    pub root: Weak<RootInner>,
    /// `None` for the newest.
    pub superseded_ms: Option<u64>,
}

/// What the store is doing.
pub(super) enum Activity {
    Idle,
    Checkpoint(Box<Checkpoint>),
    SpaceReturn(SpaceReturn),
}

/// An operation the disk works on.
#[derive(Clone, Copy, Debug)]
pub(super) enum InFlight {
    Write { page: u32, bytes: usize },
    Read { address: PageAddress },
    Sync,
    Meta,
    Space,
}

/// The page file and its state.
pub struct PageStore {
    pub(super) file: FileId,
    path: PathBuf,
    pub(super) options: Options,
    pub(super) slots: Vec<Option<InFlight>>,
    pub(super) in_flight: usize,
    pub(super) in_flight_bytes: usize,
    /// Pages read by checkpoints.
    pub(super) cache: PageCache,
    /// Taken over by a running checkpoint.
    pub(super) space: FreeSpace,
    pub(super) root: Root,
    pub(super) meta_slot: usize,
    /// The commit of the other meta page; 0 when it is not known to be whole.
    pub(super) older_generation: u64,
    pub(super) older_applied_index: u64,
    pub(super) next_generation: u64,
    pub(super) free_list: Option<(ExtentRef, u32)>,
    pub(super) published: Vec<Published>,
    pub(super) activity: Activity,
    pub(super) dead: bool,
    pub(super) sizes: (u64, u64),
    pub(super) space_return_off: bool,
    pub(super) warnings: Vec<String>,
}

impl PageStore {
    /// Creates a file that holds nothing, durable under its name before this returns, and opens it.
    pub fn create(disk: &mut dyn Disk, path: &Path, options: Options) -> Result<PageStore, StoreFailure> {
        let fail = |source| StoreFailure::Disk {
            doing: "creating it",
            source,
        };
        let mut name = path.as_os_str().to_owned();
        name.push(".creating");
        let temporary = PathBuf::from(name);
        let mut buffer = AlignedBuffer::zeroed(FIRST_DATA_PAGE as usize * PAGE_BYTES);
        let trees = [TreeRef::default(); TREE_COUNT];
        let fields = StateFields::default();
        let meta = Meta {
            generation: 1,
            trees,
            fields,
            file_pages: FIRST_DATA_PAGE,
            free_list: None,
        };
        meta.encode(&mut buffer[..PAGE_BYTES]);
        disk.create_whole(path, &temporary, buffer).map_err(fail)?;
        Self::open(disk, path, options)
    }

    /// Opens a file and takes its newest commit. What is read is made durable first: a process that died before may
    /// have left it in a volatile cache. The newest meta is written again as well: a cache may go on showing what it
    /// dropped when a sync failed, and all else that the commit needs was synced before its meta was written.
    pub fn open(disk: &mut dyn Disk, path: &Path, options: Options) -> Result<PageStore, StoreFailure> {
        let fail = |source| StoreFailure::Disk {
            doing: "opening it",
            source,
        };
        let (file, length) = disk.open(path, OpenMode::Existing).map_err(fail)?;
        disk.call(Operation::Sync { file }).map_err(fail)?;
        if let Some(directory) = path.parent() {
            disk.call(Operation::SyncDirectory {
                path: directory.to_path_buf(),
            })
            .map_err(fail)?;
        }
        let (chosen, page) = read_metas(disk, file, path)?;
        let Chosen {
            meta,
            slot,
            older,
            next_generation,
            note,
        } = chosen;
        let needed = u64::from(meta.last_page() + 1) * PAGE_BYTES as u64;
        if length < needed {
            return Err(StoreFailure::Cut {
                path: path.to_path_buf(),
                length,
                needed,
            });
        }
        let mut space = read_free_list(disk, file, path, &meta)?;
        fit_length(&mut space, length).map_err(|needed| StoreFailure::Cut {
            path: path.to_path_buf(),
            length,
            needed,
        })?;
        space.reserve = options.reserve_pages;
        space.limit = u32::try_from(options.limit_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        write_meta(disk, file, slot, page).map_err(fail)?;
        let root = Root::new(meta.generation, meta.trees, meta.fields);
        assert!(!options.tokens.is_empty(), "the store needs a token");
        let operations = OPERATIONS.min((options.tokens.end - options.tokens.start) as usize);
        let mut store = PageStore {
            file,
            path: path.to_path_buf(),
            cache: PageCache::new(options.cache_bytes.max(WRITER_CACHE_BYTES_MIN)),
            options,
            slots: vec![None; operations],
            in_flight: 0,
            in_flight_bytes: 0,
            space,
            root,
            meta_slot: slot,
            older_generation: older.as_ref().map_or(0, |older| older.generation),
            older_applied_index: older.map_or(0, |older| older.fields.applied_index),
            next_generation,
            free_list: meta.free_list,
            published: Vec::new(),
            activity: Activity::Idle,
            dead: false,
            sizes: (0, 0),
            space_return_off: false,
            warnings: note.into_iter().collect(),
        };
        store.publish(0);
        store.note_sizes();
        Ok(store)
    }

    /// The newest durable commit.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The file, for readers on the same disk.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The file's path, for readers that open it on a disk of their own.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log is needed behind this raft index: the applied index of the older meta, which a start may fall back to; 0
    /// when that is not known.
    pub fn log_needed_after(&self) -> u64 {
        self.older_applied_index
    }

    /// Bytes from the file's start to the end of its last page in use, without the reserve: what etcd calls the size of
    /// the database.
    pub fn size(&self) -> u64 {
        self.sizes.0
    }

    /// Bytes in use by the newest commit.
    pub fn size_in_use(&self) -> u64 {
        self.sizes.1
    }

    /// Whether a checkpoint that is not urgent can be expected to find room: free pages beyond the reserve, or a file
    /// that may grow on a disk that was not found full.
    pub fn has_room(&self) -> bool {
        let space = self.space();
        let usable = match space.full {
            true => space.backed_pages(),
            false => space.available.pages().saturating_add(space.room()),
        };
        usable > space.reserve.saturating_add(CHUNK_PAGES)
    }

    /// Things worth logging since the last call, e.g. that the newer meta was a torn write.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Older commits that readers hold, oldest first.
    pub fn pins(&self, now_ms: u64) -> Vec<Pin> {
        let held = self.published.iter().filter(|published| published.is_held());
        held.filter_map(|published| {
            Some(Pin {
                generation: published.generation,
                age_ms: now_ms.saturating_sub(published.superseded_ms?),
                held_bytes: self.space().held_pages(published.generation) * PAGE_BYTES as u64,
            })
        })
        .collect()
    }

    /// Stops keeping a commit that readers still hold; their reads fail with `Expired` from now on.
    pub fn expire(&mut self, generation: u64) {
        assert_ne!(generation, self.root.generation(), "the newest commit can't expire");
        for published in self
            .published
            .iter()
            .filter(|published| published.generation == generation)
        {
            if let Some(root) = published.root.upgrade() {
                root.expired.store(true, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn space(&self) -> &FreeSpace {
        match &self.activity {
            Activity::Checkpoint(checkpoint) => checkpoint.space(),
            _ => &self.space,
        }
    }

    /// Registers the newest root; the one before is superseded.
    pub(super) fn publish(&mut self, now_ms: u64) {
        for published in &mut self.published {
            published.superseded_ms.get_or_insert(now_ms);
        }
        self.published.retain(Published::is_held);
        let root = std::sync::Arc::downgrade(&self.root.inner);
        self.published.push(Published {
            generation: self.root.generation(),
            root,
            superseded_ms: None,
        });
    }

    /// Generations of the roots that readers hold, but for the newest.
    pub(super) fn live(&mut self) -> Vec<u64> {
        self.published.retain(Published::is_held);
        // A reader that let go has made its last use of the pages visible before.
        std::sync::atomic::fence(Ordering::Acquire);
        let newest = self.root.generation();
        let generations = self.published.iter().map(|root| root.generation);
        generations.filter(|&generation| generation != newest).collect()
    }

    /// The reserve counts for nothing wherever it lies: a file that grows leaves it behind among the pages in use.
    pub(super) fn note_sizes(&mut self) {
        let space = &self.space;
        let tail = match space.available.last() {
            Some((start, length)) if start + length == space.file_pages => length,
            _ => 0,
        };
        let reserved = space.reserve.saturating_sub(tail).min(space.available.pages() - tail);
        let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES as u64;
        self.sizes = (bytes(space.file_pages - tail - reserved), bytes(space.used_pages()));
    }
}

impl Published {
    /// Whether a reader holds it that may still read from it.
    fn is_held(&self) -> bool {
        self.root
            .upgrade()
            .is_some_and(|root| !root.expired.load(Ordering::SeqCst))
    }
}

/// Reads both meta pages; the one to start from and its bytes.
fn read_metas(disk: &mut dyn Disk, file: FileId, path: &Path) -> Result<(Chosen, AlignedBuffer), StoreFailure> {
    let refused = |page, offset, reason| StoreFailure::Meta {
        path: path.to_path_buf(),
        page,
        offset,
        reason,
    };
    let (mut slots, mut pages) = (Vec::with_capacity(2), Vec::with_capacity(2));
    for page in 0..2 {
        let offset = page * PAGE_BYTES as u64;
        let (buffer, length) = disk
            .read(file, offset, PAGE_BYTES)
            .map_err(|source| StoreFailure::Disk {
                doing: "reading its meta pages",
                source,
            })?;
        if length < PAGE_BYTES {
            return Err(refused(page as usize, offset, "the file ends before it".into()));
        }
        slots.push(meta::inspect(&buffer[..PAGE_BYTES]));
        pages.push(buffer);
    }
    let second = slots.swap_remove(1);
    let first = slots.swap_remove(0);
    let chosen = meta::choose([first, second]).map_err(|found| refused(found.page, found.offset, found.reason))?;
    let page = pages.swap_remove(chosen.slot);
    Ok((chosen, page))
}

fn write_meta(disk: &mut dyn Disk, file: FileId, slot: usize, buffer: AlignedBuffer) -> Result<(), DiskError> {
    let (offset, durable) = ((slot * PAGE_BYTES) as u64, true);
    let write = Operation::Write {
        file,
        offset,
        buffer,
        durable,
    };
    disk.call(write).map(|_| ())
}

fn read_free_list(disk: &mut dyn Disk, file: FileId, path: &Path, meta: &Meta) -> Result<FreeSpace, StoreFailure> {
    let Some((extent, length)) = meta.free_list else {
        let empty = FreeSpace::decode(&[0, 0], meta.generation, meta.file_pages);
        return Ok(empty.expect("a list of nothing"));
    };
    let address = extent.address();
    let corrupt = |reason: &str| StoreFailure::Corrupt {
        path: path.to_path_buf(),
        source: address.corrupt(reason),
    };
    let (buffer, count) = disk
        .read(file, address.offset(), address.length())
        .map_err(|source| StoreFailure::Disk {
            doing: "reading its free list",
            source,
        })?;
    if count < address.length() {
        return Err(corrupt("the free list ends early"));
    }
    if checksum(address.kind, &buffer[..address.length()]) != extent.checksum && !cfg!(fuzzing) {
        return Err(corrupt("the free list's checksum is wrong"));
    }
    FreeSpace::decode(&buffer[..length as usize], meta.generation, meta.file_pages)
        .ok_or_else(|| corrupt("the free list makes no sense"))
}

/// Fits free space to a file that was cut, or is longer than the newest commit says: free pages come and go at its
/// end without a commit. The error is the length the file should have.
fn fit_length(space: &mut FreeSpace, length: u64) -> Result<(), u64> {
    let there = u32::try_from(length / PAGE_BYTES as u64).unwrap_or(u32::MAX - 1);
    let said = space.file_pages;
    if there > said {
        space.available.insert(said, there - said);
        space.unbacked.insert(said, there - said);
    } else if there < said {
        if !space.available.contains(there, said - there) {
            return Err(u64::from(said) * PAGE_BYTES as u64);
        }
        space.available.remove(there, said - there);
        space.unbacked.remove(there, said - there);
    }
    space.file_pages = there;
    Ok(())
}

impl std::fmt::Debug for PageStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PageStore({}, {:?})", self.path.display(), self.root)
    }
}

/// What a disk answers to a read.
pub(super) fn read_outcome(outcome: Outcome) -> (AlignedBuffer, usize) {
    match outcome {
        Outcome::Read { buffer, length } => (buffer, length),
        other => unreachable!("a read answered {other:?}"),
    }
}
