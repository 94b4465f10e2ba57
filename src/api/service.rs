//! The services of one serve core: from a call's message to its answer.
//!
//! Reads that need nothing but memory are answered in the call's own turn. Writes become proposals to the log core and
//! are answered when it replies. Reads that are long or need the disk run as tasks, in slices, under flow control.

use super::answer::Identity;
use super::asking::Asking;
use super::counting::Ended;
use super::error;
use super::http::Offer;
use super::keep_alive::KeepAlives;
use super::memory::ReadMemory;
use super::method::Method;
use super::records::PageReads;
use super::waiting::Waiting;
use crate::config::gates::Gates;
use crate::grpc::{Code, Request as GrpcRequest, Status};
use crate::http::http1;
use crate::limits::API_PART_BYTES;
use crate::metrics::Registry;
use crate::mvcc::index::Index;
use crate::mvcc::readers::Readers;
use crate::mvcc::view::View;
use crate::net::{Call, Core, Exchange, Net, PeerInfo, Service};
use crate::proto::etcdserverpb::RangeRequest;
use crate::proto::health::HealthCheckRequest;
use crate::raft::messages::{Dropped, Reply, Request};
use crate::raft::standing::Standing;
use crate::raft::transport::identity::Local;
use crate::raft::transport::{Asker, Transport};
use crate::reactor::mailbox::Sender;
use crate::reactor::serve::{Notify, Stream};
use crate::state::depth::decode;
use bytes::Bytes;
use prost::Message;
use slab::Slab;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What every core's services are told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who answers.
    pub identity: Identity,
    /// Where the ids of requests begin to count: different from one life of the member to the next.
    pub request_ids: u64,
    /// `--max-txn-ops`.
    pub max_txn_operations: usize,
    /// `--max-request-bytes`.
    pub max_request_bytes: usize,
    /// `--quota-backend-bytes` as `Status` reports it.
    pub quota_reported: i64,
    /// `--feature-gates`.
    pub gates: Gates,
    /// The version reported.
    pub version: &'static str,
    /// Time until an unanswered request is given up.
    pub request_timeout: Duration,
    /// Time between progress notifications of a watch.
    pub progress_interval: Duration,
    /// What long reads of all cores may hold.
    pub read_memory: ReadMemory,
    /// What plain HTTP offers on each listener, by its number.
    pub offers: Arc<[Offer]>,
    /// What the cores count.
    pub metrics: Arc<Registry>,
    /// What is counted of other members.
    pub peers: Arc<crate::raft::transport::counters::Counters>,
    /// This member, as it tells others of itself.
    pub local: Local,
    /// Its place in the cluster.
    pub standing: Arc<Standing>,
    /// `--election-timeout`.
    pub election_timeout: Duration,
}

/// A call and the key of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub call: Call,
    pub tag: u64,
}

/// What a call is waiting with.
pub(super) struct CallState {
    pub call: Call,
    pub method: Method,
    /// Whether a message came: a unary call must have one, and no second.
    pub answered: bool,
    /// Keep-alives that were not answered yet.
    pub keep_alives: KeepAlives,
    /// Whether more keep-alives of it are held back.
    pub paused: bool,
    /// Whether the caller has no more to ask.
    pub half_closed: bool,
    /// When its last message came.
    pub received_at: Duration,
    /// When it ends by itself.
    pub deadline: Option<Duration>,
    /// Wakes the task that produces the answer when there is room.
    pub room: Option<Rc<Notify>>,
    /// The message of a call that answers with a stream: as in grpc-go the call begins when its caller has sent all.
    pub(super) held: Option<Bytes>,
    /// Whether `client-api-version` is text, or not there.
    has_version: bool,
    /// Whether it asked for a leader.
    pub wants_leader: bool,
}

