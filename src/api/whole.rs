//! Answers that are made whole before they are sent: transactions, and writes that show what was there before.
//!
//! Small ones are made in the call's own turn. For larger ones a task takes hold of the memory first: of the records
//! it fetches, and of twice the answer, which is a message and its bytes for a moment.

use super::answer::{self, Runs, encode};
use super::error;
use super::kv::readable;
use super::memory::Grant;
use super::records::{PageReads, Records};
use super::service::{Api, Caller};
use super::short::finish_cached;
use super::tasks::{Ended, Pace, Task};
use super::waiting::WriteRequest;
use crate::grpc::Status;
use crate::limits::{API_PART_BYTES, API_SLICE_ROWS};
use crate::mvcc::index::{KeyReader, Pinned};
use crate::mvcc::readers::Hold;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::net::Net;
use crate::proto::etcdserverpb::{RequestOp, TxnRequest, request_op::Request};
use crate::reactor::serve;
use crate::state::compare::Comparing;
use crate::state::outcome::Answer;
use crate::state::plan;
use crate::state::range::{RangeRows, RangeRun, Row};
use bytes::Bytes;

/// What is missing to make an answer.
pub(super) enum Lacking {
    /// Records that are not in memory.
    Records(Vec<Revision>),
    /// Leave to make so many bytes.
    Memory(usize),
}

impl Api {
    pub(super) fn read_txn(&mut self, net: &mut Net, caller: Caller, request: TxnRequest) -> Result<(), Status> {
        // Which branch is taken, and how many compares that takes, is not known yet.
        let ranges = (request.compare.len() + request.success.len().max(request.failure.len())) as u64;
        self.own_metrics().ranges.add(ranges);
        self.own_metrics().read_txns.add(u64::from(ranges > 1));
        let index = self.index.clone();
        let pinned = index.pin();
        let view = pinned.view();
        if let Some(bytes) = read_small_txn(&request, &pinned, &self.pages, self.settings.identity, net)? {
            self.answer_bytes(net, caller, &bytes);
            return Ok(());
        }
        let view = view.clone();
        drop(pinned);
        let at_main = lowest_revision(&request, &view);
        let identity = self.settings.identity;
        self.run(net, caller, view, at_main, Pace::Long, move |task, view| async move {
            let mut grant = task.grant();
            let bytes = task.read_txn(view, &request, identity, &mut grant).await?;
            task.send_whole(bytes).await
        });
        Ok(())
    }

    /// Shows what a write did: at once when that is little and in the window, else by a task.
    pub(super) fn show(
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
        let mut records = Records::resident(view);
        let encode = |records: &Records<'_>| {
            let pinned = index.pin();
            encode_write(&pinned, &payload, &answer, identity, view, records, API_PART_BYTES)
        };
        let encoded = match encode(&records) {
            Err(Lacking::Records(missing)) if records.take_cached(&self.pages, &missing, API_PART_BYTES).is_all() => {
                encode(&records)
            }
            encoded => encoded,
        };
        if let Ok(bytes) = encoded {
            return self.answer_bytes(net, caller, &bytes);
        }
        // Its ranges read under the answer's own hold (DESIGN 12 (13)); what else it names is in the view.
        let view = view.clone();
        self.spawn_task(
            caller,
            Pace::Long,
            |_| drop(hold),
            move |task| async move {
                let mut grant = task.grant();
                let bytes = task.show(view, &payload, &answer, identity, &mut grant).await?;
                drop((payload, answer));
                task.send_whole(bytes).await
            },
        );
    }
}

impl Task {
    async fn show(
        &self,
        view: View,
        payload: &WriteRequest,
        answer: &Answer,
        identity: answer::Identity,
        grant: &mut Grant,
    ) -> Result<Bytes, Ended> {
        let mut records = Records::resident(&view);
        let mut bytes_max = API_PART_BYTES;
        loop {
            let encoded = encode_write(&self.index.pin(), payload, answer, identity, &view, &records, bytes_max);
            match encoded {
                Ok(bytes) => return Ok(bytes),
                Err(Lacking::Records(missing)) => self.fetch(&view, &mut records, missing, grant).await?,
                Err(Lacking::Memory(bytes)) => {
                    self.grow(grant, 2 * bytes).await?;
                    bytes_max = bytes;
                }
            }
        }
    }

    async fn read_txn(
        &self,
        view: View,
        request: &TxnRequest,
        identity: answer::Identity,
        grant: &mut Grant,
    ) -> Result<Bytes, Ended> {
        let mut records = Records::resident(&view);
        let missing = {
            let pinned = self.index.pin();
            records.missing(plan::needed_by_txn(request, &pinned, view.revision))
        };
        self.fetch(&view, &mut records, missing, grant).await?;
        let mut comparing = Comparing::new(request);
        while !comparing.is_done() {
            comparing.step(&self.index.pin(), view.revision, &records);
            serve::yield_now().await;
            self.check_open()?;
        }
        let decided = plan::decide_compared(request, &comparing, &self.index.pin(), readable(&view), &records)
            .map_err(|error| Ended::Failed(error::status(&error)))?;
        let mut ranges = Vec::with_capacity(decided.ranges.len());
        for run in decided.ranges {
            let rows = self.find(&view, run, &mut records, grant).await?;
            let shown = answer::shown_revisions(&rows);
            let missing = records.missing(shown);
            self.fetch(&view, &mut records, missing, grant).await?;
            ranges.push(rows);
        }
        let bytes: usize = ranges.iter().map(|rows| answer::rows_length(rows, &records)).sum();
        self.grow(grant, 2 * bytes).await?;
        let header = identity.header(decided.revision, view.term);
        let response = answer::read_txn_response(header, decided.succeeded, &ranges, &records);
        Ok(encode(&response.expect("nothing is missing")))
    }
}

