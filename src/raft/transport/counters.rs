//! What is counted of peers, written on the transport's core and readable on every other.

use crate::limits::transport::COUNTED_PEERS_MAX;
use crate::metrics::{Cell, SharedHistogram, exponential};
use std::sync::OnceLock;

/// etcd's bounds for round trips: 100 µs to 3.3 s.
static ROUND_TRIP_BOUNDS: [f64; 16] = exponential(0.0001, 2.0);
/// etcd's bounds for snapshots: 100 ms to 51 s.
static SNAPSHOT_BOUNDS: [f64; 10] = exponential(0.1, 2.0);

/// Of snapshots in one direction.
#[derive(Debug)]
pub struct SnapshotCounters {
    /// Those that went well.
    pub succeeded: Cell,
    /// Those that did not.
    pub failed: Cell,
    /// Those under way.
    pub in_flight: Cell,
    /// How long those took that went well.
    pub times: SharedHistogram,
}

impl Default for SnapshotCounters {
    fn default() -> SnapshotCounters {
        SnapshotCounters {
            succeeded: Cell::default(),
            failed: Cell::default(),
            in_flight: Cell::default(),
            times: SharedHistogram::new(&SNAPSHOT_BOUNDS),
        }
    }
}

impl SnapshotCounters {
    /// One is under way until what is returned is dropped, however that comes.
    pub fn begin(&self) -> UnderWay<'_> {
        self.in_flight.add(1);
        UnderWay(&self.in_flight)
    }
}

/// A snapshot under way.
pub struct UnderWay<'a>(&'a Cell);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.subtract(1);
    }
}

/// Of one peer.
#[derive(Debug)]
pub struct PeerCounters {
    /// Bytes sent to it.
    pub sent_bytes: Cell,
    /// Bytes received from it.
    pub received_bytes: Cell,
    /// Messages to it that were dropped.
    pub sent_failures: Cell,
    /// Messages from it that were refused or dropped.
    pub received_failures: Cell,
    /// 1 while it is active.
    pub active: Cell,
    /// Times that it became inactive.
    pub disconnected: Cell,
    /// Times of its answers to probes.
    pub round_trips: SharedHistogram,
    /// Snapshots sent to it.
    pub snapshots_sent: SnapshotCounters,
    /// Snapshots received from it.
    pub snapshots_received: SnapshotCounters,
}

impl Default for PeerCounters {
    fn default() -> PeerCounters {
        PeerCounters {
            sent_bytes: Cell::default(),
            received_bytes: Cell::default(),
            sent_failures: Cell::default(),
            received_failures: Cell::default(),
            active: Cell::default(),
            disconnected: Cell::default(),
            round_trips: SharedHistogram::new(&ROUND_TRIP_BOUNDS),
            snapshots_sent: SnapshotCounters::default(),
            snapshots_received: SnapshotCounters::default(),
        }
    }
}

/// Of all peers there have been.
#[derive(Debug)]
pub struct Counters {
    peers: [OnceLock<(u64, PeerCounters)>; COUNTED_PEERS_MAX],
    /// Of those there is no room for.
    others: PeerCounters,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            peers: [const { OnceLock::new() }; COUNTED_PEERS_MAX],
            others: PeerCounters::default(),
        }
    }
}

impl Counters {
    /// Those of a peer, which are there from now on.
    pub fn of(&self, id: u64) -> &PeerCounters {
        let mut slots = self.peers.iter();
        let found = slots.find_map(|slot| {
            let (owner, counters) = slot.get_or_init(|| (id, PeerCounters::default()));
            (*owner == id).then_some(counters)
        });
        found.unwrap_or(&self.others)
    }

    /// Every peer there has been, with its counters.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &PeerCounters)> {
        self.peers
            .iter()
            .map_while(OnceLock::get)
            .map(|(id, counters)| (*id, counters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_own_until_there_is_no_room() {
        let counters = Counters::default();
        for id in 1..=COUNTED_PEERS_MAX as u64 + 5 {
            counters.of(id).sent_bytes.add(id);
            counters.of(id).sent_bytes.add(id);
        }
        assert_eq!(counters.iter().count(), COUNTED_PEERS_MAX);
        assert!(counters.iter().all(|(id, peer)| peer.sent_bytes.get() == 2 * id));
        assert!(counters.others.sent_bytes.get() > 0);
    }
}
