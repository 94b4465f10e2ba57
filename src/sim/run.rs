//! One run: lives of a member, each ended by a power cut, a kill, an I/O error or in order, judged at the next start.

use super::load::{LONG_TTL_S, Profile, SHORT_LEASE, request};
use super::member::{draw, page_file, page_options};
use super::model::{Answer, Model, Op};
use super::observe::{Observed, Reader, check_view, published};
use super::report::{Canary, Failure, Report};
use crate::io::disk::Disk;
use crate::io::faulty::{Fault, FaultyDisk};
use crate::io::medium::Random;
use crate::mvcc::view::View;
use crate::pages::PageStore;
use crate::raft::boot::{Boot, start};
use crate::raft::core::LogCore;
use crate::raft::messages::{Reply, Request};
use crate::state::outcome::{self, Outcome};
use bytes::Bytes;
use prost::Message;
use std::collections::VecDeque;
use std::time::Duration;

/// Requests under way at once.
const IN_FLIGHT_MAX: usize = 40;
/// Turns within which everything under way has to end once nothing fails any more.
const SETTLE_TURNS: u32 = 200_000;
/// Virtual time within which writes go on after a full disk has room again.
const ROOM_AGAIN: Duration = Duration::from_secs(120);
/// A lease with less left than this may expire before what is under way is done.
const ALMOST_EXPIRED_S: i64 = 30;

/// A request under way, in the order of the log.
struct Flight {
    token: u64,
    op: Op,
    /// What it has to be answered, once it is known that it was applied.
    answer: Option<Answer>,
}

/// How a life goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It does.
    On,
    /// An injected error has ended it.
    Ended,
}

struct Run {
    canary: Canary,
    random: Random,
    boot: Boot,
    profile: Profile,
    disk: FaultyDisk,
    model: Model,
    in_flight: VecDeque<Flight>,
    next_token: u64,
    /// The main revision up to which the watcher has seen all events.
    watched: i64,
    /// A view read earlier, for the stale read.
    earlier: Option<View>,
    /// Whether the canary has done its harm, where once is enough.
    sung: bool,
    /// Whether I/O errors were injected that may end the life.
    errors_injected: bool,
    report: Report,
}

/// Runs a seed.
pub fn run(seed: u64, canary: Canary) -> Result<Report, Failure> {
    let mut random = Random::new(seed);
    let profile = Profile::draw(&mut random);
    let boot = draw(&mut random, profile.value_bytes_max);
    let disk = FaultyDisk::new(random.bits());
    let mut run = Run {
        canary,
        random,
        boot,
        profile,
        disk,
        model: Model::default(),
        in_flight: VecDeque::new(),
        next_token: 0,
        watched: 1,
        earlier: None,
        sung: false,
        errors_injected: false,
        report: Report::default(),
    };
    run.disk.set_syncs_lie(canary == Canary::SyncsLie);
    run.disk.set_barriers_lie(canary == Canary::MetaBeforeData);
    run.lives().map_err(|reason| Failure {
        seed,
        reason: format!("life {}, {} us: {reason}", run.report.starts, run.disk.now()),
    })?;
    Ok(run.report)
}

impl Run {
    fn lives(&mut self) -> Result<(), String> {
        for _ in 0..3 + self.random.below(4) {
            let core = self.start()?;
            self.live(core)?;
        }
        let mut core = self.start()?;
        self.settle(&mut core)?;
        self.check(&core)
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.disk.now())
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    fn note(&mut self, value: u64) {
        self.report.digest = crc32c::crc32c_append(self.report.digest, &value.to_be_bytes());
    }

