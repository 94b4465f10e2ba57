//! What the machine would give a program: taken from it before it starts, and taken in full by a test for itself.

use std::{io, os::unix::process::CommandExt, process::Command};

/// Makes `io_uring_setup` fail with this error number, by a seccomp filter as container engines install one.
pub fn without_io_uring(command: &mut Command, errno: i32) {
    // SAFETY: the closure runs in the child between fork and exec and makes two system calls on memory of its own.
    unsafe {
        command.pre_exec(move || forbid(libc::SYS_io_uring_setup as u32, errno as u32));
    }
}

fn forbid(number: u32, errno: u32) -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let is_number = libc::sock_filter {
        jf: 1,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number)
    };
    let mut filter = [
        // The number of the system call is the first field of what a filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_number,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: `program` and the filter it points to outlive the call, and its length is theirs.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) })
}

/// Bounds the memory that the program may lock, in bytes.
pub fn with_locked_memory(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: the closure runs in the child between fork and exec and makes one system call on memory of its own.
    unsafe {
        command.pre_exec(move || check(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit)));
    }
}

/// Lets this process open as many files as it may: by default that is often 1024, and one test has hundreds of sockets.
pub fn take_all_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is written by the first call and read by the second.
    let taken = unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit)).and_then(|()| {
            limit.rlim_cur = limit.rlim_max;
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))
        })
    };
    taken.expect("the limit of open files is raised to what is allowed");
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
