//! A run: whose turn it is next, and what every turn is judged by.

use super::clients::Client;
use super::leases::{Clocks, LeaseTimes};
use super::ledger::{LeaseEvent, Ledger, request_id};
use super::linear::Operation;
use super::member::{Interruption, Member, Plan};
use super::nemesis::Nemesis;
use super::network::Network;
use super::snapshots::Transfer;
use super::{Canary, Failure, Report};
use crate::io::medium::Random;
use crate::proto::etcdserverpb::InternalRaftRequest;
use crate::raft::core::Fatal;
use crate::raft::messages::{FromPeers, MemberChange};
use crate::sim::load::Profile;
use crate::sim::model::Op;
use crate::sim::observe::check_behind;
use crate::sim::report;
use prost::Message as _;
use raft::eraftpb::Entry;
use std::collections::BTreeMap;

/// Clients of a run.
const CLIENTS: u64 = 5;
/// In how many turns of a log core its watches get one.
const TURNS_PER_WATCH_TURN: u64 = 4;

pub struct World {
    pub(super) canary: Canary,
    pub(super) random: Random,
    pub(super) plan: Plan,
    /// True time, in microseconds.
    pub(super) now_us: u64,
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) network: Network,
    /// Snapshots on their way.
    pub(super) transfers: Vec<Transfer>,
    pub(super) nemesis: Nemesis,
    pub(super) clients: Vec<Client>,
    /// Clients pause for less than this between two requests.
    pub(super) pause_us: u64,
    /// Whether clients ask for anything new.
    pub(super) is_asking: bool,
    pub(super) ledger: Ledger,
    pub(super) history: Vec<Operation>,
    pub(super) moments: u64,
    pub(super) tokens: u64,
    pub(super) leases: LeaseTimes,
    /// What the clocks showed when a lease was asked for, by the request.
    pub(super) grants_asked: BTreeMap<u64, Clocks>,
    /// What the operator has asked for, by token.
    pub(super) admin_asked: BTreeMap<u64, MemberChange>,
    /// Who led in which term.
    leaders: BTreeMap<u64, u64>,
    pub(super) report: Report,
}

/// Runs a seed.
pub fn run(seed: u64, canary: Canary) -> Result<Report, Failure> {
    let mut world = World::new(seed, canary);
    let result = world.live();
    let seconds = world.now_us as f64 / 1e6;
    result.map_err(|reason| Failure {
        seed,
        reason: format!("at {seconds:.6} s: {reason}"),
    })?;
    let mut report = world.report;
    report.entries = world.ledger.applied();
    report.leaders = world.leaders.len() as u64;
    report.expired = world.leases.expired;
    report.renewed = world.leases.renewed;
    report.messages = world.network.arrived;
    report.lost = world.network.lost;
    report.watch_messages = world.members.values().map(|member| member.watchers.messages).sum();
    Ok(report)
}

impl World {
    fn new(seed: u64, canary: Canary) -> World {
        let mut random = Random::new(seed);
        let mut profile = Profile::draw(&mut random);
        profile.keys = profile.keys.min(30);
        profile.value_bytes_max = profile.value_bytes_max.min(3_000);
        let watch_canary = match canary {
            Canary::DroppedEvent => report::Canary::DroppedEvent,
            _ => report::Canary::None,
        };
        let plan = Plan {
            profile,
            catchup_entries: [5, 5, 50, 1_000_000][random.below(4) as usize],
            checkpoint_at: [2 << 10, 16 << 10, 256 << 10, 32 << 20][random.below(4) as usize],
            strict_reconfiguration: random.coin(),
            pre_vote: random.below(5) > 0,
            watch_canary,
        };
        let count = if random.below(3) == 0 { 5 } else { 3 };
        let founders: Vec<u64> = (1..=count).collect();
        let members = founders
            .iter()
            .map(|id| (*id, Member::new(*id, &founders, &plan, &mut random)))
            .collect();
        let pauses_us = [20_000, 100_000, 400_000];
        World {
            canary,
            network: Network::new(random.bits()),
            transfers: Vec::new(),
            nemesis: Nemesis::draw(&mut random, canary),
            clients: (0..CLIENTS).map(|at| Client::new(1 + at % count)).collect(),
            pause_us: pauses_us[random.below(3) as usize],
            random,
            plan,
            now_us: 0,
            members,
            is_asking: true,
            ledger: Ledger::default(),
            history: Vec::new(),
            moments: 0,
            tokens: 0,
            leases: LeaseTimes::default(),
            grants_asked: BTreeMap::new(),
            leaders: BTreeMap::new(),
            admin_asked: BTreeMap::new(),
            report: Report {
                founders: count,
                ..Report::default()
            },
        }
    }

    fn live(&mut self) -> Result<(), String> {
        let ids: Vec<u64> = self.members.keys().copied().collect();
        for id in ids {
            self.start(id)?;
        }
        while self.now_us < self.nemesis.ends_us {
            self.step()?;
            self.do_harm()?;
        }
        self.finish()
    }

    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    pub(super) fn note(&mut self, value: u64) {
        self.report.digest = crc32c::crc32c_append(self.report.digest, &value.to_be_bytes());
    }