    /// Starts the member, now and then after starts that are interrupted, and judges what it found.
    fn start(&mut self) -> Result<LogCore, String> {
        self.calm();
        while self.canary == Canary::None && self.one_in(4) {
            // Not of reads: the checkpoint that follows a start raises the CORRUPT alarm over one, for good.
            let operations = ["write", "sync", "sync directory", "rename", "open"];
            let operation = operations[self.random.below(operations.len() as u64) as usize];
            self.disk.add_fault(Fault {
                operation,
                path: String::new(),
                skip: self.random.below(8),
                times: u64::MAX,
                errno: libc::EIO,
            });
            let now = self.now();
            let interrupted = start(&mut self.disk, self.boot.clone(), || now).is_err();
            self.report.interrupted_starts += u64::from(interrupted);
            self.disk.clear_faults();
            self.crash();
        }
        self.check_pages()?;
        let now = self.now();
        let mut core = start(&mut self.disk, self.boot.clone(), || now).map_err(|error| format!("start: {error}"))?;
        let timeout = 10 + self.random.below(10) as usize;
        core.set_election_timeout(timeout);
        self.report.starts += 1;
        self.reconcile(&core)?;
        self.check(&core)?;
        Ok(core)
    }

    /// No faults, no limits, a fast disk.
    fn calm(&mut self) {
        self.disk.clear_faults();
        self.disk.set_capacity(None);
        self.disk.set_delay_us(10..200);
        self.errors_injected = false;
    }

    fn crash(&mut self) {
        let seed = self.random.bits();
        if self.one_in(3) {
            self.disk.kill(seed);
        } else {
            self.report.power_cuts += 1;
            self.disk.power_cut(seed);
        }
    }

    /// Walks the page file as it lies there, before anybody else touches it.
    fn check_pages(&self) -> Result<(), String> {
        if self.disk.volume().resolve(&page_file()).is_err() {
            return Ok(());
        }
        let mut disk = self.disk.clone();
        let store = PageStore::open(&mut disk, &page_file(), page_options());
        let check = store.and_then(|store| store.check(&mut disk));
        match check.map_err(|failure| failure.to_string())?.lost_pages {
            0 => Ok(()),
            lost => Err(format!("{lost} pages of the page file are neither in use nor free")),
        }
    }

    /// Finds out how many of the requests under way at the end of the last life were carried out: some first ones, in
    /// the order of the log, at least all that were acknowledged or seen.
    fn reconcile(&mut self, core: &LogCore) -> Result<(), String> {
        let mut observed = Observed::of(core, &self.disk)?;
        if self.canary == Canary::DroppedRecord {
            observed.drop_newest();
        }
        let mut first = None;
        let mut flights = std::mem::take(&mut self.in_flight).into_iter();
        loop {
            let Some(reason) = observed.differs(&self.model) else {
                return Ok(());
            };
            first.get_or_insert(reason);
            match flights.find(|flight| flight.answer.is_none()) {
                Some(flight) => drop(self.model.apply(&flight.op)),
                None => return Err(format!("after the start: {}", first.unwrap_or_default())),
            }
        }
    }

    /// Compares everything that can be read with the model. Nothing may be under way.
    fn check(&mut self, core: &LogCore) -> Result<(), String> {
        let observed = Observed::of(core, &self.disk)?;
        if let Some(difference) = observed.differs(&self.model) {
            return Err(difference);
        }
        let view = published(core);
        self.note(view.revision as u64);
        self.note(self.model.hash(view.revision).into());
        self.note(self.disk.now());
        check_view(core, &view, &self.disk, &self.model, &mut self.random)
    }

    /// One life, from after its start to its end.
    fn live(&mut self, mut core: LogCore) -> Result<(), String> {
        let steps = 20 + self.random.below(400);
        for _ in 0..steps {
            if self.step(&mut core)? == Life::Ended {
                self.report.disk_errors += 1;
                break;
            }
        }
        self.report.checkpoints += core.pages().root().generation();
        if !self.errors_injected && self.one_in(4) {
            self.settle(&mut core)?;
            self.check(&core)?;
            if self.one_in(2) {
                self.finish(&mut core)?;
            }
        }
        if let Some(violation) = self.disk.violations().first() {
            return Err(format!("a file was written on after an error: {violation:?}"));
        }
        if self.is_expiring(&core) {
            // The member may have proposed its end already, behind everything else.
            let op = Op::Revoke { id: SHORT_LEASE };
            self.in_flight.push_back(Flight {
                token: 0,
                op,
                answer: None,
            });
        }
        drop(core);
        self.crash();
        Ok(())
    }

