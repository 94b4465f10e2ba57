//! Responses in bytes: headers, and what apply answers in revisions turned into records.

use super::records::Records;
use crate::mvcc::index::KeyReader;
use crate::mvcc::record::{KeyValueView, put_varint, varint_length};
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::proto::etcdserverpb::{
    DeleteRangeResponse, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse, request_op::Request, response_op::Response,
};
use crate::proto::mvccpb::KeyValue;
use crate::state::outcome::{DeleteOutcome, OperationOutcome, PutOutcome, RangeOutcome, TxnOutcome};
use crate::state::range::{Projection, RangeRows, RangeRun, Row};
use bytes::Bytes;
use prost::Message;

/// Who answers.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The cluster's id.
    pub cluster_id: u64,
    /// This member's id.
    pub member_id: u64,
}

impl Identity {
    /// A full header.
    pub fn header(self, revision: i64, raft_term: u64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term,
        }
    }

    /// A header as of a view.
    pub fn header_of(self, view: &View) -> ResponseHeader {
        self.header(view.revision, view.term)
    }
}

/// A header inside of a transaction: nothing but the revision.
fn inner_header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        revision,
        ..Default::default()
    })
}

/// What one row of a range shows, encoded; `None` when its record has to be fetched.
pub fn row_bytes<'r>(
    row: &Row,
    projection: Projection,
    records: &'r Records<'_>,
    buffer: &'r mut Vec<u8>,
) -> Option<&'r [u8]> {
    match projection {
        Projection::Record => records.bytes(row.revision),
        Projection::WithoutValue => {
            let fields = KeyValueView::decode(records.bytes(row.revision)?)?;
            buffer.clear();
            KeyValueView { value: &[], ..fields }.encode(buffer);
            Some(buffer)
        }
        Projection::FromIndex => {
            buffer.clear();
            index_row(row).encode(buffer);
            Some(buffer)
        }
    }
}

/// A row answered from the index alone: etcd 3.7 leaves the lease out (`etcd-surface` 4.3).
pub fn index_row(row: &Row) -> KeyValueView<'_> {
    KeyValueView {
        key: row.key.as_deref().unwrap_or_default(),
        create_revision: row.create_revision,
        mod_revision: row.revision.main,
        version: row.version,
        ..Default::default()
    }
}

/// Tag of `RangeResponse.kvs`.
const KVS: u8 = 0x12;
/// Tag of `RangeResponse.more`.
const MORE: u8 = 0x18;
/// Tag of `RangeResponse.count`.
const COUNT: u8 = 0x20;

/// The end of a `RangeResponse` whose count is one.
const ONE_COUNTED: [u8; 2] = [COUNT, 1];

/// The most that a row takes in a response beside its record: tags, lengths, and numbers from the index.
const ROW_OVERHEAD_BYTES: usize = 64;

/// Bytes that a row of `length` bytes takes in a `RangeResponse`.
pub fn kv_length(length: usize) -> usize {
    1 + varint_length(length as u64) + length
}

/// Appends a row to a `RangeResponse`.
pub fn put_kv(out: &mut Vec<u8>, row: &[u8]) {
    out.push(KVS);
    put_varint(out, row.len() as u64);
    out.extend_from_slice(row);
}

/// Bytes of a `RangeResponse` behind its header that shows one row of `length` bytes and counts it.
pub fn single_row_length(length: usize) -> usize {
    kv_length(length) + ONE_COUNTED.len()
}

/// Appends all of such a response behind its header; `write` appends the row.
pub fn put_single_row(out: &mut Vec<u8>, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(KVS);
    put_varint(out, length as u64);
    write(out);
    out.extend_from_slice(&ONE_COUNTED);
}

/// The end of a `RangeResponse`: more and count.
pub fn put_range_end(out: &mut Vec<u8>, more: bool, count: i64) {
    if more {
        out.extend_from_slice(&[MORE, 1]);
    }
    if count != 0 {
        out.push(COUNT);
        put_varint(out, count as u64);
    }
}

/// The beginning of a response whose first field is its header.
pub fn put_header(out: &mut Vec<u8>, header: &ResponseHeader) {
    out.push(0x0a);
    put_varint(out, header.encoded_len() as u64);
    header.encode_raw(out);
}

