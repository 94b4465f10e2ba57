//! The lock-free parts of ringd under loom's model checker: `scripts/loom`.
//!
//! A crate of its own, made of the server's files, because under `--cfg loom` everything that it depends on is compiled
//! anew: this needs loom alone. Without that flag, and but for its tests, it is empty.

#![cfg(all(loom, test))]
// The tree uses what the models do not.
#![allow(dead_code)]

#[path = "../../src/mvcc/revision.rs"]
pub mod revision;

mod mvcc {
    pub use crate::revision;
}

#[path = "../../src/mvcc/index/append.rs"]
mod append;
#[path = "../../src/mvcc/index/cell.rs"]
mod cell;
#[path = "../../src/mvcc/index/entry.rs"]
mod entry;
#[path = "../../src/mvcc/index/list.rs"]
mod list;
#[path = "../../src/mvcc/index/meta.rs"]
mod meta;
#[path = "../../src/mvcc/index/models.rs"]
mod models;
#[path = "../../src/mvcc/index/sync.rs"]
mod sync;

use meta::{KeyMeta, NEWEST};
