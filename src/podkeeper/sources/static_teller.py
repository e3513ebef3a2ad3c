"""From what manifests hold to what is told: the last step that the file and the http source share.

    contents by place --shelf.py--> what counts --objects, then pods--> the node's store, the storage
                                        `------what is wrong----------> complaints.py

The store gets its objects before the pods are told, so no pod looks for what is about to come. A SET is told at first
and when the pods differ from those last told; if whoever is told fails, it is told again the next time.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.errors import AgentError, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Tell
from podkeeper.sources.complaints import Complaint, Complaints, Report
from podkeeper.sources.contents import Contents
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.shelf import Shelf

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What a place holds, and a version that changes whenever its text does."""

    contents: Contents
    version: object


class StaticTeller:
    """Tells the pods of one source of manifests."""

    def __init__(self, source: str, objects: LocalObjects | None, report: Report | None) -> None:
        self._source = source
        self._objects = objects
        self._shelf = Shelf()
        self._complaints = Complaints(report)
        self._found: Mapping[str, Found] | None = None
        self._troubles: Mapping[str, Problem] = {}
        self._told: tuple[Pod, ...] | None = None

    def begin(self) -> None:
        """Whoever is told next knows nothing yet."""
        self._told = None

    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong now."""
        return self._complaints.now()

    def take(self, found: Mapping[str, Found], troubles: Mapping[str, Problem], tell: Tell) -> None:
        """Take what all places hold now, and what keeps some from being looked at; tell what is news."""
        if self._told is not None and found == self._found and troubles == self._troubles:
            return
        shelved = self._shelf.take({place: each.contents for place, each in found.items()})
        if self._objects is not None:
            self._objects.replace(self._source, shelved.objects)
        complaints = {place: Complaint((problem,)) for place, problem in troubles.items()}
        for place, problems in shelved.problems.items():
            both = complaints[place].problems + problems if place in complaints else problems
            complaints[place] = Complaint(both, found[place].version, shelved.held.get(place, 0))
        self._complaints.take(complaints)
        self._found, self._troubles = found, troubles  # only now: after a failure above, all of it is done again
        if shelved.pods != self._told:
            self._tell(shelved.pods, tell)

    def complain(self, place: str, problem: Problem, version: object = None) -> None:
        """Say what keeps a place from being looked at; all that was told stays true."""
        self._found = None
        self._complaints.take({place: Complaint((problem,), version)})

    def _tell(self, pods: tuple[Pod, ...], tell: Tell) -> None:
        try:
            tell(PodUpdate(Op.SET, pods, self._source))
            self._told = pods
            return
        except AgentError as error:
            log.error("SET of %d pods from source %s was refused: %s", len(pods), self._source, error)
        except Exception:
            log.exception("SET of %d pods from source %s failed in an unforeseen way", len(pods), self._source)
        self._told = None  # whoever was told may have taken it or not
