"""Seccomp programs in this kernel, on x86_64 or aarch64."""

import ctypes
import errno
import mmap
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from podkeeper.linux import libc
from podkeeper.linux.capabilities import bounding_set
from podkeeper.linux.seccomp import compile_profile, syscall_numbers
from podkeeper.linux.seccomp_default import RUNTIME_DEFAULT
from podkeeper.linux.seccomp_profile import (
    ALLOW_SPECULATION,
    LOG_ACTIONS,
    Action,
    Condition,
    Operator,
    Profile,
    Rule,
)
from tests.linux.bpf_machine import BpfMachine
from tests.linux.seccomp_oracle import AUDIT
from tests.runtimes.process.jail_harness import KeeperFailed, in_keeper

MACHINE = platform.machine()
KERNEL = (6, 1)
DEFAULT = bounding_set((), (), False)
X32 = 0x40000000
pytestmark = pytest.mark.skipif(
    MACHINE not in ("x86_64", "aarch64"), reason="seccomp programs exist only for x86_64 and aarch64"
)
needs_x86 = pytest.mark.skipif(MACHINE != "x86_64", reason="needs the machine code of x86_64")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

_libc = ctypes.CDLL(None, use_errno=True)


def system_call(call: str | int, *arguments: int) -> int:
    """Make a call by its name or number. Return its result or a negative errno."""
    number = syscall_numbers(MACHINE)[call] if isinstance(call, str) else call
    ctypes.set_errno(0)
    result = _libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
    return -ctypes.get_errno() if result == -1 else int(result)


def system_call_of_i386(number: int, first: int = 0, second: int = 0) -> int:
    """Make a call as a process of i386 does, with int 0x80."""
    # push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; xor edx, edx; int 0x80; pop rbx; ret
    code = bytes.fromhex("53 89f8 89f3 89d1 31d2 cd80 5b c3")
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_uint)(address)
    return int(function(number, first, second))


def install(profile: Profile, capabilities: frozenset[int] = DEFAULT) -> None:
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.install_seccomp(compile_profile(profile, MACHINE, capabilities, KERNEL), profile.flags)


def filtered(
    action: Callable[[], int], profile: Profile = RUNTIME_DEFAULT, capabilities: frozenset[int] = DEFAULT
) -> int:
    """Return the result of a function in a process with a filter."""

    def run() -> int:
        install(profile, capabilities)
        return action()

    return in_keeper(run)


