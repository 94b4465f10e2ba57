//! Two servers that are given the same requests, one after the other, and whose answers are compared at once.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use ringd::proto::etcdserverpb as pb;

use super::{
    answers, damage,
    exceptions::Exceptions,
    requests::{self, Generator, STREAMS, Step},
    watching::Watching,
};
use crate::support::{
    etcd,
    grpc::{Channel, Reply, Status, Stream},
    server::{Program, Server},
};

/// The key whose watch makes every stream answer progress requests, even without another watch.
const SENTINEL: &str = "sentinel";
/// The watch id of the sentinel.
const SENTINEL_ID: i64 = 1_000_000;
/// The puts after which every watch that starts a little in the future has started.
const SENTINEL_PUTS: usize = 6;
/// How often a compaction in the background is asked whether it is done, and how long apart.
const COMPACTION_POLLS: u32 = 12_000;
const COMPACTION_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long events that progress answers have overtaken may take, and how long apart they are looked for.
const OVERTAKEN_TIMEOUT: Duration = Duration::from_secs(60);
const OVERTAKEN_INTERVAL: Duration = Duration::from_millis(100);
/// How long a lease may take to end after its time, and how often it is asked.
const LEASE_END_TIMEOUT: Duration = Duration::from_secs(60);
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest text of a request or an answer in a report.
const REPORT_LENGTH: usize = 6000;

/// Two answers that are not the same, in words: what was asked, both answers, and how to see it again.
pub struct Difference(String);

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// One server with the streams that stay open.
struct Side {
    server: Server,
    channel: Channel,
    keep_alive: Stream,
    watching: Vec<Watching>,
}

impl Side {
    async fn start(program: Program) -> Result<Self, String> {
        let server = Server::start(program, &["--unsafe-no-fsync"]);
        let channel = Channel::connect(&server.address())
            .await
            .map_err(|error| error.to_string())?;
        let keep_alive = channel
            .stream(etcd::LEASE_KEEP_ALIVE, &[])
            .await
            .map_err(|status| format!("{status:?}"))?;
        let mut watching = Vec::new();
        for _ in 0..STREAMS {
            let mut stream = Watching::open(&channel).await?;
            if program == Program::Etcd351 {
                stream.let_progress_overtake();
            }
            stream.create(&sentinel_watch()).await?;
            watching.push(stream);
        }
        Ok(Self {
            server,
            channel,
            keep_alive,
            watching,
        })
    }

    async fn keep_alive(&mut self, request: &pb::LeaseKeepAliveRequest) -> Reply {
        let mut messages = Vec::new();
        let answer = match self.keep_alive.send(request) {
            Ok(()) => self.keep_alive.next_raw().await,
            Err(status) => Err(status),
        };
        let status = match answer {
            Ok(message) => {
                messages.extend(message);
                Status::ok()
            }
            Err(status) => status,
        };
        Reply {
            status,
            head: None,
            messages,
        }
    }

    /// Waits, a bounded time, until a compaction is done in the background. etcd 3.6 and later then answer HashKV of
    /// the compacted revision with the hash that the compaction computed, over what it was about to remove too.
    async fn wait_for_compaction(&self, revision: i64) {
        if self.server.program() != Program::Reference {
            return;
        }
        for _ in 0..COMPACTION_POLLS {
            match etcd::hash_at(&self.channel, revision).await {
                Ok(hash) if hash.compact_revision == revision => tokio::time::sleep(COMPACTION_POLL_INTERVAL).await,
                _ => return,
            }
        }
    }

    async fn wait_for_watches(&mut self, revision: i64) -> Result<(), String> {
        for stream in &mut self.watching {
            stream.wait_for_progress(revision).await?;
        }
        Ok(())
    }

    /// Waits for events that progress answers have overtaken, until there are as many as another side has seen.
    async fn wait_for_overtaken(&mut self, other: &Self) -> Result<(), String> {
        let deadline = Instant::now() + OVERTAKEN_TIMEOUT;
        for (stream, other) in self.watching.iter_mut().zip(&other.watching) {
            stream.settle(OVERTAKEN_INTERVAL).await?;
            while stream.seen_count() < other.seen_count() && Instant::now() < deadline {
                stream.settle(OVERTAKEN_INTERVAL).await?;
            }
        }
        Ok(())
    }

    async fn wait_for_lease_end(&self, id: i64) -> Result<(), String> {
        let deadline = Instant::now() + LEASE_END_TIMEOUT;
        let asked = pb::LeaseTimeToLiveRequest { id, keys: false };
        loop {
            let lease: pb::LeaseTimeToLiveResponse = self
                .channel
                .call(etcd::LEASE_TIME_TO_LIVE, &asked)
                .await
                .map_err(|status| format!("{status:?}"))?;
            if lease.ttl < 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "lease {id} does not end on {:?}: {lease:?}",
                    self.server.program()
                ));
            }
            tokio::time::sleep(LEASE_POLL_INTERVAL).await;
        }
    }
}

