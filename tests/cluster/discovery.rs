//! Founders who find each other by a running etcd.

use ringd::proto::etcdserverpb as pb;

use crate::support::{
    block_on,
    cluster::Cluster,
    etcd::{PUT, put},
    grpc::Channel,
    server::{Part, Program, Server},
};

/// Three members find each other through `registry`, which may be ringd or etcd; a fourth comes too late.
fn founders_find_each_other(registry: Program) {
    let registry = Server::start(registry, &[]);
    let endpoints = format!("--discovery-endpoints=http://{}", registry.address());
    let token = "--discovery-token=token-1";
    block_on(async {
        let channel = Channel::connect(&registry.address()).await.expect("a connection");
        let size = put("/_etcd/registry/token-1/_config/size", "3");
        let _: pb::PutResponse = channel.call(PUT, &size).await.expect("a write");
    });
    let mut cluster = Cluster::unfounded(&[Program::Ringd; 4], &[&endpoints, token]);
    for (number, member) in cluster.members.iter_mut().enumerate() {
        member.set_part(Part {
            name: format!("m{number}"),
            members: String::new(),
            joins: false,
        });
    }
    let mut late = cluster.members.pop().expect("a fourth");
    for member in &mut cluster.members {
        member.spawn().expect("a member starts");
    }
    cluster.wait();
    let listed = cluster.etcdctl(&[0], &["member", "list"]);
    assert_eq!(
        listed.out.lines().filter(|line| line.contains("started")).count(),
        3,
        "{listed:?}"
    );
    late.spawn().expect("a process");
    let problem = late.wait_until_healthy().expect_err("there is no room");
    assert!(problem.contains("exit status: 1"), "{problem}");
    assert!(late.log().contains("discovery: cluster is full"), "{}", late.log());
    // From here on nobody asks the registry any more.
    drop(registry);
    cluster.members[1].stop();
    cluster.members[1].restart();
}

#[test]
fn founders_find_each_other_by_ringd() {
    founders_find_each_other(Program::Ringd);
}

#[test]
fn founders_find_each_other_by_etcd() {
    founders_find_each_other(Program::Reference);
}

/// Who waits for the registry can be told to end.
#[test]
fn a_member_that_waits_for_others_can_be_stopped() {
    let flags = ["--discovery-endpoints=http://127.0.0.1:1", "--discovery-token=x"];
    let mut cluster = Cluster::unfounded(&[Program::Ringd], &flags);
    let member = &mut cluster.members[0];
    member.set_part(Part {
        name: "one".to_string(),
        members: String::new(),
        joins: false,
    });
    member.spawn().expect("a process");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(member.is_running());
    assert!(member.stop().success());
}
