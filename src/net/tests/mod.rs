//! Connections over loopback against an echo service; the `h2` crate is the independent peer.

use super::{Call, Core, Exchange, Net, Options, PeerInfo, Service};
use crate::grpc::{self, Code, Request, Status};
use crate::http;
use crate::limits;
use crate::reactor::Doorbell;
use crate::reactor::accept::{Accepted, Acceptor, Goes, Target};
use crate::reactor::serve::{BellWaiter, CoreOptions, ServeCore, Stream, run_blocking, sleep, spawn};
use crate::reactor::socket::{ListenAddress, ListenOptions, ListenSocket};
use bytes::{Bytes, BytesMut};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(20);
/// The largest message of `/echo/Endless`, sent again and again as there is room.
const CHUNK: usize = 64 * 1024;

/// What the tests look at from outside.
#[derive(Default)]
struct Seen {
    started: AtomicUsize,
    cancelled: AtomicUsize,
    gone: AtomicUsize,
    turns: AtomicUsize,
    endless_bytes: AtomicUsize,
    most_buffered: AtomicUsize,
    requests_held: AtomicUsize,
    sends: AtomicUsize,
}

/// `/echo/Unary` answers a message by itself; `/echo/Later` does so at the end of the turn; `/echo/Silent` never
/// answers; `/echo/Endless` streams as fast as the peer reads.
struct Echo {
    seen: Arc<Seen>,
    later: Vec<(Call, Bytes)>,
    open: Vec<Call>,
    exchanges: Vec<Exchange>,
}

impl Service for Echo {
    type Head = String;

    fn head(&mut self, request: &Request<'_>, peer: &PeerInfo) -> String {
        assert!(peer.address.is_some() && peer.listener == 0);
        String::from_utf8(request.path().to_vec()).unwrap()
    }

    fn started(&mut self, net: &mut Net, call: Call, head: String, _: Option<Duration>) -> u64 {
        self.seen.started.fetch_add(1, Ordering::Relaxed);
        self.open.push(call);
        match head.as_str() {
            "/echo/Unary" => 1,
            "/echo/Later" => 2,
            "/echo/Silent" => 3,
            "/echo/Endless" => {
                net.notify_writable(call);
                4
            }
            _ => {
                net.finish(call, &Status::new(Code::Unimplemented, "no such method"))
                    .unwrap();
                0
            }
        }
    }

    fn message(&mut self, net: &mut Net, call: Call, tag: u64, message: Bytes, last: bool) {
        match tag {
            1 => {
                net.send_message(call, message).unwrap();
                if last {
                    net.finish(call, &Status::OK).unwrap();
                }
            }
            2 => self.later.push((call, message)),
            _ => {}
        }
    }

    fn half_closed(&mut self, net: &mut Net, call: Call, tag: u64) {
        if tag == 1 {
            net.finish(call, &Status::OK).unwrap();
        }
    }

