"""Who is to die first when memory is short.

A keeper wants to be spared; what it starts must not inherit that. A child is born with its parent's score, so the
keeper takes the container's score while it starts something: afterwards would be too late for what the container
starts itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SPARED: Final = -998
_FILE: Final = "/proc/self/oom_score_adj"


@contextmanager
def oom_score(score: int | None) -> Iterator[None]:
    """Give what is forked in this block a score; None: 0. Who may not lower its own score leaves it as it is."""
    before = _read()
    changed = before < 0 and _write(score or 0)  # a negative one: we may go back to it
    try:
        yield
    finally:
        if changed:
            _write(before)


def be_spared() -> None:
    """Lower this process's score, where that is permitted."""
    _write(SPARED)


def _read() -> int:
    try:
        with open(_FILE, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _write(score: int) -> bool:
    try:
        with open(_FILE, "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        return False
    return True
