//! Requests to peers: a connection, a request on it, what is answered.

use super::connections::{Connections, Listed};
use super::url::PeerUrl;
use super::wait;
use crate::http::http1::client::{ClientError, ResponseEvent, ResponseHead, Responses};
use crate::limits::transport as limits;
use crate::raft::transport::identity::{CLUSTER_ID_MISMATCH, INCOMPATIBLE_VERSION, Local, shortened};
use crate::reactor::serve::{self, Stream};
use bytes::Bytes;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Why a peer could not be asked, or what it refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// There is no connection, or it broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The answer is none.
    #[error("{0}")]
    Answer(#[from] ClientError),
    /// This member was removed from the cluster, says the peer.
    #[error("it says that this member was removed from the cluster")]
    Removed,
    /// The peer does not know this member.
    #[error("it does not know this member: it has not heard yet that this one was added")]
    Unknown,
    /// It refuses this member's version or cluster.
    #[error("it refuses this member: {0}")]
    Refused(String),
    /// Anything else that is not what was asked for.
    #[error("it answers with status {status}: {text}")]
    Status { status: u16, text: String },
    /// Its version has no such streams.
    #[error("its version {0:?} has no streams that this member knows")]
    NoStreams(String),
    /// There are to be no more connections.
    #[error("stopped")]
    Stopped,
}

impl DialError {
    /// Whether the peer is there and has said no: then what is to be looked at is not the way to it.
    pub fn is_refusal(&self) -> bool {
        use DialError::{NoStreams, Refused, Removed, Status, Unknown};
        matches!(self, Removed | Unknown | Refused(_) | Status { .. } | NoStreams(_))
    }
}

/// A connection to a peer, for one request after the other.
pub(super) struct Exchange {
    stream: Stream,
    responses: Responses,
    authority: String,
    /// How long the peer may take nothing of what is sent.
    silence: Duration,
    /// Takes it off the list of open connections.
    _listed: Listed,
}

impl Exchange {
    /// Connects to a peer's URL. Bodies of answers may have `body_max` bytes.
    pub async fn connect(url: &str, connections: &Rc<Connections>, body_max: u64) -> Result<Exchange, DialError> {
        let url = PeerUrl::parse(url)?;
        let address = url.resolve().await?;
        let stream = Stream::connect(address, limits::DIAL_TIMEOUT).await.map_err(|error| {
            let text = format!("connecting to {}: {error}", url.authority());
            io::Error::new(error.kind(), text)
        })?;
        let listed = connections.list(&stream).ok_or(DialError::Stopped)?;
        Ok(Exchange {
            stream,
            responses: Responses::new(body_max),
            authority: url.authority(),
            silence: limits::CONNECTION_SILENCE,
            _listed: listed,
        })
    }

    /// Gives the peer more time to take what is sent.
    pub fn set_silence(&mut self, silence: Duration) {
        self.silence = silence;
    }

    /// Sends a request's head. `more` are fields besides those that every request has.
    pub async fn send_head(
        &mut self,
        request_line: &str,
        local: &Local,
        more: &[(&str, String)],
    ) -> Result<(), DialError> {
        let mut head = format!("{request_line} HTTP/1.1\r\nHost: {}\r\n", self.authority);
        let own = local.fields();
        let fields = own.iter().map(|(name, value)| (*name, value));
        for (name, value) in fields.chain(more.iter().map(|(name, value)| (*name, value))) {
            head += &format!("{name}: {}\r\n", value.replace(['\r', '\n'], " "));
        }
        head += "\r\n";
        Ok(wait::send(&self.stream, head.as_bytes(), self.silence).await?)
    }

    /// Sends what belongs to a request's body.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), DialError> {
        Ok(wait::send(&self.stream, bytes, self.silence).await?)
    }

    /// The next part of the answer, waiting at most `bound` for bytes.
    pub async fn event(&mut self, bound: Duration) -> Result<ResponseEvent, DialError> {
        loop {
            if let Some(event) = self.responses.next_event()? {
                return Ok(event);
            }
            let received = serve::timeout(bound, self.stream.receive()).await;
            let silent = || {
                let text = format!("nothing came for {} seconds", bound.as_secs());
                io::Error::new(io::ErrorKind::TimedOut, text)
            };
            self.responses.receive(&received.ok_or_else(silent)??);
        }
    }

    /// The next part of a body: `None` when it has ended.
    pub async fn body(&mut self) -> Result<Option<Bytes>, DialError> {
        match self.event(limits::CONNECTION_SILENCE).await? {
            ResponseEvent::Body(bytes) => Ok(Some(bytes)),
            ResponseEvent::End => Ok(None),
            ResponseEvent::Head(_) => Err(ClientError::Malformed("a head within a body").into()),
        }
    }

    /// The head of the answer.
    pub async fn head(&mut self, bound: Duration) -> Result<ResponseHead, DialError> {
        match self.event(bound).await? {
            ResponseEvent::Head(head) => Ok(head),
            _ => Err(ClientError::Malformed("no head of a response").into()),
        }
    }

    /// The rest of an answer, whose body is short.
    pub async fn text(&mut self) -> Result<String, DialError> {
        let mut whole = Vec::new();
        while let Some(part) = self.body().await? {
            whole.extend_from_slice(&part);
            if whole.len() as u64 > limits::ANSWER_BYTES_MAX {
                return Err(ClientError::TooLarge.into());
            }
        }
        Ok(String::from_utf8_lossy(&whole).trim_end().to_string())
    }

    /// What an answer with another status than the one wanted means.
    pub async fn refusal(&mut self, head: &ResponseHead) -> DialError {
        let text = match self.text().await {
            Ok(text) => text,
            Err(error) => return error,
        };
        match (head.status, text.as_str()) {
            (410 | 403, _) => DialError::Removed,
            (404, _) => DialError::Unknown,
            (412, INCOMPATIBLE_VERSION | CLUSTER_ID_MISMATCH) => DialError::Refused(text),
            (status, text) => DialError::Status {
                status,
                text: shortened(text),
            },
        }
    }
}
