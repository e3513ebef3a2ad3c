"""The tests' systemd is sealed: nothing of this machine can be written from inside, whatever is started there."""

import os
import sys
from pathlib import Path

import pytest

from tests.host.booted import TOP, Booted

OF_THE_MACHINE = (
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


@pytest.mark.parametrize("version", ["as the machine has it", "unified"])
def test_nothing_of_the_machine_can_be_written(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    systemd: Booted = request.getfixturevalue("unified_systemd" if version == "unified" else "systemd")
    places = [*OF_THE_MACHINE, str(TOP), sys.prefix, sys.base_prefix]
    for place in filter(os.path.isdir, places):
        said = systemd.run(
            "sh", "-c", f"touch {place.rstrip('/')}/written 2>&1 && rm {place}/written && echo open; true"
        )
        assert "open" not in said, place
    for place in ("/tmp", "/var", "/var/tmp", "/run"):
        name = f"{place}/podkeeper-{tmp_path.name}"
        systemd.run("touch", name)
        assert not os.path.exists(name), f"{place} is the machine's"
        systemd.run("rm", name)
    (systemd.root / "kept").write_text("")
    systemd.run("rm", str(systemd.root / "kept"))
    assert not (systemd.root / "kept").exists()


def test_there_is_nothing_that_could_be_started(systemd: Booted) -> None:
    """No tmpfiles that empty /tmp, no sysctls, no daemons: only the targets that everything asks for."""
    known = systemd.run("systemctl", "list-unit-files", "--no-legend").splitlines()
    assert {line.split()[0] for line in known if line} == {
        f"{each}.target" for each in ("basic", "default", "shutdown", "sysinit")
    }
    started = systemd.run("systemctl", "list-units", "--no-legend", "--plain", "--type=service,socket,timer,path")
    assert started.strip() == ""
