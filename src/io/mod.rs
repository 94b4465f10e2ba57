//! The seam between ringd's state machines and the machine: disk, clock and network as small traits.
//!
//! `wal` and `pages` are driven through [`disk::Disk`]: an operation is submitted with a token, a completion with the
//! same token comes back later. Nothing here blocks unless its name says so, nothing here knows what is stored. The
//! real implementations live in `reactor`; `memory` and `faulty` serve tests and the simulator.

pub mod buffer;
pub mod disk;
pub mod faulty;
pub mod medium;
pub mod memory;
pub mod volume;
