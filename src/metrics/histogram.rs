//! Histograms with fixed bounds, as Prometheus wants them.

use super::cell::Cell;
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

/// A histogram of times with one writing thread, which any thread may read.
#[derive(Debug)]
pub struct SharedHistogram {
    /// In seconds.
    bounds: &'static [f64],
    counts: Box<[Cell]>,
    sum_ns: Cell,
}

impl SharedHistogram {
    /// An empty one. The bounds grow.
    pub fn new(bounds: &'static [f64]) -> SharedHistogram {
        debug_assert!(bounds.is_sorted());
        SharedHistogram {
            bounds,
            counts: (0..=bounds.len()).map(|_| Cell::default()).collect(),
            sum_ns: Cell::default(),
        }
    }

    /// Counts a time as often as said.
    pub fn observe(&self, time: Duration, count: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < time.as_secs_f64());
        self.counts[bucket].add(count);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.add(ns.saturating_mul(count));
    }

    /// What several of them hold together. They have the same bounds.
    pub fn sum<'a>(cores: impl Iterator<Item = &'a SharedHistogram>) -> Option<Buckets> {
        let mut sum: Option<Buckets> = None;
        for core in cores {
            let mut count = 0;
            let cumulative = core.bounds.iter().zip(&core.counts).map(|(bound, own)| {
                count += own.get();
                (*bound, count)
            });
            let cumulative: Vec<_> = cumulative.collect();
            let own = Buckets {
                count: count + core.counts[core.bounds.len()].get(),
                cumulative,
                sum: core.sum_ns.get() as f64 / 1e9,
            };
            match &mut sum {
                None => sum = Some(own),
                Some(sum) => sum.add(&own),
            }
        }
        sum
    }
}

impl Buckets {
    /// None of the values there could be.
    pub fn empty(bounds: &[f64]) -> Buckets {
        Buckets {
            cumulative: bounds.iter().map(|bound| (*bound, 0)).collect(),
            count: 0,
            sum: 0.0,
        }
    }

    fn add(&mut self, other: &Buckets) {
        debug_assert_eq!(self.cumulative.len(), other.cumulative.len());
        for ((_, sum), (_, own)) in self.cumulative.iter_mut().zip(&other.cumulative) {
            *sum += own;
        }
        self.count += other.count;
        self.sum += other.sum;
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

    #[test]
    fn cores_add_up() {
        let cores = [SharedHistogram::new(&BOUNDS), SharedHistogram::new(&BOUNDS)];
        cores[0].observe(Duration::from_millis(1), 3);
        cores[0].observe(Duration::from_secs(9), 1);
        cores[1].observe(Duration::from_micros(1001), 2);
        let sum = SharedHistogram::sum(cores.iter()).unwrap();
        assert_eq!((sum.cumulative[0], sum.cumulative[1]), ((0.001, 3), (0.002, 5)));
        assert_eq!((sum.cumulative[13].1, sum.count), (5, 6));
        assert!((sum.sum - 9.005_002).abs() < 1e-9);
        let nothing = Buckets::empty(&BOUNDS);
        assert_eq!(nothing, Histogram::new(&BOUNDS).buckets());
        assert!(SharedHistogram::sum(std::iter::empty()).is_none());
    }
}
