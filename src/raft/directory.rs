//! The data directory at start: whose it is, what may be opened in it, and the file that keeps etcd out of it.
//!
//! Promises: a directory with etcd's data, or with a log and without our page file, is refused before anything in it is
//! made, changed or synced. A directory of ours holds [`GUARD_FILE`] under the name of etcd's database from before its
//! first log record on: any etcd opens that file first, finds no database, and ends with an error that names it.
//! Without it, etcd would replay or skip our log and serve what it made of that.

use super::boot::{Boot, BootError};
use super::replica::ReplicaError;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, DiskError, OpenMode, Operation};
use crate::pages::PageStore;
use crate::wal;
use std::path::{Path, PathBuf};

/// The page file's name in `member/snap`.
pub const PAGE_FILE: &str = "db.ringd";
/// A page file made of a snapshot, whole and durable, that is to take the page file's place.
pub const INSTALLING_FILE: &str = "db.ringd.installing";
/// One that is being made, and the snapshot it is made of: of no use after a restart.
pub const RECEIVED_FILE: &str = "db.ringd.received";
/// See there.
pub const SNAPSHOT_FILE: &str = "snapshot.received";
/// The name of etcd's database in `member/snap`; in a directory of ours the guard's.
pub const GUARD_FILE: &str = "db";
/// The guard while it is being written.
const GUARD_TEMPORARY: &str = "db.guard";
/// How a guard begins.
const GUARD_MARK: &str = "ringd data directory\n";
/// The rest of it.
const GUARD_TEXT: &str = "
This is not an etcd database. The data is in db.ringd beside this file and in the write-ahead log, and it belongs to
ringd: start ringd on this directory, not etcd. This file is here so that an etcd started by mistake ends with an error
instead of beginning with an empty store. Do not remove it.
";
/// Its length: two pages of bbolt, whose first look then is at their contents and not at their number.
const GUARD_BYTES: usize = 8192;

/// Opens the page store, making directory, guard and page file where there is nothing yet.
pub(super) fn open_pages<D: Disk>(disk: &mut D, boot: &Boot) -> Result<PageStore, BootError> {
    let member = boot.data_directory.join("member");
    let snap = member.join("snap");
    let pages = snap.join(PAGE_FILE);
    let wal = boot.wal_directory.clone();
    let found = Found::look(disk, &snap, &wal)?;
    if found.etcd_data {
        let path = snap.join(GUARD_FILE);
        return Err(BootError::EtcdData { path });
    }
    if found.log && !found.pages {
        return Err(BootError::LogWithoutPages { wal, pages });
    }
    for directory in [&boot.data_directory, &member, &snap] {
        let path = directory.clone();
        disk.call(Operation::CreateDirectory { path })?;
    }
    if !found.guard {
        make_guard(disk, &snap)?;
    }
    let created = if found.pages {
        None
    } else {
        Some(PageStore::create(disk, &pages, boot.pages.clone())?)
    };
    sync_names(disk, &boot.data_directory, &member, &snap)?;
    let store = match created {
        Some(store) => store,
        None => PageStore::open(disk, &pages, boot.pages.clone())?,
    };
    let applied = store.root().fields().applied_index;
    if !found.log && applied > 0 {
        return Err(BootError::PagesWithoutLog { wal, pages, applied });
    }
    Ok(store)
}

/// What a data directory holds.
struct Found {
    /// The file that keeps etcd out.
    guard: bool,
    /// A database under the guard's name.
    etcd_data: bool,
    /// Our page file.
    pages: bool,
    /// Segments of a log.
    log: bool,
}

impl Found {
    /// Looks without changing anything.
    fn look<D: Disk>(disk: &mut D, snap: &Path, wal: &Path) -> Result<Found, BootError> {
        let names = match disk.list(snap) {
            Err(error) if error.is_not_found() => Vec::new(),
            other => other?,
        };
        let has = |file: &str| names.iter().any(|name| name == file);
        let guard = has(GUARD_FILE) && is_guard(disk, &snap.join(GUARD_FILE))?;
        Ok(Found {
            guard,
            etcd_data: has(GUARD_FILE) && !guard,
            pages: has(PAGE_FILE),
            log: wal::exists(disk, wal).map_err(ReplicaError::from)?,
        })
    }
}

fn is_guard<D: Disk>(disk: &mut D, path: &Path) -> Result<bool, DiskError> {
    let (file, _) = disk.open(path, OpenMode::ReadOnly)?;
    let read = disk.read(file, 0, crate::io::buffer::ALIGNMENT);
    disk.call(Operation::Close { file })?;
    let (buffer, length) = read?;
    Ok(buffer[..length].starts_with(GUARD_MARK.as_bytes()))
}

/// Makes the guard, durable under its name before this returns.
fn make_guard<D: Disk>(disk: &mut D, snap: &Path) -> Result<(), DiskError> {
    let text = [GUARD_MARK, GUARD_TEXT].concat();
    let mut buffer = AlignedBuffer::zeroed(GUARD_BYTES);
    buffer[..text.len()].copy_from_slice(text.as_bytes());
    disk.create_whole(&snap.join(GUARD_FILE), &snap.join(GUARD_TEMPORARY), buffer)?;
    let path = snap.to_path_buf();
    disk.call(Operation::SyncDirectory { path }).map(|_| ())
}

/// Makes the names of the directories durable, at every start: the one that made them may have died before it did.
fn sync_names<D: Disk>(disk: &mut D, data: &Path, member: &Path, snap: &Path) -> Result<(), DiskError> {
    for directory in [snap, member, data] {
        let path = directory.to_path_buf();
        disk.call(Operation::SyncDirectory { path })?;
    }
    let path = match data.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => return Ok(()),
    };
    match disk.call(Operation::SyncDirectory { path }) {
        // A directory that we may not open is not one that we have made the data directory in and must answer for.
        Err(error) if error.source.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        other => other.map(|_| ()),
    }
}
