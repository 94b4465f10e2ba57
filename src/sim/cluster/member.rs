//! One member of a simulated cluster: the shipped log core on a disk and a clock of its own, with its watches.

use super::clock::Clock;
use crate::io::disk::Disk;
use crate::io::faulty::{Fault, FaultyDisk};
use crate::io::medium::Random;
use crate::mvcc::readers::Readers;
use crate::pages::Root;
use crate::raft::boot::{Boot, BootError, start};
use crate::raft::core::{Fatal, LogCore};
use crate::raft::install::Taken;
use crate::raft::messages::{FromPeers, Reply, Request, ToPeers};
use crate::raft::replica::Identity;
use crate::sim::load::Profile;
use crate::sim::member::{CLUSTER_ID, draw};
use crate::sim::reads::SlowReads;
use crate::sim::report;
use crate::sim::watchers::Watchers;
use crate::state::members::Member as Described;
use raft::eraftpb::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// A member in the order of its ends and starts.
pub struct Member {
    /// Its id.
    pub id: u64,
    /// Its disk, whose time is true time.
    pub disk: FaultyDisk,
    /// Its log core while it is up.
    pub core: Option<LogCore>,
    boot: Boot,
    /// Its starts so far.
    pub lives: u64,
    /// Its clock.
    pub clock: Clock,
    /// What its clock showed when it was started.
    started_us: u64,
    /// When it has something to do, in true time.
    pub wake_us: u64,
    /// It stands still until then.
    pub paused_us: u64,
    /// Messages and notes that it has not taken.
    pub inbox: Vec<FromPeers>,
    /// Requests that it has not taken.
    pub requests: Vec<Request>,
    /// Its watches.
    pub watchers: Watchers,
    /// Reads beside compactions.
    pub reads: SlowReads,
    /// Entries that it was seen to apply in this life.
    pub applied: u64,
    /// Entries of its log that were looked at while it leads.
    pub scanned: u64,
    /// The newest revision that a read has seen in this life.
    pub revision: i64,
    /// For a canary: when leases end that it knew the time of.
    pub deadlines: BTreeMap<i64, Duration>,
    /// It was removed and has ended.
    pub is_gone: bool,
    /// Whether it receives a snapshot: one at a time.
    pub is_receiving: bool,
    /// What its log core says of the one that it was given.
    pub taken: Option<Result<Taken, String>>,
    /// Whether its disk was told to fail.
    pub is_disk_failing: bool,
}

/// What came of a turn.
pub struct Turn {
    /// Its answers.
    pub replies: Vec<Reply>,
    /// Its messages.
    pub messages: Vec<Message>,
    /// Snapshots that it sends.
    pub snapshots: Vec<(Message, Root)>,
    /// Why it ended, if it did.
    pub end: Option<Fatal>,
}

/// An end of a start that its disk is the reason of.
pub struct Interruption {
    /// The operation that fails, and all of its kind behind it.
    pub operation: &'static str,
    /// How many of its kind succeed before.
    pub skip: u64,
    /// How the member ends then.
    pub seed: u64,
    /// By a power cut, or only by itself.
    pub is_power_cut: bool,
}

/// How a member is described to others before it has told anything of itself.
pub fn described(id: u64) -> Described {
    Described {
        id,
        name: format!("member {id}"),
        peer_urls: vec![format!("http://member{id}:2380")],
        ..Default::default()
    }
}

/// How all members of a run are set up.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the requests look like.
    pub profile: Profile,
    /// Entries kept behind a checkpoint for followers that lag.
    pub catchup_entries: u64,
    /// Bytes of entries that call for a checkpoint.
    pub checkpoint_at: u64,
    /// Whether changes of the membership that endanger the quorum are refused.
    pub strict_reconfiguration: bool,
    /// Whether elections begin with a pre-vote.
    pub pre_vote: bool,
    /// What the watches' checks are told to break.
    pub watch_canary: report::Canary,
}

impl Member {
    /// A member that is down and was never up. `founders` are those whom the cluster begins with, none for one that
    /// joins.
    pub fn new(id: u64, founders: &[u64], plan: &Plan, random: &mut Random) -> Member {
        let mut boot = draw(random, plan.profile.value_bytes_max);
        boot.replica.identity = Some(Identity {
            cluster_id: CLUSTER_ID,
            member_id: id,
        });
        boot.member = described(id);
        boot.founders = founders.iter().copied().map(described).collect();
        boot.readers = Readers::new(1);
        boot.replica.pre_vote = plan.pre_vote;
        boot.replica.catchup_entries = plan.catchup_entries;
        boot.options.catchup_entries = plan.catchup_entries;
        boot.options.strict_reconfiguration = plan.strict_reconfiguration;
        boot.options.quota_bytes = None;
        boot.options.memory.checkpoint_at = plan.checkpoint_at;
        boot.options.memory.unstored_max = 8 * plan.checkpoint_at;
        let readers = boot.readers.clone();
        Member {
            id,
            disk: FaultyDisk::new(random.bits()),
            core: None,
            boot,
            lives: 0,
            clock: Clock::new(),
            started_us: 0,
            wake_us: 0,
            paused_us: 0,
            inbox: Vec::new(),
            requests: Vec::new(),
            reads: SlowReads::new(report::Canary::None, random.bits(), readers),
            watchers: Watchers::new(plan.watch_canary, random.bits(), plan.profile),
            applied: 0,
            scanned: 0,
            revision: 0,
            deadlines: BTreeMap::new(),
            is_gone: false,
            is_receiving: false,
            taken: None,
            is_disk_failing: false,
        }
    }

