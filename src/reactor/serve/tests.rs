//! The serve reactor with real threads, sockets on loopback and files.

use super::*;
use crate::io::buffer::ALIGNMENT;
use crate::reactor::accept::{Acceptor, Goes, Target};
use crate::reactor::mailbox::mailbox;
use crate::reactor::socket::{ListenAddress, ListenOptions, ListenSocket};
use crate::reactor::{Doorbell, roles::CpuSet};
use std::cell::RefCell;
use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(20);

fn options(name: &str) -> CoreOptions {
    CoreOptions {
        name: name.to_string(),
        cpus: None,
    }
}

/// Runs `test` as a core's main task and returns what it made.
fn on_core<T, F>(test: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (sender, receiver) = mpsc::channel();
    let core = ServeCore::start(options("test"), move || async move {
        sender.send(test().await).unwrap();
    })
    .unwrap();
    let result = receiver.recv_timeout(BOUND).unwrap();
    assert!(core.join(BOUND));
    result
}

#[test]
fn tasks_are_scheduled_not_run_at_once() {
    let order = on_core(|| async {
        let order = Rc::new(RefCell::new(Vec::new()));
        for number in 0..3 {
            let order = order.clone();
            spawn(async move { order.borrow_mut().push(number) });
        }
        order.borrow_mut().push(99);
        yield_now().await;
        order.take()
    });
    assert_eq!(order, [99, 0, 1, 2]);
}

/// A core that waits for nothing but a signal stands for one whose wake-up was lost.
#[test]
fn a_core_that_sleeps_on_is_woken_from_outside() {
    let began = Instant::now();
    on_core(|| async {
        // SAFETY: pause has no preconditions; it returns when a signal was handled.
        unsafe { libc::pause() };
        sleep(Duration::from_millis(1)).await;
    });
    assert!(began.elapsed() >= crate::limits::SERVE_LATE);
}

/// However many tasks work aside, the others wait for a slice or two of theirs.
#[test]
fn work_aside_does_not_hold_up_the_rest() {
    const TASKS: usize = 2000;
    const SLICE: Duration = Duration::from_micros(500);
    // Slices are counted, not timed: how long one takes is up to the machine.
    let most = on_core(|| async {
        let slices = Rc::new(std::cell::Cell::new(0));
        for _ in 0..TASKS {
            let slices = slices.clone();
            spawn_aside(async move {
                for _ in 0..2 {
                    let began = Instant::now();
                    while began.elapsed() < SLICE {}
                    slices.set(slices.get() + 1);
                    yield_now().await;
                }
            });
        }
        let mut most = 0;
        for _ in 0..20 {
            let before = slices.get();
            sleep(SLICE * 2).await;
            most = most.max(slices.get() - before);
        }
        most
    });
    // Two slices take as long as each sleep; all of them one after the other would be two thousand.
    assert!(
        (1..TASKS / 20).contains(&most),
        "{most} slices before a timer that was due after two"
    );
}

#[test]
fn timers_blocking_calls_and_time_outs() {
    on_core(|| async {
        let began = Instant::now();
        sleep(Duration::from_millis(20)).await;
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert_eq!(run_blocking(|| 6 * 7).await, 42);
        assert_eq!(
            timeout(Duration::from_millis(10), std::future::pending::<()>()).await,
            None
        );
        assert_eq!(timeout(BOUND, async { 5 }).await, Some(5));
    });
}

#[test]
fn a_notification_is_kept_for_its_waiter() {
    on_core(|| async {
        let notify = Rc::new(Notify::new());
        notify.notify();
        notify.notify();
        notify.notified().await;
        assert_eq!(timeout(Duration::from_millis(1), notify.notified()).await, None);
        let later = notify.clone();
        spawn(async move {
            sleep(Duration::from_millis(5)).await;
            later.notify();
        });
        assert_eq!(timeout(BOUND, notify.notified()).await, Some(()));
    });
}

#[test]
fn a_core_is_pinned_where_it_was_told() {
    let last = *CpuSet::of_this_thread().unwrap().cpus().last().unwrap();
    let (sender, receiver) = mpsc::channel();
    let pinned = CoreOptions {
        name: "pinned".to_string(),
        cpus: Some(CpuSet::of(&[last])),
    };
    let core = ServeCore::start(pinned, move || async move {
        sender.send(CpuSet::of_this_thread().unwrap().cpus()).unwrap();
    })
    .unwrap();
    assert_eq!(receiver.recv_timeout(BOUND).unwrap(), [last]);
    assert!(core.join(BOUND));
}

