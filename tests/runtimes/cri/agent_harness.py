"""The whole agent on a real container runtime, with a fault-injecting proxy and a monitor.

    async def scenario(agent: AgentHarness) -> None:
        agent.proxy.inject("RunPodSandbox", Hang(), pod="web")
        agent.create("web")
        await agent.until(agent.is_ready, "web")

    run_with_agent(cri_node, tmp_path, scenario)

The agent is wired as in `podkeeper run --runtime cri`, with an API in memory and short timeouts. Every start of a
container appends a line to a file. In the end, all pods are deleted. Nothing may be left of them, and the monitor must
not have seen duplicates at any time.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from podkeeper.app.agent import Agent
from podkeeper.app.standalone import Standalone, open_agent_parts
from podkeeper.engine.bounded_runtime import CallLimits
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.worker.timing import SyncTiming
from podkeeper.testing.memory_api import MemoryApi
from tests.runtimes.cri.api_pods import NODE, ApiPods, agent_on_api
from tests.runtimes.cri.cri_node import CriNode
from tests.runtimes.cri.proxy import Proxy, proxied
from tests.runtimes.cri.runtime_monitor import RuntimeMonitor, monitored

TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.02
SERVES = "trap 'exit 0' TERM; sleep 100000 & wait"

SHORT_LIMITS = CallLimits(lease_seconds=1.0, call_seconds=3.0)
"""Calls fail after a few seconds, because tests cannot wait for minutes."""
FAST_RETRY = SyncTiming(error_seconds=1.0)


class AgentHarness(ApiPods):
    """The agent and its environment."""

    def __init__(
        self, node: CriNode, root: Path, api: MemoryApi, agent: Agent, proxy: Proxy, monitor: RuntimeMonitor
    ) -> None:
        super().__init__(api)
        self.node = node
        self.proxy = proxy
        self.monitor = monitor
        self._markers = root / "markers"
        self._markers.mkdir(exist_ok=True)
        self._agent = agent

    # Actions.

    def create(self, *names: str, script: str = SERVES, restart_policy: str = "Always", grace_seconds: int = 5) -> None:
        """Create pods that record each start and then run a script."""
        for name in names:
            self.create_pod(
                name,
                {
                    "command": ["sh", "-c", f"echo start >> /markers/{name}; {script}"],
                    "volumeMounts": [{"name": "markers", "mountPath": "/markers"}],
                },
                restartPolicy=restart_policy,
                terminationGracePeriodSeconds=grace_seconds,
                volumes=[{"name": "markers", "hostPath": {"path": str(self._markers)}}],
            )

    # Observations.

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of the container of a pod."""
        pod = self.find(name)
        for each in () if pod is None else pod.status.container_statuses or ():
            if each.state.terminated is not None:
                return each.state.terminated.exit_code
        return None

    def touch(self, name: str) -> None:
        """Create a file in `/markers`, where containers see it."""
        (self._markers / name).touch()

    def has_file(self, name: str) -> bool:
        """Return whether `/markers` has a file."""
        return (self._markers / name).exists()

    def starts(self, name: str) -> int:
        """Return how often the container of a pod started, from its own records."""
        path = self._markers / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    async def until(self, holds: Callable[[str], bool], *names: str, within: float = TIMEOUT_SECONDS) -> None:
        """Wait for a condition of each pod. Fail with an explanation of the other pods."""
        try:
            async with asyncio.timeout(within):
                while not all(map(holds, names)):
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            lacking = "\n".join(self._describe(name) for name in names if not holds(name))
            what = getattr(holds, "__name__", "it")
            raise AssertionError(f"{what}: not within {within:g} s for\n{lacking}") from None

    def _describe(self, name: str) -> str:
        pod = self.find(name)
        if pod is None:
            return f"{name}: not in the API"
        return f"{name}: {msgspec.to_builtins(pod.status)}\n{self._agent.explain(PodUID(pod.metadata.uid or ''))}"

    async def check_cleanup(self) -> None:
        """Delete all pods. Check that nothing is left and that there were no duplicates."""
        self.proxy.clear_faults()
        names = [pod.metadata.name or "" for pod in self.api.objects(Pod)]
        self.delete(*(name for name in names if (pod := self.find(name)) and not pod.metadata.deletion_timestamp))
        await self.until(self.is_gone, *names)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while await self.monitor.inspect():
                await asyncio.sleep(POLL_SECONDS)
        assert not self.monitor.duplicates


Scenario = Callable[[AgentHarness], Awaitable[None]]


def run_with_agent(node: CriNode, root: Path, scenario: Scenario) -> None:
    """Run a scenario in the network of a container runtime."""

    async def run() -> None:
        try:
            async with _built(node, root) as agent:
                await scenario(agent)
                await agent.check_cleanup()
        finally:
            await node.remove_all()

    node.run(run())


@asynccontextmanager
async def _built(node: CriNode, root: Path) -> AsyncIterator[AgentHarness]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-proxy-") as place:  # socket paths must be short
        path = f"{place}/p.sock"
        wanted = Standalone(paths=(), root=root / "r", node_name=NODE, runtime="cri", runtime_endpoint=path)
        async with (
            proxied(node.socket, path) as proxy,
            monitored(node.socket) as monitor,
            open_agent_parts(wanted) as parts,
            agent_on_api(parts, runtime_limits=SHORT_LIMITS, timing=FAST_RETRY) as (agent, api),
        ):
            try:
                yield AgentHarness(node, root, api, agent, proxy, monitor)
            finally:
                proxy.clear_faults()
