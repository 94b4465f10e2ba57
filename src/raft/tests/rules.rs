//! Rules of DESIGN §12 as the log core keeps them: what the log holds for the older meta, and what a reader may hold.

use super::*;
use crate::io::faulty::FaultyDisk;
use crate::limits::pages::PAGE_BYTES;
use std::ops::Range;
use std::path::Path;

const PAGE_FILE: &str = "/data/member/snap/db.ringd";
const FIRST_SEGMENT: &str = "/data/member/wal/0000000000000000-0000000000000000.wal";
const PUTS: i64 = 600;

/// Checkpoints often, and keeps no more of the log than it has to.
fn frugal() -> Boot {
    let mut boot = boot();
    (boot.options.memory.checkpoint_at, boot.options.memory.window) = (64 << 10, 64 << 10);
    (boot.options.catchup_entries, boot.replica.catchup_entries) = (0, 0);
    (boot.replica.wal.segment_bytes, boot.replica.wal.max_wals) = (256 << 10, 1);
    boot
}

/// Puts keys in turn, each of 4000 bytes, with time for checkpoints.
fn put_all(bench: &mut Bench<FaultyDisk>, numbers: Range<i64>) {
    for number in numbers {
        bench.now += Duration::from_millis(20);
        bench.settle();
        bench.put(&format!("key {number}"), &[number as u8; 4000]);
    }
}

/// Makes one of the two metas a write of which only the first half became durable.
fn tear_meta(disk: &mut FaultyDisk, slot: usize) {
    disk.tamper(Path::new(PAGE_FILE), |contents| {
        let half = PAGE_BYTES / 2;
        let mut earlier = vec![0; half];
        contents.read(((1 - slot) * PAGE_BYTES + half) as u64, &mut earlier);
        contents.write((slot * PAGE_BYTES + half) as u64, &earlier);
    });
}

/// Starts from what is left by a power cut that tore the newer meta. Everything has to be there.
fn fall_back(bench: &Bench<FaultyDisk>, puts: i64) {
    let newest = bench.core.pages().root().generation();
    let mut started = [0, 1].into_iter().filter_map(|slot| {
        let mut disk = bench.disk.after_power_cut(slot as u64);
        tear_meta(&mut disk, slot);
        // The older one was whole when the newer was begun: that it is not is damage, and refused.
        start(&mut disk, frugal(), || Duration::ZERO).ok()
    });
    let core = started.next().expect("a torn newer meta is no damage");
    assert!(started.next().is_none());
    assert_eq!(core.pages().root().generation(), newest - 1);
    let index = core.state().index().clone();
    for number in 0..puts {
        let key = format!("key {number}");
        let found = index.pin().get(key.as_bytes(), i64::MAX).map(|meta| meta.revision.main);
        assert_eq!(found, Some(number + 2));
    }
}

#[test]
fn rule_6_the_log_reaches_back_to_the_older_meta() {
    let mut bench = Bench::start(FaultyDisk::new(6), frugal());
    put_all(&mut bench, 0..PUTS);
    assert!(
        bench.disk.volume().resolve(Path::new(FIRST_SEGMENT)).is_err(),
        "the log is released"
    );
    // A segment may end anywhere between two checkpoints.
    for more in 1..30 {
        let puts = PUTS + 5 * more;
        put_all(&mut bench, puts - 5..puts);
        fall_back(&bench, puts);
    }
}

#[test]
fn rule_8_a_reader_that_keeps_too_much_from_reuse_is_ended() {
    for (pin_bytes_max, ended) in [(1 << 20, true), (u64::MAX, false)] {
        let mut bench = Bench::start(FaultyDisk::new(8), frugal());
        bench.core.checkpoints.pin_bytes_max = pin_bytes_max;
        put_all(&mut bench, 0..PUTS);
        let held = bench.core.state().index().clone().pin().view().clone();
        for _ in 0..2 {
            put_all(&mut bench, 0..PUTS);
            let compaction = Some(CompactionRequest {
                revision: bench.core.state().readable().revision,
                physical: true,
            });
            bench.apply(InternalRaftRequest {
                compaction,
                ..Default::default()
            });
            bench.now += Duration::from_secs(40);
            bench.settle();
        }
        assert_eq!(held.pages.is_expired(), ended);
    }
}
