"""A probe manager among fakes: what the tests of `engine/probes.py` share."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from podkeeper.engine.probes import ProbeManager
from podkeeper.model.k8s.core import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    ExecAction,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodEvent, PodUID, ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.model.runtime import PodRecord
from podkeeper.model.times import format_time
from podkeeper.rules.probe.report import Outcome, Report
from podkeeper.rules.probe.worker import Target
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate

LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN
WELL, ILL = Report(Outcome.SUCCESS), Report(Outcome.FAILURE, "no")

T = TypeVar("T")


def probe(period: int = 10, failures: int = 3, successes: int = 1) -> Probe:
    action = ExecAction(command=("check",))
    return Probe(exec=action, period_seconds=period, failure_threshold=failures, success_threshold=successes)


def container(
    name: str = "web",
    *,
    liveness: Probe | None = None,
    readiness: Probe | None = None,
    startup: Probe | None = None,
    policy: str | None = None,
) -> Container:
    return Container(
        name=name, liveness_probe=liveness, readiness_probe=readiness, startup_probe=startup, restart_policy=policy
    )


def pod(
    *containers: Container,
    name: str = "web",
    init: tuple[Container, ...] = (),
    policy: str = "Always",
    annotations: dict[str, str] | None = None,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}", annotations=annotations),
        spec=PodSpec(containers=containers, init_containers=init or None, restart_policy=policy),
    )


def uid(of: Pod) -> PodUID:
    return PodUID(of.metadata.uid or "")


class World:
    """A probe manager, and all it deals with. `usual`: the manager has the limits and the observer of its default."""

    def __init__(
        self, *, slots: int = 100, lease_seconds: float = 2, usual: bool = False, calls: PortCalls | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.agent_started = self.clock.now()
        self.began = 0.0
        self.statuses: dict[PodUID, PodStatus] = {}
        self.told: list[tuple[float, ProbeKind, str, ProbeResult]] = []
        self.recorded: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.executed: list[tuple[float, str, ProbeKind]] = []
        self.asked: list[tuple[Pod, Target, str, str]] = []  # the arguments of each execution
        self.under_way: Counter[str] = Counter()
        self.most_at_a_time = 0
        self.most_of_one = 0  # executions of one probe at a time
        self.report: Report | Exception = WELL
        self.takes: Callable[[Target], float] = lambda _: 0.0
        self.counted: list[tuple[Pod, str, ProbeKind, ProbeResult, float]] = []
        self.ended: list[tuple[Pod, str, ProbeKind]] = []
        self.deaf = False
        self.on_tell: Callable[[], None] = lambda: None
        self.failing_lookups = 0  # of the status manager, from now on
        limits: dict[str, Any] = {} if usual else {"observer": self, "slots": slots, "lease_seconds": lease_seconds}
        self.probes = ProbeManager(
            execute=(self if calls is None else calls.watch("probe", self, {"execute": ()})).execute,
            status_of=self.status_of,
            tell=self.tell,
            record=self.record,
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
        self.asked.append((pod, target, pod_ip, container_id))
        key = f"{pod.metadata.uid} {target.kind} {container_id}"
        self.under_way[key] += 1
        self.most_of_one = max(self.most_of_one, self.under_way[key])
        self.most_at_a_time = max(self.most_at_a_time, self.under_way.total())
        try:
            seconds = self.takes(target)
            await (asyncio.get_running_loop().create_future() if math.isinf(seconds) else asyncio.sleep(seconds))
        finally:
            self.under_way[key] -= 1
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    def tell(self, update: ProbeUpdate) -> None:
        if self.deaf:
            raise RuntimeError("the listener fails")
        self.told.append((self.now(), update.kind, update.container_id, update.result))
        self.on_tell()

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.recorded.append((event, about))

    def probed(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        self.counted.append((pod, container, kind, result, seconds))

    def gone(self, pod: Pod, container: str, kind: ProbeKind) -> None:
        self.ended.append((pod, container, kind))

    def runs(
        self, of: Pod, *ids: str, started: bool = True, ready: bool = False, since: datetime | None = None
    ) -> None:
        """Let the containers of a pod run, each under an id (`fake://web-1`); sidecars come last.

        Those that run since some time were there before the agent, which made all others.
        """
        sidecars = of.spec.init_containers or ()
        if since is None:
            for each, container_id in zip((*of.spec.containers, *sidecars), ids, strict=True):
                self.probes.claim(uid(of), each.name, container_id)
        state = ContainerState(running=ContainerStateRunning(started_at=format_time(since or self.clock.now())))
        all_of = [
            ContainerStatus(
                name=each.name, container_id=f"fake://{container_id}", state=state, started=started, ready=ready
            )
            for each, container_id in zip((*of.spec.containers, *sidecars), ids, strict=True)
        ]
        count = len(of.spec.containers)
        self.statuses[uid(of)] = PodStatus(
            phase="Running", container_statuses=tuple(all_of[:count]), init_container_statuses=tuple(all_of[count:])
        )

    def shows(self, of: Pod, *containers: ContainerStatus, init: tuple[ContainerStatus, ...] = ()) -> None:
        """Let a pod have this status; nothing of it was made by this agent unless it was claimed."""
        self.statuses[uid(of)] = PodStatus(
            phase="Running", pod_ip="10.0.0.7", container_statuses=containers, init_container_statuses=init or None
        )

    def exits(self, of: Pod, container_id: str, code: int) -> None:
        state = ContainerState(terminated=ContainerStateTerminated(exit_code=code))
        name = of.spec.containers[0].name
        status = ContainerStatus(name=name, container_id=f"fake://{container_id}", state=state)
        self.statuses[uid(of)] = PodStatus(phase="Running", container_statuses=(status,))

    @property
    def times(self) -> list[float]:
        return [at for at, _, _ in self.executed]


def in_world(scenario: Callable[[World], Awaitable[T]], *, agent_age_seconds: float = 3600, **options: Any) -> T:
    """Play a scenario in virtual time, beside a manager that runs. The machine is older than the agent."""

    async def play() -> T:
        await asyncio.sleep(100)
        world = World(**options)
        await asyncio.sleep(agent_age_seconds)
        world.began = world.clock.monotonic()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(world.probes.run())
            result = await scenario(world)
            running.cancel()
        assert world.most_of_one <= 1
        return result

    played: Coroutine[Any, Any, T] = play()
    return simulate(played)[0]
