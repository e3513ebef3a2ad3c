"""The runtime port without any containers: calls come in here, `node` pretends to obey them.

Every effect is one synchronous step, after the call's delay: a call that is cancelled while it waits had no effect,
save that a container already asked to end will end.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, Exited, NotRun, TimedOut
from podkeeper.model.runtime import ContainerRecord, ContainerState, ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeHealth, SandboxConfig
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.events import EventFilter, EventHub, EventStream
from podkeeper.runtimes.fake.behaviour import Behaviour, ExecStep, annotated_behaviour
from podkeeper.runtimes.fake.calls import Call, Calls
from podkeeper.runtimes.fake.faults import FakeFaults
from podkeeper.runtimes.fake.images import FakeImages
from podkeeper.runtimes.fake.node import FakeNode, Witness, uid_of
from podkeeper.runtimes.fake.things import FakeContainer


class Operation(StrEnum):
    """What can be asked of it: the names that delays and faults go by."""

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
    """A command about to run in a container, for scripts that answer it."""

    uid: PodUID
    pod: str
    container: str
    attempt: int
    command: tuple[str, ...]
    age_seconds: float  # of the container


ExecScript = Callable[[ExecRequest], CommandEnd | None]
"""Answers a command, or leaves it (None) to the container's behaviour."""


