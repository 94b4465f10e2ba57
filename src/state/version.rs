//! The cluster's version: the lowest minor version among the members' (`etcd-surface` 6.3), and how it may change.
//!
//! Only the leader decides, from what the members say of themselves. It goes up once all members can follow, and down
//! by one minor version where a downgrade asks for it; no other way.

use crate::config::CLUSTER_VERSION;
use crate::state::members::{Downgrade, parse_version};
use std::fmt;

/// Major and minor: what of a version members of a cluster have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor {
    major: u32,
    minor: u32,
}

/// The version of a cluster in which not every member has said what it is.
pub const LOWEST: Minor = Minor { major: 3, minor: 0 };
/// The oldest version whose stored form has a number; what came before is told as this.
const FIRST_STORED: Minor = Minor { major: 3, minor: 5 };

impl Minor {
    /// Of a whole version, `major.minor.patch`, with or without what may follow.
    pub fn parse(text: &str) -> Option<Minor> {
        let [major, minor, _] = parse_version(text)?;
        Some(Minor { major, minor })
    }

    /// Of a version as people write it: whole, or without its patch.
    pub fn parse_short(text: &str) -> Option<Minor> {
        Minor::parse(text).or_else(|| Minor::parse(&format!("{text}.0")))
    }

    /// This member's.
    pub fn ours() -> Minor {
        Minor::parse(CLUSTER_VERSION).expect("our version is one")
    }

    /// The one before, if it is of the same major version.
    pub fn before(self) -> Option<Minor> {
        let minor = self.minor.checked_sub(1)?;
        Some(Minor { minor, ..self })
    }

    /// The one behind.
    pub fn after(self) -> Minor {
        let minor = self.minor + 1;
        Minor { minor, ..self }
    }

    /// `major.minor`, as it is told to people.
    pub fn short(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.0", self.major, self.minor)
    }
}

/// The version that the cluster gets next; `None` where it stays. `current` is the one it has; `members` are the
/// versions of all members, `None` for one that is not known.
pub fn decide(
    current: Option<Minor>,
    members: &[Option<Minor>],
    downgrade: Option<&Downgrade>,
) -> Result<Option<Minor>, String> {
    let known: Option<Vec<Minor>> = members.iter().copied().collect();
    let lowest = known.and_then(|known| known.into_iter().min());
    let Some(current) = current else {
        return Ok(Some(lowest.unwrap_or(LOWEST)));
    };
    let Some(lowest) = lowest else {
        return Ok(None);
    };
    if let Some(downgrade) = downgrade.filter(|downgrade| downgrade.enabled) {
        let target = Minor::parse(&downgrade.target_version);
        let Some(target) = target.filter(|target| {
            *target == current || (current.before() == Some(*target) && lowest.before() == Some(*target))
        }) else {
            return Err(format!(
                "a downgrade to {} is under way, and {current} can't become that with members of {lowest}",
                downgrade.target_version
            ));
        };
        return Ok((target != current).then_some(target));
    }
    let rises = current.major == lowest.major && current < lowest;
    Ok(rises.then_some(lowest))
}

/// The version of the stored form that goes with a cluster's version.
pub fn storage_version(cluster: Option<&str>) -> String {
    let cluster = cluster.and_then(Minor::parse).unwrap_or(FIRST_STORED);
    cluster.max(FIRST_STORED).to_string()
}

/// Why a member of this version can't be in a cluster of that one; `None` if it can.
pub fn too_new(cluster: &str) -> Option<String> {
    let cluster = Minor::parse(cluster)?;
    (cluster > Minor::ours()).then(|| {
        format!(
            "invalid downgrade; server version is lower than determined cluster version: the cluster is of {}, and \
             this member of {}",
            cluster.short(),
            Minor::ours().short()
        )
    })
}

