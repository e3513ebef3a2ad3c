"""The capabilities of a container."""

import os
from pathlib import Path

import pytest

from podkeeper.linux import capabilities, libc
from podkeeper.linux.errors import LaunchError
from tests.runtimes.process.jail_harness import in_keeper

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter namespaces and become another user")

DEFAULT = {0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27, 29, 31}
CAPABILITIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool, set[int]]] = {
    "the default of containerd, without NET_RAW": ((), (), False, DEFAULT),
    "one more, in either spelling": (("NET_ADMIN", "cap_sys_time"), (), False, DEFAULT | {12, 25}),
    "one less": ((), ("KILL", "CAP_MKNOD"), False, DEFAULT - {5, 27}),
    "names are dropped after others are added": (("NET_ADMIN",), ("NET_ADMIN",), False, DEFAULT),
    "none but those added": (("BPF",), ("ALL",), False, {39}),
    "all but one": (("ALL",), ("SYS_ADMIN",), False, set(range(64)) - {21}),
    "all and none": (("ALL",), ("ALL",), False, set()),
    "an unknown name to drop is ignored": ((), ("NONSENSE",), False, DEFAULT),
    "privileged": ((), ("KILL",), True, set(range(64))),
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_bounding_set_of_a_container(name: str) -> None:
    add, drop, privileged, expected = CAPABILITIES[name]
    assert capabilities.bounding_set(add, drop, privileged) == expected


def test_unsafe_names_are_kept_only_if_they_are_added() -> None:
    assert capabilities.bounding_set((), (), False, unsafe=("MKNOD",)) == DEFAULT - {27}
    assert capabilities.bounding_set(("MKNOD",), (), False, unsafe=("MKNOD",)) == DEFAULT


def test_capabilities_have_the_numbers_of_the_kernel() -> None:
    numbers = {"CHOWN": 0, "KILL": 5, "NET_ADMIN": 12, "SYS_ADMIN": 21, "SETFCAP": 31, "SYSLOG": 34}
    numbers |= {"CHECKPOINT_RESTORE": 40, "AUDIT_READ": 37, "LEASE": 28, "SYS_RESOURCE": 24, "IPC_OWNER": 15}
    for name, number in numbers.items():
        assert capabilities.bounding_set((name,), ("ALL",), False) == {number}
    with pytest.raises(LaunchError, match=r'^cannot add the capability "A": unknown capability$'):
        capabilities.bounding_set(("KILL", "B", "A"), (), False)


@needs_root
def test_other_capabilities_leave_the_bounding_set() -> None:
    def action() -> list[int]:
        capabilities.limit_bounding_set(frozenset({0, 5}))
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        return [number for number in range(last + 1) if libc.prctl(libc.PR_CAPBSET_READ, number)]

    assert in_keeper(action) == [0, 5]
