"""Workload actions: changes by users and controllers to the pods of a node.

Each action is a frozen value that can be printed, left out and run again. Actions use the API directly (it is never
down for them), the manifests of static pods, or the machine itself. An action finds its pod by name when it runs. If
there is no such pod, it does nothing.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from podkeeper.model.errors import NotFound
from podkeeper.model.k8s.core import EphemeralContainer, Pod, PodCondition, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.times import format_time
from podkeeper.rules.admission.preempt import is_critical_pod
from podkeeper.rules.evict import evicted_status, shortage_eviction
from podkeeper.rules.housekeeping import is_active
from podkeeper.testing.fake_sources import FakeStaticSource
from podkeeper.testing.sim.pods import NAMESPACE
from podkeeper.testing.sim.records import EvictionBegan, EvictionEnded
from podkeeper.testing.sim.world import NODE, World

POLL_SECONDS = 0.1  # how often `Replace` checks whether the old pod has been removed


@dataclass(frozen=True, slots=True)
class Create:
    """Create a pod, unless there is one with that name."""

    kind: str
    pod: Pod

    def __str__(self) -> str:
        return f"create {described(self.pod)}"

    def run(self, world: World) -> None:
        if found(world, self.pod.metadata.name or "") is None:
            world.api.put(self.pod)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a pod or a mirror pod. Grace None: the pod's own. Grace 0: forced."""

    kind: str
    name: str
    grace_seconds: int | None = None

    def __str__(self) -> str:
        how = {None: "", 0: " by force"}.get(self.grace_seconds, f" within {self.grace_seconds} s")
        return f"delete {self.name}{how}"

    def run(self, world: World) -> None:
        with suppress(NotFound):
            world.api.mark_deleted(Pod, self.name, NAMESPACE, grace_seconds=self.grace_seconds)


@dataclass(frozen=True, slots=True)
class Replace:
    """Delete a pod, and create another one with its name as soon as it has been removed."""

    kind: str
    pod: Pod
    grace_seconds: int | None = None  # 0: forced, so the new pod is created at once
    patience_seconds: float = 0.0  # how long to wait for the removal

    def __str__(self) -> str:
        by_force = " by force" if self.grace_seconds == 0 else ""
        return f"replace{by_force} {described(self.pod)}"

    def run(self, world: World) -> None:
        """Delete the old pod and start to wait for its removal."""
        name = self.pod.metadata.name or ""
        old = found(world, name)
        Delete(self.kind, name, self.grace_seconds).run(world)
        if old is not None:
            self._create_when_removed(world, old.metadata.uid or "", world.now() + self.patience_seconds)

    def _create_when_removed(self, world: World, uid: str, until: float) -> None:
        there = found(world, self.pod.metadata.name or "")
        if there is None:
            world.api.put(self.pod)
        elif there.metadata.uid == uid and world.now() + POLL_SECONDS < until:
            world.loop.call_later(POLL_SECONDS, self._create_when_removed, world, uid, until)


@dataclass(frozen=True, slots=True)
class ChangeImage:
    """Change the image of a container."""

    kind: str
    name: str
    container: str
    image: str

    def __str__(self) -> str:
        return f"change {self.name}: {self.container} gets image {self.image}"

    def run(self, world: World) -> None:
        pod = found(world, self.name)
        if pod is not None:
            there = pod.spec.init_containers, pod.spec.containers
            inits, apps = (
                tuple(replace(each, image=self.image) if each.name == self.container else each for each in some or ())
                for some in there
            )
            world.api.replace_spec(self.name, replace(pod.spec, containers=apps, init_containers=inits or None))


@dataclass(frozen=True, slots=True)
class AddLabel:
    """Add a label to a pod."""

    kind: str
    name: str
    label: str

    def __str__(self) -> str:
        return f"label {self.name} as {self.label}"

    def run(self, world: World) -> None:
        pod = found(world, self.name)
        if pod is not None:
            labels = {**(pod.metadata.labels or {}), "as": self.label}
            world.api.put(replace(pod, metadata=replace(pod.metadata, labels=labels)))


@dataclass(frozen=True, slots=True)
class SetCondition:
    """Set a condition in a pod's status, as another controller does."""

    kind: str
    name: str
    condition: str

    def __str__(self) -> str:
        return f"set condition {self.condition} of {self.name}"

    def run(self, world: World) -> None:
        pod = found(world, self.name)
        if pod is not None:
            others = tuple(each for each in pod.status.conditions or () if each.type != self.condition)
            condition = PodCondition(
                type=self.condition, status="True", last_transition_time=format_time(world.clock.now())
            )
            world.api.put(replace(pod, status=replace(pod.status, conditions=(*others, condition))))


