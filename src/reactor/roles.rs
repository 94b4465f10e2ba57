//! Which thread runs where: the CPUs this process may use, and what each of them is for.
//!
//! Usable are the CPUs of the process's affinity mask (so `taskset` and cpusets are respected), as many as the cgroup's
//! CPU quota pays for. Threads are pinned one to a CPU when the CPUs are this process's own by all signs: the whole
//! mask is used, or `--cores` was given. Under a quota below the mask they float, because every container of the
//! machine would pin itself to the same first CPUs.

use super::{cgroup, ring};
use std::fmt;

/// A set of CPUs.
#[derive(Clone)]
pub struct CpuSet(libc::cpu_set_t);

impl CpuSet {
    /// The CPUs the calling thread may run on.
    pub fn of_this_thread() -> std::io::Result<CpuSet> {
        let mut set = CpuSet::of(&[]);
        // SAFETY: the pointer and the size describe `set`; 0 is the calling thread.
        let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set.0) };
        if result == 0 {
            Ok(set)
        } else {
            Err(std::io::Error::last_os_error())
        }
    }

    /// Just these CPUs.
    pub fn of(cpus: &[usize]) -> CpuSet {
        // SAFETY: cpu_set_t is a bit mask, for which zeros are a valid value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &cpu in cpus {
            assert!(
                cpu < libc::CPU_SETSIZE as usize,
                "CPU {cpu} is beyond what a mask can name"
            );
            // SAFETY: `cpu` is within the mask.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        CpuSet(set)
    }

    /// The CPUs in ascending order.
    pub fn cpus(&self) -> Vec<usize> {
        // SAFETY: every number asked for is within the mask.
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &self.0) })
            .collect()
    }

    /// Confines the calling thread, the threads it starts and the kernel's io_uring workers of it to the set. Failing
    /// is harmless and only logged.
    pub fn pin_this_thread(&self) {
        // SAFETY: the pointer and the size describe the set; 0 is the calling thread.
        if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) } != 0 {
            let error = std::io::Error::last_os_error();
            tracing::warn!("could not pin a thread to CPUs {:?}: {error}", self.cpus());
        }
        ring::confine_kernel_workers(&self.0);
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CpuSet({:?})", self.cpus())
    }
}

/// One thread's name and place.
#[derive(Clone, Debug)]
pub struct Role {
    /// The thread's name.
    pub name: String,
    /// The CPUs it may use.
    pub cpus: CpuSet,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Roles {
    /// Raft, log, apply.
    pub log: Role,
    /// Connections, requests, reads, watches.
    pub serve: Vec<Role>,
}

impl Roles {
    /// All CPUs that any of them may use.
    pub fn cpus(&self) -> CpuSet {
        let roles = std::iter::once(&self.log).chain(&self.serve);
        let cpus: Vec<usize> = roles.flat_map(|role| role.cpus.cpus()).collect();
        CpuSet::of(&cpus)
    }

    /// How many threads run at a time, at most.
    pub fn cores(&self) -> usize {
        self.cpus().cpus().len().min(1 + self.serve.len())
    }
}

/// `--cores` asks for what the process may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolesError {
    /// Zero cores.
    #[error("--cores 0: at least one core is needed; leave the flag out to use every CPU of this process")]
    None,
    /// More cores than CPUs in the affinity mask.
    #[error(
        "--cores {asked}: this process may use {usable} CPUs only (its affinity mask, see `taskset -p`); give --cores \
         {usable} or less, or widen the mask"
    )]
    TooMany {
        /// What was asked for.
        asked: usize,
        /// CPUs in the mask.
        usable: usize,
    },
}

/// What the machine gives this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowance {
    /// The CPUs of the affinity mask, ascending, not empty.
    pub cpus: Vec<usize>,
    /// CPU seconds per second that the cgroup's quota pays for, if there is one.
    pub quota: Option<f64>,
}

impl Allowance {
    /// Asks the running system.
    pub fn of_this_process() -> std::io::Result<Allowance> {
        let cpus = CpuSet::of_this_thread()?.cpus();
        let quota = cgroup::cpu_quota();
        Ok(Allowance { cpus, quota })
    }