    fn step(&mut self, core: &mut LogCore) -> Result<Life, String> {
        self.weather();
        let expiring = self.is_expiring(core);
        if self.in_flight.is_empty() && self.one_in(if expiring { 2 } else { 12 }) {
            // Time for a checkpoint, or for a lease to end.
            let seconds = if expiring { 10 } else { 31 };
            self.disk.set_now(self.disk.now() + seconds * 1_000_000);
        }
        for _ in 0..self.random.below(6) {
            if !self.is_expiring(core) && self.in_flight.len() < IN_FLIGHT_MAX {
                self.submit(core);
            }
        }
        let life = self.turn(core)?;
        if life == Life::On && self.in_flight.is_empty() && !self.is_expiring(core) && self.one_in(20) {
            self.check(core)?;
        }
        Ok(life)
    }

    /// Changes how the disk behaves, now and then.
    fn weather(&mut self) {
        if self.one_in(30) {
            let delays = [0..1, 10..200, 1_000..20_000, 20_000..100_000];
            let chosen = self.random.below(delays.len() as u64) as usize;
            self.disk.set_delay_us(delays[chosen].clone());
        }
        if self.canary != Canary::None {
            return;
        }
        if self.one_in(60) {
            let room = self.random.below(1 << 20);
            let capacity = self.disk.volume().allocated() + room;
            self.disk.set_capacity(Some(capacity));
        } else if self.one_in(20) {
            self.disk.set_capacity(None);
        }
        if !self.errors_injected && self.one_in(300) {
            self.errors_injected = true;
            let operation = ["write", "sync"][self.random.below(2) as usize];
            self.disk.add_fault(Fault {
                operation,
                path: ["wal", "db", ""][self.random.below(3) as usize].to_string(),
                skip: self.random.below(5),
                times: 1,
                errno: libc::EIO,
            });
        }
    }

    /// Whether the short lease is about to be revoked by the member itself: nothing else is proposed meanwhile, so that
    /// the order of the log is known.
    fn is_expiring(&self, core: &LogCore) -> bool {
        let lease = core.state().lessor().time_to_live(SHORT_LEASE, false, self.now());
        let left = lease.and_then(|lease| lease.remaining_s);
        left.is_some_and(|left| left < ALMOST_EXPIRED_S)
    }

    fn submit(&mut self, core: &mut LogCore) {
        let mut op = self.profile.draw_op(&mut self.random, &self.model);
        if self.canary == Canary::AnswerBeforePersist && matches!(op, Op::Grant { .. }) {
            // Only what is lost shall be noticed, not that a lease is there too early.
            op = Op::Revoke { id: 1 };
        }
        self.propose(core, op);
    }

    fn propose(&mut self, core: &mut LogCore, op: Op) {
        self.next_token += 1;
        let token = self.next_token;
        let payload = Bytes::from(request(&op).encode_to_vec());
        let takes_room = matches!(op, Op::Put(_) | Op::Txn { .. } | Op::Grant { .. });
        let quota_bytes = if takes_room { payload.len() } else { 0 };
        let answer = (self.canary == Canary::AnswerBeforePersist).then(|| self.model.apply(&op));
        self.in_flight.push_back(Flight { token, op, answer });
        let now = self.now();
        core.handle(
            0,
            Request::Propose {
                token,
                payload,
                quota_bytes,
            },
            now,
        );
    }

