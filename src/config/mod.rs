//! Flags, `ETCD_*` environment, YAML file and feature gates as one struct with etcd's names and defaults.
//!
//! Promises: every flag of etcd 3.7 is known; one whose being ignored would weaken security or change membership
//! refuses the start; every error names the flag. Knows nothing of the rest of the server.

pub mod cluster;
pub mod file;
pub mod flags;
pub mod gates;
pub mod parse;
pub mod values;

use crate::limits::MEMORY_BUDGET_MIN;
use cluster::{Discovery, InitialCluster, Own};
use flags::Handling;
use gates::Gates;
use parse::Texts;
use std::path::PathBuf;
use std::time::Duration;
use values::{AutoCompaction, Url};

/// The etcd version whose behaviour and files ringd offers.
pub const ETCD_VERSION: &str = "3.7.1";
/// The cluster and storage version that goes with it.
pub const CLUSTER_VERSION: &str = "3.7.0";

/// What is wrong with the configuration, for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
}

impl ConfigError {
    /// An error that says `message`.
    pub fn new(message: String) -> ConfigError {
        ConfigError { message }
    }
}

/// Quota that `--quota-backend-bytes=0` stands for.
const QUOTA_BYTES_DEFAULT: i64 = 2 << 30;

/// Everything the server is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// `--name`.
    pub name: String,
    /// `--data-dir`.
    pub data_directory: PathBuf,
    /// `--wal-dir`, or the place inside the data directory.
    pub wal_directory: PathBuf,
    /// `--snapshot-catchup-entries`.
    pub catchup_entries: u64,
    /// `--heartbeat-interval`.
    pub heartbeat_interval: Duration,
    /// `--election-timeout`.
    pub election_timeout: Duration,
    /// `--listen-client-urls`.
    pub listen_client_urls: Vec<Url>,
    /// `--listen-client-http-urls`.
    pub listen_client_http_urls: Vec<Url>,
    /// `--listen-metrics-urls`.
    pub listen_metrics_urls: Vec<Url>,
    /// `--listen-peer-urls`.
    pub listen_peer_urls: Vec<Url>,
    /// `--initial-advertise-peer-urls`.
    pub advertise_peer_urls: Vec<String>,
    /// `--initial-cluster` and `--initial-cluster-state`.
    pub initial_cluster: InitialCluster,
    /// `--discovery-srv`, or `--discovery-endpoints` and `--discovery-token`.
    pub discovery: Option<Discovery>,
    /// `--initial-election-tick-advance`.
    pub advance_election: bool,
    /// `--strict-reconfig-check`.
    pub strict_reconfiguration: bool,
    /// `--max-learners`.
    pub learners_max: usize,
    /// `--advertise-client-urls`.
    pub advertise_client_urls: Vec<String>,
    /// `--initial-cluster-token`.
    pub cluster_token: String,
    /// `--max-wals`; 0 keeps all.
    pub max_wals: usize,
    /// `--quota-backend-bytes`; `None` when there is no quota.
    pub quota_bytes: Option<u64>,
    /// The quota as `Status` reports it.
    pub quota_reported: i64,
    /// `--max-txn-ops`.
    pub max_txn_operations: usize,
    /// `--max-request-bytes`.
    pub max_request_bytes: usize,
    /// `--max-concurrent-streams`.
    pub max_concurrent_streams: u32,
    /// `--grpc-keepalive-min-time`.
    pub keepalive_min_time: Duration,
    /// `--grpc-keepalive-interval`.
    pub keepalive_interval: Duration,
    /// `--grpc-keepalive-timeout`.
    pub keepalive_timeout: Duration,
    /// `--socket-reuse-port`.
    pub reuse_port: bool,
    /// `--socket-reuse-address`.
    pub reuse_address: bool,
    /// `--pre-vote`.
    pub pre_vote: bool,
    /// `--watch-progress-notify-interval`.
    pub progress_interval: Duration,
    /// `--auto-compaction-mode` and `--auto-compaction-retention`.
    pub auto_compaction: AutoCompaction,
    /// `--feature-gates`.
    pub gates: Gates,
    /// `--force-new-cluster`.
    pub force_new_cluster: bool,
    /// `--corrupt-check-time`; zero for no such comparison.
    pub corrupt_check_time: Duration,
    /// `--compact-hash-check-time`.
    pub compact_hash_check_time: Duration,
    /// `--unsafe-no-fsync`.
    pub unsafe_no_fsync: bool,
    /// `--log-level`.
    pub log_level: String,
    /// Whether logs are JSON (else for a console).
    pub log_json: bool,
    /// Whether logs go to standard output (else standard error).
    pub log_to_stdout: bool,
    /// `--cores`; 0 for all this process may use.
    pub cores: usize,
    /// `--memory-budget` in bytes; 0 for the default share.
    pub memory_budget: u64,
    /// `--wal-writer`.
    pub wal_writer: WalWriter,
    /// `--wal-pad-batches`.
    pub wal_pad_batches: bool,
    /// What to log once logging works.
    pub warnings: Vec<String>,
}

