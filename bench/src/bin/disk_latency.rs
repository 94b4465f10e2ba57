//! Latency of durable writes by each way the log core knows, one in flight, into a preallocated and zeroed file.
//!
//! `disk_latency DIRECTORY [WRITES] [BYTES]`: prints microseconds at p50, p90 and p99, and the CPU time that this
//! process (kernel workers included) spent per write. Methods are interleaved in rounds, because machines drift.

use ringd::io::buffer::AlignedBuffer;
use ringd::io::disk::{Disk, FileId, OpenMode, Operation, Outcome};
use ringd::reactor::Doorbell;
use ringd::reactor::disk::{DiskOptions, WriteMethod};
use ringd::reactor::log::{LogReactor, Writer};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const ROUNDS: usize = 4;
const FILE_BYTES: usize = 16 << 20;

struct Method {
    name: &'static str,
    writer: Option<Writer>,
    samples: Vec<Duration>,
    cpu: Duration,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(
        arguments
            .next()
            .ok_or("usage: disk_latency DIRECTORY [WRITES] [BYTES]")?,
    );
    let writes: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let bytes: usize = arguments.next().map_or(Ok(4096), |text| text.parse())?;
    let method = |name, writer| Method {
        name,
        writer,
        samples: Vec::new(),
        cpu: Duration::ZERO,
    };
    let mut methods = [
        method("pwritev2(RWF_DSYNC), calling thread", None),
        method("threads: pwritev2(RWF_DSYNC)", Some(Writer::Threads)),
        method("ring: write RWF_DSYNC", Some(Writer::Ring(WriteMethod::Dsync))),
        method(
            "ring: write, linked fdatasync",
            Some(Writer::Ring(WriteMethod::LinkedSync)),
        ),
        method(
            "ring, durable writes on a thread",
            Some(Writer::Ring(WriteMethod::Thread)),
        ),
    ];
    for _ in 0..ROUNDS {
        for method in &mut methods {
            let path = directory.join("disk_latency.tmp");
            let cpu = cpu_time();
            match method.writer {
                Some(writer) => through_reactor(writer, &path, writes / ROUNDS, bytes, &mut method.samples)?,
                None => on_this_thread(&path, writes / ROUNDS, bytes, &mut method.samples)?,
            }
            method.cpu += cpu_time().saturating_sub(cpu);
            std::fs::remove_file(&path)?;
        }
    }
    println!(
        "{:<38} {:>8} {:>8} {:>8} {:>10}",
        "method", "p50 us", "p90 us", "p99 us", "cpu us/op"
    );
    for method in &mut methods {
        method.samples.sort();
        let at = |share: usize| method.samples[method.samples.len() * share / 100].as_micros();
        let cpu = method.cpu.as_micros() / method.samples.len() as u128;
        println!(
            "{:<38} {:>8} {:>8} {:>8} {:>10}",
            method.name,
            at(50),
            at(90),
            at(99),
            cpu
        );
    }
    Ok(())
}

/// User and system time of the process.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn through_reactor(
    writer: Writer,
    path: &std::path::Path,
    writes: usize,
    bytes: usize,
    samples: &mut Vec<Duration>,
) -> Result<(), Box<dyn std::error::Error>> {
    let bell = Doorbell::new("bench")?;
    let mut reactor = LogReactor::new(writer, DiskOptions::default(), &bell)?;
    let (file, _) = reactor.disk().open(path, OpenMode::CreateNew)?;
    prepare(reactor.disk(), file)?;
    let mut buffer = AlignedBuffer::zeroed(bytes);
    let mut completions = Vec::new();
    for number in 0..writes {
        let offset = (number * buffer.len() % FILE_BYTES) as u64;
        buffer[0] = number as u8;
        let began = Instant::now();
        reactor.disk().submit(
            1,
            Operation::Write {
                file,
                offset,
                buffer,
                durable: true,
            },
        );
        while completions.is_empty() {
            reactor.wait(None, || false);
            reactor.disk().poll(&mut completions);
        }
        samples.push(began.elapsed());
        let Some(Ok(Outcome::Written { buffer: back })) = completions.pop().map(|completion| completion.result) else {
            return Err("the write failed".into());
        };
        buffer = back;
    }
    Ok(())
}

fn prepare(disk: &mut dyn Disk, file: FileId) -> Result<(), Box<dyn std::error::Error>> {
    for offset in (0..FILE_BYTES).step_by(1 << 20) {
        disk.call(Operation::Write {
            file,
            offset: offset as u64,
            buffer: AlignedBuffer::zeroed(1 << 20),
            durable: false,
        })?;
    }
    disk.call(Operation::Sync { file })?;
    Ok(())
}

/// The floor: no thread is woken but this one, by the disk.
fn on_this_thread(
    path: &std::path::Path,
    writes: usize,
    bytes: usize,
    samples: &mut Vec<Duration>,
) -> Result<(), Box<dyn std::error::Error>> {
    let bell = Doorbell::new("bench")?;
    let mut reactor = LogReactor::new(Writer::Threads, DiskOptions::default(), &bell)?;
    let (file, _) = reactor.disk().open(path, OpenMode::CreateNew)?;
    prepare(reactor.disk(), file)?;
    let mut options = std::fs::OpenOptions::new();
    let file = std::os::unix::fs::OpenOptionsExt::custom_flags(options.write(true), libc::O_DIRECT).open(path)?;
    let buffer = AlignedBuffer::zeroed(bytes);
    for number in 0..writes {
        let offset = (number * buffer.len() % FILE_BYTES) as i64;
        let part = libc::iovec {
            iov_base: buffer.as_ptr().cast_mut().cast(),
            iov_len: buffer.len(),
        };
        let began = Instant::now();
        // SAFETY: `part` describes `buffer`, which outlives the call and is only read by it.
        let written = unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, offset, libc::RWF_DSYNC) };
        samples.push(began.elapsed());
        if written != buffer.len() as isize {
            return Err("the write failed".into());
        }
    }
    Ok(())
}
