//! The Watch service: streams of calls over the core's watch hub.
//!
//! The hub is advanced once per turn, when anything happened that concerns it: a publication, a request, room on a
//! stream, a tick. Pages that a lagging watch needs are loaded by a task, which then has the hub advanced again.

use super::error;
use super::method::Method;
use super::records::{PageReads, Unreadable};
use super::service::{Api, CallState, Caller, Settings};
use crate::grpc::Status;
use crate::limits::{API_PART_BYTES, GRPC_OVERHEAD_BYTES, WATCH_READ_RETRY};
use crate::metrics::CoreMetrics;
use crate::mvcc::index::Index;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::mvcc::watch::{
    CreateRequest, History, HistoryFailure, Hub, HubConfig, Message, StreamId, WatchOptions, WatchSink,
};
use crate::net::{Call, Net};
use crate::pages::{Corrupt, PageAddress, PageCache, ReadFailure};
use crate::proto::etcdserverpb::watch_create_request::FilterType;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use crate::raft::messages::Request;
use crate::reactor::serve;
use crate::state::depth::decode;
use bytes::Bytes;
use slab::Slab;
use std::cell::{RefCell, RefMut};
use std::time::{Duration, Instant};

/// The watches of one core.
pub(super) struct Watches {
    hub: Hub,
    streams: usize,
    /// Whether the hub is to be advanced at the end of this turn.
    due: bool,
    /// Whether a task loads pages or has another turn come.
    task: bool,
    /// Pages that could not be loaded, for the next turn of the hub.
    damaged: Vec<(PageAddress, Corrupt)>,
}

impl Watches {
    pub fn new(settings: &Settings, core: usize, revision: i64) -> Watches {
        let config = HubConfig {
            cluster_id: settings.identity.cluster_id,
            member_id: settings.identity.member_id,
            fragment_bytes: settings.max_request_bytes + GRPC_OVERHEAD_BYTES,
            progress_interval: settings.progress_interval,
            seed: settings.identity.member_id ^ core as u64,
        };
        Watches {
            hub: Hub::new(config, revision),
            streams: 0,
            due: false,
            task: false,
            damaged: Vec::new(),
        }
    }
}

/// Sends the hub's messages on the core's calls.
struct Sink<'a> {
    net: &'a mut Net,
    calls: &'a Slab<CallState>,
    /// Streams found without room.
    blocked: RefCell<Vec<Call>>,
    metrics: &'a CoreMetrics,
}

impl WatchSink for Sink<'_> {
    fn can_send(&self, stream: StreamId) -> bool {
        let Some(state) = self.calls.get(stream as usize) else {
            return true;
        };
        let room = !self.net.is_open(state.call) || self.net.capacity(state.call) > 0;
        if !room {
            self.blocked.borrow_mut().push(state.call);
        }
        room
    }

    fn send(&mut self, stream: StreamId, message: Message<'_>) {
        let Some(state) = self.calls.get(stream as usize) else {
            return;
        };
        let length = message.length();
        self.metrics.methods[Method::Watch as usize].sent.add(1);
        self.metrics.sent_bytes.add(length as u64);
        // A stream that is gone meanwhile is told by `cancelled`.
        if length <= API_PART_BYTES {
            let _ = self
                .net
                .send_message_with(state.call, length, |out| message.copy_to(out));
        } else if self.net.begin_message(state.call, length).is_ok() {
            for part in message.to_parts() {
                let _ = self.net.send_part(state.call, part);
            }
        }
    }
}

/// What the hub reads beside the view.
struct Reads<'a> {
    cache: RefMut<'a, PageCache>,
    index: &'a Index<View>,
    damaged: Vec<(PageAddress, Corrupt)>,
}

impl History for Reads<'_> {
    fn cache(&mut self) -> &mut PageCache {
        &mut self.cache
    }

    fn damage(&self, address: &PageAddress) -> Option<Corrupt> {
        let found = self.damaged.iter().find(|(damaged, _)| damaged == address);
        found.map(|(_, corrupt)| corrupt.clone())
    }

    fn compact_revision(&self) -> i64 {
        self.index.pin().view().compact_revision
    }

    fn revision_at(&self, key: &[u8], main: i64) -> Option<Revision> {
        self.index.pin().get(key, main).map(|meta| meta.revision)
    }
}

impl Api {
    pub(super) fn watch_started(&mut self, net: &mut Net, caller: Caller) {
        self.watches.hub.open(caller.tag, net.now());
        self.watches.streams += 1;
        self.count_watches(&self.watches.hub);
    }

    pub(super) fn watch_ended(&mut self, caller: Caller) {
        self.watches.hub.close(caller.tag);
        self.watches.streams -= 1;
        self.count_watches(&self.watches.hub);
    }