    fn cancelled(&mut self, net: &mut Net, call: Call, _: u64) {
        assert!(!net.is_open(call));
        self.open.retain(|open| *open != call);
        self.seen.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    fn writable(&mut self, net: &mut Net, call: Call, _: u64) {
        let length = net.capacity(call).min(CHUNK);
        net.send_message(call, Bytes::from(vec![7; length])).unwrap();
        self.seen.endless_bytes.fetch_add(length, Ordering::Relaxed);
        self.seen
            .most_buffered
            .fetch_max(net.buffered_bytes(), Ordering::Relaxed);
        net.notify_writable(call);
    }

    fn http_request(&mut self, net: &mut Net, exchange: Exchange, request: http::http1::Request, body: Vec<u8>) {
        match request.path() {
            "/echo" => net
                .respond(exchange, 200, &[("X-Method", &request.method)], &body)
                .unwrap(),
            "/parts" => {
                net.start_response(exchange, 200, &[]).unwrap();
                net.send_response_part(exchange, b"one").unwrap();
                net.send_response_part(exchange, b"two").unwrap();
                net.finish_response(exchange).unwrap();
                assert!(net.respond(exchange, 200, &[], b"").is_err());
            }
            "/later" => self.exchanges.push(exchange),
            "/never" => {}
            _ => net.respond(exchange, 404, &[], b"no such page").unwrap(),
        }
    }

    fn http_gone(&mut self, net: &mut Net, exchange: Exchange) {
        assert!(net.respond(exchange, 200, &[], b"").is_err());
        self.seen.gone.fetch_add(1, Ordering::Relaxed);
    }

    fn takes_over(&self, listener: usize, request: &http::http1::Request) -> bool {
        listener == 0 && request.path() == "/take"
    }

    fn take_over(&mut self, stream: Stream, connection: http::http1::Connection, request: http::http1::Request) {
        assert_eq!(request.path(), "/take");
        spawn(http1::count_body(stream, connection));
    }

    fn turn_end(&mut self, net: &mut Net) {
        for exchange in self.exchanges.drain(..) {
            net.respond(exchange, 200, &[], b"later").unwrap();
        }
        self.seen.turns.fetch_add(1, Ordering::Relaxed);
        for (call, message) in self.later.drain(..) {
            net.reply(call, message.len(), |out| out.extend_from_slice(&message))
                .unwrap();
        }
        self.seen
            .sends
            .store(net.statistics().sends as usize, Ordering::Relaxed);
        self.seen
            .requests_held
            .store(net.memory.held.requests, Ordering::Relaxed);
    }

    fn shutting_down(&mut self, net: &mut Net) {
        for call in std::mem::take(&mut self.open) {
            let _ = net.finish(call, &Status::new(Code::Unavailable, "server stopped"));
        }
    }
}

/// An echo server on one core.
struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
    acceptor: Option<Acceptor>,
    core: Option<ServeCore>,
}

fn options() -> Options {
    Options {
        http: Arc::new(http::Config {
            stall: Duration::from_millis(700),
            ..http::Config::default()
        }),
        grpc: Arc::new(grpc::Config {
            max_message: 1 << 20,
            plain_http: false,
        }),
        max_body: 1000,
        connections: 64,
        answers_bytes: 64 << 20,
        requests_bytes: 64 << 20,
        listeners: Arc::new([]),
    }
}

impl Server {
    fn start(options: Options) -> Server {
        let listen = ListenAddress::from_host("127.0.0.1", 0).unwrap();
        let listener = ListenSocket::bind(&listen, ListenOptions::default()).unwrap();
        let ListenAddress::Tcp(address) = listener.local_address() else {
            panic!()
        };
        let (acceptor_bell, bell) = (Doorbell::new("accept").unwrap(), Doorbell::new("serve").unwrap());
        let seen = Arc::new(Seen::default());
        let (pass, passed) = mpsc::channel();
        let (core_bell, core_seen) = (bell.clone(), seen.clone());
        let core_options = CoreOptions {
            name: "net-test".to_string(),
            cpus: None,
        };
        let core = ServeCore::start(core_options, move || async move {
            let echo = Echo {
                seen: core_seen,
                later: Vec::new(),
                open: Vec::new(),
                exchanges: Vec::new(),
            };
            let core = Core::new(echo, options);
            let accepted = run_blocking(move || passed.recv().unwrap()).await;
            core.accept_all(accepted, BellWaiter::new(&core_bell).unwrap()).await;
            core.shutdown(Duration::from_secs(2)).await;
        })
        .unwrap();
        let (target, receiver) = Target::new(core.clock(), &bell, &acceptor_bell);
        pass.send(receiver).unwrap();
        let acceptor = Acceptor::start(vec![(listener, Goes::ToLeastLoaded)], vec![target], &acceptor_bell).unwrap();
        Server {
            address,
            seen,
            acceptor: Some(acceptor),
            core: Some(core),
        }
    }

    /// Stops while a request is never answered, which takes the whole bound and then tells the service.
    fn stop_now(mut self) {
        self.acceptor.take().unwrap().stop();
        assert!(self.core.take().unwrap().join(BOUND));
        assert_eq!(self.seen.gone.load(Ordering::Relaxed), 1);
    }

    fn stop(mut self) {
        self.acceptor.take().unwrap().stop();
        assert!(self.core.take().unwrap().join(BOUND));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.acceptor.take());
        if let Some(core) = self.core.take() {
            core.join(BOUND);
        }
    }
}

/// The crate allows a number of small DATA frames at once that grows with the connection's window.
async fn handshake(
    socket: tokio::net::TcpStream,
) -> (
    h2::client::SendRequest<Bytes>,
    h2::client::Connection<tokio::net::TcpStream>,
) {
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(16 << 20);
    builder.handshake(socket).await.unwrap()
}

