//! HashKV and Hash: over the whole history, in slices, from the page store and the window of one view.

use super::error;
use super::kv::readable;
use super::records::PageReads;
use super::service::{Api, Caller};
use super::tasks::{Ended, Pace, Task};
use crate::grpc::Status;
use crate::limits::API_SLICE_ROWS;
use crate::mvcc::index::Index;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::net::Net;
use crate::pages::{RecordId, RecordScan, Scanned, TreeId, TreeScan};
use crate::proto::etcdserverpb::{HashKvRequest, HashKvResponse, HashRequest, HashResponse};
use crate::reactor::serve;
use crate::state::depth::decode;
use crate::state::hash::{BackendHasher, KvHash, KvHasher};
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;

impl Api {
    pub(super) fn hash_kv(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: HashKvRequest = decode(message).map_err(|error| error::status(&error))?;
        let view = self.index.clone().pin().view().clone();
        let hasher = KvHasher::new(request.revision, readable(&view)).map_err(|error| error::status(&error))?;
        let header = self.settings.identity.header_of(&view);
        // What the hash says of records at the compact revision needs the index as it was there.
        let at_main = view.compact_revision.max(0);
        self.run(net, caller, view, at_main, Pace::Long, move |task, view| async move {
            let KvHash {
                hash,
                compact_revision,
                revision,
            } = task.hash_kv(view, hasher).await?;
            let header = Some(header);
            let response = HashKvResponse {
                header,
                hash,
                compact_revision,
                hash_revision: revision,
            };
            task.send_whole(super::answer::encode(&response)).await
        });
        Ok(())
    }

    pub(super) fn hash(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let _: HashRequest = decode(message).map_err(|error| error::status(&error))?;
        let view = self.index.clone().pin().view().clone();
        let header = self.settings.identity.header_of(&view);
        let at_main = view.revision;
        self.run(net, caller, view, at_main, Pace::Long, move |task, view| async move {
            let hash = task.hash(view).await?;
            let header = Some(header);
            task.send_whole(super::answer::encode(&HashResponse { header, hash }))
                .await
        });
        Ok(())
    }
}

/// The whole history of one view, read in slices.
pub(super) struct History<'a> {
    pages: &'a PageReads,
    index: &'a Arc<Index<View>>,
    /// An error when who wants it is gone, or it takes too long.
    check_open: &'a dyn Fn() -> Result<(), Ended>,
}

impl<'a> History<'a> {
    /// As the core reads it.
    pub fn new(
        pages: &'a PageReads,
        index: &'a Arc<Index<View>>,
        check_open: &'a dyn Fn() -> Result<(), Ended>,
    ) -> History<'a> {
        History {
            pages,
            index,
            check_open,
        }
    }

    /// Takes a hasher through it.
    pub async fn hash_kv(&self, view: &View, mut hasher: KvHasher) -> Result<KvHash, Ended> {
        while !{
            let pinned = self.index.pin();
            hasher.prepare(&pinned)
        } {
            serve::yield_now().await;
        }
        if let Some(compacted) = hasher.deletions_wanted() {
            let from = RecordId {
                main: compacted,
                sub: 0,
            };
            self.records(view, from, |revision, tombstone, _, _| {
                hasher.deletion(revision, tombstone);
                revision.main == compacted
            })
            .await?;
        }
        let index = self.index.clone();
        self.records(
            view,
            RecordId { main: 0, sub: 0 },
            |revision, tombstone, key, stored| hasher.feed(&index.pin(), revision, tombstone, key, stored),
        )
        .await?;
        Ok(hasher.finish())
    }

    /// Every record of the view from one on, in revision order, as stored, until `visit` returns false.
    async fn records(
        &self,
        view: &View,
        from: RecordId,
        mut visit: impl FnMut(Revision, bool, &[u8], &[u8]) -> bool,
    ) -> Result<(), Ended> {
        let mut go_on = true;
        let mut scan = RecordScan::new(from);
        let mut buffer = Vec::new();
        while go_on {
            let scanned = self
                .pages
                .retry(view, |cache| {
                    scan.step(&view.pages, cache, API_SLICE_ROWS, |record| {
                        buffer.clear();
                        KeyValueView::of_stored(&record).encode(&mut buffer);
                        let revision = Revision::new(record.id.main, record.id.sub);
                        go_on = visit(revision, record.tombstone, record.key, &buffer);
                        if go_on {
                            ControlFlow::Continue(())
                        } else {
                            ControlFlow::Break(())
                        }
                    })
                })
                .await?;
            if scanned == Scanned::End {
                break;
            }
            serve::yield_now().await;
            (self.check_open)()?;
        }
        let first = view.pages.fields().revision + 1;
        let mut next = Revision::new(first, 0).max(Revision::new(from.main, from.sub));
        while go_on {
            let mut seen = 0;
            for record in view.window.scan(next).take(API_SLICE_ROWS) {
                seen += 1;
                next = Revision::new(record.revision.main, record.revision.sub + 1);
                go_on = visit(record.revision, record.tombstone, record.key(), record.stored());
                if !go_on {
                    break;
                }
            }
            if seen < API_SLICE_ROWS {
                break;
            }
            serve::yield_now().await;
            (self.check_open)()?;
        }
        Ok(())
    }
}

impl Task {
    async fn hash_kv(&self, view: View, hasher: KvHasher) -> Result<KvHash, Ended> {
        let check_open = || self.check_open();
        History::new(&self.pages, &self.index, &check_open)
            .hash_kv(&view, hasher)
            .await
    }

    /// As etcd's: buckets by name, pairs by key. Of use between equal files only.
    async fn hash(&self, view: View) -> Result<u32, Ended> {
        let mut hasher = BackendHasher::default();
        for (name, tree) in [
            ("alarm", TreeId::Alarms),
            ("cluster", TreeId::Meta),
            ("lease", TreeId::Leases),
            ("members", TreeId::Members),
        ] {
            hasher.bucket(name.as_bytes());
            let mut scan = TreeScan::new(tree, b"");
            loop {
                let scanned = self
                    .pages
                    .retry(&view, |cache| {
                        scan.step(&view.pages, cache, API_SLICE_ROWS, |key, value| {
                            hasher.pair(key, value);
                            ControlFlow::Continue(())
                        })
                    })
                    .await?;
                if scanned == Scanned::End {
                    break;
                }
            }
        }
        hasher.bucket(b"key");
        let check_open = || self.check_open();
        let history = History::new(&self.pages, &self.index, &check_open);
        history
            .records(&view, RecordId { main: 0, sub: 0 }, |revision, tombstone, _, stored| {
                let (bytes, length) = revision.to_bytes(tombstone);
                hasher.pair(&bytes[..length], stored);
                true
            })
            .await?;
        Ok(hasher.finish())
    }
}
