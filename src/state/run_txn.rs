//! A transaction being applied: first its compares of intervals, then the plan, then its steps, each of them in slices.

use crate::limits::{APPLY_BYTES_PER_COST, APPLY_SLICE_COST};
use crate::mvcc::revision::Revision;
use crate::mvcc::window::WindowView;
use crate::proto::etcdserverpb::{RangeRequest, TxnRequest};
use crate::state::State;
use crate::state::compare::Comparing;
use crate::state::error::StateError;
use crate::state::outcome::{OperationOutcome, RangeOutcome, TxnOutcome};
use crate::state::plan::Step;
use crate::state::range::RangeRun;
use crate::state::read::Records;
use crate::state::run::{Deletion, Writing};
use bytes::Bytes;
use std::collections::HashMap;

/// What is left to do of a transaction.
pub(crate) enum TxnRun {
    /// Nothing is written yet, and the checks may still refuse it.
    Compare {
        request: Box<TxnRequest>,
        comparing: Comparing,
        records: Deciding,
    },
    /// It cannot fail any more.
    Execute(Executing),
}

/// The records that decide, kept while they do.
pub(crate) struct Deciding {
    pub window: WindowView,
    /// Those that are not in the window.
    pub fetched: HashMap<Revision, Bytes>,
}

impl Records for Deciding {
    fn record(&self, revision: Revision) -> Option<&[u8]> {
        match self.window.get(revision) {
            Some(record) => Some(record.stored()),
            None => self.fetched.record(revision),
        }
    }

    fn kept(&self, revision: Revision) -> Option<Bytes> {
        self.window.kept(revision).or_else(|| self.fetched.kept(revision))
    }
}

/// The path being carried out.
pub(crate) struct Executing {
    steps: std::vec::IntoIter<Step>,
    /// The (nested) transactions that are not finished, outermost first.
    open: Vec<TxnOutcome>,
    current: Option<Current>,
}

/// A step that takes several slices.
enum Current {
    Deletion(Deletion),
    Range(Box<RangeRun>),
}

impl TxnRun {
    /// For a transaction whose compares have to be made.
    pub fn compare(request: TxnRequest, records: Deciding) -> TxnRun {
        let request = Box::new(request);
        let comparing = Comparing::new(&request);
        TxnRun::Compare {
            request,
            comparing,
            records,
        }
    }

    /// For a transaction that is decided.
    pub fn execute(steps: Vec<Step>) -> TxnRun {
        TxnRun::Execute(Executing {
            steps: steps.into_iter(),
            open: Vec::new(),
            current: None,
        })
    }
}

impl State {
    pub(crate) fn run_txn(
        &mut self,
        writing: &mut Writing,
        run: &mut TxnRun,
        budget: &mut usize,
    ) -> Option<Result<TxnOutcome, StateError>> {
        if let TxnRun::Compare {
            request,
            comparing,
            records,
        } = run
        {
            while !comparing.step(self.keys(), self.revision, records) {
                *budget = budget.saturating_sub(comparing.cost());
                if *budget == 0 {
                    return None;
                }
            }
            match self.planner(records, comparing, |planner| planner.plan(request)) {
                Ok(steps) => *run = TxnRun::execute(steps),
                Err(error) => return Some(Err(error)),
            }
        }
        match run {
            TxnRun::Execute(executing) => self.run_steps(writing, executing, budget).map(Ok),
            TxnRun::Compare { .. } => None,
        }
    }

    fn run_steps(&mut self, writing: &mut Writing, run: &mut Executing, budget: &mut usize) -> Option<TxnOutcome> {
        loop {
            let outcome = match run.current.take() {
                Some(Current::Deletion(mut deletion)) => {
                    let Some(outcome) = self.run_deletion(writing, &mut deletion, budget) else {
                        run.current = Some(Current::Deletion(deletion));
                        return None;
                    };
                    OperationOutcome::Delete(outcome)
                }
                Some(Current::Range(mut range)) => {
                    while !range.step(self.keys()) {
                        *budget = budget.saturating_sub(APPLY_SLICE_COST);
                        if *budget == 0 {
                            run.current = Some(Current::Range(range));
                            return None;
                        }
                    }
                    OperationOutcome::Range(RangeOutcome::Found(range))
                }
                None if *budget == 0 => return None,
                None => {
                    let step = run
                        .steps
                        .next()
                        .expect("a path ends with leaving its outermost transaction");
                    match self.run_step(writing, step, &mut run.open, budget) {
                        Stepped::Operation(outcome) => outcome,
                        Stepped::Begun(current) => {
                            run.current = Some(current);
                            continue;
                        }
                        Stepped::Entered => continue,
                        Stepped::Left(outcome) => return Some(outcome),
                    }
                }
            };
            let open = run.open.last_mut().expect("an operation is inside of a transaction");
            open.operations.push(outcome);
        }
    }

    fn run_step(
        &mut self,
        writing: &mut Writing,
        step: Step,
        open: &mut Vec<TxnOutcome>,
        budget: &mut usize,
    ) -> Stepped {
        *budget -= 1;
        Stepped::Operation(match step {
            Step::Enter { succeeded } => {
                open.push(TxnOutcome {
                    revision: 0,
                    succeeded,
                    operations: Vec::new(),
                });
                return Stepped::Entered;
            }
            Step::Leave => {
                let left = open.pop().expect("a path leaves what it has entered");
                if open.is_empty() {
                    return Stepped::Left(TxnOutcome {
                        revision: writing.revision(),
                        ..left
                    });
                }
                OperationOutcome::Txn(left)
            }
            Step::Delete(request) => {
                return Stepped::Begun(Current::Deletion(Deletion::new(&request, writing.revision())));
            }
            Step::Range { request, writes_follow } => match begin_range(writing, &request, writes_follow) {
                Ok(outcome) => OperationOutcome::Range(outcome),
                Err(run) => return Stepped::Begun(Current::Range(run)),
            },
            Step::Put { request, kept } => {
                let before = self.window.appended_bytes();
                let outcome = self.run_put(writing, &request, kept.as_ref());
                let bytes = self.window.appended_bytes() - before;
                *budget = budget.saturating_sub(bytes as usize / APPLY_BYTES_PER_COST);
                OperationOutcome::Put(outcome)
            }
            Step::Empty => OperationOutcome::Empty,
        })
    }
}

/// What a step came to.
enum Stepped {
    Operation(OperationOutcome),
    Begun(Current),
    Entered,
    Left(TxnOutcome),
}

/// A range reads what is there at its place in the transaction. If no main revision stands for that, between two writes
/// of the transaction, it has to be run now.
fn begin_range(writing: &Writing, request: &RangeRequest, writes_follow: bool) -> Result<RangeOutcome, Box<RangeRun>> {
    if !writing.answer {
        return Ok(RangeOutcome::Skipped);
    }
    let revision = writing.revision();
    let at_main = if request.revision > 0 {
        request.revision
    } else {
        revision
    };
    if at_main <= writing.begin || !writes_follow {
        return Ok(RangeOutcome::Later { revision, at_main });
    }
    Err(Box::new(RangeRun::resolved(request, revision, at_main)))
}
