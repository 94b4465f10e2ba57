//! What a hub keeps per watch and per stream.

use super::set::Span;
use crate::mvcc::interval::RangeEnd;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A Watch stream of a client; the caller chooses the number, unique per hub.
pub type StreamId = u64;

/// The options of a watch, as in `WatchCreateRequest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchOptions {
    /// No events of puts.
    pub no_put: bool,
    /// No events of deletions.
    pub no_delete: bool,
    /// Events carry the record that they replaced.
    pub prev_kv: bool,
    /// Large responses may be sent in pieces.
    pub fragment: bool,
    /// Tell the revision now and then when there is nothing else to tell.
    pub progress_notify: bool,
}

/// A `WatchCreateRequest`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateRequest<'a> {
    /// As on the wire; empty means `"\0"`.
    pub key: &'a [u8],
    /// As on the wire: empty for the single key, `"\0"` for every key from `key` on.
    pub range_end: &'a [u8],
    /// The first revision wanted; 0 for what is to come.
    pub start_revision: i64,
    /// 0 lets the hub choose.
    pub watch_id: i64,
    /// The rest.
    pub options: WatchOptions,
    /// The caller's reason to refuse the watch (permission, token), checked on the raw `range_end`.
    pub refusal: Option<&'a str>,
}

/// The group of the watches that are in step with the store.
pub(super) const IN_STEP: usize = 0;

pub(super) struct Watch {
    pub stream: StreamId,
    pub id: i64,
    pub span: Span,
    pub options: WatchOptions,
    /// `start_revision` of the request.
    pub start: i64,
    /// Main revisions below it were sent, or are not wanted.
    pub next: i64,
    /// Rises from watch to watch of the hub.
    pub serial: u64,
    pub place: Place,
    /// Whether the next tick tells progress: nothing was sent since the last one.
    pub quiet: bool,
}

/// Where a watch gets its events from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// From the cursor of a group.
    Group(usize),
    /// From nowhere until its stream takes messages again; `next` is its cursor.
    Parked,
    /// From nowhere: it was canceled, but the client has not said that it knows.
    Canceled,
}

impl Watch {
    /// Whether a change of a key in its span is to be sent.
    pub fn wants(&self, main: i64, tombstone: bool) -> bool {
        let filtered = if tombstone {
            self.options.no_delete
        } else {
            self.options.no_put
        };
        main >= self.next && !filtered
    }
}

#[derive(Default)]
pub(super) struct Stream {
    /// Every watch by id, also those that were canceled for want of history.
    pub watches: BTreeMap<i64, u32>,
    /// Where the search for a free id goes on.
    pub next_id: i64,
    /// Watches that are not in step.
    pub lagging: BTreeSet<u32>,
    /// Those of them that wait for the stream.
    pub parked: BTreeSet<u32>,
    /// Watches that want progress notifications.
    pub notified: BTreeSet<u32>,
    /// Progress requests not answered yet.
    pub asked: u32,
    /// The store's revision when the first of them was looked at: events up to it go before the answer.
    pub due: Option<i64>,
    /// No answer may be below it: the newest event, notification or answer sent, and where its watches began.
    pub told: i64,
    /// Watches that begin at a revision to come, by that: while there are any, no request is answered.
    pub future: BTreeSet<(i64, u32)>,
    /// Time between two ticks.
    pub interval: Duration,
    /// The first tick.
    pub first_tick: Duration,
    /// The next tick, if it is in the hub's list.
    pub tick: Option<Duration>,
}

impl Stream {
    /// An id of etcd's choice.
    pub fn choose_id(&mut self) -> i64 {
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// The watches in step have been sent everything up to `sent`. Returns whether all watches have begun.
    pub fn begin(&mut self, sent: i64) -> bool {
        while let Some((start, number)) = self.future.first().copied().filter(|(start, _)| *start <= sent) {
            self.future.remove(&(start, number));
            self.told = self.told.max(start);
        }
        self.future.is_empty()
    }

    /// Whether it has asked for progress and `revision` is an answer.
    pub fn is_asking_behind(&self, revision: i64) -> bool {
        self.asked > 0 && revision >= self.told
    }

    /// The first tick after `now`.
    pub fn next_tick(&self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.first_tick).as_nanos();
        let interval = self.interval.as_nanos().max(1);
        let ticks = if now < self.first_tick {
            0
        } else {
            passed / interval + 1
        };
        self.first_tick + self.interval.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
    }
}

/// The span of a request, or etcd's reason to refuse it.
pub(super) fn span(key: &[u8], range_end: &[u8]) -> Result<Span, &'static str> {
    let key = if key.is_empty() { b"\0" } else { key };
    let end = RangeEnd::from_request(range_end);
    if end.is_empty(key) {
        return Err("mvcc: watcher range is empty");
    }
    let start: Arc<[u8]> = key.into();
    Ok(match end {
        RangeEnd::Single => Span::Key(start),
        RangeEnd::Before(end) => Span::Range(start, Some(end.into())),
        RangeEnd::Unbounded => Span::Range(start, None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_spans_as_etcd_does() {
        assert_eq!(span(b"", b""), Ok(Span::Key(b"\0"[..].into())));
        assert_eq!(span(b"a", b"\0"), Ok(Span::Range(b"a"[..].into(), None)));
        assert_eq!(
            span(b"a", b"b"),
            Ok(Span::Range(b"a"[..].into(), Some(b"b"[..].into())))
        );
        assert!(span(b"b", b"b").is_err() && span(b"b", b"a").is_err());
    }

    #[test]
    fn ticks_come_at_even_distances() {
        let stream = Stream {
            interval: Duration::from_secs(10),
            first_tick: Duration::from_secs(13),
            ..Stream::default()
        };
        for (now, tick) in [(0, 13), (12, 13), (13, 23), (22, 23), (23, 33), (100, 103)] {
            assert_eq!(
                stream.next_tick(Duration::from_secs(now)),
                Duration::from_secs(tick),
                "at {now}"
            );
        }
    }
}