/// The services of one core.
pub struct Api {
    pub(super) settings: Settings,
    pub(super) index: Arc<Index<View>>,
    pub(super) pages: PageReads,
    pub(super) core: usize,
    pub(super) calls: Slab<CallState>,
    pub(super) watches: super::watch::Watches,
    /// This core's connections, for tasks; set by [`Api::attach`].
    pub(super) connections: Option<Core<Api>>,
    pub(super) asking: Asking,
    pub(super) confirming: super::confirm::Confirming,
    /// Gets that came in this turn.
    pub(super) gets: Vec<(Caller, RangeRequest)>,
    pub(super) readers: Readers,
    /// Revisions read in slices, and how many reads are at each.
    pub(super) reading: BTreeMap<i64, usize>,
    next_request_id: u64,
    /// Bytes of `CallState::held` of all calls.
    pub(super) held_bytes: usize,
    /// Calls that ended in this turn.
    pub(super) ended: Vec<Ended>,
    pub(super) stopping: bool,
    /// On the core where peers' connections live, what serves them.
    pub(super) transport: Option<Transport>,
    /// Asks other members.
    pub(super) asker: Asker,
    /// Requests that are passed on to the leader.
    pub(super) forwards: usize,
    pub(super) leaderless: super::standing::Leaderless,
    /// Hashes that are being made for other members.
    pub(super) peer_hashes: usize,
    pub(super) compaction_hashes: super::hashes::CompactionHashes,
}

impl Api {
    /// The services of core `core`, sending to the log core through `requests`.
    pub fn new(
        settings: Settings,
        index: Arc<Index<View>>,
        pages: PageReads,
        core: usize,
        requests: Sender<Request, 1>,
        readers: Readers,
    ) -> Api {
        let next_request_id = settings.request_ids.wrapping_add((core as u64) << 40);
        let asker = Asker::new(settings.local.clone());
        let watches = super::watch::Watches::new(&settings, core, index.pin().view().revision);
        Api {
            settings,
            index,
            pages,
            core,
            calls: Slab::new(),
            watches,
            connections: None,
            asking: Asking::new(requests),
            confirming: Default::default(),
            gets: Vec::new(),
            readers,
            reading: BTreeMap::new(),
            next_request_id,
            held_bytes: 0,
            ended: Vec::new(),
            stopping: false,
            transport: None,
            asker,
            forwards: 0,
            leaderless: Default::default(),
            peer_hashes: 0,
            compaction_hashes: Default::default(),
        }
    }

    /// Tells the services the connections they serve.
    pub fn attach(&mut self, connections: Core<Api>) {
        self.connections = Some(connections);
    }

    /// Whether the core shuts down.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// A request id, different from every other of the cluster: a member's ids begin with its own, and go on from a
    /// number that differs from one life to the next.
    pub(super) fn request_id(&mut self) -> u64 {
        self.next_request_id = self.next_request_id.wrapping_add(1);
        (self.settings.identity.member_id << 48) | (self.next_request_id & REQUEST_ID_MASK)
    }

    /// Takes a reply of the log core.
    pub fn reply(&mut self, net: &mut Net, reply: Reply) {
        let token = match &reply {
            Reply::Published => {
                self.look_for_compactions();
                return self.watches_published();
            }
            Reply::Applied { token, .. }
            | Reply::Dropped { token, .. }
            | Reply::Renewed { token, .. }
            | Reply::TimeToLive { token, .. }
            | Reply::Leases { token, .. }
            | Reply::Leader { token, .. }
            | Reply::Readable { token }
            | Reply::Members { token, .. }
            | Reply::LeaderMoved { token, .. }
            | Reply::Status { token, .. } => *token,
        };
        let Some(waiting) = self.asking.answered(token) else {
            return;
        };
        match (reply, waiting) {
            (reply, Waiting::Task { answer }) => answer.came(Ok(reply)),
            (reply, Waiting::Peer { question }) => self.peer_answered(net, question, reply),
            (
                Reply::Applied {
                    outcome, view, hold, ..
                },
                Waiting::Write { caller, payload },
            ) => {
                self.applied(net, caller, payload, outcome, &view, hold);
            }
            (Reply::Renewed { ttl_s, .. }, Waiting::KeepAlive { caller, nth }) => self.renewed(net, caller, nth, ttl_s),
            (Reply::TimeToLive { lease, .. }, Waiting::TimeToLive { caller, id, keys }) => match lease {
                Ok(lease) => self.time_to_live_known(net, caller, id, lease),
                Err(_) => self.forward_time_to_live(net, caller, id, keys),
            },
            (Reply::Leases { ids, .. }, Waiting::Leases { caller }) => self.leases_known(net, caller, ids),
            (Reply::Status { status, .. }, Waiting::Status { want }) => self.status_known(net, want, &status),
            (Reply::Members { result, .. }, Waiting::Members { caller, changed }) => {
                self.members_changed(net, caller, changed, result);
            }
            (Reply::LeaderMoved { result, .. }, Waiting::Transfer { caller }) => {
                self.leader_moved(net, caller, result);
            }
            (Reply::Readable { .. }, Waiting::Reads { reads }) => self.reads_confirmed(net, reads),
            (Reply::Dropped { reason, .. }, waiting) => self.give_up(net, waiting, &error::dropped(reason)),
            (_, waiting) => self.give_up(net, waiting, &error::dropped(Dropped::NoLeader)),
        }
    }

