"""The API server as a source: the pods bound to this node, listed once and then followed.

    list --SET--> watch --ADD, UPDATE, REMOVE--> (stream ends or breaks) --> watch on from the last version
      ^                                                                         |
      `--- Gone, three fruitless watches, half an hour, an unforeseen error ----'

`Ledger` decides what a list or an event changes; it neither awaits nor logs. `ApiSource` is the shell: it asks,
obeys, and rests between tries so that no answer of the server, however odd, makes a hot loop.

What may be relied on:

* The first word is a SET, and only a list that succeeded leads to one. While the API is away nothing is removed.
* Versions of one server are numbers that grow with every change (Kubernetes guarantees it). An event that is not
  newer than its pod, or than a list or bookmark already taken, is a repetition and says nothing. UIDs are never used
  twice, so a pod seen deleted stays deleted. Versions that are no numbers are compared for being equal, no more.
* A list older than what was seen removes nobody: it is refused and asked for again. Seven in a row (with the pauses
  between, more than a minute) are no lateness: the server was restored from a backup, or replaced, and is the truth.
* With notes that survive a restart, what a former life saw counts as seen: a pod whose end is told has the position
  noted before, so no late answer can make a restarted agent start it again.
* The position is noted after the pods (`remember`) and becomes durable with them. If it became durable first, a crash
  could leave a position after a deletion and a note of the pod before it. The next agent would start the deleted pod
  from its note.
* A stream that says nothing at all for five minutes is taken for dead. Every half an hour, more or less, a list heals
  what no stream ever told; if that list cannot be had, watching goes on and it is asked for again soon.

The Go ancestors are pkg/kubelet/config/apiserver.go and client-go's tools/cache/reflector.go.
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
    """How patient the source is, in seconds."""

    first_pause: float = 1.0  # after one failure; doubled with each further one, and jittered up to twice as long
    longest_pause: float = 30.0
    lasting: float = 60.0  # a stream that lived so long was no failure
    silence: float = 300.0  # without event or bookmark; servers send a bookmark every minute
    list_deadline: float = 120.0  # should the client not keep its own
    relist: float = 1800.0  # jittered down to half of it, so that nodes do not ask in step
    fruitless_watches: int = 3  # in a row that brought nothing; then a list is asked for instead
    stale_lists: int = 7  # in a row older than what was seen; then the server is believed


USUAL_TIMING = Timing()


# What is decided.


class Ledger:
    """What was seen of the API's pods, and up to which version."""

    __slots__ = ("_complete_up_to", "_gone", "_pods", "position")

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}  # as told, by UID
        self._gone: dict[str, int | None] = {}  # UIDs seen deleted since `_complete_up_to`, with the version of that
        self._complete_up_to: int | None = None  # everything up to here was told: a list's or a bookmark's version
        self.position = ""  # the newest version seen: where to watch on from

    def is_stale(self, listed: Listed[Pod]) -> bool:
        """Whether a list is older than what was seen."""
        return is_older(listed.resource_version, self.position)

    def take_list(self, listed: Listed[Pod]) -> tuple[PodUpdate, tuple[Pod, ...]]:
        """Take a list for the truth. Returns the SET to tell, and the pods in it that cannot be used.

        A pod that was misread is not gone: if one of its name was told before, the SET keeps that.
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
        """Take one event of the watch. Returns what it changes; None: nothing, it was told before."""
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
        # Whatever its version: a UID never comes back, and some servers send the pod's last one, not the deletion's.
        uid = pod.metadata.uid or ""
        if not self._is_covered(version):
            self._gone[uid] = version_number(version)
        return None if self._pods.pop(uid, None) is None else PodUpdate(Op.REMOVE, (pod,), API_SOURCE)

    def _is_covered(self, version: str) -> bool:
        """Whether a list or a bookmark already stands for everything up to this version."""
        number = version_number(version)
        return number is not None and self._complete_up_to is not None and number <= self._complete_up_to

    def _complete(self, version: str) -> None:
        """Everything up to a version was told: who is gone by then cannot be told of again."""
        number = version_number(version)
        if number is not None and not self._is_covered(version):
            self._complete_up_to = number
            self._gone = {uid: at for uid, at in self._gone.items() if at is None or at > number}


def is_usable(pod: Pod) -> bool:
    """Whether a pod says who it is."""
    return bool(pod.metadata.uid and pod.metadata.name)


def _ends_something(update: PodUpdate) -> bool:
    """Whether a word of the API is one that must never be unsaid: a pod is to end, is over or is gone."""
    return update.op in (Op.SET, Op.REMOVE) or any(
        pod.metadata.deletion_timestamp is not None or is_terminal(pod.status.phase) for pod in update.pods
    )


# What is done.


class Notes(Protocol):
    """What this room asks of a notebook: notes by key that survive a restart."""

    def take(self, key: str) -> bytes | None:
        """The note of before the restart, once."""

    def write(self, key: str, note: bytes) -> None:
        """Write a note."""

    async def settle(self, key: str | None = None) -> None:
        """Return once a key's note is safe, or cannot be waited for any longer."""


