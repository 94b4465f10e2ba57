//! When history is compacted without being asked, as etcd does it: by age or by number of revisions.
//!
//! A state machine on a clock that is passed in; it runs on every member and names a revision only on the leader. By
//! age, the store's revision is noted ten times per retention (of an hour at most), and what was the newest a retention
//! (and up to one such interval) ago is compacted: for the first time when a whole retention has gone by, then every
//! retention or every hour, whichever is shorter. By number, all but so many revisions are compacted every five
//! minutes. What was noted is not kept over a restart.

use crate::config::values::AutoCompaction;
use std::collections::VecDeque;
use std::time::Duration;

/// The longest time between two compactions by age.
const HOUR: Duration = Duration::from_secs(3600);
/// Looks at the clock per retention, or per hour.
const LOOKS: u32 = 10;
/// The shortest time between two looks, whatever the retention.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// Time between two compactions by number.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// What the compactor has to know of the member at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time.
    pub now: Duration,
    /// The store's revision.
    pub revision: i64,
    /// The revision that is compacted already.
    pub compact_revision: i64,
    /// Whether this member leads.
    pub is_leader: bool,
}

/// A compactor.
#[derive(Debug)]
pub struct Compactor {
    mode: Mode,
    /// Time between two looks.
    interval: Duration,
    /// When to look next; `None` before the first call.
    next: Option<Duration>,
    /// The last revision that was compacted.
    last: i64,
    /// A revision that was proposed and is not compacted yet, and when it was proposed.
    proposed: Option<(i64, Duration)>,
}

#[derive(Debug)]
enum Mode {
    Periodic {
        period: Duration,
        /// Revisions noted, the oldest first: at most `kept`.
        noted: VecDeque<i64>,
        kept: usize,
        /// Time since the last success before which nothing is compacted.
        wait: Duration,
        last_success: Duration,
    },
    Revision {
        retention: i64,
    },
}

impl Compactor {
    /// `None` when there is nothing to compact by.
    pub fn new(settings: AutoCompaction) -> Option<Compactor> {
        let (mode, interval) = match settings {
            AutoCompaction::Off => return None,
            AutoCompaction::Revision(retention) => (Mode::Revision { retention }, REVISION_INTERVAL),
            AutoCompaction::Periodic(period) => {
                let interval = (period.min(HOUR) / LOOKS).max(LOOK_MIN);
                let mode = Mode::Periodic {
                    period,
                    noted: VecDeque::new(),
                    kept: (period.as_nanos() / interval.as_nanos()) as usize + 1,
                    wait: period,
                    last_success: Duration::ZERO,
                };
                (mode, interval)
            }
        };
        Some(Compactor {
            mode,
            interval,
            next: None,
            last: 0,
            proposed: None,
        })
    }

    /// When to call `look` if nothing happens before.
    pub fn deadline(&self) -> Option<Duration> {
        self.next
    }

    /// Looks at the clock and at what became of the last proposal; the revision to propose a compaction of.
    pub fn look(&mut self, moment: Moment) -> Option<i64> {
        self.see_success(moment);
        let Some(next) = self.next else {
            self.begin(moment);
            return None;
        };
        if moment.now < next {
            return None;
        }
        self.see_failure();
        let due = self.due(moment).filter(|_| moment.is_leader);
        if let Some(revision) = due {
            tracing::info!(revision, mode = self.mode.name(), "starting auto compaction");
            self.proposed = Some((revision, moment.now));
            // One that is compacted already, say by a client, is done.
            self.see_success(moment);
        }
        self.note(moment.revision);
        self.next = Some(moment.now + self.interval);
        due.filter(|_| self.proposed.is_some())
    }

    fn begin(&mut self, moment: Moment) {
        if let Mode::Periodic { last_success, .. } = &mut self.mode {
            *last_success = moment.now;
        }
        self.note(moment.revision);
        self.next = Some(moment.now + self.interval);
    }

    fn see_success(&mut self, moment: Moment) {
        let done = self
            .proposed
            .filter(|(revision, _)| *revision <= moment.compact_revision);
        let Some((revision, since)) = done else { return };
        let took = moment.now.saturating_sub(since);
        tracing::info!(revision, mode = self.mode.name(), ?took, "completed auto compaction");
        self.proposed = None;
        self.last = revision;
        if let Mode::Periodic { last_success, .. } = &mut self.mode {
            *last_success = moment.now;
        }
    }

    fn see_failure(&mut self) {
        if let Some((revision, _)) = self.proposed.take() {
            let (mode, retry) = (self.mode.name(), self.interval);
            tracing::warn!(revision, mode, ?retry, "failed auto compaction");
        }
    }

    /// The revision that may go now.
    fn due(&mut self, moment: Moment) -> Option<i64> {
        let revision = match &mut self.mode {
            Mode::Revision { retention } => moment.revision - *retention,
            Mode::Periodic {
                period,
                noted,
                wait,
                last_success,
                ..
            } => {
                let oldest = *noted.front()?;
                if moment.now.saturating_sub(*last_success) < *wait || oldest == self.last {
                    return None;
                }
                if moment.is_leader {
                    *wait = HOUR.min(*period);
                }
                oldest
            }
        };
        (revision > 0 && revision != self.last).then_some(revision)
    }

