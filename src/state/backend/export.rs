//! A root of the page store as etcd's database file, in chunks.
//!
//! The root is walked twice (DESIGN 12 (25)): with the heads of records only, which gives the file's length, and with
//! their values, which gives its bytes. Each step does a bounded piece and goes on where the last one stopped, so that
//! it can run beside everything else a core does; while the export lives it pins the root.
//!
//! The file is the state as of the root, that is as of its applied index: what came later is not in it. Records that a
//! compaction has removed and no checkpoint has deleted yet are in it; whoever opens the file drops them by the
//! compaction marks, as a restart of ours does.

use super::names;
use super::row::{ConfState, Row};
use crate::bbolt::{Measure, Plan, WriteError, Writer};
use crate::limits::EXPORT_CHUNK_BYTES;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::pages::{
    PageAddress, PageCache, ReadFailure, RecordHead, RecordId, RecordScan, RecordView, Root, Scanned, TreeId, TreeScan,
};
use crate::state::members::parse_version;
use std::ops::ControlFlow;

/// Why an export does not go on.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A page: a missing one is to be loaded, then the step made again; all else ends the export.
    #[error(transparent)]
    Page(#[from] ReadFailure),
    /// Something that etcd's file does not hold.
    #[error("the store can't be written as etcd's database: {0}")]
    Write(#[from] WriteError),
    /// The membership of the commit.
    #[error("the page file's commit has {0}; restore the member from a snapshot or from its peers")]
    Membership(&'static str),
    /// An earlier step failed.
    #[error("the export has failed before; begin another")]
    Failed,
}

/// What a step of an export came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Exported {
    /// More of the first walk.
    Measuring,
    /// The first walk is over, and this is the file's length in bytes.
    Measured(u64),
    /// The next bytes of the file: at least [`EXPORT_CHUNK_BYTES`], but for the last ones.
    Chunk(Vec<u8>),
    /// More of the second walk; no chunk is full yet.
    Writing,
    /// All bytes were handed out.
    End,
}

/// Where rows go.
#[derive(Debug)]
enum Pass {
    Measure(Measure),
    Measured(Plan),
    Write(Writer),
    Over,
    Failed,
}

/// An export under way.
#[derive(Debug)]
pub struct Export {
    root: Root,
    pass: Pass,
    walk: Walk,
    length: Option<u64>,
    /// For the bytes of one record.
    buffer: Vec<u8>,
}

/// A position in the rows of a root: a bucket, and what of it comes next.
#[derive(Debug)]
struct Walk {
    bucket: usize,
    /// `None` before the bucket is begun.
    rows: Option<Rows>,
}

/// The rows of a bucket that are left.
#[derive(Debug)]
enum Rows {
    /// A small tree, or the part of it whose rows have this answer to: is it the mark of a removed member?
    Tree(TreeScan, Option<bool>),
    Records(RecordScan),
    None,
}

/// A key and a value.
type Pair = (Vec<u8>, Vec<u8>);

const START: Walk = Walk { bucket: 0, rows: None };

impl Export {
    /// Begins an export of this root.
    pub fn new(root: Root) -> Export {
        Export {
            root,
            pass: Pass::Measure(Measure::new()),
            walk: START,
            length: None,
            buffer: Vec::new(),
        }
    }

    /// The root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The length of the file in bytes, when it is known.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Goes on by up to `budget` records or rows. After [`ReadFailure::Missing`] it goes on where it was; after other
    /// errors nothing more comes of it.
    pub fn step(&mut self, cache: &mut PageCache, budget: usize) -> Result<Exported, ExportError> {
        if let Pass::Measured(plan) = &self.pass {
            (self.pass, self.walk) = (Pass::Write(Writer::new(plan.clone())), START);
        }
        match self.pass {
            Pass::Over => return Ok(Exported::End),
            Pass::Failed => return Err(ExportError::Failed),
            _ => {}
        }
        if self.walk.bucket < names::BUCKETS.len() {
            self.advance(cache, budget)?;
        }
        let is_end = self.walk.bucket == names::BUCKETS.len();
        match std::mem::replace(&mut self.pass, Pass::Failed) {
            Pass::Measure(measure) if is_end => {
                let plan = measure.finish();
                let length = plan.length();
                self.length = Some(length);
                self.pass = Pass::Measured(plan);
                Ok(Exported::Measured(length))
            }
            Pass::Write(writer) if is_end => {
                let chunk = writer.finish()?;
                self.pass = Pass::Over;
                Ok(Exported::Chunk(chunk))
            }
            Pass::Write(mut writer) if writer.ready() >= EXPORT_CHUNK_BYTES => {
                let chunk = writer.take();
                self.pass = Pass::Write(writer);
                Ok(Exported::Chunk(chunk))
            }
            pass => {
                let is_writing = matches!(pass, Pass::Write(_));
                self.pass = pass;
                Ok(if is_writing {
                    Exported::Writing
                } else {
                    Exported::Measuring
                })
            }
        }
    }

    /// Up to `count` pages that the next steps will read and the cache lacks, to be loaded together.
    pub fn ahead(&self, cache: &mut PageCache, count: usize) -> Vec<PageAddress> {
        match &self.walk.rows {
            Some(Rows::Records(scan)) => scan.ahead(&self.root, cache, count, matches!(self.pass, Pass::Write(_))),
            _ => Vec::new(),
        }
    }

    /// Visits rows of the current bucket, and begins the next one behind the last.
    fn advance(&mut self, cache: &mut PageCache, budget: usize) -> Result<(), ExportError> {
        let name = names::BUCKETS[self.walk.bucket];
        let Some(rows) = &mut self.walk.rows else {
            return self.begin(cache, name);
        };
        let (pass, buffer, root) = (&mut self.pass, &mut self.buffer, &self.root);
        let mut failed = None;
        let mut flow = |result: Result<bool, WriteError>| match result {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        let scanned = match rows {
            Rows::None => Scanned::End,
            Rows::Tree(scan, removed) => scan.step(root, cache, budget, |key, value| match removed {
                Some(removed) if (value == names::REMOVED) != *removed => ControlFlow::Continue(()),
                _ => flow(pass.put(key, value)),
            })?,
            Rows::Records(scan) if matches!(pass, Pass::Measure(_)) => {
                scan.step_heads(root, cache, budget, |head| flow(pass.measure(&head)))?
            }
            Rows::Records(scan) => scan.step(root, cache, budget, |record| flow(pass.record(&record, buffer)))?,
        };
        if let Some(error) = failed {
            self.pass = Pass::Failed;
            return Err(error.into());
        }
        if scanned == Scanned::End {
            self.walk = Walk {
                bucket: self.walk.bucket + 1,
                rows: None,
            };
        }
        Ok(())
    }

    fn begin(&mut self, cache: &mut PageCache, name: &[u8]) -> Result<(), ExportError> {
        // These can come back for a page, so they are complete before anything is put.
        let fixed = self.fixed_rows(cache, name)?;
        self.pass.bucket(name)?;
        for (key, value) in fixed {
            self.pass.put(&key, &value)?;
        }
        let tree = |tree, removed| Rows::Tree(TreeScan::new(tree, b""), removed);
        self.walk.rows = Some(match name {
            names::ALARM => tree(TreeId::Alarms, None),
            names::AUTH_ROLES => tree(TreeId::Roles, None),
            names::AUTH_USERS => tree(TreeId::Users, None),
            names::KEY => Rows::Records(RecordScan::new(RecordId::ZERO)),
            names::LEASE => tree(TreeId::Leases, None),
            names::MEMBERS => tree(TreeId::Members, Some(false)),
            names::MEMBERS_REMOVED => tree(TreeId::Members, Some(true)),
            _ => Rows::None,
        });
        Ok(())
    }

    /// The rows of a bucket whose keys are fixed, sorted.
    fn fixed_rows(&self, cache: &mut PageCache, name: &[u8]) -> Result<Vec<Pair>, ExportError> {
        let stored: &[&[u8]] = match name {
            names::AUTH => &[names::AUTH_ENABLED, names::AUTH_REVISION],
            names::CLUSTER => &[names::CLUSTER_VERSION, names::DOWNGRADE],
            names::META => &[names::FINISHED_COMPACTION, names::SCHEDULED_COMPACTION],
            _ => &[],
        };
        let mut rows = Vec::new();
        for key in stored {
            if let Some(value) = self.root.get(cache, TreeId::Meta, key)? {
                rows.push((key.to_vec(), value.to_vec()));
            }
        }
        if name == names::AUTH && !rows.iter().any(|(key, _)| key == names::AUTH_REVISION) {
            // etcd's before authentication was ever turned on.
            let (_, key, value) = Row::AuthRevision(1).encode();
            rows.push((key, value));
        }
        if name == names::META {
            let fields = self.root.fields();
            let mut add = |row: Row| {
                let (_, key, value) = row.encode();
                rows.push((key, value));
            };
            add(Row::ConsistentIndex(fields.applied_index));
            add(Row::Term(fields.term));
            if !fields.membership.is_empty() {
                let conf_state = ConfState::decode(&fields.membership).map_err(ExportError::Membership)?;
                add(Row::ConfState(conf_state));
            }
            let version = self.root.get(cache, TreeId::Meta, names::CLUSTER_VERSION)?;
            version.and_then(|version| storage_version(&version)).map(add);
            rows.sort_unstable();
        }
        Ok(rows)
    }
}

/// The storage version that goes with a cluster version: 3.5 and earlier had none.
fn storage_version(cluster: &[u8]) -> Option<Row> {
    let [major, minor, _] = parse_version(std::str::from_utf8(cluster).ok()?)?;
    ((major, minor) >= (3, 6)).then(|| Row::StorageVersion(format!("{major}.{minor}.0")))
}

impl Pass {
    fn bucket(&mut self, name: &[u8]) -> Result<(), WriteError> {
        match self {
            Pass::Measure(measure) => measure.bucket(name),
            Pass::Write(writer) => writer.bucket(name),
            Pass::Measured(_) | Pass::Over | Pass::Failed => unreachable!("nothing is walked"),
        }
    }

    /// Takes a row. Whether the step can go on.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, WriteError> {
        match self {
            Pass::Measure(measure) => measure.put(key, value.len()).map(|()| true),
            Pass::Write(writer) => {
                writer.put(key, value)?;
                Ok(writer.ready() < EXPORT_CHUNK_BYTES)
            }
            Pass::Measured(_) | Pass::Over | Pass::Failed => unreachable!("nothing is walked"),
        }
    }

    fn measure(&mut self, head: &RecordHead<'_>) -> Result<bool, WriteError> {
        let Pass::Measure(measure) = self else {
            unreachable!("heads are for measuring")
        };
        let value = KeyValueView::of_stored(&RecordView {
            id: head.id,
            tombstone: head.tombstone,
            key: head.key,
            create_revision: head.create_revision,
            version: head.version,
            lease: head.lease,
            value: &[],
        });
        let value_length = if head.tombstone { 0 } else { head.value_length };
        let (key, length) = Revision::new(head.id.main, head.id.sub).to_bytes(head.tombstone);
        measure.put(&key[..length], value.encoded_length_with(value_length))?;
        Ok(true)
    }

    fn record(&mut self, record: &RecordView<'_>, buffer: &mut Vec<u8>) -> Result<bool, WriteError> {
        buffer.clear();
        KeyValueView::of_stored(record).encode(buffer);
        let (key, length) = Revision::new(record.id.main, record.id.sub).to_bytes(record.tombstone);
        self.put(&key[..length], buffer)
    }
}
