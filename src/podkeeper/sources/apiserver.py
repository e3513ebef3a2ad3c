"""The API source: lists and watches the pods that are bound to this node.

    list --SET--> watch --ADD, UPDATE, REMOVE--> (stream ends or breaks) --> watch from the last version
      ^                                                                         |
      `--- Gone, three watches without events, half an hour, unexpected error --'

`Ledger` decides what a list or an event changes. It does not await or log. `ApiSource` sends the requests, and pauses
between them, so that no answer of the server can cause a hot loop.

Guarantees:

* The first update is a SET, and only a successful list results in a SET. While the API is unreachable, no pod is
  removed.
* Kubernetes guarantees that versions are numbers that increase with every change. An event that is not newer than its
  pod, or than the last list or bookmark, is ignored. UIDs are never reused, so a deleted pod stays deleted. Versions
  that are not numbers are only compared for equality.
* A list that is older than a known version is rejected and requested again. After seven such lists (over a minute), the
  server was probably restored from a backup or replaced, so the list is accepted.
* With notes, versions from before a restart count as known, too. The position is stored before the end of a pod is
  passed on, so a stale answer cannot make a restarted agent start the pod again.
* The position is stored after the pods (`remember`) and becomes durable with them. If it became durable first, a crash
  could leave a position after a deletion and a note of the pod before it. The next agent would start the deleted pod
  from its note.
* A stream without events and bookmarks for five minutes counts as broken. About every half an hour, a list recovers
  lost events. If that list fails, the watch continues, and the list is retried soon.

Kubelet counterparts: pkg/kubelet/config/apiserver.go and client-go's tools/cache/reflector.go.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from podkeeper.model.api import Listed, WatchEvent, WatchType
from podkeeper.model.errors import AgentError, Gone, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUpdate
from podkeeper.ports.api import Watcher
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import Tell
from podkeeper.rules.mirror import full_name
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.resource_version import is_newer, is_older, version_number
from podkeeper.sources.remembered import Remember

log = logging.getLogger(__name__)

_EVENTS_IN_A_ROW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Timeouts and limits. Times are in seconds."""

    first_pause: float = 1.0  # after one failure; doubled after each further one, plus jitter of up to 100 %
    longest_pause: float = 30.0
    lasting: float = 60.0  # a stream that lasted this long is not a failure
    silence: float = 300.0  # without event or bookmark; servers send a bookmark every minute
    list_deadline: float = 120.0  # in case the client has no deadline
    relist: float = 1800.0  # minus jitter of up to 50 %, so that nodes do not list at the same time
    fruitless_watches: int = 3  # after this many watches without events in a row, list again
    stale_lists: int = 7  # after this many stale lists in a row, accept the list


USUAL_TIMING = Timing()


# Decisions.


class Ledger:
    """The known pods of the API, and the known version."""

    __slots__ = ("_complete_up_to", "_gone", "_pods", "position")

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}  # the pods passed on, by UID
        self._gone: dict[str, int | None] = {}  # UIDs deleted since `_complete_up_to`, with the version of the deletion
        self._complete_up_to: int | None = (
            None  # the version of the last list or bookmark; all earlier events are known
        )
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
                if full_name(pod) in misread - present:
                    pods.setdefault(uid, pod)
        self._pods = pods
        self._gone.clear()
        self._complete_up_to = version_number(listed.resource_version)
        self.position = listed.resource_version
        return PodUpdate(Op.SET, tuple(pods.values()), API_SOURCE), refused

    def take_event(self, event: WatchEvent[Pod]) -> PodUpdate | None:
        """Process one event of the watch. Returns the update, or None if the event is not new."""
        pod, version = event.object, event.resource_version
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
        """Record that all events up to a version are known. Earlier deletions need not be kept any more."""
        number = version_number(version)
        if number is not None and not self._is_covered(version):
            self._complete_up_to = number
            self._gone = {uid: at for uid, at in self._gone.items() if at is None or at > number}


def is_usable(pod: Pod) -> bool:
    """Return whether a pod has a UID and a name."""
    return bool(pod.metadata.uid and pod.metadata.name)


def _ends_something(update: PodUpdate) -> bool:
    """Return whether an update deletes, removes or completes a pod. This must not be lost by a crash."""
    return update.op in (Op.SET, Op.REMOVE) or any(
        pod.metadata.deletion_timestamp is not None or is_terminal(pod.status.phase) for pod in update.pods
    )


# Actions.


