//! What peers ask for, and what they are answered: `/raft` and below, in etcd's statuses and words.

use super::clock;
use super::connections::Listed;
use super::served::{Answer, Served, SnapshotBody};
use super::{Inner, write};
use crate::http::http1::{Connection, Request};
use crate::limits::transport as limits;
use crate::raft::transport::codec::{Item, MessageDecoder};
use crate::raft::transport::identity::{field, parse_id, shortened};
use crate::raft::transport::outbox::Way;
use crate::raft::transport::{gate, wire};
use crate::reactor::serve::Stream;
use raft::eraftpb::{Message, MessageType};
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Whether a path is one of raft's.
pub(super) fn is_of_raft(path: &str) -> bool {
    path == "/raft" || path.starts_with("/raft/")
}

/// Serves a connection from its first request on, or from `request` on if that has been read.
pub(super) async fn run(inner: Rc<Inner>, stream: Stream, connection: Connection, request: Option<Request>) {
    // Members need few, and soon have their streams, which don't count: what has been open for longest is most likely
    // nobody's.
    if inner.served.make_room(limits::SERVED_CONNECTIONS_MAX) {
        inner.complain("all peers", "closed the oldest connection", &"too many are open");
    }
    let Some(listed) = inner.served.list(&stream) else {
        return;
    };
    let mut served = Served::new(stream, connection);
    let mut next = request;
    loop {
        let request = match next.take() {
            Some(request) => request,
            None => match served.request().await {
                Ok(Some(request)) => request,
                // It is gone, or has nothing more to ask.
                Ok(None) | Err(_) => return,
            },
        };
        served = match answer(&inner, served, &request, &listed).await {
            Some(served) => served,
            None => return,
        };
    }
}

/// Answers a request; the connection comes back if it may bring another.
async fn answer(inner: &Rc<Inner>, served: Served, request: &Request, listed: &Listed) -> Option<Served> {
    match request.path() {
        "/raft" => pipeline(inner, served, request).await,
        "/raft/probing" => probing(served).await,
        "/raft/snapshot" => snapshot(inner, served, request).await,
        path if path.starts_with("/raft/stream/") => stream(inner, served, request, listed).await,
        _ => finish(served, Answer::error(404, "404 page not found")).await,
    }
}

async fn finish(mut served: Served, answer: Answer) -> Option<Served> {
    served.answer(answer).await.ok()?;
    (!served.connection.is_closed()).then_some(served)
}

async fn probing(served: Served) -> Option<Served> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let answer = Answer {
        body: format!("{{\"OK\":true,\"Now\":\"{}\"}}\n", clock::format(now)),
        ..Answer::empty(200).with("Content-Type", "text/plain; charset=utf-8")
    };
    finish(served, answer).await
}

fn not_allowed(allowed: &str) -> Answer {
    Answer::error(405, "Method Not Allowed").with("Allow", allowed)
}

/// A field of a request.
fn get<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let value = request.get(&name.to_ascii_lowercase())?;
    std::str::from_utf8(value).ok().map(str::trim)
}

/// Who a request says it is from, for log lines.
fn sender(request: &Request) -> String {
    get(request, field::FROM).map_or_else(|| "unknown".to_string(), shortened)
}

/// Checks method, version and cluster, and learns of a sender that is not known: what all but streams have in common.
fn admit(inner: &Rc<Inner>, request: &Request) -> Result<(), Answer> {
    if request.method != "POST" {
        return Err(not_allowed("POST"));
    }
    check_compatible(inner, request)?;
    if let Some(id) = get(request, field::FROM).and_then(parse_id) {
        inner.learn(id, get(request, field::PEER_URLS).unwrap_or_default());
    }
    Ok(())
}

fn check_compatible(inner: &Inner, request: &Request) -> Result<(), Answer> {
    inner.local.admits(|name| get(request, name)).map_err(|incompatible| {
        inner.complain(&sender(request), "refused a request", &incompatible);
        Answer::error(412, incompatible.text())
    })
}

fn of_cluster(inner: &Inner, answer: Answer) -> Answer {
    answer.with(field::CLUSTER_ID, format!("{:x}", inner.local.cluster_id))
}

