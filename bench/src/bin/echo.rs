//! A gRPC server on one serve core that answers every message with itself: what connections cost, without a database.
//!
//! `echo ADDRESS [CPU]`; load it with h2load and a framed message, for example
//! `h2load -n 500000 -c 16 -m 32 -d message -H 'content-type: application/grpc' -H 'te: trailers' http://ADDRESS/e/E`.
//! Each second with work prints requests, CPU time per request and requests per send.

use bytes::Bytes;
use ringd::grpc::{Config, Request, Status};
use ringd::net::{Call, Core, Net, Options, PeerInfo, Service};
use ringd::reactor::Doorbell;
use ringd::reactor::accept::{Acceptor, Goes, Target};
use ringd::reactor::roles::CpuSet;
use ringd::reactor::serve::{BellWaiter, CoreOptions, ServeCore, run_blocking};
use ringd::reactor::socket::{ListenAddress, ListenOptions, ListenSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    sends: AtomicU64,
}

struct Echo(Arc<Counters>);

impl Service for Echo {
    type Head = ();

    fn head(&mut self, _: &Request<'_>, _: &PeerInfo) {}

    fn started(&mut self, _: &mut Net, _: Call, (): (), _: Option<Duration>) -> u64 {
        0
    }

    fn message(&mut self, net: &mut Net, call: Call, _: u64, message: Bytes, _: bool) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let _ = net.reply(call, message.len(), |out| out.extend_from_slice(&message));
    }

    fn half_closed(&mut self, net: &mut Net, call: Call, _: u64) {
        let _ = net.finish(call, &Status::OK);
    }

    fn cancelled(&mut self, _: &mut Net, _: Call, _: u64) {}

    fn writable(&mut self, _: &mut Net, _: Call, _: u64) {}

    fn turn_end(&mut self, net: &mut Net) {
        self.0.sends.store(net.statistics().sends, Ordering::Relaxed);
    }

    fn shutting_down(&mut self, _: &mut Net) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: echo ADDRESS [CPU]")?;
    let cpus = arguments
        .next()
        .map(|cpu| cpu.parse().map(|cpu| CpuSet::of(&[cpu])))
        .transpose()?;
    let listener = ListenSocket::bind(&ListenAddress::Tcp(address.parse()?), ListenOptions::default())?;
    let (accept_bell, bell) = (Doorbell::new("accept")?, Doorbell::new("serve")?);
    let counters = Arc::new(Counters::default());
    let (pass, passed) = mpsc::channel();
    let (core_counters, core_bell) = (counters.clone(), bell.clone());
    let options = Options {
        http: Arc::default(),
        grpc: Arc::new(Config {
            max_message: 2 << 20,
            plain_http: false,
        }),
        max_body: 1 << 20,
        connections: 10_000,
        answers_bytes: usize::MAX,
        requests_bytes: usize::MAX,
        listeners: std::sync::Arc::new([]),
    };
    let name = "serve-0".to_string();
    let core = ServeCore::start(CoreOptions { name, cpus }, move || async move {
        let core = Core::new(Echo(core_counters), options);
        let received = run_blocking(move || passed.recv()).await;
        if let (Ok(accepted), Ok(waiter)) = (received, BellWaiter::new(&core_bell)) {
            core.accept_all(accepted, waiter).await;
        }
    })?;
    let (target, receiver) = Target::new(core.clock(), &bell, &accept_bell);
    pass.send(receiver)?;
    let _acceptor = Acceptor::start(vec![(listener, Goes::ToLeastLoaded)], vec![target], &accept_bell)?;
    let (mut requests, mut sends, mut cpu) = (0, 0, Duration::ZERO);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = (
            counters.requests.load(Ordering::Relaxed),
            counters.sends.load(Ordering::Relaxed),
        );
        let cpu_now = core.cpu_time();
        let count = now.0 - requests;
        if count > 0 {
            let each = (cpu_now - cpu).as_secs_f64() * 1e6 / count as f64;
            let batch = count as f64 / (now.1 - sends).max(1) as f64;
            println!("{count} requests, {each:.2} us CPU each, {batch:.1} requests per send");
        }
        (requests, sends, cpu) = (now.0, now.1, cpu_now);
    }
}
