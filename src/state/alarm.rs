//! Raised alarms (`etcd-surface` 4.11): replicated, so that every member refuses the same requests.

use crate::proto::etcdserverpb::{AlarmMember, AlarmRequest, AlarmType, alarm_request::AlarmAction};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// The raised alarms: type, then member.
#[derive(Debug, Default)]
pub struct Alarms {
    raised: BTreeSet<(i32, u64)>,
    changed: BTreeMap<Vec<u8>, bool>,
}

impl Alarms {
    /// Takes over a stored alarm at boot.
    pub fn restore(&mut self, alarm: &AlarmMember) {
        self.raised.insert((alarm.alarm, alarm.member_id));
    }

    /// Whether any member has this alarm raised.
    pub fn is_raised(&self, alarm: AlarmType) -> bool {
        self.raised
            .range((alarm as i32, 0)..=(alarm as i32, u64::MAX))
            .next()
            .is_some()
    }

    /// The alarms of a type; `NONE` asks for all.
    pub fn list(&self, alarm: i32) -> Vec<AlarmMember> {
        let wanted = self
            .raised
            .iter()
            .filter(|(kind, _)| alarm == AlarmType::None as i32 || *kind == alarm);
        wanted.map(|(kind, member)| message(*kind, *member)).collect()
    }

    /// Carries out a request and gives the alarms of its response; `None` for an unknown action.
    pub(crate) fn apply(&mut self, request: &AlarmRequest) -> Option<Vec<AlarmMember>> {
        let (kind, member) = (request.alarm, request.member_id);
        let concerned = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => return Some(self.list(kind)),
            Ok(AlarmAction::Activate) if kind == AlarmType::None as i32 => false,
            Ok(AlarmAction::Activate) => {
                if self.raised.insert((kind, member)) {
                    self.changed.insert(message(kind, member).encode_to_vec(), true);
                }
                true
            }
            Ok(AlarmAction::Deactivate) => {
                let lowered = self.raised.remove(&(kind, member));
                if lowered {
                    self.changed.insert(message(kind, member).encode_to_vec(), false);
                }
                lowered
            }
            Err(_) => return None,
        };
        Some(if concerned {
            vec![message(kind, member)]
        } else {
            Vec::new()
        })
    }

    /// What changed since the last call: the alarm as etcd stores it, with an empty value, or none when it is lowered.
    pub(crate) fn take_changes(&mut self) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> + use<> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|(key, raised)| (key, raised.then(Vec::new)))
    }
}

fn message(alarm: i32, member_id: u64) -> AlarmMember {
    AlarmMember { member_id, alarm }
}
