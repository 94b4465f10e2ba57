//! A disk on an io_uring ring of the thread that owns it.
//!
//! Reads, writes, syncs and space go through the ring; names (open, close, rename, list, …), which are rare, go to
//! helper threads that ring the owner's bell. The bell's eventfd is polled by the ring, so one wait serves disk
//! completions, helpers, mailboxes and a time-out.

use super::DiskOptions;
use super::blocking::{self, Job, PUNCH_HOLE, Progress};
use super::files::{FileTable, OpenFile};
use super::pending::Pending;
use super::workers::Workers;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Completion, Disk, Operation, Outcome};
use crate::limits::{DISK_CONTINUATIONS, LOG_RING_ENTRIES};
use crate::reactor::{Doorbell, ring};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a durable write reaches the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMethod {
    /// One write with RWF_DSYNC on the ring.
    Dsync,
    /// A write and an fdatasync, linked on the ring.
    LinkedSync,
    /// `pwritev2(RWF_DSYNC)` on a helper thread.
    Thread,
}

/// `user_data` of the bell's poll. Other values are a key in `in_flight` times two, plus one for a linked sync.
const BELL: u64 = u64::MAX;

/// The disk. It stays on the thread that made it.
pub struct RingDisk {
    ring: IoUring,
    bell: Doorbell,
    bell_armed: bool,
    options: DiskOptions,
    method: WriteMethod,
    files: FileTable,
    workers: Workers,
    in_flight: Slab<InFlight>,
    /// Keys that wait for room in the submission queue.
    backlog: VecDeque<usize>,
    ready: VecDeque<Completion>,
    _on_one_thread: PhantomData<Rc<()>>,
}

struct InFlight {
    pending: Pending,
    /// What the ring works on; `None` while a helper does.
    transfer: Option<Transfer>,
    /// Completions the ring still owes: two for a write with a linked sync.
    owed: u8,
    continuations: u32,
    /// The first error of a linked pair.
    error: Option<io::Error>,
    /// Bytes moved by the completion that is being waited out.
    moved: usize,
}

struct Transfer {
    file: Arc<OpenFile>,
    kind: Kind,
}

enum Kind {
    Read {
        offset: u64,
        buffer: AlignedBuffer,
        done: usize,
    },
    Write {
        offset: u64,
        buffer: AlignedBuffer,
        done: usize,
        durable: bool,
    },
    Sync,
    Fallocate {
        mode: i32,
        offset: u64,
        length: u64,
    },
}

impl RingDisk {
    /// A disk whose waits also end when `bell` rings, the bell of the calling thread.
    pub fn new(options: DiskOptions, method: WriteMethod, bell: &Doorbell) -> io::Result<RingDisk> {
        let ring = ring::build(LOG_RING_ENTRIES)?;
        Ok(RingDisk {
            ring,
            bell: bell.clone(),
            bell_armed: false,
            options,
            method,
            files: FileTable::default(),
            workers: Workers::start(options, bell)?,
            in_flight: Slab::new(),
            backlog: VecDeque::new(),
            ready: VecDeque::new(),
            _on_one_thread: PhantomData,
        })
    }

    /// Sleeps until an operation completes, the bell rings or `until` has passed; not at all if something has completed
    /// or `has_work` says so. Hands everything queued to the kernel in the same system call.
    pub fn park(&mut self, until: Option<Duration>, has_work: impl FnOnce() -> bool) {
        self.fill_submission_queue();
        self.reap();
        self.bell.about_to_sleep();
        self.collect_helpers();
        let sleeps = self.ready.is_empty() && !has_work();
        if sleeps {
            self.enter(Some(until));
        } else if ring::needs_enter(&mut self.ring) {
            self.enter(None);
        }
        self.bell.awake();
        self.reap();
        self.collect_helpers();
    }

    /// What has been in flight the longest, and since when.
    pub fn oldest(&self) -> Option<(String, Instant)> {
        let oldest = self
            .in_flight
            .iter()
            .map(|(_, entry)| &entry.pending)
            .min_by_key(|pending| pending.since)?;
        Some((oldest.to_string(), oldest.since))
    }

