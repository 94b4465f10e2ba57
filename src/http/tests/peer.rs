//! The `h2` crate as an independent client, over a pipe in memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use http::{HeaderMap, Method, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::http::{CloseReason, Config, Connection, ErrorCode, Event, Field, StreamKey};

/// A server that does what the path says.
struct Server {
    connection: Connection,
    bodies: HashMap<u64, (Vec<u8>, Kind)>,
    /// Bytes still to be produced for each `/produce/N`.
    producing: HashMap<u64, usize>,
    seen: Rc<RefCell<Seen>>,
}

#[derive(Default)]
struct Seen {
    resets: Vec<ErrorCode>,
    most_streams: usize,
    most_buffered: usize,
    closed: Option<CloseReason>,
    shutdown: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Echo,
    Produce(usize),
    Refuse,
    Hang,
}

impl Server {
    async fn serve(mut self, mut pipe: DuplexStream) {
        let start = Instant::now();
        let mut buffer = BytesMut::new();
        loop {
            loop {
                while let Some(event) = self.connection.next_event() {
                    self.on(event);
                }
                let output = self.connection.take_output(Vec::new(), start.elapsed());
                self.note();
                if pipe.write_all(&output).await.is_err() || self.connection.closed().is_some() {
                    return;
                }
                if output.is_empty() {
                    break;
                }
            }
            buffer.reserve(10_000);
            let read = tokio::time::timeout(Duration::from_millis(20), pipe.read_buf(&mut buffer)).await;
            if self.seen.borrow().shutdown {
                self.connection.shutdown(start.elapsed());
            }
            match read {
                Ok(Ok(1..)) => self.connection.receive(buffer.split().freeze(), start.elapsed()),
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    fn note(&mut self) {
        let mut seen = self.seen.borrow_mut();
        seen.most_streams = seen.most_streams.max(self.connection.stream_count());
        seen.most_buffered = seen.most_buffered.max(self.connection.buffered_bytes());
        seen.closed = self.connection.closed();
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Request { stream, end } => {
                let path = std::str::from_utf8(self.connection.request().path())
                    .unwrap()
                    .to_string();
                let kind = match path.split('/').collect::<Vec<_>>()[..] {
                    ["", "echo"] => Kind::Echo,
                    ["", "produce", length] => Kind::Produce(length.parse().unwrap()),
                    ["", "refuse"] => Kind::Refuse,
                    _ => Kind::Hang,
                };
                if kind == Kind::Refuse {
                    return self.connection.respond(stream, 404, &[], true).unwrap();
                }
                self.bodies.insert(stream.to_u64(), (Vec::new(), kind));
                if end {
                    self.answer(stream);
                }
            }
            Event::Data { stream, data, end } => {
                self.connection.release(stream, data.len());
                if let Some((body, _)) = self.bodies.get_mut(&stream.to_u64()) {
                    body.extend_from_slice(&data);
                }
                if end {
                    self.answer(stream);
                }
            }
            Event::Trailers { stream } => self.answer(stream),
            Event::Reset { code, .. } => self.seen.borrow_mut().resets.push(code),
            Event::Writable { stream } => self.produce(stream),
        }
    }

    fn answer(&mut self, stream: StreamKey) {
        let Some((body, kind)) = self.bodies.remove(&stream.to_u64()) else {
            return;
        };
        if kind == Kind::Hang {
            return;
        }
        self.connection
            .respond(
                stream,
                200,
                &[Field::repeated("content-type", b"application/grpc")],
                false,
            )
            .unwrap();
        if let Kind::Produce(length) = kind {
            self.producing.insert(stream.to_u64(), length);
            return self.produce(stream);
        }
        self.connection.send_data(stream, Bytes::from(body), false).unwrap();
        self.finish(stream);
    }

    fn produce(&mut self, stream: StreamKey) {
        let left = self.producing.get_mut(&stream.to_u64()).unwrap();
        let length = self.connection.capacity(stream).min(*left);
        *left -= length;
        let done = *left == 0;
        self.connection
            .send_data(stream, Bytes::from(vec![9; length]), false)
            .unwrap();
        if done {
            self.finish(stream)
        } else {
            self.connection.notify_writable(stream)
        }
    }

    fn finish(&mut self, stream: StreamKey) {
        let fields = [Field::repeated("grpc-status", b"0"), Field::new("x", b"y")];
        self.connection.send_trailers(stream, &fields).unwrap();
    }
}

/// Runs `test` with a client of a fresh server.
fn with_client<F: Future<Output = ()>>(
    config: Config,
    builder: Builder,
    test: impl FnOnce(SendRequest<Bytes>, Rc<RefCell<Seen>>) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let (near, far) = tokio::io::duplex(20_000);
        let seen = Rc::new(RefCell::new(Seen::default()));
        let connection = Connection::new(Arc::new(config), Duration::ZERO);
        let server = Server {
            connection,
            bodies: HashMap::new(),
            producing: HashMap::new(),
            seen: seen.clone(),
        };
        tokio::task::spawn_local(server.serve(far));
        let (client, connection) = builder.handshake::<_, Bytes>(near).await.unwrap();
        tokio::task::spawn_local(async move { drop(connection.await) });
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, test(client, seen))
            .await
            .expect("the conversation hangs");
    });
}

