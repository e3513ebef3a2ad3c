"""A node without an API, in virtual time: the agent with its production wiring, on a fake runtime.

async def scenario(node: SmallNode) -> ...:
    node.add(pod("web"))
    await asyncio.sleep(5)

in_small_node(scenario)
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, Ports, Settings
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.model.errors import AgentError
from podkeeper.model.history import EventRecorded
from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, CONFIG_SOURCE_ANNOTATION, Op, PodUID, PodUpdate
from podkeeper.model.pods import uid_of
from podkeeper.model.times import format_time
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.runtimes.fake import Behaviour, FakeRuntime
from podkeeper.testing import build
from podkeeper.testing.node import NodeHarness, on_node
from podkeeper.testing.virtual_time import FixedJitterClock
from tests.doubles import stand_in

T = TypeVar("T")


pod = partial(build.pod, namespace="ns", source=API_SOURCE)


class FakeMirrors:
    """Records which mirror pods are ensured. Fails with `error` if it is set."""

    def __init__(self) -> None:
        self.ensured: list[tuple[str, bool]] = []
        self.error: AgentError | None = None

    async def run(self) -> None: ...

    async def ensure(self, static: Pod, mirror: Pod | None) -> None:
        self.ensured.append((static.metadata.name or "", mirror is not None))
        if self.error is not None:
            raise self.error


class SmallEngine(Engine):
    """An engine with a fake for mirror pods."""

    def __init__(self, ports: Ports, settings: Settings, node: "SmallNode") -> None:
        self._small_node = node
        super().__init__(ports, settings)

    def _mirror_client(self) -> MirrorClient:
        return stand_in(MirrorClient, self._small_node.mirrors)


class SmallNode(NodeHarness):
    """A node whose pods come from the test. It has no API and no journal."""

    def __init__(
        self, *, behaviours: Mapping[str, Behaviour] | None = None, delays: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(FixedJitterClock())
        scripts = {("*", name): behaviour for name, behaviour in (behaviours or {}).items()}
        self.runtime = FakeRuntime(self.clock, behaviours=scripts, delays=delays)
        self.mirrors = FakeMirrors()
        self.phases: list[tuple[float, str, str]] = []  # (when, pod, phase) of each change
        self._phase: dict[str, str] = {}
        self._added: dict[PodUID, Pod] = {}

    def ports(self) -> Ports:
        return dataclasses.replace(super().ports(), api=None, journal=None, sources=())

    def new_agent(self) -> Agent:
        agent = Agent(SmallEngine(self.ports(), self.settings(), self))
        agent.engine.statuses.subscribe(self._on_status)
        return agent

    def _on_status(self, uid: PodUID, status: PodStatus) -> None:
        name = uid.removeprefix("uid-")
        if status.phase != self._phase.get(name):
            self._phase[name] = status.phase or ""
            self.phases.append((self.clock.monotonic(), name, self._phase[name]))

    # What a scenario does.

    def add(self, *pods: Pod) -> None:
        for each in pods:
            self._added[uid_of(each)] = each
            self._merge(Op.ADD, each)

    def delete_pod(self, of: Pod, grace: int | None = None) -> None:
        """Delete a pod as the API does: gracefully."""
        grace = of.spec.termination_grace_period_seconds if grace is None else grace
        now = format_time(self.clock.now())
        metadata = replace(of.metadata, deletion_timestamp=now, deletion_grace_period_seconds=grace)
        self._merge(Op.UPDATE, replace(of, metadata=metadata))

    def _merge(self, op: Op, of: Pod) -> None:
        source = (of.metadata.annotations or {})[CONFIG_SOURCE_ANNOTATION]
        self.agent.engine.storage.merge(PodUpdate(op, (of,), source))

    def sync(self, of: Pod) -> None:
        known = self.agent.engine.manager.pod_by_uid(uid_of(of))
        self.agent.engine.workers.update_pod(Update(type=UpdateType.SYNC, pod=known))

    def kill(self, of: Pod, options: KillOptions) -> None:
        self.agent.engine.workers.update_pod(build.update(UpdateType.KILL, of, kill=options))

    # What a scenario sees.

    def status(self, of: Pod) -> PodStatus:
        return self.agent.engine.statuses.get_pod_status(uid_of(of)) or PodStatus()

    def reports_ready(self, of: Pod) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status(of).conditions or ())

    def container_status(self, of: Pod, name: str = "app") -> ContainerStatus:
        status = self.status(of)
        every = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        return next(each for each in every if each.name == name)

    def calls(self, *operations: str, about: Pod | None = None) -> list[tuple[float, str, str]]:
        """Return (start, operation, subject) of the runtime calls so far."""
        return [
            (call.begun, call.operation, call.subject)
            for call in self.runtime.call_log
            if (not operations or call.operation in operations) and (about is None or call.about == uid_of(about))
        ]

    def events(self) -> list[tuple[str, str]]:
        """Return (reason, message) of the events of all pods so far."""
        entries = [entry.event for uid in self._added for entry in self.agent.explain(uid).timeline]
        return [(event.reason, event.message) for event in entries if isinstance(event, EventRecorded)]

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events()]

    def phases_of(self, of: Pod) -> list[str]:
        return [phase for _, name, phase in self.phases if name == of.metadata.name]


def in_small_node(scenario: Callable[[SmallNode], Awaitable[T]], **options: Any) -> T:
    """Run a scenario in virtual time while the agent runs."""
    return on_node(scenario, partial(SmallNode, **options))