/// A thread and a core hand a number back and forth, each sleeping in between; a lost wake-up would hang.
#[test]
fn mailboxes_wake_a_core_and_are_woken() {
    const ROUNDS: u64 = 5_000;
    let bells = [Doorbell::new("thread").unwrap(), Doorbell::new("core").unwrap()];
    let (mut to_core, mut on_core) = mailbox::<u64, 1>([8], &bells[1], &bells[0]);
    let (mut to_thread, mut on_thread) = mailbox::<u64, 1>([8], &bells[0], &bells[1]);
    let bell = bells[1].clone();
    let core = ServeCore::start(options("pong"), move || async move {
        let mut waiter = BellWaiter::new(&bell).unwrap();
        let mut answered = 0;
        while answered < ROUNDS {
            match on_core.pop() {
                Some(number) => {
                    to_thread.send(0, number + 1).unwrap();
                    answered += 1;
                }
                None => waiter.wait_unless(|| !on_core.is_empty()).await,
            }
        }
    })
    .unwrap();
    for number in 0..ROUNDS {
        to_core.send(0, number).unwrap();
        let answer = loop {
            match on_thread.pop() {
                Some(answer) => break answer,
                None => bells[0].sleep_unless(Some(BOUND), || !on_thread.is_empty()),
            }
        };
        assert_eq!(answer, number + 1);
    }
    assert!(core.join(BOUND));
}

