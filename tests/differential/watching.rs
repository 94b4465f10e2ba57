//! One watch stream of one server: what it sent for each watch, and whether that keeps the promises of a watch.
//!
//! How events are spread over responses is a matter of time and not compared. Checked of every server on its own:
//! revisions never go back, one revision's events come together, nothing comes that a progress answer said was sent.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use ringd::proto::{etcdserverpb as pb, mvccpb};
use tokio::time::{Instant, timeout_at};

use super::answers;
use crate::support::{
    etcd,
    grpc::{Channel, Status, Stream},
};

/// How long a stream may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a progress request may stay without an answer before the next one: etcd is silent while a watch lags.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(30);

/// Something that a watch received and that the other server's watch has to receive too.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// An event.
    Event(mvccpb::Event),
    /// The end of the watch, with the compaction revision and the reason.
    Canceled(i64, String),
}

/// A watch stream.
pub struct Watching {
    stream: Stream,
    created: VecDeque<pb::WatchResponse>,
    seen: BTreeMap<i64, Vec<Seen>>,
    positions: BTreeMap<i64, i64>,
    fragments: BTreeMap<i64, bool>,
    progress: i64,
    /// The watches that existed at the last progress answer; a younger one may still receive what is older.
    settled: BTreeSet<i64>,
    /// True for a server whose progress answers may overtake events.
    progress_overtakes: bool,
    fragment_count: u64,
}

impl Watching {
    /// Opens a stream.
    pub async fn open(channel: &Channel) -> Result<Self, String> {
        let stream = channel
            .stream(etcd::WATCH, &[])
            .await
            .map_err(|status| format!("{status:?}"))?;
        Ok(Self {
            stream,
            created: VecDeque::new(),
            seen: BTreeMap::new(),
            positions: BTreeMap::new(),
            fragments: BTreeMap::new(),
            progress: 0,
            settled: BTreeSet::new(),
            progress_overtakes: false,
            fragment_count: 0,
        })
    }

    /// Lets events come after a progress answer that covers them, as etcd before 3.5.13 does.
    pub fn let_progress_overtake(&mut self) {
        self.progress_overtakes = true;
    }

    /// Sends a request that has no answer of its own.
    pub fn send(&mut self, request: &pb::WatchRequest) -> Result<(), String> {
        self.stream.send(request).map_err(|status| format!("{status:?}"))
    }

