//! How the executor's io_uring rings are set up: so that work for them interrupts nobody.
//!
//! A socket that a ring waits for gets its bytes on another CPU. Without COOP_TASKRUN that CPU interrupts the ring's
//! thread to have it look, though the thread looks by itself soon; with it the thread is woken if it sleeps, and else
//! left alone until it next enters the kernel. glommio sets its rings up without, and has no setting for it. So
//! `build.rs` has the linker lead the one system call by which liburing makes a ring to [`__wrap___sys_io_uring_setup`]
//! (`--wrap`, see ld(1)); where that was not done nothing changes but the interrupts. The log core's ring is not made
//! here (`reactor::ring`).

use std::ffi::{c_int, c_uint};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of `io_uring_setup(2)`; Linux 5.19.
const COOP_TASKRUN: u32 = 1 << 8;
/// `struct io_uring_params` up to its flags, which begin it: SQ entries, CQ entries, flags.
#[repr(C)]
struct ParametersHead {
    queues: [u32; 2],
    flags: u32,
}

/// Rings that interrupt nobody.
static COOPERATIVE: AtomicUsize = AtomicUsize::new(0);

/// Takes the place of liburing's `__sys_io_uring_setup`: the new ring's descriptor, or the negative errno.
///
/// # Safety
/// `parameters` has to point to a `struct io_uring_params`, as for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap___sys_io_uring_setup(entries: c_uint, parameters: *mut ParametersHead) -> c_int {
    // SAFETY: valid by the caller's promise, which no other thread knows of.
    let wanted = unsafe { (*parameters).flags };
    // A ring with flags is one that the executor has its own mind about.
    if wanted == 0 {
        // SAFETY: as above.
        unsafe { (*parameters).flags = COOP_TASKRUN };
        // SAFETY: by the caller's promise.
        let made = unsafe { setup(entries, parameters) };
        if made != -libc::EINVAL {
            COOPERATIVE.fetch_add(usize::from(made >= 0), Ordering::Relaxed);
            return made;
        }
        // SAFETY: as above; an older kernel changed nothing.
        unsafe { (*parameters).flags = wanted };
    }
    // SAFETY: by the caller's promise.
    unsafe { setup(entries, parameters) }
}

/// # Safety
/// As the system call's.
unsafe fn setup(entries: c_uint, parameters: *mut ParametersHead) -> c_int {
    // SAFETY: by the caller's promise.
    let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, parameters) };
    match c_int::try_from(made) {
        Ok(descriptor) if descriptor >= 0 => descriptor,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::serve::{CoreOptions, ServeCore};
    use std::time::Duration;

    /// That the linker does as it was told, and the executor as it is expected to.
    #[test]
    fn stress_executors_rings_interrupt_nobody() {
        let before = COOPERATIVE.load(Ordering::Relaxed);
        for _ in 0..4 {
            let options = CoreOptions {
                name: "coop".to_string(),
                cpus: None,
            };
            let core = ServeCore::start(options, || async {}).unwrap();
            assert!(core.join(Duration::from_secs(30)));
        }
        assert!(COOPERATIVE.load(Ordering::Relaxed) >= before + 4);
    }

    #[test]
    fn a_refusal_is_the_systems_own() {
        let mut parameters = [0u32; 30];
        // SAFETY: the structure has 120 bytes.
        let made = unsafe { __wrap___sys_io_uring_setup(0, parameters.as_mut_ptr().cast()) };
        assert_eq!(made, -libc::EINVAL, "no entries");
        parameters[2] = u32::MAX;
        // SAFETY: as above.
        let made = unsafe { __wrap___sys_io_uring_setup(8, parameters.as_mut_ptr().cast()) };
        assert_eq!(
            (made, parameters[2]),
            (-libc::EINVAL, u32::MAX),
            "unknown flags are passed on"
        );
    }
}
