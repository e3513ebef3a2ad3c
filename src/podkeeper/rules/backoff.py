"""How long to wait before a failing container starts again, or a failing image is pulled again.

    first failure: no wait, the next costs 10 s -> 20 s -> 40 s -> ... -> 300 s, then every time 300 s
    `--- back to the beginning when all went well for 600 s, or when image or resources change ---'

`Entry` is what is known of one key, `Curve` how delays grow; both are values, and the functions over
them are pure. `BackoffTable` owns the entries of one kind (restarts or pulls) and nothing else: no
clock, no tasks. It says `Held` (until when, and what to tell the user) or None, which means: go.

The two kinds differ in where waiting starts: a restart waits from the container's last exit, a pull
from its last failure. Times are `steady` ones: a wall clock that jumps makes nobody wait for hours. Only
exits are told in wall time; they are translated when they are first seen. `remembered` and `restore` carry entries
over a restart of the agent (`rules.backoff_notes`). The Go ancestors are
client-go's util/flowcontrol/backoff.go, `doBackOff` in pkg/kubelet/kuberuntime and `pullImage` in
pkg/kubelet/images.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from podkeeper.model.durations import format_duration
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord

CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
BACK_OFF_EVENT = "BackOff"

MIN_DELAY = timedelta(seconds=1)
"""The floor: no curve, however tuned, waits for less."""

BackoffKey = tuple[str, ...]

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def steady(monotonic_seconds: float) -> datetime:
    """A moment of the clock that never jumps, as a time to reckon with; it says nothing about the date."""
    return _BEGINNING + timedelta(seconds=monotonic_seconds)


# How delays grow.


@dataclass(frozen=True, slots=True)
class Curve:
    """How delays grow: doubled from `initial` to `maximum`, forgotten after `stable_after` without trouble."""

    initial: timedelta = timedelta(seconds=10)
    maximum: timedelta = timedelta(seconds=300)
    stable_after: timedelta = timedelta(seconds=600)

    def __post_init__(self) -> None:
        if not MIN_DELAY <= self.initial <= self.maximum <= self.stable_after:
            raise ValueError(
                f"cannot back off along {self}: {MIN_DELAY} <= initial <= maximum <= stable_after is right"
            )

    def tuned(self, *, initial: timedelta | None = None, maximum: timedelta | None = None) -> "Curve":
        """The same with other ends, for a node or a pod that asks for them.

        A value under the floor is raised to it. A maximum under the initial delay takes that down with it; one
        beyond the usual makes "without trouble" longer, or waiting alone would end a series.
        """
        top = max(self.maximum if maximum is None else maximum, MIN_DELAY)
        first = max(self.initial if initial is None else initial, MIN_DELAY)
        return Curve(initial=min(first, top), maximum=top, stable_after=max(self.stable_after, top * 2))


DEFAULT_CURVE = Curve()


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one key: the delay that its next failure costs, and when that was last decided."""

    delay: timedelta
    updated_at: datetime
    curve: Curve
    cause: str = ""  # what went wrong last; shown while waiting


def has_expired(entry: Entry, at: datetime) -> bool:
    """Whether all went well for so long that an event at this time begins a new series."""
    return at - entry.updated_at > entry.curve.stable_after


def next_entry(entry: Entry | None, event_at: datetime | None, now: datetime, curve: Curve, cause: str = "") -> Entry:
    """The entry after one more event. An event at an unknown time (None) continues the series."""
    if entry is None or (event_at is not None and has_expired(entry, event_at)):
        delay = curve.initial
    else:
        delay = min(max(entry.delay * 2, curve.initial), curve.maximum)
    return Entry(delay, now, curve, cause)


def held_until(entry: Entry | None, since: datetime | None, now: datetime) -> datetime | None:
    """When the wait that began at `since` ends; None when it is over, or when there is none."""
    if entry is None or since is None or has_expired(entry, since):
        return None
    until = since + entry.delay
    return until if now < until else None


