//! What other members ask over plain HTTP and only the leader answers: leases, and whether a learner may be promoted
//! (`etcd-surface` 1.5; etcd's `lease/leasehttp` and `etcdhttp/peer.go`).

use super::http::Response;
use super::peer;
use super::service::Api;
use super::waiting::Waiting;
use crate::grpc::Status;
use crate::http::http1;
use crate::limits::transport::LEASE_QUESTION_BYTES_MAX;
use crate::net::{Exchange, Net};
use crate::proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveResponse, ResponseHeader,
};
use crate::proto::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
use crate::raft::messages::{MemberError, Reply, Request};
use crate::state::lease::TimeToLive;
use crate::state::members::Member;
use prost::Message;

/// A question that waits for the log core.
#[derive(Debug)]
pub(super) struct Question {
    exchange: Exchange,
    about: About,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// `/leases`: renew it.
    Renewal(i64),
    /// `/leases/internal`: what is left of it, and whether its keys are wanted.
    TimeToLive(i64, bool),
    /// `/members/promote/`: make it a voter.
    Promotion(u64),
}

const PROMOTION: &str = "/members/promote/";

/// etcd's word for a member that does not lead, or does not know whether it does.
const NOT_PRIMARY: &str = "not a primary lessor";

/// What a request asks, or the answer to one that is wrong; `None` if it is no such question.
fn read(request: &http1::Request, body: &[u8]) -> Option<Result<About, Response>> {
    let path = request.path();
    let is_promotion = path.starts_with(PROMOTION);
    if !is_promotion && path != "/leases" && path != "/leases/internal" {
        return None;
    }
    if request.method != "POST" {
        let answer = if is_promotion {
            Response::error(405, "Method Not Allowed").with("Allow", "POST")
        } else {
            Response::error(405, "Method Not Allowed")
        };
        return Some(Err(answer));
    }
    if is_promotion {
        let id = &path[PROMOTION.len()..];
        let is_number = id.bytes().all(|byte| byte.is_ascii_digit());
        let number = id.parse().ok().filter(|_| is_number);
        let unknown = || Response::error(404, &format!("member {id} not found in cluster"));
        return Some(number.map(About::Promotion).ok_or_else(unknown));
    }
    if body.len() > LEASE_QUESTION_BYTES_MAX {
        return Some(Err(Response::error(413, "request body too large")));
    }
    let about = if path == "/leases" {
        LeaseKeepAliveRequest::decode(body)
            .ok()
            .map(|asked| About::Renewal(asked.id))
    } else {
        let asked = LeaseInternalRequest::decode(body).ok();
        let asked = asked.map(|asked| asked.lease_time_to_live_request.unwrap_or_default());
        asked.map(|asked| About::TimeToLive(asked.id, asked.keys))
    };
    Some(about.ok_or_else(|| Response::error(400, "error unmarshalling request")))
}

impl Api {
    /// Takes a question of another member, if the request is one.
    pub(super) fn peer_asks(
        &mut self,
        net: &mut Net,
        exchange: Exchange,
        request: &http1::Request,
        body: &[u8],
    ) -> bool {
        let about = match read(request, body) {
            None => return false,
            Some(Ok(about)) => about,
            Some(Err(response)) => {
                let is_promotion = request.path().starts_with(PROMOTION) && response.status != 405;
                self.respond_to_peer(net, exchange, response, is_promotion);
                return true;
            }
        };
        let id = self.request_id();
        let question = Question { exchange, about };
        self.ask(net, Waiting::Peer { question }, |token| match about {
            About::Renewal(id) => Request::Renew { token, id },
            About::TimeToLive(id, keys) => Request::TimeToLive { token, id, keys },
            About::Promotion(member) => super::cluster::promotion(token, id, member),
        });
        true
    }

