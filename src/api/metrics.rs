//! The page of `/metrics`, under etcd's names (`etcd-surface` 7.6).
//!
//! Three sources: the member's state with what the log core counted, what all serve cores counted, and what the system
//! tells of the process. A series whose occasion does not exist here is there and 0, as in an etcd that never had it.
//! `ringd_request_duration_seconds` is ours: etcd's histogram of the same begins at a millisecond.

mod peers;
mod process;
mod unused;
mod watching;

use super::health::{self, Kind as Checks};
use super::method::Method;
use super::service::Api;
use crate::config::gates::Gates;
use crate::metrics::Kind::{Counter, Gauge, Histogram};
use crate::metrics::{self, CODES, CoreMetrics, LatencySum, MethodMetrics, Registry, SharedHistogram, Text};
use crate::mvcc::interval::RangeEnd;
use crate::proto::etcdserverpb::AlarmType;
use crate::raft::messages::Status;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The type of a method as `grpc_prometheus` names it.
fn grpc_type(method: Method) -> &'static str {
    match (method.streams_requests(), method.streams_responses()) {
        (true, _) => "bidi_stream",
        (false, true) => "server_stream",
        (false, false) => "unary",
    }
}

/// The name of a method among etcd's request types.
fn request_type(method: Method) -> &'static str {
    match method {
        Method::Compact => "Compaction",
        method => method.path().1,
    }
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

impl Api {
    /// The whole page; without `status`, when the log core does not answer, what is known without it.
    pub(super) fn metrics_page(&self, status: Option<&Status>) -> String {
        let mut text = Text::default();
        let registry = &*self.settings.metrics;
        if let Some(status) = status {
            self.put_members(&mut text, status);
            put_raft(&mut text, status);
            put_cluster(&mut text, status);
            put_operations(&mut text, status, registry);
            self.put_store(&mut text, status);
            put_compactions(&mut text, status);
            put_disk(&mut text, status);
            put_leases(&mut text, status);
            put_alarms(&mut text, status);
        }
        self.put_versions(&mut text);
        put_gates(&mut text, &self.settings.gates);
        peers::put(&mut text, self.settings.identity.member_id, &self.settings.peers);
        unused::put(&mut text);
        watching::put(&mut text, registry);
        put_health(&mut text, registry);
        put_requests(&mut text, registry);
        put_reads(&mut text, registry);
        put_clients(&mut text, registry);
        put_grpc(&mut text, registry);
        process::put(&mut text, registry);
        text.finish()
    }

    fn put_versions(&self, text: &mut Text) {
        text.family("etcd_server_version", Gauge, "1 for the version that runs.");
        text.series(&[("server_version", self.settings.version)], 1.0);
        text.family("etcd_server_id", Gauge, "1 for this member's id in hexadecimal.");
        let id = format!("{:x}", self.settings.identity.member_id);
        text.series(&[("server_id", &id)], 1.0);
        let quota = self.settings.quota_reported as f64;
        text.single(
            "etcd_server_quota_backend_bytes",
            Gauge,
            "Bytes of data that are allowed.",
            quota,
        );
    }

    fn put_members(&self, text: &mut Text, status: &Status) {
        let own = self.settings.identity.member_id;
        if let Some(version) = &status.cluster_version {
            let minor = version.rsplit_once('.').map_or(version.as_str(), |(minor, _)| minor);
            text.family("etcd_cluster_version", Gauge, "1 for the cluster's version.");
            text.series(&[("cluster_version", minor)], 1.0);
        }
        text.family(
            "etcd_network_known_peers",
            Gauge,
            "1 for every member known to this one.",
        );
        let local = format!("{own:x}");
        for member in &status.members {
            text.series(&[("Local", &local), ("Remote", &format!("{:x}", member.id))], 1.0);
        }
        let learner = status
            .members
            .iter()
            .any(|member| member.id == own && member.is_learner);
        let help = "Whether this member is a learner.";
        text.single("etcd_server_is_learner", Gauge, help, flag(learner));
    }
}

fn put_gates(text: &mut Text, gates: &Gates) {
    text.family(
        "etcd_server_feature_enabled",
        Gauge,
        "1 for a feature gate that is open.",
    );
    for (name, stage, is_open) in gates.all() {
        text.series(&[("name", name), ("stage", stage.name())], flag(is_open));
    }
}