fn sentinel_watch() -> pb::WatchRequest {
    etcd::create_watch(pb::WatchCreateRequest {
        key: SENTINEL.into(),
        watch_id: SENTINEL_ID,
        ..Default::default()
    })
}

/// A change made to one of the subject's answers on the way, to see that the comparison notices. It is offered each
/// answer, with the method, until it says that it has changed one.
pub type Tampering = fn(&str, &mut Reply) -> bool;

/// The two servers.
pub struct Pair {
    subject: Side,
    reference: Side,
    exceptions: Exceptions,
    /// How many requests were sent.
    number: u64,
    seed: Option<(u64, u64)>,
    tampering: Option<Tampering>,
    loses_event: bool,
    /// How often each method answered in each way, to see what a run covered.
    tally: BTreeMap<String, u64>,
}

impl Pair {
    /// Starts both servers.
    pub async fn start(subject: Program) -> Self {
        Self::try_start(subject)
            .await
            .unwrap_or_else(|problem| panic!("the servers do not start: {problem}"))
    }

    async fn try_start(subject: Program) -> Result<Self, String> {
        Ok(Self {
            subject: Side::start(subject).await?,
            reference: Side::start(Program::Reference).await?,
            exceptions: Exceptions::of(subject),
            number: 0,
            seed: None,
            tampering: None,
            loses_event: false,
            tally: BTreeMap::new(),
        })
    }

    /// Takes one event of the subject's watches away before they are compared.
    pub fn lose_an_event(&mut self) {
        self.loses_event = true;
    }

    /// Changes one answer of the subject on its way to the comparison.
    pub fn tamper(&mut self, tampering: Tampering) {
        self.tampering = Some(tampering);
    }

    /// How often each method answered in each way.
    pub fn tally(&self) -> &BTreeMap<String, u64> {
        &self.tally
    }

    /// How many exceptions the subject has.
    pub fn exceptions(&self) -> usize {
        self.exceptions.count()
    }

    /// Sends `count` random requests; the first difference ends it.
    pub async fn run_random(&mut self, seed: u64, count: u64) -> Result<(), Difference> {
        self.seed = Some((seed, count));
        let mut generator = Generator::new(ChaCha8Rng::seed_from_u64(seed));
        while self.number < count {
            let step = generator.step();
            if self.exceptions.avoids(&step, generator.revision) {
                continue;
            }
            self.run(&step, &mut generator).await?;
        }
        self.run(&Step::CompareWatches, &mut generator).await
    }

    /// Sends one request outside of a random run.
    pub async fn check(&mut self, method: &'static str, request: &impl Message) -> Result<Reply, Difference> {
        self.call(&requests::call(method, request), method, request.encode_to_vec().into())
            .await
    }

    /// Sends a body that is not framed by us.
    pub async fn check_framed(&mut self, method: &str, body: Bytes) -> Result<Reply, Difference> {
        self.number += 1;
        let (subject, reference) = tokio::join!(
            self.subject.channel.framed(method, body.clone(), &[]),
            self.reference.channel.framed(method, body.clone(), &[])
        );
        self.compare(
            &Step::Framed {
                method: method.into(),
                body,
            },
            method,
            b"",
            subject,
            reference,
        )
    }

    /// Sends raw request bytes to a method.
    pub async fn check_bytes(&mut self, method: &'static str, request: Bytes) -> Result<Reply, Difference> {
        self.call(
            &Step::Call {
                method,
                request: request.clone(),
            },
            method,
            request,
        )
        .await
    }

    /// Both servers: the subject, then the reference.
    pub fn servers(&self) -> [&Server; 2] {
        [&self.subject.server, &self.reference.server]
    }

    /// Ends both servers, for looking at what they leave.
    pub fn stop(&mut self) -> [&mut Server; 2] {
        [&mut self.subject, &mut self.reference].map(|side| {
            side.server.stop();
            &mut side.server
        })
    }

    /// The first watch stream of both servers: of the subject, then of the reference.
    pub fn streams(&mut self) -> [&mut Watching; 2] {
        [&mut self.subject.watching[0], &mut self.reference.watching[0]]
    }

    /// Waits until a lease has ended on both servers.
    pub async fn wait_for_lease_end(&self, id: i64) {
        let both = tokio::join!(
            self.subject.wait_for_lease_end(id),
            self.reference.wait_for_lease_end(id)
        );
        both.0.and(both.1).unwrap_or_else(|problem| panic!("{problem}"));
    }

