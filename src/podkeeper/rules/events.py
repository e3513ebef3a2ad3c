"""Kubernetes events: build, aggregate and rate-limit them.

    api_event -> many similar messages? -> seen before? -> too many for this object?
                   combined into one         counted          dropped (None)

In: an event, its object and the time. Out: the `Event` to write, with its name and count. Up to nine different
messages with one reason for one object are separate events. From the tenth on, new messages share one event, until
ten minutes pass without a similar event. Each type (Normal, Warning) allows 25 writes per object at once, and one
more every five minutes. A dropped event still counts, and the next write shows it. The tables have the size of
`EventLimits` and drop the least recently used entry first.

Kubelet counterpart: `EventCorrelator` in client-go's tools/record. It drops a random one of the ten messages from its
table. This module drops the newest, so that the first nine stay separate events.
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
# A DNS subdomain, as the API requires it for object names.
_LONGEST_NAME: Final = 253

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event of a pod, and how often it occurred."""

    event: PodEvent
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Limits for aggregation and the rate of writes."""

    # The defaults of client-go's EventCorrelator.
    similar: int = 10
    similar_seconds: float = 600.0
    burst: int = 25
    refill_seconds: float = 300.0
    table_size: int = 4096


DEFAULT_EVENT_LIMITS: Final = EventLimits()


def reference_to(about: Pod | PodRecord, field_path: str = "") -> ObjectReference:
    """Return the object reference of a pod. A runtime record has no version."""
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
    """Return an event that occurred once. `stamp`: unique nanoseconds since 1970, for the name."""
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
    """Return a unique event name. If the object's name does not give a valid one, it is a UUID."""
    name = f"{object_name}.{stamp:x}"
    if len(name) <= _LONGEST_NAME and _NAME.fullmatch(name):
        return name
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def count_patch(event: Event) -> JSONObject:
    """Return the strategic merge patch for an existing event that occurred again."""
    return {"count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message}


class Correlator:
    """Decides which events are new, counted, combined or dropped."""

    def __init__(self, limits: EventLimits = DEFAULT_EVENT_LIMITS) -> None:
        self._limits = limits
        self._similar: _LRUTable[_Similar] = _LRUTable(limits.table_size)
        self._written: _LRUTable[_WrittenEvent] = _LRUTable(limits.table_size)
        self._buckets: _LRUTable[_Bucket] = _LRUTable(limits.table_size)

    def correlate(self, event: Event, at: float, stamp: int) -> Event | None:
        """Return the event to write: create it if its count is 1, otherwise patch it. None: drop it.

        `at`: monotonic seconds. `stamp` as in `api_event`, for the name of a combined event.
        """
        candidate, key = self._combined(event, at, stamp)
        # Count before the rate limit, so that the next write also shows the events that were dropped.
        counted = self._counted(candidate, key)
        return counted if self._may_write(counted, at) else None

    def _combined(self, event: Event, at: float, stamp: int) -> tuple[Event, Hashable]:
        """Return the event or the combined event, and the key for its count."""
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
        """Return the event with the name, the first time and the count of the earlier ones."""
        before = self._written.get(key)
        if before is not None:
            event = replace(
                event,
                metadata=replace(event.metadata, name=before.name),
                first_timestamp=before.first_timestamp,
                count=before.count + 1,
            )
        self._written.put(key, _WrittenEvent(event.metadata.name, event.first_timestamp, event.count or 1))
        return event

    def _may_write(self, event: Event, at: float) -> bool:
        """Take a token for one write, if the object has one."""
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
class _WrittenEvent:
    name: str | None
    first_timestamp: str | None
    count: int


@dataclass(frozen=True, slots=True)
class _Bucket:
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


class _LRUTable(Generic[V]):
    """A least-recently-used table of limited size."""

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
