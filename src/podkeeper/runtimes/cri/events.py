"""Events of sandboxes and containers, from any stream of the runtime.

Any number of consumers can subscribe.

    GetContainerEvents --------------------------------------------.
       `-- unsupported --> containerd's own stream, same socket --> confirm --> RuntimeEvent --> consumers
                              `-- unsupported --> RuntimeUnavailable: the engine polls

One stream serves all consumers. It is opened for the first one. When it breaks, all consumers are notified and
subscribe again.

containerd sends events before its CRI plugin has the new state, and sends nothing afterwards. An inspection right after
the event would see the old state. Therefore:

* An exit, or a start by another client, is forwarded only after ContainerStatus confirms it.
* Events of our own calls are forwarded some time after the calls have returned, and only if the pod was not inspected
  since.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from podkeeper.model.errors import AgentError, RuntimeUnavailable, TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.owners import Kind, Owner, OwnerIndex
from podkeeper.runtimes.cri.records import instant
from podkeeper.runtimes.cri.requests.labels import POD_UID
from podkeeper.runtimes.cri.schema import containerd_events, cri
from podkeeper.runtimes.cri.transport import ObjectNotFound, Unimplemented
from podkeeper.runtimes.events import EventHub

log = logging.getLogger(__name__)

# The ID usually belongs to a call of ours that has not returned yet. RunPodSandbox and StartContainer take about 0.1 s,
# several times that on a busy machine.
UNKNOWN_ID_SECONDS: Final = 1.0
"""Delay before the owner of an unknown ID is looked up."""

OWN_CALL_SECONDS: Final = 1.0
"""Time that an event waits for our own call about the same object."""

# The engine usually inspects a pod after it starts or stops a container. An inspection costs a tenth of a start, so do
# not cause a second one.
OWN_CHANGE_SECONDS: Final = 1.0
"""How long to wait for an inspection after our own start or stop. If there is one, the event is dropped."""

# Shorter, because the engine need not inspect a pod after a removal. The wait only combines the removals of one pod,
# which follow each other, into one inspection.
OWN_REMOVAL_SECONDS: Final = 0.1
"""The same after a removal. It is short, but usually more removals of the same pod follow."""

_SUBSCRIBE: Final = "/containerd.services.events.v1.Events/Subscribe"
# The containerd namespace of its CRI plugin. Other clients of containerd use other namespaces.
_NAMESPACE: Final = "k8s.io"
# No topic for creations, because the engine itself creates the containers.
_TOPICS: Final = ("/tasks/start", "/tasks/exit", "/tasks/oom", "/containers/delete")
# containerd updates the status about 30 ms after the exit, but a busy machine may take much longer.
_PAUSES: Final = (0.01,) * 10 + (0.05,) * 10 + (0.25,) * 6
_TYPES: Final = {
    cri.CONTAINER_CREATED_EVENT: RuntimeEventType.CREATED,
    cri.CONTAINER_STARTED_EVENT: RuntimeEventType.STARTED,
    cri.CONTAINER_STOPPED_EVENT: RuntimeEventType.STOPPED,
    cri.CONTAINER_DELETED_EVENT: RuntimeEventType.DELETED,
}

_BEFORE: Final = {
    RuntimeEventType.STARTED: (cri.CONTAINER_CREATED,),
    RuntimeEventType.STOPPED: (cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING),
}


@dataclass(slots=True)
class _OwnCalls:
    """Our own calls in flight about one object."""

    count: int = 0
    stops: bool = False  # one of them stops or removes the object
    over: asyncio.Event = field(default_factory=asyncio.Event)
    over_at: float = 0.0


class EventFeed:
    def __init__(
        self,
        calls: CriCalls,
        index: OwnerIndex,
        forget: Callable[[str], None],
        inspected_since: Callable[[PodUID, float], bool] = lambda uid, moment: False,
    ) -> None:
        """`forget` receives IDs whose status may have changed.

        `inspected_since` returns whether an inspection of a pod began after a given time.
        """
        self._calls = calls
        self._index = index
        self._forget = forget
        self._inspected_since = inspected_since
        self._hub = EventHub()
        self._wanted = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None  # tasks that confirm events of containerd's own stream
        self._own_calls: dict[str, _OwnCalls] = {}
        self._pending_starts: dict[str, RuntimeEvent] = {}  # our own starts that are not forwarded yet

    def listen(self) -> AsyncIterator[RuntimeEvent]:
        stream = self._hub.subscribe()
        self._wanted.set()
        return stream

    async def run(self) -> None:
        """Receive and forward events until cancelled."""
        while True:
            await self._wanted.wait()
            why = await self._receive()
            self._wanted.clear()
            self._hub.close(why)

    def close(self) -> None:
        """End the streams of all consumers."""
        self._hub.close(StopAsyncIteration())

    @contextmanager
    def starting(self, container_id: str) -> Iterator[None]:
        """Mark our own start call. After it returns, ContainerStatus shows the start."""
        with self._calling(container_id) as calls:
            yield
        owner = self._index.get(container_id)
        if self._group is not None and owner is not None:
            event = RuntimeEvent(owner.uid, container_id, RuntimeEventType.STARTED, datetime.now(UTC))
            self._pending_starts[container_id] = event
            self._group.create_task(self._forward_start(owner, event, calls))

    @contextmanager
    def stopping(self, object_id: str) -> Iterator[None]:
        """Mark our own stop or remove call. Its events need no confirmation."""
        with self._calling(object_id) as calls:
            calls.stops = True
            yield

    @contextmanager
    def _calling(self, object_id: str) -> Iterator[_OwnCalls]:
        calls = self._own_calls.setdefault(object_id, _OwnCalls())
        calls.count += 1
        try:
            yield calls
        finally:
            calls.count -= 1
            if calls.count == 0:
                del self._own_calls[object_id]
                calls.over_at = asyncio.get_running_loop().time()
                calls.over.set()

    async def _receive(self) -> AgentError:
        """Receive events until the stream breaks. Return the reason."""
        try:
            # containerd 1.6 does not have this call.
            with suppress(Unimplemented):
                if await self._receive_cri():
                    return RuntimeUnavailable("cannot receive events: the runtime ended its event stream")
            await self._receive_containerd()
        except Unimplemented:
            return RuntimeUnavailable(
                "cannot receive events: the runtime has no event stream (CRI-O needs enable_pod_events)"
            )
        except TryLater as error:
            return RuntimeUnavailable(f"cannot receive events: {error}")
        except Exception as error:
            log.exception("unexpected error in the runtime's event stream")
            return RuntimeUnavailable(f"cannot receive events: {error}")
        return RuntimeUnavailable("cannot receive events: the runtime ended its event stream")

    # CRI's own stream.

    async def _receive_cri(self) -> bool:
        """Receive events until the stream ends. Return whether there were any: CRI-O ends a disabled stream at once."""
        received = False
        async for event in self._calls.events():
            received = True
            uid = event.pod_sandbox_status.labels.get(POD_UID) or event.pod_sandbox_status.metadata.uid
            owner = self._index.get(event.container_id)
            if owner is None and uid:
                is_sandbox = event.container_id == event.pod_sandbox_status.id
                owner = Owner(PodUID(uid), Kind.SANDBOX if is_sandbox else Kind.CONTAINER)
            if owner is not None and (event_type := _TYPES.get(event.container_event_type)) is not None:
                self._forward(owner, event.container_id, event_type, instant(event.created_at))
                if event_type is RuntimeEventType.DELETED:
                    self._index.drop(event.container_id)
        return received

    # containerd's.

    async def _receive_containerd(self) -> None:
        request = containerd_events.SubscribeRequest(
            filters=[f'namespace=={_NAMESPACE},topic=="{topic}"' for topic in _TOPICS]
        )
        broken: TryLater | None = None
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                try:
                    async for envelope in self._calls.transport.stream(_SUBSCRIBE, request, containerd_events.Envelope):
                        self._handle(envelope, group)
                finally:
                    self._group = None
                    self._pending_starts.clear()
        except* TryLater as errors:  # drop pending events, because the consumers relist now
            broken = next(error for error in errors.exceptions if isinstance(error, TryLater))
        if broken is not None:
            raise broken

    def _handle(self, envelope: containerd_events.Envelope, group: asyncio.TaskGroup) -> None:
        payload, at = envelope.event.value, _instant_of(envelope.timestamp)
        match envelope.topic:
            case "/tasks/start":
                object_id = containerd_events.TaskStart.FromString(payload).container_id
                owner = self._index.get(object_id)
                is_own_sandbox = owner is not None and owner.made_here and owner.kind is Kind.SANDBOX
                # Our own starts are forwarded by `starting`, after the call has returned. Starts of other clients need
                # a confirmation, because containerd sends the event before its CRI plugin has the new state, and sends
                # nothing afterwards.
                if object_id not in self._own_calls and not is_own_sandbox:
                    group.create_task(self._forward_confirmed(object_id, RuntimeEventType.STARTED, at))
            case "/tasks/exit":
                exit_ = containerd_events.TaskExit.FromString(payload)
                if exit_.id == exit_.container_id:  # else a command in the container exited
                    group.create_task(self._forward_confirmed(exit_.container_id, RuntimeEventType.STOPPED, at))
            case "/tasks/oom":
                object_id = containerd_events.TaskOOM.FromString(payload).container_id
                if (owner := self._index.get(object_id)) is not None:
                    # The container may have exited before, and its status may have been read without the OOM reason.
                    self._forward(owner, object_id, RuntimeEventType.STOPPED, at)
            case "/containers/delete":
                object_id = containerd_events.ContainerDelete.FromString(payload).id
                if (owner := self._index.drop(object_id)) is None:
                    pass
                elif (calls := self._own_calls.get(object_id)) is not None:
                    group.create_task(self._forward_removal(owner, object_id, at, calls))
                else:
                    self._forward(owner, object_id, RuntimeEventType.DELETED, at)

    async def _forward_start(self, owner: Owner, event: RuntimeEvent, calls: _OwnCalls) -> None:
        """Forward our own start, unless the pod was inspected or a later event was forwarded."""
        inspected = await self._is_inspected(owner, event.type, calls)
        if self._pending_starts.get(event.container_id) is event:
            del self._pending_starts[event.container_id]
            if not inspected:
                self._forward(owner, event.container_id, event.type, event.at)

    async def _forward_removal(self, owner: Owner, object_id: str, at: datetime, calls: _OwnCalls) -> None:
        """Forward our own removal, unless the pod was inspected."""
        if not await self._is_inspected(owner, RuntimeEventType.DELETED, calls):
            self._forward(owner, object_id, RuntimeEventType.DELETED, at)

    async def _is_inspected(self, owner: Owner, event_type: RuntimeEventType, calls: _OwnCalls) -> bool:
        """Return whether the pod was inspected after our own calls returned."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OWN_CALL_SECONDS):
                await calls.over.wait()
        # The call hangs: do not wait for it any longer.
        if not calls.over.is_set():
            return False
        await asyncio.sleep(OWN_REMOVAL_SECONDS if event_type is RuntimeEventType.DELETED else OWN_CHANGE_SECONDS)
        return self._inspected_since(owner.uid, calls.over_at)

    async def _forward_confirmed(self, object_id: str, event_type: RuntimeEventType, at: datetime) -> None:
        """Forward an event after the status confirms it."""
        try:
            owner = self._index.get(object_id)
            if owner is None:
                await asyncio.sleep(UNKNOWN_ID_SECONDS)
                owner = await self._look_up(object_id)
                # Our own start after all: `starting` forwards it.
                if owner is None or (owner.made_here and event_type is RuntimeEventType.STARTED):
                    return
            calls = self._own_calls.get(object_id)
            # Our own stop call returns after the exit, and the engine usually inspects the pod then. Do not poll the
            # status meanwhile.
            if calls is not None and calls.stops and await self._is_inspected(owner, event_type, calls):
                return
            await self._confirm(object_id, owner, event_type)
        except TryLater as error:
            log.debug("cannot confirm that %s was %s: %s", object_id, event_type, error)
            if owner is None:
                return
        self._forward(owner, object_id, event_type, at)

    async def _look_up(self, object_id: str) -> Owner | None:
        """Look up the owner of an unknown ID. None if it belongs to no pod."""
        if (owner := self._index.get(object_id)) is not None:
            return owner
        for kind, found in (
            (Kind.CONTAINER, await self._calls.containers(container_id=object_id)),
            (Kind.SANDBOX, await self._calls.sandboxes(sandbox_id=object_id)),
        ):
            for each in found:
                if uid := each.labels.get(POD_UID):
                    self._index.saw(object_id, uid, kind)
        return self._index.get(object_id)

    async def _confirm(self, object_id: str, owner: Owner, event_type: RuntimeEventType) -> None:
        """Wait until the status shows the change, for a limited time."""
        if (calls := self._own_calls.get(object_id)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(OWN_CALL_SECONDS):
                    await calls.over.wait()
        for pause in _PAUSES:
            try:
                if owner.kind is Kind.SANDBOX:
                    ready = (await self._calls.sandbox_status(object_id)).status.state == cri.SANDBOX_READY
                    seen = RuntimeEventType.STARTED if ready else RuntimeEventType.STOPPED
                    if seen is event_type:
                        return
                else:
                    state = (await self._calls.container_status(object_id)).state
                    # Any later state confirms the event, too: the container may have exited since it started.
                    if state not in _BEFORE[event_type]:
                        return
            except ObjectNotFound:
                return
            await asyncio.sleep(pause)
        log.warning("the runtime reported that %s was %s, but its status does not show it", object_id, event_type)

    def _forward(self, owner: Owner, object_id: str, event_type: RuntimeEventType, at: datetime) -> None:
        # Before the event is sent, because the consumer inspects the pod, and a cached status would hide the change.
        self._forget(object_id)
        if (start := self._pending_starts.pop(object_id, None)) is not None:
            self._hub.send(start)  # the start comes before its successor
        self._hub.send(RuntimeEvent(owner.uid, object_id, event_type, at))


def _instant_of(at: containerd_events.Instant) -> datetime:
    return instant(0) + timedelta(seconds=at.seconds, microseconds=at.nanos // 1000)