    /// One turn of the log core, and of the clock.
    fn turn(&mut self, core: &mut LogCore) -> Result<Life, String> {
        let now = self.now();
        let busy = match core.turn(&mut self.disk, now) {
            Ok(busy) => busy,
            Err(error) => return self.ended(error.to_string()),
        };
        let replies: Vec<Reply> = core.take_replies().map(|(_, reply)| reply).collect();
        for reply in replies {
            self.replied(reply)?;
        }
        if self.model.leases().contains_key(&SHORT_LEASE) && !self.is_known(core, SHORT_LEASE) {
            // It was revoked by the member itself.
            self.model.apply(&Op::Revoke { id: SHORT_LEASE });
        }
        self.watch(core)?;
        if self.one_in(40) && self.canary != Canary::AnswerBeforePersist {
            self.read(core)?;
        }
        let mut completions = Vec::new();
        self.disk.poll(&mut completions);
        if completions.is_empty() && !busy {
            let deadline = core.deadline().as_micros() as u64;
            let next = self.disk.next_due().unwrap_or(deadline).min(deadline);
            self.disk.set_now(next.max(self.disk.now() + 1));
        }
        for completion in completions {
            if let Err(error) = core.completed(completion) {
                return self.ended(error.to_string());
            }
        }
        Ok(Life::On)
    }

    /// A fatal error is right after an injected one only.
    fn ended(&self, error: String) -> Result<Life, String> {
        if self.errors_injected {
            return Ok(Life::Ended);
        }
        Err(format!("the member gave up: {error}"))
    }

    fn is_known(&self, core: &LogCore, lease: i64) -> bool {
        core.state().lessor().contains(lease)
    }

    fn replied(&mut self, reply: Reply) -> Result<(), String> {
        match reply {
            Reply::Applied {
                token, outcome, view, ..
            } => self.applied(token, &outcome, &view),
            Reply::Dropped { token, .. } => {
                let at = self.in_flight.iter().position(|flight| flight.token == token);
                let flight = at.and_then(|at| self.in_flight.remove(at));
                self.report.refused += 1;
                match flight {
                    Some(flight) if flight.answer.is_none() => Ok(()),
                    _ => Err(format!("request {token} was dropped after it was applied")),
                }
            }
            _ => Ok(()),
        }
    }

    /// An acknowledgement: everything before it in the log was applied as well, whether it was answered or not.
    fn applied(&mut self, token: u64, outcome: &Outcome, view: &View) -> Result<(), String> {
        let Some(at) = self.in_flight.iter().position(|flight| flight.token == token) else {
            return Err(format!("an answer for request {token}, which nobody waits for"));
        };
        for flight in self.in_flight.iter_mut().take(at + 1) {
            if flight.answer.is_none() {
                flight.answer = Some(self.model.apply(&flight.op));
            }
        }
        let flight = self.in_flight.remove(at).expect("it was just found");
        let expected = flight.answer.expect("it was just applied");
        let answered = answer_of(outcome);
        self.report.acknowledged += 1;
        self.note(answered.revision as u64);
        if answered != expected {
            let error = outcome.answer.as_ref().err();
            return Err(format!(
                "{:?} was answered {answered:?} ({error:?}), expected was {expected:?}",
                flight.op
            ));
        }
        if view.revision < answered.revision {
            return Err(format!(
                "the view of the answer shows revision {}, the answer says {}",
                view.revision, answered.revision
            ));
        }
        let readable = answered
            .previous
            .filter(|previous| view.compact_revision < previous.main);
        if let Some(previous) = readable {
            let stored = Reader::new(&self.disk).record(view, previous)?;
            let expected = self.model.record(previous).map(|record| record.stored());
            if expected.as_deref() != Some(&stored[..]) {
                return Err(format!("the previous record {previous:?} is not what was put"));
            }
        }
        Ok(())
    }

