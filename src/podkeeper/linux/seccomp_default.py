"""The seccomp profile RuntimeDefault.

It allows the same calls as the default profile of containerd 2.4 (contrib/seccomp/seccomp_default.go), which depends
on the capabilities of the container. Deliberate differences:

* socket(2) and personality(2) compare only the lower half of their argument, because the kernel ignores the upper one.
  containerd compares 64 bits. A process gets past that if it sets a bit of the upper half, and opens AF_VSOCK.
* Calls that exist only on other machines than x86_64 and aarch64 are not listed.

As in containerd:

* io_uring is not allowed, because operations of io_uring do not pass the filter.
* clone3(2) fails with ENOSYS, because a filter cannot read its flags. The C library then uses clone(2).
* socketcall(2) of i386 is allowed, because older C libraries need it. Through it, AF_VSOCK and AF_ALG are reachable.
"""

import errno
from typing import Final

from podkeeper.linux.capabilities import NAMES
from podkeeper.linux.seccomp_profile import Action, Condition, Operator, Profile, Rule, Selector

_AF_ALG, _AF_VSOCK = 38, 40
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NEW_NAMESPACES: Final = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
# PER_LINUX and PER_LINUX32, both also with UNAME26, and the query of the current value.
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

_FILES: Final = """
    open openat openat2 creat close close_range read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2
    lseek _llseek dup dup2 dup3 fcntl fcntl64 flock ioctl pipe pipe2 splice tee vmsplice sendfile sendfile64
    copy_file_range readahead fadvise64 fadvise64_64 fallocate truncate truncate64 ftruncate ftruncate64
    sync syncfs fsync fdatasync sync_file_range
    access faccessat faccessat2 stat stat64 lstat lstat64 fstat fstat64 fstatat64 newfstatat statx
    statfs statfs64 fstatfs fstatfs64 statmount listmount name_to_handle_at
    chmod fchmod fchmodat fchmodat2 chown chown32 fchown fchown32 fchownat lchown lchown32 umask
    utime utimes utimensat utimensat_time64 futimesat
    mkdir mkdirat rmdir mknod mknodat link linkat unlink unlinkat symlink symlinkat readlink readlinkat
    rename renameat renameat2 getdents getdents64 chdir fchdir getcwd
    getxattr lgetxattr fgetxattr getxattrat setxattr lsetxattr fsetxattr setxattrat
    listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat
    inotify_init inotify_init1 inotify_add_watch inotify_rm_watch fanotify_mark
    io_setup io_submit io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 ioprio_get ioprio_set
"""
_EVENTS: Final = """
    poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_wait epoll_wait_old epoll_pwait epoll_pwait2
    eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime
    timerfd_settime64
"""
_MEMORY: Final = """
    brk mmap mmap2 munmap mremap mprotect madvise mincore cachestat msync mlock mlock2 mlockall munlock munlockall mseal
    remap_file_pages memfd_create memfd_secret membarrier map_shadow_stack pkey_alloc pkey_free pkey_mprotect
"""
_PROCESSES: Final = """
    fork vfork execve execveat exit exit_group wait4 waitid waitpid process_mrelease pidfd_open pidfd_send_signal
    getpid getppid gettid getpgid getpgrp setpgid setsid getsid prctl arch_prctl set_tid_address restart_syscall
    getuid getuid32 geteuid geteuid32 getresuid getresuid32 setuid setuid32 setreuid setreuid32 setresuid setresuid32
    getgid getgid32 getegid getegid32 getresgid getresgid32 setgid setgid32 setregid setregid32 setresgid setresgid32
    setfsuid setfsuid32 setfsgid setfsgid32 getgroups getgroups32 setgroups setgroups32 capget capset
    getrlimit ugetrlimit setrlimit prlimit64 getrusage getpriority setpriority times sysinfo uname getcpu getrandom
    get_thread_area set_thread_area rseq uretprobe
    sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam sched_setparam
    sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min
    sched_rr_get_interval sched_rr_get_interval_time64 sched_yield
    futex futex_time64 futex_wait futex_waitv futex_wake futex_requeue get_robust_list set_robust_list
    seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
    lsm_get_self_attr lsm_set_self_attr lsm_list_modules
"""
_SIGNALS: Final = """
    kill tkill tgkill pause sigaltstack sigprocmask sigreturn rt_sigaction rt_sigpending rt_sigprocmask
    rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo
"""
# adjtimex and clock_adjtime also read the clock. To change it, the kernel requires CAP_SYS_TIME.
_TIME: Final = """
    time gettimeofday adjtimex clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime
    clock_gettime64 clock_nanosleep clock_nanosleep_time64 nanosleep alarm getitimer setitimer
    timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64
"""
_IPC: Final = """
    ipc msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt shmget
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink
"""
_NETWORK: Final = """
    socketcall socketpair bind listen accept accept4 connect shutdown getsockname getpeername getsockopt setsockopt
    send sendto sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64
"""
_CAPABILITIES: Final = {
    "DAC_READ_SEARCH": "open_by_handle_at",
    "SYS_ADMIN": """
        mount umount umount2 mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick quotactl quotactl_fd
        clone clone3 setns unshare sethostname setdomainname bpf perf_event_open fanotify_init lookup_dcookie syslog
    """,
    "SYS_BOOT": "reboot",
    "SYS_CHROOT": "chroot",
    "SYS_MODULE": "init_module finit_module delete_module",
    "SYS_NICE": "get_mempolicy set_mempolicy set_mempolicy_home_node mbind",
    "SYS_PACCT": "acct",
    "SYS_PTRACE": "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp",
    "SYS_RAWIO": "iopl ioperm",
    "SYS_TIME": "settimeofday stime clock_settime clock_settime64",
    "SYS_TTY_CONFIG": "vhangup",
    "SYSLOG": "syslog",
    "BPF": "bpf",
    "PERFMON": "perf_event_open",
}