/// How the log core's writes reach the disk (`--wal-writer`). `PERF.md` has what each costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalWriter {
    /// `ring`: one write with RWF_DSYNC on the log core's io_uring.
    Ring,
    /// `ring-linked`: a write and an fdatasync, linked, on the ring.
    RingLinked,
    /// `ring-helper`: durable writes block a helper thread, all else is on the ring.
    RingHelper,
    /// `threads`: blocking system calls on helper threads for everything.
    Threads,
}

impl WalWriter {
    fn from_text(text: &str) -> Result<WalWriter, ConfigError> {
        match text {
            "ring" => Ok(WalWriter::Ring),
            "ring-linked" => Ok(WalWriter::RingLinked),
            "ring-helper" => Ok(WalWriter::RingHelper),
            "threads" => Ok(WalWriter::Threads),
            _ => Err(ConfigError::new(format!(
                "--wal-writer: {text:?} is none of ring, ring-linked, ring-helper, threads"
            ))),
        }
    }
}

impl Config {
    /// Checks the texts and makes them values.
    pub fn from_texts(texts: Texts) -> Result<Config, ConfigError> {
        check_relations(&texts)?;
        let name = texts.get("name").to_string();
        let (data_directory, wal_directory) = directories(&texts, &name);
        let quota = integer(&texts, "quota-backend-bytes")?;
        let quota_reported = if quota == 0 { QUOTA_BYTES_DEFAULT } else { quota };
        let outputs = values::list(texts.get("log-outputs"));
        let advertised = urls(&texts, "initial-advertise-peer-urls")?;
        let advertised: Vec<String> = advertised.into_iter().map(|url| url.text).collect();
        let discovery = Discovery::from_texts(&texts)?;
        let own = Own {
            name: &name,
            peer_urls: &advertised,
            has_log: cluster::has_log(&wal_directory),
        };
        Ok(Config {
            initial_cluster: InitialCluster::from_texts(&texts, &own, discovery.as_ref())?,
            discovery,
            advertise_peer_urls: advertised,
            advance_election: boolean(&texts, "initial-election-tick-advance")?,
            strict_reconfiguration: boolean(&texts, "strict-reconfig-check")?,
            learners_max: unsigned(&texts, "max-learners")? as usize,
            name,
            data_directory,
            wal_directory,
            catchup_entries: unsigned(&texts, "snapshot-catchup-entries")?,
            heartbeat_interval: Duration::from_millis(unsigned(&texts, "heartbeat-interval")?),
            election_timeout: Duration::from_millis(unsigned(&texts, "election-timeout")?),
            listen_client_urls: listened(&texts, "listen-client-urls")?,
            listen_client_http_urls: listened(&texts, "listen-client-http-urls")?,
            listen_metrics_urls: listened(&texts, "listen-metrics-urls")?,
            listen_peer_urls: listened(&texts, "listen-peer-urls")?,
            advertise_client_urls: urls(&texts, "advertise-client-urls")?
                .into_iter()
                .map(|url| url.text)
                .collect(),
            cluster_token: texts.get("initial-cluster-token").to_string(),
            max_wals: unsigned(&texts, "max-wals")? as usize,
            quota_bytes: u64::try_from(quota_reported).ok(),
            quota_reported,
            max_txn_operations: unsigned(&texts, "max-txn-ops")? as usize,
            max_request_bytes: unsigned(&texts, "max-request-bytes")? as usize,
            max_concurrent_streams: streams(&texts)?,
            keepalive_min_time: duration(&texts, "grpc-keepalive-min-time")?,
            keepalive_interval: duration(&texts, "grpc-keepalive-interval")?,
            keepalive_timeout: duration(&texts, "grpc-keepalive-timeout")?,
            reuse_port: boolean(&texts, "socket-reuse-port")?,
            reuse_address: boolean(&texts, "socket-reuse-address")?,
            pre_vote: boolean(&texts, "pre-vote")?,
            progress_interval: progress_interval(&texts)?,
            auto_compaction: auto_compaction(&texts)?,
            unsafe_no_fsync: boolean(&texts, "unsafe-no-fsync")?,
            log_level: texts.get("log-level").to_string(),
            log_json: texts.get("log-format") == "json",
            log_to_stdout: outputs.iter().any(|output| output == "stdout"),
            cores: unsigned(&texts, "cores")? as usize,
            memory_budget: memory_budget(texts.get("memory-budget"))
                .map_err(|problem| ConfigError::new(format!("--memory-budget: {problem}")))?,
            wal_writer: WalWriter::from_text(texts.get("wal-writer"))?,
            wal_pad_batches: boolean(&texts, "wal-pad-batches")?,
            force_new_cluster: boolean(&texts, "force-new-cluster")?,
            corrupt_check_time: duration(&texts, "corrupt-check-time")?,
            compact_hash_check_time: duration(&texts, "compact-hash-check-time")?,
            gates: texts.gates,
            warnings: texts.warnings,
        })
    }
}

