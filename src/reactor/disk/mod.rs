//! The real disks behind `io::disk::Disk`: [`RingDisk`] on an io_uring ring, [`ThreadDisk`] on blocking threads.
//!
//! Both open files with O_DIRECT and fall back to the page cache, with one warning, where the file system refuses it.
//! A failed operation is reported once and never retried; only interrupted and short transfers are continued.

mod blocking;
mod files;
mod pending;
mod ring_disk;
mod thread_disk;
mod workers;

pub(super) use blocking::{Progress, after_read};
pub(super) use files::{OpenFile, open};
pub use ring_disk::{RingDisk, WriteMethod};
pub use thread_disk::ThreadDisk;

/// What both disks are told at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// `--unsafe-no-fsync`: nothing is synced and durable writes are plain ones. For tests only.
    pub no_fsync: bool,
    /// Open with O_DIRECT where the file system can. Off only in tests of the fallback.
    pub direct: bool,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            no_fsync: false,
            direct: true,
        }
    }
}

#[cfg(test)]
mod tests;
