//! Linearizable reads of a member that does not decide alone: they wait until the log core has confirmed that what is
//! published contains everything committed before they came (`raft::reads`).
//!
//! One question of a core is under way at a time, for all who waited when it was asked; who comes meanwhile waits for
//! the next. So the log core sees a few requests a round, however many reads there are. What waits is bounded.

use super::error;
use super::maintenance::StatusFor;
use super::service::{Api, Caller};
use super::waiting::Waiting;
use crate::grpc::Status;
use crate::limits::{API_WAITING, API_WAITING_BYTES};
use crate::net::Net;
use crate::proto::etcdserverpb::{RangeRequest, TxnRequest};
use crate::raft::messages::{Dropped, Request};
use prost::Message;

/// A read that waits.
pub(super) enum Read {
    /// `Range`.
    Range { caller: Caller, request: RangeRequest },
    /// `RangeStream`.
    RangeStream { caller: Caller, request: RangeRequest },
    /// `Txn` that only reads.
    Txn { caller: Caller, request: TxnRequest },
    /// What tells the member's state, once it is known to be no older than the question.
    Status { want: StatusFor },
}

impl Read {
    fn bytes(&self) -> usize {
        let request = match self {
            Read::Range { request, .. } | Read::RangeStream { request, .. } => request.encoded_len(),
            Read::Txn { request, .. } => request.encoded_len(),
            Read::Status { .. } => 0,
        };
        request + size_of::<Read>()
    }
}

/// The reads of a core that wait.
#[derive(Default)]
pub(super) struct Confirming {
    waiting: Vec<Read>,
    bytes: usize,
    /// Whether the log core was asked, and has not answered.
    asked: bool,
}

impl Api {
    /// Whether a linearizable read has to be confirmed by others.
    pub(super) fn others_decide(&self) -> bool {
        !self.index.pin().view().sole_voter
    }

    /// Lets a read wait for the next confirmation.
    pub(super) fn confirm(&mut self, net: &mut Net, read: Read) {
        let bytes = read.bytes();
        let confirming = &self.confirming;
        if confirming.waiting.len() >= API_WAITING || confirming.bytes + bytes > API_WAITING_BYTES {
            return self.fail_read(net, read, &error::dropped(Dropped::TooManyRequests));
        }
        self.confirming.bytes += bytes;
        self.confirming.waiting.push(read);
        self.ask_confirmation(net);
    }

    fn ask_confirmation(&mut self, net: &mut Net) {
        if self.confirming.asked || self.confirming.waiting.is_empty() {
            return;
        }
        self.confirming.asked = true;
        self.confirming.bytes = 0;
        let reads = std::mem::take(&mut self.confirming.waiting);
        self.ask(net, Waiting::Reads { reads }, |token| Request::ReadIndex { token });
    }

    /// Answers the reads of a round, and asks for the next.
    pub(super) fn reads_confirmed(&mut self, net: &mut Net, reads: Vec<Read>) {
        self.confirming.asked = false;
        self.ask_confirmation(net);
        let mut ranges = Vec::new();
        for read in reads {
            match read {
                Read::Range { caller, request } => ranges.push((caller, request)),
                Read::RangeStream { caller, request } => {
                    let result = self.range_stream_now(net, caller, &request);
                    self.fail_if(net, caller, result);
                }
                Read::Txn { caller, request } => {
                    let result = self.read_txn(net, caller, request);
                    self.fail_if(net, caller, result);
                }
                Read::Status { want } => {
                    self.ask(net, Waiting::Status { want }, |token| Request::Status { token });
                }
            }
        }
        self.answer_ranges(net, &ranges);
    }

    /// The reads of a round are not confirmed.
    pub(super) fn reads_failed(&mut self, net: &mut Net, reads: Vec<Read>, status: &Status) {
        self.confirming.asked = false;
        self.ask_confirmation(net);
        for read in reads {
            self.fail_read(net, read, status);
        }
    }

    pub(super) fn fail_if(&mut self, net: &mut Net, caller: Caller, result: Result<(), Status>) {
        if let Err(status) = result {
            self.fail(net, caller, &status);
        }
    }

    fn fail_read(&mut self, net: &mut Net, read: Read, status: &Status) {
        match read {
            Read::Range { caller, .. } | Read::RangeStream { caller, .. } | Read::Txn { caller, .. } => {
                self.fail(net, caller, status);
            }
            Read::Status { want } => {
                if let StatusFor::Http(mut asked) = want {
                    let survives = asked.survives(status);
                    let want = StatusFor::Http(asked);
                    if survives {
                        return self.ask(net, Waiting::Status { want }, |token| Request::Status { token });
                    }
                    return self.status_unknown(net, want, status);
                }
                self.status_unknown(net, want, status);
            }
        }
    }
}
