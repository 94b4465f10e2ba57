//! Sets of pages kept as runs, with the lowest run of a wanted length at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Runs of one length class looked at when only that class may hold a fit.
const FIT_TRIES: usize = 64;

/// A set of page numbers, as maximal runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunSet {
    /// Start to length; runs neither touch nor overlap.
    runs: BTreeMap<u32, u32>,
    /// Starts of the runs whose length has its highest bit at this place.
    classes: [BTreeSet<u32>; 32],
    pages: u32,
}

impl RunSet {
    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The runs as (start, length), ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> + '_ {
        self.runs.iter().map(|(&start, &length)| (start, length))
    }

    /// The run with the highest pages.
    pub fn last(&self) -> Option<(u32, u32)> {
        self.iter().next_back()
    }

    /// Runs of at least `length` pages, in no order.
    pub fn at_least(&self, length: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let classes = &self.classes[class(length)..];
        let runs = classes.iter().flatten().map(|&start| (start, self.runs[&start]));
        runs.filter(move |&(_, found)| found >= length)
    }

    /// Whether all of these pages are in the set.
    pub fn contains(&self, start: u32, length: u32) -> bool {
        self.run_before(start)
            .is_some_and(|(found, run)| found + run >= start + length)
    }

    /// Whether none of these pages is in the set.
    pub fn disjoint(&self, start: u32, length: u32) -> bool {
        let inside = self.runs.range(start..start + length).next().is_some();
        !inside && self.run_before(start).is_none_or(|(found, run)| found + run <= start)
    }

    /// How many of these pages are in the set.
    pub fn count_in(&self, pages: Range<u32>) -> u32 {
        let from = self.run_before(pages.start).map_or(pages.start, |(start, _)| start);
        let overlap =
            |(&start, &length): (&u32, &u32)| (start + length).min(pages.end).saturating_sub(start.max(pages.start));
        self.runs.range(from..pages.end).map(overlap).sum()
    }

    /// The last run that starts at or before `start`.
    fn run_before(&self, start: u32) -> Option<(u32, u32)> {
        self.runs
            .range(..=start)
            .next_back()
            .map(|(&start, &length)| (start, length))
    }

    fn add(&mut self, start: u32, length: u32) {
        self.runs.insert(start, length);
        self.classes[class(length)].insert(start);
        self.pages += length;
    }

    fn take(&mut self, start: u32) -> u32 {
        let length = self.runs.remove(&start).expect("a run starts here");
        self.classes[class(length)].remove(&start);
        self.pages -= length;
        length
    }

    /// Adds pages that are not in the set.
    pub fn insert(&mut self, mut start: u32, mut length: u32) {
        assert!(
            length > 0 && self.disjoint(start, length),
            "pages {start}+{length} are in the set already"
        );
        if let Some((before, run)) = self.run_before(start)
            && before + run == start
        {
            length += self.take(before);
            start = before;
        }
        if self.runs.contains_key(&(start + length)) {
            length += self.take(start + length);
        }
        self.add(start, length);
    }

    /// Takes pages out that are in the set.
    pub fn remove(&mut self, start: u32, length: u32) {
        assert!(
            length > 0 && self.contains(start, length),
            "pages {start}+{length} are not in the set"
        );
        let (run_start, _) = self.run_before(start).expect("contains");
        let run = self.take(run_start);
        if run_start < start {
            self.add(run_start, start - run_start);
        }
        let (end, run_end) = (start + length, run_start + run);
        if end < run_end {
            self.add(end, run_end - end);
        }
    }

    /// Takes out what of these pages is in the set.
    pub fn subtract(&mut self, pages: Range<u32>) {
        let from = self.run_before(pages.start).map_or(pages.start, |(start, _)| start);
        let runs: Vec<(u32, u32)> = self
            .runs
            .range(from..pages.end)
            .map(|(&start, &length)| (start, length))
            .collect();
        for (start, length) in runs {
            let (low, high) = (start.max(pages.start), (start + length).min(pages.end));
            if low < high {
                self.remove(low, high - low);
            }
        }
    }

    /// Adds what of these pages is not in the set.
    pub fn unite(&mut self, pages: Range<u32>) {
        self.subtract(pages.clone());
        self.insert(pages.start, pages.end - pages.start);
    }

    /// Start of a low run of at least `length` pages. Not always the lowest: of each class only the first is looked at.
    pub fn fit(&self, length: u32) -> Option<u32> {
        let sure = class(length) + usize::from(!length.is_power_of_two());
        let firsts = self
            .classes
            .iter()
            .skip(sure)
            .filter_map(|class| class.first().copied());
        firsts.min().or_else(|| {
            let close = self.classes[class(length)].iter().take(FIT_TRIES);
            close.copied().find(|start| self.runs[start] >= length)
        })
    }
}

/// The place of the highest bit.
fn class(length: u32) -> usize {
    assert!(length > 0);
    length.ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_low_runs_that_fit() {
        let mut set = RunSet::default();
        for (start, length) in [(2, 1), (10, 3), (20, 5), (40, 4), (100, 64)] {
            set.insert(start, length);
        }
        assert_eq!(set.fit(1), Some(2));
        assert_eq!(set.fit(2), Some(10));
        assert_eq!(set.fit(4), Some(20));
        assert_eq!(set.fit(5), Some(100), "of a class that surely fits");
        assert_eq!(set.fit(64), Some(100));
        assert_eq!(set.fit(65), None);
        assert_eq!(set.at_least(4).count(), 3);
        set.remove(100, 64);
        assert_eq!(set.fit(5), Some(20));
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_pages(steps in prop::collection::vec((0u8..4, 0u32..120, 1u32..12), 1..60)) {
            let mut set = RunSet::default();
            let mut model = BTreeSet::new();
            for (what, start, length) in steps {
                let pages = start..start + length;
                prop_assert_eq!(set.contains(start, length), pages.clone().all(|page| model.contains(&page)));
                prop_assert_eq!(set.disjoint(start, length), pages.clone().all(|page| !model.contains(&page)));
                let inside = pages.clone().filter(|page| model.contains(page)).count();
                prop_assert_eq!(set.count_in(pages.clone()) as usize, inside);
                match what {
                    0 if set.disjoint(start, length) => set.insert(start, length),
                    1 if set.contains(start, length) => set.remove(start, length),
                    2 => set.unite(pages.clone()),
                    3 => set.subtract(pages.clone()),
                    _ => continue,
                }
                for page in pages {
                    if what % 2 == 0 { model.insert(page); } else { model.remove(&page); }
                }
                let pages: Vec<u32> = set.iter().flat_map(|(start, length)| start..start + length).collect();
                prop_assert_eq!(&pages, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.pages() as usize, pages.len());
                let runs: Vec<_> = set.iter().collect();
                prop_assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
                prop_assert_eq!(set.classes.iter().map(BTreeSet::len).sum::<usize>(), set.runs.len());
            }
        }
    }
}
