//! A connection that a peer has made, on which requests come and are answered.

use super::wait;
use crate::http::http1::{Connection, Event, Request};
use crate::limits::transport as limits;
use crate::reactor::serve::Stream;
use bytes::Bytes;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The connection and where it is in HTTP/1.1.
pub(super) struct Served {
    pub stream: Stream,
    pub connection: Connection,
    clock: Instant,
    /// How long the peer may neither send nor take anything.
    silence: Duration,
}

/// An answer with a short body.
pub(super) struct Answer {
    pub status: u16,
    pub fields: Vec<(&'static str, String)>,
    pub body: String,
}

impl Answer {
    /// Without a body.
    pub fn empty(status: u16) -> Answer {
        let (fields, body) = (Vec::new(), String::new());
        Answer { status, fields, body }
    }

    /// Plain text as Go's `http.Error` sends it.
    pub fn error(status: u16, text: &str) -> Answer {
        Answer {
            status,
            fields: vec![
                ("Content-Type", "text/plain; charset=utf-8".to_string()),
                ("X-Content-Type-Options", "nosniff".to_string()),
            ],
            body: format!("{text}\n"),
        }
    }

    pub fn with(mut self, name: &'static str, value: impl ToString) -> Answer {
        self.fields.push((name, value.to_string()));
        self
    }
}

impl Served {
    pub fn new(stream: Stream, connection: Connection) -> Served {
        let clock = Instant::now();
        Served {
            stream,
            connection,
            clock,
            silence: limits::CONNECTION_SILENCE,
        }
    }

    /// The next event; `None` when the connection is over.
    pub async fn event(&mut self) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = self.connection.next_event() {
                return Ok(Some(event));
            }
            self.flush().await?;
            if self.connection.is_closed() {
                return Ok(None);
            }
            let bytes = wait::receive(&self.stream, self.silence).await?;
            if bytes.is_empty() {
                return Ok(None);
            }
            self.connection.receive(&bytes, self.clock.elapsed());
        }
    }

    /// The next request; `None` when the connection is over.
    pub async fn request(&mut self) -> io::Result<Option<Request>> {
        while let Some(event) = self.event().await? {
            if let Event::Request(request) = event {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// The next part of the request's body: `None` at its end.
    pub async fn body(&mut self) -> io::Result<Option<Bytes>> {
        match self.event().await? {
            Some(Event::Body(bytes)) => Ok(Some(bytes)),
            Some(Event::End) => Ok(None),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Answers the request. What is left of its body is not read.
    pub async fn answer(&mut self, answer: Answer) -> io::Result<()> {
        let fields: Vec<_> = answer
            .fields
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        // A request whose body broke was answered by the connection itself.
        let _ = self.connection.respond(answer.status, &fields, answer.body.as_bytes());
        self.flush().await
    }

    /// Begins an answer without an end.
    pub async fn begin(&mut self, fields: &[(&str, &str)]) -> io::Result<()> {
        let begun = self.connection.start_response(200, fields);
        begun.map_err(io::Error::other)?;
        self.flush().await
    }

    /// Sends a part of it.
    pub async fn send_part(&mut self, part: &[u8]) -> io::Result<()> {
        self.connection.send_part(part).map_err(io::Error::other)?;
        self.flush().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        let output = self.connection.take_output(Vec::new(), self.clock.elapsed());
        wait::send(&self.stream, &output, self.silence).await
    }
}

/// The body behind a snapshot's message, as it comes in. Memory is taken for what was received and not yet taken.
pub struct SnapshotBody {
    served: Rc<Cell<Option<Served>>>,
    first: Bytes,
    ended: bool,
    taken: u64,
}

impl SnapshotBody {
    pub(super) fn new(mut served: Served, first: Bytes) -> (SnapshotBody, Rc<Cell<Option<Served>>>) {
        served.silence = limits::SNAPSHOT_SILENCE;
        let served = Rc::new(Cell::new(Some(served)));
        let body = SnapshotBody {
            served: served.clone(),
            first,
            ended: false,
            taken: 0,
        };
        (body, served)
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The next part; `None` at the end of the body. An error says that the sender is gone, or was silent for too
    /// long.
    pub async fn next_part(&mut self) -> io::Result<Option<Bytes>> {
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            self.taken += first.len() as u64;
            return Ok(Some(first));
        }
        if self.ended {
            return Ok(None);
        }
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut served = self.served.take().ok_or_else(gone)?;
        let part = served.body().await;
        self.served.set(Some(served));
        match &part {
            Ok(Some(bytes)) => self.taken += bytes.len() as u64,
            _ => self.ended = true,
        }
        part
    }
}
