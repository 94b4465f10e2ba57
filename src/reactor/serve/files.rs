//! Positional reads of a file from a serve core, on a ring of their own beside the executor's.
//!
//! The executor's own direct I/O polls for completions on disks that don't support it and copies through its buffers;
//! here the ring signals an eventfd, which the executor waits for, and reads land in the caller's buffer.

use crate::io::buffer::AlignedBuffer;
use crate::io::disk::DiskError;
use crate::limits::{DISK_CONTINUATIONS, PAGE_READS_IN_FLIGHT};
use crate::reactor::disk::{OpenFile, Progress, after_read, open};
use crate::reactor::eventfd::EventFd;
use crate::reactor::{ring, stall};
use glommio::io::BufferedFile;
use io_uring::{IoUring, opcode, types};
use slab::Slab;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

/// A file that a serve core reads. Clones share the file and may read at the same time.
#[derive(Clone)]
pub struct PageFileReader {
    file: Arc<OpenFile>,
    reads: Rc<RefCell<Reads>>,
}

/// The ring and what is in flight on it.
struct Reads {
    ring: IoUring,
    event: EventFd,
    in_flight: Slab<InFlight>,
    /// Tasks that wait for one of `PAGE_READS_IN_FLIGHT` places.
    queue: Vec<Waker>,
}

struct InFlight {
    buffer: AlignedBuffer,
    /// Keeps the descriptor open until the kernel has answered.
    _file: Arc<OpenFile>,
    result: Option<i32>,
    waiter: Option<Waker>,
    /// Nobody waits any more: the entry goes when the kernel has answered.
    abandoned: bool,
}

thread_local! {
    static READS: RefCell<Option<Rc<RefCell<Reads>>>> = const { RefCell::new(None) };
}