    /// How many cores to use if `--cores` doesn't say.
    fn default_cores(&self) -> usize {
        let paid = self.quota.map_or(usize::MAX, |quota| (quota.ceil() as usize).max(1));
        paid.min(self.cpus.len())
    }
}

/// Gives each thread its place: with one core log and serve share it, else the first is the log's and the others serve.
pub fn assign(cores: Option<usize>, allowance: &Allowance) -> Result<Roles, RolesError> {
    let usable = allowance.cpus.len();
    let count = match cores {
        Some(0) => return Err(RolesError::None),
        Some(asked) if asked > usable => return Err(RolesError::TooMany { asked, usable }),
        Some(asked) => asked,
        None => allowance.default_cores(),
    };
    let pinned = cores.is_some() || count == usable;
    let place = |index: usize| {
        if pinned {
            CpuSet::of(&allowance.cpus[index..=index])
        } else {
            CpuSet::of(&allowance.cpus)
        }
    };
    let serving = if count == 1 { 0..1 } else { 1..count };
    let serve = serving.enumerate().map(|(number, index)| Role {
        name: format!("serve-{number}"),
        cpus: place(index),
    });
    Ok(Roles {
        log: Role {
            name: "log".to_string(),
            cpus: place(0),
        },
        serve: serve.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(cores: Option<usize>, cpus: &[usize], quota: Option<f64>) -> (Vec<usize>, Vec<Vec<usize>>) {
        let allowance = Allowance {
            cpus: cpus.to_vec(),
            quota,
        };
        let roles = assign(cores, &allowance).unwrap();
        (
            roles.log.cpus.cpus(),
            roles.serve.iter().map(|role| role.cpus.cpus()).collect(),
        )
    }

    #[test]
    fn cores_are_given_to_roles() {
        assert_eq!(places(None, &[3], None), (vec![3], vec![vec![3]]));
        assert_eq!(places(None, &[0, 1], None), (vec![0], vec![vec![1]]));
        assert_eq!(places(None, &[2, 4, 6], None), (vec![2], vec![vec![4], vec![6]]));
        assert_eq!(places(Some(1), &[5, 6], None), (vec![5], vec![vec![5]]));
        assert_eq!(places(Some(2), &[5, 6, 7], None), (vec![5], vec![vec![6]]));
    }

    #[test]
    fn all_roles_together() {
        let together = |cores, cpus: &[usize], quota| {
            let cpus = cpus.to_vec();
            let roles = assign(cores, &Allowance { cpus, quota }).unwrap();
            (roles.cpus().cpus(), roles.cores())
        };
        assert_eq!(together(None, &[2, 4, 6], None), (vec![2, 4, 6], 3));
        assert_eq!(together(Some(1), &[5, 6], None), (vec![5], 1));
        assert_eq!(together(None, &[0, 1, 2, 3], Some(1.5)), (vec![0, 1, 2, 3], 2));
    }

    #[test]
    fn under_a_quota_threads_float() {
        let all = vec![0, 1, 2, 3];
        assert_eq!(places(None, &all, Some(1.5)), (all.clone(), vec![all.clone()]));
        assert_eq!(places(None, &all, Some(0.2)), (all.clone(), vec![all.clone()]));
        assert_eq!(
            places(None, &all, Some(9.0)),
            (vec![0], vec![vec![1], vec![2], vec![3]])
        );
    }

    #[test]
    fn impossible_wishes_are_refused() {
        let allowance = Allowance {
            cpus: vec![0, 1],
            quota: None,
        };
        assert_eq!(assign(Some(0), &allowance).unwrap_err(), RolesError::None);
        let error = assign(Some(3), &allowance).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("--cores 3: this process may use 2 CPUs only"),
            "{error}"
        );
    }

    #[test]
    fn a_thread_is_pinned_inside_its_mask() {
        let before = CpuSet::of_this_thread().unwrap().cpus();
        let last = *before.last().unwrap();
        std::thread::spawn(move || {
            CpuSet::of(&[last]).pin_this_thread();
            assert_eq!(CpuSet::of_this_thread().unwrap().cpus(), [last]);
        })
        .join()
        .unwrap();
        assert_eq!(CpuSet::of_this_thread().unwrap().cpus(), before);
    }
}
