//! The bytes of records named by revision: from the event window, else from the page store.
//!
//! A record in the window is borrowed. One that is not is read by this core itself, into its own page cache, without
//! blocking the core.

use crate::io::buffer::AlignedBuffer;
use crate::io::disk::DiskError;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::pages::{Corrupt, PageAddress, PageCache, ReadFailure, Record, RecordId, RecordScan};
use crate::reactor::serve::{self, PageFileReader};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::cell::{RefCell, RefMut};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Why a record can't be had.
#[derive(Debug)]
pub enum Unreadable {
    /// The page is damaged or does not hold what the index names: a CORRUPT alarm is due.
    Corrupt(String),
    /// The disk did not give the page this time, which says nothing of what is stored: where, and its answer.
    Disk(String),
    /// The view was held too long.
    Expired,
}

/// What taking records from the core's page cache came to.
pub enum Cached {
    /// All of them are here now.
    All,
    /// This page has to be loaded first.
    Lacks(PageAddress),
    /// Not as they are wanted, because they are too much or can't be read: who fetches them is told why.
    No,
}

impl Cached {
    /// Whether all are here.
    pub fn is_all(&self) -> bool {
        matches!(self, Cached::All)
    }
}

/// Reads the page store for one core. Clones share cache and file.
#[derive(Clone)]
pub struct PageReads {
    cache: Rc<RefCell<PageCache>>,
    file: PageFileReader,
}

impl PageReads {
    /// Reads through `file` with a cache of `cache_bytes`.
    pub fn new(file: PageFileReader, cache_bytes: usize) -> PageReads {
        PageReads {
            cache: Rc::new(RefCell::new(PageCache::new(cache_bytes))),
            file,
        }
    }

    /// Runs `read` until it misses no page, loading those it misses.
    pub async fn retry<T>(
        &self,
        view: &View,
        mut read: impl FnMut(&mut PageCache) -> Result<T, ReadFailure>,
    ) -> Result<T, Unreadable> {
        loop {
            let result = read(&mut self.cache.borrow_mut());
            let address = match result {
                Ok(value) => return Ok(value),
                Err(ReadFailure::Missing(address)) => address,
                Err(ReadFailure::Expired { .. }) => return Err(Unreadable::Expired),
                Err(ReadFailure::Corrupt(corrupt)) => return Err(self.corrupt(&corrupt)),
            };
            self.load(view, &address).await?;
        }
    }

    /// Loads a page that a read missed.
    pub async fn load(&self, view: &View, address: &PageAddress) -> Result<(), Unreadable> {
        let read = self.file.read(address.offset(), address.length()).await;
        self.insert(view, address, read)?
            .map_err(|corrupt| self.corrupt(&corrupt))
    }

    /// Loads pages at the same time. They come into the cache in their order, so that a small one has the last ones.
    /// Returns those that are damaged. A page that the disk did not give, which is logged, fails them all.
    pub async fn load_all(
        &self,
        view: &View,
        addresses: &[PageAddress],
    ) -> Result<Vec<(PageAddress, Corrupt)>, Unreadable> {
        let reads = addresses
            .iter()
            .map(|address| self.file.read(address.offset(), address.length()));
        let mut damaged = Vec::new();
        for (address, read) in addresses.iter().zip(serve::join(reads).await) {
            match self.insert(view, address, read) {
                Ok(Ok(())) | Err(Unreadable::Expired) => {}
                Ok(Err(corrupt)) => damaged.push((*address, corrupt)),
                Err(failure) => return Err(failure),
            }
        }
        Ok(damaged)
    }

    /// Keeps what a read brought, unless it is damaged.
    fn insert(
        &self,
        view: &View,
        address: &PageAddress,
        read: Result<(AlignedBuffer, usize), DiskError>,
    ) -> Result<Result<(), Corrupt>, Unreadable> {
        let offset = address.offset();
        let (buffer, length) = read.map_err(|error| Unreadable::Disk(format!("{error}, at byte offset {offset}")))?;
        let bytes = &buffer[..length.min(address.length())];
        match view.pages.insert(&mut self.cache.borrow_mut(), address, bytes) {
            Ok(()) | Err(ReadFailure::Missing(_)) => Ok(Ok(())),
            Err(ReadFailure::Expired { .. }) => Err(Unreadable::Expired),
            Err(ReadFailure::Corrupt(corrupt)) => Ok(Err(corrupt)),
        }
    }

