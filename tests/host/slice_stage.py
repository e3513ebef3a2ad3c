"""Where scenes of slices are played, inside of a booted systemd: a root of the scene's own, and nothing left of it."""

import asyncio
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from podkeeper.host.slices import Slices, open_slices
from podkeeper.host.systemd import Systemd
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.slice_limits import Property
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.cgroup import Place
from tests.host.pods import uid_of

PIDS = 77


@dataclass
class Stage:
    """Slices below a root of the scene's own, and what is needed to look at them from another side."""

    root: str
    slices: Slices[Place]
    systemd: Systemd

    def unit(self, pod: Pod, branch: str = "") -> str:
        middle = f"-{branch}" if branch else ""
        return f"{self.root}{middle}-pod{uid_of(pod).replace('-', '_')}.slice"

    def told(self, parent: str, file: str) -> str:
        """What the kernel says, in the cgroup at a path."""
        place = cgroup.find(parent)
        assert place is not None, f"there is no {parent}"
        return Path(place.directory_of(file.partition(".")[0]), file).read_text().strip()


@asynccontextmanager
async def stage(private: str | None = None, bus: str = "") -> AsyncIterator[Stage]:
    root = f"test{uuid.uuid4().hex[:8]}"
    units, beside = await Systemd.open(private, bus), await Systemd.open(bus="")
    try:
        slices = await open_slices(units, cgroup, (root,), pod_pids_limit=PIDS)
        try:
            yield Stage(root, slices, beside)
        finally:
            for uid in await slices.list_pods():
                await slices.remove(uid)
            await slices.close()
        assert cgroup.find(f"/{root}.slice") is None
        assert not await beside.is_active(f"{root}.slice")
    finally:
        await beside.close()


def systemctl(*words: str) -> None:
    subprocess.run(["systemctl", *words], check=True, capture_output=True)


async def begun_scope(systemd: Systemd, unit: str, pid: int) -> str:
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
