//! Who this member and its cluster are: ids computed as etcd does (`etcd-surface` 4.10).

use crate::raft::replica::Identity;
use sha1::{Digest, Sha1};

/// First eight bytes of a SHA-1, big endian.
fn first_eight(hash: Sha1) -> u64 {
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a SHA-1 has twenty bytes"))
}

/// A member's id: its sorted peer URLs and the cluster's token.
pub fn member_id(peer_urls: &[String], token: &str) -> u64 {
    let mut sorted = peer_urls.to_vec();
    sorted.sort();
    let mut hash = Sha1::new();
    for url in &sorted {
        hash.update(url.as_bytes());
    }
    hash.update(token.as_bytes());
    first_eight(hash)
}

/// A cluster's id: its first members' ids, sorted.
pub fn cluster_id(member_ids: &[u64]) -> u64 {
    let mut sorted = member_ids.to_vec();
    sorted.sort_unstable();
    let mut hash = Sha1::new();
    for id in sorted {
        hash.update(id.to_be_bytes());
    }
    first_eight(hash)
}

/// The identity of a cluster's sole member.
pub fn of_sole_member(peer_urls: &[String], token: &str) -> Identity {
    let member_id = member_id(peer_urls, token);
    Identity {
        cluster_id: cluster_id(&[member_id]),
        member_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids that etcd itself gives its default member.
    #[test]
    fn ids_are_etcds() {
        let identity = of_sole_member(&["http://localhost:2380".to_string()], "etcd-cluster");
        assert_eq!(identity.member_id, 0x8e9e05c52164694d);
        assert_eq!(identity.cluster_id, 0xcdf818194e3a8c32);
    }
}
