//! A log core whose disk is full, or whose page file may not grow: writes are refused, what makes room goes on, and
//! writes are taken again by themselves. And one whose pages can't be read.

use super::*;
use crate::io::faulty::{Fault, FaultyDisk};
use crate::limits::CHECKPOINT_INTERVAL;
use crate::proto::etcdserverpb::alarm_request::AlarmAction;
use crate::proto::etcdserverpb::{AlarmRequest, AlarmType};
use std::path::Path;

const PAGE_FILE: &str = "/data/member/snap/db.ringd";
const VALUE_BYTES: usize = 4000;
/// More keys than fit into what the tests leave of the disk.
const KEYS: usize = 20_000;
/// Within this time writes are taken again once there is room.
const SOON: Duration = Duration::from_secs(20);
const QUOTA_BYTES: u64 = 4 << 20;
/// Long enough for everything that is done from time to time.
const LONG: Duration = Duration::from_secs(100);

fn small() -> Boot {
    let mut boot = boot();
    (boot.options.memory.checkpoint_at, boot.options.memory.window) = (256 << 10, 256 << 10);
    boot.pages.reserve_pages = 160;
    boot.replica.wal.segment_bytes = 64 << 20;
    boot
}

impl Bench<FaultyDisk> {
    fn ask(&mut self, request: InternalRaftRequest, quota_bytes: usize) -> Result<Outcome, Dropped> {
        self.next_token += 1;
        let (asked, payload) = (self.next_token, request.encode_to_vec().into());
        let propose = Request::Propose {
            token: asked,
            id: asked,
            payload,
            quota_bytes,
        };
        self.core.handle(0, propose, self.now);
        let answered = self.settle().into_iter().find_map(|reply| match reply {
            Reply::Applied { token, outcome, .. } if token == asked => Some(Ok(outcome)),
            Reply::Dropped { token, reason } if token == asked => Some(Err(reason)),
            _ => None,
        });
        answered.expect("an answer")
    }

    fn try_put(&mut self, key: usize) -> Result<Outcome, Dropped> {
        let put = PutRequest {
            key: format!("key {key:06}").into(),
            value: vec![key as u8; VALUE_BYTES].into(),
            ..Default::default()
        };
        let request = InternalRaftRequest {
            put: Some(put),
            ..Default::default()
        };
        self.ask(request, VALUE_BYTES)
    }

    /// Puts new keys until one is refused; the first key that is not there.
    fn fill(&mut self, from: usize) -> usize {
        let refused = (from..KEYS).find(|&key| {
            self.pass(Duration::from_millis(20));
            match self.try_put(key) {
                Ok(outcome) => outcome.answer.is_err(),
                Err(reason) => reason == Dropped::NoSpace,
            }
        });
        refused.expect("the disk gets full")
    }

    fn disarm(&mut self) {
        let alarm = Some(AlarmRequest {
            action: AlarmAction::Deactivate as i32,
            member_id: 7,
            alarm: AlarmType::Nospace as i32,
        });
        let request = InternalRaftRequest {
            alarm,
            ..Default::default()
        };
        self.ask(request, 0)
            .expect("an alarm can be disarmed")
            .answer
            .expect("as usual");
    }

    /// Checkpoints made while so much time passes.
    fn checkpoints_in(&mut self, time: Duration) -> u64 {
        let (before, until) = (self.core.pages().root().generation(), self.now + time);
        while self.now < until {
            self.pass(TICK);
        }
        self.core.pages().root().generation() - before
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.settle();
    }

    /// Lets time pass until a put is taken.
    fn await_room(&mut self, key: usize) {
        let until = self.now + SOON;
        while self.try_put(key).is_err() {
            let store = self.core.pages();
            assert!(
                self.now < until,
                "writes are still refused: {} of {} bytes in use, room: {}, log full: {}",
                store.size_in_use(),
                store.size(),
                store.has_room(),
                self.core.replica.wal().no_space()
            );
            self.pass(Duration::from_millis(100));
        }
    }

    fn delete(&mut self, from: usize, to: usize) {
        let delete_range = Some(DeleteRangeRequest {
            key: format!("key {from:06}").into(),
            range_end: format!("key {to:06}").into(),
            ..Default::default()
        });
        let request = InternalRaftRequest {
            delete_range,
            ..Default::default()
        };
        let outcome = self.ask(request, 0).expect("deletes go on");
        assert!(matches!(outcome.answer, Ok(Answer::Delete(ref delete)) if delete.deleted == (to - from) as i64));
    }

