//! The KV service: requests checked, reads answered from a view, writes proposed, outcomes shown.

use super::answer::{self, Runs, encode};
use super::error;
use super::records::Records;
use super::service::{Api, Caller, Waiting, WriteRequest};
use crate::grpc::Status;
use crate::limits::{API_DIRECT_ROWS, API_SLICE_ROWS};
use crate::mvcc::readers::Hold;
use crate::mvcc::record::{put_varint, varint_length};
use crate::mvcc::view::View;
use crate::net::Net;
use crate::proto::etcdserverpb::{
    AlarmResponse, CompactionRequest, CompactionResponse, DeleteRangeRequest, LeaseGrantResponse, LeaseRevokeResponse,
    PutRequest, RangeRequest, RequestHeader, TxnRequest,
};
use crate::raft::messages::Request;
use crate::state::compare::Comparing;
use crate::state::depth::{decode, decode_txn};
use crate::state::outcome::{Answer, Outcome};
use crate::state::range::{RangeRun, Readable};
use crate::state::{plan, quota, validate};
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
            return self.read_txn(net, caller, request);
        }
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
        let header = RequestHeader {
            id: self.request_id(),
            ..Default::default()
        };
        let header_length = header.encoded_len();
        let mut entry = BytesMut::with_capacity(message.len() + header_length + 16);
        // Field 100, then the request; field 100 is two bytes of tag.
        entry.put_slice(&[0xa2, 0x06]);
        put_varint(&mut entry, header_length as u64);
        header.encode_raw(&mut entry);
        entry.put_u8((field as u8) << 3 | 2);
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
                payload: entry,
                quota_bytes,
            }
        });
        Ok(())
    }

    pub(super) fn range(&mut self, net: &mut Net, caller: Caller, message: Bytes) -> Result<(), Status> {
        let request: RangeRequest = decode(message).map_err(|error| error::status(&error))?;
        validate::check_range(&request).map_err(|error| error::status(&error))?;
        self.own_metrics().ranges.add(1);
        let index = self.index.clone();
        let pinned = index.pin();
        let view = pinned.view();
        let mut run = RangeRun::new(&request, readable(view)).map_err(|error| error::status(&error))?;
        let found = run.step(&pinned);
        net.spend(run.counted());
        if found && run.rows().len() <= API_DIRECT_ROWS {
            let records = Records::resident(view);
            let mut runs = Runs {
                keys: &pinned,
                records: &records,
                missing: Vec::new(),
            };
            let rows = runs.finish(run.clone());
            let header = self.settings.identity.header(rows.revision, view.term);
            if let Some(bytes) = answer::range_response(&header, &rows, &records) {
                self.answer_copied(net, caller, &bytes);
                return Ok(());
            }
        }
        let view = view.clone();
        drop(pinned);
        self.spawn_range(net, caller, view, run, found);
        Ok(())
    }

    /// Answers a unary call with bytes that may go into the output at once.
    pub(super) fn answer_copied(&mut self, net: &mut Net, caller: Caller, bytes: &[u8]) {
        let _ = net.reply(caller.call, bytes.len(), |out| out.extend_from_slice(bytes));
        self.finished(caller, bytes.len());
    }

    fn read_txn(&mut self, net: &mut Net, caller: Caller, request: TxnRequest) -> Result<(), Status> {
        // Which branch is taken, and how many compares that takes, is not known yet.
        let ranges = (request.compare.len() + request.success.len().max(request.failure.len())) as u64;
        self.own_metrics().ranges.add(ranges);
        self.own_metrics().read_txns.add(u64::from(ranges > 1));
        let index = self.index.clone();
        let pinned = index.pin();
        let view = pinned.view();
        let at_main = view.revision;
        let records = Records::resident(view);
        let missing = records.missing(plan::needed_by_txn(&request, &pinned, at_main));
        let mut comparing = Comparing::new(&request);
        if missing.is_empty()
            && (comparing.is_done() || comparing.step(&pinned, at_main))
            && let mut decided = plan::decide_compared(&request, &comparing, &pinned, readable(view), &records)
                .map_err(|error| error::status(&error))?
            && run_short(&mut decided.ranges, &pinned, net)
        {
            let mut runs = Runs {
                keys: &pinned,
                records: &records,
                missing: Vec::new(),
            };
            let ranges: Vec<_> = decided.ranges.into_iter().map(|run| runs.finish(run)).collect();
            let header = self.settings.identity.header(decided.revision, view.term);
            if runs.missing.is_empty()
                && let Some(response) = answer::read_txn_response(header, decided.succeeded, &ranges, &records)
            {
                self.answer(net, caller, &response);
                return Ok(());
            }
        }
        let view = view.clone();
        drop(pinned);
        self.spawn_read_txn(net, caller, view, request);
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
                let alarms = alarms.unwrap_or_default();
                self.answer(
                    net,
                    caller,
                    &AlarmResponse {
                        header: header(outcome.revision),
                        alarms,
                    },
                );
            }
            (Answer::Range(_) | Answer::LeaseCheckpoint | Answer::Cluster, _) => {
                unreachable!("serve cores propose none of these")
            }
        }
    }

    /// Shows records: at once when all are in the window, else by a task, which takes the hold over.
    fn show(
        &mut self,
        net: &mut Net,
        caller: Caller,
        payload: WriteRequest,
        answer: Answer,
        view: &View,
        hold: Option<Hold>,
    ) {
        let identity = self.settings.identity;
        let index = self.index.clone();
        let records = Records::resident(view);
        match encode_write(&index.pin(), &payload, &answer, identity, view, &records) {
            Ok(bytes) => {
                let _ = net.reply(caller.call, bytes.len(), |out| out.extend_from_slice(&bytes));
                self.finished(caller, bytes.len());
            }
            Err(missing) => self.spawn_show(caller, payload, answer, view.clone(), hold, missing),
        }
    }
}

