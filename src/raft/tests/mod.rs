//! The log core on a disk in memory: proposals, restarts, checkpoints, compactions, leases.

mod cluster;
mod memory;
mod node;
mod readers;
mod rules;
mod space;

use super::boot::{Boot, start};
use super::core::{LogCore, Options};
use super::memory::Memory;
use super::messages::{Dropped, Reply, Request};
use super::replica::{Identity, ReplicaOptions};
use crate::config::values::AutoCompaction;
use crate::io::disk::{Disk, Operation};
use crate::io::memory::MemoryDisk;
use crate::mvcc::readers::Readers;
use crate::mvcc::view::View;
use crate::proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, PutRequest, RequestOp,
    TxnRequest, compare, request_op,
};
use crate::state::StateError;
use crate::state::lease::LessorConfig;
use crate::state::members::Member;
use crate::state::outcome::{Answer, Outcome};
use crate::{pages, wal};
use prost::Message;
use std::time::Duration;

/// Turns of the checkpoint in `a_checkpoint_ends_in_the_middle_of_a_large_entry` before the entry is proposed.
const CHECKPOINT_STEPS_AHEAD: u32 = 40;
const TICK: Duration = Duration::from_millis(100);

fn boot() -> Boot {
    let identity = Identity {
        cluster_id: 0xc,
        member_id: 0x7,
    };
    let wal = wal::Options {
        segment_bytes: 4 << 20,
        ..wal::Options::new(1, 0..wal::TOKENS)
    };
    let replica = ReplicaOptions {
        identity: Some(identity),
        election_ticks: 10,
        heartbeat_ticks: 1,
        pre_vote: true,
        catchup_entries: 10,
        alone: false,
        wal,
    };
    Boot {
        data_directory: "/data".into(),
        wal_directory: "/data/member/wal".into(),
        replica,
        pages: pages::Options::new(100..100 + crate::limits::pages::OPERATIONS as u64),
        decoders: 2,
        loader_tokens: 10_000..10_000 + crate::limits::LOADER_READS,
        options: Options {
            tick: TICK,
            election_timeout: 10 * TICK,
            first_id: 7 << 48,
            learners_max: 1,
            strict_reconfiguration: true,
            catchup_entries: 10,
            quota_bytes: None,
            memory: Memory {
                window: 1 << 20,
                ..Memory::default()
            },
            auto_compaction: Default::default(),
        },
        lessor: LessorConfig::default(),
        founders: vec![member(7)],
        member: member(7),
        ticks_ahead: 0,
        cluster_version: "3.7.0".into(),
        readers: Readers::new(1),
    }
}

fn member(id: u64) -> Member {
    Member {
        id,
        name: "m".into(),
        peer_urls: vec![format!("http://p{id}")],
        ..Default::default()
    }
}

/// A log core, its disk and its clock.
struct Bench<D = MemoryDisk> {
    core: LogCore,
    disk: D,
    now: Duration,
    next_token: u64,
    /// Nothing that the disk is asked for ends.
    is_stalled: bool,
}

impl Bench {
    fn new(boot: Boot) -> Bench {
        Bench::start(MemoryDisk::new(), boot)
    }
}

impl<D: Disk> Bench<D> {
    fn start(mut disk: D, boot: Boot) -> Bench<D> {
        let core = start(&mut disk, boot, || Duration::ZERO).unwrap();
        Bench {
            core,
            disk,
            now: Duration::ZERO,
            next_token: 0,
            is_stalled: false,
        }
    }

    fn restart(self, boot: Boot) -> Bench<D> {
        Bench::start(self.disk, boot)
    }

    /// Turns until nothing more happens at this time; what was answered.
    fn settle(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut completions = Vec::new();
        loop {
            let busy = self.core.turn(&mut self.disk, self.now).unwrap();
            replies.extend(self.core.take_replies().map(|(_, reply)| reply));
            if !self.is_stalled {
                self.disk.poll(&mut completions);
            }
            if completions.is_empty() && !busy {
                return replies;
            }
            for completion in completions.drain(..) {
                self.core.completed(completion).unwrap();
            }
        }
    }

    fn apply(&mut self, request: InternalRaftRequest) -> (Outcome, std::sync::Arc<View>) {
        self.next_token += 1;
        let token = self.next_token;
        let payload = request.encode_to_vec().into();
        self.core.handle(
            0,
            Request::Propose {
                token,
                id: token,
                payload,
                quota_bytes: 1,
            },
            self.now,
        );
        let answered = self.settle().into_iter().find_map(|reply| match reply {
            Reply::Applied {
                token: of,
                outcome,
                view,
                ..
            } if of == token => Some((outcome, view)),
            _ => None,
        });
        answered.expect("an answer")
    }