    fn uses_ring(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Write { durable: true, .. } => self.method != WriteMethod::Thread,
            Operation::Sync { .. } => !self.options.no_fsync,
            Operation::Read { .. } | Operation::Write { .. } => true,
            Operation::Allocate { .. } | Operation::PunchHole { .. } => true,
            _ => false,
        }
    }

    /// Moves queued operations into the submission queue while there is room.
    fn fill_submission_queue(&mut self) {
        if !self.bell_armed {
            let poll = opcode::PollAdd::new(types::Fd(self.bell.as_raw_fd()), libc::POLLIN as u32).multi(true);
            // SAFETY: the entry holds no pointers, and the bell's descriptor lives as long as this disk.
            self.bell_armed = unsafe { self.ring.submission().push(&poll.build().user_data(BELL)) }.is_ok();
        }
        while let Some(&key) = self.backlog.front() {
            let entries = self.entries_of(key);
            // SAFETY: buffers and descriptors named in the entries are owned by `in_flight[key]`, which is removed only
            // when the ring has completed everything it owes for it; `drop` waits for that.
            if unsafe { self.ring.submission().push_multiple(&entries) }.is_err() {
                return;
            }
            self.in_flight[key].owed = entries.len() as u8;
            self.backlog.pop_front();
        }
    }

    /// The submission entries for what is left of an operation: one, or two linked ones.
    fn entries_of(&mut self, key: usize) -> Vec<squeue::Entry> {
        let (method, syncs) = (self.method, !self.options.no_fsync);
        let Some(Transfer { file, kind }) = &mut self.in_flight[key].transfer else {
            unreachable!("only transfers are queued for the ring")
        };
        let fd = types::Fd(file.file.as_raw_fd());
        let user_data = key as u64 * 2;
        let fdatasync = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
        match kind {
            Kind::Read { offset, buffer, done } => {
                let (position, rest) = (*offset + *done as u64, &mut buffer[*done..]);
                let read = opcode::Read::new(fd, rest.as_mut_ptr(), length_of(rest)).offset(position);
                vec![read.build().user_data(user_data)]
            }
            Kind::Write {
                offset,
                buffer,
                done,
                durable,
            } => {
                let (position, rest) = (*offset + *done as u64, &buffer[*done..]);
                let durable = *durable && syncs;
                let write = opcode::Write::new(fd, rest.as_ptr(), length_of(rest)).offset(position);
                if durable && method == WriteMethod::LinkedSync {
                    let write = write.build().user_data(user_data).flags(squeue::Flags::IO_LINK);
                    return vec![write, fdatasync.user_data(user_data + 1)];
                }
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                vec![write.rw_flags(flags).build().user_data(user_data)]
            }
            Kind::Sync => vec![fdatasync.user_data(user_data)],
            Kind::Fallocate { mode, offset, length } => {
                let fallocate = opcode::Fallocate::new(fd, *length).offset(*offset).mode(*mode);
                vec![fallocate.build().user_data(user_data)]
            }
        }
    }

    /// Submits what is queued and runs deferred completions; sleeps for one if `sleep` names a bound.
    fn enter(&mut self, sleep: Option<Option<Duration>>) {
        let timespec = sleep.flatten().map(types::Timespec::from);
        let mut arguments = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let want = usize::from(sleep.is_some());
        match self.ring.submitter().submit_with_args(want, &arguments) {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                // Time passed, a signal, or completions that have to be reaped before more can be submitted.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => panic!("io_uring_enter: {error}"),
            },
        }
    }

    /// Takes completions off the ring.
    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else {
                break;
            };
            if entry.user_data() == BELL {
                self.bell_armed &= cqueue::more(entry.flags());
                continue;
            }
            let (key, of_sync) = ((entry.user_data() / 2) as usize, entry.user_data() % 2 == 1);
            if self.note(key, of_sync, entry.result()) {
                self.settle(key);
            }
        }
    }

    /// Takes one completion down; whether it was the last one owed.
    fn note(&mut self, key: usize, of_sync: bool, result: i32) -> bool {
        let entry = &mut self.in_flight[key];
        entry.owed -= 1;
        match u32::try_from(result) {
            Ok(_) if of_sync => {}
            Ok(moved) => entry.moved = moved as usize,
            // The sync of a short or failed write is cancelled; the write says how to go on.
            Err(_) if of_sync && result == -libc::ECANCELED => {}
            Err(_) => entry.error = entry.error.take().or(Some(io::Error::from_raw_os_error(-result))),
        }
        entry.owed == 0
    }

    /// Everything owed has come: goes on with the rest of a transfer, or completes the operation.
    fn settle(&mut self, key: usize) {
        let entry = &mut self.in_flight[key];
        entry.continuations += 1;
        let may_continue = entry.continuations < DISK_CONTINUATIONS;
        let again = match &entry.error {
            Some(error) => {
                let transient = matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN));
                transient && may_continue
            }
            None => false,
        };
        if again {
            entry.error = None;
            return self.backlog.push_back(key);
        }
        if let Some(error) = entry.error.take() {
            return self.complete(key, |_| Err(error));
        }
        let (moved, Some(transfer)) = (entry.moved, &mut entry.transfer) else {
            unreachable!("only transfers complete on the ring")
        };
        let progress = match &transfer.kind {
            Kind::Read { buffer, done, .. } => blocking::after_read(*done, moved, buffer.len()),
            Kind::Write { buffer, done, .. } => blocking::after_write(*done, moved, buffer.len()),
            Kind::Sync | Kind::Fallocate { .. } => Progress::Complete(0),
        };
        match (progress, &mut transfer.kind) {
            (Progress::Continue(reached), Kind::Read { done, .. } | Kind::Write { done, .. }) if may_continue => {
                *done = reached;
                self.backlog.push_back(key);
            }
            (Progress::Complete(length), _) => self.complete(key, |kind| Ok(outcome_of(kind, length))),
            _ => self.complete(key, |_| Err(blocking::write_is_stuck())),
        }
    }

    fn complete(&mut self, key: usize, outcome: impl FnOnce(Kind) -> io::Result<Outcome>) {
        let InFlight { pending, transfer, .. } = self.in_flight.remove(key);
        pending.report_stall();
        let Some(transfer) = transfer else {
            unreachable!("only transfers complete on the ring")
        };
        self.ready.push_back(Completion {
            token: pending.token,
            result: outcome(transfer.kind).map_err(|source| pending.error(source)),
        });
    }

    fn collect_helpers(&mut self) {
        while let Some((key, result)) = self.workers.next_report() {
            let pending = self.in_flight.remove(key).pending;
            self.ready.push_back(pending.complete(result, &mut self.files));
        }
    }
}

