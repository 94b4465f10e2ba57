//! Tests of HTTP/1.1 connections.

use super::*;
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(1);

fn connection() -> Connection {
    Connection::new(1000, NOW)
}

fn events(connection: &mut Connection, bytes: &[u8]) -> Vec<Event> {
    connection.receive(bytes, NOW);
    std::iter::from_fn(|| connection.next_event()).collect()
}

fn output(connection: &mut Connection) -> String {
    String::from_utf8(connection.take_output(Vec::new(), NOW)).unwrap()
}

fn request(events: &[Event]) -> &Request {
    match &events[0] {
        Event::Request(request) => request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_come_one_at_a_time() {
    let mut connection = connection();
    let two =
        b"GET /health?serializable=true HTTP/1.1\r\nHost: a\r\nX-Y:  z \r\n\r\nHEAD /b HTTP/1.1\r\nHost: a\r\n\r\n";
    let found = events(&mut connection, two);
    assert_eq!(found.len(), 2, "{found:?}");
    let first = request(&found);
    assert_eq!(
        (first.method.as_str(), first.path(), first.query()),
        ("GET", "/health", "serializable=true")
    );
    assert_eq!(first.get("x-y"), Some(&b"z"[..]));
    assert_eq!(found[1], Event::End);
    assert!(!connection.wants_read(), "one request at a time");
    connection
        .respond(200, &[("Content-Type", "text/plain")], b"ok\n")
        .unwrap();
    assert_eq!(connection.respond(200, &[], b""), Err(ResponseError::NoRequest));
    assert_eq!(
        output(&mut connection),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"
    );
    let found = events(&mut connection, b"");
    assert_eq!(request(&found).path(), "/b");
    connection.respond(200, &[], b"ok\n").unwrap();
    assert_eq!(
        output(&mut connection),
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        "HEAD has no body"
    );
    assert!(!connection.is_closed() && connection.is_idle());
}

#[test]
fn bodies_of_known_length_and_in_chunks() {
    let mut connection = connection();
    let found = events(
        &mut connection,
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab",
    );
    assert_eq!(found[1..], [Event::Body(Bytes::from_static(b"ab"))]);
    let found = events(&mut connection, b"cde");
    assert_eq!(found, [Event::Body(Bytes::from_static(b"cde")), Event::End]);
    connection.respond(204, &[], b"").unwrap();
    assert_eq!(output(&mut connection), "HTTP/1.1 204 No Content\r\n\r\n");
    let chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
        3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nT: v\r\n\r\n";
    let found = events(&mut connection, chunked);
    let bodies = [
        Event::Body(Bytes::from_static(b"abc")),
        Event::Body(Bytes::from_static(b"0123456789")),
        Event::End,
    ];
    assert_eq!(found[1..], bodies);
}

#[test]
fn connections_are_kept_or_closed_as_asked() {
    for (head, keeps, line) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n", true, ""),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n",
            false,
            "Connection: close\r\n",
        ),
        ("GET / HTTP/1.0\r\n", false, "Connection: close\r\n"),
        (
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n",
            true,
            "Connection: keep-alive\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n",
            false,
            "Connection: close\r\n",
        ),
    ] {
        let mut connection = connection();
        events(&mut connection, format!("{head}\r\n").as_bytes());
        connection.respond(200, &[], b"").unwrap();
        assert_eq!(
            output(&mut connection),
            format!("HTTP/1.1 200 OK\r\n{line}Content-Length: 0\r\n\r\n"),
            "{head}"
        );
        assert_eq!(!connection.is_closed(), keeps, "{head}");
    }
}