/// Where the data and the log are.
fn directories(texts: &Texts, name: &str) -> (PathBuf, PathBuf) {
    let data_directory = match texts.get("data-dir") {
        "" => PathBuf::from(format!("{name}.etcd")),
        directory => PathBuf::from(directory),
    };
    let wal_directory = match texts.get("wal-dir") {
        "" => data_directory.join("member").join("wal"),
        directory => PathBuf::from(directory),
    };
    (data_directory, wal_directory)
}

fn memory_budget(text: &str) -> Result<u64, String> {
    match values::bytes(text)? {
        bytes @ 1..MEMORY_BUDGET_MIN => Err(format!(
            "{bytes} bytes are too few to run with; give at least {}MiB, or 0 for half of what there is",
            MEMORY_BUDGET_MIN >> 20
        )),
        bytes => Ok(bytes),
    }
}

/// The rules between flags that etcd checks (`etcd-surface` 3.1).
fn check_relations(texts: &Texts) -> Result<(), ConfigError> {
    let wrong = |message: String| Err(ConfigError::new(message));
    if texts.is_set("listen-client-urls") && !texts.is_set("advertise-client-urls") {
        return wrong("--advertise-client-urls is required when --listen-client-urls is set explicitly".to_string());
    }
    let (heartbeat, election) = (
        unsigned(texts, "heartbeat-interval")?,
        unsigned(texts, "election-timeout")?,
    );
    if heartbeat == 0 {
        return wrong("--heartbeat-interval must be >0 (set to 0ms)".to_string());
    }
    if election == 0 {
        return wrong("--election-timeout must be >0 (set to 0ms)".to_string());
    }
    if heartbeat.saturating_mul(5) > election {
        return wrong(format!(
            "--election-timeout[{election}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat}ms]"
        ));
    }
    if election > 50_000 {
        return wrong(format!(
            "--election-timeout[{election}ms] is too long, and should be set less than 50000ms"
        ));
    }
    for (name, allowed) in [
        (
            "log-level",
            &["debug", "info", "warn", "error", "dpanic", "panic", "fatal"][..],
        ),
        ("log-format", &["json", "console"][..]),
        ("auto-compaction-mode", &["periodic", "revision"][..]),
        ("metrics", &["basic", "extensive"][..]),
    ] {
        if !allowed.contains(&texts.get(name)) {
            return wrong(format!(
                "--{name}: {:?} is none of {}",
                texts.get(name),
                allowed.join(", ")
            ));
        }
    }
    if duration(texts, "compact-hash-check-time")? == Duration::ZERO {
        let set = texts.get("compact-hash-check-time");
        return wrong(format!("--compact-hash-check-time must be >0 (set to {set})"));
    }
    for output in values::list(texts.get("log-outputs")) {
        if !["default", "stderr", "stdout"].contains(&output.as_str()) {
            return wrong(format!(
                "--log-outputs: {output:?} is not built yet; use default, stderr or stdout"
            ));
        }
    }
    for name in ["max-txn-ops", "max-request-bytes", "max-concurrent-streams"] {
        if unsigned(texts, name)? == 0 {
            return wrong(format!("--{name} must be above 0"));
        }
    }
    Ok(())
}

