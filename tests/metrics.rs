//! `/metrics`: which families are there, and what they count after a known load, watches above all; where etcd is
//! there to compare with (feature `blackbox`), number for number against it.

mod support;

use ringd::proto::etcdserverpb as pb;
use ringd::proto::etcdserverpb::request_op::Request;
use std::time::{Duration, Instant};
use support::etcd;
use support::grpc::{Channel, Stream};
use support::server::{Program, Server};

/// The families of etcd 3.7.1, with their kinds. What is missing on purpose: those of Go's runtime,
/// `etcd_server_go_version`, and `etcd_server_apply_duration_seconds` (an entry takes about a microsecond, and reading
/// the clock would be a part of that).
const FAMILIES: &[(&str, &str)] = &[
    ("etcd_cluster_version", "gauge"),
    ("etcd_debugging_auth_revision", "gauge"),
    (
        "etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
        "histogram",
    ),
    ("etcd_debugging_disk_backend_commit_spill_duration_seconds", "histogram"),
    ("etcd_debugging_disk_backend_commit_write_duration_seconds", "histogram"),
    ("etcd_debugging_lease_granted_total", "counter"),
    ("etcd_debugging_lease_renewed_total", "counter"),
    ("etcd_debugging_lease_revoked_total", "counter"),
    ("etcd_debugging_lease_ttl_total", "histogram"),
    ("etcd_debugging_mvcc_compact_revision", "gauge"),
    ("etcd_debugging_mvcc_current_revision", "gauge"),
    ("etcd_debugging_mvcc_db_compaction_keys_total", "counter"),
    ("etcd_debugging_mvcc_db_compaction_last", "gauge"),
    (
        "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
        "histogram",
    ),
    (
        "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
        "histogram",
    ),
    ("etcd_debugging_mvcc_events_total", "counter"),
    (
        "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
        "histogram",
    ),
    ("etcd_debugging_mvcc_keys_total", "gauge"),
    ("etcd_debugging_mvcc_pending_events_total", "gauge"),
    ("etcd_debugging_mvcc_slow_watcher_total", "gauge"),
    ("etcd_debugging_mvcc_total_put_size_in_bytes", "gauge"),
    ("etcd_debugging_mvcc_watch_stream_total", "gauge"),
    ("etcd_debugging_mvcc_watcher_total", "gauge"),
    ("etcd_debugging_server_lease_expired_total", "counter"),
    (
        "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
        "histogram",
    ),
    (
        "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
        "histogram",
    ),
    (
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
        "histogram",
    ),
    (
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
        "histogram",
    ),
    ("etcd_debugging_snap_save_marshalling_duration_seconds", "histogram"),
    ("etcd_debugging_snap_save_total_duration_seconds", "histogram"),
    ("etcd_debugging_store_expires_total", "counter"),
    ("etcd_debugging_store_watch_requests_total", "counter"),
    ("etcd_debugging_store_watchers", "gauge"),
    ("etcd_disk_backend_commit_duration_seconds", "histogram"),
    ("etcd_disk_backend_defrag_duration_seconds", "histogram"),
    ("etcd_disk_backend_snapshot_duration_seconds", "histogram"),
    ("etcd_disk_defrag_inflight", "gauge"),
    ("etcd_disk_wal_fsync_duration_seconds", "histogram"),
    ("etcd_disk_wal_write_bytes_total", "gauge"),
    ("etcd_disk_wal_write_duration_seconds", "histogram"),
    ("etcd_grpc_proxy_cache_hits_total", "gauge"),
    ("etcd_grpc_proxy_cache_keys_total", "gauge"),
    ("etcd_grpc_proxy_cache_misses_total", "gauge"),
    ("etcd_grpc_proxy_events_coalescing_total", "counter"),
    ("etcd_grpc_proxy_watchers_coalescing_total", "gauge"),
    ("etcd_mvcc_db_open_read_transactions", "gauge"),
    ("etcd_mvcc_db_total_size_in_bytes", "gauge"),
    ("etcd_mvcc_db_total_size_in_use_in_bytes", "gauge"),
    ("etcd_mvcc_delete_total", "counter"),
    ("etcd_mvcc_hash_duration_seconds", "histogram"),
    ("etcd_mvcc_hash_rev_duration_seconds", "histogram"),
    ("etcd_mvcc_put_total", "counter"),
    ("etcd_mvcc_range_total", "counter"),
    ("etcd_mvcc_txn_total", "counter"),
    ("etcd_network_client_grpc_received_bytes_total", "counter"),
    ("etcd_network_client_grpc_sent_bytes_total", "counter"),
    ("etcd_network_known_peers", "gauge"),
    ("etcd_server_client_requests_total", "counter"),
    ("etcd_server_feature_enabled", "gauge"),
    ("etcd_server_has_leader", "gauge"),
    ("etcd_server_health_failures", "counter"),
    ("etcd_server_health_success", "counter"),
    ("etcd_server_heartbeat_send_failures_total", "counter"),
    ("etcd_server_id", "gauge"),
    ("etcd_server_is_leader", "gauge"),
    ("etcd_server_is_learner", "gauge"),
    ("etcd_server_leader_changes_seen_total", "counter"),
    ("etcd_server_learner_promote_successes", "counter"),
    ("etcd_server_proposals_applied_total", "gauge"),
    ("etcd_server_proposals_committed_total", "gauge"),
    ("etcd_server_proposals_failed_total", "counter"),
    ("etcd_server_proposals_pending", "gauge"),
    ("etcd_server_quota_backend_bytes", "gauge"),
    ("etcd_server_range_duration_seconds", "histogram"),
    ("etcd_server_read_indexes_failed_total", "counter"),
    ("etcd_server_request_duration_seconds", "histogram"),
    ("etcd_server_slow_apply_total", "counter"),
    ("etcd_server_slow_read_indexes_total", "counter"),
    ("etcd_server_snapshot_apply_in_progress_total", "gauge"),
    ("etcd_server_version", "gauge"),
    ("etcd_snap_db_fsync_duration_seconds", "histogram"),
    ("etcd_snap_db_save_total_duration_seconds", "histogram"),
    ("etcd_snap_fsync_duration_seconds", "histogram"),
    ("grpc_server_handled_total", "counter"),
    ("grpc_server_msg_received_total", "counter"),
    ("grpc_server_msg_sent_total", "counter"),
    ("grpc_server_started_total", "counter"),
    ("os_fd_limit", "gauge"),
    ("os_fd_used", "gauge"),
    ("process_cpu_seconds_total", "counter"),
    ("process_max_fds", "gauge"),
    ("process_network_receive_bytes_total", "counter"),
    ("process_network_transmit_bytes_total", "counter"),
    ("process_open_fds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
    ("process_virtual_memory_max_bytes", "gauge"),
    ("promhttp_metric_handler_requests_in_flight", "gauge"),
    ("promhttp_metric_handler_requests_total", "counter"),
];

/// What the load changes by a known number on any etcd. Statuses of etcd's `grpc_prometheus`, type `bidi_stream`.
const COUNTED: &[(&str, f64)] = &[
    ("etcd_debugging_mvcc_watch_stream_total", 1.0),
    ("etcd_debugging_mvcc_watcher_total", 2.0),
    ("etcd_debugging_mvcc_slow_watcher_total", 0.0),
    ("etcd_debugging_mvcc_pending_events_total", 0.0),
    ("etcd_debugging_mvcc_events_total", 10.0),
    (
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds_count",
        8.0,
    ),
    (
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds_count",
        8.0,
    ),
    (
        "etcd_debugging_server_watch_send_loop_progress_duration_seconds_count",
        0.0,
    ),
    (
        r#"grpc_server_started_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"}"#,
        2.0,
    ),
    (
        concat!(
            r#"grpc_server_handled_total{grpc_code="Canceled",grpc_method="Watch","#,
            r#"grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"}"#
        ),
        1.0,
    ),
    (
        r#"grpc_server_msg_sent_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"}"#,
        14.0,
    ),
    ("etcd_mvcc_put_total", 7.0),
    // One of a request, one of a transaction, two of the lease.
    ("etcd_mvcc_delete_total", 4.0),
    // Two transactions, and the lease that took two keys along.
    ("etcd_mvcc_txn_total", 3.0),
    // A range, a range and a compare of the transaction, and one of /health.
    ("etcd_mvcc_range_total", 4.0),
    ("etcd_mvcc_hash_rev_duration_seconds_count", 1.0),
    ("etcd_mvcc_hash_duration_seconds_count", 0.0),
    ("etcd_debugging_mvcc_keys_total", 2.0),
    ("etcd_debugging_mvcc_total_put_size_in_bytes", 18.0),
    (
        "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds_count",
        0.0,
    ),
    ("etcd_debugging_lease_granted_total", 1.0),
    ("etcd_debugging_lease_revoked_total", 1.0),
    ("etcd_server_proposals_failed_total", 0.0),
    ("etcd_server_health_success", 1.0),
    (
        r#"etcd_server_client_requests_total{client_api_version="3.5",type="stream"}"#,
        1.0,
    ),
    (
        r#"etcd_server_client_requests_total{client_api_version="unknown",type="stream"}"#,
        1.0,
    ),
    (r#"promhttp_metric_handler_requests_total{code="200"}"#, 1.0),
];

fn page(server: &Server) -> String {
    server.http_body("/metrics").expect("the page")
}

/// The value of a series, 0 if it is not there.
fn series(page: &str, name: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.map_or(0.0, |value| value.parse().expect("a number"))
}

fn families(page: &str) -> Vec<(&str, &str)> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines.filter_map(|line| line.split_once(' ')).collect()
}

async fn put(channel: &Channel, key: &str, lease: i64) {
    let request = pb::PutRequest {
        lease,
        ..etcd::put(key, "v")
    };
    let _: pb::PutResponse = channel.call(etcd::PUT, &request).await.expect("a put");
}

async fn watch(stream: &mut Stream, key: &str, range_end: &[u8]) -> pb::WatchResponse {
    let request = pb::WatchCreateRequest {
        key: key.as_bytes().to_vec().into(),
        range_end: range_end.to_vec().into(),
        ..Default::default()
    };
    stream.send(&etcd::create_watch(request)).expect("a create request");
    next(stream).await
}

async fn next(stream: &mut Stream) -> pb::WatchResponse {
    stream
        .next()
        .await
        .expect("the stream goes on")
        .expect("the stream goes on")
}

/// Two watches that stay, one that is canceled, one that is refused; puts, deletes and a lease, one after the other so
/// that every revision has a message of its own; a stream that comes and goes.
async fn load(channel: &Channel) -> Stream {
    let mut stream = channel
        .stream(etcd::WATCH, &[("client-api-version", "3.5")])
        .await
        .expect("a stream");
    for (key, range_end, watch_id) in [("a", &b"c"[..], 0), ("b", b"", 1), ("z", b"", 2), ("z", b"a", -1)] {
        let created = watch(&mut stream, key, range_end).await;
        assert_eq!((created.created, created.watch_id), (true, watch_id));
    }
    stream.send(&etcd::cancel_watch(2)).expect("a cancel request");
    assert!(next(&mut stream).await.canceled);
    // (key, events of the two watches)
    for (key, messages) in [("a", 1), ("b", 2), ("x", 0)] {
        put(channel, key, 0).await;
        for _ in 0..messages {
            assert_eq!(next(&mut stream).await.events.len(), 1);
        }
    }
    let _: pb::DeleteRangeResponse = channel
        .call(etcd::DELETE_RANGE, &etcd::delete("b"))
        .await
        .expect("a delete");
    for _ in 0..2 {
        assert_eq!(next(&mut stream).await.events.len(), 1);
    }
    let txn = pb::TxnRequest {
        compare: vec![etcd::mod_revision_is("nothing", 0)],
        success: vec![
            etcd::operation(Request::RequestPut(etcd::put("a", "five5"))),
            etcd::operation(Request::RequestDeleteRange(etcd::delete("x"))),
            etcd::operation(Request::RequestRange(etcd::get("a"))),
        ],
        ..Default::default()
    };
    let _: pb::TxnResponse = channel.call(etcd::TXN, &txn).await.expect("a transaction");
    assert_eq!(next(&mut stream).await.events.len(), 1);
    leased(channel, &mut stream).await;
    put(channel, "y", 0).await;
    let _: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get("a")).await.expect("a read");
    etcd::hash_at(channel, 0).await.expect("a hash");
    let mut other = channel.stream(etcd::WATCH, &[]).await.expect("a stream");
    let created = watch(&mut other, "a", b"").await;
    assert!(created.created);
    other.cancel();
    stream
}

