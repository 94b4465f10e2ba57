//! Short ranges, such as the read of a key: answered at once from memory, else as soon as a page or two have come from
//! the disk, among the calls and not behind long reads.

use super::answer::{self, Identity, Runs};
use super::records::{Cached, PageReads, Records};
use super::service::{Api, Caller};
use super::tasks::{Ended, Pace, Task};
use crate::limits::{API_PART_BYTES, API_SHORT_LOADS};
use crate::mvcc::index::Pinned;
use crate::mvcc::view::View;
use crate::net::Net;
use crate::pages::PageAddress;
use crate::state::range::RangeRun;

/// What a short range comes to.
pub(super) enum Short {
    /// The encoded response.
    Answer(Vec<u8>),
    /// This page has to be loaded first.
    Lacks(PageAddress),
    /// Its rows are few, but much, or can't be read: it goes the way of long ones.
    No,
}

/// The answer to a range whose few rows were found.
pub(super) fn short_range(
    run: &RangeRun,
    keys: &Pinned<'_, View>,
    view: &View,
    pages: &PageReads,
    identity: Identity,
) -> Short {
    let mut records = Records::resident(view);
    match finish_cached(keys, &mut records, pages, |runs| runs.finish(run.clone())) {
        Ok(rows) if answer::rows_length(&rows, &records) <= API_PART_BYTES => {
            let header = identity.header(rows.revision, view.term);
            answer::range_response(&header, &rows, &records).map_or(Short::No, Short::Answer)
        }
        Err(Cached::Lacks(address)) => Short::Lacks(address),
        _ => Short::No,
    }
}

/// What `finish` makes of runs once the records that it asks for are here, from the core's page cache; else what keeps
/// them from being.
pub(super) fn finish_cached<T>(
    keys: &Pinned<'_, View>,
    records: &mut Records<'_>,
    pages: &PageReads,
    finish: impl Fn(&mut Runs<'_, Pinned<'_, View>>) -> T,
) -> Result<T, Cached> {
    loop {
        let mut runs = Runs {
            keys,
            records,
            missing: Vec::new(),
        };
        let finished = finish(&mut runs);
        let missing = runs.missing;
        if missing.is_empty() {
            return Ok(finished);
        }
        match records.take_cached(pages, &missing, API_PART_BYTES) {
            Cached::All => {}
            other => return Err(other),
        }
    }
}

/// Whether a page is loaded for a short range, and not too long for it.
pub(super) fn is_quick(address: &PageAddress) -> bool {
    address.length() <= API_PART_BYTES
}

impl Api {
    /// Goes on with a short range that needs the disk.
    pub(super) fn spawn_short_range(&mut self, net: &mut Net, caller: Caller, view: View, run: RangeRun) {
        let (at_main, identity) = (run.at_main(), self.settings.identity);
        self.run(net, caller, view, at_main, Pace::Short, move |task, view| async move {
            task.send_short_range(run, view, identity).await
        });
    }
}

impl Task {
    async fn send_short_range(&self, run: RangeRun, view: View, identity: Identity) -> Result<(), Ended> {
        for _ in 0..API_SHORT_LOADS {
            let short = short_range(&run, &self.index.pin(), &view, &self.pages, identity);
            match short {
                Short::Answer(bytes) => return self.reply(&bytes),
                Short::Lacks(address) if is_quick(&address) => self.pages.load(&view, &address).await?,
                _ => break,
            }
            self.check_open()?;
        }
        let caller = self.caller;
        self.connections
            .with(|api, net| api.spawn_range(net, caller, view, &run));
        Err(Ended::HandedOver)
    }

    /// Ends a unary call with a message that its turn takes at once.
    fn reply(&self, message: &[u8]) -> Result<(), Ended> {
        self.connections.with(|api, _| api.count_sent_bytes(message.len()));
        self.send(|net, call| net.reply(call, message.len(), |out| out.extend_from_slice(message)))
    }
}
