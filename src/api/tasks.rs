//! Reads that run as tasks: long ones, and those that need the disk.
//!
//! A task works in slices and yields between them, takes hold of the memory that it needs, and produces bytes only as
//! the caller's window opens. It ends when its call is over, or when it takes too long. What it reads stays: a read
//! that is noted keeps compactions from removing what it needs, so the newest view shows its records as the first did.
//! A view that is cloned pins a whole window, so no task holds one while it waits for its caller.

use super::error;
use super::memory::{Grant, Grown, ReadMemory};
use super::records::{PageReads, Records, Unreadable};
use super::service::{Api, Caller};
use crate::grpc::Status;
use crate::limits::{
    API_DIRECT_BYTES, API_MEMORY_POLL, API_MEMORY_WAIT, API_PART_BYTES, FETCHED_RECORD_BYTES, PIN_AGE_MAX,
};
use crate::mvcc::index::Index;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::net::{Call, Core, Net, Reserved};
use crate::raft::messages::{Dropped, Request};
use crate::reactor::serve::{self, Notify};
use crate::state::StateError;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// A task's hold on its call.
pub(super) struct Task {
    pub(super) connections: Core<Api>,
    pub(super) caller: Caller,
    room: Rc<Notify>,
    pub(super) pages: PageReads,
    pub(super) index: Arc<Index<View>>,
    memory: ReadMemory,
    began: Instant,
}

/// Among what a task gets its share of the core's time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// The calls: it does no more than they do in their own turns.
    Short,
    /// The long reads, aside.
    Long,
}

/// Why a task ends without an answer of its own.
pub(super) enum Ended {
    /// The call is over.
    Gone,
    /// It gets this status.
    Failed(Status),
    /// A page is damaged.
    Corrupt(String),
    /// Another task goes on with the call.
    HandedOver,
}

impl From<Unreadable> for Ended {
    fn from(unreadable: Unreadable) -> Ended {
        match unreadable {
            Unreadable::Corrupt(description) => Ended::Corrupt(description),
            Unreadable::Disk(description) => {
                tracing::error!("a page could not be read: {description}");
                Ended::Failed(error::page_not_read(&description))
            }
            Unreadable::Expired => Ended::Failed(error::expired()),
        }
    }
}

impl Api {
    /// A task's hold on a call; `None` while the core shuts down.
    fn task(&mut self, caller: Caller) -> Option<Task> {
        let connections = self.connections.clone()?;
        let room = Rc::new(Notify::new());
        self.state(caller)?.room = Some(room.clone());
        let (pages, index) = (self.pages.clone(), self.index.clone());
        Some(Task {
            connections,
            caller,
            room,
            pages,
            index,
            memory: self.settings.read_memory.clone(),
            began: Instant::now(),
        })
    }

    /// Ends what `task` began.
    fn task_ended(&mut self, net: &mut Net, caller: Caller, result: Result<(), Ended>) {
        match result {
            // What it sent was counted as it went.
            Ok(()) => self.finished(caller, 0),
            Err(Ended::Gone | Ended::HandedOver) => {}
            Err(Ended::Failed(status)) => self.fail(net, caller, &status),
            Err(Ended::Corrupt(description)) => {
                self.post(Request::Corrupt { description });
                self.fail(net, caller, &error::corrupt());
            }
        }
    }

    /// Runs a read at `at_main` as a task. A compaction that went past that revision between the call's look at its
    /// view and now may have begun to remove what the read needs, so the read is refused as one that came after it
    /// (DESIGN 12 (10)).
    pub(super) fn run<F>(
        &mut self,
        net: &mut Net,
        caller: Caller,
        view: View,
        at_main: i64,
        pace: Pace,
        body: impl FnOnce(Task, View) -> F,
    ) where
        F: Future<Output = Result<(), Ended>> + 'static,
    {
        self.begin_reading(at_main);
        if self.index.pin().view().compact_revision > at_main.max(view.compact_revision) {
            self.end_reading(at_main);
            return self.fail(net, caller, &error::status(&StateError::Compacted));
        }
        let ended = move |api: &mut Api| api.end_reading(at_main);
        if !self.spawn_task(caller, pace, ended, |task| body(task, view)) {
            self.end_reading(at_main);
        }
    }

    /// Runs a task. `ended` gives back what keeps compactions from what it reads; false when it can't run, because
    /// the call or the core is about to end.
    pub(super) fn spawn_task<F>(
        &mut self,
        caller: Caller,
        pace: Pace,
        ended: impl FnOnce(&mut Api) + 'static,
        body: impl FnOnce(Task) -> F,
    ) -> bool
    where
        F: Future<Output = Result<(), Ended>> + 'static,
    {
        let Some(task) = self.task(caller) else {
            return false;
        };
        let connections = task.connections.clone();
        let body = body(task);
        let task = async move {
            let result = body.await;
            connections.with(|api, net| {
                ended(api);
                api.task_ended(net, caller, result);
            });
        };
        match pace {
            Pace::Short => serve::spawn(task),
            Pace::Long => serve::spawn_aside(task),
        }
        true
    }

