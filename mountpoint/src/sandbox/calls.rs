//! The system calls of a sandboxed engine: two seccomp filters on all threads.
//!
//! The first filter allows calls by name, and answers ENOSYS to all others: a library that tries a newer call then falls back to the older
//! one. The second answers EPERM to calls that an intruder would make and no engine makes, and to some uses of allowed calls. A call with
//! another architecture's numbers ends the process: no library tries those.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

use super::Rings;

/// System calls of engines, their libraries and the allocator.
#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    // Files.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_preadv,
    libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_close, libc::SYS_close_range, libc::SYS_fstat,
    libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_lseek, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range,
    libc::SYS_syncfs, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_fcntl,
    libc::SYS_flock, libc::SYS_dup, libc::SYS_dup3, libc::SYS_openat, libc::SYS_faccessat, libc::SYS_faccessat2,
    libc::SYS_getdents64, libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat,
    libc::SYS_symlinkat, libc::SYS_readlinkat, libc::SYS_fchmod, libc::SYS_getcwd,
    libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_umask, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_copy_file_range,
    libc::SYS_sendfile, libc::SYS_splice, libc::SYS_tee, libc::SYS_memfd_create, libc::SYS_ioctl,
    // Memory.
    libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_mincore,
    libc::SYS_msync, libc::SYS_mlock, libc::SYS_munlock, libc::SYS_membarrier,
    // Threads and time.
    libc::SYS_clone, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq, libc::SYS_futex, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler,
    libc::SYS_set_tid_address, libc::SYS_gettid, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_tgkill, libc::SYS_restart_syscall,
    libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday,
    libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime, libc::SYS_getcpu, libc::SYS_wait4,
    libc::SYS_waitid, libc::SYS_prctl,
    // The second filter refuses this call.
    libc::SYS_seccomp,
    // Signals.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack, libc::SYS_signalfd4,
    // Facts about the process.
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_getpgid, libc::SYS_getsid, libc::SYS_uname,
    libc::SYS_sysinfo, libc::SYS_getrandom, libc::SYS_prlimit64, libc::SYS_getrlimit, libc::SYS_getrusage, libc::SYS_times,
    libc::SYS_capget,
    // Waiting, and the network.
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll,
    libc::SYS_pselect6, libc::SYS_eventfd2, libc::SYS_pipe2, libc::SYS_socket, libc::SYS_socketpair, libc::SYS_connect,
    libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_getsockname, libc::SYS_getpeername,
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg,
    libc::SYS_shutdown, libc::SYS_setsockopt, libc::SYS_getsockopt,
];

/// Older names of the same calls, on this processor.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[i64] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_unlink,
    libc::SYS_rename, libc::SYS_link, libc::SYS_symlink, libc::SYS_readlink, libc::SYS_getdents, libc::SYS_dup2,
    libc::SYS_pipe, libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait, libc::SYS_epoll_create, libc::SYS_eventfd,
    libc::SYS_time, libc::SYS_arch_prctl, libc::SYS_getpgrp,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[i64] = &[];

/// System calls of intruders. The first filter refuses them, too; EPERM is the answer that their callers understand.
#[rustfmt::skip]
const REFUSED: &[i64] = &[
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kill,
    libc::SYS_tkill, libc::SYS_pidfd_open, libc::SYS_pidfd_getfd, libc::SYS_pidfd_send_signal, libc::SYS_mount, libc::SYS_umount2,
    libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_setns, libc::SYS_unshare, libc::SYS_fsopen, libc::SYS_fsmount,
    libc::SYS_move_mount, libc::SYS_open_tree, libc::SYS_mount_setattr, libc::SYS_kexec_load, libc::SYS_init_module,
    libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd,
    libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid,
    libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_capset, libc::SYS_personality,
    libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at,
    libc::SYS_seccomp, libc::SYS_mknodat, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_acct,
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_sethostname,
    // Landlock covers none of these calls, whatever the file. The flags of openat2 are in memory, which no filter reads.
    libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_utimensat, libc::SYS_openat2, libc::SYS_setxattr, libc::SYS_lsetxattr,
    libc::SYS_fsetxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr,
];

/// More calls of intruders, on this processor.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_mknod,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Families of sockets that an engine opens. Its Unix sockets are open before the sandbox, or come in pairs: a new one could reach D-Bus,
/// systemd or a container engine.
const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
/// Kinds of Unix sockets for pairs, which keep their other end. A datagram socket could be connected to another end.
const OF_PAIRS: [i32; 2] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
/// The bits of a socket's kind that are not flags.
const KIND: i32 = 0xf;
/// Modes that an engine gives to open files of its cache (`cache/io.rs`).
const MODES: [i32; 2] = [0o400, 0o700];

/// Commands of fcntl(2) that engines and libraries use. `F_SETOWN`, `F_SETOWN_EX` and `F_SETSIG` would have the kernel signal others.
const FCNTL: [i32; 16] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
];

