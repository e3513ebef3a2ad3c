"""Sources of desired pods."""

from collections.abc import Callable
from typing import Protocol

from podkeeper.model.messages import PodUpdate

SendUpdate = Callable[[PodUpdate], None]


class Source(Protocol):
    """Sends the pods that should run on this node."""

    @property
    def name(self) -> str:
        """Return the source name that marks its pods: `file`, `http` or `api`."""

    async def run(self, send: SendUpdate, /) -> None:
        """Send the desired pods now and whenever they change, until cancelled.

        As soon as the source has read its pods, it sends a SET, even if it is empty. The source retries
        errors with backoff. An update stays valid until the source sends another one.
        """
