//! Watch: the streams and watches of one serve core, as cursors over the history.
//!
//! A [`Hub`] takes requests and published views, and gives messages to a [`WatchSink`]. All watches that are in step
//! share one cursor and one set that is searched by key, so a change costs by the watches that match it. A watch that
//! starts in the past, or whose stream does not take a message, gets a cursor of its own; watches whose cursors meet
//! share one again. A slow stream costs its cursors and never a queue.
//!
//! # Promises
//!
//! Per watch: events in revision order, each once, none left out unless the watch is canceled; the events of one main
//! revision in one message, or in fragments if the watch asked for them; a message's header names a revision that is at
//! least every revision in it. A progress message with revision R comes after every event up to R that the watch (or
//! with watch id -1 every watch of the stream) has to see. Semantics are those of etcd 3.7
//! (`server/etcdserver/api/v3rpc/watch.go`, `server/storage/mvcc/watchable_store.go`) with one exception: manual
//! progress is answered although watches lag, with the lowest revision that all have been sent. No progress takes a
//! watch back: answers of a stream never go back, and none is below an event or a notification that the stream was
//! sent, or below the start of one of its watches. kube-apiserver takes each as the revision of its whole cache and
//! does not look whether it was further already. An answer that would be waits until it is not; while a watch of the
//! stream has not begun there is none, as in etcd since 3.6.2.
//!
//! # Use
//!
//! The hub does no I/O, has no clock and pins no view between calls. After requests, after each published view, when a
//! stream takes messages again and when [`Hub::next_tick`] is due, the owner calls [`Hub::advance`] with the newest
//! view; the answer says which pages to load first and whether to call again at once. A call does a bounded part.

mod advance;
mod batch;
mod change;
mod hub;
mod interval_tree;
mod message;
mod set;
#[expect(clippy::module_inception, reason = "a watch is what the file is about")]
mod watch;

#[cfg(test)]
mod tests;

use super::revision::Revision;
use crate::pages::{Corrupt, PageAddress, PageCache, ReadFailure};
pub use hub::{Counters, Hub, HubConfig};
pub use message::Message;
pub use watch::{CreateRequest, StreamId, WatchOptions};

/// Where a hub's messages go: the streams of a serve core.
pub trait WatchSink {
    /// Whether the stream has room for a message. When it said no, the owner calls [`Hub::writable`] once it has room.
    /// A stream that is gone says yes and ignores what it gets.
    fn can_send(&self, stream: StreamId) -> bool;

    /// Takes a message. Answers to requests come whether or not there is room, one per request: the owner takes no
    /// requests from a stream that has none.
    fn send(&mut self, stream: StreamId, message: Message<'_>);
}

/// What a hub reads beside the view.
pub trait History {
    /// The page cache of the core.
    fn cache(&mut self) -> &mut PageCache;

    /// What is known of a page that was missing and could not be loaded, or was damaged.
    fn damage(&self, address: &PageAddress) -> Option<Corrupt>;

    /// The compact revision that is published now, which may be newer than the view.
    fn compact_revision(&self) -> i64;

    /// The newest revision of the key at or before the main revision `main`, if the key lives there: from the index.
    fn revision_at(&self, key: &[u8], main: i64) -> Option<Revision>;
}

/// What a call of [`Hub::advance`] left.
#[derive(Debug, Default)]
pub struct Advance {
    /// Pages of the view's root to load into the cache before the next call. There may be work without them as well.
    pub missing: Vec<PageAddress>,
    /// There is more to do at once; the owner yields and calls again.
    pub more: bool,
    /// Parts of the history that could not be read; the watches that needed them were canceled with this as the reason.
    pub failures: Vec<HistoryFailure>,
}

/// The history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryFailure {
    /// A page of the page store.
    #[error(transparent)]
    Read(#[from] ReadFailure),
    /// Neither the window nor the page store has a record that must be there.
    #[error("the record of revision {}.{} is lost although it was not compacted", .0.main, .0.sub)]
    Lost(Revision),
}
