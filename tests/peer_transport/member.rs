//! A member that is nothing but ringd's transport and gate, and raft-rs on a log in memory, on a thread of its own.

use raft::eraftpb::{ConfChange, ConfChangeType, Entry, EntryType, HardState, Message, MessageType};
use raft::storage::MemStorage;
use raft::{Config, RawNode, StateRole};
use ringd::raft::transport::counters::Counters;
use ringd::raft::transport::gate::{RaftState, check};
use ringd::raft::transport::identity::Local;
use ringd::raft::transport::wire;
use ringd::raft::transport::{LocalFuture, Sink, SnapshotBody, SnapshotSource, Transport};
use ringd::reactor::serve::{self, CoreOptions, ServeCore, Stream};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Who a member is and who the others are.
#[derive(Clone)]
pub struct Setup {
    pub id: u64,
    pub cluster_id: u64,
    /// All members, this one too.
    pub members: Vec<(u64, String)>,
    pub removed: Vec<u64>,
    pub tick: Duration,
}

/// What is to be done.
pub enum Command {
    Propose(Vec<u8>),
    /// Gives the lead to a member.
    Transfer(u64),
    SetMembers(Vec<(u64, String)>, Vec<u64>),
    /// Sends a snapshot of so many bytes.
    Snapshot {
        to: u64,
        bytes: usize,
    },
    Stop,
}

/// What can be seen of a member.
#[derive(Clone, Default)]
pub struct Seen {
    pub leader: u64,
    pub term: u64,
    pub is_leader: bool,
    pub committed: u64,
    /// Payloads that were applied.
    pub applied: Vec<Vec<u8>>,
    pub active: usize,
    pub served: usize,
    pub refused: Vec<String>,
    pub unreachable: usize,
    pub learned: Vec<(u64, Vec<String>)>,
    pub removed_by: Vec<u64>,
    /// To whom, and whether it came.
    pub snapshots_sent: Vec<(u64, bool)>,
    /// Bytes received behind a snapshot's message.
    pub snapshots_received: Vec<u64>,
}

/// A running member.
pub struct Member {
    pub setup: Setup,
    pub counters: Arc<Counters>,
    core: Option<ServeCore>,
    commands: mpsc::Sender<Command>,
    seen: Arc<Mutex<Seen>>,
}

impl Member {
    /// Starts a member that accepts on `listener`.
    pub fn start(setup: Setup, listener: TcpListener) -> Member {
        let (commands, receiver) = mpsc::channel();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let counters = Arc::new(Counters::default());
        let (own, shown, counted) = (setup.clone(), seen.clone(), counters.clone());
        let options = CoreOptions {
            name: format!("member-{:x}", setup.id),
            cpus: None,
        };
        let core = ServeCore::start(options, move || async move {
            listener.set_nonblocking(true).expect("a listener that does not block");
            run(own, listener, receiver, shown, counted).await;
        });
        Member {
            setup,
            counters,
            core: Some(core.expect("a serve core")),
            commands,
            seen,
        }
    }

    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    pub fn tell(&self, command: Command) {
        self.commands.send(command).expect("a running member");
    }

    /// Waits until `holds` of what is seen of the member.
    pub fn wait(&self, what: &str, holds: impl Fn(&Seen) -> bool) -> Seen {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let seen = self.seen();
            if holds(&seen) {
                return seen;
            }
            assert!(
                Instant::now() < until,
                "member {:x} has waited too long: {what}; leader {:x} term {} committed {} active {} refused {:?}",
                self.setup.id,
                seen.leader,
                seen.term,
                seen.committed,
                seen.active,
                seen.refused.first()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(core) = self.core.take() {
            let ended = core.join(Duration::from_secs(20));
            assert!(ended || std::thread::panicking(), "the member did not end");
        }
    }
}

/// What the transport hands over.
#[derive(Default)]
struct Inbox {
    messages: RefCell<VecDeque<Message>>,
    reports: RefCell<Vec<Report>>,
}

enum Report {
    Unreachable(u64),
    SnapshotSent(u64, bool),
    Learned(u64, Vec<String>),
    Removed(u64),
    SnapshotReceived(u64),
}

struct Handle(Rc<Inbox>);

impl Sink for Handle {
    fn step(&self, message: Message) -> bool {
        self.0.messages.borrow_mut().push_back(message);
        true
    }

