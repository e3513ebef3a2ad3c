"""Event recorder: store the last events of each pod, write events to the API.

    record -> last events of the pod (`events_of`)
         `--> counted, aggregated or dropped -> pending, one write per Event -> sender -> create, or patch the count

Input: `record`, which never waits and never raises. Output: core/v1 Events in the API. `rules.events` decides the
content of an event and the rate limits. A pending write is replaced by a newer one of the same event. So an event that
repeats while the API is unavailable causes only one write afterwards. If `MAX_PENDING` writes are pending, new events
are dropped and counted. A lost answer does no harm, because an existing event is patched instead. Kubelet counterpart:
client-go's tools/record.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from podkeeper.engine.api_sender import ApiSender
from podkeeper.engine.history import PodHistory
from podkeeper.model.errors import AlreadyExists, ApiError, ApiUnavailable, NotFound
from podkeeper.model.history import EventRecorded
from podkeeper.model.k8s.core import Event, EventSource, ObjectReference, Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import Writer
from podkeeper.ports.clock import Clock
from podkeeper.rules.events import (
    DEFAULT_EVENT_LIMITS,
    Correlator,
    EventLimits,
    RecordedEvent,
    api_event,
    count_patch,
    reference_to,
)

log = logging.getLogger(__name__)

COMPONENT = "kubelet"
MAX_PENDING = 4096
MAX_STORED_PER_POD = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EventKey = tuple[str, str]
"""Namespace and name of an Event."""


EventFunction = Callable[[PodEvent, Pod | PodRecord | None], None]
"""`EventRecorder.record`: an event and its object."""


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    event: Event
    exists: bool  # the API should have the event already, so only its count is patched


class EventRecorder:
    def __init__(
        self,
        *,
        api: Writer | None,
        node_name: str,
        clock: Clock,
        sender: ApiSender[EventKey],
        pod_by_uid: Callable[[PodUID], Pod | None] = lambda uid: None,
        history: PodHistory | None = None,
        limits: EventLimits = DEFAULT_EVENT_LIMITS,
        max_pending: int = MAX_PENDING,
        max_stored_per_pod: int = MAX_STORED_PER_POD,
    ) -> None:
        self._api = api
        self._source = EventSource(component=COMPONENT, host=node_name)
        self._clock = clock
        self._sender = sender
        self._pod_by_uid = pod_by_uid
        self._history = history
        self._node = ObjectReference(api_version="v1", kind="Node", name=node_name)
        self._correlator = Correlator(limits)
        self._max_pending = max_pending
        self._max_stored_per_pod = max_stored_per_pod
        self._stored: dict[str, OrderedDict[PodEvent, RecordedEvent]] = {}
        self._pending: dict[EventKey, _PendingWrite] = {}
        self._last_stamp = 0
        self.dropped = 0
        """The number of events that were not written, because too many were pending."""

    def record(self, event: PodEvent, about: Pod | PodRecord | ObjectReference | None = None) -> None:
        """Record an event. `about`: its object. Default: the pod with the UID of the event."""
        try:
            now = self._clock.now()
            subject = self._subject(event, about)
            self._store(event.uid or (subject.uid if subject is not None else "") or "", event, now)
            if subject is None:
                log.debug("event %s is not written to the API: pod %r is unknown", event, event.uid)
            elif self._api is not None:
                self._write(event, subject, now)
            if self._history is not None and event.uid:
                self._history.add(PodUID(event.uid), EventRecorded(event.reason, event.message))
        except Exception:
            log.exception("unexpected error while recording event %s", event)

    def record_node(self, event: PodEvent) -> None:
        """Record an event about this node."""
        self.record(event, self._node)

    def events_of(self, uid: PodUID) -> tuple[RecordedEvent, ...]:
        """Return the last events of a pod, oldest first."""
        return tuple(self._stored.get(uid, {}).values())

    def keep_only(self, uids: Collection[PodUID]) -> None:
        """Drop the stored events of all other pods. Pending writes stay."""
        for uid in self._stored.keys() - set(uids):
            del self._stored[uid]

    async def run(self) -> None:
        """Write to the API until cancelled."""
        await self._sender.run(self._send)

    async def flush(self) -> None:
        """Try once to write all pending events. At shutdown, the caller sets a timeout."""
        keys = tuple(self._pending)
        for key in keys:
            self._sender.offer(key, key, at_once=True)
        await self._sender.drain(keys, self._send)

    def _subject(self, event: PodEvent, about: Pod | PodRecord | ObjectReference | None) -> ObjectReference | None:
        if isinstance(about, ObjectReference):
            return about
        found = self._pod_by_uid(PodUID(event.uid)) if about is None else about
        return None if found is None else reference_to(found, event.container_path)

    def _store(self, uid: str, event: PodEvent, now: datetime) -> None:
        stored = self._stored.setdefault(uid, OrderedDict())
        before = stored.pop(event, None)
        if before is None:
            stored[event] = RecordedEvent(event, 1, now, now)
        else:
            stored[event] = RecordedEvent(event, before.count + 1, before.first_at, now)
        if len(stored) > self._max_stored_per_pod:
            stored.popitem(last=False)

    def _write(self, event: PodEvent, subject: ObjectReference, now: datetime) -> None:
        stamp = self._stamp(now)
        single = api_event(event, subject, self._source, now, stamp)
        counted = self._correlator.correlate(single, self._clock.monotonic(), stamp)
        if counted is None:
            log.debug("event %s is not written: too many events for this object", event)
            return
        key = (counted.metadata.namespace or "", counted.metadata.name or "")
        waiting = self._pending.get(key)
        if waiting is None and len(self._pending) >= self._max_pending:
            self.dropped += 1
            # Log at 1, 2, 4, 8, ..., so that an outage does not fill the log.
            if self.dropped & (self.dropped - 1) == 0:
                log.warning(
                    "dropped %d events so far, because %d are already pending", self.dropped, len(self._pending)
                )
            return
        exists = (counted.count or 1) > 1 if waiting is None else waiting.exists
        self._pending[key] = _PendingWrite(counted, exists)
        self._sender.offer(key, key, urgent=event.type is EventType.WARNING)

    def _stamp(self, now: datetime) -> int:
        """Return the nanoseconds since 1970, never the same number twice, because the event name contains it."""
        self._last_stamp = max((now - _EPOCH) // timedelta(microseconds=1) * 1000, self._last_stamp + 1)
        return self._last_stamp

    async def _send(self, key: EventKey) -> None:
        write = self._pending.get(key)
        if write is None or self._api is None:
            return
        try:
            await _write_event(self._api, write)
        except ApiUnavailable:
            # Raised, so that the sender retries it. The kubelet drops an event after 12 attempts.
            raise
        except ApiError as error:
            log.warning("the API rejected event %s/%s, dropping it: %s", *key, error)
        # The event may have occurred again during the call.
        if (newer := self._pending[key]) is write:
            del self._pending[key]
        else:
            self._pending[key] = _PendingWrite(newer.event, exists=True)  # `_write` has already offered it


async def _write_event(api: Writer, write: _PendingWrite) -> None:
    """Create or patch an event. Works regardless of earlier attempts whose answer was lost."""
    event = write.event
    name, namespace = event.metadata.name or "", event.metadata.namespace or ""
    if write.exists:
        try:
            await api.patch(Event, name, count_patch(event), namespace)
            return
        except NotFound:
            # The API server keeps events for one hour by default (--event-ttl).
            log.debug("event %s/%s has expired, creating it again", namespace, name)
    try:
        await api.create(event)
    except AlreadyExists:
        await api.patch(Event, name, count_patch(event), namespace)
