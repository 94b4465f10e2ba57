//! Requests that only the leader can answer, at a member that does not lead: they are passed on to its peer URLs, as
//! etcd does it, again and again until it answers or the time is over.

use super::error;
use super::service::{Api, Caller};
use super::waiting::Waiting;
use crate::grpc::Status;
use crate::limits::API_FORWARDS;
use crate::limits::transport::ASK_PAUSE;
use crate::net::{Core, Net};
use crate::proto::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest};
use crate::proto::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
use crate::raft::messages::{Dropped, LeaderPlace, MemberError, Reply, Request};
use crate::raft::transport::{Asker, PeerAnswer, Question};
use crate::reactor::serve::{self, Notify};
use crate::state::lease::TimeToLive;
use crate::state::members::Member;
use prost::Message;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// An answer of the log core that a task waits for.
#[derive(Default)]
pub(super) struct Awaited {
    answer: RefCell<Option<Result<Reply, Status>>>,
    arrived: Notify,
}

impl Awaited {
    /// Hands the answer over.
    pub fn came(&self, answer: Result<Reply, Status>) {
        self.answer.replace(Some(answer));
        self.arrived.notify();
    }

    async fn wait(&self) -> Result<Reply, Status> {
        loop {
            if let Some(answer) = self.answer.take() {
                return answer;
            }
            self.arrived.notified().await;
        }
    }
}

/// Asks the log core on a task's behalf.
pub(super) async fn ask_log_core(
    connections: &Core<Api>,
    request: impl FnOnce(u64) -> Request,
) -> Result<Reply, Status> {
    let answer = Rc::new(Awaited::default());
    let waiting = Waiting::Task { answer: answer.clone() };
    connections.with(|api, net| api.ask(net, waiting, request));
    answer.wait().await
}

/// A request on its way to whoever leads.
struct Forward {
    connections: Core<Api>,
    asker: Asker,
    until: Instant,
}

impl Forward {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Asks the log core.
    async fn ask_log_core(&self, request: impl FnOnce(u64) -> Request) -> Result<Reply, Status> {
        ask_log_core(&self.connections, request).await
    }

    /// Who leads, once somebody does.
    async fn leader(&self) -> Result<LeaderPlace, Status> {
        loop {
            if let Reply::Leader {
                leader: Some(place), ..
            } = self.ask_log_core(|token| Request::Leader { token }).await?
            {
                return Ok(place);
            }
            if self.connections.with(|api, _| api.is_stopping()) {
                return Err(error::stopped());
            }
            if self.left().is_zero() {
                return Err(error::no_leader());
            }
            serve::sleep(ASK_PAUSE).await;
        }
    }

    /// Asks the leader until `read` finds an answer in what it says; where this member leads by now, `here` does.
    async fn answer<T>(
        &self,
        line: &str,
        body: &[u8],
        read: impl Fn(PeerAnswer) -> Option<T>,
        here: impl AsyncFn() -> Option<T>,
    ) -> Result<T, Status> {
        loop {
            let leader = self.leader().await?;
            if leader.is_self
                && let Some(answer) = here().await
            {
                return Ok(answer);
            }
            let urls = leader.peer_urls.iter().filter(|_| !leader.is_self);
            for url in urls {
                let question = Question {
                    url,
                    line,
                    content_type: "application/protobuf",
                    body,
                };
                match self.asker.ask(&question, self.left()).await {
                    Ok(answer) => {
                        let status = answer.status;
                        if let Some(answer) = read(answer) {
                            return Ok(answer);
                        }
                        tracing::debug!(url, status, line, "the leader could not answer");
                    }
                    Err(problem) => tracing::debug!(line, "the leader was not asked: {problem}"),
                }
            }
            if self.connections.with(|api, _| api.is_stopping()) {
                return Err(error::stopped());
            }
            if self.left().is_zero() {
                return Err(error::timed_out());
            }
            serve::sleep(ASK_PAUSE).await;
        }
    }

    /// Renews a lease; 0 when there is none.
    async fn renew(&self, id: i64) -> Result<i64, Status> {
        let body = LeaseKeepAliveRequest { id }.encode_to_vec();
        let read = |answer: PeerAnswer| match answer.status {
            404 => Some(0),
            200 => LeaseKeepAliveResponse::decode(&answer.body[..])
                .ok()
                .filter(|answer| answer.id == id)
                .map(|answer| answer.ttl),
            _ => None,
        };
        let here = async || match self.ask_log_core(|token| Request::Renew { token, id }).await {
            Ok(Reply::Renewed { ttl_s, .. }) => ttl_s,
            _ => None,
        };
        self.answer("POST /leases", &body, read, here).await
    }