    fn unreachable(&self, id: u64) {
        self.0.reports.borrow_mut().push(Report::Unreachable(id));
    }

    fn snapshot_sent(&self, id: u64, ok: bool) {
        self.0.reports.borrow_mut().push(Report::SnapshotSent(id, ok));
    }

    fn learned(&self, id: u64, urls: Vec<String>) {
        self.0.reports.borrow_mut().push(Report::Learned(id, urls));
    }

    fn removed(&self, by: u64) {
        self.0.reports.borrow_mut().push(Report::Removed(by));
    }

    fn receive_snapshot(&self, message: Message, mut body: SnapshotBody) -> LocalFuture<'static, Result<u64, String>> {
        let inbox = self.0.clone();
        Box::pin(async move {
            while let Some(part) = body.next_part().await.map_err(|error| error.to_string())? {
                if part.iter().any(|byte| *byte != 7) {
                    return Err("it is damaged".to_string());
                }
            }
            assert_eq!(message.msg_type(), MessageType::MsgSnapshot);
            let report = Report::SnapshotReceived(body.taken());
            inbox.reports.borrow_mut().push(report);
            Ok(body.taken())
        })
    }
}

/// A database of sevens.
struct Sevens(usize);

impl SnapshotSource for Sevens {
    fn next_part(&mut self) -> LocalFuture<'_, io::Result<Option<bytes::Bytes>>> {
        Box::pin(async move {
            let length = self.0.min(100_000);
            self.0 -= length;
            Ok((length > 0).then(|| vec![7; length].into()))
        })
    }
}

/// The replica: raft and its log, with every write done at once.
struct Replica {
    raw: RawNode<MemStorage>,
    removed: Vec<u64>,
}

impl Replica {
    /// The log that a cluster of etcd begins with: one entry of term 1 for each member, by id, all committed.
    fn new(setup: &Setup) -> Replica {
        let mut ids: Vec<u64> = setup.members.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let storage = MemStorage::new_with_conf_state((ids.clone(), vec![]));
        let entries: Vec<Entry> = ids
            .iter()
            .zip(1..)
            .map(|(id, index)| {
                let mut data = Vec::new();
                let change = wire::ConfChange {
                    node_id: *id,
                    ..wire::ConfChange::default()
                };
                change.encode(&mut data);
                Entry {
                    entry_type: EntryType::EntryConfChange as i32,
                    term: 1,
                    index,
                    data: data.into(),
                    ..Entry::default()
                }
            })
            .collect();
        storage.wl().append(&entries).expect("an empty log");
        storage.wl().set_hardstate(HardState {
            term: 1,
            vote: 0,
            commit: ids.len() as u64,
        });
        let config = Config {
            id: setup.id,
            election_tick: 10,
            heartbeat_tick: 1,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 512,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        Replica {
            raw: RawNode::new(&config, storage, &logger).expect("a sound configuration"),
            removed: setup.removed.clone(),
        }
    }

    /// Does what raft wants and returns what it wants sent and what it has applied.
    fn turn(&mut self) -> (Vec<Message>, Vec<Entry>) {
        let (mut messages, mut applied) = (Vec::new(), Vec::new());
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            messages.extend(ready.take_messages());
            applied.extend(self.apply(ready.take_committed_entries()));
            let mut store = self.raw.mut_store().wl();
            store.append(ready.entries()).expect("entries that follow");
            if let Some(state) = ready.hs() {
                store.set_hardstate(state.clone());
            }
            drop(store);
            messages.extend(ready.take_persisted_messages());
            let mut light = self.raw.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.raw.mut_store().wl().mut_hard_state().commit = commit;
            }
            messages.extend(light.take_messages());
            applied.extend(self.apply(light.take_committed_entries()));
            self.raw.advance_apply();
        }
        (messages, applied)
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        for entry in &entries {
            if entry.get_entry_type() == EntryType::EntryConfChange {
                let change = wire::ConfChange::decode(entry.data.clone()).expect("the gate looked at it");
                let for_raft = change.for_raft().unwrap_or_else(|| ConfChange {
                    change_type: ConfChangeType::AddNode as i32,
                    ..ConfChange::default()
                });
                if let Ok(state) = self.raw.apply_conf_change(&for_raft) {
                    self.raw.mut_store().wl().set_conf_state(state);
                }
            }
        }
        entries
    }
}

