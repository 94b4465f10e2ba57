//! What is done to the member that leads, and how long writes are refused then.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    task::LocalSet,
    time::{Instant, sleep},
};

use super::stage::Stage;
use crate::support::{block_on, cluster::Cluster, proxy::Proxies, server::Program};

/// The longest that a fault outlasts the return of writes, and that passes before the next.
const LONGEST_HOLD_MS: u64 = 1500;

/// What is done to who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL, and a start later.
    Killed,
    /// SIGSTOP, and SIGCONT later.
    Paused,
    /// It hears nobody and nobody hears it.
    CutOff,
    /// Nobody hears it.
    Unheard,
    /// It hears nobody.
    Deaf,
}

/// How long things took, by fault.
#[derive(Default)]
struct Times {
    /// From the fault to the first write asked for since and acknowledged.
    outages: BTreeMap<Fault, Vec<Duration>>,
    /// From the fault's end to the first write acknowledged by who led.
    returns: BTreeMap<Fault, Vec<Duration>>,
}

impl Times {
    fn print(&self) {
        println!(
            "{:<9} {:>5} {:>26} {:>26}",
            "leader", "times", "without writes p50/max ms", "back after p50/max ms"
        );
        for (fault, outages) in &self.outages {
            let [outage, back] = [outages, &self.returns[fault]].map(|times| {
                let mut times: Vec<u128> = times.iter().map(Duration::as_millis).collect();
                times.sort_unstable();
                format!("{} / {}", times[times.len() / 2], times[times.len() - 1])
            });
            println!(
                "{:<9} {:>5} {outage:>26} {back:>26}",
                format!("{fault:?}"),
                outages.len()
            );
        }
    }
}

/// A cluster of three whose members reach each other through proxies.
struct Faults {
    stage: Stage,
    proxies: Proxies,
    times: Times,
}

/// Does each of these to the leader so many times, and then looks whether clients saw anything wrong.
pub fn run(faults: &[Fault], times: u64) {
    let mut cluster = Cluster::unfounded(&[Program::subject(); 3], &[]);
    let proxies = Proxies::between(&mut cluster);
    cluster.found();
    proxies.know(&cluster);
    cluster.wait();
    block_on(LocalSet::new().run_until(async {
        let mut run = Faults {
            stage: Stage::new(cluster, &[0, 1, 2]),
            proxies,
            times: Times::default(),
        };
        run.stage.written_by(&[0, 1, 2]).await;
        for _ in 0..times {
            for fault in faults {
                run.suffer(*fault).await;
            }
        }
        run.times.print();
        run.stage.finish().await;
    }));
}

impl Faults {
    /// One fault, from its beginning until who led takes writes again.
    async fn suffer(&mut self, fault: Fault) {
        let leader = self.stage.cluster.leader().await;
        hold().await;
        let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
        let began = Instant::now();
        self.inflict(fault, leader, &others);
        self.stage.written_by(&others).await;
        self.times.outages.entry(fault).or_default().push(began.elapsed());
        hold().await;
        let mended = Instant::now();
        self.mend(fault, leader);
        self.stage.written_by(&[leader]).await;
        self.times.returns.entry(fault).or_default().push(mended.elapsed());
        self.stage.look_at_clients().await;
    }

    fn inflict(&mut self, fault: Fault, leader: usize, others: &[usize]) {
        match fault {
            Fault::Killed => self.stage.cluster.members[leader].kill(),
            Fault::Paused => self.stage.cluster.members[leader].signal("STOP"),
            Fault::CutOff | Fault::Unheard | Fault::Deaf => {
                for other in others {
                    if fault != Fault::Deaf {
                        self.proxies.cut(leader, *other);
                    }
                    if fault != Fault::Unheard {
                        self.proxies.cut(*other, leader);
                    }
                }
            }
        }
    }

    fn mend(&mut self, fault: Fault, leader: usize) {
        match fault {
            Fault::Killed => {
                self.stage.cluster.members[leader].spawn().expect("it starts again");
                self.proxies.know(&self.stage.cluster);
            }
            Fault::Paused => self.stage.cluster.members[leader].signal("CONT"),
            Fault::CutOff | Fault::Unheard | Fault::Deaf => self.proxies.mend(),
        }
    }
}

/// Some time, now short, now longer.
async fn hold() {
    sleep(Duration::from_millis(rand::random_range(0..LONGEST_HOLD_MS))).await;
}
