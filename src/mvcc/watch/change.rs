//! A record of the window or of the page store, as a batch looks at it.

use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;

/// Where the previous record of an event is.
#[derive(Clone, Copy)]
pub(super) enum Previous {
    At(Revision),
    /// The index knows.
    Searched,
}

/// A record at which a batch looks.
pub(super) struct Change<'a> {
    pub revision: Revision,
    pub tombstone: bool,
    pub key: &'a [u8],
    pub previous: Previous,
    pub body: Body<'a>,
}

pub(super) enum Body<'a> {
    /// The event's KeyValue.
    Encoded(&'a [u8]),
    Fields(KeyValueView<'a>),
}

impl Change<'_> {
    /// Whether it is the first version of its key, which has no previous one.
    pub fn is_creation(&self) -> bool {
        let created = match &self.body {
            Body::Encoded(bytes) => KeyValueView::decode(bytes).map_or(0, |fields| fields.create_revision),
            Body::Fields(fields) => fields.create_revision,
        };
        !self.tombstone && created == self.revision.main
    }
}
