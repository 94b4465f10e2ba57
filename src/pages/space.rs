//! Giving space back while serving: the file's free tail is cut off, the blocks of long free runs are returned to the
//! file system, and room is allocated ahead so that the reserve really is there.
//!
//! Runs after a commit, a few operations at a time, on pages that neither meta and no reader holds. An operation that
//! fails is only a warning: nothing depends on it.

use super::checkpoint::Progress;
use super::free::Cursor;
use super::store::{Activity, InFlight, PageStore};
use crate::io::disk::{Disk, DiskError, Operation, Outcome};
use crate::limits::pages::{
    HEADROOM_PAGES, PAGE_BYTES, PUNCH_MIN_PAGES, PUNCH_OPERATIONS, PUNCH_PAGES, RECLAIM_UNIT_RUNS, STEP_UNITS,
};
use std::collections::VecDeque;

/// One operation that gives space back or takes it ahead.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The file gets this many pages.
    Truncate {
        pages: u32,
    },
    Punch {
        start: u32,
        length: u32,
    },
    /// Free pages get blocks.
    Back {
        start: u32,
        length: u32,
    },
    /// The file grows by free pages.
    Allocate {
        pages: u32,
    },
}

/// The operations that follow a checkpoint.
pub(super) struct SpaceReturn {
    /// What is yet to be made available: live roots and a cursor. The rest is planned afterwards.
    reclaim: Option<(Vec<u64>, Cursor)>,
    steps: VecDeque<Step>,
    running: Option<Step>,
}

impl PageStore {
    /// Plans what follows a checkpoint; `grown` says that one was given up after the file had grown.
    pub(super) fn begin_space_return(&mut self, grown: bool) {
        let mut steps = VecDeque::new();
        if grown {
            steps.push_back(Step::Truncate {
                pages: self.space.file_pages,
            });
        }
        let reclaim = Some((self.live(), Cursor::default()));
        self.activity = Activity::SpaceReturn(SpaceReturn {
            reclaim,
            steps,
            running: None,
        });
    }

    fn plan(&mut self, steps: &mut VecDeque<Step>) {
        let space = &mut self.space;
        let wanted = space.reserve + HEADROOM_PAGES;
        let mut missing = wanted.saturating_sub(space.backed_pages());
        if missing > HEADROOM_PAGES / 2 || space.full {
            for (start, length) in space.unbacked.iter().take(PUNCH_OPERATIONS) {
                let length = length.min(missing);
                if length > 0 {
                    steps.push_back(Step::Back { start, length });
                    missing -= length;
                }
            }
            // When the disk was full, this also finds out whether it still is.
            let pages = if steps.is_empty() { missing.max(1) } else { missing };
            let pages = pages.min(space.limit.saturating_sub(space.file_pages));
            if pages > 0 {
                steps.push_back(Step::Allocate { pages });
            }
            // At its limit, with blocks behind every page, the file does not depend on the disk's room.
            space.full &= !steps.is_empty();
            return;
        }
        let spare = space.available.pages().saturating_sub(wanted);
        if let Some((start, length)) = space.available.last()
            && start + length == space.file_pages
            && length.min(spare) >= HEADROOM_PAGES / 2
        {
            // Taken out now: nothing may be allocated there while the operation runs.
            space.shorten(length.min(spare));
            steps.push_back(Step::Truncate {
                pages: space.file_pages,
            });
        }
        let mut backed = space.backed_pages().saturating_sub(wanted);
        let mut budget = PUNCH_PAGES;
        let before = steps.len();
        for (start, length) in space.available.at_least(PUNCH_MIN_PAGES) {
            if budget < PUNCH_MIN_PAGES || steps.len() - before == PUNCH_OPERATIONS {
                break;
            }
            let pages = start..start + length.min(budget);
            let with_blocks = length.min(budget) - space.unbacked.count_in(pages.clone());
            let punched = space.punched.count_in(pages.clone());
            if length.min(budget) - punched >= PUNCH_MIN_PAGES / 2 && with_blocks <= backed {
                budget -= length.min(budget);
                backed -= with_blocks;
                steps.push_back(Step::Punch {
                    start,
                    length: pages.end - start,
                });
            }
        }
    }

    pub(super) fn step_space_return(&mut self, disk: &mut dyn Disk) -> Progress {
        let Activity::SpaceReturn(work) = &mut self.activity else {
            unreachable!("called in this activity");
        };
        if work.running.is_some() {
            return Progress::Waiting;
        }
        if let Some((live, cursor)) = &mut work.reclaim {
            if self
                .space
                .reclaim(cursor, self.older_generation, live, STEP_UNITS * RECLAIM_UNIT_RUNS)
            {
                work.reclaim = None;
                let mut steps = std::mem::take(&mut work.steps);
                if !self.space_return_off {
                    self.plan(&mut steps);
                }
                self.activity = Activity::SpaceReturn(SpaceReturn {
                    reclaim: None,
                    steps,
                    running: None,
                });
            }
            return Progress::Busy;
        }
        let Some(step) = work.steps.pop_front() else {
            self.activity = Activity::Idle;
            self.note_sizes();
            return Progress::Idle;
        };
        work.running = Some(step);
        let (file, bytes) = (self.file, |pages: u32| u64::from(pages) * PAGE_BYTES as u64);
        let operation = match step {
            Step::Truncate { pages } => Operation::Truncate {
                file,
                length: bytes(pages),
            },
            Step::Back { start, length } => Operation::Allocate {
                file,
                offset: bytes(start),
                length: bytes(length),
            },
            Step::Punch { start, length } => Operation::PunchHole {
                file,
                offset: bytes(start),
                length: bytes(length),
            },
            Step::Allocate { pages } => Operation::Allocate {
                file,
                offset: bytes(self.space.file_pages),
                length: bytes(pages),
            },
        };
        self.submit(disk, InFlight::Space, operation);
        Progress::Waiting
    }

    pub(super) fn space_returned(&mut self, result: Result<Outcome, DiskError>) {
        let Activity::SpaceReturn(work) = &mut self.activity else {
            unreachable!("the operation belongs to this activity");
        };
        let step = work.running.take().expect("it was running");
        match (step, result) {
            (Step::Truncate { .. }, Ok(_)) => {}
            (Step::Punch { start, length }, Ok(_)) => {
                self.space.unbacked.unite(start..start + length);
                self.space.punched.unite(start..start + length);
            }
            (Step::Back { start, length }, Ok(_)) => {
                self.space.unbacked.subtract(start..start + length);
                self.space.punched.subtract(start..start + length);
                self.space.full = false;
            }
            (Step::Allocate { pages }, Ok(_)) => {
                self.space.available.insert(self.space.file_pages, pages);
                self.space.file_pages += pages;
                self.space.full = false;
            }
            (Step::Allocate { .. } | Step::Back { .. }, Err(error)) if error.is_no_space() => {
                work.steps.clear();
                self.space.full = true;
            }
            (_, Err(error)) => {
                work.steps.clear();
                self.space_return_off = true;
                self.warnings.push(format!(
                    "page file: no space is given back or allocated ahead any more: {error}"
                ));
            }
        }
    }
}