class FakeRuntime:
    """A node's runtime that only pretends."""

    name = "fake"

    def __init__(
        self,
        clock: Clock,
        *,
        behaviours: Mapping[tuple[str, str], Behaviour] | None = None,
        default: Behaviour | None = None,
        delays: Mapping[str, float] | None = None,
        images: Iterable[str] = (),
        ledger_size: int | None = 4096,
        event_limit: int = 100_000,
    ) -> None:
        self._clock = clock
        self._behaviours = dict(behaviours or {})
        self._default = default or Behaviour()
        self._calls = Calls(clock, RuntimeUnavailable, FakeFaults(), delays=delays, ledger_size=ledger_size)
        self._hub = EventHub(event_limit)
        self._node = FakeNode(clock, self._hub.tell)
        self._images = FakeImages(images)
        self.condition = RuntimeHealth()
        self.image_disk_bytes: int | None = None
        self.other_disk_bytes = 0
        self.exec_script: ExecScript | None = None

    # ---- sandboxes ----

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a ready sandbox; one of the same attempt that still runs is adopted, a stopped one is made anew."""
        async with self._calls.call(Operation.RUN_SANDBOX, uid_of(config.pod), given=config):
            return self._node.run_sandbox(config)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop it and, by force, its containers."""
        async with self._calls.call(Operation.STOP_SANDBOX, self._uid_of_sandbox(sandbox_id), sandbox_id):
            if (sandbox := self._node.sandboxes.get(sandbox_id)) is not None:
                self._node.stop_sandbox(sandbox)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove it with all containers in it."""
        async with self._calls.call(Operation.REMOVE_SANDBOX, self._uid_of_sandbox(sandbox_id), sandbox_id):
            if (sandbox := self._node.sandboxes.get(sandbox_id)) is not None:
                self._node.remove_sandbox(sandbox)

    # ---- containers ----

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container of an image that is there, in a sandbox that is ready."""
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
        """Start a created container; one that runs or has run is left alone."""
        uid, name = self._whose(container_id)
        async with self._calls.call(Operation.START_CONTAINER, uid, name):
            container = self._node.containers.get(container_id)
            if container is None:
                raise RuntimeRefused(f"cannot start container {container_id}: there is none")
            if container.record.state is ContainerState.CREATED:
                self._node.start_container(container)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask it to end, wait up to the grace, then force it."""
        uid, name = self._whose(container_id)
        async with self._calls.call(Operation.STOP_CONTAINER, uid, name, grace_seconds):
            container = self._node.containers.get(container_id)
            if container is None:
                return
            if container.running and grace_seconds > 0:
                self._node.ask_to_end(container)
                await container.exit_within(grace_seconds)
            self._node.kill(container)

    async def remove_container(self, container_id: str) -> None:
        """Remove it, by force if it runs."""
        uid, name = self._whose(container_id)
        async with self._calls.call(Operation.REMOVE_CONTAINER, uid, name):
            if (container := self._node.containers.get(container_id)) is not None:
                self._node.remove_container(container)

    # ---- images ----

    async def image(self, reference: str) -> ImageRecord | None:
        """The image of that name, if the node has it."""
        async with self._calls.call(Operation.IMAGE, reference, reference):
            return self._images.find(reference)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Fetch an image that is not said to be missing; a private one takes a secret that opens it."""
        async with self._calls.call(Operation.PULL_IMAGE, reference, reference, tuple(secrets)):
            return self._images.pull(reference, secrets)

    async def list_images(self) -> Sequence[ImageRecord]:
        """All images."""
        async with self._calls.call(Operation.LIST_IMAGES, ""):
            return self._images.all()

    async def remove_image(self, reference: str) -> None:
        """Forget an image."""
        async with self._calls.call(Operation.REMOVE_IMAGE, reference, reference):
            self._images.remove(reference)

    async def image_usage(self) -> ImageFsUsage | None:
        """A disk of `image_disk_bytes`, if it has a size; `other_disk_bytes` of it are used by others."""
        async with self._calls.call(Operation.IMAGE_USAGE, ""):
            return self._images.usage(self.image_disk_bytes, self.other_disk_bytes)

    # ---- what there is ----

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod; only what changed since the last time is built anew."""
        async with self._calls.call(Operation.LIST_PODS, ""):
            return self._node.records()

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """One pod."""
        async with self._calls.call(Operation.POD_RECORD, uid):
            return self._node.record(uid)

    def events(self) -> EventStream:
        """The news from now on."""
        stream = self._hub.subscribe()
        if self._calls.down:
            stream.close(RuntimeUnavailable(f"cannot tell news: {self._calls.down}"))
        return stream

    async def health(self) -> RuntimeHealth:
        """What `condition` says."""
        async with self._calls.call(Operation.HEALTH, ""):
            return self.condition

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Pretend to run a command: the script answers, else the container's behaviour. A timeout of 0 is none."""
        uid, name = self._whose(container_id)
        async with self._calls.call(Operation.EXEC_SYNC, uid, name, tuple(command)):
            container = self._node.containers.get(container_id)
            if container is None or not container.running:
                return NotRun(f"cannot run {' '.join(command[:1])}: container {name} does not run")
            return await self._exec(container, tuple(command), timeout_seconds)

    async def reopen_log(self, container_id: str) -> None:
        """Pretend: nothing is written here."""
        uid, name = self._whose(container_id)
        async with self._calls.call(Operation.REOPEN_LOG, uid, name):
            container = self._node.containers.get(container_id)
            if container is None or not container.running:
                raise RuntimeRefused(f"cannot reopen the log of container {name}: it does not run")

    # ---- for tests: scripts, trouble, and what may be known from outside ----

    @property
    def faults(self) -> FakeFaults:
        """Trouble on order; `about` is the pod's UID, for images their name."""
        return self._calls.faults

    @property
    def delays(self) -> dict[str, float]:
        """How long each operation takes, in seconds."""
        return self._calls.delays

    @property
    def ledger(self) -> Sequence[Call]:
        """The newest calls, oldest first."""
        return self._calls.ledger

    @property
    def violations(self) -> Sequence[str]:
        """What an agent must never do, and did."""
        return self._node.violations

    @property
    def missing_images(self) -> set[str]:
        """The images nobody can pull."""
        return self._images.missing

    @property
    def private_images(self) -> dict[str, frozenset[str]]:
        """The images that need a password, and which open them."""
        return self._images.private

    def behave(self, pod: str, container: str, behaviour: Behaviour) -> None:
        """Script a container, by its pod's name or UID, from its next attempt on. `*` is any pod or container."""
        self._behaviours[pod, container] = behaviour

    def witness(self, witness: Witness) -> None:
        """Tell somebody of every change to a sandbox or container, the moment it happens."""
        self._node.witness = witness

    def filter_events(self, event_filter: EventFilter | None) -> None:
        """Lose, repeat, delay or reorder news from now on; None: tell it as ever."""
        self._hub.filters = [] if event_filter is None else [event_filter]

    def add_event_filter(self, event_filter: EventFilter) -> None:
        """Filter also with this one what the others let through."""
        self._hub.filters.append(event_filter)

    def remove_event_filter(self, event_filter: EventFilter) -> None:
        """Filter no more with this one."""
        if event_filter in self._hub.filters:
            self._hub.filters.remove(event_filter)

    @property
    def event_filters(self) -> Sequence[EventFilter]:
        """What news goes through now."""
        return tuple(self._hub.filters)

    def break_events(self) -> None:
        """Break every open event stream."""
        self._hub.close(RuntimeUnavailable("cannot tell news: the stream broke"))

    def end_events(self) -> None:
        """End every open event stream, politely."""
        self._hub.close(StopAsyncIteration())

    def go_down(self, why: str = "the runtime is down") -> None:
        """Answer nothing from now on. Containers go on living."""
        self._calls.down = why
        self._hub.close(RuntimeUnavailable(f"cannot tell news: {why}"))

    def come_up(self) -> None:
        """Answer again."""
        self._calls.down = ""

    def end_container(self, uid: PodUID, name: str, exit_code: int, reason: str = "") -> None:
        """Let a running container end now, by itself."""
        for container in self._node.containers_of(uid):
            if container.record.name == name and container.running:
                self._node.end(container, exit_code, reason)

    def kill_sandbox(self, uid: PodUID) -> None:
        """Let a pod's sandboxes die now, and with them their containers."""
        for sandbox in self._node.sandboxes_of(uid):
            self._node.stop_sandbox(sandbox)

    def answer_in(self, sandbox_id: str, word: str) -> ExecStep | None:
        """What a container running in a sandbox would say now to a word; None: nobody there knows it."""
        sandbox = self._node.sandboxes.get(sandbox_id)
        now = asyncio.get_running_loop().time()
        for container in () if sandbox is None else sandbox.pod.containers:
            if container.sandbox is sandbox and container.running:
                answer = container.behaviour.answer_at(now - container.started, word)
                if answer is not None:
                    return answer
        return None

    def reboot(self) -> None:
        """Let the machine start anew: nothing runs, all that there was is remembered as lost. Calls under way end."""
        self._calls.reboot()
        self._node.reboot()

    def live_containers(self) -> list[tuple[PodUID, ContainerRecord]]:
        """Every container that runs now, with its pod."""
        return [(it.pod.uid, it.record) for it in self._node.containers.values() if it.running]

    # ---- small parts ----

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
            return NotRun(f"cannot learn how {what} ended: container {record.name} exited")
        if not in_time:
            return TimedOut(f"command {what} did not end within {timeout_seconds:g} s")
        return Exited(step.exit_code, step.output.encode())

    def _behaviour(self, pod: Pod, container: str) -> Behaviour:
        uid, name = pod.metadata.uid or "", pod.metadata.name or ""
        for key in ((uid, container), (name, container), (name, "*"), ("*", container)):
            if (scripted := self._behaviours.get(key)) is not None:
                return scripted
        return annotated_behaviour(pod, container) or self._default

    def _whose(self, container_id: str) -> tuple[str, str]:
        container = self._node.containers.get(container_id)
        return ("", container_id) if container is None else (container.pod.uid, container.record.name)

    def _uid_of_sandbox(self, sandbox_id: str) -> str:
        sandbox = self._node.sandboxes.get(sandbox_id)
        return "" if sandbox is None else sandbox.pod.uid
