//! What a run is told to break, and what it says in the end.

/// A promise broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// None: the run has to succeed.
    None,
    /// The disk says that it has synced and has not.
    SyncsLie,
    /// Requests are acknowledged when they are proposed.
    AnswerBeforePersist,
    /// The barrier between the pages and the meta page of a checkpoint does nothing.
    MetaBeforeData,
    /// A watch misses an event.
    DroppedEvent,
    /// A watch gets an event twice.
    RepeatedEvent,
    /// Progress is told ahead of the events.
    EarlyProgress,
    /// A lease is revoked before its time.
    EarlyExpiry,
    /// A lease that is due stays.
    LateExpiry,
    /// The quota is not looked at.
    QuotaIgnored,
    /// An answer on its way holds nothing back that it will read.
    DroppedHold,
    /// A read in slices is not registered.
    UnregisteredRead,
    /// A start loses a record.
    DroppedRecord,
    /// A read sees the state before the last write.
    StaleRead,
}

/// A run that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was wrong, and when.
    pub reason: String,
}

/// What a run that went well has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Starts that succeeded.
    pub starts: u64,
    /// Starts that were interrupted.
    pub interrupted_starts: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Lives ended by an I/O error.
    pub disk_errors: u64,
    /// NOSPACE alarms that the quota raised.
    pub alarms: u64,
    /// Leases renewed.
    pub renewed: u64,
    /// Leases that ended by themselves.
    pub expired: u64,
    /// Ranges of answers run after the answer.
    pub late_ranges: u64,
    /// Messages that watches got.
    pub messages: u64,
    /// Watches that a compaction ended.
    pub compacted_watches: u64,
    /// Progress requests answered.
    pub progresses: u64,
    /// Requests refused for lack of room.
    pub refused: u64,
    /// Requests acknowledged.
    pub acknowledged: u64,
    /// Checkpoints that the lives ended with.
    pub checkpoints: u64,
    /// Checksum over everything that was observed: equal for equal runs.
    pub digest: u32,
}