/// Runs `test` with a client of the `h2` crate that is connected to a server.
fn with_client<F: Future<Output = ()>>(server: &Server, test: impl FnOnce(h2::client::SendRequest<Bytes>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let (client, connection) = handshake(socket).await;
        tokio::spawn(connection);
        tokio::time::timeout(BOUND, test(client.ready().await.unwrap()))
            .await
            .unwrap();
    });
}

fn request(path: &str) -> http_types::Request<()> {
    http_types::Request::builder()
        .method("POST")
        .uri(format!("http://test{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}

use ::http as http_types;

mod http1;
mod memory;
mod relay;

fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.extend_from_slice(&grpc::message_prefix(message.len()));
    bytes.extend_from_slice(message);
    bytes.freeze()
}

/// Body and grpc-status of a response.
async fn answer(response: h2::client::ResponseFuture) -> (Vec<u8>, String) {
    body(response.await.unwrap()).await
}

/// The rest of an answer whose head is here.
async fn body(response: http_types::Response<h2::RecvStream>) -> (Vec<u8>, String) {
    let (head, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await.unwrap().unwrap_or(head.headers);
    (bytes, trailers["grpc-status"].to_str().unwrap().to_string())
}

#[test]
fn unary_calls_are_answered_at_once_or_later() {
    let server = Server::start(options());
    with_client(&server, |mut client| async move {
        for path in ["/echo/Unary", "/echo/Later"] {
            for size in [0, 5, 16_379, 500_000] {
                let message = vec![size as u8; size];
                let (response, mut body) = client.send_request(request(path), false).unwrap();
                body.send_data(framed(&message), true).unwrap();
                let (bytes, status) = answer(response).await;
                assert_eq!(status, "0");
                assert_eq!(bytes, framed(&message));
            }
        }
        let (response, _) = client.send_request(request("/echo/Missing"), true).unwrap();
        assert_eq!(answer(response).await, (Vec::new(), "12".to_string()));
    });
    assert_eq!(server.seen.started.load(Ordering::Relaxed), 9);
    server.stop();
}

/// A batch of calls that arrives in one read is answered in few sends.
#[test]
fn the_answers_of_a_turn_leave_together() {
    const CALLS: usize = 200;
    let server = Server::start(options());
    with_client(&server, |mut client| async move {
        let mut responses = Vec::new();
        for _ in 0..CALLS {
            let (response, mut body) = client.send_request(request("/echo/Later"), false).unwrap();
            body.send_data(framed(b"x"), true).unwrap();
            responses.push(response);
        }
        for (_, status) in futures::future::join_all(responses.into_iter().map(answer)).await {
            assert_eq!(status, "0");
        }
    });
    let sends = server.seen.sends.load(Ordering::Relaxed);
    assert!(sends < CALLS / 4, "{sends} sends for {CALLS} answers");
    server.stop();
}

#[test]
fn a_call_ends_with_its_deadline_and_with_its_caller() {
    let server = Server::start(options());
    with_client(&server, |mut client| async move {
        let mut late = request("/echo/Silent");
        late.headers_mut().insert("grpc-timeout", "100m".parse().unwrap());
        let (response, _body) = client.send_request(late, false).unwrap();
        assert_eq!(answer(response).await.1, "4");
        let (_response, mut body) = client.send_request(request("/echo/Silent"), false).unwrap();
        body.send_reset(h2::Reason::CANCEL);
        let (response, mut body) = client.send_request(request("/echo/Unary"), false).unwrap();
        body.send_data(framed(b"after"), true).unwrap();
        assert_eq!(answer(response).await.1, "0");
    });
    assert_eq!(server.seen.cancelled.load(Ordering::Relaxed), 2);
    server.stop();
}

/// A connection by hand, with this window for its streams and a large one for itself. What is sent is not read.
fn connect_raw(address: SocketAddr, window: u32) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(http::frame::PREFACE).unwrap();
    let settings = [&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4][..], &window.to_be_bytes()].concat();
    socket.write_all(&settings).unwrap();
    socket.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0, 0, 0]).unwrap();
    socket
}

