"""The device filter of a cgroup: the BPF program, and both filters on the kernel."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.linux import cgroup, devices
from podkeeper.linux.cgroup import UNIFIED, Cgroup
from podkeeper.linux.devices import DEFAULT, Device
from tests.linux.ebpf import run_ebpf

TYPES = {"b": 1, "c": 2}
BITS = {"m": 1, "r": 2, "w": 4}


def allows(allowed: tuple[Device, ...], kind: str, major: int, minor: int, access: str) -> bool:
    """Run the program as the kernel does."""
    bits = sum(BITS[letter] for letter in access)
    return run_ebpf(devices.program_of(allowed), (bits << 16 | TYPES[kind], major, minor)) == 1


CALLS = {
    "null can be written": ("c", 1, 3, "w", True),
    "a node for null can be created": ("c", 1, 3, "m", True),
    "every terminal can be read and written": ("c", 136, 77, "rw", True),
    "the multiplexer of terminals": ("c", 5, 2, "rw", True),
    "a block device with the number of null": ("b", 1, 3, "r", False),
    "a disk cannot be read": ("b", 254, 0, "r", False),
    "a node for a disk cannot be created": ("b", 8, 0, "m", False),
    "kernel memory": ("c", 1, 1, "r", False),
    "the kernel log": ("c", 1, 11, "r", False),
    "tun devices": ("c", 10, 200, "rw", False),
    "fuse": ("c", 10, 229, "rw", False),
}  # fmt: skip


@pytest.mark.parametrize("kind, major, minor, access, expected", CALLS.values(), ids=CALLS.keys())
def test_the_default_filter(kind: str, major: int, minor: int, access: str, expected: bool) -> None:
    assert allows(DEFAULT, kind, major, minor, access) is expected


ACCESS = st.sets(st.sampled_from("rwm"), min_size=1).map(lambda letters: "".join(sorted(letters)))
NUMBER = st.integers(0, 4)
DEVICE = st.builds(Device, st.sampled_from("bc"), NUMBER, st.none() | NUMBER, ACCESS)


@given(st.lists(DEVICE, max_size=6), st.sampled_from("bc"), NUMBER, NUMBER, ACCESS)
def test_the_program_allows_what_one_device_of_the_list_allows(
    allowed: list[Device], kind: str, major: int, minor: int, access: str
) -> None:
    expected = any(
        each.kind == kind and each.major == major and each.minor in (None, minor) and set(access) <= set(each.access)
        for each in allowed
    )
    assert allows(tuple(allowed), kind, major, minor, access) is expected


def test_the_devices_of_nodes() -> None:
    assert str(devices.device_at("/dev/zero")) == "c 1:5 rwm"
    assert str(devices.device_at("/dev/zero", read_only=True)) == "c 1:5 rm"
    with pytest.raises(OSError, match="is no device node"):
        devices.device_at("/dev")


# ---- on the kernel ----


@pytest.fixture(params=["devices", UNIFIED])
def filtered(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    """A new cgroup that has only one of the two filters."""
    found = {each.name: each.mount_point for each in cgroup.hierarchies()}
    if os.geteuid() != 0 or request.param not in found:
        pytest.skip(f"needs root and a mounted hierarchy with {request.param}")
    version = 2 if request.param == UNIFIED else 1
    place = Cgroup(version, ((request.param, f"{found[request.param]}/podkeeper-test-{os.getpid()}"),))
    cgroup.make(place, {})
    yield place
    cgroup.remove(place)


def opened_in(place: Cgroup, paths: list[str]) -> list[str]:
    """Return the paths that a process in the cgroup can open."""
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        for path in cgroup.procs_files(place):
            Path(path).write_text("0")
        for path in paths:
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                os.write(writer, f"{path}\n".encode())
            except OSError:
                pass
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read().split()


def test_only_allowed_devices_open(filtered: Cgroup) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        node = f"{directory}/kmsg"
        paths = ["/dev/zero", "/dev/null", node]
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 11))
        if opened_in(filtered, paths) != paths:
            pytest.skip("this machine does not allow these devices")
        assert devices.limit_devices(filtered, DEFAULT)
        assert opened_in(filtered, paths) == ["/dev/zero", "/dev/null"]