    /// Answers with a message that may be long: in parts, as the caller takes them.
    pub(super) fn answer_bytes(&mut self, net: &mut Net, caller: Caller, bytes: &[u8]) {
        let is_direct = bytes.len() <= API_DIRECT_BYTES || net.has_memory(caller.call);
        if bytes.len() <= API_PART_BYTES && is_direct {
            let _ = net.reply(caller.call, bytes.len(), |out| out.extend_from_slice(bytes));
            return self.finished(caller, bytes.len());
        }
        let mut grant = self.settings.read_memory.grant();
        if grant.grow(bytes.len()) != Grown::Yes {
            return self.fail(net, caller, &error::dropped(Dropped::TooManyRequests));
        }
        let bytes = Bytes::copy_from_slice(bytes);
        // The last step of the task gives the memory back.
        self.spawn_task(
            caller,
            Pace::Long,
            |_| drop(grant),
            |task| async move { task.send_whole(bytes).await },
        );
    }
}

impl Task {
    /// The newest view. Not to be kept while the caller is waited for.
    pub(super) fn view(&self) -> View {
        self.index.pin().view().clone()
    }

    /// A grant of nothing yet.
    pub(super) fn grant(&self) -> Grant {
        self.memory.grant()
    }

    /// Takes hold of more memory. Waits while others have it; not for ever, and not for more than there is.
    pub(super) async fn grow(&self, grant: &mut Grant, bytes: usize) -> Result<(), Ended> {
        let give_up = Instant::now() + API_MEMORY_WAIT;
        loop {
            match grant.grow(bytes) {
                Grown::Yes => return Ok(()),
                Grown::Never => return Err(Ended::Failed(error::too_much_memory(self.memory.max()))),
                Grown::NotYet if Instant::now() >= give_up => {
                    return Err(Ended::Failed(error::dropped(Dropped::TooManyRequests)));
                }
                Grown::NotYet => serve::sleep(API_MEMORY_POLL).await,
            }
            self.check_open()?;
        }
    }

    /// Fetches records, having taken hold of what they take.
    pub(super) async fn fetch(
        &self,
        view: &View,
        records: &mut Records<'_>,
        missing: Vec<Revision>,
        grant: &mut Grant,
    ) -> Result<(), Ended> {
        for revision in missing {
            let length = self.pages.record_length(view, revision, true).await?;
            self.grow(grant, length + FETCHED_RECORD_BYTES).await?;
            records.fetch(&self.pages, vec![revision]).await?;
            self.check_open()?;
        }
        Ok(())
    }

    /// An error when the call is over, or has taken too long.
    pub(super) fn check_open(&self) -> Result<(), Ended> {
        let caller = self.caller;
        if !self.connections.with(|_, net| net.is_open(caller.call)) {
            return Err(Ended::Gone);
        }
        if self.began.elapsed() > PIN_AGE_MAX {
            return Err(Ended::Failed(error::expired()));
        }
        Ok(())
    }

    /// Waits until the caller takes more.
    pub(super) async fn wait_for_room(&self) -> Result<(), Ended> {
        let caller = self.caller;
        loop {
            self.check_open()?;
            let has_room = self.connections.with(|_, net| {
                let has_room = net.capacity(caller.call) > 0;
                if !has_room {
                    net.notify_writable(caller.call);
                }
                has_room
            });
            if has_room {
                return Ok(());
            }
            self.room.notified().await;
        }
    }

    /// Waits until the caller takes more and others leave memory for `bytes` of it, and takes hold of that. Who has it
    /// waits for no other memory.
    pub(super) async fn reserve(&self, bytes: usize) -> Result<Reserved, Ended> {
        loop {
            self.check_open()?;
            let call = self.caller.call;
            if let Some(reserved) = self.connections.with(|_, net| net.reserve(call, bytes)) {
                return Ok(reserved);
            }
            self.room.notified().await;
        }
    }

    /// Sends a message as the caller takes it. The parts are copies: what is queued of it keeps no more alive than it
    /// is counted for.
    pub(super) async fn send_whole(&self, message: Bytes) -> Result<(), Ended> {
        let length = message.len();
        self.send(|net, call| net.begin_message(call, length))?;
        self.connections.with(|api, _| api.count_sent_bytes(length));
        for part in message.chunks(API_PART_BYTES) {
            self.wait_for_room().await?;
            self.send(|net, call| net.send_part(call, Bytes::copy_from_slice(part)))?;
        }
        self.finish()
    }

    /// Ends the call with OK.
    pub(super) fn finish(&self) -> Result<(), Ended> {
        self.send(|net, call| net.finish(call, &Status::OK))
    }

    pub(super) fn send(
        &self,
        act: impl FnOnce(&mut Net, Call) -> Result<(), crate::http::SendError>,
    ) -> Result<(), Ended> {
        let call = self.caller.call;
        self.connections.with(|_, net| act(net, call)).map_err(|_| Ended::Gone)
    }
}