    fn put(&mut self, key: &str, value: &[u8]) -> i64 {
        let put = PutRequest {
            key: key.to_string().into(),
            value: value.to_vec().into(),
            ..Default::default()
        };
        let (outcome, view) = self.apply(InternalRaftRequest {
            put: Some(put),
            ..Default::default()
        });
        assert!(outcome.answer.is_ok(), "{outcome:?}");
        assert!(view.revision >= outcome.revision);
        outcome.revision
    }

    fn revision_of(&self, key: &str) -> Option<i64> {
        let index = self.core.state().index().clone();
        let pinned = index.pin();
        pinned.get(key.as_bytes(), i64::MAX).map(|meta| meta.revision.main)
    }
}

#[test]
fn puts_are_applied_published_and_survive_a_restart() {
    let mut bench = Bench::new(boot());
    assert_eq!(bench.put("a", b"1"), 2);
    assert_eq!(bench.put("b", b"2"), 3);
    assert_eq!(bench.put("a", b"3"), 4);
    let mut bench = bench.restart(boot());
    assert_eq!(bench.revision_of("a"), Some(4));
    assert_eq!(bench.revision_of("b"), Some(3));
    assert_eq!(bench.put("c", b"4"), 5);
    assert_eq!(bench.core.state().members().get(7).unwrap().name, "m");
    assert_eq!(bench.core.state().members().version(), Some("3.7.0"));
}

/// A checkpoint takes what is in the window; the log before it is not needed any more; decisions that depend on a value
/// that only the page store has are made all the same.
#[test]
fn checkpoints_carry_the_state_over_a_restart() {
    let mut bench = Bench::new(boot());
    let value = vec![b'v'; 100_000];
    for round in 0..600 {
        bench.put(&format!("key{}", round % 50), &value);
    }
    bench.put("small", b"decides");
    bench.now += Duration::from_secs(40);
    bench.settle();
    let held = bench.core.checkpoints.store().root().fields().clone();
    assert_eq!(held.revision, 602, "everything is in the page store");
    for round in 0..30 {
        bench.put(&format!("later{round}"), &value);
    }
    let mut bench = bench.restart(boot());
    assert!(bench.core.checkpoints.store().root().fields().applied_index >= held.applied_index);
    assert_eq!(bench.core.state().readable().revision, 632);
    assert_eq!(bench.revision_of("small"), Some(602));
    let compare = Compare {
        key: "small".into(),
        target: compare::CompareTarget::Value as i32,
        target_union: Some(compare::TargetUnion::Value("decides".into())),
        ..Default::default()
    };
    let put = PutRequest {
        key: "decided".into(),
        ..Default::default()
    };
    let success = vec![RequestOp {
        request: Some(request_op::Request::RequestPut(put)),
    }];
    let txn = TxnRequest {
        compare: vec![compare],
        success,
        failure: vec![],
    };
    let (outcome, _) = bench.apply(InternalRaftRequest {
        txn: Some(txn),
        ..Default::default()
    });
    assert!(
        matches!(outcome.answer, Ok(Answer::Txn(ref txn)) if txn.succeeded),
        "{outcome:?}"
    );
    assert_eq!(bench.revision_of("decided"), Some(633));
}

#[test]
fn compaction_removes_history_from_window_and_page_store() {
    let mut bench = Bench::new(boot());
    for round in 0..200 {
        bench.put(&format!("key{}", round % 10), b"value");
    }
    bench.now += Duration::from_secs(40);
    bench.settle();
    for round in 0..200 {
        bench.put(&format!("key{}", round % 10), b"value");
    }
    let compaction = CompactionRequest {
        revision: 350,
        physical: true,
    };
    let request = InternalRaftRequest {
        compaction: Some(compaction),
        ..Default::default()
    };
    let (outcome, view) = bench.apply(request.clone());
    assert_eq!(outcome.answer, Ok(Answer::Compaction));
    assert_eq!(view.compact_revision, 350);
    assert_eq!(bench.core.state().keys().revisions(), 10 + 401 - 350);
    let (outcome, _) = bench.apply(request);
    assert_eq!(outcome.answer, Err(StateError::Compacted));
    bench.now += Duration::from_secs(40);
    bench.settle();
    let before = bench.core.state().keys().revisions();
    let bench = bench.restart(boot());
    assert_eq!(bench.core.state().keys().revisions(), before);
    assert_eq!(bench.core.state().readable().compact_revision, 350);
}

