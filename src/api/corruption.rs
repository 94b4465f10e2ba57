//! Whether all members hold the same: comparisons of the hashes of their histories (etcd's `etcdserver/corrupt.go`).
//!
//! Three of them, all asked for by flags: before a member with data serves anything, which then ends; by the leader in
//! intervals; by the leader of what compactions hashed on their way, which are at the same revision everywhere. The
//! leader raises CORRUPT for who differs, or for member 0 where there is no majority to tell who that is.

use super::hashes::{self, COMPACTED, FUTURE, Unhashed};
use super::overseer::Overseer;
use super::service::Api;
use crate::net::Core;
use crate::raft::messages::Request;
use crate::raft::transport::Question;
use crate::reactor::serve;
use crate::state::hash::KvHash;
use crate::state::members::Member;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Which comparisons are made again and again, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparisons {
    /// Of whole histories.
    pub periodic: Option<Duration>,
    /// Of compactions.
    pub compactions: Option<Duration>,
}

/// What another member said of its history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Told {
    #[serde(default)]
    header: ToldHeader,
    #[serde(default)]
    hash: u32,
    #[serde(default)]
    compact_revision: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct ToldHeader {
    #[serde(default)]
    revision: i64,
}

/// Another member, and what it said or why it said nothing.
type Answer = (u64, Result<Told, String>);

/// Asks all members but this one for their hash up to a revision.
async fn ask_all(overseer: &Overseer, members: &[Member], revision: i64) -> Vec<Answer> {
    let others = members
        .iter()
        .filter(|member| member.id != overseer.member_id && !member.peer_urls.is_empty());
    serve::join(others.map(|member| async move { (member.id, ask(overseer, member, revision).await) })).await
}

