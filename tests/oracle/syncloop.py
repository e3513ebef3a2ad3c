"""Replay of the recorded scripts for the handlers of the sync loop and housekeeping.

As in the recording, the workers, the status manager and the admission are fakes with the answers of the script. The pod
manager, the queue, the deadlines and all decisions are the real ones.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from podkeeper.engine.admission import Admission
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.loop import SyncLoop
from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.runtime_state import RuntimeState
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.k8s.core import Container, Pod, PodCondition, PodReadinessGate, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    LifecycleEvent,
    LifecycleEventType,
    Op,
    PodUID,
    PodUpdate,
    ProbeKind,
    ProbeResult,
    ProbeUpdate,
)
from podkeeper.model.runtime import PodRecord, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeHealth
from podkeeper.model.times import format_time
from podkeeper.rules.admission.admit import Rejection
from podkeeper.rules.worker.updates import StatusFunction, Update
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync
from podkeeper.testing.virtual_time import simulate
from tests.doubles import stand_in
from tests.oracle.compare import Difference, Json, differences
from tests.violations import violation

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
USUAL_NOW_SECONDS = 1000
BEFORE_EPOCH_SECONDS = 10_000  # recorded creation times may be before the epoch of the recording


class _Clock:
    def __init__(self) -> None:
        self.seconds = USUAL_NOW_SECONDS

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return float(self.seconds)

    def fraction(self) -> float:
        return 0.0


class _Workers:
    """Returns the answers of the script, and records the calls."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.desired: list[PodUID] = []
        self.known: dict[PodUID, PodWorkerSync] = {}
        self.known_terminated: set[PodUID] = set()
        self.termination_requested: set[PodUID] = set()
        self.mirror_terminating: set[str] = set()

    def answer(self, step: Json) -> None:
        self.known = {
            uid: PodWorkerSync(PodWorkerState(stage), orphan=False, has_config=True, static=False)
            for uid, stage in step["known"].items()
        }
        self.known_terminated = set(step["known_terminated"])
        self.termination_requested = set(step["termination_requested"])
        self.mirror_terminating = set(step["mirror_terminating"])

    def update_pod(self, update: Update) -> None:
        self.updates.append(update)

    def retry(self, uid: PodUID) -> None: ...

    def sync_known_pods(self, desired: Collection[PodUID]) -> Mapping[PodUID, PodWorkerSync]:
        self.desired = sorted(desired)
        return self.known

    def forget_restartable(self, uids: Collection[PodUID]) -> Collection[PodUID]:
        raise violation("the kubelet starts no pod again before all sources are ready")

    def is_restartable(self, uid: PodUID) -> bool:
        raise violation("the kubelet starts no pod again before all sources are ready")

    def updated_since_housekeeping(self) -> frozenset[PodUID]:
        return frozenset()

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        return uid in self.known_terminated

    def could_have_running_containers(self, uid: PodUID) -> bool:
        return uid in self.known and self.known[uid].state is not PodWorkerState.TERMINATED

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return uid in self.termination_requested

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        return full_name in self.mirror_terminating

    def should_pod_content_be_removed(self, uid: PodUID) -> bool:
        return False

    def next_in_line(self, full_name: str) -> PodUID | None:
        return None

    async def kill_pod(self, pod: Pod, *, evict: bool, status_function: StatusFunction) -> None:
        raise violation("no recorded script preempts a pod")


