//! Leases under simulated time.

use super::*;
use crate::limits::LEASE_STALE_ENTRIES_MIN;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn leader() -> Lessor {
    let mut lessor = Lessor::new(LessorConfig::default());
    lessor.promote(at(0), Duration::ZERO);
    lessor
}

#[test]
fn grants() {
    let mut lessor = leader();
    assert_eq!(lessor.grant(0, 10, at(0)), Err(StateError::LeaseNotFound));
    assert_eq!(lessor.grant(1, MAX_TTL_S + 1, at(0)), Err(StateError::LeaseTtlTooLarge));
    assert_eq!(lessor.grant(1, MAX_TTL_S, at(0)), Ok(MAX_TTL_S));
    assert_eq!(lessor.grant(1, 5, at(0)), Err(StateError::LeaseExists));
    assert_eq!(
        lessor.grant(1, MAX_TTL_S + 1, at(0)),
        Err(StateError::LeaseTtlTooLarge),
        "the TTL is looked at first"
    );
    for (id, ttl_s) in [(2, 0), (3, -7), (4, 1), (5, i64::MIN)] {
        assert_eq!(lessor.grant(id, ttl_s, at(0)), Ok(2));
    }
    assert_eq!(lessor.grant(-9, 3, at(0)), Ok(3));
    assert_eq!(lessor.len(), 6);
}

#[test]
fn time_left_is_cut_toward_zero() {
    let mut lessor = leader();
    lessor.grant(1, 10, at(100)).unwrap();
    let left = |lessor: &Lessor, now: Duration| lessor.time_to_live(1, true, now).unwrap().remaining_s;
    assert_eq!(left(&lessor, at(100)), Some(10));
    assert_eq!(left(&lessor, at(100) + Duration::from_millis(1)), Some(9));
    assert_eq!(left(&lessor, at(110) + Duration::from_millis(999)), Some(0));
    assert_eq!(left(&lessor, at(111)), Some(-1));
    assert_eq!(lessor.time_to_live(2, true, at(0)), None);
    lessor.attach(1, b"b");
    lessor.attach(1, b"a");
    let with_keys = lessor.time_to_live(1, true, at(100)).unwrap();
    assert_eq!(with_keys.keys, [b"a"[..].into(), b"b"[..].into()]);
    lessor.detach(1, b"b");
    assert_eq!(lessor.time_to_live(1, true, at(100)).unwrap().keys.len(), 1);
    assert!(lessor.time_to_live(1, false, at(100)).unwrap().keys.is_empty());
    lessor.demote();
    assert_eq!(left(&lessor, at(100)), None);
}

#[test]
fn expiry_and_renewal() {
    let mut lessor = leader();
    lessor.grant(1, 10, at(0)).unwrap();
    lessor.grant(2, 20, at(0)).unwrap();
    assert_eq!(lessor.ids(), [1, 2]);
    assert_eq!(lessor.renew(1, at(9)), Renewal::Renewed { ttl_s: 10 });
    assert_eq!(lessor.expired(at(10), 10), [0; 0]);
    assert_eq!(lessor.expired(at(18), 10), [0; 0]);
    assert_eq!(lessor.expired(at(19), 10), [1]);
    assert_eq!(lessor.renew(1, at(19)), Renewal::AwaitRevoke);
    assert_eq!(lessor.expired(at(19), 10), [0; 0], "named once");
    assert_eq!(lessor.expired(at(22), 10), [2, 1], "and again after three seconds");
    lessor.revoke(1);
    assert_eq!(lessor.renew(1, at(22)), Renewal::NotFound);
    assert_eq!(lessor.expired(at(100), 10), [2]);
    lessor.demote();
    assert_eq!(lessor.renew(2, at(100)), Renewal::NotPrimary);
    assert_eq!(lessor.expired(at(1000), 10), [0; 0]);
    assert_eq!(lessor.next_expiry(), None);
}

#[test]
fn one_round_names_no_more_than_asked() {
    let mut lessor = leader();
    for id in 1..=1200 {
        lessor.grant(id, 5, at(0)).unwrap();
    }
    let rounds: Vec<_> = (0..4).map(|_| lessor.expired(at(5), 500)).collect();
    assert_eq!(rounds.iter().map(Vec::len).collect::<Vec<_>>(), [500, 500, 200, 0]);
    let mut named = rounds.concat();
    named.sort_unstable();
    assert!(named.into_iter().eq(1..=1200));
}

#[test]
fn a_new_leader_gives_full_time_and_spreads_expiries() {
    let mut lessor = Lessor::new(LessorConfig::default());
    for id in 1..=4000 {
        lessor.grant(id, 10, at(0)).unwrap();
    }
    assert_eq!(lessor.expired(at(1 << 40), 10), [0; 0]);
    lessor.promote(at(50), SECOND);
    let mut per_second = HashMap::new();
    for lease in lessor.leases.values() {
        let left = lease.expiry.unwrap() - at(50);
        assert!(left >= 11 * SECOND);
        *per_second.entry(left.as_secs()).or_insert(0) += 1;
    }
    let most = per_second.values().max().unwrap();
    assert!(*most <= LEASE_REVOKE_RATE_PER_SECOND, "{per_second:?}");
    assert!(per_second.len() >= 5, "{per_second:?}");
    lessor.demote();
    lessor.promote(at(1000), Duration::ZERO);
    assert_eq!(lessor.time_to_live(1, false, at(1000)).unwrap().granted_ttl_s, 10);
    assert!(lessor.expired(at(1009), 10).is_empty());
}