/// A checkpoint that becomes durable while an entry has stopped on its budget does not publish half of that entry.
#[test]
fn a_checkpoint_ends_in_the_middle_of_a_large_entry() {
    let mut bench = Bench::new(boot());
    for transaction in 0..100 {
        let puts = (0..100).map(|key| RequestOp {
            request: Some(request_op::Request::RequestPut(PutRequest {
                key: format!("{transaction:03}/{key:03}").into(),
                ..Default::default()
            })),
        });
        let txn = Some(TxnRequest {
            success: puts.collect(),
            ..Default::default()
        });
        bench.apply(InternalRaftRequest {
            txn,
            ..Default::default()
        });
    }
    // The checkpoint is ahead of the deletion by all but its last steps.
    bench.now += Duration::from_secs(40);
    let mut completions = Vec::new();
    let mut steps = 0;
    while bench.core.checkpoints.store().root().generation() == 1 {
        bench.core.turn(&mut bench.disk, bench.now).unwrap();
        if steps == CHECKPOINT_STEPS_AHEAD {
            let delete_range = Some(DeleteRangeRequest {
                key: "0".into(),
                range_end: "9".into(),
                ..Default::default()
            });
            let payload = InternalRaftRequest {
                delete_range,
                ..Default::default()
            };
            let propose = Request::Propose {
                token: 5,
                id: 5,
                payload: payload.encode_to_vec().into(),
                quota_bytes: 0,
            };
            bench.core.handle(0, propose, bench.now);
        }
        steps += 1;
        bench.disk.poll(&mut completions);
        for completion in completions.drain(..) {
            bench.core.completed(completion).unwrap();
        }
    }
    assert!(
        !bench.core.applier.is_idle(),
        "after {steps} steps the entry is not under way"
    );
    let replies = bench.settle();
    let answered = replies.iter().find_map(|reply| match reply {
        Reply::Applied {
            token: 5,
            outcome,
            view,
            ..
        } => Some((outcome, view)),
        _ => None,
    });
    let (outcome, view) = answered.expect("the deletion is answered");
    assert!(
        matches!(outcome.answer, Ok(Answer::Delete(ref delete)) if delete.deleted == 10_000),
        "{outcome:?}"
    );
    assert_eq!(view.pages.fields().revision, 101);
}

#[test]
fn leases_expire_through_the_log() {
    let mut bench = Bench::new(boot());
    let grant = LeaseGrantRequest { ttl: 5, id: 77 };
    bench.apply(InternalRaftRequest {
        lease_grant: Some(grant),
        ..Default::default()
    });
    let put = PutRequest {
        key: "leased".into(),
        lease: 77,
        ..Default::default()
    };
    bench.apply(InternalRaftRequest {
        put: Some(put),
        ..Default::default()
    });
    bench.now += Duration::from_secs(4);
    bench.core.handle(0, Request::Renew { token: 900, id: 77 }, bench.now);
    let replies = bench.settle();
    assert!(
        replies.iter().any(|reply| matches!(
            reply,
            Reply::Renewed {
                token: 900,
                ttl_s: Some(5)
            }
        )),
        "{replies:?}"
    );
    bench.now += Duration::from_secs(4);
    bench.settle();
    assert!(bench.revision_of("leased").is_some());
    bench.now += Duration::from_secs(2);
    bench.settle();
    assert_eq!(bench.revision_of("leased"), None);
    assert_eq!(bench.core.state().readable().revision, 3);
}

#[test]
fn a_full_quota_raises_nospace_and_refuses_writes() {
    let mut boot = boot();
    boot.options.quota_bytes = Some(1);
    let mut bench = Bench::new(boot);
    let put = PutRequest {
        key: "k".into(),
        ..Default::default()
    };
    let payload = InternalRaftRequest {
        put: Some(put),
        ..Default::default()
    }
    .encode_to_vec()
    .into();
    bench.core.handle(
        0,
        Request::Propose {
            token: 1,
            id: 1,
            payload,
            quota_bytes: 300,
        },
        bench.now,
    );
    let replies = bench.settle();
    let dropped = |reply: &Reply| {
        matches!(
            reply,
            Reply::Dropped {
                token: 1,
                reason: Dropped::NoSpace
            }
        )
    };
    assert!(replies.iter().any(dropped), "{replies:?}");
    assert_eq!(bench.core.state().alarms().list(0).len(), 1);
}

#[test]
fn foreign_data_is_refused_untouched() {
    let mut disk = MemoryDisk::new();
    for path in ["/data", "/data/member", "/data/member/snap"] {
        disk.call(Operation::CreateDirectory { path: path.into() }).unwrap();
    }
    let path = std::path::Path::new("/data/member/snap/db");
    disk.open(path, crate::io::disk::OpenMode::CreateNew).unwrap();
    let error = start(&mut disk, boot(), || Duration::ZERO)
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("etcd's own data"), "{error}");
    assert_eq!(disk.list(path.parent().unwrap()).unwrap(), ["db"]);
}

