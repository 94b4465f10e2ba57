//! What serve cores count: each its own, all readable by all.

use super::cell::Cell;
use super::clients::ClientVersions;
use super::histogram::{SharedHistogram, exponential};
use super::latency::Latency;

/// gRPC's status codes, by number.
pub const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Of one method.
#[derive(Debug, Default)]
pub struct MethodMetrics {
    /// Calls begun.
    pub started: Cell,
    /// Messages received.
    pub received: Cell,
    /// Messages sent.
    pub sent: Cell,
    /// Calls ended, by status code.
    pub handled: [Cell; CODES.len()],
    /// From a request's receipt to its answer, of calls that succeeded.
    pub succeeded: Latency,
    /// The same of the others.
    pub failed: Latency,
}

/// etcd's bounds for how long it sends on watch streams: 1 ms to 8.192 s.
static SEND_BOUNDS: [f64; 14] = exponential(0.001, 2.0);
/// etcd's bounds for hashes: 10 ms to 164 s.
static HASH_BOUNDS: [f64; 15] = exponential(0.01, 2.0);
/// etcd's bounds for ranges: 100 µs to 52 s.
static RANGE_BOUNDS: [f64; 20] = exponential(0.0001, 2.0);

/// Times of watch messages.
#[derive(Debug)]
pub struct WatchSends {
    /// Of messages with events.
    pub events: SharedHistogram,
    /// The same, divided by the events of the message.
    pub per_event: SharedHistogram,
    /// Of answers to requests, and of cancellations.
    pub control: SharedHistogram,
    /// Of progress notifications.
    pub progress: SharedHistogram,
}

impl Default for WatchSends {
    fn default() -> WatchSends {
        let histogram = || SharedHistogram::new(&SEND_BOUNDS);
        WatchSends {
            events: histogram(),
            per_event: histogram(),
            control: histogram(),
            progress: histogram(),
        }
    }
}

/// Of one core. On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct CoreMetrics {
    /// By the number of the method.
    pub methods: Box<[MethodMetrics]>,
    /// Bytes of gRPC messages received.
    pub received_bytes: Cell,
    /// Bytes of gRPC messages sent.
    pub sent_bytes: Cell,
    /// Ranges read on this core.
    pub ranges: Cell,
    /// Read-only transactions with more than one operation.
    pub read_txns: Cell,
    /// Times of ranges that failed, and of those that succeeded.
    pub range_times: [SharedHistogram; 2],
    /// Times of `HashKV`.
    pub hash_kv_times: SharedHistogram,
    /// Times of `Hash`.
    pub hash_times: SharedHistogram,
    /// Reads in slices that are under way.
    pub long_reads: Cell,
    /// Requests by the version of their clients.
    pub clients: ClientVersions,
    /// Watch streams open.
    pub watch_streams: Cell,
    /// Watches there are.
    pub watches: Cell,
    /// Watches that lag behind.
    pub slow_watches: Cell,
    /// Events sent to watches.
    pub events: Cell,
    /// Events that wait to be sent.
    pub pending_events: Cell,
    /// Times of watch messages.
    pub watch_sends: WatchSends,
    /// `/health` answered true.
    pub healthy: Cell,
    /// `/health` answered false.
    pub unhealthy: Cell,
    /// Times `/metrics` was answered.
    pub scrapes: Cell,
    /// Results of checks by the number of the check: failed, succeeded.
    pub checks: Box<[[Cell; 2]]>,
    /// The last result of each check, 1 for success; `NEVER` for none yet.
    last_checks: Box<[Cell]>,
}

/// Result of a check that was never made.
const NEVER: u64 = 2;

impl CoreMetrics {
    fn new(methods: usize, checks: usize) -> CoreMetrics {
        let last_checks: Box<[Cell]> = (0..checks).map(|_| Cell::default()).collect();
        last_checks.iter().for_each(|cell| cell.set(NEVER));
        CoreMetrics {
            methods: (0..methods).map(|_| MethodMetrics::default()).collect(),
            received_bytes: Cell::default(),
            sent_bytes: Cell::default(),
            ranges: Cell::default(),
            read_txns: Cell::default(),
            range_times: [SharedHistogram::new(&RANGE_BOUNDS), SharedHistogram::new(&RANGE_BOUNDS)],
            hash_kv_times: SharedHistogram::new(&HASH_BOUNDS),
            hash_times: SharedHistogram::new(&HASH_BOUNDS),
            long_reads: Cell::default(),
            clients: ClientVersions::default(),
            watch_streams: Cell::default(),
            watches: Cell::default(),
            slow_watches: Cell::default(),
            events: Cell::default(),
            pending_events: Cell::default(),
            watch_sends: WatchSends::default(),
            healthy: Cell::default(),
            unhealthy: Cell::default(),
            scrapes: Cell::default(),
            checks: (0..checks).map(|_| Default::default()).collect(),
            last_checks,
        }
    }
}

impl CoreMetrics {
    /// Counts the result of a health check.
    pub fn count_check(&self, check: usize, passed: bool) {
        self.checks[check][usize::from(passed)].add(1);
        self.last_checks[check].set(u64::from(passed));
    }

    /// The last result of a health check on this core; `None` when it was never made.
    pub fn last_check(&self, check: usize) -> Option<bool> {
        match self.last_checks[check].get() {
            NEVER => None,
            result => Some(result == 1),
        }
    }
}

/// All cores'.
#[derive(Debug)]
pub struct Registry {
    cores: Box<[CoreMetrics]>,
}

impl Registry {
    /// For so many cores, methods and health checks.
    pub fn new(cores: usize, methods: usize, checks: usize) -> Registry {
        Registry {
            cores: (0..cores).map(|_| CoreMetrics::new(methods, checks)).collect(),
        }
    }

    /// A core's, which that core alone writes.
    ///
    /// # Panics
    /// If there is no such core.
    pub fn core(&self, number: usize) -> &CoreMetrics {
        &self.cores[number]
    }

    /// All of them.
    pub fn cores(&self) -> impl Iterator<Item = &CoreMetrics> {
        self.cores.iter()
    }

    /// The sum of one cell over all cores.
    pub fn sum<'a>(&'a self, cell: impl Fn(&'a CoreMetrics) -> &'a Cell) -> u64 {
        self.cores().map(|core| cell(core).get()).sum()
    }
}
