//! The cluster's version as the leader finds it: every few seconds it asks the other members at their peer URLs which
//! versions they are, and has the log say what all have in common (`etcd-surface` 6.3).

use super::overseer::Overseer;
use super::service::Api;
use crate::limits::{VERSIONS_LOOK, VERSIONS_PAUSE};
use crate::net::Core;
use crate::raft::messages::{Request, Status as MemberStatus};
use crate::raft::transport::Question;
use crate::reactor::serve;
use crate::state::members::Member;
use crate::state::version::{self, Minor};
use serde::Deserialize;
use std::time::Instant;

/// What of `/version` counts.
#[derive(Deserialize)]
struct Told {
    etcdserver: String,
}

/// Watches over the cluster's version as long as the core serves. Looks at once when this member begins to lead.
pub async fn watch(connections: Core<Api>) {
    let overseer = Overseer::new(&connections);
    let mut due = None;
    let mut problem = None;
    loop {
        serve::sleep(VERSIONS_LOOK).await;
        if overseer.is_over() {
            return;
        }
        if !overseer.leads() {
            due = None;
            continue;
        }
        if due.is_some_and(|due| Instant::now() < due) {
            continue;
        }
        let Some(status) = overseer.status().await.filter(|status| status.leads_surely) else {
            continue;
        };
        let members = ask_all(&overseer, &status).await;
        let current = status.cluster_version.as_deref().and_then(Minor::parse);
        match version::decide(current, &members, status.downgrade.as_ref()) {
            Ok(Some(version)) => overseer.post(Request::SetClusterVersion {
                version: version.to_string(),
            }),
            Ok(None) => problem = None,
            Err(said) => {
                if problem.as_ref() != Some(&said) {
                    tracing::error!("failed to monitor cluster version: {said}");
                }
                problem = Some(said);
            }
        }
        due = Some(Instant::now() + VERSIONS_PAUSE);
    }
}

/// The versions of all members; of one that does not answer, nothing.
async fn ask_all(overseer: &Overseer, status: &MemberStatus) -> Vec<Option<Minor>> {
    let asked = status.members.iter().map(|member| ask(overseer, member));
    serve::join(asked).await
}

async fn ask(overseer: &Overseer, member: &Member) -> Option<Minor> {
    if member.id == overseer.member_id {
        return Some(Minor::ours());
    }
    for url in &member.peer_urls {
        let question = Question {
            url,
            line: "GET /version",
            content_type: "application/json",
            body: &[],
        };
        let answer = overseer.ask(&question).await.ok().filter(|answer| answer.status == 200);
        let told = answer.and_then(|answer| serde_json::from_slice::<Told>(&answer.body).ok());
        if let Some(version) = told.and_then(|told| Minor::parse(&told.etcdserver)) {
            if version > Minor::ours() {
                let (version, member) = (version.short(), format!("{:x}", member.id));
                tracing::warn!(
                    version,
                    "remote-member-id" = member,
                    "leader found higher-versioned member"
                );
            }
            return Some(version);
        }
    }
    let id = format!("{:x}", member.id);
    tracing::debug!("remote-member-id" = id, "failed to get version");
    None
}

const _: () = assert!(VERSIONS_LOOK.as_nanos() < VERSIONS_PAUSE.as_nanos());