    /// The watcher: every event of every published view, once, in order.
    fn watch(&mut self, core: &LogCore) -> Result<(), String> {
        let view = published(core);
        if view.revision <= self.watched {
            return Ok(());
        }
        // After a start the window is empty and the events are in the page store, where a compaction may have been.
        if view.window.first_main() > self.watched + 1 && view.compact_revision > self.watched {
            self.watched = view.revision;
            return Ok(());
        }
        let mut events = Reader::new(&self.disk).records_after(&view, self.watched)?;
        if self.canary == Canary::DroppedEvent && !self.sung && events.len() > 1 {
            self.sung = true;
            events.remove(0);
        }
        // A compaction removes below its revision only, also from the events that wait in the window.
        let expected = self.model.events_after(self.watched);
        let same = expected.len() == events.len()
            && expected
                .iter()
                .zip(&events)
                .all(|(record, (revision, tombstone, stored))| {
                    record.revision == *revision && record.tombstone == *tombstone && record.stored()[..] == stored[..]
                });
        let early = self.canary == Canary::AnswerBeforePersist;
        if !same && !early {
            return Err(format!(
                "a watcher behind revision {} got {} events through {:?}, {} through {:?} were expected",
                self.watched,
                events.len(),
                events.last().map(|event| event.0),
                expected.len(),
                expected.last().map(|record| record.revision),
            ));
        }
        self.watched = view.revision;
        Ok(())
    }

    /// A linearizable read of everything.
    fn read(&mut self, core: &LogCore) -> Result<(), String> {
        let newest = published(core);
        let view = match &self.earlier {
            Some(earlier) if self.canary == Canary::StaleRead => earlier.clone(),
            _ => newest.clone(),
        };
        if self.canary == Canary::StaleRead && (newest.revision > 1) {
            self.earlier = Some(newest);
        }
        let waiting = self
            .in_flight
            .iter()
            .any(|flight| matches!(flight.op, Op::Compact { .. }));
        if waiting {
            // Its effect may be visible before its answer.
            return Ok(());
        }
        check_view(core, &view, &self.disk, &self.model, &mut self.random)
    }

    /// Lets everything under way end on a disk that works. Writes that lack of room held up go on by themselves.
    fn settle(&mut self, core: &mut LogCore) -> Result<(), String> {
        self.disk.set_capacity(None);
        self.disk.set_delay_us(10..200);
        for _ in 0..SETTLE_TURNS {
            if self.in_flight.is_empty() && !self.is_expiring(core) {
                return self.write_again(core);
            }
            if self.turn(core)? == Life::Ended {
                return Err("an error without cause".to_string());
            }
        }
        Err(format!("{} requests are never answered", self.in_flight.len()))
    }

    fn write_again(&mut self, core: &mut LogCore) -> Result<(), String> {
        let since = self.now();
        let mut refused = self.report.refused;
        self.propose(
            core,
            Op::Grant {
                id: 1,
                ttl_s: LONG_TTL_S,
            },
        );
        while self.now() < since + ROOM_AGAIN {
            self.turn(core)?;
            if self.in_flight.is_empty() && self.report.refused == refused {
                return Ok(());
            }
            if self.in_flight.is_empty() {
                refused = self.report.refused;
                self.disk.set_now(self.disk.now() + 1_000_000);
                self.propose(
                    core,
                    Op::Grant {
                        id: 1,
                        ttl_s: LONG_TTL_S,
                    },
                );
            }
        }
        Err("the disk has room again, but writes are still refused".to_string())
    }

    /// An orderly end: everything is in the page store afterwards.
    fn finish(&mut self, core: &mut LogCore) -> Result<(), String> {
        for _ in 0..SETTLE_TURNS {
            if core.finish(self.now()) {
                let held = core.pages().root().fields().applied_index;
                let applied = core.state().applied_index();
                return if held == applied {
                    Ok(())
                } else {
                    Err(format!(
                        "the member ended with entry {applied}, its page store holds {held}"
                    ))
                };
            }
            self.turn(core)?;
        }
        Err("the member does not end".to_string())
    }
}

/// What an outcome says, as far as the model predicts it.
fn answer_of(outcome: &Outcome) -> Answer {
    let (mut detail, mut previous) = (0, None);
    match &outcome.answer {
        Ok(outcome::Answer::Put(put)) => previous = put.previous,
        Ok(outcome::Answer::Delete(delete)) => detail = delete.deleted,
        Ok(outcome::Answer::Txn(txn)) => detail = i64::from(txn.succeeded),
        _ => {}
    }
    Answer {
        revision: outcome.revision,
        is_ok: outcome.answer.is_ok(),
        detail,
        previous,
    }
}
