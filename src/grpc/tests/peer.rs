//! The `h2` crate as the transport of an independent caller.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::calls::framed;
use crate::grpc::{CallId, Code, Config, Connection, Event, Status};
use crate::http as transport;

/// Serves `/t.S/Unary` (reverses its message), `/t.S/Echo` (each message of a stream), `/t.S/Count` (a stream of as
/// many messages as asked for) until the pipe ends.
async fn serve(mut pipe: DuplexStream) {
    let now = Duration::from_secs(1);
    let http = transport::Connection::new(Arc::new(transport::Config::default()), now);
    let config = Config {
        max_message: 5_000_000,
        plain_http: false,
    };
    let mut server = Connection::new(http, Arc::new(config));
    let mut methods = std::collections::HashMap::new();
    let mut buffer = BytesMut::new();
    loop {
        loop {
            while let Some(event) = server.next_event() {
                on(&mut server, event, &mut methods);
            }
            let output = server.take_output(Vec::new(), now);
            if pipe.write_all(&output).await.is_err() {
                return;
            }
            if output.is_empty() {
                break;
            }
        }
        buffer.reserve(10_000);
        match pipe.read_buf(&mut buffer).await {
            Ok(1..) => server.receive(buffer.split().freeze(), now),
            _ => return,
        }
    }
}

fn on(server: &mut Connection, event: Event, methods: &mut std::collections::HashMap<CallId, String>) {
    match event {
        Event::Started { call, .. } => {
            let (service, method) = server.request().method().unwrap();
            let status = match (service, method) {
                ("t.S", "Unary" | "Echo" | "Count") => {
                    methods.insert(call, method.to_string());
                    return;
                }
                ("t.S", method) => Status::unknown_method(method, service),
                _ => Status::unknown_service(service),
            };
            server.finish(call, &status).unwrap();
        }
        Event::Message { call, message, last } => match methods[&call].as_str() {
            "Unary" => {
                let reversed: Vec<u8> = message.iter().rev().copied().collect();
                server
                    .reply(call, reversed.len(), |out| out.extend_from_slice(&reversed))
                    .unwrap();
            }
            "Count" => {
                for number in 0..u16::from_be_bytes([message[0], message[1]]) {
                    server
                        .send_message(call, Bytes::copy_from_slice(&number.to_be_bytes()))
                        .unwrap();
                }
                server.finish(call, &Status::new(Code::OutOfRange, "no more")).unwrap();
            }
            _ => {
                server.send_message(call, message).unwrap();
                if last {
                    server.finish(call, &Status::OK).unwrap();
                }
            }
        },
        Event::HalfClosed { call } => server.finish(call, &Status::OK).unwrap(),
        Event::Cancelled { .. } => {}
        other => panic!("{other:?}"),
    }
}

fn with_caller<F: Future<Output = ()>>(test: impl FnOnce(SendRequest<Bytes>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let (near, far) = tokio::io::duplex(20_000);
        tokio::task::spawn_local(serve(far));
        let (client, connection) = h2::client::handshake(near).await.unwrap();
        tokio::task::spawn_local(async move { drop(connection.await) });
        tokio::time::timeout(Duration::from_secs(30), test(client))
            .await
            .expect("the conversation hangs");
    });
}

fn request(method: &str) -> Request<()> {
    let request = Request::post(format!("http://host{method}"));
    request
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}

/// Sends messages, and returns the bytes of the answer, `grpc-status` and `grpc-message`.
async fn call(client: &SendRequest<Bytes>, method: &str, messages: &[&[u8]]) -> (Vec<u8>, String, String) {
    let mut client = client.clone().ready().await.unwrap();
    let (response, mut send) = client.send_request(request(method), false).unwrap();
    for message in messages {
        // A refusal may have come already.
        let _ = send.send_data(Bytes::from(framed(message)), false);
    }
    let _ = send.send_data(Bytes::new(), true);
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        bytes.extend_from_slice(&part);
    }
    let end = body.trailers().await.unwrap().unwrap_or(head.headers);
    let text = |name| end.get(name).map_or("", |value| value.to_str().unwrap()).to_string();
    (bytes, text("grpc-status"), text("grpc-message"))
}

fn answer(bytes: Vec<u8>, code: &str, message: &str) -> (Vec<u8>, String, String) {
    (bytes, code.into(), message.into())
}

#[test]
fn unary_streaming_and_unknown_calls() {
    with_caller(|client| async move {
        for _ in 0..100 {
            assert_eq!(
                call(&client, "/t.S/Unary", &[b"abc"]).await,
                answer(framed(b"cba"), "0", "")
            );
        }
        let three: [&[u8]; 3] = [b"one", b"", b"three"];
        let echoed = three.iter().flat_map(|message| framed(message)).collect();
        assert_eq!(call(&client, "/t.S/Echo", &three).await, answer(echoed, "0", ""));
        assert_eq!(call(&client, "/t.S/Echo", &[]).await, answer(vec![], "0", ""));
        let counted = (0..20_000u16)
            .flat_map(|number| framed(&number.to_be_bytes()))
            .collect();
        let count = call(&client, "/t.S/Count", &[&20_000u16.to_be_bytes()]).await;
        assert_eq!(count, answer(counted, "11", "no more"));
        let unknown = call(&client, "/t.S/Nothing", &[b"x"]).await;
        assert_eq!(unknown, answer(vec![], "12", "unknown method Nothing for service t.S"));
        assert_eq!(
            call(&client, "/x/y", &[]).await,
            answer(vec![], "12", "unknown service x")
        );
    });
}

#[test]
fn a_large_message_goes_there_and_back_beside_small_ones() {
    with_caller(|client| async move {
        let large: Vec<u8> = (0..4_000_000usize).map(|i| (i % 241) as u8).collect();
        let mut reversed = large.clone();
        reversed.reverse();
        let (one, other): ([&[u8]; 1], [&[u8]; 1]) = ([&large], [b"ab"]);
        let (big, small) = futures::join!(call(&client, "/t.S/Unary", &one), call(&client, "/t.S/Unary", &other));
        assert!(big == answer(framed(&reversed), "0", ""));
        assert_eq!(small.0, framed(b"ba"));
        let (_, code, message) = call(&client, "/t.S/Unary", &[&vec![0; 5_000_001]]).await;
        assert_eq!(
            (&code[..], &message[..]),
            ("8", "grpc: received message larger than max (5000001 vs. 5000000)")
        );
    });
}

#[test]
fn both_sides_of_a_stream_talk_in_turns() {
    with_caller(|client| async move {
        let mut client = client.ready().await.unwrap();
        let (response, mut send) = client.send_request(request("/t.S/Echo"), false).unwrap();
        send.send_data(Bytes::from(framed(b"first")), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), framed(b"first"));
        for round in 0..50u8 {
            send.send_data(Bytes::from(framed(&[round])), false).unwrap();
            assert_eq!(body.data().await.unwrap().unwrap(), framed(&[round]));
        }
        send.send_data(Bytes::new(), true).unwrap();
        assert!(body.data().await.is_none());
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    });
}
