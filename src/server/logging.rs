//! Log lines as etcd's logger (zap) writes them (`etcd-surface` 7.1): people and programs search them by their form.
//!
//! JSON: one object a line, `level`, `ts`, `caller` and `msg` first, then the event's fields. Console: the same parts
//! with tabs between them and the fields as an object at the end. Times are in UTC.

use crate::config::{Config, ETCD_VERSION};
use crate::http::date::Civil;
use crate::reactor::roles::Roles;
use crate::server::budget::Budget;
use std::fmt::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Sends the process's log where the flags say. To be called once.
pub fn start(config: &Config) {
    let level = match config.log_level.as_str() {
        "debug" => LevelFilter::DEBUG,
        "warn" => LevelFilter::WARN,
        "error" | "dpanic" | "panic" | "fatal" => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    };
    let to_stdout = config.log_to_stdout;
    let writer = move || -> Box<dyn std::io::Write> {
        if to_stdout {
            Box::new(std::io::stdout())
        } else {
            Box::new(std::io::stderr())
        }
    };
    // Of a line that could not be written it would speak on standard error, and panic if that is on the full disk, too.
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_max_level(level)
        .with_writer(writer)
        .event_format(Format { json: config.log_json })
        .init();
}

/// Tells the configuration, under the names and in the line in which etcd tells it.
pub fn tell_configuration(config: &Config) {
    let list = |urls: &[crate::config::values::Url]| {
        let texts: Vec<&str> = urls.iter().map(|url| url.text.as_str()).collect();
        texts.join(",")
    };
    tracing::info!(
        "etcd-version" = ETCD_VERSION,
        "ringd-version" = env!("CARGO_PKG_VERSION"),
        name = config.name,
        "data-dir" = %config.data_directory.display(),
        "wal-dir" = %config.wal_directory.display(),
        "heartbeat-interval" = ?config.heartbeat_interval,
        "election-timeout" = ?config.election_timeout,
        "max-wals" = config.max_wals,
        "snapshot-catchup-entries" = config.catchup_entries,
        "initial-advertise-peer-urls" = config.advertise_peer_urls.join(","),
        "listen-peer-urls" = list(&config.listen_peer_urls),
        "advertise-client-urls" = config.advertise_client_urls.join(","),
        "listen-client-urls" = list(&config.listen_client_urls),
        "listen-client-http-urls" = list(&config.listen_client_http_urls),
        "listen-metrics-urls" = list(&config.listen_metrics_urls),
        "initial-cluster-token" = config.cluster_token,
        "quota-backend-bytes" = config.quota_reported,
        "max-request-bytes" = config.max_request_bytes,
        "max-txn-ops" = config.max_txn_operations,
        "max-concurrent-streams" = config.max_concurrent_streams,
        "pre-vote" = config.pre_vote,
        "unsafe-no-fsync" = config.unsafe_no_fsync,
        cores = config.cores,
        "memory-budget" = config.memory_budget,
        "starting an etcd server"
    );
}

/// Tells which CPUs are used for what, and the shares of the memory budget in bytes, under README's names. The
/// configuration only says what was asked for.
pub fn tell_resources(roles: &Roles, budget: &Budget) {
    let log_core = &budget.log_core;
    let serving: Vec<_> = roles.serve.iter().map(|role| role.cpus.cpus()).collect();
    tracing::info!(
        cores = roles.cores(),
        "log-cpus" = ?roles.log.cpus.cpus(),
        "serve-cpus" = ?serving,
        "memory-budget" = budget.total,
        "event-window" = log_core.window,
        "not-stored-yet" = 2 * log_core.unstored_max,
        index = log_core.index_max,
        "page-caches" = budget.page_caches,
        "log-core-page-caches" = 2 * log_core.cache,
        proposals = log_core.pending_max,
        answers = budget.answers,
        requests = budget.requests,
        "long-reads" = budget.reads,
        "cores and memory to use"
    );
}

/// The form of a line.
struct Format {
    json: bool,
}

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _context: &FmtContext<'_, S, N>, writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut fields = Fields {
            separators: if self.json { (",", ":") } else { (", ", ": ") },
            ..Default::default()
        };
        event.record(&mut fields);
        self.write(writer, now, event, &fields)
    }
}

impl Format {
    fn write(&self, mut out: Writer<'_>, now: Duration, event: &Event<'_>, fields: &Fields) -> fmt::Result {
        let metadata = event.metadata();
        let level = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG | Level::TRACE => "debug",
        };
        let time = timestamp(now);
        let caller = format!("{}:{}", short(metadata.file()), metadata.line().unwrap_or(0));
        let Fields { message, members, .. } = fields;
        if self.json {
            let (caller, message) = (quoted(&caller), quoted(message));
            write!(
                out,
                r#"{{"level":"{level}","ts":"{time}","caller":{caller},"msg":{message}"#
            )?;
            if !members.is_empty() {
                write!(out, ",{members}")?;
            }
            return writeln!(out, "}}");
        }
        write!(out, "{time}\t{level}\t{caller}\t{message}")?;
        if !members.is_empty() {
            write!(out, "\t{{{members}}}")?;
        }
        writeln!(out)
    }
}

