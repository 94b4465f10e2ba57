//! Requests by the API version that their client says it speaks.

use super::cell::Cell;
use crate::limits::METRICS_CLIENT_VERSIONS;
use std::sync::OnceLock;

/// The version of a client that says none, and of those for which there is no room.
pub const UNKNOWN: &str = "unknown";
/// A longer version is [`UNKNOWN`].
const VERSION_BYTES: usize = 32;

/// Requests of one core. A version is whatever a client says, so there is room for a few only.
#[derive(Debug, Default)]
pub struct ClientVersions {
    unknown: [Cell; 2],
    known: [OnceLock<Version>; METRICS_CLIENT_VERSIONS],
}

#[derive(Debug)]
struct Version {
    name: Box<str>,
    requests: [Cell; 2],
}

impl ClientVersions {
    /// Counts a request of a client that says it speaks `version`.
    pub fn count(&self, version: Option<&[u8]>, is_stream: bool) {
        let requests = version.and_then(|version| self.find(version)).unwrap_or(&self.unknown);
        requests[usize::from(is_stream)].add(1);
    }

    fn find(&self, version: &[u8]) -> Option<&[Cell; 2]> {
        if version.len() > VERSION_BYTES || version == UNKNOWN.as_bytes() {
            return None;
        }
        for slot in &self.known {
            let known = match slot.get() {
                Some(known) => known,
                None => {
                    let name = std::str::from_utf8(version).ok()?.into();
                    let requests = Default::default();
                    slot.get_or_init(|| Version { name, requests })
                }
            };
            if known.name.as_bytes() == version {
                return Some(&known.requests);
            }
        }
        None
    }

    /// Every version with its requests that were not streams, and those that were.
    pub fn iter(&self) -> impl Iterator<Item = (&str, [u64; 2])> {
        let known = self.known.iter().map_while(OnceLock::get);
        let known = known.map(|version| (&*version.name, &version.requests));
        let all = std::iter::once((UNKNOWN, &self.unknown)).chain(known);
        all.map(|(name, requests)| (name, [requests[0].get(), requests[1].get()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_few_versions() {
        let clients = ClientVersions::default();
        clients.count(Some(b"3.5"), false);
        clients.count(Some(b"3.5"), true);
        clients.count(Some(b"3.5"), true);
        clients.count(Some(b"3.7"), false);
        for version in [None, Some(&b"unknown"[..]), Some(b"\xff"), Some(&[b'3'; 33])] {
            clients.count(version, false);
        }
        let found: Vec<_> = clients.iter().collect();
        assert_eq!(found, [("unknown", [4, 0]), ("3.5", [1, 2]), ("3.7", [1, 0])]);
        for number in 0..100 {
            clients.count(Some(format!("4.{number}").as_bytes()), false);
        }
        let found: Vec<_> = clients.iter().collect();
        assert_eq!(found.len(), 1 + METRICS_CLIENT_VERSIONS);
        assert_eq!(found.iter().map(|(_, [unary, _])| unary).sum::<u64>(), 1 + 1 + 4 + 100);
    }
}
