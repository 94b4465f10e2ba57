//! How `--memory-budget` is shared out. README says the same in words.

use crate::config::Config;
use crate::limits::{
    CHECKPOINT_DIRTY_BYTES, GRPC_OVERHEAD_BYTES, LOG_CORE_CACHE_BYTES, MEMORY_BUDGET_MIN, PAGE_CACHE_BYTES_MAX,
    PROPOSALS_PENDING_BYTES_MAX, UNSTORED_BYTES_MAX, WINDOW_BYTES_MAX,
};
use crate::raft::memory::Memory;
use crate::reactor::cgroup;

/// The shares of `--memory-budget`, in bytes. They add up to at most the budget, unless a share is raised to what the
/// largest message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What is shared out.
    pub total: u64,
    /// The log core's: window, what is not stored yet, its caches, the index, proposals.
    pub log_core: Memory,
    /// The page caches of all serve cores.
    pub page_caches: usize,
    /// What waits for peers to read it, on all serve cores.
    pub answers: usize,
    /// What peers have sent of messages that are not whole, on all serve cores.
    pub requests: usize,
    /// What long reads hold while they run, on all serve cores.
    pub reads: usize,
}

impl Budget {
    /// By the configuration and the machine.
    pub fn of(config: &Config) -> Budget {
        let total = match config.memory_budget {
            0 => (memory_of_this_machine() / 2).max(MEMORY_BUDGET_MIN),
            bytes => bytes,
        };
        Budget::shares(total, config.max_request_bytes)
    }

    /// What there is to be said of the budget that was asked for, if the machine has less.
    pub fn warning(config: &Config) -> Option<String> {
        beyond(config.memory_budget, memory_of_this_machine())
    }

    fn shares(total: u64, max_request_bytes: usize) -> Budget {
        let share = |parts: u64| usize::try_from(total / 32 * parts).unwrap_or(usize::MAX);
        let message = max_request_bytes.saturating_add(GRPC_OVERHEAD_BYTES);
        let unstored = (share(3) as u64).min(UNSTORED_BYTES_MAX);
        let log_core = Memory {
            window: share(7).min(WINDOW_BYTES_MAX),
            checkpoint_at: (unstored / 3).min(CHECKPOINT_DIRTY_BYTES),
            // Held twice: six parts.
            unstored_max: unstored,
            pending_max: share(1).max(message).min(PROPOSALS_PENDING_BYTES_MAX.max(message)),
            // Two of this size: one part.
            cache: (share(1) / 2).min(LOG_CORE_CACHE_BYTES),
            index_max: share(7),
        };
        Budget {
            total,
            log_core,
            page_caches: share(3).min(PAGE_CACHE_BYTES_MAX),
            answers: share(2).max(message),
            requests: share(1).max(message),
            reads: share(4).max(message.saturating_mul(2)),
        }
    }
}

fn beyond(asked: u64, machine: u64) -> Option<String> {
    (asked > machine).then(|| {
        format!(
            "--memory-budget={asked} is more than the {machine} bytes that this machine or its cgroup has: the process \
             may be killed before its shares are used up; give less, or leave it out for half of what there is"
        )
    })
}

/// RAM or the cgroup's limit, whichever is less.
fn memory_of_this_machine() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = line
        .and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok())
        .map_or(1 << 30, |kib| kib << 10);
    cgroup::memory_limit().map_or(total, |limit| limit.min(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: usize = 3 << 19;

    fn sum(budget: &Budget) -> u64 {
        let log_core = budget.log_core;
        let shares = [
            log_core.window,
            2 * log_core.unstored_max as usize,
            log_core.pending_max,
            2 * log_core.cache,
            log_core.index_max,
            budget.page_caches,
            budget.answers,
            budget.requests,
            budget.reads,
        ];
        shares.iter().sum::<usize>() as u64
    }

    #[test]
    fn the_shares_are_the_budget() {
        for total in [MEMORY_BUDGET_MIN, 256 << 20, 512 << 20, 8 << 30, 1 << 40] {
            let budget = Budget::shares(total, REQUEST);
            assert!(sum(&budget) <= total, "{total}: {budget:?}");
            assert!(budget.log_core.checkpoint_at < budget.log_core.unstored_max);
        }
    }

    #[test]
    fn a_budget_beyond_the_machine_is_said() {
        assert_eq!(beyond(0, 1 << 30), None);
        assert_eq!(beyond(1 << 30, 1 << 30), None);
        let said = beyond((1 << 30) + 1, 1 << 30).unwrap();
        assert!(
            said.contains("--memory-budget=1073741825 is more than the 1073741824 bytes"),
            "{said}"
        );
    }

    #[test]
    fn large_messages_find_room_in_any_budget() {
        let budget = Budget::shares(MEMORY_BUDGET_MIN, 100 << 20);
        for share in [
            budget.requests,
            budget.answers,
            budget.reads,
            budget.log_core.pending_max,
        ] {
            assert!(share >= 100 << 20);
        }
    }
}
