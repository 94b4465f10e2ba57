//! The hash of this member's history for other members: `/members/hashkv`, and the hashes of compactions that are kept
//! for it (`etcd-surface` 1.5 and 4.12).

use super::error;
use super::hash::History;
use super::http::Response;
use super::kv::readable;
use super::service::Api;
use super::tasks::Ended;
use crate::http::http1;
use crate::limits::{COMPACTION_HASHES_KEPT, PEER_HASHES_MAX, PIN_AGE_MAX};
use crate::mvcc::view::View;
use crate::net::{Core, Exchange, Net};
use crate::raft::messages::Request;
use crate::raft::transport::identity::{CLUSTER_ID_MISMATCH, field};
use crate::reactor::serve;
use crate::state::StateError;
use crate::state::hash::{KvHash, KvHasher};
use serde_json::Value;
use std::time::Instant;

/// The path.
pub(super) const HASH_KV: &str = "/members/hashkv";
/// etcd's words for revisions that can't be hashed, which other members look for.
pub(super) const COMPACTED: &str = "mvcc: required revision has been compacted";
pub(super) const FUTURE: &str = "mvcc: required revision is a future revision";

/// Hashes of compactions, and the one that the core is about.
#[derive(Debug, Default)]
pub(super) struct CompactionHashes {
    /// The compact revision up to which they were made; `None` where none are made.
    through: Option<i64>,
    under_way: bool,
    /// By revision, the last few.
    kept: Vec<KvHash>,
}

impl CompactionHashes {
    fn keep(&mut self, hash: KvHash) {
        tracing::info!(
            hash = hash.hash,
            revision = hash.revision,
            "compact-revision" = hash.compact_revision,
            "storing new hash"
        );
        self.kept.push(hash);
        self.kept.sort_by_key(|hash| hash.revision);
        let surplus = self.kept.len().saturating_sub(COMPACTION_HASHES_KEPT);
        self.kept.drain(..surplus);
    }

    /// Those kept, the newest first.
    pub fn newest(&self) -> Vec<KvHash> {
        self.kept.iter().rev().copied().collect()
    }
}

/// Why there is no hash.
pub(super) enum Unhashed {
    /// The revision can't be looked at.
    Refused(StateError),
    /// The reading failed.
    Ended(Ended),
}

/// The hash of this member's history up to a revision, 0 for all of it, and its newest revision. The hash of a
/// compaction at this revision goes before, as etcd has it.
pub(super) async fn hash_at(connections: &Core<Api>, wanted: i64) -> Result<(KvHash, i64), Unhashed> {
    let begun = connections.with(|api, _| {
        let view = api.index.pin().view().clone();
        let kept = api.compaction_hashes.kept.iter();
        if let Some(kept) = kept.rev().find(|kept| kept.revision == wanted) {
            return Ok(Err((*kept, view.revision)));
        }
        let hasher = KvHasher::new(wanted, readable(&view)).map_err(Unhashed::Refused)?;
        let at_main = view.compact_revision.max(0);
        api.begin_reading(at_main);
        if api.index.pin().view().compact_revision > at_main {
            api.end_reading(at_main);
            return Err(Unhashed::Refused(StateError::Compacted));
        }
        Ok(Ok((view, hasher, at_main)))
    })?;
    let (view, hasher, at_main) = match begun {
        Ok(begun) => begun,
        Err(known) => return Ok(known),
    };
    let hashed = read(connections, &view, hasher).await;
    connections.with(|api, _| api.end_reading(at_main));
    Ok((hashed.map_err(Unhashed::Ended)?, view.revision))
}

/// Takes a hasher through the history, which somebody keeps from being removed.
async fn read(connections: &Core<Api>, view: &View, hasher: KvHasher) -> Result<KvHash, Ended> {
    let (pages, index) = connections.with(|api, _| (api.pages.clone(), api.index.clone()));
    let began = Instant::now();
    let check_open = || {
        if connections.with(|api, _| api.is_stopping()) {
            return Err(Ended::Gone);
        }
        if began.elapsed() > PIN_AGE_MAX {
            return Err(Ended::Failed(error::expired()));
        }
        Ok(())
    };
    let hashed = History::new(&pages, &index, &check_open).hash_kv(view, hasher).await;
    if let Err(Ended::Corrupt(description)) = &hashed {
        let description = description.clone();
        connections.with(|api, _| api.post(Request::Corrupt { description }));
    }
    hashed
}

/// The revision that a question asks for, as Go reads its JSON; `None` if it is none.
fn revision_of(body: &[u8]) -> Option<i64> {
    match serde_json::from_slice(body).ok()? {
        Value::Null => Some(0),
        Value::Object(fields) => {
            let mut named = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("revision"));
            match named.next_back() {
                None | Some((_, Value::Null)) => Some(0),
                Some((_, value)) => value.as_i64(),
            }
        }
        _ => None,
    }
}