impl PageFileReader {
    /// Opens `path` for reading, with O_DIRECT where the file system can, and returns its length with it.
    pub async fn open(path: &Path) -> Result<(PageFileReader, u64), DiskError> {
        let failed = |source| DiskError {
            operation: "open",
            path: path.to_path_buf(),
            source,
        };
        let owned = path.to_path_buf();
        let mode = crate::io::disk::OpenMode::ReadOnly;
        let opened = super::run_blocking(move || open(&owned, mode, true)).await;
        let (file, length) = opened.map_err(failed)?;
        let reads = reads_of_this_core().map_err(failed)?;
        let file = Arc::new(file);
        Ok((PageFileReader { file, reads }, length))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Reads `length` bytes from `offset`, both multiples of 4096, and how many of them were there: fewer only at the
    /// end of the file. The core goes on meanwhile.
    pub async fn read(&self, offset: u64, length: usize) -> Result<(AlignedBuffer, usize), DiskError> {
        let began = Instant::now();
        let mut buffer = AlignedBuffer::zeroed(length);
        let mut done = 0;
        for _ in 0..DISK_CONTINUATIONS {
            let (back, result) = self.read_once(offset, buffer, done).await;
            buffer = back;
            let moved = match usize::try_from(result) {
                Ok(moved) => moved,
                Err(_) if matches!(-result, libc::EINTR | libc::EAGAIN) => continue,
                Err(_) => return Err(self.failed(io::Error::from_raw_os_error(-result))),
            };
            match after_read(done, moved, buffer.len()) {
                Progress::Continue(reached) => done = reached,
                Progress::Complete(length) => {
                    stall::report(began.elapsed(), &format_args!("read of {}", self.file.path.display()));
                    return Ok((buffer, length));
                }
                Progress::Stuck => break,
            }
        }
        Err(self.failed(io::Error::other("the read came in too many pieces")))
    }

    fn failed(&self, source: io::Error) -> DiskError {
        DiskError {
            operation: "read",
            path: self.file.path.clone(),
            source,
        }
    }

    async fn read_once(&self, offset: u64, buffer: AlignedBuffer, done: usize) -> (AlignedBuffer, i32) {
        self.wait_for_place().await;
        let key = self.reads.borrow_mut().submit(&self.file, offset, buffer, done);
        let read = ReadGuard {
            reads: &self.reads,
            key,
        };
        poll_fn(|context| {
            let mut reads = read.reads.borrow_mut();
            let entry = &mut reads.in_flight[read.key];
            match entry.result {
                Some(result) => {
                    let buffer = std::mem::replace(&mut entry.buffer, AlignedBuffer::zeroed(0));
                    Poll::Ready((buffer, result))
                }
                None => {
                    entry.waiter = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    async fn wait_for_place(&self) {
        poll_fn(|context| {
            let mut reads = self.reads.borrow_mut();
            if reads.in_flight.len() < PAGE_READS_IN_FLIGHT {
                return Poll::Ready(());
            }
            reads.queue.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Gives the entry up when the wait is over, or leaves it to the kernel's answer when the wait was dropped.
struct ReadGuard<'a> {
    reads: &'a RefCell<Reads>,
    key: usize,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        let mut reads = self.reads.borrow_mut();
        if reads.in_flight[self.key].result.is_some() {
            reads.remove(self.key);
        } else {
            reads.in_flight[self.key].abandoned = true;
            reads.in_flight[self.key].waiter = None;
        }
    }
}

impl Reads {
    fn submit(&mut self, file: &Arc<OpenFile>, offset: u64, buffer: AlignedBuffer, done: usize) -> usize {
        assert!(
            offset.is_multiple_of(crate::io::buffer::ALIGNMENT as u64),
            "offset {offset} is not aligned"
        );
        let descriptor = types::Fd(file.file.as_raw_fd());
        let key = self.in_flight.insert(InFlight {
            buffer,
            _file: file.clone(),
            result: None,
            waiter: None,
            abandoned: false,
        });
        let rest = &mut self.in_flight[key].buffer[done..];
        let length = u32::try_from(rest.len()).unwrap_or(1 << 30);
        let read = opcode::Read::new(descriptor, rest.as_mut_ptr(), length).offset(offset + done as u64);
        // SAFETY: buffer and file are owned by the entry, which is removed only after its completion was reaped.
        let pushed = unsafe { self.ring.submission().push(&read.build().user_data(key as u64)) };
        assert!(pushed.is_ok(), "every read is submitted at once, so the queue is empty");
        self.enter();
        key
    }

    /// Hands the submission queue to the kernel and runs deferred completions.
    fn enter(&mut self) {
        self.reap();
        if ring::needs_enter(&mut self.ring) {
            self.enter_once();
        }
        // Not until no completion is said to be due: a kernel that adds one on another CPU while this one runs it says
        // so after it was run, and again only when the next comes. What comes later rings the eventfd.
        while !self.ring.submission().is_empty() || self.ring.submission().cq_overflow() {
            self.enter_once();
        }
    }

    fn enter_once(&mut self) {
        match self.ring.submitter().submit() {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(error) => panic!("io_uring_enter: {error}"),
        }
        self.reap();
    }

    fn reap(&mut self) {
        loop {
            let Some(completion) = self.ring.completion().next() else {
                return;
            };
            let key = completion.user_data() as usize;
            let entry = &mut self.in_flight[key];
            entry.result = Some(completion.result());
            if let Some(waiter) = entry.waiter.take() {
                waiter.wake();
            } else if entry.abandoned {
                self.remove(key);
            }
        }
    }

    fn remove(&mut self, key: usize) {
        self.in_flight.remove(key);
        // All of them: one that was woken and then dropped would keep the others waiting.
        self.queue.drain(..).for_each(Waker::wake);
    }
}

impl Drop for Reads {
    /// Waits for the kernel: it owns the buffers until it has answered.
    fn drop(&mut self) {
        while self.in_flight.iter().any(|(_, entry)| entry.result.is_none()) {
            if self.ring.submitter().submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
            self.reap();
        }
    }
}

/// The core's ring for reads, made with the first file.
fn reads_of_this_core() -> io::Result<Rc<RefCell<Reads>>> {
    READS.with_borrow_mut(|slot| {
        if let Some(reads) = slot {
            return Ok(reads.clone());
        }
        let ring = ring::build(PAGE_READS_IN_FLIGHT as u32)?;
        let event = EventFd::new()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let reads = Rc::new(RefCell::new(Reads {
            ring,
            event,
            in_flight: Slab::new(),
            queue: Vec::new(),
        }));
        super::spawn(pump(reads.clone()));
        *slot = Some(reads.clone());
        Ok(reads)
    })
}

/// Takes completions whenever the ring signals them.
async fn pump(reads: Rc<RefCell<Reads>>) {
    let descriptor = {
        let reads = reads.borrow();
        // SAFETY: the event keeps the descriptor open for the duration of the borrow.
        unsafe { BorrowedFd::borrow_raw(reads.event.as_raw_fd()) }.try_clone_to_owned()
    };
    let descriptor = match descriptor {
        Ok(descriptor) => descriptor.into_raw_fd(),
        Err(error) => panic!("no descriptor for the reads of a serve core: {error}"),
    };
    // SAFETY: the duplicate was just made and is owned by nobody else.
    let event = unsafe { BufferedFile::from_raw_fd(descriptor) };
    loop {
        if let Err(error) = event.read_at(0, 8).await {
            panic!("waiting for reads: {error}");
        }
        reads.borrow_mut().enter();
    }
}