fn post(path: &str) -> Request<()> {
    Request::builder()
        .method(Method::POST)
        .uri(format!("http://host{path}"))
        .header("te", "trailers")
        .body(())
        .unwrap()
}

async fn call(client: &SendRequest<Bytes>, path: &str, body: Bytes) -> (Response<()>, Vec<u8>, Option<HeaderMap>) {
    let mut client = client.clone().ready().await.unwrap();
    let (response, mut send) = client.send_request(post(path), body.is_empty()).unwrap();
    drop(client);
    let mut rest = body;
    while !rest.is_empty() {
        send.reserve_capacity(rest.len());
        let room = std::future::poll_fn(|context| send.poll_capacity(context))
            .await
            .unwrap()
            .unwrap();
        let part = rest.split_to(room.min(rest.len()));
        send.send_data(part, rest.is_empty()).unwrap();
    }
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        bytes.extend_from_slice(&part);
    }
    let trailers = body.trailers().await.unwrap();
    (Response::from_parts(head, ()), bytes, trailers)
}

#[test]
fn requests_one_after_the_other_and_at_once() {
    with_client(Config::default(), Builder::new(), |client, seen| async move {
        for round in 0..50 {
            let body = Bytes::from(vec![round; usize::from(round) * 100]);
            let (head, echoed, trailers) = call(&client, "/echo", body.clone()).await;
            assert_eq!(
                (head.status().as_u16(), &head.headers()["content-type"]),
                (200, &"application/grpc".parse().unwrap())
            );
            assert_eq!(echoed, body);
            assert_eq!(trailers.unwrap()["grpc-status"], "0");
        }
        let calls = (0..200).map(|i| call(&client, "/echo", Bytes::from(vec![7; i * 10])));
        for (index, (_, echoed, _)) in futures::future::join_all(calls).await.into_iter().enumerate() {
            assert_eq!(echoed.len(), index * 10);
        }
        assert!(seen.borrow().most_streams > 20);
        assert_eq!(seen.borrow().resets, []);
    });
}

#[test]
fn large_bodies_both_ways_under_small_and_large_windows() {
    for (stream_window, connection_window) in [
        (65_535, 65_535),
        (1_000, 70_000),
        (1 << 20, 1 << 20),
        (1 << 25, 1 << 26),
    ] {
        let mut builder = Builder::new();
        builder
            .initial_window_size(stream_window)
            .initial_connection_window_size(connection_window);
        with_client(Config::default(), builder, |client, seen| async move {
            let body = Bytes::from((0..3_000_000usize).map(|i| (i % 253) as u8).collect::<Vec<_>>());
            let (echo, produced, small) = futures::join!(
                call(&client, "/echo", body.clone()),
                call(&client, "/produce/4000000", Bytes::new()),
                call(&client, "/echo", Bytes::from_static(b"small")),
            );
            assert!(echo.1 == body);
            assert_eq!((produced.1.len(), small.1.len()), (4_000_000, 5));
            assert_eq!(seen.borrow().resets, []);
        });
    }
}

