//! A core's shares of the memory budget hold, whatever its peers do, and those who read are served.

use super::*;

/// Longer than a test: nothing is given up for want of progress.
fn patient(answers_bytes: usize, requests_bytes: usize) -> Options {
    Options {
        http: Arc::new(http::Config {
            stall: Duration::from_secs(600),
            ..http::Config::default()
        }),
        answers_bytes,
        requests_bytes,
        ..options()
    }
}

/// What can be held beyond a share for a moment: a part for each of the peers that were allowed one at the same time.
const SLACK: usize = 1 << 20;

#[test]
fn peers_that_do_not_read_leave_half_of_the_share_to_those_that_do() {
    const SHARE: usize = 4 << 20;
    let server = Server::start(patient(SHARE, 1 << 20));
    let idle: Vec<_> = (0..40)
        .map(|_| {
            let mut socket = connect_raw(server.address, 0x7fff_ffff);
            socket.write_all(&request_frame("/echo/Endless", 1)).unwrap();
            socket
        })
        .collect();
    let sent = || server.seen.endless_bytes.load(Ordering::Relaxed);
    let mut before = 0;
    while before == 0 || sent() > before {
        before = sent();
        std::thread::sleep(Duration::from_millis(300));
    }
    for _ in 0..2 {
        with_client(&server, |mut client| async move {
            let (response, _) = client.send_request(request("/echo/Endless"), false).unwrap();
            let mut body = response.await.unwrap().into_body();
            let mut received = 0;
            while received < 10 << 20 {
                let chunk = body.data().await.unwrap().unwrap();
                body.flow_control().release_capacity(chunk.len()).unwrap();
                received += chunk.len();
            }
        });
    }
    let most = server.seen.most_buffered.load(Ordering::Relaxed);
    assert!((SHARE / 4..SHARE + SLACK).contains(&most), "{most} bytes were held");
    drop(idle);
    server.stop();
}

/// Answers that were asked for come whether there is room or not; who then does not take them is closed.
#[test]
fn peers_that_ask_and_do_not_read_are_closed_when_the_share_is_used_up() {
    const SHARE: usize = 2 << 20;
    let server = Server::start(patient(SHARE, 1 << 20));
    let mut sockets: Vec<_> = (0..8)
        .map(|_| {
            let mut socket = connect_raw(server.address, 0);
            let message = framed(&[7; 16_000]);
            for stream in (1..120).step_by(2) {
                let length = (message.len() as u32).to_be_bytes();
                let data = [&length[1..], &[0, 1, 0, 0, 0, stream][..], &message].concat();
                let request = [request_frame("/echo/Unary", stream), data].concat();
                // Closed already, maybe.
                if socket.write_all(&request).is_err() {
                    break;
                }
            }
            socket.set_read_timeout(Some(BOUND)).unwrap();
            socket
        })
        .collect();
    // Some 960 KB are asked for on each: two may stay.
    let began = Instant::now();
    let mut closed = 0;
    while closed < 5 {
        assert!(began.elapsed() < BOUND, "{closed} connections were closed");
        sockets.retain_mut(|socket| {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let read = socket.read(&mut [0; 65_536]);
            let over = match &read {
                Ok(length) => *length == 0,
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            };
            closed += usize::from(over);
            !over
        });
    }
    with_client(&server, |mut client| async move {
        let (response, mut body) = client.send_request(request("/echo/Unary"), false).unwrap();
        body.send_data(framed(b"meanwhile"), true).unwrap();
        assert_eq!(answer(response).await.1, "0");
    });
    assert!(sockets.len() >= 2, "no more are closed than have to be");
    server.stop();
}