class _Statuses:
    """Stores statuses and returns them."""

    def __init__(self) -> None:
        self.calls: list[Json] = []
        self._statuses: dict[PodUID, PodStatus] = {}

    def set_pod_status(self, pod: Pod, status: PodStatus) -> None:
        uid = pod.metadata.uid or ""
        self._statuses[PodUID(uid)] = status
        fields = {"phase": status.phase, "reason": status.reason, "message": status.message}
        self.calls.append({"call": "set_pod_status", "uid": uid, **fields})

    def mirror_changed(self, uid: PodUID) -> None: ...

    def forget_rejection(self, pod: Pod) -> bool:
        return False

    def set_container_readiness(self, uid: PodUID, container_id: str, ready: bool) -> None:
        self._note_flag("set_container_readiness", uid, container_id, ready)

    def set_container_startup(self, uid: PodUID, container_id: str, started: bool) -> None:
        self._note_flag("set_container_startup", uid, container_id, started)

    def remove_orphaned_statuses(self, keep: Collection[PodUID]) -> None:
        self.calls.append({"call": "remove_orphaned_statuses", "keep": sorted(keep)})

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        return self._statuses.get(uid)

    def _note_flag(self, call: str, uid: str, container_id: str, value: bool) -> None:
        self.calls.append({"call": call, "uid": uid, "container_id": container_id, "value": value})


class _Admission:
    """Rejects the pods of the script."""

    def __init__(self) -> None:
        self.rejected: set[str] = set()

    def admit(self, pod: Pod) -> Rejection | None:
        return Rejection("OutOfcpu", "no cpu") if pod.metadata.uid in self.rejected else None

    def add(self, pod: Pod) -> None: ...

    def update(self, pod: Pod) -> None: ...

    def forget(self, uid: PodUID) -> None: ...


class _Runtime:
    def __init__(self) -> None:
        self.running: list[str] = []

    async def list_pods(self) -> Sequence[PodRecord]:
        return [PodRecord(uid=uid, sandboxes=(SandboxRecord(id="s", ready=True),)) for uid in self.running]

    async def health(self) -> RuntimeHealth:
        return RuntimeHealth()


class _Mirrors:
    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def delete(self, pod_full_name: str) -> bool:
        self.deleted.append(pod_full_name)
        return True


class _Probes:
    def keep_only(self, uids: Collection[PodUID]) -> None: ...


