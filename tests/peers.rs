//! What a member tells its peers, on the URLs of `--listen-peer-urls`; where the programs to compare with are built
//! (feature `blackbox`), answer for answer against etcd.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::http::request;
use support::server::{Part, Program, Server};

#[test]
fn peers_are_told_version_and_members() {
    let server = Server::start(Program::Ringd, &[]);
    let peers = server.peer_address();
    let version = request(&peers, "GET", "/version");
    assert_eq!(
        version.body,
        r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#
    );
    let members = request(&peers, "GET", "/members");
    assert_eq!(members.status, 200);
    assert_eq!(members.field("content-type"), Some("application/json"));
    let cluster = members.field("x-etcd-cluster-id").expect("the cluster's id");
    assert!(u64::from_str_radix(cluster, 16).is_ok_and(|id| id != 0), "{cluster}");
    let list: serde_json::Value = serde_json::from_str(&members.body).expect("JSON");
    assert_eq!(list[0]["name"], "default");
    assert_eq!(list[0]["peerURLs"][0], "http://127.0.0.1:2380");
    assert_eq!(list[0]["clientURLs"][0], "http://127.0.0.1:2379");
    assert!(list[0]["id"].is_u64() && list[1].is_null(), "{list}");
    // What clients are offered is not offered here, and the other way round.
    for path in ["/health", "/readyz", "/metrics", "/", "/members/"] {
        assert_eq!(request(&peers, "GET", path).status, 404, "{path}");
    }
    assert_eq!(request(&server.address(), "GET", "/members").status, 404);
    // No client's HTTP/2 either.
    support::block_on(async {
        let put = support::etcd::put("a", "b");
        let channel = support::grpc::Channel::connect(&peers).await.expect("a connection");
        let refused = channel.call::<ringd::proto::etcdserverpb::PutResponse>(support::etcd::PUT, &put);
        assert!(refused.await.is_err());
    });
}

/// Waits until a server's log says something.
fn wait_for(server: &Server, said: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !server
        .log()
        .lines()
        .any(|line| said.iter().all(|said| line.contains(said)))
    {
        assert!(Instant::now() < deadline, "no {said:?} in {}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A peer that can't be reached is told from one that answers and knows nothing of this member.
#[test]
fn a_peer_that_refuses_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let other = listener.local_addr().expect("its address");
    let ends = Arc::new(AtomicBool::new(false));
    let refusing = std::thread::spawn({
        let ends = ends.clone();
        move || {
            for stream in listener.incoming().take_while(|_| !ends.load(Ordering::SeqCst)) {
                let mut stream = stream.expect("a connection");
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        }
    });
    let mut server = Server::prepare(Program::Ringd, &["--cores=1", "--memory-budget=64MiB"]);
    server.set_part(Part {
        name: "one".to_string(),
        members: format!("one=http://{},two=http://{other}", server.peer_address()),
        joins: false,
    });
    server.spawn().expect("it starts");
    wait_for(
        &server,
        &["peer is there and refuses this member", "it does not know this member"],
    );
    ends.store(true, Ordering::SeqCst);
    let _ = TcpStream::connect(other);
    refusing.join().expect("it ends");
    wait_for(&server, &["peer can't be reached", "connecting to"]);
}

#[cfg(feature = "blackbox")]
#[test]
fn peers_are_answered_as_etcd_does() {
    let [ours, theirs] = [Program::Ringd, Program::Reference].map(|program| Server::start(program, &[]));
    for target in [
        "/version",
        "/members",
        "/members?a=b",
        "/members/",
        "/downgrade/enabled",
        "/downgrade/enabled/",
        "//members",
        "/a/../version",
        "/health",
        "/livez",
        "/readyz",
        "/metrics",
        "/",
        "/v2/keys",
        "/v3/kv/range",
    ] {
        for method in ["GET", "POST", "PUT", "OPTIONS", "HEAD"] {
            let [ours, theirs] =
                [&ours, &theirs].map(|server| request(&server.peer_address(), method, target).comparable());
            assert_eq!(ours, theirs, "{method} {target}");
        }
    }
}

/// What members ask the leader: requests by hand, with their bodies.
#[cfg(feature = "blackbox")]
#[test]
fn questions_to_the_leader_are_answered_as_etcd_does() {
    use prost::Message;
    use ringd::proto::etcdserverpb::{
        LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseTimeToLiveRequest,
    };
    use ringd::proto::leasepb::LeaseInternalRequest;

    let servers = [Program::Ringd, Program::Reference].map(|program| Server::start(program, &[]));
    for server in &servers {
        support::block_on(async {
            let channel = support::grpc::Channel::connect(&server.address())
                .await
                .expect("a connection");
            let request = LeaseGrantRequest { ttl: 90, id: 5 };
            let granted = channel
                .call::<LeaseGrantResponse>(support::etcd::LEASE_GRANT, &request)
                .await;
            assert_eq!(granted.map(|granted| granted.id), Ok(5));
        });
    }
    let renew = |id| LeaseKeepAliveRequest { id }.encode_to_vec();
    let left = |id, keys| {
        let asked = Some(LeaseTimeToLiveRequest { id, keys });
        LeaseInternalRequest {
            lease_time_to_live_request: asked,
        }
        .encode_to_vec()
    };
    let cases: [(&str, &str, Vec<u8>); 14] = [
        ("POST", "/leases", renew(5)),
        ("POST", "/leases", renew(6)),
        ("POST", "/leases", vec![0xff]),
        ("POST", "/leases", vec![0; 70_000]),
        ("GET", "/leases", vec![]),
        ("POST", "/leases/internal", left(6, false)),
        ("POST", "/leases/internal", vec![0xff]),
        ("PUT", "/leases/internal", vec![]),
        ("POST", "/leases/other", vec![]),
        ("POST", "/members/promote/12", vec![]),
        ("POST", "/members/promote/x", vec![]),
        ("POST", "/members/promote/-1", vec![]),
        ("POST", "/members/promote/", vec![]),
        ("GET", "/members/promote/12", vec![]),
    ];
    let mut differences = Vec::new();
    for (method, target, body) in cases {
        let [ours, theirs] = [&servers[0], &servers[1]].map(|server| {
            let address = server.peer_address();
            let length = body.len();
            let mut request = format!(
                "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
            )
            .into_bytes();
            request.extend_from_slice(&body);
            support::http::answer_to(&address, method, &request).comparable()
        });
        if ours != theirs {
            let length = body.len();
            differences.push(format!(
                "{method} {target} with {length} bytes:\n ours   {ours:?}\n theirs {theirs:?}"
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
