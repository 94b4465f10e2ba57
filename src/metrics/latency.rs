//! Latencies of requests: fine buckets from microseconds on, counted by one thread and read by others.
//!
//! Four buckets per power of two, so that a quantile is known to a quarter of its value. The unit is 1/512 ms, which
//! makes every bound of etcd's histograms (1 ms, 2 ms, 4 ms, …) one of these, so that those are sums of these.

use super::cell::Cell;
use super::histogram::Buckets;
use std::time::Duration;

/// Units in a millisecond.
const UNITS_PER_MS: u64 = 512;
/// log2 of the buckets between two powers of two.
const FINE_BITS: u32 = 2;
/// Buckets between two powers of two.
const FINE: usize = 1 << FINE_BITS;
/// Powers of two above the first `FINE` units: up to 16.384 s.
const OCTAVES: usize = 21;
/// Buckets with a bound.
const BOUNDED: usize = FINE + OCTAVES * FINE;

/// The bucket of a time of `units`, counted up to the next whole one.
fn bucket_of(units: u64) -> usize {
    let below = units.saturating_sub(1);
    if below < FINE as u64 {
        return below as usize;
    }
    let shift = below.ilog2() - FINE_BITS;
    let fine = (below >> shift) as usize & (FINE - 1);
    ((shift as usize + 1) * FINE + fine).min(BOUNDED)
}

/// The largest time, in units, that a bucket counts.
fn bound_of(bucket: usize) -> u64 {
    if bucket < FINE {
        return bucket as u64 + 1;
    }
    let (shift, fine) = (bucket / FINE - 1, bucket % FINE);
    ((FINE + fine + 1) as u64) << shift
}

/// A histogram of times with one writing thread.
#[derive(Debug)]
pub struct Latency {
    counts: Box<[Cell]>,
    sum_ns: Cell,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            counts: (0..=BOUNDED).map(|_| Cell::default()).collect(),
            sum_ns: Cell::default(),
        }
    }
}

impl Latency {
    /// Counts a time.
    pub fn observe(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let units = u64::try_from((u128::from(ns) * u128::from(UNITS_PER_MS)).div_ceil(1_000_000)).unwrap_or(u64::MAX);
        self.counts[bucket_of(units)].add(1);
        self.sum_ns.add(ns);
    }
}

/// Several cores' [`Latency`] added up.
#[derive(Clone, Debug)]
pub struct LatencySum {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Default for LatencySum {
    fn default() -> LatencySum {
        LatencySum {
            counts: vec![0; BOUNDED + 1],
            sum_ns: 0,
        }
    }
}

impl LatencySum {
    /// Adds what a core counted.
    pub fn add(&mut self, latency: &Latency) {
        for (sum, cell) in self.counts.iter_mut().zip(&latency.counts) {
            *sum += cell.get();
        }
        self.sum_ns = self.sum_ns.wrapping_add(latency.sum_ns.get());
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// With every bound there is, in seconds.
    pub fn fine(&self) -> Buckets {
        self.buckets(|_| true)
    }

    /// With etcd's bounds: 1 ms to 8.192 s, doubling.
    pub fn coarse(&self) -> Buckets {
        self.buckets(|units| units.is_power_of_two() && (UNITS_PER_MS..=UNITS_PER_MS << 13).contains(&units))
    }

    fn buckets(&self, shown: impl Fn(u64) -> bool) -> Buckets {
        let (mut cumulative, mut count) = (Vec::new(), 0);
        for bucket in 0..BOUNDED {
            count += self.counts[bucket];
            let units = bound_of(bucket);
            if shown(units) {
                cumulative.push((units as f64 / (UNITS_PER_MS * 1000) as f64, count));
            }
        }
        Buckets {
            cumulative,
            count: self.count(),
            sum: self.sum_ns as f64 / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_what_lies_between_two_bounds() {
        for bucket in 0..BOUNDED {
            let bound = bound_of(bucket);
            assert_eq!(bucket_of(bound), bucket, "{bound}");
            assert_eq!(bucket_of(bound + 1), bucket + 1, "{bound}");
        }
        assert_eq!(bound_of(BOUNDED - 1), 1 << 23);
        assert_eq!(bucket_of(u64::MAX), BOUNDED);
        assert_eq!(bucket_of(0), 0);
    }

    #[test]
    fn cores_add_up_under_fine_and_coarse_bounds() {
        let cores = [Latency::default(), Latency::default()];
        cores[0].observe(Duration::ZERO);
        cores[0].observe(Duration::from_micros(1000));
        cores[0].observe(Duration::from_nanos(1_000_001));
        cores[1].observe(Duration::from_millis(8192));
        cores[1].observe(Duration::from_secs(100));
        cores[1].observe(Duration::MAX);
        let mut sum = LatencySum::default();
        cores.iter().for_each(|core| sum.add(core));
        let coarse = sum.coarse();
        let bounds: Vec<f64> = coarse.cumulative.iter().map(|(bound, _)| *bound).collect();
        assert_eq!(bounds, super::super::exponential::<14>(0.001, 2.0));
        assert_eq!(coarse.cumulative[0].1, 2);
        assert_eq!(coarse.cumulative[1].1, 3);
        assert_eq!(coarse.cumulative[12].1, 3);
        assert_eq!(coarse.cumulative[13].1, 4);
        assert_eq!(coarse.count, 6);
        let fine = sum.fine();
        assert_eq!(fine.count, 6);
        assert!(fine.cumulative.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        let last = fine.cumulative.last().copied();
        assert_eq!(last, Some((16.384, 4)));
        let ratio = fine.cumulative.windows(2).skip(3).map(|pair| pair[1].0 / pair[0].0);
        assert!(
            ratio.clone().all(|ratio| ratio <= 1.2501),
            "{:?}",
            ratio.collect::<Vec<_>>()
        );
    }
}
