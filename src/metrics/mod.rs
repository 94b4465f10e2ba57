//! The metrics registry: what cores count, and Prometheus' text format.
//!
//! Promises: counting takes no lock and no atomic read-modify-write. A cell has one writing thread; anyone may read it,
//! and sees a recent value. What the log core counts it keeps for itself, in plain [`Histogram`]s and numbers that
//! travel in its answers; what serve cores count is in a [`Registry`] that all of them can read, so that any core
//! answers a scrape. Knows no series: names and meanings are `api`'s.

mod cell;
mod clients;
mod histogram;
mod latency;
mod process;
mod registry;
mod text;

pub use cell::Cell;
pub use clients::ClientVersions;
pub use histogram::{Buckets, Histogram, SharedHistogram, exponential};
pub use latency::{Latency, LatencySum};
pub use process::Process;
pub use registry::{CODES, CoreMetrics, MethodMetrics, Registry};
pub use text::{Kind, Text};
