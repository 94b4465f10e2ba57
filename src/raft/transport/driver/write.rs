//! Writing the streams that a peer has dialed: the answer to its request, without an end.

use super::peer::Peer;
use super::served::Served;
use super::wait::{self, Either};
use crate::limits::transport as limits;
use crate::raft::transport::codec::{AppendEncoder, encode_heartbeat, encode_message};
use crate::raft::transport::outbox::Way;
use crate::raft::transport::wire::Unsendable;
use crate::reactor::serve::{self, Notify};
use raft::eraftpb::Message;
use std::io;
use std::rc::Rc;

/// Encodes for either kind of stream.
enum Encoder {
    Append(AppendEncoder),
    Message,
}

impl Encoder {
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        match self {
            Encoder::Append(encoder) => encoder.encode(message, out),
            Encoder::Message => encode_message(message, out),
        }
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        match self {
            Encoder::Append(encoder) => encoder.heartbeat(out),
            Encoder::Message => encode_heartbeat(out),
        }
    }
}

/// Sends the peer's messages on a stream whose answer has begun, until it breaks or another takes its place.
pub(super) async fn run(peer: Rc<Peer>, way: Way, mut served: Served) {
    let Some(_listed) = peer.connections.list(&served.stream) else {
        return;
    };
    let slot = &peer.stream_number[way as usize];
    let number = slot.get() + 1;
    slot.set(number);
    // What waited for an earlier stream may be lost with it in part, and then the rest is of no use.
    if peer.outbox.borrow_mut().close(way) > 0 {
        peer.unreachable();
    }
    peer.outbox.borrow_mut().open(way);
    let wake = peer.take_wake(way);
    peer.activate();
    let result = messages(&peer, way, number, &wake, &mut served).await;
    if slot.get() == number {
        let lost = peer.outbox.borrow_mut().close(way);
        if lost > 0 || result.is_err() {
            peer.unreachable();
        }
        peer.counters().sent_failures.add(lost as u64);
    }
    if let Err(error) = result
        && slot.get() == number
    {
        peer.deactivate(way.name(), "write", &error);
    }
}

/// Ends without an error when the peer closes the stream, or another is in use.
async fn messages(peer: &Peer, way: Way, number: u64, wake: &Notify, served: &mut Served) -> io::Result<()> {
    let mut encoder = match way {
        Way::Append => Encoder::Append(AppendEncoder::default()),
        _ => Encoder::Message,
    };
    let mut out = Vec::new();
    while peer.stream_number[way as usize].get() == number && !peer.is_stopped() {
        let mut sent = 0;
        while out.len() < limits::STREAM_WRITE_BYTES
            && let Some((message, length)) = peer.pop(way)
        {
            match encoder.encode(&message, &mut out) {
                Ok(()) => sent += length,
                Err(error) => tracing::error!("peer-id" = format!("{:x}", peer.id), "did not send: {error}"),
            }
        }
        if out.is_empty() {
            let waiting = wait::either(wake.notified(), served.stream.receive());
            match serve::timeout(limits::STREAM_HEARTBEAT, waiting).await {
                Some(Either::Left(())) => continue,
                // A peer sends nothing more on such a connection: it has closed it.
                Some(Either::Right(_)) => return Ok(()),
                None => encoder.heartbeat(&mut out),
            }
        }
        served.send_part(&out).await?;
        peer.counters()
            .sent_bytes
            .add(if sent > 0 { sent } else { out.len() } as u64);
        out.clear();
        if out.capacity() > 2 * limits::STREAM_WRITE_BYTES {
            out = Vec::new();
        }
    }
    Ok(())
}
