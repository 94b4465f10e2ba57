//! What goes wrong, and when it is over.

use super::network::Weather;
use super::{Canary, World};
use crate::io::faulty::Fault;
use crate::io::medium::Random;
use crate::proto::etcdserverpb::{InternalRaftRequest, LeaseRevokeRequest};
use crate::raft::messages::FromPeers;
use crate::sim::load::SHORT_LEASES;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often members are told who can be reached, in microseconds.
const CONNECTIONS_US: u64 = 1_000_000;
/// The time before anything goes wrong.
const QUIET_US: u64 = 3_000_000;

/// What fails of a disk that fails.
const OPERATIONS: [&str; 9] = [
    "write",
    "write",
    "sync",
    "sync",
    "read",
    "open",
    "rename",
    "allocate",
    "sync directory",
];

/// What is planned.
pub struct Nemesis {
    /// From then on nothing goes wrong any more.
    pub ends_us: u64,
    next_us: u64,
    connections_us: u64,
    /// Longest time between two blows.
    rest_us: u64,
    /// Members that are down, and until when.
    pub down: BTreeMap<u64, u64>,
    /// Members whose disk is full, and until when.
    full: BTreeMap<u64, u64>,
    /// Whether disks fail and get full.
    bad_disks: bool,
    /// Until when the network is cut.
    cut_until_us: u64,
    /// Whether clocks drift and jump.
    clocks: bool,
    /// Whether members come and go.
    pub membership: bool,
    /// The last answer about connections.
    connected: BTreeMap<(u64, u64), bool>,
}

impl Nemesis {
    /// Drawn from a seed.
    pub fn draw(random: &mut Random, canary: Canary) -> Nemesis {
        let rests_us = [400_000, 1_500_000, 4_000_000];
        Nemesis {
            ends_us: QUIET_US + 5_000_000 + random.below(25_000_000),
            next_us: QUIET_US,
            connections_us: 0,
            rest_us: rests_us[random.below(3) as usize],
            down: BTreeMap::new(),
            full: BTreeMap::new(),
            bad_disks: random.coin() && canary == Canary::None,
            cut_until_us: 0,
            clocks: random.below(3) == 0 && canary == Canary::None,
            membership: random.coin(),
            connected: BTreeMap::new(),
        }
    }

    /// When it has something to do.
    pub fn next_us(&self) -> u64 {
        let over = self.down.values().chain(self.full.values()).min();
        let over = over.copied().unwrap_or(u64::MAX);
        self.next_us.min(self.connections_us).min(over)
    }
}

impl World {
    /// Lets go wrong what is to go wrong now, and what was wrong end.
    pub(super) fn do_harm(&mut self) -> Result<(), String> {
        self.end_harm()?;
        if self.now_us < self.nemesis.next_us {
            return Ok(());
        }
        self.nemesis.next_us = self.now_us + 1 + self.random.below(self.nemesis.rest_us);
        match self.random.below(23) {
            20 if self.nemesis.bad_disks => self.break_a_disk(),
            21 if self.nemesis.bad_disks => self.fill_a_disk(),
            0..4 => self.crash_somebody(),
            4..6 => self.pause_somebody(),
            6..10 => self.cut_network(),
            10..12 => {
                let weather = Weather::draw(&mut self.random);
                self.network.set_weather(weather);
            }
            12..14 => self.slow_a_disk(),
            14 if self.nemesis.clocks => self.disturb_a_clock(),
            15..17 => self.move_watches(),
            17 => self.move_leadership(),
            _ if self.nemesis.membership => self.change_membership(),
            _ => {}
        }
        Ok(())
    }

