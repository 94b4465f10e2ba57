//! Watches held beside a load, on all of its keys and with previous values, each on a stream of its own. Every change
//! has to reach each of them, once and in order.

use super::recipe::{KEYS_END, key_of};
use super::{SILENCE, ready::Ready, silence};
use crate::watch::streams::Streams;
use ringd::proto::etcdserverpb::WatchCreateRequest;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Streams on one connection.
const STREAMS: usize = 100;

pub struct Watchers {
    pub connections: Vec<Streams>,
    pub count: usize,
    pub events: u64,
}

impl Watchers {
    /// Connects, and waits until all are created.
    pub fn open(address: SocketAddr, count: usize) -> io::Result<Self> {
        let mut ready = Ready::new()?;
        let mut connections = Vec::new();
        for which in 0..count.div_ceil(STREAMS) {
            let mut connection = Streams::open(address)?;
            for _ in 0..STREAMS.min(count - which * STREAMS) {
                connection.watch(vec![WatchCreateRequest {
                    key: key_of(0).into(),
                    range_end: KEYS_END.into(),
                    prev_kv: true,
                    progress_notify: true,
                    ..Default::default()
                }]);
            }
            ready.add(connection.wire.socket().as_fd(), which)?;
            connections.push(connection);
        }
        let mut watchers = Self {
            connections,
            count,
            events: 0,
        };
        while watchers.connections.iter().map(|each| each.created).sum::<usize>() < count {
            for connection in &mut watchers.connections {
                connection.wire.flush()?;
            }
            let mut events = Vec::new();
            ready.wait(SILENCE, &mut events)?;
            if events.is_empty() {
                return Err(silence());
            }
            for (which, _) in events {
                watchers.receive(which)?;
            }
        }
        Ok(watchers)
    }

    /// Reads once.
    pub fn receive(&mut self, which: usize) -> io::Result<()> {
        let events = &mut self.events;
        self.connections[which].receive(&mut |_| *events += 1)
    }

    /// Whether all of so many changes have reached all of them; an error when there are more.
    pub fn have(&self, changes: u64) -> io::Result<bool> {
        let wanted = changes * self.count as u64;
        if self.events > wanted {
            let said = format!("{} events of {changes} changes for {} watches", self.events, self.count);
            return Err(io::Error::other(said));
        }
        Ok(self.events == wanted)
    }
}
