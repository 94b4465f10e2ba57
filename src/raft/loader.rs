//! Old records that decide about an entry, fetched from the page store before it is applied.
//!
//! The log core never waits for a read: it stops applying, goes on with everything else, and applies when the records
//! are here (DESIGN 3 (3)).

use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Completion, Disk, FileId, Operation, Outcome};
use crate::limits::{APPLY_SLICE_BYTES, APPLY_SLICE_RECORDS, LOADER_AHEAD_RECORDS};
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::pages::{PageAddress, PageCache, ReadFailure, RecordId, RecordScan, Root, Scanned};
use crate::state::stand_in::StandIns;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

/// Fetches records of one root at a time.
pub struct Loader {
    file: FileId,
    /// One for each read that may be in flight.
    tokens: Range<u64>,
    cache: PageCache,
    /// Most bytes read together, so that they fit the cache.
    together_bytes: usize,
    root: Option<Root>,
    /// Ascending, fetched from the end.
    wanted: Vec<Revision>,
    stand_ins: StandIns,
    found: HashMap<Revision, Bytes>,
    /// By token.
    in_flight: HashMap<u64, PageAddress>,
    /// Whether something was found since pages were last read.
    gets_on: bool,
    /// How the first read that failed did, until somebody asks for what it was to bring.
    failed: Option<LoadError>,
}

/// How far a fetch is.
#[derive(Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Everything wanted is there.
    Done,
    /// More can be done at once.
    More,
    /// Pages are being read.
    Reading,
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
    /// A loader that reads `file` through a cache of `cache_bytes`, as many pages together as there are `tokens` for
    /// its operations.
    pub fn new(file: FileId, tokens: Range<u64>, cache_bytes: usize) -> Loader {
        assert!(!tokens.is_empty(), "a read needs a token");
        Loader {
            file,
            tokens,
            cache: PageCache::new(cache_bytes),
            together_bytes: cache_bytes / 2,
            root: None,
            wanted: Vec::new(),
            stand_ins: StandIns::default(),
            found: HashMap::new(),
            in_flight: HashMap::new(),
            gets_on: true,
            failed: None,
        }
    }

    /// Starts to fetch records from `root`. Of those that have one only the stand-in is kept.
    pub fn start(&mut self, root: Root, wanted: Vec<Revision>, stand_ins: StandIns) {
        assert!(!self.is_reading(), "one fetch at a time");
        debug_assert!(wanted.is_sorted());
        (self.root, self.wanted, self.stand_ins) = (Some(root), wanted, stand_ins);
        (self.failed, self.gets_on) = (None, true);
        self.found.clear();
    }

    /// Whether the token is the loader's.
    pub fn owns(&self, token: u64) -> bool {
        self.tokens.contains(&token)
    }

    /// Whether a read is under way: one fetch at a time.
    pub fn is_reading(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// What was fetched.
    pub fn found(&self) -> &HashMap<Revision, Bytes> {
        &self.found
    }

    /// Goes on, with up to a slice of records.
    pub fn step<D: Disk + ?Sized>(&mut self, disk: &mut D) -> Result<Fetch, LoadError> {
        if self.is_reading() {
            return Ok(Fetch::Reading);
        }
        // A failure that nothing is wanted after is a compaction's.
        if self.wanted.is_empty() {
            self.root = None;
            return Ok(Fetch::Done);
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let root = self.root.clone().expect("what is wanted is wanted of a root");
        let mut kept_bytes = 0;
        for _ in 0..APPLY_SLICE_RECORDS {
            let Some(revision) = self.wanted.last().copied() else {
                self.root = None;
                return Ok(Fetch::Done);
            };
            if kept_bytes > APPLY_SLICE_BYTES {
                break;
            }
            match root.record(&mut self.cache, id_of(revision)) {
                Ok(Some(record)) => {
                    let record = record.view();
                    let stand_in = self.stand_ins.of(revision, record.value);
                    let kept = stand_in.unwrap_or_else(|| {
                        kept_bytes += record.value.len() as u64;
                        stored_bytes(&record)
                    });
                    self.found.insert(revision, kept);
                    self.wanted.pop();
                    self.gets_on = true;
                }
                Ok(None) => return Err(LoadError::Missing(revision)),
                Err(ReadFailure::Missing(address)) => {
                    self.read_together(disk, &root, address);
                    return Ok(Fetch::Reading);
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(Fetch::More)
    }

    /// Reads the page that is missing, and with it those that the records wanted next miss. Once nothing was found
    /// after such a round, the cache could not hold it: then that page alone.
    fn read_together<D: Disk + ?Sized>(&mut self, disk: &mut D, root: &Root, first: PageAddress) {
        let mut bytes = first.length();
        let mut together = vec![first];
        if std::mem::take(&mut self.gets_on) {
            let tokens = self.tokens.clone().count();
            for revision in self.wanted.iter().rev().skip(1).take(LOADER_AHEAD_RECORDS) {
                if together.len() == tokens || bytes >= self.together_bytes {
                    break;
                }
                // Any other failure is met when it is this record's turn.
                let Err(ReadFailure::Missing(address)) = root.record(&mut self.cache, id_of(*revision)) else {
                    continue;
                };
                if !together.contains(&address) && bytes + address.length() <= self.together_bytes {
                    bytes += address.length();
                    together.push(address);
                }
            }
        }
        for (token, address) in self.tokens.clone().zip(together) {
            self.read(disk, token, address);
        }
    }

    fn read<D: Disk + ?Sized>(&mut self, disk: &mut D, token: u64, address: PageAddress) {
        let buffer = AlignedBuffer::zeroed(address.length());
        let (file, offset) = (self.file, address.offset());
        disk.submit(token, Operation::Read { file, offset, buffer });
        self.in_flight.insert(token, address);
    }

    /// Takes the end of a read. A failed one is the answer to the next `step` or `keys`.
    pub fn completed(&mut self, completion: Completion) {
        let address = self.in_flight.remove(&completion.token).expect("a read was in flight");
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
        self.failed = self.failed.take().or(taken.err());
    }
}

fn id_of(revision: Revision) -> RecordId {
    RecordId {
        main: revision.main,
        sub: revision.sub,
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
        if self.is_reading() {
            return Ok(None);
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        // A root that is kept without need keeps its pages from being used again.
        self.root = None;
        let mut keys = Vec::new();
        let mut scan = RecordScan::new(id_of(from));
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
                self.read(disk, self.tokens.start, address);
                self.root = Some(root.clone());
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }
}
