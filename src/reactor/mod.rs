//! Cores, roles, pinning, mailboxes, timers, the blocking pool, shutdown; the real implementations of `io`.
//!
//! The log core runs a plain loop over [`log::LogReactor`]; each serve core runs an executor behind [`serve`], the one
//! place that names glommio. Threads meet in [`mailbox`]es only.

mod doorbell;
mod eventfd;
mod ring;
mod spsc;

pub mod disk;
pub mod log;
pub mod mailbox;
pub mod stall;

pub use doorbell::Doorbell;
