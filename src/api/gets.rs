//! Gets, which are ranges of a single key: those that come in one turn are answered together at its end.
//!
//! What a lookup costs is waiting for memory. Together they wait as often as one (`pages::prefetch`), and the
//! published state is pinned once for all. A get that comes alone is answered in its turn as well.

use super::answer;
use super::confirm::Read;
use super::kv::readable;
use super::records;
use super::service::{Api, Caller};
use crate::limits::{API_DIRECT_BYTES, API_HEADER_BYTES, API_PART_BYTES};
use crate::mvcc::index::Pinned;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::net::Net;
use crate::pages::RecordId;
use crate::pages::prefetch::TOGETHER;
use crate::proto::etcdserverpb::RangeRequest;
use crate::state::validate::has_revision_filter;

impl Api {
    /// Answers a get at the end of the turn, or before when there are as many as can be answered together.
    pub(super) fn get(&mut self, net: &mut Net, caller: Caller, request: RangeRequest) {
        debug_assert!(request.range_end.is_empty());
        self.gets.push((caller, request));
        if self.gets.len() >= TOGETHER {
            self.answer_gets(net);
        }
    }

    /// Answers the gets of this turn, or lets them wait until others confirm that they may be.
    pub(super) fn answer_gets(&mut self, net: &mut Net) {
        if self.gets.is_empty() {
            return;
        }
        let mut gets = std::mem::take(&mut self.gets);
        if self.others_decide() {
            let linearizable = gets.extract_if(.., |(_, request)| !request.serializable);
            let waiting: Vec<_> = linearizable.collect();
            for (caller, request) in waiting {
                self.confirm(net, Read::Range { caller, request });
            }
        }
        self.answer_ranges(net, &gets);
        gets.clear();
        self.gets = gets;
    }

    /// Answers ranges from what is published.
    pub(super) fn answer_ranges(&mut self, net: &mut Net, ranges: &[(Caller, RangeRequest)]) {
        let index = self.index.clone();
        let pinned = index.pin();
        let mut header = Vec::with_capacity(API_HEADER_BYTES);
        answer::put_header(&mut header, &self.settings.identity.header_of(pinned.view()));
        for together in ranges.chunks(TOGETHER) {
            if together.len() > 1 {
                self.warm(&pinned, together);
            }
            for (caller, request) in together {
                if !self.answer_get(net, *caller, request, &pinned, &header) {
                    let result = self.range_in(net, *caller, request, &pinned);
                    self.fail_if(net, *caller, result);
                }
            }
        }
    }

    /// Answers a get that shows a record as it is, and has it in memory: what `range_in` would answer, by a shorter
    /// way. Whether it did; what is refused, or has to be loaded, or can't be read, goes the longer way.
    fn answer_get(
        &mut self,
        net: &mut Net,
        caller: Caller,
        request: &RangeRequest,
        pinned: &Pinned<'_, View>,
        header: &[u8],
    ) -> bool {
        if !shows_a_record(request) {
            return false;
        }
        let view = pinned.view();
        let Ok(at_main) = readable(view).resolve(request.revision) else {
            return false;
        };
        let Some(meta) = pinned.get(&request.key, at_main) else {
            self.reply_get(net, caller, header.len(), |out| out.extend_from_slice(header));
            return true;
        };
        if let Some(record) = view.window.get(meta.revision) {
            let row = record.event();
            return self.answer_row(net, caller, header, row.len(), |out| out.extend_from_slice(row));
        }
        let id = records::record_id(meta.revision);
        let Ok(Some(record)) = view.pages.record(&mut self.pages.cache(), id) else {
            return false;
        };
        let fields = KeyValueView::of_stored(&record.view());
        self.answer_row(net, caller, header, fields.encoded_length(), |out| fields.encode(out))
    }

    /// Answers with a row of `row_length` bytes, which `write` appends, if it may be answered at once; whether it did.
    fn answer_row(
        &mut self,
        net: &mut Net,
        caller: Caller,
        header: &[u8],
        row_length: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let length = header.len() + answer::single_row_length(row_length);
        if length > API_PART_BYTES || (length > API_DIRECT_BYTES && !net.has_memory(caller.call)) {
            return false;
        }
        net.spend(1);
        self.reply_get(net, caller, length, |out| {
            out.extend_from_slice(header);
            answer::put_single_row(out, row_length, write);
        });
        true
    }

    fn reply_get(&mut self, net: &mut Net, caller: Caller, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.own_metrics().ranges.add(1);
        let _ = net.reply(caller.call, length, write);
        self.finished(caller, length);
    }

    /// Asks the memory for what the answers need: the way to each key, and its newest record, in the window or in the
    /// cached pages.
    fn warm(&self, pinned: &Pinned<'_, View>, ranges: &[(Caller, RangeRequest)]) {
        let mut keys: [&[u8]; TOGETHER] = [&[]; TOGETHER];
        for (key, (_, request)) in keys.iter_mut().zip(ranges) {
            *key = &request.key;
        }
        let View { window, pages, .. } = pinned.view();
        let (mut recent, mut recent_count) = ([Revision::ZERO; TOGETHER], 0);
        let (mut stored, mut stored_count) = ([RecordId::ZERO; TOGETHER], 0);
        pinned.warm(&keys[..ranges.len()], |revision| {
            if revision.main < window.first_main() {
                stored[stored_count] = records::record_id(revision);
                stored_count += 1;
            } else {
                recent[recent_count] = revision;
                recent_count += 1;
            }
        });
        window.warm(&recent[..recent_count]);
        pages.warm(&self.pages.cache(), &stored[..stored_count]);
    }
}

/// Whether a get is answered with the record of its key, whole.
fn shows_a_record(request: &RangeRequest) -> bool {
    // Those that others had to confirm come together, gets and longer ranges.
    let is_get = request.range_end.is_empty();
    is_get && !request.keys_only && !request.count_only && !has_revision_filter(request)
}
