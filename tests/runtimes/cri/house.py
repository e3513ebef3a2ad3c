"""A whole agent on a real container runtime, with a proxy for trouble between them and a witness beside them.

    async def scenario(house: House) -> None:
        house.proxy.trouble("RunPodSandbox", Hang(), pod="web")
        house.create("web")
        await house.until(house.is_ready, "web")

    in_a_house(cri_node, tmp_path, scenario)

The agent is wired as `podkeeper run --runtime cri` does it, with an API in memory and less patience than usual. Every
start of a container leaves a line in a file. In the end all pods are deleted, and nothing may be left of them, nor may
anything have been there twice at any moment.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from podkeeper.app.build import Agent
from podkeeper.app.sources import api_source
from podkeeper.app.standalone import Standalone, assembled
from podkeeper.engine.guard import Limits
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.defaults import default_pod
from podkeeper.rules.worker.pauses import Timing
from podkeeper.testing.memory_api import MemoryApi
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, CriNode
from tests.runtimes.cri.proxy import Proxy, proxied
from tests.runtimes.cri.witness import Witness, witnessed

NODE = "n1"
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.02
SERVES = "trap 'exit 0' TERM; sleep 100000 & wait"

IMPATIENT = Limits(lease_seconds=1.0, call_seconds=3.0)
"""A call that is not answered within a few seconds has failed: tests cannot wait for minutes."""
SOON = Timing(error_seconds=1.0)


class House:
    """The agent and its world."""

    def __init__(self, node: CriNode, root: Path, api: MemoryApi, agent: Agent, proxy: Proxy, seen: Witness) -> None:
        self.node = node
        self.proxy = proxy
        self.witness = seen
        self._ledger = root / "ledger"
        self._ledger.mkdir(exist_ok=True)
        self._api = api
        self._agent = agent

    # Deeds.

    def create(self, *names: str, script: str = SERVES, restart_policy: str = "Always", grace_seconds: int = 5) -> None:
        """Create pods that note down each start, then do something."""
        for name in names:
            container = {
                "name": "app",
                "image": BUSYBOX_IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", f"echo start >> /ledger/{name}; {script}"],
                "volumeMounts": [{"name": "ledger", "mountPath": "/ledger"}],
            }
            spec = {
                "nodeName": NODE,
                "restartPolicy": restart_policy,
                "terminationGracePeriodSeconds": grace_seconds,
                "containers": [container],
                "volumes": [{"name": "ledger", "hostPath": {"path": str(self._ledger)}}],
            }
            pod = default_pod(msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "spec": spec}, Pod))
            self._api.put(pod)

    def delete(self, *names: str) -> None:
        """Delete pods, with their own grace."""
        for name in names:
            self._api.mark_deleted(Pod, name, "default")

    # How things are.

    def find(self, name: str) -> Pod | None:
        """A pod as the API shows it."""
        return self._api.peek(Pod, name, "default")

    def is_ready(self, name: str) -> bool:
        """Whether a pod is Ready."""
        pod = self.find(name)
        conditions = () if pod is None else pod.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def is_gone(self, name: str) -> bool:
        """Whether the API has no such pod."""
        return self.find(name) is None

    def has_ended(self, name: str) -> bool:
        """Whether a pod has come to its end."""
        pod = self.find(name)
        return pod is not None and pod.status.phase in ("Succeeded", "Failed")

    def exit_code(self, name: str) -> int | None:
        """How the container of a pod ended."""
        pod = self.find(name)
        for each in () if pod is None else pod.status.container_statuses or ():
            if each.state.terminated is not None:
                return each.state.terminated.exit_code
        return None

    def leave(self, name: str) -> None:
        """Leave a file where containers can see it, in `/ledger`."""
        (self._ledger / name).touch()

    def has_left(self, name: str) -> bool:
        """Whether a container has left a file there."""
        return (self._ledger / name).exists()

    def starts(self, name: str) -> int:
        """How often the container of a pod really began, by its own account."""
        path = self._ledger / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    async def until(self, holds: Callable[[str], bool], *names: str, within: float = PATIENCE_SECONDS) -> None:
        """Wait until something holds of each pod; else tell what is known of those of which it does not."""
        try:
            async with asyncio.timeout(within):
                while not all(map(holds, names)):
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            lacking = "\n".join(self._story(name) for name in names if not holds(name))
            what = getattr(holds, "__name__", "it")
            raise AssertionError(f"{what} does not hold within {within:g} s of\n{lacking}") from None

    def _story(self, name: str) -> str:
        pod = self.find(name)
        if pod is None:
            return f"{name}: not in the API"
        return f"{name}: {msgspec.to_builtins(pod.status)}\n{self._agent.explain(PodUID(pod.metadata.uid or ''))}"

    async def tidy(self) -> None:
        """Delete all pods, and see that nothing is left and nothing was ever doubled."""
        self.proxy.lift()
        names = [pod.metadata.name or "" for pod in self._api.objects(Pod)]
        self.delete(*(name for name in names if (pod := self.find(name)) and not pod.metadata.deletion_timestamp))
        await self.until(self.is_gone, *names)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.witness.look():
                await asyncio.sleep(POLL_SECONDS)
        assert not self.witness.doubled


Scenario = Callable[[House], Awaitable[None]]


def in_a_house(node: CriNode, root: Path, scenario: Scenario) -> None:
    """Let a scenario happen, in the network of a container runtime."""

    async def life() -> None:
        try:
            async with _built(node, root) as house:
                await scenario(house)
                await house.tidy()
        finally:
            await node.remove_all()

    node.run(life())


@asynccontextmanager
async def _built(node: CriNode, root: Path) -> AsyncIterator[House]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-proxy-") as place:  # a socket's path must be short
        path = f"{place}/p.sock"
        wanted = Standalone(paths=(), root=root / "r", node_name=NODE, runtime="cri", runtime_endpoint=path)
        async with proxied(node.socket, path) as proxy, witnessed(node.socket) as witness, assembled(wanted) as parts:
            api = MemoryApi(parts.ports.clock)
            source = api_source(api=api, node_name=NODE, clock=parts.ports.clock, journal=parts.ports.journal)
            settings = replace(parts.settings, runtime_limits=IMPATIENT, timing=SOON)
            agent = Agent(replace(parts.ports, api=api, sources=(source,)), settings)
            async with asyncio.TaskGroup() as group:
                lives = [group.create_task(agent.run()), *(group.create_task(room()) for room in parts.rooms)]
                try:
                    yield House(node, root, api, agent, proxy, witness)
                finally:
                    proxy.lift()
                    for task in lives:
                        task.cancel()
