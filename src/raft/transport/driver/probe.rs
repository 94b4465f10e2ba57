//! Probing a peer: how long it takes to answer, and how far its clock is from ours.

use super::clock;
use super::dial::{DialError, Exchange};
use super::peer::Peer;
use crate::limits::transport as limits;
use crate::reactor::serve;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Weight of a new round trip in the smoothed one: an eighth, as etcd has it.
const SMOOTHING: u32 = 8;

/// Probes as long as the peer is one.
pub(super) async fn run(peer: Rc<Peer>) {
    let (mut kept, mut smoothed, mut is_healthy, mut drifts) = (None, None, true, false);
    loop {
        serve::sleep(limits::PROBE_PAUSE).await;
        if peer.is_stopped() {
            return;
        }
        let url = peer.urls.borrow().pick();
        let began = Instant::now();
        let probed = match &url {
            Ok(url) => probe(&peer, url, &mut kept).await,
            Err(error) => Err(std::io::Error::new(error.kind(), error.to_string()).into()),
        };
        let peer_id = format!("{:x}", peer.id);
        match probed {
            Ok(theirs) => {
                let time = began.elapsed();
                let before: Duration = smoothed.unwrap_or(time);
                let round_trip = before * (SMOOTHING - 1) / SMOOTHING + time / SMOOTHING;
                smoothed = Some(round_trip);
                peer.counters().round_trips.observe(round_trip, 1);
                is_healthy = true;
                let difference = theirs.map_or(Duration::ZERO, |theirs| difference(theirs + round_trip / 2));
                let is_far = difference > limits::CLOCK_DIFFERENCE_REPORT;
                if is_far && !drifts {
                    let clock_drift = format!("{difference:?}");
                    tracing::warn!("remote-peer-id" = peer_id, clock_drift, "prober found high clock drift");
                }
                drifts = is_far;
            }
            Err(DialError::Stopped) => return,
            Err(error) => {
                kept = None;
                if let Ok(url) = url {
                    peer.urls.borrow_mut().failed(&url);
                }
                if is_healthy {
                    let error = error.to_string();
                    tracing::warn!("remote-peer-id" = peer_id, error, "prober detected unhealthy status");
                }
                is_healthy = false;
            }
        }
    }
}

/// How far a clock that shows `theirs` now is from this member's.
fn difference(theirs: Duration) -> Duration {
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ours.abs_diff(theirs)
}

/// The peer's time, if it says it.
async fn probe(peer: &Peer, url: &str, kept: &mut Option<Exchange>) -> Result<Option<Duration>, DialError> {
    let mut exchange = match kept.take() {
        Some(exchange) => exchange,
        None => Exchange::connect(url, &peer.connections, limits::ANSWER_BYTES_MAX).await?,
    };
    let local = &peer.inner.local;
    exchange.send_head("GET /raft/probing", local, &[]).await?;
    let head = exchange.head(limits::CONNECTION_SILENCE).await?;
    if head.status != 200 {
        return Err(exchange.refusal(&head).await);
    }
    let text = exchange.text().await?;
    if head.keeps_alive {
        *kept = Some(exchange);
    }
    let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    if said["OK"] != true {
        let text = crate::raft::transport::identity::shortened(&text);
        return Err(DialError::Status { status: 200, text });
    }
    Ok(said["Now"].as_str().and_then(clock::parse))
}
