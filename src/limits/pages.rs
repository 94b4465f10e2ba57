//! Bounds of the page store.

/// Size of a page, the unit of allocation and of every tree node. Part of the file format.
pub const PAGE_BYTES: usize = 8192;
/// Longest key of a small tree; a record's user key up to this length lies in the leaf.
pub const KEY_MAX_BYTES: usize = 1024;
/// Longest value that lies in the leaf; longer ones lie in an extent.
pub const INLINE_VALUE_MAX_BYTES: usize = 512;
/// Values up to half of this share an extent of up to this size.
pub const EXTENT_PACK_BYTES: usize = 32 << 10;
/// A shared extent ends here when its pages are well filled: reading one value reads the whole extent.
pub const EXTENT_TARGET_BYTES: usize = 16 << 10;
/// Largest value the store takes; requests are bounded far below.
pub const VALUE_MAX_BYTES: usize = 1 << 30;
/// Levels of a tree, leaves included. A tree as high as this would not fit into a file.
pub const HEIGHT_MAX: u8 = 12;
/// Opaque bytes of conf state and membership within a meta page.
pub const MEMBERSHIP_MAX_BYTES: usize = 4096;

/// Consecutive pages a checkpoint reserves at once and writes with one operation.
pub const CHUNK_PAGES: u32 = 32;
/// Bytes of a checkpoint that wait for the disk or are being written.
pub const IN_FLIGHT_BYTES: usize = 4 << 20;
/// Bytes of one write of a long extent.
pub const WRITE_BYTES: usize = 256 << 10;
/// Operations a checkpoint has in flight.
pub const OPERATIONS: usize = 64;
/// Units of work (a leaf merged, some records appended) of one step: a few hundred microseconds.
pub const STEP_UNITS: usize = 8;
/// Records appended by one unit of work.
pub const APPEND_UNIT_RECORDS: usize = 32;
/// Freed runs that one unit of work makes available.
pub const RECLAIM_UNIT_RUNS: usize = 32;
/// Pages read ahead by a checkpoint.
pub const READ_AHEAD: usize = 32;
/// Bytes of the checkpoint's own page cache unless options say otherwise, and at least.
pub const WRITER_CACHE_BYTES: usize = 8 << 20;
pub const WRITER_CACHE_BYTES_MIN: usize = 4 * READ_AHEAD * PAGE_BYTES;
/// Entries a page cache keeps whatever their size, so that a reader always gets on: a path of a tree and two extents.
pub const CACHE_MIN_ENTRIES: usize = HEIGHT_MAX as usize + 4;

/// Pages that deletes may write in one checkpoint; what is left over is handed back to the caller.
pub const DELETE_PAGES: u32 = 4096;
/// Pages kept free for the checkpoint and the compaction that run when the disk is full, unless options say otherwise.
pub const RESERVE_PAGES: u32 = 2048;
/// Free pages beyond the reserve that are allocated ahead, so that a small checkpoint needs no growth.
pub const HEADROOM_PAGES: u32 = 256;
/// Pages moved towards the file's start by one checkpoint.
pub const RELOCATE_PAGES: u32 = 512;
/// Free pages below the highest page in use, in percent of it, from which on pages are moved.
pub const RELOCATE_FREE_PERCENT: u32 = 20;
/// Shortest free run whose blocks are given back to the file system.
pub const PUNCH_MIN_PAGES: u32 = 128;
/// Pages whose blocks are given back after one checkpoint.
pub const PUNCH_PAGES: u32 = 8192;
/// Operations that give space back after one checkpoint.
pub const PUNCH_OPERATIONS: usize = 16;

/// Leaves read at once when the index is rebuilt at boot.
pub const BOOT_LEAVES: usize = 1024;
/// Longest read at boot.
pub const BOOT_READ_BYTES: usize = 1 << 20;
/// Reads in flight at boot.
pub const BOOT_READS: usize = 64;
/// Bytes of buffers that wait to be used again at boot.
pub const BOOT_SPARE_BYTES: usize = 16 << 20;
/// Pages not wanted that a read at boot may carry along to join two that are.
pub const BOOT_GAP_PAGES: u32 = 4;

const _: () = assert!(PAGE_BYTES.is_multiple_of(4096));
// Four of the largest entries fit into a node, so that a node splits evenly.
const _: () = assert!(4 * (KEY_MAX_BYTES + INLINE_VALUE_MAX_BYTES + 128) <= PAGE_BYTES - 32);
const _: () = assert!(EXTENT_PACK_BYTES.is_multiple_of(PAGE_BYTES));
const _: () = assert!(EXTENT_PACK_BYTES / PAGE_BYTES <= CHUNK_PAGES as usize);
const _: () = assert!(WRITE_BYTES == CHUNK_PAGES as usize * PAGE_BYTES);
const _: () = assert!(IN_FLIGHT_BYTES >= 4 * WRITE_BYTES);
const _: () = assert!(READ_AHEAD < OPERATIONS);
const _: () = assert!(WRITER_CACHE_BYTES >= WRITER_CACHE_BYTES_MIN);
// A batch of leaves that lie together fits into the buffers that wait.
const _: () = assert!(BOOT_SPARE_BYTES >= BOOT_LEAVES * PAGE_BYTES);
const _: () = assert!(BOOT_READ_BYTES.is_multiple_of(PAGE_BYTES) && (BOOT_READ_BYTES / PAGE_BYTES).is_power_of_two());