fn put_raft(text: &mut Text, status: &Status) {
    let counters = &status.counters;
    let numbers = [
        (
            "etcd_server_has_leader",
            Gauge,
            "Whether there is a leader.",
            flag(status.leader != 0),
        ),
        (
            "etcd_server_is_leader",
            Gauge,
            "Whether this member leads.",
            flag(status.is_leader),
        ),
        (
            "etcd_server_leader_changes_seen_total",
            Counter,
            "Leaders seen one after the other.",
            counters.leader_changes as f64,
        ),
        (
            "etcd_server_proposals_committed_total",
            Gauge,
            "The index of the last entry committed.",
            status.commit_index as f64,
        ),
        (
            "etcd_server_proposals_applied_total",
            Gauge,
            "The index of the last entry applied.",
            status.applied_index as f64,
        ),
        (
            "etcd_server_proposals_pending",
            Gauge,
            "Proposals not yet applied.",
            status.pending as f64,
        ),
        (
            "etcd_server_proposals_failed_total",
            Counter,
            "Proposals that found no leader or lost theirs.",
            counters.proposals_failed as f64,
        ),
    ];
    put_numbers(text, &numbers);
}

fn put_cluster(text: &mut Text, status: &Status) {
    let counters = &status.counters;
    let numbers = [
        (
            "etcd_server_slow_read_indexes_total",
            Counter,
            "Read index requests that were slow.",
            counters.reads_timed_out as f64,
        ),
        (
            "etcd_server_read_indexes_failed_total",
            Counter,
            "Read index requests whose leader was gone.",
            counters.reads_failed as f64,
        ),
        (
            "etcd_server_heartbeat_send_failures_total",
            Counter,
            "Heartbeats of this leader that left late.",
            counters.heartbeats_late as f64,
        ),
        (
            "etcd_server_learner_promote_successes",
            Counter,
            "Learners promoted while this member led.",
            counters.promotions as f64,
        ),
    ];
    put_numbers(text, &numbers);
    if !counters.promotions_refused.is_empty() {
        let help = "Promotions of learners refused while this member led.";
        text.family("etcd_server_learner_promote_failures", Counter, help);
    }
    for (reason, count) in &counters.promotions_refused {
        text.series(&[("Reason", reason)], *count as f64);
    }
}

