//! Free space: which pages a checkpoint may write, and when the pages it frees may be.
//!
//! A page freed by commit G lies in the tree of G-1. It is `pending` until the metas on disk are G and a later one, and
//! no live root older than G holds it; then it is `available`. The free list stored with a commit has two parts: what
//! both metas on disk leave free, and what this very commit freed.

use super::codec::{put_varint, take_varint};
use super::page::FIRST_DATA_PAGE;
use super::runs::RunSet;

/// Page numbers end here: the highest file offset is 32 TiB.
const FILE_PAGES_MAX: u32 = u32::MAX - 1;

/// Why a page could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitReached;

/// Pages that were in use until a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freed {
    pub start: u32,
    pub length: u32,
    /// The commit that wrote them: older roots don't hold them.
    pub born: u64,
}

/// What one commit freed.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub generation: u64,
    pub runs: Vec<Freed>,
}

/// How far pending pages were looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    batch: usize,
    run: usize,
}

/// The room of the file.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    /// Free in both metas and held by no reader.
    pub available: RunSet,
    /// Freed, but still protected; ascending by generation.
    pub pending: Vec<Batch>,
    /// The file's length in pages.
    pub file_pages: u32,
    /// Free pages that have no blocks, or may have none: writing there may need room on the disk.
    pub unbacked: RunSet,
    /// Those of them whose blocks were given back to the file system.
    pub punched: RunSet,
    /// Pages that only an urgent checkpoint may use.
    pub reserve: u32,
    /// The file never gets longer than this many pages.
    pub limit: u32,
    /// Whether the disk was full lately: room that has no blocks behind it does not count.
    pub full: bool,
}

/// What a checkpoint took, to be given back if it is abandoned.
#[derive(Debug)]
pub(super) struct Journal {
    taken: Vec<(u32, u32)>,
    file_pages: u32,
    urgent: bool,
    /// While pages are moved down, lower pages than this are preferred.
    pub below: Option<u32>,
}

impl FreeSpace {
    /// Starts the allocations of a checkpoint.
    pub fn journal(&self, urgent: bool, below: Option<u32>) -> Journal {
        Journal {
            taken: Vec::new(),
            file_pages: self.file_pages,
            urgent,
            below,
        }
    }

    /// Free pages that surely have blocks.
    pub fn backed_pages(&self) -> u32 {
        self.available.pages() - self.unbacked.pages()
    }

    /// Takes free pages off the file's end.
    pub fn shorten(&mut self, pages: u32) {
        self.file_pages -= pages;
        let tail = self.file_pages..self.file_pages + pages;
        self.available.remove(tail.start, pages);
        self.unbacked.subtract(tail.clone());
        self.punched.subtract(tail);
    }

    /// Notes that writing these pages failed for want of room.
    pub fn note_unbacked(&mut self, start: u32, length: u32) {
        if self.available.contains(start, length) {
            self.unbacked.unite(start..start + length);
        }
    }

    /// Pages in use by the newest commit, the metas included.
    pub fn used_pages(&self) -> u32 {
        let pending: u32 = self
            .pending
            .iter()
            .flat_map(|batch| &batch.runs)
            .map(|freed| freed.length)
            .sum();
        self.file_pages - self.available.pages() - pending
    }

    /// Takes exactly `pages` consecutive pages.
    pub fn take(&mut self, journal: &mut Journal, pages: u32) -> Result<u32, LimitReached> {
        match self.fit(journal, pages) {
            Some(start) => {
                self.take_at(journal, start, pages);
                Ok(start)
            }
            None => self.grow(journal, pages),
        }
    }

    /// Takes up to `pages` consecutive pages, fewer when there are holes to be filled before the file has to grow.
    pub fn take_some(&mut self, journal: &mut Journal, pages: u32) -> Result<(u32, u32), LimitReached> {
        let halves = || std::iter::successors(Some(pages), |length| Some(length / 2)).take_while(|&length| length > 0);
        let below = journal.below.unwrap_or(0);
        let low = halves().find_map(|length| Some((self.fit(journal, length).filter(|&start| start < below)?, length)));
        let found = low.or_else(|| halves().find_map(|length| Some((self.fit(journal, length)?, length))));
        if let Some((start, length)) = found {
            self.take_at(journal, start, length);
            return Ok((start, length));
        }
        let length = if self.room() >= pages { pages } else { 1 };
        self.grow(journal, length).map(|start| (start, length))
    }

    fn take_at(&mut self, journal: &mut Journal, start: u32, length: u32) {
        self.available.remove(start, length);
        self.unbacked.subtract(start..start + length);
        self.punched.subtract(start..start + length);
        journal.taken.push((start, length));
    }