/// A client with one connection may read large answers slowly and call beside that, as long as there is memory for it.
#[test]
fn calls_beside_large_answers_are_not_refused() {
    let server = Server::start(patient(64 << 20, 16 << 20));
    with_client(&server, |mut client| async move {
        let mut call = |message: Bytes| {
            let (response, mut body) = client.send_request(request("/echo/Unary"), false).unwrap();
            body.send_data(message, true).unwrap();
            response
        };
        let mut large = Vec::new();
        for _ in 0..4 {
            // Its head is here; the rest waits for the windows.
            large.push(call(framed(&vec![7; 900_000])).await.unwrap());
        }
        let small: Vec<_> = (0..10).map(|_| call(framed(b"small"))).collect();
        let large = large.into_iter().map(body);
        let small = small.into_iter().map(answer);
        let (large, small) =
            futures::future::join(futures::future::join_all(large), futures::future::join_all(small)).await;
        assert!(large.iter().all(|(_, status)| status == "0"));
        assert!(
            small
                .iter()
                .all(|(message, status)| (&message[5..], &status[..]) == (b"small", "0"))
        );
    });
    server.stop();
}

/// Waits until what is held of unfinished requests is as wanted, or something else has happened.
async fn held_or(server: &Server, is_wanted: impl Fn(usize) -> bool, has_happened: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_wanted(server.seen.requests_held.load(Ordering::Relaxed)) && !has_happened() {
        let held = server.seen.requests_held.load(Ordering::Relaxed);
        assert!(
            began.elapsed() < BOUND,
            "{held} bytes are held, which is not what should be"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn unfinished_messages_of_all_connections_have_one_bound() {
    const SHARE: usize = 1 << 20;
    let server = Server::start(patient(1 << 20, SHARE));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut open = Vec::new();
        let mut refused = 0;
        for _ in 0..8 {
            let socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
            let (client, connection) = handshake(socket).await;
            tokio::spawn(connection);
            let mut client = client.ready().await.unwrap();
            let (response, mut body) = client.send_request(request("/echo/Unary"), false).unwrap();
            let message = framed(&vec![7; 900_000]);
            body.send_data(message.slice(..300_000), false).unwrap();
            let response = tokio::spawn(answer(response));
            // Without the prefixes.
            let all_held = (open.len() + 1) * (300_000 - 5);
            held_or(&server, |held| held >= all_held, || response.is_finished()).await;
            if response.is_finished() {
                assert_eq!(response.await.unwrap().1, "8");
                refused += 1;
            } else {
                open.push((client, response, body, message));
            }
        }
        assert_eq!((open.len(), refused), (3, 5), "three have room");
        // With the others gone one may go on.
        let (_client, response, mut body, message) = open.pop().unwrap();
        open.into_iter().for_each(|(_, response, ..)| response.abort());
        held_or(&server, |held| held < 400_000, || false).await;
        body.send_data(message.slice(300_000..), true).unwrap();
        assert_eq!(response.await.unwrap().1, "0");
    });
    server.stop();
}

#[test]
fn connections_that_leave_their_messages_unfinished_make_room() {
    let server = Server::start(Options {
        http: Arc::new(http::Config {
            stall: Duration::from_secs(2),
            ..http::Config::default()
        }),
        ..patient(1 << 20, 1 << 20)
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut calls = Vec::new();
        for _ in 0..3 {
            let socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
            let (client, connection) = handshake(socket).await;
            let over = tokio::spawn(connection);
            let mut client = client.ready().await.unwrap();
            let (response, body) = client.send_request(request("/echo/Unary"), false).unwrap();
            calls.push((over, response, body, client));
        }
        let message = framed(&vec![7; 300_000]);
        let (_, response, mut slow, _client) = calls.pop().unwrap();
        for (_, _, body, _) in &mut calls {
            body.send_data(message.slice(..299_000), false).unwrap();
        }
        // One that goes on is left alone, however slow it is.
        let mut rest = message;
        while rest.len() > 10_000 {
            slow.send_data(rest.split_to(10_000), false).unwrap();
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        slow.send_data(rest, true).unwrap();
        assert_eq!(answer(response).await.1, "0");
        for (over, response, ..) in calls {
            let closed = tokio::time::timeout(BOUND, over).await;
            assert!(closed.is_ok() && response.await.is_err());
        }
    });
    server.stop();
}
