//! Building an io_uring ring with the best flags that the running kernel knows.

use io_uring::{Builder, IoUring};
use std::io;

/// A ring of `entries` submissions for the calling thread, which alone may use it.
///
/// With SINGLE_ISSUER and DEFER_TASKRUN (Linux 6.1) completions are worked off when this thread asks for them and
/// nowhere else; with COOP_TASKRUN (5.19) they don't interrupt it; older kernels get neither.
pub(super) fn build(entries: u32) -> io::Result<IoUring> {
    type Flags = fn(&mut Builder) -> &mut Builder;
    let variants: [Flags; 3] = [
        |builder| builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag(),
        |builder| builder.setup_coop_taskrun().setup_taskrun_flag(),
        |builder| builder,
    ];
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for variant in variants {
        let mut builder = IoUring::builder();
        builder.setup_clamp().dontfork();
        match variant(&mut builder).build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
            other => return other,
        }
    }
    Err(last)
}

/// Whether the kernel has completions to work off, or entries to take, that need a system call.
pub(super) fn needs_enter(ring: &mut IoUring) -> bool {
    let queue = ring.submission();
    !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
}

/// Keeps the kernel's worker threads of the calling thread on `cpus`. They are the thread's, not the ring's: one call
/// covers every ring that the thread has.
pub(super) fn confine_kernel_workers(cpus: &libc::cpu_set_t) {
    if let Err(error) = IoUring::new(1).and_then(|ring| ring.submitter().register_iowq_aff(cpus)) {
        tracing::debug!("the kernel's io_uring workers could not be pinned: {error}");
    }
}
