"""Events as the API shows them: their shape, and what keeps them from flooding it.

    api_event -> too many alike with other words? -> seen before? -> too many about this object?
                        combined into one              counted           dropped (None)

In: an event, the object it is about, the time. Out: the `Event` to write, with the name and the count it should have.
Up to nine different messages of one reason about one object stand for themselves; from the tenth on, unless ten quiet
minutes lie between, those that are new share one event. Each kind of event about an object (Normal, Warning) may cause
25 writes at once and one more every five minutes; what is dropped is still counted, and shown by the next write.
All this is remembered for as many keys as `Limits` allows, the longest unused forgotten first.

The Go ancestor is `EventCorrelator` in client-go's tools/record; it forgets any of the ten messages, we the newest, so
that the first nine go on standing for themselves.
"""

import re
import uuid
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from podkeeper.model.k8s.core import Event, EventSource, ObjectReference, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.model.times import format_time
from podkeeper.model.wire import JSONObject

COMBINED_PREFIX: Final = "(combined from similar events): "
DEFAULT_NAMESPACE: Final = "default"

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event about a pod, and how often it happened."""

    event: PodEvent
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is too much."""

    similar: int = 10
    similar_seconds: float = 600.0
    burst: int = 25
    refill_seconds: float = 300.0
    remembered: int = 4096


USUAL_LIMITS: Final = Limits()


def reference_to(about: Pod | PodRecord, field_path: str = "") -> ObjectReference:
    """How an event names the pod it is about; a runtime's record has no version."""
    match about:
        case Pod(metadata=meta):
            uid, name, namespace, version = meta.uid, meta.name, meta.namespace, meta.resource_version
        case PodRecord():
            uid, name, namespace, version = about.uid, about.name, about.namespace, None
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        name=name or None,
        namespace=namespace or None,
        uid=uid or None,
        resource_version=version or None,
        field_path=field_path or None,
    )


def api_event(event: PodEvent, about: ObjectReference, source: EventSource, now: datetime, stamp: int) -> Event:
    """An event that happened once. `stamp`: nanoseconds since 1970, another for every event; it makes the name."""
    written_at = format_time(now)
    return Event(
        api_version="v1",
        kind="Event",
        metadata=ObjectMeta(name=event_name(about.name or "", stamp), namespace=about.namespace or DEFAULT_NAMESPACE),
        involved_object=about,
        type=event.type.value,
        reason=event.reason,
        message=event.message,
        count=1,
        first_timestamp=written_at,
        last_timestamp=written_at,
        source=source,
        reporting_component=source.component or "",
        reporting_instance=source.host or "",
    )


def event_name(object_name: str, stamp: int) -> str:
    """A name no other event has; where the object's own makes none that the API takes, one of a UUID's form."""
    name = f"{object_name}.{stamp:x}"
    if len(name) <= _LONGEST_NAME and _NAME.fullmatch(name):
        return name
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def count_patch(event: Event) -> JSONObject:
    """The strategic merge patch for an event that is there already and happened again."""
    return {"count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message}


class Correlator:
    """Remembers events to tell which are new, which are counted, combined or dropped."""

    def __init__(self, limits: Limits = USUAL_LIMITS) -> None:
        self._limits = limits
        self._similar: _Recent[_Similar] = _Recent(limits.remembered)
        self._written: _Recent[_Written] = _Recent(limits.remembered)
        self._buckets: _Recent[_Bucket] = _Recent(limits.remembered)

    def correlate(self, event: Event, at: float, stamp: int) -> Event | None:
        """The event to write instead: to be created if its count is 1, else to be patched. None: to be dropped.

        `at`: monotonic seconds. `stamp` as in `api_event`, for the name of a combined event.
        """
        candidate, key = self._combined(event, at, stamp)
        counted = self._counted(candidate, key)
        return counted if self._may_write(counted, at) else None

    def _combined(self, event: Event, at: float, stamp: int) -> tuple[Event, Hashable]:
        """The event itself or the one it goes into, and the key under which that is counted."""
        key = (*_object_key(event), event.reason, event.reporting_component, event.reporting_instance)
        similar = self._similar.get(key)
        if similar is None or at - similar.last_at > self._limits.similar_seconds:
            similar = _Similar(at)
        similar.last_at = at
        self._similar.put(key, similar)
        known = event.message in similar.messages
        if len(similar.messages) + (not known) < self._limits.similar:
            similar.messages.add(event.message)
            return event, (*key, event.involved_object.field_path, event.message)
        combined = replace(
            event,
            metadata=ObjectMeta(
                name=event_name(event.involved_object.name or "", stamp), namespace=event.metadata.namespace
            ),
            message=f"{COMBINED_PREFIX}{event.message}",
            reporting_component="",
            reporting_instance="",
        )
        return combined, key

    def _counted(self, event: Event, key: Hashable) -> Event:
        """The event with the name, the beginning and the count of those before it."""
        before = self._written.get(key)
        if before is not None:
            event = replace(
                event,
                metadata=replace(event.metadata, name=before.name),
                first_timestamp=before.first_timestamp,
                count=before.count + 1,
            )
        self._written.put(key, _Written(event.metadata.name, event.first_timestamp, event.count or 1))
        return event

    def _may_write(self, event: Event, at: float) -> bool:
        """Take a token for one more write about an object, if there is one."""
        key = _object_key(event)
        bucket = self._buckets.get(key) or _Bucket(float(self._limits.burst), at)
        refilled = bucket.tokens + (at - bucket.at) / self._limits.refill_seconds
        tokens = min(refilled, float(self._limits.burst))
        allowed = tokens >= 1.0
        self._buckets.put(key, _Bucket(tokens - allowed, at))
        return allowed


@dataclass(slots=True)
class _Similar:
    """Events that differ only in their message."""

    last_at: float
    messages: set[str | None] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Written:
    """What is known of an event written before."""

    name: str | None
    first_timestamp: str | None
    count: int


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Tokens left at an instant."""

    tokens: float
    at: float


def _object_key(event: Event) -> tuple[str | None, ...]:
    source, about = event.source, event.involved_object
    return (
        source.component,
        source.host,
        about.kind,
        about.namespace,
        about.name,
        about.uid,
        about.api_version,
        event.type,
    )


class _Recent(Generic[V]):
    """A table of bounded size; what was longest unused goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Hashable, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)
