//! What a member tells its peers, on the URLs of `--listen-peer-urls`; where the programs to compare with are built
//! (feature `blackbox`), answer for answer against etcd.

mod support;

use support::http::request;
use support::server::{Program, Server};

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

#[cfg(feature = "blackbox")]
#[test]
fn peers_are_answered_as_etcd_does() {
    let [ours, theirs] = [Program::Ringd, Program::Reference].map(|program| Server::start(program, &[]));
    for target in [
        "/version",
        "/members",
        "/members?a=b",
        "/members/",
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