/// Whether a member of this version may join a cluster whose members say these cluster versions; those that did not
/// answer say nothing. One has to say something, and nobody may say a version out of bounds. In a cluster that is being
/// downgraded only members of the version it goes to join: so etcd has it.
pub fn may_join(told: &[String], is_downgrading: bool) -> Result<(), String> {
    let ours = Minor::ours();
    let (least, most) = if is_downgrading {
        (ours.after(), ours.after())
    } else {
        (LOWEST, ours)
    };
    let mut any = false;
    for text in told {
        let Some(version) = Minor::parse(text) else { continue };
        if version < least || version > most {
            return Err(format!(
                "a member says the cluster's version is {version}, and this one joins clusters from {least} to {most}"
            ));
        }
        any = true;
    }
    if any {
        Ok(())
    } else {
        Err("no member says which version the cluster has".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minor(text: &str) -> Minor {
        Minor::parse_short(text).unwrap()
    }

    fn downgrade(target: &str) -> Downgrade {
        Downgrade {
            target_version: target.into(),
            enabled: true,
        }
    }

    #[test]
    fn the_lowest_version_of_all_counts() {
        let decide = |current: Option<&str>, members: &[Option<&str>]| {
            let members: Vec<_> = members.iter().map(|member| member.and_then(Minor::parse)).collect();
            let decided = decide(current.map(minor), &members, None).unwrap();
            decided.map(|version| version.to_string())
        };
        let all = [Some("3.7.1"), Some("3.6.14"), Some("3.7.1")];
        assert_eq!(decide(None, &all), Some("3.6.0".into()));
        assert_eq!(decide(None, &[Some("3.7.1"), None]), Some("3.0.0".into()));
        assert_eq!(decide(Some("3.0"), &all), Some("3.6.0".into()));
        assert_eq!(
            decide(Some("3.6"), &[Some("3.7.1"), Some("3.7.0")]),
            Some("3.7.0".into())
        );
        // It stays while somebody is silent, and never goes down by itself.
        assert_eq!(decide(Some("3.6"), &[Some("3.7.1"), None]), None);
        assert_eq!(decide(Some("3.7"), &all), None);
        assert_eq!(decide(Some("3.6"), &all), None);
        assert_eq!(decide(Some("3.6"), &[Some("4.0.0")]), None);
    }

    #[test]
    fn a_downgrade_goes_down_by_one() {
        let new = [Some(minor("3.7"))];
        let target = downgrade("3.6.0");
        assert_eq!(decide(Some(minor("3.7")), &new, Some(&target)), Ok(Some(minor("3.6"))));
        assert_eq!(decide(Some(minor("3.6")), &new, Some(&target)), Ok(None));
        assert!(decide(Some(minor("3.7")), &new, Some(&downgrade("3.5.0"))).is_err());
        assert!(decide(Some(minor("3.7")), &new, Some(&downgrade("x"))).is_err());
        let over = Downgrade::default();
        assert_eq!(decide(Some(minor("3.6")), &new, Some(&over)), Ok(Some(minor("3.7"))));
    }

    #[test]
    fn who_joins_knows_the_clusters_version() {
        let told = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        assert_eq!(may_join(&told(&["3.6.0", "not_decided"]), false), Ok(()));
        assert_eq!(may_join(&told(&["3.7.0"]), false), Ok(()));
        for texts in [&["3.8.0"][..], &["3.6.0", "3.8.0"], &["2.3.0"], &["not_decided"], &[]] {
            assert!(may_join(&told(texts), false).is_err(), "{texts:?}");
        }
        assert!(may_join(&told(&["3.7.0"]), true).is_err());
        assert!(may_join(&told(&["3.8.0"]), true).is_ok());
        assert!(
            too_new("3.8.0")
                .unwrap()
                .contains("server version is lower than determined cluster version")
        );
        assert_eq!(too_new("3.7.0"), None);
    }

    #[test]
    fn what_is_stored_follows() {
        assert_eq!(storage_version(None), "3.5.0");
        assert_eq!(storage_version(Some("3.0.0")), "3.5.0");
        assert_eq!(storage_version(Some("3.6.0")), "3.6.0");
    }
}
