//! The members, the cluster's version and its downgrade (`etcd-surface` 4.10 and 5.4), in etcd's stored forms.
//!
//! Who votes is raft's; this is what members say of themselves and what clients are told.

use crate::proto::membershippb::{ClusterMemberAttrSetRequest, ClusterVersionSetRequest, DowngradeInfoSetRequest};
use crate::state::backend::names::REMOVED;
use crate::state::error::StateError;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A member, as etcd keeps it in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub id: u64,
    /// Where peers reach it.
    #[serde(rename = "peerURLs", deserialize_with = "list")]
    pub peer_urls: Vec<String>,
    /// Whether it has no vote.
    #[serde(rename = "isLearner", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_learner: bool,
    /// Its name; empty until it has started.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where clients reach it.
    #[serde(
        rename = "clientURLs",
        default,
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub client_urls: Vec<String>,
}

/// A list as Go writes it: `null` when there is none. etcd's promotions of learners are such, for they name no URLs.
fn list<'de, D: Deserializer<'de>>(json: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(json)?.unwrap_or_default())
}

/// A downgrade that is under way or was cancelled, as etcd keeps it in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downgrade {
    /// The version to go to; empty when there is none.
    #[serde(rename = "target-version")]
    pub target_version: String,
    /// Whether it is under way.
    pub enabled: bool,
}

/// The cluster as its members know it.
#[derive(Debug, Default)]
pub struct Members {
    members: BTreeMap<u64, Member>,
    removed: BTreeSet<u64>,
    version: Option<String>,
    downgrade: Option<Downgrade>,
    changed: BTreeSet<u64>,
    version_changed: bool,
    downgrade_changed: bool,
}

impl Members {
    /// All members by id.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// A member.
    pub fn get(&self, id: u64) -> Option<&Member> {
        self.members.get(&id)
    }

    /// Whether a member with this id was removed.
    pub fn is_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }

    /// The version that all members have, `major.minor.patch`; `None` until it is set.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The downgrade, if there ever was one.
    pub fn downgrade(&self) -> Option<&Downgrade> {
        self.downgrade.as_ref()
    }

    /// Adds a member or puts another in its place, as a configuration change does.
    pub fn add(&mut self, member: Member) {
        self.changed.insert(member.id);
        self.members.insert(member.id, member);
    }

    /// Removes a member, as a configuration change does. Its id cannot come back.
    pub fn remove(&mut self, id: u64) {
        self.members.remove(&id);
        self.removed.insert(id);
        self.changed.insert(id);
    }

    /// Gives a learner its vote, as a configuration change does.
    pub fn promote(&mut self, id: u64) {
        if let Some(member) = self.members.get_mut(&id) {
            member.is_learner = false;
            self.changed.insert(id);
        }
    }

    /// Tells where peers reach a member from now on, as a configuration change does.
    pub fn set_peer_urls(&mut self, id: u64, peer_urls: Vec<String>) {
        if let Some(member) = self.members.get_mut(&id) {
            member.peer_urls = peer_urls;
            self.changed.insert(id);
        }
    }

    /// The ids of members that were removed.
    pub fn removed(&self) -> impl Iterator<Item = u64> {
        self.removed.iter().copied()
    }

    pub(crate) fn set_attributes(&mut self, request: &ClusterMemberAttrSetRequest) -> Result<(), StateError> {
        let attributes = request.member_attributes.clone().unwrap_or_default();
        match self.members.get_mut(&request.member_id) {
            Some(member) => {
                member.name = attributes.name;
                member.client_urls = attributes.client_urls;
                self.changed.insert(request.member_id);
                Ok(())
            }
            None if self.removed.contains(&request.member_id) => Ok(()),
            None => Err(StateError::UnknownMember(request.member_id)),
        }
    }

    pub(crate) fn set_version(&mut self, request: &ClusterVersionSetRequest) -> Result<(), StateError> {
        if parse_version(&request.ver).is_none() {
            return Err(StateError::BadVersion(request.ver.clone()));
        }
        self.version = Some(request.ver.clone());
        self.version_changed = true;
        Ok(())
    }

    pub(crate) fn set_downgrade(&mut self, request: &DowngradeInfoSetRequest) {
        let target_version = if request.enabled {
            request.ver.clone()
        } else {
            String::new()
        };
        self.downgrade = Some(Downgrade {
            target_version,
            enabled: request.enabled,
        });
        self.downgrade_changed = true;
    }

    /// Takes over a stored member or removed id. The error says what is wrong with it.
    pub(crate) fn restore_member(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let text = std::str::from_utf8(key).map_err(|_| "a member id that is no text")?;
        let id = u64::from_str_radix(text, 16).map_err(|_| "a member id that is no hexadecimal number")?;
        if value == REMOVED {
            self.removed.insert(id);
            return Ok(());
        }
        let member: Member = serde_json::from_slice(value).map_err(|_| "a member that is not etcd's JSON")?;
        self.members.insert(id, member);
        Ok(())
    }

    pub(crate) fn restore_version(&mut self, value: &[u8]) -> Result<(), &'static str> {
        let version = std::str::from_utf8(value).ok();
        let version = version.filter(|version| parse_version(version).is_some());
        self.version = Some(version.ok_or("a cluster version that is none")?.into());
        Ok(())
    }

    pub(crate) fn restore_downgrade(&mut self, value: &[u8]) -> Result<(), &'static str> {
        self.downgrade = Some(serde_json::from_slice(value).map_err(|_| "a downgrade that is not etcd's JSON")?);
        Ok(())
    }

    /// Members that changed since the last call, by id in hexadecimal: JSON, or [`REMOVED`].
    pub(crate) fn take_changes(&mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let changed = std::mem::take(&mut self.changed);
        let stored = |id: u64| {
            let value = self.members.get(&id).map_or(REMOVED.to_vec(), json);
            (format!("{id:x}").into_bytes(), Some(value))
        };
        changed.into_iter().map(stored).collect()
    }

    /// The cluster version, if it changed since the last call.
    pub(crate) fn take_version_change(&mut self) -> Option<Vec<u8>> {
        let changed = std::mem::take(&mut self.version_changed);
        self.version.clone().filter(|_| changed).map(String::into_bytes)
    }

    /// The downgrade, if it changed since the last call.
    pub(crate) fn take_downgrade_change(&mut self) -> Option<Vec<u8>> {
        let changed = std::mem::take(&mut self.downgrade_changed);
        self.downgrade.as_ref().filter(|_| changed).map(json)
    }
}

