//! What peers are told over plain HTTP (`etcd-surface` 1.5 and 6.1), in etcd's forms, beside raft's own
//! paths, whose connections the transport takes over.

use super::http::Response;
use super::service::Api;
use crate::grpc::Status;
use crate::raft::messages::Status as MemberStatus;
use crate::raft::transport::Transport;
use crate::state::members::Member;

impl Api {
    /// Gives the services of the core where peers' connections live what serves those.
    pub fn serve_peers(&mut self, transport: Transport) {
        self.transport = Some(transport);
    }
}

/// The answer to `/members`: the members as JSON, and whose they are.
pub(super) fn members(cluster_id: u64, members: &[Member]) -> Response {
    // Strings and numbers in a list are always JSON.
    let list = serde_json::to_string(members).unwrap_or_default();
    // Go's encoder writes these three so, and they stand in no place but a string.
    let list = list
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e");
    Response::new(200, "application/json", format!("{list}\n")).with("X-Etcd-Cluster-Id", format!("{cluster_id:x}"))
}

/// The answer to `/downgrade/enabled`: whether a downgrade is under way, or why the read that makes sure failed.
pub(super) fn downgrade(cluster_id: u64, status: Result<&MemberStatus, &Status>) -> Response {
    let answer = match status {
        Ok(status) => {
            let is_enabled = status.downgrade.as_ref().is_some_and(|downgrade| downgrade.enabled);
            Response::new(200, "text/plain", is_enabled.to_string())
        }
        Err(failure) => Response::error(500, &format!("failed linearized read: {}", failure.message)),
    };
    answer.with("X-Etcd-Cluster-Id", format!("{cluster_id:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_written_as_go_does() {
        let member = Member {
            id: u64::MAX,
            name: "a<&>".into(),
            peer_urls: vec!["http://a:1".into()],
            ..Default::default()
        };
        let response = members(0xc, &[member]);
        let expected = r#"[{"id":18446744073709551615,"peerURLs":["http://a:1"],"name":"a\u003c\u0026\u003e"}]"#;
        assert_eq!(response.body, format!("{expected}\n"));
        assert!(
            response
                .fields
                .iter()
                .any(|(name, value)| *name == "X-Etcd-Cluster-Id" && value == "c")
        );
    }
}
