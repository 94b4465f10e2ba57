//! The revision of a record: which change of the store made it, and which key within that change.
//!
//! Keyed order is (main, sub). The byte form is etcd's key of the `key` bucket: eight bytes of `main`, `_`, eight bytes
//! of `sub`, all big endian, and a trailing `t` for a tombstone.

/// Length of a revision's byte form without the tombstone mark.
pub const REVISION_BYTES: usize = 17;

/// A position in the history of the store. Ordered by `main`, then `sub`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The store revision: one per transaction that changed something. The first write of a store is 2.
    pub main: i64,
    /// The ordinal of the key within the transaction, from 0.
    pub sub: u32,
}

impl Revision {
    /// The revision before every record.
    pub const ZERO: Revision = Revision { main: 0, sub: 0 };

    /// A revision from its parts.
    pub const fn new(main: i64, sub: u32) -> Revision {
        Revision { main, sub }
    }

    /// etcd's byte form (`server/storage/mvcc/revision.go`): 17 bytes, or 18 for a tombstone.
    pub fn to_bytes(self, tombstone: bool) -> ([u8; REVISION_BYTES + 1], usize) {
        let mut bytes = [0u8; REVISION_BYTES + 1];
        bytes[..8].copy_from_slice(&self.main.to_be_bytes());
        bytes[8] = b'_';
        bytes[9..17].copy_from_slice(&u64::from(self.sub).to_be_bytes());
        bytes[17] = b't';
        (bytes, if tombstone { REVISION_BYTES + 1 } else { REVISION_BYTES })
    }

    /// Reads the byte form; the flag says whether it is a tombstone's. `None` when the bytes are not a revision.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Revision, bool)> {
        let tombstone = match bytes.len() {
            REVISION_BYTES => false,
            18 if bytes[17] == b't' => true,
            _ => return None,
        };
        if bytes[8] != b'_' {
            return None;
        }
        let main = i64::from_be_bytes(bytes[..8].try_into().ok()?);
        let sub = u64::from_be_bytes(bytes[9..17].try_into().ok()?);
        Some((
            Revision {
                main,
                sub: u32::try_from(sub).ok()?,
            },
            tombstone,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_form_is_etcds() {
        let (bytes, length) = Revision::new(2, 1).to_bytes(true);
        assert_eq!(&bytes[..length], b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\x01t");
        assert_eq!(
            Revision::from_bytes(&bytes[..length]),
            Some((Revision::new(2, 1), true))
        );
        assert_eq!(Revision::from_bytes(&bytes[..17]), Some((Revision::new(2, 1), false)));
        assert_eq!(Revision::from_bytes(&bytes[..16]), None);
    }
}
