//! Gets, which are ranges of a single key: those that come in one turn are answered together at its end.
//!
//! What a lookup costs is waiting for memory. Together they wait as often as one (`mvcc::index::prefetch`), and the
//! published state is pinned once for all. A get that comes alone is answered in its turn as well.

use super::confirm::Read;
use super::service::{Api, Caller};
use crate::mvcc::index::{Pinned, prefetch::TOGETHER};
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::net::Net;
use crate::proto::etcdserverpb::RangeRequest;

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
        for together in ranges.chunks(TOGETHER) {
            if together.len() > 1 {
                warm(&pinned, together);
            }
            for (caller, request) in together {
                let result = self.range_in(net, *caller, request, &pinned);
                self.fail_if(net, *caller, result);
            }
        }
    }
}

/// Asks the memory for what the answers need: the way to each key, and its newest record.
fn warm(pinned: &Pinned<'_, View>, ranges: &[(Caller, RangeRequest)]) {
    let mut keys: [&[u8]; TOGETHER] = [&[]; TOGETHER];
    for (key, (_, request)) in keys.iter_mut().zip(ranges) {
        *key = &request.key;
    }
    let (mut revisions, mut count) = ([Revision::ZERO; TOGETHER], 0);
    pinned.warm(&keys[..ranges.len()], |revision| {
        revisions[count] = revision;
        count += 1;
    });
    pinned.view().window.warm(&revisions[..count]);
}