class _Node:
    """The loop and housekeeping of one script."""

    def __init__(self, sources: Sequence[str]) -> None:
        self.clock = _Clock()
        self.workers, self.statuses, self.admission = _Workers(), _Statuses(), _Admission()
        self.runtime, self.mirrors = _Runtime(), _Mirrors()
        self.inbox = LoopInbox(clock=self.clock)
        pods = PodManager()
        deadlines = ActiveDeadlines(
            statuses=stand_in(StatusManager, self.statuses), is_terminating=lambda uid: False, clock=self.clock
        )
        self.handlers = SyncHandlers(
            pods=pods,
            workers=stand_in(PodWorkers, self.workers),
            statuses=stand_in(StatusManager, self.statuses),
            deadlines=deadlines,
            admission=stand_in(Admission, self.admission),
            preemption=Preemption(
                workers=stand_in(PodWorkers, self.workers), record_event=lambda *_: None, clock=self.clock
            ),
            sources=sources,
            has_seen=lambda _: True,
            collect_dead=lambda *_: None,
            record_event=lambda *_: None,
            clock=self.clock,
        )
        self.housekeeping = Housekeeping(
            pods=pods,
            workers=stand_in(PodWorkers, self.workers),
            runtime=self.runtime,
            statuses=stand_in(StatusManager, self.statuses),
            probes=stand_in(ProbeManager, _Probes()),
            mirrors=stand_in(MirrorClient, self.mirrors),
            admission=stand_in(Admission, self.admission),
            clock=self.clock,
        )
        self.loop = SyncLoop(
            handlers=self.handlers,
            inbox=self.inbox,
            deadlines=deadlines,
            housekeeping=self.housekeeping,
            runtime_state=RuntimeState(self.runtime),
            clock=self.clock,
        )

    def do(self, step: Json) -> Json:
        """Apply one recorded step and return our result."""
        self.workers.updates.clear()
        self.statuses.calls.clear()
        more: dict[str, Json] = {}
        match step["event"]:
            case "config":
                self.admission.rejected = {pod["uid"] for pod in step["pods"] if pod["rejected_by_admission"]}
                pods = tuple(_pod(pod) for pod in step["pods"])
                list(self.handlers.config(PodUpdate(Op(step["op"]), pods, step["source"])))
            case "pleg":
                self.handlers.lifecycle(LifecycleEvent(PodUID(step["uid"]), LifecycleEventType(step["type"])))
            case "probe":
                kind, result = ProbeKind(step["kind"]), ProbeResult(step["result"])
                self.handlers.probe(ProbeUpdate(kind, PodUID(step["uid"]), step["container_id"], result))
            case "tick":
                self.clock.seconds = step.get("now", USUAL_NOW_SECONDS)
                for uid in step["work_due"]:
                    self.inbox.queue.enqueue(PodUID(uid), -1)
                list(self.loop.tick())
                self.clock.seconds = USUAL_NOW_SECONDS
            case "housekeeping":
                more = self._housekeeping(step)
            case other:
                raise AssertionError(f"unknown event {other!r}")
        updates = [_shown(update) for update in self.workers.updates]
        if step["event"] in ("tick", "housekeeping"):
            updates.sort(key=lambda update: (update["pod"] or update["running_pod"], update["type"]))
        return {"update_pod_calls": updates, "status_manager_calls": list(self.statuses.calls), **more}

    def _housekeeping(self, step: Json) -> dict[str, Json]:
        self.runtime.running = step["runtime_pods"]
        self.workers.desired, self.mirrors.deleted = [], []
        ran = self.handlers.all_sources_ready()
        if ran:
            simulate(self._run_housekeeping())
        return {
            "ran": ran,
            "sync_known_pods_desired": list(self.workers.desired),
            "mirror_pods_deleted": sorted(self.mirrors.deleted),
        }

    async def _run_housekeeping(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self.housekeeping.clean_up_pods(group)


def _pod(given: Json) -> Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: given["source"]}
    if given["mirror"]:
        annotations[CONFIG_MIRROR_ANNOTATION] = "hash"
    outdated = given["ready_condition_outdated"]
    return Pod(
        metadata=ObjectMeta(
            uid=given["uid"],
            name=given["name"],
            namespace=given["namespace"],
            annotations=annotations,
            creation_timestamp=_time(given["created"] + BEFORE_EPOCH_SECONDS),
            generation=given["version"],
            deletion_timestamp=_time(0) if given["deletion_timestamp"] else None,
        ),
        spec=PodSpec(
            active_deadline_seconds=given["active_deadline_seconds"],
            readiness_gates=(PodReadinessGate(condition_type="gate"),) if outdated else None,
            containers=(Container(name="app"),),
        ),
        status=PodStatus(
            phase=given["phase"],
            start_time=_time(given["start_time"]),
            conditions=(PodCondition(type="Ready", status="True"),) if outdated else None,
        ),
    )


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else format_time(EPOCH + timedelta(seconds=seconds))


def _shown(update: Update) -> Json:
    pod, mirror, running = update.pod, update.mirror_pod, update.running_pod
    return {
        "type": update.type.value,
        "pod": None if pod is None else pod.metadata.uid,
        "version": None if pod is None else pod.metadata.generation,
        "mirror_pod": None if mirror is None else mirror.metadata.uid,
        "running_pod": None if pod is not None or running is None else running.uid,
        "grace_override": None if update.kill is None else update.kill.grace_override_seconds,
    }


def replay_script(script: Json) -> Iterator[Difference]:
    """Run a script step by step on a new node."""
    node = _Node(script["needed_sources"])
    for index, step in enumerate(script["steps"]):
        if step["event"] == "workers":
            node.workers.answer(step)
        else:
            yield from differences(step["expect"], node.do(step), f"steps[{index}] {step['event']}")


SCRIPTS = {"syncloop": replay_script}