def exit_status(action: Callable[[], int], profile: Profile) -> int:
    """Return the exit status of a process with a filter, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            install(profile)
            action()
        finally:
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


NEWUSER = libc.CLONE_NEWUSER | signal.SIGCHLD
CALLS: dict[str, tuple[str | int, tuple[int, ...], int]] = {
    "keyctl":                           ("keyctl", (0, 0), -errno.EPERM),
    "unshare":                          ("unshare", (0,), -errno.EPERM),
    "mount":                            ("mount", (), -errno.EPERM),
    "userfaultfd":                      ("userfaultfd", (), -errno.EPERM),
    "io_uring_setup":                   ("io_uring_setup", (1,), -errno.EPERM),
    "open_by_handle_at":                ("open_by_handle_at", (), -errno.EPERM),
    "clone with CLONE_NEWUSER":         ("clone", (NEWUSER,), -errno.EPERM),
    "clone3":                           ("clone3", (0, 0), -errno.ENOSYS),
    "an unknown call":                  (9999, (), -errno.ENOSYS),
    "personality ADDR_NO_RANDOMIZE":    ("personality", (0x40000,), -errno.EPERM),
    "the query of the personality":     ("personality", (0xFFFFFFFF,), 0),
    "socket AF_VSOCK":                  ("socket", (socket.AF_VSOCK, socket.SOCK_STREAM), -errno.EPERM),
    "AF_VSOCK with an upper half":      ("socket", (1 << 32 | socket.AF_VSOCK, socket.SOCK_STREAM), -errno.EPERM),
    "AF_ALG with an upper half":        ("socket", (1 << 32 | socket.AF_ALG, socket.SOCK_SEQPACKET), -errno.EPERM),
    "umask, which is allowed":          ("umask", (0o022,), 0o077),
    "close, which the kernel refuses":  ("close", (12345,), -errno.EBADF),
}  # fmt: skip


@pytest.mark.parametrize("call, arguments, expected", CALLS.values(), ids=CALLS.keys())
def test_calls_under_the_default_profile(call: str | int, arguments: tuple[int, ...], expected: int) -> None:
    def action() -> int:
        os.umask(0o077)
        return system_call(call, *arguments)

    assert filtered(action) == expected


def test_the_kernel_accepts_the_program_of_every_set_of_capabilities() -> None:
    for capabilities in (frozenset[int](), DEFAULT, frozenset(range(64))):
        assert filtered(os.getpid, capabilities=capabilities) > 0


def test_the_kernel_accepts_the_flags_of_a_profile() -> None:
    assert filtered(os.getpid, replace(RUNTIME_DEFAULT, flags=LOG_ACTIONS | ALLOW_SPECULATION)) > 0


def test_programs_run_under_the_default_profile() -> None:
    def action() -> str:
        install(RUNTIME_DEFAULT)
        script = (
            "import os, threading; t = threading.Thread(target=print, args=(os.uname().sysname,)); t.start(); t.join()"
        )
        command = [sys.executable, "-c", script]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert in_keeper(action) == "Linux\n"


@needs_x86
def test_calls_of_i386() -> None:
    if in_keeper_or_none(lambda: system_call_of_i386(20)) is None:
        pytest.skip("this kernel does not run programs of i386")
    numbers = syscall_numbers("i386")

    def action() -> list[int]:
        install(RUNTIME_DEFAULT)
        calls = [("getpid", 0, 0), ("keyctl", 0, 0), ("mount", 0, 0), ("socket", 40, 1), ("clone3", 0, 0)]
        results = [system_call_of_i386(numbers[name], *arguments) for name, *arguments in calls]
        return [results[0] - os.getpid(), *results[1:], system_call_of_i386(9999)]

    assert in_keeper(action) == [0, *[-errno.EPERM] * 3, *[-errno.ENOSYS] * 2]
    own = Profile(Action.ALLOW)
    assert exit_status(lambda: system_call_of_i386(numbers["getpid"]), own) == -signal.SIGSYS
    assert exit_status(os.getpid, own) == 7


def in_keeper_or_none(action: Callable[[], int]) -> int | None:
    try:
        return in_keeper(action)
    except KeeperFailed:
        return None


@needs_x86
def test_calls_of_x32() -> None:
    """The filter gives the same results whether or not the kernel runs programs of x32."""
    numbers = syscall_numbers("x32")
    assert filtered(lambda: system_call(numbers["keyctl"])) == -errno.EPERM
    assert filtered(lambda: system_call(X32 + 9999)) == -errno.ENOSYS
    assert exit_status(lambda: system_call(numbers["getpid"]), Profile(Action.ALLOW)) == -signal.SIGSYS


ARGUMENTS = (0, 1, 4, 5, 6, 0xFFFFFFFF, 1 << 32, (1 << 32) + 4, 5 << 32 | 5, (5 << 32) + 6, (1 << 64) - 1)


@pytest.mark.parametrize("value", [5, (5 << 32) + 5])
def test_the_kernel_compares_arguments_as_the_tests_do(value: int) -> None:
    """The program of each rule returns its own errno from a call that has no other effect."""
    names = ("getppid", "getuid", "getgid", "geteuid", "getegid", "getpgrp", "gettid")
    present = [name for name in names if name in syscall_numbers(MACHINE)]
    rules = tuple(
        Rule((name,), Action.ERRNO, 100 + place, (Condition(place % 6, operator, value, 5),))
        for place, (name, operator) in enumerate(zip(present, Operator, strict=False))
    )
    profile = Profile(Action.ALLOW, rules=rules)
    machine = BpfMachine(compile_profile(profile, MACHINE, DEFAULT, KERNEL))

    def action() -> list[bool]:
        install(profile)
        return [system_call(rule.names[0], *[argument] * 6) == -rule.errno for rule in rules for argument in ARGUMENTS]

    assert in_keeper(action) == [
        machine.run(AUDIT[MACHINE], syscall_numbers(MACHINE)[rule.names[0]], [argument] * 6) != Action.ALLOW
        for rule in rules
        for argument in ARGUMENTS
    ]


# Installation.


@pytest.mark.parametrize("program", [b"", bytes(7), bytes(9), bytes(8 * 65536), bytes(8)])
def test_an_invalid_program_is_refused(program: bytes) -> None:
    def action() -> tuple[int | None, str]:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        try:
            libc.install_seccomp(program)
        except OSError as error:
            return error.errno, str(error.filename)
        return None, ""

    number, subject = in_keeper(action)
    assert number == errno.EINVAL
    whole = len(program) % 8 == 0 and len(program) < 8 * 65536
    assert subject == (
        f"seccomp filter of {len(program) // 8} instructions" if whole else f"seccomp filter of {len(program)} bytes"
    )


@needs_root
def test_an_ordinary_user_needs_no_new_privileges() -> None:
    def action() -> tuple[int | None, str]:
        try:
            libc.install_seccomp(compile_profile(RUNTIME_DEFAULT, MACHINE, DEFAULT, KERNEL))
        except OSError as error:
            return error.errno, str(error.filename)
        return None, ""

    assert in_keeper(action, "user") == (
        errno.EACCES,
        "seccomp filter without CAP_SYS_ADMIN and without no_new_privs",
    )


def test_unknown_flags_are_refused() -> None:
    def action() -> int | None:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        try:
            libc.install_seccomp(compile_profile(RUNTIME_DEFAULT, MACHINE, DEFAULT, KERNEL), 1 << 30)
        except OSError as error:
            return error.errno
        return None

    assert in_keeper(action) == errno.EINVAL


# Keyrings.

DESCRIBE, SESSION = 6, -3


def session_keyring() -> str:
    """Return the description of the session keyring: type;uid;gid;permissions;name."""
    text = ctypes.create_string_buffer(200)
    call = ctypes.c_long(syscall_numbers(MACHINE)["keyctl"])
    length = _libc.syscall(call, ctypes.c_int(DESCRIBE), ctypes.c_int(SESSION), text, ctypes.c_size_t(len(text)))
    return text.value.decode() if length >= 0 else ""


def test_a_session_keyring_has_its_name() -> None:
    def action() -> str:
        return session_keyring() if libc.new_session_keyring("_ses.web") else "none"

    found = in_keeper(action)
    if found == "none":
        pytest.skip("this machine has no keyrings")
    assert found.endswith(";_ses.web")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EDQUOT])
def test_a_container_starts_without_keyrings(number: int) -> None:
    profile = Profile(Action.ALLOW, rules=(Rule(("keyctl",), Action.ERRNO, number),))
    assert filtered(lambda: int(libc.new_session_keyring("web")), profile) == 0


def test_other_errors_of_keyrings_are_reported() -> None:
    def action() -> tuple[int | None, str]:
        install(Profile(Action.ALLOW, rules=(Rule(("keyctl",), Action.ERRNO, errno.ENOMEM),)))
        try:
            libc.new_session_keyring("web")
        except OSError as error:
            return error.errno, str(error.filename)
        return None, ""

    assert in_keeper(action) == (errno.ENOMEM, "session keyring web")


def test_a_filter_needs_no_tables_in_the_keeper() -> None:
    """A keeper receives the program from the agent. The tables would make every keeper larger."""
    script = (
        "import sys, podkeeper.linux.libc as libc, podkeeper.runtimes.process.keeper.jail; libc.install_seccomp; "
        "print([name for name in sys.modules if 'seccomp' in name or 'syscall_numbers' in name])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == "[]\n"
