"""Base of the fake APIs of the engine tests: a fake implements only the verbs that its module may use."""

from typing import TypeVar

import msgspec

from podkeeper.model.wire import JSONObject, Wire
from podkeeper.rules.patch.strategic import apply
from tests.violations import violation

K = TypeVar("K", bound=Wire)


class FakeApi:
    """An API in which every verb is a violation. Subclasses override the verbs that are allowed."""

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        raise violation(f"unexpected get of {kind.__name__} {namespace}/{name}")

    async def create(self, what: K) -> K:
        raise violation(f"unexpected create of {what}")

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        raise violation(f"unexpected patch of {kind.__name__} {namespace}/{name}")

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        raise violation(f"unexpected patch of the status of {kind.__name__} {namespace}/{name}")

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        raise violation(f"unexpected delete of {kind.__name__} {namespace}/{name}")


def patched(old: K, patch: JSONObject) -> K:
    """Return an object after a strategic merge patch, as the API server applies it."""
    kind = type(old)
    result = apply(msgspec.json.decode(msgspec.json.encode(old)), patch, f"v1/{kind.__name__}")
    return msgspec.convert(result, kind)
