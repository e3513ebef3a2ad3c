"""What users and controllers do to the pods of a node, as deeds: values that can be shown, left out, played again.

They act as the rest of a cluster does: on the API directly (it is never down for them), on the places where static
pods are written, on the machine itself. Each names its pod; what that name means is looked up when the deed is played,
and a pod that is gone, or not there yet, is simply left alone.
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
from podkeeper.rules.evict import evicted_status, shortage_eviction
from podkeeper.rules.housekeeping import is_active
from podkeeper.rules.preempt import is_critical_pod
from podkeeper.testing.fake_sources import FakeStaticSource
from podkeeper.testing.sim.pods import NAMESPACE
from podkeeper.testing.sim.records import EvictionBegan, EvictionEnded
from podkeeper.testing.sim.world import NODE, World

LOOK_SECONDS = 0.1  # how often somebody looks whether a pod is gone


@dataclass(frozen=True, slots=True)
class Create:
    """Somebody creates a pod, unless there is one of that name."""

    kind: str
    pod: Pod

    def __str__(self) -> str:
        return f"create {described(self.pod)}"

    def play(self, world: World) -> None:
        """Do it."""
        if found(world, self.pod.metadata.name or "") is None:
            world.api.put(self.pod)


@dataclass(frozen=True, slots=True)
class Delete:
    """Somebody deletes a pod, or a static pod's mirror; None: with the grace the pod asks for, 0: by force."""

    kind: str
    name: str
    grace_seconds: int | None = None

    def __str__(self) -> str:
        how = {None: "", 0: " by force"}.get(self.grace_seconds, f" within {self.grace_seconds} s")
        return f"delete {self.name}{how}"

    def play(self, world: World) -> None:
        """Do it."""
        with suppress(NotFound):
            world.api.mark_deleted(Pod, self.name, NAMESPACE, grace_seconds=self.grace_seconds)


@dataclass(frozen=True, slots=True)
class Succeed:
    """Somebody deletes a pod, and creates another one of its name as soon as it is gone."""

    kind: str
    pod: Pod
    grace_seconds: int | None = None  # 0: by force, so that the other one is there at once
    patience_seconds: float = 0.0  # how long to wait for its end

    def __str__(self) -> str:
        by_force = " by force" if self.grace_seconds == 0 else ""
        return f"replace{by_force} {described(self.pod)}"

    def play(self, world: World) -> None:
        """Do it."""
        name = self.pod.metadata.name or ""
        old = found(world, name)
        Delete(self.kind, name, self.grace_seconds).play(world)
        if old is not None:
            self._follow(world, old.metadata.uid or "", world.now() + self.patience_seconds)

    def _follow(self, world: World, uid: str, until: float) -> None:
        there = found(world, self.pod.metadata.name or "")
        if there is None:
            world.api.put(self.pod)
        elif there.metadata.uid == uid and world.now() + LOOK_SECONDS < until:
            world.loop.call_later(LOOK_SECONDS, self._follow, world, uid, until)


@dataclass(frozen=True, slots=True)
class ChangeImage:
    """Somebody gives a container another image."""

    kind: str
    name: str
    container: str
    image: str

    def __str__(self) -> str:
        return f"change {self.name}: {self.container} is to run {self.image}"

    def play(self, world: World) -> None:
        """Do it."""
        pod = found(world, self.name)
        if pod is not None:
            there = pod.spec.init_containers, pod.spec.containers
            inits, apps = (
                tuple(replace(each, image=self.image) if each.name == self.container else each for each in some or ())
                for some in there
            )
            world.api.replace_spec(self.name, replace(pod.spec, containers=apps, init_containers=inits or None))


@dataclass(frozen=True, slots=True)
class Label:
    """Somebody labels a pod."""

    kind: str
    name: str
    label: str

    def __str__(self) -> str:
        return f"label {self.name} as {self.label}"

    def play(self, world: World) -> None:
        """Do it."""
        pod = found(world, self.name)
        if pod is not None:
            labels = {**(pod.metadata.labels or {}), "as": self.label}
            world.api.put(replace(pod, metadata=replace(pod.metadata, labels=labels)))


@dataclass(frozen=True, slots=True)
class Remark:
    """A controller of somebody else's puts a condition into a pod's status."""

    kind: str
    name: str
    condition: str

    def __str__(self) -> str:
        return f"remark {self.condition} about {self.name}"

    def play(self, world: World) -> None:
        """Do it."""
        pod = found(world, self.name)
        if pod is not None:
            others = tuple(each for each in pod.status.conditions or () if each.type != self.condition)
            said = PodCondition(type=self.condition, status="True", last_transition_time=format_time(world.clock.now()))
            world.api.put(replace(pod, status=replace(pod.status, conditions=(*others, said))))


@dataclass(frozen=True, slots=True)
class Debug:
    """Somebody adds an ephemeral container to a pod."""

    kind: str
    name: str
    container: EphemeralContainer

    def __str__(self) -> str:
        return f"debug {self.name} with {self.container.name}"

    def play(self, world: World) -> None:
        """Do it."""
        pod = found(world, self.name)
        if pod is not None:
            there = tuple(each for each in pod.spec.ephemeral_containers or () if each.name != self.container.name)
            world.api.replace_spec(self.name, replace(pod.spec, ephemeral_containers=(*there, self.container)))