/// JSON as Go writes it, which escapes what HTML would misunderstand.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    let text = serde_json::to_string(value).expect("strings, numbers and lists have a JSON form");
    let escaped = text
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e");
    escaped.into_bytes()
}

/// The numbers of a version, `major.minor.patch` with anything behind `-` or `+`; `None` if it is none.
pub(crate) fn parse_version(text: &str) -> Option<[u32; 3]> {
    let release = text.split(['-', '+']).next()?;
    let mut parts = release.split('.');
    let mut number = || parts.next().filter(|part| !part.starts_with('+'))?.parse().ok();
    let numbers = [number()?, number()?, number()?];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::membershippb::Attributes;

    #[test]
    fn members_are_stored_as_etcds_json() {
        let mut members = Members::default();
        members.add(Member {
            id: 0x8e9e,
            peer_urls: vec!["http://h:2380/?a&b".into()],
            ..Member::default()
        });
        members.add(Member {
            id: 7,
            peer_urls: vec![],
            is_learner: true,
            ..Member::default()
        });
        members.add(Member {
            id: 9,
            ..Member::default()
        });
        members.remove(9);
        let attributes = Attributes {
            name: "n".into(),
            client_urls: vec!["http://h:2379".into()],
        };
        let set = |member_id| ClusterMemberAttrSetRequest {
            member_id,
            member_attributes: Some(attributes.clone()),
        };
        assert_eq!(members.set_attributes(&set(0x8e9e)), Ok(()));
        assert_eq!(
            members.set_attributes(&set(9)),
            Ok(()),
            "a removed member's attributes are skipped"
        );
        assert_eq!(members.set_attributes(&set(10)), Err(StateError::UnknownMember(10)));
        let changes = members.take_changes();
        let text: Vec<_> = changes
            .iter()
            .map(|(key, value)| {
                (
                    String::from_utf8_lossy(key),
                    String::from_utf8_lossy(value.as_ref().unwrap()),
                )
            })
            .collect();
        assert_eq!(
            text[0],
            ("7".into(), r#"{"id":7,"peerURLs":[],"isLearner":true}"#.into())
        );
        assert_eq!(text[1], ("9".into(), "removed".into()));
        let json = r#"{"id":36510,"peerURLs":["http://h:2380/?a\u0026b"],"name":"n","clientURLs":["http://h:2379"]}"#;
        assert_eq!(text[2], ("8e9e".into(), json.into()));
        let mut restored = Members::default();
        for (key, value) in &changes {
            restored.restore_member(key, value.as_ref().unwrap()).unwrap();
        }
        assert!(restored.iter().eq(members.iter()) && restored.is_removed(9));
        // As Go writes a list that is none.
        let json = br#"{"id":1,"peerURLs":null,"clientURLs":null}"#;
        restored.restore_member(b"1", json).unwrap();
        assert_eq!(restored.get(1).unwrap().peer_urls.len(), 0);
        assert!(restored.restore_member(b"xyz", b"{}").is_err() && restored.restore_member(b"1", b"{").is_err());
    }

    #[test]
    fn versions() {
        let mut members = Members::default();
        for (version, good) in [
            ("3.7.0", true),
            ("3.8.0-alpha.0", true),
            ("3.7", false),
            ("", false),
            ("a.b.c", false),
        ] {
            let request = ClusterVersionSetRequest { ver: version.into() };
            assert_eq!(members.set_version(&request).is_ok(), good, "{version}");
        }
        assert_eq!(members.version(), Some("3.8.0-alpha.0"));
        assert_eq!(members.take_version_change().as_deref(), Some(&b"3.8.0-alpha.0"[..]));
        assert_eq!(members.take_version_change(), None);
        members.set_downgrade(&DowngradeInfoSetRequest {
            enabled: true,
            ver: "3.6.0".into(),
        });
        let stored = members.take_downgrade_change().unwrap();
        assert_eq!(stored, br#"{"target-version":"3.6.0","enabled":true}"#);
        let mut restored = Members::default();
        restored.restore_downgrade(&stored).unwrap();
        assert_eq!(restored.downgrade(), members.downgrade());
        members.set_downgrade(&DowngradeInfoSetRequest {
            enabled: false,
            ver: "x".into(),
        });
        assert_eq!(
            members.take_downgrade_change().unwrap(),
            br#"{"target-version":"","enabled":false}"#
        );
    }
}
