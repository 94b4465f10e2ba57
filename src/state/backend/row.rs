//! One pair of etcd's backend and what it means: pure functions from bytes and to bytes.

use super::names;
use crate::limits::RESTORE_REVISION_MAX;
use crate::mvcc::revision::Revision;
use crate::proto::{authpb, etcdserverpb::AlarmMember, leasepb};
use crate::state::members::{Downgrade, Member, json, parse_version};
use prost::Message;
use serde::{Deserialize, Serialize};

/// raft's membership, as etcd keeps it in JSON and the page store in the membership of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfState {
    /// Who votes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub voters: Vec<u64>,
    /// Who only follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learners: Vec<u64>,
    /// During a change of several members at once, which neither etcd nor ringd makes: who voted before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub voters_outgoing: Vec<u64>,
    /// And who will only follow after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learners_next: Vec<u64>,
    /// And whether it ends by itself.
    #[serde(default)]
    pub auto_leave: bool,
}

/// A pair of any bucket but `key`, whose records are [`Row::record`]s.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// A lease.
    Lease(leasepb::Lease),
    /// An alarm.
    Alarm(AlarmMember),
    /// A user.
    User(authpb::User),
    /// A role.
    Role(authpb::Role),
    /// Whether authentication is on.
    AuthEnabled(bool),
    /// How often users and roles have changed.
    AuthRevision(u64),
    /// A member.
    Member(Member),
    /// The id of a member that was removed.
    RemovedMember(u64),
    /// The version that all members have.
    ClusterVersion(String),
    /// The downgrade that is under way.
    Downgrade(Downgrade),
    /// The raft index of the last entry contained.
    ConsistentIndex(u64),
    /// Its term.
    Term(u64),
    /// raft's membership as of it.
    ConfState(ConfState),
    /// The last compaction that was asked for.
    ScheduledCompaction(i64),
    /// The last one whose removal is done.
    FinishedCompaction(i64),
    /// The version of etcd whose format this is; without it, 3.5.
    StorageVersion(String),
}

impl Row {
    /// Reads a pair. `None` for one that means nothing here; the error says what is wrong.
    pub fn decode(bucket: &[u8], key: &[u8], value: &[u8]) -> Result<Option<Row>, &'static str> {
        Ok(Some(match (bucket, key) {
            (names::LEASE, _) => lease(key, value)?,
            (names::ALARM, _) => Row::Alarm(message(key, "an alarm that is no AlarmMember")?),
            (names::AUTH_USERS, _) => Row::User(message(value, "a user that is no authpb.User")?),
            (names::AUTH_ROLES, _) => Row::Role(message(value, "a role that is no authpb.Role")?),
            (names::AUTH, names::AUTH_ENABLED) => Row::AuthEnabled(value == [1]),
            (names::AUTH, names::AUTH_REVISION) => Row::AuthRevision(number(value)?),
            (names::MEMBERS, _) => member(key, value)?,
            (names::MEMBERS_REMOVED, _) => Row::RemovedMember(member_id(key)?),
            (names::CLUSTER, names::CLUSTER_VERSION) => Row::ClusterVersion(version(value)?),
            (names::CLUSTER, names::DOWNGRADE) => {
                Row::Downgrade(serde_json::from_slice(value).map_err(|_| "a downgrade that is not etcd's JSON")?)
            }
            (names::META, names::CONSISTENT_INDEX) => Row::ConsistentIndex(number(value)?),
            (names::META, names::TERM) => Row::Term(number(value)?),
            (names::META, names::CONF_STATE) => Row::ConfState(ConfState::decode(value)?),
            (names::META, names::SCHEDULED_COMPACTION) => Row::ScheduledCompaction(compaction(value)?),
            (names::META, names::FINISHED_COMPACTION) => Row::FinishedCompaction(compaction(value)?),
            (names::META, names::STORAGE_VERSION) => Row::StorageVersion(version(value)?),
            _ => return Ok(None),
        }))
    }

    /// Bucket, key and value.
    pub fn encode(&self) -> (&'static [u8], Vec<u8>, Vec<u8>) {
        let fixed = |bucket, key: &[u8], value| (bucket, key.to_vec(), value);
        let number = |number: u64| number.to_be_bytes().to_vec();
        match self {
            Row::Lease(lease) => (names::LEASE, lease.id.to_be_bytes().into(), lease.encode_to_vec()),
            Row::Alarm(alarm) => (names::ALARM, alarm.encode_to_vec(), Vec::new()),
            Row::User(user) => (names::AUTH_USERS, user.name.to_vec(), user.encode_to_vec()),
            Row::Role(role) => (names::AUTH_ROLES, role.name.to_vec(), role.encode_to_vec()),
            Row::AuthEnabled(enabled) => fixed(names::AUTH, names::AUTH_ENABLED, vec![u8::from(*enabled)]),
            Row::AuthRevision(revision) => fixed(names::AUTH, names::AUTH_REVISION, number(*revision)),
            Row::Member(member) => (names::MEMBERS, hexadecimal(member.id), json(member)),
            Row::RemovedMember(id) => (names::MEMBERS_REMOVED, hexadecimal(*id), names::REMOVED.into()),
            Row::ClusterVersion(version) => fixed(names::CLUSTER, names::CLUSTER_VERSION, version.clone().into()),
            Row::Downgrade(downgrade) => fixed(names::CLUSTER, names::DOWNGRADE, json(downgrade)),
            Row::ConsistentIndex(index) => fixed(names::META, names::CONSISTENT_INDEX, number(*index)),
            Row::Term(term) => fixed(names::META, names::TERM, number(*term)),
            Row::ConfState(conf_state) => fixed(names::META, names::CONF_STATE, json(conf_state)),
            Row::ScheduledCompaction(main) => fixed(names::META, names::SCHEDULED_COMPACTION, mark(*main)),
            Row::FinishedCompaction(main) => fixed(names::META, names::FINISHED_COMPACTION, mark(*main)),
            Row::StorageVersion(version) => fixed(names::META, names::STORAGE_VERSION, version.clone().into()),
        }
    }
}

