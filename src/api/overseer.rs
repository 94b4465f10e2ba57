//! What a member does on its own with other members' answers: how such a task reaches the log core and the others.

use super::forward::ask_log_core;
use super::service::Api;
use crate::net::Core;
use crate::raft::messages::{Reply, Request, Status as MemberStatus};
use crate::raft::standing::Standing;
use crate::raft::transport::{Asker, PeerAnswer, Question};
use std::sync::Arc;
use std::time::Duration;

/// One such task's hold on its core.
#[derive(Clone)]
pub(super) struct Overseer {
    pub connections: Core<Api>,
    /// This member.
    pub member_id: u64,
    /// How long a member may take to answer.
    pub timeout: Duration,
    asker: Asker,
    standing: Arc<Standing>,
}

impl Overseer {
    /// On this core.
    pub fn new(connections: &Core<Api>) -> Overseer {
        connections.with(|api, _| Overseer {
            connections: connections.clone(),
            member_id: api.settings.identity.member_id,
            timeout: api.settings.request_timeout,
            asker: api.asker.clone(),
            standing: api.settings.standing.clone(),
        })
    }

    /// Whether the core shuts down.
    pub fn is_over(&self) -> bool {
        self.connections.with(|api, _| api.is_stopping())
    }

    /// Whether this member leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.standing.leader() == self.member_id
    }

    /// The member's state.
    pub async fn status(&self) -> Option<Box<MemberStatus>> {
        match ask_log_core(&self.connections, |token| Request::Status { token }).await {
            Ok(Reply::Status { status, .. }) => Some(status),
            _ => None,
        }
    }

    /// Whether what is published now contains everything that was committed before.
    pub async fn is_up_to_date(&self) -> bool {
        let asked = ask_log_core(&self.connections, |token| Request::ReadIndex { token }).await;
        matches!(asked, Ok(Reply::Readable { .. }))
    }

    /// Tells the log core something that is not answered.
    pub fn post(&self, request: Request) {
        self.connections.with(|api, _| api.post(request));
    }

    /// Asks another member.
    pub async fn ask(&self, question: &Question<'_>) -> Result<PeerAnswer, String> {
        self.asker.ask(question, self.timeout).await
    }
}
