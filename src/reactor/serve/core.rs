//! A serve core: one thread, pinned, with an executor.

use super::watchdog::{Heartbeat, watch};
use crate::limits;
use crate::reactor::roles::CpuSet;
use crate::reactor::stall;
use crate::reactor::start::StartError;
use glommio::{Latency, LocalExecutorBuilder, Placement, Shares, TaskQueueHandle};
use std::cell::Cell;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Where and under which name a serve core runs.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// The thread's name, at most 15 bytes are visible outside.
    pub name: String,
    /// The CPUs the thread, its helpers and its kernel workers may use; `None` leaves them as they are.
    pub cpus: Option<CpuSet>,
}

/// A running serve core.
pub struct ServeCore {
    name: String,
    clock: libc::clockid_t,
    thread: thread::JoinHandle<()>,
}

impl ServeCore {
    /// Starts the thread and its executor and runs `main` as its first task; the core ends when that task does. Returns
    /// when the executor runs, with an error when it could not be made.
    pub fn start<M, F>(options: CoreOptions, main: M) -> Result<ServeCore, StartError>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let (started, outcome) = mpsc::channel();
        let name = options.name.clone();
        let heartbeat = Arc::new(Heartbeat::default());
        heartbeat.beat();
        watch(&name, heartbeat.clone())?;
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            run(options, main, &started, &heartbeat);
            heartbeat.end();
        })?;
        match outcome.recv() {
            Ok(Ok(clock)) => Ok(ServeCore { name, clock, thread }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StartError::Executor("its thread ended while it started".to_string())),
        }
    }

    /// CPU time the core's thread has used so far.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.clock)
    }

    /// The clock of the core's CPU time, for `cpu_time` on another thread.
    pub fn clock(&self) -> CoreClock {
        CoreClock(self.clock)
    }

    /// Waits at most `bound` for the core to end. Whether it did.
    pub fn join(self, bound: Duration) -> bool {
        let until = Instant::now() + bound;
        while !self.thread.is_finished() {
            if Instant::now() >= until {
                tracing::error!(core = self.name, "the core did not end in time");
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        if self.thread.join().is_err() {
            tracing::error!(core = self.name, "the core panicked");
            return false;
        }
        true
    }
}

/// Reads how much CPU time a serve core has used, from any thread.
#[derive(Clone, Copy, Debug)]
pub struct CoreClock(libc::clockid_t);

impl CoreClock {
    /// CPU time used so far; what was last known to the kernel, zero, if the core has ended.
    pub fn cpu_time(self) -> Duration {
        cpu_time(self.0)
    }
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that outlives the call; a clock of a thread that has ended gives an error.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Duration::ZERO;
    }
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn run<M, F>(
    options: CoreOptions,
    main: M,
    started: &mpsc::Sender<Result<libc::clockid_t, StartError>>,
    heartbeat: &Arc<Heartbeat>,
) where
    M: FnOnce() -> F,
    F: Future<Output = ()> + 'static,
{
    if let Some(cpus) = &options.cpus {
        cpus.pin_this_thread();
    }
    let builder = LocalExecutorBuilder::new(Placement::Unbound)
        .name(&options.name)
        .io_memory(limits::SERVE_IO_MEMORY_BYTES)
        .preempt_timer(limits::SERVE_PREEMPT);
    let executor = match builder.make() {
        Ok(executor) => executor,
        Err(error) => {
            let _ = started.send(Err(StartError::Executor(error.to_string())));
            return;
        }
    };
    let mut clock = 0;
    // SAFETY: `clock` is a clockid_t that outlives the call, and the calling thread exists.
    unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    let _ = started.send(Ok(clock));
    let name = options.name;
    heartbeat.begin();
    let heartbeat = heartbeat.clone();
    executor.run(async move {
        let shares = Shares::Static(limits::SERVE_ASIDE_SHARES);
        let queue = glommio::executor().create_task_queue(shares, Latency::NotImportant, "aside");
        ASIDE.set(Some(queue));
        super::spawn(watch_for_stalls(name, heartbeat));
        main().await;
    });
}

thread_local! {
    /// The calling core's queue of tasks that work long.
    static ASIDE: Cell<Option<TaskQueueHandle>> = const { Cell::new(None) };
}

pub(super) fn aside_queue() -> TaskQueueHandle {
    ASIDE.get().expect("the calling thread is a serve core")
}

/// Sleeps for a while again and again; waking up late means that a task, or the machine, held the core.
async fn watch_for_stalls(name: String, heartbeat: Arc<Heartbeat>) {
    loop {
        let began = Instant::now();
        super::sleep(limits::SERVE_HEARTBEAT).await;
        heartbeat.beat();
        let late = began.elapsed().saturating_sub(limits::SERVE_HEARTBEAT);
        stall::report(late, &format_args!("a turn of {name} to end"));
    }
}
