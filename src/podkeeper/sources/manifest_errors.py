"""Report the problems of manifests, once per change.

Input: the problems of a source by place, with a version that changes whenever the place changes. Output: log lines and
calls of `report` for changes. If an edited manifest still has the same problems, they are reported again, because the
user waits for a result.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podkeeper.model.errors import Problem

log = logging.getLogger(__name__)

ReportProblems = Callable[[str, tuple[Problem, ...]], None]
"""Receives a place (file, directory, URL) and its problems. No problems means that it was fixed or removed."""


@dataclass(frozen=True, slots=True)
class PlaceProblems:
    """All problems of one place."""

    problems: tuple[Problem, ...]
    version: object = None  # of the content
    retained: int = 0  # number of its older objects that stay in use


class ProblemReporter:
    def __init__(self, report: ReportProblems | None = None) -> None:
        self._report = report
        self._reported: dict[str, PlaceProblems] = {}

    def current(self) -> tuple[Problem, ...]:
        """Return all current problems."""
        return tuple(problem for current in self._reported.values() for problem in current.problems)

    def update(self, found: Mapping[str, PlaceProblems]) -> None:
        """Replace the current problems and report the changes."""
        previous, self._reported = self._reported, dict(found)
        for place in previous:
            if place not in found:
                log.info("%s: fixed or removed", place)
                self._call_report(place, ())
        for place, current in found.items():
            if previous.get(place) != current:
                self._log(place, current)
                self._call_report(place, current.problems)

    def _log(self, place: str, current: PlaceProblems) -> None:
        for problem in current.problems:
            log.error("%s", problem)
        if current.retained:
            log.warning("%s: %d objects from its last valid version stay in use", place, current.retained)

    def _call_report(self, place: str, problems: tuple[Problem, ...]) -> None:
        if self._report is None:
            return
        try:
            self._report(place, problems)
        except Exception:  # an error in the display of problems must not stop the source
            log.exception("cannot report the problems of %s", place)