fn urls(texts: &Texts, name: &str) -> Result<Vec<Url>, ConfigError> {
    let parsed = values::list(texts.get(name))
        .into_iter()
        .map(|text| values::url(&text))
        .collect::<Result<_, _>>();
    parsed.map_err(|problem| ConfigError::new(format!("--{name}: {problem}")))
}

/// URLs to listen on, which name addresses of this machine.
fn listened(texts: &Texts, name: &str) -> Result<Vec<Url>, ConfigError> {
    let urls = urls(texts, name)?;
    let named = urls.iter().find(|url| !url.is_bindable());
    match named {
        Some(url) => Err(ConfigError::new(format!(
            "--{name}: expected IP in URL for binding ({}); give an address of this machine, localhost, or 0.0.0.0 for \
             all of them",
            url.text
        ))),
        None => Ok(urls),
    }
}

fn integer(texts: &Texts, name: &str) -> Result<i64, ConfigError> {
    let text = texts.get(name);
    text.parse()
        .map_err(|_| ConfigError::new(format!("--{name}: {text:?} is not a whole number")))
}

fn unsigned(texts: &Texts, name: &str) -> Result<u64, ConfigError> {
    u64::try_from(integer(texts, name)?)
        .map_err(|_| ConfigError::new(format!("--{name}: {} must not be negative", texts.get(name))))
}

fn progress_interval(texts: &Texts) -> Result<Duration, ConfigError> {
    let interval = duration(texts, "watch-progress-notify-interval")?;
    Ok(if interval.is_zero() {
        Duration::from_secs(600)
    } else {
        interval
    })
}

fn streams(texts: &Texts) -> Result<u32, ConfigError> {
    u32::try_from(unsigned(texts, "max-concurrent-streams")?)
        .map_err(|_| ConfigError::new("--max-concurrent-streams must be below 2^32".to_string()))
}

fn duration(texts: &Texts, name: &str) -> Result<Duration, ConfigError> {
    values::duration(texts.get(name)).map_err(|problem| ConfigError::new(format!("--{name}: {problem}")))
}

fn auto_compaction(texts: &Texts) -> Result<AutoCompaction, ConfigError> {
    let retention = texts.get("auto-compaction-retention");
    AutoCompaction::parse(texts.get("auto-compaction-mode"), retention)
        .map_err(|problem| ConfigError::new(format!("--auto-compaction-retention: {problem}")))
}

fn boolean(texts: &Texts, name: &str) -> Result<bool, ConfigError> {
    values::boolean(texts.get(name)).map_err(|problem| ConfigError::new(format!("--{name}: {problem}")))
}

/// The help text: every flag with its default and one line, and what is not to be expected of it.
pub fn help() -> String {
    let mut text = String::from(
        "Usage:\n\n  ringd [flags]\n      Start one member.\n\n  ringd --version\n  ringd --help\n\nFlags:\n\n",
    );
    for flag in flags::FLAGS {
        let default = if flag.default.is_empty() { "''" } else { flag.default };
        let mark = match flag.handling {
            Handling::Used => "",
            Handling::Tuning => " [no effect]",
            Handling::Refused => " [refused for now]",
        };
        text.push_str(&format!("  --{} {default}\n      {}{mark}\n", flag.name, flag.help));
    }
    text
}

