"""One pod at rest: whether it is as it should be, and whether the API says just what is true of it.

    RestingPod(world, book, pod, status).complaint()     # empty: all is well

What a container may be doing then follows from the spec and the truth alone, told here once more and on purpose in
other words than in `rules.plan` and `rules.status`: it runs, from the newest spec; or it has ended and is not to run
again; or it waits for its next try (a back-off is never longer than five minutes), for its image, or for those that
initialise the pod.
"""

from collections.abc import Iterator
from enum import Enum, auto
from math import inf

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, PodUID
from podkeeper.model.runtime import api_container_id
from podkeeper.model.times import instant
from podkeeper.rules.container_hash import container_hash
from podkeeper.rules.phase import Phase, is_terminal
from podkeeper.testing.sim.invariants.probe_book import ProbeBook
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.truth import ContainerLife, SandboxLife
from podkeeper.testing.sim.world import World

LONGEST_WAIT_SECONDS = 345.0  # five minutes of back-off, half a minute of jitter, and the start itself
STEADY_SECONDS = 60.0  # what was so for this long is known to everybody
ENDING_SECONDS = 10.0  # on top of the grace, for a pod that has had its time
RUNTIME = "fake"
_ALL_BUT_JUMPS = FAULT_RATES.keys() - {"clock-jump"}


class Standing(Enum):
    """Where a container stands."""

    RUNS = auto()
    WAITS = auto()  # it ran or tried to, and will be tried again
    HINDERED = auto()  # its image is missing: it was not even tried
    OVER = auto()  # it ended, and is not to run again
    UNTRIED = auto()  # it should have been


