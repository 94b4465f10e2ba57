//! Histograms with fixed bounds, as Prometheus wants them.

use std::time::Duration;

/// `N` bounds, each `factor` times the one before.
pub const fn exponential<const N: usize>(start: f64, factor: f64) -> [f64; N] {
    let mut bounds = [start; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}

/// How often a value was at most each bound, and what is needed beside that.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// A bound and how many values were at most that; growing.
    pub cumulative: Vec<(f64, u64)>,
    /// How many values there were.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

/// A histogram of one thread's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty one. The bounds grow.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        debug_assert!(bounds.is_sorted());
        Histogram {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    /// Counts a time, in seconds.
    pub fn observe_time(&mut self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    /// What it holds.
    pub fn buckets(&self) -> Buckets {
        let mut count = 0;
        let cumulative = self.bounds.iter().zip(&self.counts).map(|(bound, own)| {
            count += own;
            (*bound, count)
        });
        let cumulative = cumulative.collect();
        Buckets {
            cumulative,
            count: self.counts.iter().sum(),
            sum: self.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static BOUNDS: [f64; 14] = exponential(0.001, 2.0);

    #[test]
    fn values_are_counted_at_their_bounds() {
        assert_eq!((BOUNDS[0], BOUNDS[13]), (0.001, 8.192));
        let mut histogram = Histogram::new(&BOUNDS);
        for value in [0.0005, 0.001, 0.0011, 8.192, 9.0] {
            histogram.observe(value);
        }
        histogram.observe_time(Duration::from_millis(2));
        let buckets = histogram.buckets();
        assert_eq!(buckets.cumulative[0], (0.001, 2));
        assert_eq!(buckets.cumulative[1], (0.002, 4));
        assert_eq!(buckets.cumulative[12].1, 4);
        assert_eq!(buckets.cumulative[13].1, 5);
        assert_eq!(buckets.count, 6);
        assert!((buckets.sum - 17.1966).abs() < 1e-9);
    }
}
