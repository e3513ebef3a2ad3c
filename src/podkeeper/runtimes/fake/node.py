"""State of the fake runtime and its operations, each in one synchronous step.

A container's exit is a timer of the event loop. No task exists per container, so 10,000 idle pods cost nothing.
`runtime` handles callers, delays and faults. `violations` lists calls that an agent must never make.
"""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import (
    ContainerRecord,
    ImageRecord,
    NetworkMode,
    PodRecord,
    RecordState,
    SandboxRecord,
)
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeEventType, SandboxConfig
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.fake.behaviour import Behaviour
from podkeeper.runtimes.fake.objects import FakeContainer, FakePod, FakeSandbox

log = logging.getLogger(__name__)

# The exit codes of containerd: 128 + SIGKILL, a failed start, an exit status that it could not determine.
KILLED = 137
START_FAILED = 128
LOST = 255

ChangeObserver = Callable[[PodUID, SandboxRecord | ContainerRecord, RuntimeEventType], None]
"""Called at every change, before the event is sent. Event filters do not affect it."""


class FakeNode:
    """Pods, sandboxes and containers."""

    def __init__(self, clock: Clock, send: Callable[[RuntimeEvent], None]) -> None:
        self._clock = clock
        self._send = send
        self._pods: dict[PodUID, FakePod] = {}
        self._records: dict[PodUID, PodRecord] = {}
        self._changed: set[PodUID] = set()
        self._made = 0
        self.observer: ChangeObserver | None = None
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.containers: dict[str, FakeContainer] = {}
        self.violations: list[str] = []

    # ---- queries ----

    def records(self) -> tuple[PodRecord, ...]:
        """Return all pods. Only records of changed pods are built again."""
        for uid in self._changed:
            self._records[uid] = self._pods[uid].current_record()
        self._changed.clear()
        return tuple(self._records.values())

    def record(self, uid: PodUID) -> PodRecord:
        """Return one pod. An empty record if it does not exist."""
        pod = self._pods.get(uid)
        return PodRecord(uid=uid) if pod is None else pod.current_record()

    def containers_of(self, uid: PodUID) -> tuple[FakeContainer, ...]:
        """Return a pod's containers, oldest first."""
        return tuple(self._pods[uid].containers) if uid in self._pods else ()

    def sandboxes_of(self, uid: PodUID) -> tuple[FakeSandbox, ...]:
        """Return a pod's sandboxes, oldest first."""
        return tuple(self._pods[uid].sandboxes) if uid in self._pods else ()

    # ---- sandboxes ----

    def run_sandbox(self, config: SandboxConfig) -> str:
        """Create a ready sandbox. A ready one of the same attempt is returned, a stopped one is replaced."""
        for old in self.sandboxes_of(uid_of(config.pod)):
            if old.record.attempt == config.attempt:
                if old.record.ready:
                    return old.record.id
                self.remove_sandbox(old)
        pod = self._pod(config.pod)
        # Record it and continue: a real runtime would not refuse this, either.
        if any(sandbox.record.ready for sandbox in pod.sandboxes):
            self._violated(f"pod {pod.name} got a second ready sandbox")
        number = self._next_number()
        on_node = bool(config.pod.spec.host_network)
        record = SandboxRecord(
            id=f"s{number:06}",
            ready=True,
            attempt=config.attempt,
            network=NetworkMode.NODE if on_node else NetworkMode.POD,
            ip="" if on_node else f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            created_at=self._clock.now(),
        )
        sandbox = FakeSandbox(pod, record)
        pod.sandboxes.append(sandbox)
        self.sandboxes[record.id] = sandbox
        self._changed_by(pod, record, RuntimeEventType.CREATED)
        self._changed_by(pod, record, RuntimeEventType.STARTED)
        return record.id

    def stop_sandbox(self, sandbox: FakeSandbox) -> None:
        """Stop a sandbox and kill its containers."""
        for container in sandbox.pod.containers:
            if container.sandbox is sandbox:
                self.kill(container)
        if sandbox.record.ready:
            sandbox.stop()
            self._changed_by(sandbox.pod, sandbox.record, RuntimeEventType.STOPPED)

    def remove_sandbox(self, sandbox: FakeSandbox) -> None:
        """Remove a sandbox with its containers."""
        pod = sandbox.pod
        self.stop_sandbox(sandbox)
        for container in [it for it in pod.containers if it.sandbox is sandbox]:
            self.remove_container(container)
        pod.sandboxes.remove(sandbox)
        del self.sandboxes[sandbox.record.id]
        self._changed_by(pod, sandbox.record, RuntimeEventType.DELETED)

    # ---- containers ----

    def create_container(
        self, sandbox: FakeSandbox, config: ContainerConfig, image: ImageRecord, behaviour: Behaviour
    ) -> str:
        """Create a container. A container of the same attempt that never started is removed first."""
        pod, name = sandbox.pod, config.container.name
        for old in [it for it in pod.containers if (it.record.name, it.record.restart_count) == (name, config.attempt)]:
            # A create call that takes effect late must not remove a container that a later call has started.
            if old.record.state is not RecordState.CREATED:
                raise RuntimeRefused(f"cannot create container {name}: attempt {config.attempt} has already started")
            self.remove_container(old)
        record = ContainerRecord(
            id=f"c{self._next_number():06}",
            name=name,
            state=RecordState.CREATED,
            image=config.container.image or "",
            image_id=image.id,
            spec_hash=config.spec_hash,
            sandbox_id=sandbox.record.id,
            restart_count=config.attempt,
            created_at=self._clock.now(),
        )
        container = FakeContainer(sandbox, record, behaviour)
        pod.containers.append(container)
        self.containers[record.id] = container
        self._changed_by(pod, record, RuntimeEventType.CREATED)
        return record.id

    def start_container(self, container: FakeContainer) -> None:
        """Start a created container, and set the timer of its script."""
        pod, record, behaviour = container.pod, container.record, container.behaviour
        if not container.sandbox.record.ready:
            raise RuntimeRefused(f"cannot start container {record.name}: its sandbox is not ready")
        if refusal := behaviour.refusal_of(record.restart_count):
            self.end(container, START_FAILED, "StartError", refusal)
            raise RuntimeRefused(f"cannot start container {record.name}: {refusal}")
        if any(other.running and other.record.name == record.name for other in pod.containers):
            self._violated(f"{pod.name}/{record.name} runs twice")
        loop = asyncio.get_running_loop()
        container.record = replace(record, state=RecordState.RUNNING, started_at=self._clock.now())
        container.started = loop.time()
        self._changed_by(pod, container.record, RuntimeEventType.STARTED)
        lifetime = behaviour.lifetime_of(record.restart_count)
        if lifetime is not None:
            script = behaviour.exit_of(record.restart_count)
            container.end_by(loop.call_at(container.started + lifetime, self.end, container, *script))

    def terminate(self, container: FakeContainer) -> None:
        """Send SIGTERM. The container exits or ignores it, as its `behaviour` defines."""
        behaviour = container.behaviour
        if container.term_sent or behaviour.term_seconds is None:
            return
        container.term_sent = True
        if behaviour.term_seconds == 0:
            self.end(container, behaviour.term_exit_code)
            return
        loop = asyncio.get_running_loop()
        container.end_by(loop.call_later(behaviour.term_seconds, self.end, container, behaviour.term_exit_code))

    def kill(self, container: FakeContainer) -> None:
        """Kill a container if it runs."""
        if container.running:
            self.end(container, KILLED)

    def end(self, container: FakeContainer, exit_code: int, reason: str = "", message: str = "") -> None:
        container.stop_timer()
        container.record = replace(
            container.record,
            state=RecordState.EXITED,
            finished_at=self._clock.now(),
            exit_code=exit_code,
            reason=reason or ("Error" if exit_code else "Completed"),
            message=message,
        )
        container.notify_exit()
        self._changed_by(container.pod, container.record, RuntimeEventType.STOPPED)

    def remove_container(self, container: FakeContainer) -> None:
        """Remove a container. A running one is killed first."""
        self.kill(container)
        container.pod.containers.remove(container)
        del self.containers[container.record.id]
        self._changed_by(container.pod, container.record, RuntimeEventType.DELETED)

    def reboot(self) -> None:
        """Reboot the machine: all containers have exited, with an unknown exit status."""
        # The containers first, because `stop_sandbox` would report them as killed.
        for container in self.containers.values():
            if container.running:
                self.end(container, LOST, "Unknown")
        for sandbox in self.sandboxes.values():
            self.stop_sandbox(sandbox)

    # ---- helpers ----

    def _pod(self, pod: Pod) -> FakePod:
        uid = uid_of(pod)
        known = self._pods.get(uid)
        if known is None:
            known = self._pods[uid] = FakePod(uid, pod.metadata.name or "", pod.metadata.namespace or "")
        return known

    def _changed_by(self, pod: FakePod, record: SandboxRecord | ContainerRecord, event_type: RuntimeEventType) -> None:
        """Mark a pod as changed, and send the event."""
        pod.record = None
        if pod.sandboxes or pod.containers:
            self._changed.add(pod.uid)
        else:
            self._pods.pop(pod.uid, None)
            self._records.pop(pod.uid, None)
            self._changed.discard(pod.uid)
        if self.observer is not None:
            self.observer(pod.uid, record, event_type)
        self._send(RuntimeEvent(pod.uid, record.id, event_type, self._clock.now()))

    def _next_number(self) -> int:
        self._made += 1
        return self._made

    def _violated(self, what: str) -> None:
        log.error("the agent violated a rule of the runtime: %s", what)
        self.violations.append(what)
