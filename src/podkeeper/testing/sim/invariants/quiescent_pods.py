"""Check one pod of a settled node.

Its containers are as desired, and its published status is true.

    QuiescentPod(world, probes, pod, status).problem()     # empty: no problem

The desired state of a container follows from the spec and the ground truth. It runs with the newest spec, or it has
finished, or it waits for a restart (at most five minutes of backoff), its image or the init containers. The rules are
written again here, independently of `rules.plan` and `rules.status`, so that a bug there is found.
"""

from collections.abc import Iterator
from enum import Enum, auto
from math import inf

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, PodUID
from podkeeper.model.runtime import api_container_id
from podkeeper.model.times import instant
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.status.phase import Phase, is_terminal
from podkeeper.testing.sim.ground_truth import ContainerRun, SandboxRun
from podkeeper.testing.sim.invariants.probe_states import ProbeTracker
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.world import World

LONGEST_WAIT_SECONDS = 345.0  # five minutes of backoff, half a minute of jitter, and the start itself
STEADY_SECONDS = 60.0  # a state that is this old must have been published
ENDING_SECONDS = 10.0  # in addition to the grace period, for a pod past its deadline
RUNTIME = "fake"
_ALL_BUT_JUMPS = FAULT_RATES.keys() - {"clock-jump"}


class ContainerProgress(Enum):
    """How far a container is."""

    RUNNING = auto()
    WAITING = auto()  # it ran or failed to start, and will be started again
    BLOCKED = auto()  # its image is missing, so it was not created
    FINISHED = auto()  # it ended and must not run again
    NOT_TRIED = auto()  # it should have been created