@dataclass(frozen=True, slots=True)
class AddEphemeralContainer:
    """Add an ephemeral container to a pod."""

    kind: str
    name: str
    container: EphemeralContainer

    def __str__(self) -> str:
        return f"add ephemeral container {self.container.name} to {self.name}"

    def run(self, world: World) -> None:
        pod = found(world, self.name)
        if pod is not None:
            there = tuple(each for each in pod.spec.ephemeral_containers or () if each.name != self.container.name)
            world.api.replace_spec(self.name, replace(pod.spec, ephemeral_containers=(*there, self.container)))


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Write the manifest of a static pod. It replaces an existing one."""

    kind: str
    pod: Pod
    web: bool = False

    def __str__(self) -> str:
        return f"write {described(self.pod)} at {place(self.pod.metadata.name or '', self.web)}"

    def run(self, world: World) -> None:
        _source(world, self.web).write(place(self.pod.metadata.name or "", self.web), self.pod)


@dataclass(frozen=True, slots=True)
class RemoveManifest:
    """Remove the manifest of a static pod."""

    kind: str
    name: str
    web: bool = False

    def __str__(self) -> str:
        return f"remove {place(self.name, self.web)}"

    def run(self, world: World) -> None:
        _source(world, self.web).erase(place(self.name, self.web))


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a pod because the node is low on memory. Grace None: the pod's own."""

    kind: str
    name: str
    grace_seconds: int | None

    def __str__(self) -> str:
        return f"evict {self.name}" + ("" if self.grace_seconds is None else f" within {self.grace_seconds} s")

    def run(self, world: World) -> None:
        """Evict the pod if it is active and not critical, as an eviction manager does."""
        agent = world.agent
        pod = agent.engine.manager.pod_by_full_name(f"{self.name}_{NAMESPACE}") if agent is not None else None
        if agent is None or pod is None or is_critical_pod(pod):
            return
        published = agent.engine.statuses.get_pod_status(PodUID(pod.metadata.uid or ""))
        if is_active(pod, None if published is None else published.phase, agent.engine.workers):
            eviction = shortage_eviction("The node was low on resource: memory.", by_own_limits=False)

            def final_status(status: PodStatus) -> PodStatus:
                return evicted_status(pod, status, eviction, world.clock.now())

            kill = partial(agent.engine.workers.kill_pod, pod, evict=True, status_function=final_status)
            world.in_agent(self._wait(world, pod, kill))

    async def _wait(self, world: World, pod: Pod, kill: Callable[..., Awaitable[None]]) -> None:
        own_grace = pod.spec.termination_grace_period_seconds or 0
        grace = own_grace if self.grace_seconds is None else self.grace_seconds
        world.bus.publish(EvictionBegan(world.now(), pod, grace))
        done = False
        try:
            await kill(grace_override_seconds=self.grace_seconds)
            done = True
        finally:
            world.bus.publish(EvictionEnded(world.now(), PodUID(pod.metadata.uid or ""), done))


@dataclass(frozen=True, slots=True)
class EndContainer:
    """End a container from outside the agent."""

    kind: str
    name: str
    container: str
    exit_code: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.container} of {self.name} ends with {self.exit_code} {self.reason}".rstrip()

    def run(self, world: World) -> None:
        uid = uid_by_name(world, self.name)
        if uid is not None:
            world.runtime.end_container(uid, self.container, self.exit_code, self.reason)


@dataclass(frozen=True, slots=True)
class KillSandbox:
    """Kill the sandbox of a pod, and all its containers."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"the sandbox of {self.name} dies"

    def run(self, world: World) -> None:
        uid = uid_by_name(world, self.name)
        if uid is not None:
            world.runtime.kill_sandbox(uid)


@dataclass(frozen=True, slots=True)
class SetImagePullable:
    """Make an image impossible to pull, or possible again."""

    kind: str
    image: str
    pullable: bool = False

    def __str__(self) -> str:
        return f"image {self.image} " + ("can be pulled again" if self.pullable else "cannot be pulled")

    def run(self, world: World) -> None:
        change: Callable[[str], None] = (
            world.runtime.missing_images.discard if self.pullable else world.runtime.missing_images.add
        )
        change(self.image)


def found(world: World, name: str) -> Pod | None:
    """Return the pod with that name in the API, if there is one."""
    return world.api.peek(Pod, name, NAMESPACE)


def uid_by_name(world: World, name: str) -> PodUID | None:
    """Return the UID of the pod with that name. For a static pod, this is its own UID, not that of its mirror pod."""
    for static in (*world.files.pods(), *world.web.pods()):
        if static.metadata.name == name:
            return PodUID(static.metadata.uid or "")
    pod = found(world, name)
    return None if pod is None else PodUID(pod.metadata.uid or "")


def static_name(name: str) -> str:
    """Return the name of a static pod on its node, which is also the name of its mirror pod."""
    return f"{name}-{NODE}"


def place(name: str, web: bool) -> str:
    """Return the location of a static pod's manifest."""
    return f"http://manifests.test/{name}" if web else f"/etc/podkeeper/manifests/{name}.yaml"


def described(pod: Pod) -> str:
    """Return a short description of a pod."""
    spec = pod.spec
    inits = [f"init {each.name}" for each in spec.init_containers or ()]
    names = ", ".join((*inits, *(f"{each.name} of {each.image}" for each in spec.containers)))
    return f"{pod.metadata.name} ({names}; {spec.restart_policy}, grace {spec.termination_grace_period_seconds} s)"


def _source(world: World, web: bool) -> FakeStaticSource:
    return world.web if web else world.files
