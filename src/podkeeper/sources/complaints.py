"""Report the problems of manifests, once per change.

Input: the problems of a source by place, with a version that changes whenever the place changes. Output: log lines and
calls of `report` for changes, and `now()` with the current problems. If an edited manifest still has the same problems,
they are reported again, because the user waits for a result.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podkeeper.model.errors import Problem

log = logging.getLogger(__name__)

Report = Callable[[str, tuple[Problem, ...]], None]
"""Receives a place (file, directory, URL) and its problems. No problems means that it was fixed or removed."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """All problems of one place."""

    problems: tuple[Problem, ...]
    version: object = None  # of the content
    held: int = 0  # number of its older objects that stay in use


class Complaints:
    def __init__(self, report: Report | None = None) -> None:
        self._report = report
        self._told: dict[str, Complaint] = {}

    def now(self) -> tuple[Problem, ...]:
        """Return all current problems."""
        return tuple(problem for complaint in self._told.values() for problem in complaint.problems)

    def take(self, found: Mapping[str, Complaint]) -> None:
        """Replace the current problems and report the changes."""
        before, self._told = self._told, dict(found)
        for place in before:
            if place not in found:
                log.info("%s: fixed or removed", place)
                self._tell(place, ())
        for place, complaint in found.items():
            if before.get(place) != complaint:
                self._log(place, complaint)
                self._tell(place, complaint.problems)

    def _log(self, place: str, complaint: Complaint) -> None:
        for problem in complaint.problems:
            log.error("%s", problem)
        if complaint.held:
            log.warning("%s: %d objects from its last valid version stay in use", place, complaint.held)

    def _tell(self, place: str, problems: tuple[Problem, ...]) -> None:
        if self._report is None:
            return
        try:
            self._report(place, problems)
        except Exception:  # an error in the display of problems must not stop the source
            log.exception("cannot report the problems of %s", place)
