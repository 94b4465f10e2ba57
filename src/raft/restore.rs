//! Taking the state over from the page store at boot.
//!
//! The small trees first, then all records' heads: this thread reads and writes the index, other threads, which live no
//! longer than that, verify, decode and sort. What is under way between them is bounded: a batch of leaves for each
//! thread, two waiting, one being read. The disk sees the same operations however many threads there are.

use super::boot::BootError;
use crate::io::disk::Disk;
use crate::limits::{LOG_CORE_CACHE_BYTES, RESTORE_KEY_BYTES, RESTORE_SLICE};
use crate::mvcc::index::{self, RestoreBatch};
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::pages::{
    BootScan, Corrupt, Decoded, LeafBatch, PageCache, PageStore, ReadFailure, RecordHead, Root, Scanned, StoreFailure,
    TreeId, TreeScan,
};
use crate::state::lease::LessorConfig;
use crate::state::{Restore, RestoreError, State};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

/// The state as of the page store's root.
pub(super) fn restore<D: Disk>(
    disk: &mut D,
    store: &PageStore,
    lessor: LessorConfig,
    decoders: usize,
) -> Result<State, BootError> {
    let root = store.root().clone();
    let mut restore = Restore::new(lessor, &root);
    for tree in [TreeId::Leases, TreeId::Members, TreeId::Alarms, TreeId::Meta] {
        restore_tree(disk, store, &root, tree, &mut restore)?;
    }
    std::thread::scope(|scope| {
        let lanes = (0..decoders).map_while(|number| Lane::start(scope, number));
        let mut records = Records {
            store,
            scan: BootScan::new(store, disk)?,
            restore: &mut restore,
            lanes: lanes.collect(),
            sent: 0,
            taken: 0,
            spare: Vec::new(),
        };
        let result = records.run(disk);
        // After an error, too, the disk is left with nothing in flight.
        records.scan.stop(store, disk);
        result
    })?;
    Ok(restore.finish())
}

