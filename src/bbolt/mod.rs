//! bbolt files: the format of etcd's database, and so of snapshots, backups and what followers are sent.
//!
//! A file is written from front to back in two passes with a few pages in memory ([`Measure`], [`Writer`]), and read
//! in key order, as carefully as bytes from elsewhere want it. What the buckets mean is not known here. The format
//! and what is written of it are described in `docs/bbolt.md`.

mod cursor;
mod error;
mod format;
pub mod fuzz;
mod reader;
mod source;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
mod writer;

pub use cursor::{Content, Cursor, Element};
pub use error::ReadError;
pub use reader::{Bucket, File};
pub use source::{DiskFile, OnDisk, Source};
pub use writer::{Measure, Plan, WriteError, Writer};
