//! Servers as child processes: ringd, the reference etcd 3.7.1, and older etcds, all started with the same flags.
//!
//! Every server has a temporary directory and loopback ports of its own. All advertise the same addresses, so that
//! cluster and member ids, which derive from them, are the same number on every server. A server that is dropped is
//! killed by its process id; when the test is failing, the end of its log is printed.

// Where this file is part of another package it is not `support/mod.rs` that names the module beside it.
#[path = "ports.rs"]
pub mod ports;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use ports::Port;
use tempfile::TempDir;

/// How long a server may take from start to its first answer; recovery after a kill included.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to end after SIGTERM, on a loaded machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a start is tried again because another process took the port in between.
const PORT_ATTEMPTS: u32 = 5;
/// The bytes of a server's log that a failing test prints.
const LOG_TAIL: usize = 8 * 1024;

/// The program that is under test when `RINGD_TEST_SUBJECT` is not set.
const DEFAULT_SUBJECT: Program = Program::Ringd;

/// A program that serves etcd's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Ours.
    Ringd,
    /// etcd 3.7.1, started by `tests/reference`.
    Reference,
    /// etcd 3.6.14, started by `tests/reference`, too.
    Etcd36,
    /// etcd 3.5.1 from its wheel.
    Etcd351,
}

impl Program {
    /// The program under test: `ringd`, `reference` or `3.5.1` in `RINGD_TEST_SUBJECT`.
    pub fn subject() -> Self {
        match std::env::var("RINGD_TEST_SUBJECT").as_deref() {
            Err(_) => DEFAULT_SUBJECT,
            Ok("ringd") => Self::Ringd,
            Ok("reference") => Self::Reference,
            Ok("3.5.1") => Self::Etcd351,
            Ok(other) => panic!("RINGD_TEST_SUBJECT={other}: give ringd, reference or 3.5.1"),
        }
    }

    /// The program's file. A missing one fails the test and says how to get it.
    pub fn path(self) -> PathBuf {
        match self {
            Self::Ringd => ringd_path(),
            Self::Reference => tool("reference/reference"),
            Self::Etcd36 => tool("etcd-3.6/reference"),
            Self::Etcd351 => tool("etcd-3.5.1/etcd"),
        }
    }
}

/// A program under cargo's target directory that `scripts/setup-tests` put there.
pub fn tool(path: &str) -> PathBuf {
    let file = target_directory().join(path);
    assert!(
        file.exists(),
        "{} is missing: run scripts/setup-tests first (scripts/test does)",
        file.display()
    );
    file
}

/// Where setup-tests builds: `CARGO_TARGET_DIR`, or `target` beside the project's Cargo.toml.
fn target_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os("CARGO_TARGET_DIR") {
        return PathBuf::from(directory);
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest
        .ancestors()
        .find(|path| path.join("scripts/setup-tests").exists());
    root.expect("the project's root has scripts/setup-tests").join("target")
}

/// ringd's program: cargo names it for the tests of its own package; other packages find it in the target directory.
fn ringd_path() -> PathBuf {
    if let Some(path) = std::env::var_os("RINGD_BINARY") {
        return PathBuf::from(path);
    }
    match option_env!("CARGO_BIN_EXE_ringd") {
        Some(path) => PathBuf::from(path),
        None => tool("debug/ringd"),
    }
}

/// A running server, or one that was killed and can be started again on the same directory and ports.
pub struct Server {
    program: Program,
    arguments: Vec<String>,
    directory: TempDir,
    client_port: Port,
    peer_port: Port,
    /// Where its peers are told to reach it, if not where it listens.
    peers_at: Option<SocketAddr>,
    part: Option<Part>,
    child: Option<Child>,
}

/// The part of a server in a cluster of several.
#[derive(Clone, Debug)]
pub struct Part {
    /// The member's name.
    pub name: String,
    /// `--initial-cluster`; empty where others say it.
    pub members: String,
    /// Whether the cluster exists already.
    pub joins: bool,
}

impl Server {
    /// A member of a cluster, with its ports reserved and nothing started. Unlike a server that is alone it advertises
    /// where it listens.
    pub fn prepare(program: Program, arguments: &[&str]) -> Self {
        Self::prepare_in(&std::env::temp_dir(), program, arguments)
    }

    fn prepare_in(parent: &Path, program: Program, arguments: &[&str]) -> Self {
        Self {
            program,
            arguments: arguments.iter().map(|argument| argument.to_string()).collect(),
            directory: tempfile::Builder::new()
                .prefix("ringd-test-")
                .tempdir_in(parent)
                .expect("a temporary directory"),
            client_port: Port::reserve(),
            peer_port: Port::reserve(),
            peers_at: None,
            part: None,
            child: None,
        }
    }