/// The answer, as Go writes it: what is zero is left out.
fn answer(cluster_id: u64, hash: KvHash, revision: i64) -> Response {
    let mut fields = vec![format!(r#""header":{{"revision":{revision}}}"#)];
    if hash.hash != 0 {
        fields.push(format!(r#""hash":{}"#, hash.hash));
    }
    for (name, number) in [
        ("compact_revision", hash.compact_revision),
        ("hash_revision", hash.revision),
    ] {
        if number != 0 {
            fields.push(format!(r#""{name}":{number}"#));
        }
    }
    Response::new(200, "application/json", format!("{{{}}}", fields.join(",")))
        .with("X-Etcd-Cluster-Id", format!("{cluster_id:x}"))
}

impl Api {
    /// Takes another member's question for a hash.
    pub(super) fn hash_asked(&mut self, net: &mut Net, exchange: Exchange, request: &http1::Request, body: &[u8]) {
        let refuse = |net: &mut Net, response| super::http::respond(net, exchange, super::http::Offer::Peer, &response);
        if request.method != "GET" {
            return refuse(net, Response::error(405, "Method Not Allowed").with("Allow", "GET"));
        }
        let cluster_id = self.settings.identity.cluster_id;
        let said = request.get(&field::CLUSTER_ID.to_ascii_lowercase()).unwrap_or_default();
        if !said.is_empty() && said != format!("{cluster_id:x}").as_bytes() {
            return refuse(net, Response::error(412, CLUSTER_ID_MISMATCH));
        }
        let Some(wanted) = revision_of(body) else {
            return refuse(net, Response::error(400, "error unmarshalling request"));
        };
        let Some(connections) = self.connections.clone().filter(|_| self.peer_hashes < PEER_HASHES_MAX) else {
            return refuse(net, Response::error(503, "too many hashes are being made"));
        };
        self.peer_hashes += 1;
        serve::spawn_aside(async move {
            let response = match hash_at(&connections, wanted).await {
                Ok((hash, revision)) => answer(cluster_id, hash, revision),
                Err(Unhashed::Refused(StateError::Compacted)) => Response::error(400, COMPACTED),
                Err(Unhashed::Refused(_)) => Response::error(400, FUTURE),
                Err(Unhashed::Ended(Ended::Failed(status))) => Response::error(500, &status.message),
                Err(Unhashed::Ended(_)) => Response::error(500, "the history could not be read"),
            };
            connections.with(|api, net| {
                api.peer_hashes -= 1;
                super::http::respond(net, exchange, super::http::Offer::Peer, &response);
            });
        });
    }

    /// Has every compaction from now on hashed. What a compaction removes stays until that is done.
    pub fn hash_compactions(&mut self) {
        let through = self.index.pin().view().compact_revision;
        self.compaction_hashes.through = Some(through);
        self.begin_reading(through.max(0));
    }

    /// Looks whether a compaction is to be hashed.
    pub(super) fn look_for_compactions(&mut self) {
        let Some(previous) = self
            .compaction_hashes
            .through
            .filter(|_| !self.compaction_hashes.under_way)
        else {
            return;
        };
        let view = self.index.pin().view().clone();
        let compacted = view.compact_revision;
        let Some(connections) = self.connections.clone().filter(|_| compacted > previous) else {
            return;
        };
        self.compaction_hashes.under_way = true;
        serve::spawn_aside(async move {
            let hashed = read(&connections, &view, KvHasher::of_compaction(previous, compacted)).await;
            drop(view);
            connections.with(|api, _| {
                api.compaction_hashes.under_way = false;
                api.compaction_hashes.through = Some(compacted);
                api.begin_reading(compacted);
                api.end_reading(previous.max(0));
                match hashed {
                    Ok(hash) => api.compaction_hashes.keep(hash),
                    Err(_) => tracing::warn!(compacted, "a compaction could not be hashed"),
                }
                api.look_for_compactions();
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_go_reads_them() {
        let cases: [(&[u8], Option<i64>); 9] = [
            (b"{}", Some(0)),
            (br#"{"revision":7}"#, Some(7)),
            (br#"{"Revision":7,"x":1}"#, Some(7)),
            (br#"{"revision":null}"#, Some(0)),
            (b"null", Some(0)),
            (b"", None),
            (br#"{"revision":"7"}"#, None),
            (br#"{"revision":1.5}"#, None),
            (b"[]", None),
        ];
        for (body, expected) in cases {
            assert_eq!(revision_of(body), expected, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn answers_are_written_as_go_writes_them() {
        let hash = KvHash {
            hash: 9,
            compact_revision: -1,
            revision: 3,
        };
        let expected = r#"{"header":{"revision":4},"hash":9,"compact_revision":-1,"hash_revision":3}"#;
        assert_eq!(answer(0xc, hash, 4).body, expected);
    }

    #[test]
    fn the_last_hashes_are_kept() {
        let mut hashes = CompactionHashes::default();
        for revision in 1..=12 {
            let (hash, compact_revision) = (0, revision - 1);
            hashes.keep(KvHash {
                hash,
                compact_revision,
                revision,
            });
        }
        let newest = hashes.newest();
        assert_eq!((newest.len(), newest[0].revision, newest[9].revision), (10, 12, 3));
    }
}