/// Every name below the data directory, with its contents.
fn files(disk: &MemoryDisk) -> Vec<(String, Vec<u8>)> {
    let volume = disk.volume();
    let mut found = Vec::new();
    for directory in ["/data", "/data/member", "/data/member/snap", "/data/member/wal"] {
        let Ok(inode) = volume.resolve(std::path::Path::new(directory)) else {
            continue;
        };
        for (name, inode) in volume.directory(inode).unwrap() {
            let contents = volume.contents(*inode).map_or(Vec::new(), |contents| contents.to_vec());
            found.push((format!("{directory}/{name}"), contents));
        }
    }
    found
}

fn replace(disk: &mut MemoryDisk, path: &str, text: &[u8]) {
    let _ = disk.call(Operation::Remove { path: path.into() });
    let (file, _) = disk.open(path.as_ref(), crate::io::disk::OpenMode::CreateNew).unwrap();
    let mut buffer = crate::io::buffer::AlignedBuffer::zeroed(4096);
    buffer[..text.len()].copy_from_slice(text);
    disk.call(Operation::Write {
        file,
        offset: 0,
        buffer,
        durable: true,
    })
    .unwrap();
    disk.call(Operation::Close { file }).unwrap();
}

#[test]
fn etcd_finds_no_database_in_our_directory_and_we_touch_none_of_its() {
    let guard = "/data/member/snap/db";
    let mut bench = Bench::new(boot());
    bench.put("a", b"1");
    assert!(
        files(&bench.disk)
            .iter()
            .any(|(name, text)| name == guard && text.starts_with(b"ringd data directory"))
    );
    // One that was lost is made again.
    bench.settle();
    bench.disk.call(Operation::Remove { path: guard.into() }).unwrap();
    let mut bench = bench.restart(boot());
    assert!(files(&bench.disk).iter().any(|(name, _)| name == guard));
    bench.settle();
    let Bench { core, mut disk, .. } = bench;
    drop(core);
    for path in ["/data/member/snap/db.ringd", guard] {
        if path == guard {
            replace(&mut disk, path, b"anything else");
        } else {
            disk.call(Operation::Remove { path: path.into() }).unwrap();
        }
        let before = files(&disk);
        let error = start(&mut disk, boot(), || Duration::ZERO)
            .err()
            .expect("it is refused");
        let expected = if path == guard {
            "etcd's own data"
        } else {
            "db.ringd is missing"
        };
        assert!(error.to_string().contains(expected), "{error}");
        assert!(files(&disk) == before, "{path}");
    }
}

#[test]
fn the_leader_compacts_by_itself() {
    let mut options = boot();
    options.options.auto_compaction = AutoCompaction::Revision(2);
    let mut bench = Bench::new(options);
    bench.settle();
    for value in 0..10u8 {
        bench.put("a", &[value]);
    }
    let compacted = |bench: &Bench| bench.core.state().readable().compact_revision;
    assert_eq!(compacted(&bench), -1);
    bench.now = Duration::from_secs(301);
    bench.settle();
    assert_eq!(bench.core.state().readable().revision, 11);
    assert_eq!(compacted(&bench), 9);
    // Not again before there is something new.
    bench.now = Duration::from_secs(602);
    let applied = bench.core.state().applied_index();
    bench.settle();
    assert_eq!(bench.core.state().applied_index(), applied);
    bench.put("a", b"new");
    bench.now = Duration::from_secs(903);
    bench.settle();
    assert_eq!(compacted(&bench), 10);
}

#[test]
fn what_is_left_of_a_lease_outlives_a_restart_and_a_renewal_gives_all_of_it() {
    let boot = || Boot {
        lessor: LessorConfig {
            checkpoint_interval: Some(Duration::from_secs(300)),
            ..LessorConfig::default()
        },
        ..boot()
    };
    let mut bench = Bench::new(boot());
    let grant = LeaseGrantRequest { id: 5, ttl: 1000 };
    bench.apply(InternalRaftRequest {
        lease_grant: Some(grant),
        ..Default::default()
    });
    bench.now = Duration::from_secs(301);
    bench.settle();
    let left = |bench: &Bench| {
        let lease = bench.core.state().lessor().time_to_live(5, false, bench.now);
        lease.expect("the lease").remaining_s.expect("a leader knows")
    };
    assert_eq!(left(&bench), 699);
    let mut bench = bench.restart(boot());
    assert_eq!(left(&bench), 699);
    bench.core.handle(0, Request::Renew { token: 9, id: 5 }, bench.now);
    let replies = bench.settle();
    let renewed = |reply: &Reply| {
        matches!(
            reply,
            Reply::Renewed {
                token: 9,
                ttl_s: Some(1000)
            }
        )
    };
    assert!(replies.iter().any(renewed), "{replies:?}");
    assert_eq!(left(&bench), 1000);
    let bench = bench.restart(boot());
    assert_eq!(left(&bench), 1000);
}