/// Options of prctl(2) for names of threads and of memory. None of them restores a right that the process gave up.
const PRCTL: [i32; 5] =
    [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_GET_DUMPABLE, libc::PR_CAPBSET_READ];

/// Commands of ioctl(2) that reach other processes: TIOCSTI and TIOCLINUX put words into a terminal's input, FIOSETOWN and SIOCSPGRP are
/// `F_SETOWN`.
const OF_OTHERS: [u64; 4] = [0x5412, 0x541c, 0x8901, 0x8902];

/// Confines all threads of this process.
///
/// # Errors
/// The reason why this kernel does not confine them.
pub(super) fn confine(rings: Rings) -> Result<(), String> {
    let arch: TargetArch =
        std::env::consts::ARCH.try_into().map_err(|_| "not known for this processor".to_owned())?;
    for filter in [allowed(rings, arch), refused(rings, arch)] {
        let program: BpfProgram = filter.and_then(BpfProgram::try_from).map_err(|error| error.to_string())?;
        apply_filter_all_threads(&program).map_err(|error| match error {
            seccompiler::Error::Seccomp(why) | seccompiler::Error::Prctl(why) => why.to_string(),
            other => other.to_string(),
        })?;
    }
    Ok(())
}

type Filter = Result<SeccompFilter, seccompiler::BackendError>;

fn allowed(rings: Rings, arch: TargetArch) -> Filter {
    let of_rings: &[i64] = match rings {
        // A process without a ring has none to enter, so the filter refuses the call.
        Rings::Open => &[libc::SYS_io_uring_enter],
        Rings::Made => &[libc::SYS_io_uring_enter, libc::SYS_io_uring_setup, libc::SYS_io_uring_register],
    };
    let calls = [ALLOWED, ALLOWED_HERE, of_rings].concat();
    let rules: BTreeMap<_, _> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    SeccompFilter::new(rules, SeccompAction::Errno(libc::ENOSYS.cast_unsigned()), SeccompAction::Allow, arch)
}

fn refused(rings: Rings, arch: TargetArch) -> Filter {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        [REFUSED, REFUSED_HERE].concat().into_iter().map(|call| (call, Vec::new())).collect();
    if rings == Rings::Open {
        rules.extend([libc::SYS_io_uring_setup, libc::SYS_io_uring_register].map(|call| (call, Vec::new())));
    }
    let others = |position, of: &[i32]| {
        of.iter().map(|&it| word(position, SeccompCmpOp::Ne, u64::from(it.cast_unsigned()))).collect()
    };
    let masked = |position, mask: i32, set: i32| {
        let (mask, set) = (u64::from(mask.cast_unsigned()), u64::from(set.cast_unsigned()));
        word(position, SeccompCmpOp::MaskedEq(mask), set)
    };
    let bits = |position, mask: i32, set: i32| vec![masked(position, mask, set)];
    for (call, conditions) in [
        (libc::SYS_socket, others(0, &FAMILIES)),
        (libc::SYS_socketpair, others(0, &[libc::AF_UNIX])),
        // Landlock ignores files opened with O_PATH, and their descriptors can be sent to other processes.
        (libc::SYS_openat, bits(2, libc::O_PATH, libc::O_PATH)),
        (libc::SYS_fcntl, others(1, &FCNTL)),
        (libc::SYS_fchmod, others(1, &MODES)),
        (libc::SYS_prctl, others(0, &PRCTL)),
        // A new process lacks this flag; a thread of this process has it.
        (libc::SYS_clone, bits(0, libc::CLONE_THREAD, 0)),
        (libc::SYS_mmap, bits(2, libc::PROT_EXEC, libc::PROT_EXEC)),
        (libc::SYS_mprotect, bits(2, libc::PROT_EXEC, libc::PROT_EXEC)),
        // Limits of other processes, and signals to them.
        (libc::SYS_prlimit64, others(0, &[0])),
        (libc::SYS_tgkill, others(0, &[std::process::id().cast_signed()])),
    ] {
        let conditions: Result<Vec<_>, _> = conditions.into_iter().collect();
        rules.entry(call).or_default().push(SeccompRule::new(conditions?)?);
    }
    for command in OF_OTHERS {
        let condition = word(1, SeccompCmpOp::Eq, command)?;
        rules.entry(libc::SYS_ioctl).or_default().push(SeccompRule::new(vec![condition])?);
    }
    for kind in (0..=KIND).filter(|kind| !OF_PAIRS.contains(kind)) {
        let condition = masked(1, KIND, kind)?;
        rules.entry(libc::SYS_socketpair).or_default().push(SeccompRule::new(vec![condition])?);
    }
    #[cfg(target_arch = "x86_64")]
    {
        let condition = masked(1, libc::O_PATH, libc::O_PATH)?;
        rules.entry(libc::SYS_open).or_default().push(SeccompRule::new(vec![condition])?);
    }
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM.cast_unsigned()), arch)
}

fn word(
    position: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(position, SeccompCmpArgLen::Dword, operator, value)
}
