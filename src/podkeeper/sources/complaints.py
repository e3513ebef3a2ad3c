"""What is wrong with which manifest now; each change is told once.

In: what a source found wrong, by place, with a version that changes whenever the place does. Out: log lines and calls
of `report` for what is news, and `now()` for whoever asks. A manifest that was edited and is still wrong is
told again, also in the same words: the one who edited it waits for an answer.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podkeeper.model.errors import Problem

log = logging.getLogger(__name__)

Report = Callable[[str, tuple[Problem, ...]], None]
"""Is told a place (a file, a directory, a URL) and all that is wrong with it; nothing: it is mended, or gone."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """All that is wrong with one place."""

    problems: tuple[Problem, ...]
    version: object = None  # of what the place holds
    held: int = 0  # how many things stay as they were for it


class Complaints:
    """Remembers what was told."""

    def __init__(self, report: Report | None = None) -> None:
        self._report = report
        self._told: dict[str, Complaint] = {}

    def now(self) -> tuple[Problem, ...]:
        """All that is wrong."""
        return tuple(problem for complaint in self._told.values() for problem in complaint.problems)

    def take(self, found: Mapping[str, Complaint]) -> None:
        """Take what is wrong now for the truth, and tell what is news."""
        before, self._told = self._told, dict(found)
        for place in before:
            if place not in found:
                log.info("%s is mended or gone", place)
                self._tell(place, ())
        for place, complaint in found.items():
            if before.get(place) != complaint:
                self._log(place, complaint)
                self._tell(place, complaint.problems)

    def _log(self, place: str, complaint: Complaint) -> None:
        for problem in complaint.problems:
            log.error("%s", problem)
        if complaint.held:
            log.warning("%s: what else it had before (%d) stays as it is until it is mended", place, complaint.held)

    def _tell(self, place: str, problems: tuple[Problem, ...]) -> None:
        if self._report is None:
            return
        try:
            self._report(place, problems)
        except Exception:  # who shows problems must not become one
            log.exception("cannot report what is wrong with %s", place)