async fn ask(overseer: &Overseer, member: &Member, revision: i64) -> Result<Told, String> {
    let body = format!(r#"{{"revision":{revision}}}"#);
    let mut last = String::new();
    for url in &member.peer_urls {
        let question = Question {
            url,
            line: "GET /members/hashkv",
            content_type: "application/json",
            body: body.as_bytes(),
        };
        last = match overseer.ask(&question).await {
            Ok(answer) if answer.status == 200 => match serde_json::from_slice(&answer.body) {
                Ok(told) => return Ok(told),
                Err(error) => format!("{url}: not a hash: {error}"),
            },
            Ok(answer) => String::from_utf8_lossy(&answer.body).trim().to_string(),
            Err(problem) => problem,
        };
        tracing::warn!(
            url,
            "requested-revision" = revision,
            error = last,
            "failed hash kv request"
        );
    }
    Err(last)
}

/// Compares this member's history with that of all others that answer, before anything is served. The error is etcd's.
pub async fn compare_at_start(connections: Core<Api>, members: Vec<Member>) -> Result<(), String> {
    let overseer = Overseer::new(&connections);
    let id = format!("{:x}", overseer.member_id);
    tracing::info!("local-member-id" = id, timeout = ?overseer.timeout, "starting initial corruption check");
    let Ok((own, _)) = hashes::hash_at(&connections, 0).await else {
        return Err(format!("{id} failed to fetch hash"));
    };
    let answers = ask_all(&overseer, &members, own.revision).await;
    if answers.iter().any(|(peer, answer)| differs(&own, *peer, answer)) {
        return Err(format!("{id} found data inconsistency with peers"));
    }
    tracing::info!(
        "local-member-id" = id,
        "initial corruption checking passed; no corruption"
    );
    Ok(())
}

/// Whether another member has another history up to the same revision behind the same compaction.
fn differs(own: &KvHash, peer: u64, answer: &Result<Told, String>) -> bool {
    let peer = format!("{peer:x}");
    match answer {
        Ok(told) if told.hash == own.hash => false,
        Ok(told) => {
            let is_comparable = told.compact_revision == own.compact_revision;
            let what = if is_comparable {
                "found different hash values from remote peer"
            } else {
                "found different compact revision values from remote peer"
            };
            tracing::warn!(
                "remote-peer-id" = peer,
                "local-member-revision" = own.revision,
                "local-member-compact-revision" = own.compact_revision,
                "local-member-hash" = own.hash,
                "remote-peer-revision" = told.header.revision,
                "remote-peer-compact-revision" = told.compact_revision,
                "remote-peer-hash" = told.hash,
                "{what}"
            );
            is_comparable
        }
        Err(problem) => {
            if problem == FUTURE {
                tracing::warn!("remote-peer-id" = peer, "cannot fetch hash from slow remote peer");
            } else if problem == COMPACTED {
                tracing::warn!(
                    "remote-peer-id" = peer,
                    "cannot fetch hash from remote peer; local member is behind"
                );
            }
            false
        }
    }
}

/// Compares in intervals, as the leader, as long as the core serves.
pub async fn watch(connections: Core<Api>, interval: Duration) {
    let overseer = Overseer::new(&connections);
    tracing::info!(?interval, "enabled corruption checking");
    while next(&overseer, interval).await {
        if !overseer.leads() {
            continue;
        }
        if let Err(problem) = compare(&overseer).await {
            tracing::warn!(error = problem, "failed to check hash KV");
        }
    }
}

/// Waits for the next turn. False when the core is over.
async fn next(overseer: &Overseer, interval: Duration) -> bool {
    serve::sleep(interval).await;
    !overseer.is_over()
}

async fn compare(overseer: &Overseer) -> Result<(), String> {
    let unhashed = |unhashed: Unhashed| match unhashed {
        Unhashed::Refused(error) => format!("{error:?}"),
        Unhashed::Ended(_) => "the history could not be read".to_string(),
    };
    let status = overseer.status().await.ok_or("the log core does not answer")?;
    let (first, _) = hashes::hash_at(&overseer.connections, 0).await.map_err(unhashed)?;
    let answers = ask_all(overseer, &status.members, first.revision).await;
    if !overseer.is_up_to_date().await {
        return Err("nobody confirmed that this member leads".to_string());
    }
    let (second, newest) = hashes::hash_at(&overseer.connections, 0).await.map_err(unhashed)?;
    let told = answers
        .iter()
        .filter_map(|(id, answer)| Some((*id, answer.as_ref().ok()?)));
    let told: Vec<_> = told.collect();
    if let Some((member, reason)) = judge(overseer.member_id, &first, &second, newest, &told) {
        tracing::warn!("member-id" = format!("{member:x}"), "{reason}");
        overseer.post(Request::RaiseCorrupt { member });
    }
    let count = told.len();
    tracing::info!("number-of-peers-checked" = count, "finished peer corruption check");
    Ok(())
}

/// Who differs, and how. `first` is the leader's hash from before the others were asked, `second` the one from after
/// that, when the leader's newest revision was `newest`.
fn judge(own: u64, first: &KvHash, second: &KvHash, newest: i64, told: &[(u64, &Told)]) -> Option<(u64, String)> {
    if second.hash != first.hash
        && second.revision == first.revision
        && second.compact_revision == first.compact_revision
    {
        return Some((own, "found hash mismatch".to_string()));
    }
    for (id, told) in told {
        let (revision, compacted) = (told.header.revision, told.compact_revision);
        if revision > newest {
            let reason = "revision from follower must be less than or equal to leader's";
            return Some((*id, format!("{reason}: {revision}, {newest}")));
        }
        if compacted > second.compact_revision {
            let reason = "compact revision from follower must be less than or equal to leader's";
            return Some((*id, format!("{reason}: {compacted}, {}", second.compact_revision)));
        }
        if compacted == first.compact_revision && told.hash != first.hash {
            let reason = "same compact revision then hashes must match";
            return Some((*id, format!("{reason}: {}, {}", told.hash, first.hash)));
        }
    }
    None
}

/// Compares compactions in intervals, as the leader, as long as the core serves.
pub async fn watch_compactions(connections: Core<Api>, interval: Duration) {
    let overseer = Overseer::new(&connections);
    connections.with(|api, _| api.hash_compactions());
    let mut checked = 0;
    while next(&overseer, interval).await {
        if overseer.leads() {
            compare_compactions(&overseer, &mut checked).await;
        }
    }
}

/// Compares the newest compaction that all members have a hash of, if it is beyond `checked`.
async fn compare_compactions(overseer: &Overseer, checked: &mut i64) {
    tracing::info!("starting compact hash check");
    let Some(status) = overseer.status().await else { return };
    let hashes = overseer.connections.with(|api, _| api.compaction_hashes.newest());
    let unchecked: Vec<KvHash> = hashes.into_iter().take_while(|hash| hash.revision > *checked).collect();
    let mut count = 0;
    for own in unchecked {
        count += 1;
        let answers = ask_all(overseer, &status.members, own.revision).await;
        if answers.is_empty() {
            continue;
        }
        match judge_compaction(overseer.member_id, &own, &answers) {
            Verdict::Skipped => continue,
            Verdict::Equal => *checked = own.revision.max(*checked),
            Verdict::Differs(members) => {
                let (revision, hash) = (own.revision, own.hash);
                let ids: Vec<String> = members.iter().map(|member| format!("{member:x}")).collect();
                let ids = ids.join(" ");
                tracing::error!(revision, hash, "peer-ids" = ids, "Detected compaction hash mismatch");
                for member in members {
                    overseer.post(Request::RaiseCorrupt { member });
                }
            }
        }
        break;
    }
    tracing::info!("number-of-hashes-checked" = count, "finished compaction hash check");
}

/// What a comparison of a compaction says.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// All have the same.
    Equal,
    /// Those who answered have the same, and some did not answer, or not for the same compaction.
    Skipped,
    /// These differ from a majority; member 0 stands for nobody knows who.
    Differs(Vec<u64>),
}

