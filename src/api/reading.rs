//! Which revisions this core's long reads are at, so that compactions keep what they need.

use super::service::Api;

impl Api {
    /// Notes a read in slices at a main revision: compaction keeps what it needs.
    pub(super) fn begin_reading(&mut self, at_main: i64) {
        *self.reading.entry(at_main).or_default() += 1;
        self.own_metrics().long_reads.add(1);
        self.publish_reading();
    }

    /// A read noted with `begin_reading` is over.
    pub(super) fn end_reading(&mut self, at_main: i64) {
        if let Some(count) = self.reading.get_mut(&at_main) {
            *count -= 1;
            self.settings.metrics.core(self.core).long_reads.subtract(1);
            if *count == 0 {
                self.reading.remove(&at_main);
            }
        }
        self.publish_reading();
    }

    fn publish_reading(&self) {
        let lowest = self.reading.keys().next().copied().unwrap_or(i64::MAX);
        self.readers.set(self.core, lowest);
    }
}
