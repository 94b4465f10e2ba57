//! HTTP/1.1 on the port of gRPC.

use super::*;
use crate::net::Speaks;

/// Answers a request that was taken over with the length of its body, and ends the connection.
pub async fn count_body(stream: Stream, mut connection: http::http1::Connection) {
    // Longer than what is kept in memory for services.
    connection.set_max_body(1 << 20);
    let mut length = 0;
    loop {
        match connection.next_event() {
            Some(http::http1::Event::Body(part)) => length += part.len(),
            Some(http::http1::Event::End) => break,
            Some(http::http1::Event::Request(_)) => panic!("the request was handed over"),
            None => connection.receive(&stream.receive().await.unwrap(), Duration::ZERO),
        }
    }
    connection.shutdown();
    connection.respond(200, &[], length.to_string().as_bytes()).unwrap();
    let output = connection.take_output(Vec::new(), Duration::ZERO);
    stream.write_all(&output).await.unwrap();
}

/// Sends `request`, ends the sending side if `half_close`, and reads to the end.
fn exchange(server: &Server, request: &str, half_close: bool) -> String {
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    if half_close {
        socket.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn http1_requests_are_answered_on_the_same_port() {
    let server = Server::start(options());
    let close = "Connection: close\r\n\r\n";
    let answer = exchange(
        &server,
        &format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n{close}hello"),
        false,
    );
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"),
        "{answer}"
    );
    assert!(answer.contains("X-Method: POST\r\n"), "{answer}");
    let two = format!("GET /later HTTP/1.1\r\nHost: x\r\n\r\nGET /parts HTTP/1.1\r\nHost: x\r\n{close}");
    let answer = exchange(&server, &two, false);
    assert!(
        answer.contains("later") && answer.ends_with("3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"),
        "{answer}"
    );
    // A peer that has nothing more to say still gets its answer.
    let answer = exchange(&server, "GET /later HTTP/1.1\r\nHost: x\r\n\r\n", true);
    assert!(answer.ends_with("later"), "{answer}");
    let answer = exchange(&server, "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", true);
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let large = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n";
    assert!(exchange(&server, large, false).starts_with("HTTP/1.1 413"));
    server.stop();
}

#[test]
fn the_service_learns_that_an_http1_peer_is_gone() {
    let server = Server::start(options());
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.write_all(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let began = Instant::now();
    while server.seen.turns.load(Ordering::Relaxed) == 0 {
        assert!(began.elapsed() < BOUND);
    }
    server.stop_now();
    drop(socket);
}

#[test]
fn a_listener_for_one_protocol_speaks_no_other() {
    let speaking = |speaks| {
        Server::start(Options {
            listeners: Arc::new([speaks]),
            ..options()
        })
    };
    let grpc = speaking(Speaks::Grpc);
    assert_eq!(exchange(&grpc, "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", false), "");
    with_client(&grpc, |client| async move { drop(client) });
    grpc.stop();
    let http1 = speaking(Speaks::Http1);
    let preface = exchange(&http1, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true);
    assert!(preface.starts_with("HTTP/1.1 505"), "{preface}");
    let answer = exchange(&http1, "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", true);
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    http1.stop();
}

#[test]
fn the_service_takes_connections_of_peers_over() {
    let server = Server::start(Options {
        listeners: Arc::new([Speaks::Http1]),
        ..options()
    });
    let body = "x".repeat(100_000);
    let take = format!("POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{body}");
    assert!(exchange(&server, &take, false).ends_with("\r\n\r\n100000"));
    // Behind one that is answered here, now and later.
    for first in ["/echo", "/later"] {
        let two = format!("GET {first} HTTP/1.1\r\nHost: x\r\n\r\n{take}");
        let answer = exchange(&server, &two, false);
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
        assert!(answer.ends_with("\r\n\r\n100000"), "{answer}");
    }
    let large = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n";
    assert!(exchange(&server, large, false).starts_with("HTTP/1.1 413"));
    server.stop();
}
