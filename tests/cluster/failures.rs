//! Members are killed, paused and started again while clients write and read through all of them.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use ringd::proto::etcdserverpb as pb;

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{PUT, RANGE, get, get_prefix, put},
    grpc::Channel,
    roaming::Roaming,
    server::Program,
};

/// Clients that write at once.
const CLIENTS: usize = 4;

/// What clients have done.
#[derive(Default)]
struct Load {
    /// How many writes were acknowledged.
    acknowledged: Cell<u64>,
    /// What was acknowledged: for each key, the revision.
    revisions: RefCell<BTreeMap<String, i64>>,
    stop: Cell<bool>,
}

/// Writes key after key through one member and reads each at once through another.
async fn write(load: Rc<Load>, addresses: Vec<String>, number: usize) {
    let client = |at: usize| Roaming::new(addresses.clone(), at);
    let (mut writer, mut reader) = (client(number), client(number + 1));
    let mut last_revision = 0;
    for count in 0.. {
        if load.stop.get() {
            return;
        }
        let key = format!("load/{number}/{count:08}");
        let written: pb::PutResponse = writer.call(PUT, &put(&key, &key)).await;
        let revision = written.header.expect("a header").revision;
        assert!(
            revision > last_revision,
            "{key}: revision {revision} after {last_revision}"
        );
        load.revisions.borrow_mut().insert(key.clone(), revision);
        load.acknowledged.set(load.acknowledged.get() + 1);
        let read: pb::RangeResponse = reader.call(RANGE, &get(&key)).await;
        let row = read
            .kvs
            .first()
            .unwrap_or_else(|| panic!("{key} was acknowledged and is not read"));
        // A write that was tried again may have come to be twice.
        assert!(
            row.value == key.as_bytes() && row.mod_revision >= revision,
            "{row:?}, not {revision}"
        );
        last_revision = read.header.expect("a header").revision.max(revision);
    }
}

/// Disturbs a cluster under load; then nothing that was acknowledged is missing at any member.
fn under_load(disturb: impl AsyncFnOnce(&mut Cluster, &Load)) {
    let mut cluster = Cluster::of_three(Program::subject());
    block_on(tokio::task::LocalSet::new().run_until(async move {
        let load = Rc::new(Load::default());
        let clients = (0..CLIENTS).map(|number| {
            let writing = write(load.clone(), cluster.addresses(), number);
            tokio::task::spawn_local(writing)
        });
        let clients: Vec<_> = clients.collect();
        progress(&load, 20).await;
        disturb(&mut cluster, &load).await;
        progress(&load, 20).await;
        load.stop.set(true);
        for client in clients {
            client.await.expect("a client that saw nothing wrong");
        }
        cluster.wait();
        for address in cluster.addresses() {
            let channel = Channel::connect(&address).await.expect("a connection");
            let found: pb::RangeResponse = channel.call(RANGE, &get_prefix("load/")).await.expect("a read");
            let rows = found.kvs.iter().map(|row| (row.key.to_vec(), row.mod_revision));
            let rows: BTreeMap<Vec<u8>, i64> = rows.collect();
            for (key, revision) in load.revisions.borrow().iter() {
                let found = rows.get(key.as_bytes());
                assert!(
                    found.is_some_and(|found| found >= revision),
                    "{key}: {found:?}, not {revision}"
                );
            }
        }
        cluster.settle().await;
    }));
}

/// Waits until so many more writes are acknowledged.
async fn progress(load: &Load, writes: u64) -> Duration {
    let began = tokio::time::Instant::now();
    let wanted = load.acknowledged.get() + writes;
    while load.acknowledged.get() < wanted {
        assert!(began.elapsed() < 2 * PATIENCE, "writes do not get on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

#[test]
fn a_killed_leader_loses_nothing() {
    under_load(async |cluster, load| {
        for _ in 0..2 {
            let leader = cluster.leader().await;
            cluster.members[leader].kill();
            progress(load, 40).await;
            cluster.members[leader].spawn().expect("it starts again");
            cluster.wait();
        }
    });
}

#[test]
fn a_paused_leader_loses_nothing() {
    under_load(async |cluster, load| {
        let leader = cluster.leader().await;
        cluster.members[leader].signal("STOP");
        tokio::time::sleep(Duration::from_secs(3)).await;
        progress(load, 1).await;
        cluster.members[leader].signal("CONT");
        progress(load, 40).await;
    });
}

#[test]
fn all_members_killed_lose_nothing() {
    under_load(async |cluster, _| {
        cluster.members.iter_mut().for_each(|member| member.kill());
        for member in &mut cluster.members {
            member.spawn().expect("it starts again");
        }
        cluster.wait();
    });
}

#[test]
fn a_rolling_restart_loses_nothing() {
    under_load(async |cluster, load| {
        for member in 0..cluster.members.len() {
            cluster.members[member].signal("TERM");
            progress(load, 20).await;
            let status = cluster.members[member].stop_told();
            assert!(status.success(), "{status}");
            cluster.members[member].spawn().expect("it starts again");
            cluster.wait();
            progress(load, 20).await;
        }
    });
}
