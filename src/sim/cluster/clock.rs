//! A member's clock: it drifts, and may jump forward, as a monotonic clock does when its machine slept.

/// Microseconds of the clock in a million of true time, when it goes right.
const RIGHT: u64 = 1_000_000;

/// The clock. It never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// A moment of true time, and what the clock showed then.
    anchor_us: (u64, u64),
    rate: u64,
}

impl Clock {
    /// A clock that shows true time.
    pub fn new() -> Clock {
        Clock {
            anchor_us: (0, 0),
            rate: RIGHT,
        }
    }

    /// What it shows at a moment of true time, in microseconds.
    pub fn at(&self, true_us: u64) -> u64 {
        let (anchor, shown) = self.anchor_us;
        shown + true_us.saturating_sub(anchor) * self.rate / RIGHT
    }

    /// When it shows this.
    pub fn shows(&self, local_us: u64) -> u64 {
        let (anchor, shown) = self.anchor_us;
        anchor + (local_us.saturating_sub(shown) * RIGHT).div_ceil(self.rate)
    }

    /// From a moment on it goes faster or slower than true time, by so many in a million.
    pub fn drift(&mut self, true_us: u64, by: i64) {
        self.anchor_us = (true_us, self.at(true_us));
        self.rate = RIGHT.saturating_add_signed(by);
    }

    /// It jumps forward.
    pub fn jump(&mut self, true_us: u64, by_us: u64) {
        self.anchor_us = (true_us, self.at(true_us) + by_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_drifts_and_jumps_and_is_asked_either_way() {
        let mut clock = Clock::new();
        assert_eq!(clock.at(7), 7);
        clock.drift(100, 500_000);
        assert_eq!((clock.at(100), clock.at(300)), (100, 400));
        clock.jump(300, 50);
        clock.drift(300, -500_000);
        assert_eq!((clock.at(300), clock.at(400)), (450, 500));
        for true_us in 300..500 {
            assert!(clock.shows(clock.at(true_us)) <= true_us);
            assert!(clock.at(clock.shows(true_us + 150)) >= true_us + 150);
        }
    }
}
