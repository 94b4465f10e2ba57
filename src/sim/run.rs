//! One run: lives of a member, each ended by a power cut, a kill, an I/O error or in order, judged at the next start.

use super::leases::LeaseTimes;
use super::load::{Profile, SHORT_LEASES};
use super::member::{draw, page_file, page_options};
use super::model::{Model, Op};
use super::observe::{Observed, check_view, published};
use super::reads::SlowReads;
use super::report::{Canary, Failure, Report};
use super::serve::{Flight, Renewing, revoked_next};
use super::watchers::Watchers;
use crate::io::faulty::{Fault, FaultyDisk};
use crate::io::medium::Random;
use crate::mvcc::view::View;
use crate::pages::PageStore;
use crate::raft::boot::{Boot, start};
use crate::raft::core::LogCore;
use std::collections::VecDeque;
use std::time::Duration;

/// Requests under way at once.
const IN_FLIGHT_MAX: usize = 40;

/// How a life goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It does.
    On,
    /// An injected error has ended it.
    Ended,
}

pub(super) struct Run {
    pub canary: Canary,
    pub random: Random,
    pub boot: Boot,
    pub profile: Profile,
    pub disk: FaultyDisk,
    pub model: Model,
    pub in_flight: VecDeque<Flight>,
    pub renewing: Vec<Renewing>,
    /// Leases that were said to be gone in this turn.
    pub not_renewed: Vec<i64>,
    pub next_token: u64,
    pub leases: LeaseTimes,
    /// Leases that the member may have revoked before its last end, unseen.
    ending: Vec<i64>,
    pub watchers: Watchers,
    pub reads: SlowReads,
    /// A view read earlier, for the stale read.
    pub earlier: Option<View>,
    /// Whether the canary has done its harm, where once is enough.
    pub sung: bool,
    /// Whether I/O errors were injected that may end the life.
    pub errors_injected: bool,
    pub report: Report,
}

/// Runs a seed.
pub fn run(seed: u64, canary: Canary) -> Result<Report, Failure> {
    let mut random = Random::new(seed);
    let profile = Profile::draw(&mut random);
    let mut boot = draw(&mut random, profile.value_bytes_max);
    if !matches!(canary, Canary::None | Canary::QuotaIgnored) {
        boot.options.quota_bytes = None;
    }
    let disk = FaultyDisk::new(random.bits());
    let watchers = Watchers::new(canary, random.bits(), profile);
    let reads = SlowReads::new(canary, random.bits(), boot.readers.clone());
    let mut run = Run {
        canary,
        random,
        boot,
        profile,
        disk,
        model: Model::default(),
        in_flight: VecDeque::new(),
        renewing: Vec::new(),
        not_renewed: Vec::new(),
        next_token: 0,
        leases: LeaseTimes::default(),
        ending: Vec::new(),
        watchers,
        reads,
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
    run.report.messages = run.watchers.messages;
    run.report.compacted_watches = run.watchers.compacted;
    run.report.progresses = run.watchers.progresses;
    Ok(run.report)
}

impl Run {
    fn lives(&mut self) -> Result<(), String> {
        for _ in 0..3 + self.random.below(4) {
            let core = self.start()?;
            self.live(core)?;
        }
        let mut core = self.start()?;
        self.settle(&mut core)
    }

    pub fn now(&self) -> Duration {
        Duration::from_micros(self.disk.now())
    }

    pub fn one_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    pub fn note(&mut self, value: u64) {
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
        self.renewing.clear();
        // A revocation that got lost with the last life is made again.
        self.sung &= self.canary != Canary::EarlyExpiry;
        self.reads.forget();
        let now = self.now();
        let mut core = start(&mut self.disk, self.boot.clone(), || now).map_err(|error| format!("start: {error}"))?;
        let timeout = 10 + self.random.below(10) as usize;
        core.set_election_timeout(timeout);
        self.report.starts += 1;
        self.reconcile(&core)?;
        let known = SHORT_LEASES.filter(|id| self.model.leases().contains_key(id));
        self.leases.restarted(known, now);
        self.watchers.restarted(&core, now);
        self.check(&core)?;
        Ok(core)
    }

    /// No faults, no limits, a fast disk.
    pub fn calm(&mut self) {
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
            let next = flights.find(|flight| flight.answer.is_none()).map(|flight| flight.op);
            match next.or_else(|| self.next_end(&observed)) {
                Some(op) => drop(self.model.apply(&op)),
                None => return Err(format!("after the start: {}", first.unwrap_or_default())),
            }
        }
    }

    /// The end of a lease that the member has put into the log before its own end, behind everything else.
    fn next_end(&self, observed: &Observed) -> Option<Op> {
        let gone = self.ending.iter().copied();
        let gone = gone.filter(|id| self.model.leases().contains_key(id) && !observed.has_lease(*id));
        let gone: Vec<i64> = gone.collect();
        let key = observed.key_after(self.model.revision());
        revoked_next(&self.model, &gone, key.as_deref()).map(|id| Op::Revoke { id })
    }

    /// Compares everything that can be read with the model. Nothing may be under way.
    pub fn check(&mut self, core: &LogCore) -> Result<(), String> {
        let observed = Observed::of(core, &self.disk)?;
        if let Some(difference) = observed.differs(&self.model) {
            return Err(difference);
        }
        for id in SHORT_LEASES {
            let lease = core.state().lessor().time_to_live(id, false, self.now());
            if let Some(left_s) = lease.and_then(|lease| lease.remaining_s) {
                self.leases.check_left(id, left_s, self.now())?;
            }
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
            if self.one_in(2) {
                self.finish(&mut core)?;
            }
        }
        if let Some(violation) = self.disk.violations().first() {
            return Err(format!("a file was written on after an error: {violation:?}"));
        }
        self.ending = self.leases.ending(self.now());
        drop(core);
        self.crash();
        Ok(())
    }

    fn step(&mut self, core: &mut LogCore) -> Result<Life, String> {
        self.weather();
        let expiring = self.is_expiring();
        if self.in_flight.is_empty() && self.one_in(if expiring { 2 } else { 12 }) {
            // Time for a checkpoint, or for a lease to end.
            let seconds = if expiring { 10 } else { 31 };
            self.disk.set_now(self.disk.now() + seconds * 1_000_000);
        }
        self.renew(core);
        for _ in 0..self.random.below(6) {
            if !self.is_expiring() && self.in_flight.len() < IN_FLIGHT_MAX {
                self.submit(core);
            }
        }
        let life = self.turn(core)?;
        if life == Life::On && self.in_flight.is_empty() && !self.is_expiring() && self.one_in(20) {
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
        if self.boot.options.quota_bytes.is_some() {
            // What is refused is refused for the quota.
        } else if self.one_in(60) {
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

    /// Whether a lease is about to be revoked by the member itself. Nothing else is proposed meanwhile, so that the
    /// order of the log is known.
    pub fn is_expiring(&self) -> bool {
        let is_revoking = self.canary == Canary::EarlyExpiry && self.sung;
        is_revoking || self.leases.is_ending(self.now())
    }
}
