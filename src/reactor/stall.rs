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

/// One thing that is looked at over and over while it is waited for: it is spoken of when it has been waited for too
/// long, and again each time that has become twice as long.
#[derive(Debug)]
pub struct Wait {
    limit: Duration,
    /// How long it had been waited for when it was spoken of last.
    said: Duration,
}

impl Wait {
    /// Nothing is waited for yet; more than `limit` is too long.
    pub fn new(limit: Duration) -> Wait {
        Wait {
            limit,
            said: Duration::ZERO,
        }
    }

    /// It has been waited for so long. A shorter time than the last is another wait.
    pub fn report(&mut self, waited: Duration, resource: &dyn Display) {
        if self.is_news(waited) {
            report(waited, resource);
        }
    }

    fn is_news(&mut self, waited: Duration) -> bool {
        if waited < self.said {
            self.said = Duration::ZERO;
        }
        let is_news = waited > self.limit && waited >= 2 * self.said;
        if is_news {
            self.said = waited;
        }
        is_news
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
    fn a_long_wait_is_spoken_of_seldom() {
        let look = Duration::from_millis(250);
        let mut wait = Wait::new(Duration::from_secs(1));
        let said: Vec<f64> = (0..=2400)
            .map(|looks| looks * look)
            .filter(|&waited| wait.is_news(waited))
            .map(|waited| waited.as_secs_f64())
            .collect();
        assert_eq!(said, [1.25, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0]);
        // It is over, and the next one is as new as the first.
        assert!(!wait.is_news(look));
        let said = (1..=8).filter(|&looks| wait.is_news(looks * look)).count();
        assert_eq!(said, 1);
    }

    #[test]
    fn only_what_is_over_the_limit_counts() {
        let before = count();
        report(limits::STALL_REPORT - Duration::from_millis(1), &"a quick disk");
        report(limits::STALL_REPORT, &"a slow disk");
        assert!(count() > before);
        assert!(now_ns() > 0);
    }
}