class RestingPod:
    """A pod that nobody has disturbed for some time."""

    def __init__(self, world: World, book: ProbeBook, pod: Pod, shown: PodStatus, mirror: Pod | None = None) -> None:
        """`pod` is what is wanted, `shown` what the API says of it: for a static pod its `mirror` does."""
        self._world = world
        self._book = book
        self._pod = pod
        self._shown = shown
        self._mirror = mirror
        self._uid = PodUID(pod.metadata.uid or "")
        mine = [it for it in world.truth.sandboxes.values() if it.uid == self._uid]
        self._sandbox: SandboxLife | None = mine[-1] if mine else None

    @property
    def is_over(self) -> bool:
        """Whether the pod has come to its end: in truth, or as the API says."""
        done = all(self._standing(each) is Standing.OVER for each in self._pod.spec.containers)
        return done or is_terminal(self._shown.phase)

    @property
    def changed(self) -> float:
        """When something of the pod last changed, in truth."""
        lives = self._world.truth.of_pod(self._uid)
        moments = [each for it in lives for each in (it.created, it.started, it.ended) if each is not None]
        if self._sandbox is not None:
            moments += [self._sandbox.made, self._sandbox.stopped or 0.0]
        return max(moments, default=0.0)

    def complaint(self) -> str:
        """What is wrong; empty when nothing is."""
        return next(self._complaints(), "")

    def _complaints(self) -> Iterator[str]:
        name = self._pod.metadata.name
        if self._pod.metadata.deletion_timestamp is not None:
            if not self._pod.metadata.finalizers:
                yield f"{name} is still being deleted"
        elif is_terminal(self._shown.phase):
            yield from self._complaints_of_the_dead()
        else:
            yield from self._complaints_of_the_living()
        mirror = self._mirror
        if mirror is not None and (mirror.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) != self._uid:
            yield f"the mirror of {name} is that of another version"

    # A pod that is over.

    def _complaints_of_the_dead(self) -> Iterator[str]:
        name, world = self._pod.metadata.name, self._world
        if running := world.truth.running(self._uid):
            yield f"{name} is {self._shown.phase}, but {running[0].name} ({running[0].id}) runs"
        if self._sandbox is not None and self._sandbox.stopped is None and self._sandbox.removed is None:
            yield f"{name} is {self._shown.phase}, but its sandbox {self._sandbox.id} is ready"
        if self._uid in world.volumes.mounted_pods():
            yield f"{name} is {self._shown.phase}, but its volumes are mounted"
        if self._uid in world.cgroups.peek_pods():
            yield f"{name} is {self._shown.phase}, but it has a cgroup"
        for status in (*(self._shown.init_container_statuses or ()), *(self._shown.container_statuses or ())):
            life = self._newest(status.name)
            if life is not None and life.ended is not None and life.removed is None:
                yield from self._complaints_of_end(status, life)

    # A pod that lives.

    def _complaints_of_the_living(self) -> Iterator[str]:
        spec = self._pod.spec
        inits, regular = spec.init_containers or (), spec.containers
        initialized = self._is_initialized()
        if not initialized:
            yield from self._complaints_of_beginning(inits)
            return
        standings = {each.name: self._standing(each) for each in (*inits, *regular)}
        for each in inits:
            if each.restart_policy == "Always":
                yield from self._complaints_of(each, standings[each.name])
            elif standings[each.name] is Standing.RUNS:
                yield f"{each.name} initialises {self._pod.metadata.name}, which is initialised"
        for each in regular:
            yield from self._complaints_of(each, standings[each.name])
        over = all(standings[each.name] is Standing.OVER for each in regular)
        if over and self.changed < self._world.now() - (self._longest_wait() - LONGEST_WAIT_SECONDS):
            yield f"all containers of {self._pod.metadata.name} have ended for good, but it is {self._shown.phase}"
        # Whoever has not begun at all holds up the pod's phase.
        tried = all(self._newest(each.name) is not None for each in regular)
        if self._shown.phase != (Phase.RUNNING if tried else Phase.PENDING) and not inits:
            yield f"{self._pod.metadata.name} is said to be {self._shown.phase}"
        yield from self._complaints_of_deadline()
        yield from self._complaints_of_readiness()

    def _is_initialized(self) -> bool:
        """Whether a container that does the pod's work was made in the sandbox there is now."""
        regular = {each.name for each in self._pod.spec.containers}
        lives = self._world.truth.of_pod(self._uid)
        here = None if self._sandbox is None else self._sandbox.id
        if any(life.name in regular and life.sandbox_id == here for life in lives):
            return True
        return not self._pod.spec.init_containers

    def _complaints_of_beginning(self, inits: tuple[Container, ...]) -> Iterator[str]:
        """Init containers have their turn one after the other; a sidecar's is over once it has started."""
        for each in inits:
            here = [it for it in self._lives(each.name) if self._sandbox and it.sandbox_id == self._sandbox.id]
            standing = self._standing(each)
            if each.restart_policy == "Always":
                yield from self._complaints_of(each, standing)
                if standing is not Standing.RUNS or not self._has_started(each.name):
                    return
            elif not here or here[-1].ended is None or here[-1].exit_code != 0 or here[-1].reason == "OOMKilled":
                yield from self._complaints_of(each, standing if here else self._untried(each))
                if standing is Standing.OVER:
                    yield f"{each.name} of {self._pod.metadata.name} has failed for good, but it is {self._shown.phase}"
                return
        for each in self._pod.spec.containers:
            yield from self._complaints_of(each, self._untried(each))

    def _has_started(self, name: str) -> bool:
        found = self._book.get(self._uid)
        container = None if found is None else found.containers.get(name)
        return container is None or container.started.value

    # A container.

    def _standing(self, container: Container) -> Standing:
        life = self._newest(container.name)
        if life is None or (life.ended is None and not life.running):
            return self._untried(container)
        if life.running:
            return Standing.RUNS
        return Standing.WAITS if self._runs_again(container, life.exit_code or 0) else Standing.OVER

    def _untried(self, container: Container) -> Standing:
        missing = container.image in self._world.runtime.missing_images
        return Standing.HINDERED if missing else Standing.UNTRIED

    def _runs_again(self, container: Container, exit_code: int) -> bool:
        policy = container.restart_policy or self._pod.spec.restart_policy or "Always"
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)

    def _complaints_of(self, container: Container, standing: Standing) -> Iterator[str]:
        status, life = self._status(container.name), self._newest(container.name)
        who = f"{container.name} of {self._pod.metadata.name}"
        if standing is Standing.UNTRIED:
            yield f"{who} does not run, and nothing hinders it"
        elif status is None:
            yield f"the API says nothing of {who}"
        elif standing is Standing.HINDERED:
            if status.state.waiting is None:
                yield f"{who} waits for its image, but the API does not say so"
        elif life is not None and standing is Standing.RUNS:
            yield from self._complaints_of_run(container, status, life)
        elif life is not None and standing is Standing.OVER:
            yield from self._complaints_of_end(status, life)
        elif life is not None and life.ended is not None:
            waited = self._world.now() - life.ended
            hindered = self._untried(container) is Standing.HINDERED or self._clock_jumped_since(life.ended)
            if waited > self._longest_wait() and not hindered:
                yield f"{who} ended {waited:.0f} s ago and still does not run again"
            if status.state.running is not None:
                yield f"{who} is said to run, and does not"
            yield from self._complaints_of_end(status, life)

    def _complaints_of_run(self, container: Container, status: ContainerStatus, life: ContainerLife) -> Iterator[str]:
        who = f"{container.name} ({life.id}) of {self._pod.metadata.name}"
        if life.spec_hash != container_hash(container) or life.image != container.image:
            yield f"{who} runs {life.image}, not {container.image}"
        if self._sandbox is not None and (life.sandbox_id != self._sandbox.id or self._sandbox.stopped is not None):
            yield f"{who} runs in a sandbox that is over"
        if status.state.running is None or status.container_id != api_container_id(RUNTIME, life.id):
            yield f"{who} runs, but the API does not say so: {status.state} {status.container_id}"
        tries = len(self._lives(container.name))
        if not life.attempt <= (status.restart_count or 0) <= tries:
            count = status.restart_count
            yield f"{who} is said to have restarted {count} times; it is its try {life.attempt} of {tries}"

    def _complaints_of_end(self, status: ContainerStatus, life: ContainerLife) -> Iterator[str]:
        """Its end is told: as what it is now, or as what it last was."""
        ids = (api_container_id(RUNTIME, life.id), None)
        told = (status.state.terminated, status.last_state.terminated)
        if not any(end is not None and end.container_id in ids and end.exit_code == life.exit_code for end in told):
            who = f"{life.name} ({life.id}) of {self._pod.metadata.name}"
            yield f"{who} exited {life.exit_code}, which the API does not say"

    def _longest_wait(self) -> float:
        """How long a container may wait for its next try.

        As in the reference, one that has to begin again waits for sidecars that wait themselves; so does the end of a
        pod whose work is done.
        """
        inits = self._pod.spec.init_containers or ()
        waiting = any(each.restart_policy == "Always" and not self._runs(each.name) for each in inits)
        return LONGEST_WAIT_SECONDS * 2 if waiting else LONGEST_WAIT_SECONDS

    def _runs(self, name: str) -> bool:
        return any(life.running for life in self._lives(name))

    def _clock_jumped_since(self, at: float) -> bool:
        return bool(self._world.troubles.touched(at, None, but=_ALL_BUT_JUMPS))

    # Deadlines and readiness.

    def _overdue_seconds(self) -> float:
        """How long ago the pod's time was over, by the node's clock; less than zero: it is not."""
        begun, deadline = instant(self._shown.start_time), self._pod.spec.active_deadline_seconds
        if begun is None or deadline is None:
            return -inf
        return (self._world.clock.now() - begun).total_seconds() - deadline

    def _complaints_of_deadline(self) -> Iterator[str]:
        overdue = self._overdue_seconds()
        if overdue > (self._pod.spec.termination_grace_period_seconds or 0) + ENDING_SECONDS:
            yield f"{self._pod.metadata.name} is {self._shown.phase}, but its time was over {overdue:.0f} s ago"

    def _complaints_of_readiness(self) -> Iterator[str]:
        found = self._book.get(self._uid)
        if found is None or self._pod.spec.readiness_gates or self._world.now() - found.ready.changed < STEADY_SECONDS:
            return
        said = any(each.type == "Ready" and each.status == "True" for each in self._shown.conditions or ())
        if not said and self._overdue_seconds() >= 0:
            return  # its containers are being stopped: it is unready from the beginning of its end
        if said is not found.ready.value:
            no = "" if said else "not "
            yield f"{self._pod.metadata.name} is said to be {no}ready, and is {'not' if said else ''}".rstrip()

    # Small parts.

    def _lives(self, name: str) -> list[ContainerLife]:
        return self._world.truth.attempts(self._uid, name)

    def _newest(self, name: str) -> ContainerLife | None:
        lives = self._lives(name)
        return next((life for life in lives if life.running), lives[-1] if lives else None)

    def _status(self, name: str) -> ContainerStatus | None:
        every = (*(self._shown.init_container_statuses or ()), *(self._shown.container_statuses or ()))
        return next((status for status in every if status.name == name), None)
