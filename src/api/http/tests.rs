//! Paths, queries and the words of health, without a server.

use super::*;
use crate::proto::etcdserverpb::{AlarmMember, AlarmType};
use crate::state::members::Member;
use std::time::Duration;

fn request(method: &str, target: &str) -> http1::Request {
    let mut connection = http1::Connection::new(0, Duration::ZERO);
    connection.receive(
        format!("{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes(),
        Duration::ZERO,
    );
    match connection.next_event() {
        Some(http1::Event::Request(request)) => request,
        other => panic!("{other:?}"),
    }
}

fn answer(offer: Offer, method: &str, target: &str) -> Response {
    match route(offer, &request(method, target)) {
        Route::Answer(response) => response,
        Route::Page(page) => panic!("{target} leads to {page:?}"),
    }
}

fn page(target: &str) -> Page {
    match route(Offer::Metrics, &request("GET", target)) {
        Route::Page(page) => page,
        Route::Answer(response) => panic!("{target} leads to {response:?}"),
    }
}

#[test]
fn paths_lead_where_they_do_in_etcd() {
    let health = |excluded: &[&str], serializable| Page::Health {
        excluded: excluded.iter().map(|name| name.to_string()).collect(),
        serializable,
    };
    assert_eq!(page("/health"), health(&[], false));
    assert_eq!(page("http://a:1/health?serializable=true"), health(&[], true));
    assert_eq!(page("/%68ealth?serializable=1"), health(&[], false));
    assert_eq!(
        page("/health?exclude=NOSPACE&exclude=&exclude=%43ORRUPT&a;b&exclude=%zz"),
        health(&["NOSPACE", "CORRUPT"], false)
    );
    let checks = |kind, checks: &[Check], verbose| Page::Checks {
        kind,
        checks: checks.to_vec(),
        verbose,
    };
    assert_eq!(page("/livez"), checks(Kind::Live, &[Check::SerializableRead], false));
    assert_eq!(
        page("/readyz?verbose&exclude=linearizable_read&exclude=x"),
        checks(
            Kind::Ready,
            &[Check::DataCorruption, Check::SerializableRead, Check::NonLearner],
            true
        )
    );
    assert_eq!(
        page("/readyz/non_learner?exclude=non_learner"),
        checks(Kind::Ready, &[Check::NonLearner], false)
    );
    for unknown in [
        "/",
        "/livez/non_learner",
        "/livez/",
        "/readyzx",
        "/Health",
        "/version",
        "/v3/kv/put",
    ] {
        let response = answer(Offer::Metrics, "GET", unknown);
        assert_eq!(
            (response.status, &*response.body),
            (404, "404 page not found\n"),
            "{unknown}"
        );
    }
    assert_eq!(
        route(Offer::Client, &request("GET", "/version")),
        Route::Page(Page::Version)
    );
}

#[test]
fn methods_are_kept_to() {
    for method in ["POST", "HEAD", "PUT"] {
        let response = answer(Offer::Client, method, "/readyz");
        assert_eq!((response.status, &*response.body), (405, "Method Not Allowed\n"));
        assert!(response.fields.contains(&("Allow", "GET".into())));
    }
    let response = answer(Offer::Client, "OPTIONS", "/whatever");
    assert_eq!((response.status, &*response.body), (200, ""));
    assert_eq!(answer(Offer::Metrics, "OPTIONS", "/health").status, 405);
}

#[test]
fn unclean_paths_are_redirected() {
    let location = |response: &Response| {
        let field = response.fields.iter().find(|(name, _)| *name == "Location");
        field.map(|(_, value)| value.to_string())
    };
    let table = [
        ("//health", "/health"),
        ("/livez/../health", "/health"),
        ("/./a//b/?x=1&y", "/a/b/?x=1&y"),
        ("/../..", "/"),
        ("//%22", "/%22"),
    ];
    for (target, expected) in table {
        let response = answer(Offer::Metrics, "GET", target);
        assert_eq!((response.status, location(&response).as_deref()), (307, Some(expected)));
    }
    let response = answer(Offer::Metrics, "GET", "//h?a=1&b=2");
    assert_eq!(response.body, "<a href=\"/h?a=1&amp;b=2\">Temporary Redirect</a>.\n\n");
    assert_eq!(answer(Offer::Metrics, "POST", "//h").body, "");
}

fn status(alarms: &[AlarmType], leader: u64) -> MemberStatus {
    let alarms = alarms.iter().map(|alarm| AlarmMember {
        member_id: 7,
        alarm: *alarm as i32,
    });
    MemberStatus {
        leader,
        alarms: alarms.collect(),
        ..Default::default()
    }
}

#[test]
fn health_names_what_is_wrong() {
    let excluded = ["NOSPACE".to_string()];
    let table: [(MemberStatus, &[String], bool, Option<&str>); 7] = [
        (status(&[], 7), &[], false, None),
        (status(&[], 0), &[], false, Some("RAFT NO LEADER")),
        (status(&[], 0), &[], true, None),
        (status(&[AlarmType::Nospace], 0), &[], false, Some("ALARM NOSPACE")),
        (status(&[AlarmType::Nospace], 7), &excluded, false, None),
        (
            status(&[AlarmType::Nospace, AlarmType::Corrupt], 7),
            &excluded,
            true,
            Some("ALARM CORRUPT"),
        ),
        (status(&[AlarmType::None], 7), &[], true, Some("ALARM UNKNOWN")),
    ];
    for (status, excluded, serializable, expected) in table {
        assert_eq!(health::problem(&status, excluded, serializable).as_deref(), expected);
    }
    assert_eq!(health::response(None).body, r#"{"health":"true","reason":""}"#);
    let response = health::response(Some("ALARM NOSPACE".to_string()));
    assert_eq!(response.status, 503);
    assert_eq!(response.body, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n");
}

fn ready(status: Result<&MemberStatus, Failure>, verbose: bool) -> Response {
    let checks = Kind::Ready.checks().iter();
    let results: Vec<_> = checks.map(|check| (*check, check.run(7, status))).collect();
    health::checked(Kind::Ready, &results, verbose)
}

#[test]
fn checks_tell_what_failed() {
    let good = status(&[AlarmType::Nospace], 7);
    assert_eq!(ready(Ok(&good), false).body, "ok\n");
    assert_eq!(
        ready(Ok(&good), true).body,
        "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n"
    );
    let mut bad = status(&[AlarmType::Corrupt], 0);
    bad.members.push(Member {
        id: 7,
        is_learner: true,
        ..Default::default()
    });
    let response = ready(Ok(&bad), false);
    assert_eq!(response.status, 503);
    assert_eq!(
        response.body,
        "[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read ok\n[-]linearizable_read failed: \
         etcdserver: no leader\n[-]non_learner failed: not supported for learner\n\n"
    );
    let response = ready(Err("etcdserver: request timed out"), false);
    assert!(
        response
            .body
            .contains("[+]serializable_read ok\n[-]linearizable_read failed: etcdserver: request timed out")
    );
}

#[test]
fn peers_are_offered_what_peers_ask() {
    for (target, expected) in [("/version", Page::Version), ("/members", Page::Members)] {
        assert_eq!(route(Offer::Peer, &request("GET", target)), Route::Page(expected));
        assert_eq!(answer(Offer::Peer, "POST", target).status, 405);
        assert_eq!(answer(Offer::Peer, "OPTIONS", target).status, 405);
    }
    for target in ["/health", "/metrics", "/readyz", "/members/", "/raft", "/v3/kv/put"] {
        assert_eq!(answer(Offer::Peer, "GET", target).status, 404, "{target}");
    }
    assert_eq!(answer(Offer::Client, "GET", "/members").status, 404);
}