/// The four lines of `--version`.
pub fn version() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "etcd Version: {ETCD_VERSION}\nGit SHA: ringd-{}\nGo Version: go0.0 (Rust)\nGo OS/Arch: linux/{architecture}\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &[&str]) -> Result<Config, String> {
        match parse::read(arguments.iter().map(|a| a.to_string()), []) {
            Ok(parse::Request::Start(texts)) => Config::from_texts(texts).map_err(|error| error.to_string()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn defaults_are_etcds() {
        let config = config(&[]).unwrap();
        assert_eq!(config.data_directory, PathBuf::from("default.etcd"));
        assert_eq!(config.wal_directory, PathBuf::from("default.etcd/member/wal"));
        assert_eq!(config.quota_reported, 2147483648);
        assert_eq!(config.max_request_bytes, 1_572_864);
        assert_eq!(config.election_timeout, Duration::from_secs(1));
        assert_eq!(config.progress_interval, Duration::from_secs(600));
    }

    #[test]
    fn relations_between_flags() {
        let error = config(&["--heartbeat-interval=300"]).unwrap_err();
        assert_eq!(
            error,
            "--election-timeout[1000ms] should be at least as 5 times as --heartbeat-interval[300ms]"
        );
        let error = config(&["--listen-client-urls=http://127.0.0.1:1"]).unwrap_err();
        assert!(error.contains("--advertise-client-urls is required"), "{error}");
        let error = config(&["--listen-peer-urls=https://127.0.0.1:1"]).unwrap_err();
        assert!(error.contains("TLS"), "{error}");
        for (flag, expected) in [
            ("--initial-cluster=default=http://localhost:2390", "make them equal"),
            ("--initial-cluster=b=http://localhost:2380", "does not name this member"),
            (
                "--initial-cluster=default=http://localhost:2380,b=http://localhost:2380",
                "twice",
            ),
            ("--initial-cluster=default", "not of the form"),
            ("--initial-cluster-state=old", "none of new, existing"),
        ] {
            let error = config(&[flag]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let two = config(&["--initial-cluster=default=http://localhost:2380,b=http://localhost:2390"]).unwrap();
        assert_eq!(two.initial_cluster.members.len(), 2);
        let others: Vec<_> = two.initial_cluster.others("default").collect();
        assert_eq!(others, ["http://localhost:2390"]);
        assert!(config(&["--log-level=loud"]).is_err());
        let error = config(&["--compact-hash-check-time=0s"]).unwrap_err();
        assert_eq!(error, "--compact-hash-check-time must be >0 (set to 0s)");
    }

    #[test]
    fn with_a_log_the_initial_cluster_is_nobodys_business() {
        let directory = tempfile::tempdir().unwrap();
        let wal_directory = directory.path().join("member").join("wal");
        std::fs::create_dir_all(&wal_directory).unwrap();
        let data_directory = format!("--data-dir={}", directory.path().display());
        let stale = [
            "--initial-cluster=default=http://localhost:2390",
            "--initial-cluster=b=http://localhost:2380",
            "--initial-cluster=default=http://localhost:2380,b=http://localhost:2380",
            "--initial-cluster=default",
        ];
        for flag in stale {
            config(&[&data_directory, flag]).unwrap_err();
        }
        std::fs::write(wal_directory.join("0000000000000000-0000000000000000.wal"), "").unwrap();
        for flag in stale {
            let config = config(&[&data_directory, flag, "--name=new"]).unwrap();
            assert_eq!((config.name.as_str(), config.initial_cluster.members.len()), ("new", 0));
        }
        // These don't depend on what is there.
        let both = [
            "--discovery-srv=example.com",
            "--initial-cluster=default=http://localhost:2380",
        ];
        for flags in [&["--initial-cluster-state=old"][..], &both] {
            config(&[&[data_directory.as_str()], flags].concat()).unwrap_err();
        }
    }

    #[test]
    fn help_marks_what_does_nothing_and_what_is_refused() {
        let help = help();
        for flag in flags::FLAGS {
            let start = format!("  --{} ", flag.name);
            let mut lines = help.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
            let line = lines.next().unwrap();
            let (refused, idle) = (line.ends_with(" [refused for now]"), line.ends_with(" [no effect]"));
            assert_eq!(refused, flag.handling == Handling::Refused, "{line}");
            assert_eq!(idle, flag.handling == Handling::Tuning, "{line}");
        }
    }

    #[test]
    fn only_addresses_are_listened_on() {
        for name in ["listen-peer-urls", "listen-metrics-urls", "listen-client-http-urls"] {
            let error = config(&[&format!("--{name}=http://example.com:80")]).unwrap_err();
            let expected = format!("--{name}: expected IP in URL for binding (http://example.com:80)");
            assert!(error.starts_with(&expected), "{error}");
            for host in ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"] {
                assert!(config(&[&format!("--{name}=http://{host}:80")]).is_ok(), "{host}");
            }
        }
    }

    #[test]
    fn no_quota_below_zero() {
        assert_eq!(config(&["--quota-backend-bytes=-1"]).unwrap().quota_bytes, None);
        assert_eq!(config(&["--quota-backend-bytes=100"]).unwrap().quota_bytes, Some(100));
    }

    #[test]
    fn a_memory_budget_is_none_or_enough() {
        assert_eq!(config(&[]).unwrap().memory_budget, 0);
        assert_eq!(config(&["--memory-budget=64MiB"]).unwrap().memory_budget, 64 << 20);
        let error = config(&["--memory-budget=63MiB"]).unwrap_err();
        assert!(error.contains("--memory-budget: 66060288 bytes are too few"), "{error}");
    }
}
