//! Random requests, and their form in the log.

use super::member::MEMBER_ID;
use super::model::{Condition, Model, Op, Put};
use crate::io::medium::Random;
use crate::proto::etcdserverpb::alarm_request::AlarmAction;
use crate::proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, request_op,
};
use std::ops::Range;

/// A lease that outlives every run.
pub const LONG_TTL_S: i64 = 1_000_000_000;
/// A lease that expires in a run.
pub const SHORT_TTL_S: i64 = 60;
/// The ids that short leases have; the others are below.
pub const SHORT_LEASES: Range<i64> = 100..103;

/// What the requests of a run look like.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// How many keys there are.
    pub keys: u64,
    /// The longest value, in bytes.
    pub value_bytes_max: u64,
    /// In a hundred requests, how many compact.
    pub compactions: u64,
}

impl Profile {
    /// A profile drawn from a seed.
    pub fn draw(random: &mut Random) -> Profile {
        let keys = [4, 30, 300][random.below(3) as usize];
        let value_bytes_max = [40, 40, 700, 3_000, 20_000][random.below(5) as usize];
        let compactions = [0, 1, 5][random.below(3) as usize];
        Profile {
            keys,
            value_bytes_max,
            compactions,
        }
    }

    /// The next request on a store in about this state.
    pub fn draw_op(&self, random: &mut Random, model: &Model) -> Op {
        if model.is_full() && random.below(4) > 0 {
            return self.make_room(random, model);
        }
        match random.below(100) {
            at if at < self.compactions => {
                let (low, high) = (model.compact_revision().max(0), model.revision());
                let revision = low + random.below((high - low + 3) as u64) as i64;
                let physical = random.coin();
                Op::Compact { revision, physical }
            }
            0..60 => Op::Put(self.put(random, true)),
            60..73 => self.delete(random),
            73..90 => self.txn(random, model),
            90..97 if random.below(3) == 0 => {
                let id = short_lease(random);
                // Not one that is there: its time would not be the second grant's.
                if model.leases().contains_key(&id) {
                    Op::Revoke { id }
                } else {
                    Op::Grant { id, ttl_s: SHORT_TTL_S }
                }
            }
            90..97 => Op::Grant {
                id: 1 + random.below(6) as i64,
                ttl_s: LONG_TTL_S,
            },
            _ => Op::Revoke {
                id: 1 + random.below(6) as i64,
            },
        }
    }

    /// What an operator does about a full quota.
    fn make_room(&self, random: &mut Random, model: &Model) -> Op {
        match random.below(8) {
            0..4 => Op::Delete {
                key: self.key(random),
                end: Some("key9".to_string()),
            },
            4..7 => Op::Compact {
                revision: model.revision(),
                physical: random.coin(),
            },
            _ => Op::Disarm,
        }
    }

    fn key(&self, random: &mut Random) -> String {
        format!("key{:04}", random.below(self.keys))
    }

    fn put(&self, random: &mut Random, leased: bool) -> Put {
        let key = self.key(random);
        let length = random.below(self.value_bytes_max) as usize;
        // Not compressible to zeros, and different every time.
        let word = random.bits().to_be_bytes();
        let value = word.iter().copied().cycle().take(length).collect();
        let lease = match random.below(8) {
            0 if leased => short_lease(random),
            1 if leased => 1 + random.below(6) as i64,
            _ => 0,
        };
        Put { key, value, lease }
    }

    /// A get at its place, or at a revision that can be read unless a compaction comes before.
    fn get(&self, random: &mut Random, lowest: i64, newest: i64) -> Op {
        let at = random.below(self.keys);
        let end = random.coin().then(|| format!("key{:04}", at + random.below(20)));
        let revision = match random.below(3) {
            0 => lowest + random.below((newest - lowest + 1) as u64) as i64,
            _ => 0,
        };
        let key = format!("key{at:04}");
        Op::Get { key, end, revision }
    }

    fn delete(&self, random: &mut Random) -> Op {
        let at = random.below(self.keys);
        let end = (random.below(3) == 0).then(|| format!("key{:04}", at + random.below(6)));
        let key = format!("key{at:04}");
        Op::Delete { key, end }
    }

