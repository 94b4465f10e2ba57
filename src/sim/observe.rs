//! Everything that can be read of a member, compared with what ought to be there.

use super::member::page_file;
use super::model::{Model, Record};
use crate::io::faulty::FaultyDisk;
use crate::io::medium::Random;
use crate::limits::LOG_CORE_CACHE_BYTES;
use crate::mvcc::index::KeyMeta;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::pages::{PageAddress, PageCache, ReadFailure, RecordId, RecordScan, Root, Scanned};
use crate::proto::etcdserverpb::AlarmType;
use crate::raft::core::LogCore;
use crate::raft::stored_bytes;
use crate::state::hash::KvHasher;
use crate::state::range::Readable;
use crate::state::read::for_each;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A record as it was read: revision, whether it is a tombstone, and the stored bytes.
pub type Stored = (Revision, bool, Bytes);

/// Loads a page of a root into a cache, as any process would read it now.
pub fn load_page(disk: &FaultyDisk, root: &Root, cache: &mut PageCache, address: &PageAddress) -> Result<(), String> {
    let volume = disk.volume();
    let contents = volume
        .resolve(&page_file())
        .and_then(|inode| volume.contents(inode))
        .map_err(|error| format!("the page file: {error}"))?;
    let mut bytes = vec![0; address.length()];
    contents.read(address.offset(), &mut bytes);
    root.insert(cache, address, &bytes)
        .map_err(|failure| failure.to_string())
}

/// Reads records of views, from the window and from the page file as any process would see it now.
pub struct Reader<'a> {
    disk: &'a FaultyDisk,
    cache: PageCache,
}

impl<'a> Reader<'a> {
    /// Reads the page file on `disk`, past what is in flight.
    pub fn new(disk: &'a FaultyDisk) -> Reader<'a> {
        let cache = PageCache::new(LOG_CORE_CACHE_BYTES);
        Reader { disk, cache }
    }

    /// Retries a read until all its pages are there.
    fn pages<T>(
        &mut self,
        root: &Root,
        mut read: impl FnMut(&mut PageCache) -> Result<T, ReadFailure>,
    ) -> Result<T, String> {
        loop {
            match read(&mut self.cache) {
                Err(ReadFailure::Missing(address)) => load_page(self.disk, root, &mut self.cache, &address)?,
                other => return other.map_err(|failure| failure.to_string()),
            }
        }
    }

    /// The stored bytes of a record; where both window and page store have it, they must agree.
    pub fn record(&mut self, view: &View, revision: Revision) -> Result<Bytes, String> {
        let in_window = view
            .window
            .get(revision)
            .map(|record| Bytes::copy_from_slice(record.stored()));
        if revision.main > view.pages.fields().revision {
            return in_window.ok_or_else(|| format!("{revision:?} is neither in the window nor in the page store"));
        }
        let id = RecordId {
            main: revision.main,
            sub: revision.sub,
        };
        let in_pages = self.pages(&view.pages, |cache| view.pages.record(cache, id))?;
        let in_pages = in_pages.map(|record| stored_bytes(&record.view()));
        match (in_window, in_pages) {
            (Some(window), Some(pages)) if window != pages => {
                Err(format!("{revision:?} differs between window and page store"))
            }
            (_, Some(bytes)) => Ok(bytes),
            (_, None) => Err(format!("{revision:?} is missing from the page store")),
        }
    }

    /// The stored records after main revision `after`, in order.
    pub fn records_after(&mut self, view: &View, after: i64) -> Result<Vec<Stored>, String> {
        let mut found = Vec::new();
        let held = view.pages.fields().revision;
        if after < held {
            let main = after.max(0) + 1;
            let mut scan = RecordScan::new(RecordId { main, sub: 0 });
            while self.pages(&view.pages, |cache| {
                scan.step(&view.pages, cache, 1000, |record| {
                    let mut bytes = Vec::new();
                    KeyValueView::of_stored(&record).encode(&mut bytes);
                    let revision = Revision::new(record.id.main, record.id.sub);
                    found.push((revision, record.tombstone, Bytes::from(bytes)));
                    ControlFlow::Continue(())
                })
            })? != Scanned::End
            {}
        }
        let behind = view.window.scan(Revision::new(after.max(held) + 1, 0));
        found.extend(behind.map(|record| {
            let stored = Bytes::copy_from_slice(record.stored());
            (record.revision, record.tombstone, stored)
        }));
        Ok(found)
    }
}

/// All that a member holds at one moment.
pub struct Observed {
    readable: Readable,
    records: Vec<Stored>,
    leases: BTreeMap<i64, Vec<String>>,
    is_full: bool,
}

impl Observed {
    /// Reads everything.
    pub fn of(core: &LogCore, disk: &FaultyDisk) -> Result<Observed, String> {
        let view = published(core);
        let records = Reader::new(disk).records_after(&view, 0)?;
        let lessor = core.state().lessor();
        let keys_of = |id: i64| {
            let lease = lessor.time_to_live(id, true, std::time::Duration::ZERO);
            let keys = lease.map(|lease| lease.keys).unwrap_or_default();
            keys.iter()
                .map(|key| String::from_utf8_lossy(key).into_owned())
                .collect()
        };
        let leases = lessor.ids().into_iter().map(|id| (id, keys_of(id))).collect();
        let readable = Readable {
            revision: view.revision,
            compact_revision: view.compact_revision,
        };
        Ok(Observed {
            readable,
            records,
            leases,
            is_full: core.state().alarms().is_raised(AlarmType::Nospace),
        })
    }

