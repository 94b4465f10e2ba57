//! What has to hold before the threads start, each failure with its cause and what to do about it.

use super::ring;
use std::io;

/// Why the reactor can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel has no io_uring.
    #[error("this kernel has no io_uring (ENOSYS): run Linux 5.17 or newer, built with CONFIG_IO_URING")]
    Missing,
    /// The kernel's io_uring lacks what is needed.
    #[error("this kernel's io_uring is too old: run Linux 5.17 or newer")]
    TooOld,
    /// Switched off by sysctl.
    #[error(
        "io_uring is disabled on this machine (kernel.io_uring_disabled = {setting}): set it with `sysctl \
         kernel.io_uring_disabled=0`{}",
        if *setting == 1 { ", or run as a member of the group kernel.io_uring_group" } else { "" }
    )]
    Disabled {
        /// 1: for the unprivileged, 2: for all.
        setting: u32,
    },
    /// Forbidden by a seccomp profile or a security module.
    #[error(
        "io_uring is forbidden to this process (EPERM, and kernel.io_uring_disabled is 0): containers' default seccomp \
         profile does that; run with the profile docs/seccomp-ringd.json (docker: --security-opt \
         seccomp=docs/seccomp-ringd.json, Kubernetes: securityContext.seccompProfile of type Localhost)"
    )]
    Forbidden,
    /// RLIMIT_MEMLOCK is below what the executor of a serve core insists on.
    #[error(
        "the limit of locked memory is {limit} bytes, {needed} are needed: raise it (`ulimit -l 8192`, systemd \
         LimitMEMLOCK=8M, docker --ulimit memlock=8388608)"
    )]
    Memlock {
        /// The hard limit in bytes.
        limit: u64,
        /// The least that will do.
        needed: u64,
    },
    /// The executor of a serve core could not be made.
    #[error("a serve core could not start: {0}")]
    Executor(String),
    /// Anything else the system refused: threads, descriptors, memory.
    #[error("the reactor could not start: {0}")]
    System(#[from] io::Error),
}

/// Least RLIMIT_MEMLOCK, by the executor's own check.
const MEMLOCK_LEAST_BYTES: u64 = 512 * 1024;

/// Checks io_uring and the limits, raising soft limits to the hard ones first. Call before threads start.
pub fn probe() -> Result<(), StartError> {
    raise(libc::RLIMIT_NOFILE)?;
    let limit = raise(libc::RLIMIT_MEMLOCK)?;
    if limit < MEMLOCK_LEAST_BYTES {
        return Err(StartError::Memlock {
            limit,
            needed: MEMLOCK_LEAST_BYTES,
        });
    }
    match ring::build(8) {
        // Came with 5.17, as did everything older that is used.
        Ok(ring) if ring.params().is_feature_skip_cqe_on_success() => Ok(()),
        Ok(_) => Err(StartError::TooOld),
        Err(error) => Err(explain(
            error,
            std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
                .ok()
                .as_deref(),
        )),
    }
}

/// The cause of a failed io_uring_setup, given the text of `kernel.io_uring_disabled`.
fn explain(error: io::Error, disabled: Option<&str>) -> StartError {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => StartError::Missing,
        Some(libc::EPERM | libc::EACCES) => match disabled.and_then(|text| text.trim().parse().ok()) {
            Some(setting) if setting > 0 => StartError::Disabled { setting },
            _ => StartError::Forbidden,
        },
        Some(libc::EINVAL) => StartError::TooOld,
        _ => StartError::System(error),
    }
}

/// How many descriptors the process may have now; it can be changed while it runs.
pub(super) fn descriptors_max() -> u64 {
    limit_of(libc::RLIMIT_NOFILE).map_or(u64::MAX, |limit| limit.rlim_cur)
}

fn limit_of(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a rlimit that outlives the call.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises a soft limit to its hard one and returns it.
fn raise(resource: libc::__rlimit_resource_t) -> io::Result<u64> {
    let mut limit = limit_of(resource)?;
    if limit.rlim_cur < limit.rlim_max {
        let raised = libc::rlimit {
            rlim_cur: limit.rlim_max,
            rlim_max: limit.rlim_max,
        };
        // SAFETY: `raised` is a rlimit that outlives the call.
        if unsafe { libc::setrlimit(resource, &raised) } == 0 {
            limit = raised;
        }
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_will_do() {
        probe().unwrap();
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let text = |errno, disabled| explain(io::Error::from_raw_os_error(errno), disabled).to_string();
        assert!(text(libc::ENOSYS, None).contains("5.17"));
        let disabled = text(libc::EPERM, Some("1\n"));
        assert!(
            disabled.contains("io_uring_disabled = 1") && disabled.contains("io_uring_group"),
            "{disabled}"
        );
        let disabled = text(libc::EPERM, Some("2\n"));
        assert!(
            disabled.contains("io_uring_disabled = 2") && !disabled.contains("io_uring_group"),
            "{disabled}"
        );
        assert!(text(libc::EPERM, Some("0\n")).contains("docs/seccomp-ringd.json"));
        assert!(text(libc::EPERM, None).contains("docs/seccomp-ringd.json"));
        assert!(text(libc::EMFILE, None).contains("could not start"));
        let memlock = StartError::Memlock {
            limit: 65536,
            needed: MEMLOCK_LEAST_BYTES,
        };
        assert!(
            memlock.to_string().contains("65536 bytes, 524288 are needed"),
            "{memlock}"
        );
    }
}
