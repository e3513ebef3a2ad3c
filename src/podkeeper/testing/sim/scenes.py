"""A tale and its scenes: a short story of some pods, and what the world looks like whenever it has come to rest.

    async def plot(stage: Stage) -> None:
        stage.world.api.put(pod("web"))
        await stage.until("web is ready", lambda: stage.is_ready("web"))
        await stage.come_to_rest("running")

Told undisturbed, the scenes are written down. Told again with something gone wrong, each must come out the same,
however long that takes within `PATIENCE_SECONDS`: users wait for what they see, so a tale goes on from the same scene.
A scene is text without times, ids and addresses, so that two of them can be compared, and their difference be read.
What happened between scenes is in the chronicle: which containers ran and how they ended, phases, who was ready.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from difflib import unified_diff

from podkeeper.model.k8s.core import ContainerState, ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.mirror import is_mirror_pod
from podkeeper.rules.phase import is_terminal
from podkeeper.testing.sim.records import Called, PodChanged, Told
from podkeeper.testing.sim.truth import Truth
from podkeeper.testing.sim.world import World

PATIENCE_SECONDS = 200.0  # for a scene: an agent away for a minute, a relist, a back-off
REST_SECONDS = 12.0  # after these an undisturbed world is at rest: a batch of statuses, and some rounds of housekeeping
STEP_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Scene:
    """The world at rest, as sorted lines."""

    title: str
    lines: tuple[str, ...]

    def difference(self, other: "Scene") -> str:
        """How another scene differs."""
        return "\n".join(unified_diff(self.lines, other.lines, "undisturbed", "disturbed", lineterm="", n=0))


class Stage:
    """Where a tale is told."""

    def __init__(self, world: World, expected: Sequence[Scene] | None = None) -> None:
        """`expected`: the scenes of the undisturbed tale; None: this is it."""
        self.world = world
        self.scenes: list[Scene] = []
        self.chronicle = Chronicle(world)
        self._expected = expected

    # What plots ask.

    def pod(self, name: str) -> Pod | None:
        """A pod as the API shows it."""
        return self.world.api.peek(Pod, name, "default")

    def is_ready(self, name: str) -> bool:
        """Whether the API shows a pod as ready."""
        found = self.pod(name)
        return found is not None and ready_of(found.status) == "True"

    def phase(self, name: str) -> str:
        """A pod's phase in the API; empty when it is not there."""
        found = self.pod(name)
        return "" if found is None else found.status.phase or ""

    def runs(self, uid: PodUID, container: str) -> bool:
        """Whether a container really runs."""
        return any(life.name == container for life in self.world.truth.running(uid))

    # What plots do.

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something to become true; a tale that waits too long is broken off."""
        give_up = self.world.now() + PATIENCE_SECONDS
        while not holds():
            if self.world.now() >= give_up:
                await self._break_off(f"not within {PATIENCE_SECONDS:g} s: {what}")
            await asyncio.sleep(STEP_SECONDS)

    async def come_to_rest(self, title: str) -> None:
        """Write down the scene; a disturbed tale waits until it is the undisturbed one's."""
        await asyncio.sleep(REST_SECONDS)  # both do, or what comes after would not happen at the same moments
        if self._expected is None:
            self.scenes.append(await self._scene(title))
            return
        expected = self._expected[len(self.scenes)]
        give_up = self.world.now() + PATIENCE_SECONDS
        while (scene := await self._scene(title)) != expected:
            if self.world.now() >= give_up:
                difference = expected.difference(scene)
                await self._break_off(f"scene {title!r} differs after {PATIENCE_SECONDS:g} s:\n{difference}")
            await asyncio.sleep(STEP_SECONDS)
        self.scenes.append(scene)

    async def _break_off(self, why: str) -> None:
        self.world.broken("same end", "", why)
        await asyncio.Event().wait()  # the play is over

    async def _scene(self, title: str) -> Scene:
        world, names = self.world, self.chronicle.names
        lines = [f"API: {names[_uid(pod)]} {_shown(pod, world.truth)}" for pod in world.api.objects(Pod)]
        lines += [f"runtime: {names[PodUID(it.uid)]} {_held(it)}" for it in await world.runtime.list_pods()]
        lines += [f"mount: {names[uid]}" for uid in world.volumes.mounted_pods()]
        lines += [f"directory: {names[uid]}" for uid in await world.volumes.directories()]
        lines += [f"cgroup: {names[uid]}" for uid in await world.cgroups.list_pods()]
        return Scene(title, tuple(sorted(lines)))


