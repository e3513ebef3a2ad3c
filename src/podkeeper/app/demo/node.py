"""A simulated node: an agent, and the parts that survive a crash of the agent.

`create` and `delete` act on the in-memory API. `write` changes static manifests on the simulated disk. If the agent
crashes, the next agent has the same runtime, journal and disk.
"""

import asyncio
from collections import defaultdict
from datetime import datetime

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, Ports, Settings, simple_node
from podkeeper.app.sources import api_source, stored_manifests
from podkeeper.engine.metrics import Metrics
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing.fake_sources import fake_file_source
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock

NODE_NAME = "n1"
_DELAYS: dict[str, float] = {
    Operation.RUN_SANDBOX: 0.4,
    Operation.CREATE_CONTAINER: 0.1,
    Operation.START_CONTAINER: 0.2,
    Operation.PULL_IMAGE: 2.0,
}  # in seconds, similar to a real runtime


class DemoNode:
    """A simulated node. Must be created in a running virtual loop."""

    def __init__(self, seed: int) -> None:
        self.clock = VirtualClock(seed=seed)
        self.api = MemoryApi(self.clock)
        self.runtime = FakeRuntime(self.clock, delays=_DELAYS)
        self.files = fake_file_source(NODE_NAME)
        self._volumes = FakeVolumes(self.clock)
        self._cgroups = FakeCgroups(self.clock)
        self._journal = FakeJournal()
        self._uids: defaultdict[str, list[PodUID]] = defaultdict(list)
        self._created_at: dict[PodUID, datetime] = {}
        self._running: asyncio.Task[None] | None = None
        self._metrics: list[Metrics] = []  # one per agent so far
        self.agent = self._new_agent()

    # ---- the agent ----

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start the first agent."""
        self._group = group
        self._running = group.create_task(self.agent.run(), name="agent")

    def crash_agent(self) -> None:
        """Kill the agent only. Entries that the journal has not synced are lost."""
        assert self._running is not None
        self._running.cancel()
        self._journal.crash()

    def start_agent(self) -> None:
        """Start a new agent after a crash."""
        assert self._running is not None
        assert self._running.done(), "the previous agent is still running"
        self.agent = self._new_agent()
        self._running = self._group.create_task(self.agent.run(), name="agent")

    @property
    def is_running(self) -> bool:
        """Whether an agent is running."""
        return self._running is not None and not self._running.done()

    @property
    def agents(self) -> int:
        """The number of agents so far."""
        return len(self._metrics)

    def metric_total(self, sample: str) -> int:
        """Return the sum of a metric over all agents and labels."""
        families = (family for metrics in self._metrics for family in metrics.registry.collect())
        return round(sum(each.value for family in families for each in family.samples if each.name == sample))

    # ---- API and disk ----

    def create(self, pod: Pod) -> PodUID:
        """Create a pod in the API, bound to this node."""
        return self._register(self.api.put(pod))

    def delete(self, name: str) -> None:
        """Delete a pod in the API with its own grace period. A missing pod is ignored."""
        if self.api.peek(Pod, name) is not None:
            self.api.mark_deleted(Pod, name)

    def write(self, path: str, pod: Pod) -> PodUID:
        """Write a manifest to the simulated disk, replacing the old one."""
        (made,) = self.files.write(path, pod)
        return self._register(made)

    def uids(self, name: str) -> tuple[PodUID, ...]:
        """Return all pods that ever had this name, oldest first."""
        return tuple(self._uids.get(name, ()))

    def created_at(self, uid: PodUID) -> datetime:
        return self._created_at[uid]

    @property
    def pods_seen(self) -> int:
        """The number of pods so far."""
        return len(self._created_at)

    # ---- helpers ----

    def _register(self, pod: Pod) -> PodUID:
        uid = PodUID(pod.metadata.uid or "")
        self._uids[pod.metadata.name or ""].append(uid)
        self._created_at[uid] = self.clock.now()
        return uid

    def _new_agent(self) -> Agent:
        pods = api_source(api=self.api, node_name=NODE_NAME, clock=self.clock, journal=self._journal)
        stored = stored_manifests(self._journal, self.files.name, NODE_NAME, keep_secrets=True)
        ports = Ports(
            runtime=self.runtime,
            volumes=self._volumes,
            cgroups=self._cgroups,
            prober=FakeProber(),
            clock=self.clock,
            sources=(pods, self.files.source(stored)),
            api=self.api,
            journal=self._journal,
        )
        agent = Agent(Engine(ports, Settings(node=simple_node(NODE_NAME), host_ips=("192.0.2.1",))))
        self._metrics.append(agent.metrics)
        return agent
