"""The guarded runtime: the runtime port, with every call bounded and none left half-way.

In: any runtime. Out: the same port, the same results and the same errors. What is added:

* A call that changes something runs in a task of its own. A cancelled caller waits until it has ended, or has met its
  deadline; only then the cancellation goes on. So a pass that was cancelled never runs beside its successor. A caller
  cancelled while it still queues for a slot begins nothing and goes at once.
* A call that meets its deadline raises `CallTimedOut`: it may have taken effect. Its task is left to end by itself.
* Starts, stops and pulls have slots of their own. Slots go to the pod that came first, for *all* it has to do in one
  go: a burst of pods is started one after the other, not all of them last. A call that outlives its lease gives its
  slot back, so hung calls block nobody.
* Whoever is slow is named: in the log, and by `slow_calls`.

Reads wait for no slot, have deadlines too, and end at once when their caller is cancelled: nobody misses them.
"""

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import ParamSpec, Protocol, TypeVar, cast

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

_NAMES_KEPT = 32_768  # ids whose pod is remembered; a forgotten one is shown as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many calls at a time, and how long each may take."""

    start_slots: int = 8
    stop_slots: int = 16
    pull_slots: int = 4
    lease_seconds: float = 10.0  # a call gives its slot back after this long, and counts as slow
    stop_lease_seconds: float = 0.1  # waiting for a container to end is no load: only the signals are spread
    pull_lease_seconds: float = 60.0  # one slow registry does not hold up the others; who wants strict limits says so
    pull_slow_seconds: float = 60.0
    call_seconds: float = 120.0  # the deadline; a stop has its grace on top, a command its timeout
    pull_seconds: float = 1800.0
    turn_seconds: float = 10.0  # a pod idle for this long has lost its turn


USUAL_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class SlowCall:
    """A call under way that takes longer than it should."""

    operation: str
    about: str
    seconds: float


class ObserveCall(Protocol):
    """Told of every call that has ended; operations have the reference's names."""

    def __call__(self, operation: str, seconds: float, *, failed: bool) -> None:
        """How long it took, and whether it raised."""


def _observe_nothing(operation: str, seconds: float, *, failed: bool) -> None: ...


class _Slots:
    """So many calls at a time; who waits is served by turn, and a turn belongs to a pod."""

    def __init__(self, slots: int, turn_seconds: float, monotonic: Callable[[], float]) -> None:
        self._free = slots
        self._turn_seconds = turn_seconds
        self._monotonic = monotonic
        self._numbers = count()
        self._turns: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by pod: its turn and last use; by last use
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def take(self, pod: str) -> int:
        """Wait for a slot. Returns the pod's turn."""
        turn = self.turn_of(pod)
        if self._free > 0:
            self._free -= 1
            return turn
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (turn, next(self._numbers), granted))
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # the slot came together with the cancellation
                self.give_back()
            raise
        self.keep(pod, turn)  # who had to wait for so long was not idle
        return turn

    def give_back(self) -> None:
        """Pass a slot on to whoever is next."""
        while self._waiting:
            _, _, granted = heapq.heappop(self._waiting)
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1

    def turn_of(self, pod: str) -> int:
        """The pod's turn, used now: the one it has, or a new one if it has not used that lately."""
        now = self._monotonic()
        while self._turns:
            idle, (turn, used) = self._turns.popitem(last=False)
            if used + self._turn_seconds > now:
                self._turns[idle] = turn, used
                self._turns.move_to_end(idle, last=False)
                break
        turn, _ = self._turns.pop(pod) if pod in self._turns else (next(self._numbers), now)
        self._turns[pod] = turn, now
        return turn

    def keep(self, pod: str, turn: int) -> None:
        """Let a pod that was busy until now have its turn for a while longer, even if it seemed to be lost."""
        newer, _ = self._turns.pop(pod, (turn, 0.0))
        self._turns[pod] = min(turn, newer), self._monotonic()


