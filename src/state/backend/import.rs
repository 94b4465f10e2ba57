//! etcd's database file taken over into a new page file.
//!
//! The file is read in order, and what is in it goes into the page store in checkpoints of bounded size; it is not
//! changed. Every pair is checked for what it means. The commits on the way say nothing of the log (applied index 0),
//! the last one does, and it is made twice, so that both meta pages name the whole. The page file is made under a
//! temporary name: only when [`ImportProgress::Done`] was returned everything is durable under it, and renaming it is
//! the caller's (DESIGN 12 (9)).
//!
//! Blocking: each step reads and writes a batch. Not for the log core's loop.

use super::names;
use super::row::{ConfState, Row};
use crate::bbolt::{self, Bucket, Content, Cursor, DiskFile, ReadError};
use crate::io::disk::{Disk, DiskError, OpenMode, Operation};
use crate::limits::pages::{KEY_MAX_BYTES, MEMBERSHIP_MAX_BYTES, VALUE_MAX_BYTES};
use crate::limits::{IMPORT_BATCH_BYTES, IMPORT_SKIPPED_MAX, RESTORE_REVISION_MAX};
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::pages::{
    Aborted, Cut, NewRecord, Options, PageStore, RecordId, StateFields, StoreFailure, TreeId, TreeUpdates,
};
use crate::state::members::parse_version;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// The newest storage version that is read, major and minor.
const NEWEST: (u32, u32) = (3, 7);

/// Why a file can't be taken over. The page file is of no use then; the database file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// One of the files can't be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The database file is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The page file.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// There is no room for the page file.
    #[error("importing {file}: {source}")]
    Room {
        /// The database file.
        file: String,
        /// What was lacking.
        source: Aborted,
    },
    /// It is a bbolt file, but not etcd's.
    #[error("{file} is not etcd's database: it has no bucket {}", bucket.escape_ascii())]
    NotEtcd {
        /// The database file.
        file: String,
        /// The bucket that every database of etcd has.
        bucket: &'static [u8],
    },
    /// A pair that can't be right, or can't be taken over.
    #[error("{file}: bucket {} has {reason} under key {}", bucket.escape_ascii(), key.escape_ascii())]
    Row {
        /// The database file.
        file: String,
        /// The bucket.
        bucket: Vec<u8>,
        /// The key.
        key: Vec<u8>,
        /// What is wrong.
        reason: &'static str,
    },
}

/// How far an import is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportProgress {
    /// There is more; so many records were taken over so far.
    More(u64),
    /// All is in the page file, and durable.
    Done(Imported),
}

/// What was taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What the page file's commit says: revision, compact revision, applied index, term, membership.
    pub fields: StateFields,
    /// Records of the history.
    pub records: u64,
    /// Pairs of other buckets.
    pub rows: u64,
    /// The first of the pairs that mean nothing here and were left out: bucket and key.
    pub skipped: Vec<String>,
}

/// An import under way.
pub struct Import {
    name: String,
    file: bbolt::File,
    source: DiskFile,
    store: PageStore,
    /// The buckets not read yet.
    buckets: std::vec::IntoIter<(Vec<u8>, Bucket)>,
    /// The bucket that is being read.
    current: Option<(Vec<u8>, Cursor)>,
    found: Found,
    batch: Batch,
}

/// What is found beside records and rows of trees.
#[derive(Debug, Default)]
struct Found {
    last: RecordId,
    index: u64,
    term: u64,
    membership: Bytes,
    scheduled: Option<i64>,
    finished: Option<i64>,
    records: u64,
    rows: u64,
    skipped: Vec<String>,
}

/// What goes into the next checkpoint.
#[derive(Default)]
struct Batch {
    records: Vec<NewRecord>,
    trees: BTreeMap<TreeId, TreeUpdates>,
    bytes: usize,
}

