//! Snapshots on their way between members: read from the sender's pages and received as it is in the server, and
//! carried in parts by a network that is slow, breaks off, and repeats them. Either side may die at any moment, the
//! receiver also between any two operations of its disk.

use super::member::Member;
use super::{Canary, World};
use crate::io::faulty::FaultyDisk;
use crate::limits::{SNAPSHOT_CACHE_BYTES, SNAPSHOT_STEP_RECORDS};
use crate::pages::{PageCache, ReadFailure, Root};
use crate::raft::install::{Placed, Taken};
use crate::raft::intake::{self, Intake};
use crate::raft::messages::FromPeers;
use crate::raft::transport::gate;
use crate::sim::member::page_file;
use crate::sim::observe::load_page;
use crate::state::backend::{Export, ExportError, Exported};
use raft::eraftpb::Message;
use std::path::PathBuf;

/// How often the log core is asked what becomes of a snapshot, in microseconds.
const LOOK_US: u64 = 5_000;
/// How long a sender waits for a part to come through.
const PATIENCE_US: u64 = 8_000_000;
/// Of a disk that dies: behind how many operations at most.
const OPERATIONS_TO_DEATH: u64 = 60;

/// One of them.
pub struct Transfer {
    message: Message,
    body: Body,
    stage: Stage,
    /// What was sent so far, for it to be repeated.
    sent: Vec<u8>,
    /// Which lives of the two it belongs to. Nobody waits for what is repeated.
    sender: Option<u64>,
    receiver: Option<u64>,
    /// When it goes on, and until when the network may hold it up.
    next_us: u64,
    until_us: u64,
}

enum Body {
    /// Read from the sender's pages.
    Pages(Box<(Export, PageCache)>),
    /// What somebody has recorded.
    Copy(Vec<u8>),
}

enum Stage {
    /// The sender dials.
    Dialing,
    /// Parts go over.
    Sending(Intake),
    /// All of it is there.
    Received(Intake),
    /// The log core is asked.
    Asking,
    /// The page file gets its name.
    Placing,
    /// The sender is told whether it arrived.
    Answering(bool),
}

/// How it goes on.
enum Next {
    /// At a later time.
    At(u64, Box<Stage>),
    /// It is over.
    Over,
}

/// Where members receive them.
fn directory() -> PathBuf {
    page_file().parent().expect("it is in a directory").to_path_buf()
}

impl Transfer {
    /// A member begins to send its state.
    pub fn new(message: Message, root: Root, sender: u64, now_us: u64) -> Transfer {
        let body = (Export::new(root), PageCache::new(SNAPSHOT_CACHE_BYTES));
        Transfer {
            message,
            body: Body::Pages(Box::new(body)),
            stage: Stage::Dialing,
            sent: Vec::new(),
            sender: Some(sender),
            receiver: None,
            next_us: now_us,
            until_us: now_us + PATIENCE_US,
        }
    }

    /// One line about it.
    pub fn describe(&self) -> String {
        let stage = match self.stage {
            Stage::Dialing => "dialed",
            Stage::Sending(_) => "sent",
            Stage::Received(_) => "imported",
            Stage::Asking => "asked about",
            Stage::Placing => "placed",
            Stage::Answering(_) => "answered",
        };
        let (from, to) = (self.message.from, self.message.to);
        format!("a snapshot of {from} for {to} is being {stage}")
    }

    /// When it goes on.
    pub fn next_us(&self) -> u64 {
        self.next_us
    }

    /// The next part; `None` behind the last.
    fn part(&mut self, disk: Option<&FaultyDisk>) -> Result<Option<Vec<u8>>, String> {
        let (export, cache) = match &mut self.body {
            Body::Copy(bytes) if bytes.is_empty() => return Ok(None),
            Body::Copy(bytes) => return Ok(Some(std::mem::take(bytes))),
            Body::Pages(body) => (&mut body.0, &mut body.1),
        };
        let disk = disk.ok_or("the sender has no disk")?;
        loop {
            match export.step(cache, SNAPSHOT_STEP_RECORDS) {
                Ok(Exported::Chunk(chunk)) => return Ok(Some(chunk)),
                Ok(Exported::End) => return Ok(None),
                Ok(_) => {}
                Err(ExportError::Page(ReadFailure::Missing(address))) => {
                    let root = export.root().clone();
                    load_page(disk, &root, cache, &address)?;
                }
                Err(error) => return Err(format!("a snapshot can't be read: {error}")),
            }
        }
    }
}

/// Changes a byte of the first value that is long enough: it repeats a word of eight bytes.
fn alter_value(part: &mut [u8]) {
    let repeats = |at: &usize| {
        let (word, rest) = part[*at..at + 24].split_at(8);
        word.iter().any(|byte| *byte != word[0]) && word == &rest[..8] && word == &rest[8..]
    };
    if let Some(at) = (0..part.len().saturating_sub(24)).find(repeats) {
        part[at + 12] ^= 1;
    }
}

