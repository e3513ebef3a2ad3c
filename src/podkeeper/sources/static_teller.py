"""Send the objects of manifests to the agent, for the file source and the HTTP source.

    contents by place --shelf.py--> objects in use --objects, then pods--> the node's store, the storage
                                        `------problems------------------> complaints.py

The node's store receives its objects before the pods are sent, so that pods find them. A SET is sent at the start and
when the pods have changed. If the receiver fails, it is sent again.

With notes (`manifest_notes.py`), static pods survive a restart of the agent while their manifests are unreadable:

* The objects from before the restart stay in use while their place is unreadable or invalid. Once the place is
  readable, it decides: if a manifest was removed in the meantime, its pods are removed.
* Until the whole source was read once, pods are sent as ADD and REMOVE. A SET would declare the source as ready, and
  housekeeping would then kill the pods of the unread part.
* If the source has read nothing within `patience_seconds` (no answer, a hanging file system), the stored pods are sent.
  Not sooner, because the manifest of a stored pod may have been removed, and the pod would start for a moment.
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
    """The contents of a place, and a version that changes whenever the text changes."""

    contents: Contents
    version: object


class StaticTeller:
    def __init__(
        self, source: str, objects: LocalObjects | None, report: Report | None, notes: ManifestNotes | None = None
    ) -> None:
        """`notes` store the manifests across restarts of the agent. None: nothing is stored."""
        self._source = source
        self._objects = objects
        self._notes = notes
        self._shelf = Shelf()
        self._complaints = Complaints(report)
        self._found: Mapping[str, Found] | None = None
        self._troubles: Mapping[str, Problem] = {}
        self._told: tuple[Pod, ...] | None = None
        self._may_have: dict[str | None, Pod] = {}  # by UID: pods sent since `begin`, including refused ones
        self._is_ready = False  # a SET was sent

    def begin(self, is_ours: Callable[[str], bool] = lambda _: True) -> None:
        """Start for a new receiver. `is_ours` returns whether a place still belongs to the source."""
        self._told, self._is_ready, self._may_have = None, False, {}
        recalled = {} if self._notes is None else self._notes.recall()
        if recalled:
            self._shelf.restore({place: items for place, items in recalled.items() if is_ours(place)})

    def places(self) -> tuple[str, ...]:
        """Return the places with objects in use, in order."""
        return tuple(place for place, items in self._shelf.counting.items() if items)

    async def run(self, tell: Tell) -> None:
        """Make notes durable, and send the stored pods if the source reads nothing in time. Runs beside the source."""
        if self._notes is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._notes.run())
            await asyncio.sleep(self._notes.patience_seconds)
            while self._told is None and self.places():  # retry a refused update, because the source may never answer
                log.warning("cannot read source %s: using its stored pods", self._source)
                self._count(self._shelf.now(), tell, complete=False)
                await asyncio.sleep(self._notes.patience_seconds)

    def problems(self) -> tuple[Problem, ...]:
        return self._complaints.now()

    def take(
        self, found: Mapping[str, Found], troubles: Mapping[str, Problem], tell: Tell, *, complete: bool = True
    ) -> None:
        """Process the contents of all places and the problems of unreadable ones, and send changes.

        `complete` is false while the source may have places that it could not list yet.
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
        # Set this last. If a step above raises, the next call must process the same contents again.
        self._found, self._troubles = found, troubles

    def complain(self, place: str, problem: Problem, version: object = None) -> None:
        """Report that a place is unreadable. The pods stay as they are."""
        self._found = None
        self._complaints.take({place: Complaint((problem,), version)})

    def _count(self, shelved: Shelved, tell: Tell, *, complete: bool) -> None:
        """Send the objects, then the pods if they have changed."""
        if self._objects is not None:
            self._objects.replace(self._source, shelved.objects)
        if shelved.pods != self._told or complete > self._is_ready:
            self._tell(shelved.pods, tell, is_ready=complete or self._is_ready)

    def _tell(self, pods: tuple[Pod, ...], tell: Tell, *, is_ready: bool) -> None:
        updates = (PodUpdate(Op.SET, pods, self._source),) if is_ready else self._partial(pods)
        now = {pod.metadata.uid: pod for pod in pods}
        # If a REMOVE is refused, the next update must contain it again, because the next SET may be far away.
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
        self._told = None  # the receiver may have processed the update or not

    def _partial(self, pods: tuple[Pod, ...]) -> tuple[PodUpdate, ...]:
        """Return the changes since the last update as REMOVE and ADD, which do not make the source ready."""
        uids = {pod.metadata.uid for pod in pods}
        gone = tuple(pod for uid, pod in self._may_have.items() if uid not in uids)
        removed = (PodUpdate(Op.REMOVE, gone, self._source),) if gone else ()
        return (*removed, PodUpdate(Op.ADD, pods, self._source)) if pods else removed