/// Memory that a request's body takes, given back when it is dropped.
struct BodyBytes<'a> {
    all: &'a Cell<usize>,
    own: usize,
}

impl BodyBytes<'_> {
    /// Whether there is room for more.
    fn take(&mut self, bytes: usize) -> bool {
        self.own += bytes;
        self.all.set(self.all.get() + bytes);
        self.all.get() <= limits::BODIES_BYTES_MAX
    }
}

impl Drop for BodyBytes<'_> {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.own);
    }
}

async fn pipeline(inner: &Rc<Inner>, mut served: Served, request: &Request) -> Option<Served> {
    if let Err(answer) = admit(inner, request) {
        let answer = if answer.status == 405 {
            answer
        } else {
            of_cluster(inner, answer)
        };
        return finish(served, answer).await;
    }
    served.connection.set_max_body(limits::MESSAGE_BYTES_MAX as u64);
    let mut bytes = BodyBytes {
        all: &inner.body_bytes,
        own: 0,
    };
    let mut body = Vec::new();
    loop {
        match served.body().await {
            Ok(Some(part)) if bytes.take(part.len()) => body.extend_from_slice(&part),
            Ok(Some(_)) => {
                inner.complain(&sender(request), "refused a request", &"messages take too much memory");
                let answer = Answer::error(503, "messages take too much memory");
                served.answer(of_cluster(inner, answer)).await.ok()?;
                return None;
            }
            Ok(None) => break,
            Err(error) => {
                inner.complain(&sender(request), "failed to read Raft message", &error);
                let answer = Answer::error(400, "error reading raft message");
                served.answer(of_cluster(inner, answer)).await.ok()?;
                return None;
            }
        }
    }
    let length = body.len();
    let message = match wire::decode(body.into()) {
        Ok(message) => message,
        Err(error) => {
            inner.complain(&sender(request), "failed to unmarshal Raft message", &error);
            let answer = Answer::error(400, "error unmarshalling raft message");
            return finish(served, of_cluster(inner, answer)).await;
        }
    };
    inner.counters.of(message.from).received_bytes.add(length as u64);
    let answer = process(inner, request, message);
    let failed = answer.status == 500;
    let served = finish(served, of_cluster(inner, answer)).await?;
    (!failed).then_some(served)
}

/// Hands a message to raft, or says why not.
fn process(inner: &Inner, request: &Request, message: Message) -> Answer {
    let refuse = |answer: Answer, reason: &dyn std::fmt::Display| {
        inner.complain(&sender(request), "refused a message", reason);
        answer
    };
    if let Err(refusal) = admits_message(inner, request, &message) {
        return refusal;
    }
    if !inner.sink.step(message) {
        return refuse(
            Answer::error(500, "error processing raft message"),
            &"the receiving queue is full",
        );
    }
    Answer::empty(204)
}

fn admits_message(inner: &Inner, request: &Request, message: &Message) -> Result<(), Answer> {
    let from = get(request, field::FROM).and_then(parse_id);
    let checked = if inner.is_removed(message.from) {
        Err(gate::Refusal::Removed(message.from))
    } else {
        gate::form(message, inner.local.member_id, from)
    };
    let Err(refusal) = checked else { return Ok(()) };
    inner.counters.of(message.from).received_failures.add(1);
    inner.complain(&sender(request), "refused a message", &refusal);
    // etcd means to say 403 to some of these and says this to all.
    Err(Answer::error(500, "error processing raft message"))
}

async fn stream(inner: &Rc<Inner>, mut served: Served, request: &Request, listed: &Listed) -> Option<Served> {
    if request.method != "GET" {
        return finish(served, not_allowed("GET")).await;
    }
    let (version, cluster) = (inner.local.version, format!("{:x}", inner.local.cluster_id));
    let (way, peer) = match admit_stream(inner, request) {
        Ok(admitted) => admitted,
        Err(answer) => {
            let answer = of_cluster(inner, answer.with(field::VERSION, version));
            return finish(served, answer).await;
        }
    };
    // A body has no business here; what comes of it would be taken for the end of the stream.
    let fields = [(field::VERSION, version), (field::CLUSTER_ID, cluster.as_str())];
    served.begin(&fields).await.ok()?;
    // It is on the peer's own list from here on.
    listed.strike();
    write::run(peer, way, served).await;
    None
}