class Notes(Protocol):
    """Notes by key that survive a restart: the part of `Notebook` that this module uses."""

    def take(self, key: str) -> bytes | None:
        """Return the note from before the restart. Later calls return None."""

    def write(self, key: str, note: bytes) -> None:
        """Write a note."""

    async def settle(self, key: str | None = None) -> None:
        """Return when the note of a key is durable, or after a timeout."""


class _End(Enum):
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
        note: Callable[[str], None] = lambda _: None,
        notes: Notes | None = None,
        remember: Remember = lambda _: None,
        timing: Timing = USUAL_TIMING,
    ) -> None:
        """`note` receives messages about the source. `notes` store the newest known version for the next start.

        `remember` receives each update before it is sent, and stores its pods for the next start.
        """
        self._api = api
        self._selector = f"spec.nodeName={node_name}"
        self._clock = clock
        self._note = note
        self._notes = notes
        self._remember = remember
        self._timing = timing
        self._ledger = Ledger()
        seen = None if notes is None else notes.take(API_SOURCE)
        self._ledger.position = "" if seen is None else seen.decode(errors="replace")
        self._failures = 0  # failures in a row
        self._fruitless = 0  # watches without events in a row
        self._must_list = True  # there is no version to watch from
        self._list_due = 0.0  # on the monotonic clock: when to list again, to recover lost events
        self._stale_lists = 0  # in a row

    @property
    def name(self) -> str:
        return API_SOURCE

    async def run(self, tell: Tell) -> None:
        """List and watch until cancelled. Errors of the API and of the receiver do not end it."""
        self._must_list = True  # a second run must start with a SET, too
        while True:
            pause = await self._try(tell)
            if pause > 0:
                await asyncio.sleep(pause)

    async def _try(self, tell: Tell) -> float:
        """List or watch, whichever is due. Returns the pause before the next try."""
        try:
            if self._must_list or self._clock.monotonic() >= self._list_due:
                trouble = await self._list(tell)
                return 0.0 if trouble is None else self._without_list(trouble)
            return await self._watch_once(tell)
        except Exception:
            log.exception("unexpected error while watching pods, will list again")
            self._must_list = True
            return self._rest("unexpected error while watching pods")

    async def _list(self, tell: Tell) -> str | None:
        """List the pods and send them. Returns the error, if any."""
        try:
            async with asyncio.timeout(self._timing.list_deadline):
                listed = await self._api.list(Pod, field_selector=self._selector)
        except TryLater as error:
            return f"cannot list pods: {error}"
        except TimeoutError:
            return "cannot list pods: no answer in time"
        if self._ledger.is_stale(listed) and not self._is_believed():
            version, seen = listed.resource_version, self._ledger.position
            return f"cannot use a list of pods of version {version}: version {seen} is already known"
        update, refused = self._ledger.take_list(listed)
        for pod in refused:
            self._refuse(pod)
        self._must_list = False
        self._list_due = self._clock.monotonic() + self._timing.relist * (1 - self._clock.fraction() / 2)
        self._stale_lists = self._fruitless = 0
        self._say(f"listed {len(update.pods)} pods at version {listed.resource_version}")
        await self._tell_safely(update, tell)
        return None

    def _without_list(self, trouble: str) -> float:
        """Continue to watch after a failed list if possible. Returns the pause before the next try."""
        if self._must_list:
            return self._rest(trouble)
        pause = self._timing.longest_pause * (1 + self._clock.fraction())
        self._list_due = self._clock.monotonic() + pause
        log.warning("%s; continuing to watch, will list again in %.1f s", trouble, pause)
        return 0.0

    def _is_believed(self) -> bool:
        """Count a stale list. Returns whether there were so many that the server must have been restored."""
        self._stale_lists += 1
        if self._stale_lists < self._timing.stale_lists:
            return False
        log.error(
            "the API's lists stay older than version %s, as after a restore from a backup: accepting its list",
            self._ledger.position,
        )
        return True

    async def _watch_once(self, tell: Tell) -> float:
        """Watch until the stream ends. Returns the pause before the next try."""
        begun, position = self._clock.monotonic(), self._ledger.position
        end = await self._watch(tell)
        return self._after_watch(end, self._clock.monotonic() - begun, self._ledger.position != position)

    async def _watch(self, tell: Tell) -> _End:
        """Watch until the stream ends. Returns how it ended."""
        try:
            stream = self._api.watch(Pod, self._ledger.position, field_selector=self._selector)
            try:
                await self._follow(stream, tell)
            finally:
                await _close(stream)
        except Gone:
            return _End.TOO_OLD
        except TryLater as error:
            log.debug("the watch of pods broke: %s", error)
            return _End.BROKEN
        except TimeoutError:
            return _End.LIST_DUE if self._clock.monotonic() >= self._list_due else _End.SILENT
        return _End.CLOSED

    async def _follow(self, stream: AsyncIterator[WatchEvent[Pod]], tell: Tell) -> None:
        """Process the events of a stream until it ends or times out."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(self._deadline(loop)) as deadline:
            taken = 0
            async for event in stream:
                await self._take(event, tell)
                deadline.reschedule(self._deadline(loop))
                taken += 1
                if taken % _EVENTS_IN_A_ROW == 0:
                    await asyncio.sleep(0)  # let other tasks run during a burst of events

    def _deadline(self, loop: asyncio.AbstractEventLoop) -> float:
        return min(loop.time() + self._timing.silence, self._list_due)

    async def _take(self, event: WatchEvent[Pod], tell: Tell) -> None:
        if event.type is not WatchType.BOOKMARK and not is_usable(event.object):
            self._refuse(event.object)
        if (update := self._ledger.take_event(event)) is not None:
            await self._tell_safely(update, tell)

    async def _tell_safely(self, update: PodUpdate, tell: Tell) -> None:
        """Store the pods, then the position, then send. If the update ends a pod, wait until the notes are durable."""
        try:
            self._remember(update)
            if self._notes is not None:
                self._notes.write(API_SOURCE, self._ledger.position.encode())
                if _ends_something(update):
                    await self._notes.settle(API_SOURCE)
        finally:  # send in any case, because the ledger counts the update as known
            self._pass_on(update, tell)

    def _pass_on(self, update: PodUpdate, tell: Tell) -> None:
        """Send an update. If the receiver fails, list again soon, which sends the pods again."""
        try:
            tell(update)
            return
        except AgentError as error:
            log.error("%s of %d pods from the API was refused: %s", update.op, len(update.pods), error)
        except Exception:
            log.exception("%s of %d pods from the API failed unexpectedly", update.op, len(update.pods))
        self._list_due = min(self._list_due, self._clock.monotonic() + self._timing.longest_pause)

    def _refuse(self, pod: Pod) -> None:
        log.error("cannot use pod %s of the API: it has no %s", full_name(pod), "name" if pod.metadata.uid else "UID")
        self._say(f"refused pod {full_name(pod)}")

    def _after_watch(self, end: _End, lived: float, progress: bool) -> float:
        """Decide whether to list after a watch. Returns the pause before the next try."""
        if progress:  # the server has newer versions than its stale lists
            self._fruitless = self._stale_lists = 0
        elif end is not _End.LIST_DUE:
            self._fruitless += 1
        if end is _End.TOO_OLD or self._fruitless >= self._timing.fruitless_watches:
            self._must_list = True
        if lived >= self._timing.lasting or (progress and end is not _End.TOO_OLD):
            self._failures = 0
        match end:
            case _End.LIST_DUE:
                return 0.0
            case _End.CLOSED | _End.SILENT | _End.TOO_OLD if lived >= self._timing.lasting:
                return 0.0  # no pause needed after such a long watch
            case _End.CLOSED:
                return self._rest("the watch of pods was closed early")
            case _End.BROKEN:
                return self._rest("the watch of pods broke")
            case _End.SILENT:
                return self._rest("the watch of pods received no events or bookmarks")
            case _End.TOO_OLD:
                return self._rest("the watch of pods cannot continue, because its version is too old")

    def _rest(self, why: str) -> float:
        """Count a failure. Returns a pause with exponential backoff and jitter."""
        timing = self._timing
        # Limit the exponent, because 2.0 ** n overflows after weeks of failures.
        pause = min(timing.first_pause * 2.0 ** min(self._failures, 16), timing.longest_pause)
        pause *= 1 + self._clock.fraction()
        self._failures += 1
        log.warning("%s; will retry in %.1f s", why, pause)
        self._say(f"{why}; will retry in {pause:.1f} s")
        return pause

    def _say(self, what: str) -> None:
        try:
            self._note(what)
        except Exception:
            log.exception("cannot note: %s", what)


async def _close(stream: AsyncIterator[WatchEvent[Pod]]) -> None:
    """Close a stream that is a generator. Otherwise it would stay open until it is garbage-collected."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
