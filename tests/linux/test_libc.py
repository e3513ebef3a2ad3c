"""System calls that Python does not have."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from podkeeper.linux import libc
from tests.runtimes.process.jail_harness import in_keeper

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter namespaces and become another user")


def test_constants_match_the_kernel_headers() -> None:
    expected = {
        "MS_RDONLY": 0x1,
        "MS_NOSUID": 0x2,
        "MS_NODEV": 0x4,
        "MS_NOEXEC": 0x8,
        "MS_REMOUNT": 0x20,
        "MS_BIND": 0x1000,
        "MS_REC": 0x4000,
        "MS_PRIVATE": 0x40000,
        "MS_SLAVE": 0x80000,
        "MS_SHARED": 0x100000,
        "MNT_DETACH": 0x2,
        "UMOUNT_NOFOLLOW": 0x8,
        "MOUNT_ATTR_RDONLY": 0x1,
        "CLONE_PARENT": 0x8000,
        "CLONE_NEWNS": 0x20000,
        "CLONE_NEWUTS": 0x4000000,
        "CLONE_NEWIPC": 0x8000000,
        "CLONE_NEWUSER": 0x10000000,
        "CLONE_NEWPID": 0x20000000,
        "PR_SET_PDEATHSIG": 1,
        "PR_SET_DUMPABLE": 4,
        "PR_CAPBSET_READ": 23,
        "PR_CAPBSET_DROP": 24,
        "PR_SET_CHILD_SUBREAPER": 36,
        "PR_SET_NO_NEW_PRIVS": 38,
    }
    assert {name: getattr(libc, name) for name in expected} == expected


FAILING: dict[str, Callable[[], object]] = {
    "/nowhere": lambda: libc.mount("none", "/nowhere", "tmpfs", 0),
    "/nowhere/else": lambda: libc.unmount("/nowhere/else"),
    "/no/root": lambda: libc.pivot_root("/no/root", "/"),
    "setns": lambda: libc.setns(-1, 0),
    "prctl": lambda: libc.prctl(-1),
    "/no/attributes": lambda: libc.set_attributes("/no/attributes", 1, recursive=False),
    "/no/tree": lambda: libc.open_tree("/no/tree"),
    "/no/target": lambda: libc.attach_tree(-1, "/no/target"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failed_call_names_its_subject(name: str) -> None:
    with pytest.raises(OSError, match=r"^\[Errno ") as refused:
        FAILING[name]()
    assert refused.value.filename == name
    assert refused.value.strerror == os.strerror(refused.value.errno or 0)


def test_descriptors_are_closed_from_a_number_on() -> None:
    def action() -> list[bool]:
        for number in (100, 150, 200):
            os.dup2(0, number)
        libc.close_from(101, keep=150)
        return [os.path.exists(f"/proc/self/fd/{number}") for number in (100, 150, 200)]

    assert in_keeper(action) == [True, True, False]


@needs_root
def test_a_hostname_belongs_to_its_namespace() -> None:
    def action() -> str:
        libc.unshare(libc.CLONE_NEWUTS)
        libc.set_hostname("web-0")
        return os.uname().nodename

    before = os.uname().nodename
    assert in_keeper(action) == "web-0"
    assert os.uname().nodename == before


def test_signal_handlers_are_reset() -> None:
    def action() -> str:
        for number in (signal.SIGUSR1, signal.SIGPIPE, signal.SIGRTMAX):
            signal.signal(number, signal.SIG_IGN)
        libc.default_signals()
        status = Path("/proc/self/status").read_text()
        return next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))

    assert int(in_keeper(action), 16) == 0