    pub(super) fn give_up(&mut self, net: &mut Net, waiting: Waiting, status: &Status) {
        match waiting {
            Waiting::Write { caller, .. }
            | Waiting::KeepAlive { caller, .. }
            | Waiting::TimeToLive { caller, .. }
            | Waiting::Members { caller, .. }
            | Waiting::Transfer { caller }
            | Waiting::Leases { caller } => self.fail(net, caller, status),
            Waiting::Reads { reads } => self.reads_failed(net, reads, status),
            Waiting::Status { want } => self.status_unknown(net, want, status),
            Waiting::Task { answer } => answer.came(Err(status.clone())),
            Waiting::Peer { question } => self.peer_given_up(net, question, status),
        }
    }

    /// Answers a unary call.
    pub(super) fn answer(&mut self, net: &mut Net, caller: Caller, message: &impl Message) {
        let length = message.encoded_len();
        if length > API_PART_BYTES {
            return self.answer_bytes(net, caller, &message.encode_to_vec());
        }
        // A call that is gone meanwhile needs no answer.
        let _ = net.reply(caller.call, length, |out| message.encode_raw(out));
        self.finished(caller, length);
    }

    /// Ends a call with an error.
    pub(super) fn fail(&mut self, net: &mut Net, caller: Caller, status: &Status) {
        let _ = net.finish(caller.call, status);
        self.forget(caller, status.code);
    }

    fn dispatch(&mut self, net: &mut Net, caller: Caller, method: Method, message: Bytes) {
        let result = match method {
            Method::Range => self.range(net, caller, message),
            Method::RangeStream => self.range_stream(net, caller, message),
            Method::Put => self.put(net, caller, message),
            Method::DeleteRange => self.delete_range(net, caller, message),
            Method::Txn => self.txn(net, caller, message),
            Method::Compact => self.compact(net, caller, message),
            Method::Watch => self.watch_message(net, caller, message),
            Method::LeaseGrant => self.lease_grant(net, caller, message),
            Method::LeaseRevoke => self.lease_revoke(net, caller, message),
            Method::LeaseKeepAlive => self.lease_keep_alive(net, caller, message),
            Method::LeaseTimeToLive => self.lease_time_to_live(net, caller, message),
            Method::LeaseLeases => self.lease_leases(net, caller, message),
            Method::MemberAdd => self.member_add(net, caller, message),
            Method::MemberRemove => self.member_remove(net, caller, message),
            Method::MemberUpdate => self.member_update(net, caller, message),
            Method::MemberPromote => self.member_promote(net, caller, message),
            Method::MoveLeader => self.move_leader(net, caller, message),
            Method::MemberList => self.member_list(net, caller, message),
            Method::Alarm => self.alarm(net, caller, message),
            Method::Status => self.status(net, caller, message),
            Method::Hash => self.hash(net, caller, message),
            Method::HashKv => self.hash_kv(net, caller, message),
            Method::Downgrade => self.downgrade(net, caller, message),
            Method::HealthCheck | Method::HealthWatch | Method::HealthList => self.health(net, caller, method, message),
            _ => Err(not_built(method)),
        };
        if let Err(status) = result {
            self.fail(net, caller, &status);
        }
    }
}

