//! The table of every flag of etcd 3.7: name, default, kind, and what ringd does with it.
//!
//! One row drives the command line, the `ETCD_*` environment, the config file and the help text. Source of names and
//! defaults: `etcd-surface` 3.2.

/// What a flag's text must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// `true` or `false`; alone on the command line it means `true`.
    Boolean,
    /// A whole number, possibly negative.
    Integer,
    /// A duration in Go's form, `300ms` or `1h30m`; a whole number of nanoseconds in the config file.
    Duration,
    /// Texts separated by commas; a comma-separated text or a list in the config file.
    List,
}

/// What ringd does when a flag is set to something else than its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// It takes effect.
    Used,
    /// It tunes a part of etcd that ringd does not have or does not tune yet: accepted, with one warning.
    Tuning,
    /// Ignoring it would weaken security or change the membership, so the start is refused until it is built.
    Refused,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The name without dashes.
    pub name: &'static str,
    /// Its default as text.
    pub default: &'static str,
    /// What its text must be.
    pub kind: Kind,
    /// What is done with it.
    pub handling: Handling,
    /// One line of help.
    pub help: &'static str,
}

const fn flag(name: &'static str, default: &'static str, kind: Kind, handling: Handling, help: &'static str) -> Flag {
    Flag {
        name,
        default,
        kind,
        handling,
        help,
    }
}

use Handling::{Refused, Tuning, Used};
use Kind::{Boolean, Duration, Integer, List, Text};

