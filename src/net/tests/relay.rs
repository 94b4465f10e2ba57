//! Answers that come from another thread.

use super::*;
use crate::reactor::mailbox;
use std::cell::Cell;
use std::rc::Rc;

/// Passes each call on to another thread.
struct Relay {
    requests: mailbox::Sender<(Call, u8), 1>,
    answers: Rc<Cell<usize>>,
}

impl Service for Relay {
    type Head = ();
    fn head(&mut self, _: &Request<'_>, _: &PeerInfo) {}
    fn started(&mut self, _: &mut Net, _: Call, (): (), _: Option<Duration>) -> u64 {
        0
    }
    fn message(&mut self, _: &mut Net, call: Call, _: u64, message: Bytes, _: bool) {
        self.requests.push(0, (call, message[0])).unwrap();
    }
    fn half_closed(&mut self, _: &mut Net, _: Call, _: u64) {}
    fn cancelled(&mut self, _: &mut Net, _: Call, _: u64) {}
    fn writable(&mut self, _: &mut Net, _: Call, _: u64) {}
    fn turn_end(&mut self, _: &mut Net) {
        self.requests.ring();
    }
    fn shutting_down(&mut self, _: &mut Net) {}
}

/// Calls on one connection, each answered with the byte after its own.
fn ask_a_hundred_times(address: std::net::SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) = handshake(socket).await;
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let mut responses = Vec::new();
        for number in 0..100 {
            let (response, mut body) = client.send_request(request("/relay"), false).unwrap();
            body.send_data(framed(&[number]), true).unwrap();
            responses.push(response);
        }
        let answers = futures::future::join_all(responses.into_iter().map(answer));
        for (number, answer) in tokio::time::timeout(BOUND, answers)
            .await
            .unwrap()
            .into_iter()
            .enumerate()
        {
            let (bytes, status) = answer;
            assert_eq!((bytes, status.as_str()), (framed(&[number as u8 + 1]).to_vec(), "0"));
        }
    });
}

/// Answers that come by a mailbox, from another thread, by the name of the call.
#[test]
fn answers_come_by_mailbox() {
    let (other_bell, bell) = (Doorbell::new("other").unwrap(), Doorbell::new("serve").unwrap());
    let (requests, mut taken) = mailbox::mailbox::<(Call, u8), 1>([256], &other_bell, &bell);
    let (mut answers, mut arrived) = mailbox::mailbox::<(Call, u8), 1>([256], &bell, &other_bell);
    let other = std::thread::spawn(move || {
        while !taken.is_closed() || !taken.is_empty() {
            while let Some((call, byte)) = taken.pop() {
                answers.push(0, (call, byte + 1)).unwrap();
            }
            answers.ring();
            other_bell.sleep_unless(None, || taken.is_closed() || !taken.is_empty());
        }
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let core_options = CoreOptions {
        name: "relay".to_string(),
        cpus: None,
    };
    let core = ServeCore::start(core_options, move || async move {
        let count = Rc::new(Cell::new(0));
        let answers = count.clone();
        let core = Core::new(Relay { requests, answers }, options());
        let socket = run_blocking(move || listener.accept().unwrap().0).await;
        let socket = socket.into();
        core.accept(Accepted { socket, listener: 0 });
        let mut waiter = BellWaiter::new(&bell).unwrap();
        while count.get() < 100 {
            core.with(|relay, net| {
                while let Some((call, byte)) = arrived.pop() {
                    net.reply(call, 1, |out| out.push(byte)).unwrap();
                    relay.answers.set(relay.answers.get() + 1);
                }
            });
            waiter.wait_unless(|| count.get() == 100 || !arrived.is_empty()).await;
        }
        core.shutdown(Duration::from_secs(2)).await;
    })
    .unwrap();
    ask_a_hundred_times(address);
    assert!(core.join(BOUND));
    other.join().unwrap();
}