    /// Says which part it has from its next start on.
    pub fn set_part(&mut self, part: Part) {
        self.part = Some(part);
    }

    /// Has its peers reach it at another address than the one where it listens, from its first start on.
    pub fn advertise_peers_at(&mut self, address: SocketAddr) {
        self.peers_at = Some(address);
    }

    /// The address that it tells its peers.
    pub fn advertised_peer_address(&self) -> String {
        self.peers_at
            .map_or_else(|| self.peer_address(), |address| address.to_string())
    }

    /// Flags that it gets from its next start on, beside the usual ones.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|argument| argument.to_string()).collect();
    }

    /// The name it has in its cluster.
    pub fn name(&self) -> &str {
        self.part.as_ref().map_or("default", |part| &part.name)
    }

    /// Starts `program` with an empty directory and flags beyond the usual ones, and waits until it serves.
    pub fn start(program: Program, arguments: &[&str]) -> Self {
        Self::start_in(&std::env::temp_dir(), program, arguments)
    }

    /// As `start`, with its directory in `parent`.
    pub fn start_in(parent: &Path, program: Program, arguments: &[&str]) -> Self {
        for attempt in 1.. {
            let mut server = Self::prepare_in(parent, program, arguments);
            match server.try_restart() {
                Ok(()) => return server,
                Err(problem) if attempt < PORT_ATTEMPTS && server.log().contains("address already in use") => {
                    eprintln!("{problem}; trying other ports");
                }
                Err(problem) => panic!("{problem}\n{}", server.log_tail()),
            }
        }
        unreachable!("the loop above returns or panics")
    }

    /// Starts the program under test.
    pub fn subject(arguments: &[&str]) -> Self {
        Self::start(Program::subject(), arguments)
    }

    /// Starts the program under test; if that is ringd, on two cores at most and with this memory budget, so that what
    /// it takes of memory does not depend on the machine.
    pub fn subject_of_fixed_size(memory_budget: &str, arguments: &[&str]) -> Self {
        if Program::subject() != Program::Ringd {
            return Self::subject(arguments);
        }
        let cores = thread::available_parallelism().map_or(1, |count| count.get().min(2));
        let [cores, budget] = [format!("--cores={cores}"), format!("--memory-budget={memory_budget}")];
        Self::subject(&[&[&*cores, &*budget], arguments].concat())
    }

    /// Starts the reference etcd 3.7.1.
    pub fn reference(arguments: &[&str]) -> Self {
        Self::start(Program::Reference, arguments)
    }

    /// Starts a server that was killed or stopped, on its directory and ports, and waits until it serves.
    pub fn restart(&mut self) {
        if let Err(problem) = self.try_restart() {
            panic!("{problem}\n{}", self.log_tail());
        }
    }

    fn try_restart(&mut self) -> Result<(), String> {
        self.spawn()?;
        self.wait_until_healthy()
    }

    /// Starts the process, and does not wait for it.
    pub fn spawn(&mut self) -> Result<(), String> {
        assert!(self.child.is_none(), "the server is running already");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the server's log file");
        let mut command = self.command(self.program);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log file"))
            .stderr(log);
        let child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.path().display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// A program on this server's directory and ports, with the flags that every server gets and this one's own.
    pub fn command(&self, program: Program) -> Command {
        let mut command = bound_to_this_thread(program.path());
        command
            .arg("--data-dir")
            .arg(self.data_directory())
            .arg(format!(
                "--listen-client-urls=http://127.0.0.1:{}",
                self.client_port.number()
            ))
            .arg(format!(
                "--listen-peer-urls=http://127.0.0.1:{}",
                self.peer_port.number()
            ))
            .arg("--log-level=warn")
            .args(&self.arguments);
        match &self.part {
            None => command
                .arg("--advertise-client-urls=http://127.0.0.1:2379")
                .arg("--initial-advertise-peer-urls=http://127.0.0.1:2380")
                .arg("--initial-cluster=default=http://127.0.0.1:2380"),
            Some(part) => command
                .arg(format!("--advertise-client-urls=http://{}", self.address()))
                .arg(format!(
                    "--initial-advertise-peer-urls=http://{}",
                    self.advertised_peer_address()
                ))
                .arg(format!("--name={}", part.name))
                .args((!part.members.is_empty()).then(|| format!("--initial-cluster={}", part.members)))
                .args(part.joins.then_some("--initial-cluster-state=existing")),
        };
        command
    }

    /// Waits until the process answers that it is healthy.
    pub fn wait_until_healthy(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut last = String::from("no answer");
        while Instant::now() < deadline {
            if let Some(status) = self
                .child
                .as_mut()
                .and_then(|child| child.try_wait().expect("wait for a child"))
            {
                self.child = None;
                return Err(format!("{:?} ended before it served: {status}", self.program));
            }
            match self.http_get("/health") {
                Ok(answer) if answer.contains("\"health\":\"true\"") => return Ok(()),
                Ok(answer) => last = answer,
                Err(error) => last = error.to_string(),
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!(
            "{:?} did not serve within {START_TIMEOUT:?}: {last}",
            self.program
        ))
    }

    /// The whole answer, head included, to an HTTP/1.1 GET on the client port.
    pub fn http_get(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let host = self.address();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// The body of the answer to a GET, its chunks joined.
    pub fn http_body(&self, path: &str) -> std::io::Result<String> {
        let answer = self.http_get(path)?;
        let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap_or_default();
        if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            return Ok(rest.to_string());
        }
        let mut body = String::new();
        while let Some((length, chunk)) = rest.split_once("\r\n") {
            let length = usize::from_str_radix(length, 16).map_err(std::io::Error::other)?;
            body.push_str(chunk.get(..length).unwrap_or_default());
            rest = chunk.get(length + 2..).unwrap_or_default();
        }
        Ok(body)
    }

    /// Kills the server at once (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the server is running");
        child.kill().expect("kill a child");
        child.wait().expect("wait for a child");
    }

    /// Asks the server to end (SIGTERM) and returns how it ended. Panics when it takes too long.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.stop_told()
    }

    /// Waits for a server that was sent SIGTERM and returns how it ended. Panics when it takes too long.
    pub fn stop_told(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the server is running");
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait().expect("wait for a child") {
                return status;
            }
            if Instant::now() > deadline {
                child.kill().expect("kill a child");
                child.wait().expect("wait for a child");
                panic!("{:?} did not end within {STOP_TIMEOUT:?}", self.program);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal, given by its name without `SIG`, to this server's process.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.process_id().to_string())
            .status();
        assert!(sent.expect("run kill").success(), "kill -{name} failed");
    }

    /// The process id of the running server.
    pub fn process_id(&self) -> u32 {
        self.child.as_ref().expect("the server is running").id()
    }

    /// Whether it was started, and not stopped or killed since.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// True while the process has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| child.try_wait().expect("wait for a child").is_none())
    }

    /// Which program this is.
    pub fn program(&self) -> Program {
        self.program
    }

    /// The address for clients, `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port.number())
    }

    /// The address for peers, `127.0.0.1:port`.
    pub fn peer_address(&self) -> String {
        format!("127.0.0.1:{}", self.peer_port.number())
    }

    /// The server's data directory.
    pub fn data_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// What the server wrote to stdout and stderr since it was first started.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let mut start = log.len().saturating_sub(LOG_TAIL);
        while !log.is_char_boundary(start) {
            start += 1;
        }
        format!("--- end of the log of {:?} ---\n{}", self.program, &log[start..])
    }

    /// What the process uses now.
    pub fn usage(&self) -> Usage {
        Usage::read(self.process_id(), &self.data_directory())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}