    /// What is left of a lease; `None` when there is none.
    async fn time_to_live(&self, id: i64, keys: bool) -> Result<Option<TimeToLive>, Status> {
        let request = LeaseInternalRequest {
            lease_time_to_live_request: Some(LeaseTimeToLiveRequest { id, keys }),
        };
        let read = |answer: PeerAnswer| match answer.status {
            404 => Some(None),
            200 => {
                let answer = LeaseInternalResponse::decode(&answer.body[..]).ok()?;
                let lease = answer.lease_time_to_live_response.filter(|lease| lease.id == id)?;
                Some(Some(TimeToLive {
                    granted_ttl_s: lease.granted_ttl,
                    remaining_s: Some(lease.ttl),
                    keys: lease.keys.into_iter().map(|key| key.to_vec().into()).collect(),
                }))
            }
            _ => None,
        };
        let here = async || {
            let asked = self.ask_log_core(|token| Request::TimeToLive { token, id, keys });
            match asked.await {
                Ok(Reply::TimeToLive { lease, .. }) => lease.ok(),
                _ => None,
            }
        };
        self.answer("POST /leases/internal", &request.encode_to_vec(), read, here)
            .await
    }

    /// Has the leader promote a learner.
    async fn promote(
        &self,
        id: u64,
        change: impl Fn(u64) -> Request,
    ) -> Result<Result<Vec<Member>, MemberError>, Status> {
        let read = |answer: PeerAnswer| {
            let text = String::from_utf8_lossy(&answer.body);
            match answer.status {
                200 => Some(Ok(serde_json::from_slice(&answer.body).ok()?)),
                404 => Some(Err(MemberError::NotFound)),
                412 if text.contains("in sync with leader") => Some(Err(MemberError::LearnerNotReady)),
                412 if text.contains("can only promote a learner") => Some(Err(MemberError::NotLearner)),
                _ => None,
            }
        };
        let here = async || match self.ask_log_core(&change).await {
            Ok(Reply::Members { result, .. }) if result != Err(MemberError::NotLeader) => Some(result),
            _ => None,
        };
        self.answer(&format!("POST /members/promote/{id}"), &[], read, here)
            .await
    }
}

impl Api {
    fn forward(&mut self) -> Result<Forward, Status> {
        let Some(connections) = self.connections.clone().filter(|_| !self.stopping) else {
            return Err(error::stopped());
        };
        if self.forwards >= API_FORWARDS {
            return Err(error::dropped(Dropped::TooManyRequests));
        }
        self.forwards += 1;
        Ok(Forward {
            connections,
            asker: self.asker.clone(),
            until: Instant::now() + self.settings.request_timeout,
        })
    }

    /// Passes a keep-alive on to the leader.
    pub(super) fn forward_keep_alive(&mut self, net: &mut Net, caller: Caller, id: i64, number: u64) {
        match self.forward() {
            Err(status) => self.fail(net, caller, &status),
            Ok(forward) => serve::spawn(async move {
                let renewed = forward.renew(id).await;
                forward.connections.with(|api, net| {
                    api.forwards -= 1;
                    match renewed {
                        Ok(ttl_s) => api.renewed(net, caller, number, Some(ttl_s)),
                        Err(status) => api.fail(net, caller, &status),
                    }
                });
            }),
        }
    }

    /// Passes the question for what is left of a lease on to the leader.
    pub(super) fn forward_time_to_live(&mut self, net: &mut Net, caller: Caller, id: i64, keys: bool) {
        match self.forward() {
            Err(status) => self.fail(net, caller, &status),
            Ok(forward) => serve::spawn(async move {
                let told = forward.time_to_live(id, keys).await;
                forward.connections.with(|api, net| {
                    api.forwards -= 1;
                    match told {
                        Ok(lease) => api.time_to_live_known(net, caller, id, lease),
                        Err(status) => api.fail(net, caller, &status),
                    }
                });
            }),
        }
    }

    /// Passes a promotion on to the leader.
    pub(super) fn forward_promotion(&mut self, net: &mut Net, caller: Caller, id: u64) {
        let request_id = self.request_id();
        match self.forward() {
            Err(status) => self.fail(net, caller, &status),
            Ok(forward) => serve::spawn(async move {
                let promoted = forward
                    .promote(id, |token| super::cluster::promotion(token, request_id, id))
                    .await;
                forward.connections.with(|api, net| {
                    api.forwards -= 1;
                    match promoted {
                        Ok(result) => api.members_changed(net, caller, super::cluster::Changed::Promoted(id), result),
                        Err(status) => api.fail(net, caller, &status),
                    }
                });
            }),
        }
    }
}
