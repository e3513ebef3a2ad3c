"""Report the problems of manifests, once per change.

Input: the problems of a source by location, with a version that changes whenever the content changes. Output: log
lines and calls of `report` for changes. If an edited manifest still has the same problems, they are reported again,
because the user waits for a result.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podkeeper.model.errors import Problem

log = logging.getLogger(__name__)

ReportProblems = Callable[[str, tuple[Problem, ...]], None]
"""Receives a location (file, directory, URL) and its problems. No problems means that it was fixed or removed."""


@dataclass(frozen=True, slots=True)
class LocationProblems:
    """All problems of one location."""

    problems: tuple[Problem, ...]
    version: object = None  # of the content
    retained: int = 0  # number of its older objects that stay in use


class ProblemReporter:
    def __init__(self, report: ReportProblems | None = None) -> None:
        self._report = report
        self._reported: dict[str, LocationProblems] = {}

    def current(self) -> tuple[Problem, ...]:
        """Return all current problems."""
        return tuple(problem for current in self._reported.values() for problem in current.problems)

    def update(self, found: Mapping[str, LocationProblems]) -> None:
        """Replace the current problems and report the changes."""
        previous, self._reported = self._reported, dict(found)
        for location in previous:
            if location not in found:
                log.info("%s: fixed or removed", location)
                self._call_report(location, ())
        for location, current in found.items():
            if previous.get(location) != current:
                self._log(location, current)
                self._call_report(location, current.problems)

    def _log(self, location: str, current: LocationProblems) -> None:
        for problem in current.problems:
            log.error("%s", problem)
        if current.retained:
            log.warning("%s: %d objects from its last valid version stay in use", location, current.retained)

    def _call_report(self, location: str, problems: tuple[Problem, ...]) -> None:
        if self._report is None:
            return
        try:
            self._report(location, problems)
        except Exception:  # an error in the display of problems must not stop the source
            log.exception("cannot report the problems of %s", location)
