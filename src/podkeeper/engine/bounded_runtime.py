"""Bound the runtime: deadlines, limited concurrency, uninterrupted changes.

In: any runtime. Out: the same port with the same results and errors. `BoundedRuntime` adds:

* Mutating calls run in their own task. A cancelled caller waits until the call has ended or met its deadline, so a
  cancelled sync never overlaps the next one. A caller cancelled while it waits for a slot makes no call and ends at
  once.
* A call that meets its deadline raises `CallTimedOut`, because it may have taken effect. Its task keeps running.
* Starts, stops and pulls have separate slots. A free slot goes to the pod that queued first, and that pod keeps its
  place for its following calls. A call that outlives its lease releases its slot, so hung calls do not block other
  pods.
* Slow calls are logged and listed by `slow_calls`.

Reads need no slot, have deadlines too, and end at once if their caller is cancelled.
Kubelet counterpart: `instrumentedRuntimeService` in pkg/kubelet/kuberuntime, which only measures.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeVar, cast

from podkeeper.concurrency.slots import Slots, Tickets
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import CallTimedOut, RuntimeUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd
from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEvent, RuntimeHealth, SandboxConfig
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Runtime

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Containers that another client removes are never reported here, so their names would accumulate without a limit.
_MAX_NAMES = 32_768  # above this number, the oldest entries are dropped, and logs show the plain id


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The number of concurrent calls and the duration of each."""

    # Of 4, 6 and 8 concurrent starts on containerd, 8 was best in every measurement (docs/performance.md).
    start_slots: int = 8
    stop_slots: int = 16
    # The kubelet pulls one image at a time by default. maxParallelImagePulls replaces this number.
    pull_slots: int = 4
    lease_seconds: float = 10.0  # after this time a call releases its slot and counts as slow
    stop_lease_seconds: float = 0.1  # waiting for a container to exit costs nothing, so only the signals are spread
    # So one slow registry does not block the others. Longer if maxParallelImagePulls is set.
    pull_lease_seconds: float = 60.0
    pull_slow_seconds: float = 60.0
    # The default of the kubelet's runtimeRequestTimeout.
    call_seconds: float = 120.0  # the deadline; stops add their grace period, commands their timeout
    # Shorter than the deadline of the CRI client (PULL_SECONDS in runtimes/cri/calls.py). So the waiting pod gets its
    # error after 30 min, and the runtime may still complete the pull during the next 30 min.
    pull_seconds: float = 1800.0
    ticket_seconds: float = 10.0  # a pod without calls for this long queues behind the others again


DEFAULT_CALL_LIMITS = CallLimits()


@dataclass(frozen=True, slots=True)
class SlowCall:
    """A call in flight that takes longer than expected."""

    operation: str
    subject: str  # the pod's namespace/name, else the id or image
    seconds: float


@dataclass(frozen=True, slots=True)
class _ReadPolicy:
    """When a call counts as slow and when it fails."""

    slow_seconds: float
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class _ChangePolicy(_ReadPolicy):
    """In addition, which slots a mutating call needs and how long it may hold one."""

    lane: "_Lane"
    lease_seconds: float


class _Lane:
    """Slots of one kind of call, and the order of pods that wait for them."""

    def __init__(self, slots: int, ticket_seconds: float, monotonic: Callable[[], float]) -> None:
        self.slots: Slots[object] = Slots(slots)
        self.tickets: Tickets[str] = Tickets(ticket_seconds, monotonic)


_Policy = TypeVar("_Policy", bound=_ReadPolicy)


def _extended(policy: _Policy, seconds: float) -> _Policy:
    """Return the policy of a call that is expected to take `seconds`."""
    return replace(
        policy, slow_seconds=policy.slow_seconds + seconds, deadline_seconds=policy.deadline_seconds + seconds
    )


@dataclass(slots=True, eq=False)
class _CallInFlight:
    operation: str
    subject: str
    policy: _ReadPolicy
    began: float

    def __str__(self) -> str:
        return f"{self.operation} for {self.subject}" if self.subject else self.operation