    /// Names the file, too.
    pub fn corrupt(&self, corrupt: &Corrupt) -> Unreadable {
        Unreadable::Corrupt(format!("page file {}: {corrupt}", self.file.path().display()))
    }

    /// The core's page cache.
    pub fn cache(&self) -> RefMut<'_, PageCache> {
        self.cache.borrow_mut()
    }

    /// A record of the page store.
    pub async fn record(&self, view: &View, revision: Revision) -> Result<Record, Unreadable> {
        let id = record_id(revision);
        let found = self.retry(view, |cache| view.pages.record(cache, id)).await?;
        found.ok_or_else(|| Unreadable::Corrupt(missing(revision)))
    }

    /// The encoded length of a record of the page store, without reading its value.
    pub async fn record_length(&self, view: &View, revision: Revision, with_value: bool) -> Result<usize, Unreadable> {
        let id = record_id(revision);
        let length = self
            .retry(view, |cache| {
                let mut length = None;
                RecordScan::new(id).step_heads(&view.pages, cache, 1, |head| {
                    if head.id == id {
                        let value_length = if with_value { head.value_length } else { 0 };
                        length = Some(encoded_length(head.key, value_length, &head));
                    }
                    ControlFlow::Break(())
                })?;
                Ok(length)
            })
            .await?;
        length.ok_or_else(|| Unreadable::Corrupt(missing(revision)))
    }
}

pub(super) fn record_id(revision: Revision) -> RecordId {
    RecordId::new(revision.main, revision.sub)
}

fn missing(revision: Revision) -> String {
    format!("the page store lacks record {revision:?}, which the index names")
}

fn encoded_length(key: &[u8], value_length: usize, head: &crate::pages::RecordHead<'_>) -> usize {
    let without_value = KeyValueView {
        key,
        create_revision: head.create_revision,
        mod_revision: head.id.main,
        version: head.version,
        value: &[],
        lease: head.lease,
    };
    let value = match value_length {
        0 => 0,
        length => 1 + crate::mvcc::record::varint_length(length as u64) + length,
    };
    without_value.encoded_length() + value
}

/// Records of one view, those that the window lacks fetched beforehand.
pub struct Records<'v> {
    view: &'v View,
    fetched: FxHashMap<Revision, Bytes>,
}