/// Two keys of a lease go together, in one revision.
async fn leased(channel: &Channel, stream: &mut Stream) {
    let lease = pb::LeaseGrantRequest { id: 77, ttl: 60 };
    let _: pb::LeaseGrantResponse = channel.call(etcd::LEASE_GRANT, &lease).await.expect("a lease");
    let txn = pb::TxnRequest {
        success: ["aa", "bb"]
            .into_iter()
            .map(|key| {
                etcd::operation(Request::RequestPut(pb::PutRequest {
                    lease: 77,
                    ..etcd::put(key, "")
                }))
            })
            .collect(),
        ..Default::default()
    };
    let _: pb::TxnResponse = channel.call(etcd::TXN, &txn).await.expect("a transaction");
    assert_eq!(next(stream).await.events.len(), 2);
    let lease = pb::LeaseRevokeRequest { id: 77 };
    let _: pb::LeaseRevokeResponse = channel.call(etcd::LEASE_REVOKE, &lease).await.expect("a revocation");
    assert_eq!(next(stream).await.events.len(), 2);
}

/// How the load changes what is counted. The end of a call may be counted a little after its client saw it.
fn counted(server: &Server) -> Vec<(&'static str, f64)> {
    support::block_on(async {
        let before = page(server);
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        let stream = load(&channel).await;
        server.http_get("/health").expect("an answer");
        let until = Instant::now() + Duration::from_secs(30);
        let mut scrapes = 0.0;
        let change = loop {
            scrapes += 1.0;
            let after = page(server);
            let change = COUNTED.iter().map(|(name, _)| {
                let extra = if name.starts_with("promhttp") {
                    scrapes - 1.0
                } else {
                    0.0
                };
                (*name, series(&after, name) - series(&before, name) - extra)
            });
            let change: Vec<_> = change.collect();
            if change == COUNTED || Instant::now() > until {
                break change;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        drop(stream);
        change
    })
}

#[test]
fn a_known_load_is_counted() {
    let server = Server::start(Program::Ringd, &[]);
    assert_eq!(counted(&server), COUNTED);
    let page = page(&server);
    let found = families(&page);
    for family in FAMILIES {
        assert!(found.contains(family), "{family:?} is missing");
        let prefix = family.0;
        let is_sample = |line: &str| line.starts_with(prefix);
        assert!(
            page.lines().any(|line| !line.starts_with('#') && is_sample(line)),
            "{prefix} has no series"
        );
    }
}

#[cfg(feature = "blackbox")]
#[test]
fn etcd_counts_the_same() {
    let server = Server::start(Program::Reference, &[]);
    assert_eq!(counted(&server), COUNTED);
    let page = page(&server);
    // A proxy is part of etcd's program, not of its server, which is what the reference is.
    let here = FAMILIES.iter().filter(|(name, _)| !name.starts_with("etcd_grpc_proxy"));
    for family in here {
        assert!(families(&page).contains(family), "etcd has no {family:?}");
    }
}

#[cfg(feature = "blackbox")]
#[test]
fn gates_are_told_as_etcd_tells_them() {
    let told = |program: Program| {
        let server = Server::start(
            program,
            &["--feature-gates=LeaseCheckpoint=true,AllBeta=false,AllAlpha=false"],
        );
        let page = page(&server);
        let lines = page
            .lines()
            .filter(|line| line.starts_with("etcd_server_feature_enabled"));
        lines.map(str::to_string).collect::<Vec<_>>()
    };
    let ours = told(Program::Ringd);
    assert_eq!(ours, told(Program::Reference));
    assert!(ours.iter().any(|line| line.ends_with("} 1")), "{ours:?}");
}
