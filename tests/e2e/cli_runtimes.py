"""Arguments of `podkeeper run` for one kind of runtime, and what its pods leave behind.

runtime = cli_runtime(request, "containerd")
with runtime.in_network(): subprocess.Popen([..., "run", ..., *runtime.arguments])
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.e2e.backends import IMAGE
from tests.e2e.runtime_kinds import PROCESS
from tests.runtimes.cri.cri_node import LOCAL_IMAGE, CriNode
from tests.runtimes.process.harness import processes_of


class CliRuntime:
    """The process runtime."""

    image = IMAGE
    arguments: tuple[str, ...] = ()

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """Enter the network in which pods can be reached."""
        yield

    def sandboxes(self, root: Path) -> list[str]:
        """Return the sandboxes of an agent."""
        return os.listdir(root / "runtime" / "sandboxes")

    def left(self, root: Path) -> list[Any]:
        """Return what still runs of the pods of an agent."""
        return list(processes_of(str(root / "runtime")))

    def remove(self, root: Path) -> None:
        """Kill what still runs of the pods of an agent."""
        for pid in self.left(root):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class CriCliRuntime(CliRuntime):
    """CRI with one of the tests' container runtimes. The agent is its only client."""

    image = LOCAL_IMAGE

    def __init__(self, cri_node: CriNode) -> None:
        self._cri_node = cri_node
        self.arguments = ("--runtime", "cri", "--runtime-endpoint", cri_node.socket)

    @contextmanager
    def in_network(self) -> Iterator[None]:
        with self._cri_node.in_network():
            yield

    def sandboxes(self, root: Path) -> list[str]:
        return asyncio.run(self._sandboxes())

    def left(self, root: Path) -> list[Any]:
        return self.sandboxes(root)

    def remove(self, root: Path) -> None:
        asyncio.run(self._cri_node.remove_all())

    async def _sandboxes(self) -> list[str]:
        transport = GrpcTransport(self._cri_node.socket)
        try:
            return [box.id for box in await CriCalls(transport).sandboxes()]
        finally:
            await transport.close()


def cli_runtime(request: pytest.FixtureRequest, kind: str) -> CliRuntime:
    """Return the runtime of a kind. Skip the test if the machine lacks it."""
    return CliRuntime() if kind == PROCESS else CriCliRuntime(request.getfixturevalue(kind))
