//! Whole clusters, simulated: the shipped log cores of three or five members, each on a disk and a clock of its own,
//! and a network between them.
//!
//! A seed decides everything: what clients ask of whom, how messages are delayed, lost, repeated and overtaken, who is
//! cut off from whom and in which direction, which member stands still, loses power or is killed with what it had not
//! synced, whose disk is slow, whose clock drifts or jumps, who is to lead, who joins and who leaves. Then all of that
//! ends, and the cluster has to be whole again.
//!
//! Judged are: every applied entry against the one that any member applied at its index (`ledger`), every answer
//! against the naive model, the histories of all clients by a search for an order (`linear`), watches on every member,
//! the time that leases live (`leases`), one leader for a term at most; and in the end that all members hold the same.
//! What is broken on purpose by a [`Canary`] has to be noticed.

mod admin;
mod clients;
mod clock;
mod finish;
mod leases;
mod ledger;
mod linear;
mod member;
mod nemesis;
mod network;
mod snapshots;
mod world;

pub use super::report::Failure;
use world::World;
pub use world::run;

/// A promise broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// None: the run has to succeed.
    None,
    /// Messages leave before what they promise is persisted.
    SendBeforePersist,
    /// Disks say that they have synced and have not.
    SyncsLie,
    /// A linearizable read is answered without asking anybody.
    StaleRead,
    /// A watch misses an event.
    DroppedEvent,
    /// Writes are acknowledged before they are committed.
    AnswerBeforeCommit,
    /// Who led revokes leases without asking whether it still does.
    UnconfirmedExpiry,
    /// One byte of one value is another one in a snapshot that arrives.
    AlteredSnapshot,
}

/// What a run that went well has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Members it began with.
    pub founders: u64,
    /// Entries applied.
    pub entries: u64,
    /// Writes answered.
    pub acknowledged: u64,
    /// Requests that members gave up.
    pub dropped: u64,
    /// Requests that clients gave up.
    pub unknown: u64,
    /// Linearizable reads answered.
    pub reads: u64,
    /// Serializable reads.
    pub local_reads: u64,
    /// Power cuts and kills.
    pub crashes: u64,
    /// Starts of members.
    pub starts: u64,
    /// Members that stood still.
    pub pauses: u64,
    /// Times that the network was cut.
    pub cuts: u64,
    /// Clocks that jumped.
    pub jumps: u64,
    /// Terms that had a leader.
    pub leaders: u64,
    /// Leaderships moved when told.
    pub transfers: u64,
    /// Members that joined, became voters and left.
    pub joined: u64,
    /// Learners promoted.
    pub promoted: u64,
    /// Members that left.
    pub removed: u64,
    /// Leases renewed.
    pub renewed: u64,
    /// Leases ended by members.
    pub expired: u64,
    /// Messages that watches got.
    pub watch_messages: u64,
    /// Messages between members that arrived.
    pub messages: u64,
    /// Messages between members that were lost.
    pub lost: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Snapshots that members began to send.
    pub snapshots: u64,
    /// Those that broke off on the way.
    pub broken_snapshots: u64,
    /// Those that came once more.
    pub repeated_snapshots: u64,
    /// Those that said nothing new to who got them.
    pub known_snapshots: u64,
    /// Those that took the place of a member's state.
    pub installed: u64,
    /// Starts that came to nothing.
    pub interrupted_starts: u64,
    /// Lives ended by errors of disks.
    pub disk_errors: u64,
    /// Disks that got full.
    pub full_disks: u64,
    /// Requests refused for want of room.
    pub refused: u64,
    /// Checksum over what was observed: equal for equal runs.
    pub digest: u32,
}