    fn compact(&mut self) -> Result<Outcome, Dropped> {
        let compaction = Some(CompactionRequest {
            revision: self.core.state().readable().revision,
            physical: false,
        });
        let request = InternalRaftRequest {
            compaction,
            ..Default::default()
        };
        self.ask(request, 0)
    }

    fn renew(&mut self, id: i64) -> bool {
        self.core.handle(0, Request::Renew { token: 0, id }, self.now);
        let renewed = |reply: &Reply| matches!(reply, Reply::Renewed { ttl_s: Some(100), .. });
        self.settle().iter().any(renewed)
    }

    fn alarms(&self) -> Vec<i32> {
        let alarms = self.core.state().alarms().list(AlarmType::None as i32);
        alarms.iter().map(|alarm| alarm.alarm).collect()
    }
}

/// Everything but writes goes on without room; deletes and a compaction make some, and it is used.
fn goes_through_a_full_disk(bench: &mut Bench<FaultyDisk>) -> usize {
    let grant = LeaseGrantRequest { ttl: 100, id: 5 };
    bench.apply(InternalRaftRequest {
        lease_grant: Some(grant),
        ..Default::default()
    });
    let full_at = bench.fill(0);
    assert!(full_at > 300, "refused after {full_at}");
    for _ in 0..5 {
        bench.pass(Duration::from_secs(5));
        assert_eq!(
            bench.try_put(KEYS).err(),
            Some(Dropped::NoSpace),
            "there is no room yet"
        );
        assert!(bench.renew(5), "leases are kept alive");
    }
    assert!(bench.alarms().is_empty(), "a full disk passes; the alarm would stay");
    assert!(
        bench.revision_of(&format!("key {:06}", full_at - 1)).is_some(),
        "reads go on"
    );
    bench.delete(0, full_at - 10);
    bench.compact().expect("compactions go on").answer.expect("as usual");
    bench.await_room(0);
    bench.delete(0, 1);
    full_at
}

#[test]
fn a_full_disk_refuses_writes_until_a_compaction_makes_room() {
    let mut disk = FaultyDisk::new(1);
    disk.set_capacity(None);
    let mut bench = Bench::start(disk, small());
    // So that both segments of the log are there, and the page file's reserve.
    bench.pass(Duration::from_secs(100));
    bench.pass(Duration::from_secs(100));
    let capacity = bench.disk.volume().allocated() + (8 << 20);
    bench.disk.set_capacity(Some(capacity));
    let full_at = goes_through_a_full_disk(&mut bench);
    // Room that others leave is found, too.
    let again = bench.fill(KEYS / 2);
    bench.pass(Duration::from_secs(30));
    assert_eq!(bench.try_put(KEYS).err(), Some(Dropped::NoSpace));
    bench.disk.set_capacity(None);
    bench.await_room(KEYS);
    let revision = bench.core.state().readable().revision;
    let bench = bench.restart(small());
    assert_eq!(bench.core.state().readable().revision, revision);
    for key in [full_at - 10, full_at - 1, KEYS / 2, again - 1, KEYS] {
        assert!(
            bench.revision_of(&format!("key {key:06}")).is_some(),
            "key {key} is lost"
        );
    }
    assert_eq!(bench.revision_of("key 000001"), None);
    assert!(bench.disk.violations().is_empty(), "nothing failed was tried again");
}

#[test]
fn a_page_file_at_its_limit_refuses_writes_until_a_compaction_makes_room() {
    let mut boot = small();
    boot.pages.limit_bytes = 8 << 20;
    let mut bench = Bench::start(FaultyDisk::new(2), boot);
    goes_through_a_full_disk(&mut bench);
    assert!(bench.core.pages().size() <= 8 << 20);
}

