"""Short scenarios, and snapshots of the world at the points where it has settled.

    async def script(run: ScenarioRun) -> None:
        run.world.api.put(pod("web"))
        await run.until("web is ready", lambda: run.is_ready("web"))
        await run.settle("running")

The undisturbed run records the snapshots. A perturbed run must reach the same snapshots within `TIMEOUT_SECONDS`. Users
act on the visible state, so both runs continue from the same snapshot. A snapshot is text without times, IDs and
addresses, so two snapshots can be compared. The log records what happens in between: which containers ran, how they
ended, and each change of phase and Ready.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from difflib import unified_diff

from podkeeper.model.k8s.core import ContainerState, ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.rules.status.phase import is_terminal
from podkeeper.testing.sim.ground_truth import GroundTruth
from podkeeper.testing.sim.records import CallStarted, PodChanged, UpdateReceived
from podkeeper.testing.sim.world import World

TIMEOUT_SECONDS = 200.0  # for a snapshot: an agent that is down for a minute, a relist, a backoff
SETTLE_SECONDS = 12.0  # an undisturbed world has then sent a batch of statuses and run housekeeping a few times
STEP_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class WorldSnapshot:
    """The settled world, as sorted lines."""

    title: str
    lines: tuple[str, ...]

    def difference(self, other: "WorldSnapshot") -> str:
        """Return the difference between two snapshots."""
        return "\n".join(unified_diff(self.lines, other.lines, "undisturbed", "disturbed", lineterm="", n=0))


class ScenarioRun:
    """One run of a scenario."""

    def __init__(self, world: World, expected: Sequence[WorldSnapshot] | None = None) -> None:
        """`expected`: the snapshots of the undisturbed run. None: this is the undisturbed run."""
        self.world = world
        self.snapshots: list[WorldSnapshot] = []
        self.log = ScenarioLog(world)
        self._expected = expected

    # Queries for scripts.

    def pod(self, name: str) -> Pod | None:
        """Return a pod of the API."""
        return self.world.api.peek(Pod, name, "default")

    def is_ready(self, name: str) -> bool:
        """Whether a pod is Ready in the API."""
        found = self.pod(name)
        return found is not None and ready_of(found.status) == "True"

    def phase(self, name: str) -> str:
        """Return a pod's phase in the API. Empty: there is no such pod."""
        found = self.pod(name)
        return "" if found is None else found.status.phase or ""

    def runs(self, uid: PodUID, container: str) -> bool:
        """Whether a container is really running."""
        return any(run.name == container for run in self.world.truth.running(uid))

    # Steps of scripts.

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for a condition. End the run with a violation if it takes too long."""
        give_up = self.world.now() + TIMEOUT_SECONDS
        while not holds():
            if self.world.now() >= give_up:
                await self._fail(f"expected within {TIMEOUT_SECONDS:g} s: {what}")
            await asyncio.sleep(STEP_SECONDS)

    async def settle(self, title: str) -> None:
        """Record a snapshot. A perturbed run waits until it equals the expected one."""
        await asyncio.sleep(SETTLE_SECONDS)  # in both runs, so that later steps happen at the same times
        if self._expected is None:
            self.snapshots.append(await self._snapshot(title))
            return
        expected = self._expected[len(self.snapshots)]
        give_up = self.world.now() + TIMEOUT_SECONDS
        while (snapshot := await self._snapshot(title)) != expected:
            if self.world.now() >= give_up:
                difference = expected.difference(snapshot)
                await self._fail(f"snapshot {title!r} differs after {TIMEOUT_SECONDS:g} s:\n{difference}")
            await asyncio.sleep(STEP_SECONDS)
        self.snapshots.append(snapshot)

    async def _fail(self, why: str) -> None:
        self.world.violated("same end", "", why)
        await asyncio.Event().wait()  # the world ends the run

    async def _snapshot(self, title: str) -> WorldSnapshot:
        world, names = self.world, self.log.names
        lines = [f"API: {names[uid_of(pod)]} {_published(pod, world.truth)}" for pod in world.api.objects(Pod)]
        lines += [f"runtime: {names[PodUID(it.uid)]} {_runtime_state(it)}" for it in await world.runtime.list_pods()]
        lines += [f"mount: {names[uid]}" for uid in world.volumes.mounted_pods()]
        lines += [f"directory: {names[uid]}" for uid in await world.volumes.directories()]
        lines += [f"cgroup: {names[uid]}" for uid in await world.cgroups.list_pods()]
        return WorldSnapshot(title, tuple(sorted(lines)))


class ScenarioLog:
    """What happened between the snapshots."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._truth = world.truth
        self.names = _PodLabels()
        self.ready: defaultdict[str, list[str]] = defaultdict(list)  # each change of the Ready condition, by pod
        self.phases: defaultdict[str, list[str]] = defaultdict(list)
        self._terminating: dict[PodUID, str] = {}  # pods that must terminate, and how the agent was informed
        world.bus.subscribe(PodChanged, self._on_pod_changed)
        world.bus.subscribe(UpdateReceived, self._on_update_received)
        world.bus.subscribe(CallStarted, self._on_call_started)

    def ends(self) -> dict[str, list[str]]:
        """Return how each container ended that ever ran, by pod and container."""
        ends: defaultdict[str, list[str]] = defaultdict(list)
        for run in self._truth.containers.values():
            if run.started is not None:
                ended = "runs" if run.ended is None else f"{run.exit_code} {run.reason}"
                ends[f"{self.names[run.uid]}/{run.name}"].append(ended)
        return dict(ends)

    def _on_pod_changed(self, it: PodChanged) -> None:
        pod = it.new
        if pod is None:
            return
        name = self.names.of(pod)
        if it.old is not None:  # a new object has no status yet, so a recreated mirror pod is no change
            _append_change(self.ready[name], ready_of(pod.status))
            _append_change(self.phases[name], pod.status.phase or "")
        if is_terminal(pod.status.phase) and not is_mirror_pod(pod):
            self._terminating.setdefault(uid_of(pod), f"its phase is {pod.status.phase}")

    def _on_update_received(self, it: UpdateReceived) -> None:
        update = it.update
        for pod in update.pods:
            self.names.of(pod)
            if update.source == API_SOURCE and (update.op is Op.REMOVE or pod.metadata.deletion_timestamp):
                self._terminating.setdefault(uid_of(pod), f"agent {it.agent} received its deletion")

    def _on_call_started(self, call: CallStarted) -> None:
        if call.operation == "start_container" and (why := self._terminating.get(call.uid)):
            name = f"{self.names[call.uid]}/{call.subject}"
            self._world.violated("I12", call.uid, f"container {name} is started but the pod must terminate: {why}")


