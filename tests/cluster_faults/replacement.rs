//! Every member is replaced by another, one after the other, while clients go on.

use std::time::Duration;

use prost::Message;
use ringd::proto::etcdserverpb as pb;
use tokio::{
    task::LocalSet,
    time::{Instant, sleep},
};

use super::stage::Stage;
use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{MEMBER_ADD, MEMBER_LIST, MEMBER_PROMOTE, MEMBER_REMOVE},
    grpc::Status,
    roaming::Roaming,
    server::Program,
};

/// How long one attempt to change the membership may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Replaces all of three members, and then looks whether clients saw anything wrong.
pub fn run() {
    let program = Program::subject();
    let mut cluster = Cluster::of_three(program);
    let new: Vec<usize> = (0..3).map(|_| cluster.reserve(program)).collect();
    block_on(LocalSet::new().run_until(async {
        let mut stage = Stage::new(cluster, &[]);
        stage.written_by(&[0, 1, 2]).await;
        let mut current = vec![0, 1, 2];
        for new in new {
            let old = current.remove(0);
            let began = Instant::now();
            replace(&mut stage, old, new, &current).await;
            current.push(new);
            stage.written_by(&[new]).await;
            stage.look_at_clients().await;
            println!("member {old} replaced by {new} in {:?}", began.elapsed());
        }
        stage.finish().await;
    }));
}

/// Adds `new` as a learner, starts and promotes it, and removes `old`, which then ends by itself.
async fn replace(stage: &mut Stage, old: usize, new: usize, others: &[usize]) {
    let members = [&[old], others].concat();
    let id = stage.cluster.id(old).await;
    let addresses = members.iter().map(|member| stage.cluster.members[*member].address());
    let mut admin = Admin(Roaming::new(addresses.collect(), old));
    let url = format!("http://{}", stage.cluster.members[new].advertised_peer_address());
    let added = admin.add(url).await;
    stage.cluster.join(new, &format!("new-{new}"), &members);
    stage.cluster.members[new].spawn().expect("it starts");
    admin.promote(added).await;
    stage.stay_with(new);
    stage.written_by(&[new]).await;
    admin.remove(id).await;
    let deadline = Instant::now() + PATIENCE;
    while stage.cluster.members[old].is_running() {
        assert!(Instant::now() < deadline, "a removed member does not end");
        sleep(PAUSE).await;
    }
    let log = stage.cluster.members[old].log();
    assert!(log.contains("removed"), "it does not say why it ended: {log}");
}

/// Changes the membership, again and again until it is as wanted.
struct Admin(Roaming);

impl Admin {
    async fn attempt<R: Message + Default>(&mut self, path: &str, request: &impl Message) -> Result<R, Status> {
        let result = self.0.once(path, request, ATTEMPT).await;
        if result.is_err() {
            sleep(PAUSE).await;
        }
        result
    }

    async fn members(&mut self) -> Vec<pb::Member> {
        let request = pb::MemberListRequest { linearizable: true };
        self.0
            .call::<pb::MemberListResponse>(MEMBER_LIST, &request)
            .await
            .members
    }

    /// Adds a learner with this peer URL: its id.
    async fn add(&mut self, url: String) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        let request = pb::MemberAddRequest {
            peer_ur_ls: vec![url.clone()],
            is_learner: true,
        };
        loop {
            // It is refused until all members have been connected for some time.
            let added: Result<pb::MemberAddResponse, _> = self.attempt(MEMBER_ADD, &request).await;
            let members = self.members().await;
            if let Some(member) = members.iter().find(|member| member.peer_ur_ls.contains(&url)) {
                return member.id;
            }
            assert!(Instant::now() < deadline, "no member is added: {added:?}");
        }
    }

    async fn promote(&mut self, id: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request = pb::MemberPromoteRequest { id };
            let promoted: Result<pb::MemberPromoteResponse, _> = self.attempt(MEMBER_PROMOTE, &request).await;
            let members = self.members().await;
            if members.iter().any(|member| member.id == id && !member.is_learner) {
                return;
            }
            assert!(Instant::now() < deadline, "the learner is not promoted: {promoted:?}");
        }
    }

    async fn remove(&mut self, id: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request = pb::MemberRemoveRequest { id };
            let removed: Result<pb::MemberRemoveResponse, _> = self.attempt(MEMBER_REMOVE, &request).await;
            if self.members().await.iter().all(|member| member.id != id) {
                return;
            }
            assert!(Instant::now() < deadline, "the member is not removed: {removed:?}");
        }
    }
}