impl World {
    /// Carries on with all snapshots whose time has come.
    pub(super) fn carry_snapshots(&mut self) -> Result<(), String> {
        let (due, waiting) = std::mem::take(&mut self.transfers)
            .into_iter()
            .partition(|transfer: &Transfer| transfer.next_us <= self.now_us);
        self.transfers = waiting;
        for transfer in due {
            let transfer: Transfer = transfer;
            self.carry(transfer)?;
        }
        Ok(())
    }

    fn carry(&mut self, mut transfer: Transfer) -> Result<(), String> {
        let (from, to) = (transfer.message.from, transfer.message.to);
        let lives = |member: Option<&Member>| member.filter(|member| member.core.is_some()).map(|member| member.lives);
        if transfer.sender.is_some() && transfer.sender != lives(self.members.get(&from)) {
            transfer.sender = None;
            if matches!(transfer.body, Body::Pages(_)) && matches!(transfer.stage, Stage::Dialing | Stage::Sending(_)) {
                self.report.broken_snapshots += 1;
                return self.break_off(transfer);
            }
        }
        if transfer.receiver.is_some() && transfer.receiver != lives(self.members.get(&to)) {
            // What it had received is thrown away by its next start.
            transfer.receiver = None;
            if !matches!(transfer.stage, Stage::Answering(_)) {
                transfer.stage = Stage::Answering(false);
            }
        }
        if self.is_held_up(&transfer) {
            transfer.next_us = self.now_us + 50_000 + self.random.below(100_000);
            let may_end = matches!(transfer.stage, Stage::Dialing | Stage::Sending(_));
            if may_end && transfer.next_us > transfer.until_us {
                self.report.broken_snapshots += 1;
                return self.break_off(transfer);
            }
            self.transfers.push(transfer);
            return Ok(());
        }
        let stage = std::mem::replace(&mut transfer.stage, Stage::Dialing);
        let next = match stage {
            Stage::Dialing => self.dial(&mut transfer),
            Stage::Sending(intake) => self.send_part(&mut transfer, intake)?,
            Stage::Received(intake) => self.make_pages(&mut transfer, intake),
            Stage::Asking => self.ask_log_core(&transfer),
            Stage::Placing => self.place(&transfer),
            Stage::Answering(received) => self.answer_sender(&transfer, received),
        };
        if let Next::At(time, stage) = next {
            (transfer.stage, transfer.next_us) = (*stage, time);
            self.transfers.push(transfer);
        }
        Ok(())
    }

    /// Whether one of the two stands still, or the network between them lets nothing through.
    fn is_held_up(&self, transfer: &Transfer) -> bool {
        let (from, to) = (transfer.message.from, transfer.message.to);
        let stands_still = |id: u64| {
            let member = self.members.get(&id);
            member.is_some_and(|member| member.core.is_some() && !member.is_awake(self.now_us))
        };
        match transfer.stage {
            Stage::Dialing | Stage::Sending(_) => {
                let is_cut = !self.network.connects(from, to) || !self.network.connects(to, from);
                is_cut || stands_still(to) || transfer.sender.is_some() && stands_still(from)
            }
            Stage::Answering(_) => false,
            _ => stands_still(to),
        }
    }

    /// The receiver sees the body end too early, and the sender that it failed.
    fn break_off(&mut self, mut transfer: Transfer) -> Result<(), String> {
        if let Stage::Sending(intake) = transfer.stage
            && let Some(receiver) = self.members.get_mut(&transfer.message.to)
            && transfer.receiver.is_some()
        {
            intake.abandon(&mut receiver.disk.aside(u64::MAX));
            receiver.is_receiving = false;
        }
        if transfer.sender.is_some() {
            (transfer.stage, transfer.next_us) = (Stage::Answering(false), self.now_us + 1_000);
            self.transfers.push(transfer);
        }
        Ok(())
    }

    fn soon(&mut self) -> u64 {
        let delay = self.network.delay_us();
        self.now_us + delay
    }

    fn fails(&mut self) -> Next {
        Next::At(self.soon(), Box::new(Stage::Answering(false)))
    }

    fn dial(&mut self, transfer: &mut Transfer) -> Next {
        let (from, to) = (transfer.message.from, transfer.message.to);
        let Some(receiver) = self.members.get_mut(&to).filter(|member| member.core.is_some()) else {
            return self.fails();
        };
        let core = receiver.core.as_ref().expect("it is up");
        if core.state().members().is_removed(from) {
            if let Some(sender) = self.members.get_mut(&from).filter(|member| member.core.is_some()) {
                sender.inbox.push(FromPeers::Removed);
            }
            return self.fails();
        }
        if receiver.is_receiving || gate::form(&transfer.message, to, Some(from)).is_err() {
            return self.fails();
        }
        let message = transfer.message.clone();
        let Ok(intake) = Intake::begin(&mut receiver.disk.aside(u64::MAX), &directory(), message) else {
            return self.fails();
        };
        receiver.is_receiving = true;
        transfer.receiver = Some(receiver.lives);
        Next::At(self.soon(), Box::new(Stage::Sending(intake)))
    }

