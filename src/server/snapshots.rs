//! Snapshots between members, on the serve core where peers' connections live.
//!
//! Sent is the state of a pinned root as etcd's database, read in short steps beside everything else and no faster than
//! a bound. Received is such a database, from ringd or etcd: its bytes go to a file, then a page file is made of it and
//! synced, by threads that may block; only then the log core hears of it (DESIGN 12 (9)). Memory is bounded on both
//! sides, whatever the size.

use crate::io::disk::DiskError;
use crate::limits::{
    SNAPSHOT_BYTES_PER_SECOND, SNAPSHOT_CACHE_BYTES, SNAPSHOT_READS_AHEAD, SNAPSHOT_STEP_RECORDS, SNAPSHOT_WRITE_BYTES,
};
use crate::pages::{PageAddress, PageCache, ReadFailure, Root};
use crate::raft::directory::{INSTALLING_FILE, RECEIVED_FILE, SNAPSHOT_FILE};
use crate::raft::install::Received;
use crate::raft::storage::Position;
use crate::raft::transport::{LocalFuture, SnapshotBody, SnapshotSource};
use crate::reactor::Doorbell;
use crate::reactor::disk::{DiskOptions, ThreadDisk};
use crate::reactor::serve::{self, PageFileReader};
use crate::state::backend::{Export, ExportError, Exported, Import, ImportProgress};
use crate::{limits, pages};
use bytes::Bytes;
use raft::eraftpb::Message;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A state on its way to a follower.
pub struct Sending {
    export: Export,
    cache: PageCache,
    file: PageFileReader,
    began: Instant,
    sent: u64,
}

impl Sending {
    /// The state of `root`, whose page file is `file`.
    pub fn new(root: Root, file: PageFileReader) -> Sending {
        Sending {
            export: Export::new(root),
            cache: PageCache::new(SNAPSHOT_CACHE_BYTES),
            file,
            began: Instant::now(),
            sent: 0,
        }
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.export.step(&mut self.cache, SNAPSHOT_STEP_RECORDS) {
                Ok(Exported::Chunk(chunk)) => {
                    self.pace(chunk.len()).await;
                    return Ok(Some(chunk.into()));
                }
                Ok(Exported::End) => return Ok(None),
                Ok(Exported::Measured(length)) => tracing::info!(bytes = length, "a snapshot begins to leave"),
                Ok(Exported::Measuring | Exported::Writing) => serve::yield_now().await,
                Err(ExportError::Page(ReadFailure::Missing(address))) => self.load(address).await?,
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
    }

    /// Loads a page that is missing, and those that come next.
    async fn load(&mut self, missing: PageAddress) -> io::Result<()> {
        let mut addresses = vec![missing];
        let ahead = self.export.ahead(&mut self.cache, SNAPSHOT_READS_AHEAD);
        addresses.extend(ahead.into_iter().filter(|address| *address != missing));
        let reads = addresses
            .iter()
            .map(|address| self.file.read(address.offset(), address.length()));
        let read = serve::join(reads).await;
        let root = self.export.root().clone();
        for (address, read) in addresses.iter().zip(read) {
            let (buffer, length) = read.map_err(|error: DiskError| error.source)?;
            let bytes = &buffer[..length.min(address.length())];
            root.insert(&mut self.cache, address, bytes)
                .map_err(|failure| io::Error::other(failure.to_string()))?;
        }
        Ok(())
    }

    /// Waits until so many bytes more may leave.
    async fn pace(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        let due = Duration::from_secs_f64(self.sent as f64 / SNAPSHOT_BYTES_PER_SECOND as f64);
        let early = due.saturating_sub(self.began.elapsed());
        if early > Duration::ZERO {
            serve::sleep(early).await;
        } else {
            serve::yield_now().await;
        }
    }
}

impl SnapshotSource for Sending {
    fn next_part(&mut self) -> LocalFuture<'_, io::Result<Option<Bytes>>> {
        Box::pin(self.next())
    }
}

/// Takes a snapshot in: its bytes into a file in `directory`, and a durable page file of them beside it. And how many
/// they were.
pub async fn receive(directory: PathBuf, message: Message, mut body: SnapshotBody) -> Result<(Received, u64), String> {
    let path = directory.join(SNAPSHOT_FILE);
    let written = write(&path, &mut body).await;
    let made = match written {
        Ok(()) => {
            let directory = directory.clone();
            serve::run_blocking(move || import(&directory)).await
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    };
    let snapshot = path.clone();
    serve::run_blocking(move || std::fs::remove_file(snapshot)).await.ok();
    let position = made?;
    let announced = message.get_snapshot().get_metadata().index;
    if position.index < announced {
        throw_away(directory).await;
        return Err(format!(
            "the snapshot is said to contain entry {announced} and ends at entry {}",
            position.index
        ));
    }
    let received = Received {
        message: Box::new(message),
        position,
    };
    Ok((received, body.taken()))
}

/// Gives the page file of the snapshot that was received the name under which a start installs it, durably.
pub async fn put_in_place(directory: PathBuf) -> Result<(), String> {
    let renamed = serve::run_blocking(move || {
        std::fs::rename(directory.join(RECEIVED_FILE), directory.join(INSTALLING_FILE))?;
        File::open(&directory)?.sync_all()
    });
    renamed.await.map_err(|error: io::Error| error.to_string())
}

/// Removes that page file.
pub async fn throw_away(directory: PathBuf) {
    // What is left of it the next start removes.
    let _ = serve::run_blocking(move || std::fs::remove_file(directory.join(RECEIVED_FILE))).await;
}

/// Writes a body into a file, in pieces, off the core.
async fn write(path: &Path, body: &mut SnapshotBody) -> io::Result<()> {
    let created = path.to_path_buf();
    let mut file = serve::run_blocking(move || File::create(created)).await?;
    let mut piece: Vec<u8> = Vec::with_capacity(SNAPSHOT_WRITE_BYTES);
    loop {
        let part = body.next_part().await?;
        let is_last = part.is_none();
        piece.extend_from_slice(part.as_deref().unwrap_or_default());
        if is_last || piece.len() >= SNAPSHOT_WRITE_BYTES {
            let (back, emptied, result) = serve::run_blocking(move || {
                let result = file.write_all(&piece);
                piece.clear();
                (file, piece, result)
            })
            .await;
            (file, piece) = (back, emptied);
            result?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Makes a page file of the database in `directory`: what it contains.
fn import(directory: &Path) -> Result<Position, String> {
    let began = Instant::now();
    let bell = Doorbell::new("snapshot").map_err(|error| error.to_string())?;
    let mut disk = ThreadDisk::new(DiskOptions::default(), &bell).map_err(|error| error.to_string())?;
    let options = pages::Options::new(0..limits::pages::OPERATIONS as u64);
    let database = directory.join(SNAPSHOT_FILE);
    let import = Import::new(&mut disk, &database, &directory.join(RECEIVED_FILE), options);
    let mut import = import.map_err(|error| error.to_string())?;
    loop {
        match import.step(&mut disk) {
            Ok(ImportProgress::More(_)) => {}
            Ok(ImportProgress::Done(imported)) => {
                let fields = &imported.fields;
                tracing::info!(
                    index = fields.applied_index,
                    revision = fields.revision,
                    records = imported.records,
                    took = ?began.elapsed(),
                    "made a page file of a snapshot"
                );
                return Ok(Position {
                    index: fields.applied_index,
                    term: fields.term,
                });
            }
            Err(error) => {
                let reason = error.to_string();
                // What is left of it the next start removes.
                let _ = import.abandon(&mut disk);
                return Err(reason);
            }
        }
    }
}