/// Why a message of a call that answers with a stream can't be read.
pub(super) fn unreadable(method: Method, message: &Bytes) -> Option<Status> {
    let decoded = match method {
        Method::RangeStream => decode::<RangeRequest>(message.clone()).map(drop),
        _ => decode::<HealthCheckRequest>(message.clone()).map(drop),
    };
    decoded.err().map(|error| error::stream_status(&error))
}

fn not_built(method: Method) -> Status {
    let (service, name) = method.path();
    error::not_built(service, name)
}

/// What is kept of a call's head.
pub enum Head {
    /// A method of the API.
    Known {
        /// Which.
        method: Method,
        /// Whether `client-api-version` is text, or not there. Without, a unary call is refused once its message has
        /// come.
        has_version: bool,
        /// Whether it asks for a leader.
        wants_leader: bool,
    },
    /// Anything else, with the status it gets.
    Refused(Status),
}

/// Tag of a call that is refused at once.
const REFUSED: u64 = u64::MAX;
/// Of a request id, what does not tell the member.
const REQUEST_ID_MASK: u64 = (1 << 48) - 1;

impl Service for Api {
    type Head = Head;

    fn head(&mut self, request: &GrpcRequest<'_>, _peer: &PeerInfo) -> Head {
        let method = match request.method().and_then(|(service, name)| Method::find(service, name)) {
            Ok(method) if method.is_built() => method,
            Ok(method) => return Head::Refused(not_built(method)),
            Err(status) => return Head::Refused(status),
        };
        if let Some(status) = request.refused_encoding() {
            return Head::Refused(status);
        }
        let version = request.metadata().get("client-api-version");
        let has_version = version
            .as_ref()
            .is_none_or(|version| std::str::from_utf8(version).is_ok());
        let wants_leader = request.metadata().get("hasleader").as_deref() == Some(b"true");
        if !method.is_unary() {
            if let Err(status) = self.admits_learner(method, None) {
                return Head::Refused(status);
            }
            if !has_version {
                return Head::Refused(error::unknown_version());
            }
        }
        if has_version {
            let clients = &self.own_metrics().clients;
            clients.count(version.as_deref(), !method.is_unary());
        }
        if !method.is_unary()
            && let Err(status) = self.admits_leaderless(wants_leader)
        {
            return Head::Refused(status);
        }
        Head::Known {
            method,
            has_version,
            wants_leader,
        }
    }

    fn started(&mut self, net: &mut Net, call: Call, head: Head, timeout: Option<Duration>) -> u64 {
        let refusal = match head {
            Head::Known {
                method,
                has_version,
                wants_leader,
            } if !self.stopping => {
                let tag = self.calls.insert(CallState {
                    call,
                    method,
                    answered: false,
                    keep_alives: KeepAlives::default(),
                    paused: false,
                    half_closed: false,
                    received_at: net.now(),
                    deadline: timeout.map(|timeout| net.now().saturating_add(timeout)),
                    room: None,
                    held: None,
                    has_version,
                    wants_leader,
                }) as u64;
                self.count_started(method);
                if method == Method::Watch {
                    self.watch_started(net, Caller { call, tag });
                }
                return tag;
            }
            Head::Known { .. } => error::stopped(),
            Head::Refused(status) => status,
        };
        let _ = net.finish(call, &refusal);
        REFUSED
    }