fn admit_stream(inner: &Rc<Inner>, request: &Request) -> Result<(Way, Rc<super::peer::Peer>), Answer> {
    check_compatible(inner, request)?;
    let (kind, from) = request.path().rsplit_once('/').unwrap_or_default();
    let way = match kind {
        "/raft/stream/msgapp" => Way::Append,
        "/raft/stream/message" => Way::Message,
        _ => return Err(Answer::error(404, "invalid path")),
    };
    let refuse = |status, text: &str| {
        inner.complain(&shortened(from), "refused a stream", &text);
        Err(Answer::error(status, text))
    };
    let Some(id) = parse_id(from) else {
        return refuse(404, "invalid from");
    };
    if inner.is_removed(id) {
        return refuse(410, "removed member");
    }
    let Some(peer) = inner.member(id) else {
        inner.learn(id, get(request, field::PEER_URLS).unwrap_or_default());
        return refuse(404, "error sender not found");
    };
    if get(request, field::RAFT_TO) != Some(&format!("{:x}", inner.local.member_id)) {
        return refuse(412, "to field mismatch");
    }
    Ok((way, peer))
}

async fn snapshot(inner: &Rc<Inner>, mut served: Served, request: &Request) -> Option<Served> {
    if let Err(answer) = admit(inner, request) {
        let answer = if answer.status == 405 {
            answer
        } else {
            of_cluster(inner, answer)
        };
        return finish(served, answer).await;
    }
    served.connection.set_max_body(u64::MAX);
    let (message, rest) = match envelope(inner, &mut served).await {
        Ok(Some(read)) => read,
        Ok(None) => {
            let answer = Answer::error(400, "wrong raft message type");
            served.answer(of_cluster(inner, answer)).await.ok()?;
            return None;
        }
        Err(error) => {
            let text = format!("failed to decode raft message ({error})");
            inner.complain(&sender(request), "refused a snapshot", &text);
            served.answer(of_cluster(inner, Answer::error(400, &text))).await.ok()?;
            return None;
        }
    };
    if let Err(answer) = admits_message(inner, request, &message) {
        served.answer(of_cluster(inner, answer)).await.ok()?;
        return None;
    }
    let counters = &inner.counters.of(message.from).snapshots_received;
    let began = Instant::now();
    let from = format!("{:x}", message.from);
    let index = message.get_snapshot().get_metadata().index;
    tracing::info!(
        "remote-snapshot-sender-id" = from,
        "incoming-snapshot-index" = index,
        "receiving database snapshot"
    );
    let under_way = counters.begin();
    let bytes = &inner.counters.of(message.from).received_bytes;
    let (body, slot) = SnapshotBody::new(served, rest);
    let received = inner.sink.receive_snapshot(message, body).await;
    drop(under_way);
    let mut served = slot.take()?;
    let answer = match received {
        Ok(length) => {
            bytes.add(length);
            counters.succeeded.add(1);
            counters.times.observe(began.elapsed(), 1);
            Answer::empty(204)
        }
        Err(error) => {
            counters.failed.add(1);
            inner.complain(&from, "failed to save KV snapshot", &error);
            Answer::error(500, &format!("failed to save KV snapshot ({error})"))
        }
    };
    served.answer(of_cluster(inner, answer)).await.ok()?;
    None
}

/// The message in front of a snapshot, and what came behind it; `None` if it is another message.
async fn envelope(inner: &Inner, served: &mut Served) -> io::Result<Option<(Message, bytes::Bytes)>> {
    let mut bytes = BodyBytes {
        all: &inner.body_bytes,
        own: 0,
    };
    let mut decoder = MessageDecoder::new(limits::SNAPSHOT_MESSAGE_BYTES_MAX);
    while let Some(part) = served.body().await? {
        if !bytes.take(part.len()) {
            return Err(io::Error::other("messages take too much memory"));
        }
        decoder.receive(part);
        match decoder.next_item().map_err(io::Error::other)? {
            Some(Item::Message(message)) if message.msg_type() == MessageType::MsgSnapshot => {
                return Ok(Some((*message, decoder.into_rest())));
            }
            Some(_) => return Ok(None),
            None => {}
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