    /// Sends a create request and returns the answer that says `created`.
    pub async fn create(&mut self, request: &pb::WatchRequest) -> Result<pb::WatchResponse, String> {
        self.send(request)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(created) = self.created.pop_front() {
                return Ok(created);
            }
            self.receive(deadline).await?;
        }
    }

    /// Cancels a watch that exists and waits until the server says so.
    pub async fn cancel(&mut self, watch_id: i64) -> Result<(), String> {
        self.send(&etcd::cancel_watch(watch_id))?;
        self.wait_for_end(watch_id).await
    }

    /// Waits until the server says that a watch has ended.
    pub async fn wait_for_end(&mut self, watch_id: i64) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !self
            .seen
            .get(&watch_id)
            .is_some_and(|seen| matches!(seen.last(), Some(Seen::Canceled(..))))
        {
            self.receive(deadline).await?;
        }
        Ok(())
    }

    /// Waits until the server says that every watch of this stream has been sent everything up to `revision`.
    pub async fn wait_for_progress(&mut self, revision: i64) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while self.progress < revision {
            if Instant::now() > deadline {
                return Err(format!(
                    "no progress to revision {revision} within {PATIENCE:?}, only {}",
                    self.progress
                ));
            }
            self.send(&etcd::request_progress())?;
            self.receive_until(Instant::now() + PROGRESS_INTERVAL, revision).await?;
        }
        Ok(())
    }

    async fn receive_until(&mut self, end: Instant, revision: i64) -> Result<(), String> {
        while self.progress < revision {
            match timeout_at(end, self.stream.next_raw()).await {
                Err(_) => return Ok(()),
                Ok(response) => self.absorb(response)?,
            }
        }
        Ok(())
    }

    /// Takes in whatever still comes during `time`.
    pub async fn settle(&mut self, time: Duration) -> Result<(), String> {
        self.receive_until(Instant::now() + time, i64::MAX).await
    }

    /// Asks for progress once and returns the last answer that there is after `time`, which may be an older one.
    pub async fn ask_progress(&mut self, time: Duration) -> Result<i64, String> {
        self.send(&etcd::request_progress())?;
        self.settle(time).await?;
        Ok(self.progress)
    }

    /// How many responses were fragments that others followed.
    pub fn fragments(&self) -> u64 {
        self.fragment_count
    }

    /// How much was seen since it was last taken.
    pub fn seen_count(&self) -> usize {
        self.seen.values().map(Vec::len).sum()
    }

    /// What each watch received since the last call.
    pub fn take_seen(&mut self) -> BTreeMap<i64, Vec<Seen>> {
        std::mem::take(&mut self.seen)
    }

    async fn receive(&mut self, deadline: Instant) -> Result<(), String> {
        let response = timeout_at(deadline, self.stream.next_raw()).await;
        self.absorb(response.map_err(|_| format!("a watch stream did not answer within {PATIENCE:?}"))?)
    }

    fn absorb(&mut self, message: Result<Option<Bytes>, Status>) -> Result<(), String> {
        let message = message
            .map_err(|status| format!("a watch stream failed: {status:?}"))?
            .ok_or("a watch stream ended by itself")?;
        let response: pb::WatchResponse = answers::read(&message)?;
        let id = response.watch_id;
        if response.created {
            self.positions.insert(id, 0);
            self.settled.remove(&id);
            self.created.push_back(response);
        } else if response.canceled {
            let seen = Seen::Canceled(response.compact_revision, response.cancel_reason);
            self.seen.entry(id).or_default().push(seen);
            if response.compact_revision != 0 {
                // The server keeps the id, and stays silent about progress, until the client cancels too.
                self.send(&etcd::cancel_watch(id))?;
            }
        } else if response.events.is_empty() {
            self.absorb_progress(&response)?;
        } else {
            self.absorb_events(response)?;
        }
        Ok(())
    }

    fn absorb_progress(&mut self, response: &pb::WatchResponse) -> Result<(), String> {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        if response.watch_id != -1 {
            return Err(format!(
                "an empty response that is no answer to a progress request: {response:?}"
            ));
        }
        if revision < self.progress {
            return Err(format!("progress went back from {} to {revision}", self.progress));
        }
        self.progress = revision;
        self.settled = self.positions.keys().copied().collect();
        Ok(())
    }

    fn absorb_events(&mut self, response: pb::WatchResponse) -> Result<(), String> {
        let id = response.watch_id;
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        self.fragment_count += u64::from(response.fragment);
        let continued = self.fragments.insert(id, response.fragment).unwrap_or(false);
        let mut position = *self
            .positions
            .get(&id)
            .ok_or(format!("events for watch {id}, which does not exist"))?;
        for (place, event) in response.events.iter().enumerate() {
            let at = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            let together = place > 0 || continued;
            if at < position || (at == position && !together) {
                return Err(format!(
                    "watch {id}: an event of revision {at} after revision {position}"
                ));
            }
            if at > revision {
                return Err(format!(
                    "watch {id}: an event of revision {at} under a header of revision {revision}"
                ));
            }
            if at <= self.progress && !self.progress_overtakes && self.settled.contains(&id) {
                return Err(format!(
                    "watch {id}: an event of revision {at} after progress to {}",
                    self.progress
                ));
            }
            position = at;
        }
        self.positions.insert(id, position);
        self.seen
            .entry(id)
            .or_default()
            .extend(response.events.into_iter().map(Seen::Event));
        Ok(())
    }
}
