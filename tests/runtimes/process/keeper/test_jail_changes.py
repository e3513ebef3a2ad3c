"""Mounts and directories of the host that change while a container starts."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.runtimes.process.keeper.launch import Bind
from tests.runtimes.process.jail_harness import Machine, machine_for, machines, state_directory


@pytest.fixture(params=["root", "user"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount on the host")
    with state_directory(request.param) as state:
        yield machine_for(request.param, state)


as_root = machines("root", parent="/tmp")


def test_mounts_that_change_meanwhile_do_not_prevent_a_start(as_root: Machine, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    once = "i=$((i + 1)); mkdir m$i && mount -t tmpfs none m$i && umount m$i; rmdir m$i"
    script = f"until test -e {stop}; do {once}; done"
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path) as churning:
        try:
            codes = {as_root.run("true", name=f"c{number}")[0] for number in range(20)}
        finally:
            stop.touch()
            churning.wait()
    assert codes == {0}
    assert os.listdir(tmp_path) == ["stop"]


def test_a_mount_that_is_replaced_meanwhile_does_not_prevent_a_start(machine: Machine, tmp_path: Path) -> None:
    stop, place = tmp_path / "stop", tmp_path / "mounted"
    script = f"until test -e {stop}; do mkdir {place}; mount -t tmpfs none {place}; umount {place}; rmdir {place}; done"
    with subprocess.Popen(["sh", "-c", script]) as churning:
        try:
            codes = {machine.run("true", name=f"c{number}")[0] for number in range(20)}
        finally:
            stop.touch()
            churning.wait()
    assert codes == {0}
    assert os.listdir(tmp_path) == ["stop"]


def test_a_directory_that_is_deleted_meanwhile_does_not_prevent_a_start(machine: Machine) -> None:
    """For an ordinary user: a mount in /tmp makes each directory there a separate layer."""
    with state_directory("root", "/tmp") as place:  # this removes the mount at the end
        os.chmod(place, 0o755)
        os.mkdir(f"{place}/mounted")
        subprocess.run(["mount", "-t", "tmpfs", "none", f"{place}/mounted"], check=True)
        once = f"mkdir {place}/d; touch {place}/d/file; rm -r {place}/d"
        with subprocess.Popen(["sh", "-c", f"until test -e {place}/stop; do {once}; done"]) as churning:
            try:
                codes = {machine.run("true", name=f"c{number}")[0] for number in range(20)}
            finally:
                Path(place, "stop").touch()
                churning.wait()
    assert codes == {0}


def test_a_mount_below_a_volume_does_not_disturb_a_read_only_root(as_root: Machine, tmp_path: Path) -> None:
    inner, source = tmp_path / "inner", as_root.make("volume")
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(inner)], check=True)
    try:
        binds = (Bind(source, str(tmp_path)),)
        assert as_root.run(f"touch {tmp_path}/x", read_only_root=True, binds=binds) == (0, "")
    finally:
        subprocess.run(["umount", str(inner)], check=True)
    assert os.listdir(source) == ["x"]
