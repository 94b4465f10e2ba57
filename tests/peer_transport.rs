//! The transport between members: of ringd's among themselves, hostile peers, and, with the feature `blackbox`, real
//! etcds as the other members of a cluster.

#[path = "peer_transport/hostile.rs"]
mod hostile;
#[path = "peer_transport/member.rs"]
mod member;
#[cfg(feature = "blackbox")]
#[path = "peer_transport/mixed.rs"]
mod mixed;

mod support;

use member::{Command, Member, Setup};
use std::net::TcpListener;
use std::time::Duration;
use support::server::ports::Port;

/// etcd's own. Shorter ones call for elections where the machine is loaded.
const TICK: Duration = Duration::from_millis(100);

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    (listener, url)
}

fn setups(urls: Vec<String>) -> Vec<Setup> {
    let members: Vec<_> = (0xa1..).zip(urls).collect();
    let of = |id: &u64| Setup {
        id: *id,
        cluster_id: 0xc1,
        members: members.clone(),
        removed: vec![],
        tick: TICK,
    };
    members.iter().map(|(id, _)| of(id)).collect()
}

fn cluster(count: u64) -> Vec<Member> {
    let (listeners, urls): (Vec<_>, Vec<_>) = (0..count).map(|_| listener()).unzip();
    let started = setups(urls).into_iter().zip(listeners);
    started
        .map(|(setup, listener)| Member::start(setup, listener))
        .collect()
}

fn leader(members: &[Member]) -> &Member {
    let first = members[0].wait("for a leader", |seen| seen.leader != 0);
    let leader = members.iter().find(|member| member.setup.id == first.leader);
    leader.expect("one of the members")
}

/// Every member has applied the same, with these among them in this order.
fn all_have(members: &[Member], wanted: &[Vec<u8>]) {
    for member in members {
        member.wait("for all entries", |seen| {
            let mut rest = seen.applied.iter();
            wanted.iter().all(|wanted| rest.any(|applied| applied == wanted))
        });
    }
}

#[test]
fn members_elect_a_leader_and_replicate() {
    for count in [2, 3] {
        let members = cluster(count);
        let lead = leader(&members);
        for member in &members {
            member.wait("for active peers", |seen| seen.active as u64 == count - 1);
        }
        // Some from followers, so that they are passed on; one that is longer than a piece of anything.
        let wanted: Vec<Vec<u8>> = (0..50u8).map(|number| vec![number; 1 + usize::from(number)]).collect();
        for data in &wanted {
            lead.tell(Command::Propose(data.clone()));
        }
        let long: Vec<Vec<u8>> = (0..6).map(|number| vec![number; 700_000]).collect();
        for data in &long {
            lead.tell(Command::Propose(data.clone()));
        }
        all_have(&members, &wanted);
        all_have(&members, &long);
        let follower = members
            .iter()
            .find(|member| !member.seen().is_leader)
            .expect("a follower");
        follower.tell(Command::Propose(b"passed on".to_vec()));
        all_have(&members, &[b"passed on".to_vec()]);
        let counted = lead.counters.of(follower.setup.id);
        assert!(counted.sent_bytes.get() > 4_200_000, "{counted:?}");
        assert!(
            counted.received_bytes.get() > 0 && counted.active.get() == 1,
            "{counted:?}"
        );
        assert!(members.iter().all(|member| member.seen().refused.is_empty()));
    }
}

#[test]
fn a_member_that_comes_late_catches_up() {
    let late_port = Port::reserve();
    let late_address = format!("127.0.0.1:{}", late_port.number());
    let (listeners, mut urls): (Vec<_>, Vec<_>) = (0..2).map(|_| listener()).unzip();
    urls.push(format!("http://{late_address}"));
    let setups = setups(urls);
    let mut members: Vec<_> = setups
        .iter()
        .cloned()
        .zip(listeners)
        .map(|(setup, listener)| Member::start(setup, listener))
        .collect();
    let lead = leader(&members);
    lead.wait("for the lead", |seen| seen.is_leader);
    let wanted: Vec<Vec<u8>> = (0..20u8).map(|number| vec![number; 300_000]).collect();
    for data in &wanted {
        lead.tell(Command::Propose(data.clone()));
    }
    all_have(&members, &wanted);
    // Who leads sends to it all the time.
    lead.wait("for reports of lost messages", |seen| {
        seen.active == 1 && seen.unreachable > 0
    });
    let listener = TcpListener::bind(late_address).expect("its port");
    members.push(Member::start(setups[2].clone(), listener));
    all_have(&members, &wanted);
    for member in &members {
        member.wait("for active peers", |seen| seen.active == 2);
        assert_eq!(member.seen().refused, [""; 0]);
    }
}

#[test]
fn the_lead_is_given_away() {
    let members = cluster(3);
    let lead = leader(&members);
    lead.wait("for the lead", |seen| seen.is_leader && seen.active == 2);
    let other = members
        .iter()
        .find(|member| member.setup.id != lead.setup.id)
        .expect("another");
    other.wait("for active peers", |seen| seen.active == 2);
    lead.tell(Command::Transfer(other.setup.id));
    other.wait("for the lead", |seen| seen.is_leader);
    other.tell(Command::Propose(b"after".to_vec()));
    all_have(&members, &[b"after".to_vec()]);
}

#[test]
fn snapshots_come_through_whole() {
    let members = cluster(2);
    let lead = leader(&members);
    lead.wait("for the lead", |seen| seen.is_leader && seen.active == 1);
    let other = members
        .iter()
        .find(|member| member.setup.id != lead.setup.id)
        .expect("another");
    let bytes = 5_000_000;
    let to = other.setup.id;
    lead.tell(Command::Snapshot { to, bytes });
    let received = other.wait("for the snapshot", |seen| !seen.snapshots_received.is_empty());
    assert_eq!(received.snapshots_received, [bytes as u64]);
    let sent = lead.wait("for the answer", |seen| !seen.snapshots_sent.is_empty());
    assert_eq!(sent.snapshots_sent, [(to, true)]);
    let counted = &lead.counters.of(to).snapshots_sent;
    assert_eq!(
        (counted.succeeded.get(), counted.failed.get(), counted.in_flight.get()),
        (1, 0, 0)
    );
    // Heartbeats did not wait for it.
    assert!(other.seen().leader == lead.setup.id && other.seen().term == lead.seen().term);
    // To somebody who is not there it fails.
    lead.tell(Command::Snapshot { to: 0x77, bytes });
    let sent = lead.wait("for the other answer", |seen| seen.snapshots_sent.len() == 2);
    assert_eq!(sent.snapshots_sent[1], (0x77, false));
}

#[test]
fn members_come_and_go() {
    let members = cluster(3);
    let lead = leader(&members);
    for member in &members {
        member.wait("for active peers", |seen| seen.active == 2);
    }
    let gone = members
        .iter()
        .find(|member| member.setup.id != lead.setup.id)
        .expect("another");
    let all = lead.setup.members.clone();
    let rest: Vec<_> = all.iter().filter(|(id, _)| *id != gone.setup.id).cloned().collect();
    for member in members.iter().filter(|member| member.setup.id != gone.setup.id) {
        member.tell(Command::SetMembers(rest.clone(), vec![gone.setup.id]));
        member.wait("for one peer less", |seen| seen.active == 1);
    }
    // It learns of it when it dials, and once.
    gone.wait("to be told", |seen| !seen.removed_by.is_empty());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(gone.seen().removed_by.len(), 1);
    lead.tell(Command::SetMembers(all, vec![]));
    lead.wait("for it to be back", |seen| seen.active == 2);
}
