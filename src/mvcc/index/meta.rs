//! What the index says of a version of a key.

use crate::mvcc::revision::Revision;

/// The main revision above every other: asks for the newest state that the root knows.
pub const NEWEST: i64 = i64::MAX;

/// What the index knows of one version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMeta {
    /// Where the record is.
    pub revision: Revision,
    /// Main revision of the first version of the key's generation.
    pub create_revision: i64,
    /// 1 for the first version of a generation.
    pub version: i64,
    /// The lease that this version was written with; 0 for none.
    pub lease: i64,
}

/// What a put did. The key's lease changed if `previous` had another one than `current`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The version before, if the key existed.
    pub previous: Option<KeyMeta>,
    /// The version written.
    pub current: KeyMeta,
}