class _End(Enum):
    """How following a stream ended."""

    CLOSED = auto()
    BROKEN = auto()
    SILENT = auto()
    TOO_OLD = auto()  # the version cannot be watched from any more
    LIST_DUE = auto()


class ApiSource:
    """Tells the pods that the API has for one node."""

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
        """`note` receives messages about the source. `notes` store the last version seen, for the next start.

        `remember` receives each update before it is told, and notes its pods for the next life.
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
        self._failures = 0  # tries in a row that came to nothing
        self._fruitless = 0  # watches in a row that brought nothing
        self._must_list = True  # there is nothing to watch from
        self._list_due = 0.0  # on the monotonic clock; from then on a list would heal what was lost
        self._stale_lists = 0  # in a row

    @property
    def name(self) -> str:
        """`api`."""
        return API_SOURCE

    async def run(self, tell: Tell) -> None:
        """List, watch and tell, until cancelled. Never raises for what the API, or the one told, does."""
        self._must_list = True  # run again, it begins anew: with a SET
        while True:
            pause = await self._try(tell)
            if pause > 0:
                await asyncio.sleep(pause)

    async def _try(self, tell: Tell) -> float:
        """List or watch, whichever is due. Returns how long to rest."""
        try:
            if self._must_list or self._clock.monotonic() >= self._list_due:
                trouble = await self._list(tell)
                return 0.0 if trouble is None else self._without_list(trouble)
            return await self._watch_once(tell)
        except Exception:
            log.exception("cannot follow the API's pods for an unforeseen reason, will list them again")
            self._must_list = True
            return self._rest("cannot follow pods for an unforeseen reason")

    async def _list(self, tell: Tell) -> str | None:
        """List and tell. Returns what was wrong, if anything was."""
        try:
            async with asyncio.timeout(self._timing.list_deadline):
                listed = await self._api.list(Pod, field_selector=self._selector)
        except TryLater as error:
            return f"cannot list pods: {error}"
        except TimeoutError:
            return "cannot list pods: no answer in time"
        if self._ledger.is_stale(listed) and not self._is_believed():
            version, seen = listed.resource_version, self._ledger.position
            return f"cannot use a list of pods of version {version}: {seen} was seen before"
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
        """Go on without a list where that is possible; where it is not, rest."""
        if self._must_list:
            return self._rest(trouble)
        pause = self._timing.longest_pause * (1 + self._clock.fraction())
        self._list_due = self._clock.monotonic() + pause
        log.warning("%s; watching on, and listing again in %.1f s", trouble, pause)
        return 0.0

    def _is_believed(self) -> bool:
        """Whether so many lists were older than what was seen that the server must be another one."""
        self._stale_lists += 1
        if self._stale_lists < self._timing.stale_lists:
            return False
        log.error(
            "the API stays behind version %s, as if restored from a backup: taking its list for the truth",
            self._ledger.position,
        )
        return True

    async def _watch_once(self, tell: Tell) -> float:
        """Watch as long as the stream lasts. Returns how long to rest."""
        begun, position = self._clock.monotonic(), self._ledger.position
        end = await self._watch(tell)
        return self._after_watch(end, self._clock.monotonic() - begun, self._ledger.position != position)

    async def _watch(self, tell: Tell) -> _End:
        """Follow the pods until the stream ends, however it does."""
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
        """Take what a stream says, until it ends or says nothing for too long."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(self._deadline(loop)) as deadline:
            taken = 0
            async for event in stream:
                await self._take(event, tell)
                deadline.reschedule(self._deadline(loop))
                taken += 1
                if taken % _EVENTS_IN_A_ROW == 0:
                    await asyncio.sleep(0)  # a burst that lies ready must not keep the loop from everybody else

    def _deadline(self, loop: asyncio.AbstractEventLoop) -> float:
        return min(loop.time() + self._timing.silence, self._list_due)

    async def _take(self, event: WatchEvent[Pod], tell: Tell) -> None:
        if event.type is not WatchType.BOOKMARK and not is_usable(event.object):
            self._refuse(event.object)
        if (update := self._ledger.take_event(event)) is not None:
            await self._tell_safely(update, tell)

    async def _tell_safely(self, update: PodUpdate, tell: Tell) -> None:
        """Note the pods, then the position, then tell. Wait until the notes are durable if the update ends a pod."""
        try:
            self._remember(update)
            if self._notes is not None:
                self._notes.write(API_SOURCE, self._ledger.position.encode())
                if _ends_something(update):
                    await self._notes.settle(API_SOURCE)
        finally:  # the ledger has taken it: nobody else would tell
            self._pass_on(update, tell)

    def _pass_on(self, update: PodUpdate, tell: Tell) -> None:
        """Tell. Whoever is told may fail, as a boundary may: the other pods go on, and a list tells it once more."""
        try:
            tell(update)
            return
        except AgentError as error:
            log.error("%s of %d pods from the API was refused: %s", update.op, len(update.pods), error)
        except Exception:
            log.exception("%s of %d pods from the API failed in an unforeseen way", update.op, len(update.pods))
        self._list_due = min(self._list_due, self._clock.monotonic() + self._timing.longest_pause)

    def _refuse(self, pod: Pod) -> None:
        log.error("cannot use pod %s of the API: it has no %s", full_name(pod), "name" if pod.metadata.uid else "UID")
        self._say(f"refused pod {full_name(pod)}")

    def _after_watch(self, end: _End, lived: float, progress: bool) -> float:
        """Decide what comes after a watch, and how long to rest before it."""
        if progress:  # this server knows newer versions than the lists that seemed stale
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
                return 0.0  # so long a life is pause enough
            case _End.CLOSED:
                return self._rest("the watch of pods was closed early")
            case _End.BROKEN:
                return self._rest("the watch of pods broke")
            case _End.SILENT:
                return self._rest("the watch of pods says nothing")
            case _End.TOO_OLD:
                return self._rest("the watch of pods cannot go on from where it was")

    def _rest(self, why: str) -> float:
        """Count a failure; the pause grows with each, and differs from node to node."""
        timing = self._timing
        # Bounded before the power is taken: a server may be away for weeks.
        pause = min(timing.first_pause * 2.0 ** min(self._failures, 16), timing.longest_pause)
        pause *= 1 + self._clock.fraction()
        self._failures += 1
        log.warning("%s; trying again in %.1f s", why, pause)
        self._say(f"{why}; trying again in {pause:.1f} s")
        return pause

    def _say(self, what: str) -> None:
        try:
            self._note(what)
        except Exception:
            log.exception("cannot note: %s", what)


async def _close(stream: AsyncIterator[WatchEvent[Pod]]) -> None:
    """Close a stream that is a generator; one that is left is closed only when it is collected."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
