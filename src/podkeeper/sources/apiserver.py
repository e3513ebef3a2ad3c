"""The API source: lists and watches the pods that are bound to this node.

    list --SET--> watch --ADD, UPDATE, REMOVE--> (stream ends or breaks) --> watch from the last version
      ^                                                                         |
      `--- Gone, three watches without events, half an hour, unexpected error --'

`ReflectorState` decides what a list or an event changes. It does not await or log. `ApiSource` sends the requests. It
pauses between them, so that no response of the server can cause a hot loop.

Guarantees:

* The first update is a SET, and only a successful list results in a SET. While the API is unreachable, no pod is
  removed.
* Kubernetes guarantees that versions are numbers that increase with every change. An event that is not newer than its
  pod, or than the last list or bookmark, is ignored. UIDs are never reused, so a deleted pod stays deleted. Versions
  that are not numbers are only compared for equality.
* A list that is older than a known version is rejected and requested again. After seven such lists (over a minute), the
  server was probably restored from a backup or replaced, so the list is accepted.
* With checkpoints, versions from before a restart also count as known. Before the source sends the end of a pod
  (deleted, removed or terminal), it stores the position. So a stale list cannot make a restarted agent start the pod
  again.
* The position is stored after the pods (`store`) and becomes durable with them.
* A stream without events and bookmarks for five minutes counts as broken. About every half hour, a list recovers
  lost events. If that list fails, the watch continues, and the list is retried soon.

Kubelet counterparts: pkg/kubelet/config/apiserver.go and client-go's tools/cache/reflector.go.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum, auto

from podkeeper.concurrency.backoff import GrowingDelay, RetryCounter
from podkeeper.model.api import Listed, ObjectEvent, WatchType
from podkeeper.model.errors import AgentError, Gone, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUpdate
from podkeeper.ports.api import Watcher
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import SendUpdate
from podkeeper.rules.resource_version import is_newer, is_older, version_number
from podkeeper.rules.static.mirror import full_name
from podkeeper.rules.status.phase import is_terminal
from podkeeper.sources.stored_pods import CheckpointStore, StoreUpdate

log = logging.getLogger(__name__)

# Events that are already received need no wait, so without this a burst would block the event loop.
_EVENTS_PER_TURN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """Timeouts and limits. Times are in seconds."""

    first_pause: float = 1.0  # after one failure; doubled after each further one, plus jitter of up to 100 %
    longest_pause: float = 30.0
    lasting: float = 60.0  # a stream that lasted this long is not a failure
    # client-go trusts a silent watch, and a half-open connection then hides all changes.
    silence: float = 300.0  # without event or bookmark; servers send a bookmark every minute
    list_deadline: float = 120.0  # in case the client has no deadline
    # client-go never lists again while a watch works. Events that a server lost would be missed forever.
    relist: float = 1800.0  # minus jitter of up to 50 %, so that nodes do not list at the same time
    fruitless_watches: int = 3  # after this many watches without events in a row, list again
    # With the pauses between them, this is more than a minute. A cache that only lags has caught up by then.
    stale_lists: int = 7  # after this many stale lists in a row, accept the list


DEFAULT_TIMING = WatchTiming()


# Decisions.


class ReflectorState:
    """The known pods of the API, and the known version."""

    __slots__ = ("_complete_up_to", "_gone", "_pods", "position")

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}  # the pods passed on, by UID
        self._gone: dict[str, int | None] = {}  # UIDs deleted since `_complete_up_to`, with the version of the deletion
        # The version of the last list or bookmark. All earlier events are known.
        self._complete_up_to: int | None = None
        self.position = ""  # the newest known version, from which the next watch starts

    def is_stale(self, listed: Listed[Pod]) -> bool:
        """Return whether a list is older than the known version."""
        return is_older(listed.resource_version, self.position)

    def take_list(self, listed: Listed[Pod]) -> tuple[PodUpdate, tuple[Pod, ...]]:
        """Accept a list. Returns the SET, and the unusable pods of the list.

        An unusable pod is not removed: if a pod of the same name is known, the SET keeps that one.
        """
        refused = tuple(pod for pod in listed.items if not is_usable(pod))
        pods = {pod.metadata.uid or "": pod for pod in listed.items if is_usable(pod)}
        if refused:
            misread, present = {full_name(pod) for pod in refused}, {full_name(pod) for pod in pods.values()}
            for uid, pod in self._pods.items():
                # Misread pods must not count as removed, because their containers run.
                if full_name(pod) in misread - present:
                    pods.setdefault(uid, pod)
        self._pods = pods
        # UIDs are never reused, and the list is newer than all deletions in here.
        self._gone.clear()
        self._complete_up_to = version_number(listed.resource_version)
        self.position = listed.resource_version
        return PodUpdate(Op.SET, tuple(pods.values()), API_SOURCE), refused

    def take_event(self, event: ObjectEvent[Pod]) -> PodUpdate | None:
        """Process one event of the watch. Returns the update, or None if the event is not new."""
        pod, version = event.object, event.resource_version
        # Servers may repeat events. The position must never move back.
        if not is_older(version, self.position):
            self.position = version
        if event.type is WatchType.BOOKMARK:
            self._complete(version)
            return None
        if not is_usable(pod):
            return None
        uid = pod.metadata.uid or ""
        known = self._pods.get(uid)
        if event.type is WatchType.DELETED:
            return self._take_deletion(pod, version)
        # A late event of a deleted pod would start the pod again.
        if known is None and (uid in self._gone or self._is_covered(version)):
            return None
        if known is not None and not is_newer(version, known.metadata.resource_version or ""):
            return None
        self._pods[uid] = pod
        return PodUpdate(Op.ADD if known is None else Op.UPDATE, (pod,), API_SOURCE)

    def _take_deletion(self, pod: Pod, version: str) -> PodUpdate | None:
        # Ignore the version, because UIDs are never reused, and some servers send the pod's last version here.
        uid = pod.metadata.uid or ""
        if not self._is_covered(version):
            self._gone[uid] = version_number(version)
        return None if self._pods.pop(uid, None) is None else PodUpdate(Op.REMOVE, (pod,), API_SOURCE)

    def _is_covered(self, version: str) -> bool:
        """Return whether the last list or bookmark includes this version."""
        number = version_number(version)
        return number is not None and self._complete_up_to is not None and number <= self._complete_up_to

    def _complete(self, version: str) -> None:
        """Record that all events up to a version are known. Drop earlier deletions."""
        number = version_number(version)
        if number is not None and not self._is_covered(version):
            self._complete_up_to = number
            self._gone = {uid: at for uid, at in self._gone.items() if at is None or at > number}


def is_usable(pod: Pod) -> bool:
    """Return whether a pod has a UID and a name."""
    return bool(pod.metadata.uid and pod.metadata.name)


def _ends_pod(update: PodUpdate) -> bool:
    """Return whether an update deletes, removes or completes a pod. A crash must not lose such an update."""
    return update.op in (Op.SET, Op.REMOVE) or any(
        pod.metadata.deletion_timestamp is not None or is_terminal(pod.status.phase) for pod in update.pods
    )


# Actions.


class _WatchEnd(Enum):
    """How a watch ended."""

    CLOSED = auto()
    BROKEN = auto()
    SILENT = auto()
    TOO_OLD = auto()  # the server cannot start a watch from this version any more
    LIST_DUE = auto()


class ApiSource:
    def __init__(
        self,
        *,
        api: Watcher,
        node_name: str,
        clock: Clock,
        on_message: Callable[[str], None] = lambda _: None,
        checkpoints: CheckpointStore | None = None,
        store: StoreUpdate = lambda _: None,
        timing: WatchTiming = DEFAULT_TIMING,
    ) -> None:
        """`on_message` receives messages about the source. `checkpoints` store the newest known version.

        `store` receives each update before it is sent, and stores its pods for the next start.
        """
        self._api = api
        self._selector = f"spec.nodeName={node_name}"
        self._clock = clock
        self._on_message = on_message
        self._checkpoints = checkpoints
        self._store = store
        self._timing = timing
        self._state = ReflectorState()
        seen = None if checkpoints is None else checkpoints.take(API_SOURCE)
        # Without this, a new agent would accept a list from before a deletion that the last agent saw.
        self._state.position = "" if seen is None else seen.decode(errors="replace")
        self._retries = RetryCounter(GrowingDelay(timing.first_pause, timing.longest_pause))
        self._fruitless = 0  # watches without events in a row
        self._must_list = True  # there is no version to watch from
        self._list_due = 0.0  # on the monotonic clock: when to list again, to recover lost events
        self._stale_lists = 0  # in a row

    @property
    def name(self) -> str:
        return API_SOURCE

    async def run(self, send: SendUpdate) -> None:
        """List and watch until cancelled. Errors of the API and of the receiver do not end it."""
        self._must_list = True  # a second run must start with a SET, too
        while True:
            pause = await self._try(send)
            if pause > 0:
                await asyncio.sleep(pause)

    async def _try(self, send: SendUpdate) -> float:
        """List or watch, whichever is due. Returns the pause before the next try."""
        try:
            if self._must_list or self._clock.monotonic() >= self._list_due:
                failure = await self._list(send)
                return 0.0 if failure is None else self._without_list(failure)
            return await self._watch_once(send)
        except Exception:
            log.exception("unexpected error while watching pods, will list again")
            self._must_list = True
            return self._backoff("unexpected error while watching pods")

    async def _list(self, send: SendUpdate) -> str | None:
        """List the pods and send them. Returns the error, if any."""
        try:
            async with asyncio.timeout(self._timing.list_deadline):
                listed = await self._api.list(Pod, field_selector=self._selector)
        except TryLater as error:
            return f"cannot list pods: {error}"
        except TimeoutError:
            return "cannot list pods: no answer in time"
        if self._state.is_stale(listed) and not self._accepts_stale_list():
            version, seen = listed.resource_version, self._state.position
            return f"cannot use a list of pods of version {version}: version {seen} is already known"
        update, refused = self._state.take_list(listed)
        for pod in refused:
            self._report_unusable(pod)
        self._must_list = False
        # Before the update is sent: a failing receiver makes the next list due earlier.
        self._list_due = self._clock.monotonic() + self._timing.relist * (1 - self._clock.fraction() / 2)
        self._stale_lists = self._fruitless = 0
        self._report(f"listed {len(update.pods)} pods at version {listed.resource_version}")
        await self._store_and_send(update, send)
        return None

    def _without_list(self, failure: str) -> float:
        """Continue to watch after a failed list if possible. Returns the pause before the next try."""
        if self._must_list:
            return self._backoff(failure)
        pause = self._timing.longest_pause * (1 + self._clock.fraction())
        self._list_due = self._clock.monotonic() + pause
        log.warning("%s; continuing to watch, will list again in %.1f s", failure, pause)
        return 0.0

    def _accepts_stale_list(self) -> bool:
        """Count a stale list.

        Returns whether there were enough in a row to assume that the server was restored from a backup.
        """
        self._stale_lists += 1
        if self._stale_lists < self._timing.stale_lists:
            return False
        log.error(
            "the API's lists stay older than version %s, as after a restore from a backup: accepting its list",
            self._state.position,
        )
        return True

    async def _watch_once(self, send: SendUpdate) -> float:
        """Watch until the stream ends. Returns the pause before the next try."""
        begun, position = self._clock.monotonic(), self._state.position
        end = await self._watch(send)
        return self._after_watch(end, self._clock.monotonic() - begun, self._state.position != position)

    async def _watch(self, send: SendUpdate) -> _WatchEnd:
        """Watch until the stream ends. Returns how it ended."""
        try:
            stream = self._api.watch(Pod, self._state.position, field_selector=self._selector)
            try:
                await self._follow(stream, send)
            finally:
                await _close(stream)
        except Gone:
            return _WatchEnd.TOO_OLD
        except TryLater as error:
            log.debug("the watch of pods broke: %s", error)
            return _WatchEnd.BROKEN
        except TimeoutError:
            return _WatchEnd.LIST_DUE if self._clock.monotonic() >= self._list_due else _WatchEnd.SILENT
        return _WatchEnd.CLOSED

    async def _follow(self, stream: AsyncIterator[ObjectEvent[Pod]], send: SendUpdate) -> None:
        """Process the events of a stream until it ends or times out."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(self._deadline(loop)) as deadline:
            taken = 0
            async for event in stream:
                await self._take(event, send)
                # After the event was handled: waiting for the journal is not a silence of the stream.
                deadline.reschedule(self._deadline(loop))
                taken += 1
                if taken % _EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)  # let other tasks run during a burst of events

    def _deadline(self, loop: asyncio.AbstractEventLoop) -> float:
        return min(loop.time() + self._timing.silence, self._list_due)

    async def _take(self, event: ObjectEvent[Pod], send: SendUpdate) -> None:
        if event.type is not WatchType.BOOKMARK and not is_usable(event.object):
            self._report_unusable(event.object)
        if (update := self._state.take_event(event)) is not None:
            await self._store_and_send(update, send)

    async def _store_and_send(self, update: PodUpdate, send: SendUpdate) -> None:
        """Store the pods, then the position, then send. If the update ends a pod, wait until both are durable."""
        try:
            # The pods first. If the position became durable first, a crash could leave a position after a deletion and
            # a stored pod from before it. The next agent would start the deleted pod (seed 74).
            self._store(update)
            if self._checkpoints is not None:
                self._checkpoints.write(API_SOURCE, self._state.position.encode())
                if _ends_pod(update):
                    # Only for the end of a pod, because each wait for the disk delays all later events of the watch.
                    await self._checkpoints.settle(API_SOURCE)
        finally:  # send in any case, because `_state` already contains the update
            self._send(update, send)

    def _send(self, update: PodUpdate, send: SendUpdate) -> None:
        """Send an update. If the receiver fails, list again soon, which sends the pods again."""
        try:
            send(update)
            return
        except AgentError as error:
            log.error("the agent rejected %s of %d pods from the API: %s", update.op, len(update.pods), error)
        except Exception:
            log.exception("unexpected error while sending %s of %d pods from the API", update.op, len(update.pods))
        self._list_due = min(self._list_due, self._clock.monotonic() + self._timing.longest_pause)

    def _report_unusable(self, pod: Pod) -> None:
        log.error("cannot use pod %s of the API: it has no %s", full_name(pod), "name" if pod.metadata.uid else "UID")
        self._report(f"ignored pod {full_name(pod)}: it has no name or no UID")

    def _after_watch(self, end: _WatchEnd, seconds: float, made_progress: bool) -> float:
        """Decide whether to list after a watch. Returns the pause before the next try."""
        if made_progress:  # the server has newer versions than its stale lists
            self._fruitless = self._stale_lists = 0
        elif end is not _WatchEnd.LIST_DUE:
            self._fruitless += 1
        if end is _WatchEnd.TOO_OLD or self._fruitless >= self._timing.fruitless_watches:
            self._must_list = True
        # Progress resets the backoff, except for TOO_OLD: a server that always answers Gone must not cause a hot loop.
        if seconds >= self._timing.lasting or (made_progress and end is not _WatchEnd.TOO_OLD):
            self._retries.succeeded()
        match end:
            case _WatchEnd.LIST_DUE:
                return 0.0
            case _WatchEnd.CLOSED | _WatchEnd.SILENT | _WatchEnd.TOO_OLD if seconds >= self._timing.lasting:
                return 0.0  # no pause needed after such a long watch
            case _WatchEnd.CLOSED:
                return self._backoff("the watch of pods was closed early")
            case _WatchEnd.BROKEN:
                return self._backoff("the watch of pods broke")
            case _WatchEnd.SILENT:
                return self._backoff("the watch of pods received no events or bookmarks")
            case _WatchEnd.TOO_OLD:
                return self._backoff("the watch of pods cannot continue, because its version is too old")

    def _backoff(self, reason: str) -> float:
        """Count a failure. Returns a pause with exponential backoff and jitter."""
        pause = self._retries.failed() * (1 + self._clock.fraction())
        log.warning("%s; will retry in %.1f s", reason, pause)
        self._report(f"{reason}; will retry in {pause:.1f} s")
        return pause

    def _report(self, message: str) -> None:
        try:
            self._on_message(message)
        except Exception:
            log.exception("cannot report: %s", message)


async def _close(stream: AsyncIterator[ObjectEvent[Pod]]) -> None:
    """Close a stream that is a generator. Otherwise it would stay open until it is garbage-collected."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
