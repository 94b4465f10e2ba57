//! Members that are started again otherwise than before.

use std::time::Instant;

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    server::{Part, Program},
};

/// Waits until a list of members says something.
fn listed(cluster: &Cluster, expected: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let listed = cluster.etcdctl(&[0], &["member", "list"]);
        if listed.out.contains(expected) {
            return;
        }
        assert!(Instant::now() < deadline, "no {expected:?} in {listed:?}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// What the flags say of the cluster counts at the first start only: the member keeps its peer URL, and tells the
/// others its new name.
#[test]
fn a_member_with_data_does_not_look_at_the_initial_cluster() {
    let mut cluster = Cluster::of_three(Program::subject());
    let member = &mut cluster.members[2];
    let (peer, client) = (member.peer_address(), member.address());
    let as_founded = ["one", "two", "three"].map(|name| format!("{name}=http://{peer}"));
    let lists = [&as_founded.join(",")[..], "q=http://127.0.0.1:9", "three"];
    for (number, list) in lists.iter().enumerate() {
        let member = &mut cluster.members[2];
        assert!(member.stop().success());
        member.advertise_peers_at("127.0.0.1:9".parse().expect("an address"));
        member.set_part(Part {
            name: format!("new-{number}"),
            members: list.to_string(),
            joins: number == 0,
        });
        member.restart();
        listed(
            &cluster,
            &format!("started, new-{number}, http://{peer}, http://{client}, false"),
        );
    }
    block_on(cluster.settle());
}

/// Tries a change of the members until it is taken: not before all who are up have been connected for a while.
fn changed(cluster: &Cluster, arguments: &[&str]) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let changed = cluster.etcdctl(&[0], arguments);
        if changed.code == Some(0) {
            return changed.out;
        }
        assert!(Instant::now() < deadline, "{arguments:?}: {changed:?}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Starts the third member, without data, saying that the cluster exists. It ends, and says what is wrong.
fn is_refused(cluster: &mut Cluster) {
    cluster.join(2, "three", &[0, 1]);
    let member = &mut cluster.members[2];
    member.spawn().expect("a process");
    let ended = member.wait_until_healthy().expect_err("it ends before it serves");
    assert!(ended.contains("exit status: 1"), "{ended}");
    let log = member.log();
    assert!(log.contains("has already been bootstrapped"), "{log}");
    assert!(!member.data_directory().join("member").exists(), "nothing is written");
}

/// The third member, of ringd, loses its directory. The others know that it has run, whatever they are.
fn loses_its_directory(programs: [Program; 2]) -> Cluster {
    let mut cluster = Cluster::start(&[programs[0], programs[1], Program::Ringd]);
    let member = &cluster.members[2];
    let (peer, client) = (member.peer_address(), member.address());
    let id = block_on(cluster.id(2));
    let line = format!("{id:x}, started, three, http://{peer}, http://{client}, false");
    listed(&cluster, &line);
    // Without a leader etcd may take a change and forget it.
    block_on(cluster.lead(0));
    cluster.members[2].kill();
    std::fs::remove_dir_all(cluster.members[2].data_directory()).expect("a directory");
    is_refused(&mut cluster);
    // What was changed of it since is nothing to the point.
    let id = format!("{id:x}");
    let elsewhere = "--peer-urls=http://127.0.0.1:9";
    changed(&cluster, &["member", "update", &id, elsewhere]);
    changed(
        &cluster,
        &["member", "update", &id, &format!("--peer-urls=http://{peer}")],
    );
    is_refused(&mut cluster);
    cluster
}

/// It has forgotten its votes, so it may come back as a new member only: whoever leads by now.
#[test]
fn a_member_that_lost_its_directory_is_refused() {
    let mut cluster = loses_its_directory([Program::Ringd; 2]);
    let other = 1 - block_on(cluster.leader());
    block_on(cluster.lead(other));
    is_refused(&mut cluster);
    let listed = cluster.etcdctl(&[0], &["member", "list"]).out;
    let lost = listed.lines().find(|line| line.contains("three"));
    let id = lost.and_then(|line| line.split(',').next()).expect("an id");
    changed(&cluster, &["member", "remove", id]);
    let peer = cluster.members[2].peer_address();
    changed(
        &cluster,
        &["member", "add", "three", &format!("--peer-urls=http://{peer}")],
    );
    cluster.members[2].restart();
    block_on(cluster.settle());
}

#[test]
fn a_member_that_lost_its_directory_is_refused_among_etcds() {
    loses_its_directory([Program::Reference; 2]);
    loses_its_directory([Program::Etcd351, Program::Ringd]);
}
