"""The booted systemd of the tests cannot write files of this machine."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.host.booted import TOP, BootedSystemd

READ_ONLY = (
    "/",
    "/etc",
    "/usr",
    "/usr/lib",
    "/root",
    "/home",
    "/opt",
    "/dev",
    "/sys",
    "/proc/sys/kernel",
    "/boot",
)


@pytest.mark.parametrize("version", ["default", "unified"])
def test_no_file_of_the_machine_can_be_written(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    systemd: BootedSystemd = request.getfixturevalue("unified_systemd" if version == "unified" else "systemd")
    directories = [*READ_ONLY, str(TOP), sys.prefix, sys.base_prefix]
    for directory in filter(os.path.isdir, directories):
        output = systemd.run(
            "sh", "-c", f"touch {directory.rstrip('/')}/written 2>&1 && rm {directory}/written && echo open; true"
        )
        assert "open" not in output, directory
    for directory in ("/tmp", "/var", "/var/tmp", "/run"):
        name = f"{directory}/podkeeper-{tmp_path.name}"
        systemd.run("touch", name)
        assert not os.path.exists(name), f"{directory} is that of the machine"
        systemd.run("rm", name)
    (systemd.root / "kept").write_text("")
    systemd.run("rm", str(systemd.root / "kept"))
    assert not (systemd.root / "kept").exists()


def test_no_unit_can_be_started(systemd: BootedSystemd) -> None:
    """There are no tmpfiles, sysctls and services, only the four empty targets."""
    known = systemd.run("systemctl", "list-unit-files", "--no-legend").splitlines()
    assert {line.split()[0] for line in known if line} == {
        f"{each}.target" for each in ("basic", "default", "shutdown", "sysinit")
    }
    started = systemd.run("systemctl", "list-units", "--no-legend", "--plain", "--type=service,socket,timer,path")
    assert started.strip() == ""


def test_a_program_runs_inside_while_its_empty_cgroups_are_removed(systemd: BootedSystemd) -> None:
    """systemd removes empty cgroups during its boot. The thread does the same again and again."""
    harness = systemd.directory("cpu" if systemd.version == 1 else "unified", "harness")
    ended = Event()

    def remove() -> None:
        while not ended.wait(0.002):  # often enough to hit most joins, with gaps in which a join succeeds
            with suppress(OSError):
                harness.rmdir()

    remover = Thread(target=remove)
    remover.start()
    try:
        assert [systemd.run("echo", "inside") for _ in range(20)] == ["inside\n"] * 20
    finally:
        ended.set()
        remover.join()