@dataclass(frozen=True, slots=True)
class Write:
    """Somebody writes a static pod's manifest, instead of what was there."""

    kind: str
    pod: Pod
    web: bool = False

    def __str__(self) -> str:
        return f"write {described(self.pod)} at {place(self.pod.metadata.name or '', self.web)}"

    def play(self, world: World) -> None:
        """Do it."""
        _source(world, self.web).write(place(self.pod.metadata.name or "", self.web), self.pod)


@dataclass(frozen=True, slots=True)
class Erase:
    """Somebody takes a static pod's manifest away."""

    kind: str
    name: str
    web: bool = False

    def __str__(self) -> str:
        return f"erase {place(self.name, self.web)}"

    def play(self, world: World) -> None:
        """Do it."""
        _source(world, self.web).erase(place(self.name, self.web))


@dataclass(frozen=True, slots=True)
class Evict:
    """The node runs short of something, and its eviction manager chooses this pod; None: with the pod's own grace."""

    kind: str
    name: str
    grace_seconds: int | None

    def __str__(self) -> str:
        return f"evict {self.name}" + ("" if self.grace_seconds is None else f" within {self.grace_seconds} s")

    def play(self, world: World) -> None:
        """Do it: as an eviction manager, only to a pod that takes part in the node's life and is not critical."""
        agent = world.agent
        pod = agent.manager.pod_by_full_name(f"{self.name}_{NAMESPACE}") if agent is not None else None
        if agent is None or pod is None or is_critical_pod(pod):
            return
        published = agent.statuses.get_pod_status(PodUID(pod.metadata.uid or ""))
        if is_active(pod, None if published is None else published.phase, agent.workers):
            eviction = shortage_eviction("The node was low on resource: memory.", by_own_limits=False)

            def last_words(status: PodStatus) -> PodStatus:
                return evicted_status(pod, status, eviction, world.clock.now())

            kill = partial(agent.workers.kill_pod, pod, evict=True, status_function=last_words)
            world.in_agent(self._wait(world, pod, kill))

    async def _wait(self, world: World, pod: Pod, kill: Callable[..., Awaitable[None]]) -> None:
        own_grace = pod.spec.termination_grace_period_seconds or 0
        grace = own_grace if self.grace_seconds is None else self.grace_seconds
        world.bus.tell(EvictionBegan(world.now(), pod, grace))
        done = False
        try:
            await kill(grace_override_seconds=self.grace_seconds)
            done = True
        finally:
            world.bus.tell(EvictionEnded(world.now(), PodUID(pod.metadata.uid or ""), done))


@dataclass(frozen=True, slots=True)
class EndContainer:
    """A container ends, though nobody of this house has ended it."""

    kind: str
    name: str
    container: str
    exit_code: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.container} of {self.name} ends with {self.exit_code} {self.reason}".rstrip()

    def play(self, world: World) -> None:
        """Do it."""
        uid = uid_of(world, self.name)
        if uid is not None:
            world.runtime.end_container(uid, self.container, self.exit_code, self.reason)


@dataclass(frozen=True, slots=True)
class KillSandbox:
    """A pod's sandbox dies, and all that runs in it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"the sandbox of {self.name} dies"

    def play(self, world: World) -> None:
        """Do it."""
        uid = uid_of(world, self.name)
        if uid is not None:
            world.runtime.kill_sandbox(uid)


@dataclass(frozen=True, slots=True)
class Lose:
    """An image can be pulled no more, or again."""

    kind: str
    image: str
    again: bool = False

    def __str__(self) -> str:
        return f"image {self.image} can be pulled " + ("again" if self.again else "no more")

    def play(self, world: World) -> None:
        """Do it."""
        change: Callable[[str], None] = (
            world.runtime.missing_images.discard if self.again else world.runtime.missing_images.add
        )
        change(self.image)


def found(world: World, name: str) -> Pod | None:
    """The pod of that name in the API, if there is one."""
    return world.api.peek(Pod, name, NAMESPACE)


def uid_of(world: World, name: str) -> PodUID | None:
    """The UID of the pod that is wanted under a name; of a static pod its own, not its mirror's."""
    for static in (*world.files.pods(), *world.web.pods()):
        if static.metadata.name == name:
            return PodUID(static.metadata.uid or "")
    pod = found(world, name)
    return None if pod is None else PodUID(pod.metadata.uid or "")


def static_name(name: str) -> str:
    """What a static pod is called on its node, and its mirror in the API."""
    return f"{name}-{NODE}"


def place(name: str, web: bool) -> str:
    """Where a static pod's manifest lies."""
    return f"http://manifests.test/{name}" if web else f"/etc/podkeeper/manifests/{name}.yaml"


def described(pod: Pod) -> str:
    """A pod in a few words."""
    spec = pod.spec
    inits = [f"init {each.name}" for each in spec.init_containers or ()]
    names = ", ".join((*inits, *(f"{each.name} of {each.image}" for each in spec.containers)))
    return f"{pod.metadata.name} ({names}; {spec.restart_policy}, grace {spec.termination_grace_period_seconds} s)"


def _source(world: World, web: bool) -> FakeStaticSource:
    return world.web if web else world.files
