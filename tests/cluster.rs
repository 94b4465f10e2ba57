//! Clusters of three processes: that they answer as one of three etcds does, and that nothing acknowledged is lost
//! while members are killed, paused and started again, and get each other's state.

mod support;

#[path = "cluster/again.rs"]
mod again;
#[path = "cluster/alone.rs"]
mod alone;
#[path = "cluster/corruption.rs"]
mod corruption;
#[path = "cluster/counted.rs"]
mod counted;
#[path = "cluster/discovery.rs"]
mod discovery;
#[path = "cluster/etcdctl.rs"]
mod etcdctl;
#[path = "cluster/failures.rs"]
mod failures;
#[path = "cluster/members.rs"]
mod members;
#[path = "cluster/snapshots.rs"]
mod snapshots;
#[path = "cluster/standing.rs"]
mod standing;
#[path = "cluster/versions.rs"]
mod versions;