    fn send_part(&mut self, transfer: &mut Transfer, mut intake: Intake) -> Result<Next, String> {
        let (from, to) = (transfer.message.from, transfer.message.to);
        let disk = self.members.get(&from).map(|member| &member.disk);
        let part = transfer.part(disk)?;
        let breaks = part.is_some() && self.network.breaks();
        let receiver = self.members.get_mut(&to).expect("it is up");
        let Some(mut part) = part.filter(|_| !breaks) else {
            if breaks {
                self.report.broken_snapshots += 1;
                intake.abandon(&mut receiver.disk.aside(u64::MAX));
                receiver.is_receiving = false;
                return Ok(self.fails());
            }
            self.repeat(transfer);
            return Ok(Next::At(self.soon(), Box::new(Stage::Received(intake))));
        };
        if self.canary == Canary::AlteredSnapshot {
            alter_value(&mut part);
        }
        if intake.take(&mut receiver.disk.aside(u64::MAX), &part).is_err() {
            intake.abandon(&mut receiver.disk.aside(u64::MAX));
            receiver.is_receiving = false;
            return Ok(self.fails());
        }
        transfer.sent.extend(part);
        transfer.until_us = self.now_us + PATIENCE_US;
        Ok(Next::At(self.soon(), Box::new(Stage::Sending(intake))))
    }

    /// Now and then a snapshot comes once more, later, and nobody waits for it.
    fn repeat(&mut self, transfer: &Transfer) {
        if !self.one_in(5) {
            return;
        }
        let next_us = self.now_us + self.random.below(4_000_000);
        self.report.repeated_snapshots += 1;
        self.transfers.push(Transfer {
            message: transfer.message.clone(),
            body: Body::Copy(transfer.sent.clone()),
            stage: Stage::Dialing,
            sent: Vec::new(),
            sender: None,
            receiver: None,
            next_us,
            until_us: next_us + PATIENCE_US,
        });
    }

    /// Behind how many more operations the receiver's machine dies.
    fn death(&mut self) -> u64 {
        match self.now_us < self.nemesis.ends_us && self.one_in(4) {
            true => 1 + self.random.below(OPERATIONS_TO_DEATH),
            false => u64::MAX,
        }
    }

    fn make_pages(&mut self, transfer: &mut Transfer, intake: Intake) -> Next {
        let (to, left) = (transfer.message.to, self.death());
        let receiver = self.members.get_mut(&to).expect("it is up");
        let mut aside = receiver.disk.aside(left);
        let finished = intake.finish(&mut aside);
        if aside.is_dead() {
            self.crash(to);
            return self.fails();
        }
        let Ok((received, _)) = finished else {
            receiver.is_receiving = false;
            return self.fails();
        };
        receiver.taken = None;
        receiver.inbox.push(FromPeers::Snapshot(received));
        receiver.wake(self.now_us);
        Next::At(self.now_us + LOOK_US, Box::new(Stage::Asking))
    }

    fn ask_log_core(&mut self, transfer: &Transfer) -> Next {
        let receiver = self.members.get_mut(&transfer.message.to).expect("it is up");
        let Some(taken) = receiver.taken.take() else {
            return Next::At(self.now_us + LOOK_US, Box::new(Stage::Asking));
        };
        if taken == Ok(Taken::Installs) {
            return Next::At(self.soon(), Box::new(Stage::Placing));
        }
        intake::throw_away(&mut receiver.disk.aside(u64::MAX), &directory());
        receiver.is_receiving = false;
        self.report.known_snapshots += u64::from(taken.is_ok());
        Next::At(self.soon(), Box::new(Stage::Answering(taken.is_ok())))
    }

    fn place(&mut self, transfer: &Transfer) -> Next {
        let (to, left) = (transfer.message.to, self.death());
        // There are two operations, and it may die between them.
        let left = if left == u64::MAX { left } else { 1 + left % 3 };
        let receiver = self.members.get_mut(&to).expect("it is up");
        let mut aside = receiver.disk.aside(left);
        let placed = intake::put_in_place(&mut aside, &directory());
        if aside.is_dead() {
            self.crash(to);
            return self.fails();
        }
        receiver.is_receiving = false;
        receiver.inbox.push(FromPeers::SnapshotInPlace(placed.clone()));
        receiver.wake(self.now_us);
        Next::At(self.soon(), Box::new(Stage::Answering(placed == Placed::Yes)))
    }

    /// The answer may get lost; then the sender takes it for failed.
    fn answer_sender(&mut self, transfer: &Transfer, received: bool) -> Next {
        let (from, to) = (transfer.message.from, transfer.message.to);
        let arrives = self.network.connects(to, from) && !self.network.breaks();
        if transfer.sender.is_some()
            && let Some(sender) = self.members.get_mut(&from)
        {
            let received = received && arrives;
            sender.inbox.push(FromPeers::SnapshotSent { id: to, received });
            sender.wake(self.now_us);
        }
        Next::Over
    }
}
