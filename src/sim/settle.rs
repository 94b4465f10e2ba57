//! The quiet end of a life: what is under way ends, leases that are due go, writes go on where they were held up, and
//! watches are told everything.

use super::load::LONG_TTL_S;
use super::model::Op;
use super::report::Canary;
use super::run::{Life, Run};
use super::serve::is_full;
use crate::raft::core::LogCore;
use std::time::Duration;

/// Turns within which everything under way has to end once nothing fails any more.
const SETTLE_TURNS: u32 = 200_000;
/// Turns within which a lease that is due has to go.
const EXPIRY_TURNS: u32 = 2_000;
/// Virtual time within which writes go on after a full disk has room again.
const ROOM_AGAIN: Duration = Duration::from_secs(120);
/// Checkpoints within which what was deleted and compacted makes room below the quota.
const ROOM_ROUNDS: u32 = 8;
/// Turns that a member makes in each second of those, at least.
const ROOM_TURNS: u32 = 100;
/// Time after which a checkpoint is due.
const CHECKPOINT_DUE: Duration = Duration::from_secs(31);

impl Run {
    /// Lets everything under way end on a disk that works, and checks what there is then.
    pub(super) fn settle(&mut self, core: &mut LogCore) -> Result<(), String> {
        self.disk.set_capacity(None);
        self.disk.set_delay_us(10..200);
        self.rest(core)?;
        if self.one_in(2) {
            self.let_leases_end(core)?;
        }
        self.make_room(core)?;
        self.write_again(core)?;
        if self.canary != Canary::AnswerBeforePersist {
            let now = self.now();
            self.watchers.drain(core, &self.disk, &self.model, now)?;
        }
        self.check(core)
    }

    fn pass(&mut self, time: Duration) {
        self.disk.set_now(self.disk.now() + time.as_micros() as u64);
    }

    /// Turns until nothing is under way.
    fn rest(&mut self, core: &mut LogCore) -> Result<(), String> {
        let mut overdue = 0;
        for _ in 0..SETTLE_TURNS {
            if self.in_flight.is_empty() && !self.is_expiring() {
                return Ok(());
            }
            self.renew(core);
            if self.turn(core)? == Life::Ended {
                return Err("an error without cause".to_string());
            }
            overdue += u32::from(self.leases.overdue(self.now()).is_some());
            if overdue > EXPIRY_TURNS {
                return Err(format!("lease {:?} outlives its time", self.leases.overdue(self.now())));
            }
        }
        Err(format!("{} requests are never answered", self.in_flight.len()))
    }

    /// Waits until all short leases are due; then they have to go.
    fn let_leases_end(&mut self, core: &mut LogCore) -> Result<(), String> {
        for _ in 0..EXPIRY_TURNS {
            let Some(until) = self.leases.all_gone_at() else {
                return Ok(());
            };
            if self.now() < until {
                self.disk.set_now(until.as_micros() as u64);
            }
            if self.canary == Canary::LateExpiry {
                self.renew(core);
            }
            self.turn(core)?;
        }
        Err(format!("lease {:?} outlives its time", self.leases.overdue(self.now())))
    }

    /// Proposes a request and waits for its answer.
    fn ask(&mut self, core: &mut LogCore, op: Op) -> Result<(), String> {
        self.propose(core, op);
        self.rest(core)
    }

    fn ask_for_room(&mut self, core: &mut LogCore) -> Result<(), String> {
        let grant = Op::Grant {
            id: 1,
            ttl_s: LONG_TTL_S,
        };
        self.ask(core, grant)
    }

    /// The way out of a full quota, as etcd's operators know it: delete, compact, disarm.
    fn make_room(&mut self, core: &mut LogCore) -> Result<(), String> {
        if self.boot.options.quota_bytes.is_none() {
            return Ok(());
        }
        for _ in 0..ROOM_ROUNDS {
            self.ask_for_room(core)?;
            if !is_full(core) {
                return Ok(());
            }
            let end = Some("key9".to_string());
            let key = "key".to_string();
            self.ask(core, Op::Delete { key, end })?;
            let revision = self.model.revision();
            self.ask(
                core,
                Op::Compact {
                    revision,
                    physical: true,
                },
            )?;
            self.pass(CHECKPOINT_DUE);
            let generation = core.pages().root().generation();
            for _ in 0..EXPIRY_TURNS {
                self.turn(core)?;
                if core.pages().root().generation() > generation && core.pages().is_idle() {
                    break;
                }
            }
            self.rest(core)?;
            self.ask(core, Op::Disarm)?;
        }
        Err(format!(
            "with everything deleted and compacted, {} bytes are used, and the quota is full",
            core.pages().size()
        ))
    }

    /// Writes that lack of room held up go on by themselves.
    fn write_again(&mut self, core: &mut LogCore) -> Result<(), String> {
        let since = self.now();
        while self.now() < since + ROOM_AGAIN {
            let refused = self.report.refused;
            self.ask_for_room(core)?;
            if self.report.refused == refused {
                return Ok(());
            }
            self.pass(Duration::from_secs(1));
            for _ in 0..ROOM_TURNS {
                self.turn(core)?;
            }
        }
        Err("there is room again, but writes are still refused".to_string())
    }

    /// An orderly end: everything is in the page store afterwards.
    pub(super) fn finish(&mut self, core: &mut LogCore) -> Result<(), String> {
        for _ in 0..SETTLE_TURNS {
            if core.finish() {
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