fn judge_compaction(own: u64, hash: &KvHash, answers: &[Answer]) -> Verdict {
    let mut by_hash: BTreeMap<u32, Vec<u64>> = BTreeMap::from([(hash.hash, vec![own])]);
    let mut compared = 0;
    for (id, answer) in answers {
        let told = answer
            .as_ref()
            .ok()
            .filter(|told| told.compact_revision == hash.compact_revision);
        match told {
            Some(told) => {
                compared += 1;
                by_hash.entry(told.hash).or_default().push(*id);
            }
            None => tracing::warn!("peer-id" = format!("{id:x}"), "Skipped peer's hash"),
        }
    }
    if by_hash.len() == 1 {
        return if compared == answers.len() {
            Verdict::Equal
        } else {
            Verdict::Skipped
        };
    }
    let members = answers.len() + 1;
    let quorum = members / 2 + 1;
    let Some(majority) = by_hash
        .iter()
        .find(|(_, ids)| ids.len() >= quorum)
        .map(|(hash, _)| *hash)
    else {
        return Verdict::Differs(vec![0]);
    };
    by_hash.remove(&majority);
    Verdict::Differs(by_hash.into_values().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(hash: u32, compact_revision: i64, revision: i64) -> KvHash {
        KvHash {
            hash,
            compact_revision,
            revision,
        }
    }

    fn told(hash: u32, compact_revision: i64, revision: i64) -> Told {
        Told {
            header: ToldHeader { revision },
            hash,
            compact_revision,
        }
    }

    #[test]
    fn who_differs_at_the_start_is_found() {
        let own = hash(5, 2, 9);
        assert!(!differs(&own, 1, &Ok(told(5, 1, 9))));
        assert!(differs(&own, 1, &Ok(told(6, 2, 9))));
        // Behind another compaction nothing can be said.
        assert!(!differs(&own, 1, &Ok(told(6, 3, 9))));
        assert!(!differs(&own, 1, &Err(FUTURE.to_string())));
    }

    #[test]
    fn the_leader_finds_who_differs() {
        let (first, second) = (hash(5, 2, 9), hash(6, 2, 12));
        let judge = |told: Told| judge(1, &first, &second, 12, &[(7, &told)]).map(|(member, _)| member);
        assert_eq!(judge(told(5, 2, 9)), None);
        assert_eq!(judge(told(8, 2, 9)), Some(7));
        assert_eq!(judge(told(8, 1, 9)), None, "behind another compaction");
        assert_eq!(judge(told(5, 2, 13)), Some(7), "ahead of the leader");
        assert_eq!(judge(told(5, 3, 9)), Some(7), "compacted beyond the leader");
        let changed = hash(6, 2, 9);
        let found = super::judge(1, &first, &changed, 9, &[]).map(|(member, _)| member);
        assert_eq!(found, Some(1), "the leader's own history changed");
    }

    #[test]
    fn a_majority_says_which_compaction_is_right() {
        let own = hash(5, 2, 9);
        let judge = |answers: &[(u64, Option<Told>)]| {
            let answer = |told: &Option<Told>| told.clone().ok_or_else(String::new);
            let answers: Vec<Answer> = answers.iter().map(|(id, told)| (*id, answer(told))).collect();
            judge_compaction(1, &own, &answers)
        };
        let (same, other) = (Some(told(5, 2, 9)), Some(told(6, 2, 9)));
        assert_eq!(judge(&[(7, same.clone()), (8, same.clone())]), Verdict::Equal);
        assert_eq!(judge(&[(7, same.clone()), (8, None)]), Verdict::Skipped);
        assert_eq!(judge(&[(7, same.clone()), (8, Some(told(6, 1, 9)))]), Verdict::Skipped);
        assert_eq!(
            judge(&[(7, same.clone()), (8, other.clone())]),
            Verdict::Differs(vec![8])
        );
        assert_eq!(
            judge(&[(7, other.clone()), (8, other.clone())]),
            Verdict::Differs(vec![1])
        );
        assert_eq!(judge(&[(7, other), (8, None)]), Verdict::Differs(vec![0]));
    }

    #[test]
    fn what_go_leaves_out_is_zero() {
        let read = |text: &str| serde_json::from_str::<Told>(text).unwrap();
        assert_eq!(
            read(r#"{"header":{"revision":3},"hash":4,"compact_revision":-1,"hash_revision":2}"#),
            told(4, -1, 3)
        );
        assert_eq!(read("{}"), Told::default());
    }
}