    fn message(&mut self, net: &mut Net, call: Call, tag: u64, message: Bytes, last: bool) {
        let caller = Caller { call, tag };
        let now = net.now();
        let Some(state) = self.state(caller) else { return };
        let (method, has_version, wants_leader) = (state.method, state.has_version, state.wants_leader);
        state.received_at = now;
        if std::mem::replace(&mut state.answered, true) && !method.streams_requests() {
            let unreadable = unreadable(method, &message);
            self.fail(net, caller, &unreadable.unwrap_or_else(Status::second_stream_message));
            return;
        }
        if method.is_unary() && !last {
            // grpc-go does not look at what follows.
            net.ignore_input(call);
        }
        self.count_received(method, message.len());
        if method.is_unary() {
            let admitted = self.admits_learner(method, Some(&message));
            let admitted = admitted.and_then(|()| has_version.then_some(()).ok_or_else(error::unknown_version));
            if let Err(status) = admitted.and_then(|()| self.admits_leaderless(wants_leader)) {
                return self.fail(net, caller, &status);
            }
        }
        let is_whole = last || method.is_unary() || method.streams_requests();
        if !is_whole {
            return self.hold(net, caller, method, &message);
        }
        self.dispatch(net, caller, method, message);
        if last {
            self.half_closed(net, call, tag);
        }
    }

    fn half_closed(&mut self, net: &mut Net, call: Call, tag: u64) {
        let caller = Caller { call, tag };
        let Some(state) = self.state(caller) else { return };
        if let Some(message) = state.held.take() {
            let method = state.method;
            self.held_bytes -= message.len();
            return self.dispatch(net, caller, method, message);
        }
        match state.method {
            // A watch stream goes on when its client has no more to ask (`etcd-surface` 4.6).
            Method::Watch => {}
            Method::LeaseKeepAlive => self.keep_alive_half_closed(net, caller),
            method if !state.answered && method.is_unary() => self.fail(net, caller, &Status::no_unary_message()),
            _ if !state.answered => self.fail(net, caller, &Status::no_stream_message()),
            _ => {}
        }
    }

    fn cut_off(&mut self, net: &mut Net, call: Call, tag: u64) {
        let caller = Caller { call, tag };
        let Some(state) = self.state(caller) else { return };
        let status = match state.method.is_unary() {
            true => Status::cut_off_unary(),
            false => Status::cut_off_stream(),
        };
        self.fail(net, caller, &status);
    }

    fn cancelled(&mut self, net: &mut Net, call: Call, tag: u64) {
        let caller = Caller { call, tag };
        let now = net.now();
        let deadline = self.state(caller).and_then(|state| state.deadline);
        let expired = deadline.is_some_and(|deadline| deadline <= now);
        self.forget(
            caller,
            if expired {
                Code::DeadlineExceeded
            } else {
                Code::Canceled
            },
        );
    }

    fn writable(&mut self, net: &mut Net, call: Call, tag: u64) {
        let caller = Caller { call, tag };
        let Some(state) = self.state(caller) else { return };
        if let Some(room) = &state.room {
            room.notify();
        }
        match state.method {
            Method::Watch => self.watch_writable(net, caller),
            Method::LeaseKeepAlive => self.keep_alive_flow(net, caller),
            _ => {}
        }
    }

    fn takes_over(&self, listener: usize, request: &http1::Request) -> bool {
        let offer = self.settings.offers.get(listener).copied().unwrap_or_default();
        self.transport.is_some() && offer == Offer::Peer && Transport::serves(request.path())
    }

    fn take_over(&mut self, stream: Stream, connection: http1::Connection, request: http1::Request) {
        if let Some(transport) = &self.transport {
            transport.serve(stream, connection, request);
        }
    }

    fn http_request(&mut self, net: &mut Net, exchange: Exchange, request: http1::Request, body: Vec<u8>) {
        self.http(net, exchange, &request, &body);
    }

    fn turn_end(&mut self, net: &mut Net) {
        self.answer_gets(net);
        self.watches_advance(net);
        self.count_ended(net.now());
        self.asking.post_backlog();
    }

    fn shutting_down(&mut self, net: &mut Net) {
        self.stopping = true;
        self.asker.stop();
        let endless = |method: Method| method.streams_requests() || method == Method::HealthWatch;
        let streams = self.calls.iter().filter(|(_, state)| endless(state.method));
        let streams: Vec<_> = streams
            .map(|(tag, state)| Caller {
                call: state.call,
                tag: tag as u64,
            })
            .collect();
        for caller in streams {
            self.fail(net, caller, &error::stopped());
        }
        self.connections = None;
    }
}