    async fn run(&mut self, step: &Step, generator: &mut Generator) -> Result<(), Difference> {
        match step {
            Step::Call { method, request } => {
                if *method == etcd::COMPACT {
                    // A watch that still catches up when its past goes would make the outcome a matter of time.
                    self.compare_watches(generator).await?;
                }
                let answer = self.call(step, method, request.clone()).await?;
                note_revision(generator, method, request, &answer);
                if *method == etcd::COMPACT && answer.status.code == 0 {
                    tokio::join!(
                        self.subject.wait_for_compaction(generator.compacted),
                        self.reference.wait_for_compaction(generator.compacted)
                    );
                }
            }
            Step::Framed { method, body } => {
                self.check_framed(method, body.clone()).await?;
            }
            Step::KeepAlive(request) => {
                self.number += 1;
                let (subject, reference) =
                    tokio::join!(self.subject.keep_alive(request), self.reference.keep_alive(request));
                self.compare(
                    step,
                    etcd::LEASE_KEEP_ALIVE,
                    &request.encode_to_vec(),
                    subject,
                    reference,
                )?;
            }
            Step::Watch { stream, request } => self.create_watch(step, *stream, request, generator).await?,
            Step::CancelWatch { stream, watch_id } => {
                self.compare_watches(generator).await?;
                let ours = self.subject.watching[*stream].cancel(*watch_id).await;
                let theirs = self.reference.watching[*stream].cancel(*watch_id).await;
                ours.and(theirs).map_err(|problem| self.difference(problem, step))?;
            }
            Step::Unanswered { stream, request } => {
                let ours = self.subject.watching[*stream].send(request);
                let theirs = self.reference.watching[*stream].send(request);
                ours.and(theirs).map_err(|problem| self.difference(problem, step))?;
            }
            Step::CompareWatches => self.compare_watches(generator).await?,
        }
        Ok(())
    }

    async fn call(&mut self, step: &Step, method: &str, request: Bytes) -> Result<Reply, Difference> {
        self.number += 1;
        let (subject, reference) = tokio::join!(
            self.subject.channel.unary(method, request.clone(), &[]),
            self.reference.channel.unary(method, request.clone(), &[])
        );
        self.compare(step, method, &request, subject, reference)
    }

    /// Compares and returns the reference's answer.
    fn compare(
        &mut self,
        step: &Step,
        method: &str,
        request: &[u8],
        mut subject: Reply,
        mut reference: Reply,
    ) -> Result<Reply, Difference> {
        for reply in [&mut subject, &mut reference] {
            answers::settle_go_text(&mut reply.status);
        }
        if self.tampering.is_some_and(|change| change(method, &mut subject)) {
            self.tampering = None;
        }
        let outcome = if reference.status.code == 0 {
            "ok"
        } else {
            &reference.status.message
        };
        *self.tally.entry(format!("{method}: {outcome}")).or_default() += 1;
        self.exceptions
            .apply(method, request, &mut subject, &reference, &mut self.tally);
        match answers::compare(method, request, &subject, &reference) {
            Ok(()) => Ok(reference),
            Err(problem) => {
                let answers = [&subject, &reference].map(|answer| answers::describe(method, answer));
                Err(self.difference(with_answers(&problem, &answers[0], &answers[1]), step))
            }
        }
    }