    fn note(&mut self, revision: i64) {
        if let Mode::Periodic { noted, kept, .. } = &mut self.mode {
            noted.push_back(revision);
            if noted.len() > *kept {
                noted.pop_front();
            }
        }
    }
}

impl Mode {
    /// As etcd's flag has it.
    fn name(&self) -> &'static str {
        match self {
            Mode::Periodic { .. } => "periodic",
            Mode::Revision { .. } => "revision",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A member whose revision is the minute: what is compacted at which minute, until `end`.
    struct Member {
        compactor: Compactor,
        compact_revision: i64,
        is_leader: bool,
        /// Whether proposals come to anything.
        works: bool,
    }

    impl Member {
        fn new(settings: AutoCompaction) -> Member {
            Member {
                compactor: Compactor::new(settings).unwrap(),
                compact_revision: -1,
                is_leader: true,
                works: true,
            }
        }

        fn run(&mut self, minutes: std::ops::Range<u32>) -> Vec<(u32, i64)> {
            let mut found = Vec::new();
            for minute in minutes {
                let moment = Moment {
                    now: MINUTE * minute,
                    revision: i64::from(minute) + 1,
                    compact_revision: self.compact_revision,
                    is_leader: self.is_leader,
                };
                let Some(revision) = self.compactor.look(moment) else {
                    continue;
                };
                found.push((minute, revision));
                if self.works {
                    self.compact_revision = revision;
                    // The entry is applied in the same turn.
                    let applied = Moment {
                        compact_revision: revision,
                        ..moment
                    };
                    assert_eq!(self.compactor.look(applied), None);
                }
            }
            found
        }
    }

    /// Figures by etcd's own rule: revisions are noted every 6 minutes after the look, and 11 of them kept, so that the
    /// oldest is 66 minutes old from the second look after an hour on.
    #[test]
    fn an_hour_is_kept_and_compacted_every_hour() {
        let mut member = Member::new(AutoCompaction::Periodic(HOUR));
        assert_eq!(member.run(0..60), []);
        assert_eq!(member.run(60..200), [(60, 1), (120, 55), (180, 115)]);
    }

    #[test]
    fn more_than_an_hour_is_kept_and_compacted_every_hour() {
        let mut member = Member::new(AutoCompaction::Periodic(3 * HOUR));
        assert_eq!(member.run(0..330), [(180, 1), (240, 55), (300, 115)]);
    }

    #[test]
    fn less_than_an_hour_is_kept_and_compacted_as_often() {
        let mut member = Member::new(AutoCompaction::Periodic(10 * MINUTE));
        assert_eq!(member.run(0..35), [(10, 1), (20, 10), (30, 20)]);
    }

    #[test]
    fn who_does_not_lead_takes_notes_and_compacts_when_leading() {
        let mut member = Member::new(AutoCompaction::Periodic(HOUR));
        member.is_leader = false;
        assert_eq!(member.run(0..90), []);
        member.is_leader = true;
        assert_eq!(member.run(90..150), [(90, 25)]);
    }

    #[test]
    fn what_failed_is_tried_again_at_the_next_look() {
        let mut member = Member::new(AutoCompaction::Periodic(HOUR));
        member.works = false;
        assert_eq!(member.run(0..68), [(60, 1), (66, 1)]);
        member.works = true;
        assert_eq!(member.run(68..140), [(72, 7), (132, 67)]);
    }

    #[test]
    fn what_somebody_else_compacted_is_not_proposed() {
        let mut member = Member::new(AutoCompaction::Periodic(HOUR));
        member.compact_revision = 40;
        assert_eq!(member.run(0..150), [(120, 55)]);
    }

    #[test]
    fn a_store_that_does_not_change_is_compacted_once() {
        let mut compactor = Compactor::new(AutoCompaction::Periodic(HOUR)).unwrap();
        let mut compact_revision = -1;
        let mut proposed = Vec::new();
        for minute in 0..500 {
            let moment = Moment {
                now: MINUTE * minute,
                revision: 9,
                compact_revision,
                is_leader: true,
            };
            if let Some(revision) = compactor.look(moment) {
                proposed.push(revision);
                compact_revision = revision;
            }
        }
        assert_eq!(proposed, [9]);
    }

    #[test]
    fn so_many_revisions_are_kept_every_five_minutes() {
        let mut member = Member::new(AutoCompaction::Revision(10));
        assert_eq!(member.run(0..22), [(10, 1), (15, 6), (20, 11)]);
        assert!(Compactor::new(AutoCompaction::Off).is_none());
    }

    #[test]
    fn the_shortest_retention_does_not_spin() {
        let mut compactor = Compactor::new(AutoCompaction::Periodic(Duration::from_nanos(1))).unwrap();
        let moment = Moment {
            now: Duration::ZERO,
            revision: 1,
            compact_revision: -1,
            is_leader: true,
        };
        assert_eq!(compactor.look(moment), None);
        assert_eq!(compactor.deadline(), Some(LOOK_MIN));
    }
}
