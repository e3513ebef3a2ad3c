"""A probe manager with fakes, shared by the tests of `engine/probes.py`."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from podkeeper.engine.probes import ProbeManager
from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodStatus,
)
from podkeeper.model.messages import PodEvent, PodUID, ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord
from podkeeper.model.times import format_time
from podkeeper.rules.probe.report import ProbeOutcome, Report
from podkeeper.rules.probe.worker import Target
from podkeeper.testing import build
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate

LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN
HEALTHY, UNHEALTHY = Report(ProbeOutcome.SUCCESS), Report(ProbeOutcome.FAILURE, "no")

T = TypeVar("T")


pod = partial(build.pod, namespace="ns")


class ProbeHarness:
    """A probe manager with fake surroundings. `defaults`: it has the default limits and observer."""

    def __init__(
        self, *, slots: int = 100, lease_seconds: float = 2, defaults: bool = False, calls: PortCalls | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.agent_started = self.clock.now()
        self.began = 0.0
        self.statuses: dict[PodUID, PodStatus] = {}
        self.sent: list[tuple[float, ProbeKind, str, ProbeResult]] = []
        self.recorded: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.executed: list[tuple[float, str, ProbeKind]] = []
        self.arguments: list[tuple[Pod, Target, str, str]] = []  # the arguments of each execution
        self.in_flight: Counter[str] = Counter()
        self.max_concurrent = 0
        self.max_of_one_probe = 0  # concurrent executions of one probe
        self.report: Report | Exception = HEALTHY
        self.takes: Callable[[Target], float] = lambda _: 0.0
        self.counted: list[tuple[Pod, str, ProbeKind, ProbeResult, float]] = []
        self.ended: list[tuple[Pod, str, ProbeKind]] = []
        self.send_fails = False
        self.on_send: Callable[[], None] = lambda: None
        self.failing_lookups = 0  # the next N reads of the status manager fail
        limits: dict[str, Any] = {} if defaults else {"observer": self, "slots": slots, "lease_seconds": lease_seconds}
        self.probes = ProbeManager(
            execute=(self if calls is None else calls.watch("probe", self, {"execute": ()})).execute,
            status_of=self.status_of,
            send=self.send,
            record_event=self.record,
            clock=self.clock,
            **limits,
        )

    def now(self) -> float:
        """Seconds since the scenario began."""
        return round(self.clock.monotonic() - self.began, 6)

    def status_of(self, uid: PodUID) -> PodStatus | None:
        if self.failing_lookups > 0:
            self.failing_lookups -= 1
            raise RuntimeError("a bug")
        return self.statuses.get(uid)

    async def execute(self, pod: Pod, target: Target, pod_ip: str, container_id: str) -> Report:
        self.executed.append((self.now(), target.container.name, target.kind))
        self.arguments.append((pod, target, pod_ip, container_id))
        key = f"{pod.metadata.uid} {target.kind} {container_id}"
        self.in_flight[key] += 1
        self.max_of_one_probe = max(self.max_of_one_probe, self.in_flight[key])
        self.max_concurrent = max(self.max_concurrent, self.in_flight.total())
        try:
            seconds = self.takes(target)
            await (asyncio.get_running_loop().create_future() if math.isinf(seconds) else asyncio.sleep(seconds))
        finally:
            self.in_flight[key] -= 1
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    def send(self, update: ProbeUpdate) -> None:
        if self.send_fails:
            raise RuntimeError("the receiver fails")
        self.sent.append((self.now(), update.kind, update.container_id, update.result))
        self.on_send()

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.recorded.append((event, about))

    def probed(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        self.counted.append((pod, container, kind, result, seconds))

    def probe_removed(self, pod: Pod, container: str, kind: ProbeKind) -> None:
        self.ended.append((pod, container, kind))

    def runs(
        self, of: Pod, *ids: str, started: bool = True, ready: bool = False, since: datetime | None = None
    ) -> None:
        """Set the containers of a pod to running, each with an ID (`fake://web-1`), sidecars last.

        Containers with `since` were created before this agent started. This agent claims all others.
        """
        sidecars = of.spec.init_containers or ()
        if since is None:
            for each, container_id in zip((*of.spec.containers, *sidecars), ids, strict=True):
                self.probes.claim(uid_of(of), each.name, container_id)
        state = ContainerState(running=ContainerStateRunning(started_at=format_time(since or self.clock.now())))
        all_of = [
            ContainerStatus(
                name=each.name, container_id=f"fake://{container_id}", state=state, started=started, ready=ready
            )
            for each, container_id in zip((*of.spec.containers, *sidecars), ids, strict=True)
        ]
        count = len(of.spec.containers)
        self.statuses[uid_of(of)] = PodStatus(
            phase="Running", container_statuses=tuple(all_of[:count]), init_container_statuses=tuple(all_of[count:])
        )

    def shows(self, of: Pod, *containers: ContainerStatus, init: tuple[ContainerStatus, ...] = ()) -> None:
        """Set the status of a pod. No container is claimed."""
        self.statuses[uid_of(of)] = PodStatus(
            phase="Running", pod_ip="10.0.0.7", container_statuses=containers, init_container_statuses=init or None
        )

    def exits(self, of: Pod, container_id: str, code: int) -> None:
        state = ContainerState(terminated=ContainerStateTerminated(exit_code=code))
        name = of.spec.containers[0].name
        status = ContainerStatus(name=name, container_id=f"fake://{container_id}", state=state)
        self.statuses[uid_of(of)] = PodStatus(phase="Running", container_statuses=(status,))

    @property
    def times(self) -> list[float]:
        return [at for at, _, _ in self.executed]


def run_scenario(
    scenario: Callable[[ProbeHarness], Awaitable[T]], *, agent_age_seconds: float = 3600, **options: Any
) -> T:
    """Run a scenario with a running manager in virtual time. The machine is older than the agent."""

    async def main() -> T:
        await asyncio.sleep(100)
        harness = ProbeHarness(**options)
        await asyncio.sleep(agent_age_seconds)
        harness.began = harness.clock.monotonic()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.probes.run())
            result = await scenario(harness)
            running.cancel()
        assert harness.max_of_one_probe <= 1
        return result

    coroutine: Coroutine[Any, Any, T] = main()
    return simulate(coroutine)[0]
