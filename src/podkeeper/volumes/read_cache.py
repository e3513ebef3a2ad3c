"""A reader that reads each object once.

One refresh serves many pods with the same ConfigMap.
"""

from typing import Any, TypeVar

from podkeeper.model.errors import AgentError
from podkeeper.model.wire import Wire
from podkeeper.ports.api import ObjectReader

K = TypeVar("K", bound=Wire)


class ReadCache:
    """Returns the result, or raises the error, of the first read of each object."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._answers: dict[tuple[type[Wire], str, str], Any] = {}

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        key = (kind, name, namespace)
        if key not in self._answers:
            try:
                self._answers[key] = await self._objects.get(kind, name, namespace)
            # Errors are kept, too: an object that many pods miss is requested once per refresh.
            except AgentError as error:
                self._answers[key] = error
        answer: K | AgentError = self._answers[key]
        if isinstance(answer, AgentError):
            raise answer
        return answer