/// The answer to a small transaction; `None` when it is not in memory, or not so small.
fn read_small_txn(
    request: &TxnRequest,
    keys: &Pinned<'_, View>,
    pages: &PageReads,
    identity: answer::Identity,
    net: &mut Net,
) -> Result<Option<Bytes>, Status> {
    let view = keys.view();
    let mut records = Records::resident(view);
    let missing = records.missing(plan::needed_by_txn(request, keys, view.revision));
    let mut comparing = Comparing::new(request);
    if !records.take_cached(pages, &missing, API_PART_BYTES).is_all() || !comparing.step(keys, view.revision, &records)
    {
        return Ok(None);
    }
    let mut decided = plan::decide_compared(request, &comparing, keys, readable(view), &records)
        .map_err(|error| error::status(&error))?;
    if !run_short(&mut decided.ranges, keys, net) {
        return Ok(None);
    }
    let finished = finish_cached(keys, &mut records, pages, |runs| -> Vec<RangeRows> {
        decided.ranges.iter().map(|run| runs.finish(run.clone())).collect()
    });
    let Ok(ranges) = finished else {
        return Ok(None);
    };
    let bytes: usize = ranges.iter().map(|rows| answer::rows_length(rows, &records)).sum();
    if bytes > API_PART_BYTES {
        return Ok(None);
    }
    let header = identity.header(decided.revision, view.term);
    let response = answer::read_txn_response(header, decided.succeeded, &ranges, &records);
    Ok(response.map(|response| encode(&response)))
}

/// Runs the ranges of a transaction if all of them together are short. Whether they were.
fn run_short(ranges: &mut [RangeRun], keys: &impl KeyReader, net: &mut Net) -> bool {
    let mut left = API_SLICE_ROWS;
    ranges.iter_mut().all(|run| {
        let is_whole = run.step(keys);
        net.spend(run.counted());
        let is_short = is_whole && run.rows().len() <= left;
        left = left.saturating_sub(run.rows().len());
        is_short
    })
}

/// The oldest revision that a read-only transaction looks at, as far as it can be read.
fn lowest_revision(request: &TxnRequest, view: &View) -> i64 {
    let revisions = request
        .success
        .iter()
        .chain(&request.failure)
        .map(|operation| match &operation.request {
            Some(Request::RequestRange(range)) if range.revision > 0 => range.revision,
            _ => view.revision,
        });
    let lowest = revisions.fold(view.revision, i64::min);
    lowest.max(view.compact_revision)
}

/// About what the rows of a transaction's ranges would take in memory, were it carried out on `view`. Both branches
/// count.
pub(super) fn rows_bytes(request: &TxnRequest, keys: &impl KeyReader, view: &View) -> usize {
    let mut rows = 0u64;
    let mut transactions = vec![request];
    while let Some(request) = transactions.pop() {
        for RequestOp { request } in request.success.iter().chain(&request.failure) {
            match request {
                Some(Request::RequestRange(range)) if !range.range_end.is_empty() => {
                    rows += RangeRun::rows_at_most(range, keys, view.revision);
                }
                Some(Request::RequestTxn(nested)) => transactions.push(nested),
                _ => {}
            }
        }
    }
    usize::try_from(rows)
        .unwrap_or(usize::MAX)
        .saturating_mul(size_of::<Row>())
}

/// The response to a write, or what is missing for it. At most `bytes_max` bytes of records are shown.
pub(super) fn encode_write(
    keys: &impl KeyReader,
    payload: &WriteRequest,
    answer: &Answer,
    identity: answer::Identity,
    view: &View,
    records: &Records<'_>,
    bytes_max: usize,
) -> Result<Bytes, Lacking> {
    let header = |revision| Some(identity.header(revision, view.term));
    let complete = "nothing is missing";
    let check = |missing: Vec<Revision>, bytes: &dyn Fn() -> usize| match missing.is_empty() {
        false => Err(Lacking::Records(missing)),
        true if bytes() > bytes_max => Err(Lacking::Memory(bytes())),
        true => Ok(()),
    };
    match (answer, payload) {
        (Answer::Put(put), _) => {
            check(records.missing(put.previous), &|| records.length(put.previous))?;
            let response = answer::put_response(put, header(put.revision), records);
            Ok(encode(&response.expect(complete)))
        }
        (Answer::Delete(delete), _) => {
            let shown = || delete.previous.iter().copied();
            check(records.missing(shown()), &|| records.length(shown()))?;
            let response = answer::delete_response(delete, header(delete.revision), records);
            Ok(encode(&response.expect(complete)))
        }
        (Answer::Txn(txn), WriteRequest::Txn(request)) => {
            let mut runs = Runs {
                keys,
                records,
                missing: Vec::new(),
            };
            let shown = runs.txn(request, txn.clone());
            check(runs.missing, &|| answer::txn_length(&shown, records))?;
            let response = answer::txn_response(&shown, header(txn.revision), records);
            Ok(encode(&response.expect(complete)))
        }
        _ => unreachable!("only these show records"),
    }
}
