//! The KV service: requests checked, reads answered from a view, writes proposed, outcomes shown.

use super::answer;
use super::confirm::Read;
use super::error;
use super::records::Records;
use super::service::{Api, Caller};
use super::short::{Short, is_quick, short_range};
use super::waiting::{Waiting, WriteRequest};
use crate::grpc::Status;
use crate::limits::{API_DIRECT_BYTES, API_DIRECT_ROWS};
use crate::mvcc::index::Pinned;
use crate::mvcc::readers::Hold;
use crate::mvcc::record::{put_varint, varint_length};
use crate::mvcc::view::View;
use crate::net::Net;
use crate::proto::etcdserverpb::{
    AlarmResponse, CompactionRequest, CompactionResponse, DeleteRangeRequest, LeaseGrantResponse, LeaseRevokeResponse,
    PutRequest, RangeRequest, RequestHeader,
};
use crate::raft::messages::Request;
use crate::state::depth::{decode, decode_txn};
use crate::state::outcome::{Answer, Outcome};
use crate::state::range::{RangeRun, Readable};
use crate::state::{quota, validate};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// Field numbers of `InternalRaftRequest`.
#[derive(Clone, Copy)]
pub(super) enum Field {
    /// `put`.
    Put = 4,
    /// `delete_range`.
    DeleteRange = 5,
    /// `txn`.
    Txn = 6,
    /// `compaction`.
    Compaction = 7,
    /// `lease_grant`.
    LeaseGrant = 8,
    /// `lease_revoke`.
    LeaseRevoke = 9,
    /// `alarm`.
    Alarm = 10,
    /// `downgrade_info_set`.
    DowngradeInfoSet = 1302,
}

/// What can be read in a view.
pub(super) fn readable(view: &View) -> Readable {
    Readable {
        revision: view.revision,
        compact_revision: view.compact_revision,
    }
}

impl Api {
    pub(super) fn put(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: PutRequest = decode(message.clone()).map_err(|error| error::status(&error))?;
        validate::check_put(&request).map_err(|error| error::status(&error))?;
        self.propose(
            net,
            caller,
            Field::Put,
            &message,
            WriteRequest::Put,
            quota::put_bytes(&request),
        )
    }

    pub(super) fn delete_range(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: DeleteRangeRequest = decode(message.clone()).map_err(|error| error::status(&error))?;
        validate::check_delete(&request).map_err(|error| error::status(&error))?;
        self.propose(net, caller, Field::DeleteRange, &message, WriteRequest::Delete, 0)
    }

    pub(super) fn compact(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let _: CompactionRequest = decode(message.clone()).map_err(|error| error::status(&error))?;
        self.propose(net, caller, Field::Compaction, &message, WriteRequest::Compact, 0)
    }

    pub(super) fn txn(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let max = self.settings.max_txn_operations;
        let request = decode_txn(message.clone(), max).map_err(|error| error::status(&error))?;
        validate::check_txn(&request, max).map_err(|error| error::status(&error))?;
        if validate::is_read_only(&request) {
            if !validate::is_serializable(&request) && self.others_decide() {
                self.confirm(net, Read::Txn { caller, request });
                return Ok(());
            }
            return self.read_txn(net, caller, request);
        }
        let index = self.index.clone();
        let pinned = index.pin();
        let most = self.settings.read_memory.max();
        if super::whole::rows_bytes(&request, &pinned, pinned.view()) > most {
            return Err(error::too_much_memory(most));
        }
        drop(pinned);
        let bytes = quota::txn_bytes(&request);
        // A transaction that puts nothing is held back by no quota, but what it costs otherwise is never 0.
        self.propose(
            net,
            caller,
            Field::Txn,
            &message,
            WriteRequest::Txn(Box::new(request)),
            bytes,
        )
    }

