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

/// Wipes a member's directory and starts it as it was, saying that the cluster exists; how that ends.
fn without_its_data(cluster: &mut Cluster, member: usize, joins: Part) -> Result<(), String> {
    let member = &mut cluster.members[member];
    member.kill();
    std::fs::remove_dir_all(member.data_directory()).expect("a directory");
    member.set_part(joins);
    member.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while member.is_running() {
        if Instant::now() >= deadline || member.wait_until_healthy().is_ok() {
            return Ok(());
        }
    }
    Err(member.log())
}

/// It ends as soon as its leader speaks of what it has forgotten; it may come back as a new member only.
#[test]
fn a_member_that_lost_its_data_ends() {
    let mut cluster = Cluster::of_three(Program::Ringd);
    block_on(cluster.lead(0));
    let deadline = Instant::now() + PATIENCE;
    // Nobody joins a cluster before it has a version.
    for member in &cluster.members {
        let version = || member.http_body("/version").unwrap_or_default();
        while !version().contains("\"etcdcluster\":\"3.7.0\"") {
            assert!(Instant::now() < deadline, "no version: {}", version());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    let urls = cluster.members.iter().zip(["one", "two", "three"]);
    let urls: Vec<String> = urls
        .map(|(member, name)| format!("{name}=http://{}", member.peer_address()))
        .collect();
    let joins = Part {
        name: "three".to_string(),
        members: urls.join(","),
        joins: true,
    };
    let term = |cluster: &Cluster| block_on(cluster.status(0)).map(|status| status.raft_term);
    // A leader that was elected meanwhile does not know what it had.
    let log = (0..10).find_map(|_| {
        let before = term(&cluster);
        let ended = without_its_data(&mut cluster, 2, joins.clone()).err();
        assert!(ended.is_some() || before != term(&cluster), "it runs on");
        ended
    });
    let log = log.expect("it ends where the leader stays");
    assert!(log.contains("log has lost entries that it had acknowledged"), "{log}");
    let written = cluster.etcdctl(&[0, 1], &["put", "after", "it"]);
    assert_eq!(written.code, Some(0), "the others go on: {written:?}");
}
