//! The stall watch: whatever was waited for longer than `limits::STALL_REPORT` is logged, with its name.

use crate::limits;
use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

static REPORTED: AtomicU64 = AtomicU64::new(0);
static LAST_REPORT_NS: AtomicU64 = AtomicU64::new(0);

/// Monotonic nanoseconds since the process first asked, never 0.
pub(super) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Logs a stall if `waited` is over the limit, at most `limits::STALL_REPORTS_PER_SECOND`. `resource` names the queue,
/// disk operation or turn that was waited for.
pub fn report(waited: Duration, resource: &dyn Display) {
    if waited < limits::STALL_REPORT {
        return;
    }
    REPORTED.fetch_add(1, Ordering::Relaxed);
    let (now, last) = (now_ns(), LAST_REPORT_NS.load(Ordering::Relaxed));
    let interval_ns = 1_000_000_000 / limits::STALL_REPORTS_PER_SECOND;
    if last != 0 && now.saturating_sub(last) < interval_ns {
        return;
    }
    if LAST_REPORT_NS
        .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        tracing::warn!(waited_ms = waited.as_millis() as u64, "stall: waited for {resource}");
    }
}

/// How many stalls there were since the start, reported or not.
pub fn count() -> u64 {
    REPORTED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_over_the_limit_counts() {
        let before = count();
        report(limits::STALL_REPORT - Duration::from_millis(1), &"a quick disk");
        report(limits::STALL_REPORT, &"a slow disk");
        assert!(count() > before);
        assert!(now_ns() > 0);
    }
}
