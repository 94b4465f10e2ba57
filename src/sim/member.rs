//! How the simulated member is set up.

use crate::io::medium::Random;
use crate::limits;
use crate::mvcc::readers::Readers;
use crate::raft::boot::Boot;
use crate::raft::core::Options;
use crate::raft::directory::PAGE_FILE;
use crate::raft::memory::Memory;
use crate::raft::replica::{Identity, ReplicaOptions};
use crate::state::lease::LessorConfig;
use crate::state::members::Member;
use crate::{pages, wal};
use std::path::PathBuf;
use std::time::Duration;

/// The member's data directory.
const DATA: &str = "/data";

/// The cluster's id.
pub const CLUSTER_ID: u64 = 0xc;
/// The member's id.
pub const MEMBER_ID: u64 = 0x7;

/// Where the page file is.
pub fn page_file() -> PathBuf {
    PathBuf::from(DATA).join("member").join("snap").join(PAGE_FILE)
}

/// How the page store is opened.
pub fn page_options() -> pages::Options {
    pages::Options {
        reserve_pages: 128,
        ..pages::Options::new(100..100 + limits::pages::OPERATIONS as u64)
    }
}

/// A member whose files are small enough for all that happens to large ones to happen to them.
///
/// A segment is always longer than a batch, as it is with the real sizes.
pub fn draw(random: &mut Random, value_bytes_max: u64) -> Boot {
    let segment_bytes = match value_bytes_max {
        ..100 => 64 << 10,
        100..4000 => 1 << 20,
        _ => 8 << 20,
    };
    let quota_bytes = (random.below(4) == 0).then(|| {
        let least = match value_bytes_max {
            ..100 => 512 << 10,
            100..4000 => 2 << 20,
            _ => 8 << 20,
        };
        least + random.below(least)
    });
    let catchup_entries = [0, 10, 200][random.below(3) as usize];
    let wal = wal::Options {
        segment_bytes,
        max_wals: 1 + random.below(3) as usize,
        pad_batches: random.below(4) == 0,
        ..wal::Options::new(random.bits(), 0..wal::TOKENS)
    };
    let identity = Identity {
        cluster_id: CLUSTER_ID,
        member_id: MEMBER_ID,
    };
    let member = Member {
        id: identity.member_id,
        name: "simulated".into(),
        peer_urls: vec!["http://127.0.0.1:2380".into()],
        ..Default::default()
    };
    Boot {
        data_directory: DATA.into(),
        wal_directory: PathBuf::from(DATA).join("member").join("wal"),
        replica: ReplicaOptions {
            identity: Some(identity),
            election_ticks: 10,
            heartbeat_ticks: 1,
            pre_vote: true,
            catchup_entries,
            alone: false,
            wal,
        },
        pages: page_options(),
        decoders: random.below(3) as usize,
        loader_tokens: 10_000..10_000 + limits::LOADER_READS,
        options: Options {
            tick: Duration::from_millis(100),
            election_timeout: Duration::from_secs(1),
            first_id: MEMBER_ID << 48,
            learners_max: 1,
            strict_reconfiguration: true,
            catchup_entries,
            quota_bytes,
            memory: Memory {
                window: 64 << 10,
                ..Memory::default()
            },
            auto_compaction: Default::default(),
        },
        lessor: LessorConfig::default(),
        member: member.clone(),
        founders: vec![member],
        ticks_ahead: 0,
        cluster_version: "3.7.0".into(),
        readers: Readers::new(1),
    }
}
