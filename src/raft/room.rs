//! Room: what the quota counts, what is refused for want of room, and what calls for checkpoints to make some.

use super::checkpoint::Pressure;
use super::core::LogCore;
use crate::limits::{CHECKPOINT_QUOTA_MARGIN, LEASE_BYTES};
use crate::proto::etcdserverpb::alarm_request::AlarmAction;
use crate::proto::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use std::time::Duration;

impl LogCore {
    /// Whether the disk, the quota and the memory budget leave room; raises NOSPACE when one of the latter does not.
    pub(super) fn has_room(&mut self, quota_bytes: usize, now: Duration) -> bool {
        if self.replica.wal().no_space() || self.applier.no_space {
            return false;
        }
        let (size, index) = (self.size(), self.index_bytes());
        let index_max = self.options.memory.index_max;
        let over_quota = |quota: u64| size + quota_bytes as u64 >= quota;
        let reason = if self.options.quota_bytes.is_some_and(over_quota) {
            if self.is_making_room() {
                return false;
            }
            "the quota is used up; raising the NOSPACE alarm"
        } else if index >= index_max {
            "keys and leases take all that --memory-budget has for them; raising the NOSPACE alarm"
        } else {
            self.disarmed &= self.checkpoints.is_making_room(&self.state);
            return true;
        };
        let proposed = self.alarm_proposed.is_some_and(|until| until > now);
        if !proposed && !self.state.alarms().is_raised(AlarmType::Nospace) {
            self.alarm_proposed = Some(now + self.proposal_timeout());
            tracing::warn!(quota = self.options.quota_bytes, size, index, index_max, "{reason}");
            self.propose_alarm(AlarmType::Nospace, self.member_id, now);
        }
        false
    }

    /// Bytes as the quota counts them: the page file's, what is on its way there, and the index.
    fn size(&self) -> u64 {
        self.checkpoints.store().size() + self.dirty_bytes + self.cut_bytes + self.state.keys().bytes() as u64
    }

    /// Whether the alarm was disarmed while what was deleted and compacted is on its way out of the page file. What the
    /// quota refuses until then raises no alarm, so that there is nothing to be disarmed twice.
    pub fn is_making_room(&self) -> bool {
        self.disarmed && self.checkpoints.is_making_room(&self.state)
    }

    /// An alarm is about to be applied: the one that `has_room` proposed, or another.
    pub(super) fn alarm_applied(&mut self, request: &AlarmRequest) {
        self.alarm_proposed = None;
        if request.alarm == AlarmType::Nospace as i32 {
            self.disarmed = request.action == AlarmAction::Deactivate as i32;
        }
    }

    /// What there is too little of. A full disk shows at the log or at the page file first; both get out of it by
    /// checkpoints.
    pub(super) fn pressure(&mut self) -> Pressure {
        let size = self.size();
        let nearly_full = |quota: u64| size >= quota - quota / CHECKPOINT_QUOTA_MARGIN;
        if self.applier.no_space || self.replica.wal().no_space() {
            Pressure::Disk
        } else if self.options.quota_bytes.is_some_and(nearly_full) || self.state.alarms().is_raised(AlarmType::Nospace)
        {
            Pressure::Quota
        } else {
            Pressure::None
        }
    }

    /// What keys, their revisions and leases take in memory.
    fn index_bytes(&self) -> usize {
        self.state.keys().bytes() + self.state.lessor().len() * LEASE_BYTES
    }

    pub(super) fn propose_alarm(&mut self, alarm: AlarmType, member_id: u64, now: Duration) {
        let action = AlarmAction::Activate as i32;
        let alarm = AlarmRequest {
            action,
            member_id,
            alarm: alarm as i32,
        };
        let request = InternalRaftRequest {
            alarm: Some(alarm),
            ..Default::default()
        };
        self.propose_own(request, now);
    }

    pub(super) fn raise_corrupt(&mut self, description: &str, now: Duration) {
        tracing::error!("{description}; raising the CORRUPT alarm");
        if !self.state.alarms().is_raised(AlarmType::Corrupt) {
            self.propose_alarm(AlarmType::Corrupt, self.member_id, now);
        }
    }
}
