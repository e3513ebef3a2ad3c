"""Replay of the `podworkers` scripts: the environment of the workers, and the steps.

The `World` is the environment of the workers: sync functions that block until the script completes them, the status
cache, the work queue and the event recorder. A `Driver` connects workers to it. `run_script` runs and compares steps.

Two drivers run each script. The `DirectDriver` executes all orders at once and so tests the decisions alone. The driver
in `tests.oracle.podworkers_async` has the real workers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from podkeeper.model.errors import InBackoff, NetworkNotReady, TryLater
from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_SOURCE_ANNOTATION, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.worker import predicates
from podkeeper.rules.worker.events import (
    Call,
    Cancel,
    Complete,
    Enqueue,
    Order,
    ReadStatus,
    RecordEvent,
    StatusRead,
    StatusUnreadable,
    Synced,
    SyncEvent,
    SyncFailed,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.states import State
from podkeeper.rules.worker.timing import retry_delay_after
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import PodWorkerSync, WorkerTable
from tests.oracle.compare import Difference, Json, differences
from tests.violations import violation

VERSION_LABEL = "version"
NEVER_SEEN = PodUID("never-seen")
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


# What the script's words mean.


@dataclass(frozen=True, slots=True)
class Channel:
    """A completion channel of a script."""

    name: str
    close: Callable[[str], None] = field(compare=False)

    def set(self) -> None:
        self.close(self.name)


@dataclass(frozen=True, slots=True)
class NamedStatusFunction:
    """A status function of a script."""

    name: str

    def __call__(self, status: PodStatus) -> PodStatus:
        return status


def pod_of(given: Json) -> Pod:
    """Return the pod of a script, with its version as a marker."""
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


def update_of(do: Json, close: Callable[[str], None]) -> Update:
    """Return the update of a script step. `close` closes its completion channel."""
    options, running, version = do.get("kill_options"), do.get("running_pod"), do.get("mirror_version")
    return Update(
        type=UpdateType(do["type"]),
        pod=pod_of(do["pod"]) if do.get("pod") is not None else None,
        mirror_pod=Pod(metadata=ObjectMeta(labels={VERSION_LABEL: str(version)})) if version is not None else None,
        running_pod=PodRecord(**running) if running is not None else None,
        kill=KillOptions(
            evict=options["evict"],
            grace_override_seconds=options["grace_override"],
            completed=Channel(options["completed"], close) if options["completed"] is not None else None,
            status_function=NamedStatusFunction(options["status_fn"]) if options["status_fn"] is not None else None,
        )
        if options is not None
        else None,
    )


def version_of(pod: Pod | None) -> int | None:
    """Return the version of a pod."""
    return None if pod is None else int((pod.metadata.labels or {})[VERSION_LABEL])


# The world.


@dataclass(slots=True)
class RunningCall:
    """A sync function that has not returned."""

    function: str
    cancelled: bool = False


@dataclass(slots=True)
class World:
    """The environment of the workers, and what happened during one step."""

    now: int = 0
    running: dict[PodUID, RunningCall] = field(default_factory=dict)
    runtime: dict[PodUID, tuple[int, int]] = field(default_factory=dict)
    cache_errors: Counter[PodUID] = field(default_factory=Counter)
    events: dict[str, list[Json]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    def note(self, uid: PodUID, event: Json) -> None:
        self.events.setdefault(uid, []).append(event)

    def cached(self, uid: PodUID) -> PodRecord:
        containers, sandboxes = self.runtime.get(uid, (0, 0))
        exited = ContainerRecord(id="exited", name="exited", state=RecordState.EXITED)
        runs = (ContainerRecord(id=f"c{i}", name=f"c{i}", state=RecordState.RUNNING) for i in range(containers))
        ready = (SandboxRecord(id=f"s{i}", ready=True) for i in range(sandboxes))
        return PodRecord(uid=uid, containers=(exited, *runs), sandboxes=tuple(ready))

    def read_newer(self, uid: PodUID, newer_than: float | None) -> str | None:
        """Return the error of the cache's `get_newer_than`, if any."""
        if self.cache_errors[uid] == 0:
            return None
        self.cache_errors[uid] -= 1
        self.note(uid, {"cache_error": True, "newer_than": newer_than})
        return "cache unavailable"

    def enter(self, uid: PodUID, call: Call, newer_than: float | None) -> None:
        """Record the call of a sync function, which blocks."""
        match call:
            case SyncPod(update_type=update_type, pod=pod, mirror_pod=mirror_pod):
                details: dict[str, Json] = {"update_type": str(update_type), "version": version_of(pod)}
                self._enter(
                    uid, "sync_pod", details | {"mirror_version": version_of(mirror_pod), "newer_than": newer_than}
                )
            case SyncTerminatingPod(pod=pod, grace_seconds=grace, status_function=function):
                name = function.name if isinstance(function, NamedStatusFunction) else None
                details = {"version": version_of(pod), "grace": grace, "status_fn": name, "newer_than": newer_than}
                self._enter(uid, "sync_terminating_pod", details)
            case SyncTerminatingRuntimePod(running_pod=running_pod):
                self._enter(uid, "sync_terminating_runtime_pod", {"name": running_pod.name})
            case SyncTerminatedPod(pod=pod):
                self._enter(uid, "sync_terminated_pod", {"version": version_of(pod), "newer_than": newer_than})

    def _enter(self, uid: PodUID, function: str, details: dict[str, Json]) -> None:
        if uid in self.running:
            raise violation(f"two sync functions at once for {uid}")
        self.running[uid] = RunningCall(function)
        self.note(uid, {"call": function} | details)

    def leave(self, uid: PodUID, result: str) -> None:
        """Record the return of the running sync function."""
        call = self.running.pop(uid)
        self.note(uid, {"return": call.function, "result": result, "cancelled": call.cancelled})

    def cancel(self, uid: PodUID) -> None:
        """Mark the running sync function as cancelled."""
        self.running[uid].cancelled = True

    def enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        """Record a call of the work queue, with the delay before jitter."""
        self.note(uid, {"enqueue": int(delay_seconds) if float(delay_seconds).is_integer() else delay_seconds})

    def record(self, uid: PodUID, event: PodEvent) -> None:
        self.note(uid, {"event": event.reason, "event_type": str(event.type), "message": event.message})

    def close(self, channel: str) -> None:
        self.closed.append(channel)

    def wall(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)


