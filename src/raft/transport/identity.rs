//! What members tell of themselves with every request, and whom a member talks to.

use std::fmt;

/// The oldest version whose members may be in a cluster with this one, as etcd has it.
const MIN_CLUSTER_VERSION: &str = "3.0.0";
/// Who says nothing speaks the protocol of etcd 2.0.
const UNSAID_VERSION: &str = "2.0.0";

/// The header fields' names, in Go's spelling.
pub mod field {
    pub const CLUSTER_ID: &str = "X-Etcd-Cluster-Id";
    pub const FROM: &str = "X-Server-From";
    pub const VERSION: &str = "X-Server-Version";
    pub const MIN_CLUSTER_VERSION: &str = "X-Min-Cluster-Version";
    pub const PEER_URLS: &str = "X-Peerurls";
    pub const RAFT_TO: &str = "X-Raft-To";
}

/// Answers with status 412, and what stands in them.
pub const INCOMPATIBLE_VERSION: &str = "incompatible version";
/// The other one.
pub const CLUSTER_ID_MISMATCH: &str = "cluster ID mismatch";

/// This member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Its id.
    pub member_id: u64,
    /// Its cluster's.
    pub cluster_id: u64,
    /// Where peers reach it.
    pub peer_urls: Vec<String>,
    /// etcd's version that it is like, `major.minor.patch`.
    pub version: &'static str,
}

/// Why a peer is not talked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// Its version is too old for us, or ours for it.
    #[error("its version is `{theirs}`, it wants members of `{wants}` or later, and this one is of {ours}")]
    Version {
        /// What it says it is.
        theirs: String,
        /// The oldest version it takes.
        wants: String,
        /// Ours.
        ours: &'static str,
    },
    /// It is of another cluster.
    #[error("it is of cluster `{theirs}`, and this member of {ours:x}")]
    Cluster {
        /// The cluster it says it is of.
        theirs: String,
        /// Ours.
        ours: u64,
    },
}

impl Incompatible {
    /// The body of the answer.
    pub fn text(&self) -> &'static str {
        match self {
            Incompatible::Version { .. } => INCOMPATIBLE_VERSION,
            Incompatible::Cluster { .. } => CLUSTER_ID_MISMATCH,
        }
    }
}

impl Local {
    /// The fields of every request.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            (field::CLUSTER_ID, format!("{:x}", self.cluster_id)),
            (field::FROM, format!("{:x}", self.member_id)),
            (field::VERSION, self.version.to_string()),
            (field::MIN_CLUSTER_VERSION, MIN_CLUSTER_VERSION.to_string()),
            (field::PEER_URLS, self.peer_urls.join(",")),
        ]
    }

    /// Whether who sends a request with these fields may be talked to. Versions are compared by major and minor.
    pub fn admits<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> Result<(), Incompatible> {
        let said = |name| get(name).filter(|text| !text.is_empty());
        let theirs = said(field::VERSION).unwrap_or(UNSAID_VERSION);
        let wants = said(field::MIN_CLUSTER_VERSION).unwrap_or(UNSAID_VERSION);
        let is_fine = match (
            Version::parse(theirs),
            Version::parse(wants),
            Version::parse(self.version),
        ) {
            (Some(theirs), Some(wants), Some(ours)) => {
                Some(theirs) >= Version::parse(MIN_CLUSTER_VERSION) && wants <= ours
            }
            _ => false,
        };
        if !is_fine {
            return Err(Incompatible::Version {
                theirs: shortened(theirs),
                wants: shortened(wants),
                ours: self.version,
            });
        }
        let theirs = get(field::CLUSTER_ID).unwrap_or_default();
        if theirs != format!("{:x}", self.cluster_id) {
            return Err(Incompatible::Cluster {
                theirs: shortened(theirs),
                ours: self.cluster_id,
            });
        }
        Ok(())
    }
}

/// Major and minor of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    /// Reads `major.minor.patch`, with or without what may follow it.
    pub fn parse(text: &str) -> Option<Version> {
        let mut parts = text.splitn(3, '.');
        let mut number = || parts.next()?.parse().ok();
        let (major, minor) = (number()?, number()?);
        parts.next()?;
        Some(Version { major, minor })
    }

    /// Whether a member of this version serves both kinds of streams.
    pub fn has_streams(self) -> bool {
        self >= Version { major: 2, minor: 1 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// A member's id as it stands in fields and paths.
pub fn parse_id(text: &str) -> Option<u64> {
    // A sign is none of etcd's.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    u64::from_str_radix(digits?, 16).ok()
}

/// What a peer said, as much of it as a log line needs.
pub fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(fields: &[(&str, &str)]) -> Result<(), Incompatible> {
        let local = Local {
            member_id: 1,
            cluster_id: 0xabc,
            peer_urls: vec!["http://a:1".into(), "http://b:2".into()],
            version: "3.7.1",
        };
        let names: Vec<_> = local.fields().iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), 5);
        local.admits(|name| fields.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
    }

    #[test]
    fn versions_are_compared_by_major_and_minor() {
        let with = |version, least| {
            admits(&[
                (field::CLUSTER_ID, "abc"),
                (field::VERSION, version),
                (field::MIN_CLUSTER_VERSION, least),
            ])
        };
        for (version, least) in [
            ("3.7.1", "3.0.0"),
            ("3.0.0", "3.7.9"),
            ("4.0.0", "3.6.0"),
            ("3.5.0-rc.1", "3.0.0"),
        ] {
            assert_eq!(with(version, least), Ok(()), "{version} {least}");
        }
        for (version, least) in [
            ("2.3.8", "2.0.0"),
            ("3.8.0", "3.8.0"),
            ("", "3.0.0"),
            ("3", "3.0.0"),
            ("x.y.z", "3.0.0"),
        ] {
            let refused = with(version, least).unwrap_err();
            assert_eq!(refused.text(), "incompatible version", "{version} {least}");
        }
        // Who says nothing of what it wants takes everybody.
        assert_eq!(with("3.7.0", ""), Ok(()));
    }

    #[test]
    fn other_clusters_are_refused() {
        let with = |id| {
            let fields = [(field::CLUSTER_ID, id), (field::VERSION, "3.7.1")];
            admits(&fields)
        };
        assert_eq!(with("abc"), Ok(()));
        for id in ["abd", "0abc", "", "ABC"] {
            assert_eq!(with(id).unwrap_err().text(), "cluster ID mismatch", "{id}");
        }
        assert!(admits(&[(field::VERSION, "3.7.1")]).is_err());
    }

    #[test]
    fn ids_are_hexadecimal() {
        assert_eq!(parse_id("8e9e05c52164694d"), Some(0x8e9e_05c5_2164_694d));
        for text in ["", "+1", "-1", "x", "10000000000000000"] {
            assert_eq!(parse_id(text), None, "{text}");
        }
    }
}