#[test]
fn checkpoints_keep_the_remainder_across_leaders() {
    let config = LessorConfig {
        min_ttl_s: 2,
        checkpoint_interval: Some(at(300)),
    };
    let mut lessor = Lessor::new(config);
    lessor.promote(at(0), Duration::ZERO);
    lessor.grant(1, 1000, at(0)).unwrap();
    lessor.grant(2, 300, at(0)).unwrap();
    assert_eq!(lessor.due_checkpoints(at(299), 10), []);
    let due = lessor.due_checkpoints(at(300) + Duration::from_millis(1), 10);
    assert_eq!(
        due,
        [(1, 700)],
        "a lease of one interval needs none; the remainder is rounded up"
    );
    lessor.checkpoint(1, 700, at(300));
    lessor.checkpoint(77, 1, at(300));
    assert_eq!(lessor.due_checkpoints(at(600), 10), [(1, 400)]);
    lessor.checkpoint(1, 400, at(600));
    lessor.demote();
    lessor.promote(at(2000), Duration::ZERO);
    assert_eq!(lessor.time_to_live(1, false, at(2000)).unwrap().remaining_s, Some(400));
    assert_eq!(lessor.renew(1, at(2001)), Renewal::ClearCheckpoint);
    lessor.checkpoint(1, 0, at(2001));
    assert_eq!(lessor.renew(1, at(2001)), Renewal::Renewed { ttl_s: 1000 });
    assert_eq!(lessor.time_to_live(1, false, at(2001)).unwrap().remaining_s, Some(1000));
}

#[test]
fn changes_are_etcds_bytes_and_come_back() {
    let mut lessor = leader();
    lessor.grant(7, 60, at(0)).unwrap();
    lessor.grant(8, 60, at(0)).unwrap();
    lessor.checkpoint(7, 30, at(0));
    lessor.revoke(8);
    lessor.grant(-1, 5, at(0)).unwrap();
    let changes = lessor.take_changes();
    let keys: Vec<_> = changes
        .iter()
        .map(|(key, _)| i64::from_be_bytes(key[..].try_into().unwrap()))
        .collect();
    assert_eq!(keys, [-1, 7, 8]);
    assert_eq!(changes[1].1.as_deref(), Some(&[0x08, 7, 0x10, 60, 0x18, 30][..]));
    assert_eq!(changes[2].1, None);
    assert!(lessor.take_changes().is_empty());
    let mut restored = Lessor::new(LessorConfig {
        min_ttl_s: 45,
        ..LessorConfig::default()
    });
    for (_, value) in changes {
        if let Some(value) = value {
            restored.restore(&leasepb::Lease::decode(&value[..]).unwrap());
        }
    }
    restored.promote(at(0), Duration::ZERO);
    let left = |id| {
        restored
            .time_to_live(id, false, at(0))
            .map(|left| (left.granted_ttl_s, left.remaining_s))
    };
    assert_eq!(
        (left(7), left(8), left(-1)),
        (Some((60, Some(30))), None, Some((45, Some(45))))
    );
}

/// Revoked leases with long lives leave no growing heap behind.
#[test]
fn revoked_leases_leave_nothing_behind() {
    let mut lessor = leader();
    for id in 1..=50_000 {
        lessor.grant(id, MAX_TTL_S, at(0)).unwrap();
        lessor.revoke(id);
    }
    assert!(
        lessor.expiries.len() <= 2 * LEASE_STALE_ENTRIES_MIN + 2,
        "{}",
        lessor.expiries.len()
    );
    lessor.grant(5, 10, at(0)).unwrap();
    lessor.revoke(5);
    lessor.grant(5, 100, at(0)).unwrap();
    assert_eq!(
        lessor.expired(at(50), 10),
        [0; 0],
        "the entry of the former lease with this id is not its own"
    );
}

/// A million leases renewed for an hour: a turn never looks at more than its budget, and renewing touches no timer.
#[test]
fn a_million_leases() {
    let mut lessor = leader();
    for id in 1..=1_000_000 {
        lessor.grant(id, 60 + id % 60, at(0)).unwrap();
    }
    let entries = lessor.expiries.len();
    for id in 1..=1_000_000 {
        assert_eq!(lessor.renew(id, at(30)), Renewal::Renewed { ttl_s: 60 + id % 60 });
    }
    assert_eq!(lessor.expiries.len(), entries);
    let (mut turns, mut named) = (0, 0);
    while lessor.next_expiry().is_some_and(|next| next <= at(91)) {
        named += lessor.expired(at(91), 500).len();
        turns += 1;
        assert!(turns < 2000);
    }
    assert_eq!(
        named,
        2 * 16_667 - 1,
        "those of 60 and of 61 s, less the one that does not exist"
    );
}
