"""A reader that asks for each object once: many pods show the same config map, and one refresh serves them all."""

from typing import Any, TypeVar

from podkeeper.model.errors import AgentError
from podkeeper.model.wire import Wire
from podkeeper.ports.api import Reader

K = TypeVar("K", bound=Wire)


class RememberedReads:
    """What an object was when it was first asked for; also that it could not be read."""

    def __init__(self, objects: Reader) -> None:
        self._objects = objects
        self._answers: dict[tuple[type[Wire], str, str], Any] = {}

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        """The object, or the error, of the first time."""
        key = (kind, name, namespace)
        if key not in self._answers:
            try:
                self._answers[key] = await self._objects.get(kind, name, namespace)
            except AgentError as error:
                self._answers[key] = error
        answer: K | AgentError = self._answers[key]
        if isinstance(answer, AgentError):
            raise answer
        return answer