impl Import {
    /// Opens a database file and makes an empty page file, over one that may lie there.
    pub fn new(disk: &mut dyn Disk, database: &Path, pages: &Path, options: Options) -> Result<Import, ImportError> {
        let (file, length) = disk.open(database, OpenMode::ReadOnly)?;
        let mut source = DiskFile::new(file, length);
        match Import::open(disk, &mut source, database, pages, options) {
            Ok((name, file, store, buckets)) => Ok(Import {
                name,
                file,
                source,
                store,
                buckets: buckets.into_iter(),
                current: None,
                found: Found::default(),
                batch: Batch::default(),
            }),
            Err(error) => {
                disk.call(Operation::Close { file })?;
                Err(error)
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn open(
        disk: &mut dyn Disk,
        source: &mut DiskFile,
        database: &Path,
        pages: &Path,
        options: Options,
    ) -> Result<(String, bbolt::File, PageStore, Vec<(Vec<u8>, Bucket)>), ImportError> {
        let name = database.display().to_string();
        let file = bbolt::File::open(&mut source.on(disk), &name)?;
        let mut cursor = file.cursor(&file.root());
        let mut buckets = BTreeMap::new();
        while let Some(element) = cursor.next(&mut source.on(disk))? {
            if let Content::Bucket(bucket) = element.content {
                let known = names::BUCKETS.into_iter().find(|name| *name == element.key);
                known.map(|name| buckets.insert(name, bucket));
            }
        }
        for bucket in [names::KEY, names::META] {
            if !buckets.contains_key(bucket) {
                return Err(ImportError::NotEtcd { file: name, bucket });
            }
        }
        let mut buckets: Vec<_> = buckets
            .into_iter()
            .map(|(name, bucket)| (name.to_vec(), bucket))
            .collect();
        // What may make it unreadable comes first, the long part last.
        buckets.sort_by_key(|(name, _)| (name == names::KEY, name != names::META));
        let store = PageStore::create(disk, pages, options)?;
        Ok((name, file, store, buckets))
    }

    /// Takes over a batch. After [`ImportProgress::Done`], and after an error, nothing more is to be done with it.
    pub fn step(&mut self, disk: &mut dyn Disk) -> Result<ImportProgress, ImportError> {
        while self.batch.bytes < IMPORT_BATCH_BYTES {
            if !self.read(disk)? {
                self.commit(disk, self.fields())?;
                // Both meta pages name the whole.
                self.commit(disk, self.fields())?;
                self.close(disk)?;
                return Ok(ImportProgress::Done(Imported {
                    fields: self.fields(),
                    records: self.found.records,
                    rows: self.found.rows,
                    skipped: std::mem::take(&mut self.found.skipped),
                }));
            }
        }
        let on_the_way = StateFields {
            revision: self.found.last.main,
            compact_revision: -1,
            ..Default::default()
        };
        self.commit(disk, on_the_way)?;
        Ok(ImportProgress::More(self.found.records))
    }

    /// Gives up: closes both files and removes the page file.
    pub fn abandon(self, disk: &mut dyn Disk) -> Result<(), DiskError> {
        self.close(disk)?;
        let path = self.store.path().to_path_buf();
        disk.call(Operation::Remove { path }).map(|_| ())
    }

    /// The database file, and where the page file is made.
    pub fn paths(&self) -> (&str, &Path) {
        (&self.name, self.store.path())
    }

    fn close(&self, disk: &mut dyn Disk) -> Result<(), DiskError> {
        for file in [self.source.file(), self.store.file()] {
            disk.call(Operation::Close { file })?;
        }
        Ok(())
    }

    fn fields(&self) -> StateFields {
        let found = &self.found;
        let compact_revision = found.scheduled.max(found.finished).unwrap_or(-1);
        StateFields {
            revision: found.last.main.max(compact_revision).max(1),
            compact_revision,
            applied_index: found.index,
            term: found.term,
            membership: found.membership.clone(),
        }
    }

    fn commit(&mut self, disk: &mut dyn Disk, fields: StateFields) -> Result<(), ImportError> {
        let Batch { records, trees, .. } = std::mem::take(&mut self.batch);
        let mut cut = Cut::new(fields, 0);
        cut.records = Box::new(records.into_iter());
        cut.trees = trees;
        let result = self.store.run(disk, cut)?;
        let room = |source| ImportError::Room {
            file: self.name.clone(),
            source,
        };
        result.map(|_| ()).map_err(room)
    }

    /// Takes over the next pair. Whether there was one.
    fn read(&mut self, disk: &mut dyn Disk) -> Result<bool, ImportError> {
        loop {
            let Some((bucket, cursor)) = &mut self.current else {
                let Some((name, bucket)) = self.buckets.next() else {
                    return Ok(false);
                };
                self.current = Some((name, self.file.cursor(&bucket)));
                continue;
            };
            let Some(element) = cursor.next(&mut self.source.on(disk))? else {
                self.current = None;
                continue;
            };
            let taken = match element.content {
                Content::Bucket(_) => Err("a bucket inside of a bucket"),
                Content::Value(value) => self.batch.take(&mut self.found, bucket, element.key, value),
            };
            return taken.map(|()| true).map_err(|reason| ImportError::Row {
                file: self.name.clone(),
                bucket: bucket.clone(),
                key: element.key.to_vec(),
                reason,
            });
        }
    }
}

impl Batch {
    /// Takes a pair. The error says what is wrong with it.
    fn take(&mut self, found: &mut Found, bucket: &[u8], key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if bucket == names::KEY {
            if let Some(record) = found.record(key, value)? {
                self.bytes += record.key.len() + record.value.len() + size_of::<NewRecord>();
                self.records.push(record);
            }
            return Ok(());
        }
        let Some(row) = Row::decode(bucket, key, value)? else {
            found.skip(bucket, key);
            return Ok(());
        };
        found.rows += 1;
        let Some(tree) = found.row(row)? else {
            return Ok(());
        };
        if key.len() > KEY_MAX_BYTES {
            return Err("a name that is too long for a page file");
        }
        self.bytes += 2 * key.len() + value.len();
        let value = Some(Bytes::copy_from_slice(value));
        self.trees.entry(tree).or_default().insert(key.to_vec(), value);
        Ok(())
    }
}

impl Found {
    /// Notes what a row says of the whole. The tree that keeps it; `None` if the commit says it.
    fn row(&mut self, row: Row) -> Result<Option<TreeId>, &'static str> {
        Ok(Some(match row {
            Row::Lease(_) => TreeId::Leases,
            Row::Alarm(_) => TreeId::Alarms,
            Row::Member(_) | Row::RemovedMember(_) => TreeId::Members,
            Row::AuthRevision(_) | Row::AuthEnabled(false) | Row::ClusterVersion(_) | Row::Downgrade(_) => TreeId::Meta,
            // To be let in with authentication: nothing must be open that was closed.
            Row::AuthEnabled(true) => return Err("authentication turned on, which this version does not have,"),
            Row::User(_) | Row::Role(_) => return Err("a user or role, which this version does not have,"),
            Row::ScheduledCompaction(main) => {
                self.scheduled = Some(main);
                TreeId::Meta
            }
            Row::FinishedCompaction(main) => {
                self.finished = Some(main);
                TreeId::Meta
            }
            Row::ConsistentIndex(index) => {
                self.index = index;
                return Ok(None);
            }
            Row::Term(term) => {
                self.term = term;
                return Ok(None);
            }
            Row::ConfState(conf_state) => {
                self.membership = membership(&conf_state)?;
                return Ok(None);
            }
            Row::StorageVersion(version) => match parse_version(&version) {
                Some([major, minor, _]) if (major, minor) > NEWEST => {
                    return Err("a storage version newer than 3.7 (etcdutl migrate takes it back)");
                }
                _ => return Ok(None),
            },
        }))
    }

    /// Reads a record, which has to follow the last one. `None` for the mark of a raised revision.
    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<Option<NewRecord>, &'static str> {
        let (revision, tombstone) = Revision::from_bytes(key).ok_or("a record that has no revision")?;
        if !(1..=RESTORE_REVISION_MAX).contains(&revision.main) {
            return Err("a record of an impossible revision");
        }
        let id = RecordId::new(revision.main, revision.sub);
        if id <= self.last {
            return Err("a second record of one revision");
        }
        self.last = id;
        // etcdutl snapshot restore --bump-revision leaves one: nothing but its revision counts.
        if value.is_empty() && !tombstone {
            return Ok(None);
        }
        let fields = KeyValueView::decode(value).ok_or("a record that is no mvccpb.KeyValue")?;
        let is_whole = match tombstone {
            true => {
                fields
                    == KeyValueView {
                        key: fields.key,
                        ..Default::default()
                    }
            }
            false => {
                fields.mod_revision == revision.main
                    && (1..=revision.main).contains(&fields.create_revision)
                    && fields.version >= 1
            }
        };
        if !is_whole || fields.key.is_empty() || fields.value.len() > VALUE_MAX_BYTES {
            return Err("a record that contradicts itself");
        }
        self.records += 1;
        Ok(Some(NewRecord {
            id,
            tombstone,
            key: Bytes::copy_from_slice(fields.key),
            create_revision: fields.create_revision,
            version: fields.version,
            lease: fields.lease,
            value: Bytes::copy_from_slice(fields.value),
        }))
    }

    fn skip(&mut self, bucket: &[u8], key: &[u8]) {
        if self.skipped.len() < IMPORT_SKIPPED_MAX {
            self.skipped
                .push(format!("{} {}", bucket.escape_ascii(), key.escape_ascii()));
        }
    }
}

fn membership(conf_state: &ConfState) -> Result<Bytes, &'static str> {
    if conf_state.is_joint() {
        return Err("a membership in the middle of a change of several members");
    }
    if conf_state.voters.is_empty() {
        return Err("a membership without voters");
    }
    let bytes = conf_state.to_membership();
    match bytes.len() <= MEMBERSHIP_MAX_BYTES {
        true => Ok(bytes.into()),
        false => Err("a membership that is too long for a page file"),
    }
}