/// HEADERS that begin a call.
fn request_frame(path: &str, stream: u8) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
    ] {
        block.extend_from_slice(&[0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block.extend_from_slice(&[0, 2, b't', b'e', 8]);
    block.extend_from_slice(b"trailers");
    [&[0, 0, block.len() as u8, 1, 4, 0, 0, 0, stream][..], &block].concat()
}

/// A peer that opens a stream and never reads is held to the bounds, and is given up after the stall time.
#[test]
fn a_peer_that_does_not_read_is_bounded_and_given_up() {
    let server = Server::start(options());
    let mut socket = connect_raw(server.address, 0x7fff_ffff);
    let began = Instant::now();
    socket.write_all(&request_frame("/echo/Endless", 1)).unwrap();
    while server.seen.cancelled.load(Ordering::Relaxed) == 0 {
        assert!(began.elapsed() < BOUND, "the stalled call was never given up");
        // Others are served meanwhile.
        with_client(&server, |mut client| async move {
            let (response, mut body) = client.send_request(request("/echo/Unary"), false).unwrap();
            body.send_data(framed(b"meanwhile"), true).unwrap();
            assert_eq!(answer(response).await.1, "0");
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert!(server.seen.endless_bytes.load(Ordering::Relaxed) > CHUNK);
    let most = server.seen.most_buffered.load(Ordering::Relaxed);
    assert!(most < 4 << 20, "{most} bytes were held for one peer");
    drop(socket);
    server.stop();
}

#[test]
fn a_peer_that_reads_gets_an_endless_stream() {
    let server = Server::start(options());
    with_client(&server, |mut client| async move {
        let (response, _) = client.send_request(request("/echo/Endless"), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut received = 0;
        while received < 20 << 20 {
            let chunk = body.data().await.unwrap().unwrap();
            body.flow_control().release_capacity(chunk.len()).unwrap();
            received += chunk.len();
        }
    });
    server.stop();
}

/// Stopping tells the peers with GOAWAY, ends endless calls with a status, and leaves nothing open.
#[test]
fn shutdown_is_announced_and_bounded() {
    let server = Server::start(options());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let address = server.address;
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) = handshake(socket).await;
        let connection = tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let (response, _body) = client.send_request(request("/echo/Silent"), false).unwrap();
        while server.seen.started.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let stopping = std::thread::spawn(move || server.stop());
        assert_eq!(answer(response).await.1, "14");
        tokio::time::timeout(BOUND, connection).await.unwrap().unwrap().unwrap();
        stopping.join().unwrap();
    });
    assert!(TcpStream::connect(address).is_err());
}

/// A connection that never says what it speaks is given up; the core's clock is set ahead instead of waiting.
#[test]
fn a_silent_connection_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.write_all(b"PR").unwrap();
    client.set_read_timeout(Some(BOUND)).unwrap();
    let core_options = CoreOptions {
        name: "silent".to_string(),
        cpus: None,
    };
    let (told, tell) = mpsc::channel();
    let core = ServeCore::start(core_options, move || async move {
        let echo = Echo {
            seen: Arc::default(),
            later: Vec::new(),
            open: Vec::new(),
            exchanges: Vec::new(),
        };
        let core = Core::new(echo, options());
        let socket = listener.accept().unwrap().0.into();
        core.accept(Accepted { socket, listener: 0 });
        sleep(limits::NET_TICK * 2).await;
        core.with(|_, net| {
            assert_eq!(net.statistics().connections, 1);
            net.began -= Duration::from_secs(limits::HTTP_PREFACE_SECONDS);
        });
        let began = Instant::now();
        while core.with(|_, net| net.statistics().connections) > 0 && began.elapsed() < BOUND {
            sleep(limits::NET_TICK).await;
        }
        told.send(core.with(|_, net| net.statistics().connections)).unwrap();
    })
    .unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(tell.recv_timeout(BOUND).unwrap(), 0);
    assert!(core.join(BOUND));
}

#[test]
fn too_many_connections_are_closed() {
    let server = Server::start(Options {
        connections: 2,
        ..options()
    });
    let kept: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let mut third = TcpStream::connect(server.address).unwrap();
    third.set_read_timeout(Some(BOUND)).unwrap();
    assert_eq!(third.read(&mut [0; 1]).unwrap(), 0);
    drop(kept);
    server.stop();
}
