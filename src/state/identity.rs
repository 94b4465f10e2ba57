//! Who this member and its cluster are: ids computed as etcd does (`etcd-surface` 4.10).

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

/// The id of a member that is added to a cluster at a time, in seconds since 1970.
pub fn added_member_id(peer_urls: &[String], unix_s: u64) -> u64 {
    member_id(peer_urls, &unix_s.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids that etcd itself gives its default member.
    #[test]
    fn ids_are_etcds() {
        let id = member_id(&["http://localhost:2380".to_string()], "etcd-cluster");
        assert_eq!(id, 0x8e9e05c52164694d);
        assert_eq!(cluster_id(&[id]), 0xcdf818194e3a8c32);
    }
}
