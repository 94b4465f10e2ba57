//! What a member says of itself to the cluster after its start: its name, where clients reach it, and, if it is the
//! only member and there is none yet, the cluster's version. Said again until it is applied. The version of a cluster
//! of more is what its leader finds out by asking the others.

use super::core::LogCore;
use crate::proto::etcdserverpb::InternalRaftRequest;
use crate::proto::membershippb::{Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use std::time::Duration;

/// What is said.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    /// The member's name.
    pub name: String,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// The version of a cluster that has none and no other member.
    pub cluster_version: String,
}

impl LogCore {
    /// Whether all that this member has to say is applied.
    pub fn is_published(&self) -> bool {
        let Some(said) = &self.publication else { return true };
        let member = self.state.members().get(self.member_id);
        let known = member.is_some_and(|member| member.name == said.name && member.client_urls == said.client_urls);
        known && !self.wants_version()
    }

    /// Whether this member has to say which version the cluster has.
    fn wants_version(&self) -> bool {
        let members = self.state.members();
        members.version().is_none() && members.iter().count() == 1
    }

    /// Gives the cluster the version that its members were found to have in common.
    pub(super) fn set_cluster_version(&mut self, ver: String, now: Duration) {
        if !self.was_leader || self.stopping {
            return;
        }
        let from = self.state.members().version().unwrap_or("none").to_string();
        tracing::info!(from, to = ver, "updating cluster version using v3 API");
        let request = InternalRaftRequest {
            cluster_version_set: Some(ClusterVersionSetRequest { ver }),
            ..Default::default()
        };
        self.propose_as_leader(request, now);
    }

    /// Says what is not known yet, if there is a leader, and not more often than a proposal takes at most.
    pub(super) fn publish_member(&mut self, now: Duration) {
        if self.publication.is_none() || now < self.publish_again_at || self.replica.node().leader() == 0 {
            return;
        }
        if self.is_published() {
            self.publication = None;
        }
        // A new leader looks first at what former ones have set.
        if self.replica.node().is_leader() && !self.was_leader {
            return;
        }
        let Some(said) = self.publication.clone().filter(|_| !self.stopping) else {
            return;
        };
        let members = self.state.members();
        let Some(member) = members.get(self.member_id) else {
            return;
        };
        let is_known = member.name == said.name && member.client_urls == said.client_urls;
        if self.wants_version() && self.was_leader {
            self.set_cluster_version(said.cluster_version, now);
        } else if is_known {
            return;
        }
        self.publish_again_at = now + self.proposal_timeout();
        if !is_known {
            let attributes = ClusterMemberAttrSetRequest {
                member_id: self.member_id,
                member_attributes: Some(Attributes {
                    name: said.name,
                    client_urls: said.client_urls,
                }),
            };
            let request = InternalRaftRequest {
                cluster_member_attr_set: Some(attributes),
                ..Default::default()
            };
            self.propose_own(request, now);
        }
    }
}
