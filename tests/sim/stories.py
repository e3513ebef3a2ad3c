"""Stories of the pains: a world, the agent in it, and short words for what happens to them.

def test_a_pain_in_one_sentence() -> None:
    async def story(it: Story) -> None:
        it.put(pod("web"))
        await it.until(lambda: it.is_ready("web"), within=1)

    tell(story)

Every story is played in virtual time and told the same way each time. `PAIN_SEED` and `PAIN_DAWDLE` (the share of the
agent's wake-ups that come late) play it in another world: what holds by luck only does not hold there.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import msgspec

from podkeeper.app.build import Agent
from podkeeper.model.k8s.core import (
    Container,
    ContainerStatus,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSpec,
    Probe,
    Volume,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import ANNOTATION_PREFIX, Behaviour
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.truth import ContainerLife
from podkeeper.testing.sim.world import NODE, World

SEED = os.environ.get("PAIN_SEED", "0")
DAWDLE = float(os.environ.get("PAIN_DAWDLE", "0"))
LATEST_SECONDS = 0.05  # how late a dawdling wake-up comes

AT_ONCE = 0.02 if DAWDLE == 0 else 3.0
"""What "at once" may take: no waiting for a tick; with dawdling, a chain of late wake-ups."""


# Pods.


def container(
    name: str = "app",
    *,
    ready: Probe | None = None,
    live: Probe | None = None,
    startup: Probe | None = None,
    pre_stop: str = "",
    restart: str | None = None,
    image: str = "",
) -> Container:
    hook = Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=(pre_stop,)))) if pre_stop else None
    return Container(
        name=name,
        image=image or f"{name}:v1",
        readiness_probe=ready,
        liveness_probe=live,
        startup_probe=startup,
        lifecycle=hook,
        restart_policy=restart,
    )


def exec_probe(*, period: int = 10, delay: int = 0, failures: int = 3) -> Probe:
    return Probe(
        exec=ExecAction(command=("check",)),
        period_seconds=period,
        initial_delay_seconds=delay,
        timeout_seconds=1,
        failure_threshold=failures,
        success_threshold=1,
    )


def pod(
    name: str,
    *containers: Container,
    init: tuple[Container, ...] = (),
    policy: str = "Always",
    grace: int = 30,
    deadline: int | None = None,
    annotations: dict[str, str] | None = None,
    **behaviours: Behaviour,
) -> Pod:
    """A pod of this node; a container's behaviour is given by its name."""
    scripts = {ANNOTATION_PREFIX + each: msgspec.json.encode(life).decode() for each, life in behaviours.items()}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", annotations={**scripts, **(annotations or {})}),
        spec=PodSpec(
            node_name=NODE,
            init_containers=init or None,
            containers=containers or (container(),),
            restart_policy=policy,
            termination_grace_period_seconds=grace,
            active_deadline_seconds=deadline,
            volumes=(Volume(name="data"),),
        ),
    )


# Stories.


@dataclass(frozen=True, slots=True)
class Shown:
    """What a pod shows: what its users live by."""

    phase: str
    ready: bool
    containers: tuple[tuple[str, bool, bool], ...]  # name, ready, started


class Story:
    """A world and what can be done and seen in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = world.api
        self.runtime = world.runtime

    @property
    def agent(self) -> Agent:
        """The agent that lives now."""
        assert self.world.agent is not None
        return self.world.agent

    # What others do.

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

    # What can be seen.

    def in_api(self, name: str) -> Pod | None:
        """The pod as the API has it."""
        return self.api.peek(Pod, name, "default")

    def seen(self, name: str) -> Pod:
        """The pod as the API has it; there is one."""
        found = self.in_api(name)
        assert found is not None, name
        return found

    def uid(self, name: str) -> PodUID:
        """Its UID in the API."""
        return PodUID(self.seen(name).metadata.uid or "")

    def is_gone(self, *names: str) -> bool:
        """Whether the API has forgotten these pods."""
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

    def lives(self, uid: PodUID, container: str = "app") -> list[ContainerLife]:
        """All there was of a container, oldest first."""
        return self.world.truth.attempts(uid, container)

    def runs(self, uid: PodUID) -> bool:
        """Whether anything of a pod runs."""
        return bool(self.world.truth.running(uid))

    def sandboxes(self, uid: PodUID) -> list[str]:
        """The ids of a pod's sandboxes that have not been stopped."""
        return [life.id for life in self.world.truth.sandboxes.values() if life.uid == uid and life.stopped is None]

    def changes(self) -> list[PodChanged]:
        """A list that grows with each change of a pod in the API from now on."""
        changes: list[PodChanged] = []
        self.world.bus.subscribe(PodChanged, changes.append)
        return changes

    # Time.

    async def until(self, condition: Callable[[], bool], within: float, step: float = 0.001) -> float:
        """Wait for something; returns how many seconds it took. Looks less often the longer it takes."""
        begun = self.world.now()
        while not condition():
            waited = self.world.now() - begun
            assert waited < within, f"not within {within} s\n{self._recent()}"
            await asyncio.sleep(max(step, waited / 100))
        return self.world.now() - begun

    async def restart_agent(self, away_seconds: float = 1.0) -> None:
        """Let the agent die, and another one take its place."""
        self.world.crash(away_seconds=away_seconds)
        await asyncio.sleep(away_seconds)
        await self.until(lambda: self.world.is_up, within=1)

    def _recent(self) -> str:
        return "\n".join(str(line) for line in list(self.world.trace.lines())[-60:])


def shown(pod: Pod) -> Shown:
    """What users live by."""
    status = pod.status
    return Shown(
        status.phase or "",
        any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        tuple((each.name, bool(each.ready), bool(each.started)) for each in status.container_statuses or ()),
    )


def tell(
    story: Callable[[Story], Awaitable[None]],
    *,
    prepare: Callable[[World], None] | None = None,
    watched: bool = True,
) -> World:
    """Play a story beside a living agent: no invariant may break, and the runtime must find nothing to complain of.

    `watched`: False where somebody takes containers away behind everybody's back, and what they could tell with them.
    """
    world = World(SEED)
    if watched:
        watch(world)
    if prepare is not None:
        prepare(world)
    if DAWDLE > 0:
        world.loop.dawdle(DAWDLE, LATEST_SECONDS)
        world.troubles.begin(0.0, "late wake-ups")
    it = Story(world)
    verdict = world.play(lambda: story(it))
    assert verdict.violation is None, verdict.violation
    assert list(world.runtime.violations) == []
    return world


def each_ready_bit(changes: Iterable[PodChanged]) -> list[tuple[str, Shown, Shown]]:
    """Which pods were shown differently by which changes: name, before, after."""
    return [
        (change.new.metadata.name or "", shown(change.old), shown(change.new))
        for change in changes
        if change.old is not None and change.new is not None and shown(change.old) != shown(change.new)
    ]