/// Every flag, in the order of the help text.
pub const FLAGS: &[Flag] = &[
    // Member.
    flag("name", "default", Text, Used, "human-readable name of this member"),
    flag("data-dir", "", Text, Used, "data directory (default ${name}.etcd)"),
    flag(
        "wal-dir",
        "",
        Text,
        Used,
        "directory of the write-ahead log, if not inside the data directory",
    ),
    flag(
        "snapshot-count",
        "10000",
        Integer,
        Tuning,
        "entries between snapshots; ringd checkpoints by bytes and time",
    ),
    flag(
        "snapshot-catchup-entries",
        "5000",
        Integer,
        Used,
        "entries kept in the log behind a checkpoint",
    ),
    flag(
        "heartbeat-interval",
        "100",
        Integer,
        Used,
        "milliseconds between heartbeats",
    ),
    flag(
        "election-timeout",
        "1000",
        Integer,
        Used,
        "milliseconds until an election",
    ),
    flag(
        "initial-election-tick-advance",
        "true",
        Boolean,
        Used,
        "shorten the first election's time-out",
    ),
    flag(
        "listen-peer-urls",
        "http://localhost:2380",
        List,
        Used,
        "URLs to listen on for peers",
    ),
    flag(
        "listen-client-urls",
        "http://localhost:2379",
        List,
        Used,
        "URLs to listen on for clients",
    ),
    flag(
        "listen-client-http-urls",
        "",
        List,
        Used,
        "URLs for the HTTP endpoints alone, taking them off the client URLs",
    ),
    flag("max-wals", "5", Integer, Used, "log segments kept (0: all)"),
    flag("max-snapshots", "5", Integer, Tuning, "accepted for compatibility"),
    flag("memory-mlock", "false", Boolean, Tuning, "lock memory"),
    flag(
        "quota-backend-bytes",
        "0",
        Integer,
        Used,
        "bytes of data at which writes are refused (0: 2 GiB, negative: no quota)",
    ),
    flag("backend-bbolt-freelist-type", "map", Text, Tuning, "bbolt's free list"),
    flag(
        "backend-batch-interval",
        "0s",
        Duration,
        Tuning,
        "bbolt's commit interval",
    ),
    flag("backend-batch-limit", "0", Integer, Tuning, "bbolt's commit size"),
    flag("max-txn-ops", "128", Integer, Used, "operations in one transaction"),
    flag("max-request-bytes", "1572864", Integer, Used, "bytes of one request"),
    flag(
        "max-concurrent-streams",
        "4294967295",
        Integer,
        Used,
        "streams of one HTTP/2 connection",
    ),
    flag(
        "grpc-keepalive-min-time",
        "5s",
        Duration,
        Used,
        "shortest time between a client's pings",
    ),
    flag(
        "grpc-keepalive-interval",
        "2h",
        Duration,
        Used,
        "time between the server's pings on a quiet connection",
    ),
    flag(
        "grpc-keepalive-timeout",
        "20s",
        Duration,
        Used,
        "time a ping may stay unanswered",
    ),
    flag(
        "socket-reuse-port",
        "false",
        Boolean,
        Used,
        "set SO_REUSEPORT on listeners",
    ),
    flag(
        "socket-reuse-address",
        "false",
        Boolean,
        Used,
        "set SO_REUSEADDR on listeners",
    ),
    flag(
        "enable-grpc-gateway",
        "true",
        Boolean,
        Tuning,
        "the JSON gateway, which is not built yet",
    ),
    flag(
        "raft-read-timeout",
        "5s",
        Duration,
        Tuning,
        "read time-out of peer connections",
    ),
    flag(
        "raft-write-timeout",
        "5s",
        Duration,
        Tuning,
        "write time-out of peer connections",
    ),
    flag("feature-gates", "", Text, Used, "A=true,B=false"),
    flag("max-learners", "1", Integer, Used, "learners in a cluster"),
    // Clustering.
    flag(
        "initial-advertise-peer-urls",
        "http://localhost:2380",
        List,
        Used,
        "this member's peer URLs as told to others",
    ),
    flag("initial-cluster", "", Text, Used, "the first members, name=URL"),
    flag(
        "initial-cluster-state",
        "new",
        Text,
        Used,
        "`new`, or `existing` for a member that joins",
    ),
    flag(
        "initial-cluster-token",
        "etcd-cluster",
        Text,
        Used,
        "part of the cluster's id",
    ),
    flag(
        "advertise-client-urls",
        "http://localhost:2379",
        List,
        Used,
        "this member's client URLs as told to others",
    ),
    flag("discovery-token", "", Text, Used, "v3 discovery"),
    flag("discovery-endpoints", "", List, Used, "v3 discovery"),
    flag("discovery-dial-timeout", "2s", Duration, Used, "v3 discovery"),
    flag("discovery-request-timeout", "5s", Duration, Used, "v3 discovery"),
    flag("discovery-keepalive-time", "2s", Duration, Tuning, "v3 discovery"),
    flag("discovery-keepalive-timeout", "6s", Duration, Tuning, "v3 discovery"),
    flag("discovery-insecure-transport", "true", Boolean, Refused, "v3 discovery"),
    flag(
        "discovery-insecure-skip-tls-verify",
        "false",
        Boolean,
        Refused,
        "v3 discovery",
    ),
    flag("discovery-cert", "", Text, Refused, "v3 discovery"),
    flag("discovery-key", "", Text, Refused, "v3 discovery"),
    flag("discovery-cacert", "", Text, Refused, "v3 discovery"),
    flag("discovery-user", "", Text, Refused, "v3 discovery"),
    flag("discovery-password", "", Text, Refused, "v3 discovery"),
    flag("discovery-srv", "", Text, Used, "DNS discovery"),
    flag("discovery-srv-name", "", Text, Used, "DNS discovery"),
    flag(
        "discovery-fallback",
        "exit",
        Text,
        Refused,
        "what follows a failed discovery",
    ),
    flag(
        "strict-reconfig-check",
        "true",
        Boolean,
        Used,
        "refuse membership changes that endanger the quorum",
    ),
    flag(
        "pre-vote",
        "true",
        Boolean,
        Used,
        "elections begin with a round that does not raise the term",
    ),
    flag(
        "auto-compaction-retention",
        "0",
        Text,
        Used,
        "history kept by automatic compaction: hours, or a duration such as 30m, or revisions (0: no compaction)",
    ),
    flag(
        "auto-compaction-mode",
        "periodic",
        Text,
        Used,
        "what --auto-compaction-retention counts: `periodic` or `revision`",
    ),
    flag(
        "v2-deprecation",
        "write-only",
        Text,
        Tuning,
        "accepted for compatibility",
    ),
    // Security.
    flag("cert-file", "", Text, Refused, "client TLS"),
    flag("key-file", "", Text, Refused, "client TLS"),
    flag("trusted-ca-file", "", Text, Refused, "client TLS"),
    flag("client-cert-auth", "false", Boolean, Refused, "client TLS"),
    flag("client-cert-file", "", Text, Refused, "client TLS"),
    flag("client-key-file", "", Text, Refused, "client TLS"),
    flag("client-crl-file", "", Text, Refused, "client TLS"),
    flag("client-cert-allowed-hostname", "", List, Refused, "client TLS"),
    flag("auto-tls", "false", Boolean, Refused, "client TLS"),
    flag("peer-auto-tls", "false", Boolean, Refused, "peer TLS"),
    flag(
        "self-signed-cert-validity",
        "1",
        Integer,
        Refused,
        "years of a generated certificate",
    ),
    flag("peer-cert-file", "", Text, Refused, "peer TLS"),
    flag("peer-key-file", "", Text, Refused, "peer TLS"),
    flag("peer-trusted-ca-file", "", Text, Refused, "peer TLS"),
    flag("peer-client-cert-auth", "false", Boolean, Refused, "peer TLS"),
    flag("peer-client-cert-file", "", Text, Refused, "peer TLS"),
    flag("peer-client-key-file", "", Text, Refused, "peer TLS"),
    flag("peer-cert-allowed-cn", "", List, Refused, "peer TLS"),
    flag("peer-cert-allowed-hostname", "", List, Refused, "peer TLS"),
    flag("peer-crl-file", "", Text, Refused, "peer TLS"),
    flag(
        "peer-skip-client-san-verification",
        "false",
        Boolean,
        Refused,
        "peer TLS",
    ),
    flag("cipher-suites", "", List, Refused, "TLS"),
    flag("tls-min-version", "TLS1.2", Text, Refused, "TLS"),
    flag("tls-max-version", "", Text, Refused, "TLS"),
    flag("cors", "*", List, Refused, "origins allowed to use the gateway"),
    flag(
        "host-whitelist",
        "*",
        List,
        Refused,
        "Host headers allowed on plaintext listeners",
    ),
    flag("auth-token", "simple", Text, Refused, "kind of authentication token"),
    flag("bcrypt-cost", "10", Integer, Refused, "cost of password hashes"),
    flag(
        "auth-token-ttl",
        "300",
        Integer,
        Refused,
        "seconds a simple token lives",
    ),
    // Observability.
    flag(
        "listen-metrics-urls",
        "",
        List,
        Used,
        "more URLs for /metrics and the health endpoints",
    ),
    flag("metrics", "basic", Text, Tuning, "`basic` or `extensive`"),
    flag("enable-pprof", "false", Boolean, Tuning, "Go's profiler"),
    flag("logger", "zap", Text, Tuning, "accepted for compatibility"),
    flag("log-outputs", "default", List, Used, "`default` or `stderr`, `stdout`"),
    flag("log-format", "json", Text, Used, "`json` or `console`"),
    flag(
        "log-level",
        "info",
        Text,
        Used,
        "debug, info, warn, error, panic or fatal",
    ),
    flag("enable-log-rotation", "false", Boolean, Tuning, "rotate log files"),
    flag("log-rotation-config-json", "", Text, Tuning, "how to rotate log files"),
    flag(
        "warning-unary-request-duration",
        "300ms",
        Duration,
        Tuning,
        "requests slower than this are logged",
    ),
    flag(
        "warning-apply-duration",
        "100ms",
        Duration,
        Tuning,
        "applies slower than this are logged",
    ),
    flag("enable-distributed-tracing", "false", Boolean, Tuning, "OpenTelemetry"),
    flag(
        "distributed-tracing-address",
        "localhost:4317",
        Text,
        Tuning,
        "OpenTelemetry",
    ),
    flag(
        "distributed-tracing-service-name",
        "etcd",
        Text,
        Tuning,
        "OpenTelemetry",
    ),
    flag("distributed-tracing-instance-id", "", Text, Tuning, "OpenTelemetry"),
    flag(
        "distributed-tracing-sampling-rate",
        "0",
        Integer,
        Tuning,
        "OpenTelemetry",
    ),
    // Features.
    flag(
        "corrupt-check-time",
        "0s",
        Duration,
        Used,
        "time between comparisons with peers",
    ),
    flag(
        "compact-hash-check-time",
        "1m",
        Duration,
        Used,
        "time between comparisons of compaction hashes",
    ),
    flag(
        "compaction-batch-limit",
        "0",
        Integer,
        Tuning,
        "revisions compacted at a time",
    ),
    flag(
        "compaction-sleep-interval",
        "0s",
        Duration,
        Tuning,
        "pause between compaction batches",
    ),
    flag(
        "watch-progress-notify-interval",
        "10m",
        Duration,
        Used,
        "time between progress notifications",
    ),
    flag(
        "bootstrap-defrag-threshold-megabytes",
        "0",
        Integer,
        Tuning,
        "ringd gives space back while serving",
    ),
    flag(
        "downgrade-check-time",
        "5s",
        Duration,
        Tuning,
        "time between downgrade checks",
    ),
    // Unsafe.
    flag(
        "force-new-cluster",
        "false",
        Boolean,
        Used,
        "start alone from a member's data",
    ),
    flag(
        "unsafe-no-fsync",
        "false",
        Boolean,
        Used,
        "do not wait for the disk: data is lost with the power",
    ),
    // ringd's own.
    flag(
        "cores",
        "0",
        Integer,
        Used,
        "processors to use (0: all this process may use)",
    ),
    flag(
        "memory-budget",
        "0",
        Text,
        Used,
        "memory for data and answers, e.g. 512MiB (0: half of what there is)",
    ),
    flag(
        "wal-writer",
        "ring",
        Text,
        Used,
        "how the log is written: ring, ring-linked, ring-helper or threads",
    ),
    flag(
        "wal-pad-batches",
        "false",
        Boolean,
        Used,
        "never write a block of the log twice, for disks that can damage a block as they write it",
    ),
    flag("config-file", "", Text, Used, "read everything from this file instead"),
];

