//! Watches, and the bytes of all messages.

use super::{OfCore, put_times};
use crate::metrics::Kind::{Counter, Gauge};
use crate::metrics::{Registry, Text};

/// All series about watches.
pub(super) fn put(text: &mut Text, registry: &Registry) {
    let numbers = [
        (
            "etcd_debugging_mvcc_watch_stream_total",
            Gauge,
            "Watch streams open.",
            registry.sum(|core| &core.watch_streams),
        ),
        (
            "etcd_debugging_mvcc_watcher_total",
            Gauge,
            "Watches there are.",
            registry.sum(|core| &core.watches),
        ),
        (
            "etcd_debugging_mvcc_slow_watcher_total",
            Gauge,
            "Watches that lag behind.",
            registry.sum(|core| &core.slow_watches),
        ),
        (
            "etcd_debugging_mvcc_events_total",
            Counter,
            "Events sent, counted per watch.",
            registry.sum(|core| &core.events),
        ),
        (
            "etcd_debugging_mvcc_pending_events_total",
            Gauge,
            "Events found for watches and not sent yet; those that slow watches have not come to are not among them.",
            registry.sum(|core| &core.pending_events),
        ),
        (
            "etcd_network_client_grpc_received_bytes_total",
            Counter,
            "Bytes of gRPC messages received.",
            registry.sum(|core| &core.received_bytes),
        ),
        (
            "etcd_network_client_grpc_sent_bytes_total",
            Counter,
            "Bytes of gRPC messages sent.",
            registry.sum(|core| &core.sent_bytes),
        ),
    ];
    for (name, kind, help, value) in numbers {
        text.single(name, kind, help, value as f64);
    }
    put_sends(text, registry);
}

fn put_sends(text: &mut Text, registry: &Registry) {
    let families: [(&str, &str, OfCore); 4] = [
        (
            "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
            "Times of answers to requests about watches, and of cancellations.",
            |core| &core.watch_sends.control,
        ),
        (
            "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
            "Times of progress notifications.",
            |core| &core.watch_sends.progress,
        ),
        (
            "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
            "Times of messages with events, divided by their events.",
            |core| &core.watch_sends.per_event,
        ),
        (
            "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
            "Times of messages with events.",
            |core| &core.watch_sends.events,
        ),
    ];
    for (name, help, of) in families {
        put_times(text, registry, name, help, of);
    }
}
