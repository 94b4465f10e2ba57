//! The Lease service (`etcd-surface` 4.7).

use super::answer::encode;
use super::error;
use super::kv::Field;
use super::method::Method;
use super::service::{Api, Caller};
use super::tasks::{Pace, Task};
use super::waiting::{Waiting, WriteRequest};
use crate::grpc::Status;
use crate::limits::{API_KEEP_ALIVES, API_SLICE_ROWS};
use crate::net::Net;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest, LeaseLeasesResponse,
    LeaseRevokeRequest, LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, ResponseHeader,
};
use crate::raft::messages::Request;
use crate::state::depth::decode;
use crate::state::lease::TimeToLive;
use crate::state::quota;
use bytes::Bytes;
use prost::Message;
use std::sync::Arc;

impl Api {
    /// A header as of the newest view.
    pub(super) fn header_now(&self) -> ResponseHeader {
        self.settings.identity.header_of(self.index.pin().view())
    }

    pub(super) fn lease_grant(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let mut request: LeaseGrantRequest = decode(message).map_err(|error| error::status(&error))?;
        // etcd picks an id above zero; one that is in use is refused by the state, which is as unlikely as there.
        while request.id == 0 {
            request.id = (rand::random::<u64>() >> 1) as i64;
        }
        let message = request.encode_to_vec();
        self.propose(
            net,
            caller,
            Field::LeaseGrant,
            &message,
            WriteRequest::LeaseGrant,
            quota::LEASE_BYTES,
        )
    }

    pub(super) fn lease_revoke(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let _: LeaseRevokeRequest = decode(message.clone()).map_err(|error| error::status(&error))?;
        self.propose(net, caller, Field::LeaseRevoke, &message, WriteRequest::LeaseRevoke, 0)
    }

    pub(super) fn lease_keep_alive(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: LeaseKeepAliveRequest = decode(message).map_err(|error| error::stream_status(&error))?;
        let id = request.id;
        let Some(state) = self.state(caller) else { return Ok(()) };
        let nth = state.keep_alives.push(id);
        self.ask(net, Waiting::KeepAlive { caller, nth }, |token| Request::Renew {
            token,
            id,
        });
        self.keep_alive_flow(net, caller);
        Ok(())
    }

    /// Takes no more keep-alives of a stream that has many unanswered, or does not take its answers, until that
    /// changes: answers come whether there is room or not.
    pub(super) fn keep_alive_flow(&mut self, net: &mut Net, caller: Caller) {
        let has_room = net.capacity(caller.call) > 0;
        let Some(state) = self.state(caller) else { return };
        let is_paused = state.keep_alives.count() >= API_KEEP_ALIVES || !has_room;
        if std::mem::replace(&mut state.paused, is_paused) != is_paused {
            net.set_paused(caller.call, is_paused);
        }
        if !has_room {
            net.notify_writable(caller.call);
        }
    }

    /// The stream ends when its client has no more to ask and everything was answered.
    pub(super) fn keep_alive_half_closed(&mut self, net: &mut Net, caller: Caller) {
        let Some(state) = self.state(caller) else { return };
        state.half_closed = true;
        if state.keep_alives.count() == 0 {
            self.fail(net, caller, &Status::OK);
        }
    }

    /// What is left of the lease of a numbered keep-alive is known: it is answered, and those behind it that waited.
    pub(super) fn renewed(&mut self, net: &mut Net, caller: Caller, number: u64, ttl_s: Option<i64>) {
        let Some(state) = self.state(caller) else { return };
        match (ttl_s, state.keep_alives.lease(number)) {
            (Some(ttl_s), _) => state.keep_alives.know(number, ttl_s),
            // This member does not lead, or can't be sure.
            (None, Some(id)) => return self.forward_keep_alive(net, caller, id, number),
            (None, None) => return,
        }
        while let Some((id, ttl)) = self.state(caller).and_then(|state| state.keep_alives.pop()) {
            let response = LeaseKeepAliveResponse {
                header: Some(self.header_now()),
                id,
                ttl,
            };
            let length = response.encoded_len();
            let _ = net.send_message_with(caller.call, length, |out| response.encode_raw(out));
            self.count_streamed(Method::LeaseKeepAlive, length);
        }
        let Some(state) = self.state(caller) else { return };
        if state.half_closed && state.keep_alives.count() == 0 {
            return self.fail(net, caller, &Status::OK);
        }
        if state.paused {
            self.keep_alive_flow(net, caller);
        }
    }

    pub(super) fn lease_time_to_live(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: LeaseTimeToLiveRequest = decode(message).map_err(|error| error::status(&error))?;
        let LeaseTimeToLiveRequest { id, keys } = request;
        self.ask(net, Waiting::TimeToLive { caller, id, keys }, |token| {
            Request::TimeToLive { token, id, keys }
        });
        Ok(())
    }

    pub(super) fn time_to_live_known(&mut self, net: &mut Net, caller: Caller, id: i64, lease: Option<TimeToLive>) {
        let header = Some(self.header_now());
        let response = match lease {
            None => LeaseTimeToLiveResponse {
                header,
                id,
                ttl: -1,
                ..Default::default()
            },
            Some(lease) => LeaseTimeToLiveResponse {
                header,
                id,
                ttl: lease.remaining_s.unwrap_or(0),
                granted_ttl: lease.granted_ttl_s,
                keys: lease.keys.into_iter().map(|key| Bytes::from(key.into_vec())).collect(),
            },
        };
        self.answer(net, caller, &response);
    }

    pub(super) fn lease_leases(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let _: LeaseLeasesRequest = decode(message).map_err(|error| error::status(&error))?;
        self.ask(net, Waiting::Leases { caller }, |token| Request::Leases { token });
        Ok(())
    }

    /// A long list is encoded when its caller has room for it: until then callers share it.
    pub(super) fn leases_known(&mut self, net: &mut Net, caller: Caller, ids: Arc<[i64]>) {
        let header = self.header_now();
        if ids.len() <= API_SLICE_ROWS {
            return self.answer(net, caller, &list(header, &ids));
        }
        let answer = move |task: Task| async move {
            task.wait_for_room().await?;
            let mut grant = task.grant();
            task.grow(&mut grant, ids.len() * LISTED_BYTES).await?;
            let bytes = encode(&list(header, &ids));
            drop(ids);
            task.send_whole(bytes).await
        };
        // It can't run only when the call or the core is about to end.
        let _ = self.spawn_task(caller, Pace::Long, |_| (), answer);
    }
}

/// What a lease takes in the making of a list: as a message, and encoded.
const LISTED_BYTES: usize = 24;

fn list(header: ResponseHeader, ids: &[i64]) -> LeaseLeasesResponse {
    LeaseLeasesResponse {
        header: Some(header),
        leases: ids.iter().map(|id| LeaseStatus { id: *id }).collect(),
    }
}
