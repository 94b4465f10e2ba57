//! Bounds of bbolt files.

/// Longest key, of an element or of a bucket: bbolt's own bound.
pub const KEY_BYTES_MAX: usize = 32_768;
/// Longest value that is written or read; bbolt itself would take up to 2 GiB, and no store here holds as much.
pub const VALUE_BYTES_MAX: usize = 1 << 30;
/// Pages on the way from a bucket's root to an element. A tree as high as this would not fit into a file.
pub const DEPTH_MAX: usize = 64;
/// Buckets inside buckets that a reader follows.
pub const NESTING_MAX: usize = 16;
/// Pages up to this size are read at once; of larger ones what is asked for.
pub const PAGE_READ_BYTES_MAX: usize = 64 << 10;
/// Read at once from a file that is read from front to back.
pub const READ_AHEAD_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(KEY_BYTES_MAX < PAGE_READ_BYTES_MAX);
const _: () = assert!(VALUE_BYTES_MAX >= super::pages::VALUE_MAX_BYTES);
