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
    /// A watcher misses an event.
    DroppedEvent,
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
    /// Requests refused for lack of room.
    pub refused: u64,
    /// Requests acknowledged.
    pub acknowledged: u64,
    /// Checkpoints that the lives ended with.
    pub checkpoints: u64,
    /// Checksum over everything that was observed: equal for equal runs.
    pub digest: u32,
}
