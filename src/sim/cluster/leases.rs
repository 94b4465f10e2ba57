//! When leases may end, by the members' clocks: a lease that was renewed is not revoked by a member before its time has
//! passed, since it was asked for, on the clock of at least one of them.

use std::collections::BTreeMap;

/// What every member's clock shows at one moment, in microseconds.
pub type Clocks = BTreeMap<u64, u64>;

/// Whether so many seconds have passed between two moments on some member's clock. A member that joined in between may
/// know better.
fn passed(since: &Clocks, until: &Clocks, ttl_s: i64) -> bool {
    let enough = ttl_s as u64 * 1_000_000;
    until.iter().any(|(id, shows)| match since.get(id) {
        Some(showed) => shows.saturating_sub(*showed) >= enough,
        None => false,
    })
}

/// A lease that was granted.
#[derive(Debug)]
struct Lease {
    ttl_s: i64,
    /// When the last of its grant and its renewals was asked for.
    since: Clocks,
    /// Which of the grants of its id it is from.
    grant: u64,
}

/// The end of a lease by a member.
#[derive(Debug)]
struct End {
    proposed: Clocks,
    ttl_s: i64,
    /// The grant that it ended.
    grant: u64,
}

/// All leases whose time is watched.
#[derive(Debug, Default)]
pub struct LeaseTimes {
    leases: BTreeMap<i64, Lease>,
    ends: BTreeMap<i64, End>,
    grants: u64,
    /// When members proposed to revoke something, by the request's id.
    proposed: BTreeMap<u64, Clocks>,
    /// Leases that members have ended.
    pub expired: u64,
    /// Leases renewed.
    pub renewed: u64,
}

impl LeaseTimes {
    /// A lease was granted, for whoever asked at `asked`.
    pub fn granted(&mut self, id: i64, ttl_s: i64, asked: Clocks) {
        self.grants += 1;
        let lease = Lease {
            ttl_s,
            since: asked,
            grant: self.grants,
        };
        self.leases.insert(id, lease);
    }

    /// Which of all grants was the last; a renewal notes it when it is asked for.
    pub fn grants(&self) -> u64 {
        self.grants
    }

    /// A renewal succeeded that was asked for at `asked`, when there had been `grants` grants.
    pub fn renewed(&mut self, id: i64, grants: u64, asked: &Clocks) -> Result<(), String> {
        self.renewed += 1;
        if let Some(lease) = self.leases.get_mut(&id) {
            let is_later = asked
                .iter()
                .any(|(id, shows)| lease.since.get(id).is_some_and(|before| shows > before));
            if lease.grant <= grants && is_later {
                lease.since.clone_from(asked);
            }
            return Ok(());
        }
        match self.ends.get(&id) {
            Some(end) if end.grant <= grants && !passed(asked, &end.proposed, end.ttl_s) => Err(format!(
                "lease {id} was renewed and is gone before its {} s are over",
                end.ttl_s
            )),
            _ => Ok(()),
        }
    }

    /// A member has put a revocation into its log.
    pub fn proposed(&mut self, request: u64, clocks: Clocks) {
        self.proposed.entry(request).or_insert(clocks);
    }

    /// A client's revocation was applied.
    pub fn revoked(&mut self, id: i64) {
        self.leases.remove(&id);
        self.ends.remove(&id);
    }

    /// A member's revocation was applied.
    pub fn ended(&mut self, id: i64, request: u64, now: &Clocks) -> Result<(), String> {
        self.expired += 1;
        let Some(lease) = self.leases.remove(&id) else {
            return Err(format!(
                "a member ended lease {id}, which was never granted for a short time"
            ));
        };
        let proposed = self.proposed.get(&request).unwrap_or(now).clone();
        if !passed(&lease.since, &proposed, lease.ttl_s) {
            return Err(format!(
                "a member ended lease {id} early, of its {} s: clocks were {:?} at its renewal, {proposed:?} then",
                lease.ttl_s, lease.since
            ));
        }
        let end = End {
            proposed,
            ttl_s: lease.ttl_s,
            grant: lease.grant,
        };
        self.ends.insert(id, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(seconds: u64) -> Clocks {
        [(1, seconds * 1_000_000), (2, 7 + seconds * 1_000_000)].into()
    }

    #[test]
    fn a_lease_lives_for_its_time_on_some_clock() {
        let mut times = LeaseTimes::default();
        times.granted(5, 10, clocks(0));
        times.renewed(5, 1, &clocks(4)).unwrap();
        times.proposed(77, clocks(13));
        assert!(times.ended(5, 77, &clocks(30)).is_err());
        times.granted(5, 10, clocks(40));
        times.proposed(78, clocks(50));
        times.ended(5, 78, &clocks(60)).unwrap();
        assert!(
            times.renewed(5, 2, &clocks(45)).is_err(),
            "said to be renewed behind its end"
        );
        times.renewed(5, 2, &clocks(40)).unwrap();
        assert!(times.ended(6, 79, &clocks(60)).is_err());
    }
}