/// A quota that is used up: the alarm is raised.
fn full_by_quota() -> (Bench<FaultyDisk>, usize) {
    let mut boot = small();
    boot.options.quota_bytes = Some(QUOTA_BYTES);
    let mut bench = Bench::start(FaultyDisk::new(4), boot);
    let full_at = bench.fill(0);
    let bytes = (full_at * VALUE_BYTES) as u64;
    assert!(
        bytes > QUOTA_BYTES / 2,
        "the reserve takes nothing from the quota: {bytes}"
    );
    assert_eq!(bench.alarms(), [AlarmType::Nospace as i32]);
    (bench, full_at)
}

/// As with etcd after compacting, defragmenting and disarming: nothing has to be disarmed again, and nobody waits for
/// the next checkpoint by the clock.
#[test]
fn a_full_quota_is_left_soon_after_a_compaction() {
    let (mut bench, full_at) = full_by_quota();
    // What stays lies at the file's end.
    bench.delete(0, full_at / 2);
    bench.compact().expect("compactions go on").answer.expect("as usual");
    bench.disarm();
    let freed_at = bench.now;
    while bench.try_put(KEYS).is_err() {
        assert!(bench.alarms().is_empty(), "room is on its way");
        assert!(
            bench.now < freed_at + CHECKPOINT_INTERVAL / 10,
            "{} bytes",
            bench.core.pages().size()
        );
        bench.pass(TICK);
    }
    assert!(bench.alarms().is_empty());
    // It is well below the quota before long, and then the page store is left alone.
    bench.checkpoints_in(LONG);
    assert!(bench.core.pages().size() < QUOTA_BYTES * 7 / 8);
    assert_eq!(bench.checkpoints_in(LONG), 0);
}

/// Where nothing can come back nothing is written for it.
#[test]
fn a_quota_full_of_what_is_needed_costs_no_checkpoints() {
    let (mut bench, _) = full_by_quota();
    bench.pass(LONG);
    bench.pass(LONG);
    assert_eq!(bench.checkpoints_in(LONG), 0);
}

/// What can go and is held by a reader is tried for less and less often, and the alarm is raised all the same.
#[test]
fn a_quota_full_of_what_readers_hold_costs_few_checkpoints() {
    let (mut bench, full_at) = full_by_quota();
    let held = bench.core.state().index().clone().pin().view().clone();
    bench.delete(0, full_at);
    bench.compact().expect("compactions go on").answer.expect("as usual");
    bench.disarm();
    let made = bench.checkpoints_in(LONG);
    assert!((1..=20).contains(&made), "{made} checkpoints");
    assert_eq!(bench.try_put(KEYS).err(), Some(Dropped::NoSpace));
    assert_eq!(bench.alarms(), [AlarmType::Nospace as i32]);
    drop(held);
    bench.pass(LONG);
    bench.disarm();
    bench.await_room(KEYS);
}

/// Keys that only the page store has any more, with history to be compacted.
fn stored() -> Bench<FaultyDisk> {
    let mut bench = Bench::start(FaultyDisk::new(3), small());
    for key in 0..400 {
        bench.try_put(key % 100).expect("room");
    }
    bench.pass(Duration::from_secs(40));
    let mut bench = bench.restart(small());
    bench.pass(Duration::from_secs(40));
    bench
}

#[test]
fn a_compaction_that_cannot_read_a_page_is_tried_again_and_raises_no_alarm() {
    let mut bench = stored();
    bench.disk.add_fault(Fault {
        operation: "read",
        path: PAGE_FILE.to_string(),
        skip: 0,
        times: 1,
        errno: libc::EIO,
    });
    bench.compact().unwrap().answer.unwrap();
    assert_eq!(bench.core.state().keys().revisions(), 400, "nothing could be read");
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.core.state().keys().revisions(), 400);
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.core.state().keys().revisions(), 100);
    assert!(bench.alarms().is_empty());
}

#[test]
fn a_compaction_that_meets_a_damaged_page_raises_the_alarm_and_goes_on() {
    let mut bench = stored();
    bench.disk.tamper(Path::new(PAGE_FILE), |contents| {
        let first_data = 2 * crate::limits::pages::PAGE_BYTES as u64;
        contents.write_zeros(first_data, contents.length() - first_data);
    });
    bench.compact().unwrap().answer.unwrap();
    bench.pass(Duration::from_secs(20));
    assert_eq!(bench.alarms(), [AlarmType::Corrupt as i32]);
    assert_eq!(bench.core.state().keys().revisions(), 400);
}
