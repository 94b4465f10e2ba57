//! The plain HTTP endpoints and the log's form, of the program itself; where the programs to compare with are built
//! (feature `blackbox`), answer for answer against etcd.

mod support;

use ringd::proto::etcdserverpb as pb;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::etcd;
use support::grpc::Channel;
use support::server::{Program, Server};

/// An answer, its fields by lower-case name.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    fields: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(found, _)| found == name)?;
        Some(value)
    }
}

/// One request on a connection of its own.
fn request(address: &str, method: &str, target: &str) -> Answer {
    let text = exchange(
        address,
        format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    let text = String::from_utf8(text).expect("an answer in UTF-8");
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head in {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(": ").expect("a field");
        (name.to_ascii_lowercase(), value.to_string())
    });
    Answer {
        status: status.parse().expect("a number"),
        fields: fields.collect(),
        body: body.to_string(),
    }
}

fn exchange(address: &str, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    stream.write_all(sent).expect("the request is sent");
    let mut answer = Vec::new();
    // A reset is an answer, too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

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
    ports: [u16; 3],
    _directory: tempfile::TempDir,
}

impl Listeners {
    fn start() -> Listeners {
        let directory = tempfile::tempdir().expect("a directory");
        let sockets = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = sockets.map(|socket| socket.local_addr().expect("its address").port());
        let [client, http, metrics] = ports;
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
        format!("127.0.0.1:{}", self.ports[at])
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

#[cfg(feature = "blackbox")]
mod compared {
    use super::*;

    /// What may differ: the time, the way the length is told, and the order of fields and checks.
    fn comparable(mut answer: Answer) -> Answer {
        let varies = ["date", "content-length", "transfer-encoding", "connection"];
        answer.fields.retain(|(name, _)| !varies.contains(&name.as_str()));
        answer.fields.sort();
        let mut lines: Vec<&str> = answer.body.split('\n').collect();
        lines.sort_unstable();
        answer.body = lines.join("\n");
        answer
    }

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
                    [&ours, &theirs].map(|server| comparable(request(&server.address(), method, target)));
                assert_eq!(ours, theirs, "{method} {target}");
            }
        }
    }
}
