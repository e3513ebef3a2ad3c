"""News of sandboxes and containers, from whatever stream the runtime serves, to any number of listeners.

    GetContainerEvents --------------------------------------------.
       `-- not served --> containerd's own stream, same socket --> confirm --> RuntimeEvent --> listeners
                             `-- not served --> RuntimeUnavailable: the engine polls

One stream serves all; it is opened when somebody listens. When it breaks, everybody learns so and asks again.

containerd tells what happens before its CRI side knows: who looks at once sees the old state, and nobody tells again.
So an exit, and a start that somebody else asked for, is only told once the status says so too; while a call of ours is
under way that would end with it, nobody asks. What comes of our own calls is told a while after they have returned, and
only if nobody has looked at the pod by then: who starts or stops something mostly looks by himself, and a look costs as
much as a tenth of a start. Of an id that nobody has seen, the owner is looked up a little later: mostly it belongs to a
call of ours that has not returned yet. That a container is created is not told: whoever creates it knows.
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
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.index import Index, Kind, Owner
from podkeeper.runtimes.cri.records import instant
from podkeeper.runtimes.cri.requests.labels import POD_UID
from podkeeper.runtimes.cri.schema import containerd_events, cri
from podkeeper.runtimes.cri.transport import NotThere, Unimplemented
from podkeeper.runtimes.events import EventHub

log = logging.getLogger(__name__)

STRANGER_SECONDS: Final = 1.0
"""How long after news of an unknown id its owner is looked up."""

OWN_CALL_SECONDS: Final = 1.0
"""How long news waits for a call of ours about the same thing."""

OWN_LOOK_SECONDS: Final = 1.0
"""How long after a start or stop of ours we wait for whoever asked for it to look."""

OWN_REMOVAL_SECONDS: Final = 0.1
"""The same after a removal: nobody need look, but more removals of the same pod mostly follow."""

_SUBSCRIBE: Final = "/containerd.services.events.v1.Events/Subscribe"
_NAMESPACE: Final = "k8s.io"
_TOPICS: Final = ("/tasks/start", "/tasks/exit", "/tasks/oom", "/containers/delete")
# A runtime deletes a task within some 30 ms of its exit; how long a busy machine takes nobody knows.
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
class _Calls:
    """Calls of ours about one thing that are under way."""

    count: int = 0
    ending: bool = False  # one of them stops or removes it: when they have returned, that is done
    over: asyncio.Event = field(default_factory=asyncio.Event)
    over_at: float = 0.0


class EventFeed:
    """The stream of a runtime, and who listens."""

    def __init__(
        self,
        calls: Calls,
        index: Index,
        forget: Callable[[str], None],
        looked_since: Callable[[PodUID, float], bool] = lambda uid, moment: False,
    ) -> None:
        """`forget` is told of ids whose status may have changed; `looked_since` knows who looked at a pod."""
        self._calls = calls
        self._index = index
        self._forget = forget
        self._looked_since = looked_since
        self._hub = EventHub()
        self._wanted = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None  # of those who confirm; only beside containerd's own stream
        self._under_way: dict[str, _Calls] = {}
        self._untold: dict[str, RuntimeEvent] = {}  # starts of ours that somebody may see before they are told

    def listen(self) -> AsyncIterator[RuntimeEvent]:
        """What happens from now on."""
        stream = self._hub.subscribe()
        self._wanted.set()
        return stream

    async def run(self) -> None:
        """Hear and tell, until cancelled."""
        while True:
            await self._wanted.wait()
            why = await self._hear()
            self._wanted.clear()
            self._hub.close(why)

    def close(self) -> None:
        """There will be no more, for nobody."""
        self._hub.close(StopAsyncIteration())

    @contextmanager
    def starting(self, container_id: str) -> Iterator[None]:
        """A container is being started by us: when the call returns its status says so."""
        with self._calling(container_id) as calls:
            yield
        owner = self._index.get(container_id)
        if self._group is not None and owner is not None:
            event = RuntimeEvent(owner.uid, container_id, RuntimeEventType.STARTED, datetime.now(UTC))
            self._untold[container_id] = event
            self._group.create_task(self._tell_start(owner, event, calls))

    @contextmanager
    def ending(self, thing: str) -> Iterator[None]:
        """Something is being stopped or removed by us: when the call returns that is so, and nobody asks before."""
        with self._calling(thing) as calls:
            calls.ending = True
            yield

    @contextmanager
    def _calling(self, thing: str) -> Iterator[_Calls]:
        calls = self._under_way.setdefault(thing, _Calls())
        calls.count += 1
        try:
            yield calls
        finally:
            calls.count -= 1
            if calls.count == 0:
                del self._under_way[thing]
                calls.over_at = asyncio.get_running_loop().time()
                calls.over.set()

    async def _hear(self) -> AgentError:
        """Hear until the stream breaks. Returns why it did."""
        try:
            with suppress(Unimplemented):
                if await self._hear_cri():
                    return RuntimeUnavailable(
                        "cannot hear of containers any more: the runtime ended its stream of events"
                    )
            await self._hear_containerd()
        except Unimplemented:
            return RuntimeUnavailable(
                "cannot hear of containers: the runtime serves no stream of events (CRI-O does with enable_pod_events)"
            )
        except TryLater as error:
            return RuntimeUnavailable(f"cannot hear of containers any more: {error}")
        except Exception as error:
            log.exception("the runtime's stream of events failed in an unforeseen way")
            return RuntimeUnavailable(f"cannot hear of containers any more: {error}")
        return RuntimeUnavailable("cannot hear of containers any more: the runtime ended its stream of events")

    # CRI's own stream.

    async def _hear_cri(self) -> bool:
        """Hear until the stream ends. Returns whether anything was told: CRI-O may be told not to, and ends at once."""
        heard = False
        async for news in self._calls.news():
            heard = True
            uid = news.pod_sandbox_status.labels.get(POD_UID) or news.pod_sandbox_status.metadata.uid
            owner = self._index.get(news.container_id)
            if owner is None and uid:
                is_sandbox = news.container_id == news.pod_sandbox_status.id
                owner = Owner(PodUID(uid), Kind.SANDBOX if is_sandbox else Kind.CONTAINER)
            if owner is not None and (happened := _TYPES.get(news.container_event_type)) is not None:
                self._tell(owner, news.container_id, happened, instant(news.created_at))
                if happened is RuntimeEventType.DELETED:
                    self._index.drop(news.container_id)
        return heard

    # containerd's.

    async def _hear_containerd(self) -> None:
        request = containerd_events.SubscribeRequest(
            filters=[f'namespace=={_NAMESPACE},topic=="{topic}"' for topic in _TOPICS]
        )
        broken: TryLater | None = None
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                try:
                    async for envelope in self._calls.transport.stream(_SUBSCRIBE, request, containerd_events.Envelope):
                        self._heed(envelope, group)
                finally:
                    self._group = None
                    self._untold.clear()
        except* TryLater as errors:  # what was still to be told is given up: whoever listens relists now
            broken = next(error for error in errors.exceptions if isinstance(error, TryLater))
        if broken is not None:
            raise broken

    def _heed(self, envelope: containerd_events.Envelope, group: asyncio.TaskGroup) -> None:
        parcel, at = envelope.event.value, _instant_of(envelope.timestamp)
        match envelope.topic:
            case "/tasks/start":
                thing = containerd_events.TaskStart.FromString(parcel).container_id
                owner = self._index.get(thing)
                is_own_box = owner is not None and owner.made_here and owner.kind is Kind.SANDBOX
                if thing not in self._under_way and not is_own_box:
                    group.create_task(self._tell_later(thing, RuntimeEventType.STARTED, at))
            case "/tasks/exit":
                exit_ = containerd_events.TaskExit.FromString(parcel)
                if exit_.id == exit_.container_id:  # else it is a command that ran in it
                    group.create_task(self._tell_later(exit_.container_id, RuntimeEventType.STOPPED, at))
            case "/tasks/oom":
                thing = containerd_events.TaskOOM.FromString(parcel).container_id
                if (owner := self._index.get(thing)) is not None:
                    # It may have exited before, and its status been read without this reason.
                    self._tell(owner, thing, RuntimeEventType.STOPPED, at)
            case "/containers/delete":
                thing = containerd_events.ContainerDelete.FromString(parcel).id
                if (owner := self._index.drop(thing)) is None:
                    pass
                elif (calls := self._under_way.get(thing)) is not None:
                    group.create_task(self._tell_removal(owner, thing, at, calls))
                else:
                    self._tell(owner, thing, RuntimeEventType.DELETED, at)

    async def _tell_start(self, owner: Owner, event: RuntimeEvent, calls: _Calls) -> None:
        """Tell that we started something, unless somebody looks by himself, or it was told with what came after."""
        known = await self._is_known(owner, event.type, calls)
        if self._untold.get(event.container_id) is event:
            del self._untold[event.container_id]
            if not known:
                self._tell(owner, event.container_id, event.type, event.at)

    async def _tell_removal(self, owner: Owner, thing: str, at: datetime, calls: _Calls) -> None:
        """Tell that we removed something, unless somebody looks by himself."""
        if not await self._is_known(owner, RuntimeEventType.DELETED, calls):
            self._tell(owner, thing, RuntimeEventType.DELETED, at)

    async def _is_known(self, owner: Owner, happened: RuntimeEventType, calls: _Calls) -> bool:
        """Whether somebody has looked at a pod since calls of ours returned, after which there is nothing to tell."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OWN_CALL_SECONDS):
                await calls.over.wait()
        if not calls.over.is_set():
            return False
        await asyncio.sleep(OWN_REMOVAL_SECONDS if happened is RuntimeEventType.DELETED else OWN_LOOK_SECONDS)
        return self._looked_since(owner.uid, calls.over_at)

    async def _tell_later(self, thing: str, happened: RuntimeEventType, at: datetime) -> None:
        """Tell what happened once whoever looks will see it."""
        try:
            owner = self._index.get(thing)
            if owner is None:
                await asyncio.sleep(STRANGER_SECONDS)
                owner = await self._look_up(thing)
                if owner is None or (owner.made_here and happened is RuntimeEventType.STARTED):
                    return
            calls = self._under_way.get(thing)
            if calls is not None and calls.ending and await self._is_known(owner, happened, calls):
                return
            await self._confirm(thing, owner, happened)
        except TryLater as error:
            log.debug("cannot confirm that %s was %s: %s", thing, happened, error)
            if owner is None:
                return
        self._tell(owner, thing, happened, at)

    async def _look_up(self, thing: str) -> Owner | None:
        """Whose an id is that was not seen before; None: nobody's that matters."""
        if (owner := self._index.get(thing)) is not None:
            return owner
        for kind, found in (
            (Kind.CONTAINER, await self._calls.containers(container_id=thing)),
            (Kind.SANDBOX, await self._calls.sandboxes(sandbox_id=thing)),
        ):
            for each in found:
                if uid := each.labels.get(POD_UID):
                    self._index.saw(thing, uid, kind)
        return self._index.get(thing)

    async def _confirm(self, thing: str, owner: Owner, happened: RuntimeEventType) -> None:
        """Wait until the status says so too, for a while."""
        if (calls := self._under_way.get(thing)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(OWN_CALL_SECONDS):
                    await calls.over.wait()
        for pause in _PAUSES:
            try:
                if owner.kind is Kind.SANDBOX:
                    ready = (await self._calls.sandbox_status(thing)).status.state == cri.SANDBOX_READY
                    seen = RuntimeEventType.STARTED if ready else RuntimeEventType.STOPPED
                    if seen is happened:
                        return
                else:
                    state = (await self._calls.container_status(thing)).state
                    if state not in _BEFORE[happened]:
                        return
            except NotThere:
                return
            await asyncio.sleep(pause)
        log.warning("the runtime told that %s was %s, but its status does not say so", thing, happened)

    def _tell(self, owner: Owner, thing: str, happened: RuntimeEventType, at: datetime) -> None:
        self._forget(thing)
        if (start := self._untold.pop(thing, None)) is not None:
            self._hub.tell(start)  # first things first
        self._hub.tell(RuntimeEvent(owner.uid, thing, happened, at))


def _instant_of(at: containerd_events.Instant) -> datetime:
    return instant(0) + timedelta(seconds=at.seconds, microseconds=at.nanos // 1000)