class QuiescentPod:
    """A pod without recent faults."""

    def __init__(
        self, world: World, probes: ProbeTracker, pod: Pod, published: PodStatus, mirror: Pod | None = None
    ) -> None:
        """`pod` is the desired pod, `shown` its published status. For a static pod, `mirror` is its mirror pod."""
        self._world = world
        self._probes = probes
        self._pod = pod
        self._published = published
        self._mirror = mirror
        self._uid = PodUID(pod.metadata.uid or "")
        sandboxes = [it for it in world.truth.sandboxes.values() if it.uid == self._uid]
        self._sandbox: SandboxRun | None = sandboxes[-1] if sandboxes else None

    @property
    def is_over(self) -> bool:
        """Whether the pod has ended, in truth or in the API."""
        done = all(self._progress_of(each) is ContainerProgress.FINISHED for each in self._pod.spec.containers)
        return done or is_terminal(self._published.phase)

    @property
    def changed(self) -> float:
        """When a container or sandbox of the pod last changed."""
        runs = self._world.truth.of_pod(self._uid)
        moments = [each for it in runs for each in (it.created, it.started, it.ended) if each is not None]
        if self._sandbox is not None:
            moments += [self._sandbox.made, self._sandbox.stopped or 0.0]
        return max(moments, default=0.0)

    def problem(self) -> str:
        """Return the first problem. Empty: none."""
        return next(self._problems(), "")

    def _problems(self) -> Iterator[str]:
        name = self._pod.metadata.name
        if self._pod.metadata.deletion_timestamp is not None:
            if not self._pod.metadata.finalizers:
                yield f"{name} is still being deleted"
        elif is_terminal(self._published.phase):
            yield from self._problems_of_terminal_pod()
        else:
            yield from self._problems_of_active_pod()
        mirror = self._mirror
        if mirror is not None and (mirror.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) != self._uid:
            yield f"the mirror pod of {name} belongs to another version"

    # Pods that have ended.

    def _problems_of_terminal_pod(self) -> Iterator[str]:
        name, world = self._pod.metadata.name, self._world
        if running := world.truth.running(self._uid):
            yield f"{name} is {self._published.phase}, but {running[0].name} ({running[0].id}) runs"
        if self._sandbox is not None and self._sandbox.stopped is None and self._sandbox.removed is None:
            yield f"{name} is {self._published.phase}, but its sandbox {self._sandbox.id} is ready"
        if self._uid in world.volumes.mounted_pods():
            yield f"{name} is {self._published.phase}, but its volumes are mounted"
        if self._uid in world.cgroups.peek_pods():
            yield f"{name} is {self._published.phase}, but it has a cgroup"
        for status in (*(self._published.init_container_statuses or ()), *(self._published.container_statuses or ())):
            run = self._newest(status.name)
            if run is not None and run.ended is not None and run.removed is None:
                yield from self._problems_of_exit(status, run)

    # Active pods.

    def _problems_of_active_pod(self) -> Iterator[str]:
        spec = self._pod.spec
        inits, regular = spec.init_containers or (), spec.containers
        initialized = self._is_initialized()
        if not initialized:
            yield from self._problems_of_initialization(inits)
            return
        progress_by_name = {each.name: self._progress_of(each) for each in (*inits, *regular)}
        for each in inits:
            if each.restart_policy == "Always":
                yield from self._problems_of_container(each, progress_by_name[each.name])
            elif progress_by_name[each.name] is ContainerProgress.RUNNING:
                yield f"init container {each.name} runs, but {self._pod.metadata.name} is initialized"
        for each in regular:
            yield from self._problems_of_container(each, progress_by_name[each.name])
        over = all(progress_by_name[each.name] is ContainerProgress.FINISHED for each in regular)
        if over and self.changed < self._world.now() - (self._longest_wait() - LONGEST_WAIT_SECONDS):
            yield f"all containers of {self._pod.metadata.name} have finished, but it is {self._published.phase}"
        # A container that was never created keeps the pod Pending.
        tried = all(self._newest(each.name) is not None for each in regular)
        if self._published.phase != (Phase.RUNNING if tried else Phase.PENDING) and not inits:
            yield f"{self._pod.metadata.name} is published as {self._published.phase}"
        yield from self._problems_of_deadline()
        yield from self._problems_of_readiness()

    def _is_initialized(self) -> bool:
        """Whether a regular container was created in the current sandbox."""
        regular = {each.name for each in self._pod.spec.containers}
        runs = self._world.truth.of_pod(self._uid)
        here = None if self._sandbox is None else self._sandbox.id
        if any(run.name in regular and run.sandbox_id == here for run in runs):
            return True
        return not self._pod.spec.init_containers

    def _problems_of_initialization(self, inits: tuple[Container, ...]) -> Iterator[str]:
        """Check init containers, which run one after the other. After a sidecar has started, the next one runs."""
        for each in inits:
            here = [it for it in self._runs_of(each.name) if self._sandbox and it.sandbox_id == self._sandbox.id]
            progress = self._progress_of(each)
            if each.restart_policy == "Always":
                yield from self._problems_of_container(each, progress)
                if progress is not ContainerProgress.RUNNING or not self._has_started(each.name):
                    return
            elif not here or here[-1].ended is None or here[-1].exit_code != 0 or here[-1].reason == "OOMKilled":
                yield from self._problems_of_container(each, progress if here else self._not_tried(each))
                if progress is ContainerProgress.FINISHED:
                    yield f"init container {each.name} failed, but {self._pod.metadata.name} is {self._published.phase}"
                return
        for each in self._pod.spec.containers:
            yield from self._problems_of_container(each, self._not_tried(each))

    def _has_started(self, name: str) -> bool:
        found = self._probes.get(self._uid)
        container = None if found is None else found.containers.get(name)
        return container is None or container.started.value

    # Containers.

    def _progress_of(self, container: Container) -> ContainerProgress:
        run = self._newest(container.name)
        if run is None or (run.ended is None and not run.running):
            return self._not_tried(container)
        if run.running:
            return ContainerProgress.RUNNING
        return (
            ContainerProgress.WAITING
            if self._must_restart(container, run.exit_code or 0)
            else ContainerProgress.FINISHED
        )

    def _not_tried(self, container: Container) -> ContainerProgress:
        missing = container.image in self._world.runtime.missing_images
        return ContainerProgress.BLOCKED if missing else ContainerProgress.NOT_TRIED

    def _must_restart(self, container: Container, exit_code: int) -> bool:
        policy = container.restart_policy or self._pod.spec.restart_policy or "Always"
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)

    def _problems_of_container(self, container: Container, progress: ContainerProgress) -> Iterator[str]:
        status, run = self._status(container.name), self._newest(container.name)
        container_name = f"{container.name} of {self._pod.metadata.name}"
        if progress is ContainerProgress.NOT_TRIED:
            yield f"{container_name} does not run, and nothing prevents it"
        elif status is None:
            yield f"{container_name} has no status in the API"
        elif progress is ContainerProgress.BLOCKED:
            if status.state.waiting is None:
                yield f"{container_name} waits for its image, but it is not published as waiting"
        elif run is not None and progress is ContainerProgress.RUNNING:
            yield from self._problems_of_running(container, status, run)
        elif run is not None and progress is ContainerProgress.FINISHED:
            yield from self._problems_of_exit(status, run)
        elif run is not None and run.ended is not None:
            waited = self._world.now() - run.ended
            blocked = self._not_tried(container) is ContainerProgress.BLOCKED or self._clock_jumped_since(run.ended)
            if waited > self._longest_wait() and not blocked:
                yield f"{container_name} ended {waited:.0f} s ago and has not restarted"
            if status.state.running is not None:
                yield f"{container_name} is published as running, but does not run"
            yield from self._problems_of_exit(status, run)

    def _problems_of_running(self, container: Container, status: ContainerStatus, run: ContainerRun) -> Iterator[str]:
        container_name = f"{container.name} ({run.id}) of {self._pod.metadata.name}"
        if run.spec_hash != container_hash(container) or run.image != container.image:
            yield f"{container_name} runs {run.image}, not {container.image}"
        if self._sandbox is not None and (run.sandbox_id != self._sandbox.id or self._sandbox.stopped is not None):
            yield f"{container_name} runs in an old sandbox"
        if status.state.running is None or status.container_id != api_container_id(RUNTIME, run.id):
            yield f"{container_name} runs, but is published as {status.state} {status.container_id}"
        tries = len(self._runs_of(container.name))
        if not run.attempt <= (status.restart_count or 0) <= tries:
            count = status.restart_count
            yield f"{container_name} is published with {count} restarts; it is attempt {run.attempt} of {tries}"

    def _problems_of_exit(self, status: ContainerStatus, run: ContainerRun) -> Iterator[str]:
        """Check that the exit status is published, in the state or the last state."""
        ids = (api_container_id(RUNTIME, run.id), None)
        published = (status.state.terminated, status.last_state.terminated)
        if not any(end is not None and end.container_id in ids and end.exit_code == run.exit_code for end in published):
            container_name = f"{run.name} ({run.id}) of {self._pod.metadata.name}"
            yield f"{container_name} exited {run.exit_code}, which is not published"

    def _longest_wait(self) -> float:
        """Return how long a container may wait for its restart.

        As in the kubelet, a restart waits for sidecars in backoff, and so does the end of a completed pod.
        """
        inits = self._pod.spec.init_containers or ()
        waiting = any(each.restart_policy == "Always" and not self._is_running(each.name) for each in inits)
        return LONGEST_WAIT_SECONDS * 2 if waiting else LONGEST_WAIT_SECONDS

    def _is_running(self, name: str) -> bool:
        return any(run.running for run in self._runs_of(name))

    def _clock_jumped_since(self, at: float) -> bool:
        return bool(self._world.fault_log.any_since(at, None, ignored=_ALL_BUT_JUMPS))

    # Deadlines and readiness.

    def _overdue_seconds(self) -> float:
        """Return how long ago the deadline expired, by the node's clock. Negative: it has not."""
        begun, deadline = instant(self._published.start_time), self._pod.spec.active_deadline_seconds
        if begun is None or deadline is None:
            return -inf
        return (self._world.clock.now() - begun).total_seconds() - deadline

    def _problems_of_deadline(self) -> Iterator[str]:
        overdue = self._overdue_seconds()
        if overdue > (self._pod.spec.termination_grace_period_seconds or 0) + ENDING_SECONDS:
            yield f"{self._pod.metadata.name} is {self._published.phase}, but its deadline was {overdue:.0f} s ago"

    def _problems_of_readiness(self) -> Iterator[str]:
        found = self._probes.get(self._uid)
        if found is None or self._pod.spec.readiness_gates or self._world.now() - found.ready.changed < STEADY_SECONDS:
            return
        published = any(each.type == "Ready" and each.status == "True" for each in self._published.conditions or ())
        if not published and self._overdue_seconds() >= 0:
            return  # its containers are being stopped, and a terminating pod is not ready
        if published is not found.ready.value:
            published_text, true_text = ("ready", "not ready") if published else ("not ready", "ready")
            yield f"{self._pod.metadata.name} is published as {published_text}, but is {true_text}"

    # Helpers.

    def _runs_of(self, name: str) -> list[ContainerRun]:
        return self._world.truth.attempts(self._uid, name)

    def _newest(self, name: str) -> ContainerRun | None:
        runs = self._runs_of(name)
        return next((run for run in runs if run.running), runs[-1] if runs else None)

    def _status(self, name: str) -> ContainerStatus | None:
        every = (*(self._published.init_container_statuses or ()), *(self._published.container_statuses or ()))
        return next((status for status in every if status.name == name), None)