impl ConfState {
    /// Reads the JSON of etcd or of a commit of the page store.
    pub fn decode(value: &[u8]) -> Result<ConfState, &'static str> {
        serde_json::from_slice(value).map_err(|_| "a membership that is not etcd's JSON")
    }

    /// The membership of a commit of the page store.
    pub fn to_membership(&self) -> Vec<u8> {
        json(self)
    }

    /// Whether a change of several members at once is under way.
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty() || !self.learners_next.is_empty()
    }
}

fn message<M: Message + Default>(bytes: &[u8], reason: &'static str) -> Result<M, &'static str> {
    M::decode(bytes).map_err(|_| reason)
}

fn lease(key: &[u8], value: &[u8]) -> Result<Row, &'static str> {
    let lease: leasepb::Lease = message(value, "a lease that is no leasepb.Lease")?;
    if key != lease.id.to_be_bytes() || lease.id == 0 {
        return Err("a lease of another id");
    }
    Ok(Row::Lease(lease))
}

fn member(key: &[u8], value: &[u8]) -> Result<Row, &'static str> {
    let id = member_id(key)?;
    let member: Member = serde_json::from_slice(value).map_err(|_| "a member that is not etcd's JSON")?;
    if member.id != id {
        return Err("a member of another id");
    }
    Ok(Row::Member(member))
}

fn member_id(key: &[u8]) -> Result<u64, &'static str> {
    let text = std::str::from_utf8(key).ok();
    let id = text.and_then(|text| u64::from_str_radix(text, 16).ok());
    // Only as it is written: no sign, no capitals, no zeros in front.
    id.filter(|id| hexadecimal(*id) == key)
        .ok_or("a member id that is no hexadecimal number")
}

fn hexadecimal(id: u64) -> Vec<u8> {
    format!("{id:x}").into_bytes()
}

fn number(value: &[u8]) -> Result<u64, &'static str> {
    let bytes = value.try_into().map_err(|_| "a number that has not eight bytes")?;
    Ok(u64::from_be_bytes(bytes))
}

fn version(value: &[u8]) -> Result<String, &'static str> {
    let text = std::str::from_utf8(value)
        .ok()
        .filter(|text| parse_version(text).is_some());
    Ok(text.ok_or("a version that is none")?.into())
}

fn compaction(value: &[u8]) -> Result<i64, &'static str> {
    match Revision::from_bytes(value) {
        Some((revision, false)) if (0..=RESTORE_REVISION_MAX).contains(&revision.main) => Ok(revision.main),
        _ => Err("a compaction mark that is no revision"),
    }
}

/// A compaction mark: a revision.
pub(crate) fn mark(main: i64) -> Vec<u8> {
    let (bytes, length) = Revision::new(main, 0).to_bytes(false);
    bytes[..length].to_vec()
}
