//! One hub with one stream, and what tests look at.

use super::*;

pub const T0: Duration = Duration::ZERO;

/// A world, a hub with one stream, number 1, and its sink.
pub struct Setup {
    pub world: World,
    pub hub: Hub,
    pub sink: Sink,
}

impl Setup {
    pub fn new() -> Setup {
        let mut hub = Hub::new(CONFIG, 1);
        hub.open(1, T0);
        Setup {
            world: World::new(),
            hub,
            sink: Sink::default(),
        }
    }

    pub fn create(&mut self, request: CreateRequest<'_>) -> WatchResponse {
        let view = self.world.view();
        self.hub.create(1, request, &view, T0, &mut self.sink);
        self.sink.queues.get_mut(&1).unwrap().pop_back().unwrap()
    }

    pub fn cancel(&mut self, watch_id: i64) -> Vec<WatchResponse> {
        let view = self.world.view();
        self.hub.cancel(1, watch_id, &view, &mut self.sink);
        self.sink.take(1)
    }

    pub fn settle(&mut self) -> Vec<WatchResponse> {
        self.settle_at(T0)
    }

    pub fn settle_at(&mut self, now: Duration) -> Vec<WatchResponse> {
        self.world.settle(&mut self.hub, &mut self.sink, now);
        self.sink.take(1)
    }

    pub fn progress(&mut self) -> Vec<WatchResponse> {
        self.hub.request_progress(1);
        self.settle()
    }
}

pub fn key(key: &str) -> CreateRequest<'_> {
    CreateRequest {
        key: key.as_bytes(),
        ..CreateRequest::default()
    }
}

pub fn from(key: &str, start_revision: i64) -> CreateRequest<'_> {
    CreateRequest {
        key: key.as_bytes(),
        start_revision,
        ..CreateRequest::default()
    }
}

pub fn header(response: &WatchResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

pub fn mains(response: &WatchResponse) -> Vec<i64> {
    response
        .events
        .iter()
        .map(|event| event.kv.as_ref().unwrap().mod_revision)
        .collect()
}
