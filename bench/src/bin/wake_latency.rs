//! Round trip between a serve core and the log core through mailboxes, both asleep in between.
//!
//! `wake_latency [ROUNDS] [DISTANCE]`: pins the two to the first CPU and the one `DISTANCE` behind it, and prints
//! microseconds at p50, p90 and p99 and the CPU time per round trip.

use ringd::reactor::Doorbell;
use ringd::reactor::disk::DiskOptions;
use ringd::reactor::log::{LogReactor, Writer};
use ringd::reactor::mailbox::mailbox;
use ringd::reactor::roles::CpuSet;
use ringd::reactor::serve::{BellWaiter, CoreOptions, ServeCore};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u64 = arguments.next().map_or(Ok(50_000), |text| text.parse())?;
    let distance: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let cpus = CpuSet::of_this_thread()?.cpus();
    let log_cpu = CpuSet::of(&[cpus[distance % cpus.len()]]);
    let (log_bell, serve_bell) = (Doorbell::new("log")?, Doorbell::new("serve")?);
    let (mut requests, mut at_log) = mailbox::<u64, 2>([1024, 1024], &log_bell, &serve_bell);
    let (mut answers, mut at_serve) = mailbox::<u64, 2>([1024, 1024], &serve_bell, &log_bell);
    let log = std::thread::spawn(move || {
        log_cpu.pin_this_thread();
        let Ok(mut reactor) = LogReactor::new(Writer::default(), DiskOptions::default(), &log_bell) else {
            return;
        };
        while !at_log.is_closed() {
            while let Some(number) = at_log.pop() {
                let _ = answers.push(1, number);
            }
            answers.ring();
            reactor.wait(None, || at_log.is_closed() || !at_log.is_empty());
        }
    });
    let options = CoreOptions {
        name: "serve".to_string(),
        cpus: Some(CpuSet::of(&cpus[..1])),
    };
    let cpu = cpu_time();
    let core = ServeCore::start(options, move || async move {
        let Ok(mut waiter) = BellWaiter::new(&serve_bell) else {
            return;
        };
        let mut samples = Vec::with_capacity(rounds as usize);
        for number in 0..rounds {
            let began = Instant::now();
            if requests.send(1, number).is_err() {
                return;
            }
            while at_serve.pop().is_none() {
                waiter.wait_unless(|| !at_serve.is_empty()).await;
            }
            samples.push(began.elapsed());
        }
        samples.sort();
        let at = |share: usize| samples[samples.len() * share / 100].as_nanos() as f64 / 1000.0;
        println!("round trip us: p50 {:.1} p90 {:.1} p99 {:.1}", at(50), at(90), at(99));
    })?;
    core.join(Duration::from_secs(60));
    if log.join().is_err() {
        return Err("the log thread panicked".into());
    }
    println!(
        "CPU us per round trip: {:.1}",
        (cpu_time() - cpu).as_secs_f64() * 1e6 / rounds as f64
    );
    Ok(())
}

/// User and system time of the process.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