# The driver.


class Driver(Protocol):
    """Workers connected to a world. Each asynchronous method returns when all tasks are idle."""

    async def update(self, update: Update) -> None:
        """Send an update to the workers."""

    async def finish(self, uid: PodUID, result: str, backoff_seconds: float) -> None:
        """Let the running sync function return."""

    async def sync_known_pods(self, desired: set[PodUID]) -> Mapping[PodUID, PodWorkerSync]:
        """Run `sync_known_pods`."""

    def answers(self, uid: PodUID) -> tuple[bool, ...]:
        """Return seven predicates, in the order of the recordings."""

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        """Return the eighth predicate."""

    def state(self, uid: PodUID) -> State:
        """Return the state of a pod's worker."""

    async def close(self) -> None:
        """Stop all tasks."""


class DirectDriver:
    """Executes orders at once, without tasks. This tests the decisions alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._workers = WorkerTable()
        self._newer_than: dict[PodUID, float | None] = {}

    async def update(self, update: Update) -> None:
        self._execute(update.uid, self._workers.update(update, self._world.cached(update.uid)))

    async def finish(self, uid: PodUID, result: str, backoff_seconds: float) -> None:
        self._world.leave(uid, result)
        error = error_of(self._world, result, backoff_seconds)
        if error is None:
            progress: SyncEvent = Synced(self._world.now, is_terminal=is_terminal_result(result))
        else:
            progress = SyncFailed(self._world.now, retry_delay_after(error, self._world.wall()))
        self._execute(uid, self._workers.report(uid, progress))

    async def sync_known_pods(self, desired: set[PodUID]) -> Mapping[PodUID, PodWorkerSync]:
        result = self._workers.sync_known_pods(desired)
        for uid, orders in result.orders.items():
            self._execute(uid, orders)
        return result.known

    def answers(self, uid: PodUID) -> tuple[bool, ...]:
        state, synced = self._workers.state(uid), self._workers.synced
        return (
            predicates.is_known_terminated(state),
            predicates.could_have_running_containers(state, synced=synced),
            predicates.is_termination_requested(state),
            predicates.should_containers_be_terminating(state, synced=synced),
            predicates.should_runtime_be_removed(state, synced=synced),
            predicates.should_content_be_removed(state, synced=synced),
            predicates.should_be_finished(state, synced=synced),
        )

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        return self._workers.is_pod_for_mirror_pod_terminating(full_name)

    def state(self, uid: PodUID) -> State:
        return self._workers.state(uid)

    async def close(self) -> None:
        """Do nothing, because there are no tasks."""

    def _execute(self, uid: PodUID, orders: Iterable[Order]) -> None:
        for order in orders:
            match order:
                case ReadStatus(newer_than=newer_than):
                    self._newer_than[uid] = newer_than
                    error = self._world.read_newer(uid, newer_than)
                    progress = StatusRead() if error is None else StatusUnreadable(error)
                    self._execute(uid, self._workers.report(uid, progress))
                case Cancel():
                    self._world.cancel(uid)
                case Enqueue(delay_seconds=delay_seconds):
                    self._world.enqueue(uid, delay_seconds)
                case Complete(signals=signals):
                    for signal in signals:
                        signal.set()
                case RecordEvent(event=event):
                    self._world.record(uid, event)
                case SyncPod() | SyncTerminatingPod() | SyncTerminatingRuntimePod() | SyncTerminatedPod() as call:
                    self._world.enter(uid, call, self._newer_than.get(uid))


def is_terminal_result(result: str) -> bool:
    return result == "terminal"


def error_of(world: World, result: str, backoff_seconds: float) -> TryLater | None:
    """Return the exception of a sync function with this result, if any."""
    match result:
        case "ok" | "terminal":
            return None
        case "network_not_ready":
            return NetworkNotReady("cannot sync: network is not ready")
        case "backoff_error":
            return InBackoff("cannot start", world.wall() + timedelta(seconds=backoff_seconds))
        case "error" | "terminal_error" | "canceled":
            return TryLater(f"cannot sync: {result}")
        case _:
            raise ValueError(f"cannot replay the unknown result {result!r}")


# The replay.


async def run_script(script: Json, make_driver: Callable[[World], Driver]) -> list[Difference]:
    """Run the steps of a script. After each, compare everything that is recorded."""
    world = World()
    driver = make_driver(world)
    found: list[Difference] = []
    for index, recorded in enumerate(script["steps"]):
        seen = await do_step(world, driver, recorded["do"])
        seen |= {
            "predicates": {
                uid: "".join("1" if answer else "0" for answer in driver.answers(uid))
                for uid in (NEVER_SEEN, *script["uids"])
            },
            "mirror_terminating": [
                name for name in script["full_names"] if driver.is_pod_for_mirror_pod_terminating(name)
            ],
        }
        found += differences(recorded["expect"], seen, f"step {index} of {make_driver.__name__}")
    await driver.close()
    return found


async def do_step(world: World, driver: Driver, do: Json) -> dict[str, Json]:
    """Apply one step and return what happened."""
    world.events, world.closed = {}, []
    details = await _do(world, driver, do)
    return details | {
        "events": world.events,
        "running": {uid: {"fn": call.function, "cancelled": call.cancelled} for uid, call in world.running.items()},
        "closed": sorted(world.closed),
    }


async def _do(world: World, driver: Driver, do: Json) -> dict[str, Json]:
    match do["op"]:
        case "update":
            await driver.update(update_of(do, world.close))
        case "finish" if do["uid"] not in world.running:
            return {"noop": True}
        case "finish":
            await driver.finish(do["uid"], do["result"], do.get("backoff_seconds", 0))
        case "known":
            known = await driver.sync_known_pods(set(do["desired"]))
            return {"known": {uid: _known(pod) for uid, pod in known.items()}}
        case "advance":
            world.now += do["seconds"]
        case "cache_error":
            world.cache_errors[do["uid"]] += 1
        case "runtime":
            world.runtime[do["uid"]] = (do["running_containers"], do["ready_sandboxes"])
        case op:
            raise ValueError(f"cannot replay the unknown step {op!r}")
    return {}


def _known(pod: PodWorkerSync) -> Json:
    return {"state": str(pod.state), "orphan": pod.orphan, "has_config": pod.has_config, "static": pod.static}
