//! What is refused because of this member's place in the cluster: nearly everything at a learner, and calls that ask
//! for a leader (`hasleader: true` in their metadata) while none is known.
//! In etcd's order (its `v3rpc/interceptor.go`).

use super::error;
use super::method::Method;
use super::service::{Api, Caller};
use crate::grpc::Status;
use crate::limits::LEADERLESS_ELECTIONS;
use crate::net::Net;
use crate::proto::etcdserverpb::RangeRequest;
use crate::state::depth::decode;
use bytes::Bytes;
use std::time::Duration;

/// How long there has been no leader.
#[derive(Default)]
pub(super) struct Leaderless {
    since: Option<Duration>,
    /// The streams that asked for one are ended.
    told: bool,
}

impl Api {
    /// Whether a learner answers this call. `message` is a unary call's.
    pub(super) fn admits_learner(&self, method: Method, message: Option<&Bytes>) -> Result<(), Status> {
        if !self.settings.standing.is_learner() {
            return Ok(());
        }
        let is_fine = match (method, message) {
            (Method::Status | Method::Snapshot, _) => true,
            // What can't be read is refused for that.
            (Method::Range, Some(message)) => {
                decode::<RangeRequest>(message.clone()).map_or(true, |range| range.serializable)
            }
            _ => false,
        };
        if is_fine {
            Ok(())
        } else {
            Err(error::not_for_learners())
        }
    }

    /// Whether a call that asks for a leader may begin.
    pub(super) fn admits_leaderless(&self, wants_leader: bool) -> Result<(), Status> {
        if wants_leader && self.settings.standing.leader() == 0 {
            return Err(error::no_leader());
        }
        Ok(())
    }

    /// Ends the streams that asked for a leader, once there has been none for some time. etcd is slower to end streams
    /// than to refuse calls, since they cost more to be made again.
    pub fn end_leaderless(&mut self, net: &mut Net) {
        if self.settings.standing.leader() != 0 {
            self.leaderless = Leaderless::default();
            return;
        }
        let since = *self.leaderless.since.get_or_insert(net.now());
        let bound = LEADERLESS_ELECTIONS * self.settings.election_timeout;
        if self.leaderless.told || net.now() < since + bound {
            return;
        }
        self.leaderless.told = true;
        let streams = self
            .calls
            .iter()
            .filter(|(_, state)| state.wants_leader && !state.method.is_unary());
        let streams: Vec<_> = streams
            .map(|(tag, state)| Caller {
                call: state.call,
                tag: tag as u64,
            })
            .collect();
        for caller in streams {
            self.fail(net, caller, &error::no_leader());
        }
    }
}