impl RaftState for Replica {
    fn id(&self) -> u64 {
        self.raw.raft.id
    }

    fn role(&self) -> StateRole {
        self.raw.raft.state
    }

    fn term(&self) -> u64 {
        self.raw.raft.term
    }

    fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    fn is_member(&self) -> bool {
        self.raw.raft.prs().get(self.id()).is_some()
    }

    fn may_campaign(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.raw.raft.promotable() && log.persisted == log.last_index()
    }

    fn is_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }
}

fn with_lists(members: &[(u64, String)]) -> Vec<(u64, Vec<String>)> {
    members.iter().map(|(id, url)| (*id, vec![url.clone()])).collect()
}

async fn run(
    setup: Setup,
    listener: TcpListener,
    commands: mpsc::Receiver<Command>,
    seen: Arc<Mutex<Seen>>,
    counters: Arc<Counters>,
) {
    let own = setup.members.iter().find(|(id, _)| *id == setup.id);
    let local = Local {
        member_id: setup.id,
        cluster_id: setup.cluster_id,
        peer_urls: own.map(|(_, url)| url.clone()).into_iter().collect(),
        version: "3.7.1",
    };
    let inbox = Rc::new(Inbox::default());
    let transport = Transport::new(local, Rc::new(Handle(inbox.clone())), counters);
    transport.set_members(with_lists(&setup.members), setup.removed.clone());
    let mut replica = Replica::new(&setup);
    let mut next_tick = Instant::now() + setup.tick;
    loop {
        while let Ok((socket, _)) = listener.accept() {
            transport.accept(Stream::from_socket(socket.into()));
        }
        while let Ok(command) = commands.try_recv() {
            match command {
                Command::Stop => return transport.stop(),
                Command::Propose(data) => {
                    let _ = replica.raw.propose(Vec::new(), data);
                }
                Command::Transfer(to) => replica.raw.transfer_leader(to),
                Command::SetMembers(members, removed) => {
                    replica.removed = removed.clone();
                    transport.set_members(with_lists(&members), removed);
                }
                Command::Snapshot { to, bytes } => {
                    transport.send_snapshot(snapshot(&replica, to), Box::new(Sevens(bytes)));
                }
            }
        }
        let mut refused = Vec::new();
        while let Some(message) = inbox.messages.borrow_mut().pop_front() {
            match check(&message, &replica) {
                Ok(()) => {
                    let _ = replica.raw.step(message);
                }
                Err(refusal) => refused.push(refusal.to_string()),
            }
        }
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + setup.tick;
            replica.raw.tick();
        }
        take_reports(&inbox, &mut replica, &seen);
        let (messages, applied) = replica.turn();
        transport.send(messages);
        {
            let mut seen = seen.lock().unwrap();
            seen.refused.extend(refused.into_iter().take(1));
            let data = applied.into_iter().filter(|entry| !entry.data.is_empty());
            seen.applied.extend(data.map(|entry| entry.data.to_vec()));
            seen.leader = replica.raw.raft.leader_id;
            seen.is_leader = replica.role() == StateRole::Leader;
            seen.term = replica.term();
            seen.committed = replica.committed();
            seen.active = transport.active_peers();
            seen.served = transport.served_connections();
        }
        serve::sleep(Duration::from_millis(1)).await;
    }
}

fn take_reports(inbox: &Inbox, replica: &mut Replica, seen: &Mutex<Seen>) {
    let mut seen = seen.lock().unwrap();
    for report in inbox.reports.borrow_mut().drain(..) {
        match report {
            Report::Unreachable(id) => {
                replica.raw.report_unreachable(id);
                seen.unreachable += 1;
            }
            Report::SnapshotSent(id, ok) => seen.snapshots_sent.push((id, ok)),
            Report::Learned(id, urls) => seen.learned.push((id, urls)),
            Report::Removed(by) => seen.removed_by.push(by),
            Report::SnapshotReceived(bytes) => seen.snapshots_received.push(bytes),
        }
    }
}

fn snapshot(replica: &Replica, to: u64) -> Message {
    let mut message = Message {
        to,
        from: replica.id(),
        term: replica.term(),
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgSnapshot);
    let metadata = message.mut_snapshot().mut_metadata();
    metadata.index = replica.committed();
    metadata.term = 1;
    *metadata.mut_conf_state() = (vec![replica.id(), to], vec![]).into();
    message
}
