"""The event recorder: what happened to pods, for whoever asks `kubectl describe`, and for us when there is no API.

    record -> last events of the pod, kept here (`events_of`)
         `--> counted, combined or dropped -> pending, one letter per Event -> postman -> create, or patch the count

In: `record`, from everywhere; it never waits and never raises. Out: core/v1 Events in the API. What an event looks like
and which are too many is decided in `rules.events`. A letter that waits is replaced by its successor, so that an event
repeated through an outage of the API is one write when the API is back; beyond `PENDING` letters new ones are dropped
and counted. An answer that was lost does no harm: an event that exists already is patched instead.
The Go ancestor is client-go's tools/record.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from podkeeper.engine.postman import Postman
from podkeeper.model.errors import AlreadyExists, ApiError, ApiUnavailable, NotFound
from podkeeper.model.k8s.core import Event, EventSource, ObjectReference, Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import Writer
from podkeeper.ports.clock import Clock
from podkeeper.rules.events import (
    USUAL_LIMITS,
    Correlator,
    Limits,
    RecordedEvent,
    api_event,
    count_patch,
    reference_to,
)

log = logging.getLogger(__name__)

COMPONENT = "kubelet"
PENDING = 4096
KEPT_PER_POD = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EventKey = tuple[str, str]
"""Namespace and name of an Event."""


@dataclass(frozen=True, slots=True)
class _Letter:
    """An Event to write."""

    event: Event
    exists: bool  # in the API, as far as we know: only its count has to change


class EventRecorder:
    """Records events about pods."""

    def __init__(
        self,
        *,
        api: Writer | None,
        node_name: str,
        clock: Clock,
        postman: Postman[EventKey],
        pod_by_uid: Callable[[PodUID], Pod | None] = lambda uid: None,
        limits: Limits = USUAL_LIMITS,
        pending: int = PENDING,
        kept_per_pod: int = KEPT_PER_POD,
    ) -> None:
        self._api = api
        self._source = EventSource(component=COMPONENT, host=node_name)
        self._clock = clock
        self._postman = postman
        self._pod_by_uid = pod_by_uid
        self._correlator = Correlator(limits)
        self._most_pending = pending
        self._kept_per_pod = kept_per_pod
        self._kept: dict[str, OrderedDict[PodEvent, RecordedEvent]] = {}
        self._pending: dict[EventKey, _Letter] = {}
        self._last_stamp = 0
        self.dropped = 0
        """How many events the API was never told of, because too many waited."""

    def record(self, event: PodEvent, about: Pod | PodRecord | ObjectReference | None = None) -> None:
        """Note an event. `about`: what it happened to; without it, the pod of the event's UID."""
        try:
            now = self._clock.now()
            subject = self._subject(event, about)
            self._keep(event.uid or (subject.uid if subject is not None else "") or "", event, now)
            if subject is None:
                log.debug("event %s is kept here only: no pod %r is known", event, event.uid)
            elif self._api is not None:
                self._write(event, subject, now)
        except Exception:
            log.exception("cannot record event %s", event)

    def events_of(self, uid: PodUID) -> tuple[RecordedEvent, ...]:
        """The last events of a pod, the latest last."""
        return tuple(self._kept.get(uid, {}).values())

    def keep_only(self, uids: Collection[PodUID]) -> None:
        """Forget the events of all pods but these; what is to be written stays so."""
        for uid in self._kept.keys() - set(uids):
            del self._kept[uid]

    async def run(self) -> None:
        """Write to the API until cancelled."""
        await self._postman.run(self._send)

    async def flush(self) -> None:
        """Try once to write all that waits; who calls this at shutdown sets a time limit."""
        keys = tuple(self._pending)
        for key in keys:
            self._postman.offer(key, key, at_once=True)
        await self._postman.drain(keys, self._send)

    def _subject(self, event: PodEvent, about: Pod | PodRecord | ObjectReference | None) -> ObjectReference | None:
        if isinstance(about, ObjectReference):
            return about
        found = self._pod_by_uid(PodUID(event.uid)) if about is None else about
        return None if found is None else reference_to(found, event.container_path)

    def _keep(self, uid: str, event: PodEvent, now: datetime) -> None:
        kept = self._kept.setdefault(uid, OrderedDict())
        before = kept.pop(event, None)
        if before is None:
            kept[event] = RecordedEvent(event, 1, now, now)
        else:
            kept[event] = RecordedEvent(event, before.count + 1, before.first_at, now)
        if len(kept) > self._kept_per_pod:
            kept.popitem(last=False)

    def _write(self, event: PodEvent, subject: ObjectReference, now: datetime) -> None:
        stamp = self._stamp(now)
        single = api_event(event, subject, self._source, now, stamp)
        counted = self._correlator.correlate(single, self._clock.monotonic(), stamp)
        if counted is None:
            log.debug("event %s is not written: too many about this object", event)
            return
        key = (counted.metadata.namespace or "", counted.metadata.name or "")
        waiting = self._pending.get(key)
        if waiting is None and len(self._pending) >= self._most_pending:
            self.dropped += 1
            # At 1, 2, 4, 8, ...: an outage must not fill the log.
            if self.dropped & (self.dropped - 1) == 0:
                log.warning("events are dropped, %d so far: %d wait for the API", self.dropped, len(self._pending))
            return
        exists = (counted.count or 1) > 1 if waiting is None else waiting.exists
        self._pending[key] = _Letter(counted, exists)
        self._postman.offer(key, key, urgent=event.type is EventType.WARNING)

    def _stamp(self, now: datetime) -> int:
        """Nanoseconds since 1970, never the same twice: they make names."""
        self._last_stamp = max((now - _EPOCH) // timedelta(microseconds=1) * 1000, self._last_stamp + 1)
        return self._last_stamp

    async def _send(self, key: EventKey) -> None:
        letter = self._pending.get(key)
        if letter is None or self._api is None:
            return
        try:
            await _deliver(self._api, letter)
        except ApiUnavailable:
            raise
        except ApiError as error:
            log.warning("event %s/%s is refused by the API and dropped: %s", *key, error)
        if (newer := self._pending[key]) is letter:
            del self._pending[key]
        else:
            self._pending[key] = _Letter(newer.event, exists=True)  # it was offered when it came


async def _deliver(api: Writer, letter: _Letter) -> None:
    """Write an event, whatever became of earlier tries."""
    event = letter.event
    name, namespace = event.metadata.name or "", event.metadata.namespace or ""
    if letter.exists:
        try:
            await api.patch(Event, name, count_patch(event), namespace)
            return
        except NotFound:
            log.debug("event %s/%s is gone and made anew", namespace, name)  # the API keeps events for an hour or so
    try:
        await api.create(event)
    except AlreadyExists:
        await api.patch(Event, name, count_patch(event), namespace)