/// A whole `RangeResponse`; `None` when a record has to be fetched.
pub fn range_response(header: &ResponseHeader, rows: &RangeRows, records: &Records<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(64);
    let mut buffer = Vec::new();
    put_header(&mut out, header);
    for row in &rows.rows {
        put_kv(&mut out, row_bytes(row, rows.projection, records, &mut buffer)?);
    }
    put_range_end(&mut out, rows.more, rows.count);
    Some(out)
}

/// The records that rows show; none when they are answered from the index.
pub fn shown_revisions(rows: &RangeRows) -> impl Iterator<Item = Revision> {
    let shown = if rows.projection == Projection::FromIndex {
        0
    } else {
        rows.rows.len()
    };
    rows.rows[..shown].iter().map(|row| row.revision)
}

/// At most how many bytes the rows take in a response, as far as their records are here.
pub fn rows_length(rows: &RangeRows, records: &Records<'_>) -> usize {
    let keys = rows.rows.iter().map(|row| row.key.as_ref().map_or(0, |key| key.len()));
    rows.rows.len() * ROW_OVERHEAD_BYTES + keys.sum::<usize>() + records.length(shown_revisions(rows))
}

/// At most how many bytes a transaction takes in a response, as far as its records are here.
pub fn txn_length(shown: &TxnShown, records: &Records<'_>) -> usize {
    let operations = shown.operations.iter().map(|operation| match operation {
        Shown::Range(rows) => rows_length(rows, records),
        Shown::Put(outcome) => records.length(outcome.previous),
        Shown::Delete(outcome) => records.length(outcome.previous.iter().copied()),
        Shown::Txn(nested) => txn_length(nested, records),
        Shown::Empty => 0,
    });
    operations.sum()
}

fn key_value(records: &Records<'_>, revision: Revision) -> Option<KeyValue> {
    KeyValue::decode(records.bytes(revision)?).ok()
}

/// The records that a put's answer shows.
pub fn put_response(
    outcome: &PutOutcome,
    header: Option<ResponseHeader>,
    records: &Records<'_>,
) -> Option<PutResponse> {
    let prev_kv = match outcome.previous {
        Some(revision) => Some(key_value(records, revision)?),
        None => None,
    };
    Some(PutResponse { header, prev_kv })
}

/// The records that a deletion's answer shows.
pub fn delete_response(
    outcome: &DeleteOutcome,
    header: Option<ResponseHeader>,
    records: &Records<'_>,
) -> Option<DeleteRangeResponse> {
    let prev_kvs = outcome
        .previous
        .iter()
        .map(|revision| key_value(records, *revision))
        .collect::<Option<Vec<_>>>()?;
    Some(DeleteRangeResponse {
        header,
        deleted: outcome.deleted,
        prev_kvs,
    })
}

/// The rows of a range as a message.
pub fn range_message(header: Option<ResponseHeader>, rows: &RangeRows, records: &Records<'_>) -> Option<RangeResponse> {
    let mut buffer = Vec::new();
    let mut kvs = Vec::with_capacity(rows.rows.len());
    for row in &rows.rows {
        kvs.push(KeyValue::decode(row_bytes(row, rows.projection, records, &mut buffer)?).ok()?);
    }
    Some(RangeResponse {
        header,
        kvs,
        more: rows.more,
        count: rows.count,
    })
}

/// A transaction's outcome with its ranges run: what is left to do is to show records.
pub enum Shown {
    /// A range.
    Range(RangeRows),
    /// A put.
    Put(PutOutcome),
    /// A deletion.
    Delete(DeleteOutcome),
    /// A nested transaction.
    Txn(TxnShown),
    /// Nothing.
    Empty,
}

/// A transaction as it is shown.
pub struct TxnShown {
    revision: i64,
    succeeded: bool,
    operations: Vec<Shown>,
}

/// Runs over everything of an outcome and its request that a range has to be run for.
pub struct Runs<'a, K> {
    /// The index to run ranges on.
    pub keys: &'a K,
    /// Values for ranges sorted by value.
    pub records: &'a Records<'a>,
    /// Records that were asked for and are not there.
    pub missing: Vec<Revision>,
}

