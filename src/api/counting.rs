//! What a serve core counts of the calls it answers.
//!
//! Counters of gRPC are etcd's (its `grpc_prometheus` interceptor's): a unary call has sent one message, even when it
//! failed; the end of what the caller of a stream sends is one more message received; of a call that its caller gave up
//! the status is Canceled, or DeadlineExceeded when its own time was over. The time of a unary request runs from the
//! turn that received it to the turn that sends its answer, so it costs no clock reading.

use super::health::CHECKS;
use super::method::Method;
use super::service::Api;
use crate::grpc::Code;
use crate::metrics::{CoreMetrics, Registry};
use crate::mvcc::watch::{Counters, Hub};
use std::time::Duration;

/// A call that ended in this turn.
pub(super) struct Ended {
    method: Method,
    code: Code,
    received_at: Duration,
}

impl Api {
    /// Room for what so many cores count.
    pub fn registry(cores: usize) -> Registry {
        Registry::new(cores, Method::ALL.len(), CHECKS)
    }

    /// What this core counts.
    pub(super) fn own_metrics(&self) -> &CoreMetrics {
        self.settings.metrics.core(self.core)
    }

    pub(super) fn count_received(&self, method: Method, length: usize) {
        let metrics = self.own_metrics();
        metrics.methods[method as usize].received.add(1);
        metrics.received_bytes.add(length as u64);
    }

    pub(super) fn count_sent_bytes(&self, length: usize) {
        self.own_metrics().sent_bytes.add(length as u64);
    }

    /// A call began.
    pub(super) fn count_started(&self, method: Method) {
        self.own_metrics().methods[method as usize].started.add(1);
    }

    /// The watches are what they are now.
    pub(super) fn count_watches(&self, hub: &Hub) {
        let metrics = self.own_metrics();
        let (streams, watches, lagging) = hub.sizes();
        metrics.watch_streams.set(streams as u64);
        metrics.watches.set(watches as u64);
        metrics.slow_watches.set(lagging as u64);
        metrics.events.set(hub.counters().events);
        metrics.pending_events.set(hub.pending_events() as u64);
    }

    /// The hub sent messages for a time; `before` is what it had sent until then. Reading the clock for every message
    /// would cost more than most of them: each gets an equal part of the time.
    pub(super) fn count_watch_sends(&self, hub: &Hub, before: Counters, time: Duration) {
        let after = hub.counters();
        let messages = after.messages - before.messages;
        if messages == 0 {
            return;
        }
        let sends = &self.own_metrics().watch_sends;
        let share = |count: u64| u32::try_from(count).map_or(Duration::ZERO, |count| time / count);
        let with_events = after.event_messages - before.event_messages;
        let notifications = after.notifications - before.notifications;
        let each = share(messages);
        sends.control.observe(each, messages - with_events - notifications);
        sends.progress.observe(each, notifications);
        if with_events > 0 {
            sends.events.observe(each, with_events);
            let events = after.events - before.events;
            let per_event = each.mul_f64(with_events as f64 / events as f64);
            sends.per_event.observe(per_event, with_events);
        }
    }

    /// A message of a stream was sent.
    pub(super) fn count_streamed(&self, method: Method, length: usize) {
        self.own_metrics().methods[method as usize].sent.add(1);
        self.count_sent_bytes(length);
    }

    /// A call ended; its time is taken when its answer goes out.
    pub(super) fn call_ended(&mut self, method: Method, code: Code, received_at: Duration) {
        self.ended.push(Ended {
            method,
            code,
            received_at,
        });
    }

    /// The turn is over: what was answered in it goes out now.
    pub(super) fn count_ended(&mut self, now: Duration) {
        let core = self.settings.metrics.core(self.core);
        for Ended {
            method,
            code,
            received_at,
        } in self.ended.drain(..)
        {
            let metrics = &core.methods[method as usize];
            metrics.handled[code as usize].add(1);
            // The end of what a caller sends counts as a message.
            metrics.received.add(u64::from(method.streams_requests()));
            let time = now.saturating_sub(received_at);
            match method {
                Method::Range | Method::RangeStream => core.range_times[usize::from(code == Code::Ok)].observe(time, 1),
                Method::HashKv => core.hash_kv_times.observe(time, 1),
                Method::Hash => core.hash_times.observe(time, 1),
                _ => {}
            }
            if method.streams_responses() {
                continue;
            }
            metrics.sent.add(1);
            if code == Code::Ok {
                metrics.succeeded.observe(time);
            } else {
                metrics.failed.observe(time);
            }
        }
    }
}
