//! A whole member on a simulated disk and clock, for tests and soak runs only.
//!
//! Runs the shipped log, page store, raft loop and state on [`crate::io::faulty::FaultyDisk`]: mixed load, power cuts
//! that drop, tear and reorder what was not synced, ends of the process, slow disks, full disks and I/O errors, starts
//! that are interrupted. A naive [`model::Model`] of the requests acknowledged, and of those that may have been under
//! way, says after every start and in between what has to be there. Everything is decided by a seed: the same seed is
//! the same run, to the byte. A [`Canary`] breaks one promise, to show that the checks would notice.

mod client;
pub mod cluster;
pub mod driver;
mod leases;
pub mod load;
pub mod member;
pub mod model;
pub mod observe;
mod reads;
pub mod report;
pub mod run;
mod serve;
mod settle;
mod watchers;

pub use report::{Canary, Failure, Report};
pub use run::run;