    /// What is over, and who is reached by whom.
    pub(super) fn end_harm(&mut self) -> Result<(), String> {
        let due: Vec<u64> = self
            .nemesis
            .down
            .iter()
            .filter(|(_, until)| **until <= self.now_us)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.nemesis.down.remove(&id);
            self.start(id)?;
        }
        let now_us = self.now_us;
        for (id, _) in self.nemesis.full.extract_if(.., |_, until| *until <= now_us) {
            let member = self.members.get_mut(&id).expect("there is such a member");
            member.disk.set_capacity(None);
        }
        if self.nemesis.cut_until_us <= self.now_us {
            self.network.heal();
        }
        if self.nemesis.connections_us <= self.now_us {
            self.nemesis.connections_us = self.now_us + CONNECTIONS_US;
            self.tell_connections();
            self.welcome()?;
        }
        Ok(())
    }

    /// Everything is well from now on.
    pub(super) fn calm(&mut self) -> Result<(), String> {
        self.network.heal();
        self.network.set_weather(Weather::fine());
        self.nemesis.cut_until_us = 0;
        self.nemesis.next_us = u64::MAX;
        for until in self.nemesis.down.values_mut().chain(self.nemesis.full.values_mut()) {
            *until = self.now_us;
        }
        for member in self.members.values_mut() {
            member.paused_us = member.paused_us.min(self.now_us);
            member.wake_us = member.wake_us.min(self.now_us);
            member.clock.drift(self.now_us, 0);
            member.disk.set_delay_us(10..200);
        }
        self.end_harm()
    }

    pub(super) fn somebody(&mut self) -> Option<u64> {
        let leading = self.leading();
        // Leaders are hit most.
        if !leading.is_empty() && self.random.coin() {
            return leading.last().copied();
        }
        let up: Vec<u64> = self.up().collect();
        (!up.is_empty()).then(|| up[self.random.below(up.len() as u64) as usize])
    }

    fn crash_somebody(&mut self) {
        let everybody = self.one_in(6) || self.canary == Canary::SendBeforePersist;
        let Some(one) = self.somebody() else { return };
        let ids: Vec<u64> = if everybody { self.up().collect() } else { vec![one] };
        ids.into_iter().for_each(|id| self.crash(id));
    }

    /// A member ends without a word, for some time.
    pub(super) fn crash(&mut self, id: u64) {
        self.report.crashes += 1;
        let (seed, is_power_cut) = (self.random.bits(), self.random.below(3) > 0);
        let down_us = self.random.below(3_000_000);
        let member = self.members.get_mut(&id).expect("it is up");
        self.report.checkpoints += member.core.as_ref().map_or(0, |core| core.pages().root().generation());
        member.crash(seed, is_power_cut);
        self.nemesis.down.insert(id, self.now_us + 1 + down_us);
    }

    fn pause_somebody(&mut self) {
        let Some(id) = self.somebody() else { return };
        self.report.pauses += 1;
        let time_us = 100_000 + self.random.below(6_000_000);
        let member = self.members.get_mut(&id).expect("it is up");
        member.paused_us = self.now_us + time_us;
    }

    /// Two sides, or one member on one of them, without messages from one to the other, or either way.
    fn cut_network(&mut self) {
        self.report.cuts += 1;
        let ids: Vec<u64> = self.members.keys().copied().collect();
        let alone = self.somebody();
        let is_split = self.random.below(3) == 0;
        let bits = self.random.bits();
        let one_way = self.random.below(4);
        let side = |id: u64| {
            if is_split {
                bits >> (id % 64) & 1 == 1
            } else {
                Some(id) == alone
            }
        };
        for from in &ids {
            for to in ids.iter().filter(|to| side(**to) != side(*from)) {
                let is_cut = match one_way {
                    0 => side(*from),
                    1 => side(*to),
                    _ => true,
                };
                if is_cut {
                    self.network.cut(*from, *to);
                }
            }
        }
        self.nemesis.cut_until_us = self.now_us + 200_000 + self.random.below(6_000_000);
    }

    fn slow_a_disk(&mut self) {
        let Some(id) = self.somebody() else { return };
        let delays = [10..200, 1_000..20_000, 20_000..100_000, 300_000..2_500_000];
        let delay = delays[self.random.below(4) as usize].clone();
        let member = self.members.get_mut(&id).expect("it is up");
        member.disk.set_delay_us(delay);
    }

    /// One of the next operations of a member's disk fails: of the log's, the page file's, or whichever comes.
    fn break_a_disk(&mut self) {
        let Some(id) = self.somebody() else { return };
        let fault = Fault {
            operation: OPERATIONS[self.random.below(OPERATIONS.len() as u64) as usize],
            path: ["wal", "db", ""][self.random.below(3) as usize].to_string(),
            skip: self.random.below(5),
            times: 1,
            errno: libc::EIO,
        };
        let member = self.members.get_mut(&id).expect("it is up");
        member.disk.add_fault(fault);
        member.is_disk_failing = true;
    }

    /// A member's disk has little room, or none, for some time.
    fn fill_a_disk(&mut self) {
        let Some(id) = self.somebody() else { return };
        self.report.full_disks += 1;
        let room = [0, 64 << 10, 2 << 20][self.random.below(3) as usize];
        let room = self.random.below(room + 1);
        let until_us = self.now_us + 500_000 + self.random.below(8_000_000);
        let member = self.members.get_mut(&id).expect("it is up");
        let allocated = member.disk.volume().allocated();
        member.disk.set_capacity(Some(allocated + room));
        self.nemesis.full.insert(id, until_us);
    }

    fn disturb_a_clock(&mut self) {
        let Some(id) = self.somebody() else { return };
        let jumps = self.random.coin();
        let by = self.random.below(4_000_000);
        let drift = self.random.below(200_000) as i64 - 100_000;
        let member = self.members.get_mut(&id).expect("it is up");
        if jumps {
            self.report.jumps += 1;
            member.clock.jump(self.now_us, by);
        } else {
            member.clock.drift(self.now_us, drift);
        }
        member.wake(self.now_us);
    }

    /// A client takes its watches from one member to another.
    fn move_watches(&mut self) {
        let up: Vec<u64> = self.up().collect();
        if up.len() < 2 {
            return;
        }
        let one = up[self.random.below(up.len() as u64) as usize];
        let other = up[self.random.below(up.len() as u64) as usize];
        if one == other {
            return;
        }
        let now_us = self.now_us;
        let mut one = self.members.remove(&one).expect("it is up");
        let other = self.members.get_mut(&other).expect("it is up");
        if let [Some(core), Some(other_core)] = [&one.core, &other.core] {
            let (now, other_now) = (one.now(now_us), other.now(now_us));
            one.watchers
                .exchange(core, now, &mut other.watchers, other_core, other_now);
        }
        self.members.insert(one.id, one);
    }

    fn tell_connections(&mut self) {
        let ids: Vec<u64> = self.members.keys().copied().collect();
        let now_us = self.now_us;
        for own in &ids {
            for id in ids.iter().filter(|id| *id != own) {
                let other_is_up = self.members[id].is_awake(now_us);
                let is_connected = other_is_up && self.network.connects(*id, *own) && self.network.connects(*own, *id);
                let member = self.members.get_mut(own).expect("it is one of them");
                if member.core.is_none() {
                    self.nemesis.connected.remove(&(*own, *id));
                    continue;
                }
                if self.nemesis.connected.insert((*own, *id), is_connected) != Some(is_connected) {
                    member.inbox.push(FromPeers::Connected { id: *id, is_connected });
                    member.wake(now_us);
                }
            }
        }
    }

    /// For the canary: whoever led when a lease was renewed revokes it when its time is over, still leading or not.
    pub(super) fn expire_unasked(&mut self, id: u64) {
        if self.canary != Canary::UnconfirmedExpiry {
            return;
        }
        let member = self.members.get_mut(&id).expect("it had a turn");
        let now = member.now(self.now_us);
        let Some(core) = member.core.as_mut() else { return };
        for lease in SHORT_LEASES {
            let left = core.state().lessor().time_to_live(lease, false, now);
            if let Some(left) = left.as_ref().and_then(|lease| lease.remaining_s) {
                // Whole seconds, cut.
                let ends = now + Duration::from_secs(left.unsigned_abs() + 1);
                member.deadlines.insert(lease, ends);
            } else if member.deadlines.get(&lease).is_some_and(|ends| *ends <= now) {
                member.deadlines.remove(&lease);
                let request = InternalRaftRequest {
                    lease_revoke: Some(LeaseRevokeRequest { id: lease }),
                    ..Default::default()
                };
                core.propose_own(request, now);
            }
        }
    }
}