/// Flags that etcd once had and still swallows with their value.
pub const IGNORED: &[&str] = &[
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "config",
    "force",
    "max-result-buffer",
    "max-retry-attempts",
    "peer-heartbeat-interval",
    "peer-election-timeout",
    "retry-interval",
    "snapshot",
    "v",
    "vv",
    "test.coverprofile",
    "test.outputdir",
];

/// etcd 3.6's experimental spellings: the part after `experimental-`, and what they are now.
pub const EXPERIMENTAL: &[(&str, &str)] = &[
    ("initial-corrupt-check", "feature-gates:InitialCorruptCheck"),
    ("compact-hash-check-enabled", "feature-gates:CompactHashCheck"),
    ("enable-lease-checkpoint", "feature-gates:LeaseCheckpoint"),
    (
        "enable-lease-checkpoint-persist",
        "feature-gates:LeaseCheckpointPersist",
    ),
    (
        "txn-mode-write-with-shared-buffer",
        "feature-gates:TxnModeWriteWithSharedBuffer",
    ),
    ("stop-grpc-service-on-defrag", "feature-gates:StopGRPCServiceOnDefrag"),
    ("set-member-localaddr", "feature-gates:SetMemberLocalAddr"),
    ("corrupt-check-time", "corrupt-check-time"),
    ("compact-hash-check-time", "compact-hash-check-time"),
    ("compaction-batch-limit", "compaction-batch-limit"),
    ("compaction-sleep-interval", "compaction-sleep-interval"),
    ("watch-progress-notify-interval", "watch-progress-notify-interval"),
    ("warning-apply-duration", "warning-apply-duration"),
    ("warning-unary-request-duration", "warning-unary-request-duration"),
    (
        "bootstrap-defrag-threshold-megabytes",
        "bootstrap-defrag-threshold-megabytes",
    ),
    ("memory-mlock", "memory-mlock"),
    ("max-learners", "max-learners"),
    ("snapshot-catchup-entries", "snapshot-catchup-entries"),
    ("downgrade-check-time", "downgrade-check-time"),
    ("enable-distributed-tracing", "enable-distributed-tracing"),
    ("distributed-tracing-address", "distributed-tracing-address"),
    ("distributed-tracing-service-name", "distributed-tracing-service-name"),
    ("distributed-tracing-instance-id", "distributed-tracing-instance-id"),
    ("distributed-tracing-sampling-rate", "distributed-tracing-sampling-rate"),
    ("peer-skip-client-san-verification", "peer-skip-client-san-verification"),
];

/// The row of a flag.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}
