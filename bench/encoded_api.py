"""API for benchmarks that counts its own time separately and stores pods as bytes.

It decodes every object that it returns, like a real client. The agent shares no object with it, so the measured memory
belongs to the agent.
"""

import asyncio
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, TypeVar, cast

import msgspec

from podkeeper.model.api import Listed, ObjectEvent, WatchType
from podkeeper.model.errors import AlreadyExists, Conflict, NotFound
from podkeeper.model.k8s.core import Event, Pod
from podkeeper.model.times import format_time
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.ports.clock import Clock
from podkeeper.rules.patch import strategic

K = TypeVar("K", bound=Wire)


class EncodedApi:
    """The pods of one node as bytes. Events are only counted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: dict[str, bytes] = {}
        self._version = 1
        self._changes: deque[tuple[WatchType, str, bytes]] = deque()
        self._news = asyncio.Event()
        self.seconds = 0.0  # time spent in this class
        self.events = 0
        self._ready: set[str] = set()

    def __len__(self) -> int:
        return len(self._pods)

    # Calls of the agent.

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        begun = time.perf_counter()
        try:
            return cast(K, self._typed(self._packed(name)))
        finally:
            self.seconds += time.perf_counter() - begun

    async def list(self, kind: type[K], *, namespace: str = "", field_selector: str = "") -> Listed[K]:
        begun = time.perf_counter()
        items = tuple(cast(K, self._typed(packed)) for packed in self._pods.values()) if kind is Pod else ()
        self.seconds += time.perf_counter() - begun
        self._changes.clear()
        return Listed(items, str(self._version))

    def watch(
        self, kind: type[K], resource_version: str, *, namespace: str = "", field_selector: str = ""
    ) -> AsyncIterator[ObjectEvent[K]]:
        """Watch changes from now on. Supports only one watch."""
        return self._watch(kind)

    async def _watch(self, kind: type[K]) -> AsyncIterator[ObjectEvent[K]]:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._changes:
                begun = time.perf_counter()
                what, version, packed = self._changes.popleft()
                event = ObjectEvent(what, cast(K, self._typed(packed)), version)
                self.seconds += time.perf_counter() - begun
                yield event

    async def create(self, what: K) -> K:
        """Store a pod. An event is only counted."""
        if isinstance(what, Event):
            self.events += 1
            return what
        assert isinstance(what, Pod)
        if (what.metadata.name or "") in self._pods:
            raise AlreadyExists(f"cannot create pod {what.metadata.name}: it already exists")
        self._store(WatchType.ADDED, msgspec.to_builtins(what))
        return what

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        begun = time.perf_counter()
        try:
            old = self._plain(self._packed(name))
            if patch.get("metadata", {}).get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
                raise Conflict(f"cannot patch pod {name}: its UID has changed")
            new = cast("dict[str, Any]", strategic.apply(old, patch, "v1/Pod"))
            self._store(WatchType.MODIFIED, new)
            return cast(K, self._typed(self._packed(name)))
        finally:
            self.seconds += time.perf_counter() - begun

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Count a repeated event."""
        self.events += 1
        return kind()

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Remove a pod, or mark it as deleted if it has a grace period."""
        begun = time.perf_counter()
        pod = self._plain(self._packed(name))
        if grace_seconds == 0:
            packed = self._pods.pop(name)
            self._ready.discard(name)
            self._tell(WatchType.DELETED, packed)
        else:
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
            pod["metadata"] |= {
                "deletionTimestamp": format_time(self._clock.now()),
                "deletionGracePeriodSeconds": grace,
            }
            self._store(WatchType.MODIFIED, pod)
        self.seconds += time.perf_counter() - begun

    # Changes by other clients.

    def change_image(self, name: str, image: str) -> None:
        """Change the image of a pod's container."""
        pod = self._plain(self._packed(name))
        pod["spec"]["containers"][0]["image"] = image
        self._store(WatchType.MODIFIED, pod)

    def ready(self) -> int:
        """Return the number of Ready pods."""
        return len(self._ready)

    def _packed(self, name: str) -> bytes:
        if name not in self._pods:
            raise NotFound(f"cannot find pod {name}")
        return self._pods[name]

    def _store(self, what: WatchType, pod: dict[str, Any]) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        name = pod["metadata"]["name"]
        conditions = (pod.get("status") or {}).get("conditions") or ()
        if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
            self._ready.add(name)
        else:
            self._ready.discard(name)
        self._pods[name] = zlib.compress(msgspec.json.encode(pod), 1)
        self._tell(what, self._pods[name])

    def _tell(self, what: WatchType, packed: bytes) -> None:
        self._changes.append((what, str(self._version), packed))
        self._news.set()

    @staticmethod
    def _plain(packed: bytes) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.json.decode(zlib.decompress(packed)))

    @staticmethod
    def _typed(packed: bytes) -> Pod:
        return msgspec.json.decode(zlib.decompress(packed), type=Pod)