    pub(super) fn watch_writable(&mut self, net: &mut Net, caller: Caller) {
        net.set_paused(caller.call, false);
        self.watches.hub.writable(caller.tag);
        self.watches.due = true;
    }

    pub(super) fn watches_published(&mut self) {
        self.watches.due |= self.watches.streams > 0;
    }

    /// When the watches have to be looked at even if nothing happens.
    pub fn next_watch_tick(&self) -> Option<Duration> {
        self.watches.hub.next_tick()
    }

    /// The time of `next_watch_tick` may have come.
    pub fn watch_tick(&mut self, now: Duration) {
        self.watches.due |= self.watches.hub.next_tick().is_some_and(|tick| tick <= now);
    }

    pub(super) fn watch_message(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: WatchRequest = decode(message).map_err(|error| error::stream_status(&error))?;
        let index = self.index.clone();
        let pinned = index.pin();
        let now = net.now();
        let (began, before) = (Instant::now(), self.watches.hub.counters());
        let mut sink = Sink {
            net,
            calls: &self.calls,
            blocked: RefCell::default(),
            metrics: self.settings.metrics.core(self.core),
        };
        let hub = &mut self.watches.hub;
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                hub.create(caller.tag, create_request(&create), pinned.view(), now, &mut sink);
            }
            Some(RequestUnion::CancelRequest(cancel)) => {
                hub.cancel(caller.tag, cancel.watch_id, pinned.view(), &mut sink);
            }
            Some(RequestUnion::ProgressRequest(_)) => hub.request_progress(caller.tag),
            None => {}
        }
        self.count_watch_sends(&self.watches.hub, before, began.elapsed());
        self.count_watches(&self.watches.hub);
        self.watches.due = true;
        if net.capacity(caller.call) == 0 {
            // Answers to requests come whether there is room or not, so no more of them are taken until there is.
            net.set_paused(caller.call, true);
            net.notify_writable(caller.call);
        }
        Ok(())
    }

    /// Advances the hub when that is due.
    pub(super) fn watches_advance(&mut self, net: &mut Net) {
        if !std::mem::take(&mut self.watches.due) || self.watches.streams == 0 {
            return;
        }
        let view = self.index.clone().pin().view().clone();
        let now = net.now();
        let index = self.index.clone();
        let pages = self.pages.clone();
        let mut reads = Reads {
            cache: pages.cache(),
            index: &index,
            damaged: std::mem::take(&mut self.watches.damaged),
        };
        let (began, before) = (Instant::now(), self.watches.hub.counters());
        let mut sink = Sink {
            net,
            calls: &self.calls,
            blocked: RefCell::default(),
            metrics: self.settings.metrics.core(self.core),
        };
        let advance = self.watches.hub.advance(&view, &mut reads, &mut sink, now);
        let blocked = sink.blocked.into_inner();
        drop(reads);
        self.count_watch_sends(&self.watches.hub, before, began.elapsed());
        self.count_watches(&self.watches.hub);
        for call in blocked {
            net.notify_writable(call);
        }
        for failure in &advance.failures {
            if let HistoryFailure::Read(ReadFailure::Corrupt(corrupt)) = failure
                && let Unreadable::Corrupt(description) = pages.corrupt(corrupt)
            {
                self.post(Request::Corrupt { description });
            }
        }
        if advance.more || !advance.missing.is_empty() {
            self.come_back(pages, view, advance.missing);
        }
    }

    /// Loads pages and advances the hub again.
    fn come_back(&mut self, pages: PageReads, view: View, missing: Vec<PageAddress>) {
        if std::mem::replace(&mut self.watches.task, true) {
            return;
        }
        let Some(connections) = self.connections.clone() else {
            return;
        };
        serve::spawn(async move {
            let loaded = pages.load_all(&view, &missing).await;
            let damaged = match loaded {
                Ok(damaged) => damaged,
                Err(failure) => {
                    if let Unreadable::Disk(description) = failure {
                        tracing::error!("watches wait for a page that could not be read: {description}");
                        serve::sleep(WATCH_READ_RETRY).await;
                    }
                    Vec::new()
                }
            };
            serve::yield_now().await;
            connections.with(|api, _| {
                api.watches.task = false;
                api.watches.damaged = damaged;
                api.watches.due = true;
            });
        });
    }
}

fn create_request(create: &WatchCreateRequest) -> CreateRequest<'_> {
    let filtered = |filter: FilterType| create.filters.contains(&(filter as i32));
    CreateRequest {
        key: &create.key,
        range_end: &create.range_end,
        start_revision: create.start_revision,
        watch_id: create.watch_id,
        options: WatchOptions {
            no_put: filtered(FilterType::Noput),
            no_delete: filtered(FilterType::Nodelete),
            prev_kv: create.prev_kv,
            fragment: create.fragment,
            progress_notify: create.progress_notify,
        },
        refusal: None,
    }
}
