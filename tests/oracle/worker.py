"""Replays for the pod workers: two tables about grace, and the `podworkers` scripts.

A script is played by three parts. The `World` is what surrounds the workers: sync functions that block
until the script finishes them, the status cache, the work queue, the event recorder. A `Driver` connects
workers to it; the one here does at once whatever the machine orders, so it proves the decisions alone.
`play` runs the steps and compares; it knows drivers by their protocol only.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from podkeeper.model.errors import InBackoff, NetworkNotReady, TryLater
from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_SOURCE_ANNOTATION, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from podkeeper.rules.grace import effective_grace
from podkeeper.rules.worker import questions
from podkeeper.rules.worker.events import (
    Call,
    Cancel,
    Complete,
    Enqueue,
    Failed,
    Order,
    Passed,
    PassEvent,
    ReadStatus,
    Record,
    StatusRead,
    StatusUnreadable,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.pauses import pause_after
from podkeeper.rules.worker.states import State
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType, kill_request
from podkeeper.rules.worker.workers import KnownPod, Workers
from tests.oracle.compare import Difference, Json, Replay, answers, differences

VERSION_LABEL = "version"
NEVER_SEEN = PodUID("never-seen")
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


# What the script's words mean.


@dataclass(frozen=True, slots=True)
class Channel:
    """A completion channel of a script."""

    name: str

    def set(self) -> None:
        """The workers only carry it; the world notes its closing."""


@dataclass(frozen=True, slots=True)
class NamedStatusFunction:
    """A status function of a script."""

    name: str

    def __call__(self, status: PodStatus) -> PodStatus:
        return status


def pod_of(given: Json) -> Pod:
    """The pod a script describes, marked with its version."""
    return Pod(
        metadata=ObjectMeta(
            uid=given["uid"],
            name=given["name"],
            namespace=given["namespace"],
            labels={VERSION_LABEL: str(given["version"])},
            annotations={CONFIG_SOURCE_ANNOTATION: given["source"]},
            deletion_timestamp="2000-01-01T00:00:00Z" if given["deletion_timestamp"] else None,
            deletion_grace_period_seconds=given["deletion_grace_period_seconds"],
        ),
        spec=PodSpec(termination_grace_period_seconds=given["termination_grace_period_seconds"]),
        status=PodStatus(phase=given["phase"]),
    )


def update_of(do: Json) -> Update:
    """The update a script's step describes."""
    options, running, version = do.get("kill_options"), do.get("running_pod"), do.get("mirror_version")
    return Update(
        type=UpdateType(do["type"]),
        pod=pod_of(do["pod"]) if do.get("pod") is not None else None,
        mirror_pod=Pod(metadata=ObjectMeta(labels={VERSION_LABEL: str(version)})) if version is not None else None,
        running_pod=PodRecord(**running) if running is not None else None,
        kill=KillOptions(
            evict=options["evict"],
            grace_override_seconds=options["grace_override"],
            completed=Channel(options["completed"]) if options["completed"] is not None else None,
            status_function=NamedStatusFunction(options["status_fn"]) if options["status_fn"] is not None else None,
        )
        if options is not None
        else None,
    )


def version_of(pod: Pod | None) -> int | None:
    """The marker of a pod that reached a sync function."""
    return None if pod is None else int((pod.metadata.labels or {})[VERSION_LABEL])


# The world.


@dataclass(slots=True)
class RunningCall:
    """A sync function that has not returned."""

    function: str
    cancelled: bool = False


