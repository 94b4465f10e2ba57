//! Snapshots between members, on the serve core where peers' connections live.
//!
//! Sent is the state of a pinned root as etcd's database, read in short steps beside everything else and no faster than
//! a bound. Received is such a database, from ringd or etcd: its bytes go to a file, then a page file is made of it and
//! synced, by threads that may block (`raft::intake`); only then the log core hears of it (DESIGN 12 (9)). Memory is
//! bounded on both sides, whatever the size.

use crate::io::disk::DiskError;
use crate::limits::{
    SNAPSHOT_BYTES_PER_SECOND, SNAPSHOT_CACHE_BYTES, SNAPSHOT_READS_AHEAD, SNAPSHOT_STEP_RECORDS, SNAPSHOT_WRITE_BYTES,
};
use crate::pages::{PageAddress, PageCache, ReadFailure, Root};
use crate::raft::install::{Placed, Received};
use crate::raft::intake::{self, Intake};
use crate::raft::transport::{LocalFuture, SnapshotBody, SnapshotSource};
use crate::reactor::Doorbell;
use crate::reactor::disk::{DiskOptions, ThreadDisk};
use crate::reactor::serve::{self, PageFileReader};
use crate::state::backend::{Export, ExportError, Exported};
use bytes::Bytes;
use raft::eraftpb::Message;
use std::io;
use std::path::PathBuf;
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
    let began = Instant::now();
    let begun = serve::run_blocking(move || {
        let mut disk = disk()?;
        let intake = Intake::begin(&mut disk, &directory, message)?;
        Ok::<_, String>((disk, intake))
    });
    let (mut disk, mut intake) = begun.await?;
    let mut gathered: Vec<u8> = Vec::with_capacity(SNAPSHOT_WRITE_BYTES);
    loop {
        let failed = match body.next_part().await {
            Ok(Some(part)) => {
                gathered.extend_from_slice(&part);
                if gathered.len() < SNAPSHOT_WRITE_BYTES {
                    continue;
                }
                let result;
                (disk, intake, gathered, result) = take(disk, intake, gathered).await;
                result.err()
            }
            Ok(None) => break,
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = failed {
            serve::run_blocking(move || intake.abandon(&mut disk)).await;
            return Err(reason);
        }
    }
    let (mut disk, intake, _, taken) = take(disk, intake, gathered).await;
    let finished = serve::run_blocking(move || match taken {
        Ok(()) => intake.finish(&mut disk),
        Err(reason) => {
            intake.abandon(&mut disk);
            Err(reason)
        }
    });
    let (received, bytes) = finished.await?;
    let index = received.position.index;
    tracing::info!(index, bytes, took = ?began.elapsed(), "made a page file of a snapshot");
    Ok((received, bytes))
}

/// Writes what was gathered, off the core, and gives everything back.
async fn take(
    mut disk: ThreadDisk,
    mut intake: Intake,
    mut gathered: Vec<u8>,
) -> (ThreadDisk, Intake, Vec<u8>, Result<(), String>) {
    serve::run_blocking(move || {
        let result = intake.take(&mut disk, &gathered);
        gathered.clear();
        (disk, intake, gathered, result)
    })
    .await
}

/// Gives the page file of the snapshot that was received the name under which a start installs it, durably.
pub async fn put_in_place(directory: PathBuf) -> Placed {
    serve::run_blocking(move || match disk() {
        Ok(mut disk) => intake::put_in_place(&mut disk, &directory),
        Err(reason) => Placed::No(reason),
    })
    .await
}

/// Removes that page file.
pub async fn throw_away(directory: PathBuf) {
    serve::run_blocking(move || {
        if let Ok(mut disk) = disk() {
            intake::throw_away(&mut disk, &directory);
        }
    })
    .await;
}

/// A disk for a thread that may block.
fn disk() -> Result<ThreadDisk, String> {
    let disk = Doorbell::new("snapshot").and_then(|bell| ThreadDisk::new(DiskOptions::default(), &bell));
    disk.map_err(|error| format!("set up a disk for a snapshot: {error}"))
}