class Chronicle:
    """What happened along the way."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._truth = world.truth
        self.names = _Names()
        self.ready: defaultdict[str, list[str]] = defaultdict(list)  # each change of the Ready condition, by pod
        self.phases: defaultdict[str, list[str]] = defaultdict(list)
        self._ending: dict[PodUID, str] = {}  # pods that an agent knows to end, and whence
        world.bus.subscribe(PodChanged, self._see_pod)
        world.bus.subscribe(Told, self._see_told)
        world.bus.subscribe(Called, self._see_call)

    def ends(self) -> dict[str, list[str]]:
        """By pod and container: how each container that ever ran has ended, in order."""
        ends: defaultdict[str, list[str]] = defaultdict(list)
        for life in self._truth.containers.values():
            if life.started is not None:
                ended = "runs" if life.ended is None else f"{life.exit_code} {life.reason}"
                ends[f"{self.names[life.uid]}/{life.name}"].append(ended)
        return dict(ends)

    def _see_pod(self, it: PodChanged) -> None:
        pod = it.new
        if pod is None:
            return
        name = self.names.of(pod)
        if it.old is not None:  # a new object says nothing yet: another mirror is no change
            _append_change(self.ready[name], ready_of(pod.status))
            _append_change(self.phases[name], pod.status.phase or "")
        if is_terminal(pod.status.phase) and not is_mirror_pod(pod):
            self._ending.setdefault(_uid(pod), f"its phase is {pod.status.phase}")

    def _see_told(self, it: Told) -> None:
        update = it.update
        for pod in update.pods:
            self.names.of(pod)
            if update.source == API_SOURCE and (update.op is Op.REMOVE or pod.metadata.deletion_timestamp):
                self._ending.setdefault(_uid(pod), f"agent {it.life} was told so")

    def _see_call(self, call: Called) -> None:
        if call.operation == "start_container" and (why := self._ending.get(call.uid)):
            name = f"{self.names[call.uid]}/{call.subject}"
            self._world.broken("I12", call.uid, f"container {name} is started though the pod is to end: {why}")


class _Names(dict[PodUID, str]):
    """What to call a pod: its name, and the how manieth of that name it is."""

    def __init__(self) -> None:
        super().__init__()
        self._known: defaultdict[str, int] = defaultdict(int)

    def __missing__(self, uid: PodUID) -> str:
        return f"unknown {uid}"

    def of(self, pod: Pod) -> str:
        uid, name = _uid(pod), pod.metadata.name or ""
        if uid not in self:
            if is_mirror_pod(pod):
                self[uid] = f"mirror of {name}"  # how many it took does not matter
            else:
                self._known[name] += 1
                self[uid] = f"{name}#{self._known[name]}"
        return self[uid]


@dataclass(frozen=True, slots=True)
class Tale:
    """A short story of some pods."""

    name: str
    plot: Callable[[Stage], Awaitable[None]]


def ready_of(status: PodStatus) -> str:
    """The status of the condition Ready; empty when there is none."""
    return next((each.status for each in status.conditions or () if each.type == "Ready"), "")


def _append_change(changes: list[str], value: str) -> None:
    if not changes or changes[-1] != value:
        changes.append(value)


def _shown(pod: Pod, truth: Truth) -> str:
    """All that the API shows of a pod, save times, ids and addresses."""
    meta, status = pod.metadata, pod.status
    parts = [status.phase or "", status.reason or "", "ending" if meta.deletion_timestamp else ""]
    parts += [container.image or "" for container in pod.spec.containers]
    parts += sorted(f"{each.type}={each.status} {each.reason or ''}" for each in status.conditions or ())
    for each in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        parts.append(_container_shown(each, _tries_in_vain(each, truth)))
    return ", ".join(filter(None, parts))


def _tries_in_vain(status: ContainerStatus, truth: Truth) -> int:
    """How many containers were made in a container's place before it and never started.

    An agent that dies between the two leaves such a one behind. As in the reference it counts as a try.
    """
    known = truth.containers.get((status.container_id or "").partition("://")[2])
    if known is None:
        return 0
    tries = truth.attempts(known.uid, known.name)
    return sum(life.started is None for life in tries if life.created < known.created)


def _container_shown(status: ContainerStatus, tries_in_vain: int) -> str:
    restarts = (status.restart_count or 0) - tries_in_vain
    text = f"{status.name} {_state_shown(status.state)} r{restarts} ready={status.ready} started={status.started}"
    return f"{text} last={_state_shown(status.last_state)}"


def _state_shown(state: ContainerState) -> str:
    if state.running is not None:
        return "running"
    if state.terminated is not None:
        return f"exited {state.terminated.exit_code} {state.terminated.reason or ''}"
    return "-" if state.waiting is None else state.waiting.reason or "waiting"


def _held(record: PodRecord) -> str:
    sandboxes = sorted("ready sandbox" if each.ready else "sandbox" for each in record.sandboxes)
    containers = sorted(
        f"{each.name} {each.state} {each.exit_code}" for each in record.containers if each.state != "created"
    )
    return ", ".join((*sandboxes, *containers))


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