#[test]
fn a_response_may_come_in_parts() {
    let mut connection = connection();
    events(&mut connection, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(connection.send_part(b"x"), Err(ResponseError::NotStreaming));
    connection.start_response(200, &[]).unwrap();
    assert_eq!(connection.start_response(200, &[]), Err(ResponseError::Begun));
    connection.send_part(b"0123456789abcdef").unwrap();
    connection.send_part(b"").unwrap();
    connection.finish_response().unwrap();
    assert_eq!(
        output(&mut connection),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
    );
    assert!(!connection.is_closed());
    let mut connection = Connection::new(0, NOW);
    events(&mut connection, b"GET / HTTP/1.0\r\n\r\n");
    connection.start_response(200, &[]).unwrap();
    connection.send_part(b"abc").unwrap();
    connection.finish_response().unwrap();
    assert_eq!(
        output(&mut connection),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"
    );
    assert!(connection.is_closed());
}

#[test]
fn a_client_that_waits_for_leave_gets_it() {
    let mut connection = connection();
    events(
        &mut connection,
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
    );
    assert_eq!(output(&mut connection), "HTTP/1.1 100 Continue\r\n\r\n");
}

#[test]
fn broken_requests_are_answered_and_end_the_connection() {
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n", "x".repeat(HTTP1_HEAD_BYTES));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(200));
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let chunked = with("Transfer-Encoding: chunked\r\n");
    for (bytes, status) in [
        ("\x16\x03\x01\r\n\r\n".to_string(), 400),
        ("GET /\r\n\r\n".to_string(), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_string(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_string(), 400),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_string(), 505),
        (with("A : b\r\n"), 400),
        (with("A: b\r\n c\r\n"), 400),
        (with("Content-Length: 1\r\nContent-Length: 2\r\n"), 400),
        (with("Content-Length: +1\r\n"), 400),
        (with("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400),
        (with("Transfer-Encoding: gzip, chunked\r\n"), 501),
        (with("Content-Length: 1001\r\n"), 413),
        (format!("{chunked}3e9\r\n"), 413),
        (format!("{chunked}3e8\r\n{}\r\n1\r\n", "x".repeat(1000)), 413),
        (format!("{chunked}x\r\n"), 400),
        (format!("{chunked}\r\n"), 400),
        (format!("{chunked}1\r\nab\r\n"), 400),
        (format!("{chunked}1\n"), 400),
        (format!("{chunked}{}", "0".repeat(5000)), 400),
        (format!("{chunked}0\r\n{}", "a: b\r\n".repeat(2000)), 400),
        (long, 431),
        (many, 431),
    ] {
        let mut connection = connection();
        events(&mut connection, bytes.as_bytes());
        let start: String = bytes.chars().take(120).collect();
        let answer = output(&mut connection);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{start:?}: {answer:?}"
        );
        assert!(connection.is_closed(), "{start:?}");
        assert_eq!(events(&mut connection, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), []);
    }
}

#[test]
fn a_value_cannot_begin_another_field() {
    let mut connection = connection();
    events(&mut connection, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    connection.respond(200, &[("A", "b\r\nC: d")], b"").unwrap();
    assert!(output(&mut connection).contains("A: b  C: d\r\n"));
}

#[test]
fn targets_of_every_form() {
    for (target, path, query) in [
        ("/a?b?c", "/a", "b?c"),
        ("http://h:1/a?b", "/a", "b"),
        ("http://h", "/", ""),
        ("*", "*", ""),
        ("/a?u=x://y", "/a", "u=x://y"),
    ] {
        let mut connection = connection();
        let found = events(
            &mut connection,
            format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(),
        );
        assert_eq!((request(&found).path(), request(&found).query()), (path, query));
    }
}

#[test]
fn slow_heads_and_unread_responses_end_the_connection() {
    let later = |seconds| NOW + Duration::from_secs(seconds);
    let mut connection = connection();
    connection.on_timer(later(100_000));
    assert!(!connection.is_closed(), "idle is fine");
    connection.receive(b"GET", later(100_000));
    assert_eq!(connection.next_event(), None);
    connection.on_timer(later(100_000 + HTTP1_HEAD_SECONDS - 1));
    assert!(!connection.is_closed());
    connection.on_timer(later(100_000 + HTTP1_HEAD_SECONDS));
    assert!(connection.is_closed());
    let mut connection = Connection::new(0, NOW);
    events(&mut connection, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    connection.respond(200, &[], b"").unwrap();
    connection.on_timer(later(HTTP_STALL_SECONDS));
    assert!(connection.is_closed());
}

#[test]
fn a_shutdown_lets_the_last_response_out() {
    let mut idle = connection();
    idle.shutdown();
    assert!(idle.is_closed());
    let mut busy = connection();
    events(&mut busy, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    busy.shutdown();
    assert!(!busy.is_closed());
    busy.respond(200, &[], b"").unwrap();
    assert!(output(&mut busy).contains("Connection: close"));
    assert!(busy.is_closed());
}

proptest! {
    #[test]
    fn events_do_not_depend_on_how_bytes_are_cut(cuts in proptest::collection::vec(1usize..40, 1..20)) {
        let bytes = b"\r\nPOST /a?b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n";
        let mut connection = connection();
        let (mut body, mut position, mut ended) = (Vec::new(), 0, false);
        for cut in cuts.iter().cycle() {
            let end = (position + cut).min(bytes.len());
            for event in events(&mut connection, &bytes[position..end]) {
                match event {
                    Event::Request(request) => prop_assert_eq!(request.path(), "/a"),
                    Event::Body(part) => body.extend_from_slice(&part),
                    Event::End => ended = true,
                }
            }
            position = end;
            if end == bytes.len() {
                break;
            }
        }
        prop_assert!(ended);
        prop_assert_eq!(body, b"abcdefgh");
    }
}
