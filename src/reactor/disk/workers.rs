//! A few threads that run blocking disk operations, one queue each, so that a durable write of the log never waits
//! behind another file's sync.

use super::DiskOptions;
use super::blocking::{self, Finished, Job};
use crate::io::disk::Operation;
use crate::reactor::Doorbell;
use std::io;
use std::sync::mpsc;
use std::thread;

/// Which thread runs an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Durable writes: what acknowledgements wait for.
    Durable,
    /// Plain reads and writes.
    Plain,
    /// Syncs and everything about names and space, which may take long.
    Slow,
}

const LANES: [Lane; 3] = [Lane::Durable, Lane::Plain, Lane::Slow];

fn lane_of(operation: &Operation) -> Lane {
    match operation {
        Operation::Write { durable: true, .. } => Lane::Durable,
        Operation::Write { durable: false, .. } | Operation::Read { .. } => Lane::Plain,
        _ => Lane::Slow,
    }
}

/// A finished job with the key it was sent with.
pub(super) type Report = (usize, io::Result<Finished>);

/// The threads. They end when this is dropped, after what they had begun.
pub(super) struct Workers {
    queues: [Option<mpsc::Sender<(usize, Job)>>; LANES.len()],
    threads: Vec<thread::JoinHandle<()>>,
    reports: mpsc::Receiver<Report>,
}

impl Workers {
    /// Starts the threads; `bell` is rung after every report.
    pub(super) fn start(options: DiskOptions, bell: &Doorbell) -> io::Result<Workers> {
        let (report, reports) = mpsc::channel();
        let mut threads = Vec::with_capacity(LANES.len());
        let mut queues = [const { None }; LANES.len()];
        for lane in LANES {
            let (queue, jobs) = mpsc::channel::<(usize, Job)>();
            let (report, bell) = (report.clone(), bell.clone());
            let name = format!("disk-{lane:?}").to_lowercase();
            threads.push(thread::Builder::new().name(name).spawn(move || {
                for (key, job) in jobs {
                    let result = blocking::execute(job, options);
                    if report.send((key, result)).is_err() {
                        return;
                    }
                    bell.ring();
                }
            })?);
            queues[lane as usize] = Some(queue);
        }
        Ok(Workers {
            queues,
            threads,
            reports,
        })
    }

    pub(super) fn send(&self, key: usize, job: Job) {
        let queue = &self.queues[lane_of(&job.operation) as usize];
        let sent = queue.as_ref().is_some_and(|queue| queue.send((key, job)).is_ok());
        assert!(sent, "a disk thread has ended");
    }

    pub(super) fn next_report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queues = [const { None }; LANES.len()];
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a disk thread panicked");
            }
        }
    }
}
