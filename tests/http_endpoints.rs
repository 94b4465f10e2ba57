//! The plain HTTP endpoints and the log's form, of the program itself; where the programs to compare with are built
//! (feature `blackbox`), answer for answer against etcd.

mod support;

use ringd::proto::etcdserverpb as pb;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::etcd;
use support::grpc::Channel;
use support::http::{Answer, exchange, request};
use support::server::{Program, Server, ports::Port};

fn get(server: &Server, target: &str) -> Answer {
    request(&server.address(), "GET", target)
}

/// The value of a series, labels included in its name.
fn series(page: &str, name: &str) -> f64 {
    let line = page
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no series {name}"));
    line[name.len() + 1..].parse().expect("a number")
}

#[test]
fn endpoints_answer() {
    let server = Server::start(Program::Ringd, &[]);
    let version = get(&server, "/version");
    assert_eq!(
        version.body,
        r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#
    );
    assert_eq!(version.field("content-type"), Some("application/json"));
    assert!(version.field("date").is_some_and(|date| date.ends_with(" GMT")));
    let health = get(&server, "/health?serializable=true");
    assert_eq!(
        (health.status, &*health.body),
        (200, r#"{"health":"true","reason":""}"#)
    );
    for path in [
        "/livez",
        "/livez/serializable_read",
        "/readyz",
        "/readyz/linearizable_read",
    ] {
        let answer = get(&server, path);
        assert_eq!((answer.status, &*answer.body), (200, "ok\n"), "{path}");
    }
    assert_eq!(get(&server, "/nothing").status, 404);
    assert_eq!(request(&server.address(), "POST", "/health").status, 405);
    // One connection, requests behind each other, the second without a body to its answer.
    let two = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nHEAD /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answers = String::from_utf8(exchange(&server.address(), two.as_bytes())).expect("UTF-8");
    assert!(answers.contains("\r\n\r\nok\nHTTP/1.1 404"), "{answers}");
    assert!(answers.ends_with("\r\n\r\n"), "{answers}");
}

#[test]
fn alarms_make_it_unhealthy() {
    let server = Server::start(Program::Ringd, &[]);
    let set = |alarm: pb::AlarmType, action: pb::alarm_request::AlarmAction| {
        support::block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            let request = pb::AlarmRequest {
                action: action as i32,
                member_id: 1,
                alarm: alarm as i32,
            };
            let response: pb::AlarmResponse = channel.call(etcd::ALARM, &request).await.expect("an alarm");
            assert_eq!(response.alarms.len(), 1);
        });
    };
    use pb::alarm_request::AlarmAction::{Activate, Deactivate};
    set(pb::AlarmType::Nospace, Activate);
    let health = get(&server, "/health");
    assert_eq!(
        (health.status, &*health.body),
        (503, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n")
    );
    assert_eq!(get(&server, "/health?exclude=NOSPACE").status, 200);
    assert_eq!(get(&server, "/readyz").status, 200);
    set(pb::AlarmType::Corrupt, Activate);
    let ready = get(&server, "/readyz");
    assert_eq!(ready.status, 503);
    assert!(
        ready
            .body
            .starts_with("[-]data_corruption failed: alarm activated: CORRUPT\n")
    );
    assert_eq!(get(&server, "/readyz?exclude=data_corruption").status, 200);
    assert_eq!(get(&server, "/livez").status, 200);
    set(pb::AlarmType::Corrupt, Deactivate);
    set(pb::AlarmType::Nospace, Deactivate);
    assert_eq!(get(&server, "/health").status, 200);
}

/// A server on three kinds of listeners, which `support` can't start: its client port has no HTTP.
struct Listeners {
    child: Child,
    ports: [Port; 3],
    _directory: tempfile::TempDir,
}