/// Echo servers on `count` cores behind one acceptor, and the address they listen on.
fn echo_cores(count: usize) -> (Vec<ServeCore>, Acceptor, SocketAddr, Vec<mpsc::Receiver<usize>>) {
    let listen = ListenAddress::from_host("127.0.0.1", 0).unwrap();
    let listener = ListenSocket::bind(&listen, ListenOptions::default()).unwrap();
    let ListenAddress::Tcp(address) = listener.local_address() else {
        panic!()
    };
    let acceptor_bell = Doorbell::new("accept").unwrap();
    let (mut cores, mut targets, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..count {
        let bell = Doorbell::new("serve").unwrap();
        let (pass, passed) = mpsc::channel::<crate::reactor::accept::AcceptedReceiver>();
        let (count, counted) = mpsc::channel();
        let core_bell = bell.clone();
        let core = ServeCore::start(options(&format!("echo-{number}")), move || async move {
            let mut accepted = run_blocking(move || passed.recv().unwrap()).await;
            let mut waiter = BellWaiter::new(&core_bell).unwrap();
            let mut connections = 0;
            loop {
                match accepted.pop() {
                    Some(connection) => {
                        connections += 1;
                        spawn(echo(Stream::from_socket(connection.socket)));
                    }
                    None if accepted.is_closed() => break,
                    None => {
                        waiter
                            .wait_unless(|| !accepted.is_empty() || accepted.is_closed())
                            .await
                    }
                }
            }
            count.send(connections).unwrap();
        })
        .unwrap();
        let (target, receiver) = Target::new(core.clock(), &bell, &acceptor_bell);
        pass.send(receiver).unwrap();
        targets.push(target);
        cores.push(core);
        counts.push(counted);
    }
    let acceptor = Acceptor::start(vec![(listener, Goes::ToLeastLoaded)], targets, &acceptor_bell).unwrap();
    (cores, acceptor, address, counts)
}

async fn echo(stream: Stream) {
    while let Ok(bytes) = stream.receive().await {
        if bytes.is_empty() || stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[test]
fn connections_are_spread_over_cores_and_echoed() {
    let (cores, acceptor, address, counts) = echo_cores(2);
    let mut clients: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(BOUND)).unwrap();
        let message = vec![number as u8; 200_000];
        let mut sender = client.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            sender.write_all(&message).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let mut echoed = Vec::new();
        client.read_to_end(&mut echoed).unwrap();
        assert_eq!(echoed, vec![number as u8; 200_000]);
        sending.join().unwrap();
    }
    acceptor.stop();
    let counts: Vec<usize> = counts.iter().map(|count| count.recv_timeout(BOUND).unwrap()).collect();
    assert_eq!(counts, [5, 5]);
    assert!(cores.into_iter().all(|core| core.join(BOUND)));
    assert!(TcpStream::connect(address).is_err());
}

/// A peer that reads nothing makes `try_write` refuse and `write` wait, while the other direction goes on.
#[test]
fn a_stream_reads_and_writes_at_the_same_time() {
    on_core(|| async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Stream::connect(listener.local_addr().unwrap(), BOUND).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert_eq!(stream.peer_address(), Some(peer.local_addr().unwrap()));
        let chunk = vec![1u8; 64 * 1024];
        let mut sent = 0;
        loop {
            match stream.try_write(&[IoSlice::new(&chunk), IoSlice::new(b"end")]) {
                Ok(length) => sent += length,
                Err(error) => break assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        assert!(sent > 0);
        // The kernel may go on moving bytes to the peer's side for a while, and make room by that.
        while let Some(written) = timeout(Duration::from_millis(20), stream.write(&chunk)).await {
            sent += written.unwrap();
        }
        peer.write_all(b"hello").unwrap();
        assert_eq!(stream.receive().await.unwrap(), b"hello"[..]);
        let reading = std::thread::spawn(move || {
            let mut received = Vec::new();
            peer.read_to_end(&mut received).unwrap();
            received.len()
        });
        stream.write_all(&chunk).await.unwrap();
        stream.shutdown(Shutdown::Both);
        assert!(stream.receive().await.unwrap().is_empty());
        assert_eq!(run_blocking(move || reading.join().unwrap()).await, sent + chunk.len());
    });
}

#[test]
fn page_files_are_read_by_position_and_many_at_once() {
    const PAGES: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pages");
    let bytes: Vec<u8> = (0..PAGES * ALIGNMENT + 100)
        .map(|index| (index / ALIGNMENT) as u8)
        .collect();
    std::fs::write(&path, &bytes).unwrap();
    let missing = directory.path().join("missing");
    on_core(move || async move {
        let error = PageFileReader::open(&missing).await.err().unwrap();
        assert!(error.is_not_found());
        let (file, length) = PageFileReader::open(&path).await.unwrap();
        assert_eq!(length, bytes.len() as u64);
        let done = Rc::new(Notify::new());
        let left = Rc::new(RefCell::new(PAGES));
        for page in 0..PAGES {
            let (file, done, left) = (file.clone(), done.clone(), left.clone());
            spawn(async move {
                let (read, length) = file.read((page * ALIGNMENT) as u64, ALIGNMENT).await.unwrap();
                assert_eq!(length, ALIGNMENT);
                assert!(read.iter().all(|byte| *byte == page as u8));
                *left.borrow_mut() -= 1;
                done.notify();
            });
        }
        while *left.borrow() > 0 {
            done.notified().await;
        }
        let (_, length) = file.read((PAGES * ALIGNMENT) as u64, 4 * ALIGNMENT).await.unwrap();
        assert_eq!(length, 100);
        // Dropped half-way: the buffer stays the kernel's until it has answered, and later reads go on.
        for _ in 0..50 {
            let _ = timeout(Duration::ZERO, file.read(0, 16 * ALIGNMENT)).await;
        }
        assert_eq!(file.read(0, ALIGNMENT).await.unwrap().1, ALIGNMENT);
    });
}

/// The kernel may go on saying that completions are due when there are none: reads that end on another CPU made a
/// core ask for them for ever.
#[test]
fn reads_without_pause_never_hold_the_core_up() {
    const PAGES: usize = 4096;
    const READERS: usize = 128;
    const READS: usize = 400;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pages");
    std::fs::write(&path, vec![7; PAGES * ALIGNMENT]).unwrap();
    on_core(move || async move {
        let (file, _) = PageFileReader::open(&path).await.unwrap();
        let done = Rc::new(Notify::new());
        let left = Rc::new(RefCell::new(READERS));
        for reader in 0..READERS {
            let (file, done, left) = (file.clone(), done.clone(), left.clone());
            spawn(async move {
                for read in 0..READS {
                    let page = (reader * 31 + read * 7) % PAGES;
                    assert_eq!(
                        file.read((page * ALIGNMENT) as u64, ALIGNMENT).await.unwrap().1,
                        ALIGNMENT
                    );
                }
                *left.borrow_mut() -= 1;
                done.notify();
            });
        }
        while *left.borrow() > 0 {
            done.notified().await;
        }
    });
}
