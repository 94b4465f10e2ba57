//! A disk of blocking system calls on a few threads: `pwritev2(RWF_DSYNC)` for durable writes. Needs no io_uring.

use super::DiskOptions;
use super::blocking::Job;
use super::files::FileTable;
use super::pending::Pending;
use super::workers::Workers;
use crate::io::disk::{Completion, Disk, Operation};
use crate::reactor::Doorbell;
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// The disk. Whoever sleeps for its completions sleeps on its bell.
pub struct ThreadDisk {
    files: FileTable,
    workers: Workers,
    in_flight: Slab<Pending>,
    /// Results that were taken from the threads and not yet from here.
    ready: VecDeque<Completion>,
    bell: Doorbell,
}

impl ThreadDisk {
    /// A disk whose completions ring `bell`, the bell of the thread that owns it.
    pub fn new(options: DiskOptions, bell: &Doorbell) -> io::Result<ThreadDisk> {
        Ok(ThreadDisk {
            files: FileTable::default(),
            workers: Workers::start(options, bell)?,
            in_flight: Slab::new(),
            ready: VecDeque::new(),
            bell: bell.clone(),
        })
    }

    /// Sleeps until an operation completes, the bell rings or `until` has passed; not at all if something has completed
    /// or `has_work` says so.
    pub fn park(&mut self, until: Option<Duration>, has_work: impl FnOnce() -> bool) {
        self.collect();
        if !self.ready.is_empty() {
            return;
        }
        let bell = self.bell.clone();
        bell.sleep_unless(until, || {
            self.collect();
            !self.ready.is_empty() || has_work()
        });
    }

    /// What has been in flight the longest, and since when.
    pub fn oldest(&self) -> Option<(String, Instant)> {
        let oldest = self
            .in_flight
            .iter()
            .map(|(_, pending)| pending)
            .min_by_key(|pending| pending.since)?;
        Some((oldest.to_string(), oldest.since))
    }

    fn collect(&mut self) {
        while let Some((key, result)) = self.workers.next_report() {
            let pending = self.in_flight.remove(key);
            self.ready.push_back(pending.complete(result, &mut self.files));
        }
    }
}

impl Disk for ThreadDisk {
    fn submit(&mut self, token: u64, operation: Operation) {
        let file = self.files.resolve(&operation);
        let key = self.in_flight.insert(Pending::new(token, &operation, file.clone()));
        self.workers.send(key, Job { operation, file });
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.collect();
        completions.extend(self.ready.drain(..));
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.collect();
        while self.ready.is_empty() && !self.in_flight.is_empty() {
            self.park(None, || false);
        }
        completions.extend(self.ready.drain(..));
    }
}
