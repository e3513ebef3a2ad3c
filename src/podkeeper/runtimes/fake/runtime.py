"""The runtime port on the fake node.

Each effect is one synchronous step after the delay of the call. A call that is cancelled during its delay has no
effect, except that a container that received SIGTERM will exit.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.model.runtime import ContainerRecord, ImageFsUsage, ImageRecord, PodRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeHealth, SandboxConfig
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.events import EventFilter, EventHub, EventStream
from podkeeper.runtimes.fake.behaviour import Behaviour, ExecStep, annotated_behaviour
from podkeeper.runtimes.fake.calls import Calls, FaultInjection
from podkeeper.runtimes.fake.faults import FakeFaults
from podkeeper.runtimes.fake.images import FakeImages
from podkeeper.runtimes.fake.node import ChangeObserver, FakeNode
from podkeeper.runtimes.fake.objects import FakeContainer


class Operation(StrEnum):
    """Names of the calls, for delays and faults."""

    RUN_SANDBOX = "run_sandbox"
    STOP_SANDBOX = "stop_sandbox"
    REMOVE_SANDBOX = "remove_sandbox"
    CREATE_CONTAINER = "create_container"
    START_CONTAINER = "start_container"
    STOP_CONTAINER = "stop_container"
    REMOVE_CONTAINER = "remove_container"
    IMAGE = "image"
    PULL_IMAGE = "pull_image"
    LIST_IMAGES = "list_images"
    REMOVE_IMAGE = "remove_image"
    IMAGE_USAGE = "image_usage"
    LIST_PODS = "list_pods"
    POD_RECORD = "pod_record"
    EXEC_SYNC = "exec_sync"
    REOPEN_LOG = "reopen_log"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command in a container, for `exec_script`."""

    uid: PodUID
    pod: str
    container: str
    attempt: int
    command: tuple[str, ...]
    age_seconds: float  # of the container


ExecScript = Callable[[ExecRequest], CommandEnd | None]
"""Returns the result of a command. None: the container's behaviour decides."""


