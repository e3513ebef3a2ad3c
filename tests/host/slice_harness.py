"""Harness for scenarios of slices inside a booted systemd: a new root, which is removed at the end."""

import asyncio
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from podkeeper.host.slices import Slices, open_slices
from podkeeper.host.systemd import Systemd
from podkeeper.linux import cgroup
from podkeeper.model.k8s.core import Pod
from podkeeper.model.pods import uid_of
from podkeeper.rules.cgroup.slice_limits import Property

PIDS = 77


@dataclass
class SliceHarness:
    """Slices below a new root, and a second connection to systemd to check them."""

    root: str
    slices: Slices
    systemd: Systemd

    def unit(self, pod: Pod, branch: str = "") -> str:
        middle = f"-{branch}" if branch else ""
        return f"{self.root}{middle}-pod{uid_of(pod).replace('-', '_')}.slice"

    def value_of(self, parent: str, file: str) -> str:
        """Return the content of a file of the cgroup at a path."""
        place = cgroup.find(parent)
        assert place is not None, f"{parent} does not exist"
        return Path(place.directory_of(file.partition(".")[0]), file).read_text().strip()


@asynccontextmanager
async def slice_harness(private: str | None = None, bus: str = "") -> AsyncIterator[SliceHarness]:
    root = f"test{uuid.uuid4().hex[:8]}"
    units, observer = await Systemd.open(private, bus), await Systemd.open(bus="")
    try:
        slices = await open_slices(units, (root,), pod_pids_limit=PIDS)
        try:
            yield SliceHarness(root, slices, observer)
        finally:
            for uid in await slices.list_pods():
                await slices.remove(uid)
            await slices.close()
        assert cgroup.find(f"/{root}.slice") is None
        assert not await observer.is_active(f"{root}.slice")
    finally:
        await observer.close()


def systemctl(*words: str) -> None:
    subprocess.run(["systemctl", *words], check=True, capture_output=True)


async def start_scope(systemd: Systemd, unit: str, pid: int) -> str:
    """Put a process into a scope in a slice, as container runtimes do."""
    scope = f"test-{uuid.uuid4().hex}.scope"
    properties: list[Property] = [
        ("Slice", ("s", unit)),
        ("Delegate", ("b", True)),
        ("DefaultDependencies", ("b", False)),
        ("PIDs", ("au", (pid,))),
    ]
    assert await systemd.start_transient(scope, properties)
    return scope


async def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
