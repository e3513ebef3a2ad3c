"""The workers of a node: the order of static pods, and the result for housekeeping."""

import msgspec

from podkeeper.model.history import Cause
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.events import (
    Enqueue,
    ReadStatus,
    StatusRead,
    Synced,
    SyncFailed,
    SyncPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.states import Finished, NeverStarted, Syncing, TerminationRequested, Unknown, Waiting
from podkeeper.rules.worker.static_order import StaticOrder
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.rules.worker.workers import Orders, PodWorkerState, PodWorkerSync, WorkerTable
from podkeeper.testing import build
from tools.worker_diagram import pod_from

CREATE, SYNC, KILL = UpdateType.CREATE, UpdateType.SYNC, UpdateType.KILL
WEB, OLD, NEW, NEWER, RUNTIME_ONLY = (PodUID(uid) for uid in ("web", "old", "new", "newer", "runtime-only"))
RETRY = Enqueue(10)
STATIC = "static_default"


def pod_of(uid: PodUID) -> Pod:
    """`web` is from the API. The others are static pods with the same name."""
    if uid == WEB:
        return build.pod("web", uid=uid, source=API_SOURCE)
    return build.pod("static", uid=uid, source=FILE_SOURCE)


def update(workers: WorkerTable, update_type: UpdateType, uid: PodUID) -> Orders:
    return workers.update(build.update(update_type, pod_of(uid)), PodRecord(uid=uid))


def succeed(workers: WorkerTable, uid: PodUID) -> None:
    """Complete the sync that has begun for a pod."""
    workers.report(uid, StatusRead())
    workers.report(uid, Synced(1.0))


def kill(workers: WorkerTable, *uids: PodUID) -> None:
    """Kill idle pods and complete their syncs."""
    for uid in uids:
        update(workers, KILL, uid)
        succeed(workers, uid)
        succeed(workers, uid)


def node_with(*uids: PodUID) -> WorkerTable:
    """Create pods one after the other. Those that may start are idle afterwards."""
    workers = WorkerTable()
    for uid in uids:
        update(workers, CREATE, uid)
        if isinstance(workers.state(uid), Syncing):
            succeed(workers, uid)
    return workers


def test_a_pod_from_the_api_starts_at_once() -> None:
    workers = WorkerTable()
    assert update(workers, CREATE, WEB) == (ReadStatus(None),)
    assert workers.report(WEB, StatusRead()) == (SyncPod(CREATE, pod_of(WEB), None),)


def test_a_static_pod_waits_until_its_predecessor_has_finished() -> None:
    workers = node_with(OLD)
    assert update(workers, CREATE, NEW) == (RETRY,)
    assert update(workers, SYNC, NEW) == (RETRY,)
    kill(workers, OLD)
    assert update(workers, SYNC, NEW) == (ReadStatus(None),)


def test_next_in_line_returns_the_static_pod_that_may_start() -> None:
    workers = node_with(OLD, NEW, NEWER)
    assert workers.next_in_line(STATIC) is None
    kill(workers, OLD)
    assert workers.next_in_line(STATIC) == NEW
    update(workers, KILL, NEW)
    assert workers.next_in_line(STATIC) == NEWER
    assert update(workers, SYNC, NEWER) == (ReadStatus(None),)
    assert workers.next_in_line(STATIC) is None


def test_static_pods_start_in_the_order_received() -> None:
    workers = node_with(OLD, NEW, NEWER)
    kill(workers, OLD)
    assert update(workers, SYNC, NEWER) == (RETRY,)
    assert update(workers, SYNC, NEW) == (ReadStatus(None),)


def test_a_pod_killed_while_it_waits_finishes_without_a_sync() -> None:
    workers = node_with(OLD, NEW)
    assert update(workers, KILL, NEW) == ()
    assert workers.state(NEW) == NeverStarted(Cause.KILLED)


def test_a_static_pod_that_moved_to_the_api_still_blocks_its_successor() -> None:
    workers = node_with(OLD, NEW, NEWER)
    kill(workers, OLD)
    moved = pod_from(API_SOURCE)  # the same UID now comes from the API, so it need not wait
    moved = msgspec.structs.replace(moved, metadata=msgspec.structs.replace(moved.metadata, uid=NEW, name="static"))
    assert workers.update(build.update(SYNC, moved), None) == (ReadStatus(None),)
    assert update(workers, SYNC, NEWER) == (RETRY,)
    assert workers.next_in_line(STATIC) is None


def test_a_mirror_pod_is_kept_while_its_static_pod_stops() -> None:
    workers = node_with(OLD, NEW)
    seen = [workers.is_pod_for_mirror_pod_terminating(STATIC)]
    update(workers, KILL, OLD)
    seen.append(workers.is_pod_for_mirror_pod_terminating(STATIC))
    succeed(workers, OLD)
    seen.append(workers.is_pod_for_mirror_pod_terminating(STATIC))
    assert seen == [False, True, False]
    assert not workers.is_pod_for_mirror_pod_terminating("unknown_default")


def test_housekeeping_receives_the_known_pods() -> None:
    workers = node_with(WEB, OLD, NEW)
    workers.update(build.update(KILL, PodRecord(uid=RUNTIME_ONLY)), None)
    result = workers.sync_known_pods({WEB, OLD, NEW, RUNTIME_ONLY})
    assert result.known == {
        WEB: PodWorkerSync(PodWorkerState.SYNC, orphan=False, has_config=True, static=False),
        OLD: PodWorkerSync(PodWorkerState.SYNC, orphan=False, has_config=True, static=True),
        NEW: PodWorkerSync(PodWorkerState.SYNC, orphan=False, has_config=True, static=True),
        RUNTIME_ONLY: PodWorkerSync(PodWorkerState.TERMINATING, orphan=False, has_config=False, static=False),
    }
    assert result.orders == {}


def test_housekeeping_terminates_orphaned_pods_and_removes_waiting_ones() -> None:
    workers = node_with(WEB, OLD, NEW)
    result = workers.sync_known_pods(set())
    assert result.known == {
        WEB: PodWorkerSync(PodWorkerState.TERMINATING, orphan=True, has_config=True, static=False),
        OLD: PodWorkerSync(PodWorkerState.TERMINATING, orphan=True, has_config=True, static=True),
    }
    assert result.orders == {WEB: (ReadStatus(1.0),), OLD: (ReadStatus(1.0),)}
    assert isinstance(workers.state(NEW), Unknown)
    assert workers.report(WEB, StatusRead()) == (SyncTerminatingPod(pod_of(WEB), None, None),)


def test_a_finished_pod_is_kept_while_it_is_desired() -> None:
    workers = node_with(WEB)
    kill(workers, WEB)
    known = {WEB: PodWorkerSync(PodWorkerState.TERMINATED, orphan=False, has_config=True, static=False)}
    assert workers.sync_known_pods({WEB}).known == known
    assert update(workers, SYNC, WEB) == ()
    assert workers.sync_known_pods(set()).known == {}
    assert update(workers, CREATE, WEB) == (ReadStatus(None),)


def test_a_pod_added_again_while_it_terminates_starts_again_after_housekeeping() -> None:
    workers = node_with(OLD)
    update(workers, KILL, OLD)
    assert update(workers, CREATE, OLD) == ()
    assert OLD in workers.sync_known_pods({OLD}).known
    succeed(workers, OLD)
    succeed(workers, OLD)
    assert isinstance(workers.state(OLD), Finished)
    assert workers.sync_known_pods({OLD}).known == {}
    assert update(workers, CREATE, OLD) == (ReadStatus(None),)


def test_restartable_pods_are_removed_without_housekeeping() -> None:
    workers = node_with(WEB, OLD, NEW, NEWER)
    kill(workers, WEB, OLD)
    update(workers, KILL, NEW)
    for uid in (OLD, NEW):
        update(workers, CREATE, uid)
    before = {uid: workers.state(uid) for uid in (OLD, NEW)}
    assert [uid for uid in (WEB, OLD, NEW, NEWER, RUNTIME_ONLY) if workers.is_restartable(uid)] == [OLD, NEW]
    assert workers.forget_restartable((WEB, OLD, NEW, NEWER, RUNTIME_ONLY)) == before
    assert [type(workers.state(uid)) for uid in (WEB, OLD, NEW, NEWER)] == [Finished, Unknown, Unknown, Waiting]
    assert not workers.synced, "an unknown pod may still run"
    assert update(workers, CREATE, OLD) == (RETRY,)  # it waits behind the pod that was added meanwhile
    assert workers.next_in_line(STATIC) == NEWER


def test_a_terminating_pod_is_not_restartable() -> None:
    workers = node_with(OLD)
    update(workers, KILL, OLD)
    update(workers, CREATE, OLD)
    assert not workers.is_restartable(OLD)
    assert workers.forget_restartable((OLD,)) == {}
    assert workers.forget_restartable(()) == {}
    assert isinstance(workers.state(OLD), TerminationRequested)


def test_the_kill_of_a_runtime_pod_is_retried_until_it_succeeds() -> None:
    workers = WorkerTable()
    record = PodRecord(uid=RUNTIME_ONLY, name="runtime-only", namespace="default")
    kill = SyncTerminatingRuntimePod(record)
    assert workers.update(build.update(KILL, record), record) == (kill,)
    assert workers.report(RUNTIME_ONLY, SyncFailed(1.0)) == (RETRY,)
    assert workers.sync_known_pods(set()).orders == {RUNTIME_ONLY: (kill,)}
    assert workers.report(RUNTIME_ONLY, Synced(2.0)) == ()
    assert isinstance(workers.state(RUNTIME_ONLY), Unknown)


def test_an_ignored_update_creates_no_worker() -> None:
    workers = node_with(OLD, NEW)
    assert workers.update(build.update(SYNC, PodRecord(uid=RUNTIME_ONLY)), None) == ()
    assert workers.update(build.update(SYNC, PodRecord(uid=NEW)), None) == ()
    assert isinstance(workers.state(NEW), Waiting)
    assert set(workers.sync_known_pods({OLD, NEW}).known) == {OLD, NEW}


def test_the_static_order_skips_pods_that_should_not_run() -> None:
    order = StaticOrder()
    for uid in (OLD, NEW, NEWER):
        order.join("web", uid)
    desired = {NEW, NEWER}.__contains__
    assert order.next("web", desired) == NEW
    assert not order.start("web", NEWER, desired)
    assert order.start("web", NEW, desired)
    assert order.started("web") == NEW
    order.leave("web", OLD)
    assert order.started("web") == NEW
    order.leave("web", NEW)
    assert order.start("web", NEWER, desired)
    order.leave("web", NEWER)
    assert order.next("web", desired) is None
