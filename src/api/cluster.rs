//! Changes of the membership and of who leads: the Cluster service, and `MoveLeader` (`etcd-surface` 4.10).

use super::error;
use super::service::{Api, Caller};
use super::waiting::Waiting;
use crate::config::values;
use crate::grpc::{Code, Status};
use crate::net::Net;
use crate::proto::etcdserverpb::{
    Member as MemberMessage, MemberAddRequest, MemberAddResponse, MemberPromoteRequest, MemberPromoteResponse,
    MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse, MoveLeaderRequest,
    MoveLeaderResponse, ResponseHeader,
};
use crate::raft::messages::{MemberChange, MemberError, MoveError, Request};
use crate::state::depth::decode;
use crate::state::identity;
use crate::state::members::Member;
use bytes::Bytes;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which call waits for a change of the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// `MemberAdd`, of this id.
    Added(u64),
    /// `MemberRemove`.
    Removed,
    /// `MemberUpdate`.
    Updated,
    /// `MemberPromote`, of this id.
    Promoted(u64),
}

/// What the log core is asked for a promotion.
pub(super) fn promotion(token: u64, id: u64, member: u64) -> Request {
    let change = MemberChange::Promote(member);
    Request::ChangeMembers { token, id, change }
}

/// A member as clients are told of it.
pub(super) fn message_of(member: &Member) -> MemberMessage {
    MemberMessage {
        id: member.id,
        name: member.name.clone(),
        peer_ur_ls: member.peer_urls.clone(),
        client_ur_ls: member.client_urls.clone(),
        is_learner: member.is_learner,
    }
}

/// Peer URLs as etcd keeps them: sorted. None, or one that is no URL, is refused.
fn peer_urls(given: Vec<String>) -> Result<Vec<String>, Status> {
    let bad = || Status::new(Code::InvalidArgument, "etcdserver: given member URLs are invalid");
    let urls = given.iter().map(|text| values::url(text).map(|url| url.text));
    let mut urls: Vec<String> = urls.collect::<Result<_, _>>().map_err(|_| bad())?;
    urls.sort();
    if urls.is_empty() { Err(bad()) } else { Ok(urls) }
}

impl Api {
    pub(super) fn member_add(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: MemberAddRequest = decode(message).map_err(|error| error::status(&error))?;
        let peer_urls = peer_urls(request.peer_ur_ls)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = identity::added_member_id(&peer_urls, now.as_secs());
        let member = Member {
            id,
            peer_urls,
            is_learner: request.is_learner,
            ..Default::default()
        };
        self.change_members(net, caller, Changed::Added(id), MemberChange::Add(member));
        Ok(())
    }

    pub(super) fn member_remove(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: MemberRemoveRequest = decode(message).map_err(|error| error::status(&error))?;
        self.change_members(net, caller, Changed::Removed, MemberChange::Remove(request.id));
        Ok(())
    }

    pub(super) fn member_update(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: MemberUpdateRequest = decode(message).map_err(|error| error::status(&error))?;
        let change = MemberChange::Update {
            id: request.id,
            peer_urls: peer_urls(request.peer_ur_ls)?,
        };
        self.change_members(net, caller, Changed::Updated, change);
        Ok(())
    }

    pub(super) fn member_promote(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: MemberPromoteRequest = decode(message).map_err(|error| error::status(&error))?;
        self.change_members(
            net,
            caller,
            Changed::Promoted(request.id),
            MemberChange::Promote(request.id),
        );
        Ok(())
    }

    fn change_members(&mut self, net: &mut Net, caller: Caller, changed: Changed, change: MemberChange) {
        let id = self.request_id();
        self.ask(net, Waiting::Members { caller, changed }, |token| {
            Request::ChangeMembers { token, id, change }
        });
    }

    /// Answers a change of the membership.
    pub(super) fn members_changed(
        &mut self,
        net: &mut Net,
        caller: Caller,
        changed: Changed,
        result: Result<Vec<Member>, MemberError>,
    ) {
        let members = match result {
            Err(MemberError::NotLeader) => {
                if let Changed::Promoted(id) = changed {
                    return self.forward_promotion(net, caller, id);
                }
                return self.fail(net, caller, &refused(MemberError::NotLeader));
            }
            Ok(members) => members.iter().map(message_of).collect::<Vec<_>>(),
            Err(error) => return self.fail(net, caller, &refused(error)),
        };
        let header = Some(self.header_without_revision());
        match changed {
            Changed::Added(id) => {
                let member = members.iter().find(|member| member.id == id).cloned();
                let response = MemberAddResponse {
                    header,
                    member,
                    members,
                };
                self.answer(net, caller, &response);
            }
            Changed::Removed => self.answer(net, caller, &MemberRemoveResponse { header, members }),
            Changed::Updated => self.answer(net, caller, &MemberUpdateResponse { header, members }),
            Changed::Promoted(_) => self.answer(net, caller, &MemberPromoteResponse { header, members }),
        }
    }

    pub(super) fn move_leader(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: MoveLeaderRequest = decode(message).map_err(|error| error::status(&error))?;
        let to = request.target_id;
        self.ask(net, Waiting::Transfer { caller }, |token| Request::MoveLeader {
            token,
            to,
        });
        Ok(())
    }

    /// Answers a transfer of leadership.
    pub(super) fn leader_moved(&mut self, net: &mut Net, caller: Caller, result: Result<(), MoveError>) {
        let status = match result {
            Ok(()) => {
                let header = Some(self.header_without_revision());
                return self.answer(net, caller, &MoveLeaderResponse { header });
            }
            Err(MoveError::NotLeader) => Status::new(Code::FailedPrecondition, "etcdserver: not leader"),
            Err(MoveError::BadTransferee) => Status::new(Code::FailedPrecondition, "etcdserver: bad leader transferee"),
            Err(MoveError::TimedOut) => Status::new(
                Code::Unknown,
                "etcdserver: request timed out, leader transfer took too long",
            ),
        };
        self.fail(net, caller, &status);
    }

    /// The header of answers that are not about the store.
    pub(super) fn header_without_revision(&self) -> ResponseHeader {
        ResponseHeader {
            revision: 0,
            ..self.header_now()
        }
    }
}

fn refused(error: MemberError) -> Status {
    let (code, text) = match error {
        MemberError::IdExists => (Code::FailedPrecondition, "etcdserver: member ID already exist"),
        MemberError::PeerUrlExists => (Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
        MemberError::NotFound => (Code::NotFound, "etcdserver: member not found"),
        MemberError::NotLearner => (
            Code::FailedPrecondition,
            "etcdserver: can only promote a learner member",
        ),
        MemberError::TooManyLearners => (
            Code::FailedPrecondition,
            "etcdserver: too many learner members in cluster",
        ),
        MemberError::NotEnoughStarted => (
            Code::FailedPrecondition,
            "etcdserver: re-configuration failed due to not enough started members",
        ),
        MemberError::Unhealthy => (Code::Unavailable, "etcdserver: unhealthy cluster"),
        // Clients know the answer by its text; how far the learner lags is in the leader's log.
        MemberError::LearnerNotReady => (
            Code::FailedPrecondition,
            "etcdserver: can only promote a learner member which is in sync with leader",
        ),
        MemberError::NotLeader => (Code::FailedPrecondition, "etcdserver: not leader"),
    };
    Status::new(code, text)
}