/// Runs the ranges of a transaction if all of them together are short. Whether they were.
fn run_short(ranges: &mut [RangeRun], keys: &impl crate::state::read::KeyReader, net: &mut Net) -> bool {
    let mut left = API_SLICE_ROWS;
    ranges.iter_mut().all(|run| {
        let is_whole = run.step(keys);
        net.spend(run.counted());
        let is_short = is_whole && run.rows().len() <= left;
        left = left.saturating_sub(run.rows().len());
        is_short
    })
}

/// The response to a write, or the records that are missing for it.
pub(super) fn encode_write(
    keys: &impl crate::state::read::KeyReader,
    payload: &WriteRequest,
    answer: &Answer,
    identity: answer::Identity,
    view: &View,
    records: &Records<'_>,
) -> Result<Bytes, Vec<crate::mvcc::revision::Revision>> {
    let header = |revision| Some(identity.header(revision, view.term));
    let complete = "nothing is missing";
    match (answer, payload) {
        (Answer::Put(put), _) => {
            let missing = records.missing(put.previous);
            if !missing.is_empty() {
                return Err(missing);
            }
            Ok(encode(
                &answer::put_response(put, header(put.revision), records).expect(complete),
            ))
        }
        (Answer::Delete(delete), _) => {
            let missing = records.missing(delete.previous.iter().copied());
            if !missing.is_empty() {
                return Err(missing);
            }
            Ok(encode(
                &answer::delete_response(delete, header(delete.revision), records).expect(complete),
            ))
        }
        (Answer::Txn(txn), WriteRequest::Txn(request)) => {
            let mut runs = Runs {
                keys,
                records,
                missing: Vec::new(),
            };
            let shown = runs.txn(request, txn.clone());
            if !runs.missing.is_empty() {
                return Err(runs.missing);
            }
            Ok(encode(
                &answer::txn_response(&shown, header(txn.revision), records).expect(complete),
            ))
        }
        _ => unreachable!("only these show records"),
    }
}
