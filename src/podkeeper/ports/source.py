"""Where desired pods come from."""

from collections.abc import Callable
from typing import Protocol

from podkeeper.model.messages import PodUpdate

Tell = Callable[[PodUpdate], None]


class Source(Protocol):
    """Tells what should run on this node."""

    @property
    def name(self) -> str:
        """What its pods are marked with: `file`, `http` or `api`."""

    async def run(self, tell: Tell) -> None:
        """Tell what should run, now and whenever it changes, until cancelled.

        The first word is a SET, even an empty one, as soon as the source knows what it has. Trouble is retried
        here, with back-off; what was told stays true until the source knows better.
        """
