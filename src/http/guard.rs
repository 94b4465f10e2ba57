//! Budgets for frames that cost the server work and bring it none: the defence against floods of resets, empty DATA,
//! SETTINGS, PING and WINDOW_UPDATE frames.

use std::time::Duration;

use crate::limits;

/// A token bucket: a burst, refilled at a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    tokens: u32,
    burst: u32,
    per_second: u32,
    refilled_ms: u64,
}

impl Bucket {
    pub const fn new((burst, per_second): (u32, u32)) -> Self {
        Self {
            tokens: burst,
            burst,
            per_second,
            refilled_ms: 0,
        }
    }

    /// Takes a token; `false` if there is none.
    pub fn take(&mut self, now: Duration) -> bool {
        if self.tokens == 0 {
            self.refill(now);
        }
        match self.tokens.checked_sub(1) {
            Some(rest) => {
                self.tokens = rest;
                true
            }
            None => false,
        }
    }

    /// Gives tokens back, up to the burst.
    #[inline]
    pub fn give(&mut self, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens).min(self.burst);
    }

    /// Time counts only while the bucket is empty or was not asked: an honest peer is never near either.
    fn refill(&mut self, now: Duration) {
        let now_ms = now.as_millis() as u64;
        let elapsed_ms = now_ms.saturating_sub(self.refilled_ms);
        let tokens = elapsed_ms.saturating_mul(u64::from(self.per_second)) / 1_000;
        if tokens > 0 {
            self.refilled_ms = now_ms;
            self.give(tokens.min(u64::from(u32::MAX)) as u32);
        }
    }
}

/// The budgets of one connection.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Streams reset by the peer, or by us for its fault.
    pub resets: Bucket,
    /// DATA without a byte and without END_STREAM.
    pub empty_data: Bucket,
    pub settings: Bucket,
    pub pings: Bucket,
    pub window_updates: Bucket,
    /// PRIORITY, unknown types, frames for streams that are gone.
    pub idle_frames: Bucket,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            resets: Bucket::new(limits::HTTP_RESETS),
            empty_data: Bucket::new(limits::HTTP_EMPTY_DATA),
            settings: Bucket::new(limits::HTTP_SETTINGS),
            pings: Bucket::new(limits::HTTP_PINGS),
            window_updates: Bucket::new(limits::HTTP_WINDOW_UPDATES),
            idle_frames: Bucket::new(limits::HTTP_IDLE_FRAMES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lends_its_burst_then_its_rate() {
        let mut bucket = Bucket::new((3, 2));
        let at = Duration::from_millis;
        assert!((0..3).all(|_| bucket.take(at(0))));
        assert!(!bucket.take(at(499)));
        assert!(bucket.take(at(500)));
        assert!(!bucket.take(at(500)));
        bucket.give(u32::MAX);
        assert!((0..3).all(|_| bucket.take(at(500))));
        assert!(!bucket.take(at(600)));
        assert!((0..3).all(|_| bucket.take(at(100_000))));
        assert!(!bucket.take(at(100_000)));
    }
}