class _PodLabels(dict[PodUID, str]):
    """Labels of pods: the name and a counter, for pods with the same name."""

    def __init__(self) -> None:
        super().__init__()
        self._known: defaultdict[str, int] = defaultdict(int)

    def __missing__(self, uid: PodUID) -> str:
        return f"unknown {uid}"

    def of(self, pod: Pod) -> str:
        uid, name = uid_of(pod), pod.metadata.name or ""
        if uid not in self:
            if is_mirror_pod(pod):
                self[uid] = f"mirror of {name}"  # without a counter, because it may be recreated
            else:
                self._known[name] += 1
                self[uid] = f"{name}#{self._known[name]}"
        return self[uid]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named sequence of user actions, with snapshots in between."""

    name: str
    script: Callable[[ScenarioRun], Awaitable[None]]


def ready_of(status: PodStatus) -> str:
    """Return the status of the Ready condition. Empty: there is none."""
    return next((each.status for each in status.conditions or () if each.type == "Ready"), "")


def _append_change(changes: list[str], value: str) -> None:
    if not changes or changes[-1] != value:
        changes.append(value)


def _published(pod: Pod, truth: GroundTruth) -> str:
    """Return the published state of a pod without times, IDs and addresses."""
    meta, status = pod.metadata, pod.status
    parts = [status.phase or "", status.reason or "", "ending" if meta.deletion_timestamp else ""]
    parts += [container.image or "" for container in pod.spec.containers]
    parts += sorted(f"{each.type}={each.status} {each.reason or ''}" for each in status.conditions or ())
    for each in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        parts.append(_container_text(each, _unstarted_attempts(each, truth)))
    return ", ".join(filter(None, parts))


def _unstarted_attempts(status: ContainerStatus, truth: GroundTruth) -> int:
    """Return how many earlier attempts of a container were created and never started.

    An agent that crashes between the two calls leaves such an attempt. As in the kubelet, it counts as a restart.
    """
    known = truth.containers.get((status.container_id or "").partition("://")[2])
    if known is None:
        return 0
    tries = truth.attempts(known.uid, known.name)
    return sum(run.started is None for run in tries if run.created < known.created)


def _container_text(status: ContainerStatus, failed_creates: int) -> str:
    restarts = (status.restart_count or 0) - failed_creates
    text = f"{status.name} {_state_text(status.state)} r{restarts} ready={status.ready} started={status.started}"
    return f"{text} last={_state_text(status.last_state)}"


def _state_text(state: ContainerState) -> str:
    if state.running is not None:
        return "running"
    if state.terminated is not None:
        return f"exited {state.terminated.exit_code} {state.terminated.reason or ''}"
    return "-" if state.waiting is None else state.waiting.reason or "waiting"


def _runtime_state(record: PodRecord) -> str:
    sandboxes = sorted("ready sandbox" if each.ready else "sandbox" for each in record.sandboxes)
    containers = sorted(
        f"{each.name} {each.state} {each.exit_code}" for each in record.containers if each.state != "created"
    )
    return ", ".join((*sandboxes, *containers))
