"""OOM scores: protect keepers, and give containers their own score.

A child inherits its parent's score. So a keeper takes the container's score while it forks the container. Setting the
score afterwards would be too late for processes that the container has already started.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# As the pause containers of the kubelet (PodInfraOOMAdj): below every container, whose lowest score is -997, and above
# the kubelet's own -999.
KEEPER_OOM_SCORE: Final = -998
_FILE: Final = "/proc/self/oom_score_adj"


@contextmanager
def oom_score(score: int | None) -> Iterator[None]:
    """Set the score for children that are forked in this block.

    None: 0. No effect if this process could not restore its own score.
    """
    before = _read()
    # A negative score shows that this process may lower it again afterwards.
    changed = before < 0 and _write(score or 0)
    try:
        yield
    finally:
        if changed:
            _write(before)


def lower_oom_score() -> None:
    """Protect this process from the OOM killer, if permitted."""
    _write(KEEPER_OOM_SCORE)


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