@dataclass(frozen=True, slots=True)
class SeenExit:
    """An exit, and when it was in steady time."""

    container_id: str
    finished_at: datetime  # in wall time, as the runtime told it
    at: datetime


@dataclass(frozen=True, slots=True)
class Remembered:
    """All that a table knows of one key."""

    key: BackoffKey
    entry: Entry
    exit: SeenExit | None = None
    wall_ahead: timedelta | None = None  # wall minus steady clock when it was noted; None: not noted


# What is held back, and by which name it is known.


@dataclass(frozen=True, slots=True)
class Held:
    """Not now. `reason` and `message` are for the container's status, `event` for the record."""

    reason: str
    message: str
    until: datetime
    event: PodEvent


def restart_key(pod: Pod, container: Container | EphemeralContainer) -> BackoffKey:
    """Names a container together with all whose change deserves a fresh start."""
    meta = pod.metadata
    resources = msgspec.json.encode(container.resources, order="deterministic").decode()
    return (meta.name or "", meta.namespace or "", meta.uid or "", container.name, container.image or "", resources)


def pull_key(pod: Pod, image: str) -> BackoffKey:
    """Names an image for one pod: another pod may have other credentials."""
    return (pod.metadata.uid or "", image)


def latest_exit(record: PodRecord, container_name: str) -> ContainerRecord | None:
    """The newest exited container of a name; newer ones that have not exited do not hide it."""
    return next(
        (found for found in record.containers if found.name == container_name and found.state is ContainerState.EXITED),
        None,
    )