    /// The log core's answer to such a question.
    pub(super) fn peer_answered(&mut self, net: &mut Net, question: Question, reply: Reply) {
        let Question { exchange, about } = question;
        let not_found = || Response::error(404, "lease not found");
        match (about, reply) {
            (About::Renewal(_), Reply::Renewed { ttl_s: Some(0), .. }) => {
                self.respond_to_peer(net, exchange, not_found(), false);
            }
            (About::Renewal(id), Reply::Renewed { ttl_s: Some(ttl), .. }) => {
                let header = None;
                let answer = LeaseKeepAliveResponse { header, id, ttl };
                super::http::respond_protobuf(net, exchange, &answer.encode_to_vec());
            }
            (About::TimeToLive(..), Reply::TimeToLive { lease: Ok(None), .. }) => {
                self.respond_to_peer(net, exchange, not_found(), false);
            }
            (
                About::TimeToLive(id, _),
                Reply::TimeToLive {
                    lease: Ok(Some(lease)), ..
                },
            ) => {
                let answer = time_to_live(id, lease).encode_to_vec();
                super::http::respond_protobuf(net, exchange, &answer);
            }
            (About::TimeToLive(..), Reply::TimeToLive { lease: Err(_), .. }) => {
                self.respond_to_peer(net, exchange, Response::error(500, NOT_PRIMARY), false);
            }
            (About::Renewal(_), _) => {
                self.respond_to_peer(net, exchange, Response::error(400, NOT_PRIMARY), false);
            }
            (About::Promotion(id), Reply::Members { result, .. }) => {
                let response = promoted(self.settings.identity.cluster_id, result);
                let has_cluster = response.status != 200;
                if has_cluster {
                    let error = response.body.trim_end();
                    tracing::warn!("member-id" = format!("{id:x}"), error, "failed to promote a member");
                }
                self.respond_to_peer(net, exchange, response, has_cluster);
            }
            (about, _) => self.unanswered(net, exchange, about),
        }
    }

    /// The log core will not answer such a question.
    pub(super) fn peer_given_up(&mut self, net: &mut Net, question: Question, status: &Status) {
        tracing::debug!(about = ?question.about, "a member's question is not answered: {}", status.message);
        self.unanswered(net, question.exchange, question.about);
    }

    fn unanswered(&mut self, net: &mut Net, exchange: Exchange, about: About) {
        let text = "waiting for node to catch up its applied index has timed out";
        match about {
            About::Promotion(_) => self.respond_to_peer(net, exchange, internal_error(), true),
            About::Renewal(_) | About::TimeToLive(..) => {
                self.respond_to_peer(net, exchange, Response::error(408, text), false);
            }
        }
    }

    fn respond_to_peer(&self, net: &mut Net, exchange: Exchange, response: Response, names_cluster: bool) {
        let response = if names_cluster {
            response.with("X-Etcd-Cluster-Id", format!("{:x}", self.settings.identity.cluster_id))
        } else {
            response
        };
        super::http::respond(net, exchange, super::http::Offer::Peer, &response);
    }
}

fn time_to_live(id: i64, lease: TimeToLive) -> LeaseInternalResponse {
    LeaseInternalResponse {
        lease_time_to_live_response: Some(LeaseTimeToLiveResponse {
            header: Some(ResponseHeader::default()),
            id,
            ttl: lease.remaining_s.unwrap_or(0),
            granted_ttl: lease.granted_ttl_s,
            keys: lease.keys.into_iter().map(|key| key.into_vec().into()).collect(),
        }),
    }
}

fn promoted(cluster_id: u64, result: Result<Vec<Member>, MemberError>) -> Response {
    match result {
        Ok(members) => peer::members(cluster_id, &members),
        Err(MemberError::NotFound) => Response::error(404, "membership: ID not found"),
        Err(MemberError::NotLearner) => Response::error(412, "membership: can only promote a learner member"),
        Err(MemberError::LearnerNotReady) => Response::error(
            412,
            "etcdserver: can only promote a learner member which is in sync with leader",
        ),
        Err(_) => internal_error(),
    }
}

/// What etcd answers to everything that has no status of its own.
fn internal_error() -> Response {
    let body = r#"{"message":"Internal Server Error"}"#;
    Response::new(500, "application/json", format!("{body}\n"))
}