    fn fit(&self, journal: &Journal, pages: u32) -> Option<u32> {
        if !journal.urgent && self.available.pages() < self.reserve.saturating_add(pages) {
            return None;
        }
        if !self.full {
            return self.available.fit(pages);
        }
        // Room without blocks behind it may not be there.
        self.available.at_least(pages).find_map(|(start, length)| {
            let places = (start..=start + length - pages).step_by(pages as usize);
            places.into_iter().find(|&place| self.unbacked.disjoint(place, pages))
        })
    }

    /// Pages by which the file may still grow.
    pub fn room(&self) -> u32 {
        self.limit.min(FILE_PAGES_MAX).saturating_sub(self.file_pages)
    }

    fn grow(&mut self, journal: &mut Journal, pages: u32) -> Result<u32, LimitReached> {
        if self.room() < pages {
            return Err(LimitReached);
        }
        let start = self.file_pages;
        self.file_pages += pages;
        journal.taken.push((start, pages));
        Ok(start)
    }

    /// Gives back pages taken in this checkpoint and not written.
    pub fn give_back(&mut self, journal: &mut Journal, start: u32, length: u32) {
        let whole = journal
            .taken
            .iter()
            .rposition(|&(from, pages)| from <= start && start + length == from + pages);
        let index = whole.expect("the tail of a run of this checkpoint");
        journal.taken[index].1 -= length;
        if journal.taken[index].1 == 0 {
            journal.taken.swap_remove(index);
        }
        self.available.insert(start, length);
        if start >= journal.file_pages {
            self.unbacked.insert(start, length);
        }
    }

    /// Undoes the allocations of an abandoned checkpoint; the file is to be cut back to its length before if it grew.
    pub fn undo(&mut self, journal: Journal) -> bool {
        for (start, length) in journal.taken {
            self.available.insert(start, length);
        }
        let grown = self.file_pages > journal.file_pages;
        if grown {
            self.available.subtract(journal.file_pages..self.file_pages);
            self.unbacked.subtract(journal.file_pages..self.file_pages);
            self.file_pages = journal.file_pages;
        }
        grown
    }

    /// Makes pages available that are neither in a meta on disk nor in a live root: looks at up to `budget` runs from
    /// the cursor on. `older` is the generation of the older meta, `live` those of the live roots but the newest.
    /// Whether all were looked at.
    pub fn reclaim(&mut self, cursor: &mut Cursor, older: u64, live: &[u64], budget: usize) -> bool {
        for _ in 0..budget {
            let Some(batch) = self
                .pending
                .get_mut(cursor.batch)
                .filter(|batch| batch.generation <= older)
            else {
                self.pending
                    .retain(|batch| !batch.runs.is_empty() || batch.generation > older);
                return true;
            };
            let Some(freed) = batch.runs.get(cursor.run).copied() else {
                *cursor = Cursor {
                    batch: cursor.batch + 1,
                    run: 0,
                };
                continue;
            };
            if live.iter().any(|&root| freed.born <= root && root < batch.generation) {
                cursor.run += 1;
            } else {
                batch.runs.swap_remove(cursor.run);
                self.available.insert(freed.start, freed.length);
            }
        }
        false
    }

    /// Pages that a live root of this generation keeps from being reused.
    pub fn held_pages(&self, root: u64) -> u64 {
        let batches = self.pending.iter().filter(|batch| root < batch.generation);
        let held = batches.flat_map(|batch| &batch.runs).filter(|freed| freed.born <= root);
        held.map(|freed| u64::from(freed.length)).sum()
    }

    /// The free list as it is stored with a commit that frees `freed`: the file's length is stored beside it.
    pub fn encode(&self, freed: &[Freed]) -> Vec<u8> {
        let mut free: Vec<(u32, u32)> = self.available.iter().collect();
        let pending = self.pending.iter().flat_map(|batch| &batch.runs);
        free.extend(pending.map(|freed| (freed.start, freed.length)));
        let mut out = Vec::with_capacity(free.len() * 4 + 16);
        encode_runs(&mut out, free);
        encode_runs(
            &mut out,
            freed.iter().map(|freed| (freed.start, freed.length)).collect(),
        );
        out
    }

    /// Reads a stored free list of commit `generation` in a file of `file_pages` pages. `None` when it is none.
    pub fn decode(mut bytes: &[u8], generation: u64, file_pages: u32) -> Option<FreeSpace> {
        let available = decode_runs(&mut bytes, file_pages)?;
        let freed = decode_runs(&mut bytes, file_pages)?;
        if freed.iter().any(|(start, length)| !available.disjoint(start, length)) {
            return None;
        }
        let runs: Vec<Freed> = freed
            .iter()
            .map(|(start, length)| Freed { start, length, born: 0 })
            .collect();
        let pending = if runs.is_empty() {
            Vec::new()
        } else {
            vec![Batch { generation, runs }]
        };
        // Which of them have blocks is not stored.
        let unbacked = available.clone();
        Some(FreeSpace {
            available,
            unbacked,
            pending,
            file_pages,
            limit: FILE_PAGES_MAX,
            ..FreeSpace::default()
        })
    }
}