impl Api {
    fn put_store(&self, text: &mut Text, status: &Status) {
        let counters = &status.counters;
        let (revision, compact_revision) = {
            let pinned = self.index.pin();
            (pinned.view().revision, pinned.view().compact_revision)
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let compacted_at = status.compaction_age.map_or(0, |age| now.saturating_sub(age).as_secs());
        let numbers = [
            (
                "etcd_mvcc_db_total_size_in_bytes",
                Gauge,
                "Bytes of the page file.",
                status.size as f64,
            ),
            (
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                Gauge,
                "Bytes of the page file in use.",
                status.size_in_use as f64,
            ),
            (
                "etcd_debugging_mvcc_keys_total",
                Gauge,
                "Keys there are.",
                self.live_keys() as f64,
            ),
            (
                "etcd_debugging_mvcc_current_revision",
                Gauge,
                "The store's revision.",
                revision as f64,
            ),
            (
                "etcd_debugging_mvcc_compact_revision",
                Gauge,
                "The revision of the last compaction.",
                compact_revision as f64,
            ),
            (
                "etcd_debugging_mvcc_db_compaction_last",
                Gauge,
                "When the last compaction was done, in seconds since 1970.",
                compacted_at as f64,
            ),
            (
                "etcd_debugging_mvcc_db_compaction_keys_total",
                Counter,
                "Records removed by compactions.",
                counters.records_compacted as f64,
            ),
            (
                "etcd_debugging_mvcc_total_put_size_in_bytes",
                Gauge,
                "Bytes of keys and values put.",
                counters.put_bytes as f64,
            ),
        ];
        put_numbers(text, &numbers);
    }

    fn live_keys(&self) -> u64 {
        let (mut start, mut total) = (Vec::new(), 0);
        loop {
            let pinned = self.index.pin();
            let (count, resume) = pinned.count(&start, RangeEnd::Unbounded, pinned.view().revision);
            total += count;
            match resume {
                Some(resume) => start = resume,
                None => return total,
            }
        }
    }
}

/// What was done to the store, read and written.
fn put_operations(text: &mut Text, status: &Status, registry: &Registry) {
    let counters = &status.counters;
    let ranges = registry.sum(|core| &core.ranges) + counters.ranges;
    let txns = registry.sum(|core| &core.read_txns) + counters.txns;
    let numbers = [
        ("etcd_mvcc_put_total", "Puts applied.", counters.puts),
        ("etcd_mvcc_delete_total", "Deletions applied.", counters.deletes),
        ("etcd_mvcc_range_total", "Ranges read.", ranges),
        ("etcd_mvcc_txn_total", "Requests of more than one operation.", txns),
    ];
    for (name, help, value) in numbers {
        text.single(name, Counter, help, value as f64);
    }
}

fn put_numbers(text: &mut Text, numbers: &[(&'static str, metrics::Kind, &str, f64)]) {
    for (name, kind, help, value) in numbers {
        text.single(name, *kind, help, *value);
    }
}

fn put_compactions(text: &mut Text, status: &Status) {
    let help = "Times from a compaction's first piece of work to its end.";
    let name = "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds";
    text.family(name, Histogram, help);
    text.histogram(&[], &status.counters.compactions_ms.buckets());
}

fn put_disk(text: &mut Text, status: &Status) {
    let counters = &status.counters;
    let written = counters.log_bytes as f64;
    text.single(
        "etcd_disk_wal_write_bytes_total",
        Gauge,
        "Bytes written to the log.",
        written,
    );
    let help = "Times from writing a batch to the log until it is durable; both are one operation.";
    text.family("etcd_disk_wal_fsync_duration_seconds", Histogram, help);
    text.histogram(&[], &counters.log_syncs.buckets());
    let help = "Times from the beginning of a checkpoint, which holds nobody up, until it is durable.";
    text.family("etcd_disk_backend_commit_duration_seconds", Histogram, help);
    text.histogram(&[], &counters.checkpoints.buckets());
}

/// As in etcd there is no such family before the first alarm. etcd counts how often each was raised since it started.
fn put_alarms(text: &mut Text, status: &Status) {
    if status.alarms.is_empty() {
        return;
    }
    text.family("etcd_debugging_server_alarms", Gauge, "1 for an alarm that is raised.");
    for alarm in &status.alarms {
        let member = format!("{:x}", alarm.member_id);
        let kind = AlarmType::try_from(alarm.alarm).map_or("UNKNOWN", |kind| kind.as_str_name());
        text.series(&[("server_id", &member), ("alarm_type", kind)], 1.0);
    }
}

fn put_leases(text: &mut Text, status: &Status) {
    let counters = &status.counters;
    let numbers = [
        (
            "etcd_debugging_lease_granted_total",
            "Leases granted.",
            counters.leases_granted,
        ),
        (
            "etcd_debugging_lease_revoked_total",
            "Leases revoked.",
            counters.leases_revoked,
        ),
        (
            "etcd_debugging_lease_renewed_total",
            "Leases renewed by this leader.",
            counters.leases_renewed,
        ),
        (
            "etcd_debugging_server_lease_expired_total",
            "Leases whose time was up.",
            counters.leases_expired,
        ),
    ];
    for (name, help, value) in numbers {
        text.single(name, Counter, help, value as f64);
    }
    text.family(
        "etcd_debugging_lease_ttl_total",
        Histogram,
        "What leases are granted for, in seconds.",
    );
    text.histogram(&[], &counters.lease_ttls.buckets());
}

fn put_health(text: &mut Text, registry: &Registry) {
    let (healthy, unhealthy) = (registry.sum(|core| &core.healthy), registry.sum(|core| &core.unhealthy));
    text.single(
        "etcd_server_health_success",
        Counter,
        "Times that /health was true.",
        healthy as f64,
    );
    text.single(
        "etcd_server_health_failures",
        Counter,
        "Times that /health was false.",
        unhealthy as f64,
    );
    let checks = || {
        let of_kind = |kind: Checks| kind.checks().iter().map(move |check| (kind, *check));
        [Checks::Live, Checks::Ready].into_iter().flat_map(of_kind)
    };
    text.family(
        "etcd_server_healthcheck",
        Gauge,
        "Whether a check was passed when it was last made.",
    );
    for (kind, check) in checks() {
        let number = health::check_number(kind, check);
        let passed = registry.cores().filter_map(|core| core.last_check(number)).min();
        if let Some(passed) = passed {
            text.series(&[("name", check.name()), ("type", kind.name())], flag(passed));
        }
    }
    text.family("etcd_server_healthchecks_total", Counter, "Checks made.");
    for (kind, check) in checks() {
        let number = health::check_number(kind, check);
        for (passed, result) in [(0, "error"), (1, "success")] {
            let count = registry.sum(|core| &core.checks[number][passed]);
            if count > 0 {
                let labels = [("name", check.name()), ("status", result), ("type", kind.name())];
                text.series(&labels, count as f64);
            }
        }
    }
}

/// The latencies of unary requests that were made: with etcd's bounds, then with finer ones.
fn put_requests(text: &mut Text, registry: &Registry) {
    let summed = |method: Method, of: fn(&MethodMetrics) -> &metrics::Latency| {
        let mut sum = LatencySum::default();
        let cores = registry.cores();
        cores.for_each(|core| sum.add(of(&core.methods[method as usize])));
        sum
    };
    let mut made = Vec::new();
    for method in Method::ALL.iter().copied().filter(|method| !method.streams_responses()) {
        made.push((method, "false", summed(method, |metrics| &metrics.failed)));
        made.push((method, "true", summed(method, |metrics| &metrics.succeeded)));
    }
    made.retain(|(_, _, sum)| sum.count() > 0);
    let help = "Times from a unary request's receipt to its answer.";
    text.family("etcd_server_request_duration_seconds", Histogram, help);
    for (method, success, sum) in &made {
        text.histogram(&[("success", success), ("type", request_type(*method))], &sum.coarse());
    }
    text.family("ringd_request_duration_seconds", Histogram, help);
    for (method, success, sum) in &made {
        text.histogram(&[("success", success), ("type", request_type(*method))], &sum.fine());
    }
}

/// What reads took, and how many are under way.
fn put_reads(text: &mut Text, registry: &Registry) {
    let help = "Times from the receipt of a range to its answer.";
    text.family("etcd_server_range_duration_seconds", Histogram, help);
    for (number, success) in [(0, "false"), (1, "true")] {
        let times = SharedHistogram::sum(registry.cores().map(|core| &core.range_times[number]));
        if let Some(times) = times.filter(|times| times.count > 0) {
            text.histogram(&[("success", success)], &times);
        }
    }
    let hashes: [(&str, &str, OfCore); 2] = [
        ("etcd_mvcc_hash_duration_seconds", "Times of Hash.", |core| {
            &core.hash_times
        }),
        ("etcd_mvcc_hash_rev_duration_seconds", "Times of HashKV.", |core| {
            &core.hash_kv_times
        }),
    ];
    for (name, help, of) in hashes {
        put_times(text, registry, name, help, of);
    }
    text.single(
        "etcd_mvcc_db_open_read_transactions",
        Gauge,
        "Long reads under way, each on a state of its own.",
        registry.sum(|core| &core.long_reads) as f64,
    );
}

/// One of a core's histograms.
type OfCore = fn(&CoreMetrics) -> &SharedHistogram;

/// A histogram of all cores' times.
fn put_times(text: &mut Text, registry: &Registry, name: &'static str, help: &str, of: OfCore) {
    text.family(name, Histogram, help);
    if let Some(times) = SharedHistogram::sum(registry.cores().map(of)) {
        text.histogram(&[], &times);
    }
}

fn put_clients(text: &mut Text, registry: &Registry) {
    let mut sums: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for (version, requests) in registry.cores().flat_map(|core| core.clients.iter()) {
        let sum = sums.entry(version).or_default();
        (sum[0], sum[1]) = (sum[0] + requests[0], sum[1] + requests[1]);
    }
    let help = "Requests, by the API version of their client.";
    text.family("etcd_server_client_requests_total", Counter, help);
    for (version, requests) in sums {
        for (kind, count) in ["unary", "stream"].into_iter().zip(requests) {
            if count > 0 {
                text.series(&[("client_api_version", version), ("type", kind)], count as f64);
            }
        }
    }
}

fn put_grpc(text: &mut Text, registry: &Registry) {
    let sum = |method: Method, cell: &dyn Fn(&MethodMetrics) -> u64| {
        registry
            .cores()
            .map(|core| cell(&core.methods[method as usize]))
            .sum::<u64>() as f64
    };
    let labels = |method: Method| {
        let (service, name) = method.path();
        [
            ("grpc_method", name),
            ("grpc_service", service),
            ("grpc_type", grpc_type(method)),
        ]
    };
    text.family("grpc_server_handled_total", Counter, "Calls ended, by status.");
    for method in Method::ALL {
        for (number, code) in CODES.iter().enumerate() {
            let [name, service, kind] = labels(*method);
            let count = sum(*method, &|metrics| metrics.handled[number].get());
            text.series(&[("grpc_code", code), name, service, kind], count);
        }
    }
    type Count = fn(&MethodMetrics) -> u64;
    let families: [(&'static str, &str, Count); 3] = [
        ("grpc_server_msg_received_total", "Messages received.", |metrics| {
            metrics.received.get()
        }),
        ("grpc_server_msg_sent_total", "Messages sent.", |metrics| {
            metrics.sent.get()
        }),
        ("grpc_server_started_total", "Calls begun.", |metrics| {
            metrics.started.get()
        }),
    ];
    for (family, help, cell) in families {
        text.family(family, Counter, help);
        for method in Method::ALL {
            text.series(&labels(*method), sum(*method, &cell));
        }
    }
}

#[cfg(test)]
mod tests;
