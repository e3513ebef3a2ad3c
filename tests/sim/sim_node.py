"""Harness for scenarios: a world with an agent, and short methods to act on it and query it.

def test_a_pain_in_one_sentence() -> None:
    async def scenario(node: SimNode) -> None:
        node.put(pod("web"))
        await node.until(lambda: node.is_ready("web"), within=1)

    run_scenario(scenario)

Every scenario runs in virtual time and is deterministic. `PAIN_SEED` and `PAIN_LATE_SHARE` (the share of the
agent's wake-ups that are late) run it under other conditions, to find tests that pass by luck.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from podkeeper.app.agent import Agent
from podkeeper.model.k8s.core import ContainerStatus, Pod
from podkeeper.model.messages import PodUID
from podkeeper.testing import build
from podkeeper.testing.sim.ground_truth import ContainerRun
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import NODE, World

SEED = os.environ.get("PAIN_SEED", "0")
LATE_SHARE = float(os.environ.get("PAIN_LATE_SHARE", "0"))
LATEST_SECONDS = 0.05  # the longest delay of a late wake-up

AT_ONCE = 0.02 if LATE_SHARE == 0 else 3.0
"""How long "at once" may take: less than a tick, or with late wake-ups a chain of them."""


# A pod of this node as users create it: without a UID.
pod = partial(build.pod, node=NODE, uid="", volumes=("data",))


# Scenarios.


@dataclass(frozen=True, slots=True)
class PublishedState:
    """The published state of a pod."""

    phase: str
    ready: bool
    containers: tuple[tuple[str, bool, bool], ...]  # name, ready, started


class SimNode:
    """A simulated node, with methods for tests."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = world.api
        self.runtime = world.runtime

    @property
    def agent(self) -> Agent:
        """The current agent."""
        assert self.world.agent is not None
        return self.world.agent

    # Actions of users.

    def put(self, *pods: Pod) -> PodUID:
        """Create pods in the API; returns the UID of the last."""
        return [PodUID(self.api.put(each).metadata.uid or "") for each in pods][-1]

    def delete(self, name: str, grace: int | None = None) -> None:
        """Delete a pod as a user does; 0: by force."""
        self.api.mark_deleted(Pod, name, "default", grace_seconds=grace)

    def write(self, place: str, manifest: Pod) -> PodUID:
        """Put a manifest onto the node's disk; returns the UID of the static pod it becomes."""
        (made,) = self.world.files.write(place, manifest)
        return PodUID(made.metadata.uid or "")

    # Queries.

    def in_api(self, name: str) -> Pod | None:
        """Return a pod of the API, if it exists."""
        return self.api.peek(Pod, name, "default")

    def seen(self, name: str) -> Pod:
        """Return a pod of the API, which must exist."""
        found = self.in_api(name)
        assert found is not None, name
        return found

    def uid(self, name: str) -> PodUID:
        """Its UID in the API."""
        return PodUID(self.seen(name).metadata.uid or "")

    def is_gone(self, *names: str) -> bool:
        """Whether these pods are no longer in the API."""
        return all(self.in_api(name) is None for name in names)

    def phase(self, name: str) -> str:
        """The phase the API shows."""
        return self.seen(name).status.phase or ""

    def is_ready(self, *names: str) -> bool:
        """Whether the API shows these pods as ready."""
        return all((found := self.in_api(name)) is not None and shown(found).ready for name in names)

    def status(self, name: str, container: str = "app") -> ContainerStatus:
        """What the API shows of a container."""
        status = self.seen(name).status
        statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        return next(each for each in statuses if each.name == container)

    def runs_of(self, uid: PodUID, container: str = "app") -> list[ContainerRun]:
        """Return all attempts of a container, oldest first."""
        return self.world.truth.attempts(uid, container)

    def runs(self, uid: PodUID) -> bool:
        """Whether anything of a pod runs."""
        return bool(self.world.truth.running(uid))

    def sandboxes(self, uid: PodUID) -> list[str]:
        """The ids of a pod's sandboxes that have not been stopped."""
        return [run.id for run in self.world.truth.sandboxes.values() if run.uid == uid and run.stopped is None]

    def changes(self) -> list[PodChanged]:
        """A list that grows with each change of a pod in the API from now on."""
        changes: list[PodChanged] = []
        self.world.bus.subscribe(PodChanged, changes.append)
        return changes

    # Time.

    async def until(self, condition: Callable[[], bool], within: float, step: float = 0.001) -> float:
        """Wait for a condition. Returns how many seconds it took. Polls less often after some time."""
        begun = self.world.now()
        while not condition():
            now = poll_at = self.world.now()
            assert now - begun < within, f"not within {within} s\n{self._recent()}"
            # Skip the polls before the next event, because they cannot see a change.
            quiet_until = now + self.world.loop.idle_seconds()
            while poll_at <= min(quiet_until, begun + within):
                poll_at += max(step, (poll_at - begun) / 100)
            await asyncio.sleep(poll_at - now)
        return self.world.now() - begun

    async def restart_agent(self, downtime_seconds: float = 1.0) -> None:
        """Kill the agent, and wait for the next one."""
        self.world.crash(downtime_seconds=downtime_seconds)
        await asyncio.sleep(downtime_seconds)
        await self.until(lambda: self.world.is_up, within=1)

    def _recent(self) -> str:
        return "\n".join(str(line) for line in list(self.world.trace.lines())[-60:])


def shown(pod: Pod) -> PublishedState:
    """Return the published state of a pod."""
    status = pod.status
    return PublishedState(
        status.phase or "",
        any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        tuple((each.name, bool(each.ready), bool(each.started)) for each in status.container_statuses or ()),
    )


def run_scenario(
    scenario: Callable[[SimNode], Awaitable[None]],
    *,
    prepare: Callable[[World], None] | None = None,
    watched: bool = True,
) -> World:
    """Run a scenario next to the agent. No invariant may be violated, neither by the agent nor in the runtime.

    `watched`: False if the test removes containers from the runtime, so that the invariants cannot hold.
    """
    world = World(SEED)
    if watched:
        watch(world)
    if prepare is not None:
        prepare(world)
    if LATE_SHARE > 0:
        world.loop.delay_wakeups(LATE_SHARE, LATEST_SECONDS)
        world.fault_log.begin(0.0, "late wake-ups")
    it = SimNode(world)
    result = world.run(lambda: scenario(it))
    assert result.violation is None, result.violation
    assert list(world.runtime.violations) == []
    return world


def published_changes(changes: Iterable[PodChanged]) -> list[tuple[str, PublishedState, PublishedState]]:
    """Return all changes of the published state: name, before, after."""
    return [
        (change.new.metadata.name or "", shown(change.old), shown(change.new))
        for change in changes
        if change.old is not None and change.new is not None and shown(change.old) != shown(change.new)
    ]
