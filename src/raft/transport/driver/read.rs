//! Reading the streams of a peer: this side dials, asks for the peer's messages, and decodes what comes.

use super::dial::{DialError, Exchange};
use super::peer::Peer;
use crate::limits::transport as limits;
use crate::raft::transport::codec::{AppendDecoder, CodecError, Item, MessageDecoder};
use crate::raft::transport::identity::{Version, field};
use crate::raft::transport::outbox::Way;
use crate::raft::transport::{gate, wire};
use crate::reactor::serve;
use bytes::Bytes;
use raft::eraftpb::Message;
use std::rc::Rc;

/// Keeps a stream open as long as the peer is one.
pub(super) async fn run(peer: Rc<Peer>, way: Way) {
    while !peer.is_stopped() {
        match open(&peer, way).await {
            Ok(mut exchange) => {
                peer.activate();
                match decode(&peer, way, &mut exchange).await {
                    // The peer has ended it, perhaps because it was dialed twice.
                    Ok(()) => {}
                    Err(error) => peer.deactivate(way.name(), "read", &error),
                }
            }
            Err(DialError::Stopped) => return,
            Err(error) => {
                if matches!(error, DialError::Removed) {
                    peer.inner.told_removed(peer.id);
                }
                peer.dial_failed(way.name(), "dial", &error);
            }
        }
        serve::sleep(limits::DIAL_PAUSE).await;
    }
}

async fn open(peer: &Peer, way: Way) -> Result<Exchange, DialError> {
    let url = peer.urls.borrow().pick()?;
    let opened = open_at(peer, way, &url).await;
    if opened.is_err() {
        peer.urls.borrow_mut().failed(&url);
    }
    opened
}

async fn open_at(peer: &Peer, way: Way, url: &str) -> Result<Exchange, DialError> {
    let mut exchange = Exchange::connect(url, &peer.connections, u64::MAX).await?;
    let local = &peer.inner.local;
    let kind = if way == Way::Append { "msgapp" } else { "message" };
    let line = format!("GET /raft/stream/{kind}/{:x}", local.member_id);
    let to = [(field::RAFT_TO, format!("{:x}", peer.id))];
    exchange.send_head(&line, local, &to).await?;
    let head = exchange.head(limits::CONNECTION_SILENCE).await?;
    if head.status != 200 {
        return Err(exchange.refusal(&head).await);
    }
    let version = head.get(&field::VERSION.to_ascii_lowercase()).unwrap_or("2.0.0");
    if !Version::parse(version).is_some_and(Version::has_streams) {
        return Err(DialError::NoStreams(version.to_string()));
    }
    Ok(exchange)
}

/// A decoder of either kind of stream.
enum Decoder {
    Append(AppendDecoder),
    Message(MessageDecoder),
}

impl Decoder {
    fn receive(&mut self, bytes: Bytes) {
        match self {
            Decoder::Append(decoder) => decoder.receive(bytes),
            Decoder::Message(decoder) => decoder.receive(bytes),
        }
    }

    fn next_item(&mut self) -> Result<Option<Item>, CodecError> {
        match self {
            Decoder::Append(decoder) => decoder.next_item(),
            Decoder::Message(decoder) => decoder.next_item(),
        }
    }

    fn is_at_boundary(&self) -> bool {
        match self {
            Decoder::Append(decoder) => decoder.is_at_boundary(),
            Decoder::Message(decoder) => decoder.is_at_boundary(),
        }
    }
}

/// Why a stream is read no more.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{0}")]
    Dial(#[from] DialError),
    #[error("{0}")]
    Codec(#[from] CodecError),
    #[error("the stream ended within a message")]
    Cut,
}

async fn decode(peer: &Peer, way: Way, exchange: &mut Exchange) -> Result<(), ReadError> {
    let mut decoder = if way == Way::Append {
        Decoder::Append(AppendDecoder::new(peer.inner.local.member_id, peer.id))
    } else {
        Decoder::Message(MessageDecoder::default())
    };
    while let Some(bytes) = exchange.body().await? {
        peer.counters().received_bytes.add(bytes.len() as u64);
        decoder.receive(bytes);
        while let Some(item) = decoder.next_item()? {
            match item {
                Item::Heartbeat => {}
                Item::Message(message) => take(peer, *message),
                Item::Unknown(number) => {
                    let reason = wire::WireError::MessageType(number);
                    refuse(peer, &reason);
                }
            }
        }
        if peer.is_stopped() {
            return Ok(());
        }
    }
    if decoder.is_at_boundary() {
        Ok(())
    } else {
        Err(ReadError::Cut)
    }
}

/// Hands a message on if it is in order.
fn take(peer: &Peer, message: Message) {
    let local = peer.inner.local.member_id;
    match gate::form(&message, local, Some(peer.id)) {
        Ok(()) if peer.inner.is_removed(message.from) => refuse(peer, &gate::Refusal::Removed(message.from)),
        Ok(()) => {
            if !peer.inner.sink.step(message) {
                refuse(peer, &"the receiving queue is full");
            }
        }
        Err(refusal) => refuse(peer, &refusal),
    }
}

fn refuse(peer: &Peer, reason: &dyn std::fmt::Display) {
    peer.counters().received_failures.add(1);
    peer.inner
        .complain(&format!("{:x}", peer.id), "dropped a message", reason);
}
