//! How a run went, second by second.

use super::LATENCY_NS_MAX;
use super::process::{Processes, cpu_time, resident_bytes};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// One second of a run.
pub struct Second {
    /// Since the measured part began.
    pub at: Duration,
    pub calls: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// The server's, if its process is known.
    pub server_cpu: Option<Duration>,
    pub resident_bytes: Option<u64>,
}

impl Second {
    pub fn to_json(&self) -> Value {
        json!({
            "t": self.at.as_secs_f64(),
            "calls": self.calls,
            "p50_us": self.p50_ns as f64 / 1e3,
            "p99_us": self.p99_ns as f64 / 1e3,
            "max_us": self.max_ns as f64 / 1e3,
            "server_cpu": self.server_cpu.map(|cpu| cpu.as_secs_f64()),
            "rss_bytes": self.resident_bytes,
        })
    }
}

/// What latencies are counted in: from a nanosecond on, three digits.
pub fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).map_err(io::Error::other)
}

/// About sixty points of a distribution, ever denser towards its end: share of calls, and their latency in
/// microseconds.
pub fn distribution(latency_ns: &Histogram<u64>) -> Vec<(f64, f64)> {
    let at = |share: f64| (share, latency_ns.value_at_quantile(share) as f64 / 1e3);
    let mut points = vec![at(0.0)];
    let mut beyond: f64 = 1.0;
    while beyond > 1e-5 {
        points.extend((1..=12).map(|step| at(1.0 - beyond * 10f64.powf(-f64::from(step) / 12.0))));
        beyond /= 10.0;
    }
    points
}

/// Writes all latencies to a file: HdrHistogram's format, V2.
pub fn store(latency_ns: &Histogram<u64>, path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut serializer = V2Serializer::new();
    serializer
        .serialize(latency_ns, &mut file)
        .map(drop)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

pub struct Series {
    process: Option<Processes>,
    pub seconds: Vec<Second>,
    latency_ns: Histogram<u64>,
    began: Option<Instant>,
    ticked: Instant,
    server_cpu: Option<Duration>,
}

impl Series {
    pub fn new(process: Option<Processes>) -> io::Result<Self> {
        Ok(Self {
            process,
            seconds: Vec::new(),
            latency_ns: histogram()?,
            began: None,
            ticked: Instant::now(),
            server_cpu: None,
        })
    }

    /// The measured part begins.
    pub fn begin(&mut self, now: Instant) -> io::Result<()> {
        self.latency_ns.reset();
        self.server_cpu = self.process.map(cpu_time).transpose()?;
        (self.began, self.ticked) = (Some(now), now);
        Ok(())
    }

    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.latency_ns.saturating_record(latency_ns);
    }

    /// Ends a second if one has passed.
    #[inline]
    pub fn tick(&mut self, now: Instant) -> io::Result<()> {
        if now - self.ticked < Duration::from_secs(1) {
            return Ok(());
        }
        let Some(began) = self.began else { return Ok(()) };
        let cpu = self.process.map(cpu_time).transpose()?;
        self.seconds.push(Second {
            at: now - began,
            calls: self.latency_ns.len(),
            p50_ns: self.latency_ns.value_at_quantile(0.5),
            p99_ns: self.latency_ns.value_at_quantile(0.99),
            max_ns: self.latency_ns.max(),
            server_cpu: cpu.zip(self.server_cpu).map(|(to, from)| to.saturating_sub(from)),
            resident_bytes: self.process.map(resident_bytes).transpose()?.map(|(all, _)| all),
        });
        self.server_cpu = cpu;
        self.latency_ns.reset();
        self.ticked = now;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_reaches_from_the_least_to_the_rare() {
        let mut latencies = histogram().unwrap();
        for latency in 1..=100_000 {
            latencies.record(latency * 1000).unwrap();
        }
        let points = distribution(&latencies);
        assert_eq!(points.len(), 61);
        assert!(points.is_sorted());
        assert!(
            points[12].0 > 0.899 && (points[12].1 - 90_000.0).abs() < 100.0,
            "{points:?}"
        );
        assert!(points[60].0 > 0.99998);
    }

    #[test]
    fn seconds_are_counted_apart() {
        let mut series = Series::new(Some(std::process::id().into())).unwrap();
        let began = Instant::now();
        series.record(5);
        series.begin(began).unwrap();
        series.record(1000);
        series.tick(began + Duration::from_millis(900)).unwrap();
        assert!(series.seconds.is_empty());
        series.tick(began + Duration::from_millis(1000)).unwrap();
        series.record(7);
        series.record(8);
        series.tick(began + Duration::from_millis(2500)).unwrap();
        let calls: Vec<_> = series.seconds.iter().map(|second| second.calls).collect();
        assert_eq!(calls, [1, 2]);
        assert!(series.seconds[1].resident_bytes > Some(0));
        assert_eq!(series.seconds[1].at, Duration::from_millis(2500));
    }
}
