//! A cluster with its clients on it, and what is looked at when they have ended.

use std::{rc::Rc, time::Duration};

use ringd::proto::etcdserverpb as pb;
use tokio::{
    task::{JoinHandle, JoinSet, spawn_local},
    time::{Instant, sleep},
};

use super::{
    clients::{Load, Watcher, keep_leases, let_leases_end, read, write},
    history::Record,
};
use crate::support::{
    cluster::{Cluster, PATIENCE},
    etcd::{RANGE, get_prefix},
    roaming::Roaming,
};

/// Between two writes that look whether writes are taken again.
const PROBE_PAUSE: Duration = Duration::from_millis(25);

/// A cluster and its clients.
pub struct Stage {
    pub cluster: Cluster,
    load: Rc<Load>,
    clients: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<Vec<Record>>>,
}

impl Stage {
    /// Begins the load on a cluster that serves. Its clients go to all members, those too that are not started yet;
    /// some stay with one of `fixed`.
    pub fn new(cluster: Cluster, fixed: &[usize]) -> Self {
        let mut stage = Self {
            cluster,
            load: Rc::default(),
            clients: Vec::new(),
            watchers: Vec::new(),
        };
        let all = stage.cluster.addresses();
        let load = &stage.load;
        stage
            .clients
            .push(spawn_local(let_leases_end(load.clone(), all.clone())));
        for at in 0..3 {
            stage.clients.push(spawn_local(write(load.clone(), all.clone(), at)));
            stage
                .clients
                .push(spawn_local(keep_leases(load.clone(), all.clone(), at)));
        }
        stage.clients.push(spawn_local(read(load.clone(), all.clone())));
        stage
            .watchers
            .push(spawn_local(Watcher::new(load.clone(), all).watch()));
        fixed.iter().for_each(|member| stage.stay_with(*member));
        stage
    }

    /// Adds a reader and a watcher that stay with one member.
    pub fn stay_with(&mut self, member: usize) {
        let address = vec![self.cluster.members[member].address()];
        let watcher = Watcher::new(self.load.clone(), address.clone());
        self.clients.push(spawn_local(read(self.load.clone(), address)));
        self.watchers.push(spawn_local(watcher.watch()));
    }

    /// Waits until one of these members has acknowledged a write that it was asked for from now on. Each is asked again
    /// and again, so that a request that was lost holds nothing up.
    pub async fn written_by(&self, members: &[usize]) {
        let mut probes = JoinSet::new();
        for number in 0.. {
            // Not by the clock, which goes on while whoever needs the machine for himself stops all of this.
            assert!(number * PROBE_PAUSE < PATIENCE, "no writes by {members:?}");
            for member in members {
                let (load, address) = (self.load.clone(), self.cluster.members[*member].address());
                probes.spawn_local(async move {
                    let mut client = Roaming::new(vec![address], 0);
                    load.write(&mut client, format!("probe/{number}"), 0, PATIENCE).await
                });
            }
            let pause = sleep(PROBE_PAUSE);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    Some(written) = probes.join_next() => if written.expect("a probe") { return },
                }
            }
        }
    }

    /// A client that has seen something wrong has ended.
    pub async fn look_at_clients(&mut self) {
        let ended = self
            .clients
            .extract_if(.., |client| client.is_finished())
            .collect::<Vec<_>>();
        for client in ended {
            client.await.expect("a client that saw nothing wrong");
        }
        let ended = self.watchers.iter().position(|watcher| watcher.is_finished());
        if let Some(ended) = ended {
            self.watchers
                .swap_remove(ended)
                .await
                .expect("a watcher that saw nothing wrong");
        }
    }

    /// Ends the load and looks at everything that was recorded.
    pub async fn finish(mut self) {
        let deadline = Instant::now() + PATIENCE;
        self.load.stop.set(true);
        for client in std::mem::take(&mut self.clients) {
            client.await.expect("a client that saw nothing wrong");
        }
        self.load.until.set(self.leases_end(deadline).await);
        let mut seen = Vec::new();
        for watcher in std::mem::take(&mut self.watchers) {
            seen.push(watcher.await.expect("a watcher that saw nothing wrong"));
        }
        seen.sort_by_key(Vec::len);
        let longest = seen.pop().expect("there are watchers");
        assert!(
            seen.iter().all(|seen| longest.starts_with(seen)),
            "watchers saw different things"
        );
        let summary = self
            .load
            .history
            .check(&longest)
            .unwrap_or_else(|problem| panic!("{problem}"));
        self.cluster.settle().await;
        println!("{summary:?}; watches begun: {}", self.load.watches.get());
        self.check_leases();
    }

    /// Waits until no key is left whose lease nobody keeps alive: the store's revision then.
    async fn leases_end(&self, deadline: Instant) -> i64 {
        let mut client = Roaming::new(self.cluster.addresses(), 0);
        loop {
            let (mut left, mut revision) = (0, 0);
            for prefix in ["kept/", "fading/"] {
                let answer: pb::RangeResponse = client.call(RANGE, &get_prefix(prefix)).await;
                (left, revision) = (left + answer.count, answer.header.expect("a header").revision);
            }
            if left == 0 {
                return revision;
            }
            assert!(Instant::now() < deadline, "{left} keys outlive their leases");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// None has ended before its time.
    fn check_leases(&self) {
        let gone = self.load.gone.borrow();
        let leases = self.load.leases.borrow();
        let (mut renewals, mut late) = (0, Duration::ZERO);
        for (key, lease) in leases.iter() {
            renewals += lease.renewals;
            for ended in [gone.get(key).copied(), lease.lost].into_iter().flatten() {
                let lived = ended.checked_duration_since(lease.since);
                assert!(
                    lived.is_some_and(|lived| lived >= lease.ttl),
                    "{key} ended {lived:?} after it was kept alive for {:?}",
                    lease.ttl
                );
                late = late.max(lived.unwrap_or_default() - lease.ttl);
            }
            assert!(
                !lease.has_key || gone.contains_key(key),
                "{key} was written, and nobody saw it end"
            );
        }
        let lost = leases.values().filter(|lease| lease.lost.is_some()).count();
        println!(
            "{} leases, {renewals} renewals, {lost} lost, at most {late:?} late",
            leases.len()
        );
    }
}