    /// Members that are up, standing still or not.
    pub(super) fn up(&self) -> impl Iterator<Item = u64> + '_ {
        let up = self.members.values().filter(|member| member.core.is_some());
        up.map(|member| member.id)
    }

    /// Members that believe to lead.
    pub(super) fn leading(&mut self) -> Vec<u64> {
        let up = self.members.values_mut();
        let leading = up.filter_map(|member| member.core.as_mut()?.leads().then_some(member.id));
        leading.collect()
    }

    /// What every clock shows.
    pub(super) fn clocks(&self) -> Clocks {
        let shows = self
            .members
            .values()
            .map(|member| (member.id, member.clock.at(self.now_us)));
        shows.collect()
    }

    /// Starts a member, now and then after starts that come to nothing.
    pub(super) fn start(&mut self, id: u64) -> Result<(), String> {
        while self.canary == Canary::None && self.one_in(5) {
            let interruption = self.draw_interruption();
            self.report.interrupted_starts += 1;
            let member = self.members.get_mut(&id).expect("there is such a member");
            member.start_in_vain(self.now_us, &interruption);
        }
        let timeouts = self.random.bits();
        self.report.starts += 1;
        let member = self.members.get_mut(&id).expect("there is such a member");
        match member.start(self.now_us, timeouts) {
            Ok(()) => {}
            Err(error) if error.to_string().contains("os error 28") => {
                // There is no room: it says so, and is started again.
                self.crash(id);
                return Ok(());
            }
            Err(error) => return Err(format!("member {id} does not start: {error}")),
        }
        let early = self.canary == Canary::SendBeforePersist;
        member.disk.set_syncs_lie(self.canary == Canary::SyncsLie);
        let core = member.core.as_mut().expect("it has started");
        core.node().set_sends_early(early);
        if early && id > 1 {
            // What left early is on its way to the disk for long.
            member.disk.set_delay_us(100_000..600_000);
        }
        self.observe(id)?;
        let member = &self.members[&id];
        let core = member.core.as_ref().expect("it has started");
        check_behind(core, &member.disk, self.ledger.model()).map_err(|reason| format!("member {id} starts: {reason}"))
    }

    fn draw_interruption(&mut self) -> Interruption {
        let operations = [
            "write",
            "sync",
            "sync directory",
            "rename",
            "open",
            "remove",
            "close",
            "truncate",
        ];
        Interruption {
            operation: operations[self.random.below(operations.len() as u64) as usize],
            skip: self.random.below(10),
            seed: self.random.bits(),
            is_power_cut: self.random.coin(),
        }
    }

    /// Goes on to the next thing that happens, and lets it happen.
    pub(super) fn step(&mut self) -> Result<(), String> {
        let members = self.members.values().filter(|member| member.core.is_some());
        let wakes = members.map(|member| member.wake_us.max(member.paused_us));
        let clients = self.clients.iter().map(|client| client.next_us);
        let times = wakes
            .chain(clients)
            .chain(self.network.next_due())
            .chain(self.transfers.iter().map(Transfer::next_us))
            .chain([self.nemesis.next_us()]);
        let next = times.min().expect("the nemesis never sleeps");
        self.now_us = self.now_us.max(next);
        for message in self.network.arrive(self.now_us) {
            self.deliver(message);
        }
        self.carry_snapshots()?;
        self.clients_act()?;
        let due: Vec<u64> = self
            .members
            .values()
            .filter(|member| member.is_awake(self.now_us) && member.wake_us <= self.now_us)
            .map(|member| member.id)
            .collect();
        due.into_iter().try_for_each(|id| self.turn(id))
    }

    fn deliver(&mut self, message: raft::eraftpb::Message) {
        let (from, to, now_us) = (message.from, message.to, self.now_us);
        let Some(member) = self.members.get_mut(&to).filter(|member| member.core.is_some()) else {
            return;
        };
        let core = member.core.as_ref().expect("it is up");
        if core.state().members().is_removed(from) {
            // What the transport of the one answers that of the other.
            if let Some(sender) = self.members.get_mut(&from).filter(|member| member.core.is_some()) {
                sender.inbox.push(FromPeers::Removed);
                sender.wake(now_us);
            }
            return;
        }
        member.inbox.push(FromPeers::Message(Box::new(message)));
        member.wake(now_us);
    }

    /// One turn of a member, and what it has to be.
    fn turn(&mut self, id: u64) -> Result<(), String> {
        let member = self.members.get_mut(&id).expect("it has a turn");
        let turn = member.turn(self.now_us);
        self.observe(id)?;
        if let Some(end) = turn.end {
            return self.has_ended(id, end);
        }
        for reply in turn.replies {
            self.answered(id, reply)?;
        }
        let life = self.members[&id].lives;
        for (message, root) in turn.snapshots {
            self.report.snapshots += 1;
            self.transfers.push(Transfer::new(message, root, life, self.now_us));
        }
        for message in turn.messages {
            let to = message.to;
            if !self.network.send(message, self.now_us) {
                let member = self.members.get_mut(&id).expect("it had a turn");
                member.inbox.push(FromPeers::Unreachable(to));
            }
        }
        self.expire_unasked(id);
        self.serve(id)
    }

    /// A member has ended by itself.
    fn has_ended(&mut self, id: u64, end: Fatal) -> Result<(), String> {
        let member = self.members.get_mut(&id).expect("it had a turn");
        match end {
            Fatal::Removed => {
                member.core = None;
                member.is_gone = true;
                Ok(())
            }
            Fatal::Installed => {
                self.report.installed += 1;
                member.end_in_order();
                self.start(id)
            }
            _ if member.is_disk_failing => {
                self.report.disk_errors += 1;
                self.crash(id);
                Ok(())
            }
            error => Err(format!("member {id} gave up: {error}")),
        }
    }

    /// What a serve core does beside answers: watches and reads.
    fn serve(&mut self, id: u64) -> Result<(), String> {
        if !self.one_in(TURNS_PER_WATCH_TURN) {
            return Ok(());
        }
        let member = self.members.get_mut(&id).expect("it had a turn");
        let now = member.now(self.now_us);
        let core = member.core.as_ref().expect("it is up");
        let served = member.watchers.turn(core, &member.disk, self.ledger.model(), now);
        served
            .and_then(|()| member.reads.turn(core))
            .map_err(|reason| format!("member {id}: {reason}"))
    }

    /// The next entry that a member was not seen to apply, up to `applied`. The inner `None` is one that a checkpoint
    /// holds, that is in its memory no more, and that others were seen to apply.
    fn next_applied(&mut self, id: u64, applied: u64) -> Result<Option<Option<Entry>>, String> {
        let member = self.members.get_mut(&id).expect("there is such a member");
        if member.applied >= applied {
            return Ok(None);
        }
        member.applied += 1;
        let index = member.applied;
        let core = member.core.as_mut().expect("it is up");
        if let Some(entry) = core.node().entry(index) {
            return Ok(Some(Some(entry.clone())));
        }
        if index <= self.ledger.applied() {
            return Ok(Some(None));
        }
        let others = self.members.values_mut().filter_map(|member| member.core.as_mut());
        let mut knowing = others.filter_map(|core| {
            let is_committed = core.node().commit_index() >= index;
            core.node().entry(index).filter(|_| is_committed).cloned()
        });
        match knowing.next() {
            Some(entry) => Ok(Some(Some(entry))),
            None => Err(format!("member {id} has applied entry {index}, which nobody has")),
        }
    }

    /// Looks at what a member has applied and proposed, and whether it leads.
    fn observe(&mut self, id: u64) -> Result<(), String> {
        let clocks = self.clocks();
        let member = self.members.get_mut(&id).expect("there is such a member");
        let core = member.core.as_mut().expect("it is up");
        let (leads, term, last) = (core.leads(), core.node().term(), core.last_index());
        if leads {
            let leader = *self.leaders.entry(term).or_insert(id);
            if leader != id {
                return Err(format!("members {leader} and {id} both lead in term {term}"));
            }
            // A member's own revocations are looked for where they enter the log.
            for index in member.scanned.max(member.applied) + 1..=last {
                let Some(entry) = core.node().entry(index) else {
                    continue;
                };
                if let Some(request) = own_revocation(entry) {
                    self.leases.proposed(request, clocks.clone());
                }
            }
            member.scanned = last;
        } else {
            member.scanned = 0;
        }
        let applied = core.state().applied_index();
        let (mut digest, mut ended) = (Vec::new(), Vec::new());
        loop {
            let Some(entry) = self.next_applied(id, applied)? else {
                break;
            };
            let Some(entry) = entry else { continue };
            digest.push(entry.index ^ entry.term << 32);
            let event = self
                .ledger
                .applies(&entry)
                .map_err(|reason| format!("member {id}: {reason}"))?;
            match event {
                Some(LeaseEvent::Granted { id: lease, request }) => {
                    let ttl_s = match self.ledger.op(request) {
                        Some(Op::Grant { ttl_s, .. }) => *ttl_s,
                        other => unreachable!("{other:?} granted a lease"),
                    };
                    let asked = self.grants_asked.remove(&request).unwrap_or_default();
                    self.leases.granted(lease, ttl_s, asked);
                }
                Some(LeaseEvent::Revoked {
                    id: lease, own: false, ..
                }) => self.leases.revoked(lease),
                Some(LeaseEvent::Revoked {
                    id: lease,
                    request,
                    own: true,
                }) => {
                    self.leases.ended(lease, request, &clocks)?;
                    ended.push(lease);
                }
                None => {}
            }
        }
        digest.into_iter().for_each(|value| self.note(value));
        ended.into_iter().for_each(|id| self.ended_by_itself(id));
        Ok(())
    }
}

/// The request by which a member revokes a lease of its own accord.
fn own_revocation(entry: &Entry) -> Option<u64> {
    if entry.entry_type != 0 || entry.data.is_empty() {
        return None;
    }
    let request = InternalRaftRequest::decode(entry.data.clone()).ok()?;
    request.lease_revoke.as_ref()?;
    Some(request_id(&request))
}