fn restore_tree<D: Disk>(
    disk: &mut D,
    store: &PageStore,
    root: &Root,
    tree: TreeId,
    restore: &mut Restore,
) -> Result<(), BootError> {
    let page_error = |failure: ReadFailure| BootError::Page {
        path: store.path().to_path_buf(),
        reason: failure.to_string(),
    };
    let mut cache = PageCache::new(LOG_CORE_CACHE_BYTES);
    let mut scan = TreeScan::new(tree, b"");
    loop {
        let mut failed = None;
        let scanned = scan.step(root, &mut cache, RESTORE_SLICE, |key, value| {
            failed = restore.pair(tree, key, value).err();
            match failed {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        match scanned {
            Ok(Scanned::End) => return Ok(()),
            Ok(Scanned::More) => {}
            Err(ReadFailure::Missing(address)) => {
                let (buffer, length) = disk.read(store.file(), address.offset(), address.length())?;
                let length = length.min(address.length());
                root.insert(&mut cache, &address, &buffer[..length])
                    .map_err(page_error)?;
            }
            Err(failure) => return Err(page_error(failure)),
        }
    }
}

/// Why a batch could not be decoded.
enum Undecoded {
    Page(Corrupt),
    Records(index::RestoreError),
    /// Keys lie outside their leaves, which takes the disk.
    KeysOutside,
}

/// One decoding thread's ends: batches, each with memory for its records, go and come back.
struct Lane {
    work: Sender<(LeafBatch, RestoreBatch)>,
    done: Receiver<(LeafBatch, RestoreBatch, Result<(), Undecoded>)>,
}

impl Lane {
    /// A thread, if there can be one more.
    fn start<'scope>(scope: &'scope Scope<'scope, '_>, number: usize) -> Option<Lane> {
        let (work, batches) = channel::<(LeafBatch, RestoreBatch)>();
        let (results, done) = channel();
        let decode_all = move || {
            for (leaves, mut records) in batches {
                let result = decode(&leaves, &mut records);
                if results.send((leaves, records, result)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("restore-{number}"));
        match thread.spawn_scoped(scope, decode_all) {
            Ok(_) => Some(Lane { work, done }),
            Err(error) => {
                tracing::warn!("the start goes on with {number} threads to decode records: {error}");
                None
            }
        }
    }
}

fn decode(leaves: &LeafBatch, records: &mut RestoreBatch) -> Result<(), Undecoded> {
    records.clear();
    let mut refused = Ok(());
    let decoded = leaves.heads(|head| {
        if refused.is_ok() {
            refused = push(records, &head);
        }
    });
    match decoded.map_err(Undecoded::Page)? {
        Decoded::KeysOutside => return Err(Undecoded::KeysOutside),
        Decoded::Whole => refused.map_err(Undecoded::Records)?,
    }
    records.sort();
    Ok(())
}

fn push(records: &mut RestoreBatch, head: &RecordHead<'_>) -> Result<(), index::RestoreError> {
    let fields = KeyValueView {
        key: head.key,
        create_revision: head.create_revision,
        mod_revision: head.id.main,
        version: head.version,
        value: &[],
        lease: head.lease,
    };
    records.push(Revision::new(head.id.main, head.id.sub), &fields, head.tombstone)
}

/// All records on their way from the file to the index.
struct Records<'a> {
    store: &'a PageStore,
    scan: BootScan,
    restore: &'a mut Restore,
    lanes: Vec<Lane>,
    /// Batches given to the lanes in turn, and taken back from them in the same order.
    sent: usize,
    taken: usize,
    spare: Vec<RestoreBatch>,
}

impl Records<'_> {
    fn run<D: Disk>(&mut self, disk: &mut D) -> Result<(), BootError> {
        while let Some(leaves) = self.scan.next(self.store, disk)? {
            let mut records = self.spare.pop().unwrap_or_default();
            if self.lanes.is_empty() {
                let result = decode(&leaves, &mut records);
                self.take(disk, leaves, records, result)?;
                continue;
            }
            let lane = &self.lanes[self.sent % self.lanes.len()];
            // A lane whose thread has panicked is noticed when its result is asked for.
            let _ = lane.work.send((leaves, records));
            self.sent += 1;
            if self.sent - self.taken > self.lanes.len() + 1 {
                self.take_back(disk)?;
            }
        }
        while self.taken < self.sent {
            self.take_back(disk)?;
        }
        Ok(())
    }

    fn take_back<D: Disk>(&mut self, disk: &mut D) -> Result<(), BootError> {
        let done = self.lanes[self.taken % self.lanes.len()].done.recv();
        let (leaves, records, result) = done.expect("a decoding thread has panicked");
        self.taken += 1;
        self.take(disk, leaves, records, result)
    }

    fn take<D: Disk>(
        &mut self,
        disk: &mut D,
        leaves: LeafBatch,
        mut records: RestoreBatch,
        result: Result<(), Undecoded>,
    ) -> Result<(), BootError> {
        match result {
            Ok(()) => self.restore.records(&records)?,
            Err(Undecoded::KeysOutside) => self.take_with_keys_outside(disk, &leaves, &mut records)?,
            Err(Undecoded::Records(error)) => return Err(RestoreError::from(error).into()),
            Err(Undecoded::Page(source)) => {
                let path = self.store.path().to_path_buf();
                return Err(StoreFailure::Corrupt { path, source }.into());
            }
        }
        self.scan.recycle(leaves);
        self.spare.push(records);
        Ok(())
    }

    /// Takes records over some of whose keys have to be read first. Such keys are long: they are taken in parts.
    fn take_with_keys_outside<D: Disk>(
        &mut self,
        disk: &mut D,
        leaves: &LeafBatch,
        records: &mut RestoreBatch,
    ) -> Result<(), BootError> {
        records.clear();
        let restore = &mut *self.restore;
        self.scan
            .heads(self.store, disk, leaves, |head| -> Result<(), BootError> {
                if records.key_bytes() >= RESTORE_KEY_BYTES {
                    records.sort();
                    restore.records(records)?;
                    records.clear();
                }
                push(records, &head).map_err(RestoreError::from)?;
                Ok(())
            })?;
        records.sort();
        self.restore.records(records)?;
        Ok(())
    }
}