class FakeRuntime(FaultInjection):
    name = "fake"

    def __init__(
        self,
        clock: Clock,
        *,
        behaviours: Mapping[tuple[str, str], Behaviour] | None = None,
        default: Behaviour | None = None,
        delays: Mapping[str, float] | None = None,
        images: Iterable[str] = (),
        call_log_size: int | None = 4096,
        event_limit: int = 100_000,
    ) -> None:
        self._clock = clock
        self._behaviours = dict(behaviours or {})
        self._default = default or Behaviour()
        self._calls = Calls(clock, RuntimeUnavailable, FakeFaults(), delays=delays, call_log_size=call_log_size)
        self._hub = EventHub(event_limit)
        self._node = FakeNode(clock, self._hub.send)
        self._images = FakeImages(images)
        self.condition = RuntimeHealth()
        self.image_disk_bytes: int | None = None
        self.other_disk_bytes = 0
        self.exec_script: ExecScript | None = None

    # ---- sandboxes ----

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Create a ready sandbox. A ready one of the same attempt is returned, a stopped one is replaced."""
        async with self._calls.call(Operation.RUN_SANDBOX, uid_of(config.pod), given=config):
            return self._node.run_sandbox(config)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and kill its containers."""
        async with self._calls.call(Operation.STOP_SANDBOX, self._uid_of_sandbox(sandbox_id), sandbox_id):
            if (sandbox := self._node.sandboxes.get(sandbox_id)) is not None:
                self._node.stop_sandbox(sandbox)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox with its containers."""
        async with self._calls.call(Operation.REMOVE_SANDBOX, self._uid_of_sandbox(sandbox_id), sandbox_id):
            if (sandbox := self._node.sandboxes.get(sandbox_id)) is not None:
                self._node.remove_sandbox(sandbox)

    # ---- containers ----

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container from a present image in a ready sandbox."""
        name = config.container.name
        async with self._calls.call(Operation.CREATE_CONTAINER, uid_of(config.pod), name, config):
            sandbox = self._node.sandboxes.get(sandbox_id)
            if sandbox is None or not sandbox.record.ready:
                raise RuntimeRefused(f"cannot create container {name}: sandbox {sandbox_id} is not ready")
            image = self._images.find(config.image)
            if image is None:
                raise RuntimeRefused(f"cannot create container {name}: image {config.image} is not on the node")
            behaviour = self._behaviour(config.pod, name)
            return self._node.create_container(sandbox, config, image, behaviour)

    async def start_container(self, container_id: str) -> None:
        """Start a created container. Do nothing if it has started before."""
        uid, name = self._owner(container_id)
        async with self._calls.call(Operation.START_CONTAINER, uid, name):
            container = self._node.containers.get(container_id)
            if container is None:
                raise RuntimeRefused(f"cannot start container {container_id}: not found")
            if container.record.state is RecordState.CREATED:
                self._node.start_container(container)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Send SIGTERM, wait up to the grace period, then kill the container."""
        uid, name = self._owner(container_id)
        async with self._calls.call(Operation.STOP_CONTAINER, uid, name, grace_seconds):
            container = self._node.containers.get(container_id)
            if container is None:
                return
            if container.running and grace_seconds > 0:
                self._node.terminate(container)
                await container.exit_within(grace_seconds)
            self._node.kill(container)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container. A running one is killed first."""
        uid, name = self._owner(container_id)
        async with self._calls.call(Operation.REMOVE_CONTAINER, uid, name):
            if (container := self._node.containers.get(container_id)) is not None:
                self._node.remove_container(container)

    # ---- images ----

    async def image(self, reference: str) -> ImageRecord | None:
        async with self._calls.call(Operation.IMAGE, reference, reference):
            return self._images.find(reference)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Pull an image. Raises ImagePullFailed for a missing image, and for a private one without its password."""
        async with self._calls.call(Operation.PULL_IMAGE, reference, reference, tuple(secrets)):
            return self._images.pull(reference, secrets)

    async def list_images(self) -> Sequence[ImageRecord]:
        async with self._calls.call(Operation.LIST_IMAGES, ""):
            return self._images.all()

    async def remove_image(self, reference: str) -> None:
        async with self._calls.call(Operation.REMOVE_IMAGE, reference, reference):
            self._images.remove(reference)

    async def image_usage(self) -> ImageFsUsage | None:
        """Return the usage of a disk of `image_disk_bytes`, of which other files use `other_disk_bytes`."""
        async with self._calls.call(Operation.IMAGE_USAGE, ""):
            return self._images.usage(self.image_disk_bytes, self.other_disk_bytes)

    # ---- queries ----

    async def list_pods(self) -> Sequence[PodRecord]:
        """Return all pods. Only records of changed pods are built again."""
        async with self._calls.call(Operation.LIST_PODS, ""):
            return self._node.records()

    async def pod_record(self, uid: PodUID) -> PodRecord:
        async with self._calls.call(Operation.POD_RECORD, uid):
            return self._node.record(uid)

    def events(self) -> EventStream:
        stream = self._hub.subscribe()
        if self._calls.down:
            stream.close(RuntimeUnavailable(f"cannot send events: {self._calls.down}"))
        return stream

    async def health(self) -> RuntimeHealth:
        async with self._calls.call(Operation.HEALTH, ""):
            return self.condition

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Return the scripted result of a command. A timeout of 0 means no timeout."""
        uid, name = self._owner(container_id)
        async with self._calls.call(Operation.EXEC_SYNC, uid, name, tuple(command)):
            container = self._node.containers.get(container_id)
            if container is None or not container.running:
                return NotRun(f"cannot run {' '.join(command[:1])}: container {name} is not running")
            return await self._exec(container, tuple(command), timeout_seconds)

    async def reopen_log(self, container_id: str) -> None:
        """Check that the container runs. There is no log."""
        uid, name = self._owner(container_id)
        async with self._calls.call(Operation.REOPEN_LOG, uid, name):
            container = self._node.containers.get(container_id)
            if container is None or not container.running:
                raise RuntimeRefused(f"cannot reopen the log of container {name}: it is not running")

    # ---- for tests: scripts, faults, observation ----

    @property
    def violations(self) -> Sequence[str]:
        """Calls of the agent that violate the contract of the runtime."""
        return self._node.violations

    @property
    def missing_images(self) -> set[str]:
        """Images that cannot be pulled."""
        return self._images.missing

    @property
    def private_images(self) -> dict[str, frozenset[str]]:
        """Images that need a password, with the accepted ones."""
        return self._images.private

    def behave(self, pod: str, container: str, behaviour: Behaviour) -> None:
        """Script a container by its pod's name or UID, from its next attempt on. `*` matches any pod or container."""
        self._behaviours[pod, container] = behaviour

    def observe_changes(self, observer: ChangeObserver) -> None:
        """Call a function at every change of a sandbox or container."""
        self._node.observer = observer

    def filter_events(self, event_filter: EventFilter | None) -> None:
        """Drop, repeat, delay or reorder events from now on. None: remove all filters."""
        self._hub.filters = [] if event_filter is None else [event_filter]

    def add_event_filter(self, event_filter: EventFilter) -> None:
        """Add a filter after the others."""
        self._hub.filters.append(event_filter)

    def remove_event_filter(self, event_filter: EventFilter) -> None:
        if event_filter in self._hub.filters:
            self._hub.filters.remove(event_filter)

    @property
    def event_filters(self) -> Sequence[EventFilter]:
        return tuple(self._hub.filters)

    def break_events(self) -> None:
        """Break every open event stream."""
        self._hub.close(RuntimeUnavailable("cannot send events: the stream broke"))

    def end_events(self) -> None:
        """End every open event stream without an error."""
        self._hub.close(StopAsyncIteration())

    def go_down(self, why: str = "the runtime is down") -> None:
        """Make all calls fail from now on. Containers keep running."""
        self._calls.down = why
        self._hub.close(RuntimeUnavailable(f"cannot send events: {why}"))

    def come_up(self) -> None:
        self._calls.down = ""

    def end_container(self, uid: PodUID, name: str, exit_code: int, reason: str = "") -> None:
        """Make a running container exit now."""
        for container in self._node.containers_of(uid):
            if container.record.name == name and container.running:
                self._node.end(container, exit_code, reason)

    def kill_sandbox(self, uid: PodUID) -> None:
        """Kill a pod's sandboxes and their containers."""
        for sandbox in self._node.sandboxes_of(uid):
            self._node.stop_sandbox(sandbox)

    def answer_in(self, sandbox_id: str, word: str) -> ExecStep | None:
        """Return the scripted result of a command in the running containers of a sandbox. None: no script has one."""
        sandbox = self._node.sandboxes.get(sandbox_id)
        now = asyncio.get_running_loop().time()
        for container in () if sandbox is None else sandbox.pod.containers:
            if container.sandbox is sandbox and container.running:
                answer = container.behaviour.answer_at(now - container.started, word)
                if answer is not None:
                    return answer
        return None

    def reboot(self) -> None:
        """Reboot the machine. Running calls fail. Containers have exited with an unknown exit status."""
        self._calls.reboot()
        self._node.reboot()

    def live_containers(self) -> list[tuple[PodUID, ContainerRecord]]:
        """Return all running containers with their pods."""
        return [(it.pod.uid, it.record) for it in self._node.containers.values() if it.running]

    # ---- helpers ----

    async def _exec(self, container: FakeContainer, command: tuple[str, ...], timeout_seconds: float) -> CommandEnd:
        pod, record, what = container.pod, container.record, " ".join(command[:1])
        age = asyncio.get_running_loop().time() - container.started
        if self.exec_script is not None:
            request = ExecRequest(pod.uid, pod.name, record.name, record.restart_count, command, age)
            if (end := self.exec_script(request)) is not None:
                return end
        step = container.behaviour.exec_at(age, what)
        in_time = timeout_seconds <= 0 or step.takes_seconds <= timeout_seconds
        wait_seconds = step.takes_seconds if in_time else timeout_seconds
        if wait_seconds > 0 and await container.exit_within(wait_seconds):
            return NotRun(f"cannot get the exit status of {what}: container {record.name} exited")
        if not in_time:
            return TimedOut(f"command {what} did not end within {timeout_seconds:g} s")
        return CommandExited(step.exit_code, step.output.encode())

    def _behaviour(self, pod: Pod, container: str) -> Behaviour:
        uid, name = pod.metadata.uid or "", pod.metadata.name or ""
        for key in ((uid, container), (name, container), (name, "*"), ("*", container)):
            if (scripted := self._behaviours.get(key)) is not None:
                return scripted
        return annotated_behaviour(pod, container) or self._default

    def _owner(self, container_id: str) -> tuple[str, str]:
        container = self._node.containers.get(container_id)
        return ("", container_id) if container is None else (container.pod.uid, container.record.name)

    def _uid_of_sandbox(self, sandbox_id: str) -> str:
        sandbox = self._node.sandboxes.get(sandbox_id)
        return "" if sandbox is None else sandbox.pod.uid