impl<K: KeyReader> Runs<'_, K> {
    /// A transaction with its ranges run. What it lacks is in `missing`; then the result is not complete.
    pub fn txn(&mut self, request: &TxnRequest, outcome: TxnOutcome) -> TxnShown {
        let branch = if outcome.succeeded {
            &request.success
        } else {
            &request.failure
        };
        let operations = branch
            .iter()
            .zip(outcome.operations)
            .map(|(operation, outcome)| self.operation(operation, outcome));
        TxnShown {
            revision: outcome.revision,
            succeeded: outcome.succeeded,
            operations: operations.collect(),
        }
    }

    fn operation(&mut self, request: &RequestOp, outcome: OperationOutcome) -> Shown {
        match (outcome, &request.request) {
            (OperationOutcome::Range(outcome), Some(Request::RequestRange(request))) => {
                Shown::Range(self.range(request, outcome))
            }
            (OperationOutcome::Txn(outcome), Some(Request::RequestTxn(request))) => {
                Shown::Txn(self.txn(request, outcome))
            }
            (OperationOutcome::Put(outcome), _) => {
                self.want(outcome.previous);
                Shown::Put(outcome)
            }
            (OperationOutcome::Delete(outcome), _) => {
                self.want(outcome.previous.iter().copied());
                Shown::Delete(outcome)
            }
            _ => Shown::Empty,
        }
    }

    fn range(&mut self, request: &RangeRequest, outcome: RangeOutcome) -> RangeRows {
        let run = match outcome {
            RangeOutcome::Found(run) => *run,
            RangeOutcome::Later { revision, at_main } => {
                let mut run = RangeRun::resolved(request, revision, at_main);
                while !run.step(self.keys) {}
                run
            }
            RangeOutcome::Skipped => RangeRun::resolved(request, 0, 0),
        };
        self.finish(run)
    }

    /// Sorts and cuts a run whose rows are found.
    pub fn finish(&mut self, run: RangeRun) -> RangeRows {
        if run.needs_values() {
            self.want(run.rows().iter().map(|row| row.revision));
        }
        let records = self.records;
        let values: Vec<&[u8]> = if run.needs_values() {
            run.rows().iter().map(|row| value_of(records, row.revision)).collect()
        } else {
            Vec::new()
        };
        let rows = run.finish(|at| values[at]);
        if rows.projection != Projection::FromIndex {
            self.want(rows.rows.iter().map(|row| row.revision));
        }
        rows
    }

    fn want(&mut self, revisions: impl IntoIterator<Item = Revision>) {
        self.missing.extend(self.records.missing(revisions));
    }
}

fn value_of<'r>(records: &'r Records<'_>, revision: Revision) -> &'r [u8] {
    let fields = records.bytes(revision).and_then(KeyValueView::decode);
    fields.map_or(&[], |fields| fields.value)
}

/// The message of a transaction; `None` when a record is missing. `header` is the outermost's.
pub fn txn_response(shown: &TxnShown, header: Option<ResponseHeader>, records: &Records<'_>) -> Option<TxnResponse> {
    let operations = shown.operations.iter().map(|operation| {
        let response = match operation {
            Shown::Range(rows) => Response::ResponseRange(range_message(inner_header(rows.revision), rows, records)?),
            Shown::Put(outcome) => {
                Response::ResponsePut(put_response(outcome, inner_header(outcome.revision), records)?)
            }
            Shown::Delete(outcome) => {
                Response::ResponseDeleteRange(delete_response(outcome, inner_header(outcome.revision), records)?)
            }
            Shown::Txn(nested) => Response::ResponseTxn(txn_response(nested, inner_header(nested.revision), records)?),
            Shown::Empty => return Some(ResponseOp { response: None }),
        };
        Some(ResponseOp {
            response: Some(response),
        })
    });
    let responses = operations.collect::<Option<Vec<_>>>()?;
    Some(TxnResponse {
        header,
        succeeded: shown.succeeded,
        responses,
    })
}

/// A read-only transaction, its ranges finished.
pub fn read_txn_response(
    header: ResponseHeader,
    succeeded: bool,
    ranges: &[RangeRows],
    records: &Records<'_>,
) -> Option<TxnResponse> {
    let responses = ranges.iter().map(|rows| {
        let range = range_message(inner_header(rows.revision), rows, records)?;
        Some(ResponseOp {
            response: Some(Response::ResponseRange(range)),
        })
    });
    Some(TxnResponse {
        header: Some(header),
        succeeded,
        responses: responses.collect::<Option<Vec<_>>>()?,
    })
}

/// An encoded message.
pub fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}