_ANY: Final = Selector()


def _allow(names: str, *conditions: Condition, includes: Selector = _ANY, excludes: Selector = _ANY) -> Rule:
    return Rule(tuple(names.split()), Action.ALLOW, conditions=conditions, includes=includes, excludes=excludes)


def _holding(*names: str) -> Selector:
    return Selector(capabilities=frozenset(map(NAMES.index, names)))


_ADMIN: Final = _holding("SYS_ADMIN")
RUNTIME_DEFAULT: Final = Profile(
    Action.ERRNO,
    errno.EPERM,
    architectures=frozenset(("i386", "x32", "arm")),
    rules=(
        *map(_allow, (_FILES, _EVENTS, _MEMORY, _PROCESSES, _SIGNALS, _TIME, _IPC, _NETWORK)),
        # AF_ALG and AF_VSOCK fall through. AF_VSOCK reaches services of the host, and AF_ALG the kernel's crypto code.
        _allow("socket", Condition(0, Operator.LT, _AF_ALG, bits=32)),
        _allow("socket", Condition(0, Operator.EQ, _AF_ALG + 1, bits=32)),
        _allow("socket", Condition(0, Operator.GT, _AF_VSOCK, bits=32)),
        *(_allow("personality", Condition(0, Operator.EQ, value, bits=32)) for value in _PERSONALITIES),
        # Before Linux 4.8, a process could use ptrace to change its own calls behind the filter.
        _allow("ptrace process_vm_readv process_vm_writev", includes=Selector(min_kernel=(4, 8))),
        _allow("modify_ldt", includes=Selector(architectures=frozenset(("amd64",)))),
        _allow("sync_file_range2 arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls"),
        *(_allow(calls, includes=_holding(name)) for name, calls in _CAPABILITIES.items()),
        _allow("clone", Condition(0, Operator.MASKED_EQ, _NEW_NAMESPACES, 0), excludes=_ADMIN),
        Rule(("clone3",), Action.ERRNO, errno.ENOSYS, excludes=_ADMIN),
    ),
)
