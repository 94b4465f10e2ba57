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