class BackoffTable:
    """The entries of one kind of back-off. Call `collect` now and then, or it grows with every key ever seen."""

    def __init__(self, curve: Curve = DEFAULT_CURVE) -> None:
        self._curve = curve
        self._entries: dict[BackoffKey, Entry] = {}
        self._exits: dict[BackoffKey, SeenExit] = {}  # the last ones
        self._keys: dict[PodUID, dict[BackoffKey, None]] = {}  # of the entries, by pod
        self._wall_ahead: dict[BackoffKey, timedelta] = {}  # wall minus steady clock at the last start or note
        self._restored: set[BackoffKey] = set()  # entries from before a restart of the agent, unchanged since
        self._changed: dict[PodUID, None] = {}  # pods whose entries changed since `take_changed`

    def __len__(self) -> int:
        return len(self._entries)

    def delay(self, key: BackoffKey) -> timedelta:
        """What the next failure of this key costs; nothing when the key is not known."""
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
    ) -> Held | None:
        """Ask to start a container. None: it may start, and its next restart will wait longer.

        `curve` overrides the table's for this container. `wall_ahead` is how far the wall clock, which exits are told
        by, is ahead of `now`. A container that never exited is neither held nor counted.
        """
        last = latest_exit(record, container.name)
        if last is None:
            return None
        key, uid = restart_key(pod, container), PodUID(pod.metadata.uid or "")
        entry = self._entry(key, curve)
        exit_at = self._exit_at(key, uid, last, now, wall_ahead)
        until = held_until(entry, exit_at, now)
        if entry is not None and until is not None:
            return _held_restart(pod, container.name, entry.delay, until)
        self._put(key, uid, next_entry(entry, exit_at, now, curve or self._curve))
        self._wall_ahead[key] = wall_ahead
        return None

    def _exit_at(
        self, key: BackoffKey, uid: PodUID, last: ContainerRecord, now: datetime, wall_ahead: timedelta
    ) -> datetime | None:
        """When a container exited, by the clock that `now` is told by.

        Reckoned once, when the exit is first seen: the wall clock may jump while the container waits. If it was put
        back before that, the exit seems to lie ahead; it was not later than now. If the wall clock jumped ahead while
        the agent was down, an exit may seem older than the entry of its own start. Then the wait begins now.

        If the wall clock jumped ahead since the start, the exit was told by the clock of before or after the jump. The
        later time counts, if it is possible: the other one would cut the wait short.
        """
        if last.finished_at is None:
            return None
        known = self._exits.get(key)
        if known is None or (known.container_id, known.finished_at) != (last.id, last.finished_at):
            at = min(last.finished_at - wall_ahead, now)
            if key in self._restored and at < self._entries[key].updated_at:
                at = now
            by_former_clock = last.finished_at - self._wall_ahead.get(key, wall_ahead)
            if by_former_clock <= now:
                at = max(at, by_former_clock)
            known = self._exits[key] = SeenExit(last.id, last.finished_at, at)
            self._changed[uid] = None
        return known.at

    def hold_pull(self, pod: Pod, image: str, now: datetime, curve: Curve | None = None) -> Held | None:
        """Ask to pull an image. None: it may be pulled; tell the table when that fails."""
        entry = self._entry(pull_key(pod, image), curve)
        if entry is None or (until := held_until(entry, entry.updated_at, now)) is None:
            return None
        return _held_pull(pod, image, entry.cause, until)

    def pull_failed(self, pod: Pod, image: str, cause: str, now: datetime, curve: Curve | None = None) -> None:
        """Note a failed pull; `cause` (`ErrImagePull: ...`) is shown while the next one is held."""
        key = pull_key(pod, image)
        entry = next_entry(self._entries.get(key), now, now, curve or self._curve, cause)
        self._put(key, PodUID(pod.metadata.uid or ""), entry)

    def collect(self, now: datetime, is_gone: Callable[[PodUID], bool] = lambda uid: False) -> None:
        """Drop every entry that has expired, and all entries of pods that are gone."""
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
        """The pods whose entries changed since the last call."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def remembered(self, uid: PodUID) -> tuple[Remembered, ...]:
        """All entries of a pod."""
        return tuple(Remembered(key, self._entries[key], self._exits.get(key)) for key in self._keys.get(uid, ()))

    def restore(self, uid: PodUID, remembered: Iterable[Remembered]) -> None:
        """Add a pod's entries from before a restart of the agent."""
        for each in remembered:
            self._entries[each.key] = each.entry
            self._keys.setdefault(uid, {})[each.key] = None
            self._restored.add(each.key)
            if each.exit is not None:
                self._exits[each.key] = each.exit
            if each.wall_ahead is not None:
                self._wall_ahead[each.key] = each.wall_ahead

    def _entry(self, key: BackoffKey, curve: Curve | None) -> Entry | None:
        """The entry of a key. A restored one is limited to the current maximum: the settings may have changed."""
        entry = self._entries.get(key)
        if entry is None or key not in self._restored:
            return entry
        return replace(entry, delay=min(entry.delay, (curve or self._curve).maximum))

    def _put(self, key: BackoffKey, uid: PodUID, entry: Entry) -> None:
        self._entries[key] = entry
        self._keys.setdefault(uid, {})[key] = None
        self._restored.discard(key)
        self._changed[uid] = None


def _held_restart(pod: Pod, container_name: str, delay: timedelta, until: datetime) -> Held:
    shown_pod = f"{pod.metadata.name or ''}_{pod.metadata.namespace or ''}({pod.metadata.uid or ''})"
    shown_delay = format_duration(delay // timedelta(microseconds=1) * 1000)
    text = f"Back-off restarting failed container {container_name} in pod {shown_pod}"
    return Held(
        reason=CRASH_LOOP_BACK_OFF,
        message=f"back-off {shown_delay} restarting failed container={container_name} pod={shown_pod}",
        until=until,
        event=PodEvent(EventType.WARNING, BACK_OFF_EVENT, text, pod.metadata.uid or ""),
    )


def _held_pull(pod: Pod, image: str, cause: str, until: datetime) -> Held:
    text = f'Back-off pulling image "{image}"'
    return Held(
        reason=IMAGE_PULL_BACK_OFF,
        message=f"{text}: {cause}" if cause else text,
        until=until,
        event=PodEvent(EventType.NORMAL, BACK_OFF_EVENT, text, pod.metadata.uid or ""),
    )