fn length_of(part: &[u8]) -> u32 {
    // The system moves at most 2 GiB at once; the rest is a continuation.
    u32::try_from(part.len()).unwrap_or(1 << 30)
}

fn outcome_of(kind: Kind, length: usize) -> Outcome {
    match kind {
        Kind::Read { buffer, .. } => Outcome::Read { buffer, length },
        Kind::Write { buffer, .. } => Outcome::Written { buffer },
        Kind::Sync | Kind::Fallocate { .. } => Outcome::Done,
    }
}

fn kind_of(operation: Operation) -> Kind {
    match operation {
        Operation::Read { offset, buffer, .. } => Kind::Read {
            offset,
            buffer,
            done: 0,
        },
        Operation::Write {
            offset,
            buffer,
            durable,
            ..
        } => Kind::Write {
            offset,
            buffer,
            done: 0,
            durable,
        },
        Operation::Sync { .. } => Kind::Sync,
        Operation::Allocate { offset, length, .. } => Kind::Fallocate {
            mode: 0,
            offset,
            length,
        },
        Operation::PunchHole { offset, length, .. } => Kind::Fallocate {
            mode: PUNCH_HOLE,
            offset,
            length,
        },
        other => unreachable!("{other:?} is a helper's"),
    }
}

impl Disk for RingDisk {
    /// As the trait says. A durable write, which somebody waits for, is handed to the kernel at once; the rest goes
    /// with the next `poll`, `wait` or `park`.
    fn submit(&mut self, token: u64, operation: Operation) {
        let file = self.files.resolve(&operation);
        let pending = Pending::new(token, &operation, file.clone());
        let urgent = matches!(operation, Operation::Write { durable: true, .. });
        let mut entry = InFlight {
            pending,
            transfer: None,
            owed: 0,
            continuations: 0,
            error: None,
            moved: 0,
        };
        if !self.uses_ring(&operation) {
            let key = self.in_flight.insert(entry);
            return self.workers.send(key, Job { operation, file });
        }
        let Some(file) = file else {
            unreachable!("operations of the ring are about a file")
        };
        entry.transfer = Some(Transfer {
            file,
            kind: kind_of(operation),
        });
        let key = self.in_flight.insert(entry);
        self.backlog.push_back(key);
        self.fill_submission_queue();
        if urgent {
            self.enter(None);
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.fill_submission_queue();
        if ring::needs_enter(&mut self.ring) {
            self.enter(None);
        }
        self.reap();
        self.collect_helpers();
        completions.extend(self.ready.drain(..));
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.reap();
        self.collect_helpers();
        while self.ready.is_empty() && !self.in_flight.is_empty() {
            self.park(None, || false);
        }
        completions.extend(self.ready.drain(..));
    }
}

impl Drop for RingDisk {
    /// Waits for everything in flight: the kernel owns those buffers until it has answered.
    fn drop(&mut self) {
        while !self.in_flight.is_empty() {
            self.park(None, || false);
            self.ready.clear();
        }
    }
}