@dataclass(slots=True, eq=False)
class _ChangeInFlight(_CallInFlight):
    """A mutating call. It is completed even if its caller is cancelled."""

    policy: _ChangePolicy
    holder: object  # the key that holds its slot
    ticket: int
    over: asyncio.Future[None]  # set when the call has ended or met its deadline; `error` and `result` are then final
    error: Exception | None
    result: object = None
    timers: tuple[asyncio.TimerHandle, ...] = ()


class _PodNames:
    """The names of pods by the ids of the pods, their sandboxes and their containers."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()

    def name_of(self, known_id: str) -> str:
        """Return the pod's namespace/name, or the id itself if its pod is unknown."""
        return self._names.get(known_id, known_id)

    def add(self, known_id: str, name: str) -> None:
        if known_id not in self._names:
            self._names[known_id] = name
            if len(self._names) > _MAX_NAMES:
                self._names.popitem(last=False)

    def add_pod(self, pod: Pod) -> str:
        """Store and return the pod's namespace/name."""
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if pod.metadata.uid:
            self.add(pod.metadata.uid, name)
        return name

    def update(self, record: PodRecord) -> None:
        """Store the ids of a pod that the runtime reports. Forget a pod without sandboxes and containers."""
        if not (record.sandboxes or record.containers):
            self.remove(record.uid)
        elif record.name:
            name = f"{record.namespace}/{record.name}"
            sandboxes, containers = (each.id for each in record.sandboxes), (each.id for each in record.containers)
            for known_id in (record.uid, *sandboxes, *containers):
                self.add(known_id, name)

    def remove(self, known_id: str) -> None:
        self._names.pop(known_id, None)


