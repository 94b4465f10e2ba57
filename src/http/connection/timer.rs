//! What a connection does by the clock: keepalive, responses that do not move, and graceful shutdown.

use std::time::Duration;

use super::{CloseReason, Connection, Drain, Event, Phase};
use crate::http::flow::MAX_WINDOW;
use crate::http::frame::{self, ErrorCode, HEADER_LENGTH};
use crate::http::keepalive::Action;
use crate::limits::{HTTP_DRAIN_SECONDS, HTTP_PREFACE_SECONDS};

/// Marks the ping between the two GOAWAY frames of a shutdown; a keepalive ping is all zeros.
const DRAIN_PING: [u8; 8] = *b"draining";
/// How often a connection with something that waits is looked at.
const CHECK: Duration = Duration::from_secs(1);

impl Connection {
    /// Does what is due at `now`. May leave output and events.
    pub fn on_timer(&mut self, now: Duration) {
        self.now = now;
        if self.closed.is_some() {
            return;
        }
        if self.phase == Phase::Preface && now >= self.opened + Duration::from_secs(HTTP_PREFACE_SECONDS) {
            return self.end(CloseReason::PrefaceTimeout);
        }
        match self.keepalive.on_timer(now, &self.config.keepalive) {
            Action::None => {}
            Action::Ping => {
                frame::write_ping(self.output(), 0, &[0; 8]);
                self.count_control(HEADER_LENGTH + 8);
            }
            Action::Close => return self.end(CloseReason::KeepaliveTimeout),
        }
        if let Drain::Announced(since) = self.drain
            && now >= since + Duration::from_secs(HTTP_DRAIN_SECONDS)
        {
            self.finish_drain();
        }
        self.expire(now);
    }

    /// When [`on_timer`](Self::on_timer) wants to be called next at the latest.
    pub fn deadline(&self) -> Duration {
        let keepalive = self.keepalive.deadline(&self.config.keepalive);
        let waits = self.phase == Phase::Preface
            || matches!(self.drain, Drain::Announced(_))
            || self.queued > 0
            || !self.waiting.is_empty()
            || !self.output.is_empty();
        if waits {
            keepalive.min(self.now + CHECK)
        } else {
            keepalive
        }
    }

    /// Since when the response that has waited longest has not moved: a queue, a producer that waits for room, or
    /// output that the driver cannot send. `None` if nothing waits.
    pub fn stalled_since(&mut self) -> Option<Duration> {
        let output = (!self.output.is_empty()).then_some(self.output_since);
        if self.queued == 0 && self.waiting.is_empty() {
            return output;
        }
        let waits = self
            .streams
            .iter_mut()
            .filter(|(_, stream)| stream.queued > 0 || stream.wants_writable);
        waits.map(|(_, stream)| stream.progressed).chain(output).min()
    }

    /// Resets responses without progress, and gives up a peer that reads nothing at all.
    fn expire(&mut self, now: Duration) {
        let stall = self.config.stall;
        if self.stalled_since().is_none_or(|since| now < since + stall) {
            return;
        }
        if !self.output.is_empty() && now >= self.output_since + stall {
            return self.end(CloseReason::Stalled);
        }
        let expired: Vec<_> = self
            .streams
            .iter_mut()
            .filter(|(_, stream)| (stream.queued > 0 || stream.wants_writable) && now >= stream.progressed + stall)
            .map(|(key, _)| key)
            .collect();
        for stream in expired {
            self.reset(stream, ErrorCode::CANCEL);
            self.pending.push_back(Event::Reset {
                stream,
                code: ErrorCode::CANCEL,
            });
        }
    }

    /// Starts a graceful shutdown: streams that are open, or on their way here, are served; then the connection closes.
    pub fn shutdown(&mut self, now: Duration) {
        self.now = now;
        if self.closed.is_some() || self.drain != Drain::No {
            return;
        }
        if self.phase != Phase::Open {
            return self.finish_drain();
        }
        self.drain = Drain::Announced(now);
        let output = self.output();
        frame::write_goaway(output, MAX_WINDOW, ErrorCode::NO_ERROR, &[]);
        frame::write_ping(output, 0, &DRAIN_PING);
    }

    pub(super) fn on_ping_answer(&mut self, payload: &[u8; 8]) {
        if *payload == DRAIN_PING && matches!(self.drain, Drain::Announced(_)) {
            self.finish_drain();
        }
    }

    fn finish_drain(&mut self) {
        self.drain = Drain::Final;
        let last_stream = self.last_stream;
        self.announced_last_stream = last_stream;
        frame::write_goaway(self.output(), last_stream, ErrorCode::NO_ERROR, &[]);
        if self.streams.is_empty() {
            self.end(CloseReason::Drained);
        }
    }
}