@dataclass(slots=True)
class World:
    """What surrounds the workers, and what was seen there during one step."""

    now: int = 0
    running: dict[PodUID, RunningCall] = field(default_factory=dict)
    runtime: dict[PodUID, tuple[int, int]] = field(default_factory=dict)
    cache_errors: Counter[PodUID] = field(default_factory=Counter)
    events: dict[str, list[Json]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    def note(self, uid: PodUID, event: Json) -> None:
        """Something happened to a pod."""
        self.events.setdefault(uid, []).append(event)

    def cached(self, uid: PodUID) -> PodRecord:
        """The cache's `get`."""
        containers, sandboxes = self.runtime.get(uid, (0, 0))
        exited = ContainerRecord(id="exited", name="exited", state=ContainerState.EXITED)
        runs = (ContainerRecord(id=f"c{i}", name=f"c{i}", state=ContainerState.RUNNING) for i in range(containers))
        ready = (SandboxRecord(id=f"s{i}", ready=True) for i in range(sandboxes))
        return PodRecord(uid=uid, containers=(exited, *runs), sandboxes=tuple(ready))

    def read_newer(self, uid: PodUID, newer_than: float | None) -> str | None:
        """The cache's `get_newer_than`; gives its error."""
        if self.cache_errors[uid] == 0:
            return None
        self.cache_errors[uid] -= 1
        self.note(uid, {"cache_error": True, "newer_than": newer_than})
        return "cache unavailable"

    def enter(self, uid: PodUID, call: Call, newer_than: float | None) -> None:
        """A sync function is called, and blocks."""
        match call:
            case SyncPod(update_type=update_type, pod=pod, mirror_pod=mirror_pod):
                said: dict[str, Json] = {"update_type": str(update_type), "version": version_of(pod)}
                self._enter(
                    uid, "sync_pod", said | {"mirror_version": version_of(mirror_pod), "newer_than": newer_than}
                )
            case SyncTerminatingPod(pod=pod, grace_seconds=grace, status_function=function):
                name = function.name if isinstance(function, NamedStatusFunction) else None
                said = {"version": version_of(pod), "grace": grace, "status_fn": name, "newer_than": newer_than}
                self._enter(uid, "sync_terminating_pod", said)
            case SyncTerminatingRuntimePod(running_pod=running_pod):
                self._enter(uid, "sync_terminating_runtime_pod", {"name": running_pod.name})
            case SyncTerminatedPod(pod=pod):
                self._enter(uid, "sync_terminated_pod", {"version": version_of(pod), "newer_than": newer_than})

    def _enter(self, uid: PodUID, function: str, said: dict[str, Json]) -> None:
        assert uid not in self.running, f"two sync functions at once for {uid}"
        self.running[uid] = RunningCall(function)
        self.note(uid, {"call": function} | said)

    def leave(self, uid: PodUID, result: str) -> None:
        """The sync function that runs for a pod returns."""
        call = self.running.pop(uid)
        self.note(uid, {"return": call.function, "result": result, "cancelled": call.cancelled})

    def cancel(self, uid: PodUID) -> None:
        """The context of the call that runs for a pod is cancelled."""
        self.running[uid].cancelled = True

    def enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        """The work queue's `enqueue`, with the delay before jitter."""
        self.note(uid, {"enqueue": int(delay_seconds) if float(delay_seconds).is_integer() else delay_seconds})

    def record(self, uid: PodUID, event: PodEvent) -> None:
        """The event recorder."""
        self.note(uid, {"event": event.reason, "event_type": str(event.type), "message": event.message})

    def wall(self) -> datetime:
        """The time of day."""
        return EPOCH + timedelta(seconds=self.now)


# The driver.


class Driver(Protocol):
    """Workers connected to a world. Each method returns when nothing moves any more."""

    def update(self, update: Update) -> None:
        """Tell the workers."""

    def finish(self, uid: PodUID, result: str, backoff_seconds: float) -> None:
        """Let the sync function that runs for a pod return."""

    def sync_known_pods(self, desired: set[PodUID]) -> dict[PodUID, KnownPod]:
        """Housekeeping comes by."""

    @property
    def workers(self) -> Workers:
        """To be asked questions."""


class DirectDriver:
    """Obeys the machine's orders at once: the decisions alone, without tasks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._workers = Workers()
        self._newer_than: dict[PodUID, float | None] = {}

    @property
    def workers(self) -> Workers:
        """To be asked questions."""
        return self._workers

    def update(self, update: Update) -> None:
        """Tell the workers."""
        self._obey(update.uid, self._workers.update(update, self._world.cached(update.uid)))

    def finish(self, uid: PodUID, result: str, backoff_seconds: float) -> None:
        """Let the sync function that runs for a pod return."""
        self._world.leave(uid, result)
        self._obey(uid, self._workers.report(uid, outcome_of(self._world, result, backoff_seconds)))

    def sync_known_pods(self, desired: set[PodUID]) -> dict[PodUID, KnownPod]:
        """Housekeeping comes by."""
        sweep = self._workers.sync_known_pods(desired)
        for uid, orders in sweep.orders.items():
            self._obey(uid, orders)
        return sweep.known

    def _obey(self, uid: PodUID, orders: Iterable[Order]) -> None:
        for order in orders:
            match order:
                case ReadStatus(newer_than=newer_than):
                    self._newer_than[uid] = newer_than
                    error = self._world.read_newer(uid, newer_than)
                    news = StatusRead() if error is None else StatusUnreadable(error)
                    self._obey(uid, self._workers.report(uid, news))
                case Cancel():
                    self._world.cancel(uid)
                case Enqueue(delay_seconds=delay_seconds):
                    self._world.enqueue(uid, delay_seconds)
                case Complete(signals=signals):
                    self._world.closed += [signal.name for signal in signals if isinstance(signal, Channel)]
                case Record(event=event):
                    self._world.record(uid, event)
                case SyncPod() | SyncTerminatingPod() | SyncTerminatingRuntimePod() | SyncTerminatedPod() as call:
                    self._world.enter(uid, call, self._newer_than.get(uid))


def outcome_of(world: World, result: str, backoff_seconds: float) -> PassEvent:
    """What a shell reports when a sync function returned so."""
    match result:
        case "ok" | "terminal":
            return Passed(world.now, ended=result == "terminal")
        case "network_not_ready":
            error: TryLater = NetworkNotReady("cannot sync: network is not ready")
        case "backoff_error":
            error = InBackoff("cannot start", world.wall() + timedelta(seconds=backoff_seconds))
        case "error" | "terminal_error" | "canceled":
            error = TryLater(f"cannot sync: {result}")
        case _:
            raise ValueError(f"cannot play the unknown result {result!r}")
    return Failed(world.now, pause_after(error, world.wall()))


# The play.


def play(script: Json, make_driver: Callable[[World], Driver]) -> Iterator[Difference]:
    """Run a script's steps one after the other; after each, compare all that can be seen."""
    world = World()
    driver = make_driver(world)
    for index, recorded in enumerate(script["steps"]):
        world.events, world.closed = {}, []
        seen = _do(world, driver, recorded["do"])
        seen |= {
            "events": world.events,
            "running": {uid: {"fn": call.function, "cancelled": call.cancelled} for uid, call in world.running.items()},
            "closed": sorted(world.closed),
            "predicates": {
                uid: _predicates(driver.workers.state(uid), driver.workers.synced)
                for uid in (NEVER_SEEN, *script["uids"])
            },
            "mirror_terminating": [
                name for name in script["full_names"] if driver.workers.is_pod_for_mirror_pod_terminating(name)
            ],
        }
        yield from differences(recorded["expect"], seen, f"step {index}")


def _do(world: World, driver: Driver, do: Json) -> dict[str, Json]:
    match do["op"]:
        case "update":
            driver.update(update_of(do))
        case "finish" if do["uid"] not in world.running:
            return {"noop": True}
        case "finish":
            driver.finish(do["uid"], do["result"], do.get("backoff_seconds", 0))
        case "known":
            known = driver.sync_known_pods(set(do["desired"]))
            return {"known": {uid: _known(pod) for uid, pod in known.items()}}
        case "advance":
            world.now += do["seconds"]
        case "cache_error":
            world.cache_errors[do["uid"]] += 1
        case "runtime":
            world.runtime[do["uid"]] = (do["running_containers"], do["ready_sandboxes"])
        case op:
            raise ValueError(f"cannot play the unknown step {op!r}")
    return {}


def _known(pod: KnownPod) -> Json:
    return {"state": str(pod.stage), "orphan": pod.orphan, "has_config": pod.has_config, "static": pod.static}


def _predicates(state: State, synced: bool) -> str:
    answers_in_order = (
        questions.is_known_terminated(state),
        questions.could_have_running_containers(state, synced=synced),
        questions.is_termination_requested(state),
        questions.should_containers_be_terminating(state, synced=synced),
        questions.should_runtime_be_removed(state, synced=synced),
        questions.should_content_be_removed(state, synced=synced),
        questions.should_be_finished(state, synced=synced),
    )
    return "".join("1" if answer else "0" for answer in answers_in_order)


def replay_script(script: Json) -> Iterable[Difference]:
    """Play a script with the decisions alone."""
    return play(script, DirectDriver)


# The tables.


def _effective_grace_period(given: Json) -> Json:
    grace = effective_grace(
        given["current"] or None,  # the reference writes "none yet" as 0
        deletion_seconds=given["deletion_grace_period_seconds"],
        override_seconds=given["override"],
        spec_seconds=given["termination_grace_period_seconds"],
    )
    return {"grace": grace.seconds, "shortened": grace.changed}


def _kill_pod_timeout(given: Json) -> Json:
    pod = Pod(spec=PodSpec(termination_grace_period_seconds=given["termination_grace_period_seconds"]))
    request = kill_request(pod, Channel("never"), evict=given["evict"], grace_override_seconds=given["grace_override"])
    event, kill = request.on_timeout, request.update.kill
    assert kill is not None
    return {
        "error": True,  # every row tells of a wait in vain
        "event": f"{event.type} {event.reason} {event.message}",
        "passed_evict": kill.evict,
        "passed_grace_override": kill.grace_override_seconds,
        "timeout_seconds": request.timeout_seconds,
    }


TABLES: dict[str, Replay] = {
    "effective_grace_period": answers(_effective_grace_period),
    "kill_pod_timeout": answers(_kill_pod_timeout),
}

SCRIPTS: dict[str, Callable[[Json], Iterable[Difference]]] = {"podworkers": replay_script}
