//! etcd's backend: what its database file holds (`etcd-surface` 5.4), made from our store and taken over into it.
//!
//! [`names`] are the buckets and keys, [`Row`] one pair with its meaning, [`Export`] turns a root of the page store
//! into such a file, and [`Import`] such a file into a page store. The file's format is the `bbolt` room's.
//!
//! The small trees of the page store hold etcd's own keys and values, so they pass through byte for byte. What the
//! page store's commit says beside them (applied index, term, membership) and what etcd spreads over its buckets
//! `auth`, `cluster` and `meta` is put in the other's place here.

mod export;
pub mod fuzz;
mod import;
pub mod names;
mod row;
#[cfg(test)]
mod tests;

pub use export::{Export, ExportError, Exported};
pub use import::{Import, ImportError, ImportProgress, Imported};
pub use row::{ConfState, Row};