#[test]
fn a_produced_body_is_not_held_in_memory() {
    let mut builder = Builder::new();
    builder
        .initial_window_size(1 << 30)
        .initial_connection_window_size(1 << 30);
    with_client(Config::default(), builder, |client, seen| async move {
        let (_, body, trailers) = call(&client, "/produce/20000000", Bytes::new()).await;
        assert_eq!(body.len(), 20_000_000);
        assert!(trailers.is_some());
        let most = seen.borrow().most_buffered;
        assert!(most < 1_000_000, "{most} bytes");
    });
}

#[test]
fn a_client_that_cancels_is_noticed() {
    with_client(Config::default(), Builder::new(), |client, seen| async move {
        let mut ready = client.clone().ready().await.unwrap();
        let (response, mut send) = ready.send_request(post("/hang"), false).unwrap();
        send.send_data(Bytes::from_static(b"x"), false).unwrap();
        tokio::task::yield_now().await;
        drop(response);
        send.send_reset(h2::Reason::CANCEL);
        let (response, _) = ready.send_request(post("/produce/5000000"), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        body.data().await.unwrap().unwrap();
        drop(body);
        let (_, echoed, _) = call(&client, "/echo", Bytes::from_static(b"still there")).await;
        assert_eq!(echoed, b"still there");
        assert_eq!(seen.borrow().resets, [ErrorCode::CANCEL, ErrorCode::CANCEL]);
        assert_eq!(seen.borrow().closed, None);
    });
}

#[test]
fn an_answer_ahead_of_the_request_is_understood() {
    with_client(Config::default(), Builder::new(), |client, _| async move {
        for _ in 0..20 {
            let mut ready = client.clone().ready().await.unwrap();
            let (response, mut send) = ready.send_request(post("/refuse"), false).unwrap();
            assert_eq!(response.await.unwrap().status(), 404);
            let _ = send.send_data(Bytes::from_static(b"late"), true);
        }
        assert_eq!(call(&client, "/echo", Bytes::from_static(b"x")).await.1, b"x");
    });
}

#[test]
fn the_clients_settings_are_kept_to() {
    let mut builder = Builder::new();
    builder
        .header_table_size(0)
        .max_frame_size(1 << 20)
        .initial_window_size(10)
        .max_header_list_size(1_000);
    with_client(Config::default(), builder, |client, _| async move {
        for _ in 0..3 {
            let (head, body, trailers) = call(&client, "/produce/1000", Bytes::new()).await;
            assert_eq!(head.headers()["content-type"], "application/grpc");
            assert_eq!(body.len(), 1_000);
            assert_eq!(trailers.unwrap()["x"], "y");
        }
    });
}

#[test]
fn the_servers_limit_on_streams_is_understood() {
    let config = Config {
        max_concurrent_streams: 2,
        ..Config::default()
    };
    let mut builder = Builder::new();
    builder.initial_max_send_streams(0);
    with_client(config, builder, |client, seen| async move {
        let calls = (0..50).map(|_| call(&client, "/echo", Bytes::from_static(b"x")));
        for (_, echoed, _) in futures::future::join_all(calls).await {
            assert_eq!(echoed, b"x");
        }
        assert_eq!(seen.borrow().most_streams, 2);
    });
}

#[test]
fn a_graceful_shutdown_is_understood() {
    let mut builder = Builder::new();
    builder.initial_window_size(1_000);
    with_client(Config::default(), builder, |client, seen| async move {
        let running = tokio::task::spawn_local({
            let client = client.clone();
            async move { call(&client, "/produce/300000", Bytes::new()).await }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        seen.borrow_mut().shutdown = true;
        let (_, body, _) = running.await.unwrap();
        assert_eq!(body.len(), 300_000);
        while seen.borrow().closed.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(seen.borrow().closed, Some(CloseReason::Drained));
        assert!(client.clone().ready().await.is_err());
    });
}
