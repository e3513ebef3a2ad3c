"""Log a problem when it begins or changes, and not again while it lasts."""

import logging
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class LogOnce(Generic[K]):
    """The problems that were logged, by subject. The same problem is logged again at DEBUG level."""

    def __init__(self, logger: logging.Logger, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        self._logged: dict[K, str] = {}

    def problem(self, subject: K, message: str, *arguments: object) -> None:
        """Log a problem of a subject, unless its last problem had the same text."""
        text = message % arguments if arguments else message
        is_new = self._logged.get(subject) != text
        self._logged[subject] = text
        self._logger.log(self._level if is_new else logging.DEBUG, message, *arguments)

    def first(self, subject: K, message: str, *arguments: object) -> None:
        """Log a problem of a subject, unless the subject already has a problem.

        Use it for texts that differ each time.
        """
        is_new = subject not in self._logged
        # The format and not the text: the texts differ each time, and only the first one is logged as a warning.
        self._logged.setdefault(subject, message)
        self._logger.log(self._level if is_new else logging.DEBUG, message, *arguments)

    def solved(self, subject: K) -> bool:
        """Forget the problem of a subject. Return whether there was one."""
        return self._logged.pop(subject, None) is not None

    def keep_only(self, subjects: Collection[K] | Callable[[K], bool]) -> None:
        """Forget the problems of all other subjects."""
        keeps = subjects if callable(subjects) else subjects.__contains__
        self._logged = {subject: text for subject, text in self._logged.items() if keeps(subject)}