@dataclass(frozen=True, slots=True)
class _Terms:
    """On what terms a call is made: how long until it counts as slow, may go on, and holds its slot."""

    slow_seconds: float
    deadline_seconds: float
    slots: _Slots | None = None
    lease_seconds: float = 0.0

    def extended(self, seconds: float) -> "_Terms":
        """The same for a call that is meant to take so long."""
        return _Terms(self.slow_seconds + seconds, self.deadline_seconds + seconds, self.slots, self.lease_seconds)


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way."""

    operation: str
    about: str
    terms: _Terms
    began: float

    def __str__(self) -> str:
        return f"{self.operation} for {self.about}" if self.about else self.operation


@dataclass(slots=True, eq=False)
class _Change(_Call):
    """A call that is completed whatever becomes of its caller."""

    over: asyncio.Future[None]  # it has ended, or met its deadline: `error` and `result` are what the caller gets
    error: Exception | None
    result: object = None
    slot: _Slots | None = None  # whose slot it holds
    turn: int = 0
    timers: tuple[asyncio.TimerHandle, ...] = ()

    def give_slot_back(self) -> None:
        """Let the next one begin."""
        if self.slot is not None:
            self.slot.give_back()
            self.slot = None


class GuardedRuntime:
    """A runtime whose calls are completed, bounded and watched."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        clock: Clock,
        limits: Limits = USUAL_LIMITS,
        observe: ObserveCall = _observe_nothing,
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._observe = observe
        self._group: asyncio.TaskGroup | None = None
        self._opened = asyncio.Event()
        self._calls: dict[_Call, None] = {}
        self._names: OrderedDict[str, str] = OrderedDict()  # of pods, by their ids and those of what they have
        slots = partial(_Slots, turn_seconds=limits.turn_seconds, monotonic=clock.monotonic)
        lease, deadline, stops = limits.lease_seconds, limits.call_seconds, slots(limits.stop_slots)
        self._reading = _Terms(lease, deadline)
        self._starting = _Terms(lease, deadline, slots(limits.start_slots), lease)
        self._removing = _Terms(lease, deadline, stops, lease)
        self._stopping = _Terms(lease, deadline, stops, limits.stop_lease_seconds)
        self._pulling = _Terms(
            limits.pull_slow_seconds, limits.pull_seconds, slots(limits.pull_slots), limits.pull_lease_seconds
        )

    @property
    def name(self) -> str:
        """What container ids are prefixed with in the API."""
        return self._runtime.name

    async def run(self) -> None:
        """Carry out the calls until cancelled; those then under way are given up, as in a crash."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._opened.set()
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._group = None
        finally:
            for call in tuple(self._calls):  # a task that is cancelled before its first step cannot say so itself
                if isinstance(call, _Change):
                    self._ended(call)

    def slow_calls(self) -> tuple[SlowCall, ...]:
        """The calls under way that take too long, those that began first in front."""
        now = self._clock.monotonic()
        return tuple(
            SlowCall(call.operation, call.about, now - call.began)
            for call in self._calls
            if now - call.began >= call.terms.slow_seconds
        )

    # Changes.

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a sandbox and start it."""
        about = self._learn(config.pod)
        sandbox = await self._change("run_podsandbox", about, self._starting, self._runtime.run_sandbox, config)
        self._remember(sandbox, about)
        return sandbox

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox."""
        about = self._name_of(sandbox_id)
        await self._change("stop_podsandbox", about, self._removing, self._runtime.stop_sandbox, sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox."""
        about = self._name_of(sandbox_id)
        await self._change("remove_podsandbox", about, self._removing, self._runtime.remove_sandbox, sandbox_id)
        self._names.pop(sandbox_id, None)

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container."""
        about, create = self._learn(config.pod), self._runtime.create_container
        container = await self._change("create_container", about, self._starting, create, sandbox_id, config)
        self._remember(container, about)
        return container

    async def start_container(self, container_id: str) -> None:
        """Start a created container."""
        about = self._name_of(container_id)
        await self._change("start_container", about, self._starting, self._runtime.start_container, container_id)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask a container to end, and force it after the grace."""
        about, terms = self._name_of(container_id), self._stopping.extended(grace_seconds)
        await self._change("stop_container", about, terms, self._runtime.stop_container, container_id, grace_seconds)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        about = self._name_of(container_id)
        await self._change("remove_container", about, self._removing, self._runtime.remove_container, container_id)
        self._names.pop(container_id, None)

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Fetch an image."""
        return await self._change("pull_image", reference, self._pulling, self._runtime.pull_image, reference, secrets)

    async def remove_image(self, reference: str) -> None:
        """Remove an image."""
        await self._change("remove_image", reference, self._removing, self._runtime.remove_image, reference)

    # Reads.

    async def image(self, reference: str) -> ImageRecord | None:
        """The image under this name, if the node has it."""
        return await self._read("image_status", reference, self._reading, self._runtime.image, reference)

    async def list_images(self) -> Sequence[ImageRecord]:
        """All images of the node."""
        return await self._read("list_images", "", self._reading, self._runtime.list_images)

    async def image_usage(self) -> ImageFsUsage | None:
        """How full the file system is that images lie on."""
        return await self._read("image_fs_info", "", self._reading, self._runtime.image_usage)

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod the runtime has anything of."""
        return await self._read("list_podsandbox", "", self._reading, self._runtime.list_pods)

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """All about one pod."""
        about = self._name_of(uid)
        record = await self._read("podsandbox_status", about, self._reading, self._runtime.pod_record, uid)
        self._learn_record(record)
        return record

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        """Run a command in a container and wait for its end."""
        about, terms = self._name_of(container_id), self._reading.extended(timeout_seconds)
        run = self._runtime.exec_sync
        return await self._read("exec_sync", about, terms, run, container_id, command, timeout_seconds)

    async def reopen_log(self, container_id: str) -> None:
        """Let a container's log go on in a new file. Not completed for a caller that is gone: it asks again anyway."""
        about = self._name_of(container_id)
        await self._read("reopen_container_log", about, self._reading, self._runtime.reopen_log, container_id)

    async def health(self) -> RuntimeHealth:
        """Ask the runtime how it is."""
        return await self._read("status", "", self._reading, self._runtime.health)

    def events(self) -> AsyncIterator[RuntimeEvent]:
        """What happens from now on."""
        return self._runtime.events()

    # How it is done.

    async def _read(
        self,
        operation: str,
        about: str,
        terms: _Terms,
        do: Callable[P, Awaitable[T]],
        *args: P.args,
        **named: P.kwargs,
    ) -> T:
        call = _Call(operation, about, terms, self._clock.monotonic())
        deadline = asyncio.timeout(terms.deadline_seconds)
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
            self._observe(operation, seconds, failed=failed)
            if seconds >= terms.slow_seconds:
                log.warning("%s was slow: it took %g s", call, seconds)

    async def _change(
        self, operation: str, about: str, terms: _Terms, do: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> T:
        await self._opened.wait()
        turn = 0 if terms.slots is None else await terms.slots.take(about)
        if self._group is None:
            if terms.slots is not None:
                terms.slots.give_back()
            raise RuntimeUnavailable(f"cannot begin {operation} for {about}: the agent is stopping")
        change = self._begin(operation, about, terms, turn)
        self._group.create_task(self._carry_out(change, partial(do, *args, **named)))
        return cast(T, await _outcome(change))

    def _begin(self, operation: str, about: str, terms: _Terms, turn: int) -> _Change:
        loop = asyncio.get_running_loop()
        given_up = RuntimeUnavailable(f"cannot tell how {operation} for {about} ended: it was abandoned")
        change = _Change(operation, about, terms, self._clock.monotonic(), loop.create_future(), given_up)
        change.slot, change.turn = terms.slots, turn
        change.timers = (
            loop.call_later(terms.lease_seconds, change.give_slot_back),
            loop.call_later(terms.slow_seconds, self._name_culprit, change),
            loop.call_later(terms.deadline_seconds, self._meet_deadline, change),
        )
        self._calls[change] = None
        return change

    async def _carry_out(self, change: _Change, do: Callable[[], Awaitable[object]]) -> None:
        try:
            change.result = await do()
            change.error = None
        except Exception as error:
            change.error = error
        finally:
            self._ended(change)

    def _ended(self, change: _Change) -> None:
        """Let go of a change that has ended, and of its caller if that still waits."""
        del self._calls[change]
        for timer in change.timers:
            timer.cancel()
        change.give_slot_back()
        if change.terms.slots is not None:
            change.terms.slots.keep(change.about, change.turn)  # what the pod does next still belongs to this turn
        seconds = self._clock.monotonic() - change.began
        if change.over.done():
            log.info("%s has ended after all, after %g s", change, seconds)
        else:
            self._observe(change.operation, seconds, failed=change.error is not None)
            change.over.set_result(None)

    def _name_culprit(self, change: _Change) -> None:
        log.warning("%s is slow: it has taken %g s so far", change, change.terms.slow_seconds)

    def _meet_deadline(self, change: _Change) -> None:
        change.error = _timed_out(change)
        self._observe(change.operation, change.terms.deadline_seconds, failed=True)
        change.over.set_result(None)

    # Who is who.

    def _learn(self, pod: Pod) -> str:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if pod.metadata.uid:
            self._remember(pod.metadata.uid, name)
        return name

    def _learn_record(self, record: PodRecord) -> None:
        if not (record.sandboxes or record.containers):
            self._names.pop(record.uid, None)
        elif record.name:
            name = f"{record.namespace}/{record.name}"
            for known in (record.uid, *(box.id for box in record.sandboxes), *(one.id for one in record.containers)):
                self._remember(known, name)

    def _remember(self, known: str, name: str) -> None:
        if known not in self._names:
            self._names[known] = name
            if len(self._names) > _NAMES_KEPT:
                self._names.popitem(last=False)

    def _name_of(self, known: str) -> str:
        return self._names.get(known, known)


async def _outcome(change: _Change) -> object:
    """Wait until a change is over, cancelled or not; then be cancelled, or give its result or its error."""
    interrupted: asyncio.CancelledError | None = None
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


def _timed_out(call: _Call) -> CallTimedOut:
    seconds = call.terms.deadline_seconds
    return CallTimedOut(f"cannot complete {call}: no answer within {seconds:g} s; it may have taken effect")