class BoundedRuntime:
    """A runtime whose calls have deadlines and limits. `ports.runtime` has the contracts of the methods."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        clock: Clock,
        limits: CallLimits = DEFAULT_CALL_LIMITS,
        observer: Observer | None = None,
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._observer = observer or Observer()
        self._group: asyncio.TaskGroup | None = None
        self._opened = asyncio.Event()
        self._calls: dict[_CallInFlight, None] = {}
        self._pods = _PodNames()
        lane = partial(_Lane, ticket_seconds=limits.ticket_seconds, monotonic=clock.monotonic)
        lease, deadline, stops = limits.lease_seconds, limits.call_seconds, lane(limits.stop_slots)
        self._reading = _ReadPolicy(lease, deadline)
        self._starting = _ChangePolicy(lease, deadline, lane(limits.start_slots), lease)
        # Removals share the slots of stops but keep them longer: removing files is work for the runtime, waiting is
        # not.
        self._removing = _ChangePolicy(lease, deadline, stops, lease)
        self._stopping = _ChangePolicy(lease, deadline, stops, limits.stop_lease_seconds)
        self._pulling = _ChangePolicy(
            limits.pull_slow_seconds, limits.pull_seconds, lane(limits.pull_slots), limits.pull_lease_seconds
        )

    @property
    def name(self) -> str:
        return self._runtime.name

    async def run(self) -> None:
        """Execute mutating calls until cancelled. Calls in flight are then abandoned, as in a crash."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._opened.set()
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._group = None
        finally:
            # A task that is cancelled before its first step never reaches `_ended` itself.
            # Every caller waits for `over`, so each call must end here. Otherwise a cancelled sync would wait forever.
            for call in tuple(self._calls):
                if isinstance(call, _ChangeInFlight):
                    self._ended(call)

    def slow_calls(self) -> tuple[SlowCall, ...]:
        """Return the calls in flight that take too long, the oldest first."""
        now = self._clock.monotonic()
        return tuple(
            SlowCall(call.operation, call.subject, now - call.began)
            for call in self._calls
            if now - call.began >= call.policy.slow_seconds
        )

    # Mutating calls.

    async def run_sandbox(self, config: SandboxConfig) -> str:
        pod = self._pods.add_pod(config.pod)
        sandbox = await self._change("run_podsandbox", pod, self._starting, self._runtime.run_sandbox, config)
        self._pods.add(sandbox, pod)
        return sandbox

    async def stop_sandbox(self, sandbox_id: str) -> None:
        pod = self._pods.name_of(sandbox_id)
        await self._change("stop_podsandbox", pod, self._removing, self._runtime.stop_sandbox, sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        pod = self._pods.name_of(sandbox_id)
        await self._change("remove_podsandbox", pod, self._removing, self._runtime.remove_sandbox, sandbox_id)
        # Only after the removal, so that a failed removal and its retries are still logged with the name of the pod.
        self._pods.remove(sandbox_id)

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        pod, create = self._pods.add_pod(config.pod), self._runtime.create_container
        container = await self._change("create_container", pod, self._starting, create, sandbox_id, config)
        self._pods.add(container, pod)
        return container

    async def start_container(self, container_id: str) -> None:
        pod = self._pods.name_of(container_id)
        await self._change("start_container", pod, self._starting, self._runtime.start_container, container_id)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        pod, policy = self._pods.name_of(container_id), _extended(self._stopping, grace_seconds)
        await self._change("stop_container", pod, policy, self._runtime.stop_container, container_id, grace_seconds)

    async def remove_container(self, container_id: str) -> None:
        pod = self._pods.name_of(container_id)
        await self._change("remove_container", pod, self._removing, self._runtime.remove_container, container_id)
        self._pods.remove(container_id)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        return await self._change("pull_image", reference, self._pulling, self._runtime.pull_image, reference, secrets)

    async def remove_image(self, reference: str) -> None:
        await self._change("remove_image", reference, self._removing, self._runtime.remove_image, reference)

    # Reads.

    async def image(self, reference: str) -> ImageRecord | None:
        return await self._read("image_status", reference, self._reading, self._runtime.image, reference)

    async def list_images(self) -> Sequence[ImageRecord]:
        return await self._read("list_images", "", self._reading, self._runtime.list_images)

    async def image_usage(self) -> ImageFsUsage | None:
        return await self._read("image_fs_info", "", self._reading, self._runtime.image_usage)

    async def list_pods(self) -> Sequence[PodRecord]:
        return await self._read("list_podsandbox", "", self._reading, self._runtime.list_pods)

    async def pod_record(self, uid: PodUID) -> PodRecord:
        pod = self._pods.name_of(uid)
        record = await self._read("podsandbox_status", pod, self._reading, self._runtime.pod_record, uid)
        self._pods.update(record)
        return record

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        pod, policy = self._pods.name_of(container_id), _extended(self._reading, timeout_seconds)
        run = self._runtime.exec_sync
        return await self._read("exec_sync", pod, policy, run, container_id, command, timeout_seconds)

    async def reopen_log(self, container_id: str) -> None:
        # Treated as a read, because the log manager calls it again after a cancellation anyway.
        pod = self._pods.name_of(container_id)
        await self._read("reopen_container_log", pod, self._reading, self._runtime.reopen_log, container_id)

    async def health(self) -> RuntimeHealth:
        return await self._read("status", "", self._reading, self._runtime.health)

    def events(self) -> AsyncIterator[RuntimeEvent]:
        return self._runtime.events()

    async def _read(
        self,
        operation: str,
        subject: str,
        policy: _ReadPolicy,
        do: Callable[P, Awaitable[T]],
        *args: P.args,
        **named: P.kwargs,
    ) -> T:
        call = _CallInFlight(operation, subject, policy, self._clock.monotonic())
        deadline = asyncio.timeout(policy.deadline_seconds)
        self._calls[call] = None
        failed = False
        try:
            async with deadline:
                return await do(*args, **named)
        except Exception as error:
            failed = True
            if isinstance(error, TimeoutError) and deadline.expired():
                raise _timed_out(call) from error
            raise
        finally:
            del self._calls[call]
            seconds = self._clock.monotonic() - call.began
            self._observer.runtime_call(operation, seconds, failed=failed)
            if seconds >= policy.slow_seconds:
                log.warning("%s was slow: it took %g s", call, seconds)

    async def _change(
        self,
        operation: str,
        subject: str,
        policy: _ChangePolicy,
        do: Callable[P, Awaitable[T]],
        *args: P.args,
        **named: P.kwargs,
    ) -> T:
        # A sync may begin before `run` has created its task group.
        await self._opened.wait()
        lane, holder = policy.lane, object()
        # The order is that of pods, not of calls: otherwise all pods of a burst would finish late (k/k 39113, 27385).
        ticket = lane.tickets.draw(subject)
        await lane.slots.acquire(holder, ticket, policy.lease_seconds)
        lane.tickets.renew(subject, ticket)  # the ticket must not expire while the pod waits for a slot
        # `run` may have ended while this call waited for a slot.
        if self._group is None:
            lane.slots.give_back(holder)
            raise RuntimeUnavailable(f"cannot begin {operation} for {subject}: the agent is stopping")
        change = self._begin(operation, subject, policy, holder, ticket)
        self._group.create_task(self._carry_out(change, partial(do, *args, **named)))
        return cast(T, await _outcome(change))

    def _begin(
        self, operation: str, subject: str, policy: _ChangePolicy, holder: object, ticket: int
    ) -> _ChangeInFlight:
        loop = asyncio.get_running_loop()
        # The error of a call that never ends because the agent stops.
        abandoned = RuntimeUnavailable(f"the result of {operation} for {subject} is unknown: the call was abandoned")
        # A future of its own instead of the task: it is also set at the deadline, while the task continues.
        over, now = loop.create_future(), self._clock.monotonic()
        change = _ChangeInFlight(operation, subject, policy, now, holder, ticket, over, abandoned)
        change.timers = (
            loop.call_later(policy.slow_seconds, self._on_slow, change),
            loop.call_later(policy.deadline_seconds, self._on_deadline, change),
        )
        self._calls[change] = None
        return change

    async def _carry_out(self, change: _ChangeInFlight, do: Callable[[], Awaitable[object]]) -> None:
        try:
            change.result = await do()
            change.error = None
        except Exception as error:
            change.error = error
        finally:
            self._ended(change)

    def _ended(self, change: _ChangeInFlight) -> None:
        del self._calls[change]
        for timer in change.timers:
            timer.cancel()
        lane = change.policy.lane
        lane.slots.give_back(change.holder)
        # The pod's next call keeps this ticket, however long this call took.
        lane.tickets.renew(change.subject, change.ticket)
        seconds = self._clock.monotonic() - change.began
        if change.over.done():
            log.info("%s ended %g s after it began, later than its deadline", change, seconds)
        else:
            self._observer.runtime_call(change.operation, seconds, failed=change.error is not None)
            change.over.set_result(None)

    def _on_slow(self, change: _ChangeInFlight) -> None:
        log.warning("%s is slow: it has taken %g s so far", change, change.policy.slow_seconds)

    def _on_deadline(self, change: _ChangeInFlight) -> None:
        change.error = _timed_out(change)
        self._observer.runtime_call(change.operation, change.policy.deadline_seconds, failed=True)
        change.over.set_result(None)


async def _outcome(change: _ChangeInFlight) -> object:
    """Wait until a change is over, even if cancelled. Then raise the cancellation or error, or return the result."""
    interrupted: asyncio.CancelledError | None = None
    # A second cancellation may arrive during the wait. It must not end the wait either, so this is a loop.
    while not change.over.done():
        try:
            await asyncio.shield(change.over)
        except asyncio.CancelledError as error:
            interrupted = interrupted or error
    if interrupted is not None:
        if change.error is not None:
            log.warning("%s failed after its caller was cancelled: %s", change, change.error)
        raise interrupted
    if change.error is not None:
        raise change.error
    return change.result


def _timed_out(call: _CallInFlight) -> CallTimedOut:
    seconds = call.policy.deadline_seconds
    return CallTimedOut(f"cannot complete {call}: no answer within {seconds:g} s; it may have taken effect")
