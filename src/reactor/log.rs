//! The log core's reactor: one thread, one disk, one wait.
//!
//! A turn of its loop drains mailboxes, takes completions and does the work, between [`LogReactor::begin_turn`] and
//! [`LogReactor::end_turn`]. If there is nothing more to do at once it calls [`LogReactor::wait`], which sleeps for
//! disk completions, the doorbell and a time-out together. Nothing spins and no socket is ever touched here.

use super::disk::{DiskOptions, RingDisk, ThreadDisk, WriteMethod};
use super::{Doorbell, stall};
use crate::io::disk::{Completion, Disk, Operation};
use crate::limits;
use std::io;
use std::time::{Duration, Instant};

/// Which disk the log core works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// An io_uring ring, durable writes by the method named.
    Ring(WriteMethod),
    /// Blocking system calls on threads; needs no io_uring.
    Threads,
}

impl Default for Writer {
    /// What measured best at one write in flight, small and large, in latency and CPU (`PERF.md`).
    fn default() -> Writer {
        Writer::Ring(WriteMethod::Dsync)
    }
}

/// The log core's disk, chosen at the start.
pub enum LogDisk {
    /// On the log core's own ring.
    Ring(Box<RingDisk>),
    /// On helper threads.
    Threads(ThreadDisk),
}

impl LogDisk {
    fn park(&mut self, until: Option<Duration>, has_work: impl FnOnce() -> bool) {
        match self {
            LogDisk::Ring(disk) => disk.park(until, has_work),
            LogDisk::Threads(disk) => disk.park(until, has_work),
        }
    }

    fn oldest(&self) -> Option<(String, Instant)> {
        match self {
            LogDisk::Ring(disk) => disk.oldest(),
            LogDisk::Threads(disk) => disk.oldest(),
        }
    }
}

impl Disk for LogDisk {
    fn submit(&mut self, token: u64, operation: Operation) {
        match self {
            LogDisk::Ring(disk) => disk.submit(token, operation),
            LogDisk::Threads(disk) => disk.submit(token, operation),
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        match self {
            LogDisk::Ring(disk) => disk.poll(completions),
            LogDisk::Threads(disk) => disk.poll(completions),
        }
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        match self {
            LogDisk::Ring(disk) => disk.wait(completions),
            LogDisk::Threads(disk) => disk.wait(completions),
        }
    }
}

/// The reactor. It stays on the thread that made it.
pub struct LogReactor {
    disk: LogDisk,
    turn_began: Instant,
    disk_checked: Instant,
    disk_wait: stall::Wait,
}

impl LogReactor {
    /// A reactor for the calling thread, which owns `bell`: mailboxes to this core are made with it.
    pub fn new(writer: Writer, options: DiskOptions, bell: &Doorbell) -> io::Result<LogReactor> {
        let disk = match writer {
            Writer::Ring(method) => LogDisk::Ring(Box::new(RingDisk::new(options, method, bell)?)),
            Writer::Threads => LogDisk::Threads(ThreadDisk::new(options, bell)?),
        };
        Ok(LogReactor {
            disk,
            turn_began: Instant::now(),
            disk_checked: Instant::now(),
            disk_wait: stall::Wait::new(limits::STALL_REPORT),
        })
    }

    /// The disk, for submitting and polling.
    pub fn disk(&mut self) -> &mut LogDisk {
        &mut self.disk
    }

    /// Begins a turn. What was done before is not part of it: a start may take its time.
    pub fn begin_turn(&mut self) {
        self.turn_began = Instant::now();
        self.check_disk();
    }

    /// Ends the turn, whether or not there is more to do at once, and says so if it took too long. How long it took.
    pub fn end_turn(&mut self) -> Duration {
        let took = self.turn_began.elapsed();
        stall::report(took, &"a turn of the log core to end");
        took
    }

