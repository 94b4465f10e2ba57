//! `Maintenance.Downgrade`: whether the cluster may go down to the version before, that it is to, and that it is not.
//!
//! Members of both versions are admitted while it is under way; the leader lowers the cluster's version
//! (`state::version`), and an etcd that leads ends the downgrade once all members are of the lower version.

use super::confirm::Read;
use super::error;
use super::kv::Field;
use super::maintenance::StatusFor;
use super::service::{Api, Caller};
use super::waiting::{Waiting, WriteRequest};
use crate::grpc::{Code, Status};
use crate::net::Net;
use crate::proto::etcdserverpb::{DowngradeRequest, DowngradeResponse, downgrade_request::DowngradeAction};
use crate::proto::membershippb::DowngradeInfoSetRequest;
use crate::raft::messages::{Request, Status as MemberStatus};
use crate::state::depth::decode;
use crate::state::version::Minor;
use bytes::Bytes;
use prost::Message;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    action: DowngradeAction,
    /// The version to go to; `None` where that is not asked.
    target: Option<Minor>,
}

impl Asked {
    fn read(message: Bytes) -> Result<Asked, Status> {
        let request: DowngradeRequest = decode(message).map_err(|error| error::status(&error))?;
        let action = DowngradeAction::try_from(request.action);
        let action = action.map_err(|_| Status::new(Code::Unknown, "etcdserver: unknown method"))?;
        let target = Minor::parse_short(&request.version);
        if target.is_none() && action != DowngradeAction::Cancel {
            let text = "etcdserver: wrong downgrade target version format";
            return Err(Status::new(Code::InvalidArgument, text));
        }
        Ok(Asked { action, target })
    }

    /// What a cluster in this state says to it: the request for the log, or nothing if the answer is known.
    fn judge(&self, status: &MemberStatus) -> Result<Option<DowngradeInfoSetRequest>, Status> {
        let is_under_way = status.downgrade.as_ref().is_some_and(|downgrade| downgrade.enabled);
        if self.action == DowngradeAction::Cancel {
            let (enabled, ver) = (false, String::new());
            return Ok(is_under_way.then_some(DowngradeInfoSetRequest { enabled, ver }));
        }
        let Some(current) = status.cluster_version.as_deref().and_then(Minor::parse) else {
            let text = "etcdserver: cluster version not found during downgrade";
            return Err(Status::new(Code::FailedPrecondition, text));
        };
        if current.before() != self.target {
            let text = "etcdserver: invalid downgrade target version";
            return Err(Status::new(Code::InvalidArgument, text));
        }
        if is_under_way {
            let text = "etcdserver: cluster has a downgrade job in progress";
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        let target = self.target.filter(|_| self.action == DowngradeAction::Enable);
        Ok(target.map(|target| DowngradeInfoSetRequest {
            enabled: true,
            ver: target.to_string(),
        }))
    }
}

impl Api {
    pub(super) fn downgrade(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let asked = Asked::read(message)?;
        let want = StatusFor::Downgrade(caller, asked);
        if self.others_decide() {
            self.confirm(net, Read::Status { want });
        } else {
            self.ask(net, Waiting::Status { want }, |token| Request::Status { token });
        }
        Ok(())
    }

    /// The cluster's state, recent enough, for one who asks about a downgrade.
    pub(super) fn downgrade_known(&mut self, net: &mut Net, caller: Caller, asked: &Asked, status: &MemberStatus) {
        let version = status.cluster_version.as_deref().and_then(Minor::parse);
        let version = version.map(Minor::short).unwrap_or_default();
        let done = match asked.judge(status) {
            Err(refusal) => Err(refusal),
            Ok(None) => {
                self.downgraded(net, caller, version);
                Ok(())
            }
            Ok(Some(request)) => {
                let payload = WriteRequest::Downgrade { version };
                let message = request.encode_to_vec();
                self.propose(net, caller, Field::DowngradeInfoSet, &message, payload, 0)
            }
        };
        if let Err(status) = done {
            self.fail(net, caller, &status);
        }
    }

    /// Answers it: the version that the cluster had.
    pub(super) fn downgraded(&mut self, net: &mut Net, caller: Caller, version: String) {
        let header = Some(self.header_now());
        self.answer(net, caller, &DowngradeResponse { header, version });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::members::Downgrade;

    fn asked(action: DowngradeAction, version: &str) -> Result<Asked, Status> {
        let request = DowngradeRequest {
            action: action as i32,
            version: version.into(),
        };
        Asked::read(request.encode_to_vec().into())
    }

    #[test]
    fn what_is_asked_is_judged_as_etcd_does() {
        let mut status = MemberStatus {
            cluster_version: Some("3.7.0".into()),
            ..Default::default()
        };
        let validate = |version| asked(DowngradeAction::Validate, version).unwrap();
        let enable = asked(DowngradeAction::Enable, "3.6").unwrap();
        let cancel = asked(DowngradeAction::Cancel, "").unwrap();
        assert!(
            asked(DowngradeAction::Enable, "x")
                .unwrap_err()
                .message
                .contains("wrong downgrade target")
        );
        assert_eq!(validate("3.6.0").judge(&status), Ok(None));
        for wrong in ["3.5.0", "3.7.0", "3.8", "4.6"] {
            let refused = validate(wrong).judge(&status).unwrap_err();
            assert_eq!(
                refused.message, "etcdserver: invalid downgrade target version",
                "{wrong}"
            );
        }
        assert_eq!(cancel.judge(&status), Ok(None));
        let set = enable.judge(&status).unwrap().unwrap();
        assert_eq!((set.enabled, &*set.ver), (true, "3.6.0"));
        status.downgrade = Some(Downgrade {
            target_version: "3.6.0".into(),
            enabled: true,
        });
        let refused = enable.judge(&status).unwrap_err();
        assert_eq!(refused.message, "etcdserver: cluster has a downgrade job in progress");
        assert!(!cancel.judge(&status).unwrap().unwrap().enabled);
        status.cluster_version = None;
        let refused = enable.judge(&status).unwrap_err();
        assert_eq!(
            refused.message,
            "etcdserver: cluster version not found during downgrade"
        );
    }
}
