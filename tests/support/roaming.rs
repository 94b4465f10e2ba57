//! A client of a cluster that goes from a member that fails it to the next.

use std::time::Duration;

use prost::Message;
use tokio::time::{Instant, sleep, timeout};

use super::{
    cluster::PATIENCE,
    grpc::{Channel, Status, Stream},
};

/// How long a client that does not give up waits for one answer before it tries another member.
const ATTEMPT: Duration = Duration::from_secs(10);

/// A connection to one of some members, made anew when it breaks.
pub struct Roaming {
    addresses: Vec<String>,
    at: usize,
    channel: Option<Channel>,
}

impl Roaming {
    /// Begins at the member with this number.
    pub fn new(addresses: Vec<String>, at: usize) -> Self {
        let at = at % addresses.len();
        Self {
            addresses,
            at,
            channel: None,
        }
    }

    /// Calls one member after the other until one answers.
    pub async fn call<R: Message + Default>(&mut self, path: &str, request: &impl Message) -> R {
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            match self.once(path, request, ATTEMPT).await {
                Ok(answer) => return answer,
                Err(problem) => {
                    assert!(Instant::now() < deadline, "no member answers: {problem:?}");
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Calls the current member once. After an error, or without an answer in time, the next call goes to the next
    /// member.
    pub async fn once<R: Message + Default>(
        &mut self,
        path: &str,
        request: &impl Message,
        patience: Duration,
    ) -> Result<R, Status> {
        let called = async { self.connected().await?.call(path, request).await };
        let result = timeout(patience, called).await.unwrap_or_else(|_| Err(silence()));
        if result.is_err() {
            self.move_on();
        }
        result
    }

    /// Opens a call to the current member, as [`Roaming::once`].
    pub async fn stream(&mut self, path: &str, metadata: &[(&str, &str)]) -> Result<Stream, Status> {
        let opened = async { self.connected().await?.stream(path, metadata).await };
        let result = opened.await;
        if result.is_err() {
            self.move_on();
        }
        result
    }

    /// Leaves the current member.
    pub fn move_on(&mut self) {
        self.channel = None;
        self.at = (self.at + 1) % self.addresses.len();
    }

    /// The same client with a new connection.
    pub fn again(&self) -> Self {
        Self::new(self.addresses.clone(), self.at)
    }

    async fn connected(&mut self) -> Result<&Channel, Status> {
        if self.channel.is_none() {
            let connected = Channel::connect(&self.addresses[self.at]).await;
            self.channel = Some(connected.map_err(|error| Status {
                code: Status::TRANSPORT,
                message: error.to_string(),
            })?);
        }
        Ok(self.channel.as_ref().expect("it was just made"))
    }
}

/// Stands for an answer that did not come.
pub fn silence() -> Status {
    Status {
        code: Status::TRANSPORT,
        message: "no answer in time".to_string(),
    }
}
