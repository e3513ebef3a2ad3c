"""How `podkeeper run` is called for one kind of runtime, and what may be left of its pods.

way = way_of(request, "containerd")
with way.inside(): subprocess.Popen([..., "run", ..., *way.arguments])
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.e2e.homes import IMAGE
from tests.e2e.kinds import PROCESSES
from tests.runtimes.cri.cri_node import HOUSE_IMAGE, CriNode
from tests.runtimes.process.home import processes_of


class Way:
    """Processes of this machine."""

    image = IMAGE
    arguments: tuple[str, ...] = ()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be where pods can be reached."""
        yield

    def sandboxes(self, root: Path) -> list[str]:
        """Those of an agent's pods."""
        return os.listdir(root / "runtime" / "sandboxes")

    def left(self, root: Path) -> list[Any]:
        """What runs of an agent's pods."""
        return list(processes_of(str(root / "runtime")))

    def remove(self, root: Path) -> None:
        """End whatever runs of an agent's pods."""
        for pid in self.left(root):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class ContainerWay(Way):
    """Containers of one of the tests' runtimes. All of them are the agent's: nobody else uses it meanwhile."""

    image = HOUSE_IMAGE

    def __init__(self, cri_node: CriNode) -> None:
        self._cri_node = cri_node
        self.arguments = ("--runtime", "cri", "--runtime-endpoint", cri_node.socket)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be in the network of the runtime."""
        with self._cri_node.inside():
            yield

    def sandboxes(self, root: Path) -> list[str]:
        """All there are."""
        return asyncio.run(self._sandboxes())

    def left(self, root: Path) -> list[Any]:
        """All sandboxes there are."""
        return self.sandboxes(root)

    def remove(self, root: Path) -> None:
        """Remove all pods."""
        asyncio.run(self._cri_node.remove_all())

    async def _sandboxes(self) -> list[str]:
        transport = GrpcTransport(self._cri_node.socket)
        try:
            return [box.id for box in await Calls(transport).sandboxes()]
        finally:
            await transport.close()


def way_of(request: pytest.FixtureRequest, kind: str) -> Way:
    """How a kind of runtime is used; skips where it cannot be."""
    return Way() if kind == PROCESSES else ContainerWay(request.getfixturevalue(kind))
