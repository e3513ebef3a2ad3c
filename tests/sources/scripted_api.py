"""Two fake APIs for the API source: one follows a script, the other has pods and faults."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from podkeeper.model.api import Listed, ObjectEvent, WatchType
from podkeeper.model.errors import ApiUnavailable, Gone
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.model.wire import Wire
from podkeeper.testing import build
from tests.violations import violation

K = TypeVar("K", bound=Wire)

SELECTOR = "spec.nodeName=n1"
FOR_EVER = 1e9  # seconds

pod = partial(build.pod, namespace="ns")


def listed(version: object, *pods: Pod) -> Listed[Pod]:
    return Listed(pods, str(version))


def event(kind: str, name: str, version: object, **more: Any) -> ObjectEvent[Pod]:
    return ObjectEvent(WatchType(kind), pod(name, version=version, **more), str(version))


def bookmark(version: object) -> ObjectEvent[Pod]:
    return ObjectEvent(WatchType.BOOKMARK, Pod(), str(version))


Step = ObjectEvent[Pod] | Exception | float  # send, break, or wait


def _require_own_pods(kind: type, namespace: str, field_selector: str) -> None:
    if (kind, namespace, field_selector) != (Pod, "", SELECTOR):
        raise violation(f"unexpected request for {kind} in {namespace!r} with {field_selector!r}")


class ScriptedApi:
    """Answer each list and watch with the next step of the script. Repeat the last one."""

    def __init__(self, lists: Sequence[Listed[Pod] | Exception | float], streams: Sequence[Sequence[Step]]) -> None:
        self._lists, self._streams = list(lists), list(streams)
        self.requests: list[tuple[float, str]] = []
        self.closed = 0  # streams that were closed

    async def list(self, kind: type[K], *, namespace: str = "", field_selector: str = "") -> Listed[K]:
        _require_own_pods(kind, namespace, field_selector)
        self._log("list")
        answer = self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        if isinstance(answer, Exception):
            raise answer
        return cast(Listed[K], answer)

    async def watch(
        self, kind: type[K], resource_version: str, *, namespace: str = "", field_selector: str = ""
    ) -> AsyncIterator[ObjectEvent[K]]:
        _require_own_pods(kind, namespace, field_selector)
        self._log(f"watch {resource_version}")
        stream = self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]
        try:
            for step in stream:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield cast(ObjectEvent[K], step)
        finally:
            self.closed += 1

    def _log(self, request: str) -> None:
        self.requests.append((asyncio.get_running_loop().time(), request))


@dataclass(slots=True)
class Consumer:
    """A receiver that applies all updates of the source: versions by UID."""

    pods: dict[str, str] = field(default_factory=dict)
    updates: list[str] = field(default_factory=list)  # `ADD web@11`

    def send(self, update: PodUpdate) -> None:
        if update.source != "api":
            raise violation(f"the source is called {update.source}")
        if not self.updates and update.op is not Op.SET:
            raise violation(f"the first word is not a SET: {update}")
        named = [f"{pod.metadata.name}@{pod.metadata.resource_version}" for pod in update.pods]
        self.updates.append(" ".join([update.op, *named]))
        if update.op is Op.SET:
            self.pods.clear()
        for pod in update.pods:
            uid = pod.metadata.uid or ""
            if update.op is not Op.SET and (uid in self.pods) != (update.op is not Op.ADD):
                raise violation(f"{update.op} does not fit {sorted(self.pods)}: {update}")
            if update.op is Op.REMOVE:
                del self.pods[uid]
            else:
                self.pods[uid] = pod.metadata.resource_version or ""


LIST_FAULTS = ("fail", "hang", "stale")
WATCH_FAULTS = ("gone", "break", "end", "hang", "lose", "duplicate", "replay", "swap", "late break")


class FaultyApi:
    """An API with pods and a history. Each request takes the next fault of its list."""

    def __init__(self, list_faults: Sequence[str], watch_faults: Sequence[str], *, bookmarks: bool) -> None:
        self._list_faults, self._watch_faults = list(list_faults), list(watch_faults)
        self._bookmarks = bookmarks
        self._version = 10
        self._snapshots: list[Listed[Pod]] = [listed(10)]
        self.pods: dict[str, Pod] = {}
        self._history: list[ObjectEvent[Pod]] = []
        self._changed = asyncio.Event()
        self._made = 0

    def change(self, kind: str, name: str) -> None:
        """Create, change or delete the pod of a name. An impossible change is ignored."""
        if (kind == "create") == (name in self.pods):
            return
        self._version += 1
        if kind == "create":
            self._made += 1
            fresh = pod(name, version=self._version, uid=f"uid-{self._made}")
        else:
            fresh = pod(name, version=self._version, uid=self.pods[name].metadata.uid)
        if kind == "delete":
            del self.pods[name]
        else:
            self.pods[name] = fresh
        word = {"create": "ADDED", "touch": "MODIFIED", "delete": "DELETED"}[kind]
        self._history.append(ObjectEvent(WatchType(word), fresh, str(self._version)))
        self._snapshots.append(listed(self._version, *self.pods.values()))
        self._changed.set()
        self._changed = asyncio.Event()

    async def list(self, kind: type[K], *, namespace: str = "", field_selector: str = "") -> Listed[K]:
        fault = self._list_faults.pop(0) if self._list_faults else ""
        if fault == "fail":
            raise ApiUnavailable("cannot list: refused")
        if fault == "hang":
            await asyncio.sleep(FOR_EVER)
        answer = self._snapshots[len(self._snapshots) // 2 if fault == "stale" else -1]
        await asyncio.sleep(0.01)
        return cast(Listed[K], answer)

    async def watch(
        self, kind: type[K], resource_version: str, *, namespace: str = "", field_selector: str = ""
    ) -> AsyncIterator[ObjectEvent[K]]:
        fault = self._watch_faults.pop(0) if self._watch_faults else ""
        await asyncio.sleep(0.01)
        if fault == "gone":
            raise Gone("cannot watch: too old")
        if fault == "break":
            raise ApiUnavailable("cannot watch: reset")
        if fault == "end":
            return
        if fault == "hang":
            await asyncio.sleep(FOR_EVER)
        if fault == "replay":
            for old in self._history:
                yield cast(ObjectEvent[K], old)
        sent = int(resource_version)
        while True:
            changed = self._changed
            news = [event for event in self._history if int(event.resource_version) > sent]
            for event in _distorted(news, fault):
                yield cast(ObjectEvent[K], event)
            sent = self._version
            if fault == "late break" and news:
                raise ApiUnavailable("cannot watch: reset")
            try:
                async with asyncio.timeout(60):
                    await changed.wait()
            except TimeoutError:
                if self._bookmarks:
                    yield cast(ObjectEvent[K], bookmark(sent))


def _distorted(events: Sequence[ObjectEvent[Pod]], fault: str) -> Sequence[ObjectEvent[Pod]]:
    match fault:
        case "lose":
            return events[1:]
        case "duplicate":
            return [event for event in events for _ in range(2)]
        case "swap":
            return events[::-1]
        case _:
            return events