    /// The time since its start by its clock.
    pub fn now(&self, true_us: u64) -> Duration {
        Duration::from_micros(self.clock.at(true_us).saturating_sub(self.started_us))
    }

    /// Whether it can do something.
    pub fn is_awake(&self, true_us: u64) -> bool {
        self.core.is_some() && self.paused_us <= true_us
    }

    /// Starts it. It is up when its disk is done with the start.
    pub fn start(&mut self, true_us: u64, timeouts: u64) -> Result<(), BootError> {
        self.disk.clear_faults();
        self.is_disk_failing = false;
        let mut core = self.try_start(true_us)?;
        core.seed_election_timeouts(timeouts);
        self.wake_us = self.disk.now();
        self.started_us = self.clock.at(self.wake_us);
        (self.applied, self.scanned, self.revision) = (0, 0, 0);
        self.deadlines.clear();
        self.reads.forget();
        self.watchers.restarted(&core, Duration::ZERO);
        self.core = Some(core);
        Ok(())
    }

    fn try_start(&mut self, true_us: u64) -> Result<LogCore, BootError> {
        assert!(self.core.is_none() && !self.is_gone);
        self.lives += 1;
        self.disk.set_now(true_us);
        // A start waits for the disk at every step: on a slow one it would outlast the run.
        self.disk.set_delay_us(10..200);
        self.boot.options.first_id = (self.id << 48) + (self.lives << 32);
        start(&mut self.disk, self.boot.clone(), || Duration::ZERO)
    }

    /// Starts it, and ends it before it has done anything, or before it is done with the start.
    pub fn start_in_vain(&mut self, true_us: u64, interruption: &Interruption) {
        self.disk.add_fault(Fault {
            operation: interruption.operation,
            path: String::new(),
            skip: interruption.skip,
            times: u64::MAX,
            errno: libc::EIO,
        });
        drop(self.try_start(true_us));
        self.disk.clear_faults();
        self.crash(interruption.seed, interruption.is_power_cut);
    }

    /// Ends it without a word: the power, or the process only.
    pub fn crash(&mut self, seed: u64, is_power_cut: bool) {
        self.ended();
        if is_power_cut {
            self.disk.power_cut(seed);
        } else {
            self.disk.kill(seed);
        }
    }

    /// It has ended by itself, to begin anew in the same process.
    pub fn end_in_order(&mut self) {
        self.ended();
        self.disk.close_in_order();
    }

    fn ended(&mut self) {
        self.core = None;
        self.inbox.clear();
        self.requests.clear();
        self.is_receiving = false;
        self.taken = None;
    }

    /// It gets a message or a request, and looks at it soon.
    pub fn wake(&mut self, true_us: u64) {
        self.wake_us = self.wake_us.min(true_us).max(self.paused_us);
    }

    /// One turn of its log core, as the server makes it.
    pub fn turn(&mut self, true_us: u64) -> Turn {
        let now = self.now(true_us);
        self.disk.set_now(true_us);
        let core = self.core.as_mut().expect("it is up");
        // Runs on other threads hold guards, too, and with them this one's old views and the pages of those.
        core.state().index().wait_for_guards();
        for event in self.inbox.drain(..) {
            core.handle_peer(event, now);
        }
        for request in self.requests.drain(..) {
            core.handle(0, request, now);
        }
        let mut completions = Vec::new();
        self.disk.poll(&mut completions);
        let taken = completions
            .into_iter()
            .try_for_each(|completion| core.completed(completion));
        let (busy, end) = match taken.and_then(|()| core.turn(&mut self.disk, now)) {
            Ok(busy) => (busy, None),
            Err(end) => (false, Some(end)),
        };
        let mut replies: Vec<Reply> = core.take_replies().map(|(_, reply)| reply).collect();
        let (mut messages, mut snapshots) = (Vec::new(), Vec::new());
        for order in core.take_to_peers() {
            match order {
                ToPeers::Messages(some) => messages.extend(some),
                ToPeers::Snapshot { message, root } => snapshots.push((*message, root)),
                ToPeers::SnapshotTaken(taken) => self.taken = Some(taken),
                ToPeers::Members { .. } => {}
            }
        }
        if end.is_some() {
            // Nothing of its last turn leaves.
            (replies, messages, snapshots) = Default::default();
        }
        let deadline = self.clock.shows(self.started_us + core.deadline().as_micros() as u64);
        let next = self.disk.next_due().unwrap_or(deadline).min(deadline);
        self.wake_us = if busy { true_us + 20 } else { next.max(true_us + 20) };
        Turn {
            replies,
            messages,
            snapshots,
            end,
        }
    }
}
