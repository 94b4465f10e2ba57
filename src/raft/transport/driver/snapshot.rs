//! Sending a snapshot: one request with the message and, behind it, the database as it is read.

use super::dial::{DialError, Exchange};
use super::peer::Peer;
use super::{LocalFuture, SnapshotSource};
use crate::limits::transport as limits;
use crate::raft::transport::codec::encode_message;
use raft::eraftpb::Message;
use std::io;
use std::rc::Rc;
use std::time::Instant;

/// Sends it and tells raft how that went.
pub(super) async fn run(peer: Rc<Peer>, message: Message, mut source: Box<dyn SnapshotSource>) {
    let counters = &peer.counters().snapshots_sent;
    let index = message.get_snapshot().get_metadata().index;
    let remote = format!("{:x}", peer.id);
    tracing::info!(
        "remote-peer-id" = remote,
        "snapshot-index" = index,
        "sending database snapshot"
    );
    let under_way = counters.begin();
    let began = Instant::now();
    let url = peer.urls.borrow().pick();
    let sent = match &url {
        Ok(url) => post(&peer, url, &message, &mut *source).await,
        Err(error) => Err(io::Error::new(error.kind(), error.to_string()).into()),
    };
    drop(under_way);
    match sent {
        Ok(bytes) => {
            peer.activate();
            peer.counters().sent_bytes.add(bytes);
            counters.succeeded.add(1);
            counters.times.observe(began.elapsed(), 1);
            tracing::info!(
                "remote-peer-id" = remote,
                "snapshot-index" = index,
                bytes,
                "sent database snapshot"
            );
            peer.inner.sink.snapshot_sent(peer.id, true);
        }
        Err(error) => {
            if let Ok(url) = url {
                peer.urls.borrow_mut().failed(&url);
            }
            counters.failed.add(1);
            peer.counters().sent_failures.add(1);
            let text = error.to_string();
            tracing::warn!(
                "remote-peer-id" = remote,
                "snapshot-index" = index,
                error = text,
                "failed to send database snapshot"
            );
            if matches!(error, DialError::Removed) {
                peer.inner.told_removed(peer.id);
            }
            peer.dial_failed("sendMsgSnap", "post", &error);
            peer.unreachable();
            peer.inner.sink.snapshot_sent(peer.id, false);
        }
    }
}

/// Bytes sent.
async fn post(peer: &Peer, url: &str, message: &Message, source: &mut dyn SnapshotSource) -> Result<u64, DialError> {
    let mut exchange = Exchange::connect(url, &peer.connections, limits::ANSWER_BYTES_MAX).await?;
    exchange.set_silence(limits::SNAPSHOT_SILENCE);
    let fields = [
        ("Content-Type", "application/octet-stream".to_string()),
        ("Transfer-Encoding", "chunked".to_string()),
    ];
    exchange
        .send_head("POST /raft/snapshot", &peer.inner.local, &fields)
        .await?;
    let mut envelope = Vec::new();
    encode_message(message, &mut envelope).map_err(io::Error::other)?;
    chunk(&mut exchange, &envelope).await?;
    let mut bytes = envelope.len() as u64;
    while let Some(part) = next_part(source).await? {
        chunk(&mut exchange, &part).await?;
        bytes += part.len() as u64;
    }
    exchange.send(b"0\r\n\r\n").await?;
    let head = exchange.head(limits::SNAPSHOT_ANSWER_TIMEOUT).await?;
    match head.status {
        204 => Ok(bytes),
        _ => Err(exchange.refusal(&head).await),
    }
}

fn next_part(source: &mut dyn SnapshotSource) -> LocalFuture<'_, io::Result<Option<bytes::Bytes>>> {
    source.next_part()
}

/// An empty chunk would be the end.
async fn chunk(exchange: &mut Exchange, part: &[u8]) -> Result<(), DialError> {
    if part.is_empty() {
        return Ok(());
    }
    exchange.send(format!("{:x}\r\n", part.len()).as_bytes()).await?;
    exchange.send(part).await?;
    exchange.send(b"\r\n").await
}
