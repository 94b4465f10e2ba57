//! What serve cores count: each its own, all readable by all.

use super::cell::Cell;
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
            watch_streams: Cell::default(),
            watches: Cell::default(),
            slow_watches: Cell::default(),
            events: Cell::default(),
            pending_events: Cell::default(),
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