    /// Wraps a request's own bytes into an `InternalRaftRequest` and proposes it.
    pub(super) fn propose(
        &mut self,
        net: &mut Net,
        caller: Caller,
        field: Field,
        message: &[u8],
        payload: WriteRequest,
        quota_bytes: usize,
    ) -> Result<(), Status> {
        let id = self.request_id();
        let header = RequestHeader {
            id,
            ..Default::default()
        };
        let header_length = header.encoded_len();
        let mut entry = BytesMut::with_capacity(message.len() + header_length + 16);
        // Field 100, then the request; field 100 is two bytes of tag.
        entry.put_slice(&[0xa2, 0x06]);
        put_varint(&mut entry, header_length as u64);
        header.encode_raw(&mut entry);
        put_varint(&mut entry, (field as u64) << 3 | 2);
        put_varint(&mut entry, message.len() as u64);
        entry.put_slice(message);
        debug_assert!(varint_length(message.len() as u64) <= 5);
        if entry.len() > self.settings.max_request_bytes {
            return Err(error::too_large());
        }
        let entry = entry.freeze();
        let bytes = entry.len();
        self.ask_for(net, Waiting::Write { caller, payload }, bytes, |token| {
            Request::Propose {
                token,
                id,
                payload: entry,
                quota_bytes,
            }
        });
        Ok(())
    }

    pub(super) fn range(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: RangeRequest = decode(message).map_err(|error| error::status(&error))?;
        validate::check_range(&request).map_err(|error| error::status(&error))?;
        if request.range_end.is_empty() {
            self.get(net, caller, request);
            return Ok(());
        }
        if !request.serializable && self.others_decide() {
            self.confirm(net, Read::Range { caller, request });
            return Ok(());
        }
        let index = self.index.clone();
        self.range_in(net, caller, &request, &index.pin())
    }

    /// Answers a range from what is published.
    pub(super) fn range_in(
        &mut self,
        net: &mut Net,
        caller: Caller,
        request: &RangeRequest,
        pinned: &Pinned<'_, View>,
    ) -> Result<(), Status> {
        self.own_metrics().ranges.add(1);
        let view = pinned.view();
        let mut run = RangeRun::new(request, readable(view)).map_err(|error| error::status(&error))?;
        let found = run.step(pinned);
        net.spend(run.counted());
        let short = match found && run.rows().len() <= API_DIRECT_ROWS {
            true => short_range(&run, pinned, view, &self.pages, self.settings.identity),
            false => Short::No,
        };
        if let Short::Answer(bytes) = &short
            && (bytes.len() <= API_DIRECT_BYTES || net.has_memory(caller.call))
        {
            self.answer_bytes(net, caller, bytes);
            return Ok(());
        }
        let view = view.clone();
        match short {
            Short::Lacks(address) if is_quick(&address) => self.spawn_short_range(net, caller, view, run),
            _ => self.spawn_range(net, caller, view, &run),
        }
        Ok(())
    }

    /// Answers a write from what apply did.
    pub(super) fn applied(
        &mut self,
        net: &mut Net,
        caller: Caller,
        payload: WriteRequest,
        outcome: Outcome,
        view: &View,
        hold: Option<Hold>,
    ) {
        let answer = match outcome.answer {
            Ok(answer) => answer,
            Err(error) => return self.fail(net, caller, &error::status(&error)),
        };
        let identity = self.settings.identity;
        let header = |revision| Some(identity.header(revision, view.term));
        match (answer, payload) {
            (Answer::Put(put), WriteRequest::Put) if put.previous.is_none() => {
                let response = answer::put_response(&put, header(put.revision), &Records::resident(view));
                self.answer(net, caller, &response.unwrap_or_default());
            }
            (answer @ (Answer::Put(_) | Answer::Delete(_) | Answer::Txn(_)), payload) => {
                self.show(net, caller, payload, answer, view, hold);
            }
            (Answer::Compaction, _) => {
                self.answer(
                    net,
                    caller,
                    &CompactionResponse {
                        header: header(outcome.revision),
                    },
                );
            }
            (Answer::LeaseGrant { id, ttl_s }, _) => {
                let header = header(outcome.revision);
                self.answer(
                    net,
                    caller,
                    &LeaseGrantResponse {
                        header,
                        id,
                        ttl: ttl_s,
                        error: String::new(),
                    },
                );
            }
            (Answer::LeaseRevoke { .. }, _) => {
                self.answer(
                    net,
                    caller,
                    &LeaseRevokeResponse {
                        header: header(outcome.revision),
                    },
                );
            }
            (Answer::Alarm(alarms), _) => {
                let (header, alarms) = (header(outcome.revision), alarms.unwrap_or_default());
                self.answer(net, caller, &AlarmResponse { header, alarms });
            }
            (Answer::Cluster, WriteRequest::Downgrade { version }) => self.downgraded(net, caller, version),
            (Answer::Range(_) | Answer::LeaseCheckpoint | Answer::Cluster, _) => {
                unreachable!("serve cores propose none of these")
            }
        }
    }
}