    async fn create_watch(
        &mut self,
        step: &Step,
        stream: usize,
        request: &pb::WatchRequest,
        generator: &mut Generator,
    ) -> Result<(), Difference> {
        self.number += 1;
        let ours = self.subject.watching[stream].create(request).await;
        let theirs = self.reference.watching[stream].create(request).await;
        let (ours, theirs) = match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => (ours, theirs),
            (Err(problem), _) | (_, Err(problem)) => return Err(self.difference(problem, step)),
        };
        let subject = Reply {
            status: Status::ok(),
            head: None,
            messages: vec![ours.encode_to_vec().into()],
        };
        let reference = Reply {
            messages: vec![theirs.encode_to_vec().into()],
            ..subject.clone()
        };
        self.compare(step, etcd::WATCH, &request.encode_to_vec(), subject, reference)?;
        if theirs.canceled {
            return Ok(());
        }
        let starts_compacted = starts_at(request).is_some_and(|start| (1..generator.compacted).contains(&start));
        if !starts_compacted {
            generator.watches[stream].push(theirs.watch_id);
            return Ok(());
        }
        // It ends by itself, sooner or later; until then its id is taken.
        let (ours, theirs) = tokio::join!(
            self.subject.watching[stream].wait_for_end(theirs.watch_id),
            self.reference.watching[stream].wait_for_end(theirs.watch_id)
        );
        ours.and(theirs).map_err(|problem| self.difference(problem, step))
    }

    /// Puts the sentinel on both servers until every watch has started, waits until all were sent everything, and
    /// compares what they received.
    async fn compare_watches(&mut self, generator: &mut Generator) -> Result<(), Difference> {
        for _ in 0..SENTINEL_PUTS {
            let request = etcd::put(SENTINEL, "x");
            let answer = self.check(etcd::PUT, &request).await?;
            note_revision(generator, etcd::PUT, b"", &answer);
        }
        let revision = generator.revision;
        let step = Step::CompareWatches;
        let (ours, theirs) = tokio::join!(
            self.subject.wait_for_watches(revision),
            self.reference.wait_for_watches(revision)
        );
        ours.map_err(|problem| self.difference(format!("subject: {problem}"), &step))?;
        theirs.map_err(|problem| self.difference(format!("reference: {problem}"), &step))?;
        if self.subject.server.program() == Program::Etcd351 {
            let overtaken = self.subject.wait_for_overtaken(&self.reference).await;
            overtaken.map_err(|problem| self.difference(problem, &step))?;
        }
        for stream in 0..STREAMS {
            let mut subject = self.subject.watching[stream].take_seen();
            let reference = self.reference.watching[stream].take_seen();
            if let Some(seen) = subject.values_mut().find(|seen| self.loses_event && seen.len() > 1) {
                seen.remove(0);
                self.loses_event = false;
            }
            if subject != reference {
                let problem = format!("the watches of stream {stream} received different things");
                let [subject, reference] = [format!("{subject:?}"), format!("{reference:?}")];
                return Err(self.difference(with_answers(&problem, &subject, &reference), &step));
            }
            let received = reference.values().map(|seen| seen.len() as u64).sum::<u64>();
            *self.tally.entry("watched events and endings".into()).or_default() += received;
            // A watch that ended by compaction was canceled by us as well; its id is free again.
            for (id, seen) in &reference {
                if seen
                    .iter()
                    .any(|seen| matches!(seen, super::watching::Seen::Canceled(..)))
                {
                    generator.watches[stream].retain(|watch| watch != id);
                }
            }
        }
        Ok(())
    }

    fn difference(&self, problem: impl fmt::Display, step: &Step) -> Difference {
        let step = shortened(&requests::describe(step));
        let again = self.seed.map_or_else(String::new, |(seed, count)| {
            format!(
                "\n  again: RINGD_DIFFERENTIAL={seed}:{count} \
                 cargo test --features blackbox --test differential random"
            )
        });
        Difference(format!("request {}: {problem}\n  request: {step}{again}", self.number))
    }
}

/// A problem together with the two answers.
fn with_answers(problem: &str, subject: &str, reference: &str) -> String {
    format!(
        "{problem}\n  subject: {}\n  reference: {}",
        shortened(subject),
        shortened(reference)
    )
}

fn shortened(text: &str) -> String {
    text.chars().take(REPORT_LENGTH).collect()
}

/// Takes over what an answer says about the state.
fn note_revision(generator: &mut Generator, method: &str, request: &[u8], answer: &Reply) {
    let Some(message) = answer.messages.last() else { return };
    // All these answers begin with the header; a put's answer stands for them.
    if let Ok(pb::PutResponse {
        header: Some(header), ..
    }) = pb::PutResponse::decode(header_of(message))
    {
        generator.revision = generator.revision.max(header.revision);
    }
    if method == etcd::TXN && damage::decode(request).is_some_and(|txn| damage::deletes(&txn)) {
        generator.doubled.insert(generator.revision);
    }
    if method == etcd::COMPACT && answer.status.code == 0 {
        let compaction: pb::CompactionRequest = damage::decode(request).unwrap_or_default();
        generator.compacted = generator.compacted.max(compaction.revision);
    }
}

/// The revision that a watch starts from, for a request that creates one.
fn starts_at(request: &pb::WatchRequest) -> Option<i64> {
    match request.request_union.as_ref()? {
        pb::watch_request::RequestUnion::CreateRequest(watch) => Some(watch.start_revision),
        _ => None,
    }
}

/// The first field of a message when it is a nested message, with its tag: the common header.
fn header_of(message: &Bytes) -> Bytes {
    match message.first() {
        Some(0x0a) if message.len() >= 2 => {
            let end = 2 + usize::from(message[1]);
            if message[1] < 0x80 && end <= message.len() {
                message.slice(..end)
            } else {
                Bytes::new()
            }
        }
        _ => Bytes::new(),
    }
}