    /// Between turns: sleeps until a disk operation completes, the bell rings, or `until` has passed (never, if
    /// `None`). Returns at once if a completion is ready, or if `has_work`, asked after the bell was armed, finds a
    /// message. May return without a reason.
    pub fn wait(&mut self, until: Option<Duration>, has_work: impl FnOnce() -> bool) {
        self.disk.park(until, has_work);
    }

    /// Reports an operation that is still in flight; its end is reported once more by the disk.
    fn check_disk(&mut self) {
        if self.turn_began.duration_since(self.disk_checked) < limits::STALL_REPORT {
            return;
        }
        self.disk_checked = self.turn_began;
        if let Some((label, since)) = self.disk.oldest() {
            let waited = self.turn_began.saturating_duration_since(since);
            let label = format_args!("{label}, which is still in flight");
            self.disk_wait.report(waited, &label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buffer::AlignedBuffer;
    use crate::io::disk::OpenMode;
    use crate::reactor::mailbox::mailbox;
    use std::thread;

    /// Neither what came before the first turn nor several turns without a pause are one long turn.
    #[test]
    fn a_turn_is_from_its_beginning_to_its_end() {
        const LONG: Duration = Duration::from_secs(60);
        let bell = Doorbell::new("log").unwrap();
        let mut reactor = LogReactor::new(Writer::Threads, DiskOptions::default(), &bell).unwrap();
        let long_ago = || {
            Instant::now()
                .checked_sub(LONG)
                .expect("the machine is up for that long")
        };
        reactor.turn_began = long_ago();
        for _ in 0..2 {
            reactor.begin_turn();
            assert!(reactor.end_turn() < LONG, "what came before counts");
            // As if the turn that just ended had begun then.
            reactor.turn_began = long_ago();
        }
        assert!(reactor.end_turn() >= LONG);
    }

    /// One loop serves a mailbox, a disk and a timer, on each writer.
    #[test]
    fn one_wait_serves_messages_completions_and_time() {
        for writer in [
            Writer::Ring(WriteMethod::Dsync),
            Writer::Ring(WriteMethod::Thread),
            Writer::Threads,
        ] {
            const COUNT: u64 = 200;
            let directory = tempfile::tempdir().unwrap();
            let bells = [Doorbell::new("log").unwrap(), Doorbell::new("serve").unwrap()];
            let (mut sender, mut requests) = mailbox::<u64, 1>([64], &bells[0], &bells[1]);
            let (mut answers, mut receiver) = mailbox::<u64, 1>([64], &bells[1], &bells[0]);
            let log_bell = bells[0].clone();
            let path = directory.path().join("log");
            let log = thread::spawn(move || {
                let mut reactor = LogReactor::new(writer, DiskOptions::default(), &log_bell).unwrap();
                let (file, _) = reactor.disk().open(&path, OpenMode::CreateNew).unwrap();
                let mut completions = Vec::new();
                let mut answered = 0;
                while answered < COUNT {
                    while let Some(number) = requests.pop() {
                        let operation = Operation::Write {
                            file,
                            offset: number * 4096,
                            buffer: AlignedBuffer::zeroed(1),
                            durable: true,
                        };
                        reactor.disk().submit(number, operation);
                    }
                    reactor.disk().poll(&mut completions);
                    for completion in completions.drain(..) {
                        completion.result.unwrap();
                        answers.send(0, completion.token).unwrap();
                        answered += 1;
                    }
                    reactor.wait(None, || answered == COUNT || !requests.is_empty());
                    if answered == COUNT / 2 {
                        let began = Instant::now();
                        reactor.wait(Some(Duration::from_millis(5)), || false);
                        assert!(began.elapsed() < Duration::from_secs(5));
                    }
                }
            });
            for number in 0..COUNT {
                sender.send(0, number).unwrap();
                loop {
                    match receiver.pop() {
                        Some(answer) => break assert_eq!(answer, number),
                        None => bells[1].sleep_unless(None, || !receiver.is_empty()),
                    }
                }
            }
            log.join().unwrap();
        }
    }
}
