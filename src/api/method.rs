//! Which call a path names.

use crate::grpc::Status;

macro_rules! methods {
    ($($variant:ident = $service:literal $name:literal $built:literal;)*) => {
        /// A call of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Method {
            $($variant,)*
        }

        impl Method {
            /// Every method.
            pub const ALL: &[Method] = &[$(Method::$variant,)*];

            /// Service and name, as they stand in the path.
            pub fn path(self) -> (&'static str, &'static str) {
                match self {
                    $(Method::$variant => ($service, $name),)*
                }
            }

            /// Whether it is answered; others are known and answered UNIMPLEMENTED.
            pub fn is_built(self) -> bool {
                match self {
                    $(Method::$variant => $built,)*
                }
            }

            /// The method of a path.
            pub fn find(service: &str, name: &str) -> Result<Method, Status> {
                match (service, name) {
                    $(($service, $name) => Ok(Method::$variant),)*
                    _ if Method::ALL.iter().any(|method| method.path().0 == service) => {
                        Err(Status::unknown_method(name, service))
                    }
                    _ => Err(Status::unknown_service(service)),
                }
            }
        }
    };
}

methods! {
    Range = "etcdserverpb.KV" "Range" true;
    RangeStream = "etcdserverpb.KV" "RangeStream" true;
    Put = "etcdserverpb.KV" "Put" true;
    DeleteRange = "etcdserverpb.KV" "DeleteRange" true;
    Txn = "etcdserverpb.KV" "Txn" true;
    Compact = "etcdserverpb.KV" "Compact" true;
    Watch = "etcdserverpb.Watch" "Watch" true;
    LeaseGrant = "etcdserverpb.Lease" "LeaseGrant" true;
    LeaseRevoke = "etcdserverpb.Lease" "LeaseRevoke" true;
    LeaseKeepAlive = "etcdserverpb.Lease" "LeaseKeepAlive" true;
    LeaseTimeToLive = "etcdserverpb.Lease" "LeaseTimeToLive" true;
    LeaseLeases = "etcdserverpb.Lease" "LeaseLeases" true;
    MemberAdd = "etcdserverpb.Cluster" "MemberAdd" true;
    MemberRemove = "etcdserverpb.Cluster" "MemberRemove" true;
    MemberUpdate = "etcdserverpb.Cluster" "MemberUpdate" true;
    MemberList = "etcdserverpb.Cluster" "MemberList" true;
    MemberPromote = "etcdserverpb.Cluster" "MemberPromote" true;
    Alarm = "etcdserverpb.Maintenance" "Alarm" true;
    Status = "etcdserverpb.Maintenance" "Status" true;
    Defragment = "etcdserverpb.Maintenance" "Defragment" false;
    Hash = "etcdserverpb.Maintenance" "Hash" true;
    HashKv = "etcdserverpb.Maintenance" "HashKV" true;
    Snapshot = "etcdserverpb.Maintenance" "Snapshot" false;
    MoveLeader = "etcdserverpb.Maintenance" "MoveLeader" true;
    Downgrade = "etcdserverpb.Maintenance" "Downgrade" true;
    AuthEnable = "etcdserverpb.Auth" "AuthEnable" false;
    AuthDisable = "etcdserverpb.Auth" "AuthDisable" false;
    AuthStatus = "etcdserverpb.Auth" "AuthStatus" false;
    Authenticate = "etcdserverpb.Auth" "Authenticate" false;
    UserAdd = "etcdserverpb.Auth" "UserAdd" false;
    UserGet = "etcdserverpb.Auth" "UserGet" false;
    UserList = "etcdserverpb.Auth" "UserList" false;
    UserDelete = "etcdserverpb.Auth" "UserDelete" false;
    UserChangePassword = "etcdserverpb.Auth" "UserChangePassword" false;
    UserGrantRole = "etcdserverpb.Auth" "UserGrantRole" false;
    UserRevokeRole = "etcdserverpb.Auth" "UserRevokeRole" false;
    RoleAdd = "etcdserverpb.Auth" "RoleAdd" false;
    RoleGet = "etcdserverpb.Auth" "RoleGet" false;
    RoleList = "etcdserverpb.Auth" "RoleList" false;
    RoleDelete = "etcdserverpb.Auth" "RoleDelete" false;
    RoleGrantPermission = "etcdserverpb.Auth" "RoleGrantPermission" false;
    RoleRevokePermission = "etcdserverpb.Auth" "RoleRevokePermission" false;
    HealthCheck = "grpc.health.v1.Health" "Check" true;
    HealthWatch = "grpc.health.v1.Health" "Watch" true;
    HealthList = "grpc.health.v1.Health" "List" true;
}

impl Method {
    /// Whether the callee may send more than one message.
    pub fn streams_responses(self) -> bool {
        let streams = [Method::RangeStream, Method::Snapshot, Method::HealthWatch];
        self.streams_requests() || streams.contains(&self)
    }

    /// Whether the caller may send more than one message.
    pub fn streams_requests(self) -> bool {
        matches!(self, Method::Watch | Method::LeaseKeepAlive)
    }

    /// Whether the caller sends one message and is answered by one.
    pub fn is_unary(self) -> bool {
        let streams_answers = matches!(self, Method::RangeStream | Method::Snapshot | Method::HealthWatch);
        !streams_answers && !self.streams_requests()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found() {
        for method in Method::ALL {
            let (service, name) = method.path();
            assert_eq!(Method::find(service, name), Ok(*method));
        }
        let text = |service, name| Method::find(service, name).unwrap_err().message.into_owned();
        assert_eq!(
            text("etcdserverpb.KV", "Get"),
            "unknown method Get for service etcdserverpb.KV"
        );
        assert_eq!(text("x.Y", "Z"), "unknown service x.Y");
    }
}
