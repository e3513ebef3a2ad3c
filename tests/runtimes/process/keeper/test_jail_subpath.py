"""Sub-paths of volumes: no symbolic link leads out of the volume."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from podkeeper.linux.errors import SubPathError
from podkeeper.linux.subpath import open_subpath
from podkeeper.runtimes.process.keeper.launch import Bind
from tests.runtimes.process.jail_harness import KeeperFailed, Machine, machine_for, state_directory


@pytest.fixture(params=["root", "user"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with state_directory(request.param) as state:
        made = machine_for(request.param, state)
        made.make("volume")
        made.make("volume/dir/file", "inside")
        made.make("outside")
        made.make("outside/file", "secret")
        yield made


def bind(machine: Machine, sub_path: str, **options: Any) -> tuple[Bind, ...]:
    return (Bind(f"{machine.state}/volume", "/data", sub_path=sub_path, **options),)


FOUND = {
    "a directory": ("dir", "cat /data/file"),
    "a file": ("dir/file", "cat /data"),
    "a path with redundant dots and slashes": ("./dir//.", "cat /data/file"),
    "a link to a sibling": ("link", "cat /data/file"),
    "a link that goes up and stays inside": ("dir/up/dir/file", "cat /data"),
}


@pytest.mark.parametrize("sub_path, script", FOUND.values(), ids=FOUND.keys())
def test_an_existing_sub_path_is_mounted(machine: Machine, sub_path: str, script: str) -> None:
    os.symlink("dir", f"{machine.state}/volume/link")
    os.symlink("../", f"{machine.state}/volume/dir/up")
    assert machine.run(script, binds=bind(machine, sub_path)) == (0, "inside")


def test_a_missing_sub_path_is_created_with_the_mode_of_the_volume(machine: Machine) -> None:
    os.chmod(f"{machine.state}/volume", 0o1777)
    assert machine.run("echo hi > /data/x", binds=bind(machine, "new/deep")) == (0, "")
    assert os.stat(f"{machine.state}/volume/new/deep").st_mode & 0o7777 == 0o1777
    assert os.listdir(f"{machine.state}/volume/new/deep") == ["x"]


def test_a_sub_path_can_be_read_only(machine: Machine) -> None:
    code, output = machine.run("touch /data/x", binds=bind(machine, "dir", read_only=True))
    assert (code, "Read-only file system" in output) == (1, True)


LEADING_OUT = {
    "an absolute link": ("/etc", "link"),
    "a link out of the volume": ("../outside", "link"),
    "a link far out of the volume": ("dir/../../../../../../../../etc", "link"),
    "a link to itself": ("link", "link"),
    "a path behind a link": ("../outside", "link/file"),
    "a missing path behind a link": ("../outside", "link/new"),
}


@pytest.mark.parametrize("target, sub_path", LEADING_OUT.values(), ids=LEADING_OUT.keys())
def test_a_link_out_of_the_volume_is_refused(machine: Machine, target: str, sub_path: str) -> None:
    os.symlink(target, f"{machine.state}/volume/link")
    with pytest.raises(KeeperFailed, match=f'subpath "{sub_path}" not within volume path "{machine.state}/volume"'):
        machine.run("cat /data/file", binds=bind(machine, sub_path))
    assert os.listdir(f"{machine.state}/outside") == ["file"]


@pytest.mark.parametrize("sub_path", ["/etc", "..", "dir/../../outside"])
def test_a_sub_path_with_dot_dot_is_refused(machine: Machine, sub_path: str) -> None:
    with pytest.raises(KeeperFailed, match="not within volume path"):
        machine.run("cat /data/file", binds=bind(machine, sub_path))


def test_a_file_has_no_sub_paths(machine: Machine) -> None:
    with pytest.raises(KeeperFailed, match=r"cannot mount .*/dir/file/x at /data: not a directory"):
        machine.run("true", binds=bind(machine, "dir/file/x"))


def test_a_link_created_meanwhile_never_leads_out(machine: Machine) -> None:
    volume, outside, done = f"{machine.state}/volume", f"{machine.state}/outside", threading.Event()

    def swap() -> None:
        while not done.is_set():
            with suppress(OSError):
                os.rmdir(f"{volume}/x")
            with suppress(OSError):
                os.symlink(outside, f"{volume}/x")
            with suppress(OSError):
                os.unlink(f"{volume}/x")

    attacker = threading.Thread(target=swap)
    attacker.start()
    found = []
    try:
        for _ in range(300):
            with suppress(SubPathError, OSError):
                held = open_subpath(volume, "x/y")
                found.append(os.readlink(f"/proc/self/fd/{held}"))
                os.close(held)
    finally:
        done.set()
        attacker.join()
    assert [path for path in found if "outside" in path] == []
    assert os.listdir(outside) == ["file"]
