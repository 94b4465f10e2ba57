//! Old records that decide about an entry, fetched from the page store before it is applied.
//!
//! The log core never waits for a read: it stops applying, goes on with everything else, and applies when the records
//! are here (DESIGN 3 (3)).

use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Completion, Disk, FileId, Operation, Outcome};
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::pages::{PageAddress, PageCache, ReadFailure, RecordId, RecordScan, Root, Scanned};
use crate::state::stand_in::StandIns;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Fetches records of one root at a time.
pub struct Loader {
    file: FileId,
    token: u64,
    cache: PageCache,
    root: Option<Root>,
    wanted: Vec<Revision>,
    stand_ins: StandIns,
    found: HashMap<Revision, Bytes>,
    in_flight: Option<PageAddress>,
    /// How the last read failed, until somebody asks for what it was to bring.
    failed: Option<LoadError>,
}

/// Why records can't be fetched.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A page is damaged.
    #[error("a record of the page file that a request or a compaction depends on is damaged: {0}")]
    Corrupt(crate::pages::Corrupt),
    /// A page can't be read.
    #[error("a record that a request or a compaction depends on can't be read: {source}, at byte offset {offset}")]
    Disk {
        /// Where.
        offset: u64,
        /// The system's answer.
        source: crate::io::disk::DiskError,
    },
    /// The index names a record that the page store does not have.
    #[error("the record {0:?} that a request depends on is missing from the page store")]
    Missing(Revision),
    /// The log core's own root was expired.
    #[error("the page store's newest state was expired while it was read")]
    Expired,
}

impl From<ReadFailure> for LoadError {
    fn from(failure: ReadFailure) -> LoadError {
        match failure {
            ReadFailure::Corrupt(corrupt) => LoadError::Corrupt(corrupt),
            ReadFailure::Expired { .. } => LoadError::Expired,
            ReadFailure::Missing(address) => unreachable!("page {address:?} is loaded by the caller"),
        }
    }
}

impl Loader {
    /// A loader that reads `file` with operations under `token` through a cache of `cache_bytes`.
    pub fn new(file: FileId, token: u64, cache_bytes: usize) -> Loader {
        Loader {
            file,
            token,
            cache: PageCache::new(cache_bytes),
            root: None,
            wanted: Vec::new(),
            stand_ins: StandIns::default(),
            found: HashMap::new(),
            in_flight: None,
            failed: None,
        }
    }

    /// Starts to fetch records from `root`. Of those that have one only the stand-in is kept.
    pub fn start(&mut self, root: Root, wanted: Vec<Revision>, stand_ins: StandIns) {
        assert!(self.in_flight.is_none(), "one fetch at a time");
        (self.root, self.wanted, self.stand_ins) = (Some(root), wanted, stand_ins);
        self.failed = None;
        self.found.clear();
    }

    /// Whether the token is the loader's.
    pub fn owns(&self, token: u64) -> bool {
        token == self.token
    }

    /// Whether a read is under way: one fetch at a time.
    pub fn is_reading(&self) -> bool {
        self.in_flight.is_some()
    }

    /// What was fetched.
    pub fn found(&self) -> &HashMap<Revision, Bytes> {
        &self.found
    }

    /// Goes on. True when everything wanted is there.
    pub fn step<D: Disk + ?Sized>(&mut self, disk: &mut D) -> Result<bool, LoadError> {
        if self.in_flight.is_some() {
            return Ok(false);
        }
        // A failure that nothing is wanted after is a compaction's.
        if self.wanted.is_empty() {
            return Ok(true);
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Some(root) = &self.root else { return Ok(true) };
        while let Some(revision) = self.wanted.last().copied() {
            let id = RecordId {
                main: revision.main,
                sub: revision.sub,
            };
            match root.record(&mut self.cache, id) {
                Ok(Some(record)) => {
                    let record = record.view();
                    let stand_in = self.stand_ins.of(revision, record.value);
                    let kept = stand_in.unwrap_or_else(|| stored_bytes(&record));
                    self.found.insert(revision, kept);
                    self.wanted.pop();
                }
                Ok(None) => return Err(LoadError::Missing(revision)),
                Err(ReadFailure::Missing(address)) => {
                    let buffer = AlignedBuffer::zeroed(address.length());
                    let (file, offset) = (self.file, address.offset());
                    disk.submit(self.token, Operation::Read { file, offset, buffer });
                    self.in_flight = Some(address);
                    return Ok(false);
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        self.root = None;
        Ok(true)
    }

    /// Takes the end of a read. A failed one is the answer to the next `step` or `keys`.
    pub fn completed(&mut self, completion: Completion) {
        let address = self.in_flight.take().expect("a read was in flight");
        let root = self.root.as_ref().expect("reading for a root");
        let taken = match completion.result {
            Ok(Outcome::Read { buffer, length }) => {
                let length = length.min(address.length());
                let inserted = root.insert(&mut self.cache, &address, &buffer[..length]);
                inserted.map_err(LoadError::from)
            }
            Ok(other) => unreachable!("a read answered {other:?}"),
            Err(source) => Err(LoadError::Disk {
                offset: address.offset(),
                source,
            }),
        };
        self.failed = taken.err();
    }
}

/// The stored form of a record: the encoded `KeyValue`, of a tombstone the key alone.
pub fn stored_bytes(record: &crate::pages::RecordView<'_>) -> Bytes {
    let mut bytes = Vec::new();
    KeyValueView::of_stored(record).encode(&mut bytes);
    bytes.into()
}

impl Loader {
    /// Keys of up to `budget` records of `root` from `from` through main revision `through`, and the first revision
    /// that was not looked at. `None` while a page is being read: call again with the same arguments.
    pub fn keys<D: Disk + ?Sized>(
        &mut self,
        disk: &mut D,
        root: &Root,
        from: Revision,
        through: i64,
        budget: usize,
    ) -> Result<Option<(Vec<Bytes>, Revision)>, LoadError> {
        if self.in_flight.is_some() {
            return Ok(None);
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        // A root that is kept without need keeps its pages from being used again.
        self.root = None;
        let mut keys = Vec::new();
        let mut scan = RecordScan::new(RecordId {
            main: from.main,
            sub: from.sub,
        });
        let mut passed = false;
        let scanned = scan.step_heads(root, &mut self.cache, budget, |head| {
            if head.id.main > through {
                passed = true;
                return ControlFlow::Break(());
            }
            keys.push(Bytes::copy_from_slice(head.key));
            ControlFlow::Continue(())
        });
        let end = Revision::new(through + 1, 0);
        match scanned {
            Ok(Scanned::End) => Ok(Some((keys, end))),
            Ok(Scanned::More) if passed => Ok(Some((keys, end))),
            Ok(Scanned::More) => {
                let next = scan.position();
                Ok(Some((keys, Revision::new(next.main, next.sub).min(end))))
            }
            Err(ReadFailure::Missing(address)) => {
                if !keys.is_empty() {
                    let next = scan.position();
                    return Ok(Some((keys, Revision::new(next.main, next.sub).min(end))));
                }
                let buffer = AlignedBuffer::zeroed(address.length());
                disk.submit(
                    self.token,
                    Operation::Read {
                        file: self.file,
                        offset: address.offset(),
                        buffer,
                    },
                );
                self.root = Some(root.clone());
                self.in_flight = Some(address);
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }
}
