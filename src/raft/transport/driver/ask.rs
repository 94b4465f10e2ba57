//! What members ask each other beside raft's messages: one request, one short answer, over connections that are kept.
//!
//! Every serve core asks for itself. There are at most `ASKING_CONNECTIONS` under way at once; more wait their turn.

use super::connections::Connections;
use super::dial::{DialError, Exchange};
use crate::limits::transport as limits;
use crate::raft::transport::identity::Local;
use crate::reactor::serve::{self, Notify};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// A question.
pub struct Question<'a> {
    /// The peer's URL, without a path.
    pub url: &'a str,
    /// Method and path.
    pub line: &'a str,
    /// The type of its body.
    pub content_type: &'a str,
    /// Its body.
    pub body: &'a [u8],
}

/// What a peer answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAnswer {
    /// HTTP's status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Asks other members, from one serve core. Clones share their connections.
#[derive(Clone)]
pub struct Asker {
    shared: Rc<Shared>,
}

struct Shared {
    local: Local,
    open: Rc<Connections>,
    /// Connections that wait for a question, each with the URL it leads to; the one used last at the end.
    idle: RefCell<Vec<(String, Exchange)>>,
    under_way: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
}

/// One that waits for its turn.
#[derive(Default)]
struct Waiter {
    /// The turn is its own, taken or not.
    granted: Cell<bool>,
    wake: Notify,
}

/// A question's right to be under way.
struct Turn<'a>(&'a Shared);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        while let Some(next) = self.0.waiting.borrow_mut().pop_front() {
            // One that nobody else knows was given up.
            if Rc::strong_count(&next) > 1 {
                next.granted.set(true);
                return next.wake.notify();
            }
        }
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

/// A place among those that wait. A turn that came after it was given up goes on to the next.
struct Place<'a> {
    shared: &'a Shared,
    waiter: Rc<Waiter>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.waiter.granted.take() {
            drop(Turn(self.shared));
        }
    }
}

impl Asker {
    /// For the calling serve core.
    pub fn new(local: Local) -> Asker {
        Asker {
            shared: Rc::new(Shared {
                local,
                open: Rc::default(),
                idle: RefCell::default(),
                under_way: Cell::new(0),
                waiting: RefCell::default(),
            }),
        }
    }

    /// Asks, and waits at most `bound` for the answer, the wait for a turn included. What is wrong otherwise is a text
    /// for the log.
    pub async fn ask(&self, question: &Question<'_>, bound: Duration) -> Result<PeerAnswer, String> {
        let asked = async {
            let _turn = self.turn().await;
            self.ask_now(question).await
        };
        match serve::timeout(bound, asked).await {
            Some(answered) => answered.map_err(|error| format!("{}: {error}", question.url)),
            None => Err(format!("{}: no answer in time", question.url)),
        }
    }

    /// Ends all connections.
    pub fn stop(&self) {
        self.shared.open.end();
    }

    async fn turn(&self) -> Turn<'_> {
        let shared = &*self.shared;
        if shared.under_way.get() < limits::ASKING_CONNECTIONS {
            shared.under_way.set(shared.under_way.get() + 1);
            return Turn(shared);
        }
        let waiter = Rc::new(Waiter::default());
        shared.waiting.borrow_mut().push_back(waiter.clone());
        let place = Place { shared, waiter };
        place.waiter.wake.notified().await;
        place.waiter.granted.set(false);
        Turn(shared)
    }

    async fn ask_now(&self, question: &Question<'_>) -> Result<PeerAnswer, DialError> {
        // One that was kept may have been ended by the peer meanwhile. What is asked here may be asked twice.
        while let Some(kept) = self.take_idle(question.url) {
            if let Ok(answer) = self.ask_over(kept, question).await {
                return Ok(answer);
            }
        }
        let made = Exchange::connect(question.url, &self.shared.open, limits::ASKED_BYTES_MAX).await?;
        self.ask_over(made, question).await
    }

    fn take_idle(&self, url: &str) -> Option<Exchange> {
        let mut idle = self.shared.idle.borrow_mut();
        let at = idle.iter().rposition(|(leads_to, _)| leads_to == url)?;
        Some(idle.remove(at).1)
    }

    async fn ask_over(&self, mut exchange: Exchange, question: &Question<'_>) -> Result<PeerAnswer, DialError> {
        let fields = [
            ("Content-Type", question.content_type.to_string()),
            ("Content-Length", question.body.len().to_string()),
        ];
        exchange.send_head(question.line, &self.shared.local, &fields).await?;
        exchange.send(question.body).await?;
        let head = exchange.head(limits::CONNECTION_SILENCE).await?;
        let mut body = Vec::new();
        while let Some(part) = exchange.body().await? {
            body.extend_from_slice(&part);
        }
        if head.keeps_alive {
            let mut idle = self.shared.idle.borrow_mut();
            if idle.len() >= limits::ASKING_CONNECTIONS {
                idle.remove(0);
            }
            idle.push((question.url.to_string(), exchange));
        }
        Ok(PeerAnswer {
            status: head.status,
            body,
        })
    }
}