impl<'v> Records<'v> {
    /// The records of a view, as far as its window goes.
    pub fn resident(view: &'v View) -> Records<'v> {
        Records {
            view,
            fetched: FxHashMap::default(),
        }
    }

    /// Those of `revisions` that the window lacks.
    pub fn missing(&self, revisions: impl IntoIterator<Item = Revision>) -> Vec<Revision> {
        revisions
            .into_iter()
            .filter(|revision| self.bytes(*revision).is_none())
            .collect()
    }

    /// Bytes of those of `revisions` that are here.
    pub fn length(&self, revisions: impl IntoIterator<Item = Revision>) -> usize {
        let lengths = revisions
            .into_iter()
            .map(|revision| self.bytes(revision).map_or(0, <[u8]>::len));
        lengths.sum()
    }

    /// Takes `revisions` from the core's page cache, up to `bytes_max` bytes of them.
    pub fn take_cached(&mut self, pages: &PageReads, revisions: &[Revision], bytes_max: usize) -> Cached {
        let mut cache = pages.cache();
        let mut left = bytes_max;
        for revision in revisions {
            let record = match self.view.pages.record(&mut cache, record_id(*revision)) {
                Ok(Some(record)) => record,
                Err(ReadFailure::Missing(address)) => return Cached::Lacks(address),
                Ok(None) | Err(_) => return Cached::No,
            };
            let fields = record.view();
            let length = fields.key.len() + fields.value.len();
            if length > left {
                return Cached::No;
            }
            left -= length;
            self.keep(*revision, &record);
        }
        Cached::All
    }

    fn keep(&mut self, revision: Revision, record: &Record) {
        let fields = KeyValueView::of_stored(&record.view());
        let mut bytes = Vec::with_capacity(fields.encoded_length());
        fields.encode(&mut bytes);
        self.fetched.insert(revision, bytes.into());
    }

    /// Fetches records.
    pub async fn fetch(&mut self, pages: &PageReads, revisions: Vec<Revision>) -> Result<(), Unreadable> {
        for revision in revisions {
            let record = pages.record(self.view, revision).await?;
            self.keep(revision, &record);
        }
        Ok(())
    }

    /// The encoded `KeyValue`; `None` when it has to be fetched.
    pub fn bytes(&self, revision: Revision) -> Option<&[u8]> {
        match self.view.window.get(revision) {
            Some(record) => Some(record.event()),
            None => self.fetched.get(&revision).map(|bytes| &bytes[..]),
        }
    }
}

impl crate::state::read::Records for Records<'_> {
    fn record(&self, revision: Revision) -> Option<&[u8]> {
        self.bytes(revision)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tasks::Ended;
    use super::*;
    use crate::grpc::Code;
    use crate::io::memory::MemoryDisk;
    use crate::mvcc::window::WindowWriter;
    use crate::pages::{Cut, NewRecord, Options, PageStore, StateFields};
    use crate::reactor::serve::{CoreOptions, ServeCore};
    use std::path::{Path, PathBuf};
    use std::sync::mpsc;
    use std::time::Duration;

    const BOUND: Duration = Duration::from_secs(20);

    /// A view of a store whose only record is in its pages.
    fn stored_view() -> View {
        let mut disk = MemoryDisk::new();
        let mut store = PageStore::create(&mut disk, Path::new("/db"), Options::new(0..64)).unwrap();
        let fields = StateFields {
            revision: 2,
            ..Default::default()
        };
        let record = NewRecord {
            id: RecordId { main: 2, sub: 0 },
            key: "k".into(),
            create_revision: 2,
            version: 1,
            ..Default::default()
        };
        let mut cut = Cut::new(fields, 0);
        cut.records = Box::new(std::iter::once(record));
        store.run(&mut disk, cut).unwrap().unwrap();
        View {
            revision: 2,
            compact_revision: -1,
            applied_index: 1,
            term: 1,
            sole_voter: true,
            window: WindowWriter::new(2).view(),
            pages: store.root().clone(),
        }
    }

    /// How a read of the record from the page file at `path` ends, and with which status.
    fn read_from(path: PathBuf) -> (String, Option<Code>) {
        let (sender, receiver) = mpsc::channel();
        let options = CoreOptions {
            name: "test".to_string(),
            cpus: None,
        };
        let core = ServeCore::start(options, move || async move {
            let (file, _) = PageFileReader::open(&path).await.unwrap();
            let pages = PageReads::new(file, 1 << 20);
            let failure = pages.record(&stored_view(), Revision::new(2, 0)).await.err().unwrap();
            let told = match &failure {
                Unreadable::Corrupt(text) => format!("corrupt: {text}"),
                Unreadable::Disk(text) => format!("disk: {text}"),
                Unreadable::Expired => "expired".to_string(),
            };
            let code = match Ended::from(failure) {
                Ended::Failed(status) => Some(status.code),
                Ended::Corrupt(_) | Ended::Gone | Ended::HandedOver => None,
            };
            sender.send((told, code)).unwrap();
        })
        .unwrap();
        let found = receiver.recv_timeout(BOUND).unwrap();
        assert!(core.join(BOUND));
        found
    }

    #[test]
    fn a_failed_read_is_an_internal_error_and_no_damage() {
        // Where this process has no memory, reading it fails with EIO.
        let (told, code) = read_from("/proc/self/mem".into());
        assert!(told.starts_with("disk: read /proc/self/mem: "), "{told}");
        assert!(told.contains("(os error 5), at byte offset "), "{told}");
        assert_eq!(code, Some(Code::Internal));
    }

    #[test]
    fn damage_names_file_page_and_offset() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let (told, code) = read_from(file.path().into());
        let begin = format!("corrupt: page file {}: page ", file.path().display());
        assert!(told.starts_with(&begin) && told.contains(" at byte offset "), "{told}");
        assert_eq!(code, None, "the task's end raises the alarm");
    }
}