impl Listeners {
    fn start() -> Listeners {
        let directory = tempfile::tempdir().expect("a directory");
        let ports = [(); 3].map(|()| Port::reserve());
        let [client, http, metrics] = ports.each_ref().map(Port::number);
        let child = Command::new(Program::Ringd.path())
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .arg(format!("--listen-client-urls=http://127.0.0.1:{client}"))
            .arg(format!("--advertise-client-urls=http://127.0.0.1:{client}"))
            .arg(format!("--listen-client-http-urls=http://127.0.0.1:{http}"))
            .arg(format!("--listen-metrics-urls=http://127.0.0.1:{metrics}"))
            .arg("--listen-peer-urls=http://127.0.0.1:0")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ringd starts");
        let listeners = Listeners {
            child,
            ports,
            _directory: directory,
        };
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(listeners.address(2)).is_err() {
            assert!(Instant::now() < until, "ringd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        listeners
    }

    fn address(&self, at: usize) -> String {
        format!("127.0.0.1:{}", self.ports[at].number())
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_listener_offers_what_is_its_own() {
    let listeners = Listeners::start();
    let [client, http, metrics] = [0, 1, 2].map(|at| listeners.address(at));
    assert_eq!(request(&metrics, "GET", "/health").status, 200);
    assert_eq!(request(&metrics, "GET", "/version").status, 404);
    assert_eq!(
        request(&metrics, "GET", "/readyz").field("access-control-allow-origin"),
        None
    );
    assert_eq!(request(&http, "GET", "/version").status, 200);
    assert_eq!(
        request(&http, "GET", "/readyz").field("access-control-allow-origin"),
        Some("*")
    );
    assert_eq!(exchange(&client, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), b"");
    support::block_on(async {
        let channel = Channel::connect(&client).await.expect("a connection");
        let _: pb::PutResponse = channel.call(etcd::PUT, &etcd::put("a", "b")).await.expect("a put");
        let channel = Channel::connect(&http).await.expect("a connection");
        assert!(
            channel
                .call::<pb::PutResponse>(etcd::PUT, &etcd::put("a", "b"))
                .await
                .is_err()
        );
    });
}

/// The lines of a log that are objects, and the first four of their keys.
fn log_lines(log: &str) -> Vec<(serde_json::Value, Vec<String>)> {
    let keys = |line: &str| {
        let parts = line.split('"').skip(1).step_by(4).take(4);
        parts.map(str::to_string).collect()
    };
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines = lines.map(|line| (serde_json::from_str(line).expect("JSON"), keys(line)));
    lines.collect()
}

#[test]
fn logs_have_etcds_form() {
    let mut server = Server::start(Program::Ringd, &["--log-level=info", "--snapshot-catchup-entries=1000"]);
    assert!(server.stop().success());
    let log = server.log();
    assert!(log.contains(r#""snapshot-catchup-entries":1000"#), "{log}");
    let lines = log_lines(&log);
    assert_eq!(lines.len(), log.lines().count(), "{log}");
    let messages: Vec<_> = lines.iter().filter_map(|(line, _)| line["msg"].as_str()).collect();
    for expected in ["starting an etcd server", "ready to serve client requests"] {
        assert!(messages.contains(&expected), "{expected}: {log}");
    }
    for (line, keys) in &lines {
        assert_eq!(keys[..], ["level", "ts", "caller", "msg"], "{line}");
        assert!(line["ts"].as_str().is_some_and(|time| time.ends_with('Z')));
    }
}

/// What a few requests of every kind change in the metrics.
const COUNTED: &[&str] = &[
    "etcd_mvcc_put_total",
    "etcd_mvcc_delete_total",
    "etcd_mvcc_range_total",
    "etcd_mvcc_txn_total",
    "etcd_debugging_mvcc_keys_total",
    "etcd_debugging_mvcc_current_revision",
    "etcd_debugging_mvcc_total_put_size_in_bytes",
    "etcd_debugging_lease_granted_total",
    "etcd_debugging_lease_renewed_total",
    "etcd_debugging_lease_revoked_total",
    "etcd_debugging_lease_ttl_total_sum",
    r#"etcd_debugging_lease_ttl_total_bucket{le="64"}"#,
    r#"etcd_server_request_duration_seconds_count{success="true",type="Put"}"#,
    r#"etcd_server_request_duration_seconds_count{success="true",type="DeleteRange"}"#,
    r#"etcd_server_request_duration_seconds_count{success="true",type="Compaction"}"#,
    r#"etcd_server_request_duration_seconds_count{success="true",type="LeaseGrant"}"#,
];

/// The same of gRPC's families: family, status if it has that label, service, method.
const COUNTED_CALLS: &[(&str, &str, &str, &str)] = &[
    ("grpc_server_started_total", "", "etcdserverpb.KV", "Put"),
    ("grpc_server_handled_total", "OK", "etcdserverpb.KV", "Put"),
    ("grpc_server_handled_total", "InvalidArgument", "etcdserverpb.KV", "Put"),
    ("grpc_server_handled_total", "OutOfRange", "etcdserverpb.KV", "Range"),
    ("grpc_server_msg_received_total", "", "etcdserverpb.KV", "Put"),
    ("grpc_server_msg_sent_total", "", "etcdserverpb.KV", "Put"),
    ("grpc_server_msg_sent_total", "", "etcdserverpb.Lease", "LeaseKeepAlive"),
    (
        "grpc_server_msg_received_total",
        "",
        "etcdserverpb.Lease",
        "LeaseKeepAlive",
    ),
    (
        "grpc_server_handled_total",
        "OK",
        "etcdserverpb.Lease",
        "LeaseKeepAlive",
    ),
];

fn counted_names() -> Vec<String> {
    let calls = COUNTED_CALLS.iter().map(|(family, code, service, method)| {
        let code = if code.is_empty() {
            String::new()
        } else {
            format!("grpc_code=\"{code}\",")
        };
        let kind = if *method == "LeaseKeepAlive" {
            "bidi_stream"
        } else {
            "unary"
        };
        format!("{family}{{{code}grpc_method=\"{method}\",grpc_service=\"{service}\",grpc_type=\"{kind}\"}}")
    });
    COUNTED.iter().map(|name| name.to_string()).chain(calls).collect()
}

/// Puts (one refused), reads (one refused), deletes, a transaction, leases, a compaction.
async fn requests(channel: &Channel) {
    let put: pb::PutResponse = channel.call(etcd::PUT, &etcd::put("a", "one")).await.expect("a put");
    let overwriting = pb::PutRequest {
        prev_kv: true,
        ..etcd::put("a", "two")
    };
    let _: pb::PutResponse = channel.call(etcd::PUT, &overwriting).await.expect("a put");
    assert_eq!(channel.unary(etcd::PUT, Default::default(), &[]).await.status.code, 3);
    let _: pb::RangeResponse = channel.call(etcd::RANGE, &etcd::get("a")).await.expect("a read");
    let future = pb::RangeRequest {
        revision: put.header.expect("a header").revision + 1000,
        ..etcd::get("a")
    };
    let refused = channel.call::<pb::RangeResponse>(etcd::RANGE, &future).await;
    assert_eq!(refused.expect_err("a future revision").code, 11);
    let txn = pb::TxnRequest {
        compare: vec![
            etcd::mod_revision_is("b", 0),
            etcd::mod_revision_is("a", put.header.expect("a header").revision + 1),
        ],
        success: vec![
            etcd::operation(pb::request_op::Request::RequestPut(etcd::put("b", "three"))),
            etcd::operation(pb::request_op::Request::RequestRange(etcd::get("a"))),
            etcd::operation(pb::request_op::Request::RequestDeleteRange(etcd::delete("c"))),
        ],
        ..Default::default()
    };
    let txn: pb::TxnResponse = channel.call(etcd::TXN, &txn).await.expect("a transaction");
    for key in ["a", "nothing"] {
        let _: pb::DeleteRangeResponse = channel
            .call(etcd::DELETE_RANGE, &etcd::delete(key))
            .await
            .expect("a delete");
    }
    let lease = pb::LeaseGrantRequest { id: 77, ttl: 60 };
    let _: pb::LeaseGrantResponse = channel.call(etcd::LEASE_GRANT, &lease).await.expect("a lease");
    let mut stream = channel.stream(etcd::LEASE_KEEP_ALIVE, &[]).await.expect("a stream");
    for _ in 0..2 {
        stream
            .send(&pb::LeaseKeepAliveRequest { id: 77 })
            .expect("a keep-alive");
        let renewed: pb::LeaseKeepAliveResponse = stream.next().await.expect("renewed").expect("an answer");
        assert_eq!(renewed.ttl, 60);
    }
    stream.finish_sending().expect("the end");
    assert_eq!(stream.next_raw().await.expect("status OK"), None);
    let lease = pb::LeaseRevokeRequest { id: 77 };
    let _: pb::LeaseRevokeResponse = channel.call(etcd::LEASE_REVOKE, &lease).await.expect("a revocation");
    let compaction = pb::CompactionRequest {
        revision: txn.header.expect("a header").revision,
        physical: true,
    };
    let _: pb::CompactionResponse = channel.call(etcd::COMPACT, &compaction).await.expect("a compaction");
}

/// How much the requests changed what is counted; a series that was not there before was 0.
fn counted(server: &Server) -> Vec<(String, f64)> {
    let before = get(server, "/metrics").body;
    support::block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        requests(&channel).await;
    });
    let after = get(server, "/metrics").body;
    let change = |name: String| {
        let was_there = before.contains(&format!("\n{name} "));
        let old = if was_there { series(&before, &name) } else { 0.0 };
        let change = series(&after, &name) - old;
        (name, change)
    };
    counted_names().into_iter().map(change).collect()
}

/// Names and kinds of the families of a page.
fn families(page: &str) -> Vec<(&str, &str)> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines.filter_map(|line| line.split_once(' ')).collect()
}

#[test]
fn metrics_tell_what_happened() {
    let server = Server::start(Program::Ringd, &[]);
    let change = counted(&server);
    let of = |name: &str| change.iter().find(|(found, _)| *found == name).expect("counted").1;
    assert_eq!(of("etcd_mvcc_put_total"), 3.0);
    assert_eq!(of("etcd_mvcc_delete_total"), 3.0);
    assert_eq!(of("etcd_debugging_mvcc_keys_total"), 1.0);
    assert_eq!(of("etcd_debugging_mvcc_total_put_size_in_bytes"), 14.0);
    let answer = get(&server, "/metrics");
    assert_eq!(
        answer.field("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8; escaping=underscores")
    );
    let page = &answer.body;
    for (name, value) in [
        ("etcd_server_has_leader", 1.0),
        ("etcd_server_is_leader", 1.0),
        ("etcd_server_is_learner", 0.0),
        ("etcd_server_proposals_pending", 0.0),
        (r#"etcd_server_version{server_version="3.7.1"}"#, 1.0),
        (r#"etcd_cluster_version{cluster_version="3.7"}"#, 1.0),
        ("etcd_debugging_mvcc_compact_revision", 4.0),
        ("etcd_debugging_mvcc_db_compaction_keys_total", 1.0),
        ("promhttp_metric_handler_requests_total{code=\"200\"}", 2.0),
    ] {
        assert_eq!(series(page, name), value, "{name}");
    }
    for positive in [
        "etcd_server_leader_changes_seen_total",
        "etcd_disk_wal_fsync_duration_seconds_count",
        "etcd_disk_wal_write_bytes_total",
        "etcd_mvcc_db_total_size_in_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
        "etcd_debugging_mvcc_db_compaction_last",
        r#"ringd_request_duration_seconds_sum{success="true",type="Put"}"#,
    ] {
        assert!(series(page, positive) > 0.0, "{positive}");
    }
    let mut names: Vec<_> = families(page).into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "a family stands twice");
    // A put takes microseconds more than nothing, and less than seconds even on a loaded machine.
    let below = |bound: &str| {
        let name = r#"ringd_request_duration_seconds_bucket{success="true",type="Put",le=""#;
        series(page, &format!("{name}{bound}\"}}"))
    };
    assert_eq!((below("7.8125e-06"), below("16.384")), (0.0, 2.0));
}

#[cfg(feature = "blackbox")]
mod compared {
    use super::*;

    #[test]
    fn endpoints_answer_as_etcd_does() {
        let [ours, theirs] = [Program::Ringd, Program::Reference].map(|program| Server::start(program, &[]));
        let targets = [
            "/version",
            "/health",
            "/health?exclude=NOSPACE&serializable=true",
            "/health?%zz",
            "/%68ealth",
            "/health/",
            "/livez",
            "/livez?verbose",
            "/livez?exclude=serializable_read&verbose",
            "/livez/serializable_read?verbose",
            "/livez/nothing",
            "/livez/",
            "/readyz",
            "/readyz?verbose=1",
            "/readyz?verbose&exclude=nothing&exclude=data_corruption",
            "/readyz/non_learner?verbose",
            "/",
            "//health?a=b&c=d",
            "/a/../health",
            "/./nothing/",
            "/nothing",
            "/v2/keys",
        ];
        for target in targets {
            for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
                let [ours, theirs] =
                    [&ours, &theirs].map(|server| request(&server.address(), method, target).comparable());
                assert_eq!(ours, theirs, "{method} {target}");
            }
        }
    }

    #[test]
    fn metrics_count_as_etcd_does() {
        let [ours, theirs] = [Program::Ringd, Program::Reference].map(|program| Server::start(program, &[]));
        assert_eq!(counted(&ours), counted(&theirs));
        let [ours, theirs] = [ours, theirs].map(|server| get(&server, "/metrics").body);
        let theirs = families(&theirs);
        for (name, kind) in families(&ours)
            .into_iter()
            .filter(|(name, _)| !name.starts_with("ringd_") && !name.starts_with("etcd_grpc_proxy"))
        {
            let found = theirs.iter().find(|(found, _)| *found == name);
            assert_eq!(found.map(|(_, kind)| *kind), Some(kind), "{name}");
        }
    }

    #[test]
    fn logs_are_read_like_etcds() {
        for program in [Program::Ringd, Program::Reference] {
            let server = Server::start(program, &["--log-level=info"]);
            let until = Instant::now() + Duration::from_secs(30);
            // Health may be told a moment before the log tells it.
            let (line, keys) = loop {
                let mut lines = log_lines(&server.log()).into_iter();
                if let Some(ready) = lines.find(|(line, _)| line["msg"] == "ready to serve client requests") {
                    break ready;
                }
                assert!(Instant::now() < until, "{program:?} does not tell that it is ready");
                std::thread::sleep(Duration::from_millis(20));
            };
            assert_eq!(keys[..], ["level", "ts", "caller", "msg"], "{program:?}");
            assert_eq!(line["level"], "info");
        }
    }
}