/// Runs as gaps and lengths; adjacent ones are joined.
fn encode_runs(out: &mut Vec<u8>, mut runs: Vec<(u32, u32)>) {
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        assert!(run.0 + run.1 <= next.0, "pages {} are free twice", next.0);
        let joins = run.0 + run.1 == next.0;
        run.1 += if joins { next.1 } else { 0 };
        joins
    });
    put_varint(out, runs.len() as u64);
    let mut end = 0;
    for (start, length) in runs {
        put_varint(out, u64::from(start - end));
        put_varint(out, u64::from(length));
        end = start + length;
    }
}

fn decode_runs(bytes: &mut &[u8], file_pages: u32) -> Option<RunSet> {
    let count = take_varint(bytes)?;
    let mut runs = RunSet::default();
    let mut end = 0u64;
    for _ in 0..count {
        let start = end.checked_add(take_varint(bytes)?)?;
        let length = take_varint(bytes)?;
        end = start.checked_add(length)?;
        if length == 0 || start < u64::from(FIRST_DATA_PAGE) || end > u64::from(file_pages) {
            return None;
        }
        let (start, length) = (start as u32, length as u32);
        if !runs.disjoint(start, length) {
            return None;
        }
        runs.insert(start, length);
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(pages: u32) -> FreeSpace {
        FreeSpace {
            file_pages: pages,
            limit: 1000,
            ..FreeSpace::default()
        }
    }

    #[test]
    fn holes_first_then_growth_then_the_limit() {
        let mut space = space(20);
        space.available.insert(5, 3);
        space.available.insert(12, 1);
        let mut journal = space.journal(false, None);
        assert_eq!(space.take_some(&mut journal, 32), Ok((5, 2)));
        assert_eq!(space.take_some(&mut journal, 32), Ok((7, 1)));
        assert_eq!(space.take(&mut journal, 2), Ok(20));
        space.limit = 23;
        assert_eq!(space.take_some(&mut journal, 32), Ok((12, 1)));
        assert_eq!(space.take_some(&mut journal, 32), Ok((22, 1)));
        assert_eq!(space.take_some(&mut journal, 32), Err(LimitReached));
        assert!(space.undo(journal));
        assert_eq!(space.file_pages, 20);
        assert_eq!(space.available.iter().collect::<Vec<_>>(), [(5, 3), (12, 1)]);
    }

    #[test]
    fn the_reserve_is_for_urgent_checkpoints() {
        let mut space = space(20);
        (space.reserve, space.limit) = (4, 20);
        space.available.insert(10, 5);
        let mut journal = space.journal(false, None);
        assert_eq!(space.take(&mut journal, 1), Ok(10));
        assert_eq!(space.take(&mut journal, 1), Err(LimitReached));
        let mut urgent = space.journal(true, None);
        assert_eq!(space.take(&mut urgent, 4), Ok(11));
    }

    #[test]
    fn pages_come_back_when_no_meta_and_no_reader_holds_them() {
        let mut space = space(20);
        space.pending.push(Batch {
            generation: 7,
            runs: vec![
                Freed {
                    start: 5,
                    length: 1,
                    born: 3,
                },
                Freed {
                    start: 8,
                    length: 2,
                    born: 6,
                },
            ],
        });
        assert!(space.reclaim(&mut Cursor::default(), 6, &[], 9));
        assert_eq!(space.available.pages(), 0, "the older meta still holds them");
        assert_eq!(space.held_pages(4), 1);
        assert!(space.reclaim(&mut Cursor::default(), 7, &[4], 9));
        assert_eq!(
            space.available.iter().collect::<Vec<_>>(),
            [(8, 2)],
            "born after the reader's root"
        );
        assert!(space.reclaim(&mut Cursor::default(), 7, &[], 9));
        assert_eq!(space.available.pages(), 3);
        assert_eq!(space.used_pages(), 17);
    }

    #[test]
    fn the_list_round_trips_and_refuses_overlaps() {
        let mut space = space(20);
        space.available.insert(5, 3);
        space.pending.push(Batch {
            generation: 3,
            runs: vec![Freed {
                start: 8,
                length: 1,
                born: 1,
            }],
        });
        let bytes = space.encode(&[Freed {
            start: 12,
            length: 2,
            born: 2,
        }]);
        let again = FreeSpace::decode(&bytes, 4, 20).unwrap();
        assert_eq!(again.available.iter().collect::<Vec<_>>(), [(5, 4)]);
        assert_eq!((again.pending.len(), again.pending[0].generation), (1, 4));
        assert!(FreeSpace::decode(&bytes, 4, 13).is_none(), "beyond the file");
        for length in 0..bytes.len() {
            assert!(FreeSpace::decode(&bytes[..length], 4, 20).is_none());
        }
        let twice = space.encode(&[Freed {
            start: 6,
            length: 1,
            born: 2,
        }]);
        assert!(FreeSpace::decode(&twice, 4, 20).is_none());
    }
}