/// A file's name with the directory it is in.
fn short(file: Option<&str>) -> &str {
    let file = file.unwrap_or("ringd");
    let start = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    &file[start..]
}

/// RFC 3339 with up to six digits of a second's fraction, of which zeros at the end are left out.
fn timestamp(since_1970: Duration) -> String {
    let Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
        ..
    } = Civil::from_unix(since_1970.as_secs());
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    let fraction = format!(".{:06}", since_1970.subsec_micros());
    text.push_str(fraction.trim_end_matches('0').trim_end_matches('.'));
    text.push('Z');
    text
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// An event's fields on their way into a line.
#[derive(Default)]
struct Fields {
    message: String,
    /// Members of an object, without its braces.
    members: String,
    /// Between members, and between name and value.
    separators: (&'static str, &'static str),
}

impl Fields {
    fn push(&mut self, field: &Field, value: impl fmt::Display) {
        let (between, colon) = self.separators;
        if !self.members.is_empty() {
            self.members.push_str(between);
        }
        // A string takes all of it.
        let _ = write!(self.members, "{}{colon}{value}", quoted(field.name()));
    }

    fn push_text(&mut self, field: &Field, text: &str) {
        if field.name() == "message" {
            self.message = text.to_string();
        } else {
            self.push(field, quoted(text));
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push_text(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push_text(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.push_text(field, &value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.push(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.push(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.push(field, value);
        } else {
            self.push_text(field, &value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// The lines that `act` logs.
    fn logged(json: bool, act: impl FnOnce()) -> Vec<String> {
        struct Sink(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = bytes.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_writer(move || Sink(sink.clone()))
            .event_format(Format { json })
            .finish();
        tracing::subscriber::with_default(subscriber, act);
        let text = String::from_utf8(bytes.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_string).collect()
    }

    #[test]
    fn lines_are_objects_with_etcds_keys_first() {
        let error = std::io::Error::other("no \"luck\"\n");
        let lines = logged(true, || {
            tracing::info!("ready");
            tracing::warn!(
                number = -3,
                many = 7u64,
                yes = true,
                half = 0.5,
                odd = f64::NAN,
                text = "tab\tquote\"",
                shown = %"a\\b",
                debugged = ?Duration::from_millis(100),
                error = &error as &dyn std::error::Error,
                "snapshot-catchup-entries" = 1000,
                "two\nlines {}", 1
            );
            tracing::trace!(x = 1);
        });
        let time = r#""ts":""#;
        assert!(
            lines[0].starts_with(&format!(r#"{{"level":"info",{time}"#)),
            "{}",
            lines[0]
        );
        assert!(lines[0].ends_with(r#","msg":"ready"}"#), "{}", lines[0]);
        assert!(lines[0].contains(r#"Z","caller":"server/logging.rs:"#), "{}", lines[0]);
        let start = lines[1].find(r#""msg""#).unwrap();
        assert_eq!(
            &lines[1][start..],
            concat!(
                r#""msg":"two\nlines 1","number":-3,"many":7,"yes":true,"half":0.5,"odd":"NaN","text":"tab\tquote\"","#,
                r#""shown":"a\\b","debugged":"100ms","error":"no \"luck\"\n","snapshot-catchup-entries":1000}"#
            )
        );
        assert!(lines[1].starts_with(r#"{"level":"warn","#));
        assert!(lines[2].contains(r#""level":"debug""#) && lines[2].ends_with(r#""msg":"","x":1}"#));
        for line in &lines {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(object["ts"].is_string() && object["caller"].is_string());
        }
    }

    #[test]
    fn the_console_has_columns() {
        let lines = logged(false, || {
            tracing::error!(file = "a", line = 7, "it broke");
            tracing::info!("fine");
        });
        let columns: Vec<&str> = lines[0].split('\t').collect();
        assert_eq!(columns[1], "error");
        assert!(columns[0].ends_with('Z') && columns[2].starts_with("server/logging.rs:"));
        assert_eq!(columns[3..], ["it broke", r#"{"file": "a", "line": 7}"#]);
        assert_eq!(lines[1].split('\t').count(), 4);
    }

    #[test]
    fn times_and_callers_are_short() {
        let table = [
            (1_796_024_534_541_411_999, "2026-11-30T07:42:14.541411Z"),
            (1_796_024_534_541_400_000, "2026-11-30T07:42:14.5414Z"),
            (1_796_024_534_000_000_999, "2026-11-30T07:42:14Z"),
        ];
        for (ns, expected) in table {
            assert_eq!(timestamp(Duration::from_nanos(ns)), expected);
        }
        assert_eq!(short(Some("/a/b/src/server/mod.rs")), "server/mod.rs");
        assert_eq!(short(Some("src/main.rs")), "src/main.rs");
        assert_eq!(short(Some("main.rs")), "main.rs");
    }
}
