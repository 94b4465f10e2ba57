//! Snapshots between log cores: a state that takes the place of another, whenever the member dies on the way.

use super::*;
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::OpenMode;
use crate::pages::{PageCache, ReadFailure, Root};
use crate::raft::core::Fatal;
use crate::raft::directory::{INSTALLING_FILE, RECEIVED_FILE, SNAPSHOT_FILE};
use crate::raft::install::{Placed, Received, Taken};
use crate::raft::storage::Position;
use crate::state::backend::{Export, ExportError, Exported, Import, ImportProgress};
use std::path::{Path, PathBuf};

fn snap(name: &str) -> PathBuf {
    Path::new("/data/member/snap").join(name)
}

/// The state of a root as etcd's database.
fn export(leader: &mut Bench, root: Root) -> Vec<u8> {
    let file = leader.core.pages().file();
    let (mut export, mut cache) = (Export::new(root), PageCache::new(1 << 20));
    let mut bytes = Vec::new();
    loop {
        match export.step(&mut cache, 100) {
            Ok(Exported::Chunk(chunk)) => bytes.extend(chunk),
            Ok(Exported::End) => return bytes,
            Ok(_) => {}
            Err(ExportError::Page(ReadFailure::Missing(address))) => {
                let (buffer, length) = leader.disk.read(file, address.offset(), address.length()).unwrap();
                export.root().insert(&mut cache, &address, &buffer[..length]).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Makes a page file of a database on a follower's disk, as its transport does.
fn import(disk: &mut MemoryDisk, bytes: &[u8]) -> Position {
    let (file, _) = disk.open(&snap(SNAPSHOT_FILE), OpenMode::CreateNew).unwrap();
    let length = bytes.len().next_multiple_of(crate::io::buffer::ALIGNMENT);
    let mut buffer = AlignedBuffer::zeroed(length);
    buffer[..bytes.len()].copy_from_slice(bytes);
    disk.call(Operation::Write {
        file,
        offset: 0,
        buffer,
        durable: true,
    })
    .unwrap();
    disk.call(Operation::Close { file }).unwrap();
    let options = pages::Options::new(0..crate::limits::pages::OPERATIONS as u64);
    let mut import = Import::new(disk, &snap(SNAPSHOT_FILE), &snap(RECEIVED_FILE), options).unwrap();
    loop {
        if let ImportProgress::Done(imported) = import.step(disk).unwrap() {
            return Position {
                index: imported.fields.applied_index,
                term: imported.fields.term,
            };
        }
    }
}

/// A cluster in which member 3 lags further behind than the others' logs reach back.
fn lagging() -> (Cluster, u64) {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    cluster.elect();
    cluster.stop(3);
    let leader = cluster.elect();
    for number in 0..30 {
        cluster.put(leader, &format!("key {number}"));
    }
    // A checkpoint, and another so that the log may be released; ten entries are kept.
    for round in 0..2 {
        cluster.put(leader, &format!("round {round}"));
        for bench in cluster.up.values_mut() {
            bench.now += Duration::from_secs(31);
        }
        cluster.settle();
        cluster.elect();
    }
    let leader = cluster.elect();
    cluster.start(3);
    (cluster, leader)
}

/// Ticks until the leader sends member 3 a snapshot.
fn snapshot_of(cluster: &mut Cluster) -> (RaftMessage, Root) {
    cluster.wait("a snapshot is sent", |cluster| !cluster.snapshots.is_empty());
    cluster.snapshots.remove(0)
}

/// Whether the leader has the entry at `index` for who asks, whatever is written and checkpointed meanwhile.
fn is_kept(cluster: &mut Cluster, leader: u64, index: u64) -> bool {
    for round in 0..3 {
        for number in 0..20 {
            cluster.put(leader, &format!("meanwhile {round} {number}"));
        }
        for id in [1, 2] {
            cluster.up.get_mut(&id).unwrap().now += Duration::from_secs(31);
        }
        cluster.settle();
    }
    cluster.up.get_mut(&leader).unwrap().core.node().first_index() <= index
}

/// Else who takes long to get a snapshot would need the next one as soon as it has it.
#[test]
fn what_follows_a_snapshot_is_kept_while_it_is_on_its_way() {
    let (mut cluster, leader) = lagging();
    let (message, _root) = snapshot_of(&mut cluster);
    let next = message.get_snapshot().get_metadata().index + 1;
    cluster.stop(3);
    assert!(
        is_kept(&mut cluster, leader, next),
        "the log keeps ten entries otherwise"
    );
    let bench = cluster.up.get_mut(&leader).unwrap();
    let event = FromPeers::SnapshotSent { id: 3, received: true };
    bench.core.handle_peer(event, bench.now);
    assert!(!is_kept(&mut cluster, leader, next), "and after a minute again");
}

#[test]
fn a_member_that_lags_too_far_gets_the_whole_state() {
    let (mut cluster, leader) = lagging();
    let (message, root) = snapshot_of(&mut cluster);
    assert_eq!((message.to, message.from), (3, leader));
    let bytes = export(cluster.up.get_mut(&leader).unwrap(), root);
    let follower = cluster.up.get_mut(&3).unwrap();
    let position = import(&mut follower.disk.clone(), &bytes);
    assert_eq!(position.index, message.get_snapshot().get_metadata().index);
    let position = import(&mut follower.disk, &bytes);
    let received = Received {
        message: Box::new(message),
        position,
    };
    follower.core.handle_peer(FromPeers::Snapshot(received), follower.now);
    let taken: Vec<_> = follower.core.take_to_peers().collect();
    let installs = |order: &ToPeers| matches!(order, ToPeers::SnapshotTaken(Ok(Taken::Installs)));
    assert!(taken.iter().any(installs), "{taken:?}");
    // Whatever comes meanwhile is nothing to the old state, not even what speaks against its log.
    let forged = lost::forged(&mut cluster, leader);
    lost::hear_a_row(&mut cluster, &forged).unwrap();
    let follower = cluster.up.get_mut(&3).unwrap();
    let before = follower.core.state().applied_index();
    follower.now += 30 * TICK;
    follower.settle();
    assert_eq!(follower.core.state().applied_index(), before);
    let renamed = Operation::Rename {
        from: snap(RECEIVED_FILE),
        to: snap(INSTALLING_FILE),
    };
    follower.disk.call(renamed).unwrap();
    follower
        .core
        .handle_peer(FromPeers::SnapshotInPlace(Placed::Yes), follower.now);
    follower.now += Duration::from_secs(1);
    let end = follower.core.turn(&mut follower.disk, follower.now);
    assert!(matches!(end, Err(Fatal::Installed)), "{end:?}");
    cluster.stop(3);
    cluster.start(3);
    cluster.settle();
    let names = cluster
        .up
        .get_mut(&3)
        .unwrap()
        .disk
        .list(Path::new("/data/member/snap"));
    let names = names.unwrap();
    assert!(names.iter().all(|name| name == "db" || name == "db.ringd"), "{names:?}");
    let sent = FromPeers::SnapshotSent { id: 3, received: true };
    let bench = cluster.up.get_mut(&leader).unwrap();
    bench.core.handle_peer(sent, bench.now);
    cluster.wait("it has caught up", |cluster| {
        cluster.up[&3].revision_of("key 29").is_some()
    });
    cluster.elect();
    cluster.put(3, "from there");
    cluster.tick();
    cluster.assert_equal();
    // What it is now made of survives a restart of its own.
    cluster.stop(3);
    cluster.start(3);
    cluster.put(leader, "after");
    cluster.wait("it goes on", |cluster| cluster.up[&3].revision_of("after").is_some());
    cluster.tick();
    cluster.assert_equal();
}

/// Before the name is given the old state goes on, afterwards the new one does, however often the start dies.
#[test]
fn rule_9_an_installation_is_begun_or_not_and_a_start_finishes_it() {
    let (mut cluster, leader) = lagging();
    let (_, root) = snapshot_of(&mut cluster);
    let bytes = export(cluster.up.get_mut(&leader).unwrap(), root);
    cluster.stop(3);
    let old = cluster.down[&3].clone();
    let position = import(cluster.down.get_mut(&3).unwrap(), &bytes);
    let applied = |cluster: &Cluster| cluster.up[&3].core.state().applied_index();
    cluster.start(3);
    assert!(
        applied(&cluster) < position.index,
        "what was only received is thrown away"
    );
    cluster.stop(3);
    cluster.down.insert(3, old);
    let disk = cluster.down.get_mut(&3).unwrap();
    import(disk, &bytes);
    let renamed = Operation::Rename {
        from: snap(RECEIVED_FILE),
        to: snap(INSTALLING_FILE),
    };
    disk.call(renamed).unwrap();
    // A start that dies after the log began anew, before the file is in place.
    let boot = boot_of(3, &[1, 2, 3]);
    let conf_state = raft::eraftpb::ConfState::from((vec![1, 2, 3], vec![]));
    let state = crate::raft::replica::Applied { position, conf_state };
    crate::raft::install::begin_behind(disk, &boot.wal_directory, &boot.replica, &state).unwrap();
    cluster.start(3);
    assert_eq!(applied(&cluster), position.index);
    let lost = FromPeers::SnapshotSent { id: 3, received: false };
    let bench = cluster.up.get_mut(&leader).unwrap();
    bench.core.handle_peer(lost, bench.now);
    let last = bench.core.state().applied_index();
    // The leader tries once more; what it sends is known by now.
    let (message, _) = snapshot_of(&mut cluster);
    let bench = cluster.up.get_mut(&3).unwrap();
    let received = Received {
        message: Box::new(message),
        position,
    };
    bench.core.handle_peer(FromPeers::Snapshot(received), bench.now);
    cluster.wait("it has caught up", |cluster| applied(cluster) >= last);
    cluster.tick();
    cluster.assert_equal();
}

#[test]
fn a_snapshot_of_what_is_known_is_thrown_away() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.put(leader, "a");
    cluster.tick();
    let follower = if leader == 1 { 2 } else { 1 };
    let bench = cluster.up.get_mut(&follower).unwrap();
    let index = bench.core.state().applied_index();
    let mut message = RaftMessage {
        from: leader,
        to: follower,
        term: bench.core.state().applied_term(),
        ..Default::default()
    };
    message.set_msg_type(MessageType::MsgSnapshot);
    let received = Received {
        message: Box::new(message),
        position: Position { index, term: 2 },
    };
    bench.core.handle_peer(FromPeers::Snapshot(received), bench.now);
    let taken: Vec<_> = bench.core.take_to_peers().collect();
    let known = |order: &ToPeers| matches!(order, ToPeers::SnapshotTaken(Ok(Taken::Known)));
    assert!(taken.iter().any(known), "{taken:?}");
    cluster.put(leader, "b");
    cluster.tick();
    cluster.assert_equal();
}

/// Nothing new may come for long, and with it no checkpoint.
#[test]
fn a_leader_that_was_just_started_sends_what_its_page_file_holds() {
    let (mut cluster, _) = lagging();
    cluster.settle();
    for id in 1..=3 {
        cluster.stop(id);
    }
    (1..=3).for_each(|id| cluster.start(id));
    let leader = cluster.elect();
    let (message, _) = snapshot_of(&mut cluster);
    assert_eq!((message.to, message.from), (3, leader));
}

/// A disk that tells what was done to it.
struct Told {
    disk: MemoryDisk,
    done: Vec<(&'static str, Option<PathBuf>)>,
}

impl Disk for Told {
    fn submit(&mut self, token: u64, operation: Operation) {
        let path = operation.path().map(Path::to_path_buf);
        self.done.push((operation.name(), path));
        self.disk.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<crate::io::disk::Completion>) {
        self.disk.poll(completions);
    }

    fn wait(&mut self, completions: &mut Vec<crate::io::disk::Completion>) {
        self.disk.wait(completions);
    }
}

/// The life that gave it may have died before the name was durable. A power cut that takes it, once the log begins
/// anew, leaves the old page file with a log that does not continue it.
#[test]
fn rule_9_the_name_is_durable_before_the_log_begins_anew() {
    let (mut cluster, leader) = lagging();
    let (_, root) = snapshot_of(&mut cluster);
    let bytes = export(cluster.up.get_mut(&leader).unwrap(), root);
    cluster.stop(3);
    let mut disk = cluster.down.remove(&3).unwrap();
    import(&mut disk, &bytes);
    let (from, to) = (snap(RECEIVED_FILE), snap(INSTALLING_FILE));
    disk.call(Operation::Rename { from, to }).unwrap();
    let mut told = Told { disk, done: Vec::new() };
    crate::raft::install::finish(&mut told, &boot_of(3, &[1, 2, 3])).unwrap();
    let first = |name: &str| told.done.iter().position(|(operation, _)| *operation == name);
    let synced = told.done.iter().position(|(operation, path)| {
        *operation == "sync directory" && path.as_deref() == Some(Path::new("/data/member/snap"))
    });
    assert!(first("write").is_some());
    assert!(synced < first("write"), "{:?}", told.done);
}

#[test]
fn a_snapshot_that_gets_no_name_leaves_the_old_state_and_one_of_which_nobody_knows_ends_the_member() {
    let (mut cluster, leader) = lagging();
    let (message, root) = snapshot_of(&mut cluster);
    let bytes = export(cluster.up.get_mut(&leader).unwrap(), root);
    let follower = cluster.up.get_mut(&3).unwrap();
    let position = import(&mut follower.disk, &bytes);
    let installs = |order: &ToPeers| matches!(order, ToPeers::SnapshotTaken(Ok(Taken::Installs)));
    for _ in 0..2 {
        let received = Received {
            message: Box::new(message.clone()),
            position,
        };
        follower.core.handle_peer(FromPeers::Snapshot(received), follower.now);
        let taken: Vec<_> = follower.core.take_to_peers().collect();
        assert!(taken.iter().any(installs), "{taken:?}");
        let no = Placed::No("the disk is full".to_string());
        follower.core.handle_peer(FromPeers::SnapshotInPlace(no), follower.now);
        follower.core.turn(&mut follower.disk, follower.now).unwrap();
        follower.now += TICK;
    }
    let unknown = Placed::Unknown("the sync failed".to_string());
    follower
        .core
        .handle_peer(FromPeers::SnapshotInPlace(unknown), follower.now);
    let end = follower.core.turn(&mut follower.disk, follower.now);
    assert!(matches!(end, Err(Fatal::HalfInstalled(_))), "{end:?}");
}
