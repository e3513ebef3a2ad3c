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


@dataclass(slots=True)
class _KeyState:
    """The entry of one key, and what is known about the last exit and the clocks."""

    entry: BackoffEntry
    exit: SeenExit | None = None
    wall_ahead: timedelta | None = None  # wall minus steady clock at the last start, or when the entry was stored
    is_restored: bool = False  # the entry is from before a restart of the agent, unchanged since


class BackoffTable:
    """The entries of one kind of backoff. Call `collect` regularly to remove old entries."""

    def __init__(self, curve: Curve = DEFAULT_CURVE) -> None:
        self._curve = curve
        self._states: dict[BackoffKey, _KeyState] = {}
        self._keys: dict[PodUID, dict[BackoffKey, None]] = {}  # keys of the entries by pod
        self._changed: dict[PodUID, None] = {}  # pods whose entries changed since `take_changed`

    def __len__(self) -> int:
        return len(self._states)

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
        state = self._states.get(key)
        entry = self._entry(state, curve)
        known = None if state is None else state.exit
        seen = _seen_exit(state, last, now, wall_ahead)
        until = held_until(entry, None if seen is None else seen.at, now)
        if state is not None and entry is not None and until is not None:
            if seen is not known:
                state.exit = seen
                self._changed[uid] = None
            return _restart_wait(pod, container.name, entry.delay, until)
        state = self._put(key, uid, next_entry(entry, None if seen is None else seen.at, now, curve or self._curve))
        state.exit = known if seen is None else seen
        state.wall_ahead = wall_ahead
        return None

    def hold_pull(self, pod: Pod, image: str, now: datetime, curve: Curve | None = None) -> BackoffWait | None:
        """Return the delay of an image pull. None: it may be pulled. Report a failure with `pull_failed`."""
        entry = self._entry(self._states.get(pull_key(pod, image)), curve)
        if entry is None or (until := held_until(entry, entry.updated_at, now)) is None:
            return None
        return _pull_wait(pod, image, entry.cause, until)

    def pull_failed(self, pod: Pod, image: str, cause: str, now: datetime, curve: Curve | None = None) -> None:
        """Count a failed pull. `cause` (`ErrImagePull: ...`) is shown during the delay."""
        key = pull_key(pod, image)
        state = self._states.get(key)
        entry = next_entry(None if state is None else state.entry, now, now, curve or self._curve, cause)
        self._put(key, PodUID(pod.metadata.uid or ""), entry)

    def collect(self, now: datetime, is_gone: Callable[[PodUID], bool] = lambda uid: False) -> None:
        """Remove expired entries, and all entries of removed pods."""
        for uid, keys in tuple(self._keys.items()):
            gone = is_gone(uid)
            for key in [key for key in keys if gone or has_expired(self._states[key].entry, now)]:
                del self._states[key], keys[key]
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
        states = ((key, self._states[key]) for key in self._keys.get(uid, ()))
        return tuple(BackoffRecord(key, state.entry, state.exit) for key, state in states)

    def restore(self, uid: PodUID, records: Iterable[BackoffRecord]) -> None:
        """Add the entries of a pod from before a restart of the agent."""
        for each in records:
            self._states[each.key] = _KeyState(each.entry, each.exit, each.wall_ahead, is_restored=True)
            self._keys.setdefault(uid, {})[each.key] = None

    def _entry(self, state: _KeyState | None, curve: Curve | None) -> BackoffEntry | None:
        """Return the entry of a key. A restored one is limited to the current maximum of the settings."""
        if state is None or not state.is_restored:
            return None if state is None else state.entry
        # The settings may have changed while the agent was down.
        return replace(state.entry, delay=min(state.entry.delay, (curve or self._curve).maximum))

    def _put(self, key: BackoffKey, uid: PodUID, entry: BackoffEntry) -> _KeyState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _KeyState(entry)
            self._keys.setdefault(uid, {})[key] = None
        state.entry, state.is_restored = entry, False
        self._changed[uid] = None
        return state


def _seen_exit(state: _KeyState | None, last: ContainerRecord, now: datetime, wall_ahead: timedelta) -> SeenExit | None:
    """Return a container's exit with its steady time. None: the runtime has no exit time.

    The time is computed only when the exit is first seen, because the wall clock may jump during the delay.
    """
    if last.finished_at is None:
        return None
    known = None if state is None else state.exit
    if known is not None and (known.container_id, known.finished_at) == (last.id, last.finished_at):
        return known
    # If the wall clock was set back, the exit seems to be in the future.
    at = min(last.finished_at - wall_ahead, now)
    # If the clock jumped ahead while the agent was down, the exit seems older than its own start. While the agent runs,
    # it sees exits in time, and the next rule covers a jump.
    if state is not None and state.is_restored and at < state.entry.updated_at:
        at = now
    # If the clock jumped ahead after the start, the exit may have its time from before or after the jump. The earlier
    # time would shorten the delay. Seed 387: the clock jumped 5530 s ahead, and the container restarted at once.
    former_wall_ahead = wall_ahead if state is None or state.wall_ahead is None else state.wall_ahead
    by_former_clock = last.finished_at - former_wall_ahead
    if by_former_clock <= now:
        at = max(at, by_former_clock)
    return SeenExit(last.id, last.finished_at, at)


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