/// A command whose process the kernel kills when the test's thread ends in any way, an abort included, where the
/// `setpriv` program is there to ask for that. It replaces itself by the program, so that the process id stays.
pub fn bound_to_this_thread(program: PathBuf) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new(program);
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// What a server process uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Resident memory.
    pub resident_bytes: u64,
    /// The most resident memory since the process started.
    pub peak_resident_bytes: u64,
    /// Open file descriptors.
    pub descriptors: u64,
    /// Blocks allocated to files below `member/wal`.
    pub wal_bytes: u64,
    /// Blocks allocated to files below `member/snap`.
    pub store_bytes: u64,
}

impl Usage {
    fn read(process: u32, data: &Path) -> Self {
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
        let kibibytes = |name: &str| -> u64 {
            let line = status
                .lines()
                .find(|line| line.starts_with(name))
                .expect("a line of /proc/PID/status");
            line.split_whitespace()
                .nth(1)
                .expect("a value")
                .parse()
                .expect("a number")
        };
        Self {
            resident_bytes: kibibytes("VmRSS:") * 1024,
            peak_resident_bytes: kibibytes("VmHWM:") * 1024,
            descriptors: fs::read_dir(format!("/proc/{process}/fd"))
                .expect("the process runs")
                .count() as u64,
            wal_bytes: allocated_bytes(&data.join("member/wal")),
            store_bytes: allocated_bytes(&data.join("member/snap")),
        }
    }
}

/// The space that the files of a directory take on disk; holes do not count. Files may vanish meanwhile.
fn allocated_bytes(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|file| file.blocks() * 512)
        .sum()
}
