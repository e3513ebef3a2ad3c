"""Backoff of container restarts and image pulls.

    first failure: no delay, then 10 s -> 20 s -> 40 s -> ... -> 300 s, then 300 s each time
    `--- reset after 600 s without a failure, or if the image or the resources change ---'

A `BackoffEntry` is the state of one key, a `Curve` defines the delays. `BackoffTable` has the entries of one kind
(restarts or pulls). It has no clock and no tasks. It returns a `BackoffWait` with the end of the delay and the texts
for the user, or None if there is no delay.

The delay of a restart begins with the container's last exit, the delay of a pull with its last failure. Times are
`steady` ones, so that a jump of the wall clock does not extend a delay. Only exits have wall times. They are converted
when they are first seen. `records` and `restore` keep entries across a restart of the agent
(`rules.backoff.checkpoint`). Kubelet counterpart: client-go's util/flowcontrol/backoff.go, `doBackOff` in
pkg/kubelet/kuberuntime and `pullImage` in pkg/kubelet/images.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from podkeeper.model.durations import format_duration
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState

CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
BACK_OFF_EVENT = "BackOff"

MIN_DELAY = timedelta(seconds=1)
"""The minimum of every delay."""

BackoffKey = tuple[str, ...]

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def steady(monotonic_seconds: float) -> datetime:
    """Return monotonic seconds as a datetime for calculations. It is not a calendar time."""
    return _BEGINNING + timedelta(seconds=monotonic_seconds)


# Delays.


@dataclass(frozen=True, slots=True)
class Curve:
    """Delays double from `initial` to `maximum`, and reset after `stable_after` without a failure."""

    # The kubelet's values for restarts and image pulls, fixed for all pods there (k/k 57291).
    initial: timedelta = timedelta(seconds=10)
    maximum: timedelta = timedelta(seconds=300)
    stable_after: timedelta = timedelta(seconds=600)

    def __post_init__(self) -> None:
        if not MIN_DELAY <= self.initial <= self.maximum <= self.stable_after:
            raise ValueError(f"cannot use {self}: expected {MIN_DELAY} <= initial <= maximum <= stable_after")

    def tuned(self, *, initial: timedelta | None = None, maximum: timedelta | None = None) -> "Curve":
        """Return the curve with another initial or maximum delay.

        Values below the minimum are raised to it. A maximum below the initial delay lowers the initial delay. A longer
        maximum also extends `stable_after`, because otherwise the delay alone would reset the backoff.
        """
        longest = max(self.maximum if maximum is None else maximum, MIN_DELAY)
        first = max(self.initial if initial is None else initial, MIN_DELAY)
        return Curve(initial=min(first, longest), maximum=longest, stable_after=max(self.stable_after, longest * 2))


DEFAULT_CURVE = Curve()


@dataclass(frozen=True, slots=True)
class BackoffEntry:
    """The state of one key: the delay after its next failure, and when this was last updated."""

    delay: timedelta
    updated_at: datetime
    curve: Curve
    cause: str = ""  # the last error, shown during the delay


def has_expired(entry: BackoffEntry, at: datetime) -> bool:
    """Return whether an event at this time resets the backoff."""
    return at - entry.updated_at > entry.curve.stable_after


def next_entry(
    entry: BackoffEntry | None, event_at: datetime | None, now: datetime, curve: Curve, cause: str = ""
) -> BackoffEntry:
    """Return the entry after one more event. An event with unknown time (None) does not reset the backoff."""
    if entry is None or (event_at is not None and has_expired(entry, event_at)):
        delay = curve.initial
    else:
        # At least `initial`, because the pod's annotation may have raised it since.
        delay = min(max(entry.delay * 2, curve.initial), curve.maximum)
    return BackoffEntry(delay, now, curve, cause)


def held_until(entry: BackoffEntry | None, since: datetime | None, now: datetime) -> datetime | None:
    """Return the end of the delay that began at `since`. None if it has passed or there is none."""
    if entry is None or since is None or has_expired(entry, since):
        return None
    until = since + entry.delay
    return until if now < until else None


@dataclass(frozen=True, slots=True)
class SeenExit:
    """An exit with its steady time."""

    container_id: str
    finished_at: datetime  # wall time, as reported by the runtime
    at: datetime


@dataclass(frozen=True, slots=True)
class BackoffRecord:
    """The complete state of one key, for the journal."""

    key: BackoffKey
    entry: BackoffEntry
    exit: SeenExit | None = None
    wall_ahead: timedelta | None = None  # wall minus steady clock when it was stored; None: not stored


# Waits and keys.


@dataclass(frozen=True, slots=True)
class BackoffWait:
    """A delay. `reason` and `message` are for the container status. The caller records `event`."""

    reason: str
    message: str
    until: datetime
    event: PodEvent


def restart_key(pod: Pod, container: Container | EphemeralContainer) -> BackoffKey:
    """Return the key of a container. A changed image or changed resources give another key."""
    meta = pod.metadata
    # As in the kubelet, whose key is a hash of name, image and resources: a changed container is not punished for the
    # old one.
    resources = msgspec.json.encode(container.resources, order="deterministic").decode()
    return (meta.name or "", meta.namespace or "", meta.uid or "", container.name, container.image or "", resources)


def pull_key(pod: Pod, image: str) -> BackoffKey:
    """Return the key of an image for one pod, because another pod may have other credentials."""
    return (pod.metadata.uid or "", image)


def latest_exit(record: PodRecord, container_name: str) -> ContainerRecord | None:
    """Return the newest exited container of a name, even if a newer one has not exited."""
    return next(
        (found for found in record.containers if found.name == container_name and found.state is RecordState.EXITED),
        None,
    )


class BackoffTable:
    """The entries of one kind of backoff. Call `collect` regularly to remove old entries."""

    def __init__(self, curve: Curve = DEFAULT_CURVE) -> None:
        self._curve = curve
        self._entries: dict[BackoffKey, BackoffEntry] = {}
        self._exits: dict[BackoffKey, SeenExit] = {}  # the last exit of each key
        self._keys: dict[PodUID, dict[BackoffKey, None]] = {}  # keys of the entries by pod
        self._wall_ahead: dict[BackoffKey, timedelta] = {}  # wall minus steady clock at the last start, or when stored
        self._restored: set[BackoffKey] = set()  # entries from before a restart of the agent, unchanged since
        self._changed: dict[PodUID, None] = {}  # pods whose entries changed since `take_changed`

    def __len__(self) -> int:
        return len(self._entries)

    def delay(self, key: BackoffKey) -> timedelta:
        """Return the delay after the next failure of a key. Zero if the key is unknown."""
        entry = self._entries.get(key)
        return timedelta() if entry is None else entry.delay

    def begin_restart(
        self,
        pod: Pod,
        container: Container | EphemeralContainer,
        record: PodRecord,
        now: datetime,
        curve: Curve | None = None,
        wall_ahead: timedelta = timedelta(),
    ) -> BackoffWait | None:
        """Return the delay of a container start. None: it may start, and its next delay is longer.

        `curve` overrides the curve of the table. `wall_ahead` is the difference between the wall clock, which exits
        use, and `now`. A container that never exited has no delay and is not counted.
        """
        last = latest_exit(record, container.name)
        if last is None:
            return None
        key, uid = restart_key(pod, container), PodUID(pod.metadata.uid or "")
        entry = self._entry(key, curve)
        exit_at = self._exit_at(key, uid, last, now, wall_ahead)
        until = held_until(entry, exit_at, now)
        if entry is not None and until is not None:
            return _restart_wait(pod, container.name, entry.delay, until)
        self._put(key, uid, next_entry(entry, exit_at, now, curve or self._curve))
        self._wall_ahead[key] = wall_ahead
        return None

    def _exit_at(
        self, key: BackoffKey, uid: PodUID, last: ContainerRecord, now: datetime, wall_ahead: timedelta
    ) -> datetime | None:
        """Return the steady time of a container's exit.

        It is computed once, when the exit is first seen, because the wall clock may jump during the delay. If the
        clock was set back before, the exit seems to be in the future, so it is limited to now. If the clock jumped
        ahead while the agent was down, an exit may seem older than the entry of its own start. Then the delay begins
        now.

        If the wall clock jumped ahead after the start, the runtime may have read the exit time before or after the
        jump. Use the later of the two possible times unless it is in the future, because the earlier one would shorten
        the delay.
        """
        if last.finished_at is None:
            return None
        known = self._exits.get(key)
        if known is None or (known.container_id, known.finished_at) != (last.id, last.finished_at):
            at = min(last.finished_at - wall_ahead, now)
            # Only after a restart of the agent: otherwise the exit was seen in time, and the other rule covers a jump.
            if key in self._restored and at < self._entries[key].updated_at:
                at = now
            # Seed 387: the clock jumped 5530 s ahead before the exit was seen, and the container restarted at once.
            by_former_clock = last.finished_at - self._wall_ahead.get(key, wall_ahead)
            if by_former_clock <= now:
                at = max(at, by_former_clock)
            known = self._exits[key] = SeenExit(last.id, last.finished_at, at)
            self._changed[uid] = None
        return known.at

    def hold_pull(self, pod: Pod, image: str, now: datetime, curve: Curve | None = None) -> BackoffWait | None:
        """Return the delay of an image pull. None: it may be pulled. Report a failure with `pull_failed`."""
        entry = self._entry(pull_key(pod, image), curve)
        if entry is None or (until := held_until(entry, entry.updated_at, now)) is None:
            return None
        return _pull_wait(pod, image, entry.cause, until)

    def pull_failed(self, pod: Pod, image: str, cause: str, now: datetime, curve: Curve | None = None) -> None:
        """Count a failed pull. `cause` (`ErrImagePull: ...`) is shown during the delay."""
        key = pull_key(pod, image)
        entry = next_entry(self._entries.get(key), now, now, curve or self._curve, cause)
        self._put(key, PodUID(pod.metadata.uid or ""), entry)

    def collect(self, now: datetime, is_gone: Callable[[PodUID], bool] = lambda uid: False) -> None:
        """Remove expired entries, and all entries of removed pods."""
        for uid, keys in tuple(self._keys.items()):
            gone = is_gone(uid)
            for key in [key for key in keys if gone or has_expired(self._entries[key], now)]:
                del self._entries[key], keys[key]
                self._exits.pop(key, None)
                self._wall_ahead.pop(key, None)
                self._restored.discard(key)
                self._changed[uid] = None
            if not keys:
                del self._keys[uid]

    # Restarts of the agent.

    def take_changed(self) -> tuple[PodUID, ...]:
        """Return the pods whose entries changed since the last call."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def records(self, uid: PodUID) -> tuple[BackoffRecord, ...]:
        return tuple(BackoffRecord(key, self._entries[key], self._exits.get(key)) for key in self._keys.get(uid, ()))

    def restore(self, uid: PodUID, records: Iterable[BackoffRecord]) -> None:
        """Add the entries of a pod from before a restart of the agent."""
        for each in records:
            self._entries[each.key] = each.entry
            self._keys.setdefault(uid, {})[each.key] = None
            self._restored.add(each.key)
            if each.exit is not None:
                self._exits[each.key] = each.exit
            if each.wall_ahead is not None:
                self._wall_ahead[each.key] = each.wall_ahead

    def _entry(self, key: BackoffKey, curve: Curve | None) -> BackoffEntry | None:
        """Return the entry of a key. A restored one is limited to the current maximum of the settings."""
        entry = self._entries.get(key)
        if entry is None or key not in self._restored:
            return entry
        # The settings may have changed while the agent was down.
        return replace(entry, delay=min(entry.delay, (curve or self._curve).maximum))

    def _put(self, key: BackoffKey, uid: PodUID, entry: BackoffEntry) -> None:
        self._entries[key] = entry
        self._keys.setdefault(uid, {})[key] = None
        self._restored.discard(key)
        self._changed[uid] = None


def _restart_wait(pod: Pod, container_name: str, delay: timedelta, until: datetime) -> BackoffWait:
    shown_pod = f"{pod.metadata.name or ''}_{pod.metadata.namespace or ''}({pod.metadata.uid or ''})"
    shown_delay = format_duration(delay // timedelta(microseconds=1) * 1000)
    text = f"Back-off restarting failed container {container_name} in pod {shown_pod}"
    return BackoffWait(
        reason=CRASH_LOOP_BACK_OFF,
        message=f"back-off {shown_delay} restarting failed container={container_name} pod={shown_pod}",
        until=until,
        event=PodEvent(EventType.WARNING, BACK_OFF_EVENT, text, pod.metadata.uid or ""),
    )


def _pull_wait(pod: Pod, image: str, cause: str, until: datetime) -> BackoffWait:
    text = f'Back-off pulling image "{image}"'
    return BackoffWait(
        reason=IMAGE_PULL_BACK_OFF,
        message=f"{text}: {cause}" if cause else text,
        until=until,
        event=PodEvent(EventType.NORMAL, BACK_OFF_EVENT, text, pod.metadata.uid or ""),
    )
