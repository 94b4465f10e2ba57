//! Cores, roles, pinning, mailboxes, timers, the blocking pool, shutdown; the real implementations of `io`.
//!
//! The log core runs a plain loop over [`log::LogReactor`]; each serve core runs an executor behind [`serve`], the one
//! place that names glommio. Threads meet in [`mailbox`]es only.

mod doorbell;
mod eventfd;
mod ring;
mod spsc;

pub mod accept;
pub mod allocator;
pub mod cgroup;
pub mod disk;
pub mod log;
pub mod mailbox;
pub mod roles;
pub mod serve;
pub mod signals;
pub mod socket;
pub mod stall;
pub mod start;

pub use doorbell::Doorbell;
pub use socket::ListenSocket;
