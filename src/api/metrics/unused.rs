//! Series of what a single member never does, or of what etcd has and ringd has not: there, and 0.

use crate::metrics::Kind::{self, Counter, Gauge, Histogram};
use crate::metrics::{Buckets, Text, exponential};

const NUMBERS: &[(&str, Kind, &str, f64)] = &[
    (
        "etcd_debugging_auth_revision",
        Gauge,
        "The revision of users and roles, which nothing changes yet.",
        1.0,
    ),
    (
        "etcd_debugging_store_expires_total",
        Counter,
        "Keys of the API before version 3 that expired.",
        0.0,
    ),
    (
        "etcd_debugging_store_watch_requests_total",
        Counter,
        "Watches by the API before version 3.",
        0.0,
    ),
    (
        "etcd_debugging_store_watchers",
        Gauge,
        "Watches open by the API before version 3.",
        0.0,
    ),
    (
        "etcd_disk_defrag_inflight",
        Gauge,
        "Whether a defragmentation is under way: never, they do not block.",
        0.0,
    ),
    (
        "etcd_grpc_proxy_cache_hits_total",
        Gauge,
        "Answers a proxy had kept.",
        0.0,
    ),
    ("etcd_grpc_proxy_cache_keys_total", Gauge, "Keys a proxy keeps.", 0.0),
    (
        "etcd_grpc_proxy_cache_misses_total",
        Gauge,
        "Answers a proxy had not kept.",
        0.0,
    ),
    (
        "etcd_grpc_proxy_events_coalescing_total",
        Counter,
        "Events a proxy joined.",
        0.0,
    ),
    (
        "etcd_grpc_proxy_watchers_coalescing_total",
        Gauge,
        "Watches a proxy joined.",
        0.0,
    ),
    (
        "etcd_server_slow_apply_total",
        Counter,
        "Entries that were slow to apply.",
        0.0,
    ),
    (
        "etcd_server_snapshot_apply_in_progress_total",
        Gauge,
        "Whether a snapshot is being installed.",
        0.0,
    ),
];

static DISK: [f64; 14] = exponential(0.001, 2.0);
static DEFRAGMENTATION: [f64; 13] = exponential(0.1, 2.0);
static SNAPSHOT: [f64; 17] = exponential(0.01, 2.0);
static RECEIVED: [f64; 10] = exponential(0.1, 2.0);
static PAUSE_MS: [f64; 13] = exponential(1.0, 2.0);
static INDEX_MS: [f64; 14] = exponential(0.5, 2.0);

/// Histograms, with etcd's bounds.
const HISTOGRAMS: &[(&str, &[f64], &str)] = &[
    (
        "etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
        &DISK,
        "Times of balancing bbolt's tree in a commit.",
    ),
    (
        "etcd_debugging_disk_backend_commit_spill_duration_seconds",
        &DISK,
        "Times of splitting bbolt's pages in a commit.",
    ),
    (
        "etcd_debugging_disk_backend_commit_write_duration_seconds",
        &DISK,
        "Times of bbolt's writes in a commit.",
    ),
    (
        "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
        &PAUSE_MS,
        "Times that pieces of a compaction held up writes.",
    ),
    (
        "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
        &INDEX_MS,
        "Times that compacting the index as a whole held up everything.",
    ),
    (
        "etcd_debugging_snap_save_marshalling_duration_seconds",
        &DISK,
        "Times of encoding the store before version 3.",
    ),
    (
        "etcd_debugging_snap_save_total_duration_seconds",
        &DISK,
        "Times of saving the store before version 3.",
    ),
    (
        "etcd_disk_backend_defrag_duration_seconds",
        &DEFRAGMENTATION,
        "Times of defragmentations.",
    ),
    (
        "etcd_disk_backend_snapshot_duration_seconds",
        &SNAPSHOT,
        "Times of sending snapshots.",
    ),
    (
        "etcd_disk_wal_write_duration_seconds",
        &DISK,
        "Times of writes to the log without making them durable, which is one operation here.",
    ),
    (
        "etcd_snap_db_fsync_duration_seconds",
        &DISK,
        "Times of syncing received snapshots.",
    ),
    (
        "etcd_snap_db_save_total_duration_seconds",
        &RECEIVED,
        "Times of saving received snapshots.",
    ),
    (
        "etcd_snap_fsync_duration_seconds",
        &DISK,
        "Times of syncing the store before version 3.",
    ),
];

/// All of them.
pub(super) fn put(text: &mut Text) {
    for (name, kind, help, value) in NUMBERS {
        text.single(name, *kind, help, *value);
    }
    for (name, bounds, help) in HISTOGRAMS {
        text.family(name, Histogram, help);
        text.histogram(&[], &Buckets::empty(bounds));
    }
}
