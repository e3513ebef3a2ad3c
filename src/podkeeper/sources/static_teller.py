"""From what manifests hold to what is told: the last step that the file and the http source share.

    contents by place --shelf.py--> what counts --objects, then pods--> the node's store, the storage
                                        `------what is wrong----------> complaints.py

The store gets its objects before the pods are told, so no pod looks for what is about to come. A SET is told at first
and when the pods differ from those last told; if whoever is told fails, it is told again the next time.

With notes (`manifest_notes.py`) static pods run through a restart of the agent while their manifests cannot be read:

* What counted of a place before the restart still counts while the place cannot be read, or cannot be used. A place
  that can be read decides: a manifest that was removed meanwhile takes its pods with it.
* Until all of the source could be read once, pods are told as ADD and REMOVE, never as a SET: a SET would declare the
  source ready, and housekeeping would end every pod of the part that nobody has read yet.
* If the source has read nothing within `patience_seconds` (no answer, a file system that hangs), the stored pods are
  told. Not sooner: a pod whose manifest was removed meanwhile should not start for a moment.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podkeeper.model.errors import AgentError, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Tell
from podkeeper.sources.complaints import Complaint, Complaints, Report
from podkeeper.sources.contents import Contents
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.shelf import Shelf, Shelved

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What a place holds, and a version that changes whenever its text does."""

    contents: Contents
    version: object


class StaticTeller:
    """Tells the pods of one source of manifests."""

    def __init__(
        self, source: str, objects: LocalObjects | None, report: Report | None, notes: ManifestNotes | None = None
    ) -> None:
        """`notes` survive a restart of the agent; None: nothing does."""
        self._source = source
        self._objects = objects
        self._notes = notes
        self._shelf = Shelf()
        self._complaints = Complaints(report)
        self._found: Mapping[str, Found] | None = None
        self._troubles: Mapping[str, Problem] = {}
        self._told: tuple[Pod, ...] | None = None
        self._may_have: dict[str | None, Pod] = {}  # by UID: what was told since `begin`, refused or not
        self._is_ready = False  # a SET was told

    def begin(self, is_ours: Callable[[str], bool] = lambda _: True) -> None:
        """Whoever is told next knows nothing yet. `is_ours`: whether a place still belongs to the source."""
        self._told, self._is_ready, self._may_have = None, False, {}
        recalled = {} if self._notes is None else self._notes.recall()
        if recalled:
            self._shelf.restore({place: items for place, items in recalled.items() if is_ours(place)})

    def places(self) -> tuple[str, ...]:
        """The places of which something counts, in order."""
        return tuple(place for place, items in self._shelf.counting.items() if items)

    async def run(self, tell: Tell) -> None:
        """Run beside the source: make notes durable, and tell the stored pods if the source says nothing in time."""
        if self._notes is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._notes.run())
            await asyncio.sleep(self._notes.patience_seconds)
            while self._told is None and self.places():  # again if the update is refused: the source may stay silent
                log.warning("source %s cannot be read: going on with the pods it last had", self._source)
                self._count(self._shelf.now(), tell, complete=False)
                await asyncio.sleep(self._notes.patience_seconds)

    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong now."""
        return self._complaints.now()

    def take(
        self, found: Mapping[str, Found], troubles: Mapping[str, Problem], tell: Tell, *, complete: bool = True
    ) -> None:
        """Take what all places hold now, and what keeps some from being looked at; tell what is news.

        `complete`: False while the source may have places that it could not list since it began.
        """
        told = self._told is not None and self._is_ready >= complete
        if told and found == self._found and troubles == self._troubles:
            return
        shelved = self._shelf.take({place: each.contents for place, each in found.items()})
        if self._notes is not None:
            self._notes.keep(self._shelf.counting)
        complaints = {place: Complaint((problem,)) for place, problem in troubles.items()}
        for place, problems in shelved.problems.items():
            both = complaints[place].problems + problems if place in complaints else problems
            complaints[place] = Complaint(both, found[place].version, shelved.held.get(place, 0))
        self._complaints.take(complaints)
        self._count(shelved, tell, complete=complete)
        # Last: if a step above raises, the next call must not take the same contents for known.
        self._found, self._troubles = found, troubles

    def complain(self, place: str, problem: Problem, version: object = None) -> None:
        """Say what keeps a place from being looked at; all that was told stays true."""
        self._found = None
        self._complaints.take({place: Complaint((problem,), version)})

    def _count(self, shelved: Shelved, tell: Tell, *, complete: bool) -> None:
        """Hand over what counts: objects first, then pods if they are news."""
        if self._objects is not None:
            self._objects.replace(self._source, shelved.objects)
        if shelved.pods != self._told or complete > self._is_ready:
            self._tell(shelved.pods, tell, is_ready=complete or self._is_ready)

    def _tell(self, pods: tuple[Pod, ...], tell: Tell, *, is_ready: bool) -> None:
        updates = (PodUpdate(Op.SET, pods, self._source),) if is_ready else self._partial(pods)
        now = {pod.metadata.uid: pod for pod in pods}
        # If a REMOVE is refused, the next update must contain it again: no SET may follow for a long time.
        self._may_have |= now
        try:
            for update in updates:
                tell(update)
            self._told, self._is_ready, self._may_have = pods, is_ready, now
            return
        except AgentError as error:
            log.error("%d pods from source %s were refused: %s", len(pods), self._source, error)
        except Exception:
            log.exception("%d pods from source %s were refused unexpectedly", len(pods), self._source)
        self._told = None  # whoever was told may have taken it or not

    def _partial(self, pods: tuple[Pod, ...]) -> tuple[PodUpdate, ...]:
        """What changed since the last word, without a claim to be all there is."""
        uids = {pod.metadata.uid for pod in pods}
        gone = tuple(pod for uid, pod in self._may_have.items() if uid not in uids)
        removed = (PodUpdate(Op.REMOVE, gone, self._source),) if gone else ()
        return (*removed, PodUpdate(Op.ADD, pods, self._source)) if pods else removed