    /// For a canary: the newest record was never found.
    pub fn drop_newest(&mut self) {
        self.records.pop();
    }

    /// What differs from the model, if anything does.
    pub fn differs(&self, model: &Model) -> Option<String> {
        let wanted = Readable {
            revision: model.revision(),
            compact_revision: model.compact_revision(),
        };
        if self.readable != wanted {
            return Some(format!("{:?} is there, {wanted:?} was expected", self.readable));
        }
        let leases: BTreeMap<i64, Vec<String>> = model
            .leases()
            .iter()
            .map(|(id, keys)| (*id, keys.iter().cloned().collect()))
            .collect();
        if self.leases != leases {
            return Some(format!("leases {:?} are there, {leases:?} were expected", self.leases));
        }
        if self.is_full != model.is_full() {
            return Some(format!("the alarm of a full quota is {}", self.is_full));
        }
        differing_record(&self.records, model)
    }

    /// Whether there is such a lease.
    pub fn has_lease(&self, id: i64) -> bool {
        self.leases.contains_key(&id)
    }

    /// The key of the first record behind a main revision.
    pub fn key_after(&self, main: i64) -> Option<String> {
        let mut behind = self.records.iter().filter(|(revision, _, _)| revision.main > main);
        behind.next().and_then(|(_, _, stored)| key_of(stored))
    }
}

/// The key of a stored record.
pub fn key_of(stored: &[u8]) -> Option<String> {
    let fields = KeyValueView::decode(stored)?;
    Some(String::from_utf8_lossy(fields.key).into_owned())
}

/// Records above the compact revision are all there; of those below, what is visible at it has to be, and what a
/// compaction removes may still be.
fn differing_record(records: &[Stored], model: &Model) -> Option<String> {
    let compact_revision = model.compact_revision();
    let kept = model.newest_at(compact_revision);
    let must = |record: &Record| {
        record.revision.main > compact_revision
            || kept
                .get(record.key.as_str())
                .is_some_and(|newest| newest.revision == record.revision && !record.tombstone)
    };
    let mut found = records.iter().peekable();
    for expected in model.history() {
        let here = found.next_if(|(revision, _, _)| *revision == expected.revision);
        match here {
            None if must(expected) => {
                return Some(format!(
                    "the record {:?} of {} is missing",
                    expected.revision, expected.key
                ));
            }
            None => {}
            Some((_, tombstone, stored)) if *tombstone != expected.tombstone || stored[..] != expected.stored()[..] => {
                return Some(format!(
                    "the record {:?} of {} differs",
                    expected.revision, expected.key
                ));
            }
            Some(_) => {}
        }
    }
    found
        .next()
        .map(|(revision, _, _)| format!("nobody wrote the record {revision:?}"))
}

/// The newest published view.
pub fn published(core: &LogCore) -> View {
    core.state().index().pin().view().clone()
}

/// Compares index, values and HashKV of a view with the model, at its newest revision and at some remembered ones.
pub fn check_view(
    core: &LogCore,
    view: &View,
    disk: &FaultyDisk,
    model: &Model,
    random: &mut Random,
) -> Result<(), String> {
    if view.revision != model.revision() {
        return Err(format!(
            "a read sees revision {}, {} was acknowledged",
            view.revision,
            model.revision()
        ));
    }
    let mut reader = Reader::new(disk);
    let lowest = model.compact_revision().max(1);
    let remembered = lowest + random.below((model.revision() - lowest + 1) as u64) as i64;
    for main in [model.revision(), remembered, lowest] {
        check_keys(core, view, &mut reader, model, main).map_err(|reason| format!("at revision {main}: {reason}"))?;
    }
    let records = reader.records_after(view, 0)?;
    for main in [model.revision(), remembered] {
        check_hash(core, view, &records, model, main)?;
    }
    Ok(())
}

fn check_keys(core: &LogCore, view: &View, reader: &mut Reader<'_>, model: &Model, main: i64) -> Result<(), String> {
    let index = core.state().index();
    let mut rows: Vec<(String, KeyMeta)> = Vec::new();
    for_each(&index.pin(), b"\0", b"\0", main, |key, meta| {
        rows.push((String::from_utf8_lossy(key).into_owned(), meta));
        ControlFlow::Continue(())
    });
    let alive = model.newest_at(main).into_values().filter(|record| !record.tombstone);
    let mut rows = rows.into_iter();
    for expected in alive {
        let Some((key, meta)) = rows.next() else {
            return Err(format!("the index lacks {}", expected.key));
        };
        let same = key == expected.key
            && meta.revision == expected.revision
            && meta.create_revision == expected.create_revision
            && meta.version == expected.version
            && (main != model.revision() || meta.lease == expected.lease);
        if !same {
            return Err(format!("the index has {key} as {meta:?}, expected was {expected:?}"));
        }
        if reader.record(view, meta.revision)?[..] != expected.stored()[..] {
            return Err(format!("{key} has another value than was put"));
        }
    }
    match rows.next() {
        Some((key, _)) => Err(format!("the index has {key}, which is not alive")),
        None => Ok(()),
    }
}

/// Holds all records of a member that may lag against the model, as of the member's own revision. Only where both are
/// compacted alike: what went is in neither hash.
pub fn check_behind(core: &LogCore, disk: &FaultyDisk, model: &Model) -> Result<(), String> {
    let view = published(core);
    if view.compact_revision != model.compact_revision() || view.revision > model.revision() {
        return Ok(());
    }
    let records = Reader::new(disk).records_after(&view, 0)?;
    check_hash(core, &view, &records, model, view.revision)
}

fn check_hash(core: &LogCore, view: &View, records: &[Stored], model: &Model, main: i64) -> Result<(), String> {
    let readable = Readable {
        revision: view.revision,
        compact_revision: view.compact_revision,
    };
    let index = core.state().index();
    let mut hasher = KvHasher::new(main, readable).map_err(|error| format!("HashKV at {main}: {error}"))?;
    while !hasher.prepare(&index.pin()) {}
    for (revision, tombstone, stored) in records {
        let fields = KeyValueView::decode(stored).ok_or("a stored record is no KeyValue")?;
        if !hasher.feed(&index.pin(), *revision, *tombstone, fields.key, stored) {
            break;
        }
    }
    let (found, expected) = (hasher.finish().hash, model.hash(main));
    if found != expected {
        return Err(format!(
            "HashKV at revision {main} is {found:08x}, expected was {expected:08x}"
        ));
    }
    Ok(())
}
