//! The Maintenance, Cluster and Health services, as far as they are built.

use super::confirm::Read;
use super::error;
use super::kv::Field;
use super::method::Method;
use super::service::{Api, Caller};
use super::waiting::{Waiting, WriteRequest};
use crate::grpc::{Code, Status};
use crate::net::Net;
use crate::proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, DowngradeInfo, MemberListRequest, MemberListResponse, StatusRequest,
    StatusResponse,
};
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};
use crate::raft::messages::{Request, Status as MemberStatus};
use crate::state::depth::decode;
use crate::state::version::storage_version;
use bytes::Bytes;
use prost::Message;

/// What a member's status is wanted for.
pub(super) enum StatusFor {
    /// `Maintenance.Status`.
    Status(Caller),
    /// `Cluster.MemberList`.
    Members(Caller),
    /// `Maintenance.Downgrade`.
    Downgrade(Caller, super::downgrade::Asked),
    /// A plain HTTP request.
    Http(super::http::Asked),
}

/// An alarm as Go prints the message: fields that are zero are left out. (Go separates them by one or two spaces, as
/// the build has it.)
fn alarm_text(alarm: &AlarmMember) -> String {
    let mut fields = Vec::new();
    if alarm.member_id != 0 {
        fields.push(format!("memberID:{}", alarm.member_id));
    }
    if alarm.alarm != 0 {
        let name = AlarmType::try_from(alarm.alarm).map(|kind| kind.as_str_name().to_string());
        fields.push(format!("alarm:{}", name.unwrap_or_else(|_| alarm.alarm.to_string())));
    }
    fields.join(" ")
}

fn downgrade_info(status: &MemberStatus) -> DowngradeInfo {
    let under_way = status.downgrade.as_ref().filter(|downgrade| downgrade.enabled);
    under_way.map_or_else(DowngradeInfo::default, |downgrade| DowngradeInfo {
        enabled: true,
        target_version: downgrade.target_version.clone(),
    })
}

impl Api {
    pub(super) fn status(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let _: StatusRequest = decode(message).map_err(|error| error::status(&error))?;
        self.ask(
            net,
            Waiting::Status {
                want: StatusFor::Status(caller),
            },
            |token| Request::Status { token },
        );
        Ok(())
    }

    pub(super) fn member_list(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: MemberListRequest = decode(message).map_err(|error| error::status(&error))?;
        if request.linearizable && self.others_decide() {
            let want = StatusFor::Members(caller);
            self.confirm(net, Read::Status { want });
            return Ok(());
        }
        self.ask(
            net,
            Waiting::Status {
                want: StatusFor::Members(caller),
            },
            |token| Request::Status { token },
        );
        Ok(())
    }

    pub(super) fn status_known(&mut self, net: &mut Net, want: StatusFor, status: &MemberStatus) {
        match want {
            StatusFor::Http(asked) => self.http_status_known(net, asked, Ok(status)),
            StatusFor::Status(caller) => {
                let response = self.status_response(status);
                self.answer(net, caller, &response);
            }
            StatusFor::Downgrade(caller, asked) => self.downgrade_known(net, caller, &asked, status),
            StatusFor::Members(caller) => {
                let response = MemberListResponse {
                    header: Some(self.header_without_revision()),
                    members: status.members.iter().map(super::cluster::message_of).collect(),
                };
                self.answer(net, caller, &response);
            }
        }
    }

    pub(super) fn status_unknown(&mut self, net: &mut Net, want: StatusFor, status: &Status) {
        match want {
            StatusFor::Status(caller) | StatusFor::Members(caller) | StatusFor::Downgrade(caller, _) => {
                self.fail(net, caller, status)
            }
            StatusFor::Http(asked) => self.http_status_known(net, asked, Err(status)),
        }
    }

    fn status_response(&self, status: &MemberStatus) -> StatusResponse {
        let mut errors: Vec<String> = Vec::new();
        if status.leader == 0 {
            errors.push("etcdserver: no leader".to_string());
        }
        for alarm in &status.alarms {
            errors.push(alarm_text(alarm));
        }
        StatusResponse {
            header: Some(self.header_now()),
            version: self.settings.version.to_string(),
            db_size: status.size as i64,
            leader: status.leader,
            raft_index: status.commit_index,
            raft_term: status.term,
            raft_applied_index: status.applied_index,
            errors,
            db_size_in_use: status.size_in_use as i64,
            is_learner: status.is_learner,
            storage_version: storage_version(status.cluster_version.as_deref()),
            db_size_quota: self.settings.quota_reported,
            downgrade_info: Some(downgrade_info(status)),
        }
    }

    pub(super) fn alarm(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: AlarmRequest = decode(message.clone()).map_err(|error| error::status(&error))?;
        let _ = request;
        self.propose(net, caller, Field::Alarm, &message, WriteRequest::Alarm, 0)
    }

    pub(super) fn health(
        &mut self,
        net: &mut Net,
        caller: Caller,
        method: Method,
        message: Bytes,
    ) -> Result<(), Status> {
        let serving = HealthCheckResponse {
            status: ServingStatus::Serving as i32,
        };
        match method {
            Method::HealthList => {
                // An entry of the map by hand: Go writes its key even when that is empty, prost does not.
                let mut entry = vec![0x0a, 0x00, 0x12, serving.encoded_len() as u8];
                serving.encode_raw(&mut entry);
                let mut response = vec![0x0a, entry.len() as u8];
                response.extend(entry);
                self.answer_bytes(net, caller, &response);
            }
            Method::HealthCheck => {
                let request: HealthCheckRequest = decode(message).map_err(|error| error::status(&error))?;
                if !request.service.is_empty() {
                    return Err(Status::new(Code::NotFound, "unknown service"));
                }
                self.answer(net, caller, &serving);
            }
            _ => {
                // A watch tells the status at once and then every change; the stream ends with the member.
                let request: HealthCheckRequest = decode(message).map_err(|error| error::stream_status(&error))?;
                let status = if request.service.is_empty() {
                    ServingStatus::Serving
                } else {
                    ServingStatus::ServiceUnknown
                };
                let response = HealthCheckResponse { status: status as i32 };
                let length = response.encoded_len();
                let _ = net.send_message_with(caller.call, length, |out| response.encode_raw(out));
                self.count_streamed(method, length);
            }
        }
        Ok(())
    }
}
