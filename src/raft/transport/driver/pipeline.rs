//! The pipeline: messages as requests of their own, while there are no streams.

use super::dial::{DialError, Exchange};
use super::peer::Peer;
use crate::limits::transport as limits;
use crate::raft::transport::outbox::Way;
use crate::raft::transport::wire;
use crate::reactor::serve;
use raft::eraftpb::Message;
use std::rc::Rc;

/// Something waits for the pipeline: makes sure that somebody works on it.
pub(super) fn wake(peer: &Rc<Peer>) {
    if peer.workers.get() < limits::PIPELINE_CONNECTIONS && !peer.is_stopped() {
        peer.workers.set(peer.workers.get() + 1);
        serve::spawn(work(peer.clone()));
    }
}

/// Sends what waits, and ends with it.
async fn work(peer: Rc<Peer>) {
    let mut kept = None;
    while let Some((message, length)) = peer.pop(Way::Pipeline) {
        let url = peer.urls.borrow().pick();
        let posted = match &url {
            Ok(url) => post(&peer, url, &mut kept, &message).await,
            Err(error) => Err(std::io::Error::new(error.kind(), error.to_string()).into()),
        };
        match posted {
            Ok(()) => {
                peer.activate();
                peer.counters().sent_bytes.add(length as u64);
            }
            Err(DialError::Stopped) => break,
            Err(error) => {
                kept = None;
                if let Ok(url) = url {
                    peer.urls.borrow_mut().failed(&url);
                }
                peer.counters().sent_failures.add(1);
                peer.dial_failed(Way::Pipeline.name(), "write", &error);
                peer.unreachable();
                if matches!(error, DialError::Removed) {
                    peer.inner.told_removed(peer.id);
                }
            }
        }
        if peer.is_stopped() {
            break;
        }
    }
    peer.workers.set(peer.workers.get() - 1);
}

async fn post(peer: &Peer, url: &str, kept: &mut Option<Exchange>, message: &Message) -> Result<(), DialError> {
    let mut body = Vec::new();
    if let Err(error) = wire::encode(message, &mut body) {
        tracing::error!("peer-id" = format!("{:x}", peer.id), "did not send: {error}");
        return Ok(());
    }
    let mut exchange = match kept.take() {
        Some(exchange) => exchange,
        None => Exchange::connect(url, &peer.connections, limits::ANSWER_BYTES_MAX).await?,
    };
    let fields = [
        ("Content-Type", "application/protobuf".to_string()),
        ("Content-Length", body.len().to_string()),
    ];
    exchange.send_head("POST /raft", &peer.inner.local, &fields).await?;
    exchange.send(&body).await?;
    let head = exchange.head(limits::CONNECTION_SILENCE).await?;
    if head.status != 204 {
        return Err(exchange.refusal(&head).await);
    }
    exchange.text().await?;
    if head.keeps_alive {
        *kept = Some(exchange);
    }
    Ok(())
}