    /// A transaction whose branches touch a key at most once, as the API demands.
    fn txn(&self, random: &mut Random, model: &Model) -> Op {
        let key = self.key(random);
        let newest = model
            .newest_at(model.revision())
            .get(key.as_str())
            .map(|record| (*record).clone());
        let condition = match newest {
            Some(record) if random.coin() => Condition::Value(record.value.clone()),
            Some(record) => Condition::Version(record.version),
            None => Condition::Version(random.below(2) as i64),
        };
        let (lowest, newest) = (model.compact_revision().max(0), model.revision());
        let mut branch = || {
            let mut ops: Vec<Op> = Vec::new();
            if random.coin() {
                ops.push(self.get(random, lowest, newest));
            }
            for _ in 0..random.below(4) {
                let put = self.put(random, false);
                let touched = |op: &Op| match op {
                    Op::Put(other) => other.key == put.key,
                    Op::Delete { key, .. } => *key == put.key,
                    _ => false,
                };
                if ops.iter().any(touched) {
                    continue;
                }
                if random.below(4) == 0 {
                    ops.push(self.get(random, lowest, newest));
                }
                ops.push(match random.below(3) {
                    0 => Op::Delete {
                        key: put.key,
                        end: None,
                    },
                    _ => Op::Put(put),
                });
            }
            ops
        };
        let (then, otherwise) = (branch(), branch());
        Op::Txn {
            key,
            condition,
            then,
            otherwise,
        }
    }
}

fn short_lease(random: &mut Random) -> i64 {
    let ids = SHORT_LEASES;
    ids.start + random.below((ids.end - ids.start) as u64) as i64
}

/// A request as the log carries it.
pub fn request(op: &Op) -> InternalRaftRequest {
    let mut request = InternalRaftRequest::default();
    match op {
        Op::Put(put) => request.put = Some(put_request(put)),
        Op::Delete { key, end } => request.delete_range = Some(delete_request(key, end.as_deref())),
        Op::Txn {
            key,
            condition,
            then,
            otherwise,
        } => {
            let branch = |ops: &[Op]| ops.iter().map(operation).collect();
            request.txn = Some(TxnRequest {
                compare: vec![comparison(key, condition)],
                success: branch(then),
                failure: branch(otherwise),
            });
        }
        Op::Grant { id, ttl_s } => request.lease_grant = Some(LeaseGrantRequest { ttl: *ttl_s, id: *id }),
        Op::Revoke { id } => request.lease_revoke = Some(LeaseRevokeRequest { id: *id }),
        Op::Compact { revision, physical } => {
            request.compaction = Some(CompactionRequest {
                revision: *revision,
                physical: *physical,
            });
        }
        Op::Alarm => request.alarm = Some(alarm_request(AlarmAction::Activate)),
        Op::Disarm => request.alarm = Some(alarm_request(AlarmAction::Deactivate)),
        Op::Get { .. } => unreachable!("{op:?} outside of a transaction"),
    }
    request
}

fn alarm_request(action: AlarmAction) -> AlarmRequest {
    AlarmRequest {
        action: action as i32,
        member_id: MEMBER_ID,
        alarm: AlarmType::Nospace as i32,
    }
}

/// The range that a get of a transaction is.
pub fn range_request(key: &str, end: Option<&str>, revision: i64) -> RangeRequest {
    RangeRequest {
        key: key.to_string().into_bytes().into(),
        range_end: end.unwrap_or_default().to_string().into_bytes().into(),
        revision,
        ..Default::default()
    }
}

fn put_request(put: &Put) -> PutRequest {
    PutRequest {
        key: put.key.clone().into_bytes().into(),
        value: put.value.clone().into(),
        lease: put.lease,
        prev_kv: true,
        ..Default::default()
    }
}

fn delete_request(key: &str, end: Option<&str>) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: key.to_string().into_bytes().into(),
        range_end: end.unwrap_or_default().to_string().into_bytes().into(),
        ..Default::default()
    }
}

fn operation(op: &Op) -> RequestOp {
    let request = match op {
        Op::Put(put) => request_op::Request::RequestPut(put_request(put)),
        Op::Delete { key, end } => request_op::Request::RequestDeleteRange(delete_request(key, end.as_deref())),
        Op::Get { key, end, revision } => {
            request_op::Request::RequestRange(range_request(key, end.as_deref(), *revision))
        }
        other => unreachable!("{other:?} in a transaction"),
    };
    RequestOp { request: Some(request) }
}

fn comparison(key: &str, condition: &Condition) -> Compare {
    let (target, target_union) = match condition {
        Condition::Version(version) => (compare::CompareTarget::Version, compare::TargetUnion::Version(*version)),
        Condition::Value(value) => (
            compare::CompareTarget::Value,
            compare::TargetUnion::Value(value.clone().into()),
        ),
    };
    Compare {
        result: compare::CompareResult::Equal as i32,
        target: target as i32,
        key: key.to_string().into_bytes().into(),
        target_union: Some(target_union),
        ..Default::default()
    }
}
