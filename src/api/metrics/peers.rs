//! Series about other members: what their connections carry, and whether they live. There are none of a sole member.

use crate::metrics::Kind::{self, Counter, Gauge, Histogram};
use crate::metrics::{Cell, SharedHistogram, Text};
use crate::raft::transport::counters::{Counters, PeerCounters, SnapshotCounters};

/// A number of one peer.
type Number = fn(&PeerCounters) -> &Cell;

/// Of snapshots: name, kind, help and the number.
type SnapshotNumber = (&'static str, Kind, &'static str, fn(&SnapshotCounters) -> &Cell);

/// By whose id the peer is told.
const TO: &str = "To";
const FROM: &str = "From";

const COUNTERS: [(&str, &str, Number, &str); 4] = [
    (
        "etcd_network_peer_sent_bytes_total",
        TO,
        |peer| &peer.sent_bytes,
        "Bytes sent to a member.",
    ),
    (
        "etcd_network_peer_received_bytes_total",
        FROM,
        |peer| &peer.received_bytes,
        "Bytes received from a member.",
    ),
    (
        "etcd_network_peer_sent_failures_total",
        TO,
        |peer| &peer.sent_failures,
        "Messages to a member that got lost here.",
    ),
    (
        "etcd_network_peer_received_failures_total",
        FROM,
        |peer| &peer.received_failures,
        "Messages of a member that were refused, or for which there was no room.",
    ),
];

/// Names, help and counters of snapshots in one direction.
struct Direction {
    label: &'static str,
    of: fn(&PeerCounters) -> &SnapshotCounters,
    succeeded: &'static str,
    failed: &'static str,
    in_flight: &'static str,
    times: &'static str,
}

const DIRECTIONS: [Direction; 2] = [
    Direction {
        label: TO,
        of: |peer| &peer.snapshots_sent,
        succeeded: "etcd_network_snapshot_send_success",
        failed: "etcd_network_snapshot_send_failures",
        in_flight: "etcd_network_snapshot_send_inflights_total",
        times: "etcd_network_snapshot_send_total_duration_seconds",
    },
    Direction {
        label: FROM,
        of: |peer| &peer.snapshots_received,
        succeeded: "etcd_network_snapshot_receive_success",
        failed: "etcd_network_snapshot_receive_failures",
        in_flight: "etcd_network_snapshot_receive_inflights_total",
        times: "etcd_network_snapshot_receive_total_duration_seconds",
    },
];

/// All of them. `local` is this member's id.
pub(super) fn put(text: &mut Text, local: u64, counters: &Counters) {
    let local = format!("{local:x}");
    let peers: Vec<_> = counters.iter().map(|(id, peer)| (format!("{id:x}"), peer)).collect();
    text.family("etcd_network_active_peers", Gauge, "1 for a member that is active.");
    for (id, peer) in &peers {
        text.series(&[("Local", &local), ("Remote", id)], peer.active.get() as f64);
    }
    let help = "Times that a member became inactive.";
    text.family("etcd_network_disconnected_peers_total", Counter, help);
    for (id, peer) in &peers {
        text.series(&[("Local", &local), ("Remote", id)], peer.disconnected.get() as f64);
    }
    for (name, label, number, help) in COUNTERS {
        text.family(name, Counter, help);
        for (id, peer) in &peers {
            text.series(&[(label, id)], number(peer).get() as f64);
        }
    }
    let help = "Times that members take to answer.";
    text.family("etcd_network_peer_round_trip_time_seconds", Histogram, help);
    for (id, peer) in &peers {
        put_times(text, &[(TO, id)], &peer.round_trips);
    }
    for direction in &DIRECTIONS {
        put_snapshots(text, direction, &peers);
    }
}

/// Series of peers between which there were no snapshots are left out, as etcd's are.
fn put_snapshots(text: &mut Text, direction: &Direction, peers: &[(String, &PeerCounters)]) {
    let Direction { label, of, .. } = direction;
    let had_any = |counters: &SnapshotCounters| {
        [&counters.succeeded, &counters.failed, &counters.in_flight]
            .iter()
            .any(|cell| cell.get() > 0)
    };
    let with_any = || {
        let all = peers.iter().map(|(id, peer)| (id, of(peer)));
        all.filter(|(_, counters)| had_any(counters))
    };
    let numbers: [SnapshotNumber; 3] = [
        (
            direction.succeeded,
            Counter,
            "Snapshots that came through.",
            |counters| &counters.succeeded,
        ),
        (direction.failed, Counter, "Snapshots that did not.", |counters| {
            &counters.failed
        }),
        (direction.in_flight, Gauge, "Snapshots under way.", |counters| {
            &counters.in_flight
        }),
    ];
    for (name, kind, help, number) in numbers {
        text.family(name, kind, help);
        for (id, counters) in with_any() {
            text.series(&[(*label, id)], number(counters).get() as f64);
        }
    }
    text.family(direction.times, Histogram, "Times that snapshots take.");
    for (id, counters) in with_any() {
        put_times(text, &[(*label, id)], &counters.times);
    }
}

fn put_times(text: &mut Text, labels: &[(&str, &str)], times: &SharedHistogram) {
    if let Some(buckets) = SharedHistogram::sum(std::iter::once(times)) {
        text.histogram(labels, &buckets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn page(counters: &Counters) -> String {
        let mut text = Text::default();
        put(&mut text, 0xa, counters);
        text.finish()
    }

    #[test]
    fn a_sole_member_has_none() {
        assert_eq!(page(&Counters::default()), "");
    }

    #[test]
    fn every_peer_has_its_own() {
        let counters = Counters::default();
        counters.of(0xb).sent_bytes.add(7);
        counters.of(0xb).active.set(1);
        counters.of(0xc).received_failures.add(2);
        counters.of(0xc).snapshots_sent.failed.add(1);
        counters.of(0xc).round_trips.observe(Duration::from_millis(1), 1);
        let page = page(&counters);
        for line in [
            "etcd_network_active_peers{Local=\"a\",Remote=\"b\"} 1",
            "etcd_network_active_peers{Local=\"a\",Remote=\"c\"} 0",
            "etcd_network_disconnected_peers_total{Local=\"a\",Remote=\"b\"} 0",
            "etcd_network_peer_sent_bytes_total{To=\"b\"} 7",
            "etcd_network_peer_received_bytes_total{From=\"b\"} 0",
            "etcd_network_peer_sent_failures_total{To=\"c\"} 0",
            "etcd_network_peer_received_failures_total{From=\"c\"} 2",
            "etcd_network_peer_round_trip_time_seconds_count{To=\"c\"} 1",
            "etcd_network_peer_round_trip_time_seconds_bucket{To=\"c\",le=\"0.0001\"} 0",
            "etcd_network_snapshot_send_failures{To=\"c\"} 1",
            "etcd_network_snapshot_send_total_duration_seconds_count{To=\"c\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        assert!(
            !page.contains("snapshot_receive") && !page.contains("snapshot_send_success{To=\"b\""),
            "{page}"
        );
    }
}
