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
        |builder| builder.setup_single_issuer().setup_defer_taskrun(),
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

/// Waits for work handed to the kernel's own worker threads stay on the CPUs of `cpus`: they are the caller's, not the
/// ring's, so one call per thread is enough for every ring that thread has.
pub(super) fn confine_kernel_workers(ring: &IoUring, cpus: &libc::cpu_set_t) {
    if let Err(error) = ring.submitter().register_iowq_aff(cpus) {
        tracing::debug!("the kernel's io_uring workers could not be pinned: {error}");
    }
}
